"""Ranks on two hosts: placement, lending, clocks, checkpoints, and what happens when the wire between them is cut.

The hosts are made of this machine (hosts.py); a bare mpirun starts two ranks on each, over TCP.
"""

import json
import os
import re
import signal
import subprocess
import time

import hosts
import pytest
import slurm_cluster
import trainer_runs

WHY_NOT = hosts.why_not()
PEER_TIMEOUT_S = 2

pytestmark = [pytest.mark.thorough, pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT)),
              pytest.mark.usefixtures("ranks")]


class Lab:
    def __init__(self, folder):
        self.folder, self.hosts = folder, hosts.Hosts(folder)
        self.config = trainer_runs.write_config(folder, data=f'{{train: "{folder}/train_*.bin"}}')
        self.env = trainer_runs.mpirun_environment(TMPDIR="/dev/shm", OMP_NUM_THREADS="1")

    def start(self, *overrides, **keywords):
        return trainer_runs.launch(self.config, *overrides, prefix=self.hosts.mpirun(), env=self.env, **keywords)

    def run(self, *overrides, **keywords):
        return trainer_runs.run(self.config, *overrides, prefix=self.hosts.mpirun(), env=self.env, **keywords)

    def nothing_left(self, seconds):
        left = lambda: self.hosts.processes(0) + self.hosts.processes(1)
        trainer_runs.wait_until(lambda: not left(), left, seconds)
        return True


@pytest.fixture
def lab(tmp_path):
    one = Lab(tmp_path)
    try:
        one.hosts.start()
        yield one
    finally:
        one.hosts.stop()


def table(ended):
    """Returns (stage, host) of each rank from the table that the start prints."""
    return [(int(stage), host) for stage, host in re.findall(r"^ +\d+ +(\d) +\d +\d +(host\d) ", ended.stderr, re.M)]


def test_pairs_lie_where_placement_says_and_the_bits_are_those_of_one_host(lab):
    alone = trainer_runs.run(lab.config)
    adjacent = lab.run("parallel.placement=adjacent", arguments=["--verbose"])
    assert table(adjacent) == [(0, "host1"), (3, "host1"), (1, "host2"), (2, "host2")]
    assert "span two hosts" not in adjacent.stderr
    chosen = "[rank 0 stage 0] chosen: evicted bundles go "
    assert f"{chosen}into the partner's memory, copied by this stage alone" in adjacent.stderr
    linear = lab.run("parallel.placement=linear", arguments=["--verbose"])
    assert table(linear) == [(0, "host1"), (1, "host1"), (2, "host2"), (3, "host2")]
    assert "2 of 2 pairs of stages span two hosts" in linear.stderr
    assert f"{chosen}to the partner as messages, which it must receive" in linear.stderr
    assert adjacent.bits == alone.bits and linear.bits == alone.bits and len(alone.bits) == 6
    assert lab.nothing_left(5)


DRIFT = """
int clock_gettime(clockid_t clock, struct timespec *at) {
    static double first;
    char host[16] = "";
    int code = REAL(clock_gettime)(clock, at);
    gethostname(host, sizeof host - 1);
    if (clock != CLOCK_MONOTONIC || strcmp(host, "host2") != 0) return code;
    double now = (double)at->tv_sec + 1e-9 * (double)at->tv_nsec;
    if (first == 0) first = now;
    now -= 0.01 * (now - first);
    at->tv_sec = (time_t)now, at->tv_nsec = (long)(1e9 * (now - (double)at->tv_sec));
    return code;
}
"""


def test_a_trace_has_one_clock_though_the_hosts_have_two_that_drift_apart(lab):
    """host2's clock runs a hundredth too slow; the ranks compare their clocks at the start and at step 32."""
    read = ["python3", "-c", "import time; print(time.monotonic())"]
    first, second = (float(lab.hosts.run(i, *read).stdout) for i in (0, 1))
    assert second - first > 4000
    drift = ["env", f"LD_PRELOAD={trainer_runs.preload(lab.folder / 'drift.so', DRIFT)}"]
    ended = trainer_runs.run(lab.config, "parallel.placement=linear", "train.steps=33", env=lab.env,
                             prefix=lab.hosts.mpirun() + drift, arguments=["--trace", lab.folder / "trace.json"])
    events = [e for e in json.loads((lab.folder / "trace.json").read_text()) if e.get("ph") == "X"]
    assert max(e["ts"] + e["dur"] for e in events) < 60e6
    begins = sorted(e["ts"] for e in events if e["pid"] == 0 and e["name"] == "F0")
    forwards = {(e["pid"], e["name"]): e for e in events
                if re.fullmatch(r"F\d+", e["name"]) and e["ts"] > begins[-1] - 1000}
    assert len(begins) == 33 and len(forwards) == 32
    apart = 2000 + 0.02 * ended.steps[-1]["step_ms"] * 1000
    for (stage, name), event in forwards.items():
        if stage < 3:  # a message has arrived before the next stage begins; clocks agree to a fraction of its latency
            assert event["ts"] + event["dur"] < forwards[stage + 1, name]["ts"] + apart, (stage, name)
    assert all(0 <= step["bubble"] < 1 for step in ended.steps)


def test_two_hosts_write_one_checkpoint_and_go_on_from_it(lab):
    steps, saved = 60, lab.folder / "checkpoints"
    alone = trainer_runs.run(lab.config, f"train.steps={steps}")
    metrics = lab.folder / "two.jsonl"
    overrides = [f"train.steps={steps}", f"log.metrics={metrics}", f"checkpoint.dir={saved}", "checkpoint.every=20",
                 "checkpoint.keep=2"]
    job = lab.start(*overrides, resume_if_any=saved)
    job.trains(22)
    (mpirun,) = [pid for pid, words in lab.hosts.processes(0) if words.startswith("mpirun")]
    os.kill(mpirun, signal.SIGUSR1)
    stopped = job.end(code=3)
    assert "stopped on request after step" in stopped.stderr, stopped.stderr
    assert len(list(saved.iterdir())) == 2
    for place in saved.iterdir():
        assert trainer_runs.verify(place) is None
    again = lab.run(*overrides, resume=saved)
    assert "resumed from" in again.stderr and again.bits == alone.bits
    assert sorted(path.name for path in saved.iterdir()) == [f"step_{step:08d}" for step in (steps - 20, steps)]


def test_a_cut_wire_ends_the_job_on_both_hosts(lab):
    metrics = lab.folder / "cut.jsonl"
    job = lab.start("train.steps=1000000", f"train.peer_timeout_s={PEER_TIMEOUT_S}", f"log.metrics={metrics}")
    job.trains(20)
    began = time.monotonic()
    lab.hosts.wire_is("down")
    ended = job.end(None)
    seconds = time.monotonic() - began
    assert ended.code != 0
    assert PEER_TIMEOUT_S - 1 < seconds < PEER_TIMEOUT_S + trainer_runs.patience(10)
    said = [line for line in ended.said if re.search(r"rank [23] \(stage [23]\) has sent no heartbeat for \d+ s", line)]
    assert len(said) == 1 and "it is stopped or cut off" in said[0], ended.stderr
    assert lab.nothing_left(10)


def test_a_slow_wire_costs_time_and_no_bits(lab):
    """A start takes some 150 round trips: half a minute here, eight minutes if a round trip takes 3 s."""
    alone = trainer_runs.run(lab.config, "train.steps=1")
    lab.hosts.slow_wire(0.1)
    ended = lab.run("train.steps=1", "parallel.placement=linear")
    assert "said nothing" not in ended.stderr, ended.stderr
    assert ended.bits == alone.bits and len(ended.bits) == 2
    assert ended.steps[0]["step_ms"] > 200  # one round trip
    assert lab.nothing_left(5)


def test_a_start_over_a_slow_wire_names_it(lab):
    lab.hosts.slow_wire(0.7)
    ended = lab.run("train.steps=1", "parallel.placement=linear")
    joining = r"MPI has been connecting 4 ranks for 2\d s; it is waiting for the slowest host or link\n"
    assert re.search(joining, ended.stderr), ended.stderr
    late = r"the first heartbeat of rank [23] came [1-9]\.\d s after MPI had joined the ranks: the link between"
    assert re.search(late, ended.stderr)


def test_a_network_that_hosts_do_not_share_is_no_harm_once_theirs_is_named(lab):
    for i in (0, 1):  # like container bridges, which have the same address on every host
        for command in ("add docker0 type veth peer name docker1", "set docker1 up", "set docker0 up"):
            lab.hosts.run(i, "ip", "link", *command.split())
        lab.hosts.run(i, *"ip address add 172.17.0.1/16 dev docker0".split())
    lab.run("train.steps=1")
    ended = trainer_runs.run(lab.config, "train.timeout_s=4", prefix=lab.hosts.mpirun(named=False), env=lab.env,
                             code=None)
    assert ended.code != 0 and "name the right one to mpirun" in ended.stderr, ended.stderr
    assert lab.nothing_left(10)


@pytest.fixture
def slurm(lab):
    why_not = slurm_cluster.why_not()
    if why_not is not None:
        pytest.skip(why_not)
    (lab.folder / "slurm").mkdir()
    cluster = slurm_cluster.Cluster(lab.folder / "slurm", lab.hosts)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def test_slurm_starts_ranks_on_both_hosts_and_a_stopped_one_ends_the_step(lab, slurm):
    srun = {"prefix": [*lab.hosts.enter(0), "srun", "--mpi=pmix", "--nodes=2", "--ntasks-per-node=2"],
            "env": slurm.env}
    ended = trainer_runs.run(lab.config, "parallel.placement=adjacent", **srun)
    assert table(ended) == [(0, "host1"), (3, "host1"), (1, "host2"), (2, "host2")]
    assert ended.bits == trainer_runs.run(lab.config).bits
    keys = ("train.steps=1000000", f"train.peer_timeout_s={PEER_TIMEOUT_S}")
    job = trainer_runs.launch(lab.config, *keys, stdout=subprocess.DEVNULL, **srun)
    job.trains(20)
    stopped = [pid for pid, words in lab.hosts.processes(1) if words.startswith(str(trainer_runs.trainer("llama")))]
    os.kill(stopped[0], signal.SIGSTOP)
    began = time.monotonic()
    ended = job.end(None)
    said = ended.stderr
    assert ended.code != 0 and time.monotonic() - began < PEER_TIMEOUT_S + trainer_runs.patience(10), said
    assert len(re.findall(r"rank [23] \(stage [23]\) has sent no heartbeat for \d+ s", said)) == 1, said
    assert not [words for i in (0, 1) for _, words in lab.hosts.processes(i)
                if words.startswith(str(trainer_runs.trainer("llama")))]

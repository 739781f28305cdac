"""If a process dies, stops or hangs, the job ends in time, names it, and resumes from its checkpoint."""

import fcntl
import os
import re
import select
import shutil
import signal
import time
from pathlib import Path

import pytest

from harm import ENDS_WITHIN, build_harm, launcher_process, rank_process, small_config, supervisor_process
from trainer_runs import (environment, launch, metrics_of, mpirun, mpirun_environment, nothing_left, patience,
                          socket_inodes, wait_until)

pytestmark = pytest.mark.usefixtures("ranks")

ENDLESS = ["parallel.pipeline=4", "train.steps=1000000", "train.schedule=constant"]
PATIENCE = round(patience(2))  # seconds; the default is 10


@pytest.fixture(scope="module")
def harm(tmp_path_factory):
    if shutil.which("gcc") is None:
        pytest.skip("no gcc to build what stops a rank")
    return build_harm(tmp_path_factory.mktemp("harm"))


@pytest.fixture
def small(tmp_path):
    return small_config(tmp_path)


@pytest.fixture
def open_mpi_sweeps_nothing():
    """Removes shared memory that a bare mpirun leaves when it is killed; the trainer's own parent would remove it."""
    before = set(Path("/dev/shm").glob("vader_segment.*"))
    yield
    for left in set(Path("/dev/shm").glob("vader_segment.*")) - before:
        left.unlink()


def start(config, tmp_path, *overrides, bare=False, **environment_changes):
    prefix, env = (mpirun(4), mpirun_environment) if bare else ((), environment)
    return launch(config, *ENDLESS, f"log.metrics={tmp_path}/metrics.jsonl", *overrides, prefix=prefix,
                  env=env(OMP_NUM_THREADS="1", **environment_changes))


def steps_done(tmp_path):
    return len(metrics_of(tmp_path / "metrics.jsonl"))


def trains(job, tmp_path, steps=3):
    """Waits until `steps` more steps are trained."""
    job.trains(steps_done(tmp_path) + steps)


def coordinator_listens(job):
    """Returns whether the supervisor of rank 0 still waits for the first reports of ranks."""
    tables = [Path(f"/proc/net/{table}") for table in ("tcp", "tcp6")]
    rows = [line.split() for table in tables if table.exists() for line in table.read_text().splitlines()[1:]]
    return socket_inodes([supervisor_process(job, 0)]) & {row[9] for row in rows if row[3] == "0A"}


def running(config, tmp_path, *overrides, bare=False, **how):
    """Starts a job and waits for its first steps, and for the first report of each rank: without the program that
    starts ranks, they report over TCP, and ranks of which no report has arrived are not missed."""
    job = start(config, tmp_path, *overrides, bare=bare, **how)
    trains(job, tmp_path)
    wait_until(lambda: not (bare and coordinator_listens(job)), "the port of rank 0's supervisor stays open")
    return job


def ends(job, began, within, code=1):
    ended = job.end(code)
    seconds = time.monotonic() - began
    assert seconds < patience(within), (seconds, ended.stderr)
    assert nothing_left(job.config)
    return ended


def harmed(small, tmp_path, harm, what, *overrides, bare=False, **environment_changes):
    """Starts a job, harms a rank once it trains, and returns how the job ended."""
    begins = tmp_path / what
    harmful = {"LD_PRELOAD": str(harm), f"HARM_{what}": str(begins), **environment_changes}
    job = running(small, tmp_path, *overrides, bare=bare, **harmful)
    begins.touch()
    return ends(job, time.monotonic(), PATIENCE + ENDS_WITHIN)


# --- crashes


def test_a_crash_is_left_to_the_kernel(small, tmp_path):
    """Open MPI's handler allocates memory, and sometimes hung when the crash happened during an allocation."""
    job = running(small, tmp_path, bare=True)
    caught = int(re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{rank_process(job, 1)}/status").read_text())[1], 16)
    crashes = [signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV]
    os.kill(rank_process(job, 1), signal.SIGSEGV)
    ended = ends(job, time.monotonic(), ENDS_WITHIN, None)
    assert [name for name in crashes if caught >> (name - 1) & 1] == []
    assert ended.code != 0 and re.search(r"rank 1 \(stage 1\) was killed by signal 11 \(.*\) while at \w",
                                         ended.stderr), ended.stderr


# --- ranks that stop


@pytest.mark.thorough
@pytest.mark.parametrize("bare,stopped", [(False, 2), (True, 2), (True, 0)])
def test_a_stopped_rank_is_missed_and_every_stage_says_what_it_waits_for(small, tmp_path, bare, stopped):
    job = running(small, tmp_path, f"train.peer_timeout_s={PATIENCE}", bare=bare)
    time.sleep(1 if bare else 0)  # rank 0's knowledge of the others is as old as their last heartbeat
    began = time.monotonic()
    os.kill(rank_process(job, stopped), signal.SIGSTOP)
    ended = ends(job, began, PATIENCE + ENDS_WITHIN)
    silent = rf"rank {stopped} (\(stage {stopped}\) )?has sent no heartbeat for \d+ s"
    assert re.search(silent, ended.stderr), ended.stderr
    lines = [line.removeprefix("train_llama: ") for line in ended.said]
    stages = [line for line in lines if re.match(r"stage \d (waits|was|is)", line)]
    assert [line.split()[1] for line in stages] == ["0", "1", "2", "3"], ended.stderr
    assert re.match(rf"stage {stopped} was last heard from \d+ s ago, at \S", stages[stopped]), stages
    near = [line for line in stages if re.search(rf" waits for .*stage {stopped}.*, which was last at \w", line)]
    assert near or any("all ranks" in line for line in stages), stages
    place = r" at (step \d+|validation)( [FB]\d+| optimizer| end of the pipeline)?$"
    assert all(re.search(place, line) for line in near), stages


@pytest.mark.thorough
def test_a_host_of_rank_0_that_stops_is_missed_by_every_rank(small, tmp_path):
    """The supervisor of rank 0 receives all heartbeats; without it, each rank reports for itself."""
    job = running(small, tmp_path, f"train.peer_timeout_s={PATIENCE}", bare=True)
    supervisor, began = supervisor_process(job, 0), time.monotonic()
    for pid in (supervisor, rank_process(job, 0)):
        os.kill(pid, signal.SIGSTOP)
    ended = ends(job, began, PATIENCE + ENDS_WITHIN, None)
    assert ended.code != 0
    says = r"\[rank (\d) stage \1\] rank 0( \(stage 0\))? has sent no heartbeat for .*; this rank (waits for|is at) "
    assert re.search(says, ended.stderr), ended.stderr


@pytest.mark.parametrize("bare", [False, True])
def test_a_killed_supervisor_takes_its_rank_and_the_job_along(small, tmp_path, bare):
    job = running(small, tmp_path, f"checkpoint.dir={tmp_path}/saved", "checkpoint.every=1000000", bare=bare)
    os.kill(supervisor_process(job, 2), signal.SIGKILL)
    ended = ends(job, time.monotonic(), ENDS_WITHIN, None)
    assert "nothing was saved since its start: give the same command again" in ended.stderr, ended.stderr
    assert ended.code != 0 and re.search("rank 2 .*(was killed by signal 9|died|has sent no heartbeat)|signal 9",
                                         ended.stderr), ended.stderr


@pytest.mark.thorough
def test_a_rank_that_stops_while_it_starts_is_missed(small, tmp_path):
    job = start(small, tmp_path, f"train.peer_timeout_s={PATIENCE}", "train.timeout_s=6")
    pid = wait_until(lambda: rank_process(job, 1), "no rank 1")
    began = time.monotonic()
    os.kill(pid, signal.SIGSTOP)
    ended = ends(job, began, 6 + ENDS_WITHIN)
    assert re.search("rank 1 .*has sent no heartbeat|no rank has made progress", ended.said[-1]), ended.stderr


@pytest.mark.thorough
def test_a_stopped_mpirun_is_missed(small, tmp_path):
    job = running(small, tmp_path, f"train.peer_timeout_s={PATIENCE}")
    began = time.monotonic()
    os.kill(launcher_process(job), signal.SIGSTOP)
    ended = ends(job, began, PATIENCE + ENDS_WITHIN)
    assert "mpirun has been stopped for" in ended.said[-1]


@pytest.mark.thorough
@pytest.mark.usefixtures("open_mpi_sweeps_nothing")
def test_a_stopped_bare_mpirun_stops_nothing_for_good(small, tmp_path):
    """Its pipes fill, and ranks that write to them block."""
    job = running(small, tmp_path, f"train.timeout_s={PATIENCE}", f"train.peer_timeout_s={PATIENCE}", bare=True)
    os.kill(job.pid, signal.SIGSTOP)
    assert nothing_left(small, 60)
    assert job.end(None).code != 0


@pytest.mark.thorough
def test_a_rank_that_goes_on_in_time_is_forgiven(small, tmp_path):
    job = running(small, tmp_path, "train.peer_timeout_s=20")
    pid = rank_process(job, 1)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(1.5)
    os.kill(pid, signal.SIGCONT)
    trains(job, tmp_path)
    assert "stopped on request" in job.stop(code=1).stderr and nothing_left(small)


# --- ranks that live and do nothing


@pytest.mark.thorough
@pytest.mark.parametrize("bare", [False, True])
def test_a_job_in_which_nothing_moves_ends_and_every_stage_says_where(small, tmp_path, harm, bare):
    ended = harmed(small, tmp_path, harm, "STALL", f"train.timeout_s={PATIENCE}", bare=bare, HARM_RANK="3")
    assert re.search(r"no rank has made progress for \d+ s \(train.timeout_s\)", ended.stderr), ended.stderr
    # A rank may have stopped during a wait for a message that has arrived meanwhile.
    stages = re.findall(r"^train_llama: stage (\d) (?:waits for|is at) \w", ended.stderr, re.M)
    assert stages == ["0", "1", "2", "3"], ended.stderr


@pytest.mark.thorough
def test_one_rank_alone_ends_where_nothing_moves(small, tmp_path, harm):
    alone = ("parallel.pipeline=1", "schedule.bpipe=off", f"train.timeout_s={PATIENCE}")
    ended = harmed(small, tmp_path, harm, "STALL", *alone)
    assert "this rank has made no progress for" in ended.said[-1], ended.stderr


# --- connections that are cut off


@pytest.mark.thorough
def test_a_rank_that_is_cut_off_is_missed(small, tmp_path, harm):
    ended = harmed(small, tmp_path, harm, "CUT", f"train.peer_timeout_s={PATIENCE}", bare=True, HARM_RANK="2")
    assert "has sent no heartbeat for" in ended.stderr, ended.stderr


@pytest.mark.thorough
def test_without_a_way_to_rank_0_training_goes_on_and_says_so(small, tmp_path, harm):
    cut = tmp_path / "cut"
    cut.touch()
    harmful = {"LD_PRELOAD": str(harm), "HARM_RANK": "2", "HARM_CUT": str(cut)}
    job = start(small, tmp_path, "train.peer_timeout_s=1", bare=True, **harmful)
    said = "heartbeats of 1 of 4 ranks, first rank 2, do not reach rank 0"
    heard, stderr = bytearray(), job.stderr.fileno()

    def comes():
        if select.select([stderr], [], [], 0)[0]:
            heard.extend(os.read(stderr, 65536))
        return said.encode() in heard

    wait_until(comes, "not said")
    trains(job, tmp_path)
    assert "stopped on request" in job.stop(signal.SIGUSR1).stderr and nothing_left(small)


def test_once_all_ranks_have_connected_no_other_user_can_connect(small, tmp_path):
    job = running(small, tmp_path, bare=True)
    assert not coordinator_listens(job)
    assert "stopped on request" in job.stop(signal.SIGUSR1).stderr and nothing_left(small)


def test_an_mpi_without_threads_is_refused(small, tmp_path, harm):
    ended = start(small, tmp_path, bare=True, LD_PRELOAD=str(harm), HARM_THREADS="1").end(code=1)
    assert "this MPI was built without thread support (MPI_THREAD_SINGLE)" in ended.stderr, ended.stderr
    assert nothing_left(small)


def test_what_open_mpi_writes_of_a_dead_rank_is_hidden_if_the_job_says_why(small, tmp_path, harm):
    job = running(small, tmp_path, LD_PRELOAD=str(harm), HARM_WORDS="1")
    os.kill(rank_process(job, 1), signal.SIGKILL)
    ended = job.end(1)
    assert "killed by signal 9" in ended.said[-1] and "Read -1" not in ended.stderr, ended.stderr


@pytest.mark.thorough
def test_a_crash_of_mpi_after_all_work_is_no_failure(small, tmp_path, harm):
    ended = start(small, tmp_path, "train.steps=3", LD_PRELOAD=str(harm), HARM_END="1").end()
    assert "signal" not in ended.stderr and steps_done(tmp_path) == 3, ended.stderr
    assert nothing_left(small)


# --- signals


def test_threads_of_libraries_in_the_parent_take_no_signal_away(small, tmp_path, harm):
    """Planning for schedule.bpipe: auto starts such threads before there are ranks."""
    preload = {"LD_PRELOAD": str(harm), "HARM_PARENT": "1"}
    job = start(small, tmp_path, "train.steps=2", **preload)
    wait_until(lambda: job.poll() is not None, "the end of mpirun was not noticed")
    job.end()
    job = running(small, tmp_path, f"checkpoint.dir={tmp_path}/saved", "checkpoint.every=0", **preload)
    os.kill(job.pid, signal.SIGTERM)
    ends(job, time.monotonic(), ENDS_WITHIN, 3)


# --- output that is not read


def test_readers_that_pause_hold_up_no_request_to_stop_and_lose_no_line(small, tmp_path):
    keys = (f"log.metrics={tmp_path}/metrics.jsonl", f"checkpoint.dir={tmp_path}/saved", "checkpoint.every=1")
    job = launch(small, *ENDLESS, *keys)
    for pipe in (job.stdout, job.stderr):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 4096)
    trains(job, tmp_path, steps=60)  # each is saved, and says so
    job.send_signal(signal.SIGTERM)
    wait_until(lambda: not job.ranks(), "the ranks go on", ENDS_WITHIN)
    assert job.poll() is None
    ended = ends(job, time.monotonic(), ENDS_WITHIN, 3)
    steps = [re.findall(r"^step +(\d+)/", ended.stdout, re.M), re.findall(r"saved \S*step_0*(\d+) ", ended.stderr)]
    assert steps == 2 * [[str(n + 1) for n in range(steps_done(tmp_path))]], ended.stderr


@pytest.mark.parametrize("overrides", [(), ("parallel.pipeline=1", "schedule.bpipe=off", "train.timeout_s=2")],
                         ids=["four_ranks", "one_rank"])
def test_a_reader_of_messages_that_never_goes_on_ends_no_run_and_holds_up_no_second_request(
    small, tmp_path, overrides):
    keys = (f"train.peer_timeout_s={PATIENCE}", f"checkpoint.dir={tmp_path}/saved", "checkpoint.every=1")
    job = running(small, tmp_path, *keys, *overrides)
    with open(f"/proc/{job.pid}/fd/2", "wb", buffering=0) as messages:
        os.set_blocking(messages.fileno(), False)
        while messages.write(b"\n" * 4096):
            pass
    if not overrides:
        os.kill(supervisor_process(job, 2), signal.SIGSTOP)  # its end needs no reader
        wait_until(lambda: not job.ranks(), "the ranks go on", PATIENCE + ENDS_WITHIN)
    else:
        time.sleep(6)
        before = steps_done(tmp_path)
        job.send_signal(signal.SIGTERM)  # the line that waits for the reader is dropped
        wait_until(lambda: steps_done(tmp_path) > before, "the step does not go on", ENDS_WITHIN)
    assert job.poll() is None

    def ends_when_asked_again():
        job.send_signal(signal.SIGTERM)  # one that the parent sees with the first is the same request
        time.sleep(0.5)
        return job.poll() is not None

    wait_until(ends_when_asked_again, "still running", ENDS_WITHIN)
    assert job.returncode == 1 and nothing_left(small)

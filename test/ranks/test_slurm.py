"""The jobs of scripts/slurm under a real Slurm (slurm_cluster.py): stops, cancels, failures, and requested
resources."""

import os
import re
import signal
import time

import pytest
import slurm_cluster
import trainer_runs
from slurm_cluster import block_of, wait_for
from trainer_runs import ROOT, execute, run

WHY_NOT = slurm_cluster.why_not()

pytestmark = [pytest.mark.thorough, pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT)),
              pytest.mark.usefixtures("ranks")]

# A smaller model for the tiny job: a step takes milliseconds.
STEPS = 400
SMALL = ["model.hidden=64", "model.ffn=64", "model.seq_len=32", "train.global_batch=16", "schedule.micro_batch=2",
         "data.val_every=0"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    one = slurm_cluster.Cluster(tmp_path_factory.mktemp("slurm"))
    try:
        one.start()
        if "pmix" not in one.call("srun", "--mpi=list").stdout:
            pytest.skip("this Slurm has no PMIx plugin")
        yield one
    finally:
        one.stop()


def have_programs(folder):
    named = {f"train_{family}": trainer_runs.trainer(family) for family in trainer_runs.FAMILIES}
    for name, target in ({name: ROOT / name for name in ("scripts", "configs", "data")} | named).items():
        if not (folder / name).exists():
            (folder / name).symlink_to(target)


class SlurmJob:
    """A job of train.sbatch, submitted as a user would: from a folder that contains the programs."""

    def __init__(self, cluster, folder, *overrides):
        self.cluster, self.folder = cluster, folder
        more = [part for override in (*SMALL, *overrides) for part in ("-o", override)]
        sent = submit(cluster, folder, "configs/llama_tiny.yaml", *more, "--", "--parsable", "--time=15")
        self.id = sent.stdout.strip()
        self.log = folder / f"llama_tiny-{self.id}.log"
        self.metrics = folder / "out/llama_tiny/metrics.jsonl"

    def shown(self, field):
        found = re.search(rf"\b{field}=(\S*)", self.cluster.call("scontrol", "show", "job", self.id).stdout)
        return found[1] if found else ""

    def text(self):
        return self.log.read_text() if self.log.exists() else ""

    def steps(self):
        return self.metrics.read_text().count('"type":"step"') if self.metrics.exists() else 0

    def wait_for_steps(self, count):
        wait_for(lambda: self.steps() >= count or self.shown("JobState") in ("FAILED", "COMPLETED"), self.text)
        assert self.shown("JobState") == "RUNNING" and self.steps() < STEPS, self.text()

    def wait_for_state(self, state):
        ends = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        wait_for(lambda: self.shown("JobState") in ends, self.text)
        assert self.shown("JobState") == state, self.text()

    def ranks(self):
        named = f"SLURM_JOB_ID={self.id}\0"
        found = [pid for pid in trainer_runs.processes_with("train_llama") if named in block_of(pid)]
        return [pid for pid in found if f"SLURM_CONF={self.cluster.folder}/" in block_of(pid)
                and "PMIX_RANK=" in block_of(pid)]

    @property
    def bits(self):
        return trainer_runs.bits_of(trainer_runs.lines_of(self.metrics))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The same training without Slurm and without a stop."""
    metrics = tmp_path_factory.mktemp("undisturbed") / "metrics.jsonl"
    bits = run(ROOT / "configs/llama_tiny.yaml", *SMALL, f"train.steps={STEPS}", f"log.metrics={metrics}").bits
    assert len(bits) == 2 * STEPS
    return bits


def test_a_job_asked_to_stop_goes_back_into_the_queue_and_on_to_the_same_bits(cluster, tmp_path, undisturbed):
    job = SlurmJob(cluster, tmp_path, f"train.steps={STEPS}")
    job.wait_for_steps(5)
    cluster.call("scancel", "--signal=TERM", job.id)
    job.wait_for_state("COMPLETED")
    assert job.shown("Restarts") == "1"
    assert f"job {job.id} goes back into the queue" in job.text()
    stopped = int(re.search(r"stopped on request after step (\d+);", job.text())[1])
    assert f"step_{stopped:08d} after step {stopped}\n" in job.text() and 5 <= stopped < STEPS
    assert job.bits == undisturbed


def test_a_cancelled_job_saves_and_the_next_one_goes_on_to_the_same_bits(cluster, tmp_path, undisturbed):
    job = SlurmJob(cluster, tmp_path, f"train.steps={STEPS}")
    job.wait_for_steps(5)
    cluster.call("scancel", job.id)
    job.wait_for_state("CANCELLED")
    wait_for(lambda: not job.ranks(), "the end of the ranks")
    wait_for(lambda: "stopped on request after step" in job.text(), "srun to pass on the last line of the ranks")
    assert job.shown("Restarts") == "0"
    again = SlurmJob(cluster, tmp_path, f"train.steps={STEPS}")
    again.wait_for_state("COMPLETED")
    assert "train_llama: resumed from out/llama_tiny/step_" in again.text()
    assert again.bits == undisturbed


def test_a_job_whose_rank_is_killed_starts_its_ranks_again_and_goes_on_to_the_same_bits(cluster, tmp_path, undisturbed):
    job = SlurmJob(cluster, tmp_path, f"train.steps={STEPS}", "checkpoint.every=5")
    job.wait_for_steps(12)
    os.kill(job.ranks()[-1], signal.SIGKILL)
    job.wait_for_state("COMPLETED")
    assert "starting them again; restarts left: 9" in job.text(), job.text()
    assert "was killed by signal 9" in job.text(), job.text()
    assert job.text().count("resumed from") == 1 and job.bits == undisturbed and job.shown("Restarts") == "0"


def test_a_job_whose_rank_is_killed_and_that_has_no_restarts_fails_and_is_not_requeued(cluster, tmp_path):
    job = SlurmJob(cluster, tmp_path, "train.steps=100000", "train.max_restarts=0")
    job.wait_for_steps(2)
    began = time.monotonic()
    os.kill(job.ranks()[1], signal.SIGKILL)
    job.wait_for_state("FAILED")
    assert time.monotonic() - began < trainer_runs.patience(15)
    assert (job.shown("ExitCode"), job.shown("Restarts"), job.ranks()) == ("137:0", "0", [])


@pytest.mark.parametrize("code, override, says", [
    (1, "checkpoint.dir=/proc/none/of/this", "checkpoint.dir: /proc/none: cannot be created"),
    (2, "data.train=data/none_*.bin", "data.train: no file matches"),
])
def test_a_job_that_ends_by_itself_is_not_requeued(cluster, tmp_path, code, override, says):
    job = SlurmJob(cluster, tmp_path, override)
    job.wait_for_state("FAILED")
    assert (job.shown("ExitCode"), job.shown("Restarts")) == (f"{code}:0", "0")
    assert job.text().count(says) == 1


def test_a_step_without_pmix_is_explained(cluster, tmp_path):
    command = [trainer_runs.trainer("llama"), "-c", ROOT / "configs/llama_tiny.yaml", "-o",
               f"log.metrics={tmp_path}/m.jsonl"]
    step = cluster.call("srun", "--mpi=none", "-n", "4", *command, code=2)
    assert step.stderr.count("this Slurm step has 4 tasks, but they do not see each other") == 1
    assert "start them with srun --mpi=pmix" in step.stderr
    assert not (tmp_path / "m.jsonl").exists()


def test_every_task_sees_all_gpus_of_its_node_and_nodes_are_filled_in_order(cluster, tmp_path):
    asks = tmp_path / "asks"
    asks.write_text("#!/bin/sh\necho task $SLURM_PROCID node $SLURM_NODEID gpus $CUDA_VISIBLE_DEVICES\n")
    asks.chmod(0o755)
    options = ["--nodes=2", "--ntasks-per-node=4", "--gpus-per-node=8", "--wait", f"--output={tmp_path}/log"]
    config = ROOT / "configs/llama_tiny.yaml"
    cluster.call("sbatch", *options, "--wrap", f"scripts/slurm/train.sh {asks} {config} {tmp_path}/checkpoints")
    said = sorted(line for line in (tmp_path / "log").read_text().splitlines() if line.startswith("task"))
    assert said == [f"task {i} node {i // 4} gpus 0,1,2,3,4,5,6,7" for i in range(8)]


@pytest.mark.parametrize("broken, used", [("node1", "node2"), ("node2", "node1"), ("none", "node1")])
def test_a_node_that_does_not_start_is_left_out_where_the_job_has_one_to_spare(cluster, tmp_path, broken, used):
    """Four ranks fit on two nodes of four, so one is spare. On one node a script replaces the program and fails."""
    program = tmp_path / "program"
    trainer = trainer_runs.trainer("llama")
    program.write_text(f"""#!/bin/sh
case "$*" in *--plan*) exec {trainer} "$@" ;; esac
[ "$SLURMD_NODENAME" != {broken} ] || exit 127
case "$*" in *--version*) exit 0 ;; esac
echo task $SLURM_PROCID of $SLURM_NTASKS on $SLURMD_NODENAME
""")
    program.chmod(0o755)
    options = ["--nodes=2", "--ntasks-per-node=4", "--wait", f"--output={tmp_path}/log"]
    config = ROOT / "configs/llama_tiny.yaml"
    cluster.call("sbatch", *options, "--wrap",
                 f"scripts/slurm/train.sh {program} {config} {tmp_path}/checkpoints -o train.steps=1")
    text = (tmp_path / "log").read_text()
    tasks = sorted(line for line in text.splitlines() if line.startswith("task"))
    assert tasks == [f"task {i} of 4 on {used}" for i in range(4)]
    assert (f"train.sh: {broken} does not start {program} and is left out" in text) == (broken != "none"), text


def submit(cluster, folder, *arguments, **options):
    """Runs train.sbatch in a folder with the programs."""
    have_programs(folder)
    return cluster.call("scripts/slurm/train.sbatch", *arguments, cwd=folder, **options)


@pytest.mark.parametrize("family", ["llama", "gpt"])
def test_any_configuration_is_a_job_of_its_plan(cluster, tmp_path, family):
    small = [part for override in (*SMALL, "train.steps=2") for part in ("-o", override)]
    sent = submit(cluster, tmp_path, f"configs/{family}_tiny.yaml", *small, "--", "--wait", "--parsable")
    shown = cluster.call("scontrol", "show", "job", sent.stdout.strip()).stdout
    assert "NumTasks=4" in shown and "NumNodes=1" in shown
    assert (tmp_path / f"out/{family}_tiny").is_dir()


def test_gpus_are_asked_for_node_by_node(cluster, tmp_path):
    gpus = ["-o", "hardware.gpu=h100", "-o", "hardware.gpus_per_node=4", "-o", "parallel.data=2"]
    batch = ["-o", "train.global_batch=32"]
    sent = submit(cluster, tmp_path, "configs/llama_tiny.yaml", *gpus, *batch, "--", "--test-only", "--time=1")
    assert "on nodes node[1-2]" in sent.stderr, sent.stderr


@pytest.mark.parametrize("arguments, why", [
    ([], "usage: scripts/slurm/train.sbatch CONFIG"),
    (["configs/none.yaml"], "configs/none.yaml: cannot be opened"),
    (["configs/llama_tiny.yaml", "-o", "train.stpes=1"], "did you mean train.steps?"),
])
def test_a_job_that_cannot_be_planned_is_not_submitted(cluster, tmp_path, arguments, why):
    sent = submit(cluster, tmp_path, *arguments, code=2)
    assert why in sent.stderr and sent.stderr.count("\n") == 1, sent.stderr


def test_the_cluster_can_be_tried_by_hand():
    tried = execute(["scripts/slurm/try.py", "sinfo", "-h", "-o", "%D"])
    assert tried.stdout.split()[-1] == "2", tried.stderr


@pytest.mark.parametrize("arguments, job, sentence", [
    (["./train_llama", "configs/llama_tiny.yaml"], "1", "usage: train.sh PROGRAM CONFIG CHECKPOINTS"),
    (["./train_llama", "configs/llama_tiny.yaml", "out"], None, "this runs inside a Slurm job"),
    (["./no_such_program", "configs/llama_tiny.yaml", "out"], "1", "./no_such_program is not in "),
    (["scripts/slurm/train.sh", "configs/none.yaml", "out"], "1", "configs/none.yaml cannot be read from "),
])
def test_what_the_job_lacks_is_one_sentence(arguments, job, sentence):
    env = trainer_runs.environment(**({} if job is None else {"SLURM_JOB_ID": job}))
    ended = execute(["scripts/slurm/train.sh", *arguments], env=env, code=2)
    assert sentence in ended.stderr and ended.stderr.count("\n") == 1

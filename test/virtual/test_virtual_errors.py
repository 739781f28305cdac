"""Failures of GPU machines, provoked on the virtual GPU. Each run ends within seconds with one message (the fault, its
place and the remedy), with a non-zero exit code, and without a process left."""

import re

import pytest
import trainer_runs
import virtual_runs
from virtual_runs import APART, BPIPE, WIDE, run, write_config

pytestmark = pytest.mark.usefixtures("ranks")
TWO = ("parallel.pipeline=2",)
PREFIX = re.compile(r"train_llama: (\[rank \d+ stage \d+\] )?")
LAUNCHER = re.compile(r"train_llama: .*(starting \d+ ranks|driver for CUDA|the run repeats them)|"
                      r"^(run instead|note):? ")


def sentences(ended):
    """Returns the run's error messages, without its memory table and start-up messages."""
    return [PREFIX.sub("", line) for line in ended.said if PREFIX.match(line) and not LAUNCHER.match(line)]


def complaints(folder, *options, code=1, **environment):
    """Returns the messages of a run that has to fail and to leave no process."""
    config = write_config(folder, "llama")
    ended = run(config, "llama", "train.steps=100", *options, limit=60, code=code, **environment)
    assert trainer_runs.nothing_left(config)
    assert "virtual GPU:" not in ended.stderr, ended.stderr
    return sentences(ended)


def refused(*arguments, **keywords):
    """Returns the first message of complaints()."""
    return complaints(*arguments, **keywords)[0]


@pytest.mark.every_case
@pytest.mark.parametrize("environment, reason", [
    ({"VIRTUAL_DRIVER": "none"}, "no NVIDIA driver is installed here"),
    (
        {"VIRTUAL_DRIVER": "12020"},
        r"the NVIDIA driver supports CUDA up to 12\.2; .* built with 13\.0; build it with the toolkit of CUDA 12\.2, "
        r".*"
        r"cuda-compat-13-0 first in LD_LIBRARY_PATH, or update the driver",
    ),
    (
        {"VIRTUAL_DRIVER": "notready"},
        "the NVIDIA driver reports: system not yet initialized; .*systemctl start nvidia-fabricmanager",
    ),
    ({"VIRTUAL_GPUS": "0"}, "the NVIDIA driver shows no GPU"),
], ids=["no driver", "an old driver", "no fabric manager", "no GPU"])
def test_without_a_usable_driver_a_run_says_what_it_needs_and_what_is_there(tmp_path, environment, reason):
    said = refused(tmp_path, *TWO, **environment)
    assert re.search(rf"needs 2 GPUs with [\d.]+ GiB each .*; here: no CUDA device.*\({reason}", said), said


def test_fewer_gpus_than_ranks_are_refused_with_both_counts(tmp_path):
    said = refused(tmp_path, "parallel.pipeline=4", VIRTUAL_GPUS="2")
    assert re.search(r"4 ranks .* 2 GPUs", said) and "hardware.share_gpu" in said, said


@pytest.mark.thorough
def test_instances_of_one_gpu_are_refused_unless_ranks_may_share_it(tmp_path):
    said = refused(tmp_path, *TWO, VIRTUAL_MIG="1", VIRTUAL_GPUS="2")
    assert re.search(r"MIG 3g\.40gb\), and 2 would share one; .* hardware\.share_gpu: true", said), said
    config = write_config(tmp_path, "llama")
    run(config, "llama", *TWO, "hardware.share_gpu=true", VIRTUAL_MIG="1", VIRTUAL_GPUS="2")


@pytest.mark.every_case
@pytest.mark.parametrize("taken, needs",
                         [("81000", "the start needs"), ("80550", "the start needs"), ("80500", "this stage needs")],
                         ids=["all, also for a context", "all but a context's", "most"])
def test_memory_that_other_programs_hold_is_missing_before_anything_is_allocated(tmp_path, taken, needs):
    said = refused(tmp_path, *TWO, VIRTUAL_TAKEN_MIB=taken)
    free = r"GPU (\d), NVIDIA H100 80GB HBM3: [\d.]+ MiB of 79\.18 GiB are free, but " + needs + r" another [\d.]+ MiB;"
    assert re.search(free, said) and "other programs" in said and "nvidia-smi" in said, said
    others = r"^rank (\d), stage \1: GPU \1, .*holds workspace 64\.0 MiB, and other programs.* hold 79\.11 GiB;"
    assert needs == "the start needs" or re.search(others, said), said


@pytest.mark.parametrize("taken, options, environment",
                         [("80340", TWO, APART), ("80000", WIDE, {}), ("80280", (), {})],
                         ids=["links", "tensor ranks", "libraries"])
def test_memory_that_nccl_and_the_libraries_need_is_missing_with_a_sentence(tmp_path, taken, options, environment):
    said = refused(tmp_path, *options, VIRTUAL_TAKEN_MIB=taken, **environment)
    free = r"GPU \d, NVIDIA H100 80GB HBM3: [\d.]+ MiB of 79\.18 GiB are free, but this stage needs another"
    assert re.search(free, said), said


@pytest.mark.every_case
@pytest.mark.parametrize("fault, sentence", {
    "busy@1": "GPU 0, .* busy or unavailable; another process may have it alone: .*nvidia-smi",
    "image@1": "GPU 0, .*_kernel.* failed: no kernel image .*; build .* this GPU: make CUDA_ARCH=-arch=native$",
}.items())
def test_a_gpu_that_cannot_be_used_is_not_called_lost(tmp_path, fault, sentence):
    said = refused(tmp_path, VIRTUAL_FAULT=fault)
    assert re.search(sentence, said), said


def test_a_product_without_a_kernel_is_named_with_its_size_and_cublaslts_answer(tmp_path):
    eight = (*virtual_runs.EIGHT, "train.fp8=block")
    for options, remedy in ((), "cuBLAS$"), (eight, "cuBLAS, or train.fp8 off$"):
        said = refused(tmp_path, *options, VIRTUAL_FAULT="product@1")
        wanted = r"has no kernel for a matrix product of this model, \d+ x \d+ x \d+: CUBLAS_STATUS_NOT_SUPPORTED; use "
        assert re.search(wanted + ".*" + remedy, said), said


def test_a_gpu_that_does_not_answer_is_named_and_not_called_another_model(tmp_path):
    said = refused(tmp_path, *TWO, VIRTUAL_FAULT="silent@1@1")
    assert re.search(r"rank 1 on \S+ has no GPU: GPU 1 does not answer \(see nvidia-smi", said), said


def test_a_cudnn_that_does_not_start_is_named_with_its_cause(tmp_path):
    config = write_config(tmp_path, "llama")
    ended = run(config, "llama", "train.precision=bf16", "train.steps=1", VIRTUAL_FAULT="cudnn@1")
    assert re.search(r"flash falls back to recompute: .*_NOT_INITIALIZED .*is missing", ended.stderr), ended.stderr


@pytest.mark.thorough
def test_nodes_with_different_versions_of_nccl_are_refused_with_both(tmp_path):
    said = refused(tmp_path, *TWO, **APART, VIRTUAL_NCCL="22809 22905")
    versions = r"Mismatched NCCL version detected : rank \d version 22\d+ rank \d version 22\d+"
    assert re.search(rf"group, rank \d of 2: starting NCCL failed: {versions}; check the other ranks' hosts", said)
    config = write_config(tmp_path, "llama")
    ended = run(config, "llama", *TWO, **APART, VIRTUAL_NCCL="29999", VIRTUAL_CUBLAS="differs")
    assert "the ranks have cuBLAS 130100 to 130101" in ended.stderr  # the NCCL is newer than the headers of the build


FLAGS = {"VIRTUAL_MEMOPS": "0"}
NO_PEERS = {"VIRTUAL_PEERS": "0"}
REASONS = {
    "no peer access": (NO_PEERS, r"CUDA cannot map the peer's GPU memory: peer access is not supported"),
    "no lending": ({"VIRTUAL_FAULT": "lend@1"}, r"CUDA cannot share the memory of its GPU: operation not supported"),
    "no flags": (FLAGS, r"the driver does not support stream memory operations: operation not supported"),
}


@pytest.mark.thorough
@pytest.mark.every_case
@pytest.mark.parametrize("environment, reason", REASONS.values(), ids=REASONS)
def test_tensor_ranks_that_cannot_copy_use_nccl_and_say_why(tmp_path, environment, reason):
    ended = run(write_config(tmp_path, "llama"), "llama", *WIDE, **environment)
    said = [line for line in ended.stderr.splitlines() if "gathers and sums over tensor ranks by NCCL" in line]
    assert len(said) == 2 and all(re.search(reason, line) for line in said), ended.stderr  # one line a stage
    told = complaints(tmp_path, *WIDE, "parallel.collectives=copy", **environment)
    wanted = r"tensor group, rank \d of 2: parallel\.collectives copy is impossible here \(.*\); use auto or nccl$"
    assert re.search(wanted, told[0]) and re.search(reason, told[0]), told


@pytest.mark.thorough
def test_tensor_ranks_without_nvlink_copy_only_if_the_configuration_demands_it(tmp_path):
    said = []
    for collectives in ("auto", "copy"):
        options = (*WIDE, f"parallel.collectives={collectives}")
        ended = run(write_config(tmp_path, "llama"), "llama", *options, VIRTUAL_PEERS="pcie")
        said.append(re.findall(r"by NCCL, .*: its GPU has no NVLink to this one", ended.stderr))
    assert [len(lines) for lines in said] == [2, 0], said  # one line a stage


@pytest.mark.thorough
def test_tensor_ranks_that_see_only_their_own_gpu_do_not_copy(tmp_path):
    """Where the GPUs have no NVLink, two copies could arrive in another order, and CUDA does not tell them."""
    own = ("bash", "-c", 'CUDA_VISIBLE_DEVICES=$OMPI_COMM_WORLD_LOCAL_RANK exec "$@"', "rank")
    prefix, options = (*trainer_runs.mpirun(2), *own), ("parallel.tensor=2", "parallel.sequence=true")
    ended = run(write_config(tmp_path, "llama"), "llama", *options, prefix=prefix,
                                 VIRTUAL_PEERS="pcie", **trainer_runs.AS_ROOT)
    assert re.search(r"by NCCL, .*: rank \d: its GPU is not visible here.*; make all GPUs .* visible", ended.stderr)


@pytest.mark.parametrize("option", ["parallel.sequence=false", "hardware.gpus_per_node=3"])
def test_copies_that_a_configuration_excludes_are_refused_with_the_key_to_change(tmp_path, option):
    said = refused(tmp_path, *WIDE, "parallel.collectives=copy", option, code=2)
    remedy = {"parallel.sequence=false": "sequence: true"}
    assert "copy needs rows that are split over the tensor ranks of one node" in said, said
    assert remedy.get(option, "use fewer tensor ranks") in said, said


@pytest.mark.thorough
def test_a_rank_that_stops_between_copies_ends_the_job(tmp_path):
    """Its peers' devices wait for its flags, and no host waits for a device that never answers."""
    options = ("parallel.tensor=2", "parallel.sequence=true", "parallel.collectives=copy", "train.peer_timeout_s=3")
    said = complaints(tmp_path, *options, VIRTUAL_FAULT="stops@1500@1")
    assert any(re.search("rank 1", each) for each in said), said


def test_a_reserve_that_libraries_exceed_is_named_with_what_they_hold(tmp_path):
    config = write_config(tmp_path, "llama")
    ended = run(config, "llama", "hardware.reserve_gib=0.5", arguments=("-v",))
    held = re.search(r"found: context, .* hold up to ([\d.]+) GiB of a GPU", ended.stderr)
    assert held and 0.5 < float(held[1]) < 2, ended.stderr
    assert ended.of_type("run")[0]["outside_gib"] == pytest.approx(float(held[1]), abs=0.005)
    assert re.search(r"more than hardware\.reserve_gib, 0\.5; plan with -o hardware\.reserve_gib=", ended.stderr)


@pytest.mark.parametrize("options", [TWO, BPIPE, WIDE, ()], ids=["two stages", "bpipe", "tensor ranks", "one rank"])
def test_a_gpu_that_is_lost_ends_the_job_with_the_step_and_what_to_do(tmp_path, options):
    rank = 1 if options else 0
    said = complaints(tmp_path, *options, VIRTUAL_FAULT=f"lost@1500@{rank}")
    lost = [each for each in said if "this process has lost the GPU" in each]
    assert lost and "unspecified launch failure" in lost[0] and "--resume" in lost[0], said
    assert re.search(rf"^step \d+.*: (GPU {rank}, |tensor group, )", lost[0]), said


# The device's step at which it is lost, chosen so that a different call meets the loss each time.
MOMENTS = {
    "the start": ((), 1),
    "memory": ((), 10),
    "a product": ((), 73),
    "attention": (("train.precision=bf16",), 300),
    "an event of a message": (TWO, 177),
    "evictions to host memory": ((*BPIPE, "schedule.evict_to=host"), 7),
    "the first messages": ((*TWO, "VIRTUAL_NODES=2"), 3),
    "sums": (("parallel.data=2",), 560),
    "copies between tensor ranks": (("parallel.tensor=2", "parallel.sequence=true"), 150),
    "copies through host memory": (("parallel.tensor=2", "hardware.share_gpu=true", "VIRTUAL_GPUS=1"), 344),
}


@pytest.mark.every_case
@pytest.mark.parametrize("options, step", MOMENTS.values(), ids=MOMENTS)
def test_a_gpu_that_is_lost_at_any_moment_is_what_the_run_says(tmp_path, options, step):
    options, environment = virtual_runs.apart(options)
    said = complaints(tmp_path, *options, VIRTUAL_FAULT=f"lost@{step}", **environment)
    lost = [each for each in said if "this process has lost the GPU" in each]
    assert lost and "--resume" in lost[0], said
    assert not re.search("cuBLASLt has no|cannot create a cuDNN|out of memory|does not exist", "".join(said)), said


# Preloaded, it leaves a line open, as a rank does that is killed while it prints a row of a table.
OPEN_LINE = """
void _exit(int code) {
    if (getenv("OMPI_COMM_WORLD_RANK") != NULL && write(STDERR_FILENO, "a row is cut", 12) < 0) abort();
    REAL(_exit)(code);
    __builtin_unreachable();
}
"""


def test_the_final_message_has_a_line_of_its_own(tmp_path):
    library = trainer_runs.preload(tmp_path / "open.so", OPEN_LINE)
    said = complaints(tmp_path, *BPIPE, VIRTUAL_FAULT="lost@7", LD_PRELOAD=str(library))
    assert "this process has lost the GPU" in said[-1]


def test_the_version_says_that_there_is_no_driver():
    env = virtual_runs.environment(VIRTUAL_DRIVER="none")
    said = trainer_runs.execute([virtual_runs.VIRTUAL / "train_llama", "--version"], env=env).stdout
    assert re.search(r"^GPU +no driver, CUDA 13\.0, ", said, re.M), said


@pytest.mark.parametrize("fault", ["nccl", "query"])
@pytest.mark.parametrize("options, environment", [(TWO, APART), (WIDE, {})], ids=["messages", "sums"])
def test_an_error_of_nccl_ends_the_job_with_its_group_and_what_to_do(tmp_path, options, environment, fault):
    said = complaints(tmp_path, *options, VIRTUAL_FAULT=f"{fault}@5@1", **environment)
    sentence = r"(pipeline|tensor) group, rank \d of \d: .* failed: .*(Connection refused|remote process exited)"
    lost = [each for each in said if re.search(sentence, each)]
    assert lost and "NCCL_DEBUG=INFO" in lost[0] and "--resume" in lost[0], said


def test_launches_that_block_are_refused_between_ranks(tmp_path):
    assert "CUDA_LAUNCH_BLOCKING=1 makes every send block" in refused(tmp_path, *TWO, CUDA_LAUNCH_BLOCKING="1")


@pytest.mark.thorough
@pytest.mark.parametrize("prefix, environment, sentence", [
    (("taskset", "-c", "0"), {}, "may use only one core, .*--bind-to none"),
    ((), {"CUDA_DEVICE_MAX_CONNECTIONS": "4"}, r"a rank has \d+ streams, NCCL's included, which share CUDA's 4"),
], ids=["one core", "four queues"])  # fmt: skip
def test_what_may_slow_a_rank_is_said_at_the_start(tmp_path, prefix, environment, sentence):
    config = write_config(tmp_path, "llama")
    ended = run(config, "llama", *TWO, **APART, prefix=prefix, **environment)
    assert re.search(sentence, ended.stderr), ended.stderr
    ended = run(config, "llama", *TWO, **APART)
    assert not re.search("hardware queues|only one core", ended.stderr), ended.stderr


@pytest.mark.thorough
def test_ranks_that_mpirun_starts_set_cudas_environment_before_mpi_starts(tmp_path):
    """An MPI with support for CUDA starts CUDA in MPI_Init; no parent has set the variables for these ranks."""
    config = write_config(tmp_path, "llama")
    unset = ("env", "-u", "CUDA_DEVICE_MAX_CONNECTIONS", "-u", "CUDA_MODULE_LOADING")
    run(config, "llama", *TWO, prefix=(*unset, "mpirun", "--oversubscribe", "-n", "2"), **trainer_runs.AS_ROOT)

"""Runs on the virtual GPU (docs/virtual.md): the trainers of build/virtual compute the same results as on CPUs, in
every order that events permit, and the race detector reports nothing."""

import json
import re

import pytest
import trainer_runs
import virtual_runs
from virtual_runs import APART, BPIPE, CASES, WIDE, on_cpu, run, write_config

pytestmark = pytest.mark.usefixtures("ranks")


@pytest.mark.soak(2)
@pytest.mark.parametrize("orders", [("newest",), ("random 1",), pytest.param(
    ("newest", "random 1", "fifo", "random 2", "random 3"), marks=pytest.mark.soak)], ids=["newest", "random", "all"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_training_is_that_of_cpus_in_every_order(tmp_path, case, orders):
    found = virtual_runs.in_orders(tmp_path, case, orders)
    if "schedule.bpipe=on" in case.options:
        assert all(step["evictions"] > 0 for ended in found for step in ended.steps)


@pytest.mark.thorough
@pytest.mark.parametrize("options", [(), ("hardware.share_gpu=true",)], ids=["nccl", "one GPU"])
def test_tensor_ranks_wait_for_each_other_while_messages_leave(tmp_path, options):
    """Ranks 4 and 7 have queued the next collective before their late message has left. Their tensor partners
    5 and 6 join that collective only after the messages of 7 and 4."""
    gpus = "1" if options else "8"
    options = (*BPIPE, "parallel.tensor=2", "train.global_batch=4", "train.steps=1", *options)
    late = {"VIRTUAL_LATE": "4 7", "VIRTUAL_PATIENCE": "10", "VIRTUAL_GPUS": gpus}
    assert run(write_config(tmp_path, "llama"), "llama", *options, **late).bits


@pytest.mark.thorough
def test_a_rank_that_sees_gpus_maps_the_memory_of_the_others(tmp_path):
    config = write_config(tmp_path, "llama")
    own = ("bash", "-c", 'CUDA_VISIBLE_DEVICES=$OMPI_COMM_WORLD_LOCAL_RANK exec "$@"', "rank")
    prefix = (*trainer_runs.mpirun(4), *own)
    ended = run(config, "llama", *BPIPE, prefix=prefix, arguments=("-v",), **trainer_runs.AS_ROOT)
    assert "evicts as messages" not in ended.stderr and all(step["evictions"] > 0 for step in ended.steps)
    assert ended.bits == run(config, "llama", *BPIPE).bits


OVERLAPS = [(f"parallel.overlap={overlap}",) for overlap in ("off", "on", "2", "3", "4")]
SLICED = ("parallel.pipeline=1", *virtual_runs.SLICES)
PARTS = ((), BPIPE, ("parallel.pipeline=2", "schedule.name=interleaved", "schedule.recompute_layers=1"))
GATHERED = [
    ("parallel.overlap=off",),
    ("parallel.overlap=on", "parallel.collectives=nccl"),
    ("parallel.overlap=on", "parallel.collectives=copy", "schedule.recompute=pointwise"),
    ("schedule.split_backward=on", "schedule.recompute=[pointwise, none]"),
    ("schedule.recompute_layers=1",),
    ("hardware.share_gpu=true", "VIRTUAL_GPUS=1"),
]
EIGHT = (*WIDE, *virtual_runs.EIGHT, "train.global_batch=2")
OF_EIGHT = ("parallel.tensor=8", "model.heads=8", "parallel.sequence=true", "train.global_batch=2")
# NCCL's sums here are in rank order, in fp32, rounded once, as CPUs make them.
BY_COPIES = [(f"parallel.collectives={way}", f"parallel.overlap={overlap}")
             for way, overlap in (("nccl", "off"), ("copy", "off"), ("copy", "2"))]  # fmt: skip
# Family, keys, and layouts that must have the same bits with them.
SAME = {
    "chunks of rows": ("gpt", ("parallel.tensor=4", "parallel.sequence=true", "train.global_batch=2"), OVERLAPS),
    "chunks of whole rows": ("gpt", ("parallel.tensor=4", "parallel.sequence=false", "train.global_batch=2"), OVERLAPS),
    "copies of eight ranks": ("gpt", OF_EIGHT, BY_COPIES),
    "copies of eight ranks in bf16": ("gpt", (*OF_EIGHT, "train.precision=bf16"), BY_COPIES),
    "blocks of 8 bits": ("llama", (*EIGHT, "train.fp8=block", "hardware.gpu=h100"), GATHERED),
    "mx": ("llama", (*EIGHT, "train.fp8=mx", "hardware.gpu=b200"), GATHERED),
    "slices in fp32": ("llama", SLICED, [(), ("parallel.pipeline=2",), BPIPE,
                                         ("parallel.pipeline=2", "schedule.name=interleaved")]),
    "slices in bf16": ("llama", (*SLICED, "train.precision=bf16"),
                       [(), BPIPE, ("parallel.pipeline=4", "schedule.recompute_layers=1")]),
    "context ranks": ("llama", (*virtual_runs.CONTEXT, "train.precision=bf16"), PARTS),
    "documents in flash": ("llama", (*virtual_runs.LONG_DOCUMENTS, "train.precision=bf16"), PARTS),
}


@pytest.mark.thorough
@pytest.mark.parametrize("family, given, layouts", SAME.values(), ids=SAME)
def test_layouts_have_the_same_bits_and_the_planned_bytes(tmp_path, family, given, layouts):
    config = write_config(tmp_path, family)
    runs = []
    for layout in layouts:
        options, more = virtual_runs.apart((*given, *layout))
        runs.append(run(config, family, *options, VIRTUAL_ORDER="random", **more))
    assert len(runs[0].bits) > 2 and all(ended.bits == runs[0].bits for ended in runs)
    assert all("as planned, to the byte" in ended.stderr for ended in runs)


@pytest.mark.parametrize("why, options", {
    "bf16": ("train.precision=fp32",),
    "document masks": ("train.precision=bf16", *virtual_runs.DOCUMENTS, "hardware.gpu=a100-80g"),
    "head size": ("train.precision=bf16", "model.head_dim=12"),
}.items())
def test_a_plan_replaces_flash_where_a_run_does(tmp_path, why, options):
    """The scores of recomputed attention grow with the square of the sequence."""
    config = write_config(tmp_path, "llama")
    options = ("model.seq_len=512", "train.global_batch=1", "train.steps=1", *options)
    ended = run(config, "llama", *options, VIRTUAL_RACES="0")
    assert "as planned, to the byte" in ended.stderr
    overrides = ("hardware.device=cuda", "hardware.gpu=h100", *options)
    plan = trainer_runs.command("llama", "-c", config, "--plan", "--json", overrides=overrides)
    assert [stage["peak_bytes"] for stage in json.loads(plan.stdout)["stages"]] == [
        stage["peak_bytes"] for stage in ended.steps[0]["stages"]
    ]
    assert why in re.search(r"\(flash falls back to recompute: (.*?)\)", " ".join(ended.stderr.split()))[1]


def saving(folder):
    return "train.steps=4", f"checkpoint.dir={folder}", "checkpoint.every=2"


def pinned_and_planned(config, folder, *options):
    """Pinned bytes of rank 0, and its bytes of host memory in the plan."""
    folder.mkdir()
    run(config, "llama", *options, VIRTUAL_GPUS="1", VIRTUAL_PINNED=folder)
    plan = run(config, "llama", *options, arguments=("--plan", "--json"), VIRTUAL_GPUS="1")
    return int((folder / "0").read_text()), json.loads(plan.stdout)["stages"][0]["host_bytes"]


@pytest.mark.thorough
@pytest.mark.parametrize("precision", virtual_runs.BOUNDS)
def test_ranks_that_share_a_gpu_pin_what_is_planned(tmp_path, precision):
    """With overlap, one more collective is in progress: the plan counts the bytes that are allocated for it."""
    config = write_config(tmp_path, "llama")
    shared = ("parallel.tensor=2", "parallel.sequence=true", "hardware.share_gpu=true", f"train.precision={precision}")
    off, planned_off = pinned_and_planned(config, tmp_path / "off", *shared, "parallel.overlap=off")
    on, planned_on = pinned_and_planned(config, tmp_path / "on", *shared, "parallel.overlap=on")
    block = 16 * 32 * (4 if precision == "fp32" else 2) // 2  # of a microbatch, on one of two ranks
    assert (off, on) == (3 * block, 6 * block)  # operand and result: one block and two
    assert planned_on - planned_off == on - off and on <= planned_on


@pytest.mark.thorough
def test_no_more_is_pinned_than_planned_where_messages_differ_in_size(tmp_path):
    config = write_config(tmp_path, "llama")
    shared = ("parallel.tensor=2", "parallel.data=2", "hardware.share_gpu=true", "checkpoint.every=0")
    pinned, planned = pinned_and_planned(config, tmp_path / "pinned", *shared)
    assert 0 < pinned <= planned


@pytest.mark.thorough
@pytest.mark.parametrize("options", [BPIPE, (*WIDE, "train.precision=bf16")], ids=["bpipe", "tensor ranks in bf16"])
def test_a_resumed_run_has_the_bits_of_an_undisturbed_one(tmp_path, options):
    config = write_config(tmp_path, "llama")
    whole = run(config, "llama", *options, *saving(tmp_path / "whole"), VIRTUAL_ORDER="random")
    rest = run(config, "llama", *options, *saving(tmp_path / "rest"),
               resume=tmp_path / "whole" / "step_00000002", VIRTUAL_ORDER="newest")
    assert rest.numbers == [3, 4]
    assert rest.bits == whole.bits[len(whole.bits) // 2 :]
    for part in sorted(path for path in (tmp_path / "rest" / "step_00000004").iterdir() if path.suffix != ".json"):
        assert part.read_bytes() == (tmp_path / "whole" / "step_00000004" / part.name).read_bytes(), part.name


@pytest.mark.thorough
def test_collectives_work_in_registered_memory_if_every_rank_has_it(tmp_path):
    config, said = write_config(tmp_path, "llama"), {}
    fault = {"NCCL_NVLS_ENABLE": "1", "VIRTUAL_FAULT": "memalloc@1@1"}  # rank 1 gets no such memory
    for name, environment in {"fault": fault, "on": {"NCCL_NVLS_ENABLE": "1"}, "off": {}}.items():
        ended = run(config, "llama", *WIDE, "parallel.collectives=nccl", arguments=("-v",), **environment)
        found = re.findall(r"chosen: collectives over tensor ranks work in memory that is (.*)", ended.stderr)
        said[name] = (found, ended.bits)
    assert [said[name][0] for name in said] == [["not registered with NCCL"], ["registered with NCCL"], []]
    assert said["fault"][1] == said["on"][1] == said["off"][1]


def counted_on(config, folder, *options):
    """The multiprocessors that each kernel of a product counts on, rank by rank; 0: all."""
    folder.mkdir()
    overlap = ("parallel.overlap=on",) if not any("overlap" in option for option in options) else ()
    run(config, "llama", *WIDE, *overlap, *options, VIRTUAL_RACES="0", VIRTUAL_PRODUCTS=folder)
    return [int(line) for rank in sorted(folder.iterdir()) for line in rank.read_text().split()]


NCCL = ("parallel.collectives=nccl",)


@pytest.mark.thorough
def test_products_beside_collectives_count_on_the_other_multiprocessors(tmp_path):
    config = write_config(tmp_path, "llama")
    ways = {"nccl": NCCL, "off": (*NCCL, "parallel.overlap=off"), "copies": ()}
    ways["sums over data ranks"] = ("parallel.data=2", "parallel.pipeline=1", "parallel.overlap=off")
    counts = {name: set(counted_on(config, tmp_path / name, *options)) for name, options in ways.items()}
    compute, beside = {0, 132 - 24}, {0, 132 - 16}  # 24: COMPUTE_CTAS, 16: BESIDE_CTAS
    assert counts == {"nccl": compute, "off": {0}, "copies": {0}, "sums over data ranks": beside}


@pytest.mark.thorough
def test_a_collective_that_has_ended_leaves_all_multiprocessors_to_products(tmp_path):
    """Compute may wait for a collective long after its end. With links three times as fast, fewer products run during a
    collective, though the calls are the same."""
    config, beside = write_config(tmp_path, "llama"), {}
    for rate in (512, 1536):
        counts = counted_on(config, tmp_path / str(rate), *NCCL, f"hardware.tensor_gb_s={rate}")
        beside[rate] = sum(count > 0 for count in counts)
    assert 0 < beside[1536] < 0.8 * beside[512]


@pytest.mark.thorough
def test_the_links_of_the_gpu_that_is_here_count_and_not_those_of_the_one_named(tmp_path):
    """The links of a GB300 are faster, so fewer products would run during a collective. The GPU here is an H100."""
    config = write_config(tmp_path, "llama")
    named, here = (
        counted_on(config, tmp_path / gpu, *NCCL, f"hardware.gpu={gpu}") for gpu in ("gb300", "h100")
    )
    assert named == here and max(here) > 0


@pytest.mark.thorough
@pytest.mark.parametrize("multiprocessors", ["56", "20"])
def test_collectives_and_products_share_a_small_gpu(tmp_path, multiprocessors):
    """An A30 has 56 multiprocessors: the kernels of all communicators have to fit at once, as on larger GPUs."""
    config = write_config(tmp_path, "gpt")
    small = {"VIRTUAL_MULTIPROCESSORS": multiprocessors, "VIRTUAL_NODES": "4", "VIRTUAL_RACES": "0"}
    options = (*WIDE, *NCCL, "parallel.data=2", "parallel.overlap=on", "model.tie_embeddings=true")
    assert run(config, "gpt", *options, **small).bits == run(config, "gpt", *options, VIRTUAL_RACES="0").bits


@pytest.mark.thorough
def test_validation_is_that_of_cpus(tmp_path):
    data = f"{{train: {tmp_path}/train.bin, val: {tmp_path}/val.bin, val_every: 1, val_batches: 2}}"
    config = write_config(tmp_path, "llama", data=data)
    saved = tmp_path / "saved"
    options = (*BPIPE, f"checkpoint.dir={saved}", "checkpoint.every=2")
    wanted = on_cpu(config, "llama", *BPIPE)
    found = run(config, "llama", *options, VIRTUAL_ORDER="random")
    assert [val["step"] for val in found.of_type("val")] == [1, 2]
    assert virtual_runs.differences(found.of_type("val"), wanted.of_type("val"), "fp32") == []
    asked = run(config, "llama", *BPIPE, arguments=("--validate", "--json", "--resume", saved))
    assert json.loads(asked.stdout)["loss"] == found.of_type("val")[-1]["loss"]


@pytest.mark.thorough
def test_validation_has_the_kernels_of_training(tmp_path):
    """Its list has one chunk, training's four. Messages between nodes on both sides hold 4 of 132 multiprocessors."""
    data = f"{{train: {tmp_path}/train.bin, val: {tmp_path}/val.bin, val_every: 0, val_batches: 1}}"
    model = "{family: llama, hidden: 512, layers: 16, heads: 8, ffn: 1408, vocab: 61, seq_len: 16}"
    config, saved, counts = write_config(tmp_path, "llama", data=data, model=model), tmp_path / "saved", []
    keys = ("parallel.pipeline=4", "hardware.gpus_per_node=1", "schedule.bpipe=off", "schedule.name=interleaved",
            "schedule.chunks=4", "schedule.micro_batch=1", "train.global_batch=4", "train.steps=1",
            f"checkpoint.dir={saved}", "checkpoint.every=1")
    for arguments in ((), ("--validate", "--resume", saved)):
        folder = tmp_path / str(len(counts))
        folder.mkdir()
        run(config, "llama", *keys, arguments=arguments, VIRTUAL_RACES="0", VIRTUAL_PRODUCTS=folder)
        counts.append({int(line) for rank in folder.iterdir() for line in rank.read_text().split()})
    assert counts == [{132 - 4}] * 2


def test_a_checkpoint_waits_for_gathers_of_weights(tmp_path):
    saved = (f"checkpoint.dir={tmp_path}/saved", "checkpoint.every=1")
    run(write_config(tmp_path, "llama"), "llama", "parallel.data=2", "parallel.pipeline=2", *saved)


@pytest.mark.thorough
@pytest.mark.parametrize("options", [("parallel.pipeline=2",), WIDE], ids=["two stages", "tensor ranks"])
def test_samples_are_those_of_cpus(tmp_path, options):
    config = write_config(tmp_path, "llama")
    sample = ("sample.tokenizer=ids", "sample.tokens=12", "sample.count=2", "sample.temperature=0.9")
    chosen = (*options, *sample, "sample.every=2", "sample.prompt=5 6")
    saved = (f"checkpoint.dir={tmp_path}/saved", "checkpoint.every=2")
    training = run(config, "llama", *chosen, *saved, VIRTUAL_ORDER="random")
    assert re.search(r"5 6( \d+){12}$", training.stdout, re.M), training.stdout
    asked = ("--generate", "5 6", "--resume", tmp_path / "saved")
    texts = [ask(config, "llama", *chosen, arguments=asked).stdout for ask in (on_cpu, run)]
    assert texts[0] == texts[1] and re.search(r"5 6( \d+){12}$", texts[0], re.M), texts


def test_a_stage_alone_allocates_what_was_planned(tmp_path):
    done = run(write_config(tmp_path, "llama"), "llama", *BPIPE, arguments=("--emulate-stage", "1"))
    assert re.search(r"^peak .* allocated, ([\d,]+) bytes; planned .*, the same to the byte$", done.stdout,
                     re.M), done.stdout
    assert re.search(r"^time +forward [\d.]+ ms, backward [\d.]+ ms a microbatch", done.stdout, re.M), done.stdout


def test_all_stages_are_emulated_where_their_products_wait_for_messages(tmp_path):
    options = ("parallel.pipeline=2", "train.precision=bf16", "schedule.bpipe=off", "hardware.gpu=h100",
               "hardware.gpus_per_node=1", "hardware.network_gb_s=0.01")  # fmt: skip
    done = run(write_config(tmp_path, "llama"), "llama", *options, arguments=("--emulate-stage", "all"),
               VIRTUAL_RACES="0")
    assert re.search(r"^pipeline +of 2 such devices: [\d.]+ ms", done.stdout, re.M), done.stdout


@pytest.mark.thorough
def test_a_profile_is_measured_and_planned_with(tmp_path):
    config, profile = write_config(tmp_path, "gpt"), tmp_path / "profile.json"
    options = ("parallel.pipeline=2", "train.global_batch=2", f"hardware.profile={profile}")
    done = run(config, "gpt", *options, arguments=("--profile", "--json"), VIRTUAL_RACES="0")
    assert json.loads(done.stdout)["source"] == "profile"
    assert json.loads(profile.read_text())["device"]["name"] == "NVIDIA H100 80GB HBM3"


@pytest.mark.thorough
@pytest.mark.soak
@pytest.mark.parametrize("order", ("random", "newest", "fifo"))
def test_operations_of_the_gpu_agree_with_those_of_the_cpu(order):
    env = virtual_runs.environment(VIRTUAL_ORDER=order, VIRTUAL_PAGEABLE="late")
    done = trainer_runs.execute([virtual_runs.VIRTUAL / "test_cuda"], limit=600, env=env)
    assert "SKIPPED" not in done.stdout + done.stderr


# Kernels, the program's own included, are loaded at their first launch. No kernel may be new after the first message.
REHEARSED = {
    "chunks and split backwards": ("gpt", "parallel.pipeline=2", "schedule.name=v-half", "train.precision=bf16"),
    "whole and split backwards": ("llama", "parallel.pipeline=2", "schedule.name=dualpipe-v"),
    "layers that are run again": ("llama", "parallel.pipeline=2", "schedule.recompute_layers=1"),
    "documents in flash": ("llama", "parallel.pipeline=2", *virtual_runs.LONG_DOCUMENTS, "train.precision=bf16"),
    "documents in flash on context ranks": ("llama", "parallel.pipeline=2", "parallel.context=2",
                                            *virtual_runs.LONG_DOCUMENTS, "train.precision=bf16"),
    "tensor ranks and a tied head": ("gpt", *WIDE, "model.tie_embeddings=true"),
    "data ranks": ("llama", "parallel.pipeline=2", "parallel.data=2"),
    "ranks of experts": ("llama", *virtual_runs.EXPERTS, "parallel.pipeline=2", "parallel.expert=2"),
    "fewer rows than experts": ("llama", *virtual_runs.EXPERTS, "parallel.pipeline=2", "parallel.expert=2",
                                "model.experts=128"),
    "latent attention and biased routers": ("llama", *virtual_runs.LATENT, "parallel.pipeline=2"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("options", REHEARSED.values(), ids=REHEARSED)
def test_nothing_is_launched_for_the_first_time_after_the_first_message(tmp_path, options):
    nodes = "4" if "parallel.data=2" in options else "2"  # so that the stages are on two nodes
    late = {"VIRTUAL_NODES": nodes, "VIRTUAL_LAZY": "2", "CUDA_MODULE_LOADING": "LAZY"}
    virtual_runs.in_orders(tmp_path, virtual_runs.case(*options, **late), ("fifo",))


@pytest.mark.thorough
def test_the_load_of_experts_is_that_of_cpus(tmp_path):
    """From the first step on, whose load must not contain the rehearsal's."""
    config = write_config(tmp_path, "llama")
    options = (*virtual_runs.EXPERTS, "parallel.expert=2", "log.experts=true", "train.balance=loss")
    ours, theirs = ([step["experts"] for step in train(config, "llama", *options).steps] for train in (run, on_cpu))
    assert [load.pop("balance_loss") for load in ours] == pytest.approx([load.pop("balance_loss") for load in theirs])
    assert ours == theirs and len(ours) == 2


@pytest.mark.thorough
def test_streams_that_share_a_hardware_queue_do_not_hold_up_each_other_for_good(tmp_path):
    config = write_config(tmp_path, "llama")
    run(config, "llama", *BPIPE, VIRTUAL_ORDER="random", CUDA_DEVICE_MAX_CONNECTIONS="2", **APART)

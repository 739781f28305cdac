"""Dry runs on the virtual GPU (docs/dry-runs.md): every call, stream, event and message of a run is real, but nothing
is computed, and time is simulated. The plan predicts the same figures independently: bytes must be equal, and times
must agree within 2 percent."""

import re
import shutil

import plans
import pytest
import trainer_runs
import virtual_runs

FOLDER = trainer_runs.ROOT / "test" / "virtual"
VIRTUAL = trainer_runs.ROOT / "build" / "virtual"
CONFIGS = {"llama": plans.LLAMA, "gpt": plans.GPT}
WITHIN = 0.02


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    return trainer_runs.write_tokens(tmp_path_factory.mktemp("dry") / "train.bin",
                                     trainer_runs.made_tokens(1100000, 30000))


def given(tokens, *overrides):
    """Returns the settings of two steps, of a run or of its plan."""
    return (f"data.train={tokens}", "data.val=", "data.val_every=0", "checkpoint.every=0", "train.steps=2",
            f"train.timeout_s={trainer_runs.patience(60):.0f}", *overrides)  # fmt: skip


def dry(family, tokens, folder, *overrides, nodes=1, **changes):
    """Runs to the end. Returns the metrics of the last step, and what the run said."""
    gpus = dict(each.split("=", 1) for each in overrides).get("hardware.gpus_per_node", "8")
    env = trainer_runs.one_thread(VIRTUAL_DRY="1", VIRTUAL_GPUS=gpus, VIRTUAL_NODES=str(nodes), **changes)
    ended = trainer_runs.run(CONFIGS[family], *given(tokens, f"log.metrics={folder}/metrics.jsonl", *overrides),
                             program=VIRTUAL / f"train_{family}", env=env)
    return ended.steps[-1], ended.stderr


def planned(family, tokens, *overrides):
    return plans.plan(CONFIGS[family], *given(tokens, *overrides), family=family)


def allocates_as_planned(step, plan):
    return [stage["peak_bytes"] for stage in step["stages"]] == [stage["peak_bytes"] for stage in plan["stages"]]


def agrees(family, tokens, folder, *overrides, nodes=1, waits=WITHIN):
    """Runs two steps and compares the second with the plan, since the first still loads kernels. Returns the second."""
    step, said = dry(family, tokens, folder, *overrides, nodes=nodes)
    plan = planned(family, tokens, *overrides)
    assert "as planned, to the byte" in said and allocates_as_planned(step, plan)
    assert step["loss"] is None and step["grad_norm"] is None
    assert step["step_ms"] == pytest.approx(plan["step_ms"], rel=WITHIN)
    assert step["bubble"] == pytest.approx(plan["bubble"], abs=waits * plan["bubble"] + 0.005)
    exposed, wanted = step["transfer_exposed_ms"], plan["transfer_exposed_ms"]
    assert exposed == pytest.approx(wanted, abs=waits * wanted + 0.005 * plan["step_ms"])
    return step


def cut(layers, pipeline, tensor):
    return f"model.layers={layers}", f"parallel.pipeline={pipeline}", f"parallel.tensor={tensor}"


# Experts are chosen equally often in a dry run.
EXPERTS = ("parallel.data=4", "parallel.expert=4", "parallel.placement=stages", "parallel.sequence=false",
           "hardware.expert_spread=1e-6", "hardware.gpu=h100", "train.global_batch=16",
           "checkpoint.dir=")  # fmt: skip


# Pairs of stages whose ranks are on two nodes.
SPREAD = ("parallel.placement=linear", "schedule.bpipe=on", "hardware.gpus_per_node=4", "train.global_batch=8")
H100 = ("hardware.gpu=h100", "parallel.tensor=4", "schedule.micro_batch=2", "model.layers=4", "parallel.pipeline=1")
# The models of the shipped configurations with fewer layers, on at most 8 GPUs.
SMALL = {
    "evictions inside a node": (
        "llama", 1, *cut(8, 4, 2), "schedule.micro_batch=2", "schedule.bpipe=on", "train.global_batch=16"),
    "one rank": ("llama", 1, *cut(4, 1, 1), "train.global_batch=4"),
    "small kernels, and one scale per tensor": (
        "llama", 1, *cut(3, 1, 1), "model.hidden=2048", "model.heads=16", "model.kv_heads=4", "model.ffn=5504",
        "model.seq_len=1024", "train.fp8=tensor", "hardware.gpu=b200", "train.global_batch=6"),
    "one rank of a B200": (
        "llama", 1, *cut(2, 1, 1), "model.seq_len=2048", "hardware.gpu=b200", "train.global_batch=2"),
    "four stages": ("gpt", 1, *cut(8, 4, 1), "train.global_batch=8"),
    "loads begin when the host has queued the action before them": (
        "llama", 1, *cut(16, 2, 1), "model.hidden=2048", "model.heads=16", "model.kv_heads=4", "model.ffn=5504",
        "schedule.name=gis", "schedule.evict_to=host", "schedule.bpipe=on", "schedule.load_ahead=1",
        "hardware.gpu=h100", "train.global_batch=12"),
    "evictions between nodes": ("llama", 2, *cut(8, 4, 2), *SPREAD),
    "evictions between nodes, 24 GB/s": ("llama", 2, *cut(8, 4, 2), *SPREAD, "hardware.network_gb_s=24"),
    "evictions between nodes beside persistent products": (
        "llama", 2, *cut(8, 4, 2), *SPREAD, "hardware.gpu=h100", "hardware.network_gb_s=20"),
    "messages between nodes on both sides of a stage beside persistent products": (
        "llama", 4, *cut(4, 4, 2), "parallel.placement=linear", "schedule.bpipe=off", "hardware.gpus_per_node=2",
        "hardware.gpu=h100", "hardware.network_gb_s=50", "train.global_batch=16"),
    "slow messages between nodes on both sides of a stage beside persistent products": (
        "llama", 4, *cut(8, 4, 2), "parallel.placement=linear", "schedule.bpipe=off", "hardware.gpus_per_node=2",
        "hardware.gpu=h100", "hardware.network_gb_s=12", "model.seq_len=4096", "train.global_batch=16"),
    "slow messages of a V beside persistent products": (
        "llama", 2, *cut(8, 4, 2), "parallel.placement=linear", "schedule.name=zb-v", "hardware.gpus_per_node=4",
        "schedule.bpipe=off", "hardware.gpu=h100", "hardware.network_gb_s=12", "model.seq_len=4096",
        "train.global_batch=16"),
    "sums beside later backwards of two chunks": (
        "llama", 1, *cut(4, 2, 1), "parallel.context=2", "parallel.data=2", "model.seq_len=2048", "schedule.name=gis",
        "schedule.recompute_layers=2", "parallel.overlap=off", "attention.mode=recompute", "hardware.gpu=h200",
        "train.global_batch=8"),
    "a forward in four strips of rows": (
        "llama", 1, *cut(4, 2, 4), "parallel.overlap=4", "schedule.micro_batch=4", "train.global_batch=16"),
    "an update that takes longer on a later stage": (
        "llama", 1, "parallel.pipeline=2", "parallel.tensor=1", "parallel.layers=[2,4]", "model.layers=6",
        "model.seq_len=1024", "schedule.bpipe=off", "hardware.gpu=b200", "train.global_batch=12"),
    "outputs computed again": (
        "llama", 1, *cut(4, 2, 4), "schedule.recompute=pointwise", "schedule.micro_batch=2", "train.global_batch=8"),
    "outputs computed again for W": (
        "llama", 1, *cut(4, 2, 4), "schedule.recompute=pointwise", "schedule.name=zb-v", "schedule.micro_batch=2",
        "train.global_batch=16"),
    "8 bits are gathered": (
        "llama", 1, *cut(4, 2, 4), "train.fp8=block", "hardware.gpu=h100", "schedule.micro_batch=2",
        "train.global_batch=8"),
    "8 bits are gathered and computed again for W": (
        "llama", 1, *cut(4, 2, 4), "train.fp8=block", "hardware.gpu=h100", "schedule.recompute=pointwise",
        "schedule.name=zb-v", "train.global_batch=16"),
    "slices": (
        "llama", 1, *cut(8, 4, 2), "model.seq_len=32768", "schedule.name=seq1f1b", "schedule.slices=4",
        "schedule.bpipe=on", "hardware.gpu=h100", "train.global_batch=4"),
    "context ranks": (
        "llama", 1, *cut(4, 2, 2), "parallel.context=2", "model.seq_len=32768", "hardware.gpu=h100",
        "train.global_batch=4"),
    "slices of two chunks": (
        "llama", 1, *cut(8, 4, 2), "model.seq_len=8192", "schedule.name=interleaved", "schedule.slices=2",
        "train.global_batch=8"),
    "two data ranks": (
        "llama", 2, *cut(8, 2, 2), "parallel.data=2", "hardware.gpus_per_node=4", "train.global_batch=16"),
    "copies of the pipeline that begin in the middle of a node": (
        "llama", 3, *cut(3, 3, 1), "parallel.data=2", "parallel.placement=linear", "model.seq_len=2048",
        "schedule.bpipe=off", "hardware.gpu=h100", "hardware.gpus_per_node=2", "hardware.network_gb_s=50",
        "train.global_batch=12"),
    "weights of a small stage are gathered sooner between nodes": (
        "llama", 2, *cut(4, 4, 1), "parallel.data=2", "parallel.placement=adjacent", "model.seq_len=2048",
        "schedule.name=gpipe", "schedule.bpipe=off", "hardware.gpu=b200", "hardware.gpus_per_node=4",
        "hardware.network_gb_s=25", "train.global_batch=16"),
    "a last node with fewer ranks": (
        "llama", 2, *cut(3, 3, 1), "parallel.data=2", "parallel.placement=stages", "model.seq_len=2048",
        "schedule.bpipe=off", "hardware.gpu=h100", "hardware.gpus_per_node=4", "hardware.network_gb_s=50",
        "train.global_batch=12"),
    "two data ranks of persistent products": (
        "llama", 1, *cut(8, 2, 2), "parallel.data=2", "hardware.gpu=h100", "train.global_batch=16"),
    "weights of four data ranks gathered during one of two forwards": (
        "llama", 1, *cut(4, 1, 2), "parallel.data=4", "hardware.gpu=h100", "train.global_batch=8"),
    "eight experts a rank": (
        "llama", 1, *cut(4, 2, 1), *EXPERTS, "model.experts=32", "model.experts_per_token=8", "model.expert_ffn=1536"),
    "eight recomputed experts a rank": (
        "llama", 1, *cut(4, 2, 1), *EXPERTS, "model.experts=32", "model.experts_per_token=8", "model.expert_ffn=1536",
        "schedule.recompute=experts"),
    "one expert a rank": (
        "llama", 1, *cut(4, 2, 1), *EXPERTS, "model.experts=4", "model.experts_per_token=2", "model.expert_ffn=14336"),
    "experts of two nodes": (
        "llama", 2, *cut(2, 1, 1), *EXPERTS, "model.experts=8", "model.experts_per_token=2", "model.expert_ffn=4096",
        "hardware.gpus_per_node=2", "hardware.network_gb_s=100", "train.global_batch=64"),
    "sums over tensor ranks beside messages between nodes": (
        "llama", 8, *cut(4, 4, 2), "model.seq_len=2048", "schedule.micro_batch=4", "train.fp8=block",
        "parallel.overlap=off", "attention.mode=none", "parallel.placement=linear", "schedule.bpipe=off",
        "hardware.gpu=h100", "hardware.gpus_per_node=1", "hardware.network_gb_s=12", "train.global_batch=32"),
    "sums over data ranks beside exchanges between nodes": (
        "llama", 4, *cut(4, 2, 1), *EXPERTS, "model.experts=8", "model.experts_per_token=2", "model.expert_ffn=4096",
        "model.seq_len=2048", "schedule.bpipe=off", "hardware.gpus_per_node=2", "hardware.network_gb_s=50",
        "train.global_batch=32"),
    "tensor ranks of two nodes": (
        "gpt", 2, *cut(6, 1, 4), "model.seq_len=2048", "hardware.gpu=b200", "hardware.gpus_per_node=2",
        "train.global_batch=4"),
    "gradients and weights of experts cross nodes without replicas": (
        "llama", 2, *cut(2, 1, 8), *EXPERTS, "parallel.data=1", "model.experts=8", "model.experts_per_token=2",
        "model.expert_ffn=4096", "parallel.sequence=true", "hardware.gpus_per_node=4", "hardware.network_gb_s=50",
        "train.global_batch=32"),
    "sums and gathers of experts and of other weights take turns between nodes": (
        "llama", 2, *cut(8, 2, 1), "parallel.data=2", "model.seq_len=8192", "hardware.gpu=h100", "schedule.bpipe=off",
        "hardware.gpus_per_node=2", "hardware.network_gb_s=50", "model.experts=8", "model.experts_per_token=2",
        "model.expert_ffn=1408", "parallel.expert=1", "hardware.expert_spread=1e-6", "checkpoint.dir=",
        "train.global_batch=16"),
    "context ranks of one of two stages are on two nodes": (
        "llama", 2, *cut(4, 2, 1), "parallel.context=3", "model.seq_len=3072", "parallel.placement=linear",
        "schedule.bpipe=off", "hardware.gpu=h100", "hardware.gpus_per_node=4", "hardware.network_gb_s=12",
        "train.global_batch=8"),
    "experts of one of two stages are on two nodes": (
        "llama", 2, *cut(4, 2, 1), *EXPERTS, "parallel.data=3", "parallel.expert=3", "model.experts=6",
        "model.experts_per_token=2", "model.expert_ffn=4096", "model.seq_len=2048", "schedule.bpipe=off",
        "hardware.gpus_per_node=4", "hardware.network_gb_s=25", "train.global_batch=24"),
    "gradients sharded over data ranks are not zeroed for each layer": (
        "llama", 1, *cut(5, 1, 2), "parallel.data=4", "parallel.shard_gradients=on", "hardware.gpu=h100",
        "train.global_batch=4"),
    "weights of later stages become 8 bits while they wait": (
        "llama", 1, *cut(8, 4, 2), "train.fp8=block", "hardware.gpu=h100", "train.global_batch=8"),
} | {
    f"the loss beside collectives by {way}, overlap {overlap}": (
        "llama", 1, *H100, "train.global_batch=8", f"parallel.collectives={way}", f"parallel.overlap={overlap}")
    for way in ("nccl", "copy") for overlap in ("off", "on", "4")
}  # fmt: skip
# Step times agree. But the clock finds 129 ms of waits for bundles and the plan 143 ms; the cause is unknown. And of a
# product that waits for a message, the plan counts the wait as work only on average.
WAITS = SMALL["evictions between nodes"], SMALL["slow messages of a V beside persistent products"]


@pytest.mark.thorough
@pytest.mark.soak(2)
@pytest.mark.usefixtures("ranks")
@pytest.mark.parametrize("case", SMALL.values(), ids=SMALL)
def test_the_clock_and_the_plan_agree_about_a_few_gpus(tmp_path, tokens, case):
    family, nodes, *overrides = case
    step = agrees(family, tokens, tmp_path, *overrides, nodes=nodes, waits=0.15 if case in WAITS else WITHIN)
    lends = "schedule.bpipe=on" in overrides and "schedule.evict_to=host" not in overrides
    assert sum(stage["slots_lent"] for stage in step["stages"]) > 0 or not lends
    assert step["transfer_exposed_ms"] > 1 or not lends or nodes == 1


# Context ranks: each stage has a rank on the middle one of three nodes.
NEIGHBOURS = {
    "context ranks": (
        "parallel.pipeline=2", "parallel.context=3", "model.layers=4", "model.seq_len=3072",
        "hardware.gpus_per_node=2", "hardware.network_gb_s=12", "train.global_batch=8"),
    "experts of two stages": (
        *cut(4, 2, 1), *EXPERTS, "model.experts=8", "model.experts_per_token=2", "model.expert_ffn=4096",
        "parallel.placement=linear", "hardware.gpus_per_node=4", "hardware.network_gb_s=50", "train.global_batch=64"),
    "experts of four stages": (
        *cut(8, 4, 1), *EXPERTS, "model.experts=8", "model.experts_per_token=2", "model.expert_ffn=4096",
        "parallel.data=2", "parallel.expert=2", "parallel.placement=linear", "hardware.gpus_per_node=4",
        "hardware.network_gb_s=50", "train.global_batch=32"),
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.usefixtures("ranks")
@pytest.mark.parametrize("keys", NEIGHBOURS.values(), ids=NEIGHBOURS)
def test_stages_that_share_a_node_share_its_network(tmp_path, tokens, keys):
    """The plan assumes that their collectives meet by chance; by the clock their rhythm decides."""
    keys = ("parallel.tensor=1", "model.seq_len=2048", "schedule.bpipe=off", "hardware.gpu=h100", *keys)
    nodes = 3 if "parallel.context=3" in keys else 2
    step, plan = dry("llama", tokens, tmp_path, *keys, nodes=nodes)[0], planned("llama", tokens, *keys)
    assert step["step_ms"] == pytest.approx(plan["step_ms"], rel=0.04)


# 32 GPUs in four nodes, 16 microbatches.
FULL = {
    "context ranks of 128k tokens": (
        "llama", "train.global_batch=8", "model.layers=16", "model.seq_len=131072", "parallel.pipeline=2",
        "parallel.context=4", "hardware.gpu=h100", "attention.deterministic=off"),
    "slices of 128k tokens": (
        "llama", "train.global_batch=8", "model.layers=16", "model.seq_len=131072", "schedule.name=seq1f1b",
        "schedule.slices=16", "schedule.bpipe=on", "hardware.gpu=h100", "attention.deterministic=off"),
    "LLaMA 65B": ("llama", "train.global_batch=16"),
    "GPT-3 96B with BPipe": ("gpt", "train.global_batch=32", "schedule.micro_batch=2", "schedule.bpipe=on"),
    "pairs that span nodes": (
        "gpt", "train.global_batch=32", "schedule.micro_batch=2", "schedule.bpipe=on", "parallel.placement=linear"),
    "two data ranks": ("llama", "train.global_batch=32", "model.layers=40", "parallel.tensor=2", "parallel.data=2"),
    "two data ranks of persistent products": (
        "llama", "train.global_batch=32", "model.layers=40", "parallel.pipeline=4", "parallel.data=2",
        "hardware.gpu=h100"),
}  # fmt: skip


@pytest.mark.thorough
@pytest.mark.usefixtures("ranks")
@pytest.mark.soak
@pytest.mark.parametrize("case", FULL.values(), ids=FULL)
def test_the_clock_and_the_plan_agree_about_32_gpus(tmp_path, tokens, case):
    family, *overrides = case
    agrees(family, tokens, tmp_path, *overrides, nodes=4)


@pytest.mark.usefixtures("ranks")
def test_the_clock_and_the_plan_count_every_copy_of_eight_tensor_ranks(tmp_path, tokens):
    """A collective of eight ranks by copies has 21 copies for each rank, 14 of them of 4 bytes."""
    shape = ("model.layers=2", "parallel.pipeline=1", "train.global_batch=2", "hardware.gpu=h100", "parallel.tensor=8")
    agrees("llama", tokens, tmp_path, *shape, "parallel.overlap=4")


@pytest.mark.usefixtures("ranks")
def test_data_ranks_that_begin_at_different_times_have_no_bubble(tmp_path, tokens):
    """With Muon each matrix has a home, so that one rank ends its update before the other and waits for weights."""
    keys = ("parallel.data=2", "train.optimizer=muon", "train.global_batch=4", "hardware.gpu=h100", "checkpoint.dir=")
    assert dry("llama", tokens, tmp_path, *cut(1, 1, 1), *keys)[0]["bubble"] == pytest.approx(0, abs=0.005)


@pytest.mark.thorough
@pytest.mark.usefixtures("ranks")
def test_gradients_of_experts_cross_nodes_without_replicas(tokens):
    layout = ("parallel.pipeline=1", "parallel.tensor=16", "parallel.placement=linear", "train.global_batch=2",
              "model.layers=2", "model.experts=8", "model.experts_per_token=2", "parallel.expert=4",
              "hardware.reserve_gib=0", "hardware.memory_gib=2000")
    sums = [{line["what"]: line["ms"] for line in planned("llama", tokens, *layout, f"hardware.gpus_per_node={gpus}")
             ["waterfall"]}["sums over data ranks"] for gpus in (8, 16)]
    assert sums[0] > 5 * sums[1] > 0


def test_a_collective_in_clusters_waits_for_persistent_products(tmp_path, tokens):
    """Products leave three multiprocessors in a GPC, where a cluster of four does not fit. An A100 has no clusters, and
    its products make room."""
    def step_ms(gpu, cluster):
        keys = (*H100, "train.global_batch=4", f"hardware.gpu={gpu}", "parallel.collectives=nccl", "parallel.overlap=2")
        return dry("llama", tokens, tmp_path, *keys, NCCL_CGA_CLUSTER_SIZE=cluster)[0]["step_ms"]

    assert step_ms("h100", "4") > 1.02 * step_ms("h100", "1")
    assert step_ms("a100-80g", "4") == pytest.approx(step_ms("a100-80g", "1"))


@pytest.mark.thorough
@pytest.mark.usefixtures("ranks")
def test_a_full_stream_of_launches_does_not_delay_messages(tmp_path, tokens):
    """A host that waits inside a launch moves no messages. So it stays only some layers ahead of its GPU."""
    keys = ("model.hidden=4096", "model.ffn=11008", "model.heads=32", "model.kv_heads=32", *cut(80, 4, 2),
            "schedule.name=zb-v", "schedule.micro_batch=1", "train.global_batch=8", "hardware.gpu=h200")
    steps = [dry("llama", tokens, tmp_path, *keys, VIRTUAL_JITTER="0.05", VIRTUAL_LAUNCHES=launches)[0]["step_ms"]
             for launches in ("1024", "2000")]
    assert steps[0] == pytest.approx(steps[1], rel=1e-3)


REFUSED = {
    "saving": (
        ("checkpoint.every=1", "checkpoint.dir={}/new"), (), "there are no weights to save; set checkpoint.every=0"),
    "--validate": ((), ("--validate", "--resume", "{}"), "--validate would print a loss; leave it out"),
    "--resume": ((), ("--resume", "{}"), "--resume would load weights; leave it out"),
    "--resume-if-any": ((), ("--resume-if-any", "{}"), "--resume-if-any would load weights; leave it out"),
    "--generate": (
        ("sample.tokenizer=ids",), ("--generate", "5", "--resume", "{}"), "--generate would print text; leave it out"),
}  # fmt: skip


@pytest.mark.thorough
def test_a_dry_run_evicts_more_than_this_host_has(tmp_path, tokens):
    keys = "train.steps=1 train.global_batch=384 model.layers=8 hardware.gpu=b200 parallel.tensor=1 schedule.slots=2 " \
           "schedule.micro_batch=48 schedule.bpipe=on schedule.evict_to=host"  # 21 bundles of 26 GB
    assert "as planned, to the byte" in dry("llama", tokens, tmp_path, *keys.split())[1]


@pytest.mark.thorough
@pytest.mark.parametrize("deterministic", ["on", "off"])
@pytest.mark.parametrize("gpu", ["a100-80g", "h100", "b200"])
def test_attention_takes_the_bytes_of_its_gpu(tmp_path, tokens, gpu, deterministic):
    keys = (*cut(2, 1, 1), f"hardware.gpu={gpu}", f"attention.deterministic={deterministic}", "model.kv_heads=8",
            "train.global_batch=1", "schedule.bpipe=off", "train.steps=1")
    assert allocates_as_planned(dry("llama", tokens, tmp_path, *keys)[0], planned("llama", tokens, *keys))


@pytest.mark.thorough
def test_what_a_run_clears_is_clear_for_the_kernels_of_a_dry_run(tmp_path):
    """The first and the last row of each of 140,000 tokens lie where the optimizer has left addresses."""
    tokens = trainer_runs.write_tokens(tmp_path / "train.bin", list(range(256)) * 40)
    keys = "model.layers=1 model.vocab=140000 model.hidden=1024 model.heads=8 model.kv_heads=8 model.ffn=1024 " \
           "model.seq_len=256 parallel.pipeline=1 parallel.tensor=1 schedule.bpipe=off train.global_batch=1"
    dry("llama", tokens, tmp_path, *keys.split())


def test_a_dry_run_is_an_option_of_the_trainers(tokens):
    """It takes as many virtual GPUs and nodes as the configuration has, and neither saves nor validates nor samples."""
    config = trainer_runs.ROOT / "configs" / "llama_tiny.yaml"
    keys = (f"data.train={tokens}", "data.val=", "hardware.gpu=h100", "hardware.gpus_per_node=2", "train.steps=2",
            "model.vocab=30000", "log.metrics=", "sample.every=1", "sample.tokenizer=ids")  # fmt: skip
    # A pipe can be read only once.
    done = trainer_runs.command("llama", "-c", "/dev/stdin", "--dry-run", overrides=keys, input=config.read_text(),
                                env=trainer_runs.one_thread())
    assert "dry run on virtual GPUs" in done.stderr.splitlines()[0]
    lines = [line for line in done.stdout.splitlines() if line.startswith("step")]
    assert len(lines) == 2 and all("| loss - | norm - |" in line for line in lines)
    assert "val " not in done.stdout and "sample" not in done.stdout and "saved" not in done.stderr


def test_a_dry_run_beside_a_run_leaves_its_checkpoints_and_metrics_alone(tmp_path):
    metrics, saved = tmp_path / "metrics.jsonl", tmp_path / "saved"
    keys = ["parallel.pipeline=1", "schedule.bpipe=off", "train.steps=1", f"log.metrics={metrics}",
            f"checkpoint.dir={saved}", "checkpoint.every=1"]  # fmt: skip
    config = trainer_runs.write_config(tmp_path)
    trainer_runs.run(config, *keys)
    before = metrics.read_bytes(), sorted(saved.iterdir())
    refused = trainer_runs.run(config, *keys, "hardware.device=auto", arguments=["--dry-run"], code=2)
    assert refused.said[-1].endswith("or, for none, -o log.metrics="), refused.stderr
    for _ in range(2):
        other = f"log.metrics={tmp_path}/dry.jsonl"
        trainer_runs.run(config, *keys, "hardware.device=auto", other, arguments=["--dry-run"])
    assert (metrics.read_bytes(), sorted(saved.iterdir())) == before


def test_virtual_gpus_of_other_sources_are_refused(tmp_path):
    """After a change the trainer is often made alone. What both were built from decides, not the files' times."""
    (tmp_path / "Makefile").touch()
    (tmp_path / "build/virtual").mkdir(parents=True)
    ours, theirs = tmp_path / "train_llama", tmp_path / "build/virtual/train_llama"
    shutil.copy(trainer_runs.trainer("llama"), ours)
    code = (VIRTUAL / "train_llama").read_bytes()
    stamp = re.search(rb"built from the sources \d+", code)[0]
    assert stamp in ours.read_bytes()
    theirs.write_bytes(code.replace(stamp, stamp[:-1] + (b"1" if stamp[-1:] == b"0" else b"0")))
    theirs.chmod(0o755)
    done = trainer_runs.execute([ours, "-c", "configs/llama_tiny.yaml", "--dry-run", "-o", "log.metrics="], code=1)
    assert done.stdout == "" and done.stderr == (
        f"train_llama: --dry-run: {theirs} was built from other sources than this program; "
        f"run make programs virtual in {tmp_path}\n"
    )


def test_what_needs_weights_is_refused_in_a_dry_run(tmp_path):
    config, saved = virtual_runs.write_config(tmp_path, "llama"), tmp_path / "saved"
    data = (f"data.val={tmp_path}/val.bin", f"checkpoint.dir={saved}")
    virtual_runs.on_cpu(config, "llama", *data, "checkpoint.every=1")
    kept = sorted(saved.iterdir())
    for overrides, arguments, reason in REFUSED.values():
        asked, changed = ([text.format(saved) for text in texts] for texts in (arguments, overrides))
        chosen = (*data, "checkpoint.every=0", "train.steps=3", *changed)
        ended = virtual_runs.run(config, "llama", *chosen, arguments=asked, code=2, VIRTUAL_DRY="1")
        assert ended.stdout == "" and ended.said[-1].endswith(f"VIRTUAL_DRY=1 computes nothing: {reason}"), ended.stderr
    assert sorted(saved.iterdir()) == kept


def test_the_virtual_gpu_knows_nothing_of_the_plan():
    """From the program, the library includes only number formats, as src/cuda does, and costs."""
    allowed = {"backend/factor.h", "base/number_formats.h", "device/cost.h", "config/config.h", "config/gpus.h"}
    for path in [*FOLDER.glob("*.cc"), *FOLDER.glob("*.h"), *(FOLDER / "include").glob("*.h")]:
        for name in re.findall(r'^#include "([\w./]+)"', path.read_text(), re.M):
            assert not (trainer_runs.ROOT / "src" / name).exists() or name in allowed, f"{path.name} includes {name}"
    symbols = trainer_runs.execute(["nm", "-C", VIRTUAL / "libtrainer_cuda.so"]).stdout
    assert not re.search(r" [TtU] (plan_make|plan_time|hardware_times|schedule_|simulate_|bpipe_)", symbols)

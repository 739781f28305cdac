"""Mixtures of experts: no token is dropped, no routing needs more memory than planned, and layouts keep the bits that
they promise (src/model/experts.h)."""

import math

import numpy
import pytest
import trainer_runs
from checkpoint_runs import poison
from trainer_runs import close, environment, preload, tensors_of, walked_tokens, write_config, write_tokens

pytestmark = pytest.mark.usefixtures("ranks")

MODEL = ("{family: llama, hidden: 32, layers: 4, heads: 4, kv_heads: 2, ffn: 48, vocab: 61, seq_len: 16, experts: 8, "
         "experts_per_token: 2, expert_ffn: 24}")  # fmt: skip
BIASED = pytest.mark.parametrize("config", ["biased", "latent"], indirect=True)
AS_PLANNED = "memory    as planned, to the byte"


# Of the second model the first layer is dense, and the others have a shared expert. The last two choose by biased
# scores, one of them after latent attention.
KINDS = {"experts": MODEL, "shared": MODEL.replace("}", ", dense_layers: 1, shared_ffn: 16}"),
         "latent": MODEL.replace("kv_heads: 2", "kv_lora: 12, q_lora: 16, nope_dim: 6, rope_dim: 4, v_dim: 8")
                        .replace("}", ", router: sigmoid, shared_ffn: 24, dense_layers: 1}"),
         "biased": MODEL.replace("}", ", dense_layers: 1, router: sigmoid, router_groups: 4, router_group_top: 2}")}


@pytest.fixture(scope="module", params=KINDS)
def config(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    write_tokens(folder / "a.bin", walked_tokens(4096, 61))
    train = ("{global_batch: 8, steps: 3, lr: 3.0e-3, warmup_steps: 1, router_z_loss: 1.0e-3, balance_rate: 0.01,"
             f" balance: {'bias' if request.param in ('biased', 'latent') else 'loss'}}}")
    return write_config(folder, model=KINDS[request.param], data=f"{{train: {folder}/a.bin}}", train=train,
                        parallel="{}", schedule="{bpipe: off}",
                        hardware="{device: cpu, reserve_gib: 0.1}")  # fmt: skip


def run(config, *keys, **more):
    if "kv_lora" in config.read_text() and "parallel.context=2" in keys:
        pytest.skip("context ranks cannot cut latent attention")
    ended = trainer_runs.run(config, *keys, **more)
    assert AS_PLANNED in ended.stderr
    return ended


@pytest.fixture(scope="module")
def alone(config):
    return run(config)


@pytest.mark.parametrize("cut", [{"data": 4}, {"data": 2, "tensor": 2, "sequence": "true"}, {"context": 2, "data": 2}])
def test_the_first_loss_has_the_same_bits_for_any_expert_ranks(config, cut):
    keys = [f"parallel.{key}={value}" for key, value in cut.items()]
    runs = [run(config, *keys, f"parallel.expert={e}") for e in (1, 2, 4)]
    assert len({ended.bits[0] for ended in runs}) == 1
    for ended in runs[1:]:
        assert close(ended.losses[1:2], runs[0].losses[1:2], 1e-6)
        assert close(ended.losses, runs[0].losses, 1e-4)


@pytest.mark.parametrize("layout", [[], ["parallel.pipeline=2", "schedule.recompute_layers=1"],
                                    ["parallel.context=2", "parallel.data=2", "parallel.expert=2"]])
def test_metrics_have_the_tokens_of_every_expert_and_the_balance_loss(config, layout):
    for step in run(config, *layout, "log.experts=true").steps:
        told, dense = step["experts"], step["experts"]["tokens"][0] == []
        assert len(told["tokens"]) == 4 and {len(row) for row in told["tokens"][dense:]} == {8}
        assert all(sum(row) == 8 * 16 * 2 for row in told["tokens"][dense:])
        if "sigmoid" in config.read_text():
            assert told["balance_loss"] is None
        else:
            assert 0.9 < told["balance_loss"] < 2


def test_the_balance_loss_does_not_depend_on_the_layout(config, alone):
    for layout in (["parallel.data=2", "parallel.expert=2", "schedule.micro_batch=1"], ["parallel.pipeline=4"],
                   ["parallel.tensor=2", "parallel.sequence=true"], ["parallel.context=2"]):
        told = [ended.steps[0]["experts"]["balance_loss"] for ended in (alone, run(config, *layout))]
        assert told[0] == told[1] is None or told[0] == pytest.approx(told[1], rel=1e-6)


@BIASED
def test_the_bias_of_an_expert_grows_where_few_tokens_came(config, tmp_path):
    ended = run(config, f"checkpoint.dir={tmp_path}", "checkpoint.every=1", "log.experts=true", "parallel.data=2",
                "checkpoint.keep=5", "train.batch_ramp=[[2, 4], [3, 16]]")  # fmt: skip
    before = dict.fromkeys(range(1, 4), 0)
    for number, step in enumerate(ended.steps, 1):
        saved = tensors_of(tmp_path / f"step_{number:08}")
        for layer, tokens in list(enumerate(step["experts"]["tokens"]))[1:]:
            bias = saved[f"model.layers.{layer}.mlp.gate.e_score_correction_bias"]
            moved = numpy.sign(bias - before[layer])
            assert (moved == numpy.sign(numpy.mean(tokens) - numpy.array(tokens))).all()
            assert abs(abs(bias - before[layer])[moved != 0] - 0.01).max() < 1e-7
            before[layer] = bias


@BIASED
def test_a_nan_in_a_router_is_one_sentence_and_ends_the_run(config, tmp_path):
    train = ["train.steps=1", "checkpoint.every=1", f"checkpoint.dir={tmp_path}"]
    name = "model.layers.2.mlp.gate.weight"
    run(config, *train)
    poison(tmp_path / "step_00000001", name, 5, math.nan)
    for file in (tmp_path / "step_00000001").glob("manifest.json"):
        file.unlink()
    keys = [f"checkpoint.init_from={tmp_path}/step_00000001", "parallel.data=4", "parallel.expert=2"]
    refused = trainer_runs.run(config, *keys, code=1)
    assert f"{name} has a non-finite value in row 0, column 5" in refused.stderr
    ended = trainer_runs.run(config, *keys, "train.skip_bad_steps=2", "train.steps=9", code=1)
    assert len(ended.steps) == 2 and ended.said[-1].count(name) == 1, ended.stderr


# A library to preload. Messages are late by other times on every rank, up to 3 ms, and calls that ask for them are
# slow now and then.
LATE = r"""
static unsigned drawn;
static unsigned draw(void) {
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    if (drawn == 0) drawn = 1 + 7919 * (unsigned)atoi(rank != NULL ? rank : "0");
    drawn = drawn * 1664525u + 1013904223u;
    return drawn >> 16;
}
int MPI_Isend(const void *data, int count, void *type, int to, int tag, void *comm, void *request) {
    if (draw() % 4 == 0) usleep(draw() % 3000);
    return REAL(MPI_Isend)(data, count, type, to, tag, comm, request);
}
int MPI_Test(void *request, int *done, void *status) {
    if (draw() % 8 != 0) return *done = 0;
    return REAL(MPI_Test)(request, done, status);
}
"""


@pytest.mark.parametrize("schedule", ["bpipe=on", "name=zb-v", "name=interleaved"])
def test_replicas_that_route_differently_do_not_wait_for_ever(config, tmp_path, schedule):
    """With buffers of a balanced share, two groups of a stage send their rows in other parts."""
    keys = ["parallel.pipeline=2", "parallel.data=4", "parallel.expert=2", "schedule.expert_rows=1",
            f"schedule.{schedule}", "train.global_batch=16"]  # fmt: skip
    late = run(config, *keys, env=environment(LD_PRELOAD=str(preload(tmp_path / "late.so", LATE))))
    assert late.bits == run(config, *keys).bits
    assert all(step["experts"]["chunks"] > 1 for step in late.steps)


def test_a_routing_to_one_rank_takes_parts_and_no_memory(config):
    """Buffers of a balanced share: whatever the routing, more copies arrive than fit, and none is lost."""
    keys = ["parallel.data=4", "parallel.expert=4"]
    tight, wide = (run(config, *keys, f"schedule.expert_rows={rows}") for rows in (1, 8))
    assert tight.bits[0] == wide.bits[0] and close(tight.losses, wide.losses, 1e-5)
    told = [ended.steps[0]["experts"] for ended in (tight, wide)]
    assert told[0]["chunks"] > 1 == told[1]["chunks"]
    assert told[0]["fullest"] == told[1]["fullest"] > 1 and told[0]["spread"] > 0


@pytest.mark.parametrize("keys", [
    ["parallel.data=4", "parallel.expert=4", "schedule.expert_rows=1"],  # parts after the first are recomputed
    ["parallel.pipeline=4", "schedule.bpipe=on"],
    ["parallel.pipeline=2", "parallel.data=2", "parallel.expert=2", "schedule.name=zb-v", "schedule.evict_to=host",
     "schedule.bpipe=on"],
    ["parallel.pipeline=2", "schedule.recompute_layers=1", "schedule.split_backward=on"],
])
def test_kept_and_recomputed_experts_have_the_same_bits(config, keys):
    words = ["none", "experts", "pointwise", "[none, experts]"][: 4 if "parallel.pipeline=2" in keys else 3]
    runs = [run(config, *keys, f"schedule.recompute={word}") for word in words]
    assert len({tuple(ended.bits) for ended in runs}) == 1
    peaks = [max(stage["peak_bytes"] for stage in ended.steps[0]["stages"]) for ended in runs]
    assert peaks[0] > peaks[1] > peaks[2]


@pytest.mark.parametrize("keys", [
    ["parallel.data=2", "parallel.expert=2"],
    ["parallel.data=2", "parallel.tensor=2", "parallel.sequence=true", "parallel.expert=4"],
])
def test_data_ranks_that_share_experts_sample_what_one_rank_does(config, keys):
    asked = ("sample.every=1", "sample.tokens=4", "sample.prompt=5")
    samples = [[line for line in run(config, *asked, *layout).stdout.splitlines() if line.startswith("sample")]
               for layout in ((), keys)]  # fmt: skip
    assert len(samples[0]) == 3 and samples[0][0] == samples[1][0]


def test_counts_of_many_experts_find_their_workspace_between_context_ranks(tmp_path):
    """The balance loss sums 256 counts in double, more than the gradients of such short keys and values take."""
    write_tokens(tmp_path / "a.bin", walked_tokens(512, 61))
    config = write_config(tmp_path, model=MODEL.replace("heads: 4, kv_heads: 2", "heads: 2, kv_heads: 1, head_dim: 16")
                          .replace("seq_len: 16, experts: 8", "seq_len: 32, experts: 256"),
                          data=f"{{train: {tmp_path}/a.bin}}", train="{global_batch: 1, steps: 1, balance: loss}",
                          parallel="{context: 2}", schedule="{bpipe: off}", hardware="{device: cpu, reserve_gib: 0.1}")
    assert AS_PLANNED in run(config).stderr

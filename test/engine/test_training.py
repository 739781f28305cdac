"""BPipe never changes training: losses and gradient norms are the same bits for other stages, schedules and slots;
test_layouts has all of them, and threads. Also the precisions, and the messages of a run while it trains."""

import math
import re
from collections import Counter

import pytest
from trainer_runs import ROOT, close, command, one_thread, run, walked_tokens, write_config, write_tokens

pytestmark = pytest.mark.usefixtures("ranks")

OFF = "schedule.bpipe=off"

# Settings that do not change a bit, by name; BPipe is on unless switched off. test_layouts draws others.
LAYOUTS = {
    "p4": [],
    "p2": ["parallel.pipeline=2"],
    "p4_off": [OFF],
    "p4_to_host": ["schedule.evict_to=host"],
    "p4_ends_without_layers": ["parallel.layers=[0,4,4,0]"],
    "p4_zb-v": [OFF, "schedule.name=zb-v"],
    "p8": ["parallel.pipeline=8"],
    "p8_one_slot_more": ["parallel.pipeline=8", "schedule.slots=6"],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_losses_and_norms_are_the_same_bits(small, layout):
    assert len(small.keeps_bits((), LAYOUTS[layout]).bits) == 3 * 2 + 2


@pytest.mark.parametrize("mode", ["none", "recompute"])
def test_attention_modes_have_their_own_bits_but_the_same_losses(small, mode):
    assert close(small.keeps_bits((f"attention.mode={mode}",), []).losses, small.alone.losses, 1e-4)


def test_the_attention_mode_of_a_stage_is_its_entry_in_the_list(small):
    """A list of one mode is that mode, another order of two modes has other bits."""
    def ended(*modes):
        return small.train("parallel.pipeline=2", OFF, f"attention.mode=[{','.join(modes)}]")

    assert ended("flash", "flash").bits == small.train("attention.mode=flash").bits
    runs = [ended(*modes) for modes in (("none", "none"), ("none", "flash"), ("flash", "none"), ("flash", "flash"))]
    assert len({tuple(one.bits) for one in runs}) == 4
    for mixed in runs[1:3]:
        assert close(mixed.losses, small.alone.losses, 1e-4)
        assert "memory    as planned, to the byte, on all stages" in mixed.stderr


def test_the_micro_batch_changes_rounding_alone(small):
    assert close(small.train("schedule.micro_batch=4").losses, small.alone.losses, 1e-5)


# ---- learning -------------------------------------------------------------------------------------------------------


def unigram_entropy(paths):
    """Returns the loss in nats a token of a model that knows only the frequencies of tokens."""
    counts = Counter()
    for path in paths:
        counts.update(memoryview(path.read_bytes()[1024:]).cast("H").tolist())
    total = sum(counts.values())
    return -sum(count / total * math.log(count / total) for count in counts.values())


# A narrower, shorter form of the ready-made configurations: the same text, stages and schedule, some seconds.
SHORTENED = ["model.hidden=96", "model.seq_len=32", "train.steps=60", "train.lr=4.0e-3", "data.val_every=60",
             "data.val_batches=1"]


@pytest.mark.thorough
@pytest.mark.soak
@pytest.mark.parametrize("family", ["llama", "gpt"])
def test_the_ready_made_runs_learn_more_than_frequencies(family, tmp_path):
    text = sorted((ROOT / "data").glob("bible_train_*.bin"))
    if not text:
        pytest.skip("no tiny data set; make data")
    metrics = tmp_path / "metrics.jsonl"
    config = ROOT / "configs" / f"{family}_tiny.yaml"
    narrow = SHORTENED + (["model.ffn=192"] if family == "llama" else ["model.ffn=384"])
    ended = run(config, f"log.metrics={metrics}", *narrow, family=family)
    entropy, steps = unigram_entropy(text), ended.steps
    assert 2.5 < entropy < 3.5  # English text on byte level
    assert steps[0]["loss"] > entropy + 1.0
    assert sum(step["loss"] for step in steps[-5:]) / 5 < entropy - 0.35
    assert ended.of_type("val")[-1]["loss"] < entropy - 0.35


# ---- precision: bf16 -------------------------------------------------------------------------------------------------


def test_bf16_learns_as_fp32_does(small):
    sixteen = small.train("train.precision=bf16")
    for key, relative in (("loss", 2e-3), ("grad_norm", 0.1)):
        assert close([step[key] for step in sixteen.steps], [step[key] for step in small.alone.steps], relative)
    assert sixteen.losses != small.alone.losses


# ---- products of 8 bits: train.fp8 -----------------------------------------------------------------------------------

EIGHT = ["train.precision=bf16", "model.hidden=64", "model.ffn=64", "model.seq_len=32"]


@pytest.fixture(scope="module", params=["tensor", "block", "mx"])
def fp8(request):
    return [*EIGHT, f"train.fp8={request.param}"]


def test_fp8_learns_as_bf16_does(small, fp8):
    narrow, wide = small.train(*fp8), small.train(*EIGHT)
    assert close([step["loss"] for step in narrow.steps], [step["loss"] for step in wide.steps], 5e-3)
    assert narrow.losses != wide.losses


def test_fp8_keeps_its_bits_over_stages_of_two_chunks(small, fp8):
    """A stage quantizes weights of its first chunk while it waits for its first input."""
    small.keeps_bits(fp8, ["parallel.pipeline=2", "schedule.name=interleaved", OFF])


TWO_LAYERS = {
    "llama": "{family: llama, hidden: 64, layers: 2, heads: 4, kv_heads: 2, ffn: 128, vocab: 61, seq_len: 32}",
    "gpt": "{family: gpt, hidden: 64, layers: 2, heads: 4, ffn: 128, vocab: 61, seq_len: 32}",
}


@pytest.mark.thorough
@pytest.mark.soak
@pytest.mark.parametrize("steps", [200, 1000])
@pytest.mark.parametrize("family", TWO_LAYERS)
def test_fp8_reaches_the_loss_of_bf16(family, tmp_path, steps):
    tokens = write_tokens(tmp_path / "walk.bin", [int(token) for token in walked_tokens(100000, 61)])
    train = f"{{global_batch: 8, steps: {steps}, lr: 3.0e-3, warmup_steps: 50, precision: bf16}}"
    config = write_config(tmp_path, family, model=TWO_LAYERS[family], data=f"{{train: {tokens}}}", train=train,
                          parallel="{pipeline: 1}", schedule="{micro_batch: 4}")
    ends = {}
    for word in ("off", "tensor", "block", "mx"):
        lines = run(config, f"train.fp8={word}", family=family, env=one_thread()).steps
        ends[word] = sum(step["loss"] for step in lines[-100:]) / 100
    assert len(set(ends.values())) == 4
    assert all(abs(mean / ends["off"] - 1) < 2e-3 for mean in ends.values()), ends


@pytest.mark.thorough
@pytest.mark.soak(2)
@pytest.mark.parametrize("word", ["block", "mx"])
def test_fp8_operands_are_the_same_before_a_gather_and_after_it(small, word):
    keys = [*EIGHT, f"train.fp8={word}", "parallel.pipeline=2", "parallel.tensor=2"]
    whole = small.train(*keys, "parallel.sequence=false")
    for layout in (["parallel.overlap=off"], ["parallel.overlap=on", "schedule.recompute=pointwise"],
                   ["parallel.overlap=on", "schedule.name=zb-d", OFF]):
        shared = small.train(*keys, "parallel.sequence=true", *layout)
        assert [s["loss"] for s in shared.steps] == [s["loss"] for s in whole.steps]
        assert "as planned, to the byte" in shared.stderr


@pytest.mark.parametrize("word,bits", [("block", 8 + 32 / 128), ("mx", 8 + 8 / 32)])
def test_fp8_bundles_keep_norms_and_activation_in_8_bits(small, word, bits):
    def slot(*keys):
        wide = ["model.hidden=128", "model.ffn=256", "model.seq_len=128", "train.steps=1", "data.val_every=0",
                "parallel.pipeline=1", OFF]
        stage = small.train("train.precision=bf16", *wide, *keys).steps[-1]["stages"][0]
        return stage["activation_bytes"] // stage["slots_used"]

    layers, rows, cols = 8, 2 * 128, 128 + 128 + 256  # two norms and the activation
    assert slot() - slot(f"train.fp8={word}") == layers * rows * cols * (16 - bits) / 8


def test_a_value_that_is_not_finite_in_8_bits_stops_the_run_and_names_the_tensor(small, fp8):
    ended = run(small.config, *DIVERGES, *fp8, family=small.family, code=1)
    assert re.search(rf"step \d+: {LOSS_IS}; weights are unchanged", ended.said[-1]), ended.said[-1]


# ---- what a step says ------------------------------------------------------------------------------------------------


def test_validation_is_reported_where_it_was_asked_for_and_at_the_end(small):
    ended = small.train()
    assert [entry["step"] for entry in ended.of_type("val")] == [2, 3]
    assert re.findall(r"^val +(\d)/3 \| loss \d\.\d{4} \| perplexity \d+\.\d\d$", ended.stdout, re.M) == ["2", "3"]
    assert small.train("data.val_every=0").of_type("val") == []


def test_an_unknown_peak_is_measured_and_shared_by_the_ranks_of_the_machine(small):
    def ratio():
        """Returns the summed peak of four ranks over that of one rank: 1 on a quiet machine."""
        one = small.train("parallel.pipeline=1", OFF, "hardware.peak_tflops=auto", "train.steps=1").head["peak_tflops"]
        four = small.train("hardware.peak_tflops=auto", "train.steps=1").head["peak_tflops"]
        assert one > 0
        return 4 * four / one

    # Other work on this machine may fall on either measurement, so it is repeated.
    assert any(0.5 < ratio() < 2 for _ in range(8))


def evictions(schedule):
    return len(re.findall(r"\bE\d+>", schedule))


@pytest.mark.parametrize("layout", ["p4", "p4_off", "p4_to_host", "p8", "p8_one_slot_more"])
def test_the_evictions_of_a_step_are_those_of_the_schedule(small, layout):
    written = command(small.family, "-c", small.config, "--schedule", overrides=LAYOUTS[layout])
    assert (evictions(written.stdout) > 0) == (layout != "p4_off")
    assert [step["evictions"] for step in small.train(*LAYOUTS[layout]).steps] == [evictions(written.stdout)] * 3


def test_bpipe_levels_the_memory_of_the_stages_and_1f1b_does_not(small):
    wide = ["parallel.pipeline=8", "train.global_batch=32", "train.steps=1", "data.val_every=0"]

    def spread(*overrides):
        stages = small.train(*wide, *overrides).steps[-1]["stages"]
        sizes = [stage["activation_bytes"] for stage in stages]
        bundle = sizes[0] // stages[0]["slots_used"]
        return (max(sizes) - min(sizes)) / bundle, max(sizes) / bundle, stages

    uneven, most_off, off = spread(OFF)
    level, most_on, on = spread()
    assert uneven == pytest.approx(7, abs=0.2) and most_off == pytest.approx(8, abs=0.2)
    assert level < 1.5 and most_on <= 5.2
    assert [stage["slots_used"] for stage in off] == [8, 7, 6, 5, 4, 3, 2, 1]
    assert all(stage["slots_used"] + stage["slots_lent"] <= 5 for stage in on)
    assert max(s["peak_bytes"] for s in on) < max(s["peak_bytes"] for s in off)


# ---- what is not finite ----------------------------------------------------------------------------------------------


DIVERGES = ["train.lr=100", "train.warmup_steps=0", "train.grad_clip=0", "train.weight_decay=100", "train.steps=60"]
GRADIENT_IS = (
    r"the first non-finite gradient of the backward is that of \S+ on stage [0-3] \(sum of squares: (nan|inf)\)"
)
LOSS_IS = "the loss on stage 3 is (nan|inf), and " + GRADIENT_IS


# Of a layer: the head's is finite, and the embedding's, the first of the table, is the last of the backward.
OF_A_LAYER = GRADIENT_IS.replace(r"\S+", r"\S+\.(layers|h)\.\d\.\S+", 1)


@pytest.mark.parametrize("mode,what", [("flash", LOSS_IS), ("none", OF_A_LAYER)], ids=["loss", "gradient"])
def test_what_is_not_finite_stops_the_run_before_weights_change(small, mode, what):
    ended = run(small.config, *DIVERGES, f"attention.mode={mode}", family=small.family, code=1)
    last = re.search(rf"step (\d+): {what}; weights are unchanged", ended.said[-1])
    assert last, ended.said[-1]
    assert [step["step"] for step in ended.steps] == list(range(1, int(last[1])))
    assert all(step["loss"] is not None and step["grad_norm"] is not None for step in ended.steps)


def test_the_loss_that_is_not_finite_is_on_the_stage_of_the_head(small):
    """In a V of two chunks the first stage has both ends of the model."""
    folded = ["attention.mode=flash", "schedule.name=v-half", "schedule.bpipe=off", "parallel.pipeline=2"]
    ended = run(small.config, *DIVERGES, *folded, family=small.family, code=1)
    assert re.search(r"step \d+: the loss on stage 0 is (nan|inf)", ended.said[-1])

"""Tensor, sequence and data parallelism: losses and norms agree to rounding for any t and d, and (test_layouts) to the
bit for any p and schedule."""

import re

import pytest
from trainer_runs import close, one_thread, run, write_config

pytestmark = pytest.mark.usefixtures("ranks")

OFF = "schedule.bpipe=off"


GRIDS = [(1, 2, 1, False), (1, 4, 1, True), (1, 1, 4, False), (2, 2, 2, True), (1, 8, 1, True), (1, 1, 8, False)]


@pytest.mark.soak(2)
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_losses_and_norms_agree_to_rounding(small, grid):
    p, t, d, sequence = grid
    if t == 8 and small.family == "llama":
        t, d = 4, 2  # 8 does not divide 4 key and value heads
    ended = small.train(f"parallel.pipeline={p}", f"parallel.tensor={t}", f"parallel.data={d}",
                        f"parallel.sequence={str(sequence).lower()}", *([OFF] if p == 1 else []))
    assert ended.head["world"] == p * t * d
    assert close(ended.losses, small.alone.losses, 1e-5)


def sharded(config, family, d, word, *more):
    """One microbatch a step on each data rank; every run allocates what the plan says."""
    keys = ["parallel.pipeline=1", f"parallel.data={d}", f"schedule.micro_batch={8 // d}", OFF, "model.layers=5",
            "train.global_batch=8"]
    ended = run(config, *keys, f"parallel.shard_gradients={word}", *more, family=family,
                    env=one_thread())
    assert "as planned, to the byte" in ended.stderr, ended.stderr
    return ended


@pytest.mark.soak(2)
@pytest.mark.parametrize("d", [2, 4])
@pytest.mark.parametrize("family, more", [
    ("llama", ()),
    ("llama", ("model.tie_embeddings=true",)),
    ("gpt", ()),
    ("gpt", ("parallel.tensor=2", "train.precision=bf16")),
])
def test_sharded_gradients_take_less_memory_and_change_no_bit(family, more, d, tmp_path):
    config = write_config(tmp_path, family, parallel="{pipeline: 1}")
    whole, pieces = sharded(config, family, d, "off", *more), sharded(config, family, d, "on", *more)
    assert pieces.bits == whole.bits and len(whole.bits) > 4
    peaks = [ended.steps[-1]["stages"][0]["peak_bytes"] for ended in (pieces, whole)]
    assert peaks[0] < peaks[1], peaks
    assert sharded(config, family, d, "auto", *more).steps[-1]["stages"][0]["peak_bytes"] == peaks[0]
    slices = (*more, "schedule.name=seq1f1b", "schedule.slices=2")  # the backward of a microbatch has several parts
    assert sharded(config, family, d, "auto", *slices).bits == sharded(config, family, d, "off", *slices).bits


@pytest.mark.thorough
def test_a_loss_that_is_not_finite_ends_data_ranks_in_one_sentence(tmp_path):
    """At that moment sums over data ranks are in flight, into memory that is about to be freed."""
    model = (
        "{family: llama, hidden: 256, layers: 4, heads: 8, kv_heads: 4, ffn: 512, vocab: 100, seq_len: 64, norm_eps:"
        " 1.0e-30}"
    )
    diverging = "{global_batch: 8, steps: 40, lr: 100, warmup_steps: 0, eps: 1.0e-30, grad_clip: 0}"
    config = write_config(tmp_path, model=model, parallel="{pipeline: 2, data: 2}", schedule="{}", train=diverging)
    for _ in range(3):
        ended = run(config, "data.val_every=0", env=one_thread(), code=1)
        assert re.search(r"step \d+: the loss on stage 1 is (nan|inf)", ended.said[-1])
        assert "***" not in ended.stderr

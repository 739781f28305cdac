"""Slices of the sequence and context ranks: slices fill stages that microbatches do not, a context rank holds a part of
the activations, and long parts agree to rounding. test_layouts has the bits and bytes for any number of stages and
schedule, and the rounding of other numbers of parts."""

import json

import pytest
from trainer_runs import close

pytestmark = pytest.mark.usefixtures("ranks")

OFF = "schedule.bpipe=off"


def sliced(p=1, n=4):
    return ["schedule.name=seq1f1b", f"schedule.slices={n}", f"parallel.pipeline={p}", OFF]


@pytest.mark.parametrize("p, m, n", [(4, 1, 4), (4, 2, 2), (8, 1, 8)])
def test_slices_fill_stages_that_microbatches_do_not(small, p, m, n):
    few = ("train.global_batch=2", f"schedule.micro_batch={2 // m}")
    whole = small.train(*few, *sliced(1, n))
    assert small.train(*few, *sliced(p, n)).bits == whole.bits
    refused, least = small.train(*few, *sliced(p, n // 2), code=2), 2 * p // n * (2 // m)
    assert f"is {least}, or use pipeline {m * n // 2} or less, or more schedule.slices" in refused.stderr


@pytest.mark.thorough
@pytest.mark.soak(2)
@pytest.mark.parametrize("parts", [sliced(2, 3), ["parallel.context=2", "parallel.pipeline=1", OFF]], ids=str)
@pytest.mark.parametrize("mode", ["flash", "none", "recompute"])
def test_parts_longer_than_a_block_of_keys(small, mode, parts):
    """Slices of 200 tokens begin neither with a block of queries nor with one of keys, which have up to 256."""
    longer = ["model.seq_len=600", "train.global_batch=4", "schedule.micro_batch=1", "data.val_every=0",
              "train.steps=1", f"attention.mode={mode}"]
    ended = small.train(*parts, *longer)
    assert close(ended.losses, small.one_stage(*longer).losses, 1e-6)
    assert "memory    as planned, to the byte" in ended.stderr


def test_a_rank_holds_a_part_of_the_activations(small):
    slots = [ended.steps[0]["stages"][0]["activation_bytes"]
             for ended in (small.one_stage(), small.one_stage("parallel.context=2"))]
    assert 0.49 <= slots[1] / slots[0] <= 0.55  # rounded up to whole lines


@pytest.mark.parametrize("p", [1, 2])
def test_a_run_of_slices_is_validated_and_writes_text(small, p, tmp_path):
    layout = (*sliced(p), "train.steps=2", "sample.tokenizer=ids", "sample.tokens=30", "sample.prompt=5 6")
    saving = (f"checkpoint.dir={tmp_path}", "checkpoint.every=2", "sample.every=2")
    ended = small.train(*layout, *saving)
    resumed = ["--resume", str(tmp_path)]
    asked = small.train(*layout, arguments=["--validate", "--json", *resumed])
    assert json.loads(asked.stdout)["loss"] == ended.of_type("val")[-1]["loss"]
    texts = [small.train(*layout, *keys, arguments=["--generate", "5 6", *resumed]).stdout
             for keys in ((), ("schedule.slices=1",))]
    assert texts[0] == texts[1] and texts[0].strip() in ended.stdout

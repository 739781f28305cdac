"""Slices of the sequence: they fill stages that microbatches do not, and long ones agree to 1e-5. test_layouts has the
bits and bytes for any number of stages and schedule, and the rounding of other numbers of slices."""

import json

import pytest
from trainer_runs import close, run

pytestmark = pytest.mark.usefixtures("ranks")

OFF = "schedule.bpipe=off"


def sliced(p=1, n=4, name="seq1f1b", bpipe=False, **keys):
    return [
        f"schedule.name={name}",
        f"schedule.slices={n}",
        f"parallel.pipeline={p}",
        f"schedule.bpipe={'on' if bpipe else 'off'}",
        *(f"schedule.{key}={value}" for key, value in keys.items()),
    ]


@pytest.mark.parametrize("p, m, n", [(4, 1, 4), (4, 2, 2), (8, 1, 8)])
def test_slices_fill_stages_that_microbatches_do_not(small, p, m, n):
    few = ("train.global_batch=2", f"schedule.micro_batch={2 // m}")
    whole = small.train(*few, *sliced(1, n))
    assert small.train(*few, *sliced(p, n)).bits == whole.bits
    refused = run(small.config, *few, *sliced(p, n // 2), family=small.family)
    assert refused.code == 2 and f"the smallest global_batch is {p * 2 // m}, or set schedule.slices" in refused.stderr


@pytest.mark.thorough
@pytest.mark.soak(2)
@pytest.mark.parametrize("mode", ["flash", "none", "recompute"])
def test_slices_longer_than_a_block_of_keys(small, mode):
    """Slices of 200 tokens begin neither with a block of queries nor with one of keys, which have up to 256."""
    longer = ["model.seq_len=600", "train.global_batch=4", "schedule.micro_batch=1", "data.val_every=0"]
    longer += ["train.steps=1", f"attention.mode={mode}"]
    whole = small.train("parallel.pipeline=1", OFF, *longer)
    assert close(small.train(*sliced(2, 3), *longer).losses, whole.losses, 1e-5)


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

"""Context ranks: a loss depends on their number by rounding alone. Memory is as planned, the gathered keys included.
test_layouts has the bits for any number of stages and schedule, and resumes on another number of ranks."""

import pytest
from trainer_runs import close, run

pytestmark = pytest.mark.usefixtures("ranks")

OFF = "schedule.bpipe=off"
PLANNED = "memory    as planned, to the byte"


def shared(c=2, p=1, bpipe=False, *more):
    return [f"parallel.context={c}", f"parallel.pipeline={p}", f"schedule.bpipe={'on' if bpipe else 'off'}", *more]


def alike(ended, whole):
    """Adam divides small gradients by their own size, so norms drift apart from the second step on."""
    assert close(*([entry["loss"] for entry in run.steps + run.of_type("val")] for run in (ended, whole)), 1e-5)
    assert close([ended.steps[0]["grad_norm"]], [whole.steps[0]["grad_norm"]], 1e-6)
    assert PLANNED in ended.stderr


@pytest.fixture
def whole(small):
    return small.alone


@pytest.fixture
def halves(small):
    return small.one_stage("parallel.context=2")


@pytest.mark.thorough
def test_pieces_longer_than_a_block_of_keys(small):
    longer = ["model.seq_len=600", "train.global_batch=4", "schedule.micro_batch=1", "data.val_every=0"]
    alike(small.train(*shared(), *longer), small.train(*shared(1), *longer))


def test_a_rank_holds_a_part_of_the_activations(small, whole, halves):
    slots = [ended.steps[0]["stages"][0]["activation_bytes"] for ended in (whole, halves)]
    assert 0.49 <= slots[1] / slots[0] <= 0.55  # rounded up to whole lines


REFUSED = {
    "odd": (["parallel.context=3"], "2 * 3 pieces do not divide seq_len"),
    "slices": (["parallel.context=2", "schedule.name=seq1f1b", "schedule.slices=2"], "set schedule.slices: 1"),
    "encoder": (["parallel.context=2", "model.causal=false", "train.objective=masked"], "set context: 1"),
    "tensor": (["parallel.context=16", "parallel.tensor=4", "parallel.sequence=true"], "tensor 4 does not divide"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_work_is_refused(small, name):
    keys, words = REFUSED[name]
    ended = run(small.config, OFF, "parallel.pipeline=1", *keys, family=small.family)
    assert ended.code == 2
    assert words in ended.stderr

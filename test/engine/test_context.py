"""Context ranks: pieces longer than a block of keys agree with one rank to rounding, and a rank holds a part of the
activations. test_layouts has the bits for any number of stages and schedule, and the rounding of other numbers."""

import pytest
from trainer_runs import close

pytestmark = pytest.mark.usefixtures("ranks")


@pytest.mark.thorough
def test_pieces_longer_than_a_block_of_keys(small):
    """Adam divides small gradients by their own size, so norms drift apart from the second step on."""
    longer = ["model.seq_len=600", "train.global_batch=4", "schedule.micro_batch=1", "data.val_every=0"]
    halves, whole = (small.train(f"parallel.context={c}", "parallel.pipeline=1", "schedule.bpipe=off", *longer)
                     for c in (2, 1))
    assert close(*([step["loss"] for step in ended.steps] for ended in (halves, whole)), 1e-5)
    assert close([halves.steps[0]["grad_norm"]], [whole.steps[0]["grad_norm"]], 1e-6)
    assert "memory    as planned, to the byte" in halves.stderr


def test_a_rank_holds_a_part_of_the_activations(small):
    slots = [ended.steps[0]["stages"][0]["activation_bytes"]
             for ended in (small.one_stage(), small.one_stage("parallel.context=2"))]
    assert 0.49 <= slots[1] / slots[0] <= 0.55  # rounded up to whole lines

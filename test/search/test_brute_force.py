"""Plans drawn independently of the search are not faster; the long form is test/soak/brute_force.py."""

import sys

import pytest
from trainer_runs import ROOT

sys.path.insert(0, str(ROOT / "test/soak"))
import brute_force  # noqa: E402

SMALL = ["model.layers=8", "train.global_batch=16", "hardware.gpu=a100-80g"]


@pytest.mark.thorough
@pytest.mark.parametrize("memory", [34, 38, 42])
def test_no_drawn_plan_is_faster_than_the_search(memory):
    case = brute_force.Case("llama65b", 4, [*SMALL, f"hardware.memory_gib={memory}"], 600)
    (step, keys), searched = brute_force.compare(case)
    assert keys is not None and case.drawn_that_fit >= 20, case.drawn_that_fit
    assert step >= searched * (1 - brute_force.TOLERANCE), keys

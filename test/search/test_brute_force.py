"""Loops over plans, independent of the search, find nothing faster; the long form is test/soak/brute_force.py."""

import sys

import pytest
from trainer_runs import ROOT

sys.path.insert(0, str(ROOT / "test/soak"))
import brute_force  # noqa: E402

SMALL = ["model.layers=8", "train.global_batch=16", "hardware.gpu=a100-80g"]


@pytest.mark.thorough
@pytest.mark.parametrize("memory, least", [(34, 800), (38, 240), (42, 190)])
def test_no_plan_of_the_loops_is_faster_than_the_search(memory, least):
    """`least` is the minimum number of plans that a run would accept; more rows are planned."""
    case = brute_force.Case("llama65b", 4, [*SMALL, f"hardware.memory_gib={memory}"], 600)
    (step, keys), searched = brute_force.compare(case)
    assert case.made >= least and keys is not None, "the loops plan what fits"
    assert step >= searched * (1 - brute_force.TOLERANCE), keys

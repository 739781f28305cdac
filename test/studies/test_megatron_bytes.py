"""Megatron-LM's bytes, compared with sums by hand and the table that they are based on."""

import sys

import pytest
from trainer_runs import ROOT

sys.path.insert(0, str(ROOT / "studies"))

from megatron_bytes import Held  # noqa: E402

HELD = Held(layer=10, weight=4, logits=3, matrix=20, state=18)


@pytest.mark.parametrize("line, embeds, head, peak", [
    ("F0 F1 B0 B1", False, None, 40),  # two microbatches of two layers
    ("F0 F1 B0 B1", True, None, 20 + 20),  # the first microbatch is freed before the embedding's gradient is made
    ("F0 B0 F1 B1", False, 0, 20 + 4 * 3 + (20 - 2 * 3)),  # fp32 logits and the head's gradient together
    ("F0 I0 F1 I1 W0 W1", False, None, 2 * 4 + 20),  # the first microbatch keeps its part for W
])
def test_a_stage_holds_what_its_list_needs(line, embeds, head, peak):
    assert HELD.peak(line, [2], embeds, head) == peak

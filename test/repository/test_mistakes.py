"""The mistakes that the soak tests insert are replacements in the sources, so the replaced texts must exist."""

from mistakes import MISTAKES
from trainer_runs import ROOT


def test_the_text_that_a_mistake_replaces_is_in_its_file():
    assert [each.name for each in MISTAKES if each.right not in (ROOT / each.file).read_text()] == []

"""The mistakes that the soak tests insert are replacements in the sources, so the replaced texts must exist."""

import chaos_mistakes
import layouts_mistakes
import mistakes
import pytest
from trainer_runs import ROOT


@pytest.mark.parametrize("table", [chaos_mistakes, layouts_mistakes, mistakes])
def test_the_text_that_a_mistake_replaces_is_in_its_file(table):
    assert [each.name for each in table.MISTAKES if each.right not in (ROOT / each.file).read_text()] == []

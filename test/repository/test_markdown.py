"""Pages can be read in any terminal: lines of 120 columns, but for rows of tables, which cannot be wrapped."""

import pytest
from trainer_runs import ROOT

pytestmark = pytest.mark.every_case
WIDTH = 120
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_are_wrapped(page):
    tables = page.name != "README.md"
    lines = page.read_text().splitlines()
    assert [line for line in lines if len(line) > WIDTH and not (tables and line.startswith("|"))] == []

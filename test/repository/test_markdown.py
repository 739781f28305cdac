"""Pages can be read in any terminal, and begin with what the reader can do after them."""

import pytest
from trainer_runs import ROOT

pytestmark = pytest.mark.every_case
WIDTH = 120
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_are_wrapped(page):
    """Rows of tables cannot be wrapped; README.md has none that is too long."""
    tables = page.name != "README.md"
    lines = page.read_text().splitlines()
    assert [line for line in lines if len(line) > WIDTH and not (tables and line.startswith("|"))] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.name == "docs"], ids=lambda page: page.name)
def test_a_page_begins_with_what_the_reader_can_do_after_it(page):
    title, blank, first = page.read_text().splitlines()[:3]
    assert title.startswith("# ") and blank == "" and first.startswith("After this page you can ")

"""Pages and sources fit into any terminal, files are short enough to read, and each page begins with its purpose."""

import pytest
from trainer_runs import ROOT

pytestmark = pytest.mark.every_case
WIDTH = 120
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
SOURCES = sorted(path for place in (ROOT.glob("*"), ROOT.joinpath("src").rglob("*"), ROOT.joinpath("test").rglob("*"))
                 for path in place if path.suffix in (".c", ".h", ".cc", ".cpp", ".cu", ".cuh"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_are_wrapped(page):
    """Rows of tables cannot be wrapped; README.md has no row that is too long."""
    tables = page.name != "README.md"
    lines = page.read_text().splitlines()
    assert [line for line in lines if len(line) > WIDTH and not (tables and line.startswith("|"))] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.parent.name == "docs"], ids=lambda page: page.name)
def test_a_page_begins_with_what_the_reader_can_do_after_it(page):
    title, blank, first = page.read_text().splitlines()[:3]
    assert title.startswith("# ") and blank == "" and first.startswith("After this page you can ")


def test_lines_of_sources_keep_to_the_width():
    assert SOURCES
    long = [(path, n) for path in SOURCES for n, line in enumerate(path.read_text().splitlines(), 1)
            if len(line) > WIDTH]
    assert [f"{path.relative_to(ROOT)}:{n}" for path, n in long] == []


def test_files_of_the_program_are_short():
    """A file of 600 lines should be split in two."""
    program = [path for path in SOURCES if "test" not in path.relative_to(ROOT).parts]
    assert program
    assert {str(path.relative_to(ROOT)) for path in program if len(path.read_text().splitlines()) >= 600} == set()

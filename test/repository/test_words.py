"""Links, files, options, keys and make targets that the pages name exist; pages and sources fit into any terminal, and
each page begins with its purpose."""

import re

import pytest
from trainer_runs import ROOT, command

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
IDS = [str(page.relative_to(ROOT)) for page in PAGES]
pytestmark = pytest.mark.every_case
pages = pytest.mark.parametrize("page", PAGES, ids=IDS)
MADE_BY_USERS = re.compile(r"out/|data/|build/|\.deps/|.*(NAME|\*)|mine|profile\.json|docs/x|configs/(x\.yaml|NAME)")
WIDTH = 120
SOURCES = sorted(path for place in (ROOT.glob("*"), ROOT.joinpath("src").rglob("*"), ROOT.joinpath("test").rglob("*"))
                 for path in place if path.suffix in (".c", ".h", ".cc", ".cpp", ".cu", ".cuh"))


def anchors(text):
    titles = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pages
def test_links_lead_somewhere(page):
    text = page.read_text()
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = page.parent / path if path else page
        assert linked.exists(), target
        if anchor:
            assert anchor in anchors(linked.read_text()), target


@pages
def test_files_that_are_named_are_there(page):
    """Checks words with a slash, in backquotes or in commands, that begin with a folder of this project."""
    folders = "src|test|scripts|configs|docs"
    named = set(re.findall(rf"(?<![\w/.-])((?:{folders})/[\w./*-]*[\w*])", page.read_text()))
    missing = [name for name in named if not MADE_BY_USERS.match(name) and not (ROOT / name).exists()
               and not any(ROOT.glob(name + "*"))]
    assert missing == []


@pages
def test_options_of_the_trainers_exist(page):
    known = set(re.findall(r"--([a-z-]+)", command("llama", "--help").stdout))
    used = set()
    for line in page.read_text().splitlines():
        for part in re.findall(r"(?:\./)?train_(?:llama|gpt)\b([^|`&;]*)", line):
            used |= set(re.findall(r"(?<!\S)--([a-z][a-z-]+)", part))
    assert used <= known, used - known


@pages
def test_keys_that_are_set_exist(page):
    keys, section = set(), ""
    for line in command("llama", "--help-config").stdout.splitlines():
        if line.endswith(":") and not line.startswith(" "):
            section = line[:-1]
        elif re.match(r"  [a-z]", line):
            keys.add(f"{section}.{line.split()[0]}")
    assert keys
    used = set(re.findall(r"-o '?([a-z]+\.[a-z_0-9]+)=", page.read_text()))
    assert used <= keys, used - keys


@pages
def test_targets_of_make_exist(page):
    rules = "".join(path.read_text() for path in [ROOT / "Makefile", *ROOT.glob("make/*.mk")])
    targets = set(re.findall(r"^([\w -]+):(?!=)", rules, re.M))
    targets = {name for names in targets for name in names.split()}
    used = set(re.findall(r"(?:^    |`)make ([a-z][a-z-]*)(?=[\s`;])", page.read_text(), re.M))
    assert used <= targets, used - targets


def test_every_page_is_reached_from_the_readme():
    readme = (ROOT / "README.md").read_text()
    for page in PAGES:
        name = str(page.relative_to(ROOT))
        assert name == "README.md" or f"]({name})" in readme, f"{name}: the table in README.md (The pages) lacks it"


def test_every_schedule_is_in_its_page():
    rows = re.findall(r'^    ROW\("([\w-]+)",', (ROOT / "src/schedule/kinds.c").read_text(), re.M)
    page = (ROOT / "docs/schedules.md").read_text()
    missing = [name for name in rows if f"\n| `{name}` |" not in page]
    assert rows and missing == [], f"{missing}: the first table of docs/schedules.md lacks it"


@pages
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

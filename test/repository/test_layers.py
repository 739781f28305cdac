"""The folders of src stand in an order, and none knows one that comes after it: docs/architecture.md has it."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = re.findall(r"^\| `src/(\w+)/` \|", (ROOT / "docs/architecture.md").read_text(), re.M)
# The one place that knows which devices there are.
DEVICES = {("ranks", "device.c", "cuda")}


def includes():
    """(folder, file, folder of what it includes) of every include from one folder of src in another."""
    for path in sorted((ROOT / "src").rglob("*.*")):
        folder = path.relative_to(ROOT / "src").parts[0]
        for name in re.findall(r'^\s*#\s*include "(?:src/)?(\w+)/[^"]+"', path.read_text(), re.M):
            if (ROOT / "src" / name).is_dir() and not (path.parent / name).exists():
                yield folder, path.name, name


def test_every_folder_is_in_the_table():
    assert sorted(TABLE) == sorted(path.name for path in (ROOT / "src").iterdir())


def test_no_folder_knows_one_that_comes_after_it():
    found = list(includes())
    assert len(found) > 100
    assert [each for each in found if TABLE.index(each[2]) > TABLE.index(each[0]) and each not in DEVICES] == []

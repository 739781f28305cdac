"""The long form of test_kinds, in `make soak` for most numbers of stages, and its printed tables."""

import subprocess

import pytest
from trainer_runs import ROOT, TOOLS


@pytest.mark.thorough
@pytest.mark.parametrize("stages", [
    2, 3, 5, *(pytest.param(p, marks=pytest.mark.soak) for p in range(1, 33) if p not in (2, 3, 5))])
def test_every_number_of_microbatches_is_sound(stages):
    ended = subprocess.run([TOOLS / "test_kinds", "all", str(stages), str(stages)], capture_output=True, text=True,
                           check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_rows_of_the_pages_are_printed():
    """The rows are for eight stages: steps in schedules.md, and the time that evicting costs in bpipe.md."""
    printed = subprocess.run([TOOLS / "test_kinds", "tables"], capture_output=True, text=True, check=True).stdout
    schedules, bpipe = ((ROOT / "docs" / name).read_text() for name in ("schedules.md", "bpipe.md"))
    eight = [part.strip().splitlines() for part in printed.split("\np = ")[1:] if part.startswith("8,")]
    assert sorted("lost" in title for title, *_ in eight) == [False, True]
    for title, *lines in eight:
        page = bpipe if "lost" in title else schedules
        rows = page.split(f"{lines[0]}\n{lines[1]}\n")[1].split("\n\n")[0].splitlines()
        assert len(rows) >= 8 and set(rows) <= set(lines), title

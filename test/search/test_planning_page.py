"""docs/planning.md shows the figures that its commands print."""

import re
import shlex

import pytest
from trainer_runs import ROOT, command

PAGE = ROOT / "docs" / "planning.md"


def blocks():
    """Returns the indented blocks of the page, without their indentation."""
    found = re.findall(r"(?:^    .*\n)+", PAGE.read_text(), re.MULTILINE)
    return ["".join(line[4:] for line in block.splitlines(keepends=True)) for block in found]


def cases():
    """Yields (command, its output on the page). The output follows a command after a $, or is the next block."""
    all_blocks = blocks()
    for i, block in enumerate(all_blocks):
        if block.startswith("$ ./train_"):
            first, _, rest = block.partition("\n")
            yield first[2:], rest
        elif block.startswith("./train_") and "FILE" not in block and i + 1 < len(all_blocks):
            if not re.match(r"\./|scripts/", all_blocks[i + 1]):
                yield block.replace("\\\n", " "), all_blocks[i + 1]


def sentences(text):
    """Returns labelled lines, each joined with its continuation lines, and split where the page omits text."""
    return [" ".join(each.split()) for each in re.split(r"\n(?=\S)|\[\.\.\.\]", text) if each.strip()]


CASES = list(cases())


def test_the_page_shows_what_its_searches_and_plans_print():
    assert len(CASES) >= 5, [asked for asked, _ in CASES]


@pytest.mark.thorough
@pytest.mark.soak(2)
@pytest.mark.parametrize("at", range(len(CASES)), ids=[re.sub(r"\W+", " ", asked)[:60] for asked, _ in CASES])
def test_the_figures_are_those_of_the_command(tmp_path, at):
    asked, said = CASES[at]
    words = shlex.split(asked)
    words = [str(tmp_path / word) if word == "best.yaml" else word for word in words]
    ended = command(words[0].rpartition("_")[2], *words[1:])
    assert ended.returncode == 0, ended.stderr
    printed = " ".join(ended.stdout.split())
    missing = [each for each in sentences(said) if each not in printed]
    assert missing == [], f"{asked}\nprints now:\n{ended.stdout}"

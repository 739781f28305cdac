"""README.md and docs/planning.md show the figures that their commands print."""

import re
import shlex

import pytest
from trainer_runs import ROOT, command

PAGES = (ROOT / "README.md", ROOT / "docs" / "planning.md")


def blocks(page):
    """Returns the indented blocks of a page, without their indentation."""
    found = re.findall(r"(?:^    .*\n)+", page.read_text(), re.MULTILINE)
    return ["".join(line[4:] for line in block.splitlines(keepends=True)) for block in found]


def cases(all_blocks):
    """Yields (command, its output on the page). The output follows a command after a $, or is the next block."""
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


CASES = [case for page in PAGES for case in cases(blocks(page))]
assert len(CASES) > 6, [asked for asked, _ in CASES]


@pytest.mark.soak(2)
@pytest.mark.parametrize("at", range(len(CASES)), ids=[re.sub(r"\W+", " ", asked)[:60] for asked, _ in CASES])
def test_the_figures_are_those_of_the_command(tmp_path, at):
    asked, said = CASES[at]
    words = shlex.split(asked)
    words = [str(tmp_path / word) if word == "best.yaml" else word for word in words]
    ended = command(words[0].rpartition("_")[2], *words[1:])
    printed = " ".join(ended.stdout.split())
    missing = [each for each in sentences(said) if each not in printed]
    assert missing == [], f"{asked}\nprints now:\n{ended.stdout}"

"""docs/tutorial.md stays true: its commands, taken from the page, run one after the other in a copy of this
checkout."""

import json
import os
import re
import shutil
import subprocess

import pytest
from trainer_runs import ROOT, environment, execute

pytestmark = pytest.mark.thorough

PAGE = (ROOT / "docs/tutorial.md").read_text()


def steps_of(page):
    """Returns title and command of each numbered section; the command is the block indented by four spaces."""
    sections = re.findall(r"^## (\d+)\. (.+)\n\n((?:    .*\n)+)", page, re.M)
    return [(int(number), title, re.sub(r"^    ", "", block, flags=re.M)) for number, title, block in sections]


def tracked_files():
    listed = execute(["git", "ls-files", "-z"])
    return [name for name in listed.stdout.split("\0") if name] if listed.code == 0 else None


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the tracked files and of their build, so that make has nothing to compile."""
    files = tracked_files()
    if files is None:
        pytest.skip("no git checkout to copy")
    place = tmp_path_factory.mktemp("tutorial") / "checkout"
    for name in files:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, place / name)
    if (ROOT / "build/release").exists():
        (place / "build").mkdir()
        subprocess.run(["cp", "-a", ROOT / "build/release", place / "build/release"], check=True)
    if (ROOT / ".deps").exists():
        (place / ".deps").symlink_to(ROOT / ".deps")
    return place


@pytest.mark.usefixtures("ranks")
def test_the_commands_of_the_tutorial_do_what_the_page_says(checkout):
    steps = steps_of(PAGE)
    assert [number for number, _, _ in steps] == list(range(1, len(steps) + 1)) and steps
    env = {name: value for name, value in environment().items()
           if not name.startswith(("MAKE", "MFLAGS", "TEST_PROGRAMS"))}
    said = {}
    for number, title, command in steps:
        ended = execute(["bash", "-e"], input=command, cwd=checkout, env=env)
        said[number] = ended
    assert "mine_train: " in said[2].stdout
    assert "BPipe?    No" in said[4].stdout
    assert "memory    as planned, to the byte, on all stages" in said[5].stderr
    out = checkout / "out/mine"
    assert json.loads((out / "trace.json").read_text())
    assert "resumed from out/mine/step_00000050 after step 50" in said[6].stderr
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    losses = {line["step"]: line["loss"] for line in lines if line["type"] == "step"}
    assert sorted(losses) == list(range(1, 101))
    assert losses[100] < 3.2 < 5.4 < losses[1]
    assert (out / "curves.png").read_bytes()[:4] == b"\x89PNG"
    assert "<html" in (out / "report.html").read_text()[:2000].lower()
    text = said[9].stdout.strip()
    assert text.startswith("The plan says") and len(text) > 40
    # Two bytes may be equally likely up to rounding, after which texts differ. Step 11 compares tokens and allows this.
    assert len(os.path.commonprefix([text, said[10].stdout])) > len("The plan says") + 20
    assert "next tokens: the same" in said[11].stdout
    assert "was killed by signal 9" in said[12].stderr and "starting the ranks again from step" in said[12].stderr
    lost = [json.loads(line) for line in (checkout / "out/lost/metrics.jsonl").read_text().splitlines()]
    last = {line["step"]: line["loss"] for line in lost if line["type"] == "step"}
    longer = [json.loads(line) for line in (checkout / "out/long/metrics.jsonl").read_text().splitlines()]
    steps = [line for line in longer if line["type"] == "step"]
    assert [line["step"] for line in steps] == list(range(101, 121)) and steps[-1]["loss"] < 3.4
    assert steps[0]["tokens_seen"] == 100 * 16 * 64 + 4 * 512
    assert last == {step: loss for step, loss in losses.items() if step <= 50}

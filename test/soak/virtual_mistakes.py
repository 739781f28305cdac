"""Checks that the virtual GPU finds every mistake of test/virtual/mistakes.py, with the expected message. Without a
mistake the copy of the sources builds.

VIRTUAL_MISTAKES selects some mistakes by name; otherwise all are tried, about half a minute each.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "test" / "support"), str(ROOT / "test" / "virtual")]

import virtual_runs  # noqa: E402
from mistakes import DIFFERS, MISTAKES  # noqa: E402


def copy_tree(to):
    """Copies the sources and their build, so that only the files that a mistake changes are built again."""
    for name in ("src", "test", "make", "build/release", "build/virtual"):
        shutil.copytree(ROOT / name, to / name, symlinks=True)
    for path in [ROOT / "Makefile", *ROOT.glob("*.c"), *ROOT.glob("*.h"), *ROOT.glob("*.cu")]:
        shutil.copy2(path, to)


def build(tree, target="virtual"):
    command = ["make", "-s", "CC=" + os.environ.get("CC", "gcc"), target]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True)
    return None if done.returncode == 0 else done.stdout + done.stderr


def outcome(tree, mistake):
    """Returns the run's stderr if it fails, otherwise `differs` if its figures differ from a CPU's, else `sound`."""
    if isinstance(mistake.case, str):
        done = subprocess.run([virtual_runs.VIRTUAL / mistake.case], capture_output=True, text=True)
        return done.stdout + done.stderr if done.returncode != 0 else "sound"
    case = virtual_runs.Case(mistake.family, mistake.case, mistake.environment)
    with tempfile.TemporaryDirectory(dir=tree) as folder:
        config = virtual_runs.write_config(Path(folder), case.family)
        settings = {"VIRTUAL_ORDER": "random", "VIRTUAL_PATIENCE": "20", **case.environment}
        done = virtual_runs.run(config, case.family, *case.options, **settings)
        if done.code != 0:
            return done.stderr
        wanted = virtual_runs.on_cpu(config, case.family, *case.options)
    return DIFFERS if virtual_runs.differences(done.steps, wanted.steps, case.precision) else "sound"


def try_mistake(tree, mistake):
    """Builds and runs the mistake. Returns None if it is found, otherwise the reason."""
    path = tree / mistake.file
    text = path.read_text()
    if mistake.right not in text:
        return f"{mistake.file} has no text that this mistake could replace"
    path.write_text(text.replace(mistake.right, mistake.wrong))
    try:
        failure = build(tree)
        if failure:
            return f"it does not compile: {failure[-600:]}"
        said = outcome(tree, mistake)
    finally:
        path.write_text(text)
    return None if re.search(mistake.found, said, re.S) else f"the run says: {said[-600:]}"


def main():
    chosen = os.environ.get("VIRTUAL_MISTAKES", "").split()
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        copy_tree(tree)
        virtual_runs.VIRTUAL = tree / "build" / "virtual"
        failure = build(tree)
        assert failure is None, failure
        for mistake in [mistake for mistake in MISTAKES if not chosen or mistake.name in chosen]:
            reason = try_mistake(tree, mistake)
            missed += reason is not None
            print(f"{'missed' if reason else 'found '} {mistake.name}" + (f": {reason}" if reason else ""), flush=True)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()

"""Checks that the virtual GPU, or a seed of layouts.py, finds every mistake of test/soak/mistakes.py, with the
expected message. Without a mistake the copy of the sources builds.

VIRTUAL_MISTAKES selects some mistakes by name; otherwise all are tried, about half a minute each.
"""

import contextlib
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test" / "support"))

import layouts  # noqa: E402
import trainer_runs  # noqa: E402
import virtual_runs  # noqa: E402
from mistakes import DIFFERS, MISTAKES  # noqa: E402


def copy_tree(to):
    """Copies the sources and their build, so that only the files that a mistake changes are built again."""
    for name in ("src", "test", "make", "configs", "build/release", "build/virtual"):
        shutil.copytree(ROOT / name, to / name, symlinks=True)
    for path in [ROOT / "Makefile", *ROOT.glob("*.c"), *ROOT.glob("*.h"), *ROOT.glob("*.cu")]:
        shutil.copy2(path, to)


def build(tree):
    command = ["make", "-s", "CC=" + os.environ.get("CC", "gcc"), "programs", "virtual"]
    done = trainer_runs.execute(command, cwd=tree, env=os.environ, code=None, limit=1200)
    return None if done.code == 0 else done.stdout + done.stderr


def outcome(tree, mistake):
    """Returns the run's stderr if it fails, otherwise `differs` if its figures differ from a CPU's, else `sound`."""
    if isinstance(mistake.case, int):
        with tempfile.TemporaryDirectory(dir=tree) as folder:
            failure = layouts.one(layouts.Bench(Path(folder)), mistake.case)
        return "sound" if failure is None else str(failure[1])
    if isinstance(mistake.case, str):
        program = virtual_runs.VIRTUAL / mistake.case
        dry = [sys.executable, "-m", "pytest", "-q", f"test/virtual/test_dry.py::{mistake.case}"]
        env = dict(os.environ, TEST_PROGRAMS=str(tree / "build/release/test"))
        done = trainer_runs.execute([program] if program.exists() else dry, cwd=tree, env=env, code=None, limit=1200)
        return done.stdout + done.stderr if done.code != 0 else "sound"
    case = virtual_runs.Case(mistake.family, mistake.case, mistake.environment)
    with tempfile.TemporaryDirectory(dir=tree) as folder:
        config = virtual_runs.write_config(Path(folder), case.family)
        settings = {"VIRTUAL_ORDER": "random", "VIRTUAL_PATIENCE": "20", **case.environment}
        done = virtual_runs.run(config, case.family, *case.options, code=None, **settings)
        if done.code != 0:
            return done.stderr
        wanted = virtual_runs.on_cpu(config, case.family, *case.options)
    return DIFFERS if virtual_runs.differences(done.steps, wanted.steps, case.precision) else "sound"


@contextlib.contextmanager
def made(tree, mistake):
    """The copy of the sources with the mistake, built."""
    path = tree / mistake.file
    text = path.read_text()
    assert mistake.right in text, f"{mistake.name}: {mistake.file} has no text that this mistake could replace"
    path.write_text(text.replace(mistake.right, mistake.wrong))
    try:
        failure = build(tree)
        assert failure is None, f"{mistake.name}: it does not compile: {failure[-600:]}"
        yield
    finally:
        path.write_text(text)


def main():
    chosen = os.environ.get("VIRTUAL_MISTAKES", "").split()
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        copy_tree(tree)
        trainer_runs.BUILD, virtual_runs.VIRTUAL = tree / "build" / "release", tree / "build" / "virtual"
        failure = build(tree)
        assert failure is None, failure
        for mistake in [mistake for mistake in MISTAKES if not chosen or mistake.name in chosen]:
            with made(tree, mistake):
                said = outcome(tree, mistake)
            found = re.search(mistake.found, said, re.S)
            missed += not found
            print(f"found  {mistake.name}" if found else f"missed {mistake.name}: the run says: {said[-600:]}",
                  flush=True)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()

"""Every mistake of test/virtual/mistakes.py is found on the virtual GPU, by its sentence, and a copy without any passes.

VIRTUAL_MISTAKES names some of them; otherwise all are tried, about half a minute each.
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

import pytest  # noqa: E402  (approx)
import test_virtual_gpu as virtual  # noqa: E402
from mistakes import DIFFERS, MISTAKES  # noqa: E402


def copy_tree(to):
    """The sources, and what was built of them, so that only what a mistake changes is built again."""
    for name in ("src", "test", "make", "build/release", "build/virtual"):
        shutil.copytree(ROOT / name, to / name, symlinks=True)
    for path in [ROOT / "Makefile", *ROOT.glob("*.c"), *ROOT.glob("*.h"), *ROOT.glob("*.cu")]:
        shutil.copy2(path, to)


def build(tree):
    command = ["make", "-s", "CC=" + os.environ.get("CC", "gcc"), "virtual"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True)
    return None if done.returncode == 0 else done.stdout + done.stderr


def differs(found, wanted, precision):
    bounds = virtual.BOUNDS[precision]
    pairs = [(a[key], b[key], bound) for a, b in zip(found, wanted) for key, bound in zip(("loss", "grad_norm"), bounds)]
    return any(a is None or a != pytest.approx(b, rel=bound) for a, b, bound in pairs)


def outcome(folder, family, case, environment):
    """What the run said, with the word `differs` where its figures are not those of a CPU."""
    config = virtual.write_config(folder, family)
    (folder / "gpu").unlink(missing_ok=True)
    (folder / "cpu").unlink(missing_ok=True)
    settings = {"VIRTUAL_ORDER": "random", "VIRTUAL_PATIENCE": "20", **environment}
    done = virtual.run(config, family, folder / "gpu", "hardware.device=cuda", *case, **settings)
    if done.returncode != 0:
        return done.stderr
    wanted = [option for option in case if not option.startswith("hardware.")]
    alone = virtual.run(config, family, folder / "cpu", "hardware.device=cpu", *wanted)
    assert alone.returncode == 0, alone.stderr
    precision = "bf16" if "train.precision=bf16" in case else "fp32"
    same = not differs(virtual.steps(folder / "gpu"), virtual.steps(folder / "cpu"), precision)
    return "sound" if same else DIFFERS


def try_mistake(tree, mistake):
    """None, or why it was not found."""
    path = tree / mistake.file
    text = path.read_text()
    if mistake.right not in text:
        return f"{mistake.file} has no text that this mistake could replace"
    path.write_text(text.replace(mistake.right, mistake.wrong))
    try:
        failure = build(tree)
        if failure:
            return f"it does not compile: {failure[-600:]}"
        said = outcome(tree, mistake.family, mistake.case, mistake.environment)
    finally:
        path.write_text(text)
    return None if re.search(mistake.found, said, re.S) else f"the run says: {said[-600:]}"


def main():
    chosen = os.environ.get("VIRTUAL_MISTAKES", "").split()
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        copy_tree(tree)
        virtual.VIRTUAL = tree / "build" / "virtual"
        failure = build(tree)
        assert failure is None, failure
        for mistake in MISTAKES:
            if chosen and mistake.name not in chosen:
                continue
            reason = try_mistake(tree, mistake)
            missed += reason is not None
            print(f"{'missed' if reason else 'found '} {mistake.name}" + (f": {reason}" if reason else ""), flush=True)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()

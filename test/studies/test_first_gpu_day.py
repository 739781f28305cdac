"""The first day on a machine with GPUs: every row is reported, and a run continues where it was cut."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from trainer_runs import ROOT


def one_sentence(ended):
    text = ended.stderr.decode()
    assert ended.returncode == 1 and text.startswith("first_gpu_day: ") and text.count("\n") == 1, text
    return text


def test_the_first_gpu_day_needs_nvcc_and_says_so():
    command = ["bash", ROOT / "studies" / "first_gpu_day.sh"]
    ended = subprocess.run(command, capture_output=True, timeout=120, env={**os.environ, "NVCC": ""})
    assert "nvcc" in one_sentence(ended)


def test_help_needs_no_build_and_no_gpu():
    command = ["bash", ROOT / "studies" / "first_gpu_day.sh", "--help"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=20, env={**os.environ, "NVCC": ""})
    assert ended.returncode == 0 and "--only" in ended.stdout and ended.stderr == ""


def test_the_short_day_ends_within_fifteen_minutes():
    sys.path.insert(0, str(ROOT / "studies"))
    import first_gpu_day

    assert sum(first_gpu_day.SHORT.values()) <= 900
    assert set(first_gpu_day.SHORT) <= {entry[0] for entry in first_gpu_day.ROWS}


def day(folder, *arguments, rules="confirmed a rule", **words):
    """Runs rows on a folder as `pack` makes it, with only the program `api_rules`, here a shell script with `rules`."""
    for place in ("bin", "studies"):
        (folder / place).mkdir(exist_ok=True)
    (folder / "bin" / "api_rules").write_text(f"#!/bin/sh\n{rules}\n")
    (folder / "bin" / "api_rules").chmod(0o755)
    for name in ("first_gpu_day.sh", "first_gpu_day.py"):
        shutil.copy(ROOT / "studies" / name, folder / "studies")
    command = [folder / "studies" / "first_gpu_day.sh", "packed", folder, "--out", folder / "out", *arguments]
    return subprocess.run(command, capture_output=True, timeout=120, env={**os.environ, **words})


def test_packed_scripts_need_no_file_that_was_not_packed(tmp_path):
    text = (ROOT / "studies" / "first_gpu_day.sh").read_text()
    for names, to in re.findall(r'cp ((?:s\S+ )+)"\$to/(\w+)/"', text):
        (tmp_path / to).mkdir()
        for path in (path for name in names.split() for path in ROOT.glob(name)):
            shutil.copy(path, tmp_path / to)
    for name in ("scripts/verify.py", "studies/side_by_side.py", "studies/curve.py", "studies/first_gpu_day.py"):
        ended = subprocess.run([sys.executable, tmp_path / name, "--help"], capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr


def test_the_first_gpu_day_says_in_a_sentence_that_there_is_no_gpu(tmp_path):
    assert "nothing was checked" in one_sentence(day(tmp_path, VIRTUAL_GPUS="0"))


def test_the_first_gpu_day_reports_every_row_and_continues_where_it_was_cut(tmp_path):
    rows = ["--only", "machine,rules,operations,ranks with"]
    ended = day(tmp_path, *rows, rules="echo confirmed a; echo confirmed b; echo skipped c", VIRTUAL_GPUS="1")
    said = ended.stdout.decode()
    assert ended.returncode == 0, said + ended.stderr.decode()
    assert re.search("^ok .* rules of CUDA and NCCL$", said, re.M)
    assert re.search("^skipped .* operations against the CPU  needs a real GPU$", said, re.M)
    assert re.search("^skipped .* ranks with a GPU each  needs 2 GPUs, and 1 are here$", said, re.M)
    found = {row["row"]: row for row in json.loads((tmp_path / "out/first_gpu_day.json").read_text())["rows"]}
    assert found["rules of CUDA and NCCL"]["found"] == {"confirmed": 2, "skipped": 1}
    assert "rules of CUDA and NCCL" in (tmp_path / "out/first_gpu_day.html").read_text()
    one = day(tmp_path, "--only", "machine", VIRTUAL_GPUS="1")  # keeps the other rows
    assert one.returncode == 0
    kept = {row["row"] for row in json.loads((tmp_path / "out/first_gpu_day.json").read_text())["rows"]}
    assert kept == set(found)
    again = day(tmp_path, *rows, rules="exit 1", VIRTUAL_GPUS="1")  # the first result is kept
    assert again.returncode == 0
    anew = day(tmp_path, *rows, "--again", rules="echo refuted a: why; exit 1", VIRTUAL_GPUS="1")
    assert anew.returncode == 1 and b"rules of CUDA and NCCL  exit code 1: refuted a: why" in anew.stdout


@pytest.mark.thorough
def test_a_row_that_hangs_is_stopped_and_its_stacks_are_in_the_log(tmp_path):
    program = f"""
import sys
sys.path.insert(0, {str(ROOT / "studies")!r})
sys.argv = ["first_gpu_day", "--long", "--out", {str(tmp_path)!r}]
import first_gpu_day as day
day.ROWS[:] = [("hangs", 0.05, 1, False, lambda here: here.run(["sleep", "{os.getpid()}99"]))]
sys.exit(day.main())
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=90,
                           env={**os.environ, "VIRTUAL_GPUS": "1"})
    assert ended.returncode == 1 and "did not end within 1 s" in ended.stdout, ended.stdout + ended.stderr
    assert "stacks at the time-out" in (tmp_path / "rows/hangs.log").read_text()
    assert subprocess.run(["pgrep", "-f", f"sleep {os.getpid()}99"], capture_output=True).returncode == 1

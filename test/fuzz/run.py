#!/usr/bin/env python3
"""Runs fuzz targets one after another and prints, for each, how many inputs it survived: run.py --seconds S [--runs N]
TARGET..."""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

CORPUS = Path(__file__).resolve().parent / "corpus"
SHIPPED = {"config": [CORPUS.parents[2] / "configs"]}  # additional seeds of a target


def run(command):
    """Runs one target with its files in memory if possible, and removes the files."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="fuzz-", dir=memory) as folder:
        environment = os.environ | {"FUZZ_FOLDER": folder}
        return subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment)


def seeds(name):
    return [CORPUS / name, *SHIPPED.get(name, [])]


def fuzz(target, seconds, runs):
    name = target.name.removeprefix("fuzz_")
    found = target.parent / "found" / name  # for libFuzzer's new inputs; the seeds stay unchanged
    found.mkdir(parents=True, exist_ok=True)
    options = ["-max_len=4096", "-timeout=20", "-rss_limit_mb=2560", "-print_final_stats=1"]
    limits = [f"-max_total_time={seconds}"] + ([f"-runs={runs}"] if runs else [])
    command = [target, *options, *limits, f"-artifact_prefix={target.parent}/{name}-", found, *seeds(name)]
    ended = run(command)
    counted = re.search(r"number_of_executed_units: (\d+)", ended.stderr)
    pace = re.search(r"average_exec_per_sec: +(\d+)", ended.stderr)
    print(f"{name:14} {int(counted[1]) if counted else 0:>10,} runs {int(pace[1]) if pace else 0:>7,}/s  ", end="")
    print("clean" if ended.returncode == 0 else "FAILED", flush=True)
    if ended.returncode != 0:
        sys.stderr.write(ended.stderr[-6000:])
    return ended.returncode == 0


def replay(target):
    name = target.name.removeprefix("replay_")
    ended = run([target, *seeds(name)])
    print(f"{name:14} {ended.stdout.strip() or 'FAILED'}", flush=True)
    if ended.returncode != 0:
        sys.stderr.write(ended.stderr[-6000:])
    return ended.returncode == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="of each target; 0: as long as the runs take")
    parser.add_argument("--runs", type=int, default=0, help="of each target; 0: as many as the seconds allow")
    parser.add_argument("--replay", action="store_true", help="the corpus alone, by programs made for it")
    parser.add_argument("targets", nargs="+", type=Path)
    chosen = parser.parse_args()
    results = [
        replay(target) if chosen.replay else fuzz(target.resolve(), chosen.seconds, chosen.runs)
        for target in chosen.targets
    ]
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())

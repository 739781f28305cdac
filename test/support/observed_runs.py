"""Plans, and measurements of the planned runs: steps, allocated bytes, peak memory of the processes (VmHWM)."""

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

from trainer_runs import as_options, rank_processes

PROGRAM = "./train_llama"


def ask(path, *arguments):
    ended = subprocess.run([PROGRAM, "-c", path, *arguments], capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        sys.exit(f"{' '.join(arguments)} failed:\n{ended.stderr}")
    return json.loads(ended.stdout)


def train(path, metrics, *overrides):
    command = [PROGRAM, "-c", path, *as_options(f"log.metrics={metrics}", *overrides)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        sys.exit(f"training failed:\n{ended.stderr}")
    with open(metrics, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    return [line for line in lines if line["type"] == "step"][1:]  # the first also touches new memory


class Peaks(threading.Thread):
    """Watches the ranks of a run: records each rank's peak memory before its stage was allocated, and at the
    end."""

    def __init__(self, mark):
        super().__init__(daemon=True)
        self.mark, self.over, self.ranks = mark, False, {}

    def look(self, rank, pid):
        status = Path(f"/proc/{pid}/status").read_text()
        peak = int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024
        first, _ = self.ranks.get(rank, (peak, peak))
        self.ranks[rank] = (first, peak)

    def run(self):
        while not self.over:
            for rank, pid in rank_processes(self.mark).items():
                with contextlib.suppress(OSError, TypeError):  # it has ended
                    self.look(rank, pid)
            time.sleep(0.002)


def observed(folder, path, *overrides):
    """Returns the bytes that each rank (one per stage) has allocated, and the peak memory of its process."""
    peaks = Peaks(path)
    peaks.start()
    steps = train(path, os.path.join(folder, f"{len(os.listdir(folder))}.jsonl"), "train.steps=2", *overrides)
    peaks.over = True
    peaks.join()
    allocated = [stage["peak_bytes"] for stage in steps[-1]["stages"]]
    return allocated, [peaks.ranks[stage][1] for stage in range(len(allocated))]

"""Plans, and the runs that they predict: steps, bytes allocated, and what the processes took from the kernel (VmHWM)."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

PROGRAM = "./train_llama"


def options(overrides):
    return [part for override in overrides for part in ("-o", override)]


def ask(path, *arguments):
    ended = subprocess.run([PROGRAM, "-c", path, *arguments], capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        sys.exit(f"{' '.join(arguments)} failed:\n{ended.stderr}")
    return json.loads(ended.stdout)


def train(path, metrics, *overrides):
    command = [PROGRAM, "-c", path, *options([f"log.metrics={metrics}", *overrides])]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        sys.exit(f"training failed:\n{ended.stderr}")
    with open(metrics, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    return [line for line in lines if line["type"] == "step"][1:]  # the first touches its memory for the first time


class Peaks(threading.Thread):
    """Looks at the ranks of a run while it lasts: how much memory each took before its stage was allocated, and at
    most."""

    def __init__(self, mark):
        super().__init__(daemon=True)
        self.mark, self.over, self.ranks = mark, False, {}

    def look(self, pid):
        environment = Path(f"/proc/{pid}/environ").read_text(errors="replace")
        rank = re.search(r"OMPI_COMM_WORLD_RANK=(\d+)", environment)
        if rank is None or not Path(f"/proc/{pid}/comm").read_text().startswith("train_"):
            return
        status = Path(f"/proc/{pid}/status").read_text()
        peak = int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024
        first, _ = self.ranks.get(int(rank[1]), (peak, peak))
        self.ranks[int(rank[1])] = (first, peak)

    def run(self):
        while not self.over:
            for entry in Path("/proc").iterdir():
                try:
                    if entry.name.isdigit() and self.mark in (entry / "cmdline").read_text(errors="replace"):
                        self.look(entry.name)
                except (OSError, TypeError):
                    pass
            time.sleep(0.002)


def observed(folder, path, *overrides):
    """Bytes that each rank (a stage each) has allocated, and that its process took from the kernel at most."""
    peaks = Peaks(path)
    peaks.start()
    steps = train(path, os.path.join(folder, f"{len(os.listdir(folder))}.jsonl"), "train.steps=2", *overrides)
    peaks.over = True
    peaks.join()
    allocated = [stage["peak_bytes"] for stage in steps[-1]["stages"]]
    return allocated, [peaks.ranks[stage][1] for stage in range(len(allocated))]

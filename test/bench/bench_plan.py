#!/usr/bin/env python3
"""How far the bytes of a plan are from those of the run it predicts. `make bench` runs it; bench_schedules.py has the
times.

The planned bytes against the bytes allocated, and against what the processes took from the kernel (VmHWM less what they
had before), at a size where activations dominate.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

PROGRAM = "./train_llama"

# Four stages with BPipe; a bundle of one microbatch is many times what a stage's weights take.
LARGE_BUNDLES = """
model: {family: llama, hidden: 256, layers: 8, heads: 8, ffn: 768, vocab: 257, seq_len: 1024}
parallel: {pipeline: 4}
schedule: {micro_batch: 4, bpipe: on}
train: {global_batch: 32, steps: 1, lr: 3.0e-4}
data: {train: "data/bible_train_*.bin"}
hardware: {device: cpu, reserve_gib: 0.5}
"""


SMALL = ["model.hidden=8", "model.heads=1", "model.ffn=8", "model.seq_len=32", "schedule.micro_batch=1"]


def options(overrides):
    return [part for override in overrides for part in ("-o", override)]


def ask(path, *arguments):
    ended = subprocess.run([PROGRAM, "-c", path, *arguments], capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        sys.exit(f"bench_plan: {' '.join(arguments)} failed:\n{ended.stderr}")
    return json.loads(ended.stdout)


def train(path, metrics, *overrides):
    command = [PROGRAM, "-c", path, *options([f"log.metrics={metrics}", *overrides])]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        sys.exit(f"bench_plan: training failed:\n{ended.stderr}")
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


def memory(folder):
    os.environ["OMP_NUM_THREADS"] = "1"
    path = os.path.join(folder, "bundles.yaml")
    Path(path).write_text(LARGE_BUNDLES, encoding="utf-8")
    # A run that holds next to nothing tells what the program, its libraries, MPI and their buffers take.
    allocated, processes = observed(folder, path, *SMALL, "schedule.bpipe=off")
    base = [process - held for process, held in zip(processes, allocated)]
    print("stages  BPipe  planned MiB  allocated MiB  process MiB (VmHWM less a small run's)   error")
    for overrides in (["schedule.bpipe=off"], []):
        told = ask(path, "--plan", "--json", *options(["hardware.profile=", *overrides]))
        planned = [stage["peak_bytes"] for stage in told["stages"]]
        allocated, processes = observed(folder, path, *overrides)
        # Lent slots are shared memory: pages count for the stage that writes them, so only pairs can be held against
        # the plan.
        for group in ([0], [1], [2], [3]) if overrides else ([0, 3], [1, 2]):
            plan, held = sum(planned[s] for s in group), sum(allocated[s] for s in group)
            process = sum(processes[s] - base[s] for s in group)
            name = "+".join(map(str, group))
            print(
                f"{name:>6} {'off' if overrides else 'on':>6} {plan / 2**20:12.1f} {held / 2**20:14.1f}"
                f" {process / 2**20:12.1f} {'':27s}{100 * (plan / process - 1):+6.1f}%"
            )
        print(
            "(wanted within 3%) planned and allocated bytes are " + ("equal" if planned == allocated else "NOT equal")
        )


def main():
    with tempfile.TemporaryDirectory() as folder:
        memory(folder)


if __name__ == "__main__":
    main()

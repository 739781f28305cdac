#!/usr/bin/env python3
"""Measures the speed of training steps as ratios. `make bench` runs it; docs/performance.md lists the figures.

Every comparison alternates its two sides (A B A B ...) and reports the median of the pairwise ratios, so that a machine
whose speed drifts does not decide it. bench_step.py has the step of GPT-2 124M against its products and other programs.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))

GPT2_124M = """
model: {family: gpt, hidden: 768, layers: 12, heads: 12, ffn: 3072, vocab: 50304, seq_len: 64}
schedule: {micro_batch: 4}
train: {global_batch: 4, steps: 8, lr: 3.0e-4}
data: {train: "data/bible_train_*.bin"}
"""

# Four ranks on two cores, wide enough that a microbatch is more work than a message.
LLAMA_BPIPE = """
model: {family: llama, hidden: 512, layers: 8, heads: 8, ffn: 1376, vocab: 257, seq_len: 256}
parallel: {pipeline: 4}
schedule: {micro_batch: 1}
train: {global_batch: 16, steps: 4, lr: 3.0e-4}
data: {train: "data/bible_train_*.bin"}
"""

ATTENTION = """
model: {family: llama, hidden: 512, layers: 2, heads: 8, ffn: 512, vocab: 257, seq_len: %d}
train: {global_batch: 1, steps: 4, lr: 3.0e-4}
data: {train: "data/bible_train_*.bin"}
"""


def run(program, config, overrides=()):
    """Returns a run's median step in ms, its metrics lines, and the seconds until the first step was complete."""
    with tempfile.TemporaryDirectory() as folder:
        path, metrics = os.path.join(folder, "bench.yaml"), os.path.join(folder, "metrics.jsonl")
        with open(path, "w", encoding="utf-8") as file:
            file.write(config)
        command = [f"./{program}", "-c", path, "-o", f"log.metrics={metrics}"]
        for override in overrides:
            command += ["-o", override]
        start = time.monotonic()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            process.stdout.readline()
            first = time.monotonic() - start
            _, errors = process.communicate()
        if process.returncode != 0:
            sys.exit(f"bench: {' '.join(command)} failed:\n{errors}")
        with open(metrics, encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
    steps = [line for line in lines if line["type"] == "step"]
    return statistics.median(line["step_ms"] for line in steps[1:] or steps), lines, first


def pairs(name, program, config, a, b):
    """Prints the median of step(a)/step(b), each a (label, overrides) pair."""
    ratios, times = [], ([], [])
    for _ in range(ROUNDS):
        milliseconds = [run(program, config, overrides)[0] for _, overrides in (a, b)]
        ratios.append(milliseconds[0] / milliseconds[1])
        for side in (0, 1):
            times[side].append(milliseconds[side])
    print(f"{name}: {a[0]} / {b[0]} = {statistics.median(ratios):.3f} (from {min(ratios):.3f} to {max(ratios):.3f}; "
          f"medians {statistics.median(times[0]):.1f} and {statistics.median(times[1]):.1f} ms)",
          flush=True)


def main():
    pairs(
        "BPipe, four ranks", "train_llama", LLAMA_BPIPE, ("on", ["schedule.bpipe=on"]), ("off", ["schedule.bpipe=off"]))
    for seq in (512, 1024):
        config = ATTENTION % seq
        modes = [(mode, [f"attention.mode={mode}"]) for mode in ("flash", "none")]
        pairs(f"attention at s={seq}, whole step", "train_llama", config, *modes)
    with open("configs/llama_tiny.yaml", encoding="utf-8") as file:
        tiny = file.read()
    first = [run("train_llama", tiny, ["train.steps=1", "data.val_every=0"])[2] for _ in range(ROUNDS)]
    print(f"llama_tiny, from the command to the first step's line: {statistics.median(first):.2f} s", flush=True)


if __name__ == "__main__":
    main()

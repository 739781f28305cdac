#!/usr/bin/env python3
"""How far every schedule's step is from its own plan, and whether the plan ranks the schedules as they run. `make
bench` runs it.

Two stages with one thread each: step times, wanted within 5 %. Four stages: the order, where the plan sees more than 3
% between two schedules, and the bubble, wanted within 2 points. Plans rest on a profile, which is of emulated stages. A
profile is made before and after the runs, and a schedule counts in a round where its plans by the two agree within 5 %.
Bubbles are compared where every rank has a core: one that waits for a core counts as busy.
"""

import itertools
import os
import statistics
import tempfile
from pathlib import Path

from bench_plan import ask, options, train

ROUNDS = min(3, int(os.environ.get("BENCH_ROUNDS", "3")))
STAGES = (2, 4)

MODEL = """
model: {family: llama, hidden: 256, layers: 8, heads: 8, ffn: 768, vocab: 257, seq_len: 256}
parallel: {pipeline: %d}
schedule: {micro_batch: 1}
train: {global_batch: 8, steps: 7, lr: 3.0e-4}
data: {train: "data/bible_train_*.bin"}
hardware: {device: cpu, profile: "%s"}
"""

SCHEDULES = {
    "gpipe": ["name=gpipe"],
    "1f1b": ["name=1f1b"],
    "1f1b, split": ["name=1f1b", "split_backward=on"],
    "1f1b, BPipe": ["name=1f1b", "bpipe=on"],
    "zb-d": ["name=zb-d"],
    "interleaved": ["name=interleaved"],
    "gis": ["name=gis"],
    "gis, group half": ["name=gis", "group=half"],
    "v-half": ["name=v-half"],
    "v-min": ["name=v-min"],
    "zb-v": ["name=zb-v"],
    "dualpipe-v": ["name=dualpipe-v"],
}


def keys(name):
    return [f"schedule.{key}" for key in SCHEDULES[name]]


def possible(stages):
    """BPipe has nothing to move over 1F1B on two stages."""
    return [name for name in SCHEDULES if stages > 2 or "BPipe" not in name]


def plans(path, profile, stages):
    """Profiles anew, and plans every schedule by it."""
    ask(path, "--profile", "--json", *options([f"hardware.profile={profile}"]))
    return {name: ask(path, "--plan", "--json", *options(keys(name))) for name in possible(stages)}


def measure(folder, path, name):
    """Medians over the steps of a run: milliseconds, bubble."""
    metrics = os.path.join(folder, "metrics.jsonl")
    Path(metrics).unlink(missing_ok=True)
    steps = train(path, metrics, *keys(name))
    return statistics.median(step["step_ms"] for step in steps), statistics.median(step["bubble"] for step in steps)


def rounds(folder, stages):
    """{schedule: [(planned ms, measured ms, planned bubble, measured bubble), ...]} of the rounds that count."""
    profile, path = os.path.join(folder, f"profile{stages}.json"), os.path.join(folder, f"{stages}.yaml")
    Path(path).write_text(MODEL % (stages, profile), encoding="utf-8")
    told = {name: [] for name in possible(stages)}
    before = plans(path, profile, stages)
    for _ in range(ROUNDS):
        runs = {name: measure(folder, path, name) for name in told}
        after = plans(path, profile, stages)
        for name, (step, bubble) in runs.items():
            one, two = before[name], after[name]
            if abs(one["step_ms"] / two["step_ms"] - 1) < 0.05:
                planned = [(one[key] + two[key]) / 2 for key in ("step_ms", "bubble")]
                told[name].append((planned[0], step, planned[1], bubble))
        before = after
    return {name: entries for name, entries in told.items() if entries}


def show(told, stages):
    """One line for each schedule; returns its medians."""
    print(f"{stages} stages: schedule, planned and measured ms, error, planned and measured bubble")
    medians = {name: [statistics.median(column) for column in zip(*entries)] for name, entries in told.items()}
    for name, (planned, step, idle, bubble) in medians.items():
        print(
            f"  {name:18s} {planned:9.1f} {step:9.1f} {100 * (planned / step - 1):+7.1f}% {100 * idle:7.1f}%"
            f" {100 * bubble:7.1f}%",
            flush=True,
        )
    for name in set(possible(stages)) - set(told):
        print(f"  {name:18s} every round was disturbed: others use this machine")
    return medians


def order(medians):
    """Of the pairs that the plan sees more than 3 % between, those that ran the other way round."""
    pairs = [(a, b) for a, b in itertools.permutations(medians, 2) if medians[a][0] < 0.97 * medians[b][0]]
    wrong = [f"{a} / {b}" for a, b in pairs if medians[a][1] > medians[b][1]]
    print(
        f"order: {len(pairs) - len(wrong)} of {len(pairs)} pairs as"
        f" planned{': but ' + ', '.join(wrong) if wrong else ''}"
    )


def main():
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        for stages in STAGES:
            medians = show(rounds(folder, stages), stages)
            if not medians:
                continue
            worst = max(abs(planned / step - 1) for planned, step, _, _ in medians.values())
            print(f"largest error of a step time: {100 * worst:.1f}%{' (wanted within 5%)' if stages == 2 else ''}")
            order(medians)
            if stages > len(os.sched_getaffinity(0)):
                print(f"bubbles are not compared: {stages} ranks share {len(os.sched_getaffinity(0))} cores")
            else:
                apart = max(abs(idle - bubble) for _, _, idle, bubble in medians.values())
                print(f"largest difference of a bubble: {100 * apart:.1f} points (wanted within 2)")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Compares every schedule's step with its plan, and checks whether the plan ranks the schedules in the measured order.
`make bench` runs it; `bench_schedules.py --write docs/schedules.md` also writes its results into that page. It takes
about BENCH_MINUTES (11) at most and ends with a line for each promise.

Two stages run with one thread each: step times must be within 5 % of the plan, and bubbles within 2 points. Four stages
are each emulated by `--emulate-stage all`, so that no rank waits for a core. Two schedules that the plan separates by
more than 3 % must be in that order, and bubbles within 2 points. With four cores, four stages also run. Plans use a
profile. Each round runs every schedule once, and rounds alternate with profiles. A schedule's plan is the mean of the
plans from the profiles before and after the round; errors are medians over the rounds. A round counts for a schedule if
its two plans agree within 5 %; if no round does, all count. Emulated stages, and profiles with one thread, measure
processor time, so that other programs disturb them little. They are planned from the profile before the round.
"""

import argparse
import contextlib
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from trainer_runs import as_options  # noqa: E402

PROGRAM = "./train_llama"
MINUTES = float(os.environ.get("BENCH_MINUTES", "11"))
MOST_ROUNDS = 7
TIME, BUBBLE, APART = 0.05, 0.02, 0.03
BEGIN, END = "<!-- test/bench/bench_schedules.py writes from here -->\n", "<!-- to here -->\n"

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


class Entry:
    """A measured run of a schedule, and the means of its plans from the profiles before and after."""

    def __init__(self, before, after, step, bubble):
        self.planned = (before["step_ms"] + after["step_ms"]) / 2
        self.idle = (before["bubble"] + after["bubble"]) / 2
        self.step, self.bubble = step, bubble
        self.calm = abs(before["step_ms"] / after["step_ms"] - 1) < TIME


def middle(entries, value):
    return statistics.median(value(entry) for entry in entries)


def keys(name):
    return [f"schedule.{key}" for key in SCHEDULES[name]]


def possible(stages):
    """Returns the schedules to run. With two stages 1F1B leaves BPipe nothing to move, so BPipe is left out."""
    return [name for name in SCHEDULES if stages > 2 or "BPipe" not in name]


@contextlib.contextmanager
def one_core():
    """Restricts the process to one core. A profile then measures one stage at a time, as an emulation does, and each
    stage has the caches and the memory to itself."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def ask(path, *arguments):
    ended = subprocess.run([PROGRAM, "-c", path, *arguments], capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        sys.exit(f"{' '.join(arguments)} failed:\n{ended.stderr}")
    return ended.stdout


def measure_profile(path, profile, stages):
    """Measures a new profile, only at the sizes that the runs use."""
    ask(path, "--profile", "--json", *as_options(f"hardware.profile={profile}", f"train.global_batch={stages}"))


def plans(path, profile, stages):
    """Measures a new profile, and plans every schedule from it."""
    measure_profile(path, profile, stages)
    return {name: json.loads(ask(path, "--plan", "--json", *as_options(*keys(name)))) for name in possible(stages)}


def measure(folder, path, name):
    """Medians over the steps of a run: milliseconds, bubble."""
    metrics = os.path.join(folder, "metrics.jsonl")
    Path(metrics).unlink(missing_ok=True)
    ask(path, *as_options(f"log.metrics={metrics}", *keys(name)))
    lines = map(json.loads, Path(metrics).read_text(encoding="utf-8").splitlines())
    steps = [line for line in lines if line["type"] == "step"][1:]  # the first also touches new memory
    return statistics.median(step["step_ms"] for step in steps), statistics.median(step["bubble"] for step in steps)


PIPELINE = re.compile(r"devices: ([\d.]+) ms, bubble ([\d.]+)%; planned ([\d.]+) ms, ([\d.]+)%")


def emulate(path, name):
    """Emulates every stage and returns an Entry with the time and the bubble of the pipeline phase."""
    command = [PROGRAM, "-c", path, "--emulate-stage", "all", *as_options(*keys(name))]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        sys.exit(f"bench_schedules: {' '.join(command)} failed:\n{ended.stderr}")
    step, bubble, planned, idle = map(float, PIPELINE.search(ended.stdout).groups())
    plan = {"step_ms": planned, "bubble": idle / 100}
    return Entry(plan, plan, step, bubble / 100)


def run_round(folder, path, profile, stages, before):
    """Returns the entries of a round of runs, and the plans from the profile after it."""
    runs = {name: measure(folder, path, name) for name in before}
    after = plans(path, profile, stages)
    return {name: Entry(before[name], after[name], *run) for name, run in runs.items()}, after


def rounds(folder, stages, seconds, emulated):
    """Returns {schedule: its entries}, for as many rounds as fit into the time, at least one."""
    profile, path = os.path.join(folder, f"profile{stages}.json"), os.path.join(folder, f"{stages}.yaml")
    Path(path).write_text(MODEL % (stages, profile), encoding="utf-8")
    told, began, last, count = {name: [] for name in possible(stages)}, time.monotonic(), 0.0, 0
    before = {} if emulated else plans(path, profile, stages)
    while count == 0 or (count < MOST_ROUNDS and time.monotonic() - began + last < seconds):
        start = time.monotonic()
        if emulated:
            with one_core():
                measure_profile(path, profile, stages)
                entries = {name: emulate(path, name) for name in told}
        else:
            entries, before = run_round(folder, path, profile, stages, before)
        for name, entry in entries.items():
            told[name].append(entry)
        last, count = time.monotonic() - start, count + 1
        print(f"{stages} stages: round {count} took {last:.0f} s", file=sys.stderr, flush=True)
    return told


def counted(told):
    """Returns the entries with agreeing plans; all entries of a schedule that has no such entry."""
    return {name: [entry for entry in entries if entry.calm] or entries for name, entries in told.items()}


def error(entries):
    return middle(entries, lambda entry: entry.planned / entry.step - 1)


def apart(entries):
    return middle(entries, lambda entry: entry.idle - entry.bubble)


def cores():
    return len(os.sched_getaffinity(0))


def table(told, title):
    """The lines of a Markdown table."""
    lines = [
        title, "", "| schedule | planned ms | measured ms | error | bubble planned | measured | rounds, disturbed |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, entries in counted(told).items():
        disturbed = sum(not entry.calm for entry in told[name])
        lines.append(
            f"| {name} | {middle(entries, lambda e: e.planned):.1f} | {middle(entries, lambda e: e.step):.1f} |"
            f" {100 * error(entries):+.1f} % | {100 * middle(entries, lambda e: e.idle):.1f} % |"
            f" {100 * middle(entries, lambda e: e.bubble):.1f} % | {len(told[name])}, {disturbed} |")
    return [*lines, ""]


def step_times(told):
    name = max(told, key=lambda name: abs(error(told[name])))
    worst = error(told[name])
    text = f"step times of two stages within 5 %: the largest error is {100 * worst:+.1f} % ({name})"
    return abs(worst) <= TIME, text


def bubbles(told, what):
    what = f"bubbles of {what} within 2 points"
    name = max(told, key=lambda name: abs(apart(told[name])))
    worst = apart(told[name])
    return abs(worst) <= BUBBLE, f"{what}: the largest difference is {100 * worst:+.1f} ({name})"


def order(told, what):
    """Checks the order of the schedules. Pairs are compared within a round, so that drifting speed does not matter."""
    planned = {name: middle(entries, lambda entry: entry.planned) for name, entries in counted(told).items()}
    pairs = [(a, b) for a, b in itertools.permutations(told, 2) if planned[a] < (1 - APART) * planned[b]]
    ratio = lambda a, b: statistics.median(one.step / other.step for one, other in zip(told[a], told[b]))
    wrong = [f"{a} before {b}" for a, b in pairs if ratio(a, b) > 1]
    text = f"order of {what}: {len(pairs) - len(wrong)} of {len(pairs)} pairs as planned"
    return not wrong, text + (f"; not {', '.join(wrong)}" if wrong else "")


def write(page, lines):
    """Replaces the lines between BEGIN and END of a page."""
    text = Path(page).read_text(encoding="utf-8")
    if BEGIN not in text or END not in text:
        sys.exit(f"bench_schedules: {page} has no lines {BEGIN.strip()} and {END.strip()}")
    head, rest = text.split(BEGIN, 1)
    tail = rest.split(END, 1)[1]
    Path(page).write_text(head + BEGIN + "\n" + "\n".join(lines) + "\n\n" + END + tail, encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", metavar="PAGE",
                        help="put the results between the marks of a page")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    lines, promises, began = [], [], time.monotonic()
    # (stages, emulated, share of the time)
    parts = [(2, False, 0.5), (4, True, 0.5)] if cores() < 4 else [(2, False, 0.4), (4, True, 0.3), (4, False, 0.3)]
    with tempfile.TemporaryDirectory() as folder:
        for stages, emulated, share in parts:
            what = f"{stages} stages, each emulated alone" if emulated else f"{stages} stages on {cores()} cores"
            told = rounds(folder, stages, share * MINUTES * 60, emulated)
            lines += table(told, what)
            promises += [step_times(counted(told))] if stages == 2 else [order(told, what)]
            promises += [bubbles(counted(told), what)]
    results = [f"- {'passed' if kept else 'FAILED'}: {text}" for kept, text in promises]
    print("\n".join([*lines, *results]))
    print(f"took {(time.monotonic() - began) / 60:.1f} minutes", file=sys.stderr)
    if arguments.write:
        write(arguments.write, results)


if __name__ == "__main__":
    main()

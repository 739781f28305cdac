#!/usr/bin/env python3
"""Searches for plans with plain loops and compares: no plan may be faster than --search's answer by over 0.2 %.

Every cut, micro-batch size up to 8 and schedule is planned first. Candidates that would be faster than the search's
answer are then planned with evictions, recomputed prefixes and ramps, pointwise recomputation, moved layers and
overlap, starting with those nearest to fitting. The search is one program; the loops run `--plan --sweep`. They share
the planner but no code of the search.

    test/soak/brute_force.py [--plans 30000] [--case 0]...    about two minutes a case on two cores
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(os.environ.get("TEST_PROGRAMS", ROOT / "build/release/test")).parent
A100, H100 = "hardware.gpu=a100-80g", "hardware.gpu=h100"
CASES = [
    ("llama2_13b", 24, [A100, "hardware.memory_gib=16", "train.global_batch=120"]),
    ("qwen2.5_32b", 48, [H100, "hardware.memory_gib=24", "train.global_batch=96"]),
    ("llama2_70b", 64, [A100, "hardware.memory_gib=32"]),
    ("llama2_13b", 16, [A100, "hardware.memory_gib=20", "train.global_batch=128"]),
    ("llama65b", 32, [A100, "hardware.memory_gib=48"]),
    ("llama3_70b", 64, [H100, "model.seq_len=131072", "train.global_batch=32", "attention.deterministic=off"]),
]
CHUNKS = (2, 4, 5, 6, 8)
SCHEDULES = [
    *(["schedule.name=1f1b", f"schedule.split_backward={split}"] for split in ("off", "on")),
    *(
        ["schedule.name=interleaved", f"schedule.chunks={chunks}", f"schedule.split_backward={split}"]
        for chunks in CHUNKS
        for split in ("off", "on")
    ),
    *(["schedule.name=gis", f"schedule.chunks={chunks}", f"schedule.group={g}"] for chunks in CHUNKS
      for g in ("auto", "half")),
    *([f"schedule.name={name}"] for name in ("zb-d", "v-half", "v-min", "zb-v", "dualpipe-v")),
]
SLICED = [
    [f"schedule.slices={slices}", *schedule]
    for slices in (2, 4, 8)
    for schedule in (["schedule.name=seq1f1b"],
                     *(["schedule.name=interleaved", f"schedule.chunks={v}"] for v in CHUNKS))
]
TOLERANCE = 0.002


class Case:
    """A model on some GPUs, with the answer of the search and a budget of plans."""

    def __init__(self, config, gpus, overrides, plans):
        self.path, self.gpus = ROOT / f"configs/{config}.yaml", gpus
        self.overrides = [*overrides, "hardware.profile="]
        self.left, self.made = plans, 0
        self.found = self.ask("--search", "--gpus", str(gpus))
        self.model = (self.found["best"] or {}).get("config", {}).get("model", {})

    def ask(self, *words, keys=()):
        options = [word for key in (*self.overrides, *keys) for word in ("-o", key)]
        line = [PROGRAMS / "train_llama", "-c", self.path, "-q", "--json", *words, *options]
        return json.loads(subprocess.run(line, capture_output=True, text=True).stdout or "{}")

    def sweep(self, keys, swept):
        """Returns the rows of all combinations that a run would accept, as (keys, row)."""
        words = ["--plan", *(word for key, values in swept for word in ("--sweep", f"{key}={','.join(values)}"))]
        rows = self.ask(*words, keys=keys).get("sweep", [])
        planned = [([*keys, *(f"{key}={value}" for key, value in row["set"].items())], row) for row in rows
                   if row["step_ms"]]
        self.made += len(planned)
        return planned

    def cuts(self):
        """Yields (tensor, pipeline, context, data) ranks; context ranks only for long sequences."""
        layers, heads = self.model["layers"], self.model["kv_heads"]
        contexts = (1, 2, 4, 8) if self.model["seq_len"] >= 16384 else (1,)
        for t, p, c in itertools.product(range(1, 9), range(1, min(layers, 32) + 1), contexts):
            if self.gpus % (t * p * c) == 0 and heads % t == 0:
                yield t, p, c, self.gpus // (t * p * c)


def plain(case):
    """Yields every cut, schedule and micro-batch size up to 8, without evictions and recomputation."""
    for (t, p, c, d), schedule in itertools.product(case.cuts(), [*SCHEDULES, *SLICED]):
        slices = int(schedule[0].split("=")[1]) if schedule in SLICED else 1
        short = slices > 1 and (c > 1 or case.model["seq_len"] < 512 * slices)
        if (p == 1 and schedule is not SCHEDULES[0]) or short:
            continue
        keys = [f"parallel.tensor={t}", f"parallel.pipeline={p}", f"parallel.data={d}", "schedule.bpipe=off"]
        keys += [f"parallel.context={c}", *(["schedule.split_backward=off"] if slices > 1 else [])]
        keys += [f"parallel.sequence={'true' if t > 1 else 'false'}", "parallel.layers=auto",
                 "parallel.placement=linear"]
        yield [*keys, "schedule.recompute_layers=0", "schedule.recompute=none",
               *schedule], [("schedule.micro_batch", ["1", "2", "4", "8"])]


def listed(values):
    return f"[{','.join(map(str, values))}]"


def variants(case, keys, p):
    """Yields sweeps over a candidate's targets of evictions, recomputation, distributions of layers, and overlap."""
    chunks = next((int(key[-1]) for key in keys if key.startswith("schedule.chunks=")), 1)
    each = case.model["layers"] // p
    recompute = ["0"]
    for n in (1, 2, 3, 4, 6, 8):
        if n <= each:
            recompute += [listed([n] * k + [0] * (p - k)) for k in sorted({p, p - 1, p - 2, (p + 1) // 2, 1} - {0, -1})]
            recompute.append(listed([max(0, n - s) for s in range(p)]))
    layers = ["auto"]
    if case.model["layers"] % p == 0 and chunks == 1 and p > 1 and not any("-v" in key or "v-" in key for key in keys):
        for more, fewer in ((0, p - 1), (p - 2, p - 1), (p - 1, 0)):
            dealt = [each] * p
            dealt[more], dealt[fewer] = each + 1, each - 1
            layers.append(listed(dealt))
    kept = [key for key in keys if not key.startswith(("schedule.recompute", "schedule.bpipe", "parallel.layers"))]
    for evict in (["schedule.bpipe=off"],
                  *(["schedule.bpipe=on", f"schedule.evict_to={to}"] for to in ("peer", "host"))):
        for part in range(0, len(recompute), 8):
            yield [*kept, *evict], [
                ("schedule.recompute_layers", recompute[part : part + 8]),
                ("parallel.layers", list(dict.fromkeys(layers))),
                ("schedule.recompute", ["none", "pointwise"]),
                ("parallel.overlap", ["auto", "3"]),
            ]


def compare(case, threads=2):
    """Returns the fastest plan that fits as (milliseconds, keys), and the search's fastest."""
    searched = min(row["step_ms"] for row in case.found["front"])
    best, nearest = (float("inf"), None), []
    with ThreadPoolExecutor(threads) as pool:
        for rows in pool.map(lambda asked: case.sweep(*asked), plain(case)):
            for keys, row in rows:
                if row["fits"]:
                    best = min(best, (row["step_ms"], keys))
                if row["step_ms"] < searched:
                    nearest.append((row["peak_bytes"], keys))
        asked = (
            sweep
            for _, keys in sorted(nearest)
            for sweep in variants(case, keys, int(next(key for key in keys if "pipeline" in key).split("=")[1]))
        )
        while case.made < case.left and (part := list(itertools.islice(asked, 16))):
            for rows in pool.map(lambda each: case.sweep(*each), part):
                best = min([best, *((row["step_ms"], keys) for keys, row in rows if row["fits"])])
    return best, searched


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", type=int, default=30000, help="approximate number of plans per case")
    parser.add_argument("--case", type=int, action="append", choices=range(len(CASES)), help="default: all")
    asked = parser.parse_args()
    worse, plans = 0, 0
    for number in asked.case or range(len(CASES)):
        name, gpus, overrides = CASES[number]
        case = Case(name, gpus, overrides, asked.plans)
        (step, keys), searched = compare(case)
        plans += case.made
        worse += step < searched * (1 - TOLERANCE)
        print(f"{name}, {gpus} GPUs, {' '.join(overrides)}: search {searched:.1f} ms, {case.made} plans {step:.1f} ms")
        print(f"    {100 * (step / searched - 1):+.2f} %: {' '.join(keys or ['nothing fits'])}", flush=True)
    print(f"{plans} plans, {worse} cases in which one is faster than the search by over {100 * TOLERANCE:g} %")
    return worse > 0


if __name__ == "__main__":
    sys.exit(main())

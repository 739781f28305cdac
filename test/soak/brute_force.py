#!/usr/bin/env python3
"""Draws plans and compares: none may be faster than --search's answer by over 0.2 %.

The search's own front is planned first. Half of the others are drawn over everything a search may choose: the cut, the
schedule with its chunks and slices, the micro-batch, what is evicted and where to, recomputed prefixes and ramps, moved
layers, the attention, overlap. The other half redraw one or two of these in a row of the front or in the fastest plan
so far. The search is one program; the draws run `--plan --sweep`. They share the planner but no code of the search.

    test/soak/brute_force.py [--plans 300] [--case 0]...     the 32 cases: six minutes on two cores
"""

import argparse
import json
import os
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from layouts_case import listed

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(os.environ.get("TEST_PROGRAMS", ROOT / "build/release/test")).parent
A100, H100, H200, B200 = (f"hardware.gpu={gpu}" for gpu in ("a100-80g", "h100", "h200", "b200"))
LONG = ["model.seq_len=131072", "train.global_batch=32", "attention.deterministic=off"]
CASES = [
    ("llama2_13b", 24, [A100, "hardware.memory_gib=16", "train.global_batch=120"]),
    ("qwen2.5_32b", 48, [H100, "hardware.memory_gib=24", "train.global_batch=96"]),
    ("llama2_70b", 64, [A100, "hardware.memory_gib=32"]),
    ("llama2_13b", 16, [A100, "hardware.memory_gib=20", "train.global_batch=128"]),
    ("llama65b", 32, [A100, "hardware.memory_gib=48"]),
    ("llama3_70b", 64, [H100, *LONG]),
    ("gpt3_96b", 32, [A100]),
    ("gpt3_96b", 64, [H100]),
    ("gpt3_175b", 96, [A100, "train.global_batch=192"]),
    ("gpt3_175b", 128, [H100]),
    ("gpt3_13b", 16, [A100, "hardware.memory_gib=40"]),
    ("gpt3_1.3b", 8, [A100, "hardware.memory_gib=24"]),
    ("llama65b", 32, [A100]),
    ("llama65b", 64, [H100, "train.fp8=tensor"]),
    ("llama2_7b", 8, [A100, "hardware.memory_gib=40"]),
    ("llama2_7b", 32, [H100, "model.seq_len=32768", "train.global_batch=64", "attention.deterministic=off"]),
    ("llama2_70b", 128, [H100]),
    ("llama3_8b", 16, [H100]),
    ("llama3_8b", 8, [H100, "hardware.memory_gib=40"]),
    ("llama3_70b", 64, [H100]),
    ("llama3_70b", 256, [H100, "train.global_batch=512"]),
    ("llama3_70b", 64, [B200]),
    ("llama3.1_70b", 72, [H200]),
    ("llama3.2_3b", 8, [A100, "hardware.memory_gib=16"]),
    ("qwen2.5_72b", 64, [H100, "hardware.network_gb_s=25"]),
    ("qwen2.5_14b", 20, [A100, "train.global_batch=160"]),
    ("qwen3_32b", 48, [H200, "train.global_batch=192"]),
    ("mistral_7b", 12, [A100, "train.global_batch=96"]),
    ("gpt2_1558m", 4, [A100, "hardware.memory_gib=16"]),
    ("mixtral_8x7b", 32, [H100]),
    ("qwen3_30b_a3b", 16, [H100]),
    ("qwen2.5_32b", 40, [A100, "train.global_batch=160"]),
]
SPLIT = [f"schedule.split_backward={split}" for split in ("off", "on")]
GROUPS = [f"schedule.group={group}" for group in ("auto", "half")]
WHOLE = [
    *(["schedule.name=1f1b", split] for split in SPLIT),
    *(["schedule.name=interleaved", f"schedule.chunks={v}", split] for v in range(2, 9) for split in SPLIT),
    *(["schedule.name=gis", f"schedule.chunks={v}", group] for v in range(2, 9) for group in GROUPS),
    *([f"schedule.name={name}"] for name in ("gpipe", "zb-d", "v-half", "v-min", "zb-v", "dualpipe-v")),
]
SLICED = [["schedule.name=seq1f1b"], *(["schedule.name=interleaved", f"schedule.chunks={v}"] for v in range(2, 9))]
MICRO = ("schedule.micro_batch", ["1", "2", "4", "8"])
TOLERANCE = 0.002


class Case:
    """A model on some GPUs, with the answer of the search and a budget of plans that a run would accept."""

    def __init__(self, config, gpus, overrides, plans):
        self.path, self.gpus = ROOT / f"configs/{config}.yaml", gpus
        self.overrides = [*overrides, "hardware.profile="]
        self.left, self.made, self.drawn_that_fit = plans, 0, 0
        self.draw = random.Random(f"{config} {gpus} {overrides}")
        self.found = self.ask("--search", "--gpus", str(gpus))
        self.model = (self.found["best"] or {}).get("config", {}).get("model", {})
        self.cuts = list(self.cuts_()) if self.model else []
        self.seen = [self.groups_of(row["config"]) for row in self.found["front"]]

    def ask(self, *words, keys=()):
        options = [word for key in (*self.overrides, *keys) for word in ("-o", key)]
        program = "train_gpt" if self.path.name.startswith("gpt") else "train_llama"
        line = [PROGRAMS / program, "-c", self.path, "-q", "--json", *words, *options]
        return json.loads(subprocess.run(line, capture_output=True, text=True).stdout or "{}")

    def sweep(self, keys):
        """Returns the rows of all micro-batch sizes that a run would accept, as (row, keys)."""
        rows = self.ask("--plan", "--sweep", f"{MICRO[0]}={','.join(MICRO[1])}", keys=keys).get("sweep", [])
        return [(row, [*keys, f"{MICRO[0]}={row['set'][MICRO[0]]}"]) for row in rows if row["step_ms"]]

    def cuts_(self):
        """Yields (tensor, pipeline, context, data, expert) ranks; context ranks only for long sequences."""
        contexts = (1, 2, 4, 8) if self.model["seq_len"] >= 16384 else (1,)
        experts = (1, 2, 4, 8) if self.model["experts"] else (1,)
        for t in range(1, 9):
            for p in range(1, min(self.model["layers"], 32) + 1):
                for c in contexts:
                    d, rest = divmod(self.gpus, t * p * c)
                    if rest == 0 and self.model["kv_heads"] % t == 0:
                        yield from ((t, p, c, d, e) for e in experts if d % e == 0)

    def groups_of(self, config):
        """Returns a planned layout as the groups of keys that are drawn together."""
        def keys(section, *names):
            values = ((name, config[section][name]) for name in names)
            return [f"{section}.{name}={listed(v) if isinstance(v, list) else str(v).lower()}" for name, v in values]

        names = [key.partition("=")[0].partition(".")[2] for keys in (WHOLE[0], WHOLE[2], WHOLE[16]) for key in keys]
        return {
            "cut": keys("parallel", "tensor", "pipeline", "context", "data", "expert", "sequence", "placement"),
            "schedule": keys("schedule", *dict.fromkeys(names), "slices"),
            "evict": keys("schedule", "bpipe", "evict_to"),
            "recompute": keys("schedule", "recompute_layers", "recompute"),
            "layers": keys("parallel", "layers"),
            "attention": keys("attention", "mode"),
            "overlap": keys("parallel", "overlap"),
            "searched": keys("parallel", "collectives", "shard_gradients") + keys("schedule", "slots", "load_ahead"),
        }

    def drawn(self, group, p):
        """Returns the keys of one group at random, for p stages."""
        draw, layers = self.draw, self.model["layers"]
        if group == "cut":
            t, p, c, d, e = draw.choice(self.cuts)
            sizes = {"tensor": t, "pipeline": p, "context": c, "data": d, "expert": e}
            sequence = draw.choice(["true", "false"]) if t > 1 else "false"
            placement = "stages" if p > 1 and e > t * c else draw.choice(["linear", "adjacent"])
            return [*(f"parallel.{name}={n}" for name, n in sizes.items()), f"parallel.sequence={sequence}",
                    f"parallel.placement={placement}"]
        if group == "attention":
            return [f"attention.mode={draw.choice(['none', 'recompute', 'flash'])}"]
        if group == "schedule":
            slices = draw.choice((1, 1, 2, 4, 8))
            return [f"schedule.slices={slices}", *draw.choice(WHOLE if slices == 1 else SLICED)]
        if group == "evict":
            return draw.choice([["schedule.bpipe=off"],
                                *(["schedule.bpipe=on", f"schedule.evict_to={to}"] for to in ("peer", "host"))])
        if group == "recompute":
            n, reach = draw.randint(0, max(1, layers // p)), draw.randint(1, p)
            prefix = [[n] * reach + [0] * (p - reach), [max(0, n - s) for s in range(p)], [0] * p]
            words = ["none", *["experts"] * (self.model["experts"] > 0), "pointwise"]
            return [f"schedule.recompute_layers={listed(draw.choice(prefix))}",
                    f"schedule.recompute={draw.choice(words)}"]
        if group == "layers":
            dealt = [layers // p] * p
            dealt[draw.randrange(p)] += 1
            dealt[draw.randrange(p)] -= 1
            return [f"parallel.layers={'auto' if draw.random() < 0.5 or layers % p else listed(dealt)}"]
        return [f"parallel.overlap={draw.choice(['auto', '3'])}"]

    def layout(self):
        """Returns a layout: all drawn, or a few groups redrawn in one that was among the fastest."""
        kept = dict(self.draw.choice(self.seen)) if self.draw.random() < 0.5 else {}
        changed = self.draw.sample(sorted(kept), self.draw.randint(1, 2)) if kept else ["cut"]
        if "cut" in changed:
            kept = {group: kept[group] for group in ("evict", "attention", "overlap") if group in kept}
            kept["cut"] = self.drawn("cut", 0)
        p = next(int(key.partition("=")[2]) for key in kept["cut"] if "pipeline" in key)
        for group in ("schedule", "evict", "recompute", "layers", "attention", "overlap"):
            if group in changed or group not in kept:
                kept[group] = self.drawn(group, p)
        return kept


def compare(case, threads=2):
    """Returns the fastest plan that fits as (milliseconds, keys), and the search's fastest."""
    searched = min(row["step_ms"] for row in case.found["front"])
    best, front = (float("inf"), None), list(case.seen)
    layouts = front
    with ThreadPoolExecutor(threads) as pool:
        while case.made < case.left:
            swept = pool.map(lambda layout: case.sweep([key for keys in layout.values() for key in keys]), layouts)
            for layout, rows in zip(layouts, swept):
                case.made += len(rows)
                case.drawn_that_fit += layout not in front and any(row["fits"] for row, _ in rows)
                for row, keys in rows:
                    if row["fits"] and row["step_ms"] < best[0]:
                        best = (row["step_ms"], keys)
                        case.seen.append(layout)
            layouts = [case.layout() for _ in range(16)]
    return best, searched


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", type=int, default=300, help="number of plans per case that a run would accept")
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

#!/usr/bin/env python3
"""Plans LLaMA 65B and Llama 3 70B on H100s with sequences of 8k, 32k and 128k tokens, and prints the tables of slices
in docs/schedules.md. A cell has GiB of the fullest rank, seconds a step and MFU in percent. Needs `make programs`.

    scripts/slices_table.py [--slices N ...]                 nothing is recomputed; N: slices, 2 4 8 16 unless given
    scripts/slices_table.py --search [--slices N ...]        --search may recompute layers; takes minutes
    scripts/slices_table.py --dry MODEL GPUS TOKENS KIND     runs such a cell on virtual GPUs (`make virtual`)

For example --dry 65B 32 32768 BPipe: minutes, and one process a GPU. Slices do not run on GPUs.
"""

import argparse
import itertools
import json
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODELS = {"65B": "llama65b", "70B": "llama3_70b"}
GIB = 2**30
TENSOR, SEQUENCES = 8, 32
WORLD = {"parallel.tensor": TENSOR, "parallel.data": 1, "parallel.sequence": "true", "schedule.micro_batch": 1}

# Heading, and values in the plan's table of schedules. A search has no name for any sliced schedule: it takes seq1f1b.
KINDS = {
    "1F1B": {"name": "1f1b", "bpipe": "off"},
    "BPipe": {"name": "1f1b", "bpipe": "on"},
    "interleaved": {"name": "interleaved", "bpipe": "off", "sliced": False},
    "V-Half": {"name": "v-half", "bpipe": "off"},
    "slices": {"bpipe": "off", "sliced": True},
    "BPipe over slices": {"bpipe": "on", "sliced": True},
}


def options(keys):
    return [part for key, value in keys.items() for part in ("-o", f"{key}={value}")]


def ask(model, tokens, keys, *words):
    """Returns the JSON of --plan or --search, with what all cells have in common."""
    keys = {
        "hardware.gpu": "h100", "hardware.profile": "", "model.seq_len": tokens, "train.global_batch": SEQUENCES,
        "attention.mode": "flash", "attention.deterministic": "off", **keys,
    }  # fmt: skip
    command = [ROOT / "train_llama", "-c", ROOT / f"configs/{MODELS[model]}.yaml", "--json", *words, *options(keys)]
    ended = subprocess.run(command, capture_output=True, text=True)
    if not ended.stdout:
        sys.exit(f"slices_table.py: {ended.stderr.strip()}")
    return json.loads(ended.stdout)


def plan(model, gpus, tokens, slices):
    """Returns rows of the plan's table without recomputation, with the schedules over `slices` slices among them."""
    keys = {**WORLD, "parallel.pipeline": gpus // TENSOR, "schedule.name": "seq1f1b", "schedule.slices": slices}
    rows = ask(model, tokens, {**keys, "schedule.bpipe": "off"}, "--plan")["schedules"]
    kept = [row for row in rows if row["recompute_layers"] == 0 and row["recompute"] == "none"]
    return [{**row, "sliced": row["slices"] > 1} for row in kept if row["bpipe"] == "off" or row["evict_to"] == "peer"]


def plan_cell(rows, wanted):
    found = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    if not found:
        return "-"
    fits = [row for row in found if row["fits"]]
    best = min(fits, key=lambda row: row["step_ms"]) if fits else min(found, key=lambda row: row["peak_bytes"])
    text = figures(best) + (f"; {best['slices']}" if best["sliced"] else "")
    return text if fits else f"({text})"


def search(model, gpus, tokens, keys):
    """Returns the fastest layout that fits, None without one."""
    return ask(model, tokens, keys, "--search", "--gpus", str(gpus))["best"]


def fastest(model, gpus, tokens, kind, slices):
    name, bpipe = KINDS[kind].get("name", "seq1f1b"), KINDS[kind]["bpipe"]
    keys = {**WORLD, "schedule.name": name, "schedule.bpipe": bpipe, "schedule.evict_to": "peer"}
    if not KINDS[kind].get("sliced", False):
        return search(model, gpus, tokens, keys)
    found = [search(model, gpus, tokens, {**keys, "schedule.slices": number}) for number in slices]
    sliced = [best for best in found if best is not None and best["config"]["schedule"]["slices"] > 1]
    return min(sliced, key=lambda best: best["step_ms"], default=None)


def figures(best):
    return f"{best['peak_bytes'] / GIB:.0f}, {best['step_ms'] / 1e3:.1f}, {100 * best['mfu']:.0f}"


def cell(best):
    if best is None:
        return "-"
    schedule = best["config"]["schedule"]
    layers = schedule["recompute_layers"]
    again = sum(layers) if isinstance(layers, list) else layers * best["config"]["parallel"]["pipeline"]
    notes = [f"n{schedule['slices']}"] if schedule["slices"] > 1 else []
    notes += [f"r{again}"] if again else []
    notes += ["p"] if schedule["recompute"] == "pointwise" else []
    return "; ".join([figures(best), *notes])


def layout(best):
    """Names the ranks and the schedule of a layout in which all keys were open."""
    if best is None:
        return "-"
    parallel, schedule = best["config"]["parallel"], best["config"]["schedule"]
    ranks = "x".join(str(parallel[key]) for key in ("tensor", "pipeline", "data"))
    moves = f" to {schedule['evict_to']}" if schedule["bpipe"] == "on" else ""
    return f"{cell(best)}; {ranks} {schedule['name']}{moves}"


def dry(model, gpus, tokens, kind):
    """Runs one step of a cell on virtual GPUs and compares it with the plan."""
    best = fastest(model, gpus, tokens, kind, [])
    if best is None:
        sys.exit(f"slices_table.py: {kind}: no layout fits or runs on GPUs; choose a cell with figures")
    count = SEQUENCES * tokens + 64
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "tokens.bin").write_bytes(struct.pack("<256i", 20240520, 1, count, *[0] * 253) + bytes(2 * count))
        Path(folder, "best.yaml").write_text(json.dumps(best["config"]))
        keys = {
            "data.train": f"{folder}/tokens.bin", "data.val": "", "data.val_every": 0, "checkpoint.every": 0,
            "train.steps": 1, "log.metrics": f"{folder}/metrics.jsonl", "hardware.products": f"{folder}/products.json",
        }  # fmt: skip
        env = {"VIRTUAL_DRY": "1", "VIRTUAL_GPUS": "8", "VIRTUAL_NODES": str(gpus // 8), "OMP_NUM_THREADS": "1"}
        command = [ROOT / "build/virtual/train_llama", "-c", f"{folder}/best.yaml", *options(keys)]
        ended = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **env})
        if ended.returncode != 0:
            sys.exit(f"slices_table.py: {ended.stderr.strip()[-1000:]}")
        step = json.loads(Path(folder, "metrics.jsonl").read_text().splitlines()[-1])
    peak = max(stage["peak_bytes"] for stage in step["stages"])
    print(f"bytes   {peak} allocated, {best['peak_bytes']} planned")
    print(f"step    {step['step_ms'] / 1e3:.1f} s by the clock, {best['step_ms'] / 1e3:.1f} s planned")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slices", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--search", action="store_true")
    parser.add_argument("--dry", nargs=4, metavar=("MODEL", "GPUS", "TOKENS", "KIND"))
    asked = parser.parse_args()
    if asked.dry:
        return dry(asked.dry[0], int(asked.dry[1]), int(asked.dry[2]), asked.dry[3])
    headings = [*KINDS, *(["all keys open"] if asked.search else [])]
    print("| model, GPUs, tokens |", " | ".join(headings), "|\n|" + "---|" * (len(headings) + 1))
    for model, gpus, tokens in itertools.product(MODELS, (32, 64), (8192, 32768, 131072)):
        if asked.search:
            cells = [cell(fastest(model, gpus, tokens, kind, asked.slices)) for kind in KINDS]
            cells += [layout(search(model, gpus, tokens, {}))]
        else:
            rows = [row for number in asked.slices for row in plan(model, gpus, tokens, number)]
            cells = [plan_cell(rows, wanted) for wanted in KINDS.values()]
        print(f"| {model}, {gpus}, {tokens // 1024}k |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Plans LLaMA 65B and Llama 3 70B on H100s with sequences of 8k, 32k and 128k tokens, and prints the table of slices in
docs/schedules.md. A cell has GiB of the fullest rank, seconds a step and MFU in percent, with slices also their number: of
the fastest schedule that fits, or in brackets of the smallest. Needs `make programs`, no GPU.

    scripts/slices_table.py [--slices N ...]     N: slices of a sequence; 2 4 8 16 unless given
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODELS = {"65B": "llama65b", "70B": "llama3_70b"}
GIB = 2**30
TENSOR, MICROBATCHES = 8, 32

# Heading, and what a row of the plan's table of schedules has to be.
KINDS = {
    "1F1B": {"name": "1f1b", "bpipe": "off"},
    "BPipe": {"name": "1f1b", "bpipe": "on"},
    "interleaved": {"name": "interleaved", "bpipe": "off", "sliced": False},
    "V-Half": {"name": "v-half", "bpipe": "off"},
    "slices": {"bpipe": "off", "sliced": True},
    "BPipe over slices": {"bpipe": "on", "sliced": True},
}


def plan(model, sequence, gpus, slices):
    keys = {
        "hardware.gpu": "h100", "hardware.profile": "", "model.seq_len": sequence, "parallel.tensor": TENSOR,
        "parallel.pipeline": gpus // TENSOR, "parallel.data": 1, "parallel.sequence": "true", "schedule.micro_batch": 1,
        "train.global_batch": MICROBATCHES, "schedule.name": "seq1f1b", "schedule.slices": slices,
        "schedule.bpipe": "off", "attention.mode": "flash",
    }  # fmt: skip
    options = [part for key, value in keys.items() for part in ("-o", f"{key}={value}")]
    command = [ROOT / "train_llama", "-c", ROOT / f"configs/{MODELS[model]}.yaml", "--plan", "--json", *options]
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode != 0:
        sys.exit(f"slices_table.py: {ended.stderr.strip()}")
    rows = json.loads(ended.stdout)["schedules"]
    kept = [row for row in rows if row["recompute_layers"] == 0 and row["recompute"] == "none"]
    return [{**row, "sliced": row["slices"] > 1} for row in kept if row["bpipe"] == "off" or row["evict_to"] == "peer"]


def cell(rows, wanted):
    found = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    if not found:
        return "-"
    fits = [row for row in found if row["fits"]]
    best = min(fits, key=lambda row: row["step_ms"]) if fits else min(found, key=lambda row: row["peak_bytes"])
    text = f"{best['peak_bytes'] / GIB:.0f}, {best['step_ms'] / 1e3:.1f}, {100 * best['mfu']:.0f}"
    text += f"; {best['slices']}" if best["sliced"] else ""
    return text if fits else f"({text})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slices", type=int, nargs="+", default=[2, 4, 8, 16])
    slices = parser.parse_args().slices
    print("| model, GPUs, tokens |", " | ".join(KINDS), "|\n|" + "---|" * (len(KINDS) + 1))
    for model in MODELS:
        for gpus in (32, 64):
            for sequence in (8192, 32768, 131072):
                rows = [row for number in slices for row in plan(model, sequence, gpus, number)]
                cells = [cell(rows, wanted) for wanted in KINDS.values()]
                print(f"| {model}, {gpus}, {sequence // 1024}k |", " | ".join(cells), "|")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Searches for the fastest layouts of LLaMA 65B and Llama 3 70B on H100s with sequences of 8k, 32k and 128k tokens, by
kind of schedule, and prints the table of docs/schedules.md. A cell has GiB of the fullest rank, seconds per step and
MFU in percent. Needs `make programs`.

    studies/slices_table.py [--model 65B] [--gpus 32]        a minute for all rows on two cores

To run a cell on virtual GPUs, search with its keys and --write FILE, then ./train_llama -c FILE --dry-run.
"""

import argparse
import itertools
import sys

from common import ROOT, answer, options_of, trainer
from run_files import GIB, finish

MODELS = {"65B": "llama65b", "70B": "llama3_70b"}
TENSOR, SEQUENCES = 8, 32
WORLD = {"parallel.tensor": [TENSOR], "parallel.data": [1], "parallel.context": [1], "parallel.sequence": ["true"],
         "schedule.micro_batch": [1]}

# Heading, and the keys that a kind fixes, each with its values: the fastest combination represents the kind. The search
# chooses the number of slices; for sliced kinds, only layouts of its front with more than one slice count.
CONTEXTS, OFF = (2, 4, 8), {"schedule.bpipe": ["off"]}
SLICED = {"schedule.name": ["seq1f1b", "interleaved"]}
PEER = {"schedule.bpipe": ["on"], "schedule.evict_to": ["peer"]}
KINDS = {
    "1F1B": {**OFF, "schedule.name": ["1f1b"]},
    "BPipe": {**PEER, "schedule.name": ["1f1b"]},
    "interleaved": {**OFF, "schedule.name": ["interleaved"], "schedule.slices": [1]},
    "V-Half": {**OFF, "schedule.name": ["v-half"]},
    "slices": {**OFF, **SLICED},
    "BPipe over slices": {**PEER, **SLICED},
    "context ranks": {**OFF, "schedule.name": ["1f1b"], "parallel.context": CONTEXTS},
}


def search(model, gpus, tokens, choices, least=1):
    """Returns the fastest layout that fits and has at least `least` slices, or None."""
    shared = {"hardware.gpu": "h100", "hardware.profile": "", "model.seq_len": tokens, "train.global_batch": SEQUENCES,
              "attention.mode": "flash", "attention.deterministic": "off"}
    found = []
    for values in itertools.product(*choices.values()):
        keys = dict(zip(choices, values))
        if keys.get("parallel.context", 1) > gpus // TENSOR:
            continue
        told = answer(trainer("llama"), ROOT / f"configs/{MODELS[model]}.yaml", "--search", "--gpus", str(gpus),
                      *options_of({**shared, **keys}), fits=False)
        found += [row for row in [told["best"], *told["front"]] if row is not None]
    found = [row for row in found if row["config"]["schedule"]["slices"] >= least]
    return min(found, key=lambda row: row["step_ms"], default=None)


def cell(best):
    if best is None:
        return "-"
    schedule = best["config"]["schedule"]
    layers = schedule["recompute_layers"]
    again = sum(layers) if isinstance(layers, list) else layers * best["config"]["parallel"]["pipeline"]
    notes = [f"n{schedule['slices']}"] if schedule["slices"] > 1 else []
    notes += [f"c{best['config']['parallel']['context']}"] if best["config"]["parallel"]["context"] > 1 else []
    notes += [f"r{again}"] if again else []
    notes += ["p"] if schedule["recompute"] == "pointwise" else []
    figures = f"{best['peak_bytes'] / GIB:.0f}, {best['step_ms'] / 1e3:.1f}, {100 * best['mfu']:.0f}"
    return "; ".join([figures, *notes])


def layout(best):
    """Describes the ranks and the schedule of a layout found with all keys open."""
    if best is None:
        return "-"
    parallel, schedule = best["config"]["parallel"], best["config"]["schedule"]
    ranks = "x".join(str(parallel[key]) for key in ("tensor", "pipeline", "data"))
    moves = f" to {schedule['evict_to']}" if schedule["bpipe"] == "on" else ""
    return f"{cell(best)}; {ranks} {schedule['name']}{moves}"


def main(asked):
    headings = [*KINDS, "all keys open"]
    print("| model, GPUs, tokens |", " | ".join(headings), "|\n|" + "---|" * (len(headings) + 1))
    for model, gpus, tokens in itertools.product(asked.model, asked.gpus, (8192, 32768, 131072)):
        cells = [cell(search(model, gpus, tokens, WORLD | fixed, least=2 if "slices" in kind else 1))
                 for kind, fixed in KINDS.items()]
        cells += [layout(search(model, gpus, tokens, {}))]
        print(f"| {model}, {gpus}, {tokens // 1024}k |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--gpus", nargs="+", type=int, default=[32, 64])
    sys.exit(finish("slices_table", main, parser.parse_args()))

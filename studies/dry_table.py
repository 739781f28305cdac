#!/usr/bin/env python3
"""Runs on virtual GPUs without computing (--dry-run) and prints the tables of docs/dry-runs.md.

    studies/dry_table.py FILE            step, bubble and exposed transfers, by the clock and by the plan
    studies/dry_table.py FILE --mfu      MFU of one stage by the clock, for several GPUs, tensor ranks and micro-batches

FILE: tokens, enough for two steps, below 32000. Needs `make programs virtual`, no GPU.
"""

import argparse
import itertools
import json
import re
import sys
import tempfile
from pathlib import Path

from common import ROOT, answer, ask, trainer
from run_files import finish

MODELS = {"LLaMA 65B": ("llama", "llama65b"), "GPT-3 96B": ("gpt", "gpt3_96b")}
MIXTURES = {"Qwen3 30B-A3B": ("llama", "qwen3_30b_a3b"), "Mixtral 8x22B": ("llama", "mixtral_8x22b")}
B2 = ("schedule.micro_batch=2", "schedule.bpipe=on", "train.global_batch=32")
EVEN = "hardware.expert_spread=1e-6"  # experts are chosen equally often in a dry run
AGREEMENT = [
    ("LLaMA 65B", "t=4, p=8, b=1", ("train.global_batch=16",)),
    ("GPT-3 96B", "t=4, p=8, b=2, BPipe", B2),
    ("GPT-3 96B", "the same, pairs span nodes", (*B2, "parallel.placement=linear")),
    ("LLaMA 65B, 40 layers", "t=2, p=8, d=2, b=1",
     ("train.global_batch=32", "model.layers=40", "parallel.tensor=2", "parallel.data=2")),
    ("Qwen3 30B-A3B", "16 H100, p=2, d=8, e=8, 4 microbatches, experts recomputed",
     (EVEN, "train.global_batch=32", "schedule.recompute=experts")),
    ("Mixtral 8x22B", "64 H100, p=8, d=8, e=8", (EVEN, "train.global_batch=128", "parallel.data=8")),
]

# Three stages in one node: the middle stage has neither embedding nor head.
LAYERS = 3
STAGES = ("parallel.pipeline=3", f"model.layers={3 * LAYERS}", "schedule.split_backward=off", "train.steps=1",
          "hardware.gpus_per_node=24")
GPUS = {
    "A100": (312.0, ("hardware.gpu=a100-80g",)),
    # Measured on H100s: products at 700 to 735 TFLOP/s, memory at 2.8 TB/s, collectives at 300 GB/s and 20 us.
    "H100, as measured": (989.5, ("hardware.gpu=h100", "hardware.matmul_efficiency=0.78", "hardware.stream_gb_s=2800",
                                  "hardware.tensor_gb_s=300", "hardware.latency_us=6.7")),
}


def words_of(name, tokens, options):
    """Returns the configuration and the options of two steps of a model."""
    keys = (f"data.train={tokens}", "data.val=", "log.metrics=", "train.steps=2", *options)
    return ROOT / "configs" / f"{name}.yaml", *(word for key in keys for word in ("-o", key))


def print_agreement(tokens):
    print("| run | layout | step, clock | step, plan | bubble | exposed transfers |")
    print("|---|---|---|---|---|---|")
    for model, layout, options in AGREEMENT:
        family, name = (MODELS | MIXTURES)[model.split(",")[0]]
        words = words_of(name, tokens, options)
        with tempfile.TemporaryDirectory() as folder:
            metrics = Path(folder, "metrics.jsonl")
            ask(trainer(family), *words, "--dry-run", "-o", f"log.metrics={metrics}")
            step = json.loads(metrics.read_text().splitlines()[-1])
        told = answer(trainer(family), *words, "--plan")
        apart = 100 * (step["step_ms"] / told["step_ms"] - 1)
        exposed = [f"{each['transfer_exposed_ms']:.0f} ms" for each in (step, told)]
        print(f"| {model} | {layout} | {step['step_ms']:.0f} ms | {told['step_ms']:.0f} ms ({apart:+.1f} %) "
              f"| {100 * step['bubble']:.1f} %, {100 * told['bubble']:.1f} % | {', '.join(exposed)} |", flush=True)


def stage_seconds(trace):
    """Returns the seconds of a forward and a backward on the fastest stage, which has neither embedding nor head."""
    shortest = {}
    for event in json.loads(trace.read_text()):
        found = re.match(r"([FB])\d", event.get("name", "")) if event.get("ph") == "X" else None
        if found:
            times = shortest.setdefault(event["pid"], {})
            times[found[1]] = min(times.get(found[1], 1e30), event["dur"] * 1e-6)
    return min(sum(times.values()) for times in shortest.values() if len(times) == 2)


def layer_flops(family, rows):
    """Returns the FLOPs of one layer, forward and backward, with all pairs of the attention."""
    h, ffn, s = (8192, 3 * 22016, 2048) if family == "llama" else (9984, 2 * 39936, 2048)
    return 3 * rows * (8 * h * h + 2 * h * ffn + 4 * s * h)


def stage_mfu(family, name, tokens, peak, t, b, options):
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "trace.json")
        shape = (f"parallel.tensor={t}", f"schedule.micro_batch={b}", f"train.global_batch={3 * b}")
        ask(trainer(family), *words_of(name, tokens, (*STAGES, *shape, *options)), "--dry-run", "--trace", trace)
        return LAYERS * layer_flops(family, 2048 * b) / (stage_seconds(trace) * t * peak * 1e12)


def print_mfu(tokens):
    """Prints the table of MFU. Its last column uses copies for collectives, the others NCCL."""
    ways = [("off", "nccl"), ("on", "nccl"), ("auto", "nccl"), ("auto", "copy")]
    texts = [(f"parallel.overlap={overlap}", f"parallel.collectives={by}") for overlap, by in ways]
    print("| model | GPU | t | b | off | on | auto | copies |")
    print("|---|---|---|---|---|---|---|---|")
    for (model, (family, name)), (gpu, (peak, keys)) in itertools.product(MODELS.items(), GPUS.items()):
        for t, b in itertools.product((4, 8), (1, 2, 4)):
            mfu = [stage_mfu(family, name, tokens, peak, t, b, (*keys, *way)) for way in texts]
            print(f"| {model} | {gpu} | {t} | {b} | {' | '.join(f'{100 * each:.1f} %' for each in mfu)} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokens", metavar="FILE", type=Path)
    parser.add_argument("--mfu", action="store_true")
    options = parser.parse_args()
    sys.exit(finish("dry_table", print_mfu if options.mfu else print_agreement, options.tokens.resolve()))

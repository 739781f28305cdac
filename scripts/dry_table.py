#!/usr/bin/env python3
"""Runs two steps on 32 virtual GPUs without computing (VIRTUAL_DRY=1) and prints the table of docs/virtual.md.

    scripts/dry_table.py FILE      step, bubble and exposed transfers: the clock's, and the plan's

FILE: tokens, enough for two steps, below 32000. Needs `make programs virtual`, no GPU.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODELS = {"LLaMA 65B": ("llama", "llama65b"), "GPT-3 96B": ("gpt", "gpt3_96b")}
B2 = ("schedule.micro_batch=2", "schedule.bpipe=on", "train.global_batch=32")
AGREEMENT = [
    ("LLaMA 65B", "t=4, p=8, b=1", ("train.global_batch=16",)),
    ("GPT-3 96B", "t=4, p=8, b=2, BPipe", B2),
    ("GPT-3 96B", "the same, pairs span nodes", (*B2, "parallel.placement=linear")),
    ("LLaMA 65B, 40 layers", "t=2, p=8, d=2, b=1",
     ("train.global_batch=32", "model.layers=40", "parallel.tensor=2", "parallel.data=2")),
]  # fmt: skip


def command(program, name, tokens, options):
    fixed = [f"data.train={tokens}", "data.val=", "data.val_every=0", "checkpoint.every=0", "train.steps=2", "log.metrics="]
    texts = [item for text in (*fixed, *options) for item in ("-o", text)]
    return [program, "-c", ROOT / "configs" / f"{name}.yaml", *texts]


def run(arguments, nodes=4):
    env = dict(os.environ, VIRTUAL_DRY="1", VIRTUAL_GPUS="8", VIRTUAL_NODES=str(nodes), OMP_NUM_THREADS="1")
    done = subprocess.run(arguments, capture_output=True, text=True, env=env)
    if done.returncode != 0:
        sys.exit(f"dry_table: {' '.join(map(str, arguments))} failed: {done.stderr[-1000:]}")
    return done.stdout


def print_agreement(tokens):
    print("| run | layout | step, clock | step, plan | bubble | exposed transfers |")
    print("|---|---|---|---|---|---|")
    for model, layout, options in AGREEMENT:
        family, name = MODELS[model.split(",")[0]]
        with tempfile.TemporaryDirectory() as folder:
            metrics = Path(folder, "metrics.jsonl")
            run(command(ROOT / "build/virtual" / f"train_{family}", name, tokens, (*options, f"log.metrics={metrics}")))
            step = json.loads(metrics.read_text().splitlines()[-1])
        plan = json.loads(run([*command(ROOT / "build/release" / f"train_{family}", name, tokens, options), "--plan", "--json"]))
        apart = 100 * (step["step_ms"] / plan["step_ms"] - 1)
        exposed = [f"{each['transfer_exposed_ms']:.0f} ms" for each in (step, plan)]
        print(
            f"| {model} | {layout} | {step['step_ms']:.0f} ms | {plan['step_ms']:.0f} ms ({apart:+.1f} %) "
            f"| {100 * step['bubble']:.1f} %, {100 * plan['bubble']:.1f} % | {', '.join(exposed)} |",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokens", metavar="FILE", type=Path)
    print_agreement(parser.parse_args().tokens.resolve())


if __name__ == "__main__":
    main()

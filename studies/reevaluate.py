#!/usr/bin/env python3
"""Plans the ten runs of the re-evaluation of BPipe (configs/paper), and encoders, and writes tables into docs/bpipe.md.

    studies/reevaluate.py [--bin DIR] [--profile] [-o FILE]

The tables are between the lines <!-- reevaluation -->, or <!-- encoders -->, and <!-- end -->. --profile first measures
the stages of each run if this machine has the run's device. Needs the built trainers, no GPU.
"""

import argparse
import re
import sys
from pathlib import Path

from common import ROOT, answer, fill, table, trainer
from run_files import GIB, Failure, finish

RUNS = ["llama65b_b1_none", "llama65b_b2_recompute", "llama65b_b4_recompute", "llama65b_b1_flash", "llama65b_b2_flash",
        "llama65b_b4_flash", "gpt3_96b_b1_recompute", "gpt3_96b_b2_recompute", "gpt3_96b_b1_flash", "gpt3_96b_b2_flash"]
# The change, the runs after and before it, options of both runs, and the result of Huang et al.
STATEMENTS = [
    ("GPT-3 96B, attention recomputed, b 1 to 2", "gpt3_96b_b2_recompute", "gpt3_96b_b1_recompute", (), "1.35x"),
    ("the same, with a fused softmax at both b", "gpt3_96b_b2_recompute", "gpt3_96b_b1_recompute",
     ("attention.softmax=fused",), "–"),
    ("GPT-3 96B, flash attention, b 1 to 2", "gpt3_96b_b2_flash", "gpt3_96b_b1_flash", (), "negligible"),
    ("LLaMA 65B, attention recomputed, b 2 to 4", "llama65b_b4_recompute", "llama65b_b2_recompute", (),
     "slower, MFU -8.7 %"),
    ("LLaMA 65B, flash attention, b 2 to 4", "llama65b_b4_flash", "llama65b_b2_flash", (), "slower"),
]
# Encoders: options on top of GPT-3 96B's runs with micro-batch 1 (4 tensor ranks, 8 stages).
ENCODERS = [("ViT-22B, s = 256, B = 4096", "hidden=6144 layers=48 heads=48 ffn=24576 vocab=1000 seq_len=256",
             "train.global_batch=4096"),
            ("96B encoder, s = 512, B = 512", "seq_len=512", "train.global_batch=512"),
            ("96B encoder, s = 2048, B = 128", "seq_len=2048", "")]


class Planner:
    def __init__(self, folder):
        self.folder, self.profiles = folder, {}

    def ask(self, run, profile, *words, keys=()):
        program = trainer("llama" if run.startswith("llama") else "gpt", self.folder)
        given = [part for key in (f"hardware.profile={profile}", *keys) for part in ("-o", key)]
        return answer(program, ROOT / f"configs/paper/{run}.yaml", *words, *given)

    def plan(self, run, *keys):
        return self.ask(run, self.profiles.get(run, ""), "--plan", keys=keys)

    def measure(self, run):
        """Measures a run's stages if this machine has its device; otherwise reports why not."""
        path = ROOT / "out" / "reevaluation" / f"{run}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.ask(run, path, "--profile")
            self.profiles[run] = path
        except Failure as failure:
            print(f"{run}: not measured: {str(failure).splitlines()[-1]}", file=sys.stderr)


def fullest(plan, key):
    return max(stage[key] for stage in plan["stages"]) / GIB


def run_name(run):
    model, size, mode = run.replace("gpt3_96b", "gpt3").split("_")
    words = {"none": "stored", "recompute": "recomputed", "flash": "flash"}
    return {"gpt3": "GPT-3 96B", "llama65b": "LLaMA 65B"}[model], size[1:], words[mode]


def schedule_name(row):
    """Describes a row of the plan's table in words: "gis, group 4, 2 chunks, to the partner"."""
    words = [row["name"]]
    words += [f"group {row['group']}"] if row["group"] else []
    words += [f"{row['chunks']} chunks"] if row["chunks"] > 1 else []
    words += [f"to the {'partner' if row['evict_to'] == 'peer' else 'host'}"] if row["bpipe"] == "on" else []
    return ", ".join(words)


def table_of_runs(planner):
    lines = []
    for number, run in enumerate(RUNS, 1):
        plan = planner.plan(run)
        model, size, mode = run_name(run)
        rows = [row for row in plan["schedules"] if row["fits"] and row["attention"] == run.rsplit("_", 1)[1]]
        best = min(rows, key=lambda row: row["step_ms"])
        plain, change = fullest(plan, "peak_bytes_1f1b"), best["step_ms"] / plan["step_ms"] - 1
        bpipe = ", BPipe" if any(stage["lent"] for stage in plan["stages"]) else ""
        lines.append((
            number, model, mode, size, f"{plain:.1f} GiB{' (too much)' if plain + 4 > 80 else ''}",
            f"{fullest(plan, 'peak_bytes'):.1f} GiB{bpipe}", f"{plan['step_ms'] / 1000:.2f} s", f"{plan['bubble']:.1%}",
            f"{plan['mfu']:.1%}", schedule_name(best), f"{best['step_ms'] / 1000:.2f} s ({change:+.1%})"))
    return table("# | model | attention | b | 1F1B | as run | step | bubble | MFU | fastest that fits | step", lines)


def filled(plan):
    """Returns m / (m + p - 1), the share of the step in which a stage computes."""
    return plan["microbatches"] / (plan["microbatches"] + len(plan["stages"]) - 1)


def table_of_statements(planner):
    lines = []
    for name, after, before, options, reported in STATEMENTS:
        new, old = planner.plan(after, *options), planner.plan(before, *options)
        gain = new["verdict"]["measured_stage_gain"]
        lines.append((name, f"{filled(old) / filled(new) - 1:+.1%}", f"{gain:+.1%}",
                      f"{old['step_ms'] / new['step_ms']:.3f}x", f"{old['mfu']:.1%} to {new['mfu']:.1%}", reported))
    return table("change | a stage must gain | a stage gains | step | MFU | reported", lines)


def table_of_encoders(planner):
    lines = []
    for name, model, rest in ENCODERS:
        options = ["model.causal=false", *(f"model.{key}" for key in model.split()), *rest.split()]
        for mode in ("recompute", "flash"):
            reason = planner.plan(f"gpt3_96b_b1_{mode}", *options)["verdict"]["reason"]
            found = re.search(r"from micro-batch (\d+) to (\d+) .* gain ([\d.]+) % .* model, ([-\d.]+) %", reason)
            if found:
                plain, with_bpipe, must, gains = found.groups()
                pays = "yes" if ": worth it" in reason else "no"
                row = plain, with_bpipe, f"+{must}%", f"{float(gains):+.1f}%", pays
            else:
                most = re.search(r"up to micro-batch (\d+) fits", reason)[1]
                row = most, most, "–", "–", "no"
            lines.append((name, "recomputed" if mode == "recompute" else mode, *row))
    return table(
        "encoder | attention | largest b with 1F1B | with BPipe | a stage must gain | a stage gains | pays", lines)


def main(asked):
    planner = Planner(asked.bin.resolve())
    for run in RUNS if asked.profile else []:
        planner.measure(run)
    page = asked.output.read_text(encoding="utf-8")
    for name in ("reevaluation", "encoders"):
        fill(page, name, "")  # the marks are checked before the plans are made
    page = fill(page, "reevaluation", f"{table_of_statements(planner)}\n\n{table_of_runs(planner)}")
    page = fill(page, "encoders", table_of_encoders(planner))
    asked.output.write_text(page, encoding="utf-8")
    print(asked.output)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, default=ROOT, help="folder of the trainers")
    parser.add_argument("--profile", action="store_true", help="measure stages if this machine has the device")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "docs" / "bpipe.md", help="a page with these lines")
    sys.exit(finish("reevaluate", main, parser.parse_args()))

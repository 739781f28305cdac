#!/usr/bin/env python3
"""Measures this trainer beside compiled PyTorch on one GPU, in one run, and prints one table.

    side_by_side.py [--models llama65b,llama3_8b,gpt3_96b,qwen2.5_3b] [--out out/side_by_side] [--budget 480]

Rows: the product 8192^3 on random numbers, sustained for seconds (the practical limit), first and last; and for each
model ours and PyTorch's (studies/torch_side.py), each in a process of its own, with power and clock. Both do the same
work: sizes, tokens, micro-batches, bf16 products, fp32 masters, moments and sums, clipping, no recomputation. Both see
the same tokens in the same order but begin with other random weights of one distribution, so that losses of the first
step have to agree within 5 % and gradient norms within 25 %; else the exit code is 1. A time is the median of the steps
after the third. MFU counts full attention; "of the product" is relative to the slower sustained product.

Results are written to OUT/side_by_side.json after every row; nothing starts after --budget seconds. --device cpu --tiny
tries the script without a GPU.
"""

import contextlib
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import torch_side
from torch_side import ROOT

# Configuration, changes for one GPU of 141 GB, micro-batch, microbatches, further changes for one of 80 GB.
MODELS = {
    "llama65b": ("llama65b", {"layers": 3}, 2, 8, {"layers": 2}),
    "llama3_8b": ("llama3_8b", {"layers": 8}, 1, 8, {"layers": 6}),
    "gpt3_96b": ("gpt3_96b", {"layers": 2}, 2, 8, {"layers": 1}),
    "qwen2.5_3b": ("qwen2.5_3b", {"seq_len": 1024}, 8, 8, {}),
}
TINY = {"hidden": 64, "layers": 2, "heads": 4, "ffn": 128, "vocab": 512, "seq_len": 32}
PRODUCT = """
import json, sys, time, torch
n, seconds, device = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
kind = torch.bfloat16 if device == "cuda" else torch.float32
a, b = (torch.randn(n, n, device=device).to(kind) for _ in range(2))
wait = torch.cuda.synchronize if device == "cuda" else lambda: None
c, rates, end = a @ b, [], time.monotonic() + seconds
wait()
while time.monotonic() < end:
    began = time.perf_counter()
    for _ in range(20):
        torch.mm(a, b, out=c)
    wait()
    rates.append(20 * 2e-12 * n**3 / (time.perf_counter() - began))
last = rates[len(rates) // 2 :]
print(json.dumps({"burst": max(rates[:3]), "sustained": sorted(last)[len(last) // 2]}))
"""


@contextlib.contextmanager
def metered(row):
    """Adds the means of power and clock to `row`, over the half of nvidia-smi's samples with the most power: those
    during steps."""
    asked = ["nvidia-smi", "--query-gpu=power.draw,clocks.sm", "--format=csv,noheader,nounits", "-lms", "200"]
    with tempfile.TemporaryFile("w+") as file:
        job = subprocess.Popen(asked, stdout=file, stderr=subprocess.DEVNULL) if shutil.which(asked[0]) else None
        try:
            yield
        finally:
            if job is not None:
                job.kill()
                job.wait()
        file.seek(0)
        found = re.findall(r"^ *([\d.]+), *([\d.]+) *\n", file.read(), re.M)
    samples = sorted(tuple(map(float, sample)) for sample in found)[len(found) // 2 :]
    row.update(zip(("watts", "mhz"), map(statistics.mean, zip(*samples))))


def sizes(options, name):
    """Returns the command, the model's resolved sizes, the micro-batch size and the number of microbatches."""
    config, changes, b, m, small = MODELS[name]
    program = options.programs / ("train_gpt" if name.startswith("gpt") else "train_llama")
    keys = changes | (small if options.memory_gb < 100 else {})
    if options.tiny:
        keys, b, m = TINY | ({} if name.startswith("gpt") else {"kv_heads": 2}), 2, 2
    words = [word for key, value in keys.items() for word in ("-o", f"model.{key}={value}")]
    words += [w for key in ("pipeline", "tensor", "data") for w in ("-o", f"parallel.{key}=1")]
    words += ["-o", "parallel.sequence=false", "-o", f"schedule.micro_batch={b}", "-o", f"train.global_batch={b * m}",
              "-o", "schedule.bpipe=off", "-o", "schedule.recompute_layers=0", "-o", "schedule.name=1f1b"]
    command = [program, "-c", ROOT / "configs" / f"{config}.yaml", *words]
    plan = json.loads(subprocess.run([*command, "-o", "hardware.gpu=h200", "--plan", "--json"], check=True, text=True,
                                     stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)
    return command, plan["config"]["model"], b, m


def left(options):
    """Returns the seconds that a process may take."""
    return max(20.0, options.end - time.monotonic())


def ours(options, name):
    command, _, _, _ = sizes(options, name)
    keys = {"train.steps": options.steps, "train.warmup_steps": 0}
    head, steps = torch_side.our_run(options, command, options.out / f"{name}.jsonl", keys, left(options))
    return {"ms": [s["step_ms"] for s in steps], "losses": [s["loss"] for s in steps],
            "norms": [s["grad_norm"] for s in steps], "tokens": steps[0]["tokens"],
            "flops": head["flops_per_token_full"] * steps[0]["tokens"]}


def theirs(options, name):
    _, model, b, m = sizes(options, name)
    train = torch_side.TRAIN | {"global_batch": b * m, "steps": options.steps, "lr": 1.5e-4, "warmup_steps": 0}
    model["tie_embeddings"] = model.get("tie_embeddings") in (True, "true")
    side = {"model": model, "train": train, "masters": options.masters, "precision": "bf16", "micro_batch": b}
    return torch_side.their_run(options, options.out / f"{name}_torch.json", side, left(options))


def differs(a, b):
    """Returns how the first loss and norm of two sides differ; empty if they did the same work."""
    loss, norm = a["losses"][0] / b["losses"][0] - 1, a["norms"][0] / b["norms"][0] - 1
    return f"first loss {loss:+.1%}, norm {norm:+.1%}" if abs(loss) > 0.05 or abs(norm) > 0.25 else ""


def table(report):
    limit = min((p["sustained"] for p in report["products"]), default=None)
    lines = ["| model | side | ms | tokens/s | MFU | of the product | W | MHz |", "|" + "---|" * 8]
    for name, sides in report["models"].items():
        for side, row in sides.items():
            ms = statistics.median(row["ms"][3:] or row["ms"])
            rate = 1e-9 * sides["ours"]["flops"] / ms
            watts, mhz = (f"{row[key]:.0f}" if key in row else "" for key in ("watts", "mhz"))
            lines.append(f"| {name} | {side} | {ms:,.1f} | {1e3 * sides['ours']['tokens'] / ms:,.0f} | "
                         f"{rate / report['peak']:.1%} | {rate / limit:.1%} | {watts} | {mhz} |")
    return "\n".join([f"product {p['sustained']:.4g} TFLOP/s sustained, {p['burst']:.4g} at first"
                      for p in report["products"]] + lines)


def main():
    parser = torch_side.parser_of(__doc__.split("\n", 1)[0], "side_by_side", 7)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--budget", type=float, default=480, help="seconds")
    parser.add_argument("--peak", type=float, default=989.0, help="TFLOP/s, for MFU")
    parser.add_argument("--memory-gb", type=float, default=141, help="of the GPU: fewer layers below 100")
    parser.add_argument("--masters", choices=("hooks", "autocast"), default="hooks")
    options = parser.parse_args()
    options.end = time.monotonic() + options.budget
    options.out.mkdir(parents=True, exist_ok=True)
    report = {"device": options.device, "peak": options.peak, "products": [], "models": {}, "failed": []}

    def product():
        size = ("8192", "6") if options.device == "cuda" else ("256", "0.2")
        said = subprocess.run([options.python, "-c", PRODUCT, *size, options.device], check=True, text=True,
                              stdout=subprocess.PIPE, timeout=left(options)).stdout
        report["products"].append(json.loads(said))

    rows = [(name, side) for name in options.models.split(",") for side in (ours, theirs)]
    for name, side in [("", product), *rows, ("", product)]:
        if time.monotonic() > options.end:
            report["failed"].append(f"{name} {side.__name__}: no time left")
            continue
        try:
            with metered(measured := {}):
                found = side(options, name) if name else side()
            if name:
                report["models"].setdefault(name, {})["ours" if side is ours else "torch"] = found | measured
        except (subprocess.SubprocessError, ValueError, KeyError) as why:
            report["failed"].append(f"{name} {side.__name__}: {why}")
        (options.out / "side_by_side.json").write_text(json.dumps(report))
    for name, sides in report["models"].items():
        if len(sides) == 2 and (why := differs(*sides.values())):
            report["failed"].append(f"{name}: the sides did not do the same work: {why}")
    report["models"] = {name: sides for name, sides in report["models"].items() if "ours" in sides}
    print(table(report))
    print(*report["failed"], sep="\n", file=sys.stderr)
    return 1 if report["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())

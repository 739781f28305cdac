#!/usr/bin/env python3
"""Trains one model with PyTorch and with this trainer from the same initial file on the same tokens, and compares the
loss curves.

    curve.py [--device cuda|cpu] [--steps 2000] [--ours bf16,tensor,block] [--out out/curve] [--programs .]

A LLaMA of 124M parameters, sequences of 512, 32,768 tokens a step, on the tiny data set (King James Bible); with --tiny
a model that a CPU trains in a minute. PyTorch draws the weights, writes them (safetensors) and trains in bf16 with fp32
masters; ours loads that file. Printed, and written to OUT/curve.json: for every curve the largest and the mean
difference from PyTorch's, each smoothed over 50 steps (--smooth), after the first 50. Exit code 1 if the largest
exceeds --most (2 %).

Two correct programs differ: sums are rounded in other orders, and a step amplifies that. So does PyTorch from itself
with other kernels. The bound is far below what a wrong gradient, order of data or schedule does.
"""

import json
import sys

import torch_side
from torch_side import ROOT

LARGE = {"hidden": 768, "layers": 12, "heads": 12, "kv_heads": 12, "ffn": 2048, "seq_len": 512}
TINY = {"hidden": 64, "layers": 2, "heads": 4, "kv_heads": 2, "ffn": 128, "seq_len": 64}
ARCHITECTURE = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
                "torch_dtype": "float32", "tie_word_embeddings": False}


def smoothed(losses, width):
    """Returns the moving average over `width` steps, without the first `width` steps."""
    return [sum(losses[i : i + width]) / width for i in range(width, len(losses) - width + 1)] or losses


def compare(ours, theirs, width):
    pairs = list(zip(smoothed(ours, width), smoothed(theirs, width)))
    differences = [abs(a / b - 1) for a, b in pairs]
    return {"largest": max(differences), "mean": sum(differences) / len(differences), "last": pairs[-1]}


def initial_file(folder, model):
    """Writes a config.json with the model's sizes. PyTorch writes the weights next to it. Returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {"hidden_size": model["hidden"], "num_hidden_layers": model["layers"], "vocab_size": model["vocab"],
             "num_attention_heads": model["heads"], "num_key_value_heads": model["kv_heads"],
             "intermediate_size": model["ffn"], "max_position_embeddings": model["seq_len"],
             "rms_norm_eps": model["norm_eps"], "rope_theta": model["rope_theta"]}
    (folder / "config.json").write_text(json.dumps(ARCHITECTURE | sizes))
    return folder


def torch_curve(options, model, train, out):
    side = {"model": model, "train": train, "masters": "hooks", "precision": options.precision,
            "micro_batch": options.micro_batch, "write": str(initial_file(out / "init", model) / "model.safetensors")}
    if options.device == "cpu":
        side["threads"] = 1
    return torch_side.their_run(options, out / "side.json", side)["losses"]


def our_curve(options, model, train, out, kind):
    keys = {f"model.{key}": value for key, value in model.items()} | {f"train.{key}": v for key, v in train.items()}
    keys |= {"train.precision": "fp32" if kind == "fp32" else "bf16",
             "train.fp8": kind if kind in ("tensor", "block", "mx") else "off", "parallel.pipeline": 1,
             "schedule.bpipe": "off", "schedule.micro_batch": options.micro_batch, "sample.every": 0,
             "checkpoint.init_from": out / "init"}
    command = [options.programs / "train_llama", "-c", ROOT / "configs" / "llama_tiny.yaml"]
    return [line["loss"] for line in torch_side.our_run(options, command, out / f"{kind}.jsonl", keys)[1]]


def main():
    parser = torch_side.parser_of(__doc__.split("\n", 1)[0], "curve", 2000)
    parser.add_argument("--ours", default="bf16,tensor,block", help="fp32, bf16, or train.fp8's kinds, with commas")
    parser.add_argument("--smooth", type=int, default=50)
    parser.add_argument("--most", type=float, default=0.02)
    options = parser.parse_args()
    options.micro_batch = 8 if options.tiny else 16
    options.precision = "fp32" if options.ours == "fp32" else "bf16"
    model = {"vocab": 257, "norm_eps": 1e-5, "rope_theta": 10000.0} | (TINY if options.tiny else LARGE)
    train = torch_side.TRAIN | {"global_batch": 16 if options.tiny else 64, "steps": options.steps,
                                "lr": 3e-3 if options.tiny else 6e-4, "warmup_steps": min(100, options.steps // 4)}
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    theirs = torch_curve(options, model, train, out)
    report = {"device": options.device, "steps": options.steps, "torch": theirs, "ours": {}}
    worst = 0.0
    for kind in options.ours.split(","):
        losses = our_curve(options, model, train, out, kind)
        found = compare(losses, theirs, options.smooth)
        worst = max(worst, found["largest"])
        report["ours"][kind] = {"losses": losses, **found}
        (out / "curve.json").write_text(json.dumps(report))
        ours, other = found["last"]
        print(f"{kind:<7} first step {losses[0]:.5f}, PyTorch's {theirs[0]:.5f}; "
              f"last smoothed {ours:.4f} and {other:.4f}; largest difference "
              f"{100 * found['largest']:.2f} %, mean {100 * found['mean']:.2f} %", flush=True)
    return 1 if worst > options.most else 0


if __name__ == "__main__":
    sys.exit(main())

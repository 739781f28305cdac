#!/usr/bin/env python3
"""Runs the same steps in several ways that have to compute the same bits, and compares all that they save.

    scripts/verify.py N train_llama -c FILE [-o KEY=VALUE]... [--resume DIR]
    scripts/verify.py --launch 'srun -n 8' N train_llama -c FILE ...

The ways are one stage with 1F1B, the configuration's stages (four, if it has one) without BPipe, and these with BPipe.
With --launch, which starts a fixed number of ranks, they are the configuration's stages without and with BPipe. Tensor
and data ranks stay, because they change the order of sums. A way that cannot run here is left out. Every way runs N
steps at a constant rate after the warm-up and saves each step in a temporary folder. Losses, norms, and every tensor's
moments and weights are compared. Ends with 1 if they differ, or if fewer than two ways ran.
"""

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

PLAIN = ["parallel.layers=auto", "schedule.slots=auto", "schedule.recompute_layers=0", "schedule.recompute=none"]
SIMPLEST = ["schedule.name=1f1b", "schedule.chunks=auto", "schedule.split_backward=auto", "schedule.file="]
SILENT = ["data.val_every=0", "data.hellaswag_every=0", "sample.every=0", "train.schedule=constant",
          "train.decay_steps=auto", "train.decay_shape=linear"]  # fmt: skip


def say(text):
    print("verify:", text, file=sys.stderr)


def ways(told, launched):
    """Yields (name, changes) of each way. told: the answer of --plan --json."""
    config = told["config"]
    given = config["parallel"]["pipeline"]
    stages = given if given > 1 or launched else min(told["microbatches"], config["model"]["layers"], 4)
    modes = config["attention"]["mode"]
    modes = {mode == "flash" for mode in modes} if isinstance(modes, list) else ()
    if not launched and len(modes) > 1:
        say("1 stage: left out: only some stages have attention.mode flash")
    elif not launched:
        mode = ["attention.mode=" + ("flash" if True in modes else "none")] if modes else []
        yield "1 stage", ["parallel.pipeline=1", "schedule.bpipe=off", *PLAIN, *SIMPLEST, *mode]
    more = [] if stages == given else [f"parallel.pipeline={stages}", *PLAIN]
    kind = "schedule.file" if config["schedule"]["file"] else config["schedule"]["name"]
    kind = "" if kind == "1f1b" else f", {kind}"
    if stages == 1:
        yield "1 stage, once more", ["schedule.bpipe=off", *more]
        return
    yield f"{stages} stages{kind}, no BPipe", ["schedule.bpipe=off", *more]
    yield f"{stages} stages{kind}, BPipe", ["schedule.bpipe=on", *more]


def resumed(command):
    """Returns the step that --resume continues from, 0 without it."""
    if "--resume" not in command:
        return 0
    folder = Path(command[command.index("--resume") + 1])
    paths = [folder.resolve(), *folder.glob("step_*")]
    return max((int(path.name[5:]) for path in paths if path.name.startswith("step_")), default=0)


def run(command, folder, changes, steps):
    """Runs one way. Returns {step: (loss, norm)}, or None if it cannot run here; ends the program if it fails."""
    keys = [*changes, *SILENT, f"train.steps={steps}", f"checkpoint.dir={folder}/saved", "checkpoint.every=1",
            f"checkpoint.keep={steps}", f"log.metrics={folder}/metrics"]  # fmt: skip
    ended = subprocess.run([*command, "-q", *[word for key in keys for word in ("-o", key)]], stdout=subprocess.DEVNULL,
                           stderr=subprocess.PIPE, text=True)  # fmt: skip
    path = folder / "metrics"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    found = {line["step"]: (line["loss"], line["grad_norm"]) for line in lines if line["type"] == "step"}
    last = (ended.stderr.strip().splitlines() or [""])[-1]
    if ended.returncode != 0 and not found:
        return say(f"{folder.name}: left out: {last}")
    if ended.returncode != 0:
        say(f"the run with {folder.name} failed: {last}; nothing was compared")
        sys.exit(ended.returncode)
    return found


def tensors(folder, step, part):
    """Returns {name: bytes} of the model's or the optimizer's tensors, from the last of the model to the first."""
    found = {}
    for path in sorted((folder / "saved" / f"step_{step:08d}").glob(f"{part}-*.safetensors"), reverse=True):
        data = path.read_bytes()
        begin = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:begin])
        header.pop("__metadata__", None)
        for name, entry in sorted(header.items(), key=lambda item: -item[1]["data_offsets"][0]):
            first, end = entry["data_offsets"]
            found[name] = data[begin + first : begin + end]
    return found


def difference(one, other):
    """Returns the first difference between two ways, in the order in which a step computes; None: there is none."""
    (folder, figures), (there, theirs) = one, other
    if figures.keys() != theirs.keys():
        return "the number of steps"
    for step in sorted(figures):
        if figures[step][0] != theirs[step][0]:
            return f"step {step}: the loss is {figures[step][0]!r} and {theirs[step][0]!r}"
        for part, what in (("optimizer", "gradient of"), ("model", "updated weight")):
            a, b = tensors(folder, step, part), tensors(there, step, part)
            for name in a:
                if a[name] != b.get(name):
                    return f"step {step}: the {what} {name} differs"
        if figures[step][1] != theirs[step][1]:
            return f"step {step}: the norm is {figures[step][1]!r} and {theirs[step][1]!r}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launch", default="", help="command that starts the ranks")
    parser.add_argument("steps", type=int)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the trainer and its arguments")
    options = parser.parse_args()
    if options.steps < 1 or not options.command:
        parser.error("give a number of steps from 1 on, a trainer, and its arguments")
    told = subprocess.run([*options.command, "--plan", "--json"], capture_output=True, text=True)
    if told.returncode != 0:
        sys.exit(told.stderr.strip() or told.returncode)
    first = resumed(options.command)
    with tempfile.TemporaryDirectory(prefix="verify-") as place:
        ran = []
        for name, changes in ways(json.loads(told.stdout), bool(options.launch)):
            folder = Path(place) / name
            folder.mkdir()
            say(name)
            figures = run([*shlex.split(options.launch), *options.command], folder, changes, first + options.steps)
            ran += [(folder, figures)] if figures else []
        differing = [difference(ran[0], other) for other in ran[1:]]
        for (folder, _), found in zip(ran[1:], differing):
            print(f"{ran[0][0].name} and {folder.name}: " + (f"differ from {found}" if found else "the same bits"))
        if len(ran) < 2:
            sys.exit("verify: fewer than two ways can be run, so nothing was compared")
        if any(differing):
            sys.exit(1)
        count = len(tensors(ran[0][0], first + 1, "model"))
        steps = "1 step" if options.steps == 1 else f"{options.steps} steps"
        print(f"verified: {len(ran)} runs agree in {steps} from step {first + 1}, each in loss, norm, and the moments "
              f"and weights of {count} tensors")  # fmt: skip


if __name__ == "__main__":
    main()

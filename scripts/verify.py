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
import hashlib
import json
import mmap
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from run_files import finish, form_of

PLAIN = ["parallel.layers=auto", "schedule.slots=auto", "schedule.recompute_layers=0", "schedule.recompute=none"]
SIMPLEST = ["schedule.name=1f1b", "schedule.chunks=auto", "schedule.split_backward=auto", "schedule.file="]
SILENT = ["data.val_every=0", "data.hellaswag_every=0", "sample.every=0", "train.schedule=constant",
          "train.decay_steps=auto", "train.decay_shape=linear"]


def say(text):
    print("verify:", text, file=sys.stderr)


def ways(told, launched):
    """Yields (name, changes) of each way. told: the answer of --plan --json."""
    config = told["config"]
    given = config["parallel"]["pipeline"]
    stages = given if given > 1 or launched else min(told["microbatches"], config["model"]["layers"], 4)
    modes = config["attention"]["mode"]
    modes = set(modes) if isinstance(modes, list) else set()
    # In fp32 `none` and `recompute` have the same bits.
    if not launched and len(modes) > 1 and ("flash" in modes or config["train"]["precision"] != "fp32"):
        say("1 stage: left out: attention.mode differs between stages")
    elif not launched:
        mode = [f"attention.mode={min(modes)}"] if modes else []
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
    given = [one.partition("=")[2] or two for one, two in zip(command, [*command[1:], ""])
             if re.match("--resume(-if-any)?(=|$)", one)]
    if not given:
        return 0
    folder = Path(given[0])
    found = [re.fullmatch(r"step_(\d+)", path.name) for path in (folder.resolve(), *folder.glob("step_*"))]
    return max((int(one[1]) for one in found if one), default=0)


def device(command, changes):
    """Returns the key that keeps all ways on CPUs, if too few GPUs are here for the way with the most ranks."""
    keys = [*changes, "hardware.gpu=none", "hardware.memory_gib=auto", "hardware.peak_tflops=auto"]
    said = subprocess.run([*command, "--plan", "--json", *[word for key in keys for word in ("-o", key)]],
                          capture_output=True, text=True)
    told = json.loads(said.stdout) if said.returncode == 0 else {"job": {"gpus_per_node": 1}}
    cpu = told["job"]["gpus_per_node"] == 0 and told["config"]["hardware"]["device"] == "auto"
    return ["hardware.device=cpu"] if cpu else []


def run(command, folder, changes, steps):
    """Runs one way. Returns {step: (loss, norm, digests)}, or None if it cannot start here; ends the program if it
    fails. Its checkpoints are removed."""
    keys = [*changes, *SILENT, f"train.steps={steps}", f"checkpoint.dir={folder}/saved", "checkpoint.every=1",
            f"checkpoint.keep={steps}", f"log.metrics={folder}/metrics"]
    ended = subprocess.run([*command, "-q", *[word for key in keys for word in ("-o", key)]], stdout=subprocess.DEVNULL,
                           stderr=subprocess.PIPE, text=True)
    path = folder / "metrics"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    found = {line["step"]: (line["loss"], line["grad_norm"], digests(folder, line["step"]))
             for line in lines if line["type"] == "step"}
    shutil.rmtree(folder / "saved", ignore_errors=True)
    last = (ended.stderr.strip().splitlines() or [""])[-1]
    if ended.returncode > 0 and not lines:  # it has not begun
        return say(f"{folder.name}: left out: {last}")
    if ended.returncode == 0 and not found:
        last = "it made no step"
    elif ended.returncode == 0 and not all(all(parts.values()) for _, _, parts in found.values()):
        last = f"a step was not saved under {folder}; name a folder that all ranks share and that has room in TMPDIR"
    elif ended.returncode == 0:
        return found
    say(f"the run with {folder.name} failed: {last}; nothing was compared")
    sys.exit(1)


def digests(folder, step):
    """Returns {part: {name: digest}} of the optimizer's and the model's tensors, from the last of the model to the
    first."""
    found = {"optimizer": {}, "model": {}}
    for part, names in found.items():
        for path in sorted((folder / "saved" / f"step_{step:08d}").glob(f"{part}-*.safetensors"), reverse=True):
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                begin = 8 + int.from_bytes(data[:8], "little")
                header = json.loads(data[8:begin])
                header.pop("__metadata__", None)
                for name, entry in sorted(header.items(), key=lambda item: -item[1]["data_offsets"][0]):
                    first, end = (begin + offset for offset in entry["data_offsets"])
                    with memoryview(data)[first:end] as tensor:
                        names[name] = hashlib.blake2b(tensor, digest_size=16).digest()
    return found


def difference(one, other):
    """Returns the first difference between two ways, in the order in which a step computes; None: there is none."""
    if one.keys() != other.keys():
        return "the number of steps"
    for step in sorted(one):
        (loss, norm, parts), (their_loss, their_norm, theirs) = one[step], other[step]
        if loss != their_loss:
            return f"step {step}: the loss is {loss!r} and {their_loss!r}"
        for part, what in (("optimizer", "moment"), ("model", "updated weight")):
            for name in [*parts[part], *theirs[part]]:
                if parts[part].get(name) != theirs[part].get(name):
                    return f"step {step}: the {what} {name} differs"
        if norm != their_norm:
            return f"step {step}: the norm is {norm!r} and {their_norm!r}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launch", default="", help="command that starts the ranks")
    parser.add_argument("steps", type=int)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the trainer and its arguments")
    options = parser.parse_args()
    if options.steps < 1 or not options.command:
        parser.error("give a number of steps from 1 on, a trainer, and its arguments")
    if shutil.which(options.command[0]) is None:
        parser.error(f"{options.command[0]}: is not a program; run make")
    told = subprocess.run([*options.command, "--plan", "--json"], capture_output=True, text=True)
    if told.returncode != 0:
        sys.exit(told.stderr.strip() or told.returncode)
    with form_of(options.command[0], "trainer that answers --plan --json; give mpirun and the like with --launch"):
        told = json.loads(told.stdout)
    first = resumed(options.command)
    planned = list(ways(told, bool(options.launch)))
    fixed = device(options.command, planned[-2:][0][1]) if not options.launch else []
    with tempfile.TemporaryDirectory(prefix="verify-") as place:
        ran = []
        for name, changes in planned:
            folder = Path(place) / name
            folder.mkdir()
            say(name)
            command = [*shlex.split(options.launch), *options.command]
            figures = run(command, folder, [*changes, *fixed], first + options.steps)
            ran += [(name, figures)] if figures else []
        differing = [difference(ran[0][1], other) for _, other in ran[1:]]
        for (name, _), found in zip(ran[1:], differing):
            print(f"{ran[0][0]} and {name}: " + (f"differ from {found}" if found else "the same bits"))
        if len(ran) < 2:
            sys.exit("verify: fewer than two ways can be run, so nothing was compared")
        if any(differing):
            sys.exit(1)
        count = len(next(iter(ran[0][1].values()))[2]["model"])
        steps = "1 step" if options.steps == 1 else f"{options.steps} steps"
        print(f"verified: {len(ran)} runs agree in {steps} from step {first + 1}, each in loss, norm, and the moments "
              f"and weights of {count} tensors")


if __name__ == "__main__":
    sys.exit(finish("verify", main))

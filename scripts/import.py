#!/usr/bin/env python3
"""Writes our configuration for a run of another trainer, for --plan and --search.

    scripts/import.py megatron [NAME=VALUE]... SCRIPT [ARGUMENTS]... >our.yaml     a launch script, with its arguments
    scripts/import.py megatron torchrun ... pretrain_gpt.py ... >our.yaml           or the flags themselves
    scripts/import.py [--gpus N] torchtitan FILE.toml [KEY=VALUE]... >our.yaml
    scripts/import.py nanotron FILE.yaml [KEY=VALUE]... >our.yaml
    scripts/import.py nemo|bridge FILE.yaml [KEY=VALUE]... >our.yaml                NeMo's, Megatron-Bridge's

The script is read and not run. NAME=VALUE gives variables that it takes from its environment; flags after it are added.
--gpus N: the number of GPUs, where the input does not say it. --model: one of our configurations or a config.json with
the sizes, where the input does not have them. --gpu NAME writes hardware.gpu beside the input's GPUs a node, which
-o hardware.gpu=NAME would replace by that GPU's usual number.

Every setting is converted or named. The first lines name what changes the plan: the number of GPUs, precision, length
and batch first. The next line lists what has no effect on a plan. What cannot be planned is refused with exit code 2.
"""

import argparse
import json
import sys
from pathlib import Path

from export import planned
from foreign import megatron, nanotron, nemo, torchtitan
from foreign.documents import refuse_others
from foreign.settings import unused
from run_files import Failure, Refusal, finish, read_text

FILES = {"torchtitan": (torchtitan, "TOML"), "nanotron": (nanotron, "YAML"), "nemo": (nemo, "YAML"),
         "bridge": (nemo, "YAML")}


def converted(options):
    """Returns our configuration and the Settings."""
    if options.gpus is not None and not 0 < options.gpus <= 1 << 20:
        raise Failure(f"--gpus {options.gpus}: is out of range; use 1 or more")
    model = planned(options.model)["config"]["model"] if options.model else None
    if options.program == "megatron":
        if not options.words:
            raise Failure("megatron: takes a launch script or flags; see --help")
        settings, front, slurm = megatron.read(options.words)
        return whole(settings, lambda s: megatron.convert(s, options.gpus, front, slurm, model))
    program, kind = FILES[options.program]
    if not options.words:
        raise Failure(f"{options.program}: takes a {kind} file; see --help")
    file = Path(options.words[0])
    refuse_others(file, options.program)
    text = read_text(file)
    try:
        settings = program.read(text, options.words[1:])
        return whole(settings, lambda s: program.convert(s, options.gpus, model))
    except Failure as failure:
        raise Failure(f"{file}: {failure}") from None


def whole(settings, convert):
    """Converts the settings, and lists those that were read but have no effect on this plan."""
    idle = [settings.said(name) for name in unused(settings, convert)]
    config = convert(settings)
    settings.quiet_ones += idle
    return config, settings


def main(options):
    try:
        config, settings = converted(options)
    except Failure as failure:
        raise Refusal(str(failure)) from None
    if options.gpu:
        config.setdefault("hardware", {})["gpu"] = options.gpu
    for line in settings.comments():
        print(line)
    for section, values in config.items():
        print(f"{section}: {json.dumps(values)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int)
    parser.add_argument("--gpu", metavar="NAME")
    parser.add_argument("--model", type=Path)
    parser.add_argument("program", choices=["megatron", *FILES])
    parser.add_argument("words", nargs=argparse.REMAINDER)
    sys.exit(finish("import", main, parser.parse_args()))

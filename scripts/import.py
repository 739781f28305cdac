#!/usr/bin/env python3
"""Writes our configuration for a run of another trainer, for --plan and --search.

    scripts/import.py megatron ARGS... >our.yaml            its arguments after torchrun's, or --gpus N first
    scripts/import.py megatron FILE >our.yaml               a script with these arguments and without variables
    scripts/import.py [--gpus N] [--model FILE] torchtitan FILE.toml >our.yaml

--model: one of our configurations or a config.json with the sizes, for a flavor that is unknown here. The first lines
name the settings that were not converted.
"""

import argparse
import json
import sys
from pathlib import Path

import dialects
from export import ask
from run_files import Failure, finish, read_text


def main(options):
    words = options.words
    if options.program == "megatron":
        if len(words) == 1 and Path(words[0]).is_file():
            words = [read_text(Path(words[0]))]
        config, left = dialects.from_megatron(words, options.gpus)
    else:
        if len(words) != 1:
            raise Failure("torchtitan: takes one TOML file; see --help")
        model = ask(options.model, "--plan", "--json")["config"]["model"] if options.model else None
        config, left = dialects.from_torchtitan(read_text(Path(words[0])), options.gpus, model)
    for name in left:
        print(f"# not taken over: {name}")
    for section, values in config.items():
        print(f"{section}: {json.dumps(values)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int)
    parser.add_argument("--model", type=Path)
    parser.add_argument("program", choices=["megatron", "torchtitan"])
    parser.add_argument("words", nargs=argparse.REMAINDER)
    sys.exit(finish("import", main, parser.parse_args()))

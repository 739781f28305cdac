#!/usr/bin/env python3
"""Converts every launch script and configuration of other trainers in a folder, and looks for what import.py drops.

    test/soak/import_corpus.py FOLDER [--gpus N...] [-v]

A setting of an input has to be named in a comment line, or to matter: with another value, or without it, the answer
changes. import.py names the others in its last line; -v lists them here, since a converter may have forgotten one.
Exits with 1 if a conversion ends in a traceback.
"""

import argparse
import collections
import copy
import json
import re
import sys
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from foreign import megatron, nanotron, nemo, torchtitan  # noqa: E402
from foreign.settings import unused  # noqa: E402
from run_files import Failure, read_text  # noqa: E402


def program_of(path):
    if path.suffix in (".sh", ".slurm", ".sbatch"):
        return "megatron"
    if path.suffix == ".toml":
        return "torchtitan"
    if path.suffix in (".yaml", ".yml"):
        text = path.read_text(errors="replace")
        return "nanotron" if "parallelism:" in text and "tokens:" in text else "nemo"
    return None


def reader(path, gpus=None):
    """Returns the Settings, and the function that converts them."""
    program = program_of(path)
    if program == "megatron":
        settings, front, slurm = megatron.read([str(path)])
        return settings, lambda s: megatron.convert(s, gpus, front, slurm)
    module = {"torchtitan": torchtitan, "nanotron": nanotron, "nemo": nemo}[program]
    return module.read(read_text(path)), lambda s: module.convert(s, gpus)


def answer(settings, convert):
    """Returns the printed lines, or the refusal."""
    s = copy.deepcopy(settings)
    try:
        config = convert(s)
    except Failure as failure:
        return f"refused: {failure}"
    return "\n".join([*s.comments(), json.dumps(config)])


def dropped(settings, convert):
    """Yields the settings that neither their converter names nor the plan uses: import.py adds them at its end."""
    return (settings.said(name) for name in unused(settings, convert))


def main(options):
    counts, reasons = collections.Counter(), collections.Counter()
    for path in sorted(options.folder.rglob("*")):
        if not path.is_file() or program_of(path) is None:
            continue
        counts["files"] += 1
        try:
            settings, convert = reader(path)
            before = answer(settings, convert)
            if "number of GPUs is not known" in before:
                counts["refused for an unknown number of GPUs"] += 1
                for gpus in options.gpus:
                    settings, convert = reader(path, gpus)
                    before = answer(settings, convert)
                    if not before.startswith("refused"):
                        break
            if before.startswith("refused"):
                counts["refused"] += 1
                reasons[re.sub(r"[\d.]+", "N", before)[:70]] += 1
                if options.verbose:
                    print(f"{path.name}: {before}")
                continue
            counts["converted"] += 1
            counts["settings"] += len(settings.values)
            named = sum(spelling in before for spelling, _ in settings.values.values())
            counts["settings named"] += named
            counts["settings converted"] += len(settings.values) - named
            counts["settings unknown"] += len(re.findall(r"unknown: .* not known here", before))
            for each in dropped(settings, convert):
                counts["settings that only the last check names"] += 1
                if options.verbose:
                    print(f"{path.name}: only the last check names {each}")
        except Failure as failure:
            counts["refused"] += 1
            reasons[re.sub(r"[\d.]+", "N", str(failure))[:70]] += 1
            if options.verbose:
                print(f"{path.name}: {failure}")
        except Exception:  # noqa: BLE001 - the fault that is looked for
            counts["tracebacks"] += 1
            print(f"{path}: {traceback.format_exc()}")
    for name in ("files", "converted", "refused", "refused for an unknown number of GPUs", "settings",
                 "settings converted",
                 "settings named", "settings that only the last check names", "tracebacks"):  # fmt: skip
        print(f"{name}: {counts[name]}")
    if options.verbose:
        for reason, count in reasons.most_common(60):
            print(f"{count:5} {reason}")
    return counts["tracebacks"] > 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gpus", type=int, nargs="+", default=[1024, 256, 64, 48, 16, 8, 3072, 32768])
    parser.add_argument("-v", "--verbose", action="store_true")
    sys.exit(main(parser.parse_args()))

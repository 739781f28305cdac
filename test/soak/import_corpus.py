#!/usr/bin/env python3
"""Converts every launch script and configuration of other trainers in a folder, and looks for what import.py drops.

    test/soak/import_corpus.py FOLDER [--gpus N...] [-v]

A setting of an input has to be named in a comment line, or to matter: with another value, or without it, the answer
changes. Prints counts; exits with 1 if a setting is dropped or a conversion ends in a traceback.
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


def reader(path):
    """Returns the Settings, and the function that converts a copy of them."""
    program = program_of(path)
    if program == "megatron":
        settings, front, slurm = megatron.read([str(path)])
        return settings, lambda s, gpus: megatron.convert(s, gpus, front, slurm)
    module = {"torchtitan": torchtitan, "nanotron": nanotron, "nemo": nemo}[program]
    return module.read(read_text(path)), module.convert


def answer(settings, convert, gpus):
    """Returns the printed lines, or the refusal."""
    s = copy.deepcopy(settings)
    try:
        config = convert(s, gpus)
    except Failure as failure:
        return f"refused: {failure}"
    return "\n".join([*s.comments(), json.dumps(config)])


def others(value):
    """Yields other values of a setting."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, (int, float)) or re.fullmatch(r"-?[\d._]+(e-?\d+)?", str(value)):
        number = float(str(value).replace("_", "")) if re.search(r"\d", str(value)) else 0
        yield from (str(number * 2 + 1), str(int(number) * 2 + 2), str(number / 2), "-7")
    elif value is not None:
        yield f"{value}x"


def dropped(settings, convert, gpus):
    """Yields the names of settings that are neither named nor matter."""
    before = answer(settings, convert, gpus)
    for name, (spelling, value) in settings.values.items():
        if spelling in before:
            continue
        changed = False
        for other in [*others(value), None]:
            s = copy.deepcopy(settings)
            if other is None:
                del s.values[name]
            else:
                s.values[name] = (spelling, other)
            changed = changed or answer(s, convert, gpus) != before
        if not changed:
            yield f"{spelling} {value}"


def main(options):
    counts, reasons = collections.Counter(), collections.Counter()
    for path in sorted(options.folder.rglob("*")):
        if not path.is_file() or program_of(path) is None:
            continue
        counts["files"] += 1
        try:
            settings, convert = reader(path)
            before = answer(settings, convert, None)
            gpus = None
            if "number of GPUs is not known" in before:
                counts["refused for an unknown number of GPUs"] += 1
                for gpus in options.gpus:
                    before = answer(settings, convert, gpus)
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
            for each in dropped(settings, convert, gpus):
                counts["settings dropped"] += 1
                print(f"{path.name}: dropped: {each}")
        except Failure as failure:
            counts["refused"] += 1
            reasons[re.sub(r"[\d.]+", "N", str(failure))[:70]] += 1
            if options.verbose:
                print(f"{path.name}: {failure}")
        except Exception:  # noqa: BLE001 - the fault that is looked for
            counts["tracebacks"] += 1
            print(f"{path}: {traceback.format_exc()}")
    for name in ("files", "converted", "refused", "refused for an unknown number of GPUs", "settings", "settings converted",
                 "settings named", "settings dropped", "tracebacks"):  # fmt: skip
        print(f"{name}: {counts[name]}")
    if options.verbose:
        for reason, count in reasons.most_common(60):
            print(f"{count:5} {reason}")
    return counts["settings dropped"] + counts["tracebacks"] > 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gpus", type=int, nargs="+", default=[1024, 256, 64, 48, 16, 8, 3072, 32768])
    parser.add_argument("-v", "--verbose", action="store_true")
    sys.exit(main(parser.parse_args()))

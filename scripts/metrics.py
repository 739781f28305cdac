#!/usr/bin/python3
"""Converts a metrics file (log.metrics) for other tools.

    scripts/metrics.py tensorboard METRICS -o DIR              one new TensorBoard event file in DIR each time
    scripts/metrics.py tensorboard METRICS -o DIR --follow     continues while the run writes, until interrupted
    scripts/metrics.py csv METRICS [-o FILE]                   one row per step; without -o on stdout

If a run was resumed, or another run wrote into the same file, a later line for a step replaces the earlier lines for
that step and all later steps. An incomplete last line is ignored. Needs only Python; viewing needs TensorBoard.
"""

import argparse
import csv
import functools
import io
import math
import signal
import struct
import sys
import time
from pathlib import Path

from run_files import Failure, History, Metrics, finish, form_of, number, parse_lines, read_text, write_file

# The section of a figure in TensorBoard; "step" for all others.
SECTIONS = {"optimizer": "grad_norm norm_z lr", "speed": "step_ms tokens_per_s mfu mfu_causal",
            "pipeline": "bubble transfer_exposed_ms evictions"}
GROUPS = {"loss": "loss/train", "loss_z": "loss/z",
          **{key: f"{section}/{key}" for section, keys in SECTIONS.items() for key in keys.split()}}
NO_FIGURES = ("type", "step", "stages")


def exact(value):
    return int(value) if isinstance(value, int) else number(value)


def figures(entry):
    """Returns name -> number for a step: first the figures of the step, then of each stage; None if unknown."""
    parts = {f"{key}/{name}": value for key, part in entry.items() if isinstance(part, dict)
             for name, value in part.items()}  # of the experts and of the slowest rank
    whole = {key: exact(value) for key, value in {**entry, **parts}.items() if key not in NO_FIGURES
             and not isinstance(value, (str, list, dict))}
    stages = {(stage["stage"], key): exact(value) for stage in entry["stages"] for key, value in stage.items()
              if key != "stage"}
    return whole, stages


# ---- TensorBoard's event files ---------------------------------------------------------------------------------------
# A record: length (8 bytes, little-endian), its masked CRC-32C, the data, and their masked CRC-32C. The data are a
# protocol buffer `Event`:
#   1 wall_time double, 2 step int64, 3 file_version string, 5 summary {1 value {1 tag string, 2 simple_value float}},
#   7 session_log {1 status: 1 START}, at which readers drop all earlier events of that step and later ones.


CRC = [functools.reduce(lambda crc, _: crc >> 1 ^ (0x82F63B78 if crc & 1 else 0), range(8), i) for i in range(256)]


def masked_crc(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CRC[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def record(data):
    length = struct.pack("<Q", len(data))
    return length + masked_crc(length) + data + masked_crc(data)


def varint(value):
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def piece(field, data):
    """Encodes a text, bytes or a nested message as one field."""
    data = data.encode() if isinstance(data, str) else data
    return varint(field << 3 | 2) + varint(len(data)) + data


def event(wall, step=0, content=b""):
    return record(b"\x09" + struct.pack("<d", wall) + (b"\x10" + varint(step) if step else b"") + content)


def float32(value):
    """Encodes a little-endian float; doubles out of range become infinite."""
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", math.copysign(math.inf, value))


def scalars_event(wall, step, scalars):
    values = (piece(1, piece(1, tag) + b"\x15" + float32(value)) for tag, value in scalars.items() if value is not None)
    return event(wall, step, piece(5, b"".join(values)))


def events_of(entry, wall):
    if entry["type"] == "val":
        return scalars_event(wall, int(entry["step"]), {"loss/val": number(entry["loss"])})
    if entry["type"] == "eval":
        return scalars_event(wall, int(entry["step"]), {f"eval/{entry['name']}": number(entry["accuracy"])})
    whole, stages = figures(entry)
    scalars = {GROUPS.get(key, key if "/" in key else f"step/{key}"): value for key, value in whole.items()}
    scalars.update({f"memory/{key}/stage_{stage}" if "bytes" in key else f"slots/{key}/stage_{stage}": value
                    for (stage, key), value in stages.items()})
    return scalars_event(wall, int(entry["step"]), scalars)


FIRST = piece(3, "brain.Event:2")


def all_events(path, text):
    """Returns the file's events. Metrics have no times of day, so the last step gets the time of the file, and earlier
    steps are dated back from it."""
    run = Metrics(path, text)
    wall = path.stat().st_mtime - sum(entry["step_ms"] for entry in run.steps.values()) / 1e3
    yield event(wall, content=FIRST)
    for line in run.lines:
        wall += line.get("step_ms", 0) / 1e3
        yield events_of(line, wall)


class Tail:
    """Reads new complete lines of a growing file. If a resumed run has cut the file, all its lines count as new."""

    def __init__(self, path):
        self.path, self.position, self.last = path, 0, b""

    def new_lines(self):
        try:
            with self.path.open("rb") as file:
                file.seek(self.position - len(self.last))
                if file.read(len(self.last)) != self.last:
                    self.position, self.last = 0, b""
                    file.seek(0)
                whole = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise Failure(f"{self.path}: cannot be read: {error.strerror}") from None
        if whole[1]:
            self.position += len(whole[0]) + 1
            self.last = whole[0][-200:] + b"\n"
        return (whole[0] + whole[1]).decode(errors="replace")


def follow(path, out, seconds):
    """Appends to `out` until interrupted. Tells TensorBoard to drop the steps that a resumed run repeats."""
    tail, history = Tail(path), History()
    out.write(event(time.time(), content=FIRST))
    while True:
        with form_of(path, "metrics file; name one with log.metrics"):
            for entry in parse_lines(tail.new_lines()):
                again = history.add(entry)
                if again is not None:
                    out.write(event(time.time(), again, piece(7, b"\x08\x01")))
                if entry["type"] in ("step", "val", "eval"):
                    out.write(events_of(entry, time.time()))
        out.flush()
        time.sleep(seconds)


def make_tensorboard(options):
    events = options.output / "events.out.tfevents.metrics"
    try:
        options.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Failure(f"{options.output}: cannot be made: {error.strerror}") from None
    if options.follow:
        try:
            with events.open("wb") as out:
                follow(options.file, out, options.every)
        except OSError as error:
            raise Failure(f"{events}: cannot be written: {error.strerror}") from None
    text = read_text(options.file)
    with form_of(options.file, "metrics file; name one with log.metrics"):
        data = b"".join(all_events(options.file, text))
    write_file(events, data)


# ---- CSV -------------------------------------------------------------------------------------------------------------


def make_csv(options):
    run = Metrics(options.file, read_text(options.file))
    rows = {}
    with form_of(options.file, "metrics file; name one with log.metrics"):
        for step, entry in run.steps.items():
            whole, stages = figures(entry)
            rows[step] = {**{key.replace("/", "_"): value for key, value in whole.items()},
                          **{f"stage{stage}_{key}": value for (stage, key), value in stages.items()}}
    for step, loss in run.vals.items():
        rows.setdefault(step, {})["val_loss"] = loss
    for step, accuracies in run.evals.items():
        rows.setdefault(step, {}).update({f"{name}_accuracy": accuracy for name, accuracy in accuracies.items()})
    names = list(dict.fromkeys(name for row in rows.values() for name in row if name != "val_loss"))
    names.insert(1, "val_loss")
    text = io.StringIO()
    table = csv.DictWriter(text, ["step", *names], lineterminator="\n")
    table.writeheader()
    table.writerows({"step": step, **rows[step]} for step in sorted(rows))
    if options.output is None:
        sys.stdout.write(text.getvalue())
        return
    write_file(options.output, text.getvalue())


# ---- command line ----------------------------------------------------------------------------------------------------


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    forms = parser.add_subparsers(dest="form", required=True, metavar="tensorboard|csv")
    board = forms.add_parser("tensorboard", help="an event file for TensorBoard")
    board.add_argument("file", type=Path, metavar="METRICS")
    board.add_argument("-o", "--output", type=Path, required=True, metavar="DIR")
    board.add_argument("--follow", action="store_true", help="continue while the run writes, until interrupted")
    board.add_argument("--every", type=float, default=2.0, metavar="SECONDS", help="interval of --follow (2)")
    board.set_defaults(make=make_tensorboard)
    table = forms.add_parser("csv", help="a table with one row per step")
    table.add_argument("file", type=Path, metavar="METRICS")
    table.add_argument("-o", "--output", type=Path, metavar="FILE")
    table.set_defaults(make=make_csv)
    options = parser.parse_args()
    if not 0 <= getattr(options, "every", 0) <= 86400:
        parser.error(f"--every {options.every:g}: use 0 to 86400 seconds")
    return options


def main():
    options = arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    code = finish("metrics.py", options.make, options)
    return 0 if code == 130 else code  # --follow is meant to be interrupted


if __name__ == "__main__":
    sys.exit(main())

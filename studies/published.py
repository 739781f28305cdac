#!/usr/bin/env python3
"""Plans runs that others have measured and published, and compares the step times and the decisions.

    studies/published.py [--bin DIR] [--only TEXT]                     one line per run: planned, measured, error
    studies/published.py [--bin DIR] --bands | --json                  src/config/bands.c; every run as JSON
    studies/published.py [--bin DIR] --write docs/published.md         the page, its picture in img/, and bands.c

studies/published.json has the runs of the page's tables, studies/runs.csv and runs_experts.csv others, of which only
the step is planned.
Nothing in the planner is fitted to these runs. Needs the built trainers, no GPU.
"""

import argparse
import concurrent.futures
import dataclasses
import itertools
import json
import math
import os
import re
import statistics
import sys
import tempfile
import textwrap
from pathlib import Path

from common import ROOT, answer, ask, csv_rows, fill, table, trainer
import plot
from megatron_bytes import Held
from run_files import GIB, Failure, finish, read_text, write_file

DATA = ROOT / "studies" / "published.json"
RUNS = ROOT / "studies" / "runs.csv"
EXPERTS = ROOT / "studies" / "runs_experts.csv"  # runs of mixtures of experts
BANDS = ROOT / "src" / "config" / "bands.c"
# FLOP/s that published MFU refer to
PEAK = {"a100-80g": 312e12, "h100": 989.5e12, "b200": 2250e12, "b300": 2250e12, "gb200": 2500e12, "gb300": 2500e12,
        "mi355x": 2516.6e12}
STREAM = {"a100-80g": 0.8 * 2039e9, "h100": 0.76 * 3350e9, "b200": 0.72 * 8000e9}  # bytes/s of memory traffic
NODE = {"a100-80g": 222, "h100": 445, "b200": 704}  # GB/s of a long all-reduce within a node
SHORTEST = 1  # seconds: runs with shorter steps do not count for a band
APART = 0.03  # schedules with step times closer than this are not compared


@dataclasses.dataclass
class Row:
    source: dict
    values: dict  # values of the columns, and of the source's common configuration
    plan: dict = None
    held: float = None  # bytes of the fullest rank, as the measured program keeps activations

    @property
    def name(self):
        return (f"{self.values['group']}: {self.values['run']}" if self.values["run"] != self.values["group"]
                else self.values["run"])

    @property
    def world(self):
        return self["parallel.pipeline"] * self["parallel.tensor"] * self["parallel.context"] * self["parallel.data"]

    @property
    def microbatches(self):
        return self["train.global_batch"] // (self["schedule.micro_batch"] * self["parallel.data"])

    def __getitem__(self, key):
        return self.values.get(key, 1)

    # ---- measured ----------------------------------------------------------------------------------------------------

    def flops(self, factor):
        """Returns the FLOPs of a step as Megatron-LM counts them: factor 72, or 96 with a recomputed forward."""
        layers, hidden, seq, vocab = (self["model.layers"], self["model.hidden"], self["model.seq_len"],
                                      self["model.vocab"])
        head = vocab / ((12 if factor == 72 else 16) * layers * hidden)
        return factor * self["train.global_batch"] * seq * layers * hidden**2 * (1 + seq / (6 * hidden) + head)

    def measured_step(self):
        """Returns seconds, or None if the run ran out of memory."""
        kind = next(key for key in UNITS if key in self.values)
        value = self.values[kind]
        return None if value is None else UNITS[kind](self, value)

    # ---- planned -----------------------------------------------------------------------------------------------------

    def planned_step(self):
        return self.plan["step_ms"] / 1000

    def rounds(self):
        return self.microbatches + (self["parallel.pipeline"] - 1) / self["schedule.chunks"]

    def complete_step(self):
        """Returns the planned step of a program that recomputes complete layers. This engine leaves out a recomputed
        layer's last product and the sum after it, because no backward needs their result."""
        if self.values.get("schedule.recompute_layers") != "all":
            return self.planned_step()
        gpu, t = self.values["hardware.gpu"], self["parallel.tensor"]
        rows = self["schedule.micro_batch"] * self["model.seq_len"]
        peak, loss = (line["ms"] for line in self.plan["waterfall"][:2])  # time of products
        inner = self.values.get("model.ffn", 4 * self["model.hidden"])
        product = 2 * rows * inner / t * self["model.hidden"] / PEAK[gpu] * (peak + loss) / peak
        total = 2 * 2 * rows * self["model.hidden"] * (t - 1) / t / (NODE[gpu] * 1e9)
        layers = -(-self["model.layers"] // self["parallel.pipeline"])
        return self.planned_step() + self.rounds() * layers * (product + total)

    def step_with_messages(self):
        """Returns the planned step of a program that does not compute during a message, if the message's time is
        published."""
        exposed = 2 * self["schedule.chunks"] * self.microbatches * (self.values.get("message_ms") or 0) / 1000
        return self.complete_step() + exposed

    def layer_bytes(self, program):
        """Returns the bytes that the measured program, but not this engine, reads and writes for a layer of a
        microbatch: counted from Megatron-LM's code, for a forward and a backward."""
        rows, t = self["schedule.micro_batch"] * self["model.seq_len"], self["parallel.tensor"]
        inner = rows * self["model.hidden"] / t
        stream = inner if self.values.get("parallel.sequence", True) else rows * self["model.hidden"]
        scores = rows * self["model.seq_len"] * self["model.heads"] / t
        scores *= self.values.get("attention.mode", "flash") != "flash"
        forward = backward = 0
        if program.get("passes"):  # QKV's bias, copy of the context; joining dq, dk and dv, second pass of norms
            forward, backward = 16 * inner, 12 * inner + 8 * stream
        if program.get("dropout"):  # dropout of two streams and the scores, masks of one byte
            forward, backward = forward + 2 * stream + 5 * scores, backward + 10 * stream + 5 * scores
        again = forward if self.values.get("schedule.recompute_layers") == "all" else 0
        again = 5 * scores if self.values.get("attention.mode") == "recompute" else again
        return forward + backward + again

    def program_step(self):
        """Returns the planned step with the additional passes, sums and messages of the measured program. All are
        counted; no value is fitted."""
        program, gpu = self.source.get("program", {}), self.values["hardware.gpu"]
        t, p, d = (self[f"parallel.{name}"] for name in ("tensor", "pipeline", "data"))
        layer = self.layer_bytes(program) * -(-self["model.layers"] // p) / STREAM[gpu]
        rows = self["schedule.micro_batch"] * self["model.seq_len"]
        head = program.get("ce_bytes", 0) * rows * self["model.vocab"] / t / STREAM[gpu]
        most = max(stage["parameters"] for stage in self.plan["stages"])
        head += program.get("gradient_bytes", 0) * most / t / STREAM[gpu]  # a second sum of bf16 gradients, in fp32
        sums = 0
        if program.get("sums_bytes") and d > 1:  # an all-reduce after the pipeline, which leaves each node once
            network = self.values.get("hardware.network_gb_s", 200) / min(t * p, 8)
            rate = min(network, 240) if self.world > 8 else NODE[gpu]
            sums = 2 * program["sums_bytes"] * most / t * (d - 1) / d / (rate * 1e9)
        return self.step_with_messages() + self.rounds() * layer + self.microbatches * head + sums

    def error(self):
        return self.planned_step() / self.measured_step() - 1

    def program_error(self):
        return self.program_step() / self.measured_step() - 1

    def planned_bytes(self):
        return self.plan["peak_bytes"] if "stages" not in self.plan else max(
            stage["peak_bytes"] for stage in self.plan["stages"])

    def configuration(self):
        values = {key: value for key, value in self.values.items() if "." in key}
        parts = self["parallel.pipeline"] * self["schedule.chunks"]
        if self["schedule.chunks"] > 1 and "schedule.name" not in values:
            values["schedule.name"] = "interleaved"
        if values.get("schedule.name", "1f1b") in ("1f1b", "interleaved"):
            values["schedule.split_backward"] = "off"
        if self["schedule.chunks"] == 1:
            values.pop("schedule.chunks", None)
        if values.get("schedule.recompute_layers") == "all":
            values["schedule.recompute_layers"] = -(-self["model.layers"] // self["parallel.pipeline"])
        layers = values.pop("parallel.layers", None)
        if layers is not None:  # a text: a list would mean several runs
            values["parallel.layers"] = value_of(layers) if isinstance(layers, str) else layers
        # Embedding and head count as one layer each.
        if parts > 1 and "parallel.layers" not in values and (values["model.layers"] + 2) % parts == 0:
            each = (values["model.layers"] + 2) // parts
            values["parallel.layers"] = [each - 1] + [each] * (parts - 2) + [each - 1]
        values.setdefault("model.ffn", 4 * values["model.hidden"])
        values.setdefault("parallel.collectives", "nccl")
        if self.source["trainer"] == "nvidia":
            values.setdefault("hardware.trainer", "nvidia")
        values |= {"train.precision": "bf16", "data.train": "none", "hardware.device": "cuda", "hardware.profile": ""}
        sections = {}
        for key, value in values.items():
            section, _, short = key.partition(".")
            sections.setdefault(section, {})[short] = value
        return json.dumps(sections)


# The seconds of a step by a source's unit. mfu_planned_percent: with the FLOPs that plans count.
UNITS = {
    "step_s": lambda row, value: value,
    "tflops": lambda row, value: row.flops(72) / (row.world * value * 1e12),
    "tflops_recompute": lambda row, value: row.flops(96) / (row.world * value * 1e12),
    "samples_per_s_gpu": lambda row, value: row["train.global_batch"] / (value * row.world),
    "tokens_per_s_gpu": lambda row, value: row["train.global_batch"] * row["model.seq_len"] / (value * row.world),
    "mfu_percent": lambda row, value: row.flops(72) / (PEAK[row["hardware.gpu"]] * row.world * value / 100),
    "mfu_planned_percent": lambda row, value: row.plan["mfu"] * row.planned_step() / (value / 100),
}


def runs_of(row):
    """Yields the cells of each run of a row. Lists make it several runs, which differ only in these cells."""
    counts = {len(cell) for cell in row if isinstance(cell, list)} or {1}
    if len(counts) > 1:
        raise Failure(f"{row}: cells have {sorted(counts)} values; give as many in each cell that differs")
    for i in range(counts.pop()):
        yield [cell[i] if isinstance(cell, list) else cell for cell in row]


def rows_of(only):
    rows = []
    for source in json.loads(DATA.read_text())["sources"]:
        for cells in itertools.chain.from_iterable(map(runs_of, source["rows"])):
            row = Row(source, source["config"] | dict(zip(source["columns"], cells, strict=True)))
            if only in f"{source['name']} {row.name}":
                rows.append(row)
    return rows


def value_of(cell):
    try:
        return json.loads(cell)
    except ValueError:
        return cell


def more_rows():
    """Returns the runs of runs.csv and runs_experts.csv. A line with bars (|) in its cells stands for several runs."""
    rows = []
    for line in [*csv_rows(RUNS), *csv_rows(EXPERTS)]:
        source = {"name": line.pop("source"), "trainer": line.pop("trainer"), "csv": True}
        for cells in runs_of([cell.split("|") if "|" in cell else cell for cell in line.values()]):
            rows.append(Row(source, {key: cell if key in ("group", "run") else value_of(cell)
                                     for key, cell in zip(line, cells, strict=True) if cell}))
    return rows


def program_of(row):
    """Returns the bytes that a rank of the source's program keeps."""
    kept, seq, batch = row.source["activations"], row["model.seq_len"], row["schedule.micro_batch"]
    stream = seq * batch * row["model.hidden"]
    layer = kept["linear"] * stream + kept["square"] * row["model.heads"] * seq**2 * batch
    weight = min(layer, kept["weight"] * stream)
    # The gradient of an embedding or output matrix, or the dummy that LinearWithGradAccumulation returns.
    matrix = 2 * row["model.vocab"] * row["model.hidden"]
    return Held(layer, weight, seq * batch * row["model.vocab"], matrix, kept["state_bytes"])


def plan(row, folder, number, bin_folder):
    config = Path(folder) / f"{number}.yaml"
    config.write_text(row.configuration())
    program = trainer(row.values["model.family"], bin_folder)
    try:
        if row.source.get("csv"):  # --sweep plans only the step, ten times as fast
            swept = f"schedule.micro_batch={row['schedule.micro_batch']}"
            row.plan = answer(program, config, "--plan", "--sweep", swept, fits=False)["sweep"][0]
            if row.plan["refused"] is not None:
                raise Failure(row.plan["refused"])
            return
        row.plan = answer(program, config, "--plan")
        if "activations" in row.source:
            row.held = max(program_of(row).of_stages(row.plan, ask(program, config, "--schedule")))
    except Failure as failure:
        raise Failure(f"{row.source['name']}, {row.name}, b={row['schedule.micro_batch']}: {failure}") from None


def plan_all(rows, bin_folder):
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(
        len(os.sched_getaffinity(0))) as pool:
        for done in [pool.submit(plan, row, folder, i, bin_folder) for i, row in enumerate(rows)]:
            done.result()


# ---- schedules of one group against each other -----------------------------------------------------------------------


@dataclasses.dataclass
class Pair:
    one: Row
    other: Row

    def ratio(self, seconds):
        return seconds(self.other) / seconds(self.one)

    @property
    def measured(self):
        return self.ratio(Row.measured_step)

    @property
    def error(self):
        return self.ratio(Row.step_with_messages) / self.measured - 1

    @property
    def error_without_messages(self):
        return self.ratio(Row.complete_step) / self.measured - 1

    @property
    def ordered(self):
        return (self.ratio(Row.step_with_messages) > 1) == (self.measured > 1)


def pairs_of(rows):
    """Returns pairs of schedules, or of recomputation, for one model in one group, with steps that differ."""
    of_sources = ([row for row in rows if row.source["name"] == source] for source in ("recomputation", "zero bubble"))
    pairs = [Pair(one, other) for mine in of_sources for one, other in itertools.combinations(mine, 2)
             if one.values["group"] == other.values["group"]]
    return [pair for pair in pairs if abs(pair.measured - 1) > APART]


# ---- words -----------------------------------------------------------------------------------------------------------


def grouped(rows, key):
    """Groups rows by a key: returns {key(row): [row, ...]}."""
    found = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def signed(value):
    return f"{100 * value:+.1f} %"


def part_of(values, part):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def middle_of(values):
    return f"{signed(part_of(values, 0.1))} to {signed(part_of(values, 0.9))}"


def names_of(rows):
    return list(dict.fromkeys(row.source["name"] for row in rows))


def summary(rows):
    """Returns a table by source: errors of this engine's plan, and with the measured program's additional work."""
    lines = []
    for name in [*names_of(rows), None]:
        mine = [row for row in rows if row.measured_step() is not None and name in (None, row.source["name"])]
        ours, theirs = [row.error() for row in mine], [row.program_error() for row in mine]
        lines.append((name or "**all**", len(mine), signed(statistics.median(ours)), signed(max(ours, key=abs)),
                      signed(statistics.median(theirs)), middle_of(theirs)))
    return table("source | runs | this engine would take | worst | with that program's recomputation, passes, sums,"
                 " messages | middle 80 %", lines)


# ---- bands: whose time -----------------------------------------------------------------------------------------------

FEWEST = 5  # least number of runs for a band
NEAR = 1.25  # for a source that measured all layouts: longest step that counts, relative to the best of its set
EIGHT_BITS = ("b200", "gb200", "gb300")  # these GPUs share one band for 8 bits
BLACKWELL = ("b200", "b300", "gb200", "gb300")  # these share one band for mixtures of experts


def fp8_of(row):
    return row.values.get("train.fp8", "off")


def has_experts(row):
    return "model.experts" in row.values


def class_of(row):
    """Returns the key of a run's band: trainer, GPUs, whether the model has experts, and train.fp8."""
    gpu = row.values["hardware.gpu"]
    gpus = {"a100-80g": ("a100-40g", "a100-80g")}.get(gpu, (gpu,))
    if has_experts(row) and gpu in BLACKWELL:
        gpus = BLACKWELL
    elif gpu in EIGHT_BITS and fp8_of(row) != "off":
        gpus = EIGHT_BITS
    return row.source["trainer"], gpus, has_experts(row), fp8_of(row)


def longer(row):
    return row.measured_step() / row.planned_step()


def set_of(row):
    """Returns the name of the set of layouts that a run is in: one model, batch and number of GPUs."""
    group = row.values["group"]
    if row.source["name"] == "nanotron" and not group.endswith("nodes"):
        group = f"{group} {' '.join(row.values['run'].split()[:2])}"
    return source_of(row), group


def sets_of(rows):
    return grouped((row for row in rows if row.measured_step() is not None), set_of)


def classes_of(rows):
    """Returns the runs of every band. Leaves out steps below a second, and trainers whose sharding is not planned."""
    near = []
    for (source, _), mine in sets_of(rows).items():
        most = NEAR * min(row.measured_step() for row in mine) if source == "nanotron" else math.inf
        near += [row for row in mine if SHORTEST <= row.measured_step() <= most and row.source["trainer"] != "fsdp"]
    return {key: mine for key, mine in sorted(grouped(near, class_of).items()) if len(mine) >= FEWEST}


def source_of(row):
    return row.source["name"].split(",")[0]


def model_of(row):
    found = re.search(r"[\d.]+[BT]", f"{row.values['group']} {row.values['run']}")
    return found[0] if found else row.values["group"]


def kinship(rows):
    """Returns the function that decides which runs are left out together: those of one source, or those of one model if
    one source has most of the runs."""
    most = max(sum(source_of(row) == name for row in rows) for name in map(source_of, rows))
    return source_of if len(rows) - most >= FEWEST else model_of


def strangers(rows):
    """Yields each run with the runs that are not its kin; with none if these are too few for a band."""
    kin = kinship(rows)
    for row in rows:
        others = [other for other in rows if kin(other) != kin(row)]
        yield row, others if len(others) >= FEWEST else []


def band_of(rows):
    """Returns low, middle and high of measured / planned times. The middle is the median. The ends are the 10th and the
    90th percentile of the ratios of runs to the median of their strangers. Runs of one source resemble each other, so
    the percentiles of all runs would be too narrow for the next source."""
    middle = statistics.median(map(longer, rows))
    apart = [longer(row) / statistics.median(map(longer, others or rows)) for row, others in strangers(rows)]
    return middle * part_of(apart, 0.1), middle, middle * part_of(apart, 0.9)


def tried(rows):
    """Tests each run against the band of its strangers. Returns the median error of the band's middle, the number of
    runs inside, and the number tested."""
    off, inside = [], 0
    for row, others in strangers(rows):
        if others:
            low, middle, high = band_of(others)
            off.append(abs(middle / longer(row) - 1))
            inside += low <= longer(row) <= high
    return (statistics.median(off) if off else None), inside, len(off)


def bands(rows):
    """Returns a table of the bands, with the share of runs inside the band of their strangers."""
    lines = []
    for (trainer, gpus, experts, fp8), mine in classes_of(rows).items():
        trainer = f"{trainer}, experts" if experts else trainer
        off, inside, count = tried(mine)
        ends = [f"{end:.2f}" for end in band_of(mine)]
        apart = [str(count), f"{100 * off:.1f} %", f"{100 * inside / count:.0f} %"] if count else ["0", "-", "-"]
        lines.append([trainer, ", ".join(gpus), fp8, len(mine), *ends, *apart])
    return table("trainer | GPUs | `train.fp8` | runs | low | middle | high | tried | middle off | inside", lines)


def memory_of(rows):
    """Returns, by trainer, the runs with a known peak memory and with states sharded as planned (ZeRO-1)."""
    alike = (row for row in rows if "peak_gib" in row.values
             and (row["parallel.data"] == 1 or row.values.get("zero") != 0))
    return grouped(alike, lambda row: row.source["trainer"])


def memory_band(rows):
    """Returns the 10th percentile, the median and the 90th percentile of measured / planned bytes."""
    ratios = [row.values["peak_gib"] * GIB / row.planned_bytes() for row in rows]
    return part_of(ratios, 0.1), statistics.median(ratios), part_of(ratios, 0.9)


def memory_table(rows):
    return table("program | runs | measured / planned bytes: 10 %, middle, 90 %", [
        (f"{trainer} ({', '.join(names_of(mine))})", len(mine), ", ".join(f"{end:.2f}" for end in memory_band(mine)))
        for trainer, mine in memory_of(rows).items()])


def bands_file(rows):
    """Returns the text of src/config/bands.c."""
    def line(trainer, *cells):
        word = trainer.replace("-", "_").upper()
        return f"    {{TRAINER_{word}, " + ", ".join(f"{cell:.2f}" if isinstance(cell, float) else str(cell)
                                                     for cell in cells) + "},"

    return "\n".join([
        "// How much longer published steps of other trainers took than planned: low end, median and high end of a",
        "// band. Made by studies/published.py of its published.json and runs*.csv; sources: docs/published.md.",
        '#include "gpus.h"', "", "const TrainerBand trainer_bands[] = {",
        *(line(trainer, f'"{" ".join(gpus)}"', str(experts).lower(), f"FP8_{fp8.upper()}", len(mine), *band_of(mine))
          for (trainer, gpus, experts, fp8), mine in classes_of(rows).items()),
        "};", "const int trainer_band_count = sizeof trainer_bands / sizeof *trainer_bands;", "",
        "// Peak memory over planned bytes.", "const TrainerMemory trainer_memory[] = {",
        *(line(trainer, len(mine), *memory_band(mine)) for trainer, mine in memory_of(rows).items()
          if len(mine) >= FEWEST),
        "};", "const int trainer_memory_count = sizeof trainer_memory / sizeof *trainer_memory;", ""])


def pairs_of_layouts(sets):
    """Returns the pairs of runs of each set that differ only in their layout or schedule."""
    def part(row, *sections):
        return {key: value for key, value in row.values.items() if key.partition(".")[0] in sections}

    pairs = (pair for mine in sets for pair in itertools.combinations(mine, 2))
    return [(one, other) for one, other in pairs
            if part(one, "model", "train", "hardware") == part(other, "model", "train", "hardware")
            and part(one, "parallel", "schedule") != part(other, "parallel", "schedule")]


def experts_table(rows):
    """Returns a table of measured / planned times of mixtures of experts, by model and GPUs."""
    mine = [row for row in rows if has_experts(row)]
    sets = grouped(mine, lambda row: row.values["group"])
    pairs = pairs_of_layouts(sets.values())
    right = sum((one.planned_step() < other.planned_step()) == (one.measured_step() < other.measured_step())
                for one, other in pairs)
    words = wrapped(
        f"Of {len(mine)} runs half took {statistics.median(map(longer, mine)):.2f} times as long as planned, or"
        f" longer; {right} of {len(pairs)} pairs of layouts of one model on the same GPUs are in order (Kendall's"
        f" tau {2 * right / len(pairs) - 1:.2f}).")
    return words + "\n\n" + table("model, GPUs | runs | measured / planned", [
        (group, len(of_set), ", ".join(f"{longer(row):.2f} ({row.values['run']})" for row in of_set))
        for group, of_set in sorted(sets.items())])


# ---- decisions -------------------------------------------------------------------------------------------------------

MANY = 10  # least number of layouts of a set


def tau(rows):
    """Returns Kendall's tau of planned and measured steps."""
    orders = [(one.planned_step() - other.planned_step()) * (one.measured_step() - other.measured_step())
              for one, other in itertools.combinations(rows, 2)]
    return sum((order > 0) - (order < 0) for order in orders) / len(orders)


def regrets(rows):
    """Returns by how much the planned best and the best of the planned five took longer than the measured best."""
    ordered, best = sorted(rows, key=Row.planned_step), min(row.measured_step() for row in rows)
    return ordered[0].measured_step() / best - 1, min(row.measured_step() for row in ordered[:5]) / best - 1


def kind_of_set(name):
    source, group = name
    if source != "nanotron":
        return source
    return "nanotron, 1 to 8 nodes" if int(group.split()[1]) <= 8 else "nanotron, 16 to 64 nodes"


def decisions(rows):
    """Returns a table of how good the plan's choice is in sets of many layouts."""
    many, lines = {name: mine for name, mine in sets_of(rows).items() if len(mine) >= MANY}, []
    for kind, names in grouped(many, kind_of_set).items():
        sets = [many[name] for name in names]
        picks, fives = zip(*map(regrets, sets), strict=True)
        lines.append((kind, f"{len(sets)}, {sum(map(len, sets))}", sum(pick <= 0.03 for pick in picks),
                      f"{100 * statistics.median(picks):.1f} %, {100 * max(picks):.0f} %",
                      f"{sum(five <= 0.01 for five in fives)}, {sum(five <= 0.05 for five in fives)}",
                      f"{100 * max(fives):.0f} %", f"{statistics.median(map(tau, sets)):.2f}"))
    return table("sets of | sets, runs | pick within 3 % | its regret: median, worst | best of five within 1 %, 5 %"
                 " | its regret: worst | tau", lines)


# ---- one change at a time --------------------------------------------------------------------------------------------


def layout_of(row):
    return tuple(row[key] for key in ("parallel.tensor", "parallel.pipeline", "parallel.data", "schedule.micro_batch"))


CHANGES = {
    "b to 2b": lambda t, p, d, b: (t, p, d, 2 * b),
    "p to 2p, d halved": lambda t, p, d, b: (t, 2 * p, d / 2, b),
    "t to 2t, d halved": lambda t, p, d, b: (2 * t, p, d / 2, b),
}


def ratios_of(name, mine):
    """Yields (change, measured ratio, planned ratio) of the pairs of a set that differ in one setting."""
    for one in mine:
        for other in mine:
            ratios = other.measured_step() / one.measured_step(), other.planned_step() / one.planned_step()
            zero = one.values.get("zero") == other.values.get("zero")
            rows_split = one["parallel.sequence"], other["parallel.sequence"]  # nanotron splits them with t > 1
            for change, to in CHANGES.items():
                alike = zero if name[0] == "nanotron" else rows_split[0] == rows_split[1]
                if alike and layout_of(other) == to(*layout_of(one)):
                    yield change, *ratios
            if name[0] == "layouts" and layout_of(one) == layout_of(other) and rows_split == (False, True):
                yield "sequence parallelism on", *ratios


def eight_bits(rows):
    """Yields (change, measured ratio, planned ratio) of recipes in 8 bits and in bf16."""
    named = {(row.values["group"], row.values["run"]): row for row in rows}
    for (group, run), row in named.items():
        one = named.get((group.removesuffix(" fp8") + " bf16", run))
        if group.endswith(" fp8") and one is not None:
            ratios = row.measured_step() / one.measured_step(), row.planned_step() / one.planned_step()
            yield "8 bits (`tensor`)", *ratios


def changes(rows):
    """Returns a table of ratios, planned and measured, of pairs that differ in one setting."""
    found = [("recipes", *each) for each in eight_bits([row for row in rows if row.source["name"] == "recipes"])]
    for name, mine in sets_of(rows).items():
        if name[0] in ("vTrain", "BLOOM", "layouts") or kind_of_set(name) == "nanotron, 1 to 8 nodes":
            found += [(kind_of_set(name), *each) for each in ratios_of(name, mine)]
    lines = []
    for (change, source), mine in sorted(grouped(found, lambda each: (each[1], each[0])).items()):
        _, _, measured, planned = zip(*mine, strict=True)
        errors = [plan / run - 1 for run, plan in zip(measured, planned, strict=True)]
        apart = [(run > 1) == (plan > 1) for run, plan in zip(measured, planned, strict=True) if abs(run - 1) > APART]
        lines.append((change, source, len(mine), f"{statistics.median(measured):.3f}, {statistics.median(planned):.3f}",
                      f"{signed(statistics.median(errors))}, {middle_of(errors)}",
                      f"{100 * sum(abs(error) <= 0.05 for error in errors) / len(errors):.0f} %",
                      f"{sum(apart)} of {len(apart)}"))
    return table("change | source | pairs | measured, planned | error: median, 10 % to 90 % | within 5 % | in order",
                 lines)


def table_of_limits(rows):
    """Returns a table of runs that did or did not run out of memory, compared with plans including the reserve."""
    mine = [row for row in rows if row.source["name"] == "layouts"]
    lines = []
    for ran, words in ((True, "ran"), (False, "ran out of memory")):
        fits = [all(stage["fits"] for stage in row.plan["stages"]) for row in mine
                if (row.measured_step() is not None) == ran]
        lines.append((words, sum(fits), len(fits) - sum(fits)))
    return table("| plan: fits | plan: does not fit", lines)


def table_of_pairs(pairs):
    """Returns a table with a row for each two schedules: the ranges of measured ratios and of errors."""
    def name_of(pair):
        one, other = pair.one.values["run"], pair.other.values["run"]
        return "selective : full" if "full" in one else f"{other} : {one}"

    lines = []
    for name, mine in grouped(pairs, name_of).items():
        ratios = [pair.measured for pair in mine]
        errors = [pair.error for pair in mine], [pair.error_without_messages for pair in mine]
        lines.append((name, len(mine), f"{min(ratios):.3f} to {max(ratios):.3f}",
                      *(f"{signed(min(each))} to {signed(max(each))}" for each in errors)))
    return table("schedules | pairs | measured ratios | errors | errors without messages", lines)


def wrapped(text):
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def verdict_on_pairs(pairs):
    beyond = [pair for pair in pairs if abs(pair.error) > 0.05]
    disordered = [pair for pair in pairs if not pair.ordered]
    worst = max(pairs, key=lambda pair: abs(pair.error))
    return wrapped(
        f"Of {len(pairs)} pairs of one model and batch that differ by more than {100 * APART:.0f} %,"
        f" {len(pairs) - len(disordered)} are in the right order, and {len(pairs) - len(beyond)} ratios are within 5 %;"
        f" the worst is off by {signed(worst.error)} ({worst.one.values['group']}, {worst.other.values['run']} :"
        f" {worst.one.values['run']}).")


def memory_apart(rows):
    """Returns (model, schedules, measured difference, planned difference, rounding), once for all microbatch counts."""
    apart = {}
    for one, other in itertools.combinations([row for row in rows if row.held is not None], 2):
        model, figures = one.values["group"].split(" m=")[0], (other.values["peak_gb"], one.values["peak_gb"])
        key = (model, f"{other.values['run']} - {one.values['run']}")
        if set_of(one) == set_of(other) and key not in apart:
            rounding = 1.0 if all(isinstance(figure, int) for figure in figures) else 0.01
            apart[key] = (figures[0] - figures[1], (other.held - one.held) / GIB, rounding)
    return [(*key, *values) for key, values in apart.items()]


def within(measured, planned, rounding):
    """Compares a difference of two figures with the plan. Allows 15 % of the measured difference, or of the nearest
    difference that rounds to it: two figures in whole GB may be off by 1 GB together."""
    nearest = min(max(planned, measured - rounding), measured + rounding)
    for word, value in (("15 %", measured), ("rounding", nearest)):
        if abs(planned - value) <= 0.15 * abs(value):
            return word
    return "no"


def words_on_memory(rows):
    apart = memory_apart(rows)
    close = [within(*row[2:]) for row in apart]
    return wrapped(
        f"Of {len(apart)} differences between two schedules {close.count('15 %')} are within 15 %,"
        f" {close.count('rounding')} more within 15 % of a difference that rounds to it (two figures in whole GB leave"
        f" 1 GB open either way), and {close.count('no')} are not:")


def page_of(rows, more, page):
    """Returns the page with the tables of these rows between its marks. more: the rows of runs.csv."""
    pairs = pairs_of(rows)
    both = rows + more
    tables = {"summary": summary(rows), "experts": experts_table(more), "bands": bands(both),
              "decisions": decisions(both), "changes": changes(both),
              "limits": table_of_limits(rows), "programs": memory_table(more),
              "pairs": verdict_on_pairs(pairs) + "\n\n" + table_of_pairs(pairs), "memory": words_on_memory(rows)}
    for name, text in tables.items():
        page = fill(page, name, text)
    return page


def print_lines(rows):
    for row in rows:
        step = row.measured_step()
        said = "out of memory" if step is None else f"{step:9.3f} s  {signed(row.error()):>8}"
        held = ("" if row.held is None
                else f"  {row.values['peak_gb']:6.2f} GB measured, {row.held / GIB:6.2f} GiB planned")
        print(f"{row.source['name']:<14} {row.name:<44} {row.planned_step():9.3f} s planned, {said}{held}")


def draw(rows, path):
    """Draws measured against planned steps, and ratios of two schedules' steps, by source."""
    pairs = pairs_of(rows)
    steps = [(row.source["name"], row.measured_step(), row.planned_step()) for row in rows
             if row.measured_step() is not None]
    ratios = [(pair.one.source["name"], pair.measured, pair.ratio(Row.step_with_messages)) for pair in pairs]

    def series(points):
        return [{"name": name, "points": [point for _, *point in mine], "dots": True}
                for name, mine in grouped(points, lambda point: point[0]).items()]

    plots = [
        {"series": series(steps), "xName": "measured step, s", "yName": "planned step, s", "log": True, "logX": True,
         "equal": True},
        {"series": series(ratios), "xName": "measured ratio of two schedules' steps",
         "yName": "planned ratio; dashed: within 5 %", "equal": 0.05},
    ]
    picture = {"kind": "plots", "plots": [{**one, "height": 340} for one in plots], "width": 800}
    write_file(path, plot.svg_of(picture))


def print_json(rows):
    keys = ("measured_step", "planned_step", "program_step", "planned_bytes")
    print(json.dumps([{"source": row.source["name"], "run": row.name, "gpus": row.world,
                       "peak_gb": row.values.get("peak_gb"), "held_bytes": row.held}
                      | {key: getattr(row, key)() for key in keys} for row in rows]))


def main(options):
    if options.only and options.write is not None:
        raise Failure("the page has all runs; leave out --only, or --write")
    rows = rows_of(options.only)
    if not rows:
        raise Failure(f"no run has {options.only!r} in its source or name; leave out --only to see all")
    more = more_rows() if options.bands or options.write is not None else []
    plan_all(rows + more, options.bin)
    if options.write is None:
        if options.bands:
            print(bands_file(rows + more), end="")
        else:
            print_json(rows) if options.json else print_lines(rows)
        return
    page = page_of(rows, more, read_text(options.write))
    for path, text in ((options.write, page), (BANDS, bands_file(rows + more))):
        write_file(path, text)
    if options.plot:
        draw(rows, options.write.parent / "img" / "published.svg")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=Path, default=ROOT, help="folder of the trainers")
    parser.add_argument("--only", default="", help="runs with this text in their source or name")
    parser.add_argument("--json", action="store_true", help="every run as JSON")
    parser.add_argument("--bands", action="store_true", help="print src/config/bands.c")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the page")
    parser.add_argument(
        "--plot", action=argparse.BooleanOptionalAction, default=True, help="with --write: also draw the picture")
    chosen = parser.parse_args()
    sys.exit(finish("published", main, chosen))

#!/usr/bin/python3
"""Fits the planner's assumptions about the hardware to runs, and writes them as a `hardware` section.

    studies/calibrate.py RUN... [-o FILE]           fit to the metrics of runs (files, or folders with metrics.jsonl)
    studies/calibrate.py RUN... --check RUN...      and predict other runs with the fitted values
    studies/calibrate.py step=58s -c CONFIG         scale products once, so that the plan of CONFIG takes 58 s

The model is the planner itself: `--plan` computes every run's step time with `hardware.matmul_efficiency`,
`matmul_half`, `flash_forward`, `flash_backward`, `stream_gb_s`, `action_us` and `step_overhead_ms`. These are varied
until the planned steps equal the measured ones (Levenberg-Marquardt on the logarithms of step times). A figure that the
runs do not determine keeps its value; a figure that they hardly determine stays near it, and nearer with a larger
--noise. Needs NumPy, and the trainers, on the machine of the runs if that was a CPU. In a plan, a matrix product of
inner side k takes flops (1 + matmul_half / k) / (peak matmul_efficiency).

One measured step determines one figure: with step=58s (or step=812ms) only `matmul_efficiency` changes. The rest of the
step keeps its planned time, so the figure also absorbs everything that the program does more slowly than planned.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import math
import os
import re
import sys
import tempfile
from pathlib import Path

try:
    import numpy as np
except ImportError:
    sys.exit("calibrate: NumPy is missing; run scripts/install_deps.sh")
from common import answer, options_of, trainer
from run_files import Failure, ask_family, finish, form_of, number, parse_lines, read_text, write_file

SETTLED = 1e-5  # largest change of a logarithm at which the fit ends
ROUNDS = 40
KNOWN = math.log(2)  # before any run, figures are known to a factor of two
FARTHEST = math.log(20)  # the farthest factor of the search


@dataclasses.dataclass
class Run:
    name: str
    config: dict
    world: int
    peak: float  # TFLOP/s of all ranks together
    seconds: float
    spread: float  # half the width of the middle half of its step times, relative to their median

    @property
    def on_cpu(self):
        return self.config["hardware"]["device"] != "cuda"


# ---- runs ------------------------------------------------------------------------------------------------------------


def read_run(path, options):
    """Returns the last start in a metrics file: its configuration and a quantile of its step times."""
    file = path / "metrics.jsonl" if path.is_dir() else path
    with form_of(file, "metrics file; give the file of log.metrics"):
        return run_of(path, file, options)


def run_of(path, file, options):
    start, steps, skipped = None, [], options.skip
    for entry in parse_lines(read_text(file)):
        if entry.get("type") == "run":
            start, steps = entry, []
        elif entry.get("type") == "step":
            steps.append(float(entry["step_ms"]) / 1000)
    if start is None:
        raise Failure(f"{file}: has no line of type run; give the file of log.metrics")
    if len(steps) <= skipped:
        raise Failure(f"{file}: has {len(steps)} steps, of which the first {skipped} do not count; train for more")
    config, world, peak = start["config"], int(start["world"]), number(start["peak_tflops"])
    if peak is None:
        raise Failure(f"{file}: the peak of its device is not known; set hardware.peak_tflops in its configuration")
    times, parts = sorted(steps[skipped:]), (options.quantile, 0.25, 0.5, 0.75)
    seconds, low, middle, high = (times[min(len(times) - 1, int(part * len(times)))] for part in parts)
    spread = (high - low) / 2 / middle if middle > 0 else 0.0
    _ = config["model"]["family"], config["attention"]["mode"]  # checks that these keys exist
    if not (peak > 0 and world > 0 and 0 < seconds < math.inf):
        raise ValueError("its peak, its ranks or a step's time is not a positive number")
    if config["hardware"]["device"] == "auto":
        if options.device is None:
            raise Failure(f"{file}: does not say whether its hardware.device auto was a CPU or a GPU; say --device")
        config["hardware"]["device"] = options.device
    return Run(str(path), config, world, peak * world, seconds, spread)


class Planner:
    """Asks `--plan` for the step times of runs."""

    def __init__(self, runs, folder, bin_folder):
        self.bin, self.files = bin_folder, {run.name: Path(folder) / f"{at}.yaml" for at, run in enumerate(runs)}
        self.peak = None  # TFLOP/s of all ranks of a CPU together, the same for all runs
        for run in runs:
            self.files[run.name].write_text(json.dumps(run.config))

    def seconds(self, run, figures):
        family = run.config["model"]["family"]
        given = {f"hardware.{key}": f"{value:.12g}" for key, value in figures.items()} | {"hardware.profile": ""}
        if run.on_cpu and self.peak is not None:
            given["hardware.peak_tflops"] = f"{self.peak / run.world:.12g}"
        try:
            told = answer(trainer(family, self.bin), self.files[run.name], "--plan", *options_of(given))
            return told["step_ms"] / 1000
        except Failure as failure:
            raise Failure(f"{run.name}: {failure}") from None

    def all_seconds(self, questions):
        with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            return list(pool.map(lambda question: self.seconds(*question), questions))


# ---- the fit ---------------------------------------------------------------------------------------------------------


def beginning(runs):
    """Returns the planner's own assumptions, where the fit starts. The ratio of the two flash efficiencies is kept."""
    hardware = runs[0].config["hardware"]
    cpu = runs[0].on_cpu
    rate = hardware.get("memory_gb_s")
    figures = {"matmul_efficiency": 0.9 if cpu else 0.7, "matmul_half": 8.0 if cpu else 80.0,
               "stream_gb_s": 8.0 if cpu else 0.8 * rate if isinstance(rate, (int, float)) else 1600.0,
               "action_us": 20.0, "step_overhead_ms": 1.0}
    if any(run.config["attention"]["mode"] == "flash" for run in runs):
        figures["flash_forward"] = 0.45 if cpu else 0.65
    return figures


def complete(figures, cpu, memory):
    """Returns every key for a set of fitted figures, each within its limit. memory: rate in GB/s."""
    keys = dict(figures)
    keys["stream_gb_s"] = min(keys["stream_gb_s"], memory)
    for key in ("matmul_efficiency", "flash_forward"):
        if key in keys:
            keys[key] = min(keys[key], 1.0)
    if "flash_forward" in keys:
        keys["flash_backward"] = keys["flash_forward"] * (1.0 if cpu else 0.84)
    return keys


class Fit:
    def __init__(self, runs, planner, noise):
        self.runs, self.planner, self.cpu = runs, planner, runs[0].on_cpu
        rates = (number(run.config["hardware"].get("memory_gb_s")) for run in runs if not run.on_cpu)
        self.memory = min((rate for rate in rates if rate is not None), default=math.inf)
        start = beginning(runs)
        self.names, self.start, self.pull = list(start), np.log(list(start.values())), noise / KNOWN
        self.measured = np.array([run.seconds for run in runs])
        self.logs = self.start
        self.off = self.errors([self.logs])[0]

    def figures(self, logs):
        return complete(dict(zip(self.names, np.exp(logs), strict=True)), self.cpu, self.memory)

    def errors(self, points):
        """Returns each point's logarithms of (planned / measured) step times, then its distances from the start."""
        planned = self.planner.all_seconds([(run, self.figures(point)) for point in points for run in self.runs])
        ratios = np.reshape(planned, (len(points), -1)) / self.measured
        return np.hstack([np.log(ratios), self.pull * (points - self.start)])

    def slopes(self):
        """Returns the derivative of each error by the logarithm of each figure."""
        width = 1e-3
        return (self.errors(self.logs + width * np.eye(len(self.logs))) - self.off) / width

    def step(self, slopes, damping):
        """Returns the damped step, with each component limited to the examined range."""
        normal = slopes @ slopes.T
        normal += damping * np.diag(np.maximum(np.diag(normal), 1e-12))
        return np.clip(np.linalg.solve(normal, -slopes @ self.off), -1, 1)

    def run(self):
        damping = 1e-2
        for _ in range(ROUNDS):
            slopes, better = self.slopes(), False
            while not better and damping < 1e8:
                move = self.step(slopes, damping)
                there = np.clip(self.logs + move, self.start - FARTHEST, self.start + FARTHEST)
                off = self.errors([there])[0]
                better = off @ off < self.off @ self.off
                damping *= 0.1 if better else 10
            if not better:
                break
            self.logs, self.off = there, off
            damping = max(damping, 1e-9)
            if np.max(abs(move)) < SETTLED:
                break
        return self.figures(self.logs)


# ---- one measured step -----------------------------------------------------------------------------------------------


def scaled(options):
    """Writes a section with the one figure that makes the plan of a configuration take the measured step time."""
    found = re.fullmatch(r"step=(\d+(?:\.\d*)?)(ms|s)", str(options.runs[0]))
    if found is None or len(options.runs) > 1:
        raise Failure(f"{options.runs[0]}: write one step's time as step=58s or step=812ms, and no runs next to it")
    if options.config is None or options.check:
        raise Failure("step=TIME needs the configuration of the run, -c CONFIG, and checks no other runs")
    measured = float(found[1]) * (1e-3 if found[2] == "ms" else 1)
    programs = [trainer(family, options.bin) for family in ("llama", "gpt")]

    def planned(efficiency):
        keys = {"hardware.matmul_efficiency": f"{efficiency:.12g}", "hardware.profile": ""}
        _, told = ask_family(options.config, "--plan", "--json", *options_of(keys), programs=programs)
        return json.loads(told)["step_ms"] / 1000

    least = planned(1)
    if not least <= measured < planned(0.02):
        raise Failure(
            f"a step of {measured:.4g} s is not one of products alone: with all at the peak it takes {least:.4g} s")
    low, high = 0.02, 1.0  # the step falls as the efficiency grows
    for _ in range(20):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if planned(middle) < measured else (middle, high)
    text = (
        f"# Scaled to one measured step of {measured:.4g} s by studies/calibrate.py; put it into the configuration.\n"
        f"hardware:\n  matmul_efficiency: {math.sqrt(low * high):.5g}\n  calibrated: true\n"
    )
    write(text, options)


def write(text, options):
    if options.output is None:
        print(text, end="")
    else:
        write_file(options.output, text)


# ---- words -----------------------------------------------------------------------------------------------------------


def section(figures, runs, planner):
    lines = [
        f"# Fitted to {len(runs)} run{'s' if len(runs) > 1 else ''} by studies/calibrate.py; put it into a"
        " configuration."
    ]
    keys = {key: value for key, value in figures.items() if key not in ("action_us", "step_overhead_ms")
            or value >= 0.01}
    if planner.peak is not None:
        lines.append(f"# peak_tflops is of one of {runs[0].world} ranks: all ranks of this host together have"
                     f" {planner.peak:.4g}.")
        keys = {"device": "cpu", "peak_tflops": planner.peak / runs[0].world} | keys
    keys["calibrated"] = "true"
    rows = (f"  {key}: {value if isinstance(value, str) else f'{value:.5g}'}" for key, value in keys.items())
    return "\n".join([*lines, "hardware:", *rows, ""])


def compare(title, runs, seconds):
    print(f"{title:<40}  measured  +- noise   planned    error")
    for run, planned in zip(runs, seconds, strict=True):
        print(f"  {run.name:<38} {1000 * run.seconds:8.1f}  {100 * run.spread:6.1f} %  {1000 * planned:8.1f} "
              f" {100 * (planned / run.seconds - 1):+6.1f} %")


def main(options):
    if any(str(run).startswith("step=") for run in options.runs):
        scaled(options)
        return
    if options.skip < 0:
        raise Failure(f"--skip {options.skip}: give 0 or more steps")
    if not 0 <= options.quantile <= 1:
        raise Failure(f"--quantile {options.quantile}: give a fraction from 0 to 1")
    if not 0 <= options.noise < math.inf:
        raise Failure(f"--noise {options.noise}: give a fraction of 0 or more")
    runs = [read_run(path, options) for path in options.runs]
    others = [read_run(path, options) for path in options.check]
    if len({run.on_cpu for run in runs + others}) > 1:
        raise Failure("some runs were on CPUs and some on GPUs; calibrate each by itself")
    with tempfile.TemporaryDirectory() as folder:
        planner = Planner(runs + others, folder, options.bin)
        if runs[0].on_cpu:
            planner.peak = sorted(run.peak for run in runs)[len(runs) // 2]
        fit = Fit(runs, planner, options.noise)
        compare("before", runs, [run.seconds * math.exp(error) for run, error in zip(runs, fit.off)])
        figures = fit.run()
        compare("fitted", runs, [run.seconds * math.exp(error) for run, error in zip(runs, fit.off)])
        if others:
            compare("predicted", others, planner.all_seconds([(run, figures) for run in others]))
        text = section(figures, runs, planner)
    if len(runs) < len(fit.names):
        print(f"{len(runs)} runs for {len(fit.names)} figures: those that runs do not tell apart are near what was"
              " assumed before")
    write(text, options)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument(
        "--check", type=Path, nargs="+", default=[], metavar="RUN", help="runs to predict with what was fitted")
    parser.add_argument(
        "-o", dest="output", type=Path, metavar="FILE", help="write the section here instead of to standard output")
    parser.add_argument("-c", dest="config", type=Path, metavar="CONFIG", help="configuration of the run of step=TIME")
    parser.add_argument("--bin", type=Path, help="folder of the trainers")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="device of the runs with hardware.device auto")
    parser.add_argument("--skip", type=int, default=2, help="first steps that do not count (default 2)")
    parser.add_argument(
        "--noise", type=float, default=0.02, help="expected difference of equal runs, a fraction (default 0.02)")
    parser.add_argument(
        "--quantile", type=float, default=0.5, help="quantile of a run's step times; 0: the fastest step (default 0.5)")
    sys.exit(finish("calibrate", main, parser.parse_args()))

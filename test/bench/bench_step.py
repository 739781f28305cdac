#!/usr/bin/env python3
"""Prints one table of ratios, each with its goal. The training step of GPT-2 124M (4 sequences of 64, all cores) is
compared with its products, llm.c, PyTorch and bf16, and flash attention over long sequences with its products. `make
bench-step` runs it.

Every round measures each side once, one after another, so that both sides of a ratio see the same minutes; the table
has the median over the rounds. No round starts after BENCH_MINUTES (7). PyTorch is measured if the interpreter that
runs this file has it, and llm.c if LLM_C names a checkout of it; the table lists comparisons that were not measured.
"""

import array
import os
import random
import re
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import bench

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "7"))
MINUTES = float(os.environ.get("BENCH_MINUTES", "7"))
LLM_C = os.environ.get("LLM_C", "")
PROGRAMS = os.environ.get("TEST_PROGRAMS", "build/release/test")
START_SECONDS = 240  # time limit for another program's start, including PyTorch's compiler
STEP_SECONDS = 120


class Beside:
    """Another program that measures on request. `why` is the reason once it has stopped measuring, else empty."""

    def __init__(self, command, why="", **options):
        self.why, self.process = why, None
        if not why:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            self.process = subprocess.Popen(command, bufsize=0, **pipes, **options)

    def line(self, seconds):
        """Returns its next line, or None if the program has ended. Ends the program if no line comes in time."""
        if not self.process:
            return None
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            self.end(f"it took more than {seconds} s")
            return None
        text = self.process.stdout.readline().decode()
        if not text:
            self.end("it ended")
        return text or None

    def end(self, why=""):
        if self.process:
            self.process.kill()
            self.process.communicate()
            self.process, self.why = None, why


class Torch(Beside):
    """Runs steps of torch_gpt2.py. The process keeps the model loaded and compiled between rounds."""

    def __init__(self, *options):
        found = subprocess.run([sys.executable, "-c", "import torch; print(hasattr(torch, 'compile'))"],
                               capture_output=True, text=True)
        why = "" if found.returncode == 0 else "PyTorch is not installed"
        if not why and "compile" in options and "True" not in found.stdout:
            why = "this PyTorch has no torch.compile"
        super().__init__([sys.executable, "test/bench/torch_gpt2.py", *options], why)
        self.line(START_SECONDS)

    def measure(self):
        if self.process:
            self.process.stdin.write(b"\n")
        text = self.line(STEP_SECONDS)
        return float(text) if text else None


class Llmc(Beside):
    """llm.c's CPU trainer, stopped between rounds. It gets random weights and tokens: values do not affect the time."""

    SIZES = [1024, 50257, 12, 12, 768, 50304]

    def __init__(self, folder):
        program, source = os.path.join(folder, "train_gpt2"), os.path.join(LLM_C, "train_gpt2.c")
        why = "" if LLM_C and os.path.exists(source) else "LLM_C names no checkout of it"
        if not why:
            compiler = ["gcc", "-Ofast", "-march=native", "-fopenmp", source, "-o", program, "-lm"]
            if subprocess.run(compiler, capture_output=True).returncode != 0:
                why = "it does not compile"
            self.write_inputs(folder)
        super().__init__(["stdbuf", "-oL", program], why, cwd=folder)
        self.step()  # the first step allocates
        self.pause()

    def write_inputs(self, folder):
        length, vocab, layers, _, width, padded = self.SIZES
        draw = random.Random(1)
        some = array.array("f", (draw.gauss(0, 0.02) for _ in range(1 << 16)))
        count = (padded + length) * width + layers * (12 * width * width + 13 * width) + 2 * width
        with open(os.path.join(folder, "gpt2_124M.bin"), "wb") as file:
            array.array("i", [20240326, 3, *self.SIZES] + [0] * 248).tofile(file)
            for at in range(0, count, len(some)):
                some[: count - at].tofile(file)
        place = os.path.join(folder, "dev/data/tinyshakespeare")
        os.makedirs(place)
        for name in ("train", "val"):
            with open(os.path.join(place, f"tiny_shakespeare_{name}.bin"), "wb") as file:
                array.array("i", [20240520, 1, 1 << 16] + [0] * 253).tofile(file)
                array.array("H", (draw.randrange(vocab) for _ in range(1 << 16))).tofile(file)

    def pause(self):
        if self.process:
            self.process.send_signal(signal.SIGSTOP)

    def step(self):
        """Returns the milliseconds of its next step, without the validation that precedes every tenth step."""
        while text := self.line(STEP_SECONDS):
            if found := re.search(r"took ([0-9.]+) ms", text):
                return float(found[1])
        return None

    def measure(self):
        if self.process:
            self.process.send_signal(signal.SIGCONT)
        self.step()  # not counted: its clock ran while the process was stopped
        time_taken = self.step()
        self.pause()
        return time_taken


def products():
    """Returns the milliseconds of the step's products, measured now: in our tiles, and at oneDNN's peak."""
    command = [os.path.join(PROGRAMS, "bench_ops"), "0", "linear"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    peak = float(re.search(r"share of ([0-9.]+)", said)[1])
    gflop, seconds = map(float, re.search(r"all of a step +([0-9.]+) GFLOP in ([0-9.]+) s", said).groups())
    return 1e3 * seconds, 1e3 * gflop / peak


def measure_rounds(beside):
    """Returns a dict of times by side for each round; the time is None if the side was not measured."""
    rounds, start = [], time.monotonic()
    while len(rounds) < ROUNDS and (not rounds or time.monotonic() - start < 60 * MINUTES):
        tiles, peak = products()
        sides = {"tiles": tiles, "peak": peak, "fp32": bench.run("train_gpt", bench.GPT2_124M, ["train.steps=5"])[0]}
        sides["bf16"] = bench.run("train_gpt", bench.GPT2_124M, ["train.steps=5", "train.precision=bf16"])[0]
        for name, program in beside.items():
            sides[name] = program.measure()
        both = [sides[name] for name in ("eager", "compiled") if sides[name]]
        sides["quickest"] = min(both) if both else None
        rounds.append(sides)
        known = ", ".join(f"{name} {value:.0f}" for name, value in sides.items() if value)
        print(f"  round {len(rounds)}, ms: {known}", flush=True)
    return rounds


def row(name, ratios, goal=None, above=False, why=""):
    """Prints a row of the table. above: the goal is a minimum instead of a maximum."""
    if not ratios:
        print(f"{name:<46}  not measured: {why}")
        return
    middle = statistics.median(ratios)
    text = f"{name:<46} {middle:7.3f}  {min(ratios):6.3f} to {max(ratios):6.3f}"
    if goal:
        reached = middle >= goal if above else middle <= goal
        text += f"   {'at least' if above else 'at most'} {goal:.2f}   {'reached' if reached else 'missed'}"
    print(text)


def has_bf16():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        return "avx512_bf16" in file.read()


def step_rows(rounds, beside):
    def ratios(above, below):
        return [sides[above] / sides[below] for sides in rounds if sides[above] and sides[below]]

    def why(*names):
        return "; ".join(dict.fromkeys(beside[name].why for name in names if beside[name].why))

    row("fp32 step / its products at oneDNN's peak", ratios("fp32", "peak"), 1.10)
    row("products in our tiles / at oneDNN's peak", ratios("tiles", "peak"))
    row("bf16 step / fp32 step", ratios("bf16", "fp32"), 0.70 if has_bf16() else 1.02)
    row("llm.c / fp32 step", ratios("llm.c", "fp32"), 6.0, True, why("llm.c"))
    row("PyTorch fp32 eager / fp32 step", ratios("eager", "fp32"), why=why("eager"))
    row("PyTorch fp32 compiled / fp32 step", ratios("compiled", "fp32"), why=why("compiled"))
    row("PyTorch fp32, the quicker / fp32 step", ratios("quickest", "fp32"), 1.5, True, why("eager", "compiled"))
    row("PyTorch bf16 autocast / bf16 step", ratios("autocast", "bf16"), why=why("autocast"))


def flash_rows():
    command = [os.path.join(PROGRAMS, "bench_ops"), "1", "long"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for length, forward, backward in re.findall(r"^ *(\d+)  forward ([0-9.]+),.*backward ([0-9.]+),", said, re.M):
        goal = 1.10 if int(length) > 2048 else None
        row(f"flash forward / its products, s = {length}", [float(forward)], goal)
        row(f"flash backward / its products, s = {length}", [float(backward)], goal)


def main():
    start, load = time.monotonic(), os.getloadavg()[0]
    sys.stdout.reconfigure(line_buffering=True)
    print(f"GPT-2 124M, B=4, T=64, {os.cpu_count()} cores; load {load:.1f} at the start")
    with tempfile.TemporaryDirectory() as folder:
        beside = {"eager": Torch(), "compiled": Torch("compile"), "autocast": Torch("bf16"), "llm.c": Llmc(folder)}
        rounds = measure_rounds(beside)
        for program in beside.values():
            program.end()
    print(f"{'ratio':<46}  median  smallest to largest   goal")
    step_rows(rounds, beside)
    flash_rows()
    minutes = (time.monotonic() - start) / 60
    print(f"{len(rounds)} rounds, {minutes:.1f} minutes; load {os.getloadavg()[0]:.1f} at the end", flush=True)
    if load > 1:  # load average of the minute before the start
        print("Other programs ran at the start: wall-clock ratios are doubtful on a busy machine.")


if __name__ == "__main__":
    main()

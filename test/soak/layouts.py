#!/usr/bin/env python3
"""Draws configurations at random, any keys together, and compares each with one stage of the same model and data.

    test/soak/layouts.py 1 100                 # the seeds 1 to 100; make programs virtual first
    test/soak/layouts.py --check bits --keys parallel.pipeline=2 train.steps=3 / parallel.pipeline=3

A seed draws a tiny model, its data, a layout, three further layouts, and which of the expensive checks run. A failure
is reported with as few keys as still fail, and with the command that repeats it.
"""

import argparse
import functools
import json
import math
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import numpy

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "support")]

import trainer_runs  # noqa: E402
import virtual_runs  # noqa: E402
from layouts_list import changed  # noqa: E402
from layouts_case import (  # noqa: E402
    BASE, FREE, THREADS, WIDE, Case, listed, number, one_rank, one_stage, ranks, without,
)

# Relative bounds of (losses and the first gradient norm) between sums in another order.
ROUNDING = {"fp32": 1e-5, "bf16": 1e-2, "fp8": 5e-2}
# Bounds of the gradient of a tensor.
TENSORS = {"fp32": 1e-5, "bf16": 3e-2, "fp8": 0.2}
GPUS = ("h100", "b200")
VERIFY = Path(__file__).resolve().parents[2] / "scripts" / "verify.py"
FILE_REPLACES = {"schedule.name", "schedule.chunks", "schedule.group", "schedule.delay", "schedule.slices",
                 "schedule.slots",
                 "schedule.split_backward", "schedule.load_ahead", "schedule.evict_to", "schedule.bpipe"}  # fmt: skip


# The values of a row in a plan's table; the last two are of evictions.
ROW = ("name", "chunks", "slices", "group", "delay", "split_backward", "recompute_layers", "recompute", "bpipe",
       "evict_to",
       "slots", "load_ahead")  # fmt: skip


class Broken(Exception):
    def __init__(self, check, text):
        super().__init__(f"{check}: {text}")
        self.check = check


class Refused(Exception):
    """A configuration that --plan refuses."""


def require(condition, check, text):
    if not condition:
        raise Broken(check, text)


def last_line(text):
    return (text.strip().splitlines() or [""])[-1]


class Bench:
    """A folder with the data and the base configuration, and the programs that run there."""

    def __init__(self, folder):
        self.folder, self.config = folder, folder / "base.yaml"
        self.plans = {}  # of the seed's configurations
        sizes = {"a_0": 10000, "a_1": 3000, "b": 10000, "val": 80000, "wide_0": 10000, "wide_1": 3000}
        for seed, (name, count) in enumerate(sizes.items(), 1):
            tokens = trainer_runs.made_tokens(count, WIDE if "wide" in name else 61, seed)
            trainer_runs.write_tokens(folder / f"{name}.bin", tokens)
        self.config.write_text("".join(f"{section}: {text}\n" for section, text in BASE.items()))

    def run(self, keys, *arguments, virtual=False, before=(), **changes):
        """Runs a trainer to its end, however it ends, and reads its metrics. before: a program that starts it."""
        family = keys.get("model.family", "llama")
        program = virtual_runs.VIRTUAL / f"train_{family}" if virtual else None
        env = trainer_runs.environment(
            OMP_NUM_THREADS=keys.get(THREADS, "1"), ONEDNN_MAX_CPU_ISA="AVX2", VIRTUAL_RACES="0", **changes)
        try:
            ended = trainer_runs.run(
                self.config, {key: value for key, value in keys.items() if key != THREADS}, family=family,
                program=program, prefix=before, arguments=arguments, env=env, cwd=self.folder, errors="replace",
                code=None, limit=100)
        except subprocess.TimeoutExpired:
            raise Broken("ends", f"{' '.join(arguments)} takes more than 100 s") from None
        ended.metrics.unlink(missing_ok=True)
        return ended

    def plan(self, keys):
        """Returns the run of --plan --json, which drawing and several checks need."""
        name = str(sorted(keys.items()))
        if name not in self.plans:
            self.plans[name] = self.run(keys, "--plan", "--json", "-q")
        return self.plans[name]

    def legal(self, keys):
        return self.plan(keys).code != 2

    def clear(self):
        self.plans.clear()
        for path in self.folder.glob("run_*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def path(self, kind):
        return self.folder / f"run_{kind}_{uuid.uuid4().hex[:8]}"


def digits(ended, after=0):
    """Returns all losses and norms of training and validation with the digits that determine their bits."""
    return [(line["type"], line["step"], *re.findall(r'"(?:loss|grad_norm)":([^,}]+)', text))
            for text, line in ((text, json.loads(text)) for text in ended.lines)
            if line["type"] in ("step", "val") and line["step"] > after]  # fmt: skip


def apart(found, wanted, loss_bound, norm_bound, norms=1):
    """Returns where losses, or the first `norms` gradient norms, differ by more than the bounds."""
    if [line[:2] for line in found] != [line[:2] for line in wanted]:
        return f"lines {[line[:2] for line in found]} and not {[line[:2] for line in wanted]}"
    for at, (left, right) in enumerate(zip(found, wanted)):
        for value, other, bound in zip(left[2:], right[2:], (loss_bound, norm_bound if at < norms else None)):
            if bound is not None and not abs(float(value) - float(other)) <= bound * abs(float(other)):
                return f"{' '.join(map(str, left))} and not {' '.join(map(str, right))}"
    return None


def gradients(folder):
    """Returns the gradients of the first step by tensor, which its first moments are in proportion to."""
    moments = trainer_runs.tensors_of(folder / "step_00000001", "optimizer-*")
    return {name: values.ravel().astype(float) for name, values in moments.items()
            if name.endswith((".exp_avg", ".momentum_buffer"))}


def unlike(folder, wanted, precision):
    """Returns which tensor's gradient differs by more than the bound of its norm, and of the whole norm's thousandth.

    Below fp32 a router's near tie may send a token to another expert: the bound of the experts, of their router and of
    the norm before them is one of the whole norm.
    """
    bound = TENSORS[precision]
    found, wanted = gradients(folder), gradients(wanted)
    whole = math.sqrt(sum(numpy.dot(part, part) for part in wanted.values()))
    routed = precision != "fp32" and any(".experts." in name for name in wanted)
    for name, right in wanted.items():
        error, norm = (numpy.linalg.norm(part) for part in (found[name] - right, right))
        tied = routed and any(part in name for part in (".mlp.", ".block_sparse_moe.", ".post_attention_layernorm."))
        if not error <= bound * (norm + (1 if tied else 1e-3) * whole):
            return f"{name} is off by {error:.3g} of {norm:.3g}; all gradients have {whole:.3g}"
    return None


class Trial:
    """One configuration, with the runs that several checks need."""

    def __init__(self, bench, keys, others=(), seed=0):
        self.bench, self.keys, self.others, self.seed = bench, keys, list(others), seed
        self.folders = {}

    def saving(self, keys):
        folder = self.bench.path("saved")
        return {**keys, "checkpoint.dir": folder, "checkpoint.every": 1, "checkpoint.keep": 9}, folder

    def train(self, keys, *arguments, **more):
        """Trains with a checkpoint at every step and requires that the run ends as its plan says."""
        keys, folder = self.saving(keys)
        ended = self.bench.run(keys, *arguments, **more)
        require(ended.code == 0, "ends", f"the plan is legal, the run ends with {ended.code}: {ended.stderr[-600:]}")
        ended.folder = folder
        return ended

    @property
    def precision(self):
        return "fp8" if "train.fp8" in self.keys else self.keys.get("train.precision", "fp32")

    @functools.cached_property
    def main(self):
        return self.train(self.keys)

    @functools.cached_property
    def alone(self):
        return self.train(one_stage(self.keys))

    def plan(self, keys):
        ended = self.bench.plan(keys)
        require(ended.code in (0, 2), "ends", f"--plan ends with {ended.code}: {ended.stderr[-600:]}")
        return json.loads(ended.stdout) if ended.code == 0 else None

    def same(self, check, found, wanted, what=""):
        if found != wanted:
            raise Broken(check, f"{what} {next((a, b) for a, b in zip([*found, None], [*wanted, None]) if a != b)}")

    # ---- checks -----------------------------------------------------------------------------------------------------

    def ends(self):
        """--plan accepts what a run accepts; both refuse with the same sentence."""
        planned = self.bench.plan(self.keys)
        if planned.code == 2:
            ended = self.bench.run(self.keys, "-q")
            said = last_line(ended.stderr), last_line(planned.stderr)
            require(ended.code == 2 and said[0] == said[1], "ends",
                    f"the run: {ended.code} {said[0]}; the plan: {said[1]}")
        else:
            self.main  # noqa: B018

    def bits(self):
        self.same("bits", digits(self.main), digits(self.alone))

    def bytes(self):
        require("memory    as planned, to the byte" in self.main.stderr, "bytes", self.main.stderr[-600:])
        planned = [stage["peak_bytes"] for stage in self.plan(self.keys)["stages"]]
        self.same("bytes", [stage["peak_bytes"] for stage in self.main.steps[-1]["stages"]], planned)

    def saved(self):
        """Weights and moments of all steps have the same bytes."""
        self.same_files(self.main.folder, self.alone.folder)

    def same_files(self, folder, wanted, check="saved"):
        names = sorted(path.relative_to(folder) for path in folder.rglob("*.safetensors"))
        require(names != [], check, f"no checkpoint in {folder}")
        for name in names:
            require((folder / name).read_bytes() == (wanted / name).read_bytes(), check, f"{name} has other bytes")

    def one_rank(self):
        bound = ROUNDING[self.precision]
        alone = self.train(one_rank(self.keys))
        routed = "model.experts" in self.keys  # rounding moves tokens to other experts: few in fp32, many in 16 bits
        compared = slice(1) if routed else slice(None)
        why = apart(digits(self.main)[compared], digits(alone)[compared], bound,
                    math.inf if routed and bound > 1e-5 else bound)
        why = why or None if routed and bound > 1e-5 else why or unlike(self.main.folder, alone.folder,
                                                                        self.precision)
        require(why is None, "one_rank", why)

    def file(self):
        """The printed schedule is proved, and runs from a file; so do changes of it that the proof accepts."""
        if "train.batch_ramp" in self.keys:
            return
        draw, path = random.Random(self.seed), self.bench.path("schedule")
        printed = self.bench.run(self.keys, "--schedule", "-q")
        require(printed.code == 0, "file", printed.stderr[-600:])
        path.write_text(printed.stdout)
        keys = {**without(self.keys, FILE_REPLACES | {"parallel.shard_gradients"}), "schedule.file": path}
        self.runs_as_main(keys)
        accepted = printed.stdout
        for _ in range(20):
            path.write_text(changed(accepted, draw))
            told = self.bench.run(keys, "--schedule", "-q")
            require(told.code in (0, 2), "file", f"{told.code} {told.stderr[-300:]}\n{path.read_text()}")
            accepted = path.read_text() if told.code == 0 else accepted
        path.write_text(accepted)
        self.runs_as_main(keys)

    def runs_as_main(self, keys):
        ended = self.bench.run(keys)
        require(ended.code == 0, "file", f"{ended.stderr[-600:]}\n{keys['schedule.file'].read_text()}")
        self.same("file", digits(ended), digits(self.main), keys["schedule.file"].read_text())

    def resume(self):
        """Runs resume in other layouts, one from the other, and with other sums."""
        folder, steps = self.main.folder, number(self.keys, "train.steps", 2)
        kept = without(self.keys, FREE)
        for at, other in enumerate(self.others[: steps - 1], 1):
            ended = self.train({**kept, **other}, "--resume", folder / f"step_{at:08}")
            self.same("resume", digits(ended), digits(self.main, at), f"layout {at}")
            folder = ended.folder
        last = f"step_{steps:08}"
        self.same_files(folder / last, self.main.folder / last, "resume")
        if steps > 1 and self.precision == "fp32":
            ended = self.train(one_rank(self.keys), "--resume", self.main.folder / "step_00000001")
            compared = slice(1) if "model.experts" in self.keys else slice(None)
            why = apart(digits(ended)[compared], digits(self.main, 1)[compared], ROUNDING["fp32"], ROUNDING["fp32"])
            require(why is None, "resume", f"one rank: {why}")

    def forward(self):
        """--validate and --generate give the same in another layout as on one stage."""
        kept, said = without(self.keys, FREE), []
        asked = [("--validate", "--json"), ("--generate", "1 2 3")][: 1 if "model.causal" in self.keys else 2]
        for keys in (one_stage(self.keys), *({**kept, **other} for other in self.others[:1])):
            keys = {**keys, "data.val": "val.bin"}
            for words in asked:
                ended = self.bench.run(keys, *words, "-q", "--resume", self.alone.folder)
                require(ended.code == 0, "forward", f"{words[0]}: {ended.code} {ended.stderr[-600:]}")
                said.append(ended.stdout)
        self.same("forward", said, said[: len(asked)] * (len(said) // len(asked)))

    def ends_well(self, check, *words, **more):
        ended = self.bench.run({**self.keys, **more}, "-q", *words)
        require(ended.code == 0, check, f"{' '.join(map(str, words))}: {ended.code} {ended.stderr[-600:]}")
        return ended

    def verify(self):
        if ranks(without(self.keys, {"parallel.pipeline"})) > 2:
            return  # it tries up to four stages, and so many ranks take too long
        ended = self.bench.run(self.keys, before=(sys.executable, VERIFY, "1"))
        require(ended.code == 0 or "nothing was compared" in ended.stderr, "verify",
                f"{ended.code} {ended.stdout} {ended.stderr[-600:]}")

    def profile(self):
        if {"schedule.slices", "parallel.context"} & set(self.keys):
            return  # profiles have no times for either
        path = self.bench.path("profile")
        self.ends_well("profile", "--profile", **{"hardware.profile": path})
        self.ends_well("profile", "--plan", **{"hardware.profile": path})

    def emulate(self):
        if not {"parallel.context", "parallel.tensor", "parallel.expert"} & set(self.keys):
            self.ends_well("emulate", "--emulate-stage", "all")

    def trace(self):
        for words in ((), ("--plan",)):
            path = self.bench.path("trace")
            self.ends_well("trace", "--trace", path, *words)
            require(len(json.loads(path.read_text())) > 0, "trace", "has no events")

    def on_gpu(self, check, keys, gpu, **more):
        """Runs on virtual GPUs; returns the run, or None if plan and run refuse with the same sentence."""
        keys = {**keys, "hardware.device": "cuda", "hardware.gpu": gpu, "hardware.reserve_gib": 2}
        plan = self.bench.plan(keys)
        ended = self.bench.run(keys, virtual=True, **more)
        said = last_line(ended.stderr), last_line(plan.stderr)
        if plan.code == 2:
            require(ended.code == 2 and said[0] == said[1], check,
                    f"the run: {ended.code} {said[0]}; the plan: {said[1]}")
            return None
        require(ended.code == 0, check, f"the plan is legal, the run ends with {ended.code}: {ended.stderr[-900:]}")
        require("as planned, to the byte" in ended.stderr, check, ended.stderr[-600:])
        peaks = [stage["peak_bytes"] for stage in ended.steps[-1]["stages"]]
        self.same(check, peaks, [stage["peak_bytes"] for stage in json.loads(plan.stdout)["stages"]],
                  "bytes of stages:")
        return ended

    def dry(self):
        if ranks(self.keys) > 4 and self.seed % 8 != 0:
            return  # eight of them take as long as all other checks together
        if "sample.every" not in self.keys:  # nothing is computed, so that there is nothing to sample from
            self.on_gpu("dry", self.keys, GPUS[self.seed % 2], VIRTUAL_DRY="1")

    def virtual(self):
        if ranks(self.keys) > 4:
            return  # they take too long
        keys, folder = self.saving(self.keys)
        ended = self.on_gpu("virtual", keys, "b200" if self.keys.get("train.fp8") == "mx" else "h100")
        if ended is not None:
            loss, norm = virtual_runs.BOUNDS["fp32" if self.precision == "fp32" else "bf16"]
            found, wanted = digits(ended), digits(self.main)
            later = loss if self.precision == "fp32" else ROUNDING[self.precision]  # a large step magnifies rounding
            why = apart(found[:1], wanted[:1], loss, norm) or apart(found, wanted, later, norm)
            why = why or unlike(folder, self.main.folder, self.precision)
            require(why is None, "virtual", why)

    def table(self):
        """The plan's verdict and `best` agree with its table, and the values of a row give its figures again."""
        draw = random.Random(self.seed)
        machine = {"device": "cuda", "gpu": "h100", "reserve_gib": 0, "memory_gib": draw.choice([0.05, 0.08, 1, 80]),
                   "network_gb_s": draw.choice([1, 25])}  # fmt: skip
        keys = without(self.keys, {"parallel.layers"}) | {f"hardware.{name}": value for name, value in machine.items()}
        told = self.plan(keys)
        if told is None:
            return
        rows, best, verdict = told["schedules"], told["best"], told["verdict"]
        fitting = [row["step_ms"] for row in rows if row["fits"]]
        require(len({json.dumps(row) for row in rows}) == len(rows) > 0, "table", "a row comes twice")
        require((best is None) == (fitting == []), "table", f"best is {best}, {len(fitting)} rows fit")
        # A row that evicts is best only if it saves more than a thousandth of a step.
        require(best is None or (rows[best]["fits"] and rows[best]["step_ms"] <= min(fitting) * 1.0011), "table", best)
        words = ("Yes" if verdict["use_bpipe"] else "No", "Cannot be told apart")
        require(verdict["reason"].startswith(words), "table", verdict)
        for row in rows:
            require(0 <= row["bubble"] < 1 and row["step_ms"] > 0 and row["peak_bytes"] > 0, "table", row)
            require(row["bpipe"] == "on" or row["transfer_exposed_ms"] == 0, "table", row)
            owns = {"group": row["name"] == "gis", "delay": row["name"] == "zb-d", "load_ahead": row["bpipe"] == "on"}
            require(all((row[key] is not None) == owned for key, owned in owns.items()), "table", row)
        row = draw.choice(rows)
        named = {key: row[key] for key in ROW if row[key] is not None and (row["bpipe"] == "on" or key not in ROW[-2:])}
        named = {f"schedule.{key}": value for key, value in named.items()}
        modes = row["attention"] if isinstance(row["attention"], str) else listed(row["attention"])
        again = self.plan({**without(keys, FILE_REPLACES), **named, "attention.mode": modes})
        require(again is not None, "table", f"the plan refuses its row {row}")
        stages = again["stages"]
        found = {**again, "peak_bytes": max(stage["peak_bytes"] for stage in stages),
                 "fits": all(stage["fits"] for stage in stages)}  # fmt: skip
        for key in ("peak_bytes", "fits", "step_ms", "bubble", "transfer_exposed_ms"):
            require(abs(found[key] - row[key]) <= 1e-9 * max(1, abs(row[key])), "table", f"{key} {found[key]}: {row}")

    def check(self, name):
        if name != "ends" and not self.bench.legal(self.keys):
            raise Refused
        getattr(self, name)()


# Each check with the share of seeds that run it; a run of several ranks takes fifty times as long as a plan.
CHECKS = {"ends": 1, "bits": 1, "bytes": 1, "saved": 1, "one_rank": 0.5, "file": 0.15, "resume": 0.12, "forward": 0.06,
          "verify": 0.05, "profile": 0.02, "emulate": 0.07, "trace": 0.05, "table": 0.4, "dry": 0.04,
          "virtual": 0.08}  # fmt: skip


def parts(names, size):
    return [names[at : at + size] for at in range(0, len(names), size)]


def refused(text):
    return "the plan is legal" in text


def shrink(trial, broken):
    """Returns the layouts without every key that the failure does not need, and its message."""
    text, check = "", broken.check

    def fails(layouts):
        nonlocal text
        smaller = Trial(trial.bench, layouts[0], layouts[1:], trial.seed)
        try:
            smaller.check(check)
        except Broken as found:
            if found.check == check and refused(str(found)) == refused(str(broken)):
                text = str(found)
                return True
        except (Refused, OSError, ValueError):
            pass
        finally:
            trial.bench.clear()
        return False

    layouts = [dict(trial.keys), *trial.others]
    for at in range(len(layouts) - 1, 0, -1):
        fewer = layouts[:at] + layouts[at + 1 :]
        layouts = fewer if fails(fewer) else layouts
    size = len(layouts[0])
    while size > 0:
        before = layouts
        for at in range(len(layouts)):
            for names in parts(list(layouts[at]), size):
                fewer = [*layouts[:at], without(layouts[at], names), *layouts[at + 1 :]]
                layouts = fewer if fails(fewer) else layouts
        size = size // 2 if size > 1 or layouts == before else 1
    if not fails(layouts):
        text = "it does not fail again"
    return layouts, text


def words(*layouts):
    return " / ".join(shlex.join(f"{key}={value}" for key, value in keys.items()) for keys in layouts)


def report(trial, broken, whole):
    print(f"seed {trial.seed}: {broken}\n    whole: {words(whole.keys, *whole.others)}", flush=True)
    layouts, text = shrink(trial, broken)
    command = f"test/soak/layouts.py --check {broken.check} --keys {words(*layouts)}"
    print(f"    fails: {command}\n    with: {text}", flush=True)


def one_case(bench, case):
    """Runs the checks of a case; returns its first failure as (trial, Broken, the drawn trial), or None."""
    trial = Trial(bench, case.keys, case.others, case.seed)
    trials = [(Trial(bench, keys, (), case.seed), "ends") for keys in case.refused[:4]]
    trials += [(trial, name) for name in case.checks]
    try:
        for each, name in trials:
            try:
                each.check(name)
            except Broken as broken:
                return each, broken, trial
    finally:
        bench.clear()
    return None


def one(bench, seed):
    return one_case(bench, Case(seed, bench.legal, CHECKS))


def parsed(words):
    """Returns the configurations of these words, which a slash separates."""
    layouts = [{}]
    for word in words:
        layouts = [*layouts, {}] if word == "/" else [*layouts[:-1], {**layouts[-1], **dict([word.split("=", 1)])}]
    return layouts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", nargs="?", type=int, default=1)
    parser.add_argument("count", nargs="?", type=int, default=1 if len(sys.argv) > 1 else 1000)
    parser.add_argument("--check", choices=CHECKS)
    parser.add_argument("--keys", default=[], nargs="*")
    asked, failed, began = parser.parse_args(), 0, time.monotonic()
    with tempfile.TemporaryDirectory(prefix="layouts_") as folder:
        bench = Bench(Path(folder))
        if asked.check:
            keys, *others = parsed(asked.keys)
            Trial(bench, keys, others, asked.seed).check(asked.check)
            return 0
        for seed in range(asked.seed, asked.seed + asked.count):
            failure = one(bench, seed)
            failed += failure is not None
            if failure is not None:
                report(*failure)
    used = os.times()
    used = f"{time.monotonic() - began:.0f} s, of processors {used.children_user + used.children_system:.0f} s"
    print(f"{asked.count} seeds, {failed} failed, {used}")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())

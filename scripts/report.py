#!/usr/bin/python3
"""Makes one HTML page of a run: its course, its cost, and a comparison with the plan.

    scripts/report.py RUN_DIR [-o FILE]        RUN_DIR contains metrics.jsonl, and possibly trace*.json and plan.json
    scripts/report.py METRICS --trace TRACE --plan PLAN -o FILE
    scripts/report.py RUN_DIR --follow          rewrites the page until the run's last step
    scripts/report.py PLAN.json|SEARCH.json|SWEEP.json [--trace TRACE] [-o FILE]      output of --json, for a meeting

The page needs no network and no other file; it is readable on a phone, in dark mode and on paper. Without a plan, the
trainer next to this folder makes one, with the configuration in the metrics file.
"""

import argparse
import contextlib
import json
import sys
import tempfile
import time
from pathlib import Path

import report_plan
from report_plan import document, escape, figure, table, tiles, timeline
from run_files import GIB, MIB, Failure, Metrics, NoStepYet, Plan, Trace
from run_files import ask, finish, form_of, read_text, trainer, write_file

HERE = Path(__file__).resolve().parent


# ---- the files of a run ----------------------------------------------------------------------------------------------


class Run:
    """A metrics file, with its trace and its plan, each of which may be None."""

    def __init__(self, options):
        folder = options.run if options.run.is_dir() else None
        path = folder / "metrics.jsonl" if folder else options.run
        if folder and not path.exists():
            raise Failure(f"{folder}: holds no metrics.jsonl; name one with log.metrics, or give the file")
        self.metrics = Metrics(path, read_text(path))
        with form_of(path, "metrics file: its line of type run is incomplete"):
            self.head = self.metrics.head
            self.config = self.head["config"]
            self.family = self.config["model"]["family"]
        traces = [options.trace] if options.trace else sorted(folder.glob("trace*.json"))[:1] if folder else []
        self.trace = Trace(traces[0], options.step) if traces else None
        self.plan = self.find_plan(options.plan, folder)
        # If a run was resumed with another layout, each layout is compared with its own plan.
        self.plans = [self.make_plan(part.head["config"]) for part in self.metrics.parts[:-1]] + [self.plan]
        if self.plan and len(self.plan.peak) != len(self.metrics.peak):
            raise Failure(
                f"{self.plan.name}: is a plan of {len(self.plan.peak)} stages, the run has {len(self.metrics.peak)};"
                " give a plan of the same configuration")

    def find_plan(self, given, folder):
        path = given or (folder / "plan.json" if folder else None)
        if given or (path and path.exists()):
            return Plan(path, read_text(path))
        return self.make_plan(self.config)

    def make_plan(self, config):
        """Plans the run: JSON is YAML, so the trainer reads the configuration in the metrics file."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "config.yaml"
            path.write_text(json.dumps(config), encoding="utf-8")
            try:
                return Plan(Path("plan"), ask(trainer(self.family), path, "--plan", "--json"))
            except (Failure, OSError):
                return None


# ---- words -----------------------------------------------------------------------------------------------------------


def size(count):
    unit, name = (GIB, "GiB") if count >= GIB else (MIB, "MiB")
    return f"{count / unit:.2f} {name}" if count < 100 * unit else f"{count / unit:,.0f} {name}"


def count_of(value):
    for unit, name in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if value >= unit:
            return f"{value / unit:.3g} {name}"
    return f"{value:,.0f}"


def duration(seconds):
    if seconds < 60:
        return f"{seconds:.1f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02} min" if hours else f"{seconds / 60:.1f} min"


def describe(head):
    """Returns one line about the model and one about how it is split over ranks."""
    model, parallel, schedule, train = (head["config"][section]
                                        for section in ("model", "parallel", "schedule", "train"))
    heads = f"{model['heads']} heads" + (f" ({model['kv_heads']} of keys and values)"
                                         if model["kv_heads"] != model["heads"] else "")
    what = (f"{model['family']}, {head['parameters']:,} parameters: {model['layers']} layers of {model['hidden']},"
            f" {heads}, {model['seq_len']} tokens a sequence")
    context = f" × context {parallel['context']}" if parallel.get("context", 1) > 1 else ""
    world = (f"{head['world']} ranks: pipeline {parallel['pipeline']} × tensor {parallel['tensor']} × data"
             f" {parallel['data']}{context}, {train['precision']}")
    bpipe = {"on": "with BPipe", "off": "without BPipe", "auto": "BPipe where it pays"}[schedule["bpipe"]]
    return (what,
            f"{world}; {schedule['name']} {bpipe}, {head['microbatches']} microbatches of {schedule['micro_batch']}")


def summary(run):
    metrics = run.metrics
    last = max(metrics.steps)
    shown = [(f"{last:,} of {run.config['train']['steps']:,}", "steps"),
             (f"{metrics.loss[max(metrics.loss)]:.4f}", "loss of the last step")]
    if metrics.vals:
        best = min(metrics.vals, key=metrics.vals.get)
        shown.append((f"{metrics.vals[best]:.4f}", f"best validation loss, step {best:,}"))
    shown += [(f"{metrics.median('step_ms'):,.1f} ms", "a step"),
              (f"{metrics.median('tokens_per_s'):,.0f}", "tokens a second")]
    if metrics.median("mfu") is not None:
        shown.append((f"{100 * metrics.median('mfu'):.1f} %", "MFU, attention in full"))
    shown += [(f"{100 * metrics.median('bubble'):.1f} %", "bubble"),
              (size(max(metrics.peak)), "fullest rank"),
              (count_of(sum(entry["tokens"] for entry in metrics.steps.values())), "tokens seen"),
              (duration(sum(entry["step_ms"] for entry in metrics.steps.values()) / 1e3), "in steps")]
    starts = f" The file holds {len(metrics.heads)} starts, of {len(metrics.parts)} layouts."
    starts = starts if len(metrics.heads) > 1 else ""
    medians = ("Times and rates are medians of all steps of the last layout but the first, which also warms up."
               if len(metrics.steps) > 1 else "")
    note = f'<p class="note">{medians}{starts}</p>'
    return tiles(shown) + note


# ---- pictures --------------------------------------------------------------------------------------------------------


def curves(run):
    steps = run.metrics.steps
    marks = [[step, "resumed"] for step in run.metrics.resumes()]

    def of(key, scale=1):
        return {step: scale * entry[key] for step, entry in steps.items() if entry.get(key) is not None}

    def plot(title, y_name, series, **more):
        drawn = [{"name": name, "color": color, "points": sorted(values.items()), "dots": dots}
                 for name, color, values, dots in series if values]
        plots = [{"series": drawn, "xName": "step", "yName": y_name, "marks": marks, **more}]
        return figure({"kind": "plots", "plots": plots}, title) if drawn else ""

    loss = [("training", "F", run.metrics.loss, False), ("validation", "B", run.metrics.vals, True)]
    experts = {step: entry["experts"] for step, entry in steps.items() if entry.get("experts")}

    def load(key):
        return {step: told[key] for step, told in experts.items() if told.get(key) is not None}

    def extreme(choose):
        """Returns the tokens of the most or the least used expert of a layer over the mean, where they were logged."""
        return {step: choose(choose(row) * len(row) / sum(row) for row in told["tokens"] if row)
                for step, told in experts.items() if told.get("tokens")}

    evaluations = {}  # name -> {step: % right}
    for step, accuracies in run.metrics.evals.items():
        for name, accuracy in accuracies.items():
            evaluations.setdefault(name, {})[step] = 100 * accuracy
    pictures = [
        plot("Loss", "Loss, nats a token", loss),
        *(plot(name, f"{name}, % right", [("accuracy", "B", right, True)]) for name, right in evaluations.items()),
        plot("Gradient norm", "Gradient norm before clipping", [("norm", "L", of("grad_norm"), False)], log=True),
        plot("Balance loss", "Balance loss of the experts; 1: even", [("loss", "F", load("balance_loss"), False)]),
        plot("Experts", "Tokens over the mean", [
            ("fullest rank", "F", load("fullest"), False),
            ("standard deviation of experts", "L", load("spread"), False),
            ("most used expert", "B", extreme(max), False), ("least used expert", "E", extreme(min), False),
        ], zero=True),
        plot("Learning rate", "Learning rate", [("lr", "E", of("lr"), False)], zero=True),
        plot("MFU", "MFU, %, attention in full", [("MFU", "F", of("mfu", 100), False)], zero=True),
        plot("Tokens a second", "Tokens a second, all ranks", [("tokens/s", "E", of("tokens_per_s"), False)],
             zero=True),
        plot("Idle", "Idle, % of the pipeline's time", [("bubble", "limit", of("bubble", 100), False)], zero=True),
    ]
    many = len(steps) > 600
    note = '<p class="note">Means of neighbouring steps, with a band from least to most.</p>' if many else ""
    return f'<h2>Course</h2>{note}<div class="charts">{"".join(pictures)}</div>'


def memory(run):
    blocks = [{"title": "measured", "stages": run.metrics.stages}]
    if run.plan:
        blocks.insert(0, {"title": "planned", "stages": run.plan.stages})
    limit = run.config["hardware"].get("memory_gib")
    limit = GIB * (limit - run.config["hardware"]["reserve_gib"]) if isinstance(limit, (int, float)) else 0
    picture = {"kind": "memory", "blocks": blocks, "limit": limit}
    return "<h2>Memory</h2>" + figure(picture, "Peak of the fullest rank of each stage")


def part_rows(plan, part):
    """Returns the rows of one layout: planned, measured, and by how much the plan is off."""

    def off(planned, measured):
        return f"{100 * (planned / measured - 1):+.1f} %"

    step, rows = part.median("step_ms"), []
    if plan.step_ms is not None:
        rows.append(("step, ms", f"{plan.step_ms:,.1f}", f"{step:,.1f}", off(plan.step_ms, step)))
    for what, key, planned in (("bubble, %", "bubble", plan.bubble), ("MFU, %", "mfu", plan.mfu)):
        measured = part.median(key)
        if planned is not None and measured is not None:
            apart = f"{100 * (planned - measured):+.1f} points"
            rows.append((what, f"{100 * planned:.1f}", f"{100 * measured:.1f}", apart))
    for stage, (planned, measured) in enumerate(zip(plan.peak, part.peak)):
        equal = "nothing, to the byte" if planned == measured else off(planned, measured)
        rows.append((f"peak of stage {stage}", size(planned), size(measured), equal))
    return rows


def against_plan(run):
    parts = ""
    for part, plan in zip(run.metrics.parts, run.plans):
        steps = f"Steps {min(part.steps):,} to {max(part.steps):,}: {describe(part.head)[1]}"
        title = f"<h3>{escape(steps)}</h3>" if len(run.plans) > 1 else ""
        if plan is None:
            parts += title + ("<p>No plan: the trainer is missing, or refuses this configuration.</p>" if title else "")
            continue
        head = ("", "planned", "measured", "the plan is off by")
        note = f'<p class="note">Planned from {escape(plan.source)}. BPipe? {escape(plan.reason)}</p>'
        parts += f"{title}{note}{table(head, part_rows(plan, part))}"
    return f"<h2>Plan and run</h2>{parts}" if parts else ""


# ---- the page --------------------------------------------------------------------------------------------------------


def page(run, refresh):
    with form_of(run.metrics.name, "run whose metrics make a report: something in them is missing"):
        what, spread = describe(run.head)
        step = "<h2>Pipeline</h2>" + timeline(run.trace) if run.trace else ""
        parts = [summary(run), curves(run), memory(run), step, against_plan(run)]
        config = json.dumps(run.config, indent=1)
    return document(run.metrics.name,
                    f'<h1>{escape(run.metrics.name)}</h1><p>{escape(what)}</p><p class="soft">{escape(spread)}</p>\n'
                    + "\n".join(part for part in parts if part)
                    + f"\n<details><summary>Configuration</summary><pre>{escape(config)}</pre></details>", refresh)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, metavar="RUN_DIR",
                        help="a folder with metrics.jsonl, a metrics file, or what --json wrote")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="without it report.html in RUN_DIR")
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="written by --trace; without it the first trace*.json in RUN_DIR")
    parser.add_argument("--step", help="step of the trace; default: the second, since the first includes warm-up")
    parser.add_argument(
        "--plan", type=Path, metavar="FILE", help="written by --plan --json; without it plan.json in RUN_DIR")
    parser.add_argument("--follow", action="store_true",
                        help="rewrite the page of a run until its last step; it reloads itself")
    options = parser.parse_args()
    if options.output is None:
        folder = options.run if options.run.is_dir() else options.run.parent
        options.output = folder / (f"{options.run.stem}.html" if options.run.suffix == ".json" else "report.html")
    return options


EVERY = 5  # seconds between two checks of a run that is followed


def follow(options):
    """Rewrites the page whenever the metrics have grown, until the run's last step."""
    path = options.run / "metrics.jsonl" if options.run.is_dir() else options.run
    seen = -1
    while True:
        grown = path.stat().st_size if path.exists() else 0
        if grown != seen:
            with contextlib.suppress(NoStepYet):
                run = Run(options)
                done = max(run.metrics.steps) >= run.config["train"]["steps"]
                write_file(options.output, page(run, 0 if done else EVERY))
                if done:
                    return
        seen = grown
        time.sleep(EVERY)


def make(options):
    if report_plan.kind_of(options.run):
        write_file(options.output, report_plan.page(options.run, options.trace))
    elif options.follow:
        follow(options)
    else:
        write_file(options.output, page(Run(options), 0))


if __name__ == "__main__":
    sys.exit(finish("report.py", make, arguments()))

#!/usr/bin/python3
"""Makes one HTML page of a run: what it did, what it took, and what the plan had said.

    scripts/report.py RUN_DIR [-o FILE]        RUN_DIR holds metrics.jsonl, and maybe trace*.json and plan.json
    scripts/report.py METRICS --trace TRACE --plan PLAN -o FILE
    scripts/report.py PLAN.json|SEARCH.json|SWEEP.json [--trace TRACE] [-o FILE]      what --json wrote, for a meeting

The page needs no network and no other file; it is readable on a phone, in the dark and on paper. Without a plan the
trainer beside this folder is asked for one, with the configuration that the metrics file holds.
"""

import argparse
import html
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import report_charts as charts
import report_plan
from run_files import GIB, MIB, Failure, Metrics, Plan, Trace, find_trainer, finish, form_of, read_text, replacing

HERE = Path(__file__).resolve().parent


# ---- what there is ---------------------------------------------------------------------------------------------------


class Run:
    """A metrics file, with its trace and its plan, each of which may be None."""

    def __init__(self, options):
        folder = options.run if options.run.is_dir() else None
        path = folder / "metrics.jsonl" if folder else options.run
        if folder and not path.exists():
            raise Failure(f"{folder}: holds no metrics.jsonl; name one with log.metrics, or give the file")
        self.metrics = Metrics(path, read_text(path))
        self.name = path.stem if path.stem != "metrics" else path.absolute().parent.name
        with form_of(path, "metrics file: its line of type run is incomplete"):
            self.head = self.metrics.head
            self.config = self.head["config"]
            self.family = self.config["model"]["family"]
            self.activations = [
                int(stage["activation_bytes"]) for stage in self.metrics.steps[max(self.metrics.steps)]["stages"]
            ]
        traces = [options.trace] if options.trace else sorted(folder.glob("trace*.json"))[:1] if folder else []
        self.trace = Trace(traces[0], options.step) if traces else None
        self.plan = self.find_plan(options.plan, folder)
        if self.plan and len(self.plan.peak) != len(self.metrics.peak):
            raise Failure(
                f"{self.plan.name}: is a plan of {len(self.plan.peak)} stages, the run has {len(self.metrics.peak)};"
                " give a plan of the same configuration"
            )

    def find_plan(self, given, folder):
        path = given or (folder / "plan.json" if folder else None)
        if given or (path and path.exists()):
            return Plan(path, read_text(path))
        return self.make_plan()

    def make_plan(self):
        """Plans the run: JSON is YAML, so the trainer reads the configuration in the metrics file."""
        trainer = find_trainer(self.family)
        if trainer is None:
            return None
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "config.yaml"
            path.write_text(json.dumps(self.config), encoding="utf-8")
            try:
                ended = subprocess.run(
                    [trainer, "-c", path, "--plan", "--json"], capture_output=True, text=True, timeout=60
                )
            except (OSError, subprocess.TimeoutExpired):
                return None
        return Plan(Path("plan"), ended.stdout) if ended.returncode == 0 else None


# ---- words -----------------------------------------------------------------------------------------------------------


def escape(text):
    return html.escape(str(text), quote=True)


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


def tile(value, what):
    return f"<li><b>{escape(value)}</b><small>{escape(what)}</small></li>"


def describe(run):
    """Returns one line about the model and one about how it is split over ranks."""
    model, parallel, schedule, train = (run.config[section] for section in ("model", "parallel", "schedule", "train"))
    heads = f"{model['heads']} heads" + (
        f" ({model['kv_heads']} of keys and values)" if model["kv_heads"] != model["heads"] else ""
    )
    what = (
        f"{model['family']}, {run.head['parameters']:,} parameters: {model['layers']} layers of {model['hidden']},"
        f" {heads}, {model['seq_len']} tokens a sequence"
    )
    world = (
        f"{run.head['world']} ranks: pipeline {parallel['pipeline']} × tensor {parallel['tensor']} × data"
        f" {parallel['data']}, {train['precision']}"
    )
    bpipe = {"on": "with BPipe", "off": "without BPipe", "auto": "BPipe where it pays"}[schedule["bpipe"]]
    return (
        what,
        f"{world}; {schedule['name']} {bpipe}, {run.head['microbatches']} microbatches of {schedule['micro_batch']}",
    )


def summary(run):
    metrics = run.metrics
    last = max(metrics.steps)
    tiles = [
        tile(f"{last:,} of {run.config['train']['steps']:,}", "steps"),
        tile(f"{metrics.loss[max(metrics.loss)]:.4f}", "loss of the last step"),
    ]
    if metrics.vals:
        best = min(metrics.vals, key=metrics.vals.get)
        tiles.append(tile(f"{metrics.vals[best]:.4f}", f"best validation loss, step {best:,}"))
    tiles.append(tile(f"{metrics.median('step_ms'):,.1f} ms", "a step"))
    tiles.append(tile(f"{metrics.median('tokens_per_s'):,.0f}", "tokens a second"))
    if metrics.median("mfu") is not None:
        tiles.append(tile(f"{100 * metrics.median('mfu'):.1f} %", "MFU, attention in full"))
    tiles.append(tile(f"{100 * metrics.median('bubble'):.1f} %", "bubble"))
    tiles.append(tile(size(max(metrics.peak)), "fullest rank"))
    tiles.append(tile(count_of(sum(entry["tokens"] for entry in metrics.steps.values())), "tokens seen"))
    tiles.append(tile(duration(sum(entry["step_ms"] for entry in metrics.steps.values()) / 1e3), "in steps"))
    starts = f" The file holds {len(metrics.heads)} starts." if len(metrics.heads) > 1 else ""
    medians = (
        "Times and rates are medians of all steps but the first, which also warms up." if len(metrics.steps) > 1 else ""
    )
    note = f'<p class="note">{medians}{starts}</p>'
    return f'<ul class="tiles">{"".join(tiles)}</ul>{note}'


# ---- pictures --------------------------------------------------------------------------------------------------------


def evaluations(run):
    """Returns name -> {step: % right}."""
    names = dict.fromkeys(name for accuracies in run.metrics.evals.values() for name in accuracies)
    return {name: {step: 100 * of[name] for step, of in run.metrics.evals.items() if name in of} for name in names}


def curves(run):
    steps = run.metrics.steps

    def of(key, scale=1):
        return {step: scale * entry[key] for step, entry in steps.items() if entry.get(key) is not None}

    loss = [charts.Series("training", "blue", run.metrics.loss, "{:.4f}")]
    if run.metrics.vals:
        loss.append(charts.Series("validation", "orange", run.metrics.vals, "{:.4f}", dots=True))
    pictures = [
        charts.curves("Loss", "nats a token", loss),
        *(
            charts.curves(name, "% right", [charts.Series("accuracy", "orange", values, "{:.2f} %")])
            for name, values in evaluations(run).items()
        ),
        charts.curves(
            "Gradient norm", "before clipping", [charts.Series("norm", "purple", of("grad_norm"), "{:.3g}")], log=True
        ),
        charts.curves("Learning rate", "", [charts.Series("lr", "green", of("lr"), "{:.3g}")], zero=True),
        charts.curves(
            "MFU", "%, attention in full", [charts.Series("MFU", "blue", of("mfu", 100), "{:.1f} %")], zero=True
        ),
        charts.curves(
            "Tokens a second",
            "all ranks",
            [charts.Series("tokens/s", "green", of("tokens_per_s"), "{:,.0f}")],
            zero=True,
        ),
        charts.curves(
            "Idle",
            "% of the pipeline's time",
            [charts.Series("bubble", "red", of("bubble", 100), "{:.1f} %")],
            zero=True,
        ),
    ]
    many = len(steps) > charts.MOST_POINTS
    note = '<p class="note">Means of neighbouring steps, with a band from least to most.</p>' if many else ""
    return f'<h2>Course</h2>{note}<div class="charts">{"".join(picture for picture in pictures if picture)}</div>'


def memory(run):
    series = [("peak, measured", "blue", run.metrics.peak), ("of it activations, measured", "green", run.activations)]
    if run.plan:
        series.insert(0, ("peak of 1F1B without BPipe, planned", "grey", run.plan.peak_1f1b))
        if run.plan.lends:
            series.insert(1, ("peak with BPipe, planned", "orange", run.plan.peak))
    limit = run.config["hardware"].get("memory_gib")
    limit = GIB * (limit - run.config["hardware"]["reserve_gib"]) if isinstance(limit, (int, float)) else None
    # A limit far above everything would only flatten the bars.
    limit = limit if limit and limit < 3 * max(max(values) for _, _, values in series) else None
    picture = charts.bars("Peak of the fullest rank of each stage", series, size, limit)
    return f"<h2>Memory</h2>{picture}"


def timeline(run):
    if run.trace is None:
        return ""
    return f"<h2>Pipeline</h2>{charts.timeline(run.trace)}"


def against_plan(run):
    if run.plan is None:
        return ""
    plan, metrics = run.plan, run.metrics

    def row(what, planned, measured, form, off):
        return f"<tr><td>{what}</td><td>{form.format(planned)}</td><td>{form.format(measured)}</td><td>{off}</td></tr>"

    def off(planned, measured):
        return f"{100 * (planned / measured - 1):+.1f} %"

    step = metrics.median("step_ms")
    rows = row("step, ms", plan.step_ms, step, "{:,.1f}", off(plan.step_ms, step)) if plan.step_ms is not None else ""
    for what, key, planned in (("bubble, %", "bubble", plan.bubble), ("MFU, %", "mfu", plan.mfu)):
        measured = metrics.median(key)
        if planned is not None and measured is not None:
            rows += row(what, 100 * planned, 100 * measured, "{:.1f}", f"{100 * (planned - measured):+.1f} points")
    for stage, (planned, measured) in enumerate(zip(plan.peak, metrics.peak)):
        equal = "nothing, to the byte" if planned == measured else off(planned, measured)
        rows += row(f"peak of stage {stage}", size(planned), size(measured), "{}", equal)
    head = "<tr><th></th><th>planned</th><th>measured</th><th>the plan is off by</th></tr>"
    note = f'<p class="note">Planned from {escape(plan.source)}. BPipe? {escape(plan.reason)}</p>'
    return f'<h2>Plan and run</h2>{note}<div class="table"><table>{head}{rows}</table></div>'


# ---- the page --------------------------------------------------------------------------------------------------------


def page(run):
    with form_of(run.name, "run whose metrics make a report: something in them is missing"):
        what, spread = describe(run)
        parts = [summary(run), curves(run), memory(run), timeline(run), against_plan(run)]
        config = json.dumps(run.config, indent=1)
    # Nothing may be fetched, whatever a name in the files says.
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{escape(run.name)}</title><style>{(HERE / 'report.css').read_text(encoding='utf-8')}</style></head>\n"
        f'<body><main><h1>{escape(run.name)}</h1><p>{escape(what)}</p><p class="soft">{escape(spread)}</p>\n'
        + "\n".join(part for part in parts if part)
        + f"\n<details><summary>Configuration</summary><pre>{escape(config)}</pre></details></main>"
        '<div id="tip"'
        f' role="status"></div><script>{(HERE / "report.js").read_text(encoding="utf-8")}</script></body></html>\n'
    )


def arguments():
    parser = argparse.ArgumentParser(
        prog="report.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, metavar="RUN_DIR", help="a folder with metrics.jsonl, a metrics file, or what --json wrote")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="without it report.html in RUN_DIR")
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="written by --trace; without it the first trace*.json in RUN_DIR"
    )
    parser.add_argument("--step", help="which step of the trace; without it the second, since the first also warms up")
    parser.add_argument(
        "--plan", type=Path, metavar="FILE", help="written by --plan --json; without it plan.json in RUN_DIR"
    )
    options = parser.parse_args()
    if options.output is None:
        folder = options.run if options.run.is_dir() else options.run.parent
        options.output = folder / (f"{options.run.stem}.html" if options.run.suffix == ".json" else "report.html")
    return options


def make(options):
    asked = report_plan.kind_of(options.run)
    text = report_plan.page(options.run, options.trace) if asked else page(Run(options))
    with replacing(options.output) as part:
        part.write_text(text, encoding="utf-8")


def main():
    return finish("report.py", make, arguments())


if __name__ == "__main__":
    sys.exit(main())

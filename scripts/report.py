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
import html
import json
import math
import sys
import tempfile
import time
from pathlib import Path

from run_files import GIB, MIB, Failure, Metrics, NoStepYet, Plan, Trace
from run_files import ask, finish, form_of, read_text, trainer, write_file

HERE = Path(__file__).resolve().parent  # draw.js, which draws the pictures, and report.js


# ---- the frame of all pages ------------------------------------------------------------------------------------------


def escape(text):
    return html.escape(str(text), quote=True)


def seconds(ms):
    return "-" if ms is None else f"{ms / 1e3:.3g} s" if ms >= 999.5 else f"{ms:.3g} ms"


def percent(share):
    return "-" if share is None else f"{100 * share:.1f} %"


def tiles(pairs):
    """Returns an HTML list of figures. pairs: (value, label)."""
    items = (f"<li><b>{escape(value)}</b><small>{escape(what)}</small></li>" for value, what in pairs)
    return f'<ul class="tiles">{"".join(items)}</ul>'


class Markup(str):
    """The HTML of a table cell, which is not escaped again."""


def table(head, rows):
    cells = "".join(f"<th>{escape(name)}</th>" for name in head)
    written = [[cell if isinstance(cell, Markup) else escape(cell) for cell in row] for row in rows]
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in written)
    return f'<div class="table" tabindex="0"><table><tr>{cells}</tr>{body}</table></div>'


def figure(picture, title):
    """Returns a canvas with the data of a draw.js picture, for report.js; data in a page cannot end its script."""
    data = escape(json.dumps(picture))
    canvas = f'<canvas role="img" tabindex="0" aria-label="{escape(title)}" data-picture="{data}"></canvas>'
    return f"<figure>{canvas}</figure>"


def timeline(trace):
    """Returns the picture of one step."""
    traces = [{"name": trace.words, "events": trace.events}]
    return figure({"kind": "timelines", "traces": traces}, "One step")


def document(title, body, refresh=0):
    """Returns a complete page. It fetches nothing, whatever names the files contain."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    again = f'<meta http-equiv="refresh" content="{refresh}">' if refresh else ""
    style, *scripts = ((HERE / name).read_text(encoding="utf-8") for name in ("report.css", "draw.js", "report.js"))
    return ('<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">{again}'
            '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
            f"<title>{escape(title)}</title><style>{style}</style></head>\n<body><main>{body}</main>"
            f'<div id="tip" role="status"></div><script>{"".join(scripts)}</script></body></html>\n')


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
            self.done = self.metrics.reached >= self.metrics.heads[-1]["config"]["train"]["steps"]
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
    shown = [(f"{last:,} of {run.config['train']['steps']:,}", "steps")]
    if metrics.loss:
        shown.append((f"{metrics.loss[max(metrics.loss)]:.4f}", f"loss of step {max(metrics.loss):,}"))
    if metrics.vals:
        best = min(metrics.vals, key=metrics.vals.get)
        shown.append((f"{metrics.vals[best]:.4f}", f"best validation loss, step {best:,}"))
    shown += [(f"{metrics.median('step_ms'):,.1f} ms", "a step"),
              (f"{metrics.median('tokens_per_s'):,.0f}", "tokens a second")]
    if metrics.median("mfu") is not None:
        shown.append((f"{100 * metrics.median('mfu'):.1f} %", "MFU, attention in full"))
    shown += [(f"{100 * metrics.median('bubble'):.1f} %", "bubble"),
              (size(max(metrics.peak)), "fullest rank"),
              (count_of(metrics.steps[last].get("tokens_seen") or sum(one["tokens"] for one in metrics.steps.values())),
               "tokens seen"),
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
        """Returns, if logged, the tokens of a layer's most or least used expert, relative to the mean."""
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


def limit_of(config):
    """Returns the bytes that a rank may use, or 0."""
    limit, reserve = (config["hardware"].get(f"{key}_gib") for key in ("memory", "reserve"))
    return GIB * (limit - reserve) if isinstance(limit, (int, float)) else 0


def memory(run):
    blocks = [{"title": "measured", "stages": run.metrics.stages}]
    if run.plan:
        blocks.insert(0, {"title": "planned", "stages": run.plan.stages})
    picture = {"kind": "memory", "blocks": blocks, "limit": limit_of(run.config)}
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


# ---- pages of plans, searches and sweeps, for meetings about capacity ------------------------------------------------


KINDS = {"stages": "plan", "front": "search", "sweep": "sweep"}
ALSO = ("group", "delay", "slices", "recompute", "recompute_layers", "load_ahead")
# The keys that make a layout, and that names leave out where they are the same.
KEYS = {
    "parallel": ("pipeline", "tensor", "data", "context", "expert", "sequence", "overlap", "collectives", "placement",
                 "layers"),
    "schedule": ("micro_batch", "name", "chunks", "slices", "group", "delay", "split_backward", "bpipe", "evict_to",
                 "slots", "load_ahead", "recompute_layers", "recompute"),
    "attention": ("mode",),
}


def chosen(config):
    """Returns {"parallel.pipeline": 4, ...} of the keys that make a layout."""
    named = {f"{part}.{key}": config[part].get(key) for part, keys in KEYS.items() for key in keys}
    evicts = named["schedule.bpipe"] == "on"
    idle = () if evicts else ("schedule.evict_to", "schedule.slots", "schedule.load_ahead")
    return {key: value for key, value in named.items() if value is not None and key not in idle}


def layouts(configs):
    """Names layouts by ranks, micro-batch and schedule, and by the keys in which those with the same name differ."""

    def short(config):
        cut, schedule = config["parallel"], config["schedule"]
        evicts = "" if schedule["bpipe"] != "on" else ", BPipe" if schedule["evict_to"] == "peer" else ", host"
        shared = f" c={cut['context']}" if cut.get("context", 1) > 1 else ""
        ranks = f"p={cut['pipeline']} t={cut['tensor']} d={cut['data']}{shared}"
        return f"{ranks} b={schedule['micro_batch']} {schedule['name']}{evicts}"

    def words(config):
        return {f"{key.split('.')[1]} {value}" for key, value in chosen(config).items()}

    alike = {}
    for config in configs:
        alike.setdefault(short(config), []).append(words(config))
    common = {name: set.intersection(*own) for name, own in alike.items()}
    return [", ".join([short(one), *sorted(words(one) - common[short(one)])]) for one in configs]


def thousands(value):
    """Formats a number with three digits, or from 1,000 on as an integer: 15,600, not 1.56e+04."""
    return f"{value:,.0f}" if value >= 999.5 else f"{value:,.3g}"


def days_of(config, step_ms):
    """Returns the days for train.tokens, else for the tokens of train.steps."""
    train = config["train"]
    if not isinstance(tokens := train.get("tokens"), int):
        ramp = train["batch_ramp"] if isinstance(train.get("batch_ramp"), list) else [[1, train["global_batch"]]]
        begins, end = [1, *(step for step, _ in ramp[1:])], train["steps"] + 1
        steps = (max(0, min(after, end) - begin) for begin, after in zip(begins, [*begins[1:], end]))
        tokens = config["model"]["seq_len"] * sum(count * batch for count, (_, batch) in zip(steps, ramp))
    return tokens / (train["global_batch"] * config["model"]["seq_len"]) * step_ms / 864e5


def headline(config, world, days):
    """Returns the line that begins a page: model, GPUs, batch, days and price, and the command that plans it."""
    model, train, hardware = (config[part] for part in ("model", "train", "hardware"))
    hour = hardware.get("gpu_hour", "auto")
    price = None if days is None or hour in ("auto", 0) else 24 * days * world * float(hour)
    layout = " ".join(f"-o {key}={str(value).replace(' ', '').lower() if isinstance(value, (bool, list)) else value}"
                      for key, value in chosen(config).items())
    gpu = hardware["gpu"] if hardware["gpu"] != "none" else "rank" if world == 1 else "ranks"
    shown = ("an unknown time" if days is None else
             f"{thousands(24 * days)} hours" if days < 1 else f"{thousands(days)} days")
    if days is not None and hardware.get("trainer", "this") == "this":
        shown += " with nothing lost"
    name, fp8 = Path(config["checkpoint"]["dir"]).name or model["family"], train.get("fp8", "off")
    said = (f"{name}, {train['precision']}{'' if fp8 == 'off' else f' with fp8: {fp8}'}, "
            f"{model['seq_len']:,} tokens a sequence, "
            f"{train['global_batch']:,} sequences a step, on {world:,} {gpu}: {shown}"
            f"{'' if price is None else f', price {thousands(price)}'}")
    command = (f"./train_{model['family']} -c FILE -o hardware.gpu={hardware['gpu']} "
               f"-o model.seq_len={model['seq_len']} -o train.precision={train['precision']} -o train.fp8={fp8} "
               f"-o train.global_batch={train['global_batch']} {layout} --plan")
    return (f'<p><b>{escape(said)}</b></p>'
            f'<p style="overflow-wrap:anywhere"><code>{escape(command)}</code></p>')


def step_tiles(found):
    low, high = found.get("step_ms_low"), found.get("step_ms_high")
    band = [(f"{seconds(low)} to {seconds(high)}", "the band of that time")] if low and high else []
    others = [(f"{seconds(one['low_ms'])} to {seconds(one['high_ms'])}",
               f"four of five of {one['runs']} runs of {one['program']}") for one in found.get("others") or []]
    return [(seconds(found["step_ms"]), "a step" if band else "a step with nothing lost"), *band, *others,
            (percent(found["mfu"]), "MFU, attention in full")]


def plan_parts(found):
    fullest = max(found["stages"], key=lambda stage: stage["peak_bytes"])
    fits = all(stage["fits"] for stage in found["stages"])
    shown = step_tiles(found) + [
        (percent(found["bubble"]), "idle"),
        (f"{fullest['peak_bytes'] / GIB:.1f} GiB", f"stage {fullest['stage']}, the fullest"),
        ("fits" if fits else "does not fit", "with the reserve"),
        (found["world"], "ranks"),
    ]
    bill = (found.get("budget") or {}).get("whole")
    days = bill["days"] if bill else None  # without performance figures, no step is planned
    parts = [headline(found["config"], found["world"], days)] if found.get("config") else []
    parts.append(tiles(shown))
    parts.append(f"<p>Does BPipe pay? {escape(found['verdict']['reason'])}</p>")
    parts += [f"<p>Advice: {escape(sentence)}</p>" for sentence in found.get("advice") or []]
    if found.get("waterfall"):
        lines = found["waterfall"]
        rows = [(row["what"], seconds(row["ms"]), percent(row["share"]), bar(row["share"])) for row in lines]
        parts.append("<h2>Where the step goes</h2>" + table(("", "time", "share", ""), rows))
    parts += budget_parts(found.get("budget"))
    stages = [{**stage, "other": stage["peak_bytes_1f1b"]} for stage in found["stages"]]
    limit = limit_of(found["config"]) if found.get("config") else 0
    memory = {"kind": "memory", "blocks": [{"stages": stages}], "limit": limit}
    parts.append("<h2>Memory of each stage</h2>" + figure(memory, "Memory of each stage"))
    rows = sorted(found["schedules"], key=lambda row: (not row["fits"], row["step_ms"] or 0))
    head = ("schedule", "chunks", "split", "BPipe", "also", "step", "MFU", "idle", "peak", "fits")
    cells = [(row["name"], row["chunks"], row["split_backward"], row["evict_to"] if row["bpipe"] == "on" else "off",
              ", ".join(f"{key} {row[key]}" for key in ALSO if row.get(key) not in (None, 0, 1, "none", "off")),
              seconds(row["step_ms"]), percent(row["mfu"]), percent(row["bubble"]),
              f"{row['peak_bytes'] / GIB:.1f} GiB", "yes" if row["fits"] else "no") for row in rows]
    return [*parts, "<h2>All schedules of this layout</h2>" + table(head, cells), *assumptions(found)]


def bar(share):
    return Markup(f'<i class="bar" style="width:{round(320 * max(share, 0)) + 1}px"></i>')


def budget_parts(budget):
    """Returns a row for a billion tokens, and a row for the run if the plan knows its length; figures have bands."""
    names = {"billion": "a billion tokens", "whole": "the run"}
    units = {"days": "days", "gpu_hours": "GPU hours", "price": "price", "mwh": "MWh"}
    bills = {name: (budget or {}).get(key) for key, name in names.items()}
    known = [unit for unit in units if any(bill and bill.get(unit) is not None for bill in bills.values())]

    def cell(bill, unit):
        low, high = bill.get(f"{unit}_low"), bill.get(f"{unit}_high")
        band = f" ({thousands(low)} to {thousands(high)})" if low is not None and high is not None else ""
        return "-" if bill.get(unit) is None else f"{thousands(bill[unit])}{band}"

    rows = [(name, *(cell(bill, unit) for unit in known)) for name, bill in bills.items() if bill]
    if not known:
        return []
    lost = "the band of each figure" if any("days_low" in bill for bill in bills.values() if bill) else "nothing lost"
    return [f"<h2>Budget, with {lost}</h2>", table(("", *map(units.get, known)), rows)]


def assumptions(found):
    """Returns the keys of hardware that the plan uses, as the configuration resolved them."""
    keys = (found.get("config") or {}).get("hardware") or {}
    rows = [(key, value) for key, value in keys.items() if value not in ("", None, "auto")]
    return ["<h2>Assumptions</h2>", table(("hardware", ""), rows)] if rows else []


def search_parts(found):
    if found["best"] is None:
        return ["<p>Nothing fits on so many GPUs.</p>"]
    best, cut = found["best"], found["best"]["config"]["parallel"]
    *names, own = layouts([row["config"] for row in [*found["front"], best]])
    shown = step_tiles(best) + [(own, "the best"), (found["evaluated"], "plans compared")]
    points = [(row["peak_bytes"] / GIB, row["step_ms"] / 1e3, name) for row, name in zip(found["front"], names)]
    front = {"name": "front", "points": points}
    rows = [(name, seconds(row["step_ms"]), f"{row['peak_bytes'] / GIB:.1f} GiB")
            for row, name in zip(found["front"], names)]
    world = math.prod(cut.get(key, 1) for key in ("pipeline", "tensor", "data", "context"))
    there, theirs = found.get("for"), "no configuration of the other program fits"
    if there:
        theirs = (f"for the other program: {layouts([there['config']])[0]}, {seconds(there['step_ms'])} a step, "
                  f"{there['theirs_bytes'] / GIB:.1f} GiB by its bytes")
    return [
        headline(best["config"], world, days_of(best["config"], best.get("step_ms_mid") or best["step_ms"])),
        *([f"<p><b>--for:</b> {escape(theirs)}; below is what this trainer would do.</p>"] if "for" in found else []),
        tiles(shown),
        "<h2>Step time against memory of the fullest rank</h2>",
        figure({"kind": "fronts", "fronts": [front]}, "Step time against memory of the fullest rank"),
        table(("layout", "step", "memory"), rows),
    ]


def sweep_parts(found):
    keys = list(found["sweep"][0]["set"])
    rows = [[*(row["set"][key] for key in keys), seconds(row.get("step_ms")), percent(row.get("mfu")),
             f"{row['peak_bytes'] / GIB:.1f} GiB" if row.get("peak_bytes") else "-",
             row.get("refused") or ("yes" if row.get("fits") else "no")] for row in found["sweep"]]
    return [table([*keys, "step", "MFU", "peak", "fits"], rows)]


def read_answer(path):
    """Returns "plan", "search" or "sweep" and the parsed answer; None twice if the file is not one of --json."""
    if path.is_dir() or path.suffix != ".json" or (text := read_text(path)).startswith('{"type":"run"'):
        return None, None
    with form_of(path, "plan, search or sweep; make one with --plan, --search or --sweep and --json"):
        found = json.loads(text)
        return [(name, found) for key, name in KINDS.items() if key in found][0]


def answer_page(path, kind, found, trace):
    """trace: a file written by --plan --trace, or None."""
    with form_of(path, f"{kind}; make one with --{kind} and --json"):
        parts = {"plan": plan_parts, "search": search_parts, "sweep": sweep_parts}[kind](found)
    if trace is not None:
        parts.insert(3, "<h2>One step</h2>" + timeline(Trace(trace, None)))
    return document(
        path.stem,
        f'<h1>{escape(path.stem)}: {kind}</h1><p class="soft">Times rest on a model of the hardware; bytes are those'
        " that a run allocates.</p>\n" + "\n".join(parts))


# ---- the page of a run -----------------------------------------------------------------------------------------------


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
        answer = options.run.suffix == ".json" and not options.run.is_dir()
        folder = options.run if options.run.is_dir() else options.run.parent
        options.output = folder / (f"{options.run.stem}.html" if answer else "report.html")
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
                write_file(options.output, page(run, 0 if run.done else EVERY))
                if run.done:
                    return
        seen = grown
        time.sleep(EVERY)


def make(options):
    kind, found = read_answer(options.run)
    if kind:
        write_file(options.output, answer_page(options.run, kind, found, options.trace))
    elif options.follow:
        follow(options)
    else:
        write_file(options.output, page(Run(options), 0))


if __name__ == "__main__":
    sys.exit(finish("report.py", make, arguments()))

"""Pages of plans, searches and sweeps, for meetings about capacity, and the frame of all reports. draw.js draws the
pictures in the page; the page of `make explore` and plot.py use it, too."""

import html
import json
import math
import re
from pathlib import Path

from run_files import GIB, Trace, form_of, read_text

HERE = Path(__file__).resolve().parent
KINDS = {"stages": "plan", "front": "search", "sweep": "sweep"}


def escape(text):
    return html.escape(str(text), quote=True)


def kind_of(path):
    """Returns "plan", "search" or "sweep" for a file that --json wrote, None for any other."""
    if path.is_dir() or path.suffix != ".json":
        return None
    with form_of(path, "plan, search or sweep; make one with --plan, --search or --sweep and --json"):
        found = json.loads(read_text(path))
        return [name for key, name in KINDS.items() if key in found][0]


def seconds(ms):
    return "-" if ms is None else f"{ms / 1e3:.3g} s" if ms >= 999.5 else f"{ms:.3g} ms"


def percent(share):
    return "-" if share is None else f"{100 * share:.1f} %"


def tiles(pairs):
    """Returns a list of figures, each a value and what it is."""
    items = (f"<li><b>{escape(value)}</b><small>{escape(what)}</small></li>" for value, what in pairs)
    return f'<ul class="tiles">{"".join(items)}</ul>'


class Markup(str):
    """A cell that already is HTML."""


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
        evicts = f", BPipe to {schedule['evict_to']}" if schedule["bpipe"] == "on" else ""
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
    """Returns three digits, and all of a number of thousands: 15,600, not 1.56e+04."""
    return f"{value:,.0f}" if value >= 999.5 else f"{value:,.3g}"


def headline(config, world, step_ms, bill):
    """Returns the line that begins a page: model, GPUs, batch, days and price, and the command that plans it."""
    model, train, hardware = (config[part] for part in ("model", "train", "hardware"))
    days = train["steps"] * step_ms / 864e5 if bill is None else bill["days"]
    hour = hardware.get("gpu_hour", "auto")
    price = None if hour in ("auto", 0) else 24 * days * world * float(hour)
    layout = " ".join(f"-o {key}={str(value).replace(' ', '').lower() if isinstance(value, (bool, list)) else value}"
                      for key, value in chosen(config).items())
    gpu = "ranks" if hardware["gpu"] == "none" else hardware["gpu"]
    shown = f"{thousands(24 * days)} hours" if days < 1 else f"{thousands(days)} days"
    said = (f"{Path(config['checkpoint']['dir']).name}, {train['precision']}, {model['seq_len']:,} tokens a sequence, "
            f"{train['global_batch']:,} sequences a step, on {world:,} {gpu}: {shown}"
            f"{'' if price is None else f', price {thousands(price)}'}")
    command = (f"./train_{model['family']} -c FILE -o hardware.gpu={hardware['gpu']} "
               f"-o model.seq_len={model['seq_len']} -o train.precision={train['precision']} "
               f"-o train.global_batch={train['global_batch']} {layout} --plan")
    return (f'<p><b>{escape(said)}</b></p>'
            f'<p style="overflow-wrap:anywhere"><code>{escape(command)}</code></p>')


# ---- content by kind of file -----------------------------------------------------------------------------------------


def step_tiles(found):
    low, high = found.get("step_ms_low"), found.get("step_ms_high")
    band = [(f"{seconds(low)} to {seconds(high)}", "the band of that time")] if low and high else []
    return [(seconds(found["step_ms"]), "a step"), *band, (percent(found["mfu"]), "MFU, attention in full")]


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
    parts = [headline(found["config"], found["world"], found["step_ms"], bill)] if found.get("config") else []
    parts.append(tiles(shown))
    parts.append(f"<p>Does BPipe pay? {escape(found['verdict']['reason'])}</p>")
    parts += [f"<p>Advice: {escape(sentence)}</p>" for sentence in found.get("advice") or []]
    if found.get("waterfall"):
        lines = found["waterfall"]
        rows = [(row["what"], seconds(row["ms"]), percent(row["share"]), bar(row["share"])) for row in lines]
        parts.append("<h2>Where the step goes</h2>" + table(("", "time", "share", ""), rows))
    parts += budget_parts(found.get("budget"))
    stages = [{**stage, "other": stage["peak_bytes_1f1b"]} for stage in found["stages"]]
    memory = {"kind": "memory", "blocks": [{"stages": stages}], "limit": limit_of(found)}
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
    return ["<h2>Budget, with the band of each figure</h2>", table(("", *map(units.get, known)), rows)]


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
    there, theirs = found.get("for"), "nothing that the other program can do fits"
    if there:
        theirs = (f"for the other program: {layouts([there['config']])[0]}, {seconds(there['step_ms'])} a step, "
                  f"{there['theirs_bytes'] / GIB:.1f} GiB by its bytes")
    return [
        headline(best["config"], world, best["step_ms"], None),
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


def limit_of(found):
    """Returns the bytes that a rank may use, as the verdict's sentence names them, or 0."""
    named = re.search(r"([\d.]+) GiB are in reserve of ([\d.]+) GiB", found["verdict"]["reason"])
    return (float(named[2]) - float(named[1])) * GIB if named else 0


def page(path, trace):
    """Returns the page of a file written by --json; trace: a file written by --plan --trace, or None."""
    kind, found = kind_of(path), json.loads(read_text(path))
    with form_of(path, f"{kind}; make one with --{kind} and --json"):
        parts = {"plan": plan_parts, "search": search_parts, "sweep": sweep_parts}[kind](found)
    if trace is not None and kind == "plan":
        parts.insert(3, "<h2>One step</h2>" + timeline(Trace(trace, None)))
    return document(
        path.stem,
        f'<h1>{escape(path.stem)}: {kind}</h1><p class="soft">Times rest on a model of the hardware; bytes are those'
        " that a run allocates.</p>\n" + "\n".join(parts))

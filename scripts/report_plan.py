"""Pages of plans, searches and sweeps, for a meeting about capacity, and the frame of all reports. Pictures are drawn in
the page by draw.js, which the page of `make explore` and plot.py use too."""

import html
import json
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
    return "-" if ms is None else f"{ms / 1e3:.3g} s" if ms >= 1e4 else f"{ms:.3g} ms"


def percent(share):
    return "-" if share is None else f"{100 * share:.1f} %"


def tile(value, what):
    return f"<li><b>{escape(value)}</b><small>{escape(what)}</small></li>"


def table(head, rows):
    cells = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="table"><table><tr>{cells}</tr>{body}</table></div>'


def figure(picture, title):
    """Returns a canvas that report.js draws a picture of draw.js on; data in a page cannot end its script."""
    data = escape(json.dumps(picture))
    return f'<figure><canvas role="img" tabindex="0" aria-label="{escape(title)}" data-picture="{data}"></canvas></figure>'


def document(title, body, refresh=0):
    """Returns a whole page. It fetches nothing, whatever a name in the files says."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    again = f'<meta http-equiv="refresh" content="{refresh}">' if refresh else ""
    style, *scripts = ((HERE / name).read_text(encoding="utf-8") for name in ("report.css", "draw.js", "report.js"))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">{again}'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{style}</style></head>\n<body><main>{body}</main>"
        f'<div id="tip" role="status"></div><script>{"".join(scripts)}</script></body></html>\n'
    )


def layout(config):
    cut, schedule = config["parallel"], config["schedule"]
    evicts = f", BPipe to {schedule['evict_to']}" if schedule["bpipe"] == "on" else ""
    return f"p={cut['pipeline']} t={cut['tensor']} d={cut['data']} b={schedule['micro_batch']} {schedule['name']}{evicts}"


# ---- what each kind of file says -------------------------------------------------------------------------------------


def step_tiles(found):
    band = [found.get("step_ms_low"), found.get("step_ms_high")]
    tiles = [tile(seconds(found["step_ms"]), "a step"), tile(percent(found["mfu"]), "MFU, attention in full")]
    if all(band):
        tiles.insert(1, tile(f"{seconds(band[0])} to {seconds(band[1])}", "the band of that time"))
    return tiles


def plan_parts(found):
    fullest = max(found["stages"], key=lambda stage: stage["peak_bytes"])
    fits = all(stage["fits"] for stage in found["stages"])
    tiles = step_tiles(found) + [
        tile(percent(found["bubble"]), "idle"),
        tile(f"{fullest['peak_bytes'] / GIB:.1f} GiB", f"stage {fullest['stage']}, the fullest"),
        tile("fits" if fits else "does not fit", "with the reserve"),
        tile(found["world"], "ranks"),
    ]
    whole = (found.get("budget") or {}).get("whole") or {}
    if whole.get("days") is not None:
        tiles += [tile(f"{whole['days']:.3g}", "days for the run"), tile(f"{whole['gpu_hours']:,.3g}", "GPU hours")]
    if whole.get("price") is not None:
        tiles.append(tile(f"{whole['price']:,.3g}", "price of the run"))
    parts = [f'<ul class="tiles">{"".join(tiles)}</ul>', f"<p>Does BPipe pay? {escape(found['verdict']['reason'])}</p>"]
    if found.get("waterfall"):
        rows = [(row["what"], seconds(row["ms"]), percent(row["share"])) for row in found["waterfall"]]
        parts.append("<h2>Where the step goes</h2>" + table(("", "time", "share"), rows))
    stages = [{**stage, "other": stage["peak_bytes_1f1b"]} for stage in found["stages"]]
    memory = {"kind": "memory", "blocks": [{"stages": stages}], "limit": limit_of(found)}
    parts.append("<h2>Memory of each stage</h2>" + figure(memory, "Memory of each stage"))
    rows = sorted(found["schedules"], key=lambda row: (not row["fits"], row["step_ms"] or 0))
    head = ("schedule", "chunks", "split", "BPipe", "step", "MFU", "idle", "peak", "fits")
    cells = [
        (row["name"], row["chunks"], row["split_backward"], row["evict_to"] if row["bpipe"] == "on" else "off",
         seconds(row["step_ms"]), percent(row["mfu"]), percent(row["bubble"]), f"{row['peak_bytes'] / GIB:.1f} GiB",
         "yes" if row["fits"] else "no")
        for row in rows
    ]  # fmt: skip
    return [*parts, "<h2>All schedules of this layout</h2>" + table(head, cells)]


def search_parts(found):
    if found["best"] is None:
        return ["<p>Nothing fits on so many GPUs.</p>"]
    best = found["best"]
    tiles = step_tiles(best) + [tile(layout(best["config"]), "the best"), tile(found["evaluated"], "plans compared")]
    points = [(row["peak_bytes"] / GIB, row["step_ms"] / 1e3, layout(row["config"])) for row in found["front"]]
    front = {"name": "front", "points": points}
    rows = [(layout(row["config"]), seconds(row["step_ms"]), f"{row['peak_bytes'] / GIB:.1f} GiB") for row in found["front"]]
    return [
        f'<ul class="tiles">{"".join(tiles)}</ul>',
        "<h2>Step time against memory of the fullest rank</h2>",
        figure({"kind": "fronts", "fronts": [front]}, "Step time against memory of the fullest rank"),
        table(("layout", "step", "memory"), rows),
    ]


def sweep_parts(found):
    keys = list(found["sweep"][0]["set"])
    rows = [
        [*(row["set"][key] for key in keys), seconds(row.get("step_ms")), percent(row.get("mfu")),
         f"{row['peak_bytes'] / GIB:.1f} GiB" if row.get("peak_bytes") else "-", row.get("refused") or ("yes" if row.get("fits") else "no")]
        for row in found["sweep"]
    ]  # fmt: skip
    return [table([*keys, "step", "MFU", "peak", "fits"], rows)]


def limit_of(found):
    """Returns the bytes that a rank may use, which the verdict's sentence names, or 0."""
    named = re.search(r"([\d.]+) GiB are in reserve of ([\d.]+) GiB", found["verdict"]["reason"])
    return (float(named[2]) - float(named[1])) * GIB if named else 0


def page(path, trace):
    """Returns the page of a file that --json wrote; trace: what --plan --trace wrote, or None."""
    kind, found = kind_of(path), json.loads(read_text(path))
    with form_of(path, f"{kind}; make one with --{kind} and --json"):
        parts = {"plan": plan_parts, "search": search_parts, "sweep": sweep_parts}[kind](found)
    if trace is not None and kind == "plan":
        step = Trace(trace, None)
        traces = [{"name": step.words, "events": step.events}]
        parts.insert(2, "<h2>One step</h2>" + figure({"kind": "timelines", "traces": traces}, "One step"))
    return document(
        path.stem,
        f'<h1>{escape(path.stem)}: {kind}</h1><p class="soft">Times rest on a model of the hardware; bytes are those'
        " that a run allocates.</p>\n" + "\n".join(parts),
    )

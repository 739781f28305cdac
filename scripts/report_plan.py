"""Pages of plans, searches and sweeps: what a meeting about capacity needs, drawn by draw.js, which the page of
`make explore` uses too."""

import html
import json
from pathlib import Path

from run_files import GIB, form_of, read_text

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


def canvas(name, title):
    return f"<h2>{escape(title)}</h2><figure><canvas id={name!r} role='img' aria-label={title!r}></canvas></figure>"


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
    parts.append(canvas("memory", "Memory of each stage"))
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
    rows = [(layout(row["config"]), seconds(row["step_ms"]), f"{row['peak_bytes'] / GIB:.1f} GiB") for row in found["front"]]
    return [
        f'<ul class="tiles">{"".join(tiles)}</ul>',
        canvas("front", "Step time against memory of the fullest rank"),
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


DRAW = """
const dark = matchMedia("(prefers-color-scheme: dark)");
function draw() {
  const colors = PALETTES[dark.matches ? "dark" : "light"], sized = (id) => [document.getElementById(id), document.getElementById(id)?.clientWidth];
  const [memory, memoryWidth] = sized("memory"), [front, frontWidth] = sized("front"), [steps, stepWidth] = sized("timeline");
  if (memory) {
    const height = FOUND.stages.length * Math.max(14, Math.min(24, 320 / FOUND.stages.length)) + 18;
    drawMemory(new CanvasPainter(memory, memoryWidth, height), colors, FOUND.stages, LIMIT, memoryWidth);
  }
  if (front) {
    const points = FOUND.front.map((row) => ({x: row.peak_bytes / GIB, y: row.step_ms / 1e3, strong: true}));
    drawFront(new CanvasPainter(front, frontWidth, 280), colors, points, {width: frontWidth, height: 280, xName: "memory, GiB", yName: "step, s"});
  }
  if (steps) {
    const trace = readTrace(TRACE), sizes = laneSizes(trace, true);
    drawTimeline(new CanvasPainter(steps, stepWidth, sizes.height), colors, trace,
                 {title: "planned", unit: {scale: 1e6, name: " s"}, width: stepWidth, top: 0, view: {from: 0, to: trace.end}, few: true});
  }
}
const box = document.getElementById("memory")?.parentNode;
for (const name of box ? Object.keys(MEMORY).filter((name) => FOUND.stages.some((stage) => stage.memory[name] > 0)) : []) {
  const key = Object.assign(document.createElement("span"), {className: "key", textContent: name.replace("_", " ") + " "});
  key.style.setProperty("--mark", MEMORY[name]);
  box.append(key);
}
draw();
addEventListener("resize", draw);
dark.addEventListener("change", draw);
"""


def page(path, trace):
    """Returns the page of a file that --json wrote; trace: what --plan --trace wrote, or None."""
    kind, found = kind_of(path), json.loads(read_text(path))
    with form_of(path, f"{kind}; make one with --{kind} and --json"):
        parts = {"plan": plan_parts, "search": search_parts, "sweep": sweep_parts}[kind](found)
    if trace is not None and kind == "plan":
        parts.insert(3, canvas("timeline", "One step"))
    words = found["verdict"]["reason"].split(" GiB") if kind == "plan" else []
    reserve = [word.rsplit(" ", 1)[-1] for word in words]
    limit = next((float(b) - float(a) for a, b, text in zip(reserve, reserve[1:], words[1:]) if "in reserve of" in text), 0)
    data = {"FOUND": found, "LIMIT": limit * GIB, "TRACE": read_text(trace) if trace is not None else ""}
    script = "".join(f"const {name} = {json.dumps(value)};\n" for name, value in data.items())
    script += (HERE / "draw.js").read_text(encoding="utf-8") + DRAW
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{escape(path.stem)}</title><style>{(HERE / 'report.css').read_text(encoding='utf-8')}"
        "canvas { display: block; width: 100%; }</style></head>\n"
        f'<body><main><h1>{escape(path.stem)}: {kind}</h1><p class="soft">Times rest on a model of the hardware; bytes'
        " are those that a run allocates.</p>\n" + "\n".join(parts) + "</main>"
        f"<script>{script.replace('</script', '<' + chr(92) + '/script')}</script></body></html>\n"
    )

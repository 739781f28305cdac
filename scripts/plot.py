#!/usr/bin/python3
"""Draws what a trainer wrote: traces (--trace FILE), plans and searches (--plan, --search with --json) and metrics.

    scripts/plot.py timeline TRACE -o FILE          who worked on what, and when, in one step of a run or a plan
    scripts/plot.py timelines TRACE... -o FILE      several of them, stacked on one scale, named after their files
    scripts/plot.py memory FILE... -o FILE          peak bytes of each stage: of a plan with and without BPipe, of runs
    scripts/plot.py curves METRICS... -o FILE       loss and MFU of one or several runs, step by step
    scripts/plot.py compare PLAN METRICS -o FILE    what a plan said against what a run measured
    scripts/plot.py search SEARCH... -o FILE        the fronts of searches: memory of the fullest rank against the step

FILE ends in .svg or .png; -o may be given several times. A picture appears complete or not at all.
"""

import argparse
import sys
from pathlib import Path

from run_files import (
    GIB,
    MIB,
    Failure,
    Metrics,
    Plan,
    Search,
    Trace,
    finish,
    read_plan_or_metrics,
    read_text,
    replacing,
)

# Blue and orange that also differ for the colour-blind, paler for the chunks after the first; transfers in green and
# purple, away and back.
COLORS = {
    "F": "#4c8fd6",
    "B": "#f0a04b",
    "I": "#f0a04b",
    "W": "#c9b458",
    "E": "#2e9e6b",
    "A": "#2e9e6b",
    "L": "#9a5fb8",
    "R": "#9a5fb8",
}
PALE = {"F": "#a9cbee", "B": "#f8d3a8", "I": "#f8d3a8", "W": "#e4dba6"}
MEANING = {
    "F": "forward",
    "B": "backward",
    "I": "gradient of the input",
    "W": "of the weights",
    "E": "bundle leaves",
    "L": "bundle comes back",
}
SERIES = ["#9aa5b1", "#2f6fb5", "#f0a04b", "#2e9e6b", "#9a5fb8", "#c0504d"]


# ---- pictures --------------------------------------------------------------------------------------------------------


def new_figure(plt, width, height, rows=1, columns=1):
    figure, axes = plt.subplots(rows, columns, figsize=(width, height), squeeze=False, layout="constrained")
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def rectangles(plt, places, **style):
    """Draws rectangles (x, y, width, height) as one path, which makes the file ten times smaller."""
    path = plt.matplotlib.path.Path
    codes = [path.MOVETO, path.LINETO, path.LINETO, path.LINETO, path.CLOSEPOLY] * len(places)
    corners = [((x, y), (x + w, y), (x + w, y + h), (x, y + h), (x, y)) for x, y, w, h in places]
    return plt.matplotlib.patches.PathPatch(path([corner for box in corners for corner in box], codes), **style)


def legend_above(axis, *what):
    axis.legend(*what, loc="lower right", bbox_to_anchor=(1, 1), ncols=4, frameon=False, borderaxespad=0.2)


def draw_lanes(plt, axis, trace, end, numbers=True):
    """Draws the actions of one trace, one lane a stage, on a scale from 0 to `end`; numbers: label the microbatches."""
    pids = sorted(trace.ranks)
    boxes = {}
    for pid, name, begin, length, microbatch in trace.rows:
        top = pids.index(pid)
        compute = name[0] in PALE
        y, height = (top - 0.4, 0.52) if compute else (top + 0.16, 0.2)
        color = (PALE if compute and chunk(name) % 2 else COLORS)[name[0]]
        boxes.setdefault((compute, color), []).append((begin, y, length, height))
        if numbers and compute and length > 0.012 * end:
            axis.text(
                begin + length / 2,
                y + height / 2,
                str(microbatch),
                ha="center",
                va="center",
                fontsize=6.5,
                color="#1c2733",
            )
    for (compute, color), places in boxes.items():
        # A transfer too short to see is drawn as a hairline.
        axis.add_patch(rectangles(plt, places, facecolor=color, edgecolor="white" if compute else color, linewidth=0.4))
    axis.set_yticks(range(len(pids)), [trace.ranks[pid].replace(" (planned)", "") for pid in pids])
    axis.set_ylim(len(pids) - 0.5, -0.55)
    axis.set_xlim(0, end)
    axis.spines["left"].set_visible(False)
    axis.tick_params(axis="y", length=0)


def chunk(name):
    """Returns the chunk of an action: 1 for "F3.1", 0 for "F3"."""
    return int(name.partition(".")[2] or 0) if name[0] in PALE else 0


def legend_of(plt, axis, traces):
    shown = [kind for kind in MEANING if any(name[0] == kind for trace in traces for _, name, *_ in trace.rows)]
    patches = [plt.Rectangle((0, 0), 1, 1, facecolor=COLORS[kind]) for kind in shown]
    words = [MEANING[kind] for kind in shown]
    if any(chunk(name) for trace in traces for _, name, *_ in trace.rows):
        patches.append(plt.Rectangle((0, 0), 1, 1, facecolor=PALE["F"]))
        words.append("second chunk")
    legend_above(axis, patches, words)


def draw_timeline(plt, options):
    trace = Trace(options.files[0], options.step)
    figure, axes = new_figure(plt, 10, 0.9 + 0.42 * len(trace.ranks))
    axis = axes[0][0]
    draw_lanes(plt, axis, trace, trace.end)
    axis.set_xlabel(f"ms, {trace.label if trace.label != 'step' else 'one planned step'}")
    legend_of(plt, axis, [trace])
    return figure


def idle(trace):
    """Returns the fraction of the time between the first and the last action in which stages are idle."""
    busy = sum(length for _, name, _, length, _ in trace.rows if name[0] in PALE)
    return 1 - busy / (len(trace.ranks) * trace.end)


def draw_timelines(plt, options):
    traces = [Trace(path, None) for path in options.files]
    end = max(trace.end for trace in traces)
    lanes = sum(len(trace.ranks) for trace in traces)
    figure, axes = new_figure(plt, 10, 0.8 + 0.24 * lanes + 0.28 * len(traces), rows=len(traces))
    for axis, path, trace in zip(axes[:, 0], options.files, traces):
        draw_lanes(plt, axis, trace, end, numbers=False)
        axis.set_yticks([])
        axis.set_xticks([])
        axis.spines["bottom"].set_visible(False)
        axis.set_title(f"{path.stem}: idle for {100 * idle(trace):.1f} %", loc="left", fontsize=8.5, pad=2)
    axes[-1][0].set_xlabel(f"time, one step each; the longest takes {end:.0f} ms")
    legend_of(plt, axes[0][0], traces)
    return figure


def bars(axis, series):
    """Draws grouped bars, one group a stage. series: (label, values in bytes)."""
    stages = max(len(values) for _, values in series)
    unit, name = (GIB, "GiB") if max(max(values) for _, values in series) >= GIB else (MIB, "MiB")
    width = 0.8 / len(series)
    for i, (label, values) in enumerate(series):
        places = [stage + (i - (len(series) - 1) / 2) * width for stage in range(len(values))]
        axis.bar(places, [value / unit for value in values], width * 0.92, label=label, color=SERIES[i % len(SERIES)])
    axis.set_xticks(range(stages))
    axis.set_xlabel("stage")
    axis.set_ylabel(f"{name} a rank, at most")
    return unit


def draw_memory(plt, options):
    series = []
    for path in options.files:
        source = read_plan_or_metrics(path)
        of = f"{source.name}: " if len(options.files) > 1 else ""
        if isinstance(source, Plan):
            series.append((f"{of}1F1B", source.peak_1f1b))
            if source.peak != source.peak_1f1b:
                series.append((f"{of}{'BPipe' if source.lends else 'as configured'}", source.peak))
        else:
            series.append((f"{of}measured", source.peak))
    figure, axes = new_figure(plt, 7.5, 3.4)
    axis = axes[0][0]
    unit = bars(axis, series)
    if options.limit is not None:
        axis.axhline(
            options.limit * GIB / unit,
            color="#c0504d",
            linewidth=1,
            linestyle="--",
            label=f"limit: {options.limit:g} GiB",
        )
    legend_above(axis)
    return figure


def draw_curves(plt, options):
    runs = [Metrics(path, read_text(path)) for path in options.files]
    mfu = all(value is not None for run in runs for value in run.mfu.values())
    figure, axes = new_figure(plt, 7.5, 5, rows=2)
    above, below = axes[0][0], axes[1][0]
    for i, run in enumerate(runs):
        color = SERIES[(i + 1) % len(SERIES)]
        marker = "o" if len(run.loss) == 1 else None
        above.plot(*zip(*sorted(run.loss.items())), color=color, linewidth=1.3, marker=marker, label=run.name)
        if run.vals:
            above.plot(*zip(*sorted(run.vals.items())), "o", color=color, markersize=4, label=f"{run.name}, validation")
        rate = {step: 100 * value for step, value in run.mfu.items()} if mfu else run.tokens
        below.plot(*zip(*sorted(rate.items())), color=color, linewidth=1.3, marker=marker)
    above.set_ylabel("loss, nats a token")
    above.legend(frameon=False)
    below.set_ylabel("MFU, %" if mfu else "tokens/s")
    below.set_ylim(bottom=0)
    below.set_xlabel("step")
    for axis in (above, below):
        axis.xaxis.get_major_locator().set_params(integer=True)
    return figure


def draw_compare(plt, options):
    sources = [read_plan_or_metrics(path) for path in options.files]
    if [type(source) for source in sources] != [Plan, Metrics]:
        raise Failure("compare wants a plan and a metrics file, in this order")
    plan, run = sources
    if len(plan.peak) != len(run.peak):
        raise Failure(
            f"{options.files[0]} has {len(plan.peak)} stages, {options.files[1]} {len(run.peak)}; give a plan of the"
            " same configuration"
        )
    pairs = [
        ("step, ms", plan.step_ms, run.median("step_ms"), 1),
        ("bubble, %", plan.bubble, run.median("bubble"), 100),
    ]
    pairs += [("MFU, %", plan.mfu, run.median("mfu"), 100)]
    pairs = [(name, a * scale, b * scale) for name, a, b, scale in pairs if a is not None and b is not None]
    figure, axes = new_figure(plt, 5.5 + 1.5 * len(pairs), 3.4, columns=1 + len(pairs))
    bars(axes[0][0], [("planned", plan.peak), ("measured", run.peak)])
    for axis, (name, planned, measured) in zip(axes[0][1:], pairs):
        drawn = axis.bar(["planned", "measured"], [planned, measured], 0.7, color=SERIES[:2])
        axis.bar_label(drawn, fmt="%.1f", fontsize=8)
        axis.set_title(name, fontsize=9)
        axis.tick_params(axis="x", labelsize=8)
    axes[0][0].set_title("peak memory", fontsize=9)
    figure.suptitle(f"planned from {plan.source}; measured: medians, without the first step", fontsize=9)
    return figure


def draw_search(plt, options):
    figure, axes = new_figure(plt, 7.5, 4)
    axis = axes[0][0]
    for i, path in enumerate(options.files):
        search = Search(path, read_text(path))
        color = SERIES[(i + 1) % len(SERIES)]
        sizes = [peak / GIB for peak in search.peak]
        # Between two of the front there is nothing: less memory costs the whole of the next step.
        axis.step(sizes, search.step, where="pre", color=color, linewidth=1, alpha=0.5)
        axis.plot(sizes, search.step, "o", color=color, markersize=4, label=search.name)
        for x, y, label in zip(sizes, search.step, search.label):
            axis.annotate(label, (x, y), xytext=(3, 4), textcoords="offset points", fontsize=6.5, rotation=25)
    axis.set_xlabel("GiB of the fullest rank")
    axis.set_ylabel("s a step")
    axis.margins(x=0.15, y=0.2)
    legend_above(axis)
    return figure


# ---- writing ---------------------------------------------------------------------------------------------------------


def load_matplotlib():
    try:
        import matplotlib
    except ImportError:
        raise Failure(
            "matplotlib is missing; run scripts/install_deps.sh, or apt-get install python3-matplotlib"
        ) from None
    matplotlib.use("Agg")
    # The same input gives the same bytes; text stays text, which keeps the files small.
    matplotlib.rcParams.update(
        {
            "svg.hashsalt": "plot",
            "svg.fonttype": "none",
            "font.size": 9,
            "font.sans-serif": ["DejaVu Sans"],
            "figure.dpi": 130,
        }
    )
    import matplotlib.pyplot as plt

    return plt


def save(figure, path):
    kind = path.suffix[1:]
    with replacing(path) as part:
        figure.savefig(part, format=kind, metadata={"Date": None} if kind == "svg" else {"Software": None})


def arguments():
    parser = argparse.ArgumentParser(
        prog="plot.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    pictures = parser.add_subparsers(
        dest="picture", required=True, metavar="timeline|timelines|memory|curves|compare|search"
    )
    kinds = (("timeline", draw_timeline, 1), ("timelines", draw_timelines, "+"), ("memory", draw_memory, "+"))
    for name, draw, count in (
        *kinds,
        ("curves", draw_curves, "+"),
        ("compare", draw_compare, 2),
        ("search", draw_search, "+"),
    ):
        picture = pictures.add_parser(name)
        picture.add_argument("files", type=Path, nargs=count, metavar="FILE")
        picture.add_argument(
            "-o", "--output", type=Path, action="append", required=True, metavar="FILE", help="ends in .svg or .png"
        )
        picture.set_defaults(draw=draw)
        if name == "timeline":
            picture.add_argument("--step", help="which one; without it the second, since the first also warms up")
        if name == "memory":
            picture.add_argument("--limit", type=float, metavar="GIB", help="a line at this height")
    options = parser.parse_args()
    for path in options.output:
        if path.suffix not in (".svg", ".png"):
            parser.error(f"{path}: pictures are .svg or .png")
    return options


def make(options):
    plt = load_matplotlib()
    figure = options.draw(plt, options)
    for path in options.output:
        save(figure, path)


def main():
    return finish("plot.py", make, arguments())


if __name__ == "__main__":
    sys.exit(main())

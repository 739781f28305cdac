#!/usr/bin/python3
"""Draws output of a trainer: traces (--trace FILE), plans and searches (--plan, --search with --json) and metrics.

    scripts/plot.py timeline TRACE -o FILE          actions of each stage over time, in one step of a run or a plan
    scripts/plot.py timelines TRACE... -o FILE      several timelines, stacked on one scale, named after their files
    scripts/plot.py memory FILE... -o FILE          peak bytes of each stage by category, of plans or runs
    scripts/plot.py curves METRICS... -o FILE       loss and MFU of one or several runs, step by step
    scripts/plot.py search SEARCH... -o FILE        the fronts of searches: memory of the fullest rank against the step

FILE ends in .svg or .png; -o may be given several times. A picture appears complete or not at all. A step too long for
the picture is drawn as its start, the number of microbatches left out, and its end; --part FROM:TO draws a part.

scripts/draw.js draws the pictures, also for pages. This script reads the files and runs draw.js with node.
"""

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

from run_files import GIB, Failure, Metrics, Plan, Trace
from run_files import finish, form_of, read_plan_or_metrics, read_text, write_file

DRAW = Path(__file__).resolve().parent / "draw.js"


# ---- pictures, in the form of draw.js --------------------------------------------------------------------------------


def part_of(words):
    """Returns [from, to] in milliseconds for "FROM:TO"."""
    try:
        begin, end = (float(word) for word in words.split(":"))
    except ValueError:
        begin = end = 0
    if not 0 <= begin < end < float("inf"):
        raise argparse.ArgumentTypeError(f"{words} is not FROM:TO in milliseconds, with FROM below TO")
    return [begin, end]


def limit_of(words):
    if not 0 < float(words) < 1e9:
        raise argparse.ArgumentTypeError(f"{words} is not a limit in GiB")
    return float(words)


def draw_timelines(options):
    """One trace has no name, and a step and --whole of its own."""
    traces = [(path, Trace(path, options.step)) for path in options.files]
    end = max(trace.end for _, trace in traces) / 1e3
    if options.part and options.part[0] >= end:
        raise Failure(f"--part: begins after the last action, which ends at {end:.6g} ms; name an earlier part")
    named = [{"name": trace.words if options.picture == "timeline" else f"{path.stem} ({trace.words})",
              "events": trace.events} for path, trace in traces]
    return {"kind": "timelines", "traces": named, "part": options.part, "whole": options.whole}


def draw_memory(options):
    sources = [read_plan_or_metrics(path) for path in options.files]
    blocks = [{"title": f"{one.name}, {'planned' if isinstance(one, Plan) else 'measured'}", "stages": one.stages}
              for one in sources]
    return {"kind": "memory", "blocks": blocks, "limit": (options.limit or 0) * GIB, "width": 800}


def draw_curves(options):
    runs = [Metrics(path, read_text(path)) for path in options.files]
    mfu = all(value is not None for run in runs for value in run.mfu.values())
    loss, rates = [], []
    for run in runs:
        if run.loss:  # a dry run has none
            loss.append({"name": run.name, "points": sorted(run.loss.items())})
        if run.vals:
            loss.append({"name": f"{run.name}, validation", "points": sorted(run.vals.items()), "dots": True})
        rate = {step: 100 * value for step, value in run.mfu.items()} if mfu else run.tokens
        rates.append({"name": run.name, "points": sorted(rate.items())})
    plots = [{"series": rates, "xName": "step", "yName": "MFU, %" if mfu else "tokens/s", "zero": True}]
    if loss:
        plots.insert(0, {"series": loss, "xName": "step", "yName": "loss, nats a token"})
    return {"kind": "plots", "plots": plots, "width": 800}


def point_of(best):
    """Returns GiB, seconds and a few words of a configuration on a front."""
    parallel, schedule = best["config"]["parallel"], best["config"]["schedule"]
    cut = "x".join(str(parallel[key]) for key in ("pipeline", "tensor", "data"))
    evicts = f", {schedule['evict_to']}" if schedule["bpipe"] == "on" else ""
    words = f"{cut} b{schedule['micro_batch']} {schedule['name']}{evicts}"
    return [best["peak_bytes"] / GIB, best["step_ms"] / 1e3, words]


def draw_search(options):
    fronts = []
    for path in options.files:
        with form_of(path, "search; make one with --search --json"):
            points = list(map(point_of, json.loads(read_text(path))["front"]))
        if not points:
            raise Failure(f"{path}: has no front, since nothing fits")
        fronts.append({"name": path.stem, "points": points})
    return {"kind": "fronts", "fronts": fronts, "limit": options.limit, "width": 800, "height": 360}


# ---- writing ---------------------------------------------------------------------------------------------------------


def run_tool(command, text, cost):
    """Returns the standard output of a program; raises Failure if the program is missing or fails."""
    program = shutil.which(command[0])
    if program is None:
        raise Failure(f"{command[0]} is missing, {cost}; run scripts/install_deps.sh")
    ended = subprocess.run([program, *command[1:]], input=text, capture_output=True, check=False)
    if ended.returncode != 0:
        raise Failure(f"{command[0]}: {ended.stderr.decode(errors='replace').strip().splitlines()[-1:] or ['failed']}")
    return ended.stdout


def svg_of(picture):
    """Returns the SVG of a picture, as described at drawPicture in draw.js."""
    return run_tool(["node", DRAW], json.dumps(picture).encode(), "which draws pictures")


def make(options):
    svg = svg_of(options.draw(options))
    for path in options.output:
        png = path.suffix == ".png"
        tool = ["rsvg-convert", "--zoom", "1.5"]
        write_file(path, run_tool(tool, svg, "which makes .png pictures") if png else svg)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    pictures = parser.add_subparsers(
        dest="picture", required=True, metavar="timeline|timelines|memory|curves|search")
    for name, draw, count in (("timeline", draw_timelines, 1), ("timelines", draw_timelines, "+"),
                              ("memory", draw_memory, "+"), ("curves", draw_curves, "+"), ("search", draw_search, "+")):
        picture = pictures.add_parser(name)
        picture.add_argument("files", type=Path, nargs=count, metavar="FILE")
        picture.add_argument(
            "-o", "--output", type=Path, action="append", required=True, metavar="FILE", help="ends in .svg or .png")
        picture.set_defaults(draw=draw)
        if name.startswith("timeline"):
            picture.add_argument("--part", type=part_of, metavar="FROM:TO", help="draw this part, in milliseconds")
        if name == "timeline":
            picture.add_argument("--whole", action="store_true", help="draw a long step without leaving anything out")
            picture.add_argument("--step", help="step to draw; default: the second, since the first includes warm-up")
        else:
            picture.set_defaults(step=None, whole=True)
        if name in ("memory", "search"):
            picture.add_argument("--limit", type=limit_of, metavar="GIB", help="draw a line at this limit")
    options = parser.parse_args()
    for path in options.output:
        if path.suffix not in (".svg", ".png"):
            parser.error(f"{path}: pictures are .svg or .png")
    return options


if __name__ == "__main__":
    sys.exit(finish("plot.py", make, arguments()))

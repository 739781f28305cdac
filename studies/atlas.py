#!/usr/bin/env python3
"""Asks --search about many models, clusters and sequences: once without evictions, once with evictions to a partner and
once to the host, and once for each kind of schedule. Writes docs/atlas.md, which says what pays where. Needs `make
programs`.

    studies/atlas.py --run 60      searches for the first 60 cases, and appends to build/atlas.jsonl
    studies/atlas.py --write       writes studies/atlas.json from it, and the page and its pictures from that

A second --run resumes: a search whose line is in the file is not repeated.
"""

import argparse
import concurrent.futures
import json
import math
import os
import random
import re
import resource
import statistics
import subprocess
import sys
import textwrap

from common import ROOT, options_of
import plot
from run_files import GIB, finish, write_file

LINES, DATA, PAGE = ROOT / "build" / "atlas.jsonl", ROOT / "studies" / "atlas.json", ROOT / "docs" / "atlas.md"
BEGIN, END = "<!-- written by studies/atlas.py -->", "<!-- end -->"

# Parameters in billions, as --plan prints them, and how often a model is drawn.
MODELS = {
    "gpt3_13b": (12.9, 1), "gpt3_175b": (174.6, 1), "llama65b": (65.3, 1), "llama3_8b": (8.03, 2),
    "llama3_70b": (70.6, 3), "qwen3_14b": (14.8, 2), "qwen3_32b": (32.8, 2), "mixtral_8x7b": (46.7, 1),
    "mixtral_8x22b": (140.6, 1), "qwen3_30b_a3b": (30.5, 1), "qwen3_235b_a22b": (235.1, 0), "deepseek_v3": (671.0, 0),
    "gpt3_96b": (96.2, 0),
}
EXPERTS = re.compile(r"_a\d|mixtral|deepseek")
# GiB, dense bf16 TFLOP/s, how often a GPU is drawn, and whether it computes in 8 bits (src/config/gpus.c).
GPUS = {"a100-40g": (40, 312, 1, False), "a100-80g": (80, 312, 2, False), "h100": (80, 989.5, 3, True),
        "h200": (141, 989.5, 1, True), "b200": (180, 2250, 2, True), "mi300x": (192, 1307.4, 1, False)}
NETWORKS = (25, 50, 100, 200, 400)
TOKENS = (2048, 4096, 8192, 8192, 32768, 131072)
STEPS = (1 << 19, 1 << 20, 1 << 22)  # tokens
FIGURES = ("step", "fast", "safe", "gib", "mfu", "doubts", "layout", "band")
CASE = ("model", "gpu", "gpus", "network", "tokens", "batch", "fp8")

# Cases that other pages name, and large ones; the first two are those of the re-evaluation of BPipe (arXiv 2401.02088).
NAMED = [
    ("gpt3_96b", "a100-80g", 32, 200, 2048, 128, "off"), ("llama65b", "a100-80g", 32, 200, 2048, 128, "off"),
    ("llama3_70b", "h100", 64, 400, 8192, 512, "off"), ("llama3_70b", "h100", 64, 50, 8192, 512, "off"),
    ("qwen3_235b_a22b", "h100", 256, 400, 4096, 1024, "off"), ("deepseek_v3", "h100", 1024, 400, 4096, 4096, "off"),
    # More GPUs than the draws reach.
    ("llama3_70b", "h100", 2048, 400, 8192, 2048, "off"), ("llama3_70b", "h100", 4096, 400, 8192, 2048, "tensor"),
    ("gpt3_175b", "a100-80g", 2048, 200, 2048, 2048, "off"), ("llama3_70b", "b200", 4096, 400, 8192, 4096, "off"),
    ("qwen3_32b", "h200", 2048, 100, 8192, 2048, "off"), ("qwen3_235b_a22b", "b200", 2048, 400, 4096, 4096, "off"),
]

OFF, PEER, HOST = ({"bpipe": "off"}, {"bpipe": "on", "evict_to": "peer"}, {"bpipe": "on", "evict_to": "host"})
KINDS = {
    "off": OFF, "peer": PEER, "host": HOST,
    "1f1b": {**OFF, "name": "1f1b"}, "1f1b peer": {**PEER, "name": "1f1b"}, "1f1b host": {**HOST, "name": "1f1b"},
    "interleaved": {**OFF, "name": "interleaved", "slices": 1, "split_backward": "off"},
    "zb-d": {**OFF, "name": "zb-d"}, "zb-v": {**OFF, "name": "zb-v"}, "dualpipe-v": {**OFF, "name": "dualpipe-v"},
}


# ---- the cases -------------------------------------------------------------------------------------------------------


def cases(count):
    """Returns the named cases, and others drawn at random, but the same ones every time."""
    draw, found = random.Random(240102088), list(NAMED)
    models, gpus = ([weight for _, weight in MODELS.values()], [weight for _, _, weight, _ in GPUS.values()])
    while len(found) < count:
        model, gpu = draw.choices(list(MODELS), models)[0], draw.choices(list(GPUS), gpus)[0]
        # 20 to 800 bytes of memory per parameter, as a power of two of GPUs.
        want = 20 * 40 ** draw.random() * MODELS[model][0] * 1e9 / (GPUS[gpu][0] * GIB)
        world, network = min(max(8, 2 ** round(math.log2(want))), 4096), draw.choices(NETWORKS)[0]
        tokens = draw.choices(TOKENS[:4] if model.startswith("gpt3") else TOKENS)[0]
        step = max(draw.choices(STEPS)[0], 4096 * world)
        eight = draw.random() < 0.4 and GPUS[gpu][3] and not EXPERTS.search(model)  # experts are computed in bf16
        case = (model, gpu, world, network, tokens, max(8, step // tokens), "tensor" if eight else "off")
        if case not in found:
            found.append(case)
    return found


# ---- searches --------------------------------------------------------------------------------------------------------


def layout_of(config):
    """Returns a layout in words: "p4 t4 d4 b1 interleaved v4 n2 split pointwise recomputed"."""
    parallel, schedule = config["parallel"], config["schedule"]
    sizes = {letter: parallel[key] for letter, key in zip("ptdce", ("pipeline", "tensor", "data", "context", "expert"))}
    words = [f"{letter}{size}" for letter, size in sizes.items() if size > 1 or letter == "p"]
    words += [f"b{schedule['micro_batch']}", schedule["name"]]
    words += [f"{letter}{schedule[key]}" for letter, key in (("v", "chunks"), ("n", "slices")) if schedule[key] > 1]
    words += ["split"] if schedule["split_backward"] == "on" else []
    words += [schedule["evict_to"]] if schedule["bpipe"] == "on" else []
    words += [schedule["recompute"]] if schedule["recompute"] != "none" else []
    return " ".join(words + (["recomputed"] if str(schedule["recompute_layers"]).strip("[]0, ") else []))


def search(case, kind):
    """Runs a search, and returns its line: its best, and its fastest candidate that fits under every doubt."""
    model, gpu, gpus, network, tokens, batch, fp8 = case
    keys = {"hardware.gpu": gpu, "hardware.network_gb_s": network, "hardware.profile": "", "model.seq_len": tokens,
            "train.global_batch": batch, "train.fp8": fp8, "attention.mode": "flash", "parallel.sequence": "true",
            **{f"schedule.{key}": value for key, value in KINDS[kind].items()}}
    if tokens >= 32768:  # long sequences: fewer layouts, for a shorter search
        keys |= {"schedule.micro_batch": 1, "parallel.tensor": 4 if re.search(r"_a\d", model) else 8}
    trainer = "./train_gpt" if model.startswith("gpt") else "./train_llama"
    command = [trainer, "-c", f"configs/{model}.yaml", "--search", "--gpus", str(gpus), *options_of(keys), "--json"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=env)
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    line = {"case": case, "kind": kind, "cpu": round(seconds, 1)}
    told = json.loads(ended.stdout) if ended.stdout else {"best": None, "refused": ended.stderr}
    if (best := told["best"]) is None:
        return {**line, "refused": told.get("refused")}
    rows = [best, *told["front"], *told.get("ten", [])]
    safe = [row["step_ms"] for row in rows if row.get("robust") is not None and row["robust"] < 0.999]
    bands = [[one["low_ms"] / best["step_ms"], one["high_ms"] / best["step_ms"]] for one in best["others"]]
    doubts = {one["what"]: one.get("step_ratio", 0) for one in best["unsure"]} if best.get("unsure") else None
    line |= {"step": best["step_ms"], "fast": min(row["step_ms"] for row in rows), "safe": min(safe, default=None),
             "gib": best["peak_bytes"] / GIB, "mfu": best["mfu"], "doubts": doubts, "layout": layout_of(best["config"]),
             "band": bands[0] if bands else None}
    return json.loads(re.sub(r"\d+\.\d+", lambda number: f"{float(number[0]):.5g}", json.dumps(line)))


def read_lines():
    """Reads the completed searches. Skips an incomplete line of a killed run, whose case is searched again."""
    return [json.loads(line) for line in LINES.read_text().splitlines() if line.endswith("}")] if LINES.exists() else []


def run(count, workers):
    done = {(tuple(line["case"]), line["kind"]) for line in read_lines()}
    wanted = [(case, kind) for case in cases(count) for kind in KINDS if (case, kind) not in done]
    LINES.parent.mkdir(exist_ok=True)
    with LINES.open("a") as file, concurrent.futures.ProcessPoolExecutor(workers) as pool:
        for future in concurrent.futures.as_completed([pool.submit(search, *one) for one in wanted]):
            file.write(json.dumps(future.result()) + "\n")
            file.flush()


# ---- what pays -------------------------------------------------------------------------------------------------------


def collected():
    """Returns the content of atlas.json: the cases with every search done. memory: bytes per parameter; reach: GB/s of
    network per PFLOP/s."""
    found, rows = {}, []
    for line in read_lines():
        found.setdefault(tuple(line["case"]), {})[line["kind"]] = line
    done = [(case, kinds) for case, kinds in found.items() if set(kinds) == set(KINDS)]
    for case, kinds in done:
        gib, tflops = GPUS[case[1]][:2]
        searches = {kind: {key: line[key] for key in FIGURES} if "step" in line else None
                    for kind, line in kinds.items()}
        rows.append({**dict(zip(CASE, case)), "memory": round(case[2] * gib * GIB / MODELS[case[0]][0] / 1e9, 1),
                     "reach": round(case[3] / 8 / tflops * 1e3, 2), **gains(searches), "found": searches})
    seconds = sum(line["cpu"] for _, kinds in done for line in kinds.values())
    return {"searches": len(rows) * len(KINDS), "cpu_s": round(seconds), "cases": rows}


def way(layout):
    """Returns the kind of a layout's schedule."""
    signs = {r"p1\b": "one stage", r"n\d": "slices", "split": "zero bubble", r"v\d": "interleaved"}
    return next((name for sign, name in signs.items() if re.search(rf"\b{sign}", layout)), "1F1B, GPipe")


def gain(before, after):
    """Returns the share by which the fastest step gets shorter; 9: only `after` fits; None: it does not."""
    return None if after is None else 9 if before is None else round(1 - after["fast"] / before["fast"], 4)


def survives(before, after):
    """Returns whether `after` stays faster with slower products, half the network, tensor collectives that are not
    overlapped, and 4 GiB more in reserve."""
    if after is None or after["safe"] is None or before is None:
        return after is not None and after["safe"] is not None
    names = ("products at 0.85", "half the network", "tensor collectives not overlapped")
    steps = [[one["step"] * (one["doubts"] or {}).get(name, 1) for name in names] for one in (before, after)]
    return (before["safe"] or math.inf) > after["safe"] and all(b > a for b, a in zip(*steps))


def gains(kinds):
    plain, off = kinds["1f1b"], kinds["off"]
    loops = fastest(kinds["interleaved"], plain)
    whole = fastest(loops, *(kinds[name] for name in ("zb-d", "zb-v", "dualpipe-v")))
    told = {"partner": gain(off, kinds["peer"]), "host": gain(off, kinds["host"]), "interleaved": gain(plain, loops),
            "zero bubble": gain(loops, whole),
            "slices": gain(whole, off) if off and way(off["layout"]) == "slices" else 0,
            "partner over 1F1B": gain(plain, kinds["1f1b peer"])}
    lasts = [name for name, kind in (("partner", "peer"), ("host", "host")) if survives(off, kinds[kind])]
    best = fastest(off, kinds["peer"], kinds["host"])
    return {"gains": told, "survives": lasts, "way": off and way(off["layout"]), "best": best and best["layout"]}


def fastest(*found):
    return min((one for one in found if one is not None), key=lambda one: one["fast"], default=None)


# ---- the page --------------------------------------------------------------------------------------------------------


def evicting(row):
    """Returns a case's series on the map of evictions, and its gain."""
    share, to = max((row["gains"][name] or 0, name) for name in ("host", "partner"))
    return ("fits only so", 0) if share == 9 else (f"to the {to}" if share > 0.01 else "at most 1 %", share)


def scheduling(row):
    shares = [row["gains"][name] or 0 for name in ("interleaved", "zero bubble", "slices")]
    return row["way"] or "nothing fits", sum(share for share in shares if share < 9)


MAPS = {
    "atlas_evictions.svg": (evicting, {
        "at most 1 %": "soft", "to the host": "F", "to the partner": "B", "fits only so": "limit"}),
    "atlas_schedules.svg": (scheduling, {
        "one stage": "soft", "1F1B, GPipe": "F", "interleaved": "B", "zero bubble": "E", "slices": "L",
        "nothing fits": "limit"}),
}


def paying(rows, name, last=None):
    """Returns words: in how many cases a way gains over 1 %, how much, and how many of these gains survive."""
    paid = sorted((row["gains"][name], last in row["survives"]) for row in rows if 0.01 < (row["gains"][name] or 0) < 9)
    if not paid:
        return f"in none of {len(rows)} cases"
    lasting = sum(survives for _, survives in paid)
    kept = f"; {lasting} of these gains survive{'s' * (lasting == 1)}" if last else ""
    middle = f"{100 * statistics.median(share for share, _ in paid):.1f} % in the median and " if len(paid) > 1 else ""
    return f"in {len(paid)} of {len(rows)} cases, by {middle}at most {100 * paid[-1][0]:.1f} %{kept}"


def sentences(cases):
    """Returns the sentences of the page. Most leave out the cases that are fastest with one stage and no evictions."""
    every = [row for row in cases if row["best"]]
    staged = [row for row in every if not row["best"].startswith("p1 ") or " host" in row["best"]]
    sparse = [row for row in staged if row["found"]["off"] and EXPERTS.search(row["model"])]
    lean, rich = ([row for row in staged if (row["memory"] < 100) == small] for small in (True, False))
    sliced = [row["tokens"] >= 32768 for row in staged if row["way"] == "slices"]
    ahead = sum((row["gains"]["host"] or -9) > (row["gains"]["partner"] or -9) for row in staged)
    bands = [band for row in staged if row["found"]["off"] and (band := row["found"]["off"]["band"])]
    low, high = (statistics.median(band[at] for band in bands) for at in (0, 1))
    return [
        f"{len(every)} of {len(cases)} cases fit on their GPUs. {len(every) - len(staged)} of these are fastest with "
        "one stage and no evictions, so that no schedule matters. The other sentences are about the other "
        f"{len(staged)}.",
        f"BPipe, over the best layout that evicts nothing, pays {paying(staged, 'partner', 'partner')}. "
        f"{sum(0.02 < (row['gains']['partner'] or 0) < 9 for row in staged)} gains exceed the 2 % below which "
        "`--search` calls steps a tie.",
        f"With 1F1B alone, as the re-evaluation asked, it pays {paying(staged, 'partner over 1F1B')}.",
        f"Evicting to the host pays {paying(staged, 'host', 'host')}. It is ahead of a partner in {ahead} cases.",
        f"Cases in which a model fits only with evictions: {sum(row['way'] is None for row in every)}. A partner's "
        f"memory suffices in {sum(row['way'] is None and row['found']['peer'] is not None for row in every)} of them.",
        f"Interleaving pays more: over 1F1B {paying(staged, 'interleaved')}.",
        f"Zero bubble, over both, pays {paying(staged, 'zero bubble')}.",
        f"Slices of the sequence, over all these, pay {paying(staged, 'slices')}; the search chooses them in "
        f"{len(sliced)} cases, {sum(sliced)} of them with 32k tokens or more.",
        f"With less than 100 bytes of memory per parameter the host pays {paying(lean, 'host')}; with more, "
        f"{paying(rich, 'host')}.",
        f"For mixtures of experts a partner pays {paying(sparse, 'partner')}, and the host {paying(sparse, 'host')}.",
        f"Four of five published runs on such GPUs take {low:.2f} to {high:.2f} times the planned step (median of "
        f"{len(bands)} cases that have such runs). A gain of a few percent is smaller than this error; it counts only "
        "because both sides of a comparison are planned alike.",
    ]


def write():
    """Writes the data, the sentences of the page, and its pictures."""
    DATA.write_text(json.dumps(collected(), separators=(",", ":")).replace('{"model"', '\n{"model"') + "\n")
    data = json.loads(DATA.read_text())
    head, _, tail = PAGE.read_text().partition(BEGIN)
    text = "\n".join(textwrap.fill(f"{n}. {one}", 120, subsequent_indent="   ") for n, one in
                     enumerate(sentences(data["cases"]), 1))
    made = f"{data['searches']} searches took {data['cpu_s'] / 60:.0f} minutes of CPU time.\n"
    PAGE.write_text(f"{head}{BEGIN}\n{made}\n{text}\n{END}{tail.partition(END)[2]}")
    for name, (mark, colors) in MAPS.items():
        series = []
        for words, color in colors.items():
            mine = [(row, mark(row)[1]) for row in data["cases"] if mark(row)[0] == words]
            labels = [f"{100 * share:.0f} %" if share > 0.03 else "" for _, share in mine]
            points = [[row["memory"], row["reach"]] for row, _ in mine]
            one = {"name": words, "color": color, "points": points, "labels": labels, "dots": True}
            series += [one] if mine else []
        chart = {"series": series, "xName": "bytes of GPU memory per parameter", "log": True, "logX": True,
                 "height": 340, "yName": "GB/s of network per PFLOP/s"}
        write_file(PAGE.parent / "img" / name, plot.svg_of({"kind": "plots", "plots": [chart], "width": 800}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=int, metavar="CASES", help="search for that many cases, where no line has them")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="searches at a time")
    parser.add_argument("--write", action="store_true", help="write the data, the page and its pictures")
    asked = parser.parse_args()
    if asked.run:
        run(asked.run, asked.workers)
    sys.exit(finish("atlas.py", write) if asked.write else 0)

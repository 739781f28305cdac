"""The page of scripts/first_gpu_day.py: every row, and every measurement next to its plan."""

import html
import json


def against_plan(result):
    """Yields (name, measured ms, planned ms, low, high) of the row's runs."""
    found = result.get("found") or {}
    for name, run in ([("", found)] if "plan_ms" in found else found.items()):
        if isinstance(run, dict) and "plan_ms" in run:
            yield f"{result['row']} {name}".strip(), run


def page(results):
    def table(head, rows):
        lines = ["<table><tr>" + "".join(f"<th>{html.escape(cell)}</th>" for cell in head) + "</tr>"]
        lines += ["<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in cells) + "</tr>" for cells in rows]
        return "\n".join([*lines, "</table>"])

    runs = [
        (name, f"{run['ms']:.1f}", f"{run['plan_ms']:.1f}", f"{run['ms'] / run['plan_ms'] - 1:+.0%}",
         f"{run['bytes']:,}", f"{run['plan_bytes']:,}")
        for result in results for name, run in against_plan(result)
    ]  # fmt: skip
    states = [(r["row"], r["state"], r["seconds"], r["budget_s"], r.get("reason", "")) for r in results]
    rest = "\n".join(
        f"<h3>{html.escape(r['row'])}</h3><pre>{html.escape(json.dumps(r['found'], indent=1))}</pre>"
        for r in results if r.get("found")
    )  # fmt: skip
    return f"""<!doctype html><meta charset="utf-8"><title>First GPU day</title>
<style>body{{font:15px sans-serif;margin:2em}}td,th{{padding:2px 12px;text-align:left;border-bottom:1px solid #ccc}}</style>
<h1>First GPU day</h1><h2>Rows</h2>{table(("row", "state", "s", "budget", "reason"), states)}
<h2>Measured against the plan</h2>{table(("run", "step ms", "planned ms", "", "bytes", "planned bytes"), runs)}
<h2>Values</h2>{rest}
"""

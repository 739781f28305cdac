"""docs/reevaluation.md is what scripts/reevaluate.py writes, and says what the plans' verdicts say."""

import json
import re
import subprocess
import sys

from trainer_runs import BUILD, ROOT, command

PAGE = ROOT / "docs" / "reevaluation.md"


def row(name):
    """The cells of the first table row that begins with a text."""
    line = next(line for line in PAGE.read_text().splitlines() if line.startswith(f"| {name}"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def plan(run, *arguments):
    family = "llama" if run.startswith("llama") else "gpt"
    ended = command(family, "-c", ROOT / f"configs/paper/{run}.yaml", "--plan", *arguments, "-o", "hardware.profile=")
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_the_page_is_what_the_script_writes(tmp_path):
    page = tmp_path / "page.md"
    script = [sys.executable, ROOT / "scripts" / "reevaluate.py", "--bin", BUILD, "-o", page]
    subprocess.run(script, check=True, capture_output=True)
    assert page.read_text() == PAGE.read_text()


def test_a_stage_gains_what_the_verdict_says():
    for run, name in (
        ("gpt3_96b_b2_recompute", "GPT-3 96B, attention recomputed"),
        ("gpt3_96b_b2_flash", "GPT-3 96B, flash"),
    ):
        verdict = json.loads(plan(run, "--json"))["verdict"]
        needs, gains = row(name)[1:3]
        assert needs == f"{100 * verdict['required_stage_gain']:+.1f} %"
        assert gains == f"{100 * verdict['measured_stage_gain']:+.1f} %"


def test_what_the_formula_leaves_out_adds_up():
    for run, name, rounds in (
        ("gpt3_96b_b1_recompute", "GPT-3 96B b=1", 135),
        ("llama65b_b4_flash", "LLaMA 65B b=4", 39),
    ):
        one, formula, pipeline, after, step, _ = (float(re.match(r"[\d.+-]+", cell)[0]) for cell in row(name)[1:])
        parts = re.search(
            r"pipeline ([\d.]+), gradient sums ([\d.]+), norm and optimizer ([\d.]+)", " ".join(plan(run).split())
        )
        assert abs(formula - rounds * one / 1000) < 0.02
        assert abs(pipeline - float(parts[1]) / 1000) < 0.01
        assert abs(after - float(parts[2]) - float(parts[3])) < 1
        assert abs(step - pipeline - after / 1000) < 0.02


def test_the_rivals_are_the_rows_of_the_plans():
    for number, run in ((2, "llama65b_b2_recompute"), (10, "gpt3_96b_b2_flash")):
        cells = next(
            cells
            for line in PAGE.read_text().splitlines()
            if (cells := [cell.strip() for cell in line.strip("|").split("|")])[0] == str(number) and "b=" in cells[1]
        )
        rows = [row for row in json.loads(plan(run, "--json"))["schedules"] if row["fits"]]
        for evicts, cell in (("off", cells[4]), ("on", cells[6])):
            steps = [row["step_ms"] for row in rows if row["bpipe"] == evicts]
            assert cell.startswith(f"{min(steps) / 1000:.2f} s")

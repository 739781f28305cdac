"""The tables of docs/bpipe.md equal the output of studies/reevaluate.py, and agree with the verdicts of the plans."""

import functools
import json
import shutil

import pytest
from trainer_runs import BUILD, ROOT, command, script

pytestmark = pytest.mark.thorough
PAGE = ROOT / "docs" / "bpipe.md"
reevaluate = functools.partial(script, "reevaluate.py", "--bin", BUILD, "-o")


def rows(text):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()
            if line.startswith("| ")]


def plan(run, *arguments):
    family = "llama" if run.startswith("llama") else "gpt"
    ended = command(family, "-c", ROOT / f"configs/paper/{run}.yaml", "--plan", *arguments, "-o", "hardware.profile=")
    return ended.stdout


def test_the_page_is_what_the_script_writes(tmp_path):
    page = tmp_path / "page.md"
    shutil.copy(PAGE, page)
    reevaluate(page)
    assert page.read_text() == PAGE.read_text()


def test_encoders_have_the_figures_of_the_verdict():
    options = ("model.causal=false", "model.seq_len=2048")
    told = plan("gpt3_96b_b1_recompute", "--json", *(part for option in options for part in ("-o", option)))
    cells = next(row for row in rows(PAGE.read_text()) if row[0].startswith("96B encoder, s = 2048"))
    reason = json.loads(told)["verdict"]["reason"]
    assert cells[6] == ("yes" if ": worth it" in reason else "no")
    assert f"from micro-batch {cells[2]} to {cells[3]} a stage has to gain {cells[4].strip('+%')} %" in reason


def test_a_page_without_the_marks_is_left_alone(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Nothing to fill\n")
    ended = reevaluate(page, code=1)
    assert "lacks the lines <!-- reevaluation -->" in ended.stderr
    assert page.read_text() == "# Nothing to fill\n"


def test_a_change_has_the_figures_of_the_verdict():
    for run, name in (("gpt3_96b_b2_recompute", "GPT-3 96B, attention rec"), ("gpt3_96b_b2_flash", "GPT-3 96B, flash")):
        verdict = json.loads(plan(run, "--json"))["verdict"]
        must, gains = next(row for row in rows(PAGE.read_text()) if row[0].startswith(name))[1:3]
        assert must == f"{verdict['required_stage_gain']:+.1%}"
        assert gains == f"{verdict['measured_stage_gain']:+.1%}"


def test_the_fastest_is_a_row_of_the_plan_that_fits():
    for number, run in ((2, "llama65b_b2_recompute"), (10, "gpt3_96b_b2_flash")):
        told = json.loads(plan(run, "--json"))
        steps = [row["step_ms"] for row in told["schedules"] if row["fits"]]
        cells = next(row for row in rows(PAGE.read_text()) if len(row) == 11 and row[0] == str(number))
        assert cells[6] == f"{told['step_ms'] / 1000:.2f} s"
        assert cells[10].startswith(f"{min(steps) / 1000:.2f} s")

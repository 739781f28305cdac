"""Plans compared with published measurements: docs/published.md is correct, and errors do not grow."""

import re
import sys

import pytest
from trainer_runs import BUILD, ROOT, script

sys.path.insert(0, str(ROOT / "studies"))
import published  # noqa: E402
from megatron_bytes import Held  # noqa: E402

PAGE = ROOT / "docs" / "published.md"


def test_a_page_of_some_runs_is_refused(tmp_path):
    ended = script("published.py", "--bin", BUILD, "--only", "SC21", "--no-plot", "--write", tmp_path / "p.md", code=1)
    assert ended.stderr == "published: the page has all runs; leave out --only, or --write\n"
    assert not list(tmp_path.iterdir())


def planned(only):
    rows = [row for row in published.rows_of("") if row.source["name"] == only or only in row.values["group"]]
    published.plan_all(rows, BUILD)
    return rows


def hold(pairs):
    for pair in pairs:
        words = f"{pair.one.name} against {pair.other.name}: {pair.error:+.3f}"
        assert pair.ordered, words
        assert abs(pair.error) < 0.05, words


@pytest.mark.parametrize("group", ["22B", "6.2B m=24", "6.2B p16 m=48"])
def test_schedules_are_in_order_and_within_5_percent(group):
    pairs = published.pairs_of(planned(group))
    assert pairs
    hold(pairs)


def test_memory_between_schedules_is_within_15_percent_or_rounding():
    rows = planned("6.2B m=24") + planned("6.2B p16 m=48") + planned("16 stages s=2048 V=256k")
    apart = published.memory_apart(rows)
    assert len(apart) == 7
    wrong = [row for row in apart if published.within(*row[2:]) == "no"]
    assert [row[:2] for row in wrong] == [("6.2B", "ZB-1p - 1F1B")], wrong  # ZB-1p was searched for its memory


def test_rounding_leaves_room_only_for_figures_in_whole_gb():
    assert published.within(10, 11.4, 1.0) == "15 %"
    assert published.within(7, 5.8, 1.0) == "rounding"  # 7 may be 6.0, and 5.8 is within 15 % of that
    assert published.within(7, 5.0, 1.0) == "no"
    assert published.within(-1.37, -0.96, 0.01) == "no"
    assert published.within(1, 0.0, 1.0) == "rounding"


def test_a_program_keeps_logits_until_they_are_used():
    row = published.rows_of("16 stages s=2048 V=256k: V-Half")[0]
    program = published.program_of(row)
    layer, logits, matrix = 32 * 2048 * 4096, 2048 * 256000, 2 * 256000 * 4096
    peak = lambda line: program.peak(line, [0, 1], embeds=False, head=1)  # noqa: E731
    assert peak("stage 0: F0.1") == layer + 6 * logits
    assert peak("stage 0: F0.0 F0.1 F1.1") == 2 * layer + 10 * logits
    assert peak("stage 0: F0.1 I0.1 F1.1 W0.1") == 2 * layer + 8 * logits  # a layer stays complete until W
    assert program.peak("stage 0: F0 B0", [1], embeds=True, head=None) == max(layer, matrix) == matrix


@pytest.mark.parametrize("line, embeds, head, peak", [
    ("F0 F1 B0 B1", False, None, 40),  # two microbatches of two layers
    ("F0 F1 B0 B1", True, None, 20 + 20),  # the first microbatch is freed before the embedding's gradient is made
    ("F0 B0 F1 B1", False, 0, 20 + 4 * 3 + (20 - 2 * 3)),  # fp32 logits and the head's gradient together
    ("F0 I0 F1 I1 W0 W1", False, None, 2 * 4 + 20),  # the first microbatch keeps its part for W
])
def test_a_stage_holds_what_its_list_needs(line, embeds, head, peak):
    held = Held(layer=10, weight=4, logits=3, matrix=20, state=18)
    assert held.peak(line, [2], embeds, head) == peak


def test_the_rate_of_a_row_is_its_step():
    """The source's definitions convert 30.4 samples/s, 78.6 % of the peak and the like to seconds."""
    sources = {row.source["name"]: row for row in published.rows_of("")}
    row = sources["zero bubble"]  # the last row: 28.3B b2 m=256, ZB-V, 1.06 samples/s/GPU
    assert abs(row.measured_step() - 512 / (1.06 * 32)) < 1e-9
    trillion = next(row for row in published.rows_of("1008B"))
    # Section 5.1 of the paper: 502 petaFLOP/s on all GPUs together.
    assert abs(trillion.flops(96) / trillion.measured_step() / 1e15 - 502) < 2


def test_a_band_is_tried_on_runs_that_did_not_make_it():
    """Two sources that are 1.5 times apart: each run lies in its own source's band, and none in the other's."""
    def row(source, step_s):
        values = {"group": "7B", "run": source, "step_s": step_s, "hardware.gpu": "h100", "train.global_batch": 1}
        return published.Row({"name": source, "trainer": "nvidia"}, values, plan={"step_ms": 1000})

    parts = (0.98, 0.99, 1, 1, 1.01, 1.02)
    rows = [row(source, step * part) for source, step in (("a", 2), ("b", 3)) for part in parts]
    off, inside, count = published.tried(rows)
    assert (inside, count) == (0, 12) and off > 0.3
    assert published.band_of(rows)[0] < 2 < 3 < published.band_of(rows)[2]


def test_every_run_of_the_lists_names_its_source():
    for path in (published.RUNS, published.EXPERTS):
        named = {line[2:].partition(": ")[0] for line in path.read_text().splitlines() if line.startswith("# ")}
        assert {row["source"] for row in published.csv_rows(path)} <= named


def test_a_search_says_how_often_five_layouts_hold_the_best():
    sets = re.findall(r"^\| .+ \| (\d+), \d+ \| \d+ \| [^|]+ \| (\d+), \d+ \|", PAGE.read_text(), re.MULTILINE)
    held = "{1} of {0} sets".format(*(sum(map(int, column)) for column in zip(*sets)))
    for file in ("src/search/search_report.c", "docs/planning.md", "scripts/five.sh"):
        assert held in (ROOT / file).read_text().replace("published ", "")


@pytest.mark.thorough
def test_the_page_is_what_the_script_writes():
    rows = published.rows_of("")
    published.plan_all(rows, BUILD)
    hold(published.pairs_of(rows))
    more = published.more_rows()
    published.plan_all(more, BUILD)
    assert published.BANDS.read_text() == published.bands_file(rows + more), "published.py --write makes bands.c"
    old, new = PAGE.read_text().splitlines(), published.page_of(rows, more, PAGE.read_text()).splitlines()
    differ = [f"  was: {a}\n  now: {b}" for a, b in zip(old, new) if a != b]
    assert old == new, (
        "docs/published.md is not what plans say now. Where errors have become larger, find out why; where the new plan"
        " is right, write the page again with studies/published.py --write docs/published.md\n"
        + "\n".join(differ[:8])
    )

"""scripts/metrics.py: TensorBoard's own reader and a CSV reader find the values of the metrics file.

tensorboard is looked for in .deps/tensorboard, where scripts/install_deps.sh puts it, and among the system's packages.
"""

import csv
import functools
import importlib.util
import io
import json
import signal
import struct
import subprocess
import sys
import time

import pytest
from trainer_runs import ROOT, Job, one_thread, run, script, wait_until, write_config

sys.path.insert(0, str(ROOT / "scripts"))
sys.path.append(str(ROOT / ".deps" / "tensorboard"))
import metrics as module

needs_reader = pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None,
                                  reason="tensorboard is not installed; run scripts/install_deps.sh")


metrics = functools.partial(script, "metrics.py")


@pytest.fixture(scope="module")
def wrote(tmp_path_factory):
    folder = tmp_path_factory.mktemp("metrics")
    config = write_config(folder, parallel="{pipeline: 1}", schedule="{micro_batch: 4}")
    ended = run(config, "train.steps=6", env=one_thread())
    return ended.lines


def file_of(folder, *lines):
    path = folder / "metrics.jsonl"
    path.write_text("".join(line + "\n" for line in lines))
    return path


def read_back(folder):
    """Returns tag -> {step: value} as TensorBoard reads it, without the steps that it was told to drop."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    series = {tag: accumulator.Scalars(tag) for tag in accumulator.Tags()["scalars"]}
    for tag, points in series.items():
        assert [p.step for p in points] == sorted({p.step for p in points}), tag
        assert [p.wall_time for p in points] == sorted(p.wall_time for p in points)
    return {tag: {p.step: p.value for p in points} for tag, points in series.items()}


def single(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def step_line(step, loss):
    stage = {"stage": 0, "peak_bytes": 10, "activation_bytes": 5, "slots_used": 1, "slots_lent": 0}
    return json.dumps({"type": "step", "step": step, "loss": loss, "step_ms": 1000.0, "tokens_per_s": 4.0, "mfu": None,
                       "stages": [stage]})


def val_line(step, loss):
    return json.dumps({"type": "val", "step": step, "loss": loss})


HEAD = json.dumps({"type": "run", "config": {}})

# Steps 1 to 5, then a resume after step 2 that repeats 3 and has reached 4.
RESUMED = [HEAD, *(step_line(s, 10.0 + s) for s in (1, 2)), val_line(2, 7.0), *(step_line(s, 10.0 + s) for s in (3, 4)),
           val_line(4, 6.0)]
RESUMED += [step_line(5, 15.0), HEAD, step_line(3, 23.0), step_line(4, 24.0), val_line(4, 5.0)]
LATER = {"loss/train": {1: 11.0, 2: 12.0, 3: 23.0, 4: 24.0}, "loss/val": {2: 7.0, 4: 5.0}}


@needs_reader
def test_tensorboard_reads_every_figure_of_a_run(wrote, tmp_path):
    ended = metrics("tensorboard", file_of(tmp_path, *wrote), "-o", tmp_path / "board")
    assert (ended.stdout, ended.stderr) == ("", "")
    found = read_back(tmp_path / "board")
    steps = [entry for entry in map(json.loads, wrote) if entry["type"] == "step"]
    vals = {entry["step"]: single(entry["loss"]) for entry in map(json.loads, wrote) if entry["type"] == "val"}
    assert len(steps) == 6 and len(vals) == 3
    figures = [key for key in steps[0] if key not in ("type", "step", "stages")]
    for key in figures:
        assert found[module.GROUPS.get(key, f"step/{key}")] == {
            entry["step"]: single(entry[key]) for entry in steps
        }, key
    assert found["memory/peak_bytes/stage_0"] == {entry["step"]: entry["stages"][0]["peak_bytes"] for entry in steps}
    assert found["loss/val"] == vals
    assert len(found) == len(figures) + 4 * len(steps[0]["stages"]) + 1


@needs_reader
def test_a_resumed_run_s_later_lines_win_and_a_torn_line_is_left_out(tmp_path):
    path = file_of(tmp_path, *RESUMED)
    path.write_text(path.read_text() + step_line(5, 99.0)[:30])
    metrics("tensorboard", path, "-o", tmp_path / "board")
    found = read_back(tmp_path / "board")
    assert {tag: found[tag] for tag in LATER} == LATER
    assert "speed/mfu" not in found  # unknown
    rows = list(csv.DictReader(io.StringIO(metrics("csv", path).stdout)))
    assert {int(row["step"]): float(row["loss"]) for row in rows} == LATER["loss/train"]
    assert {int(row["step"]): float(row["val_loss"]) for row in rows if row["val_loss"]} == LATER["loss/val"]
    file_of(tmp_path, *RESUMED, HEAD, step_line(1, 31.0))  # another run in the same file, and the same folder
    metrics("tensorboard", path, "-o", tmp_path / "board")
    assert read_back(tmp_path / "board")["loss/train"] == {1: 31.0}
    assert len(list((tmp_path / "board").iterdir())) == 1


@needs_reader
def test_a_growing_file_is_followed_also_where_a_resume_cuts_it(tmp_path):
    path = tmp_path / "metrics.jsonl"  # does not exist yet
    follower = Job([sys.executable, "scripts/metrics.py", "tensorboard", path, "-o", tmp_path / "board", "--follow",
                    "--every", "0.05"])
    try:
        wait_until(lambda: (tmp_path / "board" / "events.out.tfevents.metrics").exists(), "not followed")
        with path.open("w") as file:
            for line in RESUMED[:4]:
                file.write(line[:9])
                file.flush()
                time.sleep(0.06)
                file.write(line[9:] + "\n")
        wait_until(lambda: read_back(tmp_path / "board").get("loss/val") == {2: 7.0}, "not followed")
        file_of(tmp_path, *RESUMED[:8])
        wait_until(lambda: 5 in read_back(tmp_path / "board")["loss/train"], "not followed")
        # As the trainer does: cut the file after the checkpoint's step, then continue.
        file_of(tmp_path, *RESUMED[:4], *RESUMED[8:])
        wait_until(lambda: read_back(tmp_path / "board")["loss/val"] == LATER["loss/val"], "not followed")
        found = read_back(tmp_path / "board")
        assert {tag: found[tag] for tag in LATER} == LATER
    finally:
        ended = follower.stop(signal.SIGINT, code=0)
    assert ended.stderr == ""


# ---- CSV -------------------------------------------------------------------------------------------------------------


def test_a_csv_has_a_row_a_step_to_the_bit(wrote, tmp_path):
    path = file_of(tmp_path, *wrote)
    ended = metrics("csv", path)
    assert ended.stderr == ""
    rows = list(csv.DictReader(io.StringIO(ended.stdout)))
    steps = [entry for entry in map(json.loads, wrote) if entry["type"] == "step"]
    vals = {entry["step"]: entry["loss"] for entry in map(json.loads, wrote) if entry["type"] == "val"}
    assert [int(row["step"]) for row in rows] == [entry["step"] for entry in steps]
    for row, entry in zip(rows, steps):
        assert all(float(row[key]) == entry[key] for key in ("loss", "grad_norm", "lr", "mfu", "tokens"))
        assert all(float(row[f"stage0_{key}"]) == value for key, value in entry["stages"][0].items() if key != "stage")
        assert row["val_loss"] == ("" if entry["step"] not in vals else repr(vals[entry["step"]]))
    metrics("csv", path, "-o", tmp_path / "m.csv")
    assert (tmp_path / "m.csv").read_text() == ended.stdout


BAD = json.dumps({**json.loads(step_line(2, None)), "grad_norm": None, "skipped": True})
EVAL = json.dumps({"type": "eval", "step": 2, "name": "hellaswag", "accuracy": 0.25, "correct": 1, "examples": 4,
                   "left_out": 0})


@needs_reader
def test_skipped_steps_experts_and_evaluations_are_carried_over(tmp_path):
    parts = {"experts": {"fullest": 1.5, "tokens": [[1, 3]]}, "slowest": {"rank": 3, "host": "a", "cost": 0.25}}
    last = json.dumps({**json.loads(step_line(3, 10.0)), **parts})
    path = file_of(tmp_path, HEAD, step_line(1, 11.0), BAD, val_line(2, None), EVAL, last)
    metrics("tensorboard", path, "-o", tmp_path / "board")
    found = read_back(tmp_path / "board")
    assert found["loss/train"] == {1: 11.0, 3: 10.0} and "loss/val" not in found
    assert found["step/skipped"] == {2: 1.0} and found["eval/hellaswag"] == {2: 0.25}
    assert [found[tag] for tag in ("experts/fullest", "slowest/rank", "slowest/cost")] == [{3: 1.5}, {3: 3}, {3: 0.25}]
    rows = list(csv.DictReader(io.StringIO(metrics("csv", path).stdout)))
    told = [(row["loss"], row["skipped"], row["hellaswag_accuracy"]) for row in rows]
    assert told == [("11.0", "", ""), ("", "1", "0.25"), ("10.0", "", "")]
    assert (rows[2]["experts_fullest"], rows[2]["slowest_cost"]) == ("1.5", "0.25") and "slowest_host" not in rows[2]


@pytest.mark.parametrize("seconds", ["-1", "nan", "inf"])
def test_an_interval_that_is_none_is_refused(tmp_path, seconds):
    asked = ("tensorboard", tmp_path / "m.jsonl", "-o", tmp_path / "board", "--follow", f"--every={seconds}")
    ended = metrics(*asked, code=2)
    assert f"--every {seconds}: use 0 to 86400 seconds" in ended.stderr


def test_a_reader_that_stops_early_is_not_an_error(wrote, tmp_path):
    path = file_of(tmp_path, *wrote)
    ended = subprocess.run(f"{sys.executable} {ROOT}/scripts/metrics.py csv {path} | true", shell=True,
                           capture_output=True, text=True)
    assert ended.stderr == ""

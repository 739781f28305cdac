"""The report of `--plan` and its table of schedules: its rows, and an open schedule. test_layouts plans
rows again."""

import itertools
import json
import re

import pytest
from plans import GIB, LLAMA, plan, report
from trainer_runs import ROOT, command, write_config


# ---- the report ------------------------------------------------------------------------------------------------------


def test_the_report_says_what_is_not_counted_and_what_else_would_do():
    text = report(LLAMA, "schedule.micro_batch=4", "hardware.reserve_gib=5")
    assert "are reserved for memory that is not counted" in text
    assert re.search(
        r"reserve +micro-batch 4 fits without BPipe up to a reserve of \d\.\d\d GiB, with it up to 1\d\.\d\d", text)
    assert re.search(r"^BPipe\? +No: micro-batch 4 fits only with it", text, re.M)
    for schedule in ("1F1B, BPipe", "1F1B, host", "1F1B, layers recomputed", "interleaved", "V-Half", "ZB-V",
                     "GIS, g=4"):
        assert re.search(rf"^{schedule}  ", text, re.M), schedule


def test_slices_are_rows_only_where_they_are_given():
    """1F1B keeps 8 complete bundles, four slices 11 smaller ones; the plan counts the memory of the keys separately."""
    told = plan(LLAMA, "schedule.name=seq1f1b", "schedule.slices=4", "schedule.split_backward=off")
    rows = {(row["name"], row["chunks"], row["slices"]) for row in told["schedules"]}
    assert ("seq1f1b", 1, 4) in rows and ("interleaved", 2, 4) in rows and ("1f1b", 1, 1) in rows
    stage = told["stages"][0]
    assert stage["slots"] == 11 and stage["in_flight_1f1b"] == 8
    # Four microbatches are in flight. Each layer keeps k and v of all heads in 16 bit, and one microbatch's gradients.
    width, tokens, layers = 2 * 8192 // 4, 2048, stage["last_layer"] + 1
    assert stage["memory"]["keys"] == layers * tokens * width * (4 * 2 + 4)
    assert stage["peak_bytes"] < stage["peak_bytes_1f1b"]


def test_many_stages_are_compared_while_that_takes_no_seconds():
    deep = ["parallel.pipeline=40", "model.layers=80", "schedule.split_backward=off"]
    assert len(plan(LLAMA, *deep, "train.global_batch=80")["schedules"]) > 10
    many = plan(LLAMA, *deep, "train.global_batch=400")
    assert many["schedules"] == [] and many["best"] is None
    assert "schedules not compared: simulating all" in " ".join(report(LLAMA, *deep, "train.global_batch=400").split())


def test_schedules_that_cannot_run_are_not_offered():
    # 40 layers cannot fill two chunks on 32 stages, and 12 microbatches are not a multiple of 8 stages.
    names = {row["name"] for row in plan(LLAMA, "parallel.pipeline=32", "model.layers=40")["schedules"]}
    assert "zb-d" in names and not names & {"interleaved", "v-half", "gis"}
    names = {row["name"] for row in plan(LLAMA, "train.global_batch=12")["schedules"]}
    assert "v-half" in names and "interleaved" not in names
    # Gradients that are to be sharded allow no split backwards.
    sharded = ["parallel.pipeline=1", "parallel.data=2", "train.global_batch=2", "parallel.shard_gradients=on"]
    rows = plan(LLAMA, *sharded, "schedule.name=gpipe")["schedules"]
    assert len({row["name"] for row in rows}) > 2 and {row["split_backward"] for row in rows} == {"off"}
    # Nor do they allow several microbatches, of which smaller sizes would make more.
    sizes = report(LLAMA, *sharded, "train.global_batch=8", "schedule.micro_batch=4", "hardware.memory_gib=4000")
    assert re.search(r"^2 +2 +- ", sizes, re.M) and re.search(r"^4 +1 +\d", sizes, re.M), sizes
    # A single stage has no bubble to fill.
    assert {row["name"] for row in plan(LLAMA, *sharded, "schedule.name=auto")["schedules"]} == {"1f1b"}


def test_rows_have_the_lists_that_are_given_for_stages():
    layers, modes = [0, 1, 2, 1], ["recompute", "flash", "none", "flash"]
    given = ["parallel.pipeline=4", f"schedule.recompute_layers={layers}", f"attention.mode=[{', '.join(modes)}]"]
    told = plan("configs/llama65b.yaml", *given)
    row = next(row for row in told["schedules"] if row["recompute_layers"] == layers and row["attention"] == modes)
    overrides = [f"schedule.{key}={row[key]}" for key in ("name", "split_backward", "bpipe")]
    again = plan("configs/llama65b.yaml", *given, *overrides)
    assert again["step_ms"] == pytest.approx(row["step_ms"], rel=1e-9)
    table = report("configs/llama65b.yaml", *given)
    assert "1F1B, some layers recomputed " in table and "1F1B, split, host, some layers recomputed " in table


def test_layers_that_are_all_recomputed_already_are_no_other_row():
    for given in ("2", "80", "[80, 80]"):
        overrides = ["parallel.pipeline=2", "model.layers=4", f"schedule.recompute_layers={given}"]
        told = plan("configs/llama65b.yaml", *overrides)
        rows = [json.dumps(row) for row in told["schedules"]]
        plain = [row for row in told["schedules"] if row["name"] == "1f1b" and row["bpipe"] == "off"]
        assert len(set(rows)) == len(rows) and len(plain) == 2  # complete and split backwards


@pytest.mark.parametrize("batch", [1, 8])
def test_of_equally_quick_schedules_the_plainest_is_taken(batch):
    one = ["parallel.pipeline=1", "parallel.tensor=8", "model.layers=4", f"train.global_batch={batch}"]
    told = plan(LLAMA, *one, "schedule.name=gpipe")
    rows = {(row["name"], row["split_backward"]): row for row in told["schedules"] if row["bpipe"] == "off"}
    assert rows["gpipe", "off"]["step_ms"] == pytest.approx(rows["1f1b", "off"]["step_ms"], rel=1e-9)
    best = told["schedules"][told["best"]]
    assert (best["name"], best["split_backward"], best["recompute_layers"]) == ("1f1b", "off", 0)
    decided = command("llama", "-c", LLAMA, "--plan", overrides=[*one, "schedule.name=auto"])
    assert "schedule.name auto is 1F1B with 1 chunk" in decided.stderr


@pytest.mark.parametrize("given", [
    {"chunks": 4}, {"group": 4}, {"delay": 7}, {"slots": 5, "bpipe": "on"}, {"bpipe": "on", "evict_to": "host"},
    {"split_backward": "on", "bpipe": "auto"}, {"split_backward": "off", "bpipe": "auto"},
], ids=str)
def test_a_schedule_that_is_left_open_is_the_quickest_with_the_keys_that_are_given(given):
    wanted = {"bpipe": "off", "evict_to": "peer"} | given
    if given.get("bpipe") == "auto":
        wanted = {"split_backward": given["split_backward"]}
    fitting = [row for row in plan(LLAMA)["schedules"] if row["fits"] and wanted.items() <= row.items()]
    told = plan(LLAMA, "schedule.name=auto", *(f"schedule.{key}={value}" for key, value in given.items()))
    assert told["step_ms"] == pytest.approx(min(row["step_ms"] for row in fitting), rel=1e-9)


def test_a_schedule_that_is_left_open_keeps_slices():
    told = plan(LLAMA, "schedule.name=auto", "schedule.slices=2", "attention.mode=flash")["config"]["schedule"]
    assert told["slices"] == 2 and told["name"] in ("seq1f1b", "interleaved")


@pytest.mark.parametrize("overrides, code, says", [
    (["schedule.bpipe=on", "schedule.slots=7"], 0, "is 1F1B: no schedule that fits satisfies the given keys"),
    (["schedule.chunks=3", "schedule.delay=1"], 2,
     "-o schedule.chunks: schedule.name auto found no schedule with 3 chunks"),
    (["hardware.memory_gib=20"], 0, "is 1F1B: no schedule fits"),
    (["parallel.pipeline=40", "train.global_batch=400"], 0, "is 1F1B: too many stages and microbatches to simulate"),
], ids=["slots", "chunks", "memory", "many"])
def test_a_schedule_that_is_left_open_and_not_found_says_why(overrides, code, says):
    keys = ("hardware.profile=", "schedule.name=auto", *overrides)
    ended = command("llama", "-c", LLAMA, "--plan", overrides=keys, code=code)
    assert says in ended.stderr


NARROW = ["parallel.tensor=1", "parallel.sequence=false", "model.layers=16"]


@pytest.mark.parametrize("overrides, splits", [
    (NARROW, True),
    ([*NARROW, "schedule.bpipe=on", "schedule.micro_batch=2"], True),
    ([*NARROW, "train.global_batch=8192"], False),  # 1F1B is idle for less than 0.5 % of such a step
    ([], False),  # gradients are gathered twice more, which costs more than splitting gains
    ([*NARROW, "hardware.peak_tflops=auto"], False),
    ([*NARROW, "hardware.device=cpu", "hardware.peak_tflops=0.1"], False),
], ids=["gpu", "bpipe", "many", "sequence", "unknown", "cpu"])
def test_backwards_are_split_where_that_makes_a_gpu_s_step_shorter(overrides, splits):
    """The plan and the schedule agree, and an existing profile does not change the decision."""
    steps = {split: plan(LLAMA, *overrides, f"schedule.split_backward={split}")["step_ms"]
             for split in ("off", "on", "auto")}
    assert steps["auto"] == steps["on" if splits else "off"]
    if "hardware.device=cpu" not in overrides and steps["on"] is not None:
        assert (steps["on"] < 0.995 * steps["off"]) == splits
    text = command("llama", "-c", LLAMA, "--schedule", overrides=overrides)
    assert (" I0" in text.stdout) == splits and ("split_backward auto is on" in text.stderr) == splits


EVICTS_FOR_LITTLE = ["parallel.pipeline=6", "parallel.tensor=2", "parallel.placement=adjacent", "attention.mode=none",
                     "schedule.micro_batch=1", "parallel.data=1", "parallel.sequence=true", "parallel.collectives=nccl",
                     "hardware.memory_gib=39"]


@pytest.mark.parametrize("more, evicts", [
    (["train.global_batch=18", "hardware.pair_gb_s=58"], False),  # 0.05 %
    (["train.global_batch=24"], True),  # 0.8 %
], ids=["too_little", "enough"])
def test_a_schedule_that_evicts_is_the_best_only_if_it_saves_a_thousandth(more, evicts):
    config, overrides = ROOT / "configs/gpt3_13b.yaml", [*EVICTS_FOR_LITTLE, *more]
    answer = plan(config, *overrides, family="gpt")
    plain, other = (min(row["step_ms"] for row in answer["schedules"] if row["fits"] and row["bpipe"] == bpipe)
                    for bpipe in ("off", "on"))
    assert other < plain and (other < 0.999 * plain) == evicts
    assert answer["schedules"][answer["best"]]["bpipe"] == ("on" if evicts else "off")
    opened = ["schedule.name=auto", "schedule.bpipe=auto", "schedule.chunks=auto"]
    to = f"schedule.evict_to={answer['schedules'][answer['best']]['evict_to']}"
    decided = plan(config, *overrides, *opened, to, family="gpt")
    assert decided["step_ms"] == pytest.approx(other if evicts else plain, rel=1e-9)


def test_stages_without_layers_need_no_advice():
    told = plan(LLAMA, "parallel.pipeline=4", "parallel.tensor=8", "model.layers=3", "parallel.layers=[1,1,1,0]",
                "hardware.memory_gib=1000")
    assert not any("parallel.layers" in advice for advice in told["advice"])


def test_slices_fill_the_stages_when_microbatches_do_not():
    told = plan(LLAMA, "parallel.pipeline=2", "parallel.tensor=8", "schedule.name=seq1f1b", "schedule.slices=4",
                "schedule.micro_batch=1", "train.global_batch=1", "hardware.memory_gib=1000")
    assert {row["slices"] for row in told["schedules"]} == {4} and told["schedules"][told["best"]]["fits"]


def test_an_impossible_plan_says_the_smallest_world_that_would_do():
    text = report(LLAMA, "parallel.pipeline=2", "parallel.tensor=1")
    found = re.search(r"the smallest that fits: (\d+) ranks, pipeline (\d+) x tensor (\d+)", text)
    assert int(found[1]) == int(found[2]) * int(found[3]) and 15 <= int(found[1]) <= 24


@pytest.mark.thorough
def test_the_smallest_world_is_that_of_trying_every_cut(tmp_path):
    """The number of tensor ranks need not be a power of two."""
    model = "{family: llama, hidden: 1536, layers: 4, heads: 12, ffn: 4608, vocab: 3000, seq_len: 512}"
    device = "{device: cuda, gpus_per_node: 6, reserve_gib: 0}"
    config = write_config(tmp_path, model=model, parallel="{}", schedule="{}", hardware=device)
    peaks = {}
    for p, t in itertools.product((1, 2, 3, 4), (1, 2, 3, 4, 6)):
        told = plan(config, f"parallel.pipeline={p}", f"parallel.tensor={t}", "hardware.memory_gib=1000")
        peaks[p, t] = max(stage["peak_bytes"] for stage in told["stages"])
    for best in ((1, 3), (1, 6), (2, 3), (4, 6)):
        limit = peaks[best]
        wanted = min(p * t for (p, t), peak in peaks.items() if peak <= limit)
        text = report(config, f"hardware.memory_gib={(limit + 1024) / GIB:.12f}")
        found = re.search(r"the smallest that fits: (\d+) ranks, pipeline (\d+) x tensor (\d+)( with BPipe)?, at", text)
        ranks, p, t = (int(found[i]) for i in (1, 2, 3))
        assert ranks == p * t <= wanted and (found[4] or peaks[p, t] <= limit)
        assert found[4] or ranks == wanted
    assert wanted == 24


def test_the_options_of_the_better_schedule_give_its_step():
    """Here one without the slices that are given."""
    given = ["schedule.name=seq1f1b", "schedule.slices=4", "hardware.gpu=h100", "hardware.network_gb_s=400"]
    text = " ".join(report(LLAMA, *given).split())
    less, options = re.search(r" better \S.*?, ([\d.]+) % less: ((?:-o \S+ ?)+)", text).groups()
    better = [word.replace('"', "") for word in options.split() if word != "-o"]
    assert "schedule.slices=1" in better
    taken = plan(LLAMA, *given, *better)["step_ms"] / plan(LLAMA, *given)["step_ms"]
    assert 100 * (1 - taken) == pytest.approx(float(less), abs=0.06)

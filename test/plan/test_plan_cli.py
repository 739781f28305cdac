"""`--plan` from the outside: it has its JSON keys, is fast, needs neither data nor device, its verdict decides `auto`,
and a run allocates to the byte what was planned."""

import json
import os
import pty
import re
import resource
import subprocess

import bench_plan
import pytest
from trainer_runs import (
    ROOT,
    built_with_mpi,
    command,
    environment,
    made_tokens,
    mpirun,
    mpirun_environment,
    patience,
    run,
    trained,
    trainer,
    write_config,
    write_tokens,
)

KEYS = {
    "schedules",
    "best",
    "model",
    "world",
    "microbatches",
    "config",
    "stages",
    "step_ms",
    "step_ms_low",
    "step_ms_high",
    "mfu", "mfu_low", "mfu_high", "waterfall", "advice",
    "bubble",
    "transfer_exposed_ms",
    "source",
    "budget", "job",
    "verdict",
}
STAGE_KEYS = {
    "stage", "first_layer", "last_layer", "parameters", "states_bytes", "bundle_bytes", "slots", "lent", "in_flight_1f1b",
    "peak_bytes_1f1b", "peak_bytes", "memory", "host_bytes", "fits", "chunks",
}  # fmt: skip
CATEGORIES = [
    "weights", "gradients", "masters", "optimizer", "embedding", "own_slots", "lent_slots", "keys", "messages", "head", "workspace", "data",
]  # fmt: skip
LLAMA = ROOT / "configs" / "llama65b.yaml"
GPT = ROOT / "configs" / "gpt3_96b.yaml"
GIB = 2**30


def plan(config, *overrides, family="llama"):
    options = [part for override in ("hardware.profile=", *overrides) for part in ("-o", override)]
    ended = command(family, "-c", config, "--plan", "--json", *options)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def report(config, *overrides, family="llama", rest=("-v",)):
    options = [part for override in ("hardware.profile=", *overrides) for part in ("-o", override)]
    ended = command(family, "-c", config, "--plan", *rest, *options)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


# ---- for people ------------------------------------------------------------------------------------------------------

REPORTS = {
    "llama65b": (LLAMA, "llama", []),
    "llama65b_bpipe": (LLAMA, "llama", ["schedule.bpipe=on", "schedule.micro_batch=4"]),
    "deep": (
        LLAMA,
        "llama",
        ["model.layers=1024", "model.hidden=16384", "parallel.pipeline=64", "train.global_batch=256"],
    ),
    "gpt3": (GPT, "gpt", ["attention.mode=none"]),
    "tiny": (ROOT / "configs" / "llama_tiny.yaml", "llama", []),
}


@pytest.mark.parametrize("name", REPORTS)
def test_a_plan_begins_with_its_answer_and_fits_120_columns(name):
    config, family, overrides = REPORTS[name]
    lines = report(config, *overrides, family=family, rest=()).splitlines()
    assert lines[0].startswith("CPUs      planned for this machine's") == (name == "tiny")
    labels = [line[:10].strip() for line in lines[name == "tiny" :]]
    assert labels[:3] == ["plan", "fits", "step"] and {"run", "BPipe?", "memory"} <= set(labels)
    assert len(lines) <= 20
    everything = report(config, *overrides, family=family).splitlines()
    assert len(everything) > 40
    assert [line for line in (*lines, *everything) if len(line) > 120] == []


def test_a_plan_shows_the_five_fastest_schedules_the_given_one_and_the_leanest():
    told, text = plan(LLAMA), report(LLAMA, rest=())
    rows = [line for line in text.split("\nschedule  ")[1].splitlines()[1:]]
    steps = [float(re.search(r"([\d.]+) ms +[\d.]+%", row)[1]) for row in rows]
    fitting = sorted(row["step_ms"] for row in told["schedules"] if row["fits"])
    assert steps == sorted(steps) and steps[:5] == pytest.approx(fitting[:5], abs=0.051) and len(rows) <= 7
    assert rows[0].rstrip().endswith("best") and sum("leanest" in row for row in rows) == 1
    given = next(row for row in rows if "given" in row)
    assert f"{told['step_ms']:.1f} ms" in given
    least = min(row["peak_bytes"] for row in told["schedules"]) / GIB
    assert f"{least:.2f} GiB" in next(row for row in rows if "leanest" in row)


def test_what_does_not_fit_is_said_first_and_is_red_on_a_terminal():
    options = ["-o", "hardware.memory_gib=40", "-o", "hardware.profile="]
    told, text = plan(LLAMA, "hardware.memory_gib=40"), report(LLAMA, "hardware.memory_gib=40", rest=())
    most = max(stage["peak_bytes"] for stage in told["stages"]) / GIB
    assert f"fits      no: {most + 4 - 40:.2f} GiB too much on the ranks of stage 0" in text
    assert all((f"({stage['peak_bytes'] / GIB:.2f})" in text) != stage["fits"] for stage in told["stages"])
    ours, theirs = pty.openpty()
    subprocess.run([trainer("llama"), "-c", LLAMA, "--plan", *options], stdout=theirs, env=environment(), check=True)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours), os.close(theirs)
    assert shown.startswith("\033[1;31mplan") and "\033" not in text


GPUS = ("hardware.gpu=h100", "hardware.peak_tflops=312", "hardware.memory_gib=80")
SMALL = ROOT / "configs" / "llama_tiny.yaml"


@pytest.mark.parametrize("named", GPUS)
def test_gpus_that_are_named_are_planned_for_without_a_driver(named):
    """A named GPU is never replaced by the CPUs of the machine that happens to make the plan."""
    for ask in (["--plan", "--json"], ["--schedule"], ["--plan", "--sweep", "schedule.micro_batch=1,2"]):
        told = [
            command("llama", "-c", SMALL, "-o", f"hardware.device={device}", "-o", named, *ask).stdout
            for device in ("auto", "cuda")
        ]
        assert told[0] == told[1] != "" and "CPUs" not in told[0]


def test_a_planned_step_has_the_band_of_published_runs_on_such_gpus():
    """The band is of what other programs take; with run_share, or on CPUs, nothing else changes it."""
    told = plan(LLAMA)
    low, high = told["step_ms_low"] / told["step_ms"], told["step_ms_high"] / told["step_ms"]
    assert 1 < low < high and high / low < 1.45
    assert plan(SMALL)["step_ms_low"] is None
    fitted = plan(LLAMA, "hardware.matmul_efficiency=0.6")
    assert fitted["step_ms_low"] < fitted["step_ms"] < fitted["step_ms_high"] < 1.1 * fitted["step_ms_low"]
    assert re.search(r"^band      [\d.]+ to [\d.]+ s", report(LLAMA, "hardware.matmul_efficiency=0.6"), re.M)
    slower = plan(LLAMA, "hardware.run_share=0.84")
    assert 1.1 < slower["step_ms"] / told["step_ms"] < 1 / 0.84
    assert slower["step_ms_low"] == pytest.approx(low * slower["step_ms"])
    assert re.search(r"^published [\d.]+ to [\d.]+ s, MFU \d+ to \d+%: .* on A100s", report(LLAMA), re.M)
    by_sheet = report(LLAMA, "hardware.gpu=rtx-4090")
    assert "stages by the data sheet" in by_sheet and "planned by its data sheet" in " ".join(by_sheet.split())


def test_days_hours_and_price_have_the_band_of_the_step():
    told = plan(LLAMA, "hardware.gpu_hour=2")
    for end, other in (("low", "high"), ("high", "low")):
        factor = told[f"step_ms_{end}"] / told["step_ms"]
        assert told[f"mfu_{other}"] == pytest.approx(told["mfu"] / factor)
        for bill in ("step", "billion", "whole"):
            for key in ("days", "gpu_hours", "price", "mwh"):
                assert told["budget"][bill][f"{key}_{end}"] == pytest.approx(factor * told["budget"][bill][key])
    assert "days_low" not in plan(SMALL)["budget"]["whole"] and plan(SMALL)["mfu_low"] is None
    assert re.search(r"by that band: from [\d.]+ hours,.* to [\d.]+ hours,", " ".join(report(LLAMA).split()))


WATERFALL = [
    "products at peak", "rate and shape", "attention", "passes over memory", "tensor collectives", "idle", "messages",
    "sums over data ranks", "optimizer",
]  # fmt: skip
CUTS = [
    (LLAMA, []),
    (LLAMA, ["schedule.bpipe=on", "schedule.micro_batch=4"]),
    (LLAMA, ["schedule.bpipe=on", "schedule.evict_to=host", "hardware.host_gb_s=2"]),
    (LLAMA, ["schedule.split_backward=on", "attention.mode=recompute"]),
    (LLAMA, ["schedule.recompute_layers=4", "hardware.gpu=h100", "hardware.run_share=0.8"]),
    (LLAMA, ["parallel.data=4", "hardware.network_gb_s=5", "parallel.pipeline=4"]),
    (LLAMA, ["parallel.pipeline=1", "parallel.tensor=8"]),
    (LLAMA, ["schedule.name=interleaved", "hardware.latency_us=5000"]),
    (LLAMA, ["parallel.layers=[3,11,11,11,11,11,11,11]", "hardware.step_overhead_ms=50", "hardware.action_us=300"]),
    (SMALL, []),
    (SMALL, ["parallel.tensor=2", "model.tie_embeddings=true"]),
]


@pytest.mark.parametrize("config, overrides", CUTS, ids=str)
def test_nine_lines_say_where_the_step_goes_and_sum_to_it(config, overrides):
    told = plan(config, *overrides)
    fall = told["waterfall"]
    assert [line["what"] for line in fall] == WATERFALL
    assert sum(line["ms"] for line in fall) == pytest.approx(told["step_ms"], rel=1e-9)
    assert sum(line["share"] for line in fall) == pytest.approx(1)
    assert min(line["ms"] for line in fall) >= -1e-9 * told["step_ms"]
    idle = fall[WATERFALL.index("idle")]
    assert idle["ramp_ms"] + idle["imbalance_ms"] == pytest.approx(idle["ms"])


def test_each_cause_is_found_in_its_line():
    def lines(*overrides):
        return {line["what"]: line["ms"] for line in plan(LLAMA, *overrides)["waterfall"]}

    here = lines()
    changed = {
        "rate and shape": "hardware.matmul_efficiency=0.4",
        "attention": "hardware.flash_backward=0.2",
        "messages": "hardware.latency_us=20000",
        "sums over data ranks": "parallel.data=2",
        "idle": "parallel.layers=[10,10,10,14,6,10,10,10]",
        "optimizer": "hardware.step_overhead_ms=100",
    }
    for what, override in changed.items():
        assert lines(override)[what] > 1.1 * here[what] + 1, what


def test_uneven_stages_and_odd_extents_are_advised_on():
    uneven = ["parallel.pipeline=2", "parallel.layers=[60,20]", "hardware.memory_gib=400"]
    told = plan(LLAMA, *uneven)
    said = r"stage 0 takes [\d.]+ times stage 1: -o (parallel.layers=\S+), ([\d.]+) % less"
    found = re.search(said, told["advice"][0])
    again = plan(LLAMA, *uneven, found[1])
    assert 100 * (1 - again["step_ms"] / told["step_ms"]) == pytest.approx(float(found[2]), abs=0.06)
    assert again["advice"] == []
    odd = plan(LLAMA, "model.ffn=21840")["advice"]
    assert len(odd) == 1 and "model.ffn / parallel.tensor is 5460," in odd[0] and "22016 would not" in odd[0]
    assert re.search(r"^advice    model.ffn", report(LLAMA, "model.ffn=21840"), re.M)


def test_an_answer_for_cpus_says_so_in_its_first_line():
    for ask in (["--plan"], ["--search"], ["--plan", "--sweep", "schedule.micro_batch=1,2"]):
        told = command("llama", "-c", SMALL, *ask).stdout
        assert told.startswith("CPUs      planned for this machine's")
    # What a data sheet says of GPUs is not said of CPUs.
    told = report(LLAMA, "hardware.device=cpu", "hardware.gpu=h100")
    assert told.startswith("CPUs") and "700 W" not in told and "80.00 GiB per rank" not in told


def test_plans_and_searches_read_no_data_and_runs_ask_for_them(tmp_path):
    text = "".join(line for line in SMALL.read_text().splitlines(True) if not line.startswith("  train:"))
    config, best = tmp_path / "no_data.yaml", tmp_path / "best.yaml"
    config.write_text(text)
    assert command("llama", "-c", config, "--plan").returncode == 0
    assert command("llama", "-c", config, "--schedule").returncode == 0
    searched = command("llama", "-c", config, "--search", "--json", "--write", best)
    assert "train" not in json.loads(searched.stdout)["best"]["config"]["data"]
    assert "# train: not given" in best.read_text()
    ended = command("llama", "-c", best)
    assert ended.returncode == 2 and "data.train: is missing and has no default" in ended.stderr
    assert command("llama", "-c", best, "-o", "data.train=x.bin", "--plan").returncode == 0


# ---- the contract ----------------------------------------------------------------------------------------------------


def test_the_keys_are_the_contract():
    told = plan(LLAMA)
    assert set(told) == KEYS
    assert set(told["model"]) == {"parameters", "flops_per_token_full", "flops_per_token_causal"}
    assert all(set(stage) == STAGE_KEYS for stage in told["stages"])
    assert set(told["verdict"]) == {"use_bpipe", "reason", "required_stage_gain", "measured_stage_gain"}
    assert told["source"] == "model"
    assert set(told["job"]) == {"nodes", "tasks_per_node", "gpus_per_node", "checkpoint_dir"}


def test_categories_add_up_and_the_ends_carry_more_than_layers():
    stages = plan(LLAMA)["stages"]
    assert all(list(stage["memory"]) == CATEGORIES for stage in stages)
    assert all(sum(stage["memory"].values()) == stage["peak_bytes"] for stage in stages)
    assert [stage["memory"]["embedding"] > 0 for stage in stages] == [True] + 6 * [False] + [True]
    assert [stage["memory"]["head"] > 0 for stage in stages] == 7 * [False] + [True]
    for kind in ("weights", "gradients", "masters", "optimizer"):
        assert len({stage["memory"][kind] for stage in stages}) == 1  # ten layers each
    for stage in stages:
        states = sum(stage["memory"][kind] for kind in ("weights", "gradients", "masters", "optimizer", "embedding"))
        assert stage["states_bytes"] == states


def test_figures_of_the_big_models():
    told = plan(LLAMA, "schedule.micro_batch=4", "schedule.bpipe=on")
    assert told["model"]["parameters"] == 65285660672
    assert abs(told["model"]["flops_per_token_full"] - 406.239e9) < 1e6
    assert (told["world"], told["microbatches"]) == (32, 32)
    stages = told["stages"]
    assert [stage["in_flight_1f1b"] for stage in stages] == [8, 7, 6, 5, 4, 3, 2, 1]
    assert all(stage["slots"] + stage["lent"] <= 5 for stage in stages)
    assert [(stage["first_layer"], stage["last_layer"]) for stage in stages] == [(10 * s, 10 * s + 9) for s in range(8)]
    # 18 bytes a parameter over 4 tensor ranks; 10 layers of 16 h + 6 f for 2048 * 4 rows over 4 ranks.
    assert abs(stages[3]["states_bytes"] / (stages[3]["parameters"] / 4 * 18) - 1) < 1e-3
    assert abs(stages[3]["bundle_bytes"] / (10 * 2048 * (16 * 8192 + 6 * 22016)) - 1) < 1e-2
    assert abs(stages[0]["states_bytes"] / GIB + 8 * stages[0]["bundle_bytes"] / GIB - 74.4) < 1.5
    slot = max(stages[0]["bundle_bytes"], stages[7]["bundle_bytes"])  # a pair's slots are alike
    assert stages[0]["peak_bytes_1f1b"] - stages[0]["peak_bytes"] == 8 * stages[0]["bundle_bytes"] - 5 * slot
    gpt = plan(GPT, family="gpt")
    assert gpt["model"]["parameters"] == 96235077120
    assert abs(gpt["model"]["flops_per_token_full"] - 596.855e9) < 1e6


def test_what_fits_is_peak_and_reserve_within_memory():
    for reserve in (3, 5, 20):
        told = plan(LLAMA, "schedule.micro_batch=4", f"hardware.reserve_gib={reserve}")
        for stage in told["stages"]:
            assert stage["fits"] == (stage["peak_bytes"] / GIB + reserve <= 80)


def test_gains_are_of_this_micro_batch_over_the_largest_that_fits_without_bpipe():
    told = plan(GPT, "schedule.micro_batch=2", "attention.mode=recompute", "attention.softmax=megatron", family="gpt")
    verdict = told["verdict"]
    assert verdict["use_bpipe"] is True
    assert abs(verdict["required_stage_gain"] - (142 / 135 - 1)) < 1e-9
    assert 0.2 < verdict["measured_stage_gain"] < 0.6
    assert "5.2 %" in verdict["reason"]


def test_unknown_figures_are_null():
    told = plan(LLAMA, "hardware.peak_tflops=auto")
    assert told["step_ms"] is None and told["mfu"] is None and told["bubble"] is None
    assert told["verdict"]["measured_stage_gain"] is None


HUGE = ["parallel.pipeline=64", "parallel.tensor=8", "parallel.data=32", "train.global_batch=131072"]


def fewest_cpu_seconds(ask):
    """The answer, and the processor time of the quickest of three: a busy machine makes it late, not long."""
    times = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        answer = ask()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return answer, min(times)


@pytest.mark.thorough
@pytest.mark.parametrize("bpipe", ["off", "on", "auto"])
def test_a_huge_world_is_planned_in_seconds(bpipe):
    told, seconds = fewest_cpu_seconds(lambda: plan(LLAMA, *HUGE, f"schedule.bpipe={bpipe}"))
    assert (told["world"], told["microbatches"], len(told["stages"])) == (16384, 4096, 64)
    assert seconds < 8  # one on the machines seen; lists of all microbatches would take minutes


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
def test_a_huge_world_that_fits_nowhere_takes_seconds_too(name):
    hardware = ["hardware.memory_gib=0.1", "hardware.reserve_gib=0", "hardware.gpus_per_node=64"]
    text, seconds = fewest_cpu_seconds(lambda: report(LLAMA, *HUGE, *hardware, f"schedule.name={name}"))
    assert "no number of ranks with this memory would do" in text
    assert seconds < 8  # one on the machines seen; lists of all microbatches would take minutes


def test_a_plan_needs_no_data_and_reads_none(tmp_path):
    config = write_config(tmp_path)
    told = plan(config, 'data.train="nowhere/*.bin"')
    assert told["stages"][0]["fits"] is True


def test_without_json_the_options_say_so():
    ended = command("llama", "-c", LLAMA, "--json")
    assert ended.returncode == 2 and "--plan" in ended.stderr
    text = command("llama", "--help").stdout
    for option in ("--plan", "--profile", "--emulate-stage S", "--json"):
        assert option in text


# ---- the report ------------------------------------------------------------------------------------------------------


def test_the_report_says_what_is_not_counted_and_what_else_would_do():
    text = report(LLAMA, "schedule.micro_batch=4", "hardware.reserve_gib=5")
    assert "are reserved for what is not counted here" in text
    assert re.search(
        r"reserve +micro-batch 4 fits without BPipe up to a reserve of \d\.\d\d GiB, with it up to 1\d\.\d\d", text
    )
    assert re.search(r"^BPipe\? +No: with 1F1B micro-batch 4 fits only with BPipe", text, re.M)
    for schedule in (
        "1F1B, BPipe",
        "1F1B, host",
        "1F1B, layers recomputed",
        "interleaved",
        "V-Half",
        "ZB-V",
        "GIS, g=4",
    ):
        assert re.search(rf"^{schedule}  ", text, re.M), schedule


def test_formulas_are_named_as_such_with_their_source_and_are_no_rows():
    text = " ".join(report(LLAMA).split())
    assert "formulas not run here, not simulated, not among the schedules above: FSDP (ZeRO-3)" in text
    assert re.findall(r"\(arXiv ([\d.]+)", text) == ["2304.11277", "2411.05288"]


def test_slices_are_rows_only_where_they_are_given():
    """Four slices keep 11 of their bundles where 1F1B keeps 8 whole ones, and the plan counts the keys beside them."""
    told = plan(LLAMA, "schedule.name=seq1f1b", "schedule.slices=4", "schedule.split_backward=off")
    rows = {(row["name"], row["chunks"], row["slices"]) for row in told["schedules"]}
    assert ("seq1f1b", 1, 4) in rows and ("interleaved", 2, 4) in rows and ("1f1b", 1, 1) in rows
    stage = told["stages"][0]
    assert stage["slots"] == 11 and stage["in_flight_1f1b"] == 8
    # Four microbatches are in flight. Each layer keeps k and v of all heads in 16 bit, and one microbatch's gradients.
    width, tokens, layers = 2 * 8192 // 4, 2048, stage["last_layer"] + 1
    assert stage["memory"]["keys"] == layers * tokens * width * (4 * 2 + 4)
    assert stage["peak_bytes"] < stage["peak_bytes_1f1b"]


def test_sharded_states_and_a_spread_vocabulary_are_lines_by_formula():
    """FSDP keeps a part of all states and every bundle of one microbatch; its gathers show where the network is slow."""
    cut = ["train.global_batch=128", "parallel.data=2", "schedule.split_backward=off"]
    line = r"FSDP \(ZeRO-3\) over 16 ranks .*? about ([\d.]+) GiB a rank and ([\d.]+) ms a step, of which ([\d.]+) ms"
    told = plan(LLAMA, *cut)
    fast, slow = (
        [
            float(part)
            for part in re.search(
                line, " ".join(report(LLAMA, *cut, f"hardware.network_gb_s={rate}").split())
            ).groups()
        ]
        for rate in (1000, 1)
    )
    assert fast[0] == slow[0] and fast[2] < slow[2] and slow[1] - fast[1] == pytest.approx(slow[2] - fast[2], rel=0.02)
    states = sum(stage["states_bytes"] for stage in told["stages"]) / GIB
    bundles = sum(stage["bundle_bytes"] for stage in told["stages"]) / GIB
    assert states / 16 + bundles < fast[0] < 2 * states / 16 + bundles + 1
    # Stages with equal layers and no vocabulary to speak of have nothing to spread.
    text = r"vocabulary parallelism, .*? about ([\d.]+) GiB on the fullest rank and ([\d.]+) ms"
    small, large = (
        float(re.search(text, " ".join(report(LLAMA, f"model.vocab={vocab}", *cut).split()))[2])
        for vocab in (1000, 256000)
    )
    assert small == pytest.approx(plan(LLAMA, "model.vocab=1000", *cut)["step_ms"], rel=0.01)
    assert large < 0.9 * plan(LLAMA, "model.vocab=256000", *cut)["step_ms"]


def test_many_stages_are_compared_while_that_takes_no_seconds():
    deep = ["parallel.pipeline=40", "model.layers=80", "schedule.split_backward=off"]
    assert len(plan(LLAMA, *deep, "train.global_batch=80")["schedules"]) > 10
    many = plan(LLAMA, *deep, "train.global_batch=400")
    assert many["schedules"] == [] and many["best"] is None
    assert "schedules not compared: simulating all" in " ".join(report(LLAMA, *deep, "train.global_batch=400").split())


def test_schedules_that_cannot_run_are_not_offered():
    # 40 layers are no two chunks for each of 32 stages; and 12 microbatches no whole rounds of 8 stages.
    names = {row["name"] for row in plan(LLAMA, "parallel.pipeline=32", "model.layers=40")["schedules"]}
    assert "zb-d" in names and not names & {"interleaved", "v-half", "gis"}
    names = {row["name"] for row in plan(LLAMA, "train.global_batch=12")["schedules"]}
    assert "v-half" in names and "interleaved" not in names


def test_every_row_of_the_schedules_is_reproduced_by_its_values():
    answer = plan(LLAMA)
    rows = answer["schedules"]
    assert len(rows) > 30
    for row in rows[:: max(1, len(rows) // 12)]:
        plain = ("name", "chunks", "split_backward", "bpipe", "evict_to", "recompute_layers", "recompute")
        values = {key: row[key] for key in plain}
        kept = ("group",) if row["group"] else ()
        assert (row["load_ahead"] is None) == (row["bpipe"] == "off") and 0 not in (row["group"], row["delay"])
        kept += ("slots", "load_ahead") if row["bpipe"] == "on" else ()
        values.update({key: row[key] for key in kept})
        overrides = [f"schedule.{key}={value}" for key, value in values.items()]
        again = plan(LLAMA, *overrides)
        assert max(stage["peak_bytes"] for stage in again["stages"]) == row["peak_bytes"], row
        assert abs(again["step_ms"] / row["step_ms"] - 1) < 1e-9, row


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
        assert len(set(rows)) == len(rows) and len(plain) == 2  # whole and split backwards


def test_a_schedule_that_is_left_open_becomes_the_best_one():
    best = (answer := plan(LLAMA))["schedules"][answer["best"]]
    decided = plan(LLAMA, "schedule.name=auto")
    assert decided["step_ms"] == pytest.approx(best["step_ms"], rel=1e-9)
    assert max(stage["peak_bytes"] for stage in decided["stages"]) == best["peak_bytes"]


@pytest.mark.parametrize("batch", [1, 8])
def test_of_equally_quick_schedules_the_plainest_is_taken(batch):
    one = ["parallel.pipeline=1", "parallel.tensor=8", "model.layers=4", f"train.global_batch={batch}"]
    told = plan(LLAMA, *one)
    rows = {(row["name"], row["split_backward"]): row for row in told["schedules"] if row["bpipe"] == "off"}
    assert rows["gpipe", "off"]["step_ms"] == pytest.approx(rows["1f1b", "off"]["step_ms"], rel=1e-9)
    best = told["schedules"][told["best"]]
    assert (best["name"], best["split_backward"], best["recompute_layers"]) == ("1f1b", "off", 0)
    asked = [part for each in [*one, "schedule.name=auto"] for part in ("-o", each)]
    decided = command("llama", "-c", LLAMA, "--plan", *asked)
    assert "schedule.name auto is 1F1B with 1 chunk" in decided.stderr


def test_a_schedule_that_is_left_open_evicts_as_bpipe_says():
    rows = plan(LLAMA)["schedules"]
    for bpipe, to in (("off", "peer"), ("on", "peer"), ("on", "host")):
        asked = ["schedule.name=auto", f"schedule.bpipe={bpipe}", f"schedule.evict_to={to}"]
        fitting = (row for row in rows if row["fits"] and (row["bpipe"], row["evict_to"]) == (bpipe, to))
        quickest = min(row["step_ms"] for row in fitting)
        assert plan(LLAMA, *asked)["step_ms"] == pytest.approx(quickest, rel=1e-9)


@pytest.mark.parametrize("given", [("chunks", 4), ("group", 4), ("delay", 7), ("slots", 5)], ids=lambda given: given[0])
def test_a_schedule_that_is_left_open_keeps_to_the_keys_that_are_given(given):
    key, value = given
    evicts = ["schedule.bpipe=on"] if key == "slots" else []
    rows = plan(LLAMA)["schedules"]
    on = "on" if evicts else "off"
    quickest = min(
        row["step_ms"]
        for row in rows
        if row["fits"] and row[key] == value and (row["bpipe"], row["evict_to"]) == (on, "peer")
    )
    told = plan(LLAMA, "schedule.name=auto", f"schedule.{key}={value}", *evicts)
    assert told["step_ms"] == pytest.approx(quickest, rel=1e-9)


@pytest.mark.parametrize(
    "overrides, code, says",
    [
        (["schedule.bpipe=on", "schedule.slots=7"], 0, "is 1F1B: no schedule that fits keeps to the keys of schedule"),
        (["schedule.chunks=3"], 2, "-o schedule.chunks: schedule.name auto found no schedule with 3 chunks"),
        (["hardware.memory_gib=20"], 0, "is 1F1B: no schedule fits"),
        (
            ["parallel.pipeline=40", "train.global_batch=400"],
            0,
            "is 1F1B: so many stages and microbatches are not simulated",
        ),
    ],
    ids=["slots", "chunks", "memory", "many"],
)
def test_a_schedule_that_is_left_open_and_not_found_says_why(overrides, code, says):
    options = [part for override in ("schedule.name=auto", *overrides) for part in ("-o", override)]
    ended = command("llama", "-c", LLAMA, "--plan", "-o", "hardware.profile=", *options)
    assert ended.returncode == code and says in ended.stderr


NARROW = ["parallel.tensor=1", "parallel.sequence=false", "model.layers=16"]


@pytest.mark.parametrize(
    "overrides, splits",
    [
        (NARROW, True),
        ([*NARROW, "schedule.bpipe=on", "schedule.micro_batch=2"], True),
        ([*NARROW, "train.global_batch=8192"], False),  # 1F1B is idle for less than 0.5 % of such a step
        ([], False),  # gradients are gathered twice more, which costs more than it brings
        ([*NARROW, "hardware.peak_tflops=auto"], False),
        ([*NARROW, "hardware.device=cpu", "hardware.peak_tflops=0.1"], False),
    ],
    ids=["gpu", "bpipe", "many", "sequence", "unknown", "cpu"],
)
def test_backwards_are_split_where_that_makes_a_gpu_s_step_shorter(overrides, splits):
    """The plan and the list agree, and an existing profile does not change the decision."""
    steps = {
        split: plan(LLAMA, *overrides, f"schedule.split_backward={split}")["step_ms"] for split in ("off", "on", "auto")
    }
    assert steps["auto"] == steps["on" if splits else "off"]
    if "hardware.device=cpu" not in overrides and steps["on"] is not None:
        assert (steps["on"] < 0.995 * steps["off"]) == splits
    options = [part for override in overrides for part in ("-o", override)]
    text = command("llama", "-c", LLAMA, "--schedule", *options)
    assert (" I0" in text.stdout) == splits and ("split_backward auto is on" in text.stderr) == splits


def test_an_open_schedule_splits_as_split_backward_says():
    rows = plan(LLAMA)["schedules"]
    for split in ("on", "off"):
        quickest = min(row["step_ms"] for row in rows if row["fits"] and row["split_backward"] == split)
        told = plan(LLAMA, "schedule.name=auto", "schedule.bpipe=auto", f"schedule.split_backward={split}")
        assert told["step_ms"] == pytest.approx(quickest, rel=1e-9)


def test_the_best_schedule_is_the_quickest_that_fits():
    for overrides in ((), ("schedule.micro_batch=4", "hardware.memory_gib=66"), ("hardware.memory_gib=30",)):
        answer = plan(LLAMA, *overrides)
        fitting = [row["step_ms"] for row in answer["schedules"] if row["fits"]]
        if not fitting:
            assert answer["best"] is None
        else:
            best = answer["schedules"][answer["best"]]
            assert best["fits"] and best["step_ms"] <= min(fitting) / 0.999
            assert best["bpipe"] == "off" or best["step_ms"] == min(fitting)


EVICTS_FOR_LITTLE = [
    "parallel.pipeline=6",
    "parallel.placement=adjacent",
    "attention.mode=none",
    "schedule.micro_batch=1",
    "parallel.data=1",
    "parallel.sequence=true",
    "parallel.collectives=nccl",
]
LITTLE = [
    ("gpt", "gpt3_13b", ["parallel.tensor=2", "train.global_batch=72", "hardware.memory_gib=40"], False),  # 0.02 %
    ("gpt", "gpt3_13b", ["parallel.tensor=2", "train.global_batch=24", "hardware.memory_gib=40"], True),  # 0.8 %
]


@pytest.mark.parametrize("family, name, more, evicts", LITTLE, ids=["too_little", "enough"])
def test_a_schedule_that_evicts_is_the_best_only_if_it_saves_a_thousandth(family, name, more, evicts):
    config, overrides = ROOT / "configs" / f"{name}.yaml", [*EVICTS_FOR_LITTLE, *more]
    answer = plan(config, *overrides, family=family)
    plain, other = (
        min(row["step_ms"] for row in answer["schedules"] if row["fits"] and row["bpipe"] == bpipe)
        for bpipe in ("off", "on")
    )
    assert other < plain and (other < 0.999 * plain) == evicts
    assert answer["schedules"][answer["best"]]["bpipe"] == ("on" if evicts else "off")
    opened = ["schedule.name=auto", "schedule.bpipe=auto", "schedule.chunks=auto"]
    to = f"schedule.evict_to={answer['schedules'][answer['best']]['evict_to']}"
    decided = plan(config, *overrides, *opened, to, family=family)
    assert decided["step_ms"] == pytest.approx(other if evicts else plain, rel=1e-9)


def test_an_impossible_plan_says_the_smallest_world_that_would_do():
    text = report(LLAMA, "parallel.pipeline=2", "parallel.tensor=1")
    found = re.search(r"the smallest that would do: (\d+) ranks, pipeline (\d+) x tensor (\d+)", text)
    assert int(found[1]) == int(found[2]) * int(found[3]) and 15 <= int(found[1]) <= 24


def test_the_smallest_world_is_that_of_trying_every_cut(tmp_path):
    """Also if the number of tensor ranks is not a power of two."""
    model = "{family: llama, hidden: 1536, layers: 4, heads: 12, ffn: 4608, vocab: 3000, seq_len: 512}"
    device = "{device: cuda, gpus_per_node: 6, reserve_gib: 0}"
    config = write_config(tmp_path, model=model, parallel="{}", schedule="{}", hardware=device)
    peaks = {}
    for p in (1, 2, 3, 4):
        for t in (1, 2, 3, 4, 6):
            stages = plan(config, f"parallel.pipeline={p}", f"parallel.tensor={t}", "hardware.memory_gib=1000")[
                "stages"
            ]
            peaks[p, t] = max(stage["peak_bytes"] for stage in stages)
    for best in ((1, 3), (1, 6), (2, 3), (4, 6)):
        limit = peaks[best]
        wanted = min(p * t for (p, t), peak in peaks.items() if peak <= limit)
        text = report(config, f"hardware.memory_gib={(limit + 1024) / GIB:.12f}")
        found = re.search(
            r"the smallest that would do: (\d+) ranks, pipeline (\d+) x tensor (\d+)( with BPipe)?, at", text
        )
        ranks, p, t = (int(found[i]) for i in (1, 2, 3))
        assert ranks == p * t <= wanted and (found[4] or peaks[p, t] <= limit)
        assert found[4] or ranks == wanted
    assert wanted == 24


# ---- auto, and the run -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return write_config(tmp_path_factory.mktemp("plan"), schedule="{bpipe: auto, micro_batch: 2}")


def schedule_name(config, *overrides):
    options = [part for override in overrides for part in ("-o", override)]
    return command("llama", "-c", config, "--schedule", *options).stdout.split()[2]


def test_auto_does_what_the_verdict_says(config):
    with_room = plan(config)
    assert with_room["verdict"]["use_bpipe"] is False and schedule_name(config) == "1f1b"
    # Memory in which only BPipe fits, and no smaller micro-batch.
    peak = max(stage["peak_bytes"] for stage in plan(config, "schedule.bpipe=on", "schedule.micro_batch=1")["stages"])
    limit = [f"hardware.memory_gib={peak / GIB + 1e-6:.9f}", "hardware.reserve_gib=0", "schedule.micro_batch=1"]
    told = plan(config, *limit)
    assert told["verdict"]["use_bpipe"] is True and schedule_name(config, *limit) == "bpipe"
    assert told["stages"][3]["lent"] > 0 and told["stages"][0]["fits"] is True


@pytest.mark.parametrize("family", ["llama", "gpt"])
@pytest.mark.parametrize(
    "overrides",
    [
        ["schedule.bpipe=on"],
        ["schedule.bpipe=off", "parallel.pipeline=2", "parallel.tensor=2", "parallel.sequence=true"],
        [
            "schedule.bpipe=off",
            "parallel.pipeline=2",
            "parallel.data=2",
            "train.precision=bf16",
            "attention.mode=recompute",
        ],
        ["schedule.bpipe=off", "parallel.pipeline=1", "parallel.tensor=2", "parallel.data=2", "attention.mode=none"],
        ["schedule.bpipe=on", "schedule.evict_to=host", "parallel.pipeline=2"],
    ],
    ids=["bpipe", "tensor", "data", "tensor_and_data", "host"],
)
def test_a_run_allocates_to_the_byte_what_was_planned(tmp_path, family, overrides):
    config = write_config(tmp_path, family)
    planned = plan(config, *overrides, family=family)
    ended = trained(config, *overrides, "train.steps=1", family=family)
    assert [stage["peak_bytes"] for stage in ended.steps[0]["stages"]] == [
        stage["peak_bytes"] for stage in planned["stages"]
    ]
    where = "all stages" if len(planned["stages"]) > 1 else "the one stage"
    assert f"memory    as planned, to the byte, on {where}; " in ended.stderr


@pytest.mark.thorough
def test_a_process_takes_from_the_kernel_what_was_planned(tmp_path, monkeypatch):
    """Where activations dominate: the peak less that of a run with almost none, within 3 %."""
    monkeypatch.setattr(bench_plan, "PROGRAM", trainer("llama"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    model = "{family: llama, hidden: 64, layers: 4, heads: 2, ffn: 256, vocab: 100, seq_len: 512}"
    sections = {"parallel": "{pipeline: 2}", "schedule": "{micro_batch: 16}", "train": "{global_batch: 64, steps: 2}"}
    data = write_tokens(tmp_path / "many.bin", made_tokens(64 * 512 * 2 + 1, seed=1))
    config = write_config(tmp_path, model=model, data=f'{{train: "{data}"}}', **sections)
    base, processes = bench_plan.observed(tmp_path, str(config), "model.seq_len=32", "schedule.micro_batch=1")
    base = [process - held for process, held in zip(processes, base)]
    planned = [stage["peak_bytes"] for stage in plan(config)["stages"]]
    held, processes = bench_plan.observed(tmp_path, str(config))
    assert held == planned and min(planned) > 100 * 2**20
    for bytes_planned, process, before in zip(planned, processes, base):
        assert bytes_planned / (process - before) == pytest.approx(1, abs=0.03)


def test_auto_is_decided_once_and_reported_once(config):
    ended = run(config, "train.steps=1")
    assert ended.code == 0
    assert ended.stderr.count("schedule.bpipe auto is off") == 1
    assert ended.head["config"]["schedule"]["bpipe"] == "off"


@pytest.mark.skipif(not built_with_mpi(), reason="built without MPI")
def test_ranks_take_what_the_parent_decides_where_a_key_stays_auto(tmp_path):
    """No schedule has this load_ahead here, so auto falls back to 1F1B, whose slots stay auto."""
    config = write_config(tmp_path)
    asked = ["schedule.bpipe=on", "schedule.evict_to=peer", "schedule.load_ahead=3", "train.global_batch=8"]
    ended = trained(config, *asked, "schedule.name=auto")
    assert "schedule.name auto is 1F1B: no schedule that fits keeps to the keys" in ended.stderr
    keys = ended.head["config"]["schedule"]
    assert (keys["name"], keys["slots"], keys["bpipe"]) == ("1f1b", "auto", "on")
    assert ended.bits == trained(config, *asked, "schedule.name=1f1b").bits


@pytest.mark.skipif(not built_with_mpi(), reason="built without MPI")
@pytest.mark.parametrize("text", ["", "layout 0 1 2", "layout 1 8 4"])
def test_ranks_refuse_a_layout_that_is_not_of_this_program(tmp_path, text):
    config = write_config(tmp_path)
    ended = subprocess.run(
        [*mpirun(1), trainer("llama"), "-c", config, "-o", "parallel.pipeline=1", "-o", "schedule.bpipe=off"],
        env=mpirun_environment(TRAINER_LAYOUT=text),
        capture_output=True,
        text=True,
        timeout=patience(60),
    )
    assert ended.returncode == 2
    assert "TRAINER_LAYOUT: is not a layout of this program and configuration; unset it" in ended.stderr



def test_memory_of_long_sequences_is_linear_in_their_length():
    """With flash, whatever depends on the sequence grows with it and not with its square."""
    short, *longer = (
        plan(LLAMA, f"model.seq_len={length}", "train.global_batch=32")["stages"][0] for length in (8192, 32768, 131072)
    )
    for times, stage in zip((4, 16), longer):
        assert stage["bundle_bytes"] == pytest.approx(times * short["bundle_bytes"], rel=0.01)
        assert stage["memory"]["workspace"] <= times * short["memory"]["workspace"]
        assert stage["memory"]["messages"] <= times * short["memory"]["messages"]
        assert stage["states_bytes"] == short["states_bytes"]


# ---- odd plans -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["v-half", "zb-v"])
def test_a_list_of_layers_with_empty_stages_is_planned_as_it_runs(schedule):
    layers = "parallel.layers=[0,0,0,1,0,0,1,0]"
    keys = ("model.layers=2", "parallel.pipeline=4", f"schedule.name={schedule}", "schedule.bpipe=off", layers)
    stages = plan(ROOT / "configs" / "llama_tiny.yaml", *keys)["stages"]
    assert [[chunk["last_layer"] for chunk in stage["chunks"]] for stage in stages] == [
        [None, None],
        [None, 1],
        [None, None],
        [0, None],
    ]


def test_absurd_rates_give_json_without_inf():
    options = [part for key in ("memory_gb_s=1e-300", "gpu_hour=1e9") for part in ("-o", f"hardware.{key}")]
    said = command("llama", "-c", LLAMA, "--plan", "--json", *options).stdout
    json.loads(said, parse_constant=lambda word: pytest.fail(word))

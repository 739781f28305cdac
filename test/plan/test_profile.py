"""`--profile` and `--emulate-stage`: an emulated stage allocates the planned bytes, the plan uses measured times, and a
profile is used only for the model and device it was made for."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from trainer_runs import as_options, command, trainer, wait_until, write_config

FAMILIES = ["llama", "gpt"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("profile")


@pytest.fixture(scope="module")
def config(folder):
    return write_config(folder, parallel="{pipeline: 3}", schedule="{micro_batch: 2}")


@pytest.fixture(scope="module")
def profile(folder, config):
    path = folder / "profile.json"
    ended = command("llama", "-c", config, "--profile", "--json", *as_options(f"hardware.profile={path}"))
    return path, json.loads(ended.stdout), ended.stderr


# ---- one emulated stage ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("stage", range(4))
def test_a_stage_alone_takes_the_bytes_that_were_planned(tmp_path, family, stage):
    config = write_config(tmp_path, family, parallel="{pipeline: 4, tensor: 2, sequence: true}")
    ended = command(family, "-c", config, "--emulate-stage", str(stage))
    assert "the same to the byte" in ended.stdout
    times = re.search(r"forward (\S+) ms, backward (\S+) ms a microbatch, median of 8", ended.stdout)
    assert 0 < float(times[1]) < 1000 and 0 < float(times[2]) < 1000
    assert "collectives over 2 ranks, modelled" in ended.stdout
    planned = command(family, "-c", config, "--plan", "--json").stdout
    peak = json.loads(planned)["stages"][stage]["peak_bytes"]
    assert f"allocated, {peak:,} bytes" in ended.stdout
    like = "if every stage were like this one"
    assert like in ended.stdout
    none = as_options(f"parallel.layers={[0 if s == stage else 2 for s in range(4)]}", "model.layers=6")
    ended = command(family, "-c", config, "--emulate-stage", str(stage), *none)
    assert like not in ended.stdout, ended.stderr


def test_the_mfu_of_a_stage_is_that_of_its_times(tmp_path):
    config, work = write_config(tmp_path, hardware="{device: cpu, peak_tflops: 1.0e-4}"), []
    for split in ("off", "on"):
        keys = as_options("schedule.bpipe=off", f"schedule.split_backward={split}")
        said = command("llama", "-c", config, "--emulate-stage", "1", *keys).stdout
        times = re.findall(r"([\d.]+) ms", said.split("\ntime ")[1].split(" a microbatch")[0])
        assert len(times) == (3 if split == "on" else 2)
        work.append(float(re.search(r"never idle: ([\d.]+)%", said)[1]) * sum(map(float, times)))
    assert work[0] == pytest.approx(work[1], rel=0.02)


@pytest.mark.thorough
def test_a_search_plans_from_the_profile_by_the_rules_of_a_plan(folder, config, profile):
    path, told, _ = profile
    measured = as_options(f"hardware.profile={path}")
    best = folder / "best.yaml"
    found = command("llama", "-c", config, "--search", "--json", "--write", best, *measured)
    answer = json.loads(found.stdout)["best"]
    assert answer["step_ms"] <= told["step_ms"] * (1 + 1e-9)
    assert answer["config"]["hardware"]["profile"] == str(path) and answer["config"]["parallel"]["tensor"] == 1
    planned = json.loads(command("llama", "-c", best, "--plan", "--json").stdout)
    assert planned["source"] == "profile" and planned["step_ms"] == answer["step_ms"]
    said = " ".join(command("llama", "-c", config, "--search", *measured).stdout.split())
    assert "only its tensor and expert ranks, attention and kinds of stages are searched" in said
    # A profile of another run is refused if -o names it; otherwise it is reported and not used.
    for question in ("--plan", "--search"):
        other = command("llama", "-c", config, question, *measured, *as_options("train.precision=bf16"), code=2)
        assert "does not match this run" in other.stderr
    named = folder / "named.yaml"
    named.write_text(config.read_text().replace("hardware: {", f"hardware: {{profile: {path}, "))
    assert str(path) in named.read_text()
    said = [command("llama", "-c", named, question, *as_options("train.precision=bf16")).stderr
            for question in ("--plan", "--search")]
    assert "planning from counted times" in said[0] and said[0] == said[1]
    assert command("llama", "-c", named, "--search", "--json").stdout.count(str(path)) > 0


@pytest.mark.thorough
def test_evictions_are_paced(tmp_path):
    config = write_config(tmp_path)
    slow = as_options("hardware.pair_gb_s=0.001", "schedule.micro_batch=1")
    waits = []
    for rate in (slow, []):
        ended = command("llama", "-c", config, "--emulate-stage", "0", *rate)
        waits.append(float(re.search(r"compute waited (\S+) ms", ended.stdout)[1]))
    assert waits[0] > 1000 and waits[1] < waits[0] / 5


def test_all_stages_in_turn_make_the_pipeline_of_as_many_devices(tmp_path):
    config = write_config(tmp_path)
    names = as_options("schedule.name=zb-v", "schedule.bpipe=off", "parallel.pipeline=3", "model.layers=6")
    ended = command("llama", "-c", config, "--emulate-stage", "all", *names)
    busy = [float(value) for value in re.findall(r"^stage +\d computes for ([\d.]+) ms; planned", ended.stdout, re.M)]
    told = re.search(r"of 3 such devices: ([\d.]+) ms, bubble ([\d.]+)%; planned ([\d.]+) ms, ([\d.]+)%", ended.stdout)
    step, bubble, planned, idle = map(float, told.groups())
    # The last stage starts after at least two forwards, and each stage takes at least the time of its work.
    assert len(busy) == 3 and 0 < max(busy) <= step and 0 < planned
    assert abs(100 * (1 - sum(busy) / (3 * step)) - bubble) < 0.1 and 0 < idle < 60
    refused = command("llama", "-c", config, "--emulate-stage", "all", *as_options("parallel.tensor=2"), code=2)
    assert "parallel.tensor: 1" in refused.stderr


def test_exchanges_with_experts_are_told_where_they_take_no_time(tmp_path):
    experts = as_options("parallel.data=2", "parallel.expert=2", "model.experts=4", "model.experts_per_token=2",
                         "hardware.tensor_gb_s=0.001")
    ended = command("llama", "-c", write_config(tmp_path), "--emulate-stage", "0", *experts)
    assert "over 1 ranks" not in ended.stdout, ended.stderr
    told = re.search(r"forward (\S+) ms, backward (\S+) ms .*experts   exchanges over 2 ranks, modelled: (\S+) ms",
                     ended.stdout, re.S)
    assert float(told[3]) > float(told[1]) + float(told[2])
    assert re.search(r"% without collectives, \S+% with them", ended.stdout)
    refused = command("llama", "-c", write_config(tmp_path), "--emulate-stage", "all", *experts, code=2)
    assert "parallel.expert: 1" in refused.stderr


@pytest.mark.parametrize("stage", ["4", "-1", "x", "1.5"])
def test_a_stage_that_does_not_exist_is_refused(tmp_path, stage):
    ended = command("llama", "-c", write_config(tmp_path), f"--emulate-stage={stage}", code=2)
    assert "is not a stage; use 0 to 3, or all" in ended.stderr


def test_a_stage_that_does_not_fit_here_is_refused_before_it_is_made(tmp_path):
    large = as_options("hardware.device=cpu", "schedule.micro_batch=128", "train.global_batch=1024")
    ended = command("llama", "-c", "configs/llama65b.yaml", "--emulate-stage", "0", *large, code=1)
    assert ended.stdout == ""
    assert re.search(r"stage 0 needs [\d.]+ GiB of memory, but only [\d.]+ GiB are free", ended.stderr), ended.stderr


# ---- the file --------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_every_stage_size_and_mode_is_measured(profile):
    path, told, said = profile
    written = json.loads(path.read_text())
    assert written["format"] == "stage profile" and written["model"]["hidden"] == 64
    kinds = {(entry["first"], entry["last"]) for entry in written["stages"]}
    assert kinds == {(True, False), (False, False), (False, True)}
    for mode in ("none", "recompute", "flash"):
        assert {entry["micro_batch"] for entry in written["stages"] if entry["attention"] == mode} == {1, 2, 4, 8}
    for key in ("forward_ms", "backward_ms", "input_ms", "weight_ms", "peak_bytes"):
        assert all(entry[key] > 0 for entry in written["stages"]), key
    assert told["source"] == "profile" and "stages measured" in said


def edited(profile, folder, change):
    """Writes a changed copy of the profile and returns its path."""
    told = json.loads(profile[0].read_text())
    change(told)
    path = folder / "edited.json"
    path.write_text(json.dumps(told))
    return path


def by_entry(change):
    """Returns the change of a profile that changes each of its entries."""
    return lambda told: [change(entry) for entry in told["stages"]]


def scaled(scale):
    """Returns the change of a profile that multiplies all its times."""
    return by_entry(lambda entry: entry.update({key: scale * entry[key] for key in entry if key.endswith("_ms")}))


def planned(config, path, *overrides):
    """Returns the plan with a profile."""
    ended = command("llama", "-c", config, "--plan", "--json", *as_options(f"hardware.profile={path}", *overrides))
    return json.loads(ended.stdout)


@pytest.mark.thorough
def test_the_plan_is_made_of_what_was_measured(folder, config, profile):
    seconds = by_entry(lambda one: one.update(forward_ms=1000 * one["layers"], backward_ms=2000 * one["layers"]))
    # With one core per rank: stages of 2, 3 and 3 layers, and 8 microbatches of 3 s per layer.
    told = planned(config, edited(profile, folder, seconds), "parallel.pipeline=2")
    assert told["source"] == "profile"
    assert abs(told["step_ms"] / (1000 * 3 * 4 * (8 + 1)) - 1) < 0.25


@pytest.mark.thorough
def test_a_size_that_was_not_measured_is_between_its_neighbours(folder, config, profile):
    milliseconds = {1: 1000, 2: 2000, 4: 4000, 8: 80000}
    path = edited(profile, folder, by_entry(lambda entry: entry.update(
        {key: milliseconds[entry["micro_batch"]] * entry["layers"] for key in entry if key.endswith("_ms")})))
    told = planned(config, path, "train.global_batch=40", "schedule.micro_batch=5")
    assert told["step_ms"] > 8 * 3 * (4000 + 76000 / 4) * 2


@pytest.mark.thorough
@pytest.mark.soak
@pytest.mark.parametrize("stages, layers", [(1, "auto"), (4, [5, 0, 2, 1]), (3, [4, 0, 4])])
def test_a_layer_alone_is_measured_for_every_number_of_stages(tmp_path, stages, layers):
    """Without it, the plan of a stage with other layers, or of all stages, would not be that of measured times."""
    config, path = write_config(tmp_path, parallel=f"{{pipeline: {stages}}}"), tmp_path / "profile.json"
    keys = [f"parallel.layers={layers}", "train.global_batch=4", "schedule.micro_batch=1", "schedule.bpipe=off"]
    command("llama", "-c", config, "--profile", *as_options(f"hardware.profile={path}", *keys))
    told = json.loads(path.read_text())
    assert [one["layers"] > 0 for one in told["stages"] if not one["first"] and not one["last"]]
    steps = []
    for scale in (1000, 10000):
        steps.append(planned(config, edited((path,), tmp_path, scaled(scale)), *keys)["step_ms"])
    assert steps[1] / steps[0] == pytest.approx(10, rel=0.02)


def seconds_by(folder, config, profile, change, split):
    """Returns the planned seconds of a step of two stages. The profile has 1 s per layer for a forward, an I and a W;
    `change` modifies its entries."""
    def alike(entry):
        layers = 1000 * entry["layers"]
        entry.update(forward_ms=layers, backward_ms=2 * layers, input_ms=layers, weight_ms=layers)
        change(entry)

    path = edited(profile, folder, by_entry(alike))
    return planned(config, path, "parallel.pipeline=2", f"schedule.split_backward={split}")["step_ms"] / 1000


@pytest.mark.thorough
def test_split_backwards_take_what_their_halves_took(folder, config, profile):
    def slower(entry):
        entry["weight_ms"] *= 3

    def older(entry):
        del entry["input_ms"], entry["weight_ms"]

    # Eight microbatches through four layers, plus the time for which the other stage waits.
    assert seconds_by(folder, config, profile, slower, "off") == pytest.approx(4 * (8 * 3 + 3), rel=0.02)
    assert seconds_by(folder, config, profile, slower, "on") == pytest.approx(4 * (8 * 5 + 2), rel=0.02)
    assert seconds_by(folder, config, profile, older, "on") == pytest.approx(4 * (8 * 3 + 2), rel=0.02)


SCHEDULES = ["gpipe", "1f1b", "zb-d", "interleaved", "gis", "v-half", "v-min", "zb-v", "dualpipe-v"]


@pytest.mark.thorough
def test_every_schedule_is_planned_from_what_was_measured_alone(folder, config, profile):
    """A profile with ten times the times makes ten times the step: the hardware model provides no chunk's time."""
    steps = {}
    for scale in (1000, 10000):
        path = edited(profile, folder, scaled(scale))
        for name in SCHEDULES:
            told = planned(config, path, "parallel.pipeline=2", "schedule.bpipe=off", f"schedule.name={name}")
            assert told["source"] == "profile"
            steps.setdefault(name, []).append(told["step_ms"])
    for name, (one, ten) in steps.items():
        assert ten / one == pytest.approx(10, rel=0.01), name


def refused(config, path, *overrides, family="llama"):
    ended = command(family, "-c", config, "--plan", *as_options(f"hardware.profile={path}", *overrides), code=2)
    assert ended.stdout == ""
    return ended.stderr


@pytest.mark.thorough
def test_a_profile_named_on_the_command_line_has_to_belong_to_the_run(folder, config, profile):
    path = profile[0]
    assert "model.hidden 64, not 128" in refused(config, path, "model.hidden=128")
    assert "train.precision fp32" in refused(config, path, "train.precision=bf16")
    assert "parallel.tensor 1" in refused(config, path, "parallel.tensor=2")
    encoder = ("model.causal=false", "train.objective=masked", "data.mask_token=0")
    assert "model.causal true" in refused(config, path, *encoder)
    assert "model.qk_norm false" in refused(config, path, "model.qk_norm=true")
    assert "model.qkv_bias false" in refused(config, path, "model.qkv_bias=true")
    assert "data.mask_documents off" in refused(config, path, "data.mask_documents=on")
    assert "hardware.device cpu" in refused(config, path, "hardware.device=cuda")
    assert "model.family llama" in refused(write_config(folder, "gpt"), path, family="gpt")
    other = edited(profile, folder, lambda told: told["device"].update(name="Babbage's engine"))
    assert "it is for device Babbage's engine, not " in refused(config, other)
    other = edited(profile, folder, lambda told: told.update(expert=2))
    assert "parallel.expert 2" in refused(config, other)
    name = "NVIDIA H100 80GB HBM3"
    other = edited(profile, folder, lambda told: told["device"].update(kind="cuda", name=name))
    gpu = ("hardware.device=cuda", "hardware.peak_tflops=auto", "hardware.gpu=")
    assert f"it is for device {name}, not hardware.gpu b200" in refused(config, other, *gpu[:2], gpu[2] + "b200")
    assert planned(config, other, *gpu[:2], gpu[2] + "h100")["source"] == "profile"
    assert "nowhere.json" in refused(config, folder / "nowhere.json")


@pytest.mark.thorough
@pytest.mark.parametrize("damage", ["", "{}", "[1]", '{"format":"stage profile"}', "\0", "truncated"])
def test_a_damaged_profile_is_refused(folder, config, profile, damage):
    path = folder / "damaged.json"
    path.write_text(profile[0].read_text()[:-40] if damage == "truncated" else damage)
    said = refused(config, path)
    assert "damaged.json" in said and "--profile" in said


@pytest.mark.thorough
@pytest.mark.parametrize("change, says", [
    (lambda told: told.update(version=2), "its version is unsupported"),
    (lambda told: told.update(device="cpu"), "names no device"),
    (lambda told: told["device"].update(kind="abacus"), "names no device"),
    (lambda told: told.update(stages={"one": told["stages"][0]}), "incomplete"),
    (lambda told: told["stages"][0].pop("weight_ms"), "lacks the times of a split backward"),
])
def test_a_profile_of_another_make_is_refused(folder, config, profile, change, says):
    assert says in refused(config, edited(profile, folder, change))


@pytest.mark.thorough
def test_what_was_not_measured_is_not_called_measured(folder, config, profile):
    def keep(wanted):
        return lambda told: told.update(stages=[entry for entry in told["stages"] if wanted(entry)])

    path = edited(profile, folder, keep(lambda entry: entry["attention"] != "flash"))
    assert "has no first stage with attention.mode flash" in refused(config, path)
    path = edited(profile, folder, keep(lambda entry: not entry["last"]))
    assert "has no last stage with attention.mode flash" in refused(config, path)
    path = edited(profile, folder, keep(lambda entry: entry["first"] or entry["last"]))
    assert "has no stage between first and last" in refused(config, path)
    # Without the time of a layer alone, those of embedding and head are not known.
    assert "without a stage between first and last, it is for model.layers 5" in refused(
        config, path, "parallel.pipeline=2")
    assert planned(config, path, "parallel.pipeline=2", "model.layers=5")["source"] == "profile"
    listed = edited(profile, folder, keep(lambda entry: entry["attention"] != "none"))
    modes = "has no stage between first and last with attention.mode none"
    assert modes in refused(config, listed, "attention.mode=[flash, none, recompute]")
    path = edited(profile, folder, keep(lambda entry: entry["first"] or entry["last"]))
    hardware = f'{{device: cpu, peak_tflops: 0.05, reserve_gib: 0.1, profile: "{path}"}}'
    lying_around = write_config(folder, parallel="{pipeline: 3}", schedule="{micro_batch: 2}", hardware=hardware)
    ended = command("llama", "-c", lying_around, "--plan", "--json")
    assert json.loads(ended.stdout)["source"] == "model" and "stage between first and last" in ended.stderr


@pytest.mark.thorough
def test_a_profile_of_another_run_is_ignored_unless_it_is_named(folder, profile):
    hardware = f'{{device: cpu, peak_tflops: 0.05, reserve_gib: 0.1, profile: "{profile[0]}"}}'
    wide = "{family: llama, hidden: 128, layers: 8, heads: 8, kv_heads: 4, ffn: 96, vocab: 100, seq_len: 32}"
    ended = command("llama", "-c", write_config(folder, model=wide, hardware=hardware), "--plan", "--json")
    assert json.loads(ended.stdout)["source"] == "model"
    assert "model.hidden 64, not 128; planning from counted times" in ended.stderr
    sweep = ("--plan", "--sweep", "parallel.tensor=1,2", *as_options("parallel.pipeline=3", "schedule.micro_batch=2"))
    table = command("llama", "-c", write_config(folder, hardware=hardware), *sweep).stdout
    assert re.findall(r"^row (\d+) +stages measured", table, re.M) == ["1"], table
    absent = hardware.replace("profile.json", "absent.json")
    ended = command("llama", "-c", write_config(folder, hardware=absent), "--plan", "--json")
    assert ended.stderr == ""


def test_profile_needs_a_place_to_write_to(folder, config):
    ended = command("llama", "-c", config, "--profile", *as_options("hardware.profile="), code=2)
    assert "hardware.profile" in ended.stderr
    (folder / "taken").mkdir()
    os.mkfifo(folder / "fifo")
    for path, says in (
        (folder / "taken", "Is a directory"),
        (folder / "fifo", "not a regular file"),
        ("/proc/x/y", "cannot be written"),
    ):
        ended = command("llama", "-c", config, "--profile", *as_options(f"hardware.profile={path}"), code=1)
        assert says in ended.stderr, ended.stderr
        assert "micro-batch" not in ended.stderr  # refused before anything is measured


def test_a_profile_that_is_killed_leaves_no_process(folder, config):
    """The first process that it starts measures the peak; stopped, it does not end by itself. Linux sends
    SIGCONT to the stopped processes of an orphaned group; a second child of ours keeps the group from being one."""
    keys = [f"hardware.profile={folder / 'killed.json'}", "hardware.peak_tflops=auto"]
    parent = subprocess.Popen([trainer("llama"), "-c", config, "--profile", *as_options(*keys)],
                              stderr=subprocess.DEVNULL, preexec_fn=os.setpgrp)
    second = subprocess.Popen(["sleep", "600"], preexec_fn=lambda: os.setpgid(0, parent.pid))
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    child = int(wait_until(lambda: children.read_text().split(), "no process was started")[0])
    wait_until(lambda: int(Path(f"/proc/{child}/stat").read_text().split()[13]) > 0, "it does not compute")
    os.kill(child, signal.SIGSTOP)
    parent.kill()
    parent.wait()
    try:
        wait_until(lambda: not Path(f"/proc/{child}").exists(), "a process is left", 10)
    finally:
        os.killpg(parent.pid, signal.SIGKILL)
        second.wait()

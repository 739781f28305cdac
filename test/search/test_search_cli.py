"""`--search` and `--sweep` from the outside: the JSON keys, written files that `--plan` confirms, the reason against a
better configuration, and messages that name wrong arguments."""

import json
import os
import pty
import re
import shlex
import signal
import sys

import pytest
from trainer_runs import ROOT, Job, command, environment, execute, one_thread, script, trainer

sys.path.insert(0, str(ROOT / "scripts"))

from foreign import nanotron  # noqa: E402

LLAMA = ROOT / "configs" / "llama65b.yaml"
SMALL = ["-o", "model.layers=8", "-o", "train.global_batch=16"]


def search(*arguments, config=LLAMA, family="llama", **options):
    """Runs a search for a configuration: its file, or its name in configs/."""
    config = ROOT / f"configs/{config}.yaml" if isinstance(config, str) else config
    return command(family, "-c", config, "--search", *map(str, arguments), **options)


def answer(*arguments, **words):
    """Returns the JSON of a search, which ends with 1 where nothing fits."""
    ended = search("--json", *arguments, code=None, **words)
    told = json.loads(ended.stdout or "{}")
    assert told and ended.code == (told.get("best", told) is None), ended.stderr
    return told


def plan_of(config, *words):
    """Returns the JSON of a plan."""
    ended = command("llama", "-c", config, "--plan", "--json", *words)
    return json.loads(ended.stdout)


def test_the_keys_are_the_contract_and_the_front_trades_memory_for_time():
    told = answer("--gpus", 4, *SMALL)
    assert set(told) == {"best", "tightest", "front", "evaluated", "seconds"}
    keys = {"config", "step_ms", "step_ms_low", "step_ms_high", "mfu", "class", "robust", "peak_bytes"}
    assert all(set(each) == keys for each in told["front"]) 
    more = {"others", "step_ms_mid", "mfu_causal", "tokens_per_s_gpu", "tflops_gpu", "unsure"}
    assert set(told["best"]) == keys | more
    assert {other["program"] for other in told["best"]["others"]} >= {"megatron"}
    fastest = told["front"][0]["step_ms"]
    for row in [told["best"], *told["front"]]:  # classes are 1 % wide, starting at the fastest
        assert 1.01 ** row["class"] <= row["step_ms"] / fastest * (1 + 1e-9) < 1.01 ** (row["class"] + 1)
        assert 0 <= row["robust"] <= 1
    assert told["front"][-1]["class"] > told["best"]["class"] == 0
    for quicker, smaller in zip(told["front"], told["front"][1:]):
        assert quicker["step_ms"] <= smaller["step_ms"] and quicker["peak_bytes"] > smaller["peak_bytes"]
    parallel = told["best"]["config"]["parallel"]
    assert parallel["pipeline"] * parallel["tensor"] * parallel["data"] == 4


def test_experts_are_divided_as_the_best_of_all_ways_to_divide_them():
    config, few = "qwen3_30b_a3b", ["model.layers=8", "train.global_batch=32", "hardware.memory_gib=24"]
    best = answer("--gpus", 8, config=config, overrides=few)["best"]
    fixed = {e: answer("--gpus", 8, config=config, overrides=[*few, f"parallel.expert={e}"])["front"][0]["step_ms"]
             for e in (1, 2, 4, 8)}
    assert best["step_ms"] <= 1.01 * min(fixed.values()) and len(set(fixed.values())) == 4
    assert best["config"]["parallel"]["expert"] in fixed


LATENT = ["model.kv_lora=512", "model.q_lora=1536", "model.nope_dim=128", "model.rope_dim=64", "model.v_dim=128",
          "model.seq_len=16384", "train.global_batch=4"]  # has neither slices nor context ranks
EIGHT = ["train.fp8=tensor", "hardware.gpu=h100", "model.ffn=22064", "train.global_batch=1"]  # 22064 / 4 is no 16 n


@pytest.mark.parametrize("more", [[], ["hardware.memory_gib=58"], ["hardware.gpu=h100", "hardware.memory_gib=52"],
                                  LATENT, EIGHT, ["schedule.recompute_layers=[1,0,0,0]"],
                                  ["attention.mode=[none,flash,flash,flash]"], ["parallel.layers=[3,2,2,1]"],
                                  ["parallel.pipeline=2", "parallel.layers=[3,2,2,1]"], ["schedule.slots=4"]])
def test_the_written_file_plans_as_the_search_said(tmp_path, more):
    best = tmp_path / "best.yaml"
    told = answer("--gpus", 4, "--write", best, *SMALL, overrides=more)["best"]
    planned = plan_of(best)
    assert planned["step_ms"] == told["step_ms"] and planned["mfu"] == told["mfu"]
    assert max(stage["peak_bytes"] for stage in planned["stages"]) == told["peak_bytes"]
    assert all(stage["fits"] for stage in planned["stages"])
    # The plan's table contains this configuration, so its best row is no slower.
    assert planned["schedules"][planned["best"]]["step_ms"] <= planned["step_ms"] * (1 + 1e-9)
    lines = best.read_text().splitlines()
    assert [line for line in lines if len(line) > 120] == []
    keys = [i for i, line in enumerate(lines) if line.startswith("  ") and not line.startswith("  #")]
    assert all("  # " in lines[i] or lines[i - 1].startswith("  # ") for i in keys)
    # A run accepts the configuration in the JSON, too.
    other = tmp_path / "other.yaml"
    other.write_text(json.dumps(told["config"]))
    assert plan_of(other)["step_ms"] == told["step_ms"]


SHARDED = ["train.global_batch=128", "model.seq_len=512", "hardware.memory_gib=30", "parallel.pipeline=1",
           "parallel.tensor=1"]
TIED = ["model.hidden=4096", "model.heads=32", "model.vocab=400000", "model.layers=48", "model.seq_len=64",
        "train.global_batch=64", "hardware.gpu=h200", "hardware.device=cuda", "train.precision=bf16",
        "hardware.memory_gib=66", "parallel.pipeline=2", "parallel.data=1", "parallel.tensor=1",
        "schedule.micro_batch=1"]


@pytest.mark.parametrize("family, config, gpus, keys, gib", [
    ("llama", "llama3_8b", 64, [*SHARDED, "parallel.shard_gradients=auto"], 25.70),
    ("llama", "llama3_8b", 64, [*SHARDED, "parallel.shard_gradients=on"], 25.70),
    ("gpt", "gpt2_124m", 2, TIED, 61.90),
], ids=["one microbatch", "asked to shard", "tied in a V"])
def test_a_layout_that_needs_less_than_the_average_stage_is_found(family, config, gpus, keys, gib):
    """Sharded gradients with one microbatch, or one copy of a tied embedding where a V has both ends on one rank."""
    ended = search("--gpus", gpus, config=config, family=family, overrides=keys)
    assert f"{gib:.2f} GiB on the ranks of" in " ".join(ended.stdout.split()), ended.stdout


def test_the_answer_is_one_screen_and_begins_with_the_model():
    ended = search("--gpus", 4, "-o", "hardware.memory_gib=40", *SMALL)
    lines = ended.stdout.splitlines()
    assert lines[0].startswith("search    llama, ") and any(line.startswith("best      pipeline") for line in lines[:3])
    assert len(lines) <= 30 and max(map(len, lines)) <= 100
    starts = {re.split("  |[?] ", line)[0] for line in lines}
    assert {"set", "unsure", "schedule", "BPipe", "given", "next", "searched"} <= starts
    everything = search("--gpus", 4, "-o", "hardware.memory_gib=40", "-v", *SMALL).stdout.splitlines()
    assert any(line.startswith("front: the fullest rank's memory against the step") for line in everything)
    assert max(map(len, everything)) <= 120
    # A row of the table may have the same cut and schedule: the line also has what else distinguishes the layout.
    assert re.search(r" next [\dx]+ b\d+ 1F1B, seq: \S+ \S+ a step, but stage ", " ".join(ended.stdout.split()))


@pytest.mark.thorough
def test_the_keys_of_the_cheapest_change_give_its_step():
    keys = ["-o", "train.global_batch=128"]
    text = " ".join(search("--gpus", 16, "-v", *keys).stdout.split())
    step, change = re.search(r" cheapest ([\d.]+) s a step.*? with (-o .*?) (?:next|alike|front:)", text).groups()
    assert f"{plan_of(LLAMA, *keys, *shlex.split(change))['step_ms'] / 1000:.2f}" == step


def test_the_options_of_the_answer_and_of_the_safer_one_give_their_figures():
    """Here for Megatron-LM, whose settings `flags` says how to print. 9 steps do not take all of train.tokens."""
    keys = ["-o", "hardware.gpu=h100", "-o", "train.tokens=1e12", "-o", "train.steps=9"]
    program, model = ["--for", "megatron"], ROOT / "configs/llama3_70b.yaml"
    text = " ".join(search("--gpus", 64, *program, *keys, config=model).stdout.split())
    found = re.search(r" ([\d.]+) s a step, ([\d.]+) GiB .*? set (-o .*? -o train.steps=auto) flags ", text)
    step, gib, chosen = found.groups()
    found = re.search(r" safer .*?: ([\d.]+) % longer, ([\d.]+) GiB: as set, then (-o .*?) given ", text)
    more, least, safer = found.groups()
    assert "train.steps" not in safer and "--write best.yaml, scripts/export.py best.yaml --to megatron prints" in text
    for options, longer, peak in ((chosen, 0, gib), (f"{chosen} {safer}", float(more), least)):
        told = plan_of(model, *program, *keys, *shlex.split(options))
        assert told["step_ms"] / 1000 == pytest.approx(float(step) * (1 + longer / 100), rel=1e-3)
        assert f"{max(stage['peak_bytes'] for stage in told['stages']) / 2**30:.2f}" == peak
        assert told["config"]["train"]["steps"] == 238419


@pytest.mark.parametrize("keys", [
    ["train.global_batch=2"],  # the file's 4 data ranks do not divide it
    ["model.layers=2", "train.global_batch=4"],
], ids=str)
def test_the_options_of_an_answer_apply_to_a_file_that_cannot_run_itself(tmp_path, keys):
    """Also to a file with slices, which the best layout does not have."""
    written = (ROOT / "configs" / "llama3_8b.yaml").read_text()
    file = tmp_path / "sliced.yaml"
    file.write_text(written.replace("name: 1f1b", "name: seq1f1b\n  slices: 4"))
    given = [word for key in ["hardware.gpu=h200", *keys] for word in ("-o", key)]
    text = " ".join(search("--gpus", 2, *given, config=file).stdout.split())
    step, chosen = re.search(r" ([\d.]+) ms a step, .* set (-o .*?) expected ", text).groups()
    assert "schedule.slices=1" in chosen
    assert plan_of(file, *given, *shlex.split(chosen))["step_ms"] == pytest.approx(float(step), abs=0.06)


@pytest.mark.thorough
def test_layers_that_are_given_are_not_called_dealt_by_time():
    layers = f"parallel.layers=[9{',10' * 6},11]"
    ended = search("-o", layers)
    assert "by list" in ended.stdout.split("given ")[0], ended.stderr
    assert "flash, by time" not in ended.stdout and "seq, by time" not in ended.stdout


MANY = ["hardware.gpu=h100", "model.layers=8", "train.global_batch=32", "schedule.bpipe=off"]
SIX = ["model.layers=8", "train.global_batch=192"]


@pytest.mark.parametrize("gpus, others, keys", [
    (4, ["model.layers=16"],
     {"parallel.tensor": 2, "schedule.name": "gis", "schedule.micro_batch": 2, "schedule.bpipe": "on"}),
    (2, ["model.layers=2"], {"attention.mode": "recompute"}),  # too few layers for the file's eight stages
    (16, MANY, {"schedule.slices": 4}),
    (32, ["hardware.gpu=h100"], {"schedule.name": "interleaved", "schedule.chunks": 3}),
    (32, ["hardware.gpu=h100"], {"schedule.name": "interleaved", "schedule.chunks": 5}),
    (16, ["hardware.gpu=h100", "model.layers=20", "train.global_batch=16"],
     {"parallel.placement": "stages", "schedule.bpipe": "on", "schedule.evict_to": "peer"}),
    (6, SIX, {"schedule.chunks": 2}),  # the file's schedule, 1f1b, has one chunk
    (6, SIX, {"schedule.micro_batch": 64}),  # the file's data ranks leave 4 microbatches for 8 stages
    (6, SIX, {"parallel.pipeline": 3}),  # with the file's tensor and data ranks no divisor of the GPUs
], ids=str)
def test_a_key_on_the_command_line_stays_in_every_row_and_is_not_checked_against_keys_that_vary(gpus, others, keys):
    told = answer("--gpus", gpus, overrides=[*others, *(f"{key}={value}" for key, value in keys.items())])
    for row in [told["best"], *told["front"]]:
        assert {key: row["config"][key.split(".")[0]][key.split(".")[1]] for key in keys} == keys


@pytest.mark.thorough
def test_context_ranks_are_offered_where_the_file_has_them(tmp_path):
    """A batch of eight supports at most 64 ranks without context parallelism and slices: t is at most eight."""
    path = tmp_path / "long.yaml"
    few = ["-o", "model.layers=8", "-o", "train.global_batch=8", "-o", "schedule.slices=1"]
    path.write_text(LLAMA.read_text().replace("  data: 1\n", "  context: 4\n  data: 1\n", 1))
    search("--gpus", 128, *few, code=1)
    for gpus, contexts in ((128, 2), (256, 4)):
        best = answer("--gpus", gpus, *few, config=path)["best"]
        parallel = best["config"]["parallel"]
        assert parallel["context"] == contexts
        assert parallel["pipeline"] * parallel["tensor"] * parallel["data"] * contexts == gpus
    fixed = answer("--gpus", 16, "-o", "parallel.context=4", *few)
    assert fixed["best"]["config"]["parallel"]["context"] == 4


def test_long_sequences_are_cut_into_slices_and_over_context_ranks_unasked():
    keys = ["hardware.gpu=h100", "model.layers=8", "train.global_batch=32", "attention.deterministic=off"]

    def sliced(length):
        front = answer("--gpus", 32, overrides=[*keys, f"model.seq_len={length}"])["front"]
        return any(row["config"]["schedule"]["slices"] > 1 for row in front)

    assert sliced(32768) and not sliced(512)
    long = ["hardware.gpu=h100", "model.seq_len=131072", "train.global_batch=4"]  # 28 heads
    assert answer("--gpus", 32, config="qwen2.5_7b", overrides=long)["best"]["config"]["parallel"]["context"] > 1


@pytest.mark.thorough
def test_with_tied_embeddings_either_order_of_the_stages_may_be_the_quicker_one():
    def ask(*more):
        keys = ["schedule.name=zb-d", "train.global_batch=32", "hardware.network_gb_s=12.5", *more]
        return answer("--gpus", 32, config="gpt3_96b", family="gpt", overrides=keys)["front"][0]["step_ms"]

    both = [ask(f"parallel.placement={placement}") for placement in ("linear", "adjacent")]
    assert both[0] != both[1] and ask() == min(both)


def test_copies_are_weighed_against_nccl():
    """On the slow links of an L40S without overlap, a copy saves no multiprocessors, and its sum kernel takes time."""
    keys = ("parallel.tensor=8", "parallel.sequence=true", "hardware.memory_gib=80")
    chosen = {}
    for gpu, overlap in {"l40s": "off", "h100": "auto"}.items():
        more = (*keys, f"hardware.gpu={gpu}", f"parallel.overlap={overlap}")
        told = search("--gpus", 8, *SMALL, overrides=more)
        chosen[gpu] = ("NCCL" in told.stdout, "parallel.collectives" in told.stdout)
        config = answer("--gpus", 8, *SMALL, overrides=more)["best"]["config"]
        assert config["parallel"]["collectives"] == ("nccl" if gpu == "l40s" else "auto")
    assert chosen == {"l40s": (True, True), "h100": (False, False)}


@pytest.mark.thorough
@pytest.mark.soak(2)
@pytest.mark.parametrize(("gpus", "batch", "most"), [(64, 512, 30000), (1024, 2048, 40000), (16384, 16384, 130000)])
def test_a_search_counts_few_of_the_configurations_there_are(gpus, batch, most):
    """Bounds exclude most candidates, for any number of GPUs; this limits a search to seconds."""
    keys = ["hardware.gpu=h100", f"train.global_batch={batch}"]
    told = answer("--gpus", gpus, config="llama3_70b", overrides=keys)
    assert told["best"] is not None and told["evaluated"] < most


def test_an_overhead_of_every_step_makes_a_search_no_longer():
    found = {}
    for overhead in ("0", "1e9"):
        said = search("--gpus", 8, *SMALL, "-o", f"hardware.step_overhead_ms={overhead}").stdout
        set_to = re.search(r"^set .*", said, re.M)
        found[overhead] = (re.search(r"counted, ([\d,]+) simulated", said)[1], set_to and set_to[0])
    assert found["0"] == found["1e9"]


def test_keys_that_no_schedule_has_are_not_counted_nor_called_a_lack_of_memory():
    # 12 microbatches a data rank are no multiple of 8 stages
    keys = ["parallel.pipeline=8", "parallel.tensor=4", "train.global_batch=72", "schedule.micro_batch=1",
            "schedule.slices=1", "schedule.name=interleaved"]
    ended = search("--gpus", 192, overrides=keys, code=1)
    assert "none: no schedule for 192 ranks satisfies the -o settings" in ended.stdout, ended.stdout
    assert "world" not in ended.stdout
    sharded = search("--gpus", 3, *SMALL, "-o", "parallel.shard_gradients=on", code=1)
    assert "remove a key of schedule, or parallel.shard_gradients," in " ".join(sharded.stdout.split())
    told = answer("--gpus", 8, *SMALL, "-o", "parallel.shard_gradients=on")
    assert told["best"]["config"]["parallel"]["pipeline"] == 1 and told["evaluated"] < 1000  # of 38,000


def test_a_single_stage_has_one_schedule():
    """With one microbatch on one rank, every schedule has the same actions and the same bytes."""
    only = ["parallel.tensor=1", "parallel.pipeline=1", "schedule.micro_batch=1", "train.global_batch=1"]
    only += ["model.layers=4", "schedule.recompute=none"]
    told = search("--gpus", 1, "-v", overrides=only)
    assert re.search(r"^best .* 1F1B,", told.stdout, re.MULTILINE), told.stdout
    assert "alike" not in told.stdout


LITTLE = ["parallel.pipeline=6", "parallel.tensor=2", "parallel.data=1", "parallel.placement=adjacent",
          "parallel.sequence=true", "attention.mode=none", "schedule.micro_batch=1", "schedule.recompute_layers=0",
          "schedule.recompute=none", "train.global_batch=24"]


@pytest.mark.thorough
def test_an_eviction_has_to_save_a_hundredth_of_a_step():
    """If evictions save less, the layout without evictions is in the same class, and simpler."""

    def best(memory, *more):
        keys = (*LITTLE, "schedule.slices=1", f"hardware.memory_gib={memory}", *more)
        return answer("--gpus", 12, config="gpt3_13b", family="gpt", overrides=keys)["best"]

    found = set()
    for memory in (40, 38):
        gain = 1 - best(memory, "schedule.bpipe=on")["step_ms"] / best(memory, "schedule.bpipe=off")["step_ms"]
        assert best(memory)["config"]["schedule"]["bpipe"] == ("on" if gain > 0.01 else "off"), gain
        found.add(gain > 0.01)
    assert found == {False, True}


def test_the_smallest_world_is_that_of_any_schedule_and_is_named_with_it():
    llama = {"config": "llama3_70b", "overrides": ["hardware.gpu=h100"]}
    ended = search("--gpus", 1, **llama, code=1)
    named = re.search(r"the smallest that fits: (\d+) ranks, .* with Seq1F1B, \d slices,", ended.stdout)
    plain = answer("--gpus", 1, "-o", "schedule.name=1f1b", **llama)["smallest_world"]
    assert int(named[1]) < plain["ranks"], ended.stdout
    # No schedule is counted of a cut that nothing makes fit.
    keys = ["hardware.memory_gib=9", "model.layers=16", "train.global_batch=4096"]
    told = answer("--gpus", 16, config="llama3_70b", overrides=keys)
    assert told["best"] is None and told["evaluated"] == 0 and told["smallest_world"]["ranks"] > 16


LARGE, MIXTURE = ("llama65b", 80, ["train.global_batch=32"]), ("mixtral_8x7b", 16, ["model.layers=4"])


@pytest.mark.thorough
@pytest.mark.soak(2)
@pytest.mark.parametrize("model, gpus, fixed", [
    (LARGE, 2, ["schedule.micro_batch=2"]), (MIXTURE, 2, ["hardware.gpu=h100", "train.global_batch=8"]), (LARGE, 2, []),
    (LARGE, 2, ["parallel.tensor=1"]), (LARGE, 8, ["parallel.pipeline=2", "parallel.tensor=4"]),
    (LARGE, 2, ["schedule.recompute_layers=0"])])
def test_where_nothing_fits_the_smallest_world_that_would_is_named(model, gpus, fixed):
    config, memory, keys = model
    keys = [*keys, *fixed, f"hardware.memory_gib={memory}"]

    def ask(gpus, *more, **words):
        return search("--gpus", gpus, "--json", config=config, overrides=[*keys, *more], **words)

    told = json.loads(ask(gpus, code=1).stdout)
    assert told["best"] is None and told["front"] == []
    world = told["smallest_world"]
    ranks = world["ranks"]
    assert ranks == world["pipeline"] * world["tensor"] * world["data"]
    assert all(world[key.split(".")[1].split("=")[0]] == int(key[-1]) for key in fixed if "parallel" in key)
    ask(ranks)
    # 1: nothing fits; 2: the ranks are no multiple of the fixed ones.
    for fewer in range(gpus, ranks):
        assert ask(fewer, code=None).code in (1, 2)
    # With the memory that the nearest lacks, it fits; with less, nothing does.
    text = " ".join(search("--gpus", gpus, config=config, overrides=keys, code=1).stdout.split())
    lacks = float(re.search(r" nearest .*? lacks ([\d.]+) GiB", text)[1])
    for more, code in ((-0.02, 1), (0.01, 0)):
        ask(gpus, f"hardware.memory_gib={memory + lacks + more}", code=code)


def test_a_last_stage_of_one_layer_that_recomputes_it_takes_more():
    """It keeps one bundle of its layer, or its input and a bundle: 48.51 or 49.01 GiB. The first stage recomputes."""
    keys = ("model.layers=4", "parallel.layers=[3,1]", "schedule.micro_batch=8", "train.global_batch=32",
            "schedule.name=1f1b", "schedule.bpipe=off", "schedule.split_backward=off", "schedule.recompute=none",
            "hardware.gpu=h100", "hardware.reserve_gib=0")
    for memory, code, says in ((48.75, 0, "recompute_layers=[3,0]"), (48.4, 1, "3 again: .* stage 1 lacks 107.9 MiB")):
        ended = search("--gpus", 2, config="llama3_8b", overrides=(*keys, f"hardware.memory_gib={memory}"), code=code)
        assert re.search(says.replace("[", r"\["), " ".join(ended.stdout.split())), ended.stdout


@pytest.mark.parametrize(("arguments", "says"), [
    (["--gpus", "0"], "--gpus: 0 is not a number of GPUs"),
    (["--gpus", "many"], "--gpus: many is not a number of GPUs"),
    (["--gpus", 64, "-o", "parallel.tensor=16", "-o", "parallel.pipeline=8"],
     "pipeline: with the other keys fixed by -o, 8 needs 128 ranks"),
    (["--gpus", 64, "-o", "parallel.pipeline=7"], "pipeline: 7 does not divide the 64 ranks"),
    (["--gpus", 6, "-o", "parallel.tensor=48"], "parallel.tensor: 48"),
    (["--gpus", "4", "-o", "hardware.device=cpu"], "-o hardware.device: cpu contradicts --gpus"),
    (["--gpus", "4", "-o", "hardware.share_gpu=true"], "-o hardware.share_gpu: true contradicts --gpus"),
    (["--gpus", "4", "-o", "hardware.gpu=none"], "hardware.gpu: no performance figures for this device"),
    (["--gpus", "4", "--write", LLAMA], "is the configuration given with -c"),
    (["--gpus", "4", "--plan"], "exclude each other"),
    (["--gpus", "4,x,8", "--write", "best.yaml"], "--write: a table of searches has no single best configuration"),
    (["--gpus", "4", "--deadline", "3"], "--deadline: 3 is not a time; give days or hours"),
    (["--gpus", "x,y"], "--gpus: x is not a number of GPUs"),
    (["--gpus", ",".join(["4"] * 300)], "more than 256 combinations"),
])
def test_bad_questions_are_refused_by_name(arguments, says):
    ended = search(*arguments, code=2)
    assert says in ended.stderr and ended.stdout == ""


def interrupted(*arguments):
    """Interrupts a search of one thread with Ctrl-C, after its first progress line; returns its JSON."""
    ours, theirs = pty.openpty()
    line = [trainer("llama"), "-c", "configs/llama3_70b.yaml", "--search", "--gpus", "96", "--json"]
    job = Job([*line, "-o", "train.global_batch=960", *map(str, arguments)], stderr=theirs, env=one_thread())
    os.read(ours, 64)  # the first progress line
    ended = job.stop(signal.SIGINT, code=None)
    told = json.loads(ended.stdout)
    os.close(ours), os.close(theirs)
    assert ended.code in (0, 3)  # 0: the search had just completed
    assert (ended.code == 3) == (told.get("complete") is False)
    return told


def test_ctrl_c_prints_the_best_so_far_and_ends_a_sweep_after_the_rows_that_are_done():
    assert "best" in interrupted()
    told = interrupted("--sweep", "hardware.network_gb_s=25,50")
    assert all(row["fits"] for row in told["sweep"])
    assert (len(told["sweep"]) < 2) == (told.get("complete") is False)


# ---- several values at once ------------------------------------------------------------------------------------------


def test_a_swept_gpu_names_the_keys_of_the_file_that_it_replaces():
    keys = ["-c", LLAMA, "--plan", "--sweep", "hardware.gpu=h100,h200"]
    said = command("llama", *keys).stdout
    for row, gpu in ((1, "h100"), (2, "h200")):
        assert f"row {row}     hardware.gpu={gpu} replaces network_gb_s 25 by 400; " in said
    assert "replaces" not in command("llama", *keys, overrides=["hardware.network_gb_s=25"]).stdout


def test_a_row_of_a_sweep_is_the_plan_with_these_overrides():
    sweeps = ["--sweep", "schedule.micro_batch=1,2,3", "--sweep", "parallel.data=1,2"]
    rows = plan_of(LLAMA, *sweeps)["sweep"]
    assert [list(row["set"].values()) for row in rows] == [[b, d] for b in "123" for d in "12"]
    nothing_to_evict = ["--sweep", "schedule.bpipe=on", "--sweep", "schedule.slots=4,5,9"]
    text = command("llama", "-c", LLAMA, "--plan", overrides=["schedule.bpipe=on", "schedule.slots=9"]).stdout
    assert "BPipe" not in text.split("fits  ")[0] and " given" in text, text
    given = search("--gpus", 2, *SMALL, config="tinyllama_1.1b", overrides=["schedule.bpipe=on"]).stdout
    assert "cannot run" not in given, given
    for row in rows + plan_of(LLAMA, *nothing_to_evict)["sweep"]:
        overrides = [f"{key}={value}" for key, value in row["set"].items()]
        plan = command("llama", "-c", LLAMA, "--plan", "--json", overrides=overrides, code=2 if row["refused"] else 0)
        if row["refused"] is None:
            told = json.loads(plan.stdout)
            assert row["step_ms"] == told["step_ms"] and row["mfu"] == told["mfu"]
            assert row["peak_bytes"] == max(stage["peak_bytes"] for stage in told["stages"])
        else:
            assert row["refused"] in plan.stderr


def test_a_search_is_swept_too_and_lists_are_one_value():
    rows = answer("--gpus", 4, *SMALL, "--sweep", "hardware.memory_gib=40,58")["sweep"]
    alone = answer("--gpus", 4, *SMALL, "-o", "hardware.memory_gib=40")["best"]
    assert [row["set"]["hardware.memory_gib"] for row in rows] == ["40", "58"]
    assert rows[0]["step_ms"] == alone["step_ms"] >= rows[1]["step_ms"]
    layers = "parallel.layers=[10,10,10,10,10,10,10,10],[9,10,10,10,10,10,10,11]"
    assert len(plan_of(LLAMA, "--sweep", layers)["sweep"]) == 2


@pytest.mark.thorough
def test_several_numbers_of_gpus_are_one_table_and_a_deadline_names_the_cheapest_row():
    asked = ["--gpus", "4,8,16", *SMALL, "-o", "hardware.gpu_hour=2", "-o", "train.tokens=1000000000000",
             "-o", "hardware.trainer=megatron"]
    rows = answer(*asked)["sweep"]
    assert [row["set"] for row in rows] == [{"gpus": gpus} for gpus in ("4", "8", "16")]
    assert rows[0]["config"] == answer("--gpus", 4, *asked[2:])["best"]["config"]
    days = [row["budget"]["whole"]["days_high"] for row in rows]
    prices = [row["budget"]["whole"]["price"] for row in rows]
    assert days == sorted(days, reverse=True) and prices == sorted(prices)
    for deadline, row in ((days[0] * 1.01, 0), (days[1] * 1.01, 1), (days[2] * 1.01, 2), (days[2] * 0.99, None)):
        ended = search(*asked, "--json", "--deadline", f"{deadline}d", code=int(row is None))
        assert json.loads(ended.stdout)["deadline"] == row
    # With failures, the row of the first deadline ends after it.
    assert answer(*asked, "-o", "hardware.mtbf_hours=10", "--deadline", f"{days[0] * 1.01}d")["deadline"] == 1
    text = search(*asked, "--deadline", f"{days[1] * 24.24}h").stdout
    assert re.search(r"^deadline  row 2 trains in .* at the smallest cost: [\d,]+ by hardware.gpu_hour", text,
                     re.M), text
    assert "by the band" in text.splitlines()[0] and len(text.splitlines()) == 5
    long = search(*asked, "-o", "train.tokens=1e15", "--deadline", "900000d").stdout
    assert re.search(r"^deadline  row \d trains in [\d,]+ days, within 900,000,", long, re.M) and "e+" not in long, long
    # A row without a price makes GPU hours of all costs.
    mixed = search(*asked[2:4], "--gpus", 4, "-o", "train.tokens=1e9", "--deadline", "900d", "--sweep",
                   "hardware.gpu_hour=5,0").stdout
    assert "GPU hours" in mixed.splitlines()[0] and " cost: " in mixed and "by hardware" not in mixed, mixed
    cpus = command("llama", "-c", ROOT / "configs/llama_tiny.yaml", "--search", "--deadline", "3d").stdout
    assert re.search(r"^deadline  row 1 trains in [\d.]+ days with nothing lost, within 3$", cpus, re.M), cpus
    tiny = ["-c", ROOT / "configs/llama_tiny.yaml", "--search", "--deadline", "3d", "--sweep", "hardware.gpu=none,h100"]
    assert json.loads(command("llama", *tiny, "--json").stdout)["deadline"] == 1  # CPUs have no cost, not the least
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("words", [
    "--plan --sweep a", "--plan --sweep train.steps=1,,2", "--sweep train.steps=1",
    "--plan --sweep schedule.micro_batch=1,2 --sweep schedule.micro_batch=4",
    "--plan --sweep schedule.micro_batch=1,2 -o schedule.micro_batch=4", "--search --gpus 64,",
])
def test_a_bad_sweep_is_refused(words):
    ended = command("llama", "-c", str(LLAMA), *words.split(), code=2)
    assert ("--gpus: " if "--gpus" in words else "--sweep") in ended.stderr


STUB = """#!/usr/bin/env python3
import re, sys, yaml
words = dict(word.split("=", 1) for word in sys.argv if "=" in word)
config = yaml.safe_load(open(sys.argv[sys.argv.index("-c") + 1]))
step = config["schedule"]["micro_batch"] * 100 + config["parallel"]["tensor"]
with open(words["log.metrics"], "w") as file:
    for at in range(20):
        print(f'{{"type":"step","step":{at},"step_ms":{9999 if at < 5 else step}}}', file=file)
"""


def test_five_are_written_and_timed(tmp_path):
    told = answer("--gpus", 4, "--write-five", tmp_path / "five", *SMALL)
    plans = [plan_of(tmp_path / f"five/{i}.yaml") for i in range(1, 6)]
    assert plans[0]["step_ms"] == told["best"]["step_ms"]
    assert [plan["step_ms"] for plan in plans[1:]] == sorted(plan["step_ms"] for plan in plans[1:])
    assert len({json.dumps(plan["config"]) for plan in plans}) == 5
    (tmp_path / "stub").write_text(STUB)
    (tmp_path / "stub").chmod(0o755)
    ended = execute([ROOT / "scripts" / "five.sh", tmp_path / "five"], env=environment(PROGRAM=str(tmp_path / "stub")))
    steps = [plan["config"]["schedule"]["micro_batch"] * 100 + plan["config"]["parallel"]["tensor"] for plan in plans]
    assert ended.stdout.splitlines()[-1].endswith(f", {min(steps)}.0 ms")
    best = (tmp_path / f"five/{steps.index(min(steps)) + 1}.yaml").read_text()
    assert (tmp_path / "five/best.yaml").read_text() == best
    one = ("schedule.name=1f1b", "schedule.micro_batch=1", "parallel.pipeline=2", "parallel.tensor=2")
    answer("--gpus", 4, "--write-five", tmp_path / "five", *SMALL, overrides=one)
    assert [path.name for path in tmp_path.glob("five/?.yaml")] == ["1.yaml"]  # the others were of the first search


def test_a_link_is_written_through_and_a_folder_that_cannot_be_written_is_refused(tmp_path):
    link, file = tmp_path / "link.yaml", tmp_path / "best.yaml"
    link.symlink_to(file)
    file.write_text("")
    search("-q", "--gpus", 4, *SMALL, "--write", link)
    assert link.is_symlink() and "\nparallel:" in file.read_text()
    refused = search("--gpus", 4, *SMALL, "--write-five", "/dev/null/five", code=1)
    assert "--write-five: /dev/null/five: Not a directory" in refused.stderr and refused.stdout == ""


# ---- for another program ---------------------------------------------------------------------------------------------

BOX = ["-o", "hardware.gpu=h100", "-o", "model.layers=16", "-o", "train.global_batch=64"]


def exported(config, program, **options):
    return script("export.py", config, "--to", program, **options)


def export_well(config, program):
    ended = exported(config, program)
    assert "cannot be said" not in ended.stdout, ended.stdout + ended.stderr


def test_plan_and_search_for_another_program_give_the_file_the_same_step_without_bpipe():
    """The file leaves BPipe to the plan, and Megatron-LM has none: its layout does not fit there."""
    file, gpu = ROOT / "configs/llama3_70b.yaml", ["-o", "hardware.gpu=h100"]
    planned = plan_of(file, "--for", "megatron", *gpu)
    assert planned["config"]["schedule"]["bpipe"] == "off" and not planned["stages"][0]["fits"]
    given = rf"^given     .*: {planned['step_ms'] / 1000:.2f} s a step, "
    assert re.search(given, search("--gpus", 64, "--for", "megatron", *gpu, config=file).stdout, re.M)
    eight = ("--gpus", 8, "--for", "megatron", *gpu)
    world = answer(*eight, config=file)["smallest_world"]
    assert f"the smallest that fits: {world['ranks']} ranks" in search(*eight, config=file, code=1).stdout


@pytest.mark.parametrize("program", ["megatron", "torchtitan", "nanotron"])
def test_a_search_for_another_program_keeps_to_what_it_can_do_and_fits_by_its_bytes(program):
    told = answer("--gpus", 16, "--for", program, *BOX)
    assert set(told) == {"for", "best", "tightest", "front", "evaluated", "seconds"}
    config, there = told["for"]["config"], told["for"]
    assert set(there) == {"config", "step_ms", "peak_bytes", "theirs_bytes"}
    schedule = config["schedule"]
    names = {"megatron": {"1f1b", "interleaved"}, "nanotron": {"1f1b", "gpipe"},
             "torchtitan": {"1f1b", "interleaved", "zb-v", "dualpipe-v"}}
    assert schedule["name"] in names[program] or config["parallel"]["pipeline"] == 1
    assert (schedule["bpipe"], schedule["slices"]) == ("off", 1)
    assert schedule["recompute"] in ("none", "pointwise")[:2 if program == "megatron" else 1]
    assert schedule["recompute_layers"] in (0, 16) and config["parallel"]["overlap"] == "off"
    assert there["theirs_bytes"] <= 76 * 2**30 and there["theirs_bytes"] != there["peak_bytes"]
    assert told["best"]["step_ms"] <= 1.01 * there["step_ms"]  # the plainest of those within 1 %


def test_what_is_written_for_another_program_is_planned_with_its_bytes_and_exported(tmp_path):
    best = tmp_path / "best.yaml"
    there = answer("--gpus", 16, "--for", "megatron", "--write", best, *BOX)["for"]
    theirs = plan_of(best, "--for", "megatron")
    assert max(stage["peak_bytes"] for stage in theirs["stages"]) == there["theirs_bytes"]
    ours = plan_of(best)
    assert max(stage["peak_bytes"] for stage in ours["stages"]) == there["peak_bytes"]
    assert ours["step_ms"] == pytest.approx(there["step_ms"]) and theirs["step_ms"] == pytest.approx(there["step_ms"])
    assert ours["step_ms_mid"] > ours["step_ms"]  # the days are those of NVIDIA's runs
    comments = dict(re.findall(r"^  (\w+): .*# (.*)$", best.read_text(), re.M))
    assert comments["overlap"] == "fixed with --for" and "takes" in comments["name"] + comments["recompute_layers"]
    export_well(best, "megatron")


def test_a_search_for_nanotron_deals_layers_as_nanotron_does_so_that_its_best_can_be_exported(tmp_path):
    best, model = tmp_path / "best.yaml", ROOT / "configs/llama3_70b.yaml"
    given = ["hardware.gpu=a100-80g", "hardware.network_gb_s=25"]
    ended = command("llama", "-c", model, "--search", "--gpus", "256", "--for", "nanotron", "--write", best, "--json",
                    overrides=given)
    there = json.loads(ended.stdout)["for"]
    assert there["config"]["parallel"]["layers"] == nanotron.dealt(
        there["config"]["model"], there["config"]["parallel"]["pipeline"])
    export_well(best, "nanotron")
    assert re.search(r"^  layers: .*# fixed with --for$", best.read_text(), re.M)
    planned = json.loads(command("llama", "-c", model, "--plan", "--for", "nanotron", "--json").stdout)
    assert planned["config"]["parallel"]["layers"] == [21, 20, 20, 19]


def test_a_search_for_another_program_does_not_advise_an_export_that_is_refused(tmp_path):
    asked = ("llama", "-c", ROOT / "configs/deepseek_v3.yaml", "--search", "--gpus", "1024", "--for", "torchtitan")
    told = " ".join(command(*asked, "--write", tmp_path / "best.yaml").stdout.split())
    assert "scripts/export.py cannot write latent attention for torchtitan yet" in told and "prints its" not in told
    assert "latent attention" in exported(tmp_path / "best.yaml", "torchtitan", code=1).stderr


@pytest.mark.parametrize("option, says", [
    (["--for", "deepspeed"], "use megatron, torchtitan or nanotron"),
    (["--for", "nanotron", "-o", "schedule.name=zb-v"], "schedule.name: nanotron does not support this"),
    (["--for", "megatron", "-o", "schedule.bpipe=on"], "schedule.bpipe: Megatron-LM does not support this"),
    (["--for", "torchtitan", "-o", "attention.mode=none"], "attention.mode: torchtitan does not support this"),
    (["--for", "nanotron", "-o", "schedule.recompute=pointwise"], "schedule.recompute: nanotron does not support this"),
    (["--for", "nanotron", "-o", "train.optimizer=muon"], "train.optimizer: nanotron does not support this"),
    (["--for", "nanotron", "-o", "train.fp8=tensor"], "train.fp8: nanotron does not support this"),
])
def test_what_another_program_lacks_is_refused(option, says):
    ended = search("--gpus", 16, *option, *BOX, code=2)
    assert says in ended.stderr and ended.stdout == ""


@pytest.mark.parametrize("program", ["torchtitan", "nanotron"])
def test_models_that_another_program_lacks_are_refused(program):
    ended = search("--gpus", 64, "--for", program, config="gpt3_13b", family="gpt", code=2)
    assert f"model.family: {program} does not support this" in ended.stderr and ended.stdout == ""


@pytest.mark.parametrize("model, memory, fixed", [
    ("qwen2.5_7b", 24, ["schedule.name=1f1b", "parallel.tensor=2", "schedule.recompute_layers=28"]),
    ("llama3_8b", 40, ["schedule.recompute=pointwise"]),
])
def test_keys_that_are_fixed_find_nothing_faster_for_another_program(model, memory, fixed):
    keys = ["hardware.gpu=a100-80g", f"hardware.memory_gib={memory}"]
    step, least = (answer("--gpus", 8, "--for", "megatron", config=model, overrides=given)["for"]["step_ms"]
                   for given in (keys, [*keys, *fixed]))
    assert step <= 1.01 * least


def test_keys_that_are_given_stay_in_a_search_for_another_program():
    given = {"attention.mode": "recompute", "parallel.placement": "linear", "parallel.collectives": "nccl",
             "parallel.overlap": "auto"}
    keys = [f"{key}={value}" for key, value in given.items()]
    config = answer("--gpus", 16, "--for", "megatron", *BOX, overrides=keys)["for"]["config"]
    assert {key: config[key.split(".")[0]][key.split(".")[1]] for key in given} == given


def test_a_plan_for_another_program_names_nothing_that_it_lacks_and_hides_no_collectives():
    text = command("llama", "-c", LLAMA, "--plan", "--for", "megatron", "-v").stdout
    assert not re.search("BPipe|formulas|schedules at|not overlapped", text), text
    flash = ["-o", f"attention.mode=[{','.join(8 * ['flash'])}]"]
    assert plan_of(LLAMA, "--for", "nanotron", *flash)["step_ms"] == plan_of(LLAMA, "--for", "nanotron")["step_ms"]
    rows = plan_of(LLAMA, "--for", "megatron")["schedules"]
    assert {row["name"] for row in rows} == {"1f1b", "interleaved"} and {row["bpipe"] for row in rows} == {"off"}
    given = ["-o", "parallel.overlap=auto"]
    assert "not overlapped" in command("llama", "-c", LLAMA, "--plan", "--for", "megatron", *given).stdout


def test_a_plan_for_another_program_has_its_settings_as_rows():
    """Each row is what a plan with that key says; sharded parameters are computed by formula."""
    model, given = ROOT / "configs/llama3_70b.yaml", ["hardware.gpu=h100", "parallel.pipeline=2", "parallel.data=8"]

    def planned(*arguments, keys=()):
        ended = command("llama", "-c", model, "--plan", "--for", "torchtitan", *arguments, overrides=[*given, *keys])
        return ended.stdout

    screen = search("--gpus", 16, "--for", "megatron", *BOX).stdout
    assert len(screen.splitlines()) <= 30 and max(map(len, screen.splitlines())) <= 100
    assert "\nfor       Megatron-LM: " in screen and "\nhere      this trainer would take " in screen
    text = planned()
    line = re.compile(r"^(\S.*?) +([\d.]+) GiB  (?:yes|no) +([\d.]+) s", re.M)
    rows = {what: values for what, *values in line.findall(text)}
    assert re.search(r"^world +the smallest that fits: \d+ ranks", text, re.M) and "BPipe" not in text
    assert len(text.splitlines()) <= 24 and "settings of torchtitan, each alone\n" in text
    for what, key in {"FSDP, as given": "parallel.overlap=off", "async tensor collectives on": "parallel.overlap=auto",
                      "full recomputation": "schedule.recompute_layers=80"}.items():
        told = json.loads(planned("--json", keys=[key]))
        peak = max(stage["peak_bytes"] for stage in told["stages"])
        assert rows[what] == [f"{peak / 2**30:.2f}", f"{told['step_ms'] / 1000:.2f}"], what
    assert float(rows["HSDP, 2 groups of 4 ranks"][0]) > float(rows["FSDP, as given"][0])
    gathered = next(rows[what] for what in rows if what.startswith("FSDP, weights gathered at each use"))
    less, longer = (float(of) - float(to) for of, to in zip(gathered, rows["FSDP, as given"]))
    assert less < 0 <= longer

"""`--search` from the outside: its JSON is the contract, what it writes is what `--plan` says of the written file, ties and what
forbids a better one are named, and bad questions are refused by name."""

import json
import os
import pty
import signal
import subprocess

import pytest
from trainer_runs import ROOT, command, environment, trainer

LLAMA = ROOT / "configs" / "llama65b.yaml"
SMALL = ["-o", "model.layers=8", "-o", "train.global_batch=16"]


def search(*arguments, config=LLAMA, family="llama"):
    return command(family, "-c", config, "--search", *map(str, arguments))


def test_the_keys_are_the_contract_and_the_front_trades_memory_for_time():
    ended = search("--gpus", 4, "--json", *SMALL)
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert set(told) == {"best", "front", "evaluated", "seconds"}
    assert all(set(each) == {"config", "step_ms", "mfu", "peak_bytes"} for each in [told["best"], *told["front"]])
    assert told["best"]["step_ms"] == told["front"][0]["step_ms"]
    for quicker, smaller in zip(told["front"], told["front"][1:]):
        assert quicker["step_ms"] <= smaller["step_ms"] and quicker["peak_bytes"] > smaller["peak_bytes"]
    parallel = told["best"]["config"]["parallel"]
    assert parallel["pipeline"] * parallel["tensor"] * parallel["data"] == 4


@pytest.mark.parametrize("more", [[], ["-o", "hardware.memory_gib=58"], ["-o", "hardware.gpu=h100", "-o", "hardware.memory_gib=52"]])
def test_the_written_file_plans_as_the_search_said(tmp_path, more):
    best = tmp_path / "best.yaml"
    told = json.loads(search("--gpus", 4, "--json", "--write", best, *SMALL, *more).stdout)["best"]
    plan = command("llama", "-c", best, "--plan", "--json")
    assert plan.returncode == 0, plan.stderr
    planned = json.loads(plan.stdout)
    assert planned["step_ms"] == told["step_ms"] and planned["mfu"] == told["mfu"]
    assert max(stage["peak_bytes"] for stage in planned["stages"]) == told["peak_bytes"]
    assert all(stage["fits"] for stage in planned["stages"])
    lines = best.read_text().splitlines()
    assert [line for line in lines if len(line) > 120] == []
    keys = [i for i, line in enumerate(lines) if line.startswith("  ") and not line.startswith("  #")]
    assert all("  # " in lines[i] or lines[i - 1].startswith("  # ") for i in keys)
    # The JSON's configuration is one that a run takes, too.
    other = tmp_path / "other.yaml"
    other.write_text(json.dumps(told["config"]))
    assert json.loads(command("llama", "-c", other, "--plan", "--json").stdout)["step_ms"] == told["step_ms"]


def test_people_read_the_answer_first_and_120_columns():
    ended = search("--gpus", 4, "-o", "hardware.memory_gib=58", *SMALL)
    lines = ended.stdout.splitlines()
    assert lines[0].startswith("best      pipeline")
    assert [line for line in lines if len(line) > 120] == []
    starts = {line.split("  ")[0] for line in lines}
    assert {"set", "given", "cheapest", "next", "front: the fullest rank's memory against the step, up to 10 % slower than the best"} <= starts
    assert "too much on the ranks of stage" in " ".join(ended.stdout.split())


def test_a_key_on_the_command_line_stays(tmp_path):
    fixed = ["-o", "parallel.tensor=2", "-o", "schedule.name=gis", "-o", "schedule.micro_batch=2", "-o", "schedule.bpipe=on"]
    told = json.loads(search("--gpus", 4, "--json", "-o", "model.layers=16", *fixed).stdout)["best"]["config"]
    assert told["parallel"]["tensor"] == 2
    assert told["schedule"]["name"] == "gis" and told["schedule"]["micro_batch"] == 2 and told["schedule"]["bpipe"] == "on"


def test_the_ranks_of_the_configuration_are_searched_where_no_number_is_given():
    told = json.loads(search("--json", "-o", "train.global_batch=32").stdout)["best"]["config"]["parallel"]
    assert told["pipeline"] * told["tensor"] * told["data"] == 32


def test_where_nothing_fits_the_smallest_world_that_would_is_named():
    ended = search("--gpus", 2, "--json", "-o", "train.global_batch=32")
    told = json.loads(ended.stdout)
    assert ended.returncode == 1 and told["best"] is None and told["front"] == []
    ranks = told["smallest_world"]["ranks"]
    assert ranks == told["smallest_world"]["pipeline"] * told["smallest_world"]["tensor"]
    assert search("--gpus", ranks, "--json", "-o", "train.global_batch=32").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--gpus", "0"], "--gpus: 0: is no number of GPUs"),
        (["--gpus", "many"], "--gpus: many: is no number of GPUs"),
        (["--gpus", "64", "-o", "parallel.tensor=16", "-o", "parallel.pipeline=8"], "-o parallel.pipeline: 8 does not divide"),
        (["--gpus", "4", "-o", "hardware.device=cpu"], "-o hardware.device: cpu contradicts --gpus"),
        (["--gpus", "4", "-o", "hardware.share_gpu=true"], "-o hardware.share_gpu: true contradicts --gpus"),
        (["--gpus", "4", "-o", "hardware.gpu=none"], "hardware.gpu: nothing is known of the device"),
        (["--gpus", "4", "--write", LLAMA], "is the configuration given with -c"),
        (["--gpus", "4", "--plan"], "are answered one at a time"),
    ],
)
def test_bad_questions_are_refused_by_name(arguments, says):
    ended = search(*arguments)
    assert ended.returncode == 2 and says in ended.stderr and ended.stdout == ""


def test_ctrl_c_prints_the_best_so_far():
    """On a terminal the progress line says that a search is under way; then it is interrupted."""
    ours, theirs = pty.openpty()
    line = [trainer("llama"), "-c", ROOT / "configs" / "llama3_70b.yaml", "--search", "--gpus", "96", "--json", "-o", "train.global_batch=960"]
    process = subprocess.Popen(
        [str(word) for word in line], stdout=subprocess.PIPE, stderr=theirs, text=True, env=environment(OMP_NUM_THREADS="1")
    )
    os.read(ours, 64)  # the first progress line
    process.send_signal(signal.SIGINT)
    told = json.loads(process.communicate(timeout=120)[0])
    os.close(ours), os.close(theirs)
    assert process.returncode in (0, 3)  # 0: it was complete by then
    assert (process.returncode == 3) == (told.get("complete") is False)

"""The command line from the outside: results on stdout, status and errors on stderr, exit codes. However a run
ends, it gives the reason in its last line and leaves no process running."""

import os
import re
import resource
import signal
import time
from pathlib import Path

import pytest
from trainer_runs import (FAMILIES, ROOT, command, environment, launch, made_tokens, mpirun, nothing_left, patience,
                          run, started, write_tokens)

OFF = "schedule.bpipe=off"
WITHOUT_GPU = not Path("/dev/nvidia0").exists()
GPT_TINY = (ROOT / "configs/gpt_tiny.yaml").read_text().splitlines()
FAMILY_OF_GPT_TINY = f"configs/gpt_tiny.yaml:{GPT_TINY.index('  family: gpt') + 1}"


# ---- what needs no run -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("option,holds", [
    ("--help", r"usage: train_{family} -c FILE"),
    ("-h", r"exit codes: 0 done"),
    ("--help-config", r"micro_batch +b: sequences in one microbatch\n +default 1; an integer from 1"),
    ("--version", r"^train_{family} \d+\.\d+\.\d+\nCPU   .*(oneDNN|OpenMP).*\nMPI   .+\nGPU   .+\n$"),
    ("--dry-run --help", r"usage: train_{family} -c FILE"),
])
def test_questions_are_answered_on_stdout(family, option, holds):
    answer = command(family, *option.split())
    assert answer.stderr == ""
    assert re.search(holds.format(family=family), answer.stdout)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize("asked, why", [
    *((asked, "to standard output: No space left on device") for asked in ("--help", "--help-config", "--version")),
    ("--plan", "the plan to stdout"), ("--plan --json", "the plan to stdout"), ("--schedule", "the schedule to stdout"),
    ("--emulate-stage 0", "the times to stdout"),
])
def test_an_answer_that_cannot_be_written_is_an_error(asked, why):
    small = ["-q", "-c", "configs/llama_tiny.yaml", "-o", "model.seq_len=16"]
    with open("/dev/full", "w") as full:
        ended = command("llama", *small, *asked.split(), stdout=full, code=1)
    assert ended.stderr == f"train_llama: cannot write {why}\n"


def test_the_example_of_help_names_a_configuration_that_is_there():
    example = re.search(r"example: \./train_llama -c (\S+) ", command("llama", "--help").stdout)
    assert (ROOT / example[1]).exists()


@pytest.mark.parametrize("arguments,says", [
    ([], "no configuration; give one with -c FILE"),
    (["-c", "configs/llama_tiny.yaml", "-o", "train.step=3"], "train.steps"),
    (["-c", "configs/llama_tiny.yaml", "-o", "schedule.slots=2"], "use slots 3 or more, or auto"),
    (["-c", "configs/llama_tiny.yaml", "-o", "train.steps", "--plan"], "-o train.steps: has no value; write -o KEY="),
    (["-c", "configs/gpt_tiny.yaml"],
     f"{FAMILY_OF_GPT_TINY}: model.family: train_llama trains llama; use train_gpt for gpt"),
])
def test_bad_usage_is_code_2_and_one_sentence(arguments, says):
    ended = command("llama", *arguments, code=2)
    assert ended.stdout == ""
    assert re.fullmatch(r"train_llama: [^\n]+\n", ended.stderr)
    assert says in ended.stderr


@pytest.mark.skipif(not WITHOUT_GPU, reason="this machine has a GPU")
@pytest.mark.parametrize("family,name", [("llama", "llama65b"), ("gpt", "gpt3_96b")])
def test_a_run_too_large_for_this_machine_says_in_two_lines_what_it_needs_what_is_there_and_what_to_run(family, name):
    def little_memory():  # more than the libraries map, and less than a stage needs
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))

    ended = command(family, "-c", f"configs/{name}.yaml", limit=20, preexec_fn=little_memory, code=1)
    assert ended.stdout == ""
    needs, instead = ended.said
    largest = r"needs 32 GPUs with \d+\.\d GiB each \(stage 0 is the fullest\)"
    assert re.search(largest + r"; here: no CUDA device, \d+ cores? and", needs)
    assert f"run instead: ./train_{family} -c configs/{family}_tiny.yaml" in instead


def test_a_run_larger_than_the_memory_of_a_cpu_is_refused_before_it_starts(config):
    ended = run(config, "model.hidden=65536", "model.ffn=262144", "model.heads=64", "model.kv_heads=64", code=1)
    assert ended.stdout == ""
    assert len(ended.said) == 2 and "GiB of host memory for 4 ranks" in ended.said[0]


@pytest.mark.skipif(not WITHOUT_GPU, reason="this machine has a GPU")
def test_cuda_where_there_is_none_is_refused_in_two_lines(config):
    ended = run(config, "hardware.device=cuda", code=1)
    assert ended.stdout == "" and len(ended.said) == 2
    assert "no CUDA device" in ended.said[0] and "run instead: " in ended.said[1]


# ---- who starts the ranks --------------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.usefixtures("ranks")
def test_the_start_is_said_in_one_line_and_the_rest_is_on_the_right_stream(config):
    ended = run(config, "parallel.pipeline=8")
    cores = len(os.sched_getaffinity(0))
    first = rf"train_llama: starting 8 ranks on this machine through mpirun \({cores} cores?: \d+ threads? each\)"
    assert re.fullmatch(first, ended.said[0])
    assert re.search(r"^stage +layers +parameters", ended.stderr, re.M)
    assert re.search(r"^rank +stage +tensor +data +host +device", ended.stderr, re.M)
    assert all(re.match(r"(step|val) +\d+/3 \| loss ", line) for line in ended.stdout.splitlines())
    assert len(ended.stdout.splitlines()) == 5
    assert not re.search(r"^(step|val) +\d+/", ended.stderr, re.M)
    assert nothing_left(config)


@pytest.mark.usefixtures("ranks")
@pytest.mark.parametrize("ranks_started", [1, 3, 5])
def test_another_number_of_ranks_than_configured_is_one_sentence_and_no_hang(config, ranks_started):
    began = time.monotonic()
    ended = run(config, prefix=mpirun(ranks_started), code=None)
    said = "1 rank" if ranks_started == 1 else f"{ranks_started} ranks"
    ours = [line for line in ended.said if line.startswith("train_llama")]
    assert ended.code != 0 and len(ours) == 1
    assert f"this job has {said}, the configuration needs 4 (pipeline 4 x tensor 1 x data 1)" in ours[0]
    assert time.monotonic() - began < patience(30)
    assert nothing_left(config)


@pytest.mark.usefixtures("ranks")
def test_what_all_ranks_of_a_bare_mpirun_find_is_reported_once(config):
    for override in ("data.train=nowhere.bin", "hardware.memory_gib=0.0001"):
        ended = run(config, override, prefix=mpirun(4), code=None)
        ours = [line for line in ended.said if line.startswith("train_llama")]
        assert ended.code != 0 and len(ours) == 1, ended.stderr
        assert ended.stdout == ""


def test_one_rank_needs_no_mpirun(config):
    ended = run(config, "parallel.pipeline=1", OFF, env=environment(PATH="/nowhere"))
    assert "starting" not in ended.stderr and len(ended.steps) == 3


# ---- data ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("there,says", [
    (False, r"no file matches \S+; make the tiny data set with `make data`"),
    (True, r"spoilt.bin: token 1234 is 100, outside a vocabulary of 100; set model.vocab"),
], ids=["missing", "out_of_range"])
def test_data_that_cannot_be_used_is_one_sentence_before_any_rank_starts(config, tmp_path, there, says):
    tokens = made_tokens(2000)
    tokens[1234] = 100
    if there:
        write_tokens(tmp_path / "spoilt.bin", tokens)
    ended = run(config, f"data.train={tmp_path}/spoilt.bin", code=2)
    assert ended.stdout == "" and len(ended.said) == 1
    assert re.match(f"train_llama: data.train: .*{says}", ended.said[0]), ended.said[0]
    assert nothing_left(config)


def test_a_validation_shard_too_small_for_the_batches_says_how_many_tokens_are_needed(config, tmp_path):
    path = write_tokens(tmp_path / "few.bin", made_tokens(1000))
    ended = run(config, f"data.val={path}", code=2)
    assert len(ended.said) == 1
    assert re.search(r"data\.val: .* has 1000 tokens .*; 32 sequences are needed, at least 1025 tokens", ended.said[0])
    assert run(config, f"data.val={path}", "data.val_batches=1", "train.steps=1", "parallel.pipeline=1", OFF).vals


@pytest.mark.usefixtures("ranks")
@pytest.mark.parametrize("overrides", [(), ("parallel.pipeline=1", OFF)], ids=["four_ranks", "one_rank"])
def test_metrics_that_cannot_be_written_end_the_run_with_the_reason_last(config, overrides):
    for path, reason in (
        ("/dev/full", "cannot write to /dev/full: No space left on device; free some space there, or name a file"
                      " elsewhere"),
        ("/proc/no/metrics", "cannot make the folder of /proc/no/metrics: No such file or directory; name a file that"
                             ' can be written, or "" for none'),
    ):
        ended = run(config, f"log.metrics={path}", *overrides, code=1)
        assert ended.said[-1].endswith(f"log.metrics: {reason}"), ended.stderr
        assert nothing_left(config)


# ---- a run that is stopped -------------------------------------------------------------------------------------------

@pytest.mark.usefixtures("ranks")
@pytest.mark.parametrize("overrides", [(), ("parallel.pipeline=1", OFF)], ids=["four_ranks", "one_rank"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1],
                         ids=lambda number: number.name)
def test_a_request_to_stop_ends_the_run_within_seconds_after_a_whole_step(config, tmp_path, number, overrides):
    job = started(config, tmp_path, f"checkpoint.dir={tmp_path}/saved", *overrides)
    told = time.monotonic()
    ended = job.stop(number, code=3)
    assert time.monotonic() - told < patience(10)
    last = re.search(r"stopped on request after step (\d+); continue with --resume", ended.said[-1])
    assert last, ended.stderr
    assert ended.numbers[-1] == int(last[1]) and (tmp_path / "saved" / f"step_{int(last[1]):08}").is_dir()
    assert nothing_left(config)


@pytest.mark.parametrize("chosen", [{}, {"OMP_WAIT_POLICY": "passive"}], ids=["default", "chosen"])
def test_idle_threads_spin_briefly_unless_the_environment_says_otherwise(config, tmp_path, chosen):
    silent = {name: value for name, value in environment().items() if name != "OMP_WAIT_POLICY"}
    job = started(config, tmp_path, "parallel.pipeline=1", OFF, env={**silent, **chosen})
    variables = Path(f"/proc/{job.pid}/environ").read_text().split("\0")
    job.stop()
    assert ("GOMP_SPINCOUNT=2000" in variables) == (chosen == {})


@pytest.mark.usefixtures("ranks")
def test_a_request_during_the_start_is_kept_and_obeyed(config, tmp_path):
    job = launch(config, "train.steps=1000000", "data.val_every=0")
    assert "starting 4 ranks" in job.stderr.readline()
    ended = job.stop()
    assert re.search(r"stopped on request after step \d+; nothing was saved", ended.said[-1])
    assert nothing_left(config)

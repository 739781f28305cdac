"""train.max_restarts: dead ranks restart from the newest checkpoint, and the run has the bits of an undisturbed
run."""

import contextlib
import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
from harm import launcher_process, rank_process, small_config, supervisor_process
from trainer_runs import BUILD, launch, metrics_of, nothing_left, one_thread, processes_with, wait_until

pytestmark = pytest.mark.usefixtures("ranks")

STEPS = 40


def start(config, folder, *overrides, steps=STEPS, **options):
    saved = [f"checkpoint.dir={folder}/saved", "checkpoint.every=5", f"log.metrics={folder}/metrics.jsonl"]
    keys = ("parallel.pipeline=4", f"train.steps={steps}", "data.val_every=0", *saved, *overrides)
    return launch(config, *keys, env=one_thread(), **options)


def lines(folder, kind="step"):
    return metrics_of(folder / "metrics.jsonl", kind)


def last_step(folder):
    return max([line["step"] for line in lines(folder)], default=0)


def kill(job, folder, rank, after):
    wait_until(lambda: job.poll() is not None or last_step(folder) >= after, f"no step {after}")
    assert job.poll() is None, job.end(None).stderr
    os.kill(wait_until(lambda: rank_process(job, rank), "no rank"), signal.SIGKILL)


def undisturbed(folder):
    """Makes a configuration and an undisturbed run; returns the run's folder, and another for a disturbed one."""
    whole, torn = folder / "whole", folder / "torn"
    whole.mkdir(), torn.mkdir()
    config = small_config(folder)
    start(config, whole).end()
    return config, whole, torn


@pytest.mark.thorough
def test_a_killed_rank_is_started_again_and_the_bits_are_those_of_an_undisturbed_run(tmp_path):
    config, whole, torn = undisturbed(tmp_path)
    job = start(config, torn, "train.max_restarts=2")
    wait_until(lambda: last_step(torn) >= 1, "no step")
    config.write_text(config.read_text().replace("lr: 3.0e-3", "lr: 0.5"))  # must only affect the next run
    kill(job, torn, 2, 7)
    ended = job.end()
    assert re.search(r"rank 2 \(stage 2\) was killed by signal 9 .* while at \S.*; the ranks end",
                     ended.stderr), ended.stderr
    said = re.search(r"starting the ranks again from (step (\d+)|their last starting point), with 1 restart left;"
                     r" lost: (\d+) steps?, \d+ s", ended.stderr)
    assert said is not None, ended.stderr
    assert len(lines(torn, "run")) >= 2
    results = [{line["step"]: (line["loss"], line["grad_norm"]) for line in lines(at)} for at in (whole, torn)]
    assert results[0] == results[1]
    assert nothing_left(config)


def test_a_restart_passes_over_a_damaged_checkpoint_and_says_so(tmp_path):
    config, whole, torn = undisturbed(tmp_path)
    job = start(config, torn, "train.max_restarts=1", "checkpoint.keep=9")
    kept = lambda: sorted((torn / "saved").glob("step_*"))
    wait_until(lambda: len(kept()) >= 3, "nothing saved")
    for pid in processes_with(str(config)):
        os.kill(pid, signal.SIGSTOP)
    before, newest = kept()[-2:]
    file = newest / "training.json"
    file.write_text(file.read_text().replace("samples", "sampels"))
    saver = rank_process(job, 0)  # it may be about to complete another
    os.kill(rank_process(job, 2), signal.SIGKILL)
    for pid in set(processes_with(str(config))) - {saver}:
        with contextlib.suppress(ProcessLookupError):  # those that go on first end the others
            os.kill(pid, signal.SIGCONT)
    ended = job.end()
    skipped = f"{file}: checksum mismatch; the file is damaged; trying the previous checkpoint"
    assert skipped in ended.stderr and f"resumed from {before} after" in ended.stderr, ended.stderr
    steps = [{line["step"]: line["loss"] for line in lines(at)} for at in (whole, torn)]
    assert steps[0] == steps[1] and nothing_left(config)


def test_without_restarts_left_the_last_line_says_how_to_go_on(tmp_path):
    config = small_config(tmp_path)
    job = start(config, tmp_path, "train.max_restarts=1", steps=100000)
    kill(job, tmp_path, 1, 6)
    config.unlink()
    wait_until(lambda: len(lines(tmp_path, "run")) == 2, "no second start")
    kill(job, tmp_path, 1, last_step(tmp_path) + 6)
    ended = job.end(code=1)
    assert ended.said[-1].endswith(f"the job ends; continue with --resume {tmp_path}/saved"), ended.stderr
    assert nothing_left(config)


@pytest.mark.thorough
def test_the_steps_that_were_lost_count_from_where_this_start_began(tmp_path):
    config = small_config(tmp_path)
    start(config, tmp_path, steps=20).end()
    saved = tmp_path / "saved" / "step_00000020"
    again = ["train.max_restarts=1", "checkpoint.every=0", f"checkpoint.dir={tmp_path}/other"]
    job = start(config, tmp_path, *again, steps=100000, resume=saved)
    kill(job, tmp_path, 1, 25)
    ended_at = last_step(tmp_path)
    wait_until(lambda: len(lines(tmp_path, "run")) == 3, "no second start")
    kill(job, tmp_path, 1, last_step(tmp_path) + 6)
    told = job.end(code=1).stderr
    assert told.endswith("; nothing was saved, since checkpoint.every is 0\n"), told
    said = re.search(r"again from their last starting point, .*; lost: (\d+) step", told)
    assert said is not None and 4 <= int(said[1]) <= ended_at - 20 + 100, said


def test_a_rank_that_says_why_it_fails_is_not_started_again(tmp_path):
    """For example, if the disk is full when the ranks start, they would fail again."""
    config = small_config(tmp_path)
    (tmp_path / "file").write_text("")
    ended = start(config, tmp_path, "train.max_restarts=5", f"checkpoint.dir={tmp_path}/file/saved").end(code=1)
    assert "starting the ranks again" not in ended.stderr, ended.stderr


def test_a_request_to_stop_that_comes_while_lost_ranks_are_ended_is_heard(tmp_path):
    config = small_config(tmp_path)
    job = start(config, tmp_path, "train.max_restarts=5", "train.peer_timeout_s=600", steps=100000)
    wait_until(lambda: last_step(tmp_path) >= 6, "no steps")
    for pid in [launcher_process(job), *(supervisor_process(job, rank) for rank in (0, 2, 3))]:
        os.kill(pid, signal.SIGSTOP)  # they do not report how the ranks end, which the parent awaits for a second
    os.kill(rank_process(job, 1), signal.SIGKILL)
    time.sleep(0.4)
    ended = job.stop(code=1)
    assert "starting the ranks again" not in ended.stderr, ended.stderr
    assert ended.said[-1].endswith(f"not started again; the job ends; continue with --resume {tmp_path}/saved")
    assert nothing_left(config)


def test_a_restart_runs_the_program_that_was_started_even_if_make_has_replaced_it(tmp_path, monkeypatch):
    config = small_config(tmp_path)
    shutil.copy(BUILD / "train_llama", tmp_path / "train_llama")
    monkeypatch.setattr("trainer_runs.BUILD", tmp_path)
    job = start(config, tmp_path, "train.max_restarts=1")
    wait_until(lambda: last_step(tmp_path) >= 1, "no step")
    (tmp_path / "train_llama").unlink()
    (tmp_path / "train_llama").write_text("#!/bin/sh\necho another program >&2\nexit 1\n")
    (tmp_path / "train_llama").chmod(0o755)
    kill(job, tmp_path, 2, 7)
    ended = job.end()
    assert "starting the ranks again" in ended.stderr, ended.stderr
    assert "another program" not in ended.stderr and last_step(tmp_path) == STEPS


# Makes this process the parent of its orphaned descendants, as the first process of a container is.
ADOPTS = "import ctypes, os, sys; ctypes.CDLL(None).prctl(36, 1); os.execv(sys.argv[1], sys.argv[1:])"


def test_the_first_process_of_a_container_keeps_no_zombies_of_lost_ranks(tmp_path):
    config = small_config(tmp_path)
    job = start(config, tmp_path, "train.max_restarts=1", steps=100000, prefix=[sys.executable, "-c", ADOPTS])
    wait_until(lambda: last_step(tmp_path) >= 1, "no step")
    os.kill(launcher_process(job), signal.SIGKILL)
    wait_until(lambda: len(lines(tmp_path, "run")) == 2, "no second start")
    stats = lambda: [Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split() for pid in children()]
    children = lambda: Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    wait_until(lambda: len(children()) == 2, lambda: f"not the caretaker and mpirun alone: {stats()}", 15)
    job.stop(code=3)

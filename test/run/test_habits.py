"""Conventions of terminal programs: -q and -v, colours only on terminals, and Ctrl-C."""

import os
import pty
import re
import select
import time

import pytest
from trainer_runs import (FAMILIES, ROOT, as_options, built_with_mpi, command, environment, execute, nothing_left,
                          patience, processes_with, read_terminal, run, trainer, wait_until, write_config)

ONE_RANK = ("parallel.pipeline=1", "schedule.bpipe=off")
LAYOUTS = pytest.mark.parametrize(
    "layout",
    [pytest.param((), marks=pytest.mark.skipif(not built_with_mpi(), reason="built without MPI")), ONE_RANK],
    ids=["four_ranks", "one_rank"],
)


# ---- verbosity -------------------------------------------------------------------------------------------------------


@LAYOUTS
@pytest.mark.parametrize("family", FAMILIES)
def test_quiet_leaves_results_and_nothing_else(tmp_path, family, layout):
    config = write_config(tmp_path, family)
    ended = run(config, *layout, family=family, arguments=["-q"])
    assert ended.stderr == ""
    assert [line.split()[0] for line in ended.stdout.splitlines()] == ["step", "step", "val", "step", "val"]


@pytest.mark.thorough
@LAYOUTS
def test_quiet_and_verbose_change_what_is_printed_and_not_what_is_computed(config, layout):
    plain, quiet, verbose = (run(config, *layout, arguments=how) for how in ([], ["--quiet"], ["--verbose"]))
    assert plain.bits == quiet.bits == verbose.bits
    assert len(quiet.said) == 0 < len(plain.said) < len(verbose.said)
    assert not any("start-up:" in line or "chosen:" in line for line in plain.said)


@LAYOUTS
def test_verbose_says_what_was_found_and_chosen_and_how_long_the_start_takes(config, layout):
    said = run(config, *layout, arguments=["-v"]).stderr
    ranks = 1 if layout else 4
    assert re.search(rf"^train_llama: found: .*; rank 0 of {ranks} on ", said, re.M)
    assert re.search(r"^train_llama: chosen: device .+ threads?$", said, re.M)
    assert re.search(r"^train_llama: chosen: matrix products by ", said, re.M)
    assert re.search(r"^train_llama: chosen: messages by " + ("none, one rank" if layout else "MPI"), said, re.M)
    if not layout:
        assert re.search(r"\[rank 0 stage 0\] chosen: evicted bundles go (into the partner|to the partner)", said)
    phases = re.findall(r"^train_llama: start-up: (.+), (\d+\.\d) ms$", said, re.M)
    names = [name for name, _ in phases]
    assert names[0] == "plan, machine and data checked" and names[1] == "world joined"
    assert names[-1] == "checkpoint and metrics" and "memory allocated, weights drawn" in names
    whole = re.search(r"start-up: ready to train, (\d+\.\d) ms in all", said)
    after = sum(float(ms) for _, ms in phases[2:])
    assert abs(after - float(whole[1])) <= 0.1 * len(phases) and after > 0


def test_quiet_keeps_errors(config):
    ended = run(config, "train.steps=many", arguments=["-q"], code=2)
    assert "-o train.steps: " in ended.stderr
    ended = run(config, "checkpoint.init_from=/nowhere", *ONE_RANK, arguments=["-q"], code=1)
    assert len(ended.said) == 1 and "/nowhere" in ended.said[0]


def test_quiet_reaches_plans(config):
    loud, quiet = (command("llama", "-c", config, "--plan", *how, overrides=["schedule.name=auto"])
                   for how in ([], ["-q"]))
    assert quiet.stdout == loud.stdout != "" and quiet.stderr == "" and "schedule.name auto is " in loud.stderr


# ---- colours ---------------------------------------------------------------------------------------------------------


def on_terminal(command, **changes):
    """Returns a command's output on a terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        inherited = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "MAKEFLAGS", "TERM")}
        os.execvpe(command[0], command, {**inherited, **changes})
    text = read_terminal(terminal)
    os.waitpid(pid, 0)
    return text


@pytest.mark.thorough
def test_make_colours_its_marks_on_a_terminal_alone_and_never_with_no_color():
    found = ["make", "-s", "found"]
    assert "\x1b[32m✓\x1b[0m libyaml" in on_terminal(found, TERM="xterm")
    without = on_terminal(found, TERM="xterm", NO_COLOR="1")
    assert "✓ libyaml" in without and "\x1b" not in without
    piped = execute(found).stdout
    assert "✓ libyaml" in piped and "\x1b" not in piped


@LAYOUTS
def test_a_terminal_gets_a_progress_line_with_the_time_left(config, layout):
    alone = ["sh", "-c", 'exec "$@" 2> /dev/null', "-"]  # the terminal gets the results alone
    trains = [str(trainer("llama")), "-c", str(config), *as_options(*layout)]
    text = on_terminal([*alone, *trains], **environment(TERM="xterm"))
    assert "\r\x1b[Kstep    1/3 is running\r\x1b[Kstep    1/3 | loss " in text
    assert re.search(r"\n\r\x1b\[Kstep    3/3 is running, about \d+s left\r\x1b\[Kstep    3/3 \| loss ", text)


@pytest.mark.thorough
def test_a_dumb_terminal_gets_plain_lines(config):
    text = on_terminal([str(trainer("llama")), "-c", str(config), *as_options(*ONE_RANK)], TERM="dumb")
    assert "step    3/3 | loss" in text and "\x1b" not in text and "is running" not in text


# ---- Ctrl-C ----------------------------------------------------------------------------------------------------------


class Terminal:
    """A trainer in the foreground of its own terminal."""

    def __init__(self, config, *overrides):
        self.text = b""
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.chdir(ROOT)
            arguments = ["train_llama", "-c", str(config), *as_options(*overrides)]
            os.execve(trainer("llama"), arguments, environment(TERM="xterm"))

    def read_until(self, text):
        deadline = time.monotonic() + patience(30)
        while text.encode() not in self.text:
            assert time.monotonic() < deadline, self.text
            if select.select([self.terminal], [], [], 0.1)[0]:
                self.text += os.read(self.terminal, 1 << 16)

    def press(self, key):
        os.write(self.terminal, key)

    def end(self):
        text = self.text.decode() + read_terminal(self.terminal)
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status), text.replace("\r\n", "\n").splitlines()


LONG = ("train.steps=100000", "data.val_every=0", "train.global_batch=64")


@LAYOUTS
def test_ctrl_c_ends_the_run_after_a_whole_step_with_its_checkpoint_saved(tmp_path, layout):
    config = write_config(tmp_path)
    job = Terminal(config, *LONG, *layout, f"checkpoint.dir={tmp_path}/out")
    job.read_until("| loss")
    # The terminal signals its complete foreground group. Ranks in this group would be ended by mpirun's handling of the
    # signal.
    foreground = os.tcgetpgrp(job.terminal)
    others = [pid for pid in processes_with(str(config)) if pid != job.pid]
    assert [pid for pid in others if os.getpgid(pid) == foreground] == []
    assert os.getpgid(job.pid) == foreground
    assert len(others) == (0 if layout else 10)  # caretaker, mpirun, ranks and their supervisors
    job.press(b"\x03")
    code, lines = job.end()
    assert code == 3, lines[-5:]
    last = re.search(r"stopped on request after step (\d+); continue with --resume", lines[-1])
    assert last, lines[-5:]
    assert (tmp_path / "out" / f"step_{int(last[1]):08d}").is_dir()
    assert nothing_left(config)


@LAYOUTS
def test_a_terminal_that_is_closed_costs_no_work(tmp_path, layout):
    job = Terminal(write_config(tmp_path), *LONG, *layout, f"checkpoint.dir={tmp_path}/out")
    job.read_until("| loss")
    os.close(job.terminal)
    ended = lambda: [status for pid, status in [os.waitpid(job.pid, os.WNOHANG)] if pid != 0]
    # The run may notice the closed terminal a moment before the signal.
    assert os.waitstatus_to_exitcode(wait_until(ended, "it does not end")[0]) in (1, 3)
    assert [path.name[:5] for path in (tmp_path / "out").iterdir()] == ["step_"]

"""The parent of self-started ranks: exit codes, last messages, signals, and that no process or file is left.

The program is ranks_launch.c, which prints `folder PATH.` with the folder of the launch to stderr.
"""

import os
import re
import shutil
import signal
import socket
import time
import uuid
from pathlib import Path

import pytest
from trainer_runs import TOOLS, Job, environment, execute, patience, processes_with, wait_until

PROGRAM = TOOLS / "ranks_launch"
WITHOUT_MPI = "built without MPI" in execute([PROGRAM, "done", "2"], code=None).stderr

pytestmark = pytest.mark.skipif(WITHOUT_MPI, reason="built without MPI")


class Launch(Job):
    """Its processes are found by a mark in their arguments."""

    def __init__(self, scenario, ranks=4, close_fds=True, **changes):
        self.mark = uuid.uuid4().hex
        super().__init__([PROGRAM, scenario, str(ranks), self.mark], env=environment(**changes), close_fds=close_fds)

    def started(self):
        self.folder = folder_of(self.wait_for("folder "))
        return self

    def processes(self):
        return processes_with(self.mark)

    def pid_of(self, name):
        for pid in self.processes():
            if Path(f"/proc/{pid}/comm").read_text().strip().startswith(name) and pid != self.pid:
                return pid
        raise AssertionError(f"no {name} among {self.processes()}")

    def leaves_nothing(self):
        assert self.processes() == []
        assert not self.folder.exists()
        return True


def folder_of(said):
    return Path(re.search(r"folder (\S+)\.\n", said)[1])


def run(scenario, ranks=4, code=0, **changes):
    job = Launch(scenario, ranks, **changes)
    ended = job.end(code)
    job.folder = folder_of(ended.stderr)
    assert job.leaves_nothing()
    assert not re.search("MPI_ABORT|Primary job|mpirun noticed", ended.stderr)
    return ended


# --- endings


def test_a_normal_end():
    job = run("done")
    cores = len(os.sched_getaffinity(0))
    threads = max(1, cores // 4)
    assert job.stdout == f"terminal 0 threads {threads}\n"
    assert f"starting 4 ranks on this machine through mpirun ({cores} core" in job.said[0]
    assert run("done", 2, OMP_NUM_THREADS="3").stdout == "terminal 0 threads 3\n"


def test_ranks_talk_through_shared_memory():
    job = run("transport", 3)
    assert sorted(job.stdout.splitlines()) == [f"rank {r} maps 2 others" for r in range(3)]


def test_the_reason_of_the_failing_rank_is_the_last_line_and_appears_once():
    job = run("error", code=2)
    assert job.said[-1] == "ranks_launch: [rank 1 stage 1] F3: the input is torn; mend it"
    assert job.stderr.count("the input is torn") == 1
    assert "a line of rank 1" in job.said and job.seconds < patience(10)


def test_of_several_reasons_the_first_counts():
    job = run("errors", 3, code=1)
    assert job.said[-1] == "ranks_launch: [rank 2 stage 2] reason of rank 2"
    assert job.stderr.count("reason of rank") == 1


def test_the_reason_of_a_program_that_fails_before_it_is_a_rank_is_heard():
    job = Launch("early", 3)
    ended = job.end(code=2)
    assert re.fullmatch(r"ranks_launch: \[rank \d\] the input is torn; mend it", ended.said[-1])
    assert ended.stderr.count("the input is torn") == 1 and job.processes() == []


@pytest.mark.thorough
def test_what_a_program_writes_that_never_becomes_a_rank_is_shown():
    """For example, the dynamic linker's message if a library is missing."""
    job = Launch("unlinked", 2).end(code=1)
    assert "a library is missing" in job.said, job.stderr


def test_what_mpi_writes_is_shown_if_the_ranks_cannot_join():
    job = Launch("done", 2, OMPI_MCA_pml="cm").end(code=1)
    # Open MPI says which of two things it found first.
    said = re.search("PML cm cannot be selected|No components were able to be opened in the pml framework", job.stderr)
    assert said, job.stderr
    assert re.search(r"rank \d ended with exit code 1 while at joining the other ranks", job.said[-1])


@pytest.mark.every_case
@pytest.mark.parametrize("scenario, rank, end", [
    ("silent", 1, "ended with exit code 5 while at step 12 F3; the job ends; go on"),
    ("gone", 1, "ended with exit code 0 while at step 12 F3; the job ends; go on"),
    ("killed", 2, "was killed by signal 9 (Killed) while at step 12 F3"),
])
def test_a_rank_that_ends_without_a_word_is_named_with_what_it_did(scenario, rank, end):
    job = run(scenario, code=1)
    assert job.seconds < patience(15)
    assert job.said[-1].startswith(f"ranks_launch: rank {rank} (stage {rank}) {end}")


def test_without_mpirun_the_remedy_is_named():
    done = execute([PROGRAM, "done", "2"], env={"PATH": "/nowhere"}, code=1)
    assert "mpirun" in done.stderr and "scripts/install_deps.sh" in done.stderr
    assert len(done.said) == 1


# --- output


def test_lines_of_rank_0_come_at_once(tmp_path):
    """Rank 0 writes a line when the one before has been read."""
    job = Launch("lines", 2, LINES_SEEN=str(tmp_path))
    for count, line in enumerate(job.stdout):
        assert line == f"step {count}\n"
        (tmp_path / str(count)).touch()
    job.end()
    assert count == 4


# --- signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR2])
def test_a_request_to_stop_reaches_all_ranks_as_sigusr1(number):
    job = Launch("stop", 3).started()
    ended = job.stop(number, code=3)
    assert [f"rank {r} got SIGUSR1" in ended.said for r in range(3)] == [True] * 3
    assert job.leaves_nothing()


# --- deaths in any order


def test_a_launch_keeps_all_its_files_in_one_folder_and_a_second_request_ends_it_at_once():
    job = Launch("wait", 2).started()
    inside = [path.name for path in job.folder.rglob("*")]
    assert any(name.startswith("vader_segment") for name in inside), inside
    assert any(name.startswith("ompi.") for name in inside), inside
    job.send_signal(signal.SIGTERM)
    job.wait_for("asked to stop")
    time.sleep(0.3)  # two signals in quick succession would count as one request
    told = time.monotonic()
    ended = job.stop()
    assert time.monotonic() - told < patience(8)
    assert "second signal" in ended.said[-1]
    assert job.leaves_nothing()


@pytest.mark.every_case
@pytest.mark.parametrize("scenario", ["wait", "silent", "broken"])
def test_a_killed_mpirun_leaves_nothing_and_a_rank_that_ends_without_it_is_not_the_reason(scenario):
    job = Launch(scenario).started()
    job.send_signal(signal.SIGSTOP)  # the parent will notice all deaths at once
    os.kill(job.pid_of("mpirun"), signal.SIGKILL)
    wait_until(lambda: len(job.processes()) == 2, "more than the parent and its caretaker are left", 15)
    job.send_signal(signal.SIGCONT)
    ended = job.end(1)
    assert ended.said[-1].startswith("ranks_launch: mpirun was killed by signal 9"), ended.stderr
    assert job.leaves_nothing()


@pytest.mark.thorough
def test_an_mpirun_that_hangs_after_its_ranks_is_ended(tmp_path):
    hangs = tmp_path / "mpirun.openmpi"
    hangs.write_text(f'#!/bin/sh\n{shutil.which("mpirun.openmpi") or shutil.which("mpirun")} "$@"\nexec sleep 1000\n')
    hangs.chmod(0o755)
    job = run("done", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert 29 < job.seconds < patience(45), (job.seconds, job.stderr)


@pytest.mark.skipif(shutil.which("ss") is None, reason="needs ss")
def test_a_socket_that_the_caller_listens_on_stays_open():
    """mpirun inherits it; its own ports are closed."""
    with socket.create_server(("", 0)) as server:
        server.set_inheritable(True)
        job = Launch("wait", 2, close_fds=False).started()
        wait_until(lambda: closed_ports(job.processes()), "mpirun's ports stay open")
        with socket.create_connection(("127.0.0.1", server.getsockname()[1]), timeout=10):
            server.accept()[0].close()
        job.stop(signal.SIGKILL, code=None)


def closed_ports(pids):
    """Returns the lines of these processes' listening sockets that are bound to an interface that does not exist."""
    lines = execute(["ss", "-ltnpH"]).stdout.splitlines()
    return [line for line in lines if "%if" in line and any(f"pid={pid}," in line for pid in pids)]


def test_a_folder_of_a_killed_parent_and_caretaker_is_removed_by_the_next_launch():
    """That may be another test's at the same time."""
    job = Launch("wait", 2).started()
    caretaker = next(pid for pid in job.processes() if pid != job.pid and parent_of(pid) == job.pid
                     and "ranks_launch" in Path(f"/proc/{pid}/comm").read_text())
    for pid in (caretaker, job.pid):
        os.kill(pid, signal.SIGKILL)
    job.wait()
    wait_until(lambda: not job.processes(), "ranks are left", 15)
    other = Launch("wait", 2).started()
    wait_until(lambda: not job.folder.exists(), "the folder is still there", 15)
    assert other.folder.exists()
    other.kill()
    wait_until(lambda: not other.processes() and not other.folder.exists(), "left over", 15)
    job.end(None), other.end(None)


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])

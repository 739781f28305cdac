"""The parent of self-started ranks: exit codes, last messages, signals, and that no process or file is left.

The program is ranks_launch.c, which prints `folder PATH.` with the folder of the launch to stderr.
"""

import os
import re
import select
import shutil
import signal
import socket
import subprocess
import time
import uuid
from pathlib import Path

import pytest
from trainer_runs import TOOLS, patience, wait_until

PROGRAM = TOOLS / "ranks_launch"
WITHOUT_MPI = "built without MPI" in subprocess.run([PROGRAM, "done", "2"], capture_output=True, text=True).stderr

pytestmark = pytest.mark.skipif(WITHOUT_MPI, reason="built without MPI")


class Job:
    """One launch; its processes are found by a mark in their arguments."""

    def __init__(self, scenario, ranks=4, close_fds=True, **environment):
        self.mark = uuid.uuid4().hex
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("OMP")}
        self.start = time.monotonic()
        self.parent = subprocess.Popen([PROGRAM, scenario, str(ranks), self.mark], env={**inherited, **environment},
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, close_fds=close_fds)
        self.stderr = b""

    def read_until(self, text):
        """Reads stderr up to a line that contains this text."""
        os.set_blocking(self.parent.stderr.fileno(), False)
        deadline = time.monotonic() + patience(30)
        while text.encode() not in self.stderr:
            assert time.monotonic() < deadline, self.stderr
            select.select([self.parent.stderr], [], [], 1)
            self.stderr += self.parent.stderr.read() or b""
        return self

    def started(self):
        return self.read_until("folder ")

    def end(self):
        os.set_blocking(self.parent.stderr.fileno(), True)
        stdout, stderr = self.parent.communicate(timeout=patience(60))
        self.seconds = time.monotonic() - self.start
        self.stdout, self.stderr = stdout.decode(), (self.stderr + stderr).decode()
        self.code = self.parent.returncode
        self.lines = self.stderr.splitlines()
        return self

    @property
    def folder(self):
        said = self.stderr.decode() if isinstance(self.stderr, bytes) else self.stderr
        return Path(re.search(r"folder (\S+)\.\n", said)[1])

    def processes(self):
        found = subprocess.run(["pgrep", "-f", self.mark], capture_output=True, text=True)
        return [int(pid) for pid in found.stdout.split()]

    def pid_of(self, name):
        for pid in self.processes():
            if Path(f"/proc/{pid}/comm").read_text().strip().startswith(name) and pid != self.parent.pid:
                return pid
        raise AssertionError(f"no {name} among {self.processes()}")

    def leaves_nothing(self):
        assert self.processes() == []
        assert not self.folder.exists()
        return True


def run(scenario, ranks=4, **environment):
    job = Job(scenario, ranks, **environment).end()
    assert job.leaves_nothing()
    assert "MPI_ABORT" not in job.stderr and "Primary job" not in job.stderr and "mpirun noticed" not in job.stderr
    return job


# --- endings


def test_a_normal_end():
    job = run("done")
    cores = len(os.sched_getaffinity(0))
    threads = max(1, cores // 4)
    assert job.code == 0
    assert job.stdout == f"terminal 0 threads {threads}\n"
    assert f"starting 4 ranks on this machine through mpirun ({cores} core" in job.lines[0]
    assert run("done", 2, OMP_NUM_THREADS="3").stdout == "terminal 0 threads 3\n"


def test_ranks_talk_through_shared_memory():
    job = run("transport", 3)
    assert sorted(job.stdout.splitlines()) == [f"rank {r} maps 2 others" for r in range(3)]


def test_the_reason_of_the_failing_rank_is_the_last_line_and_appears_once():
    job = run("error")
    assert job.code == 2
    assert job.lines[-1] == "ranks_launch: [rank 1 stage 1] F3: the input is torn; mend it"
    assert job.stderr.count("the input is torn") == 1
    assert "a line of rank 1" in job.lines and job.seconds < patience(10)


def test_of_several_reasons_the_first_counts():
    job = run("errors", 3)
    assert job.code == 1 and job.lines[-1] == "ranks_launch: [rank 2 stage 2] reason of rank 2"
    assert job.stderr.count("reason of rank") == 1


def test_the_reason_of_a_program_that_fails_before_it_is_a_rank_is_heard():
    job = Job("early", 3).end()
    assert job.code == 2 and re.fullmatch(r"ranks_launch: \[rank \d\] the input is torn; mend it", job.lines[-1])
    assert job.stderr.count("the input is torn") == 1 and job.processes() == []


@pytest.mark.thorough
def test_what_a_program_writes_that_never_becomes_a_rank_is_shown():
    """For example, the dynamic linker's message if a library is missing."""
    job = Job("unlinked", 2).end()
    assert job.code == 1 and "a library is missing" in job.lines, job.stderr


def test_what_mpi_writes_is_shown_if_the_ranks_cannot_join():
    job = Job("done", 2, OMPI_MCA_pml="cm").end()
    # Open MPI says which of two things it found first.
    said = re.search("PML cm cannot be selected|No components were able to be opened in the pml framework", job.stderr)
    assert job.code == 1 and said, job.stderr
    assert re.search(r"rank \d ended with exit code 1 while at joining the other ranks", job.lines[-1])


@pytest.mark.every_case
@pytest.mark.parametrize("scenario, rank, end", [
    ("silent", 1, "ended with exit code 5 while at step 12 F3; the job ends; go on"),
    ("gone", 1, "ended with exit code 0 while at step 12 F3; the job ends; go on"),
    ("killed", 2, "was killed by signal 9 (Killed) while at step 12 F3"),
])
def test_a_rank_that_ends_without_a_word_is_named_with_what_it_did(scenario, rank, end):
    job = run(scenario)
    assert job.code == 1 and job.seconds < patience(15)
    assert job.lines[-1].startswith(f"ranks_launch: rank {rank} (stage {rank}) {end}")


def test_without_mpirun_the_remedy_is_named():
    done = subprocess.run([PROGRAM, "done", "2"], env={"PATH": "/nowhere"}, capture_output=True, text=True)
    assert done.returncode == 1
    assert "mpirun" in done.stderr and "scripts/install_deps.sh" in done.stderr
    assert len(done.stderr.splitlines()) == 1


# --- output


def test_lines_of_rank_0_come_at_once(tmp_path):
    """Rank 0 writes a line when the one before has been read."""
    job = Job("lines", 2, LINES_SEEN=str(tmp_path))
    for count, line in enumerate(job.parent.stdout):
        assert line.decode() == f"step {count}\n"
        (tmp_path / str(count)).touch()
    assert job.end().code == 0 and count == 4


# --- signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR2])
def test_a_request_to_stop_reaches_all_ranks_as_sigusr1(number):
    job = Job("stop", 3).started()
    job.parent.send_signal(number)
    job.end()
    assert job.code == 3
    assert [f"rank {r} got SIGUSR1" in job.lines for r in range(3)] == [True] * 3
    assert job.leaves_nothing()


# --- deaths in any order


def test_a_launch_keeps_all_its_files_in_one_folder_and_a_second_request_ends_it_at_once():
    job = Job("wait", 2).started()
    inside = [path.name for path in job.folder.rglob("*")]
    assert any(name.startswith("vader_segment") for name in inside), inside
    assert any(name.startswith("ompi.") for name in inside), inside
    job.parent.send_signal(signal.SIGTERM)
    job.read_until("asked to stop")
    time.sleep(0.3)  # two signals in quick succession would count as one request
    told = time.monotonic()
    job.parent.send_signal(signal.SIGTERM)
    job.end()
    assert time.monotonic() - told < patience(8)
    assert job.code == 1 and "second signal" in job.lines[-1]
    assert job.leaves_nothing()


@pytest.mark.every_case
@pytest.mark.parametrize("scenario", ["wait", "silent", "broken"])
def test_a_killed_mpirun_leaves_nothing_and_a_rank_that_ends_without_it_is_not_the_reason(scenario):
    job = Job(scenario).started()
    job.parent.send_signal(signal.SIGSTOP)  # the parent will notice all deaths at once
    os.kill(job.pid_of("mpirun"), signal.SIGKILL)
    wait_until(lambda: len(job.processes()) == 2, "more than the parent and its caretaker are left", 15)
    job.parent.send_signal(signal.SIGCONT)
    assert job.end().lines[-1].startswith("ranks_launch: mpirun was killed by signal 9"), job.stderr
    assert job.code == 1 and job.leaves_nothing()


@pytest.mark.thorough
def test_an_mpirun_that_hangs_after_its_ranks_is_ended(tmp_path):
    hangs = tmp_path / "mpirun.openmpi"
    hangs.write_text(f'#!/bin/sh\n{shutil.which("mpirun.openmpi") or shutil.which("mpirun")} "$@"\nexec sleep 1000\n')
    hangs.chmod(0o755)
    job = run("done", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert job.code == 0 and 29 < job.seconds < patience(45), (job.seconds, job.stderr)
    assert job.leaves_nothing()


@pytest.mark.skipif(shutil.which("ss") is None, reason="needs ss")
def test_a_socket_that_the_caller_listens_on_stays_open():
    """mpirun inherits it; its own ports are closed."""
    with socket.create_server(("", 0)) as server:
        server.set_inheritable(True)
        job = Job("wait", 2, close_fds=False).started()
        wait_until(lambda: closed_ports(job.processes()), "mpirun's ports stay open")
        with socket.create_connection(("127.0.0.1", server.getsockname()[1]), timeout=10):
            server.accept()[0].close()
        job.parent.kill()
        job.end()


def closed_ports(pids):
    """Returns the lines of these processes' listening sockets that are bound to an interface that does not exist."""
    lines = subprocess.run(["ss", "-ltnpH"], capture_output=True, check=True, text=True).stdout.splitlines()
    return [line for line in lines if "%if" in line and any(f"pid={pid}," in line for pid in pids)]


def test_a_folder_of_a_killed_parent_and_caretaker_is_removed_by_the_next_launch():
    """That may be another test's at the same time."""
    job = Job("wait", 2).started()
    caretaker = next(pid for pid in job.processes() if pid != job.parent.pid and parent_of(pid) == job.parent.pid
                     and "ranks_launch" in Path(f"/proc/{pid}/comm").read_text())
    for pid in (caretaker, job.parent.pid):
        os.kill(pid, signal.SIGKILL)
    job.parent.wait()
    wait_until(lambda: not job.processes(), "ranks are left", 15)
    other = Job("wait", 2).started()
    wait_until(lambda: not job.folder.exists(), "the folder is still there", 15)
    assert other.folder.exists()
    other.parent.kill()
    wait_until(lambda: not other.processes() and not other.folder.exists(), "left over", 15)
    job.end(), other.end()


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])

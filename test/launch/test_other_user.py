"""Another user of the machine, without rights, reads nothing of a run that its user's umask keeps private, and can
neither stop nor delay it, nor its output, which Open MPI's mpirun passes on and holds up while it waits for the rest of
a message that someone began to send to one of its ports."""

import contextlib
import errno
import fcntl
import os
import re
import signal
import socket
import struct
from pathlib import Path

import pytest
from harm import small_config
from other_user import OtherUser, let_in, needs_root
from trainer_runs import (checkpoint_names, launch, metrics_of, nothing_left, one_thread, processes_with, socket_inodes,
                          verify, wait_until)

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("ranks"), needs_root]

STEPS = 60


def start(config, folder, *keys):
    saved = [f"checkpoint.dir={folder}/saved", "checkpoint.every=5", f"log.metrics={folder}/metrics.jsonl"]
    keys = ("parallel.pipeline=4", f"train.steps={STEPS}", "train.schedule=constant", *saved, *keys)
    with open(folder / "output", "w") as output:
        return launch(config, *keys, env=one_thread(), stdout=output)


def printed(folder):
    return len((folder / "output").read_text().splitlines())


def steps_of(folder):
    return {line["step"]: (line["loss"], line["grad_norm"]) for line in metrics_of(folder / "metrics.jsonl")}


# ---- what the other user tries --------------------------------------------------------------------------------------


def tried(what, act):
    """Returns [what] if the act succeeds."""
    with contextlib.suppress(OSError, ValueError):
        held = act()
        HELD.append(held)
        return [what]
    return []


HELD = []


def look_into(pids):
    """Tries to read memory, files and environment of processes, and to signal them."""
    found = []
    for pid in pids:
        for name in ("mem", "maps", "environ", "syscall"):
            found += tried(f"reads /proc/{pid}/{name}",
                           lambda: os.pread(os.open(f"/proc/{pid}/{name}", os.O_RDONLY), 1, 0))
        found += tried(f"lists the files of {pid}", lambda: os.listdir(f"/proc/{pid}/fd"))
        for number in (signal.SIGCONT, signal.SIGSTOP, signal.SIGTERM):
            found += tried(f"signals {pid}", lambda: os.kill(pid, number))
        found += tried(f"slows {pid}", lambda: os.setpriority(os.PRIO_PROCESS, pid, 19))
        found += tried(f"binds {pid}", lambda: os.sched_setaffinity(pid, {0}))
    return found


def open_files(paths):
    """Tries to read, write, lock, replace and remove files and folders. What can be opened stays open and locked."""
    found = []
    for path in paths:
        reads = tried(f"reads {path}", lambda: os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        if reads:
            with contextlib.suppress(OSError):
                fcntl.flock(HELD[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        found += reads
        found += tried(f"writes {path}", lambda: os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        found += tried(f"renames {path}", lambda: os.rename(path, f"{path}.taken"))
        found += tried(f"adds to {path}", lambda: os.open(f"{path}/added", os.O_CREAT | os.O_WRONLY))
    return found


def knock(addresses):
    """Connects to sockets, sends what nobody expects, and holds the connections."""
    for kind, address in addresses:
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        for size in (1, 60, 1400):
            for _ in range(30):
                with contextlib.suppress(OSError):
                    end = socket.socket(family, kind)
                    end.setblocking(False)
                    with contextlib.suppress(BlockingIOError):
                        end.connect(tuple(address) if family == socket.AF_INET else address)
                    HELD.append(end)
                    with contextlib.suppress(OSError):
                        end.send(os.urandom(size))


def refuses(port):
    with socket.socket() as end:
        return end.connect_ex(port) == errno.ECONNREFUSED


# ---- what there is to try -------------------------------------------------------------------------------------------


def sockets_of(pids):
    """Returns (kind, address) of the sockets of processes that others could reach."""
    mine, found = socket_inodes(pids), []
    for table, kind in (("tcp", socket.SOCK_STREAM), ("tcp6", socket.SOCK_STREAM), ("udp", socket.SOCK_DGRAM)):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            host, port = fields[1].split(":")
            if fields[9] in mine and (table == "udp" or fields[3] == "0A"):  # on an address of IPv6: on all
                host = socket.inet_ntoa(struct.pack("<I", int(host, 16))) if len(host) == 8 else "0.0.0.0"
                found.append((kind, ["127.0.0.1" if host == "0.0.0.0" else host, int(port, 16)]))
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[6] in mine and len(fields) > 7:
            found.append((int(fields[4]), fields[7].replace("@", "\0", 1)))
    return found


def everything_in(path):
    """Returns a path and all that is below it; a folder that goes meanwhile, as unfinished checkpoints do, is empty."""
    return [path, *(Path(place) / name for place, folders, files in os.walk(path) for name in [*folders, *files])]


def files_of(pids, folder):
    """Returns the files and folders of a run: its own folder's, what it holds open, and what is named after it."""
    found = everything_in(folder)
    for pid in pids:
        with contextlib.suppress(OSError):
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    found.append(Path(os.readlink(entry)))
        for place in map(Path, ("/dev/shm", "/tmp", "/var/tmp")):
            for path in place.glob(f"*{pid}*"):
                if re.search(rf"(?<!\d){pid}(?!\d)", path.name):  # not the name of another number, as a compiler's file
                    found += everything_in(path)
    everyones = ("/dev/null", "/dev/ptmx", "/proc", "/sys", *map(str, folder.parent.glob("*.bin")))
    return sorted({str(path) for path in found if path.exists() and not str(path).startswith(everyones)})


# ---- trials ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o077, 0o022])
def test_another_user_reads_stops_and_delays_nothing_of_a_run(tmp_path, umask):
    """With umask 022 results may be read, as the user has chosen; but nothing else, and nothing is written."""
    whole, tried_on = tmp_path / "whole", tmp_path / "tried_on"
    let_in(tmp_path)
    config, mask = small_config(tmp_path), os.umask(umask)
    try:
        whole.mkdir(), tried_on.mkdir()
        start(config, whole).end()
        job = start(config, tried_on, "train.steps=100000")
        wait_until(lambda: len(steps_of(tried_on)) >= 7, "no steps")
    finally:
        os.umask(mask)
    pids = processes_with(str(config))
    files = files_of(pids, tried_on)
    mpirun = [pid for pid in pids if "mpirun" in Path(f"/proc/{pid}/comm").read_text()]
    sockets, ports = sockets_of(pids), [tuple(address) for _, address in sockets_of(mpirun)]
    assert ports != []
    wait_until(lambda: all(refuses(port) for port in ports), "mpirun's ports stay open")
    listed = [f"has shared memory {line.split()[1]}" for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
              if int(line.split()[4]) in pids and int(line.split()[2], 8) & 0o007]

    def attack():
        found = look_into(pids) + open_files(files)
        knock(sockets)
        return found

    reached, shown = len(steps_of(tried_on)), printed(tried_on)
    with OtherUser(attack) as other:
        wait_until(lambda: len(steps_of(tried_on)) >= reached + STEPS, "it trains no more")
        wait_until(lambda: printed(tried_on) >= shown + STEPS, "it prints no more")
        ended = job.stop(code=3)
    allowed = r"reads \S+/tried_on(/metrics\.jsonl|/output|/saved(/\.?step_\d+\S*)?)?$" if umask == 0o022 else "$^"
    assert [what for what in [*other.answer, *listed] if not re.match(allowed, what)] == []
    assert " silent" not in ended.stderr and "starting the ranks again" not in ended.stderr
    undisturbed, steps = steps_of(whole), steps_of(tried_on)
    last = f"step_{max(steps):08}"
    assert {step: steps[step] for step in undisturbed if step > 2} == {s: b for s, b in undisturbed.items() if s > 2}
    assert last in checkpoint_names(tried_on / "saved") and verify(tried_on / "saved" / last) is None
    assert nothing_left(config)


def test_names_that_another_user_has_taken_before_stop_no_run(tmp_path):
    """Open MPI's and our own names in shared folders, as folders that only the other user may enter."""
    config = small_config(tmp_path)
    taken = [f"/tmp/ompi.{socket.gethostname()}.0", f"/tmp/openmpi-sessions-0@{socket.gethostname()}_0",
             "/dev/shm/trainer", "/tmp/trainer", *(f"/dev/shm/trainer-{os.getpid() + i}" for i in range(1, 400))]

    def take():
        made = []
        for path in taken:
            with contextlib.suppress(OSError):
                os.mkdir(path, 0o700)
                made.append(path)
        return made

    with OtherUser(take) as other:
        try:
            assert len(other.answer) > 300
            start(config, tmp_path, "train.steps=6").end()
        finally:
            for path in other.answer:
                with contextlib.suppress(OSError):
                    os.rmdir(path)

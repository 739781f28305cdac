"""Two hosts simulated on this machine: each has its own network, host name, clock, processes, /dev/shm and /etc/hosts,
and one wire connects them.

The second host's process namespace is inside the first one's, so the first can enter it, as ssh would, but not the
reverse.
"""

import os
import shutil
import signal
import subprocess
import sys
import uuid

import trainer_runs

NAMES = ("host1", "host2")
ADDRESSES = ("10.77.0.1", "10.77.0.2")
KINDS = ("--net", "--uts", "--mount", "--pid", "--time")
CLOCKS = ("0", "5000")  # seconds by which a host's clock is ahead of ours

# Connects the networks of two processes by a link with a delay in seconds each way (a kernel may lack netem).
SLOW_WIRE = """
import collections, contextlib, ctypes, fcntl, os, select, struct, sys, time
def end(pid):
    with open(f"/proc/{pid}/ns/net") as space:
        assert ctypes.CDLL(None).setns(space.fileno(), 0x40000000) == 0  # CLONE_NEWNET
    file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(file, 0x400454CA, struct.pack("16sH", b"wire0", 0x1001))  # TUNSETIFF, IFF_TUN | IFF_NO_PI
    return file
ends, delay, moving = [end(pid) for pid in sys.argv[1:3]], float(sys.argv[3]), collections.deque()
print("ready", flush=True)
while True:
    wait = max(0, moving[0][0] - time.monotonic()) if moving else None
    for file in select.select(ends, [], [], wait)[0]:
        moving.append((time.monotonic() + delay, ends[file == ends[0]], os.read(file, 65536)))
    while moving and moving[0][0] <= time.monotonic():
        with contextlib.suppress(OSError):  # the other end is not up yet
            os.write(*moving.popleft()[1:])
"""


def why_not():
    """Returns why this machine cannot be two hosts, or None if it can."""
    if os.geteuid() != 0:
        return "namespaces of a network want root"
    for tool in ("ip", "unshare", "nsenter", "mount"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed (scripts/install_deps.sh)"
    tried = subprocess.run(["unshare", *KINDS, "--fork", "--mount-proc", "true"], capture_output=True, text=True)
    return None if tried.returncode == 0 else f"no namespaces here: {tried.stderr.strip()}"


def numbers(pid):
    """Returns a process's id in each of its namespaces, ours first."""
    with open(f"/proc/{pid}/status") as file:
        return next(list(map(int, line.split()[1:])) for line in file if line.startswith("NSpid:"))


class Hosts:
    names, addresses = NAMES, ADDRESSES

    def __init__(self, folder):
        self.folder, self.inits, self.holders = folder, [], []
        self.wire = "w" + uuid.uuid4().hex[:8]

    def start(self):
        (self.folder / "names").write_text(
            "127.0.0.1 localhost\n" + "".join(f"{a} {n}\n" for a, n in zip(ADDRESSES, NAMES))
        )
        self.make_init([])
        self.make_init(self.enter(0))
        subprocess.run(["ip", "link", "add", self.wire, "type", "veth", "peer", "name", self.wire + "x"], check=True)
        for i, end in enumerate((self.wire, self.wire + "x")):
            subprocess.run(["ip", "link", "set", end, "netns", str(self.inits[i]), "name", "wire0"], check=True)
            for command in (f"hostname {NAMES[i]}", "mount -t tmpfs shm /dev/shm",
                            f"mount --bind {self.folder}/names /etc/hosts", "ip link set lo up",
                            f"ip address add {ADDRESSES[i]}/24 dev wire0", "ip link set wire0 up"):
                self.run(i, *command.split())
        # The agent that mpirun runs instead of ssh: AGENT HOST COMMAND..., inside the first host.
        self.agent = self.folder / "agent"
        inner = numbers(self.inits[1])[1]
        self.agent.write_text(f'#!/bin/sh\nshift\nexec nsenter --target={inner} {" ".join(KINDS)} -- sh -c "$*"\n')
        self.agent.chmod(0o755)
        (self.folder / "hostfile").write_text("".join(f"{name} slots=2\n" for name in NAMES))

    def make_init(self, prefix):
        """Starts a process that keeps a host's namespaces; everything in the host ends with it."""
        before = set(trainer_runs.processes_with(f"{self.folder}/init"))
        hold = f": {self.folder}/init; while :; do sleep 1000 & wait; done"
        world = ["unshare", *KINDS, "--monotonic", CLOCKS[len(self.inits)], "--fork", "--mount-proc", "--kill-child"]
        holder = subprocess.Popen([*prefix, *world, "sh", "-c", hold], stderr=subprocess.DEVNULL,
                                  preexec_fn=trainer_runs.end_with_parent)
        self.holders.append(holder)

        def made():
            assert holder.poll() is None, "no namespaces"
            new = set(trainer_runs.processes_with(f"{self.folder}/init")) - before
            return [pid for pid in new if self.is_init(pid, len(self.inits) + 2)]

        self.inits.append(trainer_runs.wait_until(made, "no namespaces")[0])

    @staticmethod
    def is_init(pid, depth):
        try:
            return len(numbers(pid)) == depth and numbers(pid)[-1] == 1
        except (OSError, StopIteration):
            return False

    def enter(self, host):
        """Returns a prefix that runs a command in a host, in the current folder."""
        return ["nsenter", f"--target={self.inits[host]}", *KINDS, "--", "sh", "-c",
                f'cd {trainer_runs.ROOT} && exec "$@"', "sh"]

    def run(self, host, *command, check=True):
        return subprocess.run([*self.enter(host), *command], check=check, capture_output=True, text=True,
                              stdin=subprocess.DEVNULL)

    def mpirun(self, named=True):
        """Returns an mpirun command for ranks on both hosts, run on the first host, with our agent instead of ssh."""
        words = ["--mca", "plm_rsh_agent", str(self.agent), "--hostfile", str(self.folder / "hostfile")]
        network = ["--mca", "btl_tcp_if_include", "10.77.0.0/24", "--mca", "oob_tcp_if_include", "10.77.0.0/24"]
        return [*self.enter(0), "mpirun", "-n", "4", "--bind-to", "none", *words, *(network if named else [])]

    def slow_wire(self, seconds):
        """Replaces the wire by one with this delay each way."""
        self.run(0, "ip", "link", "delete", "wire0")
        inits = map(str, self.inits)
        self.holders.append(subprocess.Popen([sys.executable, "-c", SLOW_WIRE, *inits, str(seconds)], text=True,
                                             stdout=subprocess.PIPE, preexec_fn=trainer_runs.end_with_parent))
        assert self.holders[-1].stdout.readline() == "ready\n"
        for i in (0, 1):
            self.run(i, "ip", "address", "add", f"{ADDRESSES[i]}/24", "dev", "wire0")
            self.run(i, "ip", "link", "set", "wire0", "up")

    def wire_is(self, state):
        self.run(1, "ip", "link", "set", "wire0", state)

    def processes(self, host):
        """Returns our ids of a host's processes, without the process that keeps its namespaces."""
        space = os.readlink(f"/proc/{self.inits[host]}/ns/uts")
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    words = file.read()
                if os.readlink(f"/proc/{pid}/ns/uts") == space and words:
                    found.append((int(pid), words.replace(b"\0", b" ").decode(errors="replace").strip()))
            except OSError:
                pass
        return [
            (pid, words) for pid, words in found if f"{self.folder}/init" not in words and not words.startswith("sleep")
        ]

    def stop(self):
        for pid in reversed(self.inits):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        for holder in self.holders:
            holder.kill()
            holder.wait()
        subprocess.run(["ip", "link", "delete", self.wire], capture_output=True)

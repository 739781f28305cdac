"""Slurm for tests: munged, slurmctld and a slurmd for each of two nodes, with their own folder and ports.

Without hosts, both nodes are this machine under two names, which suffices for jobs on one node and for requested
resources. With the two hosts of hosts.py they are two machines, and commands run on the first.
"""

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import trainer_runs

PATH = "/usr/sbin:/usr/local/sbin:" + os.environ["PATH"]
DAEMONS = {name: shutil.which(name, path=PATH) for name in ("munged", "slurmctld", "slurmd")}
PATIENCE = 60


def why_not():
    """Returns why this machine cannot run the cluster, or None if it can."""
    if os.geteuid() != 0:
        return "the daemons of Slurm want root"
    return "Slurm and munge are not installed (scripts/install_deps.sh)" if None in DAEMONS.values() else None


# Two nodes of eight processors and eight GPUs, independent of this machine. cred_expire: minimum wait of a requeued job
# before it restarts. FirstJobId: Open MPI names its shared memory after the job's number. Another checkout's tests may
# run a cluster on this machine at the same time. With equal job numbers, ranks of the two clusters would map each
# other's memory.
CONF = """
ClusterName=one
SlurmctldHost={hosts[0]}({addresses[0]})
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdSpoolDir={folder}/%n
SlurmdPidFile={folder}/%n.pid
TmpFS={folder}/%n
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=bf_interval=1,sched_interval=1
FirstJobId={ports[0]}
KillWait=20
GresTypes=gpu
NodeName=node1 NodeHostname={hosts[0]} NodeAddr={addresses[0]} Port={ports[1]} CPUs=8 Gres=gpu:8
NodeName=node2 NodeHostname={hosts[1]} NodeAddr={addresses[1]} Port={ports[2]} CPUs=8 Gres=gpu:8
PartitionName=all Nodes=ALL Default=YES OverSubscribe=FORCE:4 State=UP MaxTime=INFINITE
"""


def wait_for(condition, what, seconds=PATIENCE):
    return trainer_runs.wait_until(condition, what, seconds)


def free_ports(count):
    """Returns ports below those that connections of other tests take by themselves."""
    lowest, ports = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0]), []
    while len(ports) < count:
        port = random.randrange(min(10000, lowest // 2), lowest)
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            ports += [port] if port not in ports else []
    return ports


class Cluster:
    """The daemons and their folder. If `start` fails halfway, `stop` ends the daemons that have started."""

    def __init__(self, folder, hosts=None):
        self.folder, self.daemons = folder, []
        own = socket.gethostname().split(".")[0]
        self.names = hosts.names if hosts else [own, own]
        self.addresses = hosts.addresses if hosts else ["127.0.0.1"] * 2
        self.enter = [hosts.enter(0), hosts.enter(1)] if hosts else [[], []]
        self.env = trainer_runs.environment(SLURM_CONF=str(folder / "slurm.conf"), OMP_NUM_THREADS="1")

    def start(self):
        for name in ("munge", "state", "node1", "node2"):
            (self.folder / name).mkdir()
        (self.folder / "munge").chmod(0o711)
        (self.folder / "munge" / "key").write_bytes(os.urandom(128))
        (self.folder / "munge" / "key").chmod(0o600)
        conf = CONF.format(hosts=self.names, addresses=self.addresses, folder=self.folder, ports=free_ports(3))
        (self.folder / "slurm.conf").write_text(conf)
        (self.folder / "gpus").mkdir()
        for i in range(8):
            (self.folder / "gpus" / str(i)).symlink_to("/dev/null")
        (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/gpus/[0-7]\n")
        names = ("socket", "key-file", "pid-file", "log-file", "seed-file")
        files = [f"--{name}={self.folder}/munge/{name.split('-')[0]}" for name in names]
        self.daemon("munged", "--foreground", "--force", "--num-threads=2", *files)
        wait_for((self.folder / "munge" / "socket").exists, self.said)
        self.daemon("slurmctld", "-D", "-i")
        for i, node in enumerate(("node1", "node2")):
            self.daemon("slurmd", "-D", "-N", node, host=i)
        idle = lambda: self.call("sinfo", "-h", "-o", "%t %D", code=None).stdout.strip() == "idle 2"
        wait_for(idle, self.said)

    def daemon(self, name, *arguments, host=0):
        with open(self.folder / f"{name}{len(self.daemons)}.log", "w") as log:
            files = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            command = [*self.enter[host], DAEMONS[name], *arguments]
            self.daemons.append(
                subprocess.Popen(command, env=self.env, preexec_fn=trainer_runs.end_with_parent, **files)
            )

    def said(self):
        return "\n".join(f"{path.name}: {path.read_text()[-2000:]}" for path in self.folder.glob("*.log"))

    def stop(self):
        if len(self.daemons) > 1:
            for state in ("RUNNING", "PENDING"):
                self.call("scancel", f"--state={state}", code=None)
        # Processes of jobs are listed while the daemons run, and killed after the daemons have ended.
        left = [pid for pid in trainer_runs.processes_with("slurmstepd") if f"{self.folder}/" in block_of(pid)]
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in reversed(self.daemons):
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def call(self, *command, **options):
        """Runs a command on the first node."""
        return trainer_runs.execute([*self.enter[0], *command], env=self.env, limit=PATIENCE, **options)


def block_of(pid):
    try:
        with open(f"/proc/{pid}/environ", errors="replace") as file:
            return file.read()
    except OSError:
        return ""

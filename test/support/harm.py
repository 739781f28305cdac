"""Kills, stops, hangs or cuts off ranks of running trainers, for test_faults.py and test/soak."""

import collections
import os
import random
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

from trainer_runs import Job, environment, nothing_left, patience, processes_with, wait_until, write_config

ENDS_WITHIN = 10  # seconds, after anything that dies

# Four stages with BPipe; steps of a few milliseconds, so that a run passes through every kind of moment often.
SMALL = {
    "model": "{family: llama, hidden: 32, layers: 4, heads: 4, ffn: 48, vocab: 100, seq_len: 16}",
    "schedule": "{bpipe: on, micro_batch: 1}",
}


def small_config(folder, steps=100):
    data = f'{{train: "{folder}/train_*.bin", val: "{folder}/val_*.bin", val_every: 10, val_batches: 1}}'
    train = f"{{global_batch: 8, steps: {steps}, lr: 3.0e-3, warmup_steps: 2}}"
    return write_config(folder, data=data, train=train, **SMALL)


# ---- what a debugger, a frozen program or a cut cable would do ------------------------------------------------------

# Preloaded, it stops the main thread of rank HARM_RANK, or loses all datagrams that its supervisor sends, while the
# file HARM_STALL or HARM_CUT is there; with HARM_THREADS it has MPI grant no threads. With HARM_PARENT the parent has a
# thread of a library's own from the beginning, which takes the signals that it does not block.
HARM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
static int harmed(const char *kind) {
    const char *path = getenv(kind), *rank = getenv("HARM_RANK"), *own = getenv("OMPI_COMM_WORLD_RANK");
    return path != NULL && atoi(own != NULL ? own : "0") == atoi(rank != NULL ? rank : "0") && access(path, F_OK) == 0;
}
static int supervises(void) {
    char name[16] = "";
    prctl(PR_GET_NAME, name);
    return strcmp(name, "supervisor") == 0;
}
int clock_gettime(clockid_t clock, struct timespec *time) {
    static int (*real)(clockid_t, struct timespec *);
    if (real == NULL) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    while (gettid() == getpid() && !supervises() && harmed("HARM_STALL")) poll(NULL, 0, 50);
    return real(clock, time);
}
int MPI_Init_thread(int *count, char ***arguments, int required, int *provided) {
    int (*real)(int *, char ***, int, int *) = (int (*)(int *, char ***, int, int *))dlsym(RTLD_NEXT, "MPI_Init_thread");
    int code = real(count, arguments, required, provided);
    if (getenv("HARM_THREADS") != NULL) *provided = 0;
    return code;
}
static void *sleep_(void *unused) {
    for (;;) poll(NULL, 0, -1);
    return unused;
}
__attribute__((constructor)) static void start(void) {
    pthread_t thread;
    if (getenv("HARM_PARENT") != NULL && getenv("OMPI_COMM_WORLD_RANK") == NULL && strncmp(program_invocation_short_name, "train", 5) == 0)
        pthread_create(&thread, NULL, sleep_, NULL);
}
ssize_t sendto(int file, const void *bytes, size_t count, int flags, const struct sockaddr *to, socklen_t length) {
    static ssize_t (*real)(int, const void *, size_t, int, const struct sockaddr *, socklen_t);
    if (real == NULL) real = (ssize_t (*)(int, const void *, size_t, int, const struct sockaddr *, socklen_t))dlsym(RTLD_NEXT, "sendto");
    return harmed("HARM_CUT") ? (ssize_t)count : real(file, bytes, count, flags, to, length);
}
"""


def build_harm(folder):
    (folder / "harm.c").write_text(HARM)
    command = ["gcc", "-shared", "-fPIC", "-O1", "-o", folder / "harm.so", folder / "harm.c", "-ldl", "-pthread"]
    subprocess.run(command, check=True)
    return folder / "harm.so"


# ---- processes ------------------------------------------------------------------------------------------------------


def supervisor_process(job, rank):
    """The parent of a rank's process."""
    return int(Path(f"/proc/{rank_process(job, rank)}/stat").read_text().rsplit(")", 1)[1].split()[1])


def rank_process(job, rank):
    """Returns the process of one rank, or None while it does not exist."""
    for pid in job.ranks():
        try:
            if f"OMPI_COMM_WORLD_RANK={rank}\0" in Path(f"/proc/{pid}/environ").read_text(errors="replace"):
                return pid
        except OSError:
            pass
    return None


def launcher_process(job):
    """The mpirun below a trainer that started its ranks itself."""
    for pid in processes_with(str(job.config)):
        try:
            if "mpirun" in Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0]:
                return pid
        except OSError:
            pass
    return None


# ---- kills at random moments ----------------------------------------------------------------------------------------

FATAL = [signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS]


class Kills:
    """Kills a process of a run again and again, and resumes it from its checkpoint each time, to its end. The run of
    `steps` steps saves twenty times. A kill may take `limit` seconds; without one, more where more processes are at
    work."""

    def __init__(self, folder, seed, ranks=4, steps=100, limit=None):
        self.random, self.ranks, self.every, self.limit = random.Random(seed), ranks, max(1, steps // 20), limit
        self.config = small_config(folder, steps)
        self.saved, self.metrics = folder / "saved", folder / "metrics.jsonl"
        self.seconds, self.names, self.rounds = [], [], 0
        began = time.monotonic()
        self.whole = self.end(self.start()).bits
        self.lasts = time.monotonic() - began
        self.forget()

    @property
    def of(self):
        return collections.Counter(self.names)

    @property
    def kills(self):
        return len(self.seconds)

    @property
    def last(self):
        return f"{self.kills}: {self.names[-1]}: {self.seconds[-1]:.1f} s"

    @property
    def slowest(self):
        return max(self.seconds)

    @property
    def mean(self):
        return sum(self.seconds) / len(self.seconds)

    def start(self):
        return Job(
            self.config,
            f"parallel.pipeline={self.ranks}",
            f"checkpoint.dir={self.saved}",
            f"checkpoint.every={self.every}",
            "checkpoint.keep=2",
            f"log.metrics={self.metrics}",
            arguments=["--resume-if-any", self.saved],
            env=environment(OMP_NUM_THREADS="1"),
        )

    def end(self, job):
        ended = job.end().read_metrics(self.metrics)
        assert ended.code == 0, ended.stderr
        # Killed before its first checkpoint, a run starts anew, and its metrics follow those of the first try.
        first = max(i for i, line in enumerate(ended.lines) if '"type":"step","step":1,' in line)
        ended.lines = ended.lines[first:]
        return ended

    def forget(self):
        shutil.rmtree(self.saved, ignore_errors=True)
        self.metrics.unlink(missing_ok=True)

    def process(self, job, name):
        if name == "parent":
            return job.parent.pid
        return launcher_process(job) if name == "mpirun" else rank_process(job, int(name.split()[1]))

    def kill(self, name, pid):
        try:
            os.kill(pid, self.random.choice(FATAL) if name.startswith("rank") else signal.SIGKILL)
        except ProcessLookupError:
            pass  # it had just ended

    def judge(self, job, name, when):
        """The run ended because of it, in time, and said who it was; True where it had ended well just before."""
        ended = job.end()
        assert nothing_left(self.config, ENDS_WITHIN)
        seconds = time.monotonic() - when
        if ended.code == 0:
            return True
        self.names.append(name)
        self.seconds.append(seconds)
        assert "stopped on request" not in ended.stderr  # a death starts no save
        assert seconds < (self.limit or patience(ENDS_WITHIN)), (name, seconds, ended.stderr)
        if name == "parent":
            assert ended.code == -signal.SIGKILL
        else:
            assert ended.code == 1 and name in ended.said[-1], (name, ended.code, ended.stderr)
        if name.startswith("rank"):
            assert re.search(r"rank \d+.* (was killed by signal \d+ .*|died) while at \w+", ended.said[-1]), ended.said[
                -1
            ]
        return False

    def finish(self):
        """Checks that the pieces equal an undisturbed run, to the bit."""
        ended = self.end(self.start())
        assert ended.bits == self.whole, [step["step"] for step in ended.steps]
        self.rounds += 1
        self.forget()

    def once(self):
        job = self.start()
        # A rank mostly, else mpirun or the parent of all.
        name = self.random.choice([f"rank {rank}" for rank in range(self.ranks)] * 2 + ["mpirun", "parent"])
        time.sleep(self.random.uniform(0.0, self.lasts))
        wait_until(lambda: self.process(job, name) or job.parent.poll() is not None, name)
        pid = self.process(job, name)
        if pid is not None:
            self.kill(name, pid)
        if self.judge(job, name, time.monotonic()):
            self.finish()

    def many(self, count, tell=lambda: None):
        while self.kills < count:
            before = self.kills
            self.once()
            if self.kills > before:
                tell()
        self.finish()

"""Stops, hangs or cuts off ranks of running trainers, for test_faults.py and test/soak."""

from pathlib import Path

from trainer_runs import preload, processes_with, rank_processes, write_config

ENDS_WITHIN = 10  # seconds within which a job ends after any process has died

# Four stages with BPipe; steps of a few milliseconds, so that a run passes through every kind of moment often.
SMALL = {
    "model": "{family: llama, hidden: 32, layers: 4, heads: 4, ffn: 48, vocab: 100, seq_len: 16}",
    "schedule": "{bpipe: on, micro_batch: 1}",
}


def small_config(folder, steps=100):
    data = f'{{train: "{folder}/train_*.bin", val: "{folder}/val_*.bin", val_every: 10, val_batches: 1}}'
    train = f"{{global_batch: 8, steps: {steps}, lr: 3.0e-3, warmup_steps: 2}}"
    return write_config(folder, data=data, train=train, **SMALL)


# ---- imitations of a debugger, a frozen program or a cut cable ------------------------------------------------------

# A library to preload. It stops the main thread of rank HARM_RANK while the file HARM_STALL exists, and drops all
# messages of its supervisor while HARM_CUT exists. HARM_THREADS: MPI grants no threads. HARM_WORDS: Open MPI reports a
# peer as dead. HARM_END: MPI_Finalize crashes. HARM_PARENT: from the beginning the parent has a thread like those of
# libraries, which takes all signals that it does not block.
HARM = r"""
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
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
    static __typeof__(&clock_gettime) real;
    if (real == NULL) real = REAL(clock_gettime);
    while (gettid() == getpid() && !supervises() && harmed("HARM_STALL")) poll(NULL, 0, 50);
    return real(clock, time);
}
int MPI_Init_thread(int *count, char ***arguments, int required, int *provided) {
    int code = REAL(MPI_Init_thread)(count, arguments, required, provided);
    if (getenv("HARM_THREADS") != NULL) *provided = 0;
    void (*say)(int, const char *, ...) = (void (*)(int, const char *, ...))dlsym(RTLD_DEFAULT, "opal_output");
    if (getenv("HARM_WORDS") != NULL) say(0, "Read -1, expected 4096, errno = 3");
    return code;
}
static void *sleep_(void *unused) {
    for (;;) poll(NULL, 0, -1);
    return unused;
}
__attribute__((constructor)) static void start(void) {
    pthread_t thread;
    if (getenv("HARM_PARENT") != NULL && getenv("OMPI_COMM_WORLD_RANK") == NULL &&
        strncmp(program_invocation_short_name, "train", 5) == 0)
        pthread_create(&thread, NULL, sleep_, NULL);
}
int MPI_Finalize(void) {
    int (*real)(void) = (int (*)(void))dlsym(RTLD_NEXT, "MPI_Finalize");
    signal(SIGSEGV, SIG_DFL);
    return getenv("HARM_END") != NULL ? raise(SIGSEGV) : real();
}
ssize_t send(int file, const void *bytes, size_t count, int flags) {
    static ssize_t (*real)(int, const void *, size_t, int);
    if (real == NULL) real = (ssize_t (*)(int, const void *, size_t, int))dlsym(RTLD_NEXT, "send");
    return supervises() && harmed("HARM_CUT") ? (ssize_t)count : real(file, bytes, count, flags);
}
"""


def build_harm(folder):
    return preload(folder / "harm.so", HARM, "-pthread")


# ---- processes ------------------------------------------------------------------------------------------------------


def supervisor_process(job, rank):
    """Returns the supervisor, the parent of a rank's process."""
    return int(Path(f"/proc/{rank_process(job, rank)}/stat").read_text().rsplit(")", 1)[1].split()[1])


def rank_process(job, rank):
    """Returns the process of one rank, or None while it does not exist."""
    return rank_processes(str(job.config)).get(rank)


def launcher_process(job):
    """Returns the mpirun that a trainer started for its ranks."""
    for pid in processes_with(str(job.config)):
        try:
            if "mpirun" in Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0]:
                return pid
        except OSError:
            pass
    return None

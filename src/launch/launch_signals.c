#include "launch_signals.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <unistd.h>

// What the ranks understand, their parent does too: #SBATCH --signal=USR1@300
static const int numbers_[] = {SIGCHLD, SIGTERM, SIGUSR1, SIGINT, SIGHUP};
enum { COUNT = sizeof numbers_ / sizeof *numbers_ };

// A handler is told nothing but its signal.
static struct Caught {
    int ends[2];
    bool changed[COUNT];
    struct sigaction before[COUNT];
} caught_ = {.ends = {-1, -1}};

static void note_(int number) {
    int kept = errno;
    unsigned char byte = (unsigned char)number;
    // Where the pipe is full there is enough to be read already.
    if (write(caught_.ends[1], &byte, 1) < 0) errno = 0;
    errno = kept;
}

int launch_signals_open(Error *err) {
    struct sigaction action = {.sa_handler = note_, .sa_flags = SA_RESTART};
    if (pipe2(caught_.ends, O_CLOEXEC | O_NONBLOCK) != 0)
        return error_set(err, EXIT_FAILED, "cannot watch for signals; too many open files?");
    sigfillset(&action.sa_mask);
    for (int i = 0; i < COUNT; i++) {
        sigaction(numbers_[i], NULL, &caught_.before[i]);
        // nohup, and commands in the background of a script
        bool ignored = caught_.before[i].sa_handler == SIG_IGN && (numbers_[i] == SIGINT || numbers_[i] == SIGHUP);
        caught_.changed[i] = !ignored && sigaction(numbers_[i], &action, NULL) == 0;
    }
    return caught_.ends[0];
}

void launch_signals_close(void) {
    if (caught_.ends[0] < 0) return;
    for (int i = 0; i < COUNT; i++)
        if (caught_.changed[i]) sigaction(numbers_[i], &caught_.before[i], NULL);
    for (int end = 0; end < 2; end++) {
        close(caught_.ends[end]);
        caught_.ends[end] = -1;
    }
}

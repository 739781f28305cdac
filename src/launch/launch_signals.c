// Signals to the parent, one byte each, in a pipe that it polls. They are caught, not blocked: libraries start threads
// before ranks are started (planning for schedule.bpipe: auto does), a thread blocks only the signals that were blocked
// at its creation, and a signal to the process goes to any thread that does not block it, where mpirun's SIGCHLD would
// be lost. PIPE is among them so that a reader of results that goes away is a write error, after which the ranks end
// with a checkpoint.
#include "launch_private.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

// The parent handles the same signals as the ranks: #SBATCH --signal=USR1@300
static const int launch_signal_numbers_[] = {SIGCHLD, SIGPIPE, SIGTERM, SIGUSR1, SIGINT, SIGHUP};
enum { LAUNCH_SIGNALS = sizeof launch_signal_numbers_ / sizeof *launch_signal_numbers_ };

// A handler receives nothing but its signal.
static struct LaunchCaught {
    int ends[2];
    bool changed[LAUNCH_SIGNALS];
    struct sigaction before[LAUNCH_SIGNALS];
} launch_caught_ = {.ends = {-1, -1}};

static void launch_note_signal_(int number) {
    int kept = errno;
    unsigned char byte = (unsigned char)number;
    // If the pipe is full, there is enough to read already.
    if (write(launch_caught_.ends[1], &byte, 1) < 0) errno = 0;
    errno = kept;
}

int launch_signals_open(Error *err) {
    struct sigaction action = {.sa_handler = launch_note_signal_, .sa_flags = SA_RESTART};
    if (pipe2(launch_caught_.ends, O_CLOEXEC | O_NONBLOCK) != 0)
        return error_set(err, EXIT_FAILED, "cannot make a pipe for signals (%s); raise ulimit -n", strerror(errno));
    sigfillset(&action.sa_mask);
    for (int i = 0; i < LAUNCH_SIGNALS; i++) {
        sigaction(launch_signal_numbers_[i], NULL, &launch_caught_.before[i]);
        // nohup, and background commands of a script
        bool ignored = launch_caught_.before[i].sa_handler == SIG_IGN &&
                       (launch_signal_numbers_[i] == SIGINT || launch_signal_numbers_[i] == SIGHUP);
        launch_caught_.changed[i] = !ignored && sigaction(launch_signal_numbers_[i], &action, NULL) == 0;
    }
    return launch_caught_.ends[0];
}

void launch_signals_close(void) {
    if (launch_caught_.ends[0] < 0) return;
    for (int i = 0; i < LAUNCH_SIGNALS; i++)
        if (launch_caught_.changed[i]) sigaction(launch_signal_numbers_[i], &launch_caught_.before[i], NULL);
    for (int end = 0; end < 2; end++) {
        close(launch_caught_.ends[end]);
        launch_caught_.ends[end] = -1;
    }
}

// Requests to stop: a handler records SIGUSR1, SIGUSR2, SIGTERM, SIGINT and SIGHUP, and the loop over steps checks for
// a record after every step, together with all other ranks. A second request ends the process at once.
#include "base/clock.h"
#include "base/files.h"
#include "ranks/supervisor.h"
#include "run.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// The signal and the time of the first request. Global variables, because the signal handler writes them.
static volatile sig_atomic_t stop_signal_;
static atomic_llong stop_since_ms_;
static const char *volatile stop_says_;         // why this process ends at once; NULL: a parent process reports it
static volatile sig_atomic_t stop_stderr_ = -1; // stderr, while /dev/null takes its place; -1: in its place

static void note_stop_(int signal) {
    // timeout(1) sends one request as two signals, one to the process and one to its group.
    enum { SAME_REQUEST_MS = 200 };
    long long now_ms = (long long)(1e3 * clock_seconds());
    int kept = errno;
    bool accepts = file_accepts(STDERR_FILENO, 0);
    if (stop_signal_ != 0 && now_ms - stop_since_ms_ > SAME_REQUEST_MS) {
        const char *says = accepts ? stop_says_ : NULL; // a reader that pauses does not hold up the end
        if (says != NULL && write(STDERR_FILENO, says, strlen(says)) < 0) _Exit(EXIT_FAILED);
        _Exit(EXIT_FAILED);
    }
    if (stop_signal_ == 0 && !accepts) {
        // The write that waits for the reader now starts again (SA_RESTART), into /dev/null.
        int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
        stop_stderr_ = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
        if (nowhere >= 0 && stop_stderr_ >= 0) dup2(nowhere, STDERR_FILENO);
        if (nowhere >= 0) close(nowhere);
    }
    if (stop_signal_ == 0) stop_since_ms_ = now_ms;
    stop_signal_ = signal;
    errno = kept;
}

void run_restore_stderr(void) {
    if (stop_stderr_ >= 0) dup2(stop_stderr_, STDERR_FILENO);
    stop_stderr_ = -1;
}

bool run_stop_requested(void) { return stop_signal_ != 0; }

void run_request_stop(void) { note_stop_(SIGTERM); }

void run_listen(Run *run) {
    struct sigaction action = {.sa_handler = note_stop_, .sa_flags = SA_RESTART | SA_ONSTACK};
    if (world_size(run->world) == 1)
        stop_says_ = run->metrics == NULL
                         ? "ended at once, on the second signal\n"
                         : "ended at once, on the second signal; steps after the last checkpoint are lost\n";
    // The handler has a stack of its own: oneDNN's AVX-512 matrix products keep data below the stack pointer, where a
    // handler would write. Signals sent to the process are delivered to this thread, the main thread, unless it blocks
    // them.
    static char stack[1 << 16];
    stack_t own = {.ss_sp = stack, .ss_size = sizeof stack};
    sigaltstack(&own, NULL);
    supervisor_catch_requests(&action);
    status_page_set_ready(run->status_page);
}

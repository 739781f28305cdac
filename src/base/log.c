// Formats and prints messages. A line is built in one buffer and written by one write(), so that lines of several ranks
// on one terminal never mix.
#include "log.h"
#include "clock.h"
#include "printable.h"

#include <string.h>
#include <unistd.h>

int error_set(Error *err, int code, const char *format, ...) {
    if (err == NULL || err->code != 0) return -1;
    err->code = code;
    err->when = clock_seconds();
    va_list args;
    va_start(args, format);
    vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    return -1;
}

static int prefix_(const Log *log, char *line, size_t size) {
    if (log->rank < 0) return snprintf(line, size, "%s: ", log->program);
    if (log->stage < 0) return snprintf(line, size, "%s: [rank %d] ", log->program, log->rank);
    return snprintf(line, size, "%s: [rank %d stage %d] ", log->program, log->rank, log->stage);
}

Log log_of_all(const Log *log) {
    Log all = *log;
    all.rank = all.stage = -1;
    return all;
}

// Names from files are quoted in messages and made printable. Our own messages contain one line break: before the
// command to run instead (fits.c).
static int log_printable_(char *text, int length) {
    static const char own[] = "\nrun instead: ";
    const char *found = memmem(text, (size_t)length, own, sizeof own - 1);
    size_t first = found != NULL ? (size_t)(found - text) : (size_t)length;
    size_t rest = (size_t)length - first, used = text_make_printable(text, first, "");
    memmove(text + used, text + first, rest);
    return (int)(used + (rest > 0 ? 1 + text_make_printable(text + used + 1, rest - 1, "") : 0));
}

static void log_say_(const Log *log, const char *format, va_list args) {
    char line[1400];
    int used = prefix_(log, line, sizeof line - 2);
    int body = vsnprintf(line + used, sizeof line - 2 - (size_t)used, format, args);
    if (body > 0) used += body;
    if (used > (int)sizeof line - 2) used = (int)sizeof line - 2;
    used = log_printable_(line, used);
    line[used++] = '\n';
    // stderr is unbuffered; one write keeps the line whole when several ranks share the terminal.
    ssize_t written = write(STDERR_FILENO, line, (size_t)used);
    (void)written;
}

void log_line(const Log *log, const char *format, ...) {
    va_list args;
    va_start(args, format);
    log_say_(log, format, args);
    va_end(args);
}

void log_status(const Log *log, const char *format, ...) {
    if (log->level == LOG_QUIET) return;
    va_list args;
    va_start(args, format);
    log_say_(log, format, args);
    va_end(args);
}

void log_detail(const Log *log, const char *format, ...) {
    if (log->level != LOG_VERBOSE) return;
    va_list args;
    va_start(args, format);
    log_say_(log, format, args);
    va_end(args);
}

#include "log.h"

#include <string.h>
#include <unistd.h>

int error_set(Error *err, int code, const char *format, ...) {
    if (err == NULL || err->code != 0) return -1;
    err->code = code;
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

// Names out of files are quoted in messages: what would move the cursor or forge a line is shown as '?'. The one break that messages
// of our own have stands in front of what to run instead (fits.c).
static void make_printable_(char *text, int length) {
    static const char own[] = "\nrun instead: ";
    for (int i = 0; i < length; i++)
        if (((unsigned char)text[i] < 0x20 || text[i] == 0x7F) && strncmp(text + i, own, sizeof own - 1) != 0)
            text[i] = '?';
}

static void log_say_(const Log *log, const char *format, va_list args) {
    char line[1400];
    int used = prefix_(log, line, sizeof line - 2);
    int body = vsnprintf(line + used, sizeof line - 2 - (size_t)used, format, args);
    if (body > 0) used += body;
    if (used > (int)sizeof line - 2) used = (int)sizeof line - 2;
    make_printable_(line, used);
    line[used++] = '\n';
    // stderr is unbuffered; one write keeps the line whole where several ranks share the terminal.
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

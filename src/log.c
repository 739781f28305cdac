#include "log.h"

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

void log_line(const Log *log, const char *format, ...) {
    char line[1400];
    int used = prefix_(log, line, sizeof line - 2);
    va_list args;
    va_start(args, format);
    int body = vsnprintf(line + used, sizeof line - 2 - (size_t)used, format, args);
    va_end(args);
    if (body > 0) used += body;
    if (used > (int)sizeof line - 2) used = (int)sizeof line - 2;
    line[used++] = '\n';
    // stderr is unbuffered; one write keeps the line whole where several ranks share the terminal.
    ssize_t written = write(STDERR_FILENO, line, (size_t)used);
    (void)written;
}

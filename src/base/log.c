// Formats and prints messages. Each line is built in one buffer and written by one write(), so ranks' lines never mix.
#include "log.h"
#include "clock.h"

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

Log log_of_all(const Log *log) {
    Log all = *log;
    all.rank = all.stage = -1;
    return all;
}

void log_at(const Log *log, LogLevel level, const char *format, ...) {
    char line[1400];
    if (log->level < level) return;
    int used = snprintf(line, sizeof line - 2,
                        log->rank < 0    ? "%s: "
                        : log->stage < 0 ? "%s: [rank %d] "
                                         : "%s: [rank %d stage %d] ",
                        log->program, log->rank, log->stage);
    va_list args;
    va_start(args, format);
    int body = vsnprintf(line + used, sizeof line - 2 - (size_t)used, format, args);
    va_end(args);
    if (body > 0) used += body;
    if (used > (int)sizeof line - 2) used = (int)sizeof line - 2;
    // Make the message printable, as it may quote names from files. Only the line break before "run instead:" (fits.c)
    // is restored.
    size_t length = text_make_printable(line, (size_t)used, "");
    char *instead = memmem(line, length, "?run instead: ", 14);
    if (instead != NULL) *instead = '\n';
    line[length++] = '\n';
    // stderr is unbuffered; one write keeps the line intact when several ranks share the terminal.
    ssize_t written = write(STDERR_FILENO, line, length);
    (void)written;
}

void text_add(char *text, size_t size, const char *format, ...) {
    size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    int added = vsnprintf(text + used, size - used, format, args);
    va_end(args);
    if (added < (int)(size - used)) return;
    char *cut = text + size - sizeof "...";
    while (cut > text && (*cut & 0xC0) == 0x80) cut--; // not inside a character of UTF-8
    strcpy(cut, "...");
}

// --- text that is safe to print
//
// Decides which characters of untrusted text reach a terminal. Terminals obey C1 control characters (U+009B is ESC [)
// in both forms, as two bytes of UTF-8 and as a lone byte, so bytes that are not UTF-8 are replaced too.

int text_decode(const char *at, size_t length, uint32_t *code) {
    const unsigned char *text = (const unsigned char *)at;
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    int bytes = text[0] < 0x80 ? 1 : text[0] >> 5 == 6 ? 2 : text[0] >> 4 == 14 ? 3 : text[0] >> 3 == 30 ? 4 : 0;
    if (bytes == 0 || (size_t)bytes > length) return 0;
    *code = bytes == 1 ? text[0] : text[0] & (0x7Fu >> bytes);
    for (int i = 1; i < bytes; i++) {
        if (text[i] >> 6 != 2) return 0;
        *code = *code << 6 | (text[i] & 0x3Fu);
    }
    bool surrogate = *code >= 0xD800 && *code <= 0xDFFF;
    return *code < least[bytes] || *code > 0x10FFFF || surrogate ? 0 : bytes;
}

static bool harmful_(uint32_t code) {
    return code < 0x20 || (code >= 0x7F && code <= 0x9F) || code == 0x061C || // control characters; Arabic letter mark
           code == 0x200E || code == 0x200F ||                                // directional marks
           (code >= 0x2028 && code <= 0x202E) ||                              // separators, embeddings and overrides
           (code >= 0x2066 && code <= 0x2069) || code == 0xFEFF;              // isolates; byte order mark
}

size_t text_make_printable(char *text, size_t length, const char *keep) {
    size_t out = 0;
    for (size_t at = 0; at < length;) {
        uint32_t code = 0;
        int bytes = text_decode(text + at, length - at, &code);
        bool kept = bytes > 0 && (!harmful_(code) || (code != 0 && code < 0x80 && strchr(keep, (int)code) != NULL));
        if (kept) memmove(text + out, text + at, (size_t)bytes);
        else text[out] = '?';
        out += kept ? (size_t)bytes : 1;
        at += bytes > 0 ? (size_t)bytes : 1;
    }
    return out;
}

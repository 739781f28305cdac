// Decides which characters of a foreign text reach a terminal. Terminals obey C1 control characters (U+009B is ESC [)
// in both forms, as two bytes of UTF-8 and as a lone byte, so bytes that are not UTF-8 are replaced too.
#include "printable.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

// Returns the length in bytes of the UTF-8 character at `text` and its code point; 0 if the bytes are not UTF-8
// (overlong, a surrogate, cut off).
static int decode_(const unsigned char *text, size_t length, uint32_t *code) {
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
           code == 0x200E || code == 0x200F ||                                // marks of direction
           (code >= 0x2028 && code <= 0x202E) ||                              // separators, embeddings and overrides
           (code >= 0x2066 && code <= 0x2069) || code == 0xFEFF;              // isolates; byte order mark
}

size_t text_make_printable(char *text, size_t length, const char *keep) {
    size_t out = 0;
    for (size_t at = 0; at < length;) {
        uint32_t code = 0;
        int bytes = decode_((const unsigned char *)text + at, length - at, &code);
        bool kept = bytes > 0 && (!harmful_(code) || (code != 0 && code < 0x80 && strchr(keep, (int)code) != NULL));
        if (kept)
            memmove(text + out, text + at, (size_t)bytes);
        else
            text[out] = '?';
        out += kept ? (size_t)bytes : 1;
        at += bytes > 0 ? (size_t)bytes : 1;
    }
    return out;
}

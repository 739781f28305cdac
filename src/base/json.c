// The JSON reader and the two writers that need care (texts and numbers). The reader copies its input once, decodes
// texts in place and allocates all values at once: each but the outermost follows a comma or an opening bracket.
#include "json.h"
#include "alloc.h"

#include "crc64.h"
#include "files.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct Parser {
    JsonValue *free;        // next unused value in the document's memory
    char *begin, *at, *end; // copy of the input and position in it; *end is NUL
    const char *name;
    int depth;
    Error *err;
    bool python; // Infinity and NaN are numbers
} Parser;

static int json_fail_(const Parser *parser, const char *what) {
    return error_set(parser->err, EXIT_FAILED, "%s: byte %lld: %s", parser->name,
                     (long long)(parser->at - parser->begin), what);
}

// Sets the error for an unexpected text where `what` was expected. Common mistakes get an error of their own.
static int json_odd_(const Parser *parser, const char *what) {
    if (parser->at == parser->end) return json_fail_(parser, "the JSON text ends too early");
    return json_fail_(parser, *parser->at == '/' || *parser->at == '#' ? "a comment, which JSON lacks" : what);
}

static void skip_space_(Parser *parser) { parser->at += strspn(parser->at, " \t\r\n"); }

// --- texts, decoded in place: a decoded text is never longer than its source

static int hex4_(const char *at, uint32_t *code) {
    if (strspn(at, "0123456789abcdefABCDEF") < 4) return -1; // the text ends with NUL
    const char digits[5] = {at[0], at[1], at[2], at[3], '\0'};
    *code = (uint32_t)strtoul(digits, NULL, 16);
    return 0;
}

// Decodes an escape into `to`, which it advances; `at` points after the backslash.
static int decode_escape_(Parser *parser, char **to) {
    static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    char letter = *parser->at;
    const char *found = letter == '\0' ? NULL : strchr(letters, letter);
    if (found == NULL && letter != 'u') return json_fail_(parser, "unknown escape in a string");
    parser->at++;
    if (found != NULL) return *(*to)++ = meanings[found - letters], 0;
    uint32_t code, low = 0;
    if (hex4_(parser->at, &code) != 0) return json_fail_(parser, "\\u needs four hexadecimal digits");
    parser->at += 4;
    if (code >= 0xD800 && code < 0xE000) {
        bool pair = code < 0xDC00 && strncmp(parser->at, "\\u", 2) == 0 && hex4_(parser->at + 2, &low) == 0;
        if (!pair || low < 0xDC00 || low >= 0xE000) return json_fail_(parser, "half of a surrogate pair");
        parser->at += 6;
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    if (code == 0) return json_fail_(parser, "NUL inside a string");
    static const unsigned leads[] = {0, 0xC0, 0xE0, 0xF0};
    int more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3; // bytes of UTF-8 after the first
    *(*to)++ = (char)(leads[more] | code >> 6 * more);
    while (more-- > 0) *(*to)++ = (char)(0x80 | (code >> 6 * more & 0x3F));
    return 0;
}

// Parses a text. `at` points to the opening quote before the call, and to the byte after the closing quote afterwards.
static int parse_text_(Parser *parser, const char **text) {
    char *to = ++parser->at;
    *text = to;
    while (parser->at < parser->end && *parser->at != '"') {
        if (*parser->at == '\\') {
            parser->at++;
            if (decode_escape_(parser, &to) != 0) return -1;
            continue;
        }
        if ((unsigned char)*parser->at < 0x20) return json_fail_(parser, "control character inside a text");
        uint32_t code;
        int length = text_decode(parser->at, (size_t)(parser->end - parser->at), &code);
        if (length == 0) return json_fail_(parser, "not UTF-8");
        while (length-- > 0) *to++ = *parser->at++;
    }
    if (parser->at == parser->end) return json_fail_(parser, "the string is not closed");
    parser->at++;
    *to = '\0';
    return 0;
}

// --- numbers

// Skips digits from *at on. Returns their number.
static size_t digits_(const char **at) {
    size_t count = strspn(*at, "0123456789");
    *at += count;
    return count;
}

static int parse_number_(Parser *parser, JsonValue *value) {
    const char *begin = parser->at + (*parser->at == '-'), *at = begin;
    size_t digits = digits_(&at);
    bool sound = digits == 1 || (digits > 1 && *begin != '0'), whole = *at != '.' && *at != 'e' && *at != 'E';
    if (*at == '.') {
        at++;
        sound = digits_(&at) > 0 && sound;
    }
    if (*at == 'e' || *at == 'E') {
        at += 1 + (at[1] == '+' || at[1] == '-');
        sound = digits_(&at) > 0 && sound;
    }
    if (!sound) return json_fail_(parser, "malformed number");
    value->type = JSON_NUMBER;
    value->number = strtod(parser->at, NULL);
    if (!isfinite(value->number)) return json_fail_(parser, "the number exceeds the range of a double");
    errno = 0;
    value->integer = whole ? strtoll(parser->at, NULL, 10) : 0;
    value->whole = whole && errno == 0;
    parser->at += at - parser->at;
    return 0;
}

// --- values

// Reads null, true and false, and for Python also Infinity, -Infinity and NaN. Returns whether one of them is here.
static bool parse_word_(Parser *parser, JsonValue *value) {
    static const char *const words[] = {"null", "true", "false", "NaN", "Infinity", "-Infinity"};
    static const double numbers[] = {0, 0, 0, NAN, INFINITY, -INFINITY};
    for (int i = 0; i < (parser->python ? 6 : 3); i++) {
        if (strncmp(parser->at, words[i], strlen(words[i])) != 0) continue;
        value->type = i == 0 ? JSON_NULL : i < 3 ? JSON_BOOL : JSON_NUMBER;
        value->truth = i == 1;
        value->number = numbers[i];
        parser->at += strlen(words[i]);
        return true;
    }
    return false;
}

static int compare_keys_(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int parse_value_(Parser *parser, JsonValue *value);

// Reads an array or an object: entries, commas and the closing bracket.
static int parse_container_(Parser *parser, JsonValue *value) {
    bool object = *parser->at == '{';
    char closing = object ? '}' : ']';
    JsonValue **link = &value->first;
    value->type = object ? JSON_OBJECT : JSON_ARRAY;
    if (++parser->depth > JSON_MAX_DEPTH) return json_fail_(parser, "nested too deeply");
    parser->at++;
    skip_space_(parser);
    bool open = *parser->at != closing;
    if (!open) parser->at++;
    while (open) {
        JsonValue *entry = parser->free++;
        skip_space_(parser);
        if (object) {
            if (*parser->at == '}') return json_fail_(parser, "a comma without a key after it");
            if (*parser->at != '"') return json_odd_(parser, "expected a key in double quotes");
            if (parse_text_(parser, &entry->key) != 0) return -1;
            skip_space_(parser);
            if (*parser->at != ':') return json_fail_(parser, "expected ':' after a key");
            parser->at++;
        }
        if (parse_value_(parser, entry) != 0) return -1;
        *link = entry;
        link = &entry->next;
        value->count++;
        skip_space_(parser);
        open = *parser->at == ',';
        if (!open && *parser->at != closing)
            return json_odd_(parser, object ? "expected a comma or }" : "expected a comma or ]");
        parser->at++;
    }
    parser->depth--;
    if (!object) return 0;
    // No key of an object may appear twice.
    const char **keys = xmalloc((size_t)value->count * sizeof *keys + 1), *twice = NULL;
    int64_t n = 0;
    for (const JsonValue *member = value->first; member != NULL; member = member->next) keys[n++] = member->key;
    qsort(keys, (size_t)n, sizeof *keys, compare_keys_);
    for (int64_t i = 1; i < n && twice == NULL; i++)
        if (strcmp(keys[i - 1], keys[i]) == 0) twice = keys[i];
    free(keys);
    if (twice == NULL) return 0;
    return error_set(parser->err, EXIT_FAILED, "%s: byte %lld: the key \"%.200s\" appears twice in one object",
                     parser->name, (long long)(parser->at - parser->begin), twice);
}

static int parse_value_(Parser *parser, JsonValue *value) {
    skip_space_(parser);
    char c = *parser->at;
    if (c == '{' || c == '[') return parse_container_(parser, value);
    if (c == '"') {
        value->type = JSON_TEXT;
        return parse_text_(parser, &value->text);
    }
    if (parse_word_(parser, value)) return 0;
    if (c == '-' || (c >= '0' && c <= '9')) return parse_number_(parser, value);
    return json_odd_(parser, "unexpected character");
}

static int parse_document_(Json *json, const char *text, int64_t length, const char *name, bool python, Error *err) {
    memset(json, 0, sizeof *json);
    if (length > JSON_MAX_BYTES)
        return error_set(err, EXIT_FAILED, "%s: has %lld bytes of JSON; the limit is %d", name, (long long)length,
                         JSON_MAX_BYTES);
    json->text_ = xmalloc((size_t)length + 1);
    memcpy(json->text_, text, (size_t)length);
    json->text_[length] = '\0';
    // There are at most as many values as commas and opening brackets outside of strings, plus one.
    size_t most = 1;
    bool inside = false;
    for (int64_t i = 0; i < length; i++) {
        if (text[i] == '"') inside = !inside;
        else if (inside && text[i] == '\\') i++;
        else if (!inside && (text[i] == ',' || text[i] == '[' || text[i] == '{')) most++;
    }
    JsonValue *root = json->values_ = xcalloc(most, sizeof *root);
    Parser parser = {root + 1, json->text_, json->text_, json->text_ + length, name, 0, err, python};
    if (parse_value_(&parser, root) != 0) return -1;
    skip_space_(&parser);
    if (parser.at != parser.end) return json_fail_(&parser, "unexpected text after the end of the JSON value");
    json->root = root;
    return 0;
}

int json_parse(Json *json, const char *text, int64_t length, const char *name, Error *err) {
    return parse_document_(json, text, length, name, false, err);
}

int json_parse_python(Json *json, const char *text, int64_t length, const char *name, Error *err) {
    return parse_document_(json, text, length, name, true, err);
}

int json_read_file(Json *json, const char *path, Error *err) {
    int64_t length = 0;
    memset(json, 0, sizeof *json);
    char *text = file_read_whole(path, JSON_MAX_BYTES, &length, err);
    int status = text == NULL ? -1 : json_parse(json, text, length, path, err);
    free(text);
    return status;
}

void json_free(Json *json) {
    free_all(json->values_, json->text_);
    memset(json, 0, sizeof *json);
}

const JsonValue *json_find(const JsonValue *object, const char *key) {
    if (object == NULL || object->type != JSON_OBJECT) return NULL;
    for (const JsonValue *member = object->first; member != NULL; member = member->next)
        if (strcmp(member->key, key) == 0) return member;
    return NULL;
}

bool json_true(const JsonValue *object, const char *key) {
    const JsonValue *value = json_find(object, key);
    return value != NULL && value->type == JSON_BOOL && value->truth;
}

int64_t json_integer(const JsonValue *object, const char *key, int64_t otherwise) {
    const JsonValue *value = json_find(object, key);
    return value != NULL && value->type == JSON_NUMBER && value->whole ? value->integer : otherwise;
}

const char *json_text(const JsonValue *object, const char *key, const char *otherwise) {
    const JsonValue *value = json_find(object, key);
    return value != NULL && value->type == JSON_TEXT ? value->text : otherwise;
}

void json_write_text(FILE *file, const char *text) {
    uint32_t code;
    fputc('"', file);
    for (size_t left = strlen(text), length; left > 0; left -= length, text += length) {
        length = (size_t)text_decode(text, left, &code);
        if (length == 0) { // not UTF-8, as the environment may be
            fputs("\\ufffd", file);
            length = 1;
        } else if (code == '"' || code == '\\') fprintf(file, "\\%c", (int)code);
        else if (code < 0x20 || code == 0x7F) fprintf(file, "\\u%04x", code);
        else fwrite(text, 1, length, file);
    }
    fputc('"', file);
}

// Adds digits until the text reads back as the same number; %g drops trailing zeros.
void json_write_number(FILE *file, double value) {
    char text[40] = "null"; // JSON has no inf and no nan
    for (int digits = 15; digits <= 17 && isfinite(value); digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    fputs(text, file);
}

// Bytes of the closing brace and of the last member, which is the checksum of all bytes before it.
enum { TAIL_BYTES = 32 };

static void json_tail_(char tail[TAIL_BYTES + 1], const char *text, size_t length) {
    Crc64 crc = crc64_make();
    uint64_t sum = crc64_finish(&crc, crc64_add(&crc, 0, text, length), (int64_t)length);
    snprintf(tail, TAIL_BYTES + 1, "  \"crc64\": \"%016" PRIx64 "\"\n}\n", sum);
}

void json_seal(FILE *memory, char *const *text, const size_t *length) {
    char tail[TAIL_BYTES + 1];
    fputs(",\n", memory);
    fflush(memory);
    json_tail_(tail, *text, *length);
    fputs(tail, memory);
}

bool json_sealed(const char *text, int64_t length) {
    char tail[TAIL_BYTES + 1];
    if (length <= TAIL_BYTES) return false;
    json_tail_(tail, text, (size_t)(length - TAIL_BYTES));
    return memcmp(text + length - TAIL_BYTES, tail, TAIL_BYTES) == 0;
}

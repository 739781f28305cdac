// Sets one field of Config from one scalar. Defines the syntax of integers, numbers and words, and the errors.
#include "config_schema.h"
#include "base/alloc.h"
#include "base/files.h"
#include "base/json.h"
#include "hints.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { MAX_SHOWN = 60 };

#define DECIMAL "+-.0123456789eE" // the characters of a decimal

void config_printable(const char *text, size_t length, char *out, size_t n) {
    size_t shown = length < MAX_SHOWN ? length : MAX_SHOWN;
    if (shown > n - 4) shown = n - 4;
    // Do not cut inside a UTF-8 character.
    while (shown > 0 && shown < length && ((unsigned char)text[shown] & 0xC0) == 0x80) shown--;
    memcpy(out, text, shown);
    strcpy(out + text_make_printable(out, shown, ""), shown < length ? "..." : "");
}

static void *field_(Config *config, const ConfigKey *key) { return (char *)config + key->offset; }

int config_refuse(const Config *config, const ConfigKey *key, const char *what, Error *err) {
    char expected[CONFIG_EXPECTED];
    config_expected(key, expected, sizeof expected);
    const char *part = key->part != NULL ? key->part : "";
    return config_error(config, key->name, err, "%s%s%s; use %s", part, part[0] != '\0' ? " " : "", what, expected);
}

// Sets the error "VALUE WHAT; use EXPECTED". Returns -1.
static int refuse_(const Config *config, const ConfigKey *key, ConfigScalar scalar, const char *what, Error *err) {
    char shown[80], text[320];
    const char *quote = scalar.quoted ? "\"" : "";
    config_printable(scalar.text, scalar.length, shown, sizeof shown);
    snprintf(text, sizeof text, "%s%s%s %s", quote, shown, quote, what);
    return config_refuse(config, key, text, err);
}

static bool value_is_(ConfigScalar scalar, const char *word) {
    return strlen(word) == scalar.length && memcmp(scalar.text, word, scalar.length) == 0;
}

bool config_is_null(ConfigScalar scalar) {
    if (scalar.quoted) return false;
    return scalar.length == 0 || value_is_(scalar, "~") || strcasecmp(scalar.text, "null") == 0;
}

// Reads the first `length` bytes of a scalar as a decimal, such as "-1.5e-3", ".5" or "007". Unlike strtod, refuses
// hex, nan, inf and blanks. The text must end with a NUL, as libyaml's does. Does not check the bounds.
static int read_decimal_(const Config *config, const ConfigKey *key, ConfigScalar scalar, size_t length, double *value,
                         Error *err) {
    char *end;
    errno = 0;
    *value = strtod(scalar.text, &end);
    if (length == 0 || end != scalar.text + length || strspn(scalar.text, DECIMAL) < length)
        return refuse_(config, key, scalar, "is not a number", err);
    if (scalar.quoted) return refuse_(config, key, scalar, "is a quoted string", err);
    return errno == ERANGE ? refuse_(config, key, scalar, "does not fit a 64-bit number", err) : 0;
}

// Reads from the metrics file of a run how unevenly its experts were chosen: the mean of `spread` over the steps in its
// last 16 MiB. -1 with err.
static int read_spread_(const char *path, double *spread, Error *err) {
    enum { LATEST = 16 << 20 };
    int64_t bytes, steps = 0;
    int fd = file_open(path, &bytes, err);
    if (fd < 0) return -1;
    // 1. the end of the file, from its first complete line
    int64_t length = bytes < LATEST ? bytes : LATEST;
    char *text = xmalloc((size_t)length + 1);
    int status = file_read(fd, path, bytes - length, text, length, err);
    close(fd);
    text[status == 0 ? length : 0] = '\0';
    const char *cut = length < bytes ? strchr(text, '\n') : NULL, *line = cut != NULL ? cut + 1 : text;
    // 2. the figure of every step; a run that writes at this moment may not have ended its last line
    double sum = 0;
    for (const char *end; status == 0 && (end = strchr(line, '\n')) != NULL; line = end + 1) {
        Json json;
        status = json_parse(&json, line, end - line, path, NULL);
        if (status == 0 && json.root->type != JSON_OBJECT) status = -1;
        const JsonValue *found = status == 0 ? json_find(json_find(json.root, "experts"), "spread") : NULL;
        if (found != NULL && found->type == JSON_NUMBER) sum += found->number, steps++;
        if (status != 0) error_set(err, EXIT_USAGE, "%s is not the log.metrics file of a run", path);
        json_free(&json);
    }
    free(text);
    if (status != 0) return -1;
    if (steps == 0) return error_set(err, EXIT_USAGE, "%s has no step of a model with experts", path);
    *spread = fmax(sum / (double)steps, 1e-6); // 0 means auto
    return 0;
}

static int set_number_(Config *config, const ConfigKey *key, ConfigScalar scalar, Error *err) {
    double value = 0;
    if (key->flags & KEY_OF_RUN && scalar.text[strspn(scalar.text, DECIMAL)] != '\0') {
        Error unread = {0};
        if (read_spread_(scalar.text, &value, &unread) != 0) return config_refuse(config, key, unread.text, err);
    } else if (read_decimal_(config, key, scalar, scalar.length, &value, err) != 0) {
        return -1;
    }
    bool above = key->flags & KEY_ABOVE_MIN ? value > key->min : value >= key->min;
    bool below = key->flags & KEY_BELOW_MAX ? value < key->max : value <= key->max;
    if (!above || !below) return refuse_(config, key, scalar, "is out of range", err);
    *(double *)field_(config, key) = value;
    return 0;
}

// Integers may be written as 300000, 3e5, 300k, 0.3M; k, M, B and T are powers of 1000. Keys of `model` accept
// no suffix, because 8k often means 8192 there.
static int set_int_(Config *config, const ConfigKey *key, ConfigScalar scalar, Error *err) {
    static const char suffixes[] = "kmbt";
    char what[80] = "is not an integer";
    char last = scalar.length > 0 ? (char)tolower((unsigned char)scalar.text[scalar.length - 1]) : '\0';
    const char *suffix = last != '\0' ? strchr(suffixes, last) : NULL;
    double value;
    if (read_decimal_(config, key, scalar, scalar.length - (suffix != NULL), &value, err) != 0) return -1;
    if (suffix != NULL && strncmp(key->name, "model.", 6) == 0) {
        int power = (int)(suffix - suffixes) + 1;
        snprintf(what, sizeof what, "may mean %.0f or %.0f; write the number", value * pow(1000, power),
                 value * pow(1024, power));
        return refuse_(config, key, scalar, what, err);
    }
    // A long double holds every integer up to 2^63, but 0.3, and so 0.3M, only to 19 digits.
    long double exact = strtold(scalar.text, NULL);
    for (const char *thousand = suffixes; suffix != NULL && thousand <= suffix; thousand++) exact *= 1000;
    long double whole = rintl(exact);
    if (!(whole >= key->min && whole <= key->max)) return refuse_(config, key, scalar, "is out of range", err);
    const char *first = scalar.text + strspn(scalar.text, "+-");
    bool octal = first[0] == '0' && isdigit((unsigned char)first[1]);
    if (octal) snprintf(what, sizeof what, "is not written as an integer (%.0Lf)", whole);
    if (octal || fabsl(exact - whole) > 1e-18L * fabsl(whole)) return refuse_(config, key, scalar, what, err);
    config_set_whole(key->size, field_(config, key), (int64_t)whole);
    return 0;
}

// Returns whether a plain word is one of YAML's for true (1) or false (0), else -1.
static int truth_(ConfigScalar scalar) {
    static const char *const words[] = {"false", "true", "no", "yes", "off", "on", "n", "y"};
    for (int i = 0; i < 8 && !scalar.quoted && strlen(scalar.text) == scalar.length; i++)
        if (strcasecmp(scalar.text, words[i]) == 0) return i % 2;
    return -1;
}

static int set_bool_(Config *config, const ConfigKey *key, ConfigScalar scalar, Error *err) {
    int truth = truth_(scalar);
    if (truth < 0) return refuse_(config, key, scalar, "is neither true nor false", err);
    *(bool *)field_(config, key) = truth == 1;
    return 0;
}

// If a word is one of YAML's words for true or false, YAML's synonyms of it are accepted, too. For an unknown word,
// suggests our name for another trainer's word, else our word in another case, else our words that extend the typed
// word with a dash ("a100-40g or a100-80g" for a100), else the nearest word, if any.
static int set_word_(Config *config, const ConfigKey *key, ConfigScalar scalar, Error *err) {
    int truth = truth_(scalar);
    for (int i = 0; key->words[i] != NULL; i++) {
        const char *word = key->words[i];
        bool same = truth >= 0 && truth_((ConfigScalar){word, strlen(word), false}) == truth;
        if (!same && !value_is_(scalar, key->words[i])) continue;
        config_set_whole(key->size, field_(config, key), i);
        return 0;
    }
    const char *typed = scalar.text, *hint = hint_for_word(key->name, typed), *near = hint;
    int best = hint != NULL ? -1 : INT_MAX;
    size_t length = strlen(typed);
    char meant[120] = "", what[160] = "is unknown";
    for (int i = 0; key->words[i] != NULL; i++) {
        const char *word = key->words[i];
        if (suggest_nearer(typed, word, &best)) near = word;
        if (best > 0 && strncasecmp(typed, word, strlen(word)) == 0 && typed[strlen(word)] == '-')
            near = word, best = 0; // h100-sxm
        if (length > 0 && strncasecmp(typed, word, length) == 0 && word[length] == '-')
            text_add(meant, sizeof meant, "%s%s", meant[0] != '\0' ? " or " : "", word);
    }
    if (meant[0] != '\0' && best > 0) near = meant;
    bool other = near != NULL && strchr(near, '.') != NULL; // the hint names another key
    if (near != NULL) snprintf(what, sizeof what, "is unknown, %s %s", other ? "set" : "did you mean", near);
    return refuse_(config, key, scalar, what, err);
}

static int set_text_(Config *config, const ConfigKey *key, ConfigScalar scalar, Error *err) {
    for (size_t i = 0; i < scalar.length; i++) {
        unsigned char c = (unsigned char)scalar.text[i];
        if (c < 0x20 || c == 0x7F) return refuse_(config, key, scalar, "contains a control character", err);
    }
    if ((double)scalar.length > key->max) return refuse_(config, key, scalar, "is too long", err);
    if ((double)scalar.length < key->min) return refuse_(config, key, scalar, "is empty", err);
    // All other texts are paths. Without this, a folder with the name ~ would be created here.
    if (strncmp(scalar.text, "~/", 2) == 0 && strcmp(key->name, "sample.prompt") != 0)
        return config_error(config, key->name, err, "%.80s: only shells replace ~; write the path in full",
                            scalar.text);
    memcpy(field_(config, key), scalar.text, scalar.length);
    ((char *)field_(config, key))[scalar.length] = '\0';
    return 0;
}

static int64_t *given_(Config *config, const ConfigKey *key) { return (int64_t *)((char *)config + key->list->given); }

// Zeroes a field, which is how the zero word (`auto`) is stored in every type of field.
static int set_zero_(Config *config, const ConfigKey *key) {
    memset(field_(config, key), 0, key->size);
    if (key->type == KEY_LIST) *given_(config, key) = 0;
    return 0;
}

// Returns one part of a list's newest entry in the form of a key. Errors name the list first, then the part.
static ConfigKey part_(Config *config, const ConfigKey *key, int index) {
    ConfigKey part = key->list->parts[index];
    part.part = part.name;
    part.name = key->name;
    part.offset += key->offset + (size_t)(*given_(config, key) - 1) * key->list->entry;
    return part;
}

int config_set(Config *config, const ConfigKey *key, ConfigScalar scalar, Error *err) {
    if (config_is_null(scalar)) return config_refuse(config, key, "has no value", err);
    if (key->zero_word != NULL && value_is_(scalar, key->zero_word)) return set_zero_(config, key);
    if (key->type == KEY_INT && key->words != NULL && value_is_(scalar, key->words[0])) {
        config_set_whole(key->size, field_(config, key), -1);
        return 0;
    }
    static int (*const setters[])(Config *, const ConfigKey *, ConfigScalar, Error *) = {
        [KEY_INT] = set_int_,   [KEY_NUMBER] = set_number_, [KEY_BOOL] = set_bool_,
        [KEY_WORD] = set_word_, [KEY_TEXT] = set_text_,     [KEY_LIST] = NULL};
    if (key->type != KEY_LIST) return setters[key->type](config, key, scalar, err);
    if (!key->list->alone) return refuse_(config, key, scalar, "is not a list", err);
    // Make a list of one entry and set its first part to the value.
    if (config_list_begin(config, key, err) != 0 || config_list_add(config, key, err) != 0) return -1;
    ConfigKey first = part_(config, key, 0);
    first.part = NULL;
    return config_set(config, &first, scalar, err);
}

int config_set_default(Config *config, const ConfigKey *key, Error *err) {
    ConfigScalar scalar = {key->def, strlen(key->def), key->type == KEY_TEXT};
    return config_set(config, key, scalar, err);
}

bool config_at_default(const Config *config, const char *name) {
    const ConfigKey *key = config_find(name);
    Config plain = {0};
    Error err = {0};
    config_set_default(&plain, key, &err);
    return memcmp((const char *)config + key->offset, (const char *)&plain + key->offset, key->size) == 0;
}

int config_list_begin(Config *config, const ConfigKey *key, Error *err) {
    return key->type == KEY_LIST ? set_zero_(config, key) : config_refuse(config, key, "is a list", err);
}

int config_list_add(Config *config, const ConfigKey *key, Error *err) {
    int64_t *given = given_(config, key);
    if (*given == key->list->most)
        return config_error(config, key->name, err, "has more than %lld entries; remove some",
                            (long long)key->list->most);
    ++*given;
    for (int i = 0; i < key->list->part_count; i++) {
        ConfigKey part = part_(config, key, i);
        if (part.def != NULL && config_set_default(config, &part, err) != 0) return -1;
    }
    return 0;
}

int config_list_set(Config *config, const ConfigKey *key, int part, ConfigScalar scalar, Error *err) {
    ConfigKey field = part_(config, key, part);
    return config_set(config, &field, scalar, err);
}

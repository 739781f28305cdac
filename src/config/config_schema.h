// The schema table, and functions that set a Config field through it. Most files of other folders need only config.h.
#pragma once

#include "config.h"

typedef enum KeyType { KEY_INT, KEY_NUMBER, KEY_BOOL, KEY_WORD, KEY_TEXT, KEY_LIST } KeyType;

// The first two exclude the bound itself. KEY_OF_RUN: a metrics file may be named, which has the number.
enum { KEY_ABOVE_MIN = 1, KEY_BELOW_MAX = 2, KEY_OF_RUN = 4 };

typedef struct ConfigKey ConfigKey;

// The form of a list. Each entry is one value, a mapping of several values, or a tuple.
typedef struct ConfigList {
    size_t given, valid;    // offsets in Config of two int64_t: number of entries given, and number with auto resolved
    size_t entry;           // bytes of one entry
    int64_t most;           // maximum number of entries
    const ConfigKey *parts; // fields of an entry, at offsets inside it; a part without a name is the entry's own value
    int part_count;
    bool alone;           // true: a value that is not a list becomes the first part of a single entry
    bool tuple;           // true: an entry is a list of its parts in order
    const char *expected; // "a list such as ..."
    const char *form;     // "an integer", "a list [step, global_batch]": the form of an entry
} ConfigList;

// One row of the schema. `def` is parsed by the same code as a value in the file; NULL: the key is required.
struct ConfigKey {
    const char *name; // "section.key"
    KeyType type;
    size_t offset, size;      // offset and size of the field in Config
    const char *def;          // default
    double min, max;          // bounds of the number, or of the text's length in bytes
    int flags;                // KEY_ABOVE_MIN, KEY_BELOW_MAX, KEY_OF_RUN
    const char *zero_word;    // word that is stored as 0, such as "auto"; NULL: no such word
    const char *const *words; // KEY_WORD: spelling of each enum value in order, then NULL; KEY_INT: the word for -1
    const char *meaning;
    const ConfigList *list; // KEY_LIST
    const char *part;       // name of the field in a list's entry, for messages; NULL in rows of the schema
};

extern const ConfigKey config_keys[];
extern const int config_key_count;

enum { CONFIG_EXPECTED = 512 }; // maximum number of bytes that config_expected writes

const ConfigKey *config_find(const char *name);                  // NULL: no such key
int config_section(const char *section);                         // first row of a section; -1: no such section
const char *config_short_name(const ConfigKey *key);             // "hidden" for "model.hidden"
void config_expected(const ConfigKey *key, char *out, size_t n); // "an integer from 1 to 1024"

bool config_lacks(const Config *config, const ConfigKey *key); // whether a required key was not given
bool config_takes_text(const ConfigKey *key);                  // a text, or a list that accepts a single text

// Copies text from a file or the command line for a message: replaces control characters by '?', cuts at 60 bytes.
void config_printable(const char *text, size_t length, char *out, size_t n);

// One scalar as YAML delivers it: its text (length bytes, may contain NUL), and whether it was quoted.
typedef struct ConfigScalar {
    const char *text;
    size_t length;
    bool quoted;
} ConfigScalar;

bool config_is_null(ConfigScalar scalar); // an empty value, or YAML's null

// Sets a field after checking type and bounds. config->place must hold the key's place already, because errors name it.
int config_set(Config *config, const ConfigKey *key, ConfigScalar scalar, Error *err);
int config_set_default(Config *config, const ConfigKey *key, Error *err);
// Returns whether the key has its default value, even if it was given: a configuration written as JSON gives every key.
bool config_at_default(const Config *config, const char *name);

// Writes a field as config_write_json does. config: has the number of a list's entries; may be NULL for other keys.
void config_write_field(const Config *config, const ConfigKey *key, const void *field, FILE *file);

// Read and write the field of an integer, a word or a bool. The field has key->size bytes.
static inline int64_t config_get_whole(size_t size, const void *field) {
    if (size == 1) return *(const int8_t *)field;
    if (size == 2) return *(const int16_t *)field;
    return size == 4 ? *(const int32_t *)field : *(const int64_t *)field;
}
static inline void config_set_whole(size_t size, void *field, int64_t value) {
    if (size == 1) *(int8_t *)field = (int8_t)value;
    if (size == 2) *(int16_t *)field = (int16_t)value;
    if (size == 4) *(int32_t *)field = (int32_t)value;
    if (size == 8) *(int64_t *)field = value;
}
// Set a list: call config_list_begin, then config_list_add for each entry and config_list_set for each of its values
// (part: index in key->list->parts). Return -1 with err if the key is not a list or the list is full.
int config_list_begin(Config *config, const ConfigKey *key, Error *err);
int config_list_add(Config *config, const ConfigKey *key, Error *err);
int config_list_set(Config *config, const ConfigKey *key, int part, ConfigScalar scalar, Error *err);

// Sets the error "WHAT; use EXPECTED" for a key, or for a part of a list's entry. Returns -1.
int config_refuse(const Config *config, const ConfigKey *key, const char *what, Error *err);

// Read YAML into config: the file config->path, and one override ("key=value").
int config_read_file(Config *config, Error *err);
int config_read_override(Config *config, const char *override, Error *err);

// Returns which of two conflicting keys to blame: `second` if only that key was set with -o, else `first`.
const char *config_blame(const Config *config, const char *first, const char *second);
#define config_clash(config, first, second, ...) config_error(config, config_blame(config, first, second), __VA_ARGS__)
// Returns why gradients cannot be sharded over data ranks, with the remedy; NULL if they can be.
const char *config_why_whole(const Config *config);

// Resolves each `auto` that depends only on the configuration, and refuses combinations that cannot work.
int config_check(Config *config, Error *err);

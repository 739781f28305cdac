// Shared by the files of this folder: the schema table, and setting a field through it. Other folders include only
// config.h.
#pragma once

#include "config.h"

#include <stddef.h>

typedef enum KeyType { KEY_INT, KEY_NUMBER, KEY_BOOL, KEY_WORD, KEY_TEXT, KEY_LIST } KeyType;

enum { KEY_ABOVE_MIN = 1, KEY_BELOW_MAX = 2 }; // the bound itself is excluded

typedef struct ConfigKey ConfigKey;

// The entries of a list: one value each, or a mapping of several.
typedef struct ConfigList {
    size_t given, valid;    // offsets in Config of two int64_t: entries read, and entries once auto is resolved
    size_t entry;           // bytes of one
    int64_t most;           // entries
    const ConfigKey *parts; // the fields of an entry, offsets inside it; a part without a name: the entry's own value
    int part_count;
    bool alone;           // a value that is not a list is taken as the first part of a single entry
    bool tuple;           // an entry is a list of its parts in order
    const char *expected; // "a list such as ..."
    const char *remedy;   // "one integer per stage", for an entry of another shape
} ConfigList;

// One row. The default is written as in the file and set by the same code; NULL: the key is required.
struct ConfigKey {
    const char *name; // "section.key"
    KeyType type;
    size_t offset, size;      // offset and size of the field in Config
    const char *def;          // default
    double min, max;          // bounds of the number, or of the text's length in bytes
    int flags;                // KEY_ABOVE_MIN, KEY_BELOW_MAX
    const char *zero_word;    // word for "decide it yourself", kept as 0 ("auto"), or NULL
    const char *const *words; // KEY_WORD: spelling of each enum value in order, then NULL; KEY_INT: the word for -1
    const char *meaning;
    const ConfigList *list; // KEY_LIST
    const char *part;       // name of the field in a list's entry, for messages; NULL in a row
};

extern const ConfigKey config_keys[];
extern const int config_key_count;

enum { CONFIG_EXPECTED = 512 }; // bytes that config_expected writes at most

const ConfigKey *config_find(const char *name);                  // NULL: no such key
bool config_has_section(const char *section, size_t length);     // is there a key "section.*"
const char *config_short_name(const ConfigKey *key);             // "hidden" for "model.hidden"
void config_expected(const ConfigKey *key, char *out, size_t n); // "an integer from 1 to 1024"

bool config_lacks(const Config *config, const ConfigKey *key); // a required key that was not given
bool config_takes_text(const ConfigKey *key);                  // a text, or a list that a single text may replace

// Makes text from a file or the command line fit for a message: control characters become '?', cut after 60 bytes.
void config_printable(const char *text, size_t length, char *out, size_t n);

// One scalar as YAML delivers it: its text (length bytes, may contain NUL), and whether it was quoted.
typedef struct ConfigScalar {
    const char *text;
    size_t length;
    bool quoted;
} ConfigScalar;

// Sets a field after checking type and bounds. config->place must hold the key's place already, because errors name it.
int config_set(Config *config, const ConfigKey *key, ConfigScalar scalar, Error *err);
int config_set_default(Config *config, const ConfigKey *key, Error *err);
// Returns whether the key has its default, given or not: a run's configuration written as JSON gives every key.
bool config_at_default(const Config *config, const char *name);

// Writes a field as config_write_json does. config: has the number of a list's entries; may be NULL for other keys.
void config_write_field(const Config *config, const ConfigKey *key, const void *field, FILE *file);

// Read and write the field of an integer, a word or a bool, whose width is key->size.
int64_t config_get_whole(const ConfigKey *key, const void *field);
void config_set_whole(const ConfigKey *key, void *field, int64_t value);
// Set a list: config_list_begin, then config_list_add for each entry and config_list_set for each value in it (part:
// its index in key->list->parts). Error if the key takes no list or the list is full.
int config_list_begin(Config *config, const ConfigKey *key, Error *err);
int config_list_add(Config *config, const ConfigKey *key, Error *err);
int config_list_set(Config *config, const ConfigKey *key, int part, ConfigScalar scalar, Error *err);

// Sets the error WHAT; use EXPECTED, about a key or about a part of a list's entry.
int config_refuse(const Config *config, const ConfigKey *key, const char *what, Error *err);
// Sets an error about a name that may not be a key, at a line of the file or CONFIG_OVERRIDE. name NULL: about the
// file.
int config_error_at(const Config *config, int line, const char *name, Error *err, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

// Read YAML into config: the file, then one override ("key=value").
int config_read_file(Config *config, Error *err);
int config_read_override(Config *config, const char *override, Error *err);

// Adds an entry for step 1 to the batch ramp if it lacks one; sets train.global_batch to its largest batch.
int config_resolve_ramp(Config *config, Error *err);

// Resolves `auto` if the configuration alone decides it, and refuses combinations that cannot work.
int config_check(Config *config, Error *err);

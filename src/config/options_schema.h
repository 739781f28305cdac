// What the files of the command line share: the table of options, one row each. Parsing, --help, the man page and the
// completion of shells all read it. Everyone else includes options.h alone.
#ifndef OPTIONS_SCHEMA_H
#define OPTIONS_SCHEMA_H

#include "options.h"

#include <stddef.h>

typedef enum OptionKind { OPTION_FLAG, OPTION_TEXT, OPTION_LIST } OptionKind;

// The name of the value says what it may be, and so what a shell completes: FILE, DIR, KEY=VALUE a key of the
// configuration and its value, "a|b" one of these words and no other. Any other name is free text.
typedef struct OptionRow {
    const char *name;     // after --
    char letter;          // after -; 0: none
    const char *argument; // name of the value; NULL: takes none
    OptionKind kind;
    size_t offset; // in Options: bool, const char * or the list's const char **
    const char *meaning;
} OptionRow;

extern const OptionRow option_rows[];
extern const int option_row_count;

#define OPTION_KEY_VALUE "KEY=VALUE"

static inline bool option_is_words(const OptionRow *row) {
    for (const char *at = row->argument; at != NULL && *at != '\0'; at++)
        if (*at == '|') return true;
    return false;
}

#endif

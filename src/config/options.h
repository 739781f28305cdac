// The command line: one table of options that parses it and makes `--help`, the manual page and the completion of
// shells.
#ifndef OPTIONS_H
#define OPTIONS_H

#include "base/log.h"

#include <stdbool.h>
#include <stddef.h>

#define OPTION_ALONE "-" // the value of an option that needs none, and was given none

typedef struct Options {
    const char *config;     // points into argv; NULL only where the program answers and exits
    const char **overrides; // "key=value" in the order given, each pointing into argv; the array belongs to Options
    int override_count;
    const char **sweeps; // "key=a,b,c" in the order given; as overrides
    int sweep_count;
    const char *resume;        // NULL: start anew
    const char *resume_if_any; // NULL: as resume; at most one of the two is given
    const char *trace;         // file; NULL: none
    const char *generate;      // a prompt; NULL: train
    bool validate;             // say the loss of data.val, do not train
    const char *verify;        // a number of steps; NULL: train
    bool schedule;
    const char *times; // "F=1,..." for --schedule; NULL: each 1
    bool optimum;
    const char *draw; // OPTION_ALONE, or the file of a picture; NULL: none
    bool plan, profile, json;
    bool search;
    const char *gpus;          // a number; NULL: the ranks of the configuration
    const char *write;         // file for the best; NULL: none
    const char *emulate_stage; // NULL: none
    bool quiet, verbose;       // at most one
    bool help, help_config, markdown, version, man;
    const char *completion; // a shell; NULL: none
} Options;

// Reads argv[1..argc-1]. 0, or -1 with err (code 2): unknown option (the nearest is suggested), missing or superfluous
// value, no configuration. Accepts -c FILE, -cFILE, --config FILE and --config=FILE. options_free in both cases.
int options_parse(Options *options, int argc, char **argv, Error *err);
void options_free(Options *options);

// Prints usage, every option of the table, exit codes and an example. `program` is the trainer's name, without
// directories.
void options_help(const char *program, FILE *file);

// --- the table of options, one row each: parsing, --help, the manual page and the completion of shells read it

// OPTION_MAYBE: a text whose value may be left out, and is then OPTION_ALONE.
typedef enum OptionKind { OPTION_FLAG, OPTION_TEXT, OPTION_MAYBE, OPTION_LIST } OptionKind;

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

// Writes the manual page: the tables of options and of configuration keys as roff, for man(1). `program` is the
// trainer's name, without directories.
void manual_write(const char *program, FILE *file);

// Writes the completion script for `shell`, "bash" or "zsh", from both tables: options, files where one is expected,
// and after -o the keys and the values of keys that have a closed set. Users source it or put it where the shell looks
// for completions.
void completion_write(const char *program, const char *shell, FILE *file);

#endif

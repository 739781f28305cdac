// The command line: one table of options that parses it and makes `--help`; scripts/faces.py makes the manual page and
// the completion of shells from it.
#pragma once

#include "base/log.h"

#include <stdbool.h>
#include <stddef.h>

#define OPTION_ALONE "-" // the value of an option of kind OPTION_MAYBE without a value

typedef struct Options {
    const char *config;     // points into argv; NULL only where the program answers and exits
    const char **overrides; // "key=value" in the order given, each pointing into argv; the array belongs to Options
    int override_count;
    const char **sweeps; // "key=a,b,c" in the order given; as overrides
    int sweep_count;
    const char *resume;        // NULL: start anew
    const char *resume_if_any; // NULL: as resume; at most one of the two is given
    const char *trace;         // file; may be NULL
    const char *generate;      // a prompt; NULL: train
    bool validate;             // say the loss of data.val, do not train
    const char *verify;        // a number of steps; NULL: train
    bool schedule;
    const char *times; // "F=1,..." for --schedule; NULL: each 1
    const char *draw;  // OPTION_ALONE, or the file of a picture; may be NULL
    bool plan, profile, json;
    bool search;
    const char *gpus;          // numbers with commas between them; NULL: the ranks of the configuration
    const char *deadline;      // "30d", or NULL
    const char *write;         // file for the best; may be NULL
    const char *emulate_stage; // may be NULL
    bool quiet, verbose;       // at most one
    bool help, help_config, version;
} Options;

// Reads argv[1..argc-1]. 0, or -1 with err (code 2): unknown option (the nearest is suggested), missing or superfluous
// value, no configuration. Accepts -c FILE, -cFILE, --config FILE and --config=FILE. options_free in both cases.
int options_parse(Options *options, int argc, char **argv, Error *err);
void options_free(Options *options);

// Returns whether the answer is a table of several plans or searches.
bool options_sweep(const Options *options);

// Prints usage, every option of the table, exit codes and an example. `program` is the trainer's name, without
// directories.
void options_help(const char *program, FILE *file);

// --- the table of options, one row each

// OPTION_MAYBE: a text whose value may be left out, and is then OPTION_ALONE.
typedef enum OptionKind { OPTION_FLAG, OPTION_TEXT, OPTION_MAYBE, OPTION_LIST } OptionKind;

// The name of the value selects the completion in a shell: FILE, DIR, or KEY=VALUE for a key of the configuration.
typedef struct OptionRow {
    const char *name;     // after --
    char letter;          // after -; may be 0
    const char *argument; // name of the value; NULL: it takes no value
    OptionKind kind;
    size_t offset; // in Options: bool, const char * or the list's const char **
    const char *meaning;
} OptionRow;

extern const OptionRow option_rows[];
extern const int option_row_count;

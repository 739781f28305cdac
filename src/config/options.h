// The command line. One table drives parsing, `--help`, and the manual page and shell completion (make/faces.py).
#pragma once

#include "base/log.h"

#include <stddef.h>

#define OPTION_ALONE "-" // stored for an OPTION_MAYBE option that was given without a value

typedef struct Options {
    const char *config;     // points into argv; NULL only with --help, --help-config or --version
    const char **overrides; // "key=value" in the order given, each pointing into argv; the array belongs to Options
    int override_count;
    const char **sweeps; // "key=a,b,c" in the order given; stored like overrides
    int sweep_count;
    const char *resume; // checkpoint, or folder of checkpoints, of either --resume or --resume-if-any; NULL: neither
    const char *resume_if_any; // --resume-if-any: `resume` may have no checkpoint; NULL: not given
    const char *trace;         // file; may be NULL
    const char *generate;      // prompt of --generate; NULL: not given
    bool validate;             // print the loss of data.val, do not train
    bool check;                // measure devices, links and files, do not train
    bool tune;                 // measure kernels of products, do not train
    bool dry_run;              // run on virtual GPUs, on which nothing is computed
    bool schedule;
    const char *times; // "F=1,..." for --schedule; NULL: F, I and W are 1, message and transfer 0
    const char *draw;  // OPTION_ALONE: draw as text; else the file of a picture; NULL: no drawing
    bool plan, profile, json;
    bool search;
    const char *gpus;          // comma-separated GPU counts; NULL: the ranks of the configuration
    const char *program;       // "megatron": program to plan for, with its choices, bytes and times; or NULL
    const char *deadline;      // "30d", or NULL
    const char *write;         // file for the best configuration; may be NULL
    const char *write_five;    // folder for five configurations; may be NULL
    const char *emulate_stage; // number of the stage, or "all"; NULL: not given
    bool quiet, verbose;       // at most one is true
    bool help, help_config, version;
} Options;

// Reads argv[1..argc-1]. Accepts -c FILE, -cFILE, --config FILE and --config=FILE. Returns 0, or -1 with err (code 2)
// for an unknown option (err suggests the nearest), a missing or superfluous value, a missing configuration, or options
// that cannot be combined. Call options_free in both cases.
int options_parse(Options *options, int argc, char **argv, Error *err);
void options_free(Options *options);

// Returns whether the options ask for a table of several plans or searches.
bool options_sweep(const Options *options);

// Prints usage, all options of the table, exit codes and an example. program: the trainer's name, without directories.
void options_help(const char *program, FILE *file);

// --- the table of options, one row each

// OPTION_MAYBE: a text; if its value is left out, OPTION_ALONE is stored.
typedef enum OptionKind { OPTION_FLAG, OPTION_TEXT, OPTION_MAYBE, OPTION_LIST } OptionKind;

// `argument` also selects the shell completion: FILE, DIR, or KEY=VALUE for a key of the configuration.
typedef struct OptionRow {
    const char *name;     // long name, without the --
    char letter;          // short name, without the -; 0: no short name
    const char *argument; // name of the value; NULL: the option takes no value
    OptionKind kind;
    size_t offset; // offset in Options of a bool, a const char *, or a list's const char **
    const char *meaning;
} OptionRow;

extern const OptionRow option_rows[];
extern const int option_row_count;

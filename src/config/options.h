// The command line: one table of options (options_schema.h) that parses it and prints `--help`; manual.h and
// completion.h make their pages of it.
#ifndef OPTIONS_H
#define OPTIONS_H

#include "base/log.h"

#include <stdbool.h>

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

#endif

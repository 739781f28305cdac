// The options --search and --sweep. A sweep plans or searches for each combination of values and prints one table.
#pragma once

#include "answers.h"
#include "config/options.h"

// Searches and writes the answer. Without --gpus, for the configuration's ranks. Returns the exit code: 0, 1 if nothing
// fits, 3 if Ctrl-C ended the search early; -1 with err.
int search_command(const Config *config, const Model *model, const Options *options, const Log *log, Error *err);

// Loads a configuration for a search. Keys that the search varies may conflict with keys that -o fixes; conflicting
// varied keys then get neutral values. -1 with err if the fixed keys are wrong by themselves.
int search_load(Config *config, const char *path, const char *const *overrides, int override_count, Error *err);

// A search: its inputs and its results.
typedef struct Searched {
    Config asked, base, world; // the user's configuration; the same with the keys that --for fixes; the planner's
    Planner planner;
    SearchSpace space;
    SearchResult result;
} Searched;

// Searches. gpus: argument of --gpus, or NULL. program: argument of --for, or NULL. With a program, *found is the best
// for it, and *here the best for this trainer; else *here is NULL. -1 with err; searched_free for both in either case.
int search_for(const Config *config, const Model *model, const char *gpus, const char *program, Searched **found,
               Searched **here, const Log *log, Error *err);
void searched_free(Searched *searched);

// Prints the answer, then a table: SEARCH_SCREEN lines of GRID_LINE columns at most. verbose: adds the compared
// candidates, and all rows. -1 with err.
enum { SEARCH_SCREEN = 30 };
int search_report(const Searched *found, const Searched *here, bool verbose, FILE *file, Error *err);

// Writes one JSON object on one line. -1 with err.
int search_write_json(const Searched *found, const Searched *here, FILE *file, Error *err);

// Writes the configuration of a candidate, an index into found, to `path`; a regular file appears complete or not at
// all. -1 with err.
int search_write_config(const SearchSpace *space, const SearchResult *result, int index, const char *path, Error *err);

// Writes the best and the four fastest others of the ten best to the existing `folder`, as 1.yaml, ... -1 with err.
int search_write_five(const SearchSpace *space, const SearchResult *result, const char *folder, Error *err);

// Reads the configuration again for each combination and writes the table, or one JSON object, to stdout. A combination
// that a run would refuse is a row with the reason. With --deadline, names the cheapest row that meets the deadline.
// The cost is a price if hardware.gpu_hour is set, else a number of GPU hours. Returns the exit code: 0, 1 if no row
// fits or meets the deadline, 3 if stopped early; -1 with err, also if every combination is refused.
int sweep_command(const Options *options, const Model *model, const Log *log, Error *err);

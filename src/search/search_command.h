// The program's --search and --sweep: a plan, or a search, for each combination of several values, in one table.
#pragma once

#include "answers.h"
#include "config/options.h"

// Searches and writes the answer. gpus: as given, NULL for the world of the configuration; write: a file, or NULL.
// Returns the exit code: 0, 1 if nothing fits, 3 if Ctrl-C ended it early; -1 with err.
int search_command(const Config *config, const Model *model, const char *gpus, bool json, const char *write,
                   const Log *log, Error *err);

// Searches and hands the result to `take`. Returns the code of `take`, or -1 with err if there is no result.
typedef int SearchTake(void *argument, const SearchSpace *space, SearchResult *result, Error *err);
int search_for(const Config *config, const Model *model, const char *gpus, SearchTake *take, void *argument,
               const Log *log, Error *err);

// Prints the answer, then the tables. -1 with err.
int search_report(const SearchSpace *space, const SearchResult *result, FILE *file, Error *err);

// Writes one JSON object on one line. -1 with err.
int search_write_json(const SearchSpace *space, const SearchResult *result, FILE *file, Error *err);

// Writes the best into the file `path`, complete or not at all. result->best must be valid. -1 with err.
int search_write_config(const SearchSpace *space, const SearchResult *result, const char *path, Error *err);

// Reads the configuration anew for each combination and writes the table to stdout, or one JSON object. A combination
// that a run would refuse is a row that says why. Returns the exit code: 0, or 1 where nothing fits anywhere or meets
// the deadline; -1 with err, also where every combination is refused. With --deadline it names the row that meets it at
// the smallest cost: by hardware.gpu_hour, else in GPU hours.
int sweep_command(const Options *options, const Model *model, const Log *log, Error *err);

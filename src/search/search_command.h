// The program's --search, and the search of a sweep.
#pragma once

#include "search.h"

// Searches and writes the answer. gpus: as given, NULL for the world of the configuration; write: a file, or NULL.
// Returns the exit code: 0, 1 if nothing fits, 3 if Ctrl-C ended it early; -1 with err.
int search_command(const Config *config, const Model *model, const char *gpus, bool json, const char *write,
                   const Log *log, Error *err);

// Searches and hands the result to `take`. Returns the code of `take`, or -1 with err if there is no result.
typedef int SearchTake(void *argument, const SearchSpace *space, SearchResult *result, Error *err);
int search_for(const Config *config, const Model *model, const char *gpus, SearchTake *take, void *argument,
               const Log *log, Error *err);

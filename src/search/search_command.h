// The program's --search.
#ifndef SEARCH_COMMAND_H
#define SEARCH_COMMAND_H

#include "model/model.h"

// Searches and writes the answer. gpus: as given, NULL for the world of the configuration; write: a file, or NULL.
// Returns the exit code: 0, 1 where nothing fits, 3 where Ctrl-C ended it early; -1 with err.
int search_command(const Config *config, const Model *model, const char *gpus, bool json, const char *write,
                   const Log *log, Error *err);

#endif

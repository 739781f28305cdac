// The output of --search: for people, as JSON, and the best as a configuration.
#pragma once

#include "answers.h"

// Prints the answer, then the tables. -1 with err.
int search_report(const SearchSpace *space, const SearchResult *result, FILE *file, Error *err);

// Writes one JSON object on one line. -1 with err.
int search_write_json(const SearchSpace *space, const SearchResult *result, FILE *file, Error *err);

// Writes the best into the file `path`, complete or not at all. result->best must be valid. -1 with err.
int search_write_config(const SearchSpace *space, const SearchResult *result, const char *path, Error *err);

// config.json, by which transformers knows a model: written into checkpoints, and compared if a run starts from one.
#pragma once

#include "config/config.h"

#include <stdbool.h>
#include <stdio.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

// Writes config.json. end: the token that ends a text and begins the next; -1: unknown.
void hf_config_write(const Config *config, int64_t end, FILE *file);

// Refuses, with code 2, a configuration whose config.json would describe another model: writes it, reads it back, and
// requires that every key of `model` either comes back as it was or has its default. For the start of a run, since a
// checkpoint that says nothing of a key would be found out after the training.
int hf_config_check(const Config *config, Error *err);

// Compares config.json in `dir` with the configuration. -1 with err (code 2) that lists every size and constant that
// differs, or names a computation of the file's model that this program lacks. exact: the sequence length must agree
// even if no tensor depends on it. A directory without the file passes; the tensors' shapes are compared later.
int hf_config_compare(const Config *config, const char *dir, bool exact, Error *err);

__END_DECLS

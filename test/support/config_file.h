// A configuration as text, through a file of its own into a Config: what the tests of the configuration share.
#pragma once

#include "config/config_schema.h"

// The shortest complete file: model in line 1, data in line 2.
#define MODEL "model: {family: llama, hidden: 64, layers: 8, heads: 8, ffn: 96, vocab: 257, seq_len: 32}\n"
#define GPT   "model: {family: gpt, hidden: 64, layers: 8, heads: 8, ffn: 96, vocab: 257, seq_len: 32}\n"
#define DATA  "data: {train: x.bin}\n"
#define BASE  MODEL DATA

extern char config_file_path[256];

// Set-up and tear-down of a group of tests: a temporary file at config_file_path.
int config_file_create(void **state);
int config_file_remove(void **state);

void config_file_write(const char *bytes, size_t length);

// Writes the text and loads it, with overrides (one, or NULL for none). Clears err first; the result is config_load's.
int config_file_load(Config *config, const char *text, const char *const *overrides, int count, Error *err);
int config_file_load_one(Config *config, const char *text, const char *override, Error *err);

// The same, for a text that must load: fails the test with the message otherwise.
void config_file_load_well(Config *config, const char *text, const char *override);

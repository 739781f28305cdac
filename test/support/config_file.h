// Shared by the tests of the configuration: loads a configuration from text, through a temporary file.
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

// Writes the text and loads it with overrides (load_one: one, or NULL). Clears err first; returns config_load's result.
int config_file_load(Config *config, const char *text, const char *const *overrides, int count, Error *err);
int config_file_load_one(Config *config, const char *text, const char *override, Error *err);

// Does the same for a valid text with one override or NULL; otherwise the test fails with the message.
void config_file_load_well(Config *config, const char *text, const char *override);

// Hugging Face's config.json as a model. A run that starts from a checkpoint compares that model with its own. For
// plans, -c accepts a config.json instead of a configuration.
#pragma once

#include "base/json.h"
#include "config_schema.h"

enum { HF_MOST_KEYS = 48 };

// The numbers of rope_scaling, terminated by .key = NULL.
extern const FamilyNumber hf_rope_numbers[];

// Returns the field of a key of section `model`.
void *hf_model_field(const ModelConfig *model, const ConfigKey *key);

// Lists the keys of section `model` that the config.json of `model` has ("model.vocab", ...). Returns the count.
int hf_model_keys(const ModelConfig *model, const ConfigKey *keys[HF_MOST_KEYS]);

// A config.json and the model that is read from it.
typedef struct HfModel {
    const JsonValue *root;
    const char *path; // for errors
    ModelConfig model;
} HfModel;

// Reads found->model from found->root as a model of the family `families[family_of_run]`. Returns 0, or -1 with err
// (code 2) for another architecture or a missing number.
int hf_model_read(HfModel *found, int family_of_run, Error *err);

// Checks that all settings of the file are supported, and that it has no sliding window shorter than seq_len.
// Returns 0, or -1 with err (code 2).
int hf_model_check(const HfModel *found, int64_t seq_len, Error *err);

// Returns a configuration with only the model, and bf16 if the weights are in 16 bits, from the config.json in `text`
// (NUL-terminated). The caller frees it. Sets its sliding window, 0 if there is none. NULL without err: the text is not
// a config.json. NULL with err (code 2): it is damaged, or the model is unsupported.
char *hf_model_yaml(const char *text, size_t length, const char *path, int64_t *window, Error *err);

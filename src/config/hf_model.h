// Hugging Face's config.json as a model: compared when a run starts from a checkpoint, and accepted with -c for plans.
#pragma once

#include "base/json.h"
#include "config_schema.h"

// A number of rope_scaling, the kinds of scaling that have it, and its value if a file lacks it (negative: required).
typedef struct HfRopeNumber {
    const char *key, *word;
    size_t offset; // in ModelConfig
    bool real;
    bool kind[ROPE_YARN + 1];
    double absent;
} HfRopeNumber;

enum { HF_ROPE_NUMBERS = 7, HF_MOST_KEYS = 32 };
extern const HfRopeNumber hf_rope_numbers[HF_ROPE_NUMBERS];

// Lists the keys of `model` that the config.json of such a model has words for: "model.vocab", ... Returns how many.
int hf_model_keys(const ModelConfig *model, const ConfigKey *keys[HF_MOST_KEYS]);

// A config.json and the model that is read from it.
typedef struct HfModel {
    const JsonValue *root;
    const char *path; // for errors
    ModelConfig model;
} HfModel;

// Reads `model` from `root` as a model of this family (ModelFamily). -1 with err (code 2) for another architecture, a
// missing number, or a mixture of experts.
int hf_model_read(HfModel *found, int family_of_run, Error *err);

// Checks that the file demands nothing unsupported, and no sliding window that a sequence of seq_len would need. -1
// with err (code 2).
int hf_model_check(const HfModel *found, int64_t seq_len, Error *err);

// Returns a configuration whose section `model` is that of the config.json in `text`, which ends with NUL; the caller
// frees it. NULL without err: the text is no config.json (it has no model_type). NULL with err: it is one that cannot
// be planned.
char *hf_model_yaml(const char *text, size_t length, const char *path, Error *err);

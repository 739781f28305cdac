// The small files of a checkpoint: config.json, which is Hugging Face's description of the model, and training.json, which is ours of
// the run.
#ifndef CHECKPOINT_MODEL_H
#define CHECKPOINT_MODEL_H

#include "engine/step_guard.h"

#include <stdbool.h>

#define CHECKPOINT_CONFIG   "config.json"
#define CHECKPOINT_INDEX    "model.safetensors.index.json"
#define CHECKPOINT_TRAINING "training.json"

void model_config_write(const Config *config, FILE *file);

// Compares config.json in `dir` with the configuration. -1 with err (code 2) that lists every size and constant that differs.
// exact: the sequence length too, where it is no tensor's size. A directory without the file passes: the tensors' shapes will tell.
int model_config_compare(const Config *config, const char *dir, bool exact, Error *err);

// Where a run stood.
typedef struct TrainingState {
    int64_t step;
    int64_t samples; // taken from the endless sequence of epochs: position of the next one
    int64_t seed;
    StepGuard step_guard;
} TrainingState;

void training_state_write(const Config *config, const TrainingState *state, FILE *file);
int training_state_read(TrainingState *state, const char *dir, Error *err);

#endif

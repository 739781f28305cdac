// The small files of a checkpoint: config.json, Hugging Face's description of the model, and training.json, our own of
// the run.
#pragma once

#include "engine/step_guard.h"

#define CHECKPOINT_CONFIG   "config.json"
#define CHECKPOINT_INDEX    "model.safetensors.index.json"
#define CHECKPOINT_TRAINING "training.json"

// How far a run had come.
typedef struct TrainingState {
    uint64_t run; // this and the next as in the manifest
    int64_t sequence;
    int64_t step;
    int64_t samples; // taken from the endless sequence of epochs: position of the next one
    int64_t tokens;  // those of the samples; -1: not written
    int64_t seed;
    uint64_t data; // identity of the training data (blend.h); 0: written by a version without it
    StepGuard step_guard;
} TrainingState;

void training_state_write(const Config *config, const TrainingState *state, FILE *file);
int training_state_read(TrainingState *state, const char *dir, Error *err);

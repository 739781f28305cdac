// The models that the trainers train, train_llama.cu and train_gpt.cu, which are linked into every test program.
#pragma once

#include "model/model.h"

extern const Model llama_model, gpt_model;

// Returns the model of a configuration's family.
static inline const Model *model_of(const Config *config) {
    return config->model.family == family_find("llama") ? &llama_model : &gpt_model;
}

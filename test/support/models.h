// The trainers' models, train_llama.cu and train_gpt.cu, which are linked into every test program.
#pragma once

#include "model/model.h"

#include <stdio.h>
#include <stdlib.h>

extern const Model llama_model, gpt_model;

// Returns the model of a configuration's family.
static inline const Model *model_of(const Config *config) {
    static const Model *const models[] = {&llama_model, &gpt_model};
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++)
        if (config->model.family == family_find(models[i]->family)) return models[i];
    fprintf(stderr, "test/support/models.h has no model of this family; add it to model_of\n");
    abort();
}

// What a training costs by the step time of its plan: days, GPU hours, money and energy. Prices and powers come from
// the configuration; figures that depend on missing ones are left out.
#ifndef BUDGET_H
#define BUDGET_H

#include "config/config.h"

// For some number of tokens.
typedef struct Bill {
    double days, gpu_hours;
    double price; // in the currency of hardware.gpu_hour; 0: not known
    double mwh;   // drawn by the GPUs; 0: unknown
} Bill;

typedef struct Budget {
    double tokens;             // of the whole training: train.tokens, or those of train.steps
    Bill step, billion, whole; // one step, 1e9 tokens, all of them
} Budget;

// Fills `budget` for a step of `step_seconds`. gpus: false on CPUs, where days alone are known.
void budget_make(Budget *budget, const Config *config, double step_seconds, bool gpus);

// Writes the lines for people, 120 columns wide at most.
void budget_print(const Budget *budget, const Config *config, FILE *file);

// Writes `"budget":{...}`: tokens, and of a step, a billion tokens and the whole {"days","gpu_hours","price","mwh"},
// null for what is not known.
void budget_write_json(const Budget *budget, FILE *file);

#endif

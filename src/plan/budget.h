// The cost of a training run, from its planned step time: days, GPU hours, money and energy. Prices and powers come
// from the configuration. A figure is left out if the configuration lacks its price or power.
#pragma once

#include "base/json_out.h"
#include "hardware_model.h"

// The cost of training on some number of tokens.
typedef struct Bill {
    double days, gpu_hours;
    double price; // currency of hardware.gpu_hour; 0: unknown
    double mwh;   // energy of the GPUs; 0: unknown
} Bill;

// The share of time spent training if nodes fail and the run restarts from its newest checkpoint.
typedef struct Goodput {
    double mtbf;  // seconds between failures of the job; 0: unknown, and all other fields are 0
    double every; // steps between checkpoints for the shortest expected training (Young 1974, Daly 2006)
    double share; // time without failures and checkpoints / expected time
    double days;  // expected days of the complete training, with failures and checkpoints
    double own;   // `share` with the configured checkpoint.every; 0: no checkpoints are written
} Goodput;

typedef struct Budget {
    double tokens;             // train.tokens, or the tokens of train.steps
    Bill step, billion, whole; // costs of one step, of 1e9 tokens and of all tokens
    GpuBand band;              // error band of the step time, and so of all costs; low 0: unknown
    Goodput goodput;
} Budget;

// Returns the share of train.tokens that train.steps takes; 1 without train.tokens.
double budget_taken(const Config *config);

// Returns the cost for steps of `step_seconds`. gpus: false on CPUs, where only days are known.
Budget budget_make(const Config *config, double step_seconds, bool gpus, GpuBand band);

// Prints the budget for people. Without `verbose`: only the cost of all tokens, and the goodput. Without a band, also
// the days by other trainers' runs on the hardware.
void budget_print(const Budget *budget, const Config *config, const Hardware *hardware, bool verbose, FILE *file);

// Writes `"budget":{...}`: "tokens", and the costs of a step, a billion tokens and the complete training, each
// {"days","gpu_hours","price","mwh"}. Unknown figures are null. A known band adds its ends, as in "days_low" and
// "days_high"; hardware.mtbf_hours adds "goodput":{"mtbf_hours","every","share","days","own"}.
void budget_write_json(const Budget *budget, JsonOut *out);

// Evaluations of evaluate.h by the ranks that train: forward-only lists over batches of rows, as validation runs them. What comes out does
// not depend on how rows are spread over microbatches and data ranks.
#ifndef RUN_EVALUATE_H
#define RUN_EVALUATE_H

#include "run.h"

#ifdef __cplusplus
extern "C" {
#endif

// data.hellaswag where it is used, else NULL: while training at its intervals, always where a model is only validated. -1 with err.
int run_open_evaluation(const Config *config, bool validate, Evaluation **evaluation, Error *err);

// Collective. How many examples of data.hellaswag the model gets right. *stop: a rank was asked to stop, and nothing is known.
int run_evaluate(Run *run, int64_t *correct, bool *stop, Error *err);

// Collective. The same after `step`, said as metrics_eval says it. It may take longer than whoever asks a run to stop has patience: it is
// then given up and not said, and the run ends after the step that follows.
int run_evaluate_step(Run *run, int64_t step, Error *err);

#ifdef __cplusplus
}
#endif

#endif

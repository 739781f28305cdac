// Text from the model, by the ranks that train it: while training, and alone (--generate).
//
// One token takes one forward of the whole window, seq_len tokens, through the pipeline: a forward-only list of one microbatch, run by the
// engine as every other list. Nothing is kept between tokens, so there is no memory to plan for, and a token costs a microbatch's forward
// (micro_batch texts share it). Where there are several data ranks the first works and the others wait.
// The last stage's tensor ranks name their candidates (sample.h), rank 0 chooses, and every rank learns the token.
#ifndef RUN_SAMPLE_H
#define RUN_SAMPLE_H

#include "run.h"

#ifdef __cplusplus
extern "C" {
#endif

// Before ranks start: the tokenizer can be read and the prompt (NULL: sample.prompt) be spelt with it. -1 with err.
int run_sample_check(const Config *config, const char *prompt, Error *err);

// Makes run->sampler. prompt: as above. -1 with err.
int run_sampler_create(Run *run, const char *prompt, Error *err);
void run_sampler_destroy(Run *run);

// Collective. sample.count texts, said as metrics_sample says them.
int run_sample(Run *run, int64_t step, Error *err);

// Collective. The same on stdout and nothing else; a request to stop is an error.
int run_generate(Run *run, Error *err);

#ifdef __cplusplus
}
#endif

#endif

// The estimate of Huang et al. (arXiv 2401.02088): the MFU of a pipeline, from the MFU of one of its stages. Transfers,
// imbalance and the optimizer are left out, which makes it an upper bound; plan_time.h has them.
//   step = (B/b + p - 1) * T(b), so MFU(b) = B / (B + b (p - 1)) * MFU_stage(b)
// B: sequences of a step on one data rank, b: micro-batch size, p: stages, T(b): forward and backward of one microbatch
// on one stage.
#pragma once

#include <stdint.h>

// Returns the share of the time in which stages work.
static inline double estimate_filled(int64_t batch, int64_t micro_batch, int64_t stages) {
    return (double)batch / (double)(batch + micro_batch * (stages - 1));
}

static inline double estimate_mfu(double stage_mfu, int64_t batch, int64_t micro_batch, int64_t stages) {
    return stage_mfu * estimate_filled(batch, micro_batch, stages);
}

// Returns by which fraction MFU_stage has to grow from micro-batch size `from` to `to` for the pipeline to be no
// slower: the larger of the two leaves stages idle for longer. 0.052 for B = 128, p = 8, 1 to 2.
static inline double estimate_required_gain(int64_t batch, int64_t from, int64_t to, int64_t stages) {
    return estimate_filled(batch, from, stages) / estimate_filled(batch, to, stages) - 1;
}

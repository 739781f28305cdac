// The formulas of estimate.h.
#include "estimate.h"

double estimate_filled(int64_t batch, int64_t micro_batch, int64_t stages) {
    return (double)batch / (double)(batch + micro_batch * (stages - 1));
}

double estimate_mfu(double stage_mfu, int64_t batch, int64_t micro_batch, int64_t stages) {
    return stage_mfu * estimate_filled(batch, micro_batch, stages);
}

double estimate_required_gain(int64_t batch, int64_t from, int64_t to, int64_t stages) {
    return estimate_filled(batch, from, stages) / estimate_filled(batch, to, stages) - 1;
}

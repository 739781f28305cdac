#include "attention_scratch.h"

int64_t attention_scratch_cuda(const AttentionShape *shape, int64_t element) {
    int64_t rows = shape->batch * shape->heads * shape->seq, scores = rows * shape->seq * element;
    switch (shape->mode) {
    case ATTENTION_NONE:
        return scores;
    case ATTENTION_RECOMPUTE:
        return 2 * scores;
    default:
        return rows * shape->head_dim * 4 + rows * 4;
    }
}

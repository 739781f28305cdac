#include "attention_scratch.h"

int64_t attention_scratch_cuda(const AttentionShape *shape, int64_t element) {
    int64_t rows = shape->batch * shape->heads * shape->seq, scores = shape->heads * shape->seq * shape->seq;
    // Without key and value heads of their own, the gradients of a group's are summed from one for each query head.
    int64_t groups = shape->heads == shape->kv_heads ? 0 : 2 * rows * shape->head_dim * element;
    if (shape->mode == ATTENTION_FLASH) return memory_round(rows * shape->head_dim * 4 + rows * 8 + groups);
    int64_t bytes = memory_round(scores * element) * (shape->mode == ATTENTION_NONE ? 1 : 2);
    return attention_softmax_fuses(shape, element) ? bytes : bytes + memory_round(scores * 4);
}

// The workspace of attention on NVIDIA GPUs, as formulas. They were taken from cuDNN's own answers, which
// test/cuda/test_cudnn.py repeats, and decide to the byte whether a stage fits.
#include "attention_scratch.h"

static int64_t pad_(int64_t length, int64_t to) {
    return (length + to - 1) / to * to;
}

int64_t attention_flash_workspace(const AttentionShape *shape, int capability) {
    int64_t matrices = shape->batch * shape->heads, rows = matrices * shape->seq, seq = shape->seq;
    bool grouped = shape->heads != shape->kv_heads;
    // A row's statistics; the gradients of a group's keys and values, one for each query head.
    int64_t bytes = rows * 4 + (grouped ? 2 * rows * shape->head_dim * 2 : 0);
    if (capability < 90) return bytes + 2 * rows * shape->head_dim * 4 + 128;
    if (capability < 100) return bytes + matrices * pad_(seq, 64) * pad_(seq, 128) * 2 + 256;
    return grouped ? bytes + rows * shape->head_dim * 4 + 128 : bytes;
}

static int64_t flash_of_gpu_(const AttentionShape *shape, int capability) {
    static const int known[] = {80, 90, 100};
    if (capability != 0) return attention_flash_workspace(shape, capability);
    int64_t most = 0;
    for (int i = 0; i < 3; i++) {
        int64_t bytes = attention_flash_workspace(shape, known[i]);
        if (bytes > most) most = bytes;
    }
    return most;
}

int64_t attention_scratch_cuda(const AttentionShape *shape, int64_t element, int capability) {
    int64_t scores = shape->heads * shape->seq * shape->seq;
    if (shape->mode == ATTENTION_FLASH) return memory_round(flash_of_gpu_(shape, capability));
    int64_t bytes = memory_round(scores * element) * (shape->mode == ATTENTION_NONE ? 1 : 2);
    return attention_softmax_fuses(shape, element) ? bytes : bytes + memory_round(scores * 4);
}

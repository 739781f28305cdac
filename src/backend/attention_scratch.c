// Formulas for the workspace of attention on NVIDIA GPUs. They were derived from the sizes that cuDNN reports, and
// test/cuda/test_cudnn.py compares them with cuDNN. They are exact to the byte, and decide whether a stage fits.
#include "attention_scratch.h"

static int64_t pad_(int64_t length, int64_t to) { return (length + to - 1) / to * to; }

// Returns the smallest divisor d of `all` with d * each >= need; `all` if there is no such divisor.
static int64_t fewest_(int64_t all, int64_t each, int64_t need) {
    int64_t count = 1;
    while (count < all && (all % count != 0 || count * each < need)) count++;
    return count;
}

const char *attention_without_flash(const AttentionShape *shape, int64_t element, bool documents) {
    if (element != 2) return "cuDNN's flash attention needs train.precision bf16";
    if (documents) return "cuDNN's flash attention has no affordable mask between documents"; // test_cudnn.py
    if (shape->head_dim % 8 != 0 || shape->head_dim > 256)
        return "cuDNN's flash attention needs a head size that is a multiple of 8, and at most 256";
    return NULL;
}

// A multiprocessor processes tiles of 128 rows. 1,024 tiles are about eight for each of an H100's 132 multiprocessors.
AttentionShape attention_flash_part(const AttentionShape *shape, int capability) {
    enum { TILE_ROWS = 128, TILES = 1024 };
    AttentionShape part = *shape;
    int64_t tiles = pad_(shape->seq, TILE_ROWS) / TILE_ROWS, group = shape->heads / shape->kv_heads;
    bool stores = capability < 100 || attention_flash_ampere(capability);
    if (!stores || !attention_flash_deterministic(shape, capability)) return part;
    part.batch = fewest_(shape->batch, shape->heads * tiles, TILES);
    if (part.batch == 1) part.kv_heads = fewest_(shape->kv_heads, group * tiles, TILES);
    part.heads = part.kv_heads * group;
    return part;
}

// Counts the statistics of each row and, with grouped heads, the gradients of keys and values for every query head. A
// deterministic backward also stores the gradient of the scores in 16 bits, except on 100. A nondeterministic backward
// sums dq in fp32; Ampere's kernels then need a second array, with seq padded to a multiple of 8. A slice has fewer
// queries than keys, and its mask is aligned to the last key. cuDNN 9.19 supports such a mask on all these GPUs.
int64_t attention_flash_workspace(const AttentionShape *shape, int capability) {
    AttentionShape part = attention_flash_part(shape, capability);
    int64_t matrices = part.batch * part.heads, rows = matrices * shape->seq, seq = shape->seq;
    int64_t keys = attention_keys(shape), each = matrices * keys * shape->head_dim * 4;
    bool grouped = shape->heads != shape->kv_heads, same = attention_flash_deterministic(shape, capability);
    int64_t wide = rows * shape->head_dim * 4, bytes = rows * 4 + (grouped ? each : 0);
    if (attention_flash_ampere(capability)) {
        int64_t scores = matrices * pad_(seq, 64) * pad_(keys, 64) * 2;
        return bytes + 128 + (same ? scores : wide + matrices * pad_(seq, 8) * shape->head_dim * 4);
    }
    if (capability < 100) return bytes + 256 + (same ? matrices * pad_(seq, 64) * pad_(keys, 128) * 2 : wide);
    if (same) return grouped ? bytes + each + 128 : bytes;
    if (seq <= 128) return bytes + 2 * wide + 128;
    return bytes + wide + (grouped ? 128 : 0);
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
    int64_t scores = shape->heads * shape->seq * attention_keys(shape);
    if (shape->mode == ATTENTION_FLASH)
        return memory_round(flash_of_gpu_(shape, capability)) + attention_flash_gradients(shape);
    int64_t bytes = memory_round(scores * element) * (shape->mode == ATTENTION_NONE ? 1 : 2);
    return attention_softmax_fuses(shape, element) ? bytes : bytes + memory_round(scores * 4);
}

// Formulas for the workspace of attention on NVIDIA GPUs. They were derived from the sizes that cuDNN reports, and
// test/cuda/test_cudnn.py compares them with cuDNN. They are exact to the byte, and decide whether a stage fits.
#include "attention_scratch.h"

#include "base/units.h"

static int64_t pad_(int64_t length, int64_t to) { return (length + to - 1) / to * to; }

// Returns the smallest divisor d of `all` with d * each >= need; `all` if there is no such divisor.
static int64_t fewest_(int64_t all, int64_t each, int64_t need) {
    int64_t count = 1;
    while (count < all && (all % count != 0 || count * each < need)) count++;
    return count;
}

const char *attention_without_flash(const AttentionShape *shape, int64_t element, int capability) {
    if (element != 2) return "cuDNN's flash attention needs train.precision bf16";
    if (shape->documents && (capability < 90 || capability >= 120))
        return capability == 0
                   ? "only some GPUs support document masks in cuDNN's flash attention; set hardware.gpu"
                   : "cuDNN's flash attention supports document masks only on compute capability 9.x and 10.x";
    int64_t dim = shape->head_dim, value = attention_value_dim(shape);
    if (dim % 8 != 0 || value % 8 != 0 || dim > 256)
        return "cuDNN's flash attention needs a head size that is a multiple of 8, and at most 256";
    bool hopper = capability == 0 || capability / 10 == 9, latent = capability / 10 == 10 && dim == 192 && value == 128;
    if (dim > 128 && !hopper && !latent)
        return "cuDNN's flash attention supports head sizes above 128 only on compute capability 9.x, and 192 with "
               "value size 128 on 10.x";
    return NULL;
}

bool attention_flash_kind(const AttentionShape *shape, int i, AttentionShape *kind) {
    enum { TILE = 64, SHORTER = 4, MEAN = 8 };
    *kind = *shape;
    if (!shape->documents) return i == 0;
    kind->batch = 1;
    if (shape->first > 0 && i-- == 0) return true;
    kind->first = 0;
    for (; i > 0 && kind->seq > TILE; i--) {
        kind->seq = pad_((kind->seq + SHORTER - 1) / SHORTER, TILE);
        kind->batch = 2 * shape->seq / kind->seq;
    }
    if (kind->seq <= TILE && shape->seq >= MEAN) kind->batch = shape->seq / MEAN;
    if (kind->batch > FLASH_DOCUMENTS) kind->batch = FLASH_DOCUMENTS;
    return i == 0;
}

// A multiprocessor processes tiles of 128 rows. 1,024 tiles are about eight for each of an H100's 132 multiprocessors.
AttentionShape attention_flash_part(const AttentionShape *shape, int capability) {
    enum { TILE_ROWS = 128, TILES = 1024 };
    AttentionShape part = *shape;
    int64_t tiles = pad_(shape->seq, TILE_ROWS) / TILE_ROWS, group = shape->heads / shape->kv_heads;
    bool stores = capability < 100 || attention_flash_ampere(capability);
    if (!stores || !attention_flash_deterministic(shape, capability)) return part;
    part.batch = shape->documents ? 1 : fewest_(shape->batch, shape->heads * tiles, TILES);
    if (part.batch == 1) part.kv_heads = fewest_(shape->kv_heads, group * tiles, TILES);
    part.heads = part.kv_heads * group;
    return part;
}

// Counts the statistics of each row and, with grouped heads, the gradients of keys and values for every query head. A
// deterministic backward also stores the gradient of the scores in 16 bits, except on 100. A nondeterministic backward
// sums dq in fp32; Ampere's kernels then need a second array, with seq padded to a multiple of 8. A slice has fewer
// queries than keys, and its mask is aligned to the last key. cuDNN 9.19 supports such a mask on all these GPUs. With
// documents, kernels of 90 and 100 keep tables with 128 bytes for each document of a call.
static int64_t call_workspace_(const AttentionShape *call, int capability) {
    int64_t matrices = call->batch * call->heads, rows = matrices * call->seq, seq = call->seq;
    int64_t keys = attention_keys(call), each = matrices * keys * call->head_dim * 4;
    bool grouped = call->heads != call->kv_heads, same = attention_flash_deterministic(call, capability);
    int64_t wide = rows * call->head_dim * 4, bytes = rows * 4 + (grouped ? each : 0);
    int64_t table = call->documents ? 128 * pad_(call->batch + 1, 2) : 0;
    if (attention_flash_ampere(capability)) {
        int64_t scores = matrices * pad_(seq, 64) * pad_(keys, 64) * 2;
        return bytes + 128 + (same ? scores : wide + matrices * pad_(seq, 8) * call->head_dim * 4);
    }
    if (capability < 100 || (table > 0 && !same)) {
        bytes += 256 + (grouped ? 2 : 3) * table;
        return bytes + (same ? matrices * pad_(seq, 64) * pad_(keys, 128) * 2 : wide);
    }
    if (table > 0) return bytes + 384 + (grouped ? each + 5 * table : 7 * table);
    if (same) return grouped ? bytes + each + 128 : bytes;
    if (seq <= 128) return bytes + 2 * wide + 128;
    return bytes + wide + (grouped ? 128 : 0);
}

int64_t attention_flash_workspace(const AttentionShape *shape, int capability) {
    enum { TABLES_OF_FORWARD = 17152 }; // bytes, for a call with documents
    AttentionShape part = attention_flash_part(shape, capability), kind;
    int64_t most = shape->documents ? TABLES_OF_FORWARD : 0;
    for (int i = 0; attention_flash_kind(&part, i, &kind); i++) {
        int64_t bytes = call_workspace_(&kind, capability);
        if (bytes > most) most = bytes;
    }
    return most;
}

int64_t attention_scratch_cuda(const AttentionShape *shape, int64_t element, int capability) {
    int64_t scores = shape->heads * shape->seq * attention_keys(shape);
    if (shape->mode == ATTENTION_FLASH && capability == 0) // the largest of all GPUs
        return max_i64(
            attention_scratch_cuda(shape, element, 80),
            max_i64(attention_scratch_cuda(shape, element, 90), attention_scratch_cuda(shape, element, 100)));
    if (shape->mode == ATTENTION_FLASH)
        return memory_round(attention_flash_workspace(shape, capability)) + attention_flash_beside(shape);
    int64_t bytes = memory_round(scores * element) * (shape->mode == ATTENTION_NONE ? 1 : 2);
    return attention_softmax_fuses(shape, element) ? bytes : bytes + memory_round(scores * 4);
}

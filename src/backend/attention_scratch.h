// The memory that operations on an NVIDIA GPU need in addition to their operands, computed without a GPU for plans.
#pragma once

#include "backend.h"

#include <sys/cdefs.h>

__BEGIN_DECLS

enum {
    CUDA_OWN_BYTES = 64 << 20, // held since a backend's creation: half kernel scratch, half matrix product workspace
    CUDA_LENT_PAGE = 2 << 20,  // bytes; page size of memory that another process maps
};

// Returns why a GPU computes attention.mode recompute in place of flash, as a clause; NULL if it has flash. element:
// bytes of one activation. capability: see attention_flash_workspace.
const char *attention_without_flash(const AttentionShape *shape, int64_t element, int capability);

// Documents in flash. A call of cuDNN computes several documents of one sequence. They are sorted into kinds by length,
// so that few graphs are built: kind i has room for kind->batch documents of at most kind->seq queries. A kind's length
// is a quarter of the previous kind's, and it has room for twice the documents that fit into a sequence, so it has no
// more scores than one document of the full length. The last kind, of at most 64 queries, has room for documents of
// eight queries on average, so that a piece of short documents is one call. A range has a first kind for the document
// that begins before it, with kind->first > 0. Without documents the only kind is `shape`. Returns false if there is no
// kind i.
bool attention_flash_kind(const AttentionShape *shape, int i, AttentionShape *kind);

// Device arrays that a call with documents reads: the number of queries and keys of each document, and the offsets, in
// elements, of its rows of queries, keys, outputs and statistics, with the end of the last. cuDNN's frontend declares
// that each array begins at a multiple of 16 bytes.
enum { FLASH_DOCUMENTS = 128 };
typedef enum FlashRows { FLASH_QUERIES, FLASH_KEYS, FLASH_OUTPUTS, FLASH_STATISTICS, FLASH_ROW_KINDS } FlashRows;
typedef struct FlashDocuments {
    int32_t queries[FLASH_DOCUMENTS], keys[FLASH_DOCUMENTS];
    int64_t begin[FLASH_ROW_KINDS][FLASH_DOCUMENTS + 2];
} FlashDocuments;

// Returns the part of `shape` for one call of cuDNN's backward: all of it, unless the backward stores the gradient of
// the scores. Then the part is small to save memory, but large enough to fill a GPU. Parts run one after another.
AttentionShape attention_flash_part(const AttentionShape *shape, int capability);

// Returns the bytes of workspace that cuDNN 9.19 requests for flash attention, the larger of forward and backward,
// exact to the byte. capability: 80, 90, 100 or 120 for compute capability 8.x, 9.x, 10.x or 12.x. Except on 100, a
// deterministic backward stores the gradient of the scores, 16 bits per score of a call. test/cuda/test_cudnn.py
// compares the result with cuDNN.
int64_t attention_flash_workspace(const AttentionShape *shape, int capability);

// Returns the bytes of the buffer for cuDNN's gradients of a range's keys and values; 0 without a range. The gradients
// in the buffer are then added to dkeys.
static inline int64_t attention_flash_gradients(const AttentionShape *shape) {
    return attention_is_range(shape) ? memory_round(2 * attention_range_count(shape)) : 0;
}

// Returns the bytes of scratch before flash's workspace: the range's gradients, then FlashDocuments.
static inline int64_t attention_flash_beside(const AttentionShape *shape) {
    int64_t documents = shape->documents ? memory_round((int64_t)sizeof(FlashDocuments)) : 0;
    return attention_flash_gradients(shape) + documents;
}

// Returns whether cuDNN uses its Ampere kernels: below 90, and on GeForce and workstation cards of Blackwell (120).
static inline bool attention_flash_ampere(int capability) { return capability < 90 || capability >= 120; }

// Returns whether cuDNN's backward is deterministic, as attention.deterministic selects. auto: deterministic if cuDNN's
// documentation lists it as supported: from 90 on, except with Ampere's kernels.
static inline bool attention_flash_deterministic(const AttentionShape *shape, int capability) {
    return shape->deterministic == DETERMINISTIC_AUTO ? !attention_flash_ampere(capability)
                                                      : shape->deterministic == DETERMINISTIC_ON;
}

// Returns the scratch of attention in bytes, the larger of forward and backward. element: bytes of one activation.
// capability: see above; 0, an unknown GPU, gives the largest result of all capabilities. `none` and `recompute`
// process one sequence of a microbatch at a time. Both need the gradient of the sequence's probabilities, and
// `recompute` also needs the probabilities. An unfused softmax adds an fp32 copy. If cuDNN requests more than this
// result at start-up, the larger size is allocated.
int64_t attention_scratch_cuda(const AttentionShape *shape, int64_t element, int capability);

// Returns whether scale, mask and softmax of `none` and `recompute` run as one kernel, else as separate fp32 passes.
// SOFTMAX_MEGATRON: one kernel where Megatron-LM's applies (megatron/fused_kernels, 2023): 16-bit scores,
// 16 < seq <= 4096, and the rank's seq and batch * heads are multiples of 4. Kernels, plan and profile all call it.
static inline bool attention_softmax_fuses(const AttentionShape *shape, int64_t element) {
    if (shape->softmax != SOFTMAX_MEGATRON) return shape->softmax == SOFTMAX_FUSED;
    bool length = shape->seq > 16 && shape->seq <= 4096 && shape->seq % 4 == 0;
    return element == 2 && length && shape->batch * shape->heads % 4 == 0;
}

__END_DECLS

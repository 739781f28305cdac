// Flash attention, for attention.c.
#ifndef CPU_FLASH_H
#define CPU_FLASH_H

#include "heads.h"

// Returns the number of spans of a head's queries; a span is a unit of work for one thread. Their number changes no
// bits.
int64_t flash_spans(const AttentionShape *shape, int threads);
int64_t flash_scratch_floats(const AttentionShape *shape);
int64_t flash_workspace_floats(const AttentionShape *shape); // of cpu_scratch
// Computes one span's rows with all the keys they see. scratch: flash_scratch_floats(shape) of this thread's own.
void flash_forward(const Head *h, void *out, float *lse, float *scratch, const void *qkv, int64_t span, int64_t spans);

// Computes dq of the heads that share a key/value head, and their sums in b->dk and b->dv (cleared by the caller).
void flash_backward(const Backend *backend, const AttentionShape *shape, const AttentionBackward *b, int64_t sequence,
                    int64_t kv_head);

#endif

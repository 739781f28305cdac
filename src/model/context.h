// Context ranks share a sequence (parallel.context). It is cut into 2c pieces of equal length, and rank r has pieces r
// and 2c-1-r (zigzag), so that causal attention is the same work on every rank. For c = 2 and digits as pieces:
//
//     rank 0: 0 3    rank 1: 1 2       a query of piece 1 sees the keys of pieces 0 and 1
//
// Only attention uses other ranks' rows. Before it, the keys and values of all pieces are gathered, in the order of the
// sequence; then each piece of queries is one call of attention over a range. The backward gathers again, because the
// gathered keys of every layer and microbatch in flight would take c times the bytes of this rank's own. Gradients of
// keys and values are fp32 until they are summed over the ranks, in a fixed order, so bits depend only on c.
//
// Each half of a sequence has its own group. The group of the second half lists its ranks in reverse order. So the
// parts of a collective are in sequence order in both halves, and collectives work in place.
#pragma once

#include "model.h"

enum { CONTEXT_PIECES = 2 };

// Returns the position in its sequence at which piece i of this rank begins. Without context ranks, i is 0.
static inline int64_t context_place(const Shape *s, int i) {
    int piece = i == 0 ? s->context_rank : 2 * s->context_ranks - 1 - s->context_rank;
    return piece * (s->seq / s->pieces);
}

// Returns the row on this rank of a position of the batch's first sequence, or -1 if another context rank has it.
int64_t context_row(const Shape *s, int64_t position);

// Copies this rank's and slice's keys and values from qkv to pass->keys, and gathers the other context ranks' keys and
// values.
void context_gather_keys(Pass *pass, const void *qkv);
// Sums pass->dkeys over the context ranks, and writes the gradients of this rank's and slice's keys and values to dqkv.
void context_sum_gradients(Pass *pass, void *dqkv);

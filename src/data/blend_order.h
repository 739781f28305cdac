// The order in which several sources give samples, each at every moment as often as its weight says.
//
// Weights become whole shares of a period of P turns. After any number k of turns, source i has had k * share_i / P of
// them, to within one turn; after every P turns exactly share_i. Tijdeman's theorem on the chairman assignment problem
// (Discrete Mathematics 32, 1980) says that such an order exists for any shares; giving each turn to the source with
// the earliest deadline, among those that may have it already, finds one. The period is computed once, so that turn k
// is looked up and nothing is remembered between turns.
#ifndef BLEND_ORDER_H
#define BLEND_ORDER_H

#include "base/log.h"

#include <stdint.h>

// Shares are exact for decimal weights with a period of at most BLEND_ORDER_MOST; others are rounded to that many
// parts.
enum { BLEND_ORDER_MOST = 1000000, BLEND_ORDER_SOURCES = 64 };

typedef struct BlendOrder {
    int sources;
    int64_t period;
    int64_t share[BLEND_ORDER_SOURCES]; // of the period
    uint32_t *order;                    // (period) source, and how many turns it had before in the period
} BlendOrder;

// weights[i] > 0, none below a millionth of their sum.
void blend_order_create(BlendOrder *blend, const double *weights, int sources);
// Returns the bytes that this allocates.
int64_t blend_order_size(const double *weights, int sources);
void blend_order_destroy(BlendOrder *blend);

// Returns the source of turn k (0, 1, ...); *before: how many turns it had before.
int blend_order_source(const BlendOrder *blend, int64_t k, int64_t *before);

#endif

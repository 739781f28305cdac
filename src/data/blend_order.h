// Whose turn it is: an order in which several sources give samples, each as often as its weight says at every moment.
//
// Weights become whole shares of a period of P turns. After any number k of turns, source i has had k * share_i / P of
// them, less than one turn more or less; every P turns it has had exactly share_i. That such an order exists for any
// shares is Tijdeman's theorem on the chairman assignment problem (Discrete Mathematics 32, 1980); taking, of those
// whose next turn may come already, the one that has to have it soonest finds it. The period is computed once, so that
// turn k is looked up and nothing has to be remembered between turns.
#ifndef BLEND_ORDER_H
#define BLEND_ORDER_H

#include "base/log.h"

#include <stdint.h>

// Shares are exact where weights are decimals whose period is at most BLEND_ORDER_MOST; others are rounded to that many
// parts.
enum { BLEND_ORDER_MOST = 1000000, BLEND_ORDER_SOURCES = 64 };

typedef struct BlendOrder {
    int sources;
    int64_t period;
    int64_t share[BLEND_ORDER_SOURCES]; // of the period
    uint32_t *order;                    // (period) source, and how many turns it had before in the period
} BlendOrder;

// weights[i] > 0, none below a millionth of their sum. -1 with err: no memory.
void blend_order_create(BlendOrder *blend, const double *weights, int sources);
// What that allocates.
int64_t blend_order_size(const double *weights, int sources);
void blend_order_destroy(BlendOrder *blend);

// The source of turn k (0, 1, ...), and into *before how many turns it had before.
int blend_order_source(const BlendOrder *blend, int64_t k, int64_t *before);

#endif

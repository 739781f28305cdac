// Sums of long rows in an order that vector units like and no compiler may change: element i adds to partial sum
// i % LANES, and the partial sums are folded in halves. The order depends on the row's length alone, so the result is
// the same on every instruction set and for any number of threads, without fast-math.
#ifndef LANES_H
#define LANES_H

#include <stdint.h>

enum { LANES = 16 };

// The elements that fill whole groups of lanes; the others follow, one each in the first lanes.
static inline int64_t lanes_whole(int64_t count) {
    return count - count % LANES;
}

static inline float lanes_fold(float lanes[LANES]) {
    for (int width = LANES / 2; width; width /= 2)
        for (int lane = 0; lane < width; lane++) lanes[lane] += lanes[lane + width];
    return lanes[0];
}

static inline double lanes_fold_double(double lanes[LANES]) {
    for (int width = LANES / 2; width; width /= 2)
        for (int lane = 0; lane < width; lane++) lanes[lane] += lanes[lane + width];
    return lanes[0];
}

#endif

// Sums of long rows in a fixed order that suits vector units: element i is added to partial sum i % LANES, and the
// partial sums are folded in halves. The order depends only on the row's length, so the result is the same on every
// instruction set and for any number of threads, without fast-math.
//
// Uses vector types, because gcc turns the same loop over an array into shuffles. Vectors are passed by address,
// because the calling convention for vectors by value depends on the instruction set.
#pragma once

#include <stdint.h>
#include <string.h>

enum { LANES = 16, LANES_DOUBLE = 8 };

typedef float Lanes __attribute__((vector_size(64)));
typedef double LanesDouble __attribute__((vector_size(64)));
typedef float LanesHalf __attribute__((vector_size(32))); // LANES_DOUBLE floats

// Returns the number of elements in complete vectors; the remaining elements are added to the first lanes, one each.
static inline int64_t lanes_whole(int64_t count, int64_t lanes) { return count - count % lanes; }

static inline void lanes_load(Lanes *lanes, const float *from) { memcpy(lanes, from, sizeof *lanes); }

static inline void lanes_load_double(LanesDouble *lanes, const float *from) {
    LanesHalf half;
    memcpy(&half, from, sizeof half);
    *lanes = __builtin_convertvector(half, LanesDouble);
}

static inline float lanes_fold(Lanes *lanes) {
    for (int width = LANES / 2; width; width /= 2)
        for (int lane = 0; lane < width; lane++) (*lanes)[lane] += (*lanes)[lane + width];
    return (*lanes)[0];
}

static inline double lanes_fold_double(LanesDouble *lanes) {
    for (int width = LANES_DOUBLE / 2; width; width /= 2)
        for (int lane = 0; lane < width; lane++) (*lanes)[lane] += (*lanes)[lane + width];
    return (*lanes)[0];
}

static inline float lanes_sum(const float *x, int64_t count) {
    Lanes sum = {0}, v;
    int64_t whole = lanes_whole(count, LANES);
    for (int64_t i = 0; i < whole; i += LANES) {
        lanes_load(&v, x + i);
        sum += v;
    }
    for (int64_t i = whole; i < count; i++) sum[i - whole] += x[i];
    return lanes_fold(&sum);
}

typedef int32_t LanesMask __attribute__((vector_size(64)));

// Returns the largest of x and `least`; NaN is ignored.
static inline float lanes_max(const float *x, int64_t count, float least) {
    Lanes most = (Lanes){0} + least, v;
    int64_t whole = lanes_whole(count, LANES);
    for (int64_t i = 0; i < whole; i += LANES) {
        lanes_load(&v, x + i);
        LanesMask above = v > most;
        most = (Lanes)(((LanesMask)v & above) | ((LanesMask)most & ~above));
    }
    for (int64_t i = whole; i < count; i++) most[i - whole] = x[i] > most[i - whole] ? x[i] : most[i - whole];
    for (int l = 1; l < LANES; l++) most[0] = most[l] > most[0] ? most[l] : most[0];
    return most[0];
}

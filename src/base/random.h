// Counter-based random numbers: a value depends only on (seed, stream, index), never on the rank or the time of the
// draw. Philox 4x32-10 (Salmon et al., SC 2011).
#pragma once

#include <stdint.h>

// Rows of normals that are `stride` apart in a stream: element (r, c) is scale * normal(seed, stream, first + r *
// stride + c). Every device draws the same bits (normal.h).
typedef struct NormalRows {
    float scale;
    uint64_t seed, stream, first, stride;
} NormalRows;

// Returns 64 uniform bits for (seed, stream, index).
uint64_t random_bits(uint64_t seed, uint64_t stream, uint64_t index);

// Sets out[i] = scale * normal(seed, stream, first + i) for i in [0, count). Number n of a stream is lane n % 4 of its
// block n / 4: a standard normal by Box-Muller in double, rounded to float (normal.h).
void random_normal_fill(float *out, int64_t count, float scale, uint64_t seed, uint64_t stream, uint64_t first);

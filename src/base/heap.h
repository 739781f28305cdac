// A binary heap of indices into an array that the caller owns. The index of the element that comes first is popped
// first.
#pragma once

#include "alloc.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct Heap {
    bool (*before)(const void *array, int64_t a, int64_t b); // whether element a comes before element b
    int64_t *indices, count;                                 // the caller frees `indices`
} Heap;

static inline void heap_push(Heap *heap, const void *array, int64_t index) {
    int64_t *indices = heap->indices = xgrow(heap->indices, heap->count, sizeof *indices), at = heap->count++;
    for (; at > 0 && heap->before(array, index, indices[(at - 1) / 2]); at = (at - 1) / 2)
        indices[at] = indices[(at - 1) / 2];
    indices[at] = index;
}

// The heap must not be empty.
static inline int64_t heap_pop(Heap *heap, const void *array) {
    int64_t *indices = heap->indices, first = indices[0], last = indices[--heap->count], at = 0;
    for (int64_t child; (child = 2 * at + 1) < heap->count; at = child) {
        if (child + 1 < heap->count && heap->before(array, indices[child + 1], indices[child])) child++;
        if (!heap->before(array, indices[child], last)) break;
        indices[at] = indices[child];
    }
    indices[at] = last;
    return first;
}

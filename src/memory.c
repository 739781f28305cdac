#include "memory.h"

#include <stddef.h>

const char *memory_name(MemoryCategory category) {
    static const char *const names[MEMORY_CATEGORIES] = {"weights",    "gradients", "masters", "optimizer", "own slots",
                                                         "lent slots", "edges",     "head",    "workspace", "data"};
    return names[category];
}

int64_t memory_total(const MemoryBytes *memory) {
    int64_t total = 0;
    for (int i = 0; i < MEMORY_CATEGORIES; i++) total += memory->bytes[i];
    return total;
}

int64_t memory_round(int64_t bytes) {
    return (bytes + MEMORY_ALIGN - 1) / MEMORY_ALIGN * MEMORY_ALIGN;
}

void *layout_take(Layout *layout, int64_t bytes) {
    void *at = layout->base == NULL ? NULL : layout->base + layout->used;
    layout->used += memory_round(bytes);
    return at;
}

// Names and sums of memory categories, and the cursor that lays buffers out.
#include "memory.h"

#include "base/units.h"

#include <stdbool.h>
#include <stdio.h>

const char *memory_name(MemoryCategory category) {
    static const char *const names[MEMORY_CATEGORIES] = {
        [MEMORY_WEIGHTS] = "weights",       [MEMORY_GRADIENTS] = "gradients",
        [MEMORY_MASTERS] = "masters",       [MEMORY_OPTIMIZER] = "optimizer",
        [MEMORY_EMBEDDING] = "embedding",   [MEMORY_OWN_SLOTS] = "own slots",
        [MEMORY_LENT_SLOTS] = "lent slots", [MEMORY_KEYS] = "keys",
        [MEMORY_MESSAGES] = "messages",     [MEMORY_HEAD] = "head",
        [MEMORY_WORKSPACE] = "workspace",   [MEMORY_DATA] = "data"};
    return names[category];
}

int64_t memory_total(const MemoryBytes *memory) {
    int64_t total = 0;
    for (int i = 0; i < MEMORY_CATEGORIES; i++) total += memory->bytes[i];
    return total;
}

MemoryText memory_size_text(int64_t bytes) {
    MemoryText size;
    bool large = bytes >= (int64_t)GIB;
    snprintf(size.text, sizeof size.text, large ? "%.2f GiB" : "%.1f MiB", (double)bytes / (large ? GIB : MIB));
    return size;
}

void memory_describe(const MemoryBytes *memory, char *text, size_t size) {
    size_t used = 0;
    snprintf(text, size, "nothing");
    for (int c = 0; c < MEMORY_CATEGORIES; c++) {
        if (memory->bytes[c] == 0 || used >= size) continue;
        used += (size_t)snprintf(text + used, size - used, "%s%s %s", used > 0 ? ", " : "", memory_name(c),
                                 memory_size_text(memory->bytes[c]).text);
    }
}

void memory_note_peak(const MemoryBytes *held, MemoryBytes *peak) {
    if (memory_total(held) > memory_total(peak)) *peak = *held;
}

int64_t memory_pages(int64_t bytes, int64_t page) { return page == 0 ? bytes : (bytes + page - 1) / page * page; }

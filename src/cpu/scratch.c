// Scratch memory per thread, and conversion between rows of the run's precision and floats, for all CPU operations.
#include "cpu.h"
#include "base/alloc.h"

#include <stdlib.h>

// Adds `floats` (negative if scratch is freed) to the memory held. Several threads may call this at once.
static void count_scratch_(CpuBackend *cpu, int64_t floats) {
#ifdef _OPENMP
#pragma omp critical(cpu_scratch_count)
#endif
    {
        cpu->backend.held.bytes[MEMORY_WORKSPACE] += floats * (int64_t)sizeof(float);
        memory_note_peak(&cpu->backend.held, &cpu->backend.peak);
    }
}

void cpu_scratch_drop(CpuBackend *cpu, CpuScratch *scratch) {
    if (!scratch->given && scratch->memory != NULL) {
        count_scratch_(cpu, -scratch->floats);
        free(scratch->memory);
    }
    *scratch = (CpuScratch){.products = scratch->products};
}

float *cpu_scratch(Backend *be, int64_t floats) {
    CpuBackend *cpu = cpu_self(be);
    CpuScratch *mine = &cpu->scratch[cpu_thread()];
    if (mine->floats >= floats) return mine->memory;
    cpu_scratch_drop(cpu, mine);
    mine->memory = xaligned(64, (size_t)floats * sizeof(float));
    mine->floats = floats;
    count_scratch_(cpu, floats);
    return mine->memory;
}

// --- rows

const float *cpu_load(const Backend *be, float *workspace, const void *from, int64_t offset, int64_t count) {
    if (!cpu_is_bf16(be)) return (const float *)from + offset;
    const uint16_t *restrict narrow = (const uint16_t *)from + offset;
    float *restrict to = workspace;
    for (int64_t i = 0; i < count; i++) to[i] = bf16_to_float(narrow[i]);
    return workspace;
}

void cpu_store(const Backend *be, void *to, int64_t offset, const float *from, int64_t count) {
    uint16_t *restrict narrow = (uint16_t *)to + offset;
    if (!cpu_is_bf16(be)) {
        if ((float *)to + offset != from) memcpy((float *)to + offset, from, (size_t)count * sizeof *from);
        return;
    }
    for (int64_t i = 0; i < count; i++) narrow[i] = bf16_from_float(from[i]);
}

// The measured peak of this machine's cores in matrix products: the denominator of MFU if no peak is given.
//
// Every thread times one tile of a linear layer again and again, about a millisecond each, and its best time counts.
// Other programs therefore lower the result only if they never leave a thread alone for a millisecond. All threads
// measure at once, so the clock speed is that of a fully loaded processor.
#include "cpu.h"

#include "base/clock.h"

enum { PEAK_ROWS = CPU_GEMM_ROWS, PEAK_COLS = CPU_GEMM_COLS, PEAK_DEPTH = 768 };

// Floats of a thread: two operands, the tile, and the workspace of a product.
enum { PEAK_FLOATS = PEAK_ROWS * PEAK_DEPTH + PEAK_COLS * PEAK_DEPTH + PEAK_ROWS * PEAK_COLS + CPU_GEMM_WORKSPACE };

// Returns the seconds of the calling thread's quickest tile within about `budget` seconds.
static double quickest_tile_(CpuBackend *cpu, float *memory, double budget) {
    enum { LEAST_TILES = 4 };
    bool bf16 = cpu_is_bf16(&cpu->backend);
    float *x = memory, *w = x + PEAK_ROWS * PEAK_DEPTH, *y = w + PEAK_COLS * PEAK_DEPTH;
    CpuOperand a = {x, PEAK_DEPTH, false, bf16, NULL}, b = {w, PEAK_DEPTH, true, bf16, NULL};
    double start = clock_seconds(), last = start, best = INFINITY;
    for (int tile = 0; tile < LEAST_TILES || last - start < budget; tile++) {
        cpu_tile_product(cpu, y + PEAK_ROWS * PEAK_COLS, PEAK_ROWS, PEAK_COLS, PEAK_DEPTH, a, b, false, y, PEAK_COLS);
        double now = clock_seconds();
        // The first tile touches its memory for the first time.
        if (tile > 0 && now - last < best) best = now - last;
        last = now;
    }
    return best;
}

double backend_cpu_measure_peak(int precision, int threads) {
    const double budget = 0.1; // seconds
    Backend *backend = backend_cpu_create(precision, threads, NULL);
    if (backend == NULL) return 0.0;
    CpuBackend *cpu = cpu_self(backend);
    int64_t bytes = (int64_t)cpu->threads * PEAK_FLOATS * 4;
    float *memory = backend->allocate(backend, MEMORY_WORKSPACE, bytes, "measuring the peak", NULL);
    double *seconds = backend->allocate(backend, MEMORY_WORKSPACE, cpu->threads * 8, "measuring the peak", NULL);
    double flops = 2.0 * PEAK_ROWS * PEAK_COLS * PEAK_DEPTH, rate = 0.0;
    if (memory != NULL && seconds != NULL) {
        CPU_PARALLEL(cpu)
        seconds[cpu_thread()] = quickest_tile_(cpu, memory + (int64_t)cpu_thread() * PEAK_FLOATS, budget);
        for (int t = 0; t < cpu->threads; t++) rate += flops / seconds[t];
    }
    if (memory != NULL) backend->release(backend, MEMORY_WORKSPACE, memory, bytes);
    if (seconds != NULL) backend->release(backend, MEMORY_WORKSPACE, seconds, cpu->threads * 8);
    backend->destroy(backend);
    return 1e-12 * rate;
}

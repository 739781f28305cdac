// What this machine's cores can do in matrix products, measured: the denominator of MFU where none is given.
#include "cpu.h"
#include "base/clock.h"

// One pass gives every thread the same work: a linear layer of 2 column strips a thread.
double backend_cpu_measure_peak(int threads) {
    enum { ROWS = CPU_GEMM_ROWS, DEPTH = 768, LEAST_PASSES = 3 };
    const double budget = 0.1; // seconds
    Backend *backend = backend_cpu_create(PRECISION_FP32, threads, NULL);
    if (backend == NULL) return 0.0;
    int64_t cols = CPU_GEMM_COLS * 4 * (int64_t)cpu_self(backend)->threads;
    int64_t floats = ROWS * DEPTH + cols * DEPTH + ROWS * cols;
    float *x = backend->allocate(backend, MEMORY_WORKSPACE, floats * 4, "measuring the peak", NULL);
    double best = 0.0;
    if (x != NULL) {
        float *w = x + ROWS * DEPTH, *y = w + cols * DEPTH;
        double start = clock_seconds(), last = start;
        for (int pass = 0; pass < LEAST_PASSES || last - start < budget; pass++) {
            backend->linear_forward(backend, y, NULL, x, w, NULL, ROWS, DEPTH, cols, EPILOGUE_NONE);
            double now = clock_seconds();
            double rate = 2e-12 * (double)ROWS * (double)DEPTH * (double)cols / (now - last);
            // The first pass touches its memory for the first time.
            if (pass > 0 && rate > best) best = rate;
            last = now;
        }
        backend->release(backend, MEMORY_WORKSPACE, x, floats * 4);
    }
    backend->destroy(backend);
    return best;
}

// A backend in host memory whose operations are the CUDA kernels on the emulator, for the tests of the CPU's
// operations.
#include "backend_emulated.h"

#include "cuda/cuda.h"
#include "emulate.h"

#include <stdio.h>
#include <stdlib.h>

namespace {

void destroy(Backend *backend) {
    CudaBackend *cuda = cuda_self(backend);
    if (cuda->failed_at) {
        fprintf(stderr, "emulated kernel: %s\n", cuda->failed_at);
        abort();
    }
    free(cuda->scratch);
    free(cuda);
}

void fill_table(Backend *b) {
    b->destroy = destroy;
#define OPERATION(result, name, ...) b->name = cuda_##name
#define LIBRARY_OPERATION(...)       // neither cuBLASLt nor cuDNN is emulated
#include "backend/operations.h"
}

} // namespace

// Few multiprocessors and little scratch, so that work that is cut to fit them takes several rounds.
enum { MULTIPROCESSORS = 3, SCRATCH_BYTES = 512 << 10 };

Backend *backend_emulated_create(int precision, int order, Error *) {
    CudaBackend *cuda = (CudaBackend *)calloc(1, sizeof *cuda);
    void *scratch = aligned_alloc(256, SCRATCH_BYTES);
    if (!cuda || !scratch) abort();
    memset(scratch, 0xff, SCRATCH_BYTES); // NaNs
    emulate.order = order >= 1 && order <= 3 ? (EmulateOrder)order : EMULATE_ASCENDING;
    cuda->multiprocessors = MULTIPROCESSORS;
    cuda->shared_bytes = 227 << 10;
    cuda->scratch = scratch;
    cuda->scratch_bytes = SCRATCH_BYTES;
    cuda->backend.self = cuda;
    cuda->backend.precision = precision;
    cuda->backend.element = precision == PRECISION_BF16 ? 2 : 4;
    fill_table(&cuda->backend);
    return &cuda->backend;
}

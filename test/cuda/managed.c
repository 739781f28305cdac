// A GPU backend in managed memory, for the tests of the CPU's operations.
#include "managed.h"

#include "cuda/cuda.h"
#include "device/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

// Header in front of every allocation: how it was allocated.
enum { OF_CUDA = 0x6d616e61, OF_HOST = 0x686f7374, HEAD = 256 };

// Before CUDA starts: every launch waits for its kernel. The virtual GPU has few multiprocessors, and each kernel's
// blocks, warps and lanes take turns in another order than the last one's.
__attribute__((constructor)) static void before_cuda(void) {
    setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
    setenv("VIRTUAL_ORDER", "random", 0);
    setenv("VIRTUAL_MULTIPROCESSORS", "3", 0);
}

Backend *managed_with_little_scratch(Backend *backend) {
    enum { SCRATCH_BYTES = 512 << 10 };
    if (backend != NULL) cuda_self(backend)->scratch_bytes = SCRATCH_BYTES;
    return backend;
}

Backend *managed_backend_create(int precision, int threads, Error *err) {
    char why[256];
    (void)threads;
    const CudaLibrary *cuda = cuda_load(why);
    if (cuda == NULL || cuda->count(why) == 0) skip();
    return managed_with_little_scratch(cuda->backend_create(precision, 0, err));
}

// Without a GPU returns host memory: the test allocates some before it is skipped.
void *managed_malloc(size_t bytes) {
    void *whole = NULL;
    bool managed = cudaMallocManaged(&whole, bytes + HEAD, cudaMemAttachGlobal) == cudaSuccess;
    if (!managed) whole = malloc(bytes + HEAD);
    if (whole == NULL) return NULL;
    *(int *)whole = managed ? OF_CUDA : OF_HOST;
    return (char *)whole + HEAD;
}

void *managed_calloc(size_t count, size_t bytes) {
    void *memory = managed_malloc(count * bytes);
    return memory == NULL ? NULL : memset(memory, 0, count * bytes);
}

void managed_free(void *memory) {
    if (memory == NULL) return;
    char *whole = (char *)memory - HEAD;
    if (*(int *)whole == OF_HOST) {
        free(whole);
        return;
    }
    cudaDeviceSynchronize();
    cudaFree(whole);
}

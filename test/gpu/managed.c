// A GPU backend in managed memory, so that the tests of the CPU's operations run on it unchanged.
#include "managed.h"

#include "device/device.h"

#include <cuda_runtime.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

// Header in front of every allocation: how it was allocated.
enum { OF_CUDA = 0x6d616e61, OF_HOST = 0x686f7374, HEAD = 256 };

// Before CUDA starts: every launch waits for its kernel.
__attribute__((constructor)) static void launch_one_by_one(void) { setenv("CUDA_LAUNCH_BLOCKING", "1", 1); }

Backend *managed_backend_create(int precision, int threads, Error *err) {
    char why[256];
    (void)threads;
    const CudaLibrary *cuda = cuda_load(why);
    if (cuda == NULL || cuda->count(why) == 0) skip();
    return cuda->backend_create(precision, 0, err);
}

// Without a GPU returns host memory: the test allocates some before it is skipped.
void *managed_malloc(size_t bytes) {
    char *whole = NULL;
    bool managed = cudaMallocManaged((void **)&whole, bytes + HEAD, cudaMemAttachGlobal) == cudaSuccess;
    if (!managed) whole = malloc(bytes + HEAD);
    if (whole == NULL) return NULL;
    *(int *)whole = managed ? OF_CUDA : OF_HOST;
    return whole + HEAD;
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

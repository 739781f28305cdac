// Macros that launch kernels, declare shared memory and unroll loops. The virtual GPU (EMULATED,
// test/virtual/include/emulate.h) has its own, except for loops.
#pragma once

#include "cuda.h"

#ifdef EMULATED
#include "emulate.h"
#else

// Queues kernel<<<grid, block, shared bytes>>>(arguments) on the compute stream; an empty grid is not an error. Put a
// template with several arguments in parentheses. CUDA must be asked to allow a block more than 48 KiB of shared
// memory. Kernels declare at most 16 KiB themselves, so the macro asks if `shared` is above 32 KiB.
#define CUDA_LAUNCH(be, grid, block, shared, kernel, ...)                                                              \
    do {                                                                                                               \
        CudaBackend *const cuda_ = cuda_self(be);                                                                      \
        enum { UNASKED_BYTES = 32 << 10 };                                                                             \
        const dim3 grid_ = (grid), block_ = (block);                                                                   \
        const int shared_ = (int)(shared);                                                                             \
        auto *const kernel_ = kernel;                                                                                  \
        if (shared_ > UNASKED_BYTES)                                                                                   \
            cuda_note(cuda_, cudaFuncSetAttribute(kernel_, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_),      \
                      #kernel);                                                                                        \
        if (grid_.x > 0) {                                                                                             \
            kernel_<<<grid_, block_, shared_, cuda_compute(cuda_)>>>(__VA_ARGS__);                                     \
            cuda_note(cuda_, cudaGetLastError(), #kernel);                                                             \
        }                                                                                                              \
    } while (0)

// SHARED declares an array in shared memory; SHARED_DYNAMIC declares one that the launch sizes.
#define SHARED(type, name, count)  __shared__ type name[count]
#define SHARED_DYNAMIC(type, name) extern __shared__ __align__(16) type name[]

// The hardware reports misaligned accesses by itself.
#define CHECK_ALIGNED(pointer, bytes)

// Hides the value of a 32-bit word from the optimizer.
#define OPAQUE(word) asm volatile("" : "+r"(word))

#endif

// A loop that is unrolled completely, so that arrays indexed by i stay in registers.
#define EACH(i, count) _Pragma("unroll") for (int i = 0; i < (count); i++)

// Returns the number of blocks for `work` pieces, with `each` pieces per block. The number fits in one grid dimension,
// because a GPU's memory limits `work`.
static inline unsigned launch_blocks(int64_t work, int64_t each) { return (unsigned)((work + each - 1) / each); }

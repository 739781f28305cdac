// How kernels are launched and how they name shared memory: the few words that an emulator on a CPU needs to hear
// (EMULATED, test/emulate/emulate.h) and that CUDA spells otherwise.
#ifndef LAUNCH_CUH
#define LAUNCH_CUH

#include "cuda.h"

#ifdef EMULATED
#include "emulate.h"
#else

// Queues kernel<<<grid, block, shared bytes>>>(arguments) on the compute stream; an empty grid is no error. A template
// with several arguments stands in parentheses. Blocks of more than 48 KiB of shared memory have to be asked
// for, what a kernel declares itself included; none declares more than 16.
#define CUDA_LAUNCH(cuda, grid, block, shared, kernel, ...)                                                            \
    do {                                                                                                               \
        enum { UNASKED_BYTES = 32 << 10 };                                                                             \
        const dim3 grid_ = (grid), block_ = (block);                                                                   \
        const int shared_ = (int)(shared);                                                                             \
        auto *const kernel_ = kernel;                                                                                  \
        if (shared_ > UNASKED_BYTES)                                                                                   \
            cuda_note(cuda, cudaFuncSetAttribute(kernel_, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_),       \
                      #kernel);                                                                                        \
        if (grid_.x > 0) {                                                                                             \
            kernel_<<<grid_, block_, shared_, cuda_compute(cuda)>>>(__VA_ARGS__);                                      \
            cuda_note(cuda, cudaGetLastError(), #kernel);                                                              \
        }                                                                                                              \
    } while (0)

// An array of the block; and the one whose bytes the launch gives.
#define SHARED(type, name, count)  __shared__ type name[count]
#define SHARED_DYNAMIC(type, name) extern __shared__ __align__(16) type name[]

// Hardware faults by itself.
#define CHECK_ALIGNED(pointer, bytes)

// Makes the compiler forget what it knows of a 32-bit word.
#define OPAQUE(word) asm volatile("" : "+r"(word))

#endif

// Blocks for `work` pieces, `each` to a block. One dimension: 2^31 - 1 blocks are more than memory has pieces for.
static inline unsigned launch_blocks(int64_t work, int64_t each) {
    return (unsigned)((work + each - 1) / each);
}

#endif

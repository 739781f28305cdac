// Runs CUDA kernels on a CPU, from the same source nvcc compiles, to find wrong indexes, missing barriers and outputs
// that no thread wrote, without a GPU. Included by src/cuda/launch.cuh where EMULATED is defined. A launch is queued on
// its stream, with a copy of its arguments.
//
// Blocks run one after another; the threads of a block are fibers, switched where they wait: at __syncthreads, and at a
// warp's shuffle or ballot. A warp runs as far as it gets before the next warp runs. EmulateOrder selects the order of
// blocks, warps and lanes, and a correct kernel gives the same bits in every order. Ascending and descending order
// together show every missing barrier: if thread a writes a value that b reads with no barrier in between, one of the
// orders runs them the wrong way round. The same holds for a block that reads a value that another block of the launch
// wrote.
//
// A defect ends the program with the kernel's name: a barrier that only a part of a block or warp reaches, writes past
// the end of a shared array, an access that is not aligned to its size. Shared memory is filled with NaNs when a block
// starts. Accesses to device memory are checked by shadow.cc.
//
// Not shown: speed, races between blocks that run at the same time, the memory model, and the last bits of the device's
// own expf, exp2f and __fdividef.
#pragma once

#include <cuda_runtime.h>
#include <math.h>
#include <memory>
#include <stdint.h>
#include <string.h>
#include <tuple>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

enum EmulateOrder { EMULATE_ASCENDING = 1, EMULATE_DESCENDING = 2, EMULATE_SHUFFLED = 3 };

// The launch in progress. Kernels use bare names such as threadIdx, so this has to be a global.
struct EmulateLaunch {
    dim3 grid, block, block_index, thread_index;
    EmulateOrder order;
    int64_t only; // index of the only block that runs; -1: all blocks run
};
extern EmulateLaunch emulate;

#define threadIdx emulate.thread_index
#define blockIdx  emulate.block_index
#define blockDim  emulate.block
#define gridDim   emulate.grid

// Calls body(context) once for each thread. Returns NULL, or a message about the kernel's error.
const char *emulate_run(dim3 grid, dim3 block, int64_t shared_bytes, void (*body)(void *), void *context,
                        const char *kernel);

// --- called by kernels
void emulate_barrier(void);
// Exchanges 8 bytes of every lane of the warp. The result is valid until the calling lane's next exchange.
const uint64_t *emulate_exchange(uint64_t value);
void *emulate_shared(const void *key, int64_t bytes); // the same memory for all threads of a block that pass `key`
void *emulate_shared_dynamic(void);
void emulate_check_aligned(const void *pointer, int64_t bytes);

#define CHECK_ALIGNED(pointer, bytes) emulate_check_aligned(pointer, (int64_t)(bytes))
#define OPAQUE(word)                  ((void)(word))

// Each expansion has its own static as the key, which distinguishes arrays even between instances of a template.
#define SHARED(type, name, count)                                                                                      \
    static const char name##_key = 0;                                                                                  \
    type *const name = (type *)emulate_shared(&name##_key, (int64_t)sizeof(type) * (count))
#define SHARED_DYNAMIC(type, name) type *const name = (type *)emulate_shared_dynamic()

// --- launches
struct VirtualLaunch {
    const char *name;
    const void *kernel; // tells one instance of a template from another
    dim3 grid, block;
    int64_t shared_bytes;
    void (*run)(void *held);    // one thread
    std::shared_ptr<void> held; // the kernel and the launch's copy of its arguments, which a kernel may read
    int64_t held_bytes;
};

cudaError_t virtual_launch(const VirtualLaunch &launch, cudaStream_t stream);

template <typename... P> struct VirtualCall {
    void (*kernel)(P...);
    std::tuple<P...> arguments;
    static void run(void *held) {
        VirtualCall *call = (VirtualCall *)held;
        std::apply(call->kernel, call->arguments);
    }
};

// Arguments are copied when a kernel is launched (CUDA C++ programming guide, "__global__ function parameters").
template <typename... P, typename... A>
cudaError_t virtual_queue(const char *name, void (*kernel)(P...), dim3 grid, dim3 block, int64_t shared,
                          cudaStream_t stream, A... arguments) {
    typedef VirtualCall<P...> Call;
    std::shared_ptr<void> held(new Call{kernel, std::tuple<P...>(arguments...)}, [](void *p) { delete (Call *)p; });
    return virtual_launch({name, (const void *)kernel, grid, block, shared, Call::run, held, sizeof(Call)}, stream);
}

#define CUDA_LAUNCH(backend, grid, block, shared, kernel, ...)                                                         \
    do {                                                                                                               \
        CudaBackend *const cuda_ = cuda_self(backend);                                                                 \
        const dim3 grid_ = dim3(grid), block_ = dim3(block);                                                           \
        auto *const kernel_ = kernel;                                                                                  \
        if (grid_.x > 0)                                                                                               \
            virtual_queue(#kernel, kernel_, grid_, block_, (int64_t)(shared), cuda_compute(cuda_), __VA_ARGS__),       \
                cuda_note(cuda_, cudaGetLastError(), #kernel);                                                         \
    } while (0)

// --- device functions
static inline void __syncthreads(void) { emulate_barrier(); }

template <typename T> static inline T __shfl_xor_sync(unsigned, T value, int mask) {
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    const uint64_t *lanes = emulate_exchange(bits);
    uint64_t theirs = lanes[(emulate.thread_index.y * emulate.block.x + emulate.thread_index.x) % 32 ^ (unsigned)mask];
    memcpy(&value, &theirs, sizeof value);
    return value;
}

static inline unsigned __ballot_sync(unsigned, bool vote) {
    const uint64_t *lanes = emulate_exchange(vote);
    unsigned votes = 0;
    for (int lane = 0; lane < 32; lane++) votes |= (unsigned)lanes[lane] << lane;
    return votes;
}

static inline int atomicMax(int *at, int value) {
    int old = *at;
    if (value > old) *at = value;
    return old;
}

static inline unsigned long long atomicAdd(unsigned long long *at, unsigned long long value) {
    unsigned long long old = *at;
    *at += value;
    return old;
}

static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __uint_as_float(unsigned x) {
    float out;
    memcpy(&out, &x, sizeof out);
    return out;
}
static inline unsigned __float_as_uint(float x) {
    unsigned out;
    memcpy(&out, &x, sizeof out);
    return out;
}

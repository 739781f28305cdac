// Kernels of src/cuda/kernels on the virtual GPU: the emulator of test/emulate runs them, but a launch is queued on its
// stream and not executed at once. Found by src/cuda/launch.cuh because test/virtual/include comes first in the include
// path.
#pragma once

#include "../../emulate/emulate.h"

#include <cuda_runtime.h>
#include <memory>
#include <tuple>

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

#undef CUDA_LAUNCH
#define CUDA_LAUNCH(cuda, grid, block, shared, kernel, ...)                                                            \
    do {                                                                                                               \
        const dim3 grid_ = dim3(grid), block_ = dim3(block);                                                           \
        auto *const kernel_ = kernel;                                                                                  \
        if (grid_.x > 0)                                                                                               \
            virtual_queue(#kernel, kernel_, grid_, block_, (int64_t)(shared), cuda_compute(cuda), __VA_ARGS__),        \
                cuda_note(cuda, cudaGetLastError(), #kernel);                                                          \
    } while (0)

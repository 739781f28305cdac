// The table that the trainer loads, and the environment variables that have to be set before CUDA starts.
#include "cuda_library.h"

#include <cstdlib>

// Does not overwrite a value that the user has set.
static void set_environment_() {
    // A waiting stream may block others that share its hardware queue. By default eight queues serve all streams of a
    // process, and a rank has more streams than that (CUDA C++ programming guide, CUDA_DEVICE_MAX_CONNECTIONS).
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    // EAGER would load every kernel of cuBLASLt, cuDNN and NCCL, about a GiB of files. The rehearsal launches every
    // kernel of a step before the first message, so that no step loads a kernel.
    setenv("CUDA_MODULE_LOADING", "LAZY", 0);
    // Connects the collectives of a group when it is created, not in the first call (NCCL environment variables).
    setenv("NCCL_RUNTIME_CONNECT", "0", 0);
    // Sums by NVLink SHARP are "not deterministic between different calls" (NVIDIA/nccl issue 1497), and a resumed run
    // must produce the same bits as an uninterrupted run.
    setenv("NCCL_NVLS_ENABLE", "0", 0);
}

const CudaLibrary *cuda_library(void) {
    static const CudaLibrary table = {
        CUDA_INTERFACE,      backend_cuda_count, backend_cuda_identity, backend_cuda_versions,
        backend_cuda_create, comm_nccl_create,   comm_copy_create,      comm_staged_create,
    };
    set_environment_();
    return &table;
}

// The table that the trainer loads.
#include "cuda_library.h"

const CudaLibrary *cuda_library(void) {
    static const CudaLibrary table = {
        CUDA_INTERFACE,      backend_cuda_count, backend_cuda_identity, backend_cuda_versions,
        backend_cuda_create, comm_nccl_create,   comm_copy_create,      comm_staged_create,
    };
    cuda_set_environment(); // for programs other than the trainers
    return &table;
}

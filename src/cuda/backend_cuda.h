// NVIDIA GPUs as devices. These functions are in the library that cuda_library.h describes, and are called through it.
#pragma once

#include "backend/backend.h"

#include <sys/cdefs.h>

__BEGIN_DECLS

// Returns the number of GPUs visible to this process. If it is 0, `why` names the missing part in one clause: a driver,
// a newer driver, a GPU. Takes no memory on any of them.
int backend_cuda_count(char why[256]);

// A visible GPU's description of itself, read without a context, which would take memory.
typedef struct GpuIdentity {
    char id[40]; // its UUID in hexadecimal, which tells it from every other
    char name[80];
    char bus[16]; // where it is on PCI, "0000:3b:00.0"
    int64_t memory_bytes;
} GpuIdentity;

// Fills in the identity, or zeros if the GPU does not answer.
void backend_cuda_identity(int device, GpuIdentity *identity);

// Creates the backend of one GPU: `device` counts from 0 among those visible. Takes 64 MiB of its memory in addition to
// later allocations: scratch of the kernels and cuBLASLt's workspace. NULL with err.
Backend *backend_cuda_create(int precision, int device, Error *err);

// Writes "driver for CUDA 13.0, CUDA 13.0, cuBLAS 13.1.0, cuDNN 9.19.0, NCCL 2.28.9".
void backend_cuda_versions(char *text, int64_t size);

__END_DECLS

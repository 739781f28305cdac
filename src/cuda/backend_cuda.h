// NVIDIA GPUs as devices. The program calls these functions through the library table of cuda_library.h.
#pragma once

#include "backend/backend.h"

#include <sys/cdefs.h>

__BEGIN_DECLS

// Returns the number of GPUs visible to this process. If it is 0, `why` is the reason in one clause, such as a missing
// or an outdated driver. Allocates no GPU memory.
int backend_cuda_count(char why[256]);

// Properties of a visible GPU, read without creating a context, which would take memory.
typedef struct GpuIdentity {
    char id[40]; // UUID in hexadecimal, different for every GPU
    char name[80];
    char bus[16]; // PCI address, "0000:3b:00.0"
    int64_t memory_bytes;
} GpuIdentity;

// Fills in the identity, or zeros if the GPU does not answer.
void backend_cuda_identity(int device, GpuIdentity *identity);

// Creates the backend of one GPU; `device` is its index among the visible GPUs, from 0. Allocates 64 MiB of GPU memory:
// scratch of the kernels and cuBLASLt's workspace. Returns NULL with err on failure.
Backend *backend_cuda_create(int precision, int device, Error *err);

// Writes "driver for CUDA 13.0, CUDA 13.0, cuBLAS 13.1.0, cuDNN 9.19.0, NCCL 2.28.9".
void backend_cuda_versions(char *text, int64_t size);

__END_DECLS

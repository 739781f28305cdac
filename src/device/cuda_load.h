// Finds and loads the library with the GPU code (src/cuda/cuda_library.h).
#ifndef CUDA_LOAD_H
#define CUDA_LOAD_H

#include "cuda/cuda_library.h"

#include <stdbool.h>

// Returns the library's table. It lies beside the program, or in ../lib/bpipe-trainer where `make install` puts it.
// NULL if there is none or it cannot be used; `why` then says so in one clause, with the remedy. Every call returns the
// same table, and the library stays loaded until the process ends.
const CudaLibrary *cuda_load(char why[256]);

// Returns whether an NVIDIA driver is loaded on this machine, judged by its device files: costs nothing.
bool cuda_driver_present(void);

#endif

// A CudaBackend whose device is the emulator: the operations that are kernels of our own, and nothing else.
#pragma once

#include "backend/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

// Compiled with backend_cpu_create renamed to this, the tests of the CPU's operations run on the kernels. What they
// vary as the number of threads, which may change no bit, is here the order of turns: 1 ascending, 2 descending, 3
// shuffled. Operations that fail end the program with the emulator's sentence when the backend is destroyed.
Backend *backend_emulated_create(int precision, int order, Error *err);

#ifdef __cplusplus
}
#endif

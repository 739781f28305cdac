// A CudaBackend whose device is the emulator: the operations that are kernels of our own, and nothing else.
#pragma once

#include "backend/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

// The tests of the CPU's operations are compiled with backend_cpu_create renamed to this, to run on the kernels. Their
// number of threads, which must not change a bit, selects the order of turns here: 1 ascending, 2 descending, 3
// shuffled. If an operation failed, destroying the backend ends the program with the emulator's message.
Backend *backend_emulated_create(int precision, int order, Error *err);

#ifdef __cplusplus
}
#endif

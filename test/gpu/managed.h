// Lets the tests of the CPU's operations run on a GPU as they are: compiled with backend_cpu_create, malloc, calloc and
// free renamed to these, their memory is managed (both sides read it) and every operation is complete when it returns.
#pragma once

#include "backend/backend.h"

#include <stddef.h>

// GPU 0, whatever `threads` says: tests that vary it see the same bits twice. Ends the program as skipped where there
// is not a GPU.
Backend *managed_backend_create(int precision, int threads, Error *err);

void *managed_malloc(size_t bytes);
void *managed_calloc(size_t count, size_t bytes);
void managed_free(void *memory);

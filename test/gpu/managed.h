// Lets the tests of the CPU's operations run on a GPU unchanged. They are compiled with backend_cpu_create, malloc,
// calloc and free renamed to these: their memory is managed, and every operation is complete when it returns.
#pragma once

#include "backend/backend.h"

#include <stddef.h>

// Opens GPU 0 and ignores `threads`: tests that vary it see the same bits twice. Without a GPU, skips the running
// test.
Backend *managed_backend_create(int precision, int threads, Error *err);

void *managed_malloc(size_t bytes);
void *managed_calloc(size_t count, size_t bytes);
void managed_free(void *memory);

// Lets the tests of the CPU's operations run on a GPU, virtual or real, unchanged. They are compiled with
// backend_cpu_create, malloc, calloc and free renamed to these: their memory is managed, and every operation is
// complete when it returns.
#pragma once

#include "backend/backend.h"

#include <stddef.h>

// Opens GPU 0 and ignores `threads`: tests that vary it compare runs whose kernels, on the virtual GPU, take their
// turns in different orders. Without a GPU, skips the running test.
Backend *managed_backend_create(int precision, int threads, Error *err);
// Leaves the operations so little scratch memory that work which is cut to fit takes several rounds.
Backend *managed_with_little_scratch(Backend *backend);

void *managed_malloc(size_t bytes);
void *managed_calloc(size_t count, size_t bytes);
void managed_free(void *memory);

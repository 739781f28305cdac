// Allocations that exit on failure, see alloc.h. The message bypasses stdio, which may allocate memory itself.
#include "alloc.h"
#include "log.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

static void alloc_fail_(void) {
    static const char text[] = "out of host memory: free memory on this host, or raise the limit (ulimit -v)\n";
    if (write(STDERR_FILENO, text, sizeof text - 1) < 0) _exit(EXIT_FAILED);
    _exit(EXIT_FAILED);
}

static void *sure_(void *memory) {
    if (memory == NULL) alloc_fail_();
    return memory;
}

void *xmalloc(size_t bytes) { return sure_(malloc(bytes > 0 ? bytes : 1)); }

void *xcalloc(size_t count, size_t size) { return sure_(calloc(count > 0 ? count : 1, size > 0 ? size : 1)); }

void *xrealloc(void *memory, size_t bytes) { return sure_(realloc(memory, bytes > 0 ? bytes : 1)); }

void *xaligned(size_t alignment, size_t bytes) {
    void *memory = NULL;
    if (posix_memalign(&memory, alignment, bytes > 0 ? bytes : alignment) != 0) alloc_fail_();
    return memory;
}

void free_pointers(void **pointers, size_t count) {
    for (size_t i = 0; i < count; i++) free(pointers[i]);
}

FILE *xmemstream(char **text, size_t *length) { return sure_(open_memstream(text, length)); }

void xmemstream_close(FILE *stream) {
    int failed = ferror(stream);
    if (fclose(stream) != 0 || failed) alloc_fail_();
}

void alloc_keep_freed(void) {
#ifdef __GLIBC__
    enum { MOST_KEPT = 1 << 30 };
    // glibc before 2.35 accepts at most 32 MiB. M_TRIM_THRESHOLD by itself would disable the adaptive mmap threshold.
    if (mallopt(M_MMAP_THRESHOLD, MOST_KEPT) == 0) mallopt(M_MMAP_THRESHOLD, 32 << 20);
    mallopt(M_TRIM_THRESHOLD, MOST_KEPT);
#endif
}

void *xgrow(void *items, int64_t count, size_t size) {
    bool full = (count & (count - 1)) == 0;
    return full ? xrealloc(items, (count > 0 ? 2 * (size_t)count : 1) * size) : items;
}

char *xstrdup(const char *text) {
    size_t bytes = strlen(text) + 1;
    return memcpy(xmalloc(bytes), text, bytes);
}

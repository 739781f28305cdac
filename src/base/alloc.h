// Small host allocations: lists, tables, lines of text. If an allocation fails, the program prints a message and exits,
// so callers need no error path.
//
// Allocations that can be large (activation slots, device memory, the copy of a checkpoint, a file with a size in its
// header) do not use these functions: they fail with an error that states the bytes and the remedy.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

// Wrap the stdlib.h functions named without the x. They never return NULL, even for zero bytes. Release with free().
void *xmalloc(size_t bytes);
void *xcalloc(size_t count, size_t size);
void *xrealloc(void *memory, size_t bytes);
// Returns the list of `count` items with room for one more; its capacity doubles when `count` is a power of two.
void *xgrow(void *items, int64_t count, size_t size);
// Appends an item to a list of `count` items.
#define xpush(items, count, item) ((items) = xgrow(items, count, sizeof *(items)), (items)[(count)++] = (item))
char *xstrdup(const char *text);
void *xaligned(size_t alignment, size_t bytes); // alignment: a power of two >= sizeof(void *)

// Frees each of its arguments; NULL is allowed.
#define free_all(...) free_pointers((void *[]){__VA_ARGS__}, sizeof((void *[]){__VA_ARGS__}) / sizeof(void *))
void free_pointers(void **pointers, size_t count);

// Open and close a memory stream (open_memstream). `*text` and `*length` are valid once the stream is closed.
FILE *xmemstream(char **text, size_t *length);
void xmemstream_close(FILE *stream);

// Keeps freed memory in this process instead of returning it to the kernel, which would clear every page again before
// its next use. For code that often allocates and frees large lists or buffers. No effect without glibc.
void alloc_keep_freed(void);

__END_DECLS

// Small allocations on the host: lists, tables, lines of text. If one fails, the program ends with one message printed
// in one place, so that callers need no error path for it.
//
// Allocations that can be large (activation slots, device memory, the copy of a checkpoint, a file with a size in its
// header) keep an error of their own, which names the bytes and the remedy.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

// Like the functions of stdlib.h without the x, but they never return NULL, not even for zero bytes. Release with
// free().
void *xmalloc(size_t bytes);
void *xcalloc(size_t count, size_t size);
void *xrealloc(void *memory, size_t bytes);
// Makes room in a list of `count` items for one more. The list keeps no capacity: it grows at powers of two.
void *xgrow(void *items, int64_t count, size_t size);
char *xstrdup(const char *text);
void *xaligned(size_t alignment, size_t bytes); // posix_memalign: a power of two, and a multiple of a pointer's size

// Frees each of its arguments; NULL is allowed.
#define free_all(...) free_pointers((void *[]){__VA_ARGS__}, sizeof((void *[]){__VA_ARGS__}) / sizeof(void *))
void free_pointers(void **pointers, size_t count);

// Like open_memstream and the fclose that ends it: `*text` and `*length` are valid once the stream is closed.
FILE *xmemstream(char **text, size_t *length);
void xmemstream_close(FILE *stream);

// Keeps freed memory in this process instead of returning it to the kernel, which would clear every page again before
// its next use. For code that makes and frees large lists or buffers all the time. No effect without glibc.
void alloc_keep_freed(void);

__END_DECLS

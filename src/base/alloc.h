// Small allocations on the host: lists, tables, lines of text. Without them nothing sensible can be said or done, so
// they end the program with one message in one place instead of an error path at every caller.
//
// What can be large (activation slots, device memory, the copy of a checkpoint, a file whose header names its size)
// keeps its own error, which names the bytes and the remedy.
#ifndef ALLOC_H
#define ALLOC_H

#include <stddef.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

// As the functions of stdlib.h without the x, but never NULL, also for zero bytes. free() releases what they return.
void *xmalloc(size_t bytes);
void *xcalloc(size_t count, size_t size);
void *xrealloc(void *memory, size_t bytes);
char *xstrdup(const char *text);

// As open_memstream and fclose of it: `*text` and `*length` are valid once the stream is closed.
FILE *xmemstream(char **text, size_t *length);
void xmemstream_close(FILE *stream);

#ifdef __cplusplus
}
#endif

#endif

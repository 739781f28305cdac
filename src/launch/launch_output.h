// What comes out of mpirun's stderr: lines of the ranks, and mpirun's own framed blocks. Lines and blocks pass through
// to our stderr, whole; the blocks in which mpirun comments on ranks that failed are kept back and read.
#ifndef LAUNCH_OUTPUT_H
#define LAUNCH_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>

typedef struct LaunchText {
    char *at; // ends with a zero once something was appended
    size_t length, capacity;
} LaunchText;

typedef struct LaunchOutput {
    int to;             // where passed lines go
    LaunchText line;    // not ended yet
    LaunchText block;   // framed, not closed yet
    LaunchText comment; // kept back
    bool framed;
} LaunchOutput;

// What mpirun said about the first rank that failed; -1: nothing.
typedef struct LaunchComment {
    int rank, signal, code;
} LaunchComment;

void launch_output_take(LaunchOutput *output, const char *bytes, size_t count);
// Passes on a frame that was opened a while ago and not closed: a rank's line that looked like one.
void launch_output_settle(LaunchOutput *output);
// Passes on what is left at the end.
void launch_output_end(LaunchOutput *output);
LaunchComment launch_output_comment(const LaunchOutput *output);
void launch_output_free(LaunchOutput *output);

#endif

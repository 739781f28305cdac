// The buffers between neighbouring stages. An edge goes one way: activations forward or gradients backward. Its sender has
// EDGE_BUFFERS buffers and its receiver as many, both used in turn, so that a message can travel while the next one is made.
#ifndef EDGES_H
#define EDGES_H

#include "backend/backend.h"
#include "bpipe.h"
#include "comm/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { EDGE_BUFFERS = SCHEDULE_EDGE_BUFFERS }; // what the proof of progress counts on

// One end of an edge. Messages are numbered from 0 in each run; message i uses buffer i mod EDGE_BUFFERS. On the sending end
// `opened` messages were written; on the receiving end `opened` are consumed. `started` and `finished` count transfers.
typedef struct Edge {
    Comm *comm; // NULL: no neighbour there
    int peer;
    bool sends;
    int64_t bytes, expected; // message size; messages in this run
    int64_t started, finished;
    int64_t opened; // sender: messages written; receiver: messages consumed
    void *memory;
    const Event *used[EDGE_BUFFERS]; // sender: message written; receiver: message read
    CommRequest requests[EDGE_BUFFERS];
    Backend *be;
} Edge;

int edge_create(Edge *edge, Backend *be, Comm *comm, int peer, bool sends, int64_t bytes, Error *err);
void edge_destroy(Edge *edge);

// Starts a run of `expected` messages.
void edge_begin(Edge *edge, int64_t expected);

// Starts and finishes what can be. 0, or -1 with err.
int edge_progress(Edge *edge, Error *err);

// Whether the next message has a buffer: free to write (sender), or arrived (receiver); and that buffer, which is nobody's before
// edge_ready says so. An edge without a neighbour is always ready, with NULL.
bool edge_ready(const Edge *edge);
void *edge_buffer(const Edge *edge);

// The next message was written (sender) or read (receiver) once `when` is done.
void edge_used(Edge *edge, const Event *when);

// All messages of this run have gone or come.
bool edge_drained(const Edge *edge);

#ifdef __cplusplus
}
#endif

#endif

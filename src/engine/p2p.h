// The buffers between neighbouring stages. An edge goes one way: activations forward or gradients backward. Its sender has
// P2P_BUFFERS buffers and its receiver as many, both used in turn, so that a message can travel while the next one is made.
#ifndef P2P_H
#define P2P_H

#include "backend/backend.h"
#include "bpipe.h"
#include "comm/comm.h"

enum { P2P_BUFFERS = SCHEDULE_EDGE_BUFFERS }; // what the proof of progress counts on

// One end of an edge. Messages are numbered from 0 in each run; message i uses buffer i mod P2P_BUFFERS. On the sending end
// `opened` messages were written; on the receiving end `opened` are consumed. `started` and `finished` count transfers.
typedef struct P2pLink {
    Comm *comm; // NULL: no neighbour there
    int peer;
    bool sends;
    int64_t bytes, expected; // message size; messages in this run
    int64_t started, finished;
    int64_t opened; // sender: messages written; receiver: messages consumed
    void *memory;
    const Event *used[P2P_BUFFERS]; // sender: message written; receiver: message read
    CommRequest requests[P2P_BUFFERS];
    Backend *be;
} P2pLink;

int p2p_create(P2pLink *link, Backend *be, Comm *comm, int peer, bool sends, int64_t bytes, Error *err);
void p2p_destroy(P2pLink *link);

// Starts a run of `expected` messages.
void p2p_begin(P2pLink *link, int64_t expected);

// Starts and finishes what can be. 0, or -1 with err.
int p2p_progress(P2pLink *link, Error *err);

// Whether the next message has a buffer: free to write (sender), or arrived (receiver); and that buffer, which is nobody's before
// p2p_ready says so. An edge without a neighbour is always ready, with NULL.
bool p2p_ready(const P2pLink *link);
void *p2p_buffer(const P2pLink *link);

// The next message was written (sender) or read (receiver) once `when` is done.
void p2p_used(P2pLink *link, const Event *when);

// All messages of this run have gone or come.
bool p2p_drained(const P2pLink *link);

#endif

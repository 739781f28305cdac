// The buffers between virtual stages. A boundary has two directions: activations forward, gradients backward. In each
// direction the sender and the receiver have `edge_buffers` buffers each (rule 6 of bpipe.h), used in rotation, so that
// a message can be in flight while the next one is computed. If both virtual stages are on this rank, there is no
// message: the receiver reads the sender's buffer.
#pragma once

#include "backend/backend.h"
#include "bpipe.h"
#include "comm/comm.h"
#include "stage.h"

// The two directions over a boundary between virtual stages g and g+1.
typedef enum P2pWay { P2P_FORWARD, P2P_BACKWARD, P2P_WAYS } P2pWay;

// One end of one direction. Messages are numbered from 0 in each run; message i uses buffer i mod `buffers`. A sender
// has written `opened` messages, a receiver has consumed `opened`.
typedef struct P2pLink {
    Comm *comm;                // NULL: the other end is not on another rank
    const struct P2pLink *end; // the other end, if on this rank; comm and end both NULL: no neighbour
    int peer;                  // rank of the other end in comm, equal to its stage
    int chunk;                 // the chunk of this stage that sends or receives here
    int boundary;              // between the virtual stages boundary and boundary + 1
    P2pWay way;
    bool sends;
    int buffers;
    int64_t bytes, expected;   // message size; messages in this run
    int64_t started, finished; // number of transfers started; number finished
    int64_t opened;            // sender: messages written; receiver: messages consumed
    void *memory;
    const Event **used;    // (buffers) end of the latest write (sender) or read (receiver); NULL: not used yet
    CommRequest *requests; // (buffers)
    Backend *be;
} P2pLink;

// Messages between two ranks of one group arrive in the order in which they were sent, so each direction from one stage
// to another needs a group of its own: its lane. Returns how many lanes a schedule needs, the same on all stages: 1
// without chunks, 0 with one stage.
int p2p_lanes(const Schedule *schedule);

// Returns the bytes that a stage allocates for the buffers of all its links. Each link's buffers are rounded up to
// multiples of `page` (0: no rounding).
int64_t p2p_bytes(const Schedule *schedule, int stage, int64_t message_bytes, int64_t page);

// Starts a run of `expected` messages.
void p2p_begin(P2pLink *link, int64_t expected);

// Starts and finishes every message that it can. Returns 0, or -1 with err.
int p2p_progress(P2pLink *link, Error *err);

// p2p_ready returns whether the next message's buffer may be written (sender), or the message has arrived (receiver).
// p2p_buffer returns this buffer; do not touch it earlier. Without a neighbour a link is ready and its buffer is NULL.
bool p2p_ready(const P2pLink *link);
void *p2p_buffer(const P2pLink *link);

// Marks the next message as written (sender) or read (receiver) once `when` is complete.
void p2p_used(P2pLink *link, const Event *when);

// --- all links of a stage

// The links of one chunk: activations come from the previous virtual stage and go to the next, gradients the other way.
typedef struct ChunkLinks {
    P2pLink in[P2P_WAYS], out[P2P_WAYS];
} ChunkLinks;

typedef struct Links {
    int chunks;
    int edge_buffers; // buffers on each side of each link
    ChunkLinks chunk[STAGE_MOST_CHUNKS];
} Links;

// Creates and connects the links of a stage. Every stage calls this. lanes: EngineGroups. Returns -1 with err;
// links_destroy is then still needed.
int links_create(Links *links, Backend *be, const Schedule *schedule, int stage, int64_t message_bytes,
                 Comm *const *lanes, Error *err);
void links_destroy(Links *links);

// Returns the stage's link number i, counted from 0, or NULL if there are no more links.
P2pLink *links_at(Links *links, int i);

// Returns whether all messages of this run have been sent or received.
bool links_drained(Links *links);

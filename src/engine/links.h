// The links of one stage: for each of its chunks the message buffers to and from the neighbouring virtual stages
// (p2p.h).
#ifndef LINKS_H
#define LINKS_H

#include "p2p.h"
#include "stage.h"

// Of one chunk: activations come from the previous virtual stage and go to the next, gradients the other way.
typedef struct ChunkLinks {
    P2pLink in[P2P_WAYS], out[P2P_WAYS];
} ChunkLinks;

typedef struct Links {
    Backend *be;
    int chunks;
    int edge_buffers; // of each link
    ChunkLinks chunk[STAGE_MOST_CHUNKS];
} Links;

// Creates and connects the links of a stage. Every stage calls this. lanes: EngineGroups. -1 with err; destroy them all
// the same.
int links_create(Links *links, Backend *be, const Schedule *schedule, int stage, int64_t message_bytes,
                 Comm *const *lanes, Error *err);
void links_destroy(Links *links);

// Returns the links one after another, NULL after the last. Link i is of way i / 2 % P2P_WAYS and of chunk
// i / (2 * P2P_WAYS).
P2pLink *links_at(Links *links, int i);

#endif

// Finds the action that ends next in a simulation (simulate.c). Actions of the same duration end in the order of their
// starts, and most actions have one of a few durations. So the ends of one duration form a chain, and a heap orders the
// chains by their first ends.
#pragma once

#include "base/alloc.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef enum EndKind { END_COMPUTE, END_QUEUED, END_TRANSFER, END_MESSAGE, END_SHARE } EndKind;

typedef struct End {
    double time;
    float duration; // rounded, since equal durations of a shared resource's users may differ by rounding
    EndKind kind;
    int at;   // stage that computes, evictor of a transfer, edge of a message, or resource whose next user ends
    int next; // next end of the chain, or next unused end; -1: last end of the chain
} End;

typedef struct Chain {
    double time; // time of the first end
    int first;   // index of the first end
} Chain;

enum { TAILS = 256 };

typedef struct Ends {
    End *ends;
    Chain *heap; // earliest first
    int chains;
    int allocated;    // length of both arrays
    int unused;       // index of the first unused end; `allocated`: none
    int tails[TAILS]; // last end of a chain, indexed by the hash of the chain's duration; -1: no chain
} Ends;

// The caller frees ends and heap.
static inline void ends_open(Ends *all) { memset(all->tails, -1, sizeof all->tails); }

static inline void ends_grow(Ends *all) {
    int more = 2 * all->allocated + 64;
    all->ends = xrealloc(all->ends, (size_t)more * sizeof *all->ends);
    all->heap = xrealloc(all->heap, (size_t)more * sizeof *all->heap);
    for (int i = all->allocated; i < more; i++) all->ends[i].next = i + 1;
    all->allocated = more;
}

static inline int *ends_tail(Ends *all, float duration) {
    uint32_t bits;
    memcpy(&bits, &duration, sizeof bits);
    return &all->tails[bits * 0x9e3779b9u >> 24];
}

static inline void ends_push(Ends *all, double time, float duration, EndKind kind, int where) {
    if (all->unused == all->allocated) ends_grow(all);
    int end = all->unused, *tail = ends_tail(all, duration), at;
    all->unused = all->ends[end].next;
    all->ends[end] = (End){time, duration, kind, where, -1};
    bool chained = *tail >= 0 && all->ends[*tail].duration == duration && all->ends[*tail].time <= time;
    if (chained) all->ends[*tail].next = end;
    *tail = end;
    if (chained) return;
    Chain *heap = all->heap, chain = {time, end};
    at = all->chains++;
    for (int parent; at > 0 && chain.time < heap[parent = (at - 1) / 2].time; at = parent) heap[at] = heap[parent];
    heap[at] = chain;
}

static inline End ends_pop(Ends *all) {
    Chain *heap = all->heap;
    int first = heap[0].first, *tail = ends_tail(all, all->ends[first].duration), at = 0;
    End end = all->ends[first];
    if (*tail == first) *tail = -1;
    all->ends[first].next = all->unused;
    all->unused = first;
    Chain chain = end.next >= 0 ? (Chain){all->ends[end.next].time, end.next} : heap[--all->chains];
    for (int child; (child = 2 * at + 1) < all->chains; at = child) {
        if (child + 1 < all->chains) child += heap[child + 1].time < heap[child].time;
        if (chain.time <= heap[child].time) break;
        heap[at] = heap[child];
    }
    heap[at] = chain;
    return end;
}

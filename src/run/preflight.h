// What --check measures (preflight.c), and what follows from it (preflight_judge.c).
#pragma once

#include "plan/plan_time.h"
#include "run.h"

typedef enum Probe {
    PROBE_PRODUCT,
    PROBE_TENSOR,
    PROBE_CONTEXT,
    PROBE_EXPERTS,
    PROBE_DATA,
    PROBE_NEXT, // messages to the next stage; then to the previous one
    PROBE_PREVIOUS,
    PROBE_PAIR,
    PROBE_READ,
    PROBE_WRITE,
    PROBE_COUNT
} Probe;

extern const char *const preflight_words[PROBE_COUNT];

enum { WRITES = 16 << 20 }; // bytes that a rank writes at a time

// What one rank measured. A link belongs to a group of `size` ranks, of which `leader` is the first, or is a message
// from `leader` to `peer`. between: the ranks are on several nodes.
typedef struct Finding {
    double seconds, expected; // of one execution; seconds 0: not measured here
    double amount;            // FLOPs, or bytes that a rank sends
    int leader, peer, size;
    bool between;
} Finding;

typedef char Diagnosis[400];

// On rank 0: compares the findings of all ranks, [world][PROBE_COUNT], with the plan for `known` and with each other,
// and prints them. If a step would take too long, `answer` says why; else it stays as it is. -1 with err.
int preflight_judge(const Run *run, const Config *known, const Hardware *hardware, const Finding (*all)[PROBE_COUNT],
                    bool json, Diagnosis answer, Error *err);

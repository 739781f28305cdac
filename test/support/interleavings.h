// Runs small schedules in every possible order of events: the definition with which the proof is compared. A search
// over all states (worlds) that a schedule can reach. Each stage computes one action and moves one transfer at a time;
// every order in which they may end is tried. If nothing can move before all is done, the schedule hangs.
#pragma once

#include "bpipe.h"
#include "unit.h"

enum { MOST_STAGES = 4, MOST_ACTIONS = 40 };
enum { SEEN_BITS = 20, SEEN = 1 << SEEN_BITS };

// Progress of a stage. `c` and `q` count completed actions; the flags say whether the next one has started.
typedef struct Place {
    unsigned c : 5, q : 5, computing : 1, transferring : 1;
} Place;

typedef struct World {
    Place at[MOST_STAGES];
} World;

typedef struct Explorer {
    const Schedule *schedule;
    Action compute[MOST_STAGES][MOST_ACTIONS], queue[MOST_STAGES][MOST_ACTIONS];
    unsigned posted[MOST_STAGES][MOST_ACTIONS], computes[MOST_STAGES], transfers[MOST_STAGES];
    bool post_at_start;
    uint64_t *seen; // [SEEN] hash set of worlds, 0: empty
    int worlds;
    bool hangs;
} Explorer;

static inline uint64_t world_key_(World world) {
    uint64_t key = 1;
    for (int s = 0; s < MOST_STAGES; s++) {
        Place at = world.at[s];
        key = key << 12 | (uint64_t)(at.c | at.q << 5 | at.computing << 10 | at.transferring << 11);
    }
    return key;
}

static inline bool first_visit_(Explorer *explorer, World world) {
    uint64_t key = world_key_(world), slot = key * 0x9E3779B97F4A7C15u >> (64 - SEEN_BITS);
    for (;; slot = (slot + 1) % SEEN) {
        if (explorer->seen[slot] == key) return false;
        if (explorer->seen[slot] == 0) break;
    }
    explorer->seen[slot] = key;
    assert_true(++explorer->worlds < SEEN / 2);
    return true;
}

// Counts the actions of a kind among the first n, of one microbatch (-1: of all).
static inline int count_among_(const Action *actions, unsigned n, ActionKind kind, int microbatch) {
    int count = 0;
    for (unsigned i = 0; i < n; i++)
        count += actions[i].kind == kind && (microbatch < 0 || actions[i].microbatch == microbatch);
    return count;
}

static inline int own_used_(const Explorer *explorer, World world, int s) {
    Place at = world.at[s];
    const Action *compute = explorer->compute[s], *queue = explorer->queue[s];
    return count_among_(compute, at.c + at.computing, ACTION_FORWARD, -1) -
           count_among_(compute, at.c, ACTION_BACKWARD, -1) - count_among_(queue, at.q, ACTION_EVICT, -1) +
           count_among_(queue, at.q + at.transferring, ACTION_LOAD, -1);
}

static inline int lent_used_(const Explorer *explorer, World world, int s) {
    Place at = world.at[s];
    return count_among_(explorer->queue[s], at.q + at.transferring, ACTION_ACCEPT, -1) -
           count_among_(explorer->queue[s], at.q, ACTION_RETURN, -1);
}

static inline bool done_(const Explorer *explorer, World world, int s, ActionKind kind, int microbatch) {
    if (s < 0 || s >= explorer->schedule->stages || microbatch < 0) return true;
    return count_among_(explorer->compute[s], world.at[s].c, kind, microbatch) > 0;
}

static inline bool compute_may_start_(const Explorer *explorer, World world, int s) {
    Place at = world.at[s];
    if (at.computing || at.c == explorer->computes[s]) return false;
    Action action = explorer->compute[s][at.c];
    int i = action.microbatch;
    if (action.kind == ACTION_FORWARD) {
        return done_(explorer, world, s - 1, ACTION_FORWARD, i) &&
               done_(explorer, world, s + 1, ACTION_FORWARD, i - 4) &&
               own_used_(explorer, world, s) < explorer->schedule->stage[s].own_slots;
    }
    // The backward needs all loads of its microbatch in the list to be complete.
    int loads = count_among_(explorer->queue[s], explorer->transfers[s], ACTION_LOAD, i);
    return done_(explorer, world, s + 1, ACTION_BACKWARD, i) && done_(explorer, world, s - 1, ACTION_BACKWARD, i - 4) &&
           count_among_(explorer->queue[s], at.q, ACTION_LOAD, i) == loads;
}

static inline bool at_head_(const Explorer *explorer, World world, int s) {
    Place at = world.at[s];
    if (at.transferring || at.q == explorer->transfers[s]) return false;
    Action action = explorer->queue[s][at.q];
    if (action.kind == ACTION_EVICT && !done_(explorer, world, s, ACTION_FORWARD, action.microbatch)) return false;
    return explorer->posted[s][at.q] <= at.c + (explorer->post_at_start ? at.computing : 0u);
}

// s: the evictor.
static inline bool transfer_may_start_(const Explorer *explorer, World world, int s) {
    if (!at_head_(explorer, world, s)) return false;
    Action action = explorer->queue[s][world.at[s].q];
    bool load = action.kind == ACTION_LOAD;
    if (!load && action.kind != ACTION_EVICT) return false;
    if (load && own_used_(explorer, world, s) >= explorer->schedule->stage[s].own_slots) return false;
    if (action.peer == SCHEDULE_HOST) return true;
    if (!at_head_(explorer, world, action.peer)) return false;
    Action other = explorer->queue[action.peer][world.at[action.peer].q];
    if (other.microbatch != action.microbatch) return false;
    if (load) return other.kind == ACTION_RETURN;
    return other.kind == ACTION_ACCEPT &&
           lent_used_(explorer, world, action.peer) < explorer->schedule->stage[action.peer].lent_slots;
}

static inline void explore_(Explorer *explorer, World world) {
    if (explorer->hangs || !first_visit_(explorer, world)) return;
    bool moves = false, over = true;
    for (int s = 0; s < explorer->schedule->stages; s++) {
        Place at = world.at[s];
        over &= at.c == explorer->computes[s] && at.q == explorer->transfers[s];
        World next = world;
        if (at.computing || compute_may_start_(explorer, world, s)) {
            next.at[s].computing = !at.computing;
            next.at[s].c += at.computing;
            moves = true;
            explore_(explorer, next);
        }
        ActionKind head = at.q < explorer->transfers[s] ? explorer->queue[s][at.q].kind : ACTION_FORWARD;
        if (head != ACTION_EVICT && head != ACTION_LOAD) continue;
        if (!at.transferring && !transfer_may_start_(explorer, world, s)) continue;
        next = world;
        int peer = explorer->queue[s][at.q].peer;
        for (int side = s;; side = peer) {
            next.at[side].transferring = !at.transferring;
            next.at[side].q += at.transferring;
            if (side == peer || peer == SCHEDULE_HOST) break;
        }
        moves = true;
        explore_(explorer, next);
    }
    if (!moves && !over) explorer->hangs = true;
}

// Returns whether some interleaving of a schedule without chunks or split backwards hangs. Transfers are posted when
// the preceding action completes, or when it starts. For at most MOST_STAGES stages with MOST_ACTIONS actions each.
static inline bool schedule_can_hang(const Schedule *schedule) {
    Explorer *explorer = calloc(1, sizeof *explorer);
    assert_non_null(explorer);
    explorer->schedule = schedule;
    for (int s = 0; s < schedule->stages; s++)
        for (int64_t i = 0; i < schedule->stage[s].count; i++) {
            Action action = schedule->stage[s].actions[i];
            if (action.peer == SCHEDULE_NO_PEER) {
                explorer->compute[s][explorer->computes[s]++] = action;
            } else {
                explorer->posted[s][explorer->transfers[s]] = explorer->computes[s];
                explorer->queue[s][explorer->transfers[s]++] = action;
            }
        }
    for (int way = 0; way < 2 && !explorer->hangs; way++) {
        explorer->post_at_start = way == 1;
        explorer->worlds = 0;
        explorer->seen = calloc(SEEN, sizeof *explorer->seen);
        assert_non_null(explorer->seen);
        explore_(explorer, (World){0});
        free(explorer->seen);
    }
    bool hangs = explorer->hangs;
    free(explorer);
    return hangs;
}

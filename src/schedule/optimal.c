// Breadth first over steps of one unit: a state is how many F, I and W each chunk of each stage has done. In a step
// every stage does one pass whose inputs are there, or nothing. The search tries one bound on the idle time after the
// other, from the least that is possible, and drops states in which a stage can no longer finish in time.
//
// A stage that can do I or W, or F of its only chunk, never does better by waiting: later work may as well be done now,
// as nothing else of the stage would have used the slot. So waiting is tried where nothing can be done, and also F
// where two chunks compete for slots.
#include "optimal.h"

#include "base/alloc.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_VIRTUAL = 10, KINDS = 3, BYTES = MOST_VIRTUAL * KINDS + 2, PASS_NONE = -1 };
enum { FORWARD, INPUT, WEIGHT };

// Counts by virtual stage and kind. Complete backwards count in INPUT, two for each, and never stop half-way.
typedef struct Counts {
    uint8_t done[BYTES];
} Counts;

typedef struct Level {
    Counts *states;
    uint32_t *table; // place of a state plus one, by its hash; 0: empty
    long count, capacity;
    uint32_t mask;
} Level;

typedef struct Search {
    OptimalAsk ask;
    int last;      // virtual stage
    int time, end; // steps done, steps there are
    Level next;
    long states; // seen so far
    bool failed; // seen too many
} Search;

static int done_(const Counts *at, int g, int kind) { return at->done[g * KINDS + kind]; }

static int gradients_(const Search *search, const Counts *at, int g) {
    return search->ask.split ? done_(at, g, INPUT) : done_(at, g, INPUT) / 2;
}

static int virtual_(const Search *search, int stage, int chunk) {
    int p = search->ask.stages;
    return chunk % 2 == 0 || search->ask.loop ? chunk * p + stage : chunk * p + p - 1 - stage;
}

static int used_(const Search *search, const Counts *at, int stage) {
    int used = 0;
    for (int c = 0; c < search->ask.chunks; c++) {
        int g = virtual_(search, stage, c);
        used += done_(at, g, FORWARD) - (search->ask.split ? done_(at, g, WEIGHT) : gradients_(search, at, g));
    }
    return used;
}

static bool can_(const Search *search, const Counts *at, int stage, int g, int kind) {
    int m = search->ask.microbatches, i = done_(at, g, kind);
    if (kind == WEIGHT) return search->ask.split && i < done_(at, g, INPUT);
    if (kind == FORWARD)
        return i < m && (g == 0 || done_(at, g - 1, FORWARD) > i) && used_(search, at, stage) < search->ask.slots;
    if (!search->ask.split && i % 2 == 1) return true;
    i = gradients_(search, at, g);
    return i < m && done_(at, g, FORWARD) > i && (g == search->last || gradients_(search, at, g + 1) > i);
}

static int left_(const Search *search, const Counts *at, int stage) {
    int left = 3 * search->ask.microbatches * search->ask.chunks;
    for (int c = 0; c < search->ask.chunks; c++)
        for (int kind = 0; kind < KINDS; kind++) left -= done_(at, virtual_(search, stage, c), kind);
    return left;
}

static uint32_t hash_(const Counts *at) {
    uint64_t hash = 1469598103934665603u;
    for (int i = 0; i < BYTES; i++) hash = (hash ^ at->done[i]) * 1099511628211u;
    return (uint32_t)(hash ^ hash >> 32);
}

static void level_grow_(Level *level) {
    long capacity = level->capacity == 0 ? 1024 : 2 * level->capacity;
    level->states = xrealloc(level->states, (size_t)capacity * sizeof *level->states);
    free(level->table);
    level->table = xcalloc(4 * (size_t)capacity, sizeof *level->table);
    level->capacity = capacity;
    level->mask = (uint32_t)(4 * capacity - 1);
    for (long i = 0; i < level->count; i++) {
        uint32_t at = hash_(&level->states[i]) & level->mask;
        while (level->table[at] != 0) at = (at + 1) & level->mask;
        level->table[at] = (uint32_t)i + 1;
    }
}

static void level_add_(Search *search, const Counts *state) {
    Level *level = &search->next;
    if (level->count == level->capacity) level_grow_(level);
    uint32_t at = hash_(state) & level->mask;
    for (; level->table[at] != 0; at = (at + 1) & level->mask)
        if (memcmp(&level->states[level->table[at] - 1], state, sizeof *state) == 0) return;
    level->states[level->count++] = *state;
    search->states++;
    search->failed = search->ask.most_states > 0 && search->states > search->ask.most_states;
    level->table[at] = (uint32_t)level->count;
}

// All that the stages from `stage` on can do in this step, which began with `from`.
static void step_(Search *search, const Counts *from, Counts *to, int stage) {
    if (stage == search->ask.stages) {
        level_add_(search, to);
        return;
    }
    bool waits = true, bound = false;
    for (int c = 0; c < search->ask.chunks && !search->ask.split; c++)
        bound |= done_(from, virtual_(search, stage, c), INPUT) % 2 == 1; // the second half of a backward
    for (int c = 0; c < search->ask.chunks; c++) {
        int g = virtual_(search, stage, c);
        for (int kind = 0; kind < KINDS; kind++) {
            if (!can_(search, from, stage, g, kind)) continue;
            if (bound && (kind != INPUT || done_(from, g, INPUT) % 2 == 0)) continue;
            if (kind != FORWARD || search->ask.chunks == 1) waits = false;
            to->done[g * KINDS + kind]++;
            step_(search, from, to, stage + 1);
            to->done[g * KINDS + kind]--;
        }
    }
    if (waits && left_(search, from, stage) < search->end - search->time) step_(search, from, to, stage + 1);
}

// Returns whether all actions can be complete within this number of steps.
static bool within_(Search *search, int end) {
    Level level = {0};
    Counts start = {{0}};
    search->end = end;
    memset(&search->next, 0, sizeof search->next);
    level_add_(search, &start);
    for (search->time = 0; search->time < end && search->next.count > 0 && !search->failed; search->time++) {
        Level before = level;
        level = search->next;
        search->next = (Level){0};
        free_all(before.states, before.table);
        for (long i = 0; i < level.count && !search->failed; i++) {
            Counts to = level.states[i];
            step_(search, &level.states[i], &to, 0);
        }
    }
    bool found = search->time == end && search->next.count > 0 && !search->failed;
    free_all(level.states, level.table, search->next.states, search->next.table);
    return found;
}

int optimal_idle(const OptimalAsk *ask, int most) {
    Search search = {.ask = *ask, .last = ask->stages * ask->chunks - 1};
    if (ask->stages * ask->chunks > MOST_VIRTUAL || ask->microbatches > 100) return OPTIMAL_TOO_LARGE;
    for (int idle = ask->stages - 1; idle <= most && !search.failed; idle++)
        if (within_(&search, 3 * ask->microbatches * ask->chunks + idle)) return idle;
    return search.failed ? OPTIMAL_TOO_LARGE : OPTIMAL_NONE;
}

#include "turns.h"
#include "base/divisor.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

// An entry of the order: the source in its high bits.
enum { COUNT_BITS = 20 };
_Static_assert(TURNS_MOST <= 1 << COUNT_BITS && TURNS_SOURCES <= 1 << (32 - COUNT_BITS), "an entry has room for both");

// Weights times `scale` as integers without a common divisor, where they are that to rounding and make a short period.
static bool whole_shares_(Turns *turns, const double *weights, double scale) {
    int64_t sum = 0, common = 0;
    for (int i = 0; i < turns->sources; i++) {
        double scaled = weights[i] * scale, whole = nearbyint(scaled);
        if (whole < 1.0 || whole > 9e15 || fabs(scaled - whole) > 1e-12 * whole) return false;
        turns->share[i] = (int64_t)whole;
        common = greatest_common_divisor(turns->share[i], common);
    }
    for (int i = 0; i < turns->sources; i++) {
        turns->share[i] /= common;
        if (turns->share[i] > TURNS_MOST) return false;
        sum += turns->share[i];
    }
    turns->period = sum;
    return sum <= TURNS_MOST;
}

// The largest remainders get what rounding down leaves over.
static void rounded_shares_(Turns *turns, const double *weights) {
    double sum = 0.0, rest[TURNS_SOURCES];
    int64_t left = TURNS_MOST;
    for (int i = 0; i < turns->sources; i++) sum += weights[i];
    for (int i = 0; i < turns->sources; i++) {
        double exact = weights[i] / sum * TURNS_MOST;
        turns->share[i] = exact < 1.0 ? 1 : (int64_t)exact;
        rest[i] = exact - (double)turns->share[i];
        left -= turns->share[i];
    }
    for (; left > 0; left--) {
        int most = 0;
        for (int i = 1; i < turns->sources; i++) most = rest[i] > rest[most] ? i : most;
        turns->share[most]++;
        rest[most] -= 1.0;
    }
    turns->period = TURNS_MOST - left;
}

static void find_shares_(Turns *turns, const double *weights) {
    double scale = 1.0;
    for (int digits = 0; digits <= 12; digits++, scale *= 10.0) {
        if (whole_shares_(turns, weights, scale)) return;
    }
    rounded_shares_(turns, weights);
}

// After t turns a source with share w of P may have had fewer than t*w/P + 1 and more than t*w/P - 1: its turn number
// c + 1 comes at the earliest as turn floor(c*P/w) + 1, and at the latest as turn ceil((c+1)*P/w).
static void find_order_(Turns *turns) {
    int64_t earliest[TURNS_SOURCES], latest[TURNS_SOURCES], had[TURNS_SOURCES] = {0}, period = turns->period;
    for (int i = 0; i < turns->sources; i++) {
        earliest[i] = 1;
        latest[i] = (period + turns->share[i] - 1) / turns->share[i];
    }
    for (int64_t t = 1; t <= period; t++) {
        int next = 0;
        int64_t soonest = INT64_MAX;
        for (int i = 0; i < turns->sources; i++) {
            if (earliest[i] <= t && latest[i] < soonest) next = i, soonest = latest[i];
        }
        turns->order[t - 1] = (uint32_t)next << COUNT_BITS | (uint32_t)had[next];
        int64_t count = ++had[next], share = turns->share[next];
        earliest[next] = count * period / share + 1;
        latest[next] = ((count + 1) * period + share - 1) / share;
    }
}

int turns_create(Turns *turns, const double *weights, int sources, Error *err) {
    memset(turns, 0, sizeof *turns);
    turns->sources = sources;
    find_shares_(turns, weights);
    turns->order = malloc((size_t)turns->period * sizeof *turns->order);
    if (turns->order == NULL) return error_set(err, EXIT_FAILED, "out of memory for the order of %d sources", sources);
    find_order_(turns);
    return 0;
}

int64_t turns_bytes(const double *weights, int sources) {
    Turns turns = {.sources = sources};
    find_shares_(&turns, weights);
    return turns.period * (int64_t)sizeof *turns.order;
}

void turns_destroy(Turns *turns) {
    free(turns->order);
    memset(turns, 0, sizeof *turns);
}

int turns_source(const Turns *turns, int64_t k, int64_t *before) {
    uint32_t entry = turns->order[k % turns->period];
    int source = (int)(entry >> COUNT_BITS);
    *before = k / turns->period * turns->share[source] + (int64_t)(entry & ((1u << COUNT_BITS) - 1));
    return source;
}

// Opens the sources of a run and maps a position of training to a source and a sample in it. The order of sources is
// periodic: weights become integer shares, then every turn goes to the eligible source with the earliest deadline. The
// order within a source is that of its data set.
#include "blend.h"
#include "base/alloc.h"
#include "base/grid.h"
#include "base/units.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// --- the order of the sources

// The high bits of an entry of the order are the source; the low COUNT_BITS bits count its earlier turns in the period.
enum { COUNT_BITS = 20 };
_Static_assert(BLEND_ORDER_MOST <= 1 << COUNT_BITS && CONFIG_MAX_SOURCES <= 1 << (32 - COUNT_BITS),
               "an entry has room for both");

// Sets the shares to the weights times `scale`, divided by their greatest common divisor. Returns false if the products
// are not integers, up to rounding, or if the period is too long.
static bool whole_shares_(BlendOrder *blend, const DataSource *sources, double scale) {
    int64_t sum = 0, common = 0;
    for (int i = 0; i < blend->sources; i++) {
        double scaled = sources[i].weight * scale, whole = nearbyint(scaled);
        if (whole < 1.0 || whole > 9e15 || fabs(scaled - whole) > 1e-12 * whole) return false;
        blend->share[i] = (int64_t)whole;
        common = greatest_common_divisor(blend->share[i], common);
    }
    for (int i = 0; i < blend->sources; i++) {
        blend->share[i] /= common;
        if (blend->share[i] > BLEND_ORDER_MOST) return false;
        sum += blend->share[i];
    }
    blend->period = sum;
    return sum <= BLEND_ORDER_MOST;
}

// Sets the shares to the weights exactly if decimals of up to 12 digits allow it. Otherwise rounds them down and gives
// the remaining turns to the largest remainders.
static void find_shares_(BlendOrder *blend, const DataSource *sources) {
    double scale = 1.0, sum = 0.0, rest[CONFIG_MAX_SOURCES];
    int64_t left = BLEND_ORDER_MOST;
    for (int digits = 0; digits <= 12; digits++, scale *= 10.0)
        if (whole_shares_(blend, sources, scale)) return;
    for (int i = 0; i < blend->sources; i++) sum += sources[i].weight;
    for (int i = 0; i < blend->sources; i++) {
        double exact = sources[i].weight / sum * BLEND_ORDER_MOST;
        blend->share[i] = exact < 1.0 ? 1 : (int64_t)exact;
        rest[i] = exact - (double)blend->share[i];
        left -= blend->share[i];
    }
    for (; left > 0; left--) {
        int most = 0;
        for (int i = 1; i < blend->sources; i++) most = rest[i] > rest[most] ? i : most;
        blend->share[most]++;
        rest[most] -= 1.0;
    }
    blend->period = BLEND_ORDER_MOST - left;
}

// After t turns of a period of P, a source with share w must have had more than t*w/P - 1 and fewer than t*w/P + 1 of
// these turns. If a source has had c turns, its next turn is therefore turn floor(c*P/w) + 1 of the period at the
// earliest, and turn ceil((c+1)*P/w) at the latest.
void blend_order_create(BlendOrder *blend, const DataSource *sources, int count) {
    int64_t earliest[CONFIG_MAX_SOURCES], latest[CONFIG_MAX_SOURCES], had[CONFIG_MAX_SOURCES] = {0};
    *blend = (BlendOrder){.sources = count};
    find_shares_(blend, sources);
    int64_t period = blend->period;
    blend->order = xmalloc((size_t)period * sizeof *blend->order);
    for (int i = 0; i < count; i++) {
        earliest[i] = 1;
        latest[i] = (period + blend->share[i] - 1) / blend->share[i];
    }
    for (int64_t t = 1; t <= period; t++) {
        int next = 0;
        int64_t soonest = INT64_MAX;
        for (int i = 0; i < count; i++)
            if (earliest[i] <= t && latest[i] < soonest) next = i, soonest = latest[i];
        blend->order[t - 1] = (uint32_t)next << COUNT_BITS | (uint32_t)had[next];
        int64_t turns = ++had[next], share = blend->share[next];
        earliest[next] = turns * period / share + 1;
        latest[next] = ((turns + 1) * period + share - 1) / share;
    }
}

void blend_order_destroy(BlendOrder *blend) {
    free(blend->order);
    memset(blend, 0, sizeof *blend);
}

int blend_order_source(const BlendOrder *blend, int64_t k, int64_t *before) {
    uint32_t entry = blend->order[k % blend->period];
    int source = (int)(entry >> COUNT_BITS);
    *before = k / blend->period * blend->share[source] + (int64_t)(entry & ((1u << COUNT_BITS) - 1));
    return source;
}

// --- the sources

Blend *blend_open(const char *key, const DataSource *sources, int64_t count, int64_t seq_len, int64_t vocab,
                  int64_t need, Error *err) {
    Blend *blend = xcalloc(1, sizeof *blend);
    blend->config = sources;
    blend->count = (int)count;
    for (int i = 0; i < blend->count; i++) {
        blend->source[i] = dataset_open(key, sources[i].path, seq_len, vocab, count == 1 ? need : 1, err);
        if (blend->source[i] != NULL) continue;
        blend_close(blend);
        return NULL;
    }
    blend_order_create(&blend->order, sources, blend->count);
    return blend;
}

void blend_close(Blend *blend) {
    if (blend == NULL) return;
    blend_order_destroy(&blend->order);
    for (int i = 0; i < blend->count; i++) dataset_close(blend->source[i]);
    free(blend);
}

int64_t blend_order_bytes(const DataConfig *data) {
    BlendOrder order = {.sources = (int)data->train_sources};
    if (order.sources < 2) return 0;
    find_shares_(&order, data->train);
    return order.period * (int64_t)sizeof *order.order;
}

int blend_identify(const Blend *blend, uint64_t *identity, Error *err) {
    Crc64 crc = crc64_make();
    uint64_t raw = 0;
    for (int i = 0; i < blend->count; i++) {
        if (dataset_identify(blend->source[i], &crc, &raw, err) != 0) return -1;
        if (blend->count > 1) raw = crc64_add(&crc, raw, &blend->order.share[i], sizeof blend->order.share[i]);
    }
    *identity = raw | 1;
    return 0;
}

// Gives each source its own seed by adding the source's index in the bits above train.seed. With a common seed, two
// sources of equal size would use the same permutation. Source 0 uses train.seed itself, so a single source is read in
// the same order as a data set outside a blend.
int blend_sample(const Blend *blend, int64_t seed, int64_t position, int64_t *sample) {
    int64_t before;
    int source = blend_order_source(&blend->order, position, &before);
    *sample = dataset_shuffled(blend->source[source], seed ^ (int64_t)source << 54, before);
    return source;
}

int blend_fetch(const Blend *blend, int64_t seed, int64_t position, int32_t *inputs, int32_t *targets, int64_t stride,
                Error *err) {
    int64_t sample;
    int source = blend_sample(blend, seed, position, &sample);
    return dataset_fetch(blend->source[source], sample, inputs, targets, stride, err);
}

void blend_expect(const Blend *blend, int64_t seed, int64_t position) {
    int64_t sample;
    int source = blend_sample(blend, seed, position, &sample);
    dataset_expect(blend->source[source], sample);
}

void blend_tell(const Blend *blend, int64_t samples, const Log *log) {
    const BlendOrder *order = &blend->order;
    for (int i = 0; i < blend->count; i++) {
        char count[32];
        int64_t own = blend->source[i]->samples;
        double share = (double)order->share[i] / (double)order->period, passes = share * (double)samples / (double)own;
        if (blend->count == 1 && passes <= 1.0) continue; // a single data set is logged only if it repeats
        log_status(log, "data.train: %.4g %% of the sequences from %s, which has %s: %.3g passes over it%s",
                   100.0 * share, blend->config[i].path, grid_count(own, count), passes,
                   passes > 1.0 ? "; the run repeats them" : "");
    }
}

// Opens the sources of a run and maps a position of training to a source and a sample in it. The order of sources is
// blend_order.c's; each source's own order is its data set's.
#include "blend.h"
#include "base/alloc.h"

#include "base/grid.h"
#include "blend_order.h"

#include <stdlib.h>

struct Blend {
    int count;
    Dataset *source[CONFIG_MAX_SOURCES];
    const DataSource *config; // (count)
    BlendOrder order;
};

_Static_assert((int)CONFIG_MAX_SOURCES <= (int)BLEND_ORDER_SOURCES, "every source has its turns");

static int blend_open_(Blend *blend, const char *key, int64_t seq_len, int64_t vocab, int64_t need, Error *err) {
    double weights[CONFIG_MAX_SOURCES];
    for (int i = 0; i < blend->count; i++) {
        weights[i] = blend->config[i].weight;
        blend->source[i] = dataset_open(key, blend->config[i].path, seq_len, vocab, blend->count == 1 ? need : 1, err);
        if (blend->source[i] == NULL) return -1;
    }
    blend_order_create(&blend->order, weights, blend->count);
    return 0;
}

Blend *blend_open(const char *key, const DataSource *sources, int64_t count, int64_t seq_len, int64_t vocab,
                  int64_t need, Error *err) {
    Blend *blend = xcalloc(1, sizeof *blend);
    blend->config = sources;
    blend->count = (int)count;
    if (blend_open_(blend, key, seq_len, vocab, need, err) == 0) return blend;
    blend_close(blend);
    return NULL;
}

void blend_close(Blend *blend) {
    if (blend == NULL) return;
    blend_order_destroy(&blend->order);
    for (int i = 0; i < blend->count; i++) dataset_close(blend->source[i]);
    free(blend);
}

int64_t blend_order_bytes(const DataConfig *data) {
    double weights[CONFIG_MAX_SOURCES];
    for (int64_t i = 0; i < data->train_sources; i++) weights[i] = data->train[i].weight;
    return data->train_sources > 1 ? blend_order_size(weights, (int)data->train_sources) : 0;
}

int blend_sources(const Blend *blend) {
    return blend->count;
}

const Dataset *blend_source(const Blend *blend, int index) {
    return blend->source[index];
}

// Each source has its own seed above the 53 bits of train.seed; otherwise two of equal size would go through their
// samples in step. The first one's is train.seed itself, so that a single source is the same as a plain data set.
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

void blend_tell(const Blend *blend, int64_t samples, const Log *log) {
    const BlendOrder *order = &blend->order;
    for (int i = 0; blend->count > 1 && i < blend->count; i++) {
        char count[32];
        int64_t own = dataset_samples(blend->source[i]);
        double share = (double)order->share[i] / (double)order->period, passes = share * (double)samples / (double)own;
        log_status(log, "data.train: %.4g %% of the sequences from %s, which has %s: %.3g passes over it%s",
                   100.0 * share, blend->config[i].path, grid_count(own, count), passes,
                   passes > 1.0 ? ", so it repeats" : "");
    }
}

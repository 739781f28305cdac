// Picks candidates on each tensor rank and chooses among them (sample.h).
#include "sample.h"

#include "base/random.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

// Part of the key for Gumbel noise. Separates this noise from the random numbers of initial weights and of the order of
// samples, even with equal seeds.
static const uint64_t OTHER_NUMBERS = 0x53616D706C657221;

int64_t sample_capacity(const SampleRule *rule) { return rule->temperature > 0.0 && rule->top_k > 0 ? rule->top_k : 1; }

uint64_t sample_stream(int64_t sequence, int64_t position) { return (uint64_t)sequence << 40 ^ (uint64_t)position; }

// Returns Gumbel noise. (bits + 0.5) / 2^52 is never 0 and never 1, so both logarithms are finite.
static double gumbel_(const SampleRule *rule, uint64_t stream, int64_t token) {
    uint64_t bits = random_bits(rule->seed ^ OTHER_NUMBERS, stream, (uint64_t)token) >> 12;
    return -log(-log(((double)bits + 0.5) * 0x1p-52));
}

static bool wins_(const SampleCandidate *a, const SampleCandidate *b) {
    return a->key > b->key || (a->key == b->key && a->token < b->token);
}

int64_t sample_candidates(const SampleRule *rule, uint64_t stream, const float *logits, int64_t first, int64_t count,
                          SampleCandidate *out) {
    bool random = rule->temperature > 0.0, limited = random && rule->top_k > 0;
    int64_t held = 0, capacity = sample_capacity(rule);
    for (int64_t i = 0; i < count; i++) {
        SampleCandidate one = {logits[i], logits[i], first + i};
        if (!isfinite(one.logit)) continue;
        if (random && !limited) one.key = one.logit / rule->temperature + gumbel_(rule, stream, one.token);
        // Insert it into the sorted list. For top-k, the key is the logit so far.
        if (held == capacity && !wins_(&one, &out[held - 1])) continue;
        int64_t at = held < capacity ? held++ : capacity - 1;
        for (; at > 0 && wins_(&one, &out[at - 1]); at--) out[at] = out[at - 1];
        out[at] = one;
    }
    for (int64_t i = 0; limited && i < held; i++)
        out[i].key = out[i].logit / rule->temperature + gumbel_(rule, stream, out[i].token);
    return held;
}

static int by_likelihood_(const void *a, const void *b) {
    const SampleCandidate *x = a, *y = b;
    return x->logit > y->logit || (x->logit == y->logit && x->token < y->token) ? -1 : 1;
}

int64_t sample_choose(const SampleRule *rule, SampleCandidate *candidates, int64_t count) {
    if (count == 0) return -1;
    // Each part of the vocabulary has its own top_k candidates; keep the top_k of all parts.
    if (rule->temperature > 0.0 && rule->top_k > 0 && count > rule->top_k) {
        qsort(candidates, (size_t)count, sizeof *candidates, by_likelihood_);
        count = rule->top_k;
    }
    const SampleCandidate *best = &candidates[0];
    for (int64_t i = 1; i < count; i++)
        if (wins_(&candidates[i], best)) best = &candidates[i];
    return best->token;
}

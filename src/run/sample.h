// Chooses a token from one position's logits: greedy, or at random by temperature and top-k.
//
// A random choice takes the largest of logit / temperature + g, where g is Gumbel noise for the token: token i then
// wins with probability softmax(logits / temperature)[i]. The noise is counter-based, keyed by (seed, sequence,
// position, token), so each tensor rank processes only its part of the vocabulary and sends a few candidates. No rank
// needs the complete distribution.
#pragma once

#include <stdint.h>

typedef struct SampleRule {
    double temperature; // 0: the likeliest token
    int64_t top_k;      // 0: the complete vocabulary
    uint64_t seed;
} SampleRule;

typedef struct SampleCandidate {
    double logit;
    double key; // the largest key wins
    int64_t token;
} SampleCandidate;

// Returns the maximum number of candidates from one part of the vocabulary.
int64_t sample_capacity(const SampleRule *rule);

// Writes the candidates among tokens first ... first + count - 1, with the given logits, to `out` (sample_capacity
// entries). Returns their number, which is smaller if there are fewer finite logits. stream: identifies the sequence
// and the position (sample_stream).
int64_t sample_candidates(const SampleRule *rule, uint64_t stream, const float *logits, int64_t first, int64_t count,
                          SampleCandidate *out);

// Returns the token chosen among the candidates of all parts, in any order; -1 without candidates. Ties: the lowest
// token.
int64_t sample_choose(const SampleRule *rule, SampleCandidate *candidates, int64_t count);

uint64_t sample_stream(int64_t sequence, int64_t position);

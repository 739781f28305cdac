// How fast the pairs of a head rotate, for each way of extending a model to longer sequences than it was trained with.
// Frequencies are in double; transformers computes them in fp32, a relative difference of 1e-7.
#include "model.h"

#include <math.h>

static const double TURN = 6.283185307179586477;

// Scales a frequency as Llama 3.1 does: pairs that rotate often within the original length keep theirs, slow ones are
// divided by the factor, and those between are interpolated.
static double llama3_(const ModelConfig *m, double frequency) {
    double turns = (double)m->rope_original * frequency / TURN;
    if (turns > m->rope_high_freq) return frequency;
    if (turns < m->rope_low_freq) return frequency / m->rope_factor;
    double keep = (turns - m->rope_low_freq) / (m->rope_high_freq - m->rope_low_freq);
    return (1 - keep) * frequency / m->rope_factor + keep * frequency;
}

// Returns the (fractional) index of the pair with this many rotations within the original length.
static double yarn_pair_(const ModelConfig *m, double turns) {
    return (double)m->head_dim * log((double)m->rope_original / (turns * TURN)) / (2 * log(m->rope_theta));
}

// Scales a frequency as YaRN does (Peng et al. 2023): like llama3, but interpolated linearly in the pair's index.
static double yarn_(const ModelConfig *m, int64_t pair, double frequency) {
    double last = (double)(m->head_dim - 1);
    double low = fmax(floor(yarn_pair_(m, m->rope_beta_fast)), 0.0);
    double high = fmin(ceil(yarn_pair_(m, m->rope_beta_slow)), last);
    if (low == high) high += 0.001; // as transformers does
    double slow = fmin(fmax(((double)pair - low) / (high - low), 0.0), 1.0);
    return slow * frequency / m->rope_factor + (1 - slow) * frequency;
}

void rope_from_config(RopeTable *rope, const ModelConfig *m) {
    rope->scale = m->rope_attention;
    for (int64_t i = 0; i < m->head_dim / 2; i++) {
        double frequency = pow(m->rope_theta, -2.0 * (double)i / (double)m->head_dim);
        if (m->rope_scaling == ROPE_LINEAR) frequency /= m->rope_factor;
        if (m->rope_scaling == ROPE_LLAMA3) frequency = llama3_(m, frequency);
        if (m->rope_scaling == ROPE_YARN) frequency = yarn_(m, i, frequency);
        rope->frequency[i] = frequency;
    }
}

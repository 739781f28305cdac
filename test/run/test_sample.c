// Choice of a token: its distribution, and its independence from the division of the vocabulary into parts.
#include "run/sample.h"
#include "unit.h"

#include <math.h>

enum { VOCAB = 12, DRAWS = 20000, MOST_PARTS = 4 };

static const float logits[VOCAB] = {1.5f, -0.5f, 0.25f, 2.0f, -3.0f, 0.0f, 1.0f, 1.25f, -1.0f, 0.5f, 2.25f, -2.0f};

// Chooses a token from candidates of `parts` tensor ranks, the last rank's candidates first.
static int64_t choose(const SampleRule *rule, uint64_t stream, const float *from, int parts) {
    SampleCandidate candidates[MOST_PARTS * VOCAB];
    int64_t count = 0, width = (VOCAB + parts - 1) / parts;
    for (int part = parts - 1; part >= 0; part--) {
        int64_t first = part * width, left = VOCAB - first;
        left = left < 0 ? 0 : left < width ? left : width;
        count += sample_candidates(rule, stream, from + first, first, left, candidates + count);
    }
    return sample_choose(rule, candidates, count);
}

// Computes the expected probabilities: softmax over the `kept` likeliest tokens.
static void expect_(double share[VOCAB], double temperature, int kept) {
    double sum = 0.0;
    for (int i = 0; i < VOCAB; i++) {
        int before = 0;
        for (int k = 0; k < VOCAB; k++) before += logits[k] > logits[i];
        share[i] = before < kept ? exp(logits[i] / temperature) : 0.0;
        sum += share[i];
    }
    for (int i = 0; i < VOCAB; i++) share[i] /= sum;
}

static void check_distribution(double temperature, int top_k) {
    SampleRule rule = {temperature, top_k, 42};
    int kept = top_k == 0 ? VOCAB : top_k, seen[VOCAB] = {0};
    double share[VOCAB], squares = 0.0;
    expect_(share, temperature, kept);
    for (int i = 0; i < DRAWS; i++) seen[choose(&rule, sample_stream(i % 7, i), logits, 1)]++;
    for (int i = 0; i < VOCAB; i++) {
        double expected = share[i] * DRAWS;
        if (share[i] == 0.0) assert_int_equal(seen[i], 0);
        else squares += (seen[i] - expected) * (seen[i] - expected) / expected;
    }
    // Chi-square: mean kept - 1, variance twice that; five standard deviations.
    assert_true(squares <= (kept - 1) + 5.0 * sqrt(2.0 * (kept - 1)));
}

TEST(frequencies_are_those_of_softmax) {
    check_distribution(1.0, 0);
    check_distribution(0.5, 0);
    check_distribution(3.0, 0);
}

TEST(top_k_leaves_the_likeliest_in_their_proportions) {
    check_distribution(1.0, 3);
    check_distribution(0.7, 6);
    check_distribution(2.0, VOCAB);
    check_distribution(5.0, 1);
}

TEST(temperature_zero_takes_the_likeliest_and_of_equals_the_first) {
    SampleRule rule = {0.0, 5, 1};
    float equal[VOCAB] = {0.0f, 2.0f, 1.0f, 2.0f};
    for (int parts = 1; parts <= MOST_PARTS; parts++) {
        assert_int_equal(choose(&rule, 7, logits, parts), 10);
        assert_int_equal(choose(&rule, 7, equal, parts), 1);
    }
}

TEST(a_part_sends_as_many_candidates_as_may_be_chosen) {
    const SampleRule rules[] = {{0.0, 5, 1}, {1.0, 0, 1}, {1.0, 5, 1}};
    const int64_t most[] = {1, 1, 5};
    SampleCandidate candidates[VOCAB];
    for (int r = 0; r < 3; r++) {
        assert_int_equal(sample_capacity(&rules[r]), most[r]);
        assert_int_equal(sample_candidates(&rules[r], 0, logits, 0, VOCAB, candidates), most[r]);
        assert_int_equal(sample_candidates(&rules[r], 0, logits, 0, 1, candidates), 1);
    }
}

TEST(parts_of_the_vocabulary_choose_as_one) {
    const SampleRule rules[] = {{1.0, 0, 3}, {2.0, 4, 3}, {1.0, 1, 3}, {5.0, 1000, 3}};
    for (int r = 0; r < 4; r++)
        for (int i = 0; i < 500; i++)
            for (int parts = 2; parts <= MOST_PARTS; parts++)
                assert_int_equal(choose(&rules[r], (uint64_t)i, logits, parts),
                                 choose(&rules[r], (uint64_t)i, logits, 1));
}

TEST(seed_sequence_and_position_each_make_another_choice) {
    SampleRule rule = {1.0, 0, 1}, other = {1.0, 0, 2};
    int seeds = 0, sequences = 0, positions = 0;
    for (int i = 0; i < 200; i++) {
        int64_t choice = choose(&rule, sample_stream(0, i), logits, 1);
        assert_int_equal(choose(&rule, sample_stream(0, i), logits, 1), choice);
        seeds += choice != choose(&other, sample_stream(0, i), logits, 1);
        sequences += choice != choose(&rule, sample_stream(1, i), logits, 1);
        positions += choice != choose(&rule, sample_stream(0, i + 1), logits, 1);
    }
    assert_true(seeds > 100 && sequences > 100 && positions > 100);
}

TEST(what_is_not_finite_is_never_chosen) {
    const SampleRule rules[] = {{0.0, 0, 1}, {1.0, 0, 1}, {1.0, 3, 1}};
    float broken[VOCAB], one[VOCAB];
    for (int i = 0; i < VOCAB; i++) broken[i] = one[i] = i % 3 == 0 ? NAN : i % 3 == 1 ? -INFINITY : INFINITY;
    one[5] = -1.0f;
    for (int r = 0; r < 3; r++) {
        assert_int_equal(choose(&rules[r], 1, broken, 2), -1);
        assert_int_equal(choose(&rules[r], 1, one, 2), 5);
    }
}

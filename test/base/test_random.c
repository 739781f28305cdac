// Random numbers depend only on (seed, stream, index), and equal those of the published generator.
#include "base/normal.h"
#include "base/random.h"
#include "unit.h"

#include <math.h>
#include <string.h>

// Known answers of philox4x32-10 as published with the Random123 library.
TEST(philox_gives_the_published_answers) {
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        uint32_t out[4];
        normal_philox(known[i].counter, known[i].key, out);
        assert_memory_equal(out, known[i].out, sizeof out);
    }
}

TEST(seed_stream_and_index_all_matter) {
    uint64_t base = random_bits(1, 2, 3);
    assert_true(base == random_bits(1, 2, 3));
    assert_true(base != random_bits(2, 2, 3));
    assert_true(base != random_bits(1, 3, 3));
    assert_true(base != random_bits(1, 2, 4));
    const uint64_t high = (uint64_t)1 << 32; // the upper halves of the arguments count, too
    assert_true(base != random_bits(1 + high, 2, 3));
    assert_true(base != random_bits(1, 2 + high, 3));
    assert_true(base != random_bits(1, 2, 3 + high));
}

static float normal_(uint64_t seed, uint64_t stream, uint64_t index) {
    float lanes[NORMAL_LANES];
    normal_block(seed, stream, index / NORMAL_LANES, lanes);
    return lanes[index % NORMAL_LANES];
}

// One rank may fill an array in one call, another may start in its middle: both get the same numbers.
TEST(fill_equals_the_elements_for_every_start) {
    enum { COUNT = 37 };
    for (uint64_t first = 0; first < 9; first++)
        for (int64_t count = 0; count <= COUNT; count++) {
            float out[COUNT + 1];
            out[count] = 42;
            random_normal_fill(out, count, 0.02f, 1337, 5, first);
            for (int64_t i = 0; i < count; i++) assert_true(out[i] == 0.02f * normal_(1337, 5, first + (uint64_t)i));
            assert_true(out[count] == 42);
        }
}

// Long enough to be split over threads.
TEST(a_long_fill_equals_the_elements) {
    enum { COUNT = 100003 };
    static float out[COUNT];
    const uint64_t first = ((uint64_t)1 << 33) + 1;
    random_normal_fill(out, COUNT, 1, 7, 9, first);
    for (int64_t i = 0; i < COUNT; i++) assert_true(out[i] == normal_(7, 9, first + (uint64_t)i));
}

// Tests the ends of the range, both sides of every octant, and values in between.
TEST(logarithm_and_turn_are_those_of_the_library) {
    enum { COUNT = 200000 };
    for (int64_t i = 0; i < COUNT; i++) {
        uint32_t word = i < 64 ? (uint32_t)(i % 8 - 4) + (uint32_t)(i / 8) * 0x20000000u
                               : (uint32_t)(random_bits(3, 4, (uint64_t)i) >> (i % 32));
        double turn = 6.283185307179586 * (word / 4294967296.0), sine, cosine;
        double log_of = log((word + 0.5) / 4294967296.0);
        normal_turn(word, &sine, &cosine);
        assert_true(fabs(normal_log(word) - log_of) <= 4e-16 * fabs(log_of));
        assert_true(fabs(sine - sin(turn)) <= 1e-15 && fabs(cosine - cos(turn)) <= 1e-15);
    }
}

// Bounds are four standard errors of each statistic at this count.
TEST(normals_are_standard) {
    enum { COUNT = 1000000 };
    static float out[COUNT];
    random_normal_fill(out, COUNT, 1, 1337, 0, 0);
    double sum = 0, square = 0, cube = 0, fourth = 0, neighbour = 0;
    int64_t beyond_two = 0;
    for (int64_t i = 0; i < COUNT; i++) {
        double x = out[i];
        assert_true(isfinite(x));
        sum += x, square += x * x, cube += x * x * x, fourth += x * x * x * x;
        neighbour += x * out[(i + 1) % COUNT];
        beyond_two += fabs(x) > 2;
    }
    assert_true(fabs(sum / COUNT) < 4e-3);
    assert_true(fabs(square / COUNT - 1) < 4 * sqrt(2.0 / COUNT));
    assert_true(fabs(cube / COUNT) < 4 * sqrt(15.0 / COUNT));
    assert_true(fabs(fourth / COUNT - 3) < 4 * sqrt(96.0 / COUNT));
    assert_true(fabs(neighbour / COUNT) < 4e-3);
    assert_true(fabs((double)beyond_two / COUNT - 0.0455003) < 4 * sqrt(0.0455 * 0.9545 / COUNT));
}

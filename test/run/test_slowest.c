// A rank is compared with its peers, or with the plan; without either it is not named.
#include "run/slowest.h"
#include "unit.h"

#include <math.h>

enum { RANKS = 8 };

// Four stages of two data ranks: rank r is stage r % 4. Stage s takes 10 + s in forwards, twice that in backwards.
static RankSeconds usual(int rank) {
    double forward = 10.0 + rank % 4;
    return (RankSeconds){{forward, 2.0 * forward}};
}

static Slowest *made(int ranks, bool planned) {
    RankSeconds plan[RANKS] = {{{0}}};
    int peers[RANKS];
    for (int r = 0; r < ranks; r++) {
        peers[r] = r % 4;
        if (planned) plan[r] = (RankSeconds){{0.1 * usual(r).part[0], 0.1 * usual(r).part[1]}}; // in another unit
    }
    return slowest_create(ranks, plan, peers);
}

static void add(Slowest *slowest, int ranks, int steps, int rank, SlowestPart part, double more) {
    for (int i = 0; i < steps; i++) {
        RankSeconds seconds[RANKS];
        for (int r = 0; r < ranks; r++) seconds[r] = usual(r);
        if (rank >= 0) seconds[rank].part[part] += more;
        slowest_add(slowest, seconds, 100.0);
    }
}

static void near(double value, double right) {
    if (fabs(value - right) > 1e-9) fail_msg("%.12g is not %.12g", value, right);
}

TEST(a_slow_rank_is_found_by_its_peer) {
    Slowest *slowest = made(RANKS, false);
    SlowestRank found;
    add(slowest, RANKS, SLOWEST_WINDOW, 6, SLOWEST_BACKWARD, 3.0);
    assert_true(slowest_find(slowest, &found));
    assert_true(found.rank == 6 && found.part == SLOWEST_BACKWARD);
    near(found.excess, 3.0 / 24.0);
    near(found.cost, 0.03);
    slowest_destroy(slowest);
}

TEST(a_slow_rank_without_peers_is_found_by_its_plan) {
    Slowest *slowest = made(4, true);
    SlowestRank found;
    add(slowest, 4, SLOWEST_WINDOW, 1, SLOWEST_FORWARD, 2.2);
    assert_true(slowest_find(slowest, &found));
    assert_true(found.rank == 1 && found.part == SLOWEST_FORWARD);
    near(found.excess, 0.2);
    near(found.cost, 0.022);
    slowest_destroy(slowest);
}

TEST(a_stage_that_is_planned_to_take_longer_is_not_slow) {
    Slowest *slowest = made(4, true);
    SlowestRank found;
    add(slowest, 4, SLOWEST_WINDOW, -1, SLOWEST_FORWARD, 0.0);
    assert_true(!slowest_find(slowest, &found) || found.cost < 1e-12);
    slowest_destroy(slowest);
}

TEST(nothing_is_said_without_a_plan_or_before_the_window_is_full) {
    SlowestRank found;
    Slowest *slowest = made(4, false);
    add(slowest, 4, SLOWEST_WINDOW, 1, SLOWEST_FORWARD, 50.0);
    assert_false(slowest_find(slowest, &found));
    slowest_destroy(slowest);
    slowest = made(RANKS, true);
    add(slowest, RANKS, SLOWEST_WINDOW - 1, 1, SLOWEST_FORWARD, 50.0);
    assert_false(slowest_find(slowest, &found));
    slowest_destroy(slowest);
}

TEST(what_is_over_is_forgotten) {
    SlowestRank found;
    Slowest *slowest = made(RANKS, true);
    add(slowest, RANKS, SLOWEST_WINDOW, 1, SLOWEST_FORWARD, 50.0);
    add(slowest, RANKS, SLOWEST_WINDOW, 2, SLOWEST_FORWARD, 1.0);
    assert_true(slowest_find(slowest, &found) && found.rank == 2);
    near(found.cost, 0.01);
    slowest_destroy(slowest);
}

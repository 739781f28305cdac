// A rank is compared with its peers, or with the plan. Without peers and plan, no rank is reported as slow.
#include "run/slowest.h"
#include "unit.h"

#include <math.h>

enum { RANKS = 8 };

// Four stages, two data ranks: rank r has stage r % 4. Stage s takes 10 + s in forwards and twice as long in backwards.
static RankSeconds usual(int rank) {
    double forward = 10.0 + rank % 4;
    return (RankSeconds){{forward, 2.0 * forward}};
}

static Slowest *made(int ranks, bool planned) {
    Slowest *slowest = slowest_create(ranks);
    for (int r = 0; r < ranks; r++) {
        slowest->peers[r] = r % 4;
        if (!planned) continue;
        slowest->planned[r] = (RankSeconds){{0.1 * usual(r).part[0], 0.1 * usual(r).part[1]}}; // in other units
    }
    return slowest;
}

static void add(Slowest *slowest, int ranks, int steps, int rank, SlowestPart part, double more) {
    for (int i = 0; i < steps; i++) {
        RankSeconds *seconds = slowest_add(slowest, 100.0);
        for (int r = 0; r < ranks; r++) seconds[r] = usual(r);
        if (rank >= 0) seconds[rank].part[part] += more;
    }
}

// Checks which rank is found (-1: no rank), its relative excess over the expected time, and its cost. Frees `slowest`.
static void finds(Slowest *slowest, int rank, SlowestPart part, double excess, double cost) {
    SlowestRank found;
    bool named = slowest_find(slowest, &found) && found.cost > 1e-12;
    slowest_destroy(slowest);
    assert_int_equal(named ? found.rank : -1, rank);
    if (!named) return;
    assert_int_equal(found.part, part);
    assert_true(fabs(found.excess - excess) < 1e-9 && fabs(found.cost - cost) < 1e-9);
}

TEST(a_slow_rank_is_found_by_its_peer) {
    Slowest *slowest = made(RANKS, false);
    add(slowest, RANKS, SLOWEST_WINDOW, 6, SLOWEST_BACKWARD, 3.0);
    finds(slowest, 6, SLOWEST_BACKWARD, 3.0 / 24.0, 0.03);
}

TEST(a_slow_rank_without_peers_is_found_by_its_plan) {
    Slowest *slowest = made(4, true);
    add(slowest, 4, SLOWEST_WINDOW, 1, SLOWEST_FORWARD, 2.2);
    finds(slowest, 1, SLOWEST_FORWARD, 0.2, 0.022);
}

TEST(a_stage_that_is_planned_to_take_longer_is_not_slow) {
    Slowest *slowest = made(4, true);
    add(slowest, 4, SLOWEST_WINDOW, -1, SLOWEST_FORWARD, 0.0);
    finds(slowest, -1, SLOWEST_FORWARD, 0, 0);
}

TEST(nothing_is_said_without_a_plan_or_before_the_window_is_full) {
    Slowest *slowest = made(4, false);
    add(slowest, 4, SLOWEST_WINDOW, 1, SLOWEST_FORWARD, 50.0);
    finds(slowest, -1, SLOWEST_FORWARD, 0, 0);
    slowest = made(RANKS, true);
    add(slowest, RANKS, SLOWEST_WINDOW - 1, 1, SLOWEST_FORWARD, 50.0);
    finds(slowest, -1, SLOWEST_FORWARD, 0, 0);
}

TEST(what_is_over_is_forgotten) {
    Slowest *slowest = made(RANKS, true);
    add(slowest, RANKS, SLOWEST_WINDOW, 1, SLOWEST_FORWARD, 50.0);
    add(slowest, RANKS, SLOWEST_WINDOW, 2, SLOWEST_FORWARD, 1.0);
    finds(slowest, 2, SLOWEST_FORWARD, 1.0 / 12.0, 0.01);
}

// The number of cores that count as a rank's own, for different bindings by the launcher.
#include "ranks/affinity.h"
#include "unit.h"

#include <string.h>

// Returns a rank of host `node` that is bound to cores [first, last).
static CoresOfRank bound(int64_t node, int first, int last) {
    CoresOfRank rank;
    memset(&rank, 0, sizeof rank);
    rank.node = node;
    for (int core = first; core < last; core++) CPU_SET(core, &rank.allowed);
    return rank;
}

TEST(ranks_that_may_run_anywhere_share_evenly) {
    const CoresOfRank ranks[] = {bound(0, 0, 8), bound(0, 0, 8), bound(0, 0, 8), bound(0, 0, 8)};
    for (int r = 0; r < 4; r++) assert_float_equal(affinity_part(ranks, 4, r), 2.0, 1e-9);
}

TEST(a_bound_rank_has_what_it_is_bound_to) {
    const CoresOfRank ranks[] = {bound(0, 0, 1), bound(0, 1, 2), bound(0, 4, 8)};
    assert_float_equal(affinity_part(ranks, 3, 0), 1.0, 1e-9);
    assert_float_equal(affinity_part(ranks, 3, 1), 1.0, 1e-9);
    assert_float_equal(affinity_part(ranks, 3, 2), 4.0, 1e-9);
}

TEST(a_container_s_two_cores_are_shared_and_not_those_of_its_host) {
    const CoresOfRank ranks[] = {bound(0, 6, 8), bound(0, 6, 8), bound(0, 6, 8), bound(0, 6, 8)};
    for (int r = 0; r < 4; r++) assert_float_equal(affinity_part(ranks, 4, r), 0.5, 1e-9);
}

TEST(cores_of_another_host_are_other_cores) {
    const CoresOfRank ranks[] = {bound(0, 0, 2), bound(1, 0, 2), bound(1, 0, 2)};
    assert_float_equal(affinity_part(ranks, 3, 0), 2.0, 1e-9);
    assert_float_equal(affinity_part(ranks, 3, 1), 1.0, 1e-9);
}

TEST(a_process_bound_to_one_core_says_one) {
    cpu_set_t before, one;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    CPU_ZERO(&one);
    for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&one) == 0; core++)
        if (CPU_ISSET(core, &before)) CPU_SET(core, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(affinity_allowed(), 1);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    assert_int_equal(affinity_allowed(), CPU_COUNT(&before));
}

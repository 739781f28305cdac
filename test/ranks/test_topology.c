// Placement of ranks: every rank has one place and every place one rank, and adjacent placement makes pairs
// neighbours.
#include "bpipe.h"
#include "ranks/topology.h"
#include "unit.h"

static ParallelConfig grid(int p, int t, int d, int placement) {
    ParallelConfig parallel = {.pipeline = p, .tensor = t, .data = d, .context = 1, .placement = placement};
    return parallel;
}

TEST(a_rank_and_its_place_lead_to_each_other) {
    static const int placements[] = {PLACEMENT_LINEAR, PLACEMENT_ADJACENT};
    for (int i = 0; i < 2; i++)
        for (int p = 1; p <= 9; p++)
            for (int t = 1; t <= 4; t++)
                for (int dc = 0; dc < 9; dc++) {
                    ParallelConfig parallel = grid(p, t, dc / 3 + 1, placements[i]);
                    parallel.context = dc % 3 + 1;
                    int replicas = (dc / 3 + 1) * (dc % 3 + 1);
                    for (int rank = 0; rank < p * t * replicas; rank++) {
                        Coordinates at = topology_coordinates(&parallel, rank);
                        assert_in_range(at.stage, 0, p - 1);
                        assert_in_range(at.tensor, 0, t - 1);
                        assert_in_range(at.replica, 0, replicas - 1);
                        assert_int_equal(topology_rank(&parallel, at), rank);
                    }
                }
}

TEST(linear_counts_tensor_then_context_then_stage_then_data) {
    ParallelConfig parallel = grid(4, 2, 2, PLACEMENT_LINEAR);
    parallel.context = 3;
    Coordinates at = {.replica = 1 * 3 + 2, .stage = 3, .tensor = 1};
    assert_int_equal(topology_rank(&parallel, at), ((1 * 4 + 3) * 3 + 2) * 2 + 1);
}

TEST(adjacent_puts_the_stages_of_a_pair_side_by_side_and_an_odd_middle_last) {
    for (int p = 1; p <= 9; p++)
        for (int t = 1; t <= 4; t++) {
            ParallelConfig parallel = grid(p, t, 2, PLACEMENT_ADJACENT);
            for (int stage = 0; stage < p / 2; stage++) {
                Coordinates low = {.replica = 1, .stage = stage, .tensor = 0}, high = low;
                high.stage = bpipe_partner(p, stage);
                // Pair k of even p: rank ((data * p/2 + k) * 2 + half) * t + tensor.
                assert_int_equal(topology_rank(&parallel, low), (p + 2 * stage) * t);
                assert_int_equal(topology_rank(&parallel, high), (p + 2 * stage + 1) * t);
            }
            Coordinates middle = {.replica = 0, .stage = p / 2, .tensor = 0};
            if (p % 2 == 1) assert_int_equal(topology_rank(&parallel, middle), (p - 1) * t);
        }
}

// Returns how many of 4 pairs span hosts, for 8 stages of t ranks on hosts of `host` ranks, filled in rank order.
static int apart(int t, int host, int placement) {
    ParallelConfig parallel = grid(8, t, 1, placement);
    RosterEntry ranks[64] = {0};
    Roster roster = {ranks, 8 * t};
    for (int r = 0; r < roster.count; r++) ranks[r].node = r / host;
    int pairs, found = roster_pairs_apart(&roster, &parallel, &pairs);
    assert_int_equal(pairs, 4 * t);
    return found / t;
}

TEST(pairs_that_span_hosts_are_counted) {
    assert_int_equal(apart(4, 8, PLACEMENT_ADJACENT), 0);
    assert_int_equal(apart(4, 8, PLACEMENT_LINEAR), 4);
    assert_int_equal(apart(8, 8, PLACEMENT_ADJACENT), 4);
    assert_int_equal(apart(2, 16, PLACEMENT_LINEAR), 0);
}

// Compares the simulator with closed forms, and uses it to check the promise that BPipe loses no time against 1F1B.
#include "schedule/contention.h"
#include "schedules.h"

#include <math.h>
#include <string.h>

enum { MOST_STAGES = 32 };

// Times, equal on all stages.
typedef struct Times {
    double forward, backward, transfer, edge;
    bool queue_first;
} Times;

static Timeline *run(const Schedule *schedule, Times times) {
    double forward[MOST_STAGES], backward[MOST_STAGES], transfer[MOST_STAGES], edge[MOST_STAGES];
    for (int s = 0; s < MOST_STAGES; s++) {
        forward[s] = times.forward;
        backward[s] = times.backward;
        transfer[s] = times.transfer;
        edge[s] = times.edge;
    }
    SimulateCosts costs = {
        .forward = forward, .backward = backward, .transfer = transfer, .edge = edge, .queue_first = times.queue_first};
    return schedule_simulated(schedule, &costs);
}

static Schedule *parsed(const char *text) {
    Schedule *schedule = schedule_parsed(text);
    assert_succeeds(schedule_check(schedule, &unit_error));
    return schedule;
}

static void assert_near(double value, double expected) {
    if (fabs(value - expected) > 1e-9 * (1 + fabs(expected))) fail_msg("%.17g, not %.17g", value, expected);
}

// Times of single actions override times by kind, and follow the order of the list.
TEST(actions_may_each_have_their_own_time) {
    AutoSchedule *schedule = parsed("# schedule a  stages 2  microbatches 2  slots 2\n"
                                    "stage 0: F0 F1 B0 E1>h L1<h B1\nstage 1: F0 B0 F1 B1\n");
    const double first[] = {1, 3, 2, 99, 99, 2}, second[] = {2, 5, 1, 4}, *action[] = {first, second},
                 ignored[] = {7, 7}, transfer[] = {0.5, 0.5};
    SimulateCosts costs = {.forward = ignored, .backward = ignored, .transfer = transfer, .action = action};
    Timeline *timeline = simulate_run(schedule, &costs, NULL);
    assert_non_null(timeline);
    // F0 1, F1 4; F0 3, B0 8, F1 9, B1 13; B0 10, E1 10.5, L1 11, B1 15
    assert_near(timeline->makespan, 15);
    assert_near(timeline->stage[0].busy, 8);
    assert_near(timeline->stage[1].busy, 12);
    assert_near(timeline->stage[1].times[2].end, 9);
    timeline_free(timeline);
    const double last[] = {2, 3}; // the last backward is B1: it ends at 21 on stage 1, at 25 on stage 0
    costs.last = last;
    timeline = simulate_run(schedule, &costs, NULL);
    assert_near(timeline->stage[1].times[2].end, 9);
    assert_near(timeline->stage[1].times[3].end, 21);
    assert_near(timeline->makespan, 25);
    timeline_free(timeline);
}

// A run with a limit ends as without it, or is given up, but only if it takes longer than the limit: in every kind of
// schedule, with evictions, and with the last backwards at the end of a long way down.
static int limited(const Schedule *schedule, SimulateCosts costs) {
    AutoTimeline *whole = schedule_simulated(schedule, &costs);
    int given_up = 0;
    for (int percent = 50; percent <= 110; percent++) {
        costs.most = whole->makespan * percent / 100;
        AutoTimeline *timeline = schedule_simulated(schedule, &costs);
        if (isinf(timeline->makespan)) assert_true(percent < 100 && ++given_up > 0);
        else assert_near(timeline->makespan, whole->makespan);
    }
    return given_up;
}

TEST(a_run_is_given_up_only_if_it_takes_longer) {
    enum { STAGES = 6, PARTS = STAGES * 4 };
    double forward[PARTS], backward[PARTS], input[PARTS], weight[PARTS], transfer[STAGES], edge[STAGES], last[STAGES];
    for (int s = 0; s < STAGES; s++) transfer[s] = 1.25 + 0.1 * s, edge[s] = 0.1 * (s + 1), last[s] = 1 + 0.2 * s;
    for (int i = 0; i < PARTS; i++) {
        forward[i] = 1 + 0.1 * (i * 7 % 5), input[i] = 0.9 + 0.1 * (i * 5 % 7), weight[i] = 0.8 + 0.1 * (i % 3);
        backward[i] = input[i] + weight[i];
    }
    SimulateCosts costs = {.forward = forward,
                           .backward = backward,
                           .input = input,
                           .weight = weight,
                           .transfer = transfer,
                           .edge = edge,
                           .last = last};
    for (int kind = 0; kind < schedule_kind_count; kind++)
        for (int split = 0; split < 2; split++) {
            ScheduleSpec spec = {.stages = STAGES, .microbatches = 18, .split = split == 1};
            if (schedule_kinds[kind].sliced) spec.slices = 2;
            AutoSchedule *schedule = schedule_make(&schedule_kinds[kind], &spec, NULL);
            AutoSchedule *evicting = bpipe_balance(schedule, 0, EVICT_TO_HOST, 1, NULL);
            assert_true(limited(schedule, costs) > 40 && limited(evicting, costs) > 10);
        }
}

TEST(a_full_edge_holds_up_the_sender_and_nothing_else) {
    AutoSchedule *schedule = schedule_forward(2, 8);
    double forward[] = {1, 10}, edge[] = {0};
    SimulateCosts costs = {.forward = forward, .backward = forward, .edge = edge};
    for (int buffers = 1; buffers <= 3; buffers++) {
        schedule->edge_buffers = buffers;
        AutoTimeline *timeline = simulate_run(schedule, &costs, NULL);
        // 2 * buffers messages can be sent before their consumers complete.
        for (int i = 2 * buffers; i < 8; i++)
            assert_near(timeline->stage[0].times[i].begin, timeline->stage[1].times[i - 2 * buffers].end);
        assert_near(timeline->stage[0].times[2 * buffers - 1].begin, 2 * buffers - 1);
        assert_near(timeline->makespan, 81);
    }
}

// One stage, two own slots, evictions to the host: every time can be computed by hand.
TEST(a_transfer_runs_beside_compute_and_compute_waits_where_it_must) {
    AutoSchedule *schedule = parsed("# schedule bpipe  stages 1  microbatches 3  slots 2\n"
                                    "stage 0: F0 F1 E1>h F2 B0 L1<h B1 B2\n");
    AutoTimeline *timeline = run(schedule, (Times){1, 2, 5, 0, false});
    // F0 0-1, F1 1-2, E1 2-7, F2 waits for the slot 2-7, 7-8, B0 8-10, L1 10-15, B1 waits for its load, 15-17, B2
    // 17-19.
    static const double start[] = {0, 1, 2, 7, 8, 10, 15, 17}, end[] = {1, 2, 7, 8, 10, 15, 17, 19};
    for (int i = 0; i < 8; i++) {
        assert_near(timeline->stage[0].times[i].begin, start[i]);
        assert_near(timeline->stage[0].times[i].end, end[i]);
    }
    assert_near(timeline->stage[0].wait_slot, 5);
    assert_near(timeline->stage[0].wait_load, 5);
    assert_near(timeline->exposed, 10);
    assert_near(timeline->bubble, 1 - 9.0 / 19);
    assert_int_equal(timeline->stage[0].own_peak, 2);
}

// L1 and B0 end at the same instant, at which L2 starts. B0 has freed its slot then.
TEST(a_load_that_starts_as_a_backward_ends_may_take_its_slot) {
    AutoSchedule *schedule = parsed("# schedule bpipe  stages 1  microbatches 4  slots 4\n"
                                    "stage 0: F0 F1 E1>h F2 E2>h F3 L1<h L2<h B0 B1 B2 B3\n");
    for (int first = 0; first < 2; first++) {
        AutoTimeline *timeline = run(schedule, (Times){4, 2, 2, 0, first});
        assert_near(timeline->stage[0].times[7].begin, timeline->stage[0].times[8].end);
        assert_int_equal(timeline->stage[0].own_peak, 3);
    }
}

// E0 is queued behind E2, which waits for A2. Until then the gradient and the bundle of microbatch 0 are both here.
TEST(a_backward_waits_for_its_load_even_if_the_eviction_has_not_started) {
    AutoSchedule *schedule = parsed("# schedule a  stages 2  microbatches 3  slots 4\n"
                                    "stage 0: F0 F1 F2 E2>1 E0>h L0<h B0 L2<1 B1 B2\n"
                                    "stage 1: F0 B0 F1 B1 A2<0 F2 R2>0 B2\n");
    AutoTimeline *timeline = run(schedule, (Times){1, 1, 1, 0, false});
    const ActionTime *times = timeline->stage[0].times;
    assert_near(times[3].begin, 5); // E2, with A2 after B1 of stage 1
    assert_near(times[5].end, 8);   // L0
    assert_near(times[6].begin, 8); // B0, whose gradient is there from 3 on
}

TEST(both_sides_of_a_transfer_share_its_time) {
    AutoSchedule *schedule = schedule_bpipe(8, 20, 5, NULL);
    AutoTimeline *timeline = run(schedule, (Times){1, 2, 1.25, 0.1, false});
    for (int s = 0; s < 3; s++) {
        const StageSchedule *evictor = &schedule->stage[s], *acceptor = &schedule->stage[7 - s];
        int64_t other = 0;
        for (int64_t i = 0; i < evictor->count; i++) {
            if (evictor->actions[i].peer < 0) continue;
            while (acceptor->actions[other].peer < 0) other++;
            assert_true(timeline->stage[s].times[i].begin == timeline->stage[7 - s].times[other].begin);
            assert_true(timeline->stage[s].times[i].end == timeline->stage[7 - s].times[other].end);
            assert_near(timeline->stage[s].times[i].end - timeline->stage[s].times[i].begin, 1.25);
            other++;
        }
        assert_int_equal(timeline->stage[7 - s].lent_peak, acceptor->lent_slots);
    }
}

TEST(a_schedule_that_hangs_is_reported_with_its_action) {
    AutoSchedule *schedule = schedule_parsed("# schedule bpipe  stages 1  microbatches 3  slots 2\n"
                                             "stage 0: F0 F1 E0>h L0<h E1>h F2 B0 L1<h B1 B2\n");
    double one[] = {1};
    SimulateCosts costs = {.forward = one, .backward = one, .transfer = one};
    assert_refused(simulate_run(schedule, &costs, &unit_error), EXIT_FAILED, "");
    assert_string_equal(unit_error.text, "schedule bpipe deadlocks: stage 0 waits at B0");
    // Durations matter here: if L0 gets the slot before F2 asks for it, the schedule completes.
    costs.queue_first = true;
    timeline_free(assert_made(simulate_run(schedule, &costs, &unit_error)));
    // A transfer also waits for a free lent slot.
    AutoSchedule *pairs = schedule_bpipe(4, 8, 3, NULL);
    double four[] = {1, 1, 1, 1};
    costs = (SimulateCosts){.forward = four, .backward = four, .transfer = four};
    pairs->stage[3].lent_slots = 1;
    assert_null(simulate_run(pairs, &costs, NULL));
}

// ---------------------------------------------------------------------------------------------------------------------
// Sharing

// Simulates two stages on `cores` cores, with F = 1, B = 2 and messages that take no time.
static Timeline *run_on_cores(int microbatches, double cores) {
    const double forward[] = {1, 1}, backward[] = {2, 2};
    const int compute[] = {0, 0};
    SimulateShares shares = {.count = 1, .capacity = &cores, .compute = compute};
    SimulateCosts costs = {.forward = forward, .backward = backward, .shares = &shares};
    AutoSchedule *schedule = schedule_1f1b(2, microbatches, NULL);
    Timeline *timeline = simulate_run(schedule, &costs, NULL);
    assert_non_null(timeline);
    return timeline;
}

TEST(ranks_that_share_a_core_take_the_time_of_all_their_work) {
    for (int m = 2; m <= 64; m *= 2) {
        AutoTimeline *two = run_on_cores(m, 2), *one = run_on_cores(m, 1);
        assert_near(two->makespan, 3 * (m + 1));
        assert_near(one->makespan, 3 * 2 * m); // never idle: one of the stages always has work
    }
}

static void expect_done(Contention *shares, double when, int who) {
    assert_near(shares->share[0].next, when);
    assert_int_equal(contention_pop(shares, 0).stage, who);
}

TEST(users_of_a_resource_get_equal_parts_of_it) {
    const double capacity[] = {1, 2};
    Contention *shares = contention_create(2, capacity, NULL, NULL);
    assert_true(isinf(shares->share[0].next));
    // User 0 has done 1 of 4 units when user 1 adds 1 unit. That takes 2 s at half speed, and user 0 then has 2 left.
    contention_add(shares, 0, 0, 4, (ContentionUser){.stage = 0});
    contention_add(shares, 0, 1, 1, (ContentionUser){.stage = 1});
    expect_done(shares, 3, 1);
    expect_done(shares, 5, 0);
    // Three users of a resource for two run at two thirds of their speed.
    for (int i = 0; i < 3; i++) contention_add(shares, 1, 6, 2, (ContentionUser){.stage = i});
    for (int i = 0; i < 3; i++) {
        assert_near(shares->share[1].next, 9);
        contention_pop(shares, 1);
    }
    assert_true(isinf(shares->share[1].next));
    contention_free(shares);
}

// Alone, a user needs resource 0 for half of its time. It finds a second one there for half of that, on average, and
// waits for it. A user of resource 1 is always there: both get what the other leaves.
TEST(users_that_need_a_resource_for_a_part_of_their_time_meet_by_chance) {
    const double capacity[] = {1, 1}, part[] = {0.5, 1};
    const int rival[] = {1, 0};
    Contention *shares = contention_create(2, capacity, part, rival);
    for (int i = 0; i < 2; i++) contention_add(shares, 0, 0, 1, (ContentionUser){.stage = i});
    for (int i = 0; i < 2; i++) {
        assert_near(shares->share[0].next, 0.5 + 0.5 * 1.5);
        contention_pop(shares, 0);
    }
    contention_add(shares, 0, 2, 1, (ContentionUser){.stage = 0});
    contention_add(shares, 1, 2, 1, (ContentionUser){.stage = 1});
    expect_done(shares, 3.5, 0); // works for half a unit, and for a unit gets half of the resource
    assert_near(shares->share[1].next, 3.5);
    contention_free(shares);
}

// Stage 1 of three sends in both directions. If both use one network card, simultaneous messages take longer; otherwise
// nothing changes.
TEST(messages_that_leave_through_one_card_slow_each_other_down) {
    const double capacity = 1, one[] = {1, 1, 1}, two[] = {2, 2, 2}, edge[] = {3, 3};
    const int down[] = {-1, 0}, up[] = {0, -1}, none[] = {-1, -1};
    SimulateShares shares = {.count = 1, .capacity = &capacity, .down = down, .up = up};
    SimulateCosts costs = {.forward = one, .backward = two, .edge = edge, .shares = &shares};
    AutoSchedule *schedule = schedule_1f1b(3, 16, NULL);
    AutoTimeline *shared = simulate_run(schedule, &costs, NULL);
    shares.down = shares.up = none;
    AutoTimeline *alone = simulate_run(schedule, &costs, NULL);
    costs.shares = NULL;
    AutoTimeline *plain = simulate_run(schedule, &costs, NULL);
    assert_true(shared->makespan > alone->makespan + 0.5);
    assert_near(alone->makespan, plain->makespan);
}

// F1 of stage 0 overlaps the message after F0, F0 of stage 1 the next message, F1 of stage 1 the first gradient: each
// takes half a unit longer.
TEST(compute_is_slower_beside_messages_that_share_a_resource) {
    const double capacity[] = {4, 1, 1}, one[] = {1, 1}, two[] = {2, 2}, edge[] = {1}, half[] = {0.5, 0.5};
    const int card[] = {0, 0}, compute[] = {1, 2};
    SimulateShares shares = {.count = 3, .capacity = capacity, .compute = compute, .down = card, .up = card};
    SimulateCosts costs = {.forward = one, .backward = two, .edge = edge, .shares = &shares};
    AutoSchedule *schedule = schedule_1f1b(2, 2, NULL);
    AutoTimeline *alone = simulate_run(schedule, &costs, NULL);
    shares.beside = half;
    AutoTimeline *beside = simulate_run(schedule, &costs, NULL);
    assert_near(alone->makespan, 11);
    assert_near(beside->makespan, 12);
    assert_near(beside->stage[0].busy, 6.5);
    assert_near(beside->stage[1].busy, 7);
}

// ---------------------------------------------------------------------------------------------------------------------
// No time lost

typedef struct Loss {
    double share;   // lost time, relative to the time of 1F1B
    double exposed; // exposed time, in forwards
} Loss;

static Loss loss_of(const Schedule *schedule, Times times) {
    AutoTimeline *timeline = run(schedule, times);
    double base = (schedule->microbatches + schedule->stages - 1) * (times.forward + times.backward);
    if (times.edge > 0) {
        AutoSchedule *plain = schedule_1f1b(schedule->stages, schedule->microbatches, NULL);
        AutoTimeline *reference = run(plain, times);
        base = reference->makespan;
    }
    return (Loss){timeline->makespan / base - 1, timeline->exposed / times.forward};
}

static void assert_no_loss(const Schedule *schedule, Times times) {
    for (int winner = 0; winner < 2; winner++) {
        times.queue_first = winner;
        Loss loss = loss_of(schedule, times);
        bool hidden = loss.exposed < 1e-9 || times.transfer > times.forward;
        if (fabs(loss.share) < 1e-9 && hidden) continue;
        fail_msg("p %d m %d slots %d: F %g B %g transfer %g: %g %% lost, compute waited %g", schedule->stages,
                 schedule->microbatches, schedule->slots, times.forward, times.backward, times.transfer,
                 100 * loss.share, loss.exposed);
    }
}

// Returns the largest difference between times of two runs. Rounding grows where messages share a card.
static double difference_of(const Schedule *schedule, const Timeline *a, const Timeline *b) {
    double most = fabs(a->makespan - b->makespan);
    for (int s = 0; s < schedule->stages; s++) {
        const StageTimeline *one = &a->stage[s], *other = &b->stage[s];
        most = fmax(most, fabs(one->last - other->last));
        most = fmax(most, fabs(one->busy - other->busy));
        most = fmax(most, fabs(one->wait_slot - other->wait_slot));
        most = fmax(most, fabs(one->wait_load - other->wait_load));
        assert_int_equal(one->own_peak, other->own_peak);
        for (int64_t i = 0; i < schedule->stage[s].count; i++) {
            most = fmax(most, fabs(one->times[i].begin - other->times[i].begin));
            most = fmax(most, fabs(one->times[i].end - other->times[i].end));
            const Action *e = &schedule->stage[s].actions[i];
            if (i > 0 && e->kind == ACTION_EVICT && schedule_bundle(schedule, e[-1]) == schedule_bundle(schedule, *e))
                assert_true(one->times[i].begin >= one->times[i - 1].end); // a bundle leaves when its F has made it
        }
    }
    return most;
}

// Simulates a schedule without a clock and with one. Sharing cores takes a clock; a million cores are too many to slow
// anything down. All durations differ, so that rounding cannot decide who is first. Two messages fill the shared
// network card. Counts the schedules in which evictions (*moving) or the card (*sharing) delay compute.
static void run_ahead(const Schedule *schedule, bool queue_first, int *moving, int *sharing) {
    double each[4][2 * MOST_STAGES], edge[MOST_STAGES], last[MOST_STAGES], transfer[MOST_STAGES], capacity[] = {2, 1e6};
    double queued[2 * MOST_STAGES];
    int card[MOST_STAGES] = {0}, cores[MOST_STAGES];
    for (int i = 0; i < 2 * schedule->stages; i++) {
        queued[i] = (double)(i % 3) / 2;
        for (int k = 0; k < 4; k++) each[k][i] = 1.2 + 0.2 * sin(i * 7 + k * 3);
    }
    for (int s = 0; s < schedule->stages; s++) {
        edge[s] = 0.7 + 0.5 * sin(s), last[s] = 1.1, transfer[s] = 1.1 + 0.3 * cos(s);
        cores[s] = 1;
    }
    SimulateShares shares = {.count = 2, .capacity = capacity, .down = card, .up = card};
    SimulateCosts costs = {each[0],      each[1],          each[2],
                           each[3],      .last = last,     .transfer = transfer,
                           .edge = edge, .queued = queued, .queue_first = queue_first};
    AutoTimeline *alone = schedule_simulated(schedule, &costs);
    costs.shares = &shares;
    AutoTimeline *shared = schedule_simulated(schedule, &costs);
    shares.compute = cores;
    AutoTimeline *shared_clock = schedule_simulated(schedule, &costs);
    shares.down = shares.up = NULL;
    AutoTimeline *clock = schedule_simulated(schedule, &costs);
    assert_true(difference_of(schedule, alone, clock) < 1e-9);
    assert_true(difference_of(schedule, shared, shared_clock) < 1e-5);
    *moving += alone->exposed > 0;
    *sharing += shared->makespan > alone->makespan + 0.1;
}

TEST(stages_that_run_ahead_have_the_times_of_a_run_with_a_clock) {
    int moving = 0, sharing = 0;
    for (int kind = 0; kind < schedule_kind_count; kind++)
        for (int p = 2; p <= 8; p += 3) {
            ScheduleSpec spec = {.stages = p, .microbatches = 4 * p, .group = p, .delay = p - 1};
            Error err = {0};
            AutoSchedule *kept = schedule_make(&schedule_kinds[kind], &spec, &err);
            if (kept == NULL) continue; // no list for an odd number of stages
            AutoSchedule *evicting = bpipe_balance(kept, 0, EVICT_TO_HOST, 1, &err);
            run_ahead(kept, false, &moving, &sharing);
            for (int first = 0; evicting != NULL && first < 2; first++) run_ahead(evicting, first, &moving, &sharing);
        }
    assert_true(moving > 20 && sharing > 20);
}

// Transfers of up to one forward never delay compute. Up to (F+B)/2 compute waits only while 1F1B would be idle anyway.
// More slots than the fewest lose no time either.
TEST(bpipe_loses_no_time_while_evict_and_load_fit_in_a_forward_and_a_backward) {
    for (int p = 2; p <= 32; p += 1 + p / 8)
        for (int m = p; m <= 256; m++) {
            Schedule *schedule = schedule_bpipe(p, m, bpipe_min_slots(p), NULL);
            if (m < 2 * p || m % 8 == p % 8) assert_no_loss(schedule, (Times){1, 2, 1.5, 0, false});
            if (m % 16 == p % 16) {
                for (double transfer = 0; transfer <= 1; transfer += 0.25)
                    assert_no_loss(schedule, (Times){1, 2, transfer, 0, false});
                assert_no_loss(schedule, (Times){1, 1, 1, 0, false});
                assert_no_loss(schedule, (Times){1, 3, 2, 0, false});
                assert_no_loss(schedule, (Times){0.7, 1.1, 0.7, 0.3, false});
            }
            schedule_free(schedule);
            for (int slots = bpipe_min_slots(p) + 1; slots <= p && (m - p) % 41 == 0; slots += 1 + p / 6) {
                schedule = schedule_bpipe(p, m, slots, NULL);
                assert_no_loss(schedule, (Times){1, 2, 1, 0, false});
                assert_no_loss(schedule, (Times){1, 2, 1.5, 0, false});
                schedule_free(schedule);
            }
        }
}

// Slower transfers for p = 8, with one or more additional slots or earlier loads, as docs/bpipe.md promises.
TEST(bundles_that_are_loaded_earlier_bear_slower_transfers) {
    static const struct {
        int slots, ahead;
        double transfer;
    } rows[] = {{5, 1, 1.5}, {5, 2, 2}, {6, 2, 2.25}, {6, 3, 3}, {7, 2, 3}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (int m = 8; m <= 256; m += m < 32 ? 1 : 16) {
            AutoSchedule *base = schedule_1f1b(8, m, NULL);
            AutoSchedule *schedule = bpipe_balance(base, rows[i].slots, EVICT_TO_PEER, rows[i].ahead, NULL);
            assert_no_loss(schedule, (Times){1, 2, rows[i].transfer, 0, false});
        }
}

TEST(the_host_form_loses_no_time_while_a_transfer_takes_a_forward) {
    for (int p = 2; p <= 32; p += 1 + p / 8)
        for (int slots = 2; slots <= p; slots += 1 + p / 6)
            for (int m = p; m <= 256; m += 61) {
                AutoSchedule *base = schedule_1f1b(p, m, NULL);
                AutoSchedule *host = bpipe_balance(base, slots, EVICT_TO_HOST, 1, NULL);
                // With two slots, forwards of the warm-up wait until their predecessors are evicted, but only briefly.
                if (slots > 2) assert_no_loss(host, (Times){1, 2, 1, 0, false});
                assert_near(loss_of(host, (Times){1, 2, 1, 0, false}).share, 0);
                assert_near(loss_of(host, (Times){1, 3, 1, 0, true}).share, 0);
            }
}

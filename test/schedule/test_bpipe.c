// Making and writing schedules, for every p <= 32 and m <= 256. test_simulate.c shows that BPipe loses no time,
// test_schedule_check.c tests the proof.
#include "bpipe.h"
#include "schedules.h"
#include "unit.h"

#include <limits.h>
#include <string.h>

static Schedule *balanced(int stages, int microbatches, int slots, EvictTarget target) {
    AutoSchedule *base = assert_made(schedule_1f1b(stages, microbatches, &unit_error));
    return assert_made(bpipe_balance(base, slots, target, 1, &unit_error));
}

// Returns the evictions of the newest-first rule on one stage of 1F1B, if a bundle is evicted only when its slot is
// needed and each load starts one action before its backward. The BPipe pass is compared with this number.
static int64_t newest_first(int in_flight, int microbatches, int slots) {
    bool away[4096] = {false};
    int used = 0, forwards = 0;
    int64_t evictions = 0;
    for (int backwards = 0; backwards < microbatches; backwards++) {
        int until = backwards + in_flight < microbatches ? backwards + in_flight : microbatches;
        // One load, then one forward; before the first backward, only forwards.
        bool load = away[backwards];
        for (int wanted = until - forwards + load; wanted > 0; wanted--) {
            if (used == slots) {
                int newest = forwards - 1;
                while (away[newest]) newest--;
                away[newest] = true;
                evictions++;
                used--;
            }
            used++;
            if (!load) forwards++;
            away[backwards] = false;
            load = false;
        }
        used--;
    }
    return evictions;
}

// ---------------------------------------------------------------------------------------------------------------------
// Text

static void assert_text(Schedule *schedule, const char *expected) {
    assert_non_null(schedule);
    char *text = written_schedule(schedule);
    assert_string_equal(text, expected);
    schedule_assert_sound(schedule);
    free(text);
    schedule_free(schedule);
}

TEST(text_is_version_1_to_the_letter) {
    assert_text(schedule_gpipe(2, 3, NULL), "# schedule gpipe  stages 2  microbatches 3  slots 3\n"
                                            "stage 0: F0 F1 F2 B0 B1 B2\n"
                                            "stage 1: F0 F1 F2 B0 B1 B2\n");
    assert_text(schedule_1f1b(3, 4, NULL), "# schedule 1f1b  stages 3  microbatches 4  slots 3\n"
                                           "stage 0: F0 F1 F2 B0 F3 B1 B2 B3\n"
                                           "stage 1: F0 F1 B0 F2 B1 F3 B2 B3\n"
                                           "stage 2: F0 B0 F1 B1 F2 B2 F3 B3\n");
    assert_text(schedule_forward(2, 1), "# schedule forward  stages 2  microbatches 1  slots 1\n"
                                        "stage 0: F0\n"
                                        "stage 1: F0\n");
    assert_text(schedule_bpipe(4, 8, 3, NULL),
                "# schedule bpipe  stages 4  microbatches 8  slots 3\n"
                "stage 0: F0 F1 E1>3 F2 F3 E3>3 L1<3 B0 F4 B1 F5 E5>3 L3<3 B2 F6 B3 F7 B4 L5<3 B5 B6 B7\n"
                "stage 1: F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7\n"
                "stage 2: F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7\n"
                "stage 3: A1<0 A3<0 R1>0 F0 B0 F1 B1 A5<0 R3>0 F2 B2 F3 B3 F4 B4 R5>0 F5 B5 F6 B6 F7 B7\n");
    assert_text(balanced(3, 4, 2, EVICT_TO_HOST), "# schedule bpipe  stages 3  microbatches 4  slots 2\n"
                                                  "stage 0: F0 F1 E1>h F2 E2>h L1<h B0 F3 B1 L2<h B2 B3\n"
                                                  "stage 1: F0 F1 B0 F2 B1 F3 B2 B3\n"
                                                  "stage 2: F0 B0 F1 B1 F2 B2 F3 B3\n");
}

TEST(line_ends_and_spaces_of_other_editors_are_read) {
    const char *texts[] = {
        "# schedule a  stages 2  microbatches 2  slots 2\r\nstage 0: F0 F1 B0 B1\r\nstage 1: F0 B0 F1 B1\r\n",
        "# schedule a  stages 2  microbatches 2  slots 2\nstage 0: F0 F1 B0 B1\nstage 1: F0 B0 F1 B1",
        "# schedule a  stages 2  microbatches 2  slots 2\nstage 0:\tF0\tF1  B0 B1 \n"
        "stage 1: F0 B0 F1 B1\r\n\n \r\n",
        "# schedule a stages 2 microbatches 2 slots 2\nstage 0: F00 F1 B0 B01\nstage 1: F0 B0 F1 B1\r"};
    for (int i = 0; i < 4; i++) {
        Error err = {0};
        Schedule *read = schedule_parse(texts[i], &err);
        if (read == NULL) fail_msg("%d: %s", i, err.text);
        assert_text(read, "# schedule a  stages 2  microbatches 2  slots 2\n"
                          "stage 0: F0 F1 B0 B1\nstage 1: F0 B0 F1 B1\n");
    }
}

// A million lines or actions are read at once, and an error at the end is reported with its line.
TEST(long_texts_are_read_or_refused_with_their_line) {
    enum { MANY = 1000000 };
    AutoText *text = malloc(24 * (size_t)MANY);
    char *at = text;
    assert_non_null(text);
    at += sprintf(at, "# schedule a  stages 1  microbatches %d  slots 1\nstage 0:", MANY);
    for (int i = 0; i < MANY; i++) at += sprintf(at, " F%d B%d", i, i);
    AutoSchedule *read = schedule_parsed(text);
    assert_int_equal(read->stage[0].count, 2 * MANY);
    schedule_assert_sound(read);
    at = text + sprintf(text, "# schedule a  stages %d  microbatches 1  slots 1\n", MANY);
    for (int s = 0; s < MANY; s++) at += sprintf(at, "stage %d:\n", s);
    AutoSchedule *empty = schedule_parsed(text);
    assert_refused(schedule_check(empty, &unit_error), EXIT_USAGE, "");
    assert_string_equal(unit_error.text,
                        "schedule a: stage 0 lists 0 actions; 1 microbatches take at least 2 on each chunk");
    sprintf(at, "stage 7:\n");
    assert_refused(schedule_parse(text, &unit_error), EXIT_USAGE, "");
    assert_string_equal(unit_error.text, "schedule, line 1000002: found \"stage\", expected the end of the schedule");
}

TEST(text_that_is_not_a_schedule_is_refused_with_its_line) {
#define HEADER "# schedule 1f1b  stages 1  microbatches 1  slots 1\n"
    static const struct {
        const char *text, *error;
    } rows[] = {
        {"", "schedule, line 1: found the end of the text, expected the header \"# schedule NAME  stages P  "
             "microbatches M  slots K\""},
        {"# schedule 1f1b  stages 1  microbatches 1\n",
         "schedule, line 1: found the end of the line, expected the header"},
        {"# schedule a-name-of-more-than-31-characters  stages 1",
         "schedule, line 1: found \"a-name-of-more-than-31-\", expected a name of at most 31 characters out of a-z, "
         "0-9 and -"},
        {"# schedule 1F1B  stages 1", "schedule, line 1: found \"1F1B\", expected a name of at most 31 characters"},
        {"# schedule a_b  stages 1", "schedule, line 1: found \"a_b\", expected a name of at most 31 characters"},
        {"# schedule   \n", "schedule, line 1: found the end of the line, expected a name of at most 31 characters"},
        {"# schedule a  stages 1  chunks 1  placement w  microbatches 1  slots 1  edges 2\n",
         "schedule, line 1: found \"w\", expected the header \"# schedule NAME  stages P  chunks V  placement loop|v"},
        {"# schedule a  stages 1  chunks 0  placement v  microbatches 1  slots 1  edges 2\n",
         "schedule, line 1: chunks, slices and edges must be >= 1"},
        {"# schedule a  stages 1  chunks 1  placement v  microbatches 1  slots 1\n",
         "schedule, line 1: found the end of the line, expected the header"},
        {"# schedule a  stages 1  chunks 1  placement loop  microbatches 1  slots 1  edges 1\nstage 0: F0 B0\n",
         "schedule, line 2: found \"F0\", expected one of F3.1, B3.1, I3.1, W3.1"},
        {"# schedule a  stages 1  chunks 1  placement loop  microbatches 1  slots 1  edges 1\nstage 0: F0.-1 B0.0\n",
         "schedule, line 2: found \"F0.-1\", expected one of"},
        {"# schedule a  stages 1  chunks 1  placement loop  microbatches 1  slots 1  edges 1\nstage 0: F0.32768 B0.0\n",
         "schedule, line 2: numbers of chunks, slices and stages end at 32767"},
        {HEADER "stage 0: F0 I0 W0\n", "schedule, line 2: found \"I0\", expected one of F3, B3, E3>q"},
        {HEADER "stage 0: F0\r B0\n", "schedule, line 2: found the end of the line, expected one of"},
        {"# schedule 1f1b  stages 99999999999  microbatches 1  slots 1\n", "schedule, line 1: found \"99999999999\""},
        {"# schedule 1f1b  stages 0  microbatches 1  slots 1\n",
         "schedule, line 1: stages, microbatches and slots must be >= 1"},
        {"# schedule 1f1b  stages -1  microbatches 1  slots 1\n",
         "schedule, line 1: found \"-1\", expected the header"},
        {HEADER, "schedule, line 2: found the end of the text, expected \"stage 0:\""},
        {HEADER "stage 1: F0 B0\n", "schedule, line 2: found \"stage\", expected \"stage 0:\""},
        {HEADER "stage 0: F0 X0\n", "schedule, line 2: found \"X0\", expected one of F3, B3, E3>q, E3>h, A3<q"},
        {HEADER "stage 0: F0B0\n", "schedule, line 2: found \"F0B0\", expected one of"},
        {HEADER "stage 0: F\n", "schedule, line 2: found \"F\", expected one of"},
        {HEADER "stage 0: E0<1\n", "schedule, line 2: found \"E0<1\", expected one of"},
        {HEADER "stage 0: A0<h\n", "schedule, line 2: found \"A0<h\", expected one of"},
        {HEADER "stage 0: F99999999999\n", "schedule, line 2: found \"F99999999999\", expected one of"},
        {HEADER "stage 0: \x01\xff\n", "schedule, line 2: found \"\?\?\", expected one of"},
        {HEADER "stage 0: F0 B0\nstage 1: F0 B0\n",
         "schedule, line 3: found \"stage\", expected the end of the schedule"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        Error err = {0};
        assert_null(schedule_parse(rows[i].text, &err));
        assert_int_equal(err.code, EXIT_USAGE);
        if (strncmp(err.text, rows[i].error, strlen(rows[i].error)) != 0) print_error("row %zu: %s\n", i, err.text);
        assert_memory_equal(err.text, rows[i].error, strlen(rows[i].error));
    }
}

// Text is read before it is checked: no count of a list may trust its numbers.
TEST(chunks_that_do_not_exist_are_left_to_the_check) {
    static const char *const texts[] = {
        "# schedule a  stages 1  chunks 1  slices 2  placement loop  microbatches 1  slots 2  edges 2\n"
        "stage 0: F0.30000:0 F0.0:1 B0.0:1 B0.0:0\n",
        "# schedule a  stages 1  chunks 2147483647  slices 2  placement loop  microbatches 1  slots 2  edges 2\n"
        "stage 0: F0.0:0 F0.0:1 B0.0:1 B0.0:0\n",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        AutoSchedule *schedule = assert_made(schedule_parse(texts[i], &unit_error));
        assert_true((schedule->stage[0].kept == NULL) == (i == 1));
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Makers

static void assert_error(Schedule *schedule, Error *err, const char *sentence) {
    assert_null(schedule);
    assert_int_equal(err->code, EXIT_USAGE);
    assert_string_equal(err->text, sentence);
    *err = (Error){0};
}

TEST(invalid_arguments_of_a_schedule_are_refused_with_the_remedy) {
    Error err = {0};
    const char *few =
        "3 microbatches cannot fill 4 pipeline stages; use at least 4 microbatches per step, fewer stages, or "
        "schedule.slices";
    assert_error(schedule_gpipe(4, 3, &err), &err, few);
    assert_error(schedule_1f1b(4, 3, &err), &err, few);
    assert_error(schedule_bpipe(4, 3, 3, &err), &err, few);
    assert_error(schedule_1f1b(0, 3, &err), &err, "a schedule needs at least 1 stage and 1 microbatch, not 0 and 3");
    assert_error(schedule_bpipe(8, 64, 4, &err), &err,
                 "4 slots are too few to balance 1f1b on 8 stages; the smallest number that works is 5");
    AutoSchedule *gpipe = schedule_gpipe(4, 8, &err), *bpipe = schedule_bpipe(4, 8, 3, &err);
    assert_error(bpipe_balance(gpipe, 5, EVICT_TO_PEER, 1, &err), &err,
                 "5 slots are too few to balance gpipe on 4 stages; the smallest number that works is 8");
    assert_error(bpipe_balance(gpipe, 1, EVICT_TO_HOST, 1, &err), &err,
                 "1 slots are too few to balance gpipe on 4 stages; the smallest number that works is 2");
    assert_error(bpipe_balance(bpipe, 3, EVICT_TO_PEER, 1, &err), &err,
                 "schedule bpipe cannot be balanced: it already moves bundles");
}

TEST(the_smallest_number_of_slots_is_half_of_p_plus_2_rounded_up) {
    for (int p = 2; p <= 32; p++) {
        assert_int_equal(bpipe_min_slots(p), (p + 2) / 2 + (p + 2) % 2);
        assert_null(schedule_bpipe(p, 2 * p, bpipe_min_slots(p) - 1, NULL));
        for (int s = 0; s < p; s++) {
            int partner = bpipe_partner(p, s);
            assert_int_equal(partner, 2 * s + 1 == p ? SCHEDULE_NO_PEER : p - 1 - s);
        }
    }
    schedule_free(balanced(1, 3, bpipe_min_slots(1), EVICT_TO_PEER));
    schedule_free(balanced(1, 3, bpipe_min_slots_host(1), EVICT_TO_HOST));
}

// Balancing changes neither the order of F and B nor what they compute.
static void assert_same_compute(const Schedule *base, const Schedule *schedule) {
    for (int s = 0; s < base->stages; s++) {
        int64_t next = 0;
        for (int64_t i = 0; i < schedule->stage[s].count; i++) {
            Action action = schedule->stage[s].actions[i];
            if (action.peer != SCHEDULE_NO_PEER) continue;
            assert_memory_equal(&action, &base->stage[s].actions[next], sizeof action);
            next++;
        }
        assert_int_equal(next, base->stage[s].count);
    }
}

static void assert_few_transfers(const Schedule *schedule) {
    int p = schedule->stages, m = schedule->microbatches;
    for (int s = 0; s < p; s++) {
        int64_t evictions = schedule_actions(schedule, s, ACTION_EVICT);
        int64_t reference = newest_first(p - s, m, schedule->slots);
        // One more is allowed, because slots are freed early in the warm-up, so that no forward waits.
        if (evictions > reference + 1) print_error("p %d m %d stage %d: %d\n", p, m, s, (int)evictions);
        assert_true(evictions <= reference + 1);
    }
}

TEST(bpipe_is_sound_within_its_slots_and_with_few_transfers) {
    for (int p = 2; p <= (UNIT_SANITIZED ? 12 : 32); p++)
        for (int m = p; m <= 256; m++) {
            AutoSchedule *base = schedule_1f1b(p, m, NULL);
            AutoSchedule *schedule = schedule_bpipe(p, m, bpipe_min_slots(p), NULL);
            schedule_assert_sound(schedule);
            assert_same_compute(base, schedule);
            assert_few_transfers(schedule);
            for (int s = 0; s < p; s++) {
                const StageSchedule *stage = &schedule->stage[s];
                assert_true(stage->own_slots + stage->lent_slots <= bpipe_min_slots(p));
                if (s >= p / 2) assert_int_equal(schedule_actions(schedule, s, ACTION_EVICT), 0);
            }
        }
}

TEST(more_slots_mean_fewer_evictions_and_p_slots_none) {
    for (int p = 4; p <= 32; p += 1) {
        int64_t before = INT64_MAX;
        for (int slots = bpipe_min_slots(p); slots <= p + 1; slots++) {
            AutoSchedule *schedule = schedule_bpipe(p, 4 * p, slots, NULL);
            schedule_assert_sound(schedule);
            int64_t evictions = schedule_actions(schedule, 0, ACTION_EVICT);
            assert_true(slots > p ? evictions == 0 : evictions < before);
            if (slots == p) assert_int_equal(evictions, 0);
            before = evictions;
        }
    }
}

TEST(the_transfers_of_p_8_m_64_are_those_of_newest_first) {
    AutoSchedule *schedule = schedule_bpipe(8, 64, 5, NULL);
    static const int expected[] = {30, 24, 15, 0, 0, 0, 0, 0};
    for (int s = 0; s < 8; s++) {
        assert_int_equal(newest_first(8 - s, 64, 5), expected[s]);
        assert_int_equal(schedule_actions(schedule, s, ACTION_EVICT), expected[s]);
        assert_int_equal(schedule_actions(schedule, 7 - s, ACTION_ACCEPT), expected[s]);
    }
}

TEST(bundles_that_are_loaded_earlier_cost_transfers_and_stay_within_the_slots) {
    for (int p = 2; p <= 32; p += 1 + p / 8) {
        AutoSchedule *base = schedule_1f1b(p, 5 * p, NULL);
        assert_null(bpipe_balance(base, p, EVICT_TO_PEER, 0, NULL));
        for (int slots = bpipe_min_slots(p); slots <= p; slots += 1 + p / 6) {
            int64_t before = 0;
            for (int ahead = 1; ahead <= 5; ahead++) {
                Schedule *schedule = bpipe_balance(base, slots, EVICT_TO_PEER, ahead == 5 ? INT_MAX : ahead, NULL);
                schedule_assert_sound(schedule);
                int64_t evictions = 0;
                for (int s = 0; s < p; s++) evictions += schedule_actions(schedule, s, ACTION_EVICT);
                assert_true(evictions >= before);
                before = evictions;
                schedule_free(schedule);
                int own = 2 + slots / 3; // to the host, stages evict that keep more
                schedule = bpipe_balance(base, own, EVICT_TO_HOST, ahead, NULL);
                schedule_assert_sound(schedule);
                for (int s = 0; s < p && ahead == 1; s++)
                    assert_int_equal(schedule_actions(schedule, s, ACTION_EVICT) > 0, p - s > own);
                schedule_free(schedule);
            }
        }
    }
}

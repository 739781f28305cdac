// Every schedule of the table: sound, within its slots, and idle for as long as the formula predicts if F, B and W take
// equal times. `test_kinds all [FIRST LAST]` checks every m <= 256 for FIRST to LAST stages (default 1 to 32); the test
// checks a selection.
#define UNIT_OWN_MAIN
#include "schedule/study.h"
#include "schedules.h"

#include <math.h>
#include <string.h>

enum { MOST_STAGES = 32, MOST_CHUNKS = 8, MOST_SLICES = 8 };

static int first_stages, last_stages; // range of the long form; 0: a selection

static double makespan(const Schedule *schedule, double forward, double input, double weight, double edge,
                       double transfer) {
    const StudyTimes times = {forward, input, weight, edge, transfer};
    AutoTimeline *timeline = schedule_in_its_slots(schedule, study_run(schedule, &times, &unit_error));
    double time = timeline->makespan;
    return time;
}

// ---------------------------------------------------------------------------------------------------------------------
// The schedules to check

// One schedule, made from its spec.
typedef struct View {
    const ScheduleKind *kind;
    const ScheduleSpec *spec;
    const Schedule *base;
    double plain; // makespan of `base` with F = B = W = 1
} View;

typedef void (*Look)(const View *view);

static Schedule *made(const ScheduleKind *kind, const ScheduleSpec *spec) {
    Error err = {0};
    Schedule *schedule = schedule_make(kind, spec, &err);
    if (schedule == NULL) fail_msg("%s: p %d m %d: %s", kind->name, spec->stages, spec->microbatches, err.text);
    return schedule;
}

// Makes the schedule and calls all functions of `looks`, an array that ends with NULL.
static void look_at(const ScheduleKind *kind, const ScheduleSpec *spec, const Look *looks) {
    AutoSchedule *base = made(kind, spec);
    View view = {kind, spec, base, makespan(base, 1, 1, 1, 0, 0)};
    for (; *looks != NULL; looks++) (*looks)(&view);
}

// Larger schedules with slices are skipped, since their lists are long.
enum { SLICED_STAGES = 16, SLICED_MICROBATCHES = 64 };

// Checks up to `most_chunks` chunks, and with all_numbers every group, delay and number of slices, otherwise the
// smallest, a middle and the largest one. Skips specs that the kind refuses.
static void look_at_variants(const ScheduleKind *kind, int p, int m, int most_chunks, bool all_numbers,
                             const Look *looks) {
    for (int chunks = kind->chunks; chunks <= kind->most_chunks && chunks <= most_chunks; chunks *= 2) {
        int first = kind->grouped ? (p + 1) / 2 : kind->delayed ? 0 : p;
        int last = kind->delayed ? p - 1 : p, step = all_numbers || last - first < 3 ? 1 : (last - first) / 2;
        for (int number = first; number <= last; number += step)
            for (int slices = 1; slices <= (kind->sliced ? MOST_SLICES : 1); slices += all_numbers ? 1 : slices) {
                ScheduleSpec spec = {
                    .stages = p, .microbatches = m, .chunks = chunks, .delay = number, .slices = slices};
                if (kind->grouped) spec.group = number;
                if (slices > 1 && (p > SLICED_STAGES || m > SLICED_MICROBATCHES)) break;
                Error ignored = {0};
                if (schedule_complete(kind, &spec, NULL, &ignored) == 0) look_at(kind, &spec, looks);
            }
    }
}

static void look_at_some(const ScheduleKind *kind, const Look *looks) {
    static const int stages[] = {1, 2, 3, 4, 5, 7, 8, 16, 32};
    for (int at = 0; at < (UNIT_SANITIZED ? 7 : 9); at++) {
        int p = stages[at];
        for (int m = p; m <= 256; m += m < 2 * p ? 1 + p / 4 : m < 4 * p ? p / 2 + 1 : 11 * p)
            look_at_variants(kind, p, m, MOST_CHUNKS, false, looks);
        look_at_variants(kind, p, 4 * p, MOST_CHUNKS, false, looks);
    }
}

// Checks every m. For a few m, where the ends of a list matter, also every group and delay, and the most chunks.
static void look_at_all(const ScheduleKind *kind, const Look *looks) {
    for (int p = first_stages; p <= last_stages; p++)
        for (int m = p; m <= 256; m++) {
            bool few = m == p || m == 2 * p || m == 4 * p || m == 4 * p + p / 2 + 1;
            look_at_variants(kind, p, m, few ? MOST_CHUNKS : 4, few, looks);
        }
}

static void look_at_every_kind(const Look *looks) {
    for (int k = 0; k < schedule_kind_count; k++)
        (last_stages > 0 ? look_at_all : look_at_some)(&schedule_kinds[k], looks);
}

// ---------------------------------------------------------------------------------------------------------------------
// Makers

static void look_at_soundness(const View *view) {
    const Schedule *schedule = view->base;
    const ScheduleKind *kind = view->kind;
    const ScheduleSpec *spec = view->spec;
    assert_string_equal(schedule->name, kind->name);
    assert_int_equal(schedule->placement, kind->placement);
    assert_int_equal(schedule->split, kind->splits);
    schedule_assert_sound(schedule);
    if (schedule->slots > kind->slots(spec))
        fail_msg("%s: p %d m %d chunks %d slices %d: %d slots, not %d", kind->name, spec->stages, spec->microbatches,
                 spec->chunks, spec->slices, schedule->slots, kind->slots(spec));
}

TEST(every_schedule_is_sound_and_within_its_slots) { look_at_every_kind((const Look[]){look_at_soundness, NULL}); }

static double larger(double a, double b) { return a > b ? a : b; }

// Returns the idle time with F = B = W = 1; negative: there is no formula for this p and m. V-Min's is an upper bound.
static double bubble_of(const ScheduleKind *kind, const ScheduleSpec *spec) {
    double p = spec->stages, v = spec->chunks * spec->slices, k = kind->slots(spec);
    const char *name = kind->name;
    if (strcmp(name, "gpipe") == 0 || strcmp(name, "1f1b") == 0) return 3 * (p - 1);
    if (strcmp(name, "zb-d") == 0) return 2 * (p - 1) - spec->delay;
    if (strcmp(name, "seq1f1b") == 0 || strcmp(name, "interleaved") == 0) return 3 * (p - 1) / v;
    // For groups of equal size; a shorter last group changes the end.
    if (strcmp(name, "gis") == 0)
        return spec->microbatches % spec->group != 0 ? -1 : (2 * (p - 1) + (p - spec->group) * (v - 1)) / v;
    bool few = spec->microbatches < 2 * spec->stages;
    if (strcmp(name, "v-half") == 0) return few ? -1 : larger(6 * p - 3 * k - 1, p - 1) / 2;
    if (strcmp(name, "v-min") == 0) return few ? -1 : 2 * (p - 1) + 0.5;
    if (strcmp(name, "zb-v") == 0 || strcmp(name, "dualpipe-v") == 0) return few ? -1 : (p - 1) / 2;
    fail_msg("no formula for %s: add the formula of its idle time to bubble_of in test_kinds.c", name);
    return -1;
}

static void look_at_bubble(const View *view) {
    const ScheduleKind *kind = view->kind;
    const ScheduleSpec *spec = view->spec;
    double expected = bubble_of(kind, spec);
    if (expected < 0) return;
    double bubble = view->plain - 3.0 * spec->microbatches;
    bool bound = strcmp(kind->name, "v-min") == 0;
    if (bound ? bubble > expected + 1e-6 : fabs(bubble - expected) > 1e-6)
        fail_msg("%s: p %d m %d chunks %d slices %d group %d delay %d: idle %g, not %g", kind->name, spec->stages,
                 spec->microbatches, spec->chunks, spec->slices, spec->group, spec->delay, bubble, expected);
}

TEST(idle_time_is_what_the_formulas_say) { look_at_every_kind((const Look[]){look_at_bubble, NULL}); }

static void look_at_split(const View *view) {
    if (view->kind->splits) return;
    ScheduleSpec split = *view->spec;
    split.split = true;
    AutoSchedule *parts = made(view->kind, &split);
    schedule_assert_sound(parts);
    assert_true(parts->split && parts->slots == view->base->slots);
    double before = view->plain, after = makespan(parts, 1, 1, 1, 0, 0);
    assert_true(after <= before + 1e-6);
    double sooner = (split.stages - 1.0) / split.slices;
    if (split.chunks == 1) assert_true(fabs(before - after - sooner) < 1e-6);
}

TEST(a_split_backward_takes_one_w_a_stage_off_the_idle_time) {
    look_at_every_kind((const Look[]){look_at_split, NULL});
}

// A schedule that is read from its text is written as the same text, and has the same slots.
static void assert_text_comes_back(const Schedule *schedule) {
    Error err = {0};
    char *once = written_schedule(schedule);
    Schedule *read = schedule_parse(once, &err);
    if (read == NULL) fail_msg("%s: %s", schedule->name, err.text);
    char *again = written_schedule(read);
    assert_string_equal(once, again);
    assert_true(read->split == schedule->split && read->forward_only == schedule->forward_only);
    for (int s = 0; s < schedule->stages; s++) {
        const StageSchedule *one = &schedule->stage[s], *other = &read->stage[s];
        assert_true(one->count == other->count && one->own_slots == other->own_slots &&
                    one->lent_slots == other->lent_slots);
        assert_memory_equal(one->actions, other->actions, (size_t)one->count * sizeof *one->actions);
    }
    schedule_free(read);
    free(once), free(again);
}

static void look_at_text(const View *view) {
    if (view->spec->stages > 8 || view->spec->microbatches > 4 * view->spec->stages) return;
    assert_text_comes_back(view->base);
    for (int target = EVICT_TO_PEER; target <= EVICT_TO_HOST; target++) {
        if (target == EVICT_TO_PEER && !view->kind->pairs) continue;
        AutoSchedule *evicts = bpipe_balance(view->base, 0, (EvictTarget)target, 1, NULL);
        if (evicts != NULL) assert_text_comes_back(evicts);
    }
    AutoSchedule *forward = schedule_forward_like(view->base, 3);
    assert_text_comes_back(forward);
}

TEST(text_comes_back_as_the_schedule_it_was) { look_at_every_kind((const Look[]){look_at_text, NULL}); }

static void look_at_forward(const View *view) {
    const ScheduleSpec *spec = view->spec;
    if (spec->microbatches > 4 * spec->stages) return;
    for (int m = 1; m <= spec->microbatches; m += 1 + spec->microbatches / 2) {
        AutoSchedule *schedule = schedule_forward_like(view->base, m);
        assert_non_null(schedule);
        assert_true(schedule->forward_only && schedule->chunks == view->base->chunks);
        schedule_assert_sound(schedule);
    }
}

TEST(forward_only_lists_are_sound_on_every_placement) { look_at_every_kind((const Look[]){look_at_forward, NULL}); }

// ---------------------------------------------------------------------------------------------------------------------
// The BPipe pass

static int in_flight(const Schedule *schedule, int s) { return schedule->stage[s].own_slots; }

// Half of the bundles that the fullest pair keeps, plus a slot for moving; but at most as many as a stage keeps anyway.
static int pair_slots(const Schedule *base) {
    int most = 1;
    for (int s = 0; s < base->stages; s++) {
        int partner = bpipe_partner(base->stages, s), needed = in_flight(base, s);
        int half = partner < 0 ? needed : (needed + in_flight(base, partner)) / 2 + 1;
        if (half < needed) needed = half;
        if (needed > most) most = needed;
    }
    return most;
}

static void assert_nothing_is_lost(const View *view, const Schedule *schedule, double most) {
    const ScheduleSpec *spec = view->spec;
    for (double transfer = 0.5; transfer <= most; transfer += 0.5) {
        double time = makespan(schedule, 1, 1, 1, 0, transfer);
        if (time > view->plain + 1e-6)
            fail_msg("%s: p %d m %d chunks %d slices %d group %d delay %d: transfer %g takes %g, not %g",
                     view->kind->name, spec->stages, spec->microbatches, spec->chunks, spec->slices, spec->group,
                     spec->delay, transfer, time, view->plain);
    }
}

static void look_at_pairs(const View *view) {
    const ScheduleSpec *spec = view->spec;
    const Schedule *base = view->base;
    if (!view->kind->pairs || (spec->microbatches > 8 * spec->stages && last_stages == 0)) return;
    int slots = pair_slots(base);
    assert_int_equal(bpipe_least_slots(base, EVICT_TO_PEER), slots);
    int ahead = bpipe_load_ahead(base, EVICT_TO_PEER);
    AutoSchedule *schedule = assert_made(bpipe_balance(base, slots, EVICT_TO_PEER, ahead, &unit_error));
    schedule_assert_sound(schedule);
    // With F = B = W a complete backward takes 2F, and split schedules hide a swap behind two backwards. Chunks with
    // complete backwards always hide a transfer of one forward; if loads start one backward earlier, as much as others.
    bool whole_chunks = spec->chunks > 1 && !base->split;
    assert_nothing_is_lost(view, schedule, whole_chunks ? 1 : 1.5);
    if (whole_chunks) {
        assert_true(makespan(schedule, 1, 1, 1, 0, 1.5) < 1.012 * view->plain);
        AutoSchedule *earlier = assert_made(bpipe_balance(base, slots, EVICT_TO_PEER, 2, &unit_error));
        schedule_assert_sound(earlier);
        assert_nothing_is_lost(view, earlier, 1.5);
    }
}

TEST(partners_level_every_loop_schedule_and_no_time_is_lost) {
    look_at_every_kind((const Look[]){look_at_pairs, NULL});
}

static void look_at_host(const View *view) {
    const ScheduleSpec *spec = view->spec;
    const Schedule *base = view->base;
    if (spec->microbatches > 5 * spec->stages && last_stages == 0) return;
    int slots = bpipe_least_slots(base, EVICT_TO_HOST), ahead = bpipe_load_ahead(base, EVICT_TO_HOST);
    assert_true(slots >= 2 || base->slots < 2); // one loads while the other computes
    for (int more = 0; more < 3; more++) {
        AutoSchedule *schedule = assert_made(bpipe_balance(base, slots + more, EVICT_TO_HOST, ahead, &unit_error));
        schedule_assert_sound(schedule);
        assert_true(makespan(schedule, 1, 1, 1, 0.05, 0.5) > 0);
    }
}

TEST(the_host_takes_bundles_of_every_placement) { look_at_every_kind((const Look[]){look_at_host, NULL}); }

// The long form: makes each schedule only once, for all checks.
static void everything_above_holds_for_every_m(void **state) {
    (void)state;
    look_at_every_kind((const Look[]){look_at_soundness, look_at_bubble, look_at_split, look_at_forward, look_at_pairs,
                                      look_at_host, NULL});
}

// Half of V-Half's slots. A transfer that takes as long as a forward causes one wait in the warm-up.
TEST(v_half_with_half_of_its_slots_loses_next_to_nothing_to_the_host) {
    ScheduleSpec spec = {.stages = 8, .microbatches = 64};
    AutoSchedule *base = made(&schedule_kinds[schedule_kind_index("v-half")], &spec);
    AutoSchedule *five = bpipe_balance(base, 5, EVICT_TO_HOST, 3, NULL);
    AutoSchedule *six = bpipe_balance(base, 6, EVICT_TO_HOST, 3, NULL);
    double plain = makespan(base, 1, 1, 1, 0, 0);
    assert_true(makespan(five, 1, 1, 1, 0, 0.5) <= plain + 1e-6);
    assert_true(makespan(five, 1, 1, 1, 0, 1) <= 1.003 * plain);
    assert_true(makespan(six, 1, 1, 1, 0, 1) <= plain + 1e-6);
}

// ---------------------------------------------------------------------------------------------------------------------
// The table

TEST(illegal_specs_are_refused_with_the_key_to_blame) {
    static const struct {
        const char *name, *key;
        ScheduleSpec spec;
    } rows[] = {
        {"1f1b", "chunks", {.stages = 2, .microbatches = 4, .chunks = 2}},
        {"v-half", "chunks", {.stages = 2, .microbatches = 4, .chunks = 3}},
        {"gis", "chunks", {.stages = 2, .microbatches = 4, .chunks = 1}},
        {"gis", "group", {.stages = 8, .microbatches = 16, .group = 3}},
        {"gis", "microbatches", {.stages = 8, .microbatches = 17}},
        {"interleaved", "microbatches", {.stages = 8, .microbatches = 17}},
        {"dualpipe-v", "microbatches", {.stages = 8, .microbatches = 15}},
        {"1f1b", "slices", {.stages = 2, .microbatches = 4, .slices = 2}},
        {"seq1f1b", "slices", {.stages = 2, .microbatches = 4, .slices = -1}},
        {"seq1f1b", "microbatches", {.stages = 8, .microbatches = 1, .slices = 4}},
        {"interleaved", "microbatches", {.stages = 8, .microbatches = 9, .slices = 4}},
        {"zb-d", "delay", {.stages = 8, .microbatches = 16, .delay = 8}},
        {"zb-v", "microbatches", {.stages = 8, .microbatches = 7}},
        {"zb-v", "stages", {.stages = 0, .microbatches = 7}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        ScheduleSpec spec = rows[i].spec;
        const char *key = NULL;
        Error err = {0};
        const ScheduleKind *kind = &schedule_kinds[schedule_kind_index(rows[i].name)];
        assert_int_equal(schedule_complete(kind, &spec, &key, &err), -1);
        assert_string_equal(key, rows[i].key);
        assert_int_equal(err.code, EXIT_USAGE);
        assert_null(schedule_make(kind, &rows[i].spec, &err));
    }
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "all") == 0) {
        first_stages = argc > 2 ? atoi(argv[2]) : 1;
        last_stages = argc > 3 ? atoi(argv[3]) : MOST_STAGES;
        const struct CMUnitTest all[] = {cmocka_unit_test(everything_above_holds_for_every_m)};
        return cmocka_run_group_tests(all, NULL, NULL);
    }
    return unit_run();
}

// The table of schedules, and the way from a row of it to a schedule.
#include "makers.h"

#include <string.h>

#include "build.h"

static int half_(int p) {
    return (p + 1) / 2;
}

static int minimum_(int a, int b) {
    return a < b ? a : b;
}

// ---------------------------------------------------------------------------------------------------------------------
// Makers of one chunk

static Schedule *make_gpipe_(const ScheduleSpec *spec, Error *err) {
    return schedule_gpipe(spec->stages, spec->microbatches, err);
}

static Schedule *make_1f1b_(const ScheduleSpec *spec, Error *err) {
    return schedule_1f1b(spec->stages, spec->microbatches, err);
}

// ---------------------------------------------------------------------------------------------------------------------
// Slots, each of one chunk's bundle

static int slots_gpipe_(const ScheduleSpec *spec) {
    return spec->microbatches;
}

static int slots_p_(const ScheduleSpec *spec) {
    return spec->stages;
}

static int slots_interleaved_(const ScheduleSpec *spec) {
    return minimum_((spec->chunks - 1) * spec->group + 2 * spec->stages - 1, spec->chunks * spec->microbatches);
}

static int slots_gis_(const ScheduleSpec *spec) {
    return minimum_((spec->chunks - 1) * spec->group + spec->stages, spec->chunks * spec->microbatches);
}

static int slots_v_half_(const ScheduleSpec *spec) {
    return v_half_slots(spec->stages);
}

static int slots_v_min_(const ScheduleSpec *spec) {
    return v_min_slots(spec->stages);
}

static int slots_zb_v_(const ScheduleSpec *spec) {
    return 2 * spec->stages;
}

static int slots_dualpipe_v_(const ScheduleSpec *spec) {
    return 2 * spec->stages + 1;
}

// ---------------------------------------------------------------------------------------------------------------------
// The fewest slots of the BPipe pass

// All bundles of GPipe are in use at once on every stage, so no partner has a free slot.
static int least_gpipe_(const ScheduleSpec *spec, EvictTarget target) {
    return target == EVICT_TO_PEER ? spec->microbatches : minimum_(spec->microbatches, 2);
}

static int least_1f1b_(const ScheduleSpec *spec, EvictTarget target) {
    return target == EVICT_TO_PEER ? bpipe_min_slots(spec->stages) : bpipe_min_slots_host(spec->stages);
}

// ---------------------------------------------------------------------------------------------------------------------
// What is illegal

static const char *refuse_interleaved_(const ScheduleSpec *spec, Error *err) {
    int p = spec->stages, m = spec->microbatches;
    if (m % p == 0) return NULL;
    error_set(err, EXIT_USAGE,
              "schedule interleaved takes microbatches in groups of %d, one for each stage, but %d is not a multiple "
              "of %d; use %d or %d microbatches",
              p, m, p, m - m % p, m - m % p + p);
    return "microbatches";
}

// With groups shorter than half of the stages, the first stages wait for a backward that the last ones cannot reach.
static const char *refuse_gis_(const ScheduleSpec *spec, Error *err) {
    int p = spec->stages, m = spec->microbatches, g = spec->group, rest = m % g;
    if (g < half_(p) || g > p) {
        error_set(err, EXIT_USAGE, "schedule gis needs groups of %d to %d microbatches on %d stages, not %d", half_(p),
                  p, p, g);
        return "group";
    }
    if (rest == 0 || rest >= half_(p)) return NULL;
    error_set(
        err, EXIT_USAGE,
        "schedule gis takes %d microbatches in groups of %d, and the last group of %d is shorter than half of the "
        "%d stages; use %d or %d microbatches",
        m, g, rest, p, m - rest, m - rest + half_(p));
    return "microbatches";
}

static const char *refuse_zb_d_(const ScheduleSpec *spec, Error *err) {
    if (spec->delay >= 0 && spec->delay < spec->stages) return NULL;
    error_set(err, EXIT_USAGE, "schedule zb-d delays W by 0 to %d microbatches on %d stages, not %d", spec->stages - 1,
              spec->stages, spec->delay);
    return "delay";
}

static const char *refuse_dualpipe_v_(const ScheduleSpec *spec, Error *err) {
    if (spec->microbatches >= 2 * spec->stages) return NULL;
    error_set(err, EXIT_USAGE, "schedule dualpipe-v needs at least %d microbatches on %d stages, not %d",
              2 * spec->stages, spec->stages, spec->microbatches);
    return "microbatches";
}

// ---------------------------------------------------------------------------------------------------------------------
// The table

enum { ONE = 1, TWO = 2, MANY = 64 }; // chunks on a stage

// clang-format off
#define SCHEDULE_KINDS(ROW)                                                                                            \
    /*  name           title          meaning                                       */                                \
    ROW("gpipe",       "GPipe",       "all forwards, then all backwards",                                              \
        .make = make_gpipe_, .slots = slots_gpipe_, .least = least_gpipe_, .chunks = ONE, .most_chunks = ONE,          \
        .keeps_all = true)                                                                                             \
    ROW("1f1b",        "1F1B",        "one forward, one backward",                                                     \
        .make = make_1f1b_, .slots = slots_p_, .least = least_1f1b_, .chunks = ONE, .most_chunks = ONE,                \
        .pairs = true)                                                                                                 \
    ROW("zb-d",        "ZB-D",        "1F1B with weight gradients up to delay microbatches later; p-1: ZB-H1",         \
        .make = make_zb_d, .refuse = refuse_zb_d_, .slots = slots_p_, .chunks = ONE, .most_chunks = ONE,               \
        .splits = true, .delayed = true, .pairs = true)                                                                \
    ROW("interleaved", "interleaved", "1F1B over several chunks a stage",                                              \
        .make = make_interleaved, .refuse = refuse_interleaved_, .slots = slots_interleaved_, .chunks = TWO,           \
        .most_chunks = MANY, .pairs = true)                                                                            \
    ROW("gis",         "GIS",         "interleaved with a shorter warm-up, in groups of microbatches",                 \
        .make = make_gis, .refuse = refuse_gis_, .slots = slots_gis_, .chunks = TWO, .most_chunks = MANY,              \
        .splits = true, .grouped = true, .pairs = true)                                                                \
    ROW("v-half",      "V-Half",      "two chunks in a V, half of the memory of 1F1B",                                 \
        .make = make_v_half, .slots = slots_v_half_, .chunks = TWO, .most_chunks = TWO, .placement = PLACEMENT_V,      \
        .splits = true)                                                                                                \
    ROW("v-min",       "V-Min",       "two chunks in a V, a third of the memory of 1F1B",                              \
        .make = make_v_min, .slots = slots_v_min_, .chunks = TWO, .most_chunks = TWO, .placement = PLACEMENT_V,        \
        .splits = true)                                                                                                \
    ROW("zb-v",        "ZB-V",        "two chunks in a V, the memory of 1F1B, almost no idle time",                    \
        .make = make_zb_v, .slots = slots_zb_v_, .chunks = TWO, .most_chunks = TWO, .placement = PLACEMENT_V,          \
        .splits = true)                                                                                                \
    ROW("dualpipe-v",  "DualPipeV",   "two chunks in a V, whole backwards in the steady phase",                        \
        .make = make_dualpipe_v, .refuse = refuse_dualpipe_v_, .slots = slots_dualpipe_v_, .chunks = TWO,              \
        .most_chunks = TWO, .placement = PLACEMENT_V, .splits = true)
// clang-format on

#define AS_ROW(name_, title_, meaning_, ...) {.name = name_, .title = title_, .meaning = meaning_, __VA_ARGS__},
#define AS_WORD(name_, ...)                  name_,

const ScheduleKind schedule_kinds[] = {SCHEDULE_KINDS(AS_ROW)};
const int schedule_kind_count = (int)(sizeof schedule_kinds / sizeof schedule_kinds[0]);
const char *const schedule_words[] = {SCHEDULE_KINDS(AS_WORD) "auto", NULL};

int schedule_kind_index(const char *name) {
    for (int i = 0; i < schedule_kind_count; i++) {
        if (strcmp(schedule_kinds[i].name, name) == 0) return i;
    }
    return -1;
}

// ---------------------------------------------------------------------------------------------------------------------
// Making one

static const char *refuse_chunks_(const ScheduleKind *kind, const ScheduleSpec *spec, Error *err) {
    if (spec->chunks >= kind->chunks && spec->chunks <= kind->most_chunks) return NULL;
    if (kind->chunks == kind->most_chunks)
        error_set(err, EXIT_USAGE, "schedule %s has %d chunk%s on every stage, not %d", kind->name, kind->chunks,
                  kind->chunks == 1 ? "" : "s", spec->chunks);
    else
        error_set(err, EXIT_USAGE, "schedule %s takes %d to %d chunks on every stage, not %d", kind->name, kind->chunks,
                  kind->most_chunks, spec->chunks);
    return "chunks";
}

static const char *refuse_(const ScheduleKind *kind, const ScheduleSpec *spec, Error *err) {
    if (schedule_possible(spec->stages, spec->microbatches, err) != 0) {
        return spec->stages < 1 ? "stages" : "microbatches";
    }
    const char *key = refuse_chunks_(kind, spec, err);
    if (key != NULL || kind->refuse == NULL) return key;
    return kind->refuse(spec, err);
}

int schedule_complete(const ScheduleKind *kind, ScheduleSpec *spec, const char **key, Error *err) {
    if (spec->chunks == 0) spec->chunks = kind->chunks;
    if (!kind->grouped || spec->group == 0) spec->group = spec->stages;
    if (spec->group == SCHEDULE_GROUP_HALF) spec->group = half_(spec->stages);
    if (!kind->delayed || spec->delay == SCHEDULE_DELAY_MOST) spec->delay = spec->stages - 1;
    const char *wrong = refuse_(kind, spec, err);
    if (key != NULL) *key = wrong;
    return wrong == NULL ? 0 : -1;
}

Schedule *schedule_make(const ScheduleKind *kind, const ScheduleSpec *spec, Error *err) {
    ScheduleSpec whole = *spec;
    if (schedule_complete(kind, &whole, NULL, err) != 0) return NULL;
    Schedule *schedule = kind->make(&whole, err);
    if (schedule == NULL || kind->splits || !whole.split) return schedule;
    if (schedule_split(schedule, err) == 0) return schedule;
    schedule_free(schedule);
    return NULL;
}

int schedule_least_slots(const ScheduleKind *kind, const ScheduleSpec *spec, EvictTarget target) {
    Error ignored = {0};
    ScheduleSpec whole = *spec;
    if (schedule_complete(kind, &whole, NULL, &ignored) != 0) return 1;
    if (kind->least != NULL) return kind->least(&whole, target);
    Schedule *schedule = schedule_make(kind, &whole, &ignored);
    int least = schedule == NULL ? 1 : bpipe_least_slots(schedule, target);
    schedule_free(schedule);
    return least;
}

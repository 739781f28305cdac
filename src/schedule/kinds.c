// The table of schedules, and the functions that make a schedule from one of its rows.
#include "kinds.h"

#include "base/units.h"

// The functions that write a stage's list (zero_bubble.c, interleaved.c), or make all lists (v_half.c).
StageMaker zb_d_stage_, interleaved_stage_, gis_stage_, zb_v_stage_, dualpipe_v_stage_;
Schedule *make_v_half_(const ScheduleSpec *spec, int slots), *make_v_min_(const ScheduleSpec *spec, int slots);

static int half_(int p) { return (p + 1) / 2; }

// ---------------------------------------------------------------------------------------------------------------------
// Formulas of p stages, m microbatches, v chunks, groups of g and n slices

#define FORMULA(name, expression)                                                                                      \
    static int name(const ScheduleSpec *spec) {                                                                        \
        int p = spec->stages, m = spec->microbatches, v = spec->chunks, g = spec->group, n = spec->slices;             \
        (void)p, (void)m, (void)v, (void)g, (void)n;                                                                   \
        return expression;                                                                                             \
    }

// The most slots that a stage needs, one per chunk bundle. V-Half and V-Min need about 1/2 and 1/3 of 1F1B's memory.
// clang-format off
FORMULA(slots_gpipe_, m)
FORMULA(slots_p_, p)
FORMULA(slots_seq1f1b_, min_int(p + n - 1, m * n))
FORMULA(slots_interleaved_, min_int((v - 1) * g * n + 2 * (p - 1) + n, v * m * n))
FORMULA(slots_gis_, min_int((v - 1) * g + p, v * m))
FORMULA(slots_v_half_, 2 * ((p + 2) / 2))
FORMULA(slots_v_min_, 2 * ((p + 4) / 3))
FORMULA(slots_zb_v_, 2 * p)
FORMULA(slots_dualpipe_v_, 2 * p + 1)
// clang-format on

// Edge buffers of gis. The backward of a chunk on the last stage starts a complete group later than the chunk's forward
// on the first stage. So groups longer than p/2 have more messages in flight. With two buffers a large p would hang.
FORMULA(edges_gis_, (max_int(g - p / 2 + 1, 4) + 1) / 2)
// With slices, a group may have more than p slices. The last slices of such a group wait between two chunks.
FORMULA(edges_interleaved_, p == 1 ? max_int(n, 2) : (max_int(g * n - p + 2, 4) + 1) / 2)

// ---------------------------------------------------------------------------------------------------------------------
// The fewest slots of the BPipe pass

// All bundles of GPipe are in use at once on every stage, so no partner has a free slot.
static int least_gpipe_(const ScheduleSpec *spec, EvictTarget target) {
    return target == EVICT_TO_PEER ? spec->microbatches : min_int(spec->microbatches, 2);
}

static int least_1f1b_(const ScheduleSpec *spec, EvictTarget target) {
    return target == EVICT_TO_PEER ? bpipe_min_slots(spec->stages) : bpipe_min_slots_host(spec->stages);
}

static int in_flight_gpipe_(const ScheduleSpec *spec, int s) {
    (void)s;
    return spec->microbatches;
}

static int in_flight_1f1b_(const ScheduleSpec *spec, int s) { return spec->stages - s; }

// ---------------------------------------------------------------------------------------------------------------------
// Illegal settings

static const char *refuse_interleaved_(const ScheduleSpec *spec, Error *err) {
    int g = spec->group, m = spec->microbatches;
    if (m % g == 0) return NULL;
    error_set(
        err, EXIT_USAGE,
        "schedule interleaved takes microbatches in groups of %d, one %s for each stage, but %d is not a multiple "
        "of %d; use %d or %d microbatches",
        g, spec->slices > 1 ? "slice" : "microbatch", m, g, max_int(m - m % g, g), m - m % g + g);
    return "microbatches";
}

// With groups shorter than half of the stages, the first stages wait for a backward that the last stages cannot reach.
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
    error_set(err, EXIT_USAGE, "delay is %d; on %d stages zb-d allows 0 to %d", spec->delay, spec->stages,
              spec->stages - 1);
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

enum { ONE = 1, TWO = 2, MANY = 64 }; // chunks per stage

// clang-format off
#define SCHEDULE_KINDS(ROW)                                                                                            \
    /*  name           title          meaning                                       */                                 \
    ROW("gpipe",       "GPipe",       "all forwards, then all backwards",                                              \
        .stage = gpipe_stage, .slots = slots_gpipe_, .least = least_gpipe_, .chunks = ONE, .most_chunks = ONE,         \
        .in_flight = in_flight_gpipe_, .keeps_all = true)                                                              \
    ROW("1f1b",        "1F1B",        "one forward, one backward",                                                     \
        .stage = one_f_one_b_stage, .slots = slots_p_, .least = least_1f1b_, .chunks = ONE, .most_chunks = ONE,        \
        .in_flight = in_flight_1f1b_, .pairs = true, .plain = true)                                                    \
    ROW("seq1f1b",     "Seq1F1B",     "1F1B over slices of the sequence",                                              \
        .stage = one_f_one_b_stage, .slots = slots_seq1f1b_, .chunks = ONE, .most_chunks = ONE, .pairs = true,         \
        .sliced = true)                                                                                                \
    ROW("zb-d",        "ZB-D",        "1F1B with weight gradients up to delay microbatches later; p-1: ZB-H1",         \
        .stage = zb_d_stage_, .refuse = refuse_zb_d_, .slots = slots_p_, .chunks = ONE, .most_chunks = ONE,            \
        .splits = true, .delayed = true, .pairs = true)                                                                \
    ROW("interleaved", "interleaved", "1F1B over several chunks per stage",                                            \
        .stage = interleaved_stage_, .refuse = refuse_interleaved_, .slots = slots_interleaved_,                       \
        .edge_buffers = edges_interleaved_, .chunks = TWO, .most_chunks = MANY, .pairs = true, .sliced = true)         \
    ROW("gis",         "GIS",         "interleaved with a shorter warm-up, in groups of microbatches",                 \
        .stage = gis_stage_, .refuse = refuse_gis_, .slots = slots_gis_, .edge_buffers = edges_gis_, .chunks = TWO,    \
        .most_chunks = MANY, .splits = true, .grouped = true, .pairs = true)                                           \
    ROW("v-half",      "V-Half",      "two chunks in a V, half the memory of 1F1B",                                 \
        .make = make_v_half_, .slots = slots_v_half_, .chunks = TWO, .most_chunks = TWO, .placement = PLACEMENT_V,     \
        .splits = true)                                                                                                \
    ROW("v-min",       "V-Min",       "two chunks in a V, a third of the memory of 1F1B",                              \
        .make = make_v_min_, .slots = slots_v_min_, .chunks = TWO, .most_chunks = TWO, .placement = PLACEMENT_V,       \
        .splits = true)                                                                                                \
    ROW("zb-v",        "ZB-V",        "two chunks in a V, the memory of 1F1B, almost no idle time",                    \
        .stage = zb_v_stage_, .slots = slots_zb_v_, .chunks = TWO, .most_chunks = TWO, .placement = PLACEMENT_V,       \
        .splits = true)                                                                                                \
    ROW("dualpipe-v",  "DualPipeV",   "two chunks in a V, complete backwards in the steady phase",                     \
        .stage = dualpipe_v_stage_, .refuse = refuse_dualpipe_v_, .slots = slots_dualpipe_v_, .chunks = TWO,           \
        .most_chunks = TWO, .placement = PLACEMENT_V, .splits = true)
// clang-format on

#define AS_ROW(name_, title_, meaning_, ...) {.name = name_, .title = title_, .meaning = meaning_, __VA_ARGS__},
#define AS_WORD(name_, ...)                  name_,

const ScheduleKind schedule_kinds[] = {SCHEDULE_KINDS(AS_ROW)};
const int schedule_kind_count = (int)(sizeof schedule_kinds / sizeof schedule_kinds[0]);
const char *const schedule_words[] = {SCHEDULE_KINDS(AS_WORD) "auto", NULL};

int schedule_kind_plain(void) {
    int plain = 0;
    while (!schedule_kinds[plain].plain) plain++;
    return plain;
}

// ---------------------------------------------------------------------------------------------------------------------
// Making a schedule

int schedule_complete(const ScheduleKind *kind, ScheduleSpec *spec, const char **key, Error *err) {
    if (spec->chunks == 0) spec->chunks = kind->chunks;
    if (spec->slices == 0) spec->slices = 1;
    if (!kind->grouped || spec->group == 0)
        spec->group = spec->slices < 1 ? spec->stages : (spec->stages + spec->slices - 1) / spec->slices;
    if (spec->group == SCHEDULE_GROUP_HALF) spec->group = half_(spec->stages);
    if (!kind->delayed || spec->delay == SCHEDULE_DELAY_MOST) spec->delay = spec->stages - 1;
    const char *wrong = NULL;
    if (schedule_possible(spec->stages, spec->microbatches * max_int(spec->slices, 1), err) != 0)
        wrong = spec->stages < 1 ? "stages" : "microbatches";
    if (wrong == NULL && (spec->chunks < kind->chunks || spec->chunks > kind->most_chunks)) {
        wrong = "chunks";
        if (kind->chunks == kind->most_chunks)
            error_set(err, EXIT_USAGE, "schedule %s has %d chunk%s on every stage, not %d", kind->name, kind->chunks,
                      kind->chunks == 1 ? "" : "s", spec->chunks);
        else
            error_set(err, EXIT_USAGE, "schedule %s supports %d to %d chunks per stage, not %d", kind->name,
                      kind->chunks, kind->most_chunks, spec->chunks);
    }
    if (wrong == NULL && (spec->slices < 1 || spec->slices > (kind->sliced ? MANY : 1))) {
        wrong = "slices";
        if (kind->sliced)
            error_set(err, EXIT_USAGE, "schedule %s supports 1 to %d slices per microbatch, not %d", kind->name, MANY,
                      spec->slices);
        else
            error_set(err, EXIT_USAGE,
                      "schedule %s supports 1 slice per microbatch, not %d; use seq1f1b or interleaved", kind->name,
                      spec->slices);
    }
    if (wrong == NULL && kind->refuse != NULL) wrong = kind->refuse(spec, err);
    if (key != NULL) *key = wrong;
    return wrong == NULL ? 0 : -1;
}

Schedule *schedule_make(const ScheduleKind *kind, const ScheduleSpec *spec, Error *err) {
    ScheduleSpec whole = *spec;
    if (schedule_complete(kind, &whole, NULL, err) != 0) return NULL;
    Schedule *schedule = kind->stage != NULL ? schedule_fill(kind->name, &whole, kind->placement, kind->stage)
                                             : kind->make(&whole, kind->slots(&whole));
    if (kind->edge_buffers != NULL) schedule->edge_buffers = kind->edge_buffers(&whole);
    if (whole.split && !kind->splits) schedule_split(schedule);
    return schedule;
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

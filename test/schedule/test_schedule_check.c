// Compares the proof with the definition: small schedules of every kind, sound or not, run in all possible
// interleavings. Transfers are posted either when the preceding action completes or when it starts. A schedule that the
// proof accepts must never hang.
#include "bpipe.h"
#include "interleavings.h"
#include "schedules.h"

#include <string.h>

// ---------------------------------------------------------------------------------------------------------------------
// Schedules that are not sound

#define FULL "needs an own slot of the stage, but all are in use; raise slots, or end or evict a bundle before it"

#define STAGE(microbatches, slots) "stages 1  microbatches " #microbatches "  slots " #slots "\nstage 0: "
#define CHUNKS(parts, microbatches, slots)                                                                             \
    "stages 1  " parts "  placement loop  microbatches " #microbatches "  slots " #slots "  edges 2\nstage 0: "

// text: follows "# schedule 1f1b  ". error: the expected message; NULL if the schedule is sound.
static const struct {
    const char *text, *error;
} rows[] = {
    // complete
    {STAGE(2, 2) "F0 B0 F1\n", "stage 0 lists 3 actions; 2 microbatches take at least 4 on each chunk"},
    {STAGE(2, 2) "F1 F0 B0 B1\n",
     "stage 0: F1 is out of order; microbatches go forward and backward in ascending order"},
    {STAGE(2, 2) "F0 F1 B1 B0\n",
     "stage 0: B1 is out of order; microbatches go forward and backward in ascending order"},
    {STAGE(1, 1) "B0 F0\n", "stage 0: B0 comes before its forward"},
    {STAGE(1, 1) "F0 B0 F1\n", "stage 0: F1 names a microbatch that does not exist"},
    {STAGE(1, 1) "F0 E0>h L0<h\n", "stage 0: B0 is missing"},
    // paired
    {"stages 2  microbatches 2  slots 9\nstage 0: F0 E0>1 F1 L0<1 B0 B1\nstage 1: F0 B0 F1 B1\n",
     "stage 0: E0>1 has no counterpart at its place in its partner's list"},
    {"stages 2  microbatches 2  slots 9\nstage 0: F0 F1 B0 B1\nstage 1: A0<0 F0 B0 R0>0 F1 B1\n",
     "stage 1: A0<0 has no counterpart at its place in its partner's list"},
    {"stages 2  microbatches 2  slots 9\nstage 0: F0 E0>0 L0<0 F1 B0 B1\nstage 1: F0 B0 F1 B1\n",
     "stage 0: E0>0 names a stage that is not its partner, p-1-s"},
    // resident
    {STAGE(1, 1) "F0 E0>h B0 L0<h\n", "stage 0: B0 needs its bundle, which is evicted"},
    {STAGE(1, 1) "E0>h F0 B0\n", "stage 0: E0>h evicts a bundle that is not on the stage"},
    {STAGE(1, 1) "F0 B0 E0>h\n", "stage 0: E0>h evicts a bundle that is not on the stage"},
    {STAGE(1, 1) "F0 L0<h B0\n", "stage 0: L0<h loads a bundle that was not evicted there"},
    {"stages 2  microbatches 2  slots 9\nstage 0: F0 E0>h F1 L0<1 B0 B1\nstage 1: R0>0 F0 B0 F1 B1\n",
     "stage 0: L0<1 loads a bundle that was not evicted there"},
    {"stages 2  microbatches 2  slots 9\nstage 0: F0 F1 B0 B1\nstage 1: R0>0 F0 B0 F1 B1\n",
     "stage 1: R0>0 returns a bundle that is not on the stage"},
    // bounded
    {STAGE(2, 1) "F0 F1 B0 B1\n", "stage 0: F1 " FULL},
    {"stages 2  microbatches 2  slots 1\nstage 0: F0 E0>1 L0<1 B0 F1 B1\nstage 1: A0<0 R0>0 F0 B0 F1 B1\n",
     "stage 1: F0 " FULL},
    // live: on one stage ...
    {STAGE(2, 2) "F0 F1 E0>h L0<h B0 B1\n", NULL},
    {STAGE(3, 2) "F0 E0>h F1 L0<h E1>h F2 B0 L1<h B1 B2\n",
     "stage 0: L0<h can find its slot taken by a forward later in the list"},
    {STAGE(2, 1) "F0 E0>h L0<h B0 F1 B1\n", NULL},
    // F2 may take the slot that E0 frees, so that L0 gets no slot, and B0 waits for L0.
    {STAGE(3, 2) "F0 F1 E0>h L0<h E1>h F2 B0 L1<h B1 B2\n",
     "stage 0: L0<h can find its slot taken by a forward later in the list"},
    {STAGE(3, 2) "F0 E0>h F1 E1>h L0<h F2 B0 L1<h B1 B2\n", NULL},
    // ... and between stages.
    {"stages 2  microbatches 2  slots 2\nstage 0: F0 B0 F1 B1\nstage 1: F0 F1 B0 B1\n",
     "schedule 1f1b can hang: B0 of stage 0 may wait for F1 of stage 1, which may wait for B0 of stage 0"},
    // F2 waits for the slot of E1, which the partner accepts only after F2.
    {"stages 2  microbatches 3  slots 2\nstage 0: F0 F1 E1>1 F2 B0 L1<1 B1 B2\n"
     "stage 1: F0 B0 F1 B1 F2 A1<0 R1>0 B2\n",
     "E1>1 of stage 0 may wait for F2 of stage 1, which may wait for F2 of stage 0, which may wait for E1>1 of "},
    {"stages 2  microbatches 9  slots 9\nstage 0: F0 F1 F2 F3 F4 F5 F6 F7 F8 B0 B1 B2 B3 B4 B5 B6 B7 B8\n"
     "stage 1: F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7 F8 B8\n",
     NULL},
    // Four messages fit between the two stages; the fifth has no buffer.
    {"stages 2  microbatches 10  slots 10\nstage 0: F0 F1 F2 F3 F4 F5 F6 F7 F8 F9 B0 B1 B2 B3 B4 B5 B6 B7 B8 B9\n"
     "stage 1: F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7 F8 B8 F9 B9\n",
     "F9 of stage 0 may wait for B4 of stage 1, which may wait for F9 of stage 0"},
    // Chunks and split backwards.
    {CHUNKS("chunks 1", 1, 1) "F0.0 I0.0 W0.0\n", NULL},
    {CHUNKS("chunks 1", 1, 1) "F0.0 W0.0 I0.0\n", "stage 0: W0.0 comes before its I"},
    {CHUNKS("chunks 1", 1, 1) "F0.0 B0.0 W0.0\n", "stage 0: W0.0 comes after the complete backward"},
    {CHUNKS("chunks 1", 1, 1) "F0.0 I0.0\n", "stage 0: W0.0 is missing"},
    {CHUNKS("chunks 1", 2, 2) "F0.0 F1.0 I0.0 B1.0 W0.0\n",
     "stage 0: B1.0 is out of order; weight gradients are summed in ascending order of microbatches"},
    {CHUNKS("chunks 1", 2, 2) "F0.0 F1.0 I0.0 I1.0 W0.0 W1.0\n", NULL},
    // I frees no slot.
    {CHUNKS("chunks 1", 2, 1) "F0.0 I0.0 F1.0 W0.0 I1.0 W1.0\n", "stage 0: F1.0 " FULL},
    {CHUNKS("chunks 1", 1, 1) "F0.0 I0.0 E0.0>h L0.0<h W0.0\n",
     "stage 0: E0.0>h comes after I; evict the bundle before its I"},
    {CHUNKS("chunks 1", 1, 1) "F0.1 I0.0 W0.0\n", "stage 0: F0.1 names a chunk that does not exist"},
    {CHUNKS("chunks 2", 1, 2) "F0.0 F0.1 B0.1 B0.0\n", NULL},
    {CHUNKS("chunks 2", 1, 2) "F0.1 F0.0 B0.1 B0.0\n",
     "stage 0: F0.1 comes before the action on the same stage that produces its input"},
    {CHUNKS("chunks 2", 1, 2) "F0.0 F0.1 B0.0 B0.1\n",
     "stage 0: B0.0 comes before the action on the same stage that produces its input"},
    // One buffer between the two chunks of a stage.
    {"stages 2  chunks 2  placement v  microbatches 1  slots 3  edges 2\n"
     "stage 0: F0.0 E0.0>1 L0.0<1 F0.1 B0.1 B0.0\nstage 1: F0.0 F0.1 A0.0<0 R0.0>0 B0.1 B0.0\n",
     "stage 0: E0.0>1 moves between stages; with placement v, evict to the host"},
    {"stages 2  chunks 2  placement v  microbatches 1  slots 3  edges 2\n"
     "stage 0: F0.0 E0.0>h L0.0<h F0.1 B0.1 B0.0\nstage 1: F0.0 F0.1 B0.1 B0.0\n",
     NULL},
    {"stages 1  chunks 2  placement v  microbatches 2  slots 4  edges 1\n"
     "stage 0: F0.0 F1.0 F0.1 F1.1 B0.1 B0.0 B1.1 B1.0\n",
     "stage 0: F1.0 needs a free buffer between two chunks of the stage, but all are in use"},
    {"stages 1  chunks 2  placement v  microbatches 2  slots 4  edges 2\n"
     "stage 0: F0.0 F1.0 F0.1 F1.1 B0.1 B0.0 B1.1 B1.0\n",
     NULL},
    // Chunk 1 of stage 0 needs chunk 0 of stage 1 first, independent of the list of stage 0.
    {"stages 2  chunks 2  placement loop  microbatches 2  slots 4  edges 2\n"
     "stage 0: F0.0 F0.1 F1.0 F1.1 B0.1 B1.1 B0.0 B1.0\nstage 1: F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 B0.0 B1.0\n",
     NULL},
    {"stages 2  chunks 2  placement loop  microbatches 2  slots 4  edges 2\n"
     "stage 0: F0.0 F0.1 B0.1 F1.0 F1.1 B1.1 B0.0 B1.0\nstage 1: F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 B0.0 B1.0\n",
     "B0.1 of stage 0 may wait for F1.0 of stage 1, which may wait for B0.1 of stage 0"},
    // Version 3: slices.
    {CHUNKS("chunks 1  slices 2", 1, 2) "F0.0:0 F0.0:1 B0.0:1 B0.0:0\n", NULL},
    {CHUNKS("chunks 1  slices 2", 1, 2) "F0.0:1 F0.0:0 B0.0:1 B0.0:0\n",
     "stage 0: F0.0:1 is out of order; slices go forward in ascending and backward in descending order"},
    {CHUNKS("chunks 1  slices 2", 1, 2) "F0.0:0 F0.0:1 B0.0:0 B0.0:1\n",
     "stage 0: B0.0:0 is out of order; slices go forward in ascending and backward in descending order"},
    {CHUNKS("chunks 1  slices 2", 1, 2) "F0.0:0 F0.0:1 F0.0:2 B0.0:1 B0.0:0\n",
     "stage 0: F0.0:2 names a slice that does not exist"},
    {CHUNKS("chunks 1  slices 2", 1, 2) "F0.0:0 F0.0:1 B0.0:1 E0.0:0>h L0.0:0<h\n", "stage 0: B0.0:0 is missing"},
    {CHUNKS("chunks 1  slices 2", 1, 2) "F0.0:0 F0.0:1 B0.0:1\n",
     "stage 0 lists 3 actions; 1 microbatches take at least 2 on each chunk for each slice"},
};

static void expect_row(const char *row, const char *error) {
    char text[512];
    snprintf(text, sizeof text, "# schedule 1f1b  %s", row);
    AutoSchedule *schedule = schedule_parsed(text);
    Error err = {0};
    int status = schedule_check(schedule, &err);
    bool as_told = error == NULL ? status == 0 : strstr(err.text, error) != NULL;
    if (!as_told) fail_msg("%s\n%s", text, err.text);
    bool few = schedule->chunks == 1 && schedule->slices == 1 && !schedule->split;
    if (few && status == 0) assert_false(schedule_can_hang(schedule));
    if (few && strstr(err.text, " can ") != NULL) assert_true(schedule_can_hang(schedule));
}

TEST(an_unsound_schedule_is_refused_with_stage_and_action) {
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) expect_row(rows[i].text, rows[i].error);
}

// ---------------------------------------------------------------------------------------------------------------------
// Random schedules

static unsigned random_below(uint64_t *state, unsigned bound) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(*state >> 33) % bound;
}

// An action and its place in the list; F of microbatch i is at place i.
typedef struct Placed {
    double place;
    Action action;
} Placed;

typedef struct Draft {
    Placed placed[MOST_ACTIONS];
    int count;
} Draft;

static void draft_add(Draft *draft, double place, ActionKind kind, int microbatch, int peer) {
    int at = draft->count++;
    assert_true(at < MOST_ACTIONS);
    for (; at > 0 && draft->placed[at - 1].place > place; at--) draft->placed[at] = draft->placed[at - 1];
    draft->placed[at] = (Placed){place, {.kind = kind, .microbatch = microbatch, .peer = peer}};
}

static double place_of(const Draft *draft, ActionKind kind, int microbatch) {
    for (int i = 0; i < draft->count; i++) {
        Action action = draft->placed[i].action;
        if (action.kind == kind && action.microbatch == microbatch) return draft->placed[i].place;
    }
    return 0;
}

static double between(uint64_t *random, double low, double high) {
    return low + (high - low) * (1 + random_below(random, 1000)) / 1002.0;
}

// Evicts some bundles of stage s to `peer` at random places after their forwards; loads them before their backwards.
static void draft_evictions(Draft *draft, int microbatches, int peer, uint64_t *random) {
    for (int i = 0; i < microbatches; i++) {
        if (random_below(random, 3) == 0) continue;
        double evict = between(random, place_of(draft, ACTION_FORWARD, i), place_of(draft, ACTION_BACKWARD, i));
        draft_add(draft, evict, ACTION_EVICT, i, peer);
        draft_add(draft, between(random, evict, place_of(draft, ACTION_BACKWARD, i)), ACTION_LOAD, i, peer);
    }
}

// Adds the matching transfers in the same order to the partner's list, at random places.
static void draft_acceptor(const Draft *evictor, Draft *acceptor, int s, uint64_t *random) {
    double place = -1, end = acceptor->placed[acceptor->count - 1].place + 1;
    for (int i = 0; i < evictor->count; i++) {
        Action action = evictor->placed[i].action;
        if (action.peer < 0) continue;
        place += (end - place) * random_below(random, 1000) / 1000.0 / (1 + random_below(random, 6));
        ActionKind kind = action.kind == ACTION_EVICT ? ACTION_ACCEPT : ACTION_RETURN;
        draft_add(acceptor, place, kind, action.microbatch, s);
    }
}

static int peak(const StageSchedule *stage, const char *takes, const char *gives) {
    int used = 0, most = 0;
    for (int64_t i = 0; i < stage->count; i++) {
        used +=
            (strchr(takes, (int)stage->actions[i].kind) != NULL) - (strchr(gives, (int)stage->actions[i].kind) != NULL);
        if (used > most) most = used;
    }
    return most;
}

static void draft_finish(const Draft *draft, StageSchedule *stage, uint64_t *random) {
    free(stage->actions);
    stage->actions = malloc((size_t)draft->count * sizeof *stage->actions);
    stage->count = draft->count;
    for (int i = 0; i < draft->count; i++) stage->actions[i] = draft->placed[i].action;
    stage->own_slots = peak(stage, "FL", "BE") + (random_below(random, 3) == 0);
    stage->lent_slots = peak(stage, "A", "R") + (random_below(random, 3) == 0);
}

// Every stage has its own warm-up, so that stages may also wait for each other in cycles.
static Schedule *random_schedule(uint64_t *random) {
    int p = 1 + (int)random_below(random, 3), m = p == 3 ? 3 : 3 + (int)random_below(random, 4);
    Schedule *schedule = schedule_gpipe(p, m, NULL);
    Draft drafts[MOST_STAGES] = {0};
    for (int s = 0; s < p; s++) {
        int warm_up = p - s + (int)random_below(random, 3) - (random_below(random, 20) == 0);
        if (warm_up < 1) warm_up = 1;
        for (int i = 0; i < m; i++) {
            draft_add(&drafts[s], i, ACTION_FORWARD, i, SCHEDULE_NO_PEER);
            draft_add(&drafts[s], (i + warm_up < m ? i + warm_up : m) - 0.5 + 0.01 * i, ACTION_BACKWARD, i,
                      SCHEDULE_NO_PEER);
        }
    }
    bool pair = p > 1 && random_below(random, 4) > 0;
    for (int s = 0; s < p; s++) {
        if (pair && s == 0) draft_evictions(&drafts[0], m, p - 1, random);
        if (!(pair && s == 0) && random_below(random, 2) == 0) draft_evictions(&drafts[s], m, SCHEDULE_HOST, random);
    }
    if (pair) draft_acceptor(&drafts[0], &drafts[p - 1], 0, random);
    for (int s = 0; s < p; s++) draft_finish(&drafts[s], &schedule->stage[s], random);
    schedule->slots = 99;
    return schedule;
}

typedef struct Tally {
    int accepted, hanging, overcautious;
} Tally;

static void assert_proof_is_right(const Schedule *schedule, Tally *tally) {
    Error err = {0};
    bool accepted = schedule_check(schedule, &err) == 0, hangs = schedule_can_hang(schedule);
    if ((accepted && hangs) || (!accepted && strstr(err.text, " can ") == NULL)) {
        schedule_write(schedule, stderr);
        fail_msg("%s", accepted ? "accepted, and can hang" : err.text);
    }
    tally->accepted += accepted;
    tally->hanging += hangs;
    tally->overcautious += !accepted && !hangs;
}

// Simulates with random durations to 100, both orders of two requests for a slot, and transfers posted late or early.
static void assert_simulation_ends(const Schedule *schedule, uint64_t *random) {
    double times[4][64];
    for (int i = 0; i < 4 * schedule->stages * schedule->chunks; i++) {
        unsigned scale = random_below(random, 4);
        times[i % 4][i / 4] = scale == 0 ? 0 : scale == 1 ? 100 : 0.25 * random_below(random, 12);
    }
    for (int i = 0; i < 4; i++) {
        SimulateCosts costs = {.forward = times[0],
                               .backward = times[1],
                               .input = times[1],
                               .weight = times[2],
                               .transfer = times[2],
                               .edge = times[3],
                               .queued = i < 2 ? NULL : (const double[64]){0},
                               .queue_first = i % 2};
        timeline_free(schedule_simulated(schedule, &costs));
    }
}

TEST(the_proof_accepts_what_cannot_hang_and_nothing_else) {
    Tally tally = {0};
    uint64_t random = 1, durations = 2;
    for (int round = 0; round < 4000; round++) {
        AutoSchedule *schedule = random_schedule(&random);
        int before = tally.accepted;
        assert_proof_is_right(schedule, &tally);
        if (tally.accepted > before) assert_simulation_ends(schedule, &durations);
    }
    print_message("%d accepted, %d can hang, %d refused without need\n", tally.accepted, tally.hanging,
                  tally.overcautious);
    assert_true(tally.accepted > 1000 && tally.hanging > 300);
    // The proof examines the slots of one stage at a time. It cannot see cases that other stages rule out.
    assert_true(tally.overcautious * 50 < tally.hanging);
    Tally made = {0};
    for (int m = 4; m <= 6; m++) {
        AutoSchedule *schedule = schedule_bpipe(4, m, 3, NULL);
        assert_proof_is_right(schedule, &made);
    }
    assert_int_equal(made.accepted, 3);
}

// ---------------------------------------------------------------------------------------------------------------------
// Sound schedules with small changes

typedef enum Spoil { DROP, DOUBLE, OTHER_PEER, OTHER_MICROBATCH, OTHER_CHUNK, OTHER_KIND, SPOILS } Spoil;

static Schedule *copy_of(const Schedule *schedule) {
    Schedule *copy = schedule_gpipe(schedule->stages, schedule->microbatches, NULL);
    StageSchedule *stage = copy->stage;
    for (int s = 0; s < schedule->stages; s++) {
        const StageSchedule *from = &schedule->stage[s];
        free(stage[s].actions);
        stage[s] = *from;
        // Space for one more action, which a test may insert.
        stage[s].actions = malloc(((size_t)from->count + 1) * sizeof(Action));
        memcpy(stage[s].actions, from->actions, (size_t)from->count * sizeof(Action));
    }
    *copy = *schedule;
    copy->stage = stage;
    return copy;
}

static void spoil(StageSchedule *stage, int64_t at, Spoil way, const Schedule *schedule) {
    Action *action = &stage->actions[at];
    size_t rest = (size_t)(stage->count - at);
    if (way == DROP) {
        memmove(action, action + 1, (rest - 1) * sizeof *action);
        stage->count--;
    } else if (way == DOUBLE) {
        memmove(action + 1, action, rest * sizeof *action);
        stage->count++;
    } else if (way == OTHER_PEER) {
        action->peer = action->peer == schedule->stages - 1 ? 0 : action->peer + 1;
    } else if (way == OTHER_MICROBATCH) {
        action->microbatch = (action->microbatch + 1) % schedule->microbatches;
    } else if (way == OTHER_CHUNK) {
        action->chunk++;
    } else {
        const char *kinds = "FBIWEARL";
        action->kind = (ActionKind)kinds[(strchr(kinds, (int)action->kind) - kinds + 1) % 8];
    }
}

static Schedule *named(const char *name, int p, int m) {
    ScheduleSpec spec = {.stages = p, .microbatches = m, .delay = SCHEDULE_DELAY_MOST};
    Schedule *schedule = schedule_make(&schedule_kinds[schedule_kind_index(name)], &spec, NULL);
    assert_non_null(schedule);
    return schedule;
}

TEST(one_wrong_action_is_always_found) {
    Schedule *sound[] = {schedule_1f1b(3, 5, NULL),     schedule_gpipe(3, 4, NULL),     schedule_forward(3, 4),
                         schedule_bpipe(4, 9, 3, NULL), schedule_bpipe(9, 12, 6, NULL), named("gis", 3, 6),
                         named("zb-v", 3, 5),           named("v-half", 4, 6),          named("zb-d", 3, 5)};
    for (size_t which = 0; which < sizeof sound / sizeof sound[0]; which++) {
        for (int s = 0; s < sound[which]->stages; s++)
            for (int64_t at = 0; at < sound[which]->stage[s].count; at++)
                for (Spoil way = DROP; way < SPOILS; way++) {
                    AutoSchedule *spoilt = copy_of(sound[which]);
                    spoil(&spoilt->stage[s], at, way, spoilt);
                    Error err = {0};
                    if (schedule_check(spoilt, &err) == 0) {
                        schedule_write(spoilt, stderr);
                        fail_msg("stage %d, action %d, way %d is accepted", s, (int)at, (int)way);
                    }
                    assert_int_equal(err.code, EXIT_USAGE);
                }
        schedule_free(sound[which]);
    }
    AutoSchedule *schedule = schedule_bpipe(4, 9, 3, NULL);
    schedule->stage[0].actions[2].kind = (ActionKind)'X';
    assert_refused(schedule_check(schedule, &unit_error), EXIT_USAGE, "");
    assert_string_equal(unit_error.text, "schedule bpipe: stage 0: an action of unknown kind 88");
}

// Swaps up to three neighbours in lists of every kind; evictions to the host or a partner make slots scarce.
TEST(lists_that_the_proof_accepts_end_with_any_durations) {
    uint64_t random = 11;
    int accepted = 0, refused = 0;
    for (int round = 0; round < 6000; round++) {
        const ScheduleKind *kind = &schedule_kinds[random_below(&random, (unsigned)schedule_kind_count)];
        int p = 1 + (int)random_below(&random, 6);
        Schedule *base = named(kind->name, p, 2 * p * (1 + (int)random_below(&random, 2)));
        EvictTarget target = kind->pairs && random_below(&random, 2) ? EVICT_TO_PEER : EVICT_TO_HOST;
        int slots = bpipe_least_slots(base, target) + (int)random_below(&random, 3);
        Schedule *schedule = bpipe_balance(base, slots, target, 1 + (int)random_below(&random, 3), NULL);
        Schedule *changed = schedule == NULL ? base : schedule;
        for (unsigned swaps = random_below(&random, 4); swaps > 0; swaps--) {
            StageSchedule *stage = &changed->stage[random_below(&random, (unsigned)p)];
            Action *at = &stage->actions[random_below(&random, (unsigned)stage->count - 1)], kept = at[0];
            at[0] = at[1];
            at[1] = kept;
        }
        if (random_below(&random, 3) == 0) changed->edge_buffers = 1;
        Error err = {0};
        bool sound = schedule_check(changed, &err) == 0;
        if (sound) assert_simulation_ends(changed, &random);
        accepted += sound;
        refused += !sound;
        schedule_free(base);
        if (schedule != NULL) schedule_free(schedule);
    }
    print_message("%d accepted, %d refused\n", accepted, refused);
    assert_true(accepted > 1000 && refused > 1000);
}

// The file reads in three parts: making schedules, the BPipe pass, and the text form. The proof that a schedule is sound
// shares nothing with them and has a file of its own, src/schedule/check.c.
#include "bpipe.h"

#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

bool action_computes(ActionKind kind) {
    return kind == ACTION_FORWARD || kind == ACTION_BACKWARD || kind == ACTION_INPUT || kind == ACTION_WEIGHT;
}

int schedule_virtual(const Schedule *schedule, int stage, int chunk) {
    bool back = schedule->placement == PLACEMENT_V && chunk % 2 == 1;
    return chunk * schedule->stages + (back ? schedule->stages - 1 - stage : stage);
}

void schedule_home(const Schedule *schedule, int virtual_stage, int *stage, int *chunk) {
    int at = virtual_stage % schedule->stages;
    *chunk = virtual_stage / schedule->stages;
    *stage = schedule->placement == PLACEMENT_V && *chunk % 2 == 1 ? schedule->stages - 1 - at : at;
}

// ---------------------------------------------------------------------------------------------------------------------
// Making schedules

// A growing list. A push that finds no memory sets `failed`, so that one test at the end is enough.
typedef struct List {
    Action *actions;
    int64_t count;
    int64_t capacity;
    bool failed;
} List;

static void list_push_(List *list, ActionKind kind, int microbatch, int peer) {
    if (list->failed) return;
    if (list->count == list->capacity) {
        int64_t capacity = list->capacity == 0 ? 64 : 2 * list->capacity;
        Action *actions = realloc(list->actions, (size_t)capacity * sizeof *actions);
        list->failed = actions == NULL;
        if (list->failed) return;
        list->actions = actions;
        list->capacity = capacity;
    }
    list->actions[list->count++] = (Action){kind, microbatch, 0, peer};
}

// Hands the list over to the stage, which owns it from here on, whole or not.
static int list_finish_(List *list, StageSchedule *stage, Error *err) {
    free(stage->actions);
    stage->actions = list->actions;
    stage->count = list->count;
    return list->failed ? error_set(err, EXIT_FAILED, "no memory for a schedule of this size") : 0;
}

static int least_(int a, int b) {
    return a < b ? a : b;
}

static Schedule *schedule_new_(const char *name, int stages, int microbatches, int slots, Error *err) {
    Schedule *schedule = calloc(1, sizeof *schedule);
    StageSchedule *stage = calloc((size_t)stages, sizeof *stage);
    if (schedule == NULL || stage == NULL) {
        free(schedule);
        free(stage);
        error_set(err, EXIT_FAILED, "no memory for a schedule of %d stages", stages);
        return NULL;
    }
    snprintf(schedule->name, sizeof schedule->name, "%s", name);
    schedule->stages = stages;
    schedule->chunks = 1;
    schedule->microbatches = microbatches;
    schedule->slots = slots;
    schedule->edge_buffers = SCHEDULE_EDGE_BUFFERS;
    schedule->forward_only = strcmp(name, "forward") == 0;
    schedule->stage = stage;
    return schedule;
}

void schedule_free(Schedule *schedule) {
    if (schedule == NULL) return;
    for (int s = 0; s < schedule->stages; s++) free(schedule->stage[s].actions);
    free(schedule->stage);
    free(schedule);
}

// The most microbatches between their F and their B, or (with A and R) lent at a time.
static int most_open_(const StageSchedule *stage, ActionKind opens, ActionKind closes) {
    int open = 0, most = 0;
    for (int64_t i = 0; i < stage->count; i++) {
        if (stage->actions[i].kind == opens) open++;
        if (stage->actions[i].kind == closes) open--;
        if (open > most) most = open;
    }
    return most;
}

// A stage allocates what it ever lends, and for itself what 1F1B would keep there or what is left of the bound.
static void schedule_size_slots_(Schedule *schedule) {
    for (int s = 0; s < schedule->stages; s++) {
        StageSchedule *stage = &schedule->stage[s];
        int in_flight = most_open_(stage, ACTION_FORWARD, ACTION_BACKWARD);
        stage->lent_slots = most_open_(stage, ACTION_ACCEPT, ACTION_RETURN);
        stage->own_slots = least_(schedule->forward_only ? 1 : in_flight, schedule->slots - stage->lent_slots);
    }
}

// GPipe and 1F1B differ in one number: how many forwards a stage runs before its first backward.
static int stage_fill_(StageSchedule *stage, int microbatches, int warm_up, bool forward_only, Error *err) {
    List list = {0};
    for (int i = 0; i < warm_up; i++) list_push_(&list, ACTION_FORWARD, i, SCHEDULE_NO_PEER);
    for (int i = 0; i < microbatches && !forward_only; i++) {
        list_push_(&list, ACTION_BACKWARD, i, SCHEDULE_NO_PEER);
        if (i < microbatches - warm_up) list_push_(&list, ACTION_FORWARD, i + warm_up, SCHEDULE_NO_PEER);
    }
    return list_finish_(&list, stage, err);
}

// Stage s begins with p-s forwards, and never with fewer than `least_warm_up`.
static Schedule *schedule_make_(const char *name, int stages, int microbatches, int slots, int least_warm_up,
                                Error *err) {
    if (stages < 1 || microbatches < 1) {
        error_set(err, EXIT_USAGE, "a schedule needs at least 1 stage and 1 microbatch, not %d and %d", stages,
                  microbatches);
        return NULL;
    }
    Schedule *schedule = schedule_new_(name, stages, microbatches, slots, err);
    if (schedule == NULL) return NULL;
    if (microbatches < stages && !schedule->forward_only) {
        error_set(
            err, EXIT_USAGE,
            "%d microbatches cannot fill %d pipeline stages; use at least %d microbatches per step or fewer stages",
            microbatches, stages, stages);
        schedule_free(schedule);
        return NULL;
    }
    for (int s = 0; s < stages; s++) {
        int warm_up = stages - s > least_warm_up ? stages - s : least_warm_up;
        warm_up = least_(warm_up, microbatches);
        if (stage_fill_(&schedule->stage[s], microbatches, warm_up, schedule->forward_only, err) != 0) {
            schedule_free(schedule);
            return NULL;
        }
    }
    schedule_size_slots_(schedule);
    return schedule;
}

Schedule *schedule_gpipe(int stages, int microbatches, Error *err) {
    return schedule_make_("gpipe", stages, microbatches, microbatches, microbatches, err);
}

Schedule *schedule_1f1b(int stages, int microbatches, Error *err) {
    return schedule_make_("1f1b", stages, microbatches, least_(stages, microbatches), 0, err);
}

Schedule *schedule_forward(int stages, int microbatches, Error *err) {
    return schedule_make_("forward", stages, microbatches, 1, microbatches, err);
}

// ---------------------------------------------------------------------------------------------------------------------
// The BPipe pass
//
// In its steady state an evictor of 1F1B has no idle moment: F(k) B(i) F(k+1) B(i+1) ... touch each other, and all its
// slots are full. If i+1 is away, it has to be back when F(k+1) ends. The newest bundle is the one needed last, so it
// goes, which keeps transfers few (Belady); and F(k) is the newest whose slot can still change hands in time. Hence the
// swap E(k) L(i+1), listed before B(i): it has B(i) and F(k+1) to hide behind, and as L only takes what E has just
// freed, F(k+1) always gets the slot of B(i).

int bpipe_partner(int stages, int stage) {
    int partner = stages - 1 - stage;
    return partner == stage ? SCHEDULE_NO_PEER : partner;
}

int bpipe_min_slots(int stages) {
    return stages == 1 ? 1 : (stages + 3) / 2;
}

int bpipe_min_slots_host(int stages) {
    return stages == 1 ? 1 : 2;
}

// The walk along one stage's F and B: what would be in its slots.
typedef struct Walk {
    List list;
    bool *away;    // [microbatches] evicted and not back yet
    int forwards;  // done so far; forwards-1 is the newest
    int backwards; // done so far; the next one to run
    int used;      // own slots taken, in list order
    int slots;
    int ahead;
    int peer;
} Walk;

// Evicts the newest bundle at home, if that is newer than microbatch `needed`.
static bool walk_evict_(Walk *walk, int needed) {
    int newest = walk->forwards - 1;
    while (newest > needed && walk->away[newest]) newest--;
    if (newest <= needed) return false;
    walk->away[newest] = true;
    walk->used--;
    list_push_(&walk->list, ACTION_EVICT, newest, walk->peer);
    return true;
}

static void walk_load_(Walk *walk, int microbatch) {
    walk->away[microbatch] = false;
    walk->used++;
    list_push_(&walk->list, ACTION_LOAD, microbatch, walk->peer);
}

// Before a forward there has to be a free slot. In a row of forwards the slot of the next one is freed during this one,
// so that compute does not wait for it.
static void walk_before_forward_(Walk *walk, bool forward_follows) {
    if (walk->used + (forward_follows ? 2 : 1) > walk->slots) walk_evict_(walk, walk->backwards);
}

// Before B(i) runs, the first of i+1 ... i+ahead that is away comes home, into the slot of the newest.
static void walk_swap_(Walk *walk) {
    int next = walk->backwards + 1;
    int last = walk->backwards + least_(walk->ahead, walk->forwards - 1 - walk->backwards);
    while (next <= last && !walk->away[next]) next++;
    if (next > last || (walk->used == walk->slots && !walk_evict_(walk, next))) return;
    walk_load_(walk, next);
}

// After the last forward nothing more has to leave: each backward frees a slot, and the next bundle that is away takes it.
static void walk_home_(Walk *walk) {
    for (int next = walk->backwards; next < walk->forwards && walk->used < walk->slots; next++) {
        if (walk->away[next]) walk_load_(walk, next);
    }
}

static void walk_stage_(Walk *walk, const StageSchedule *base, int microbatches) {
    for (int64_t i = 0; i < base->count; i++) {
        Action action = base->actions[i];
        bool forward = action.kind == ACTION_FORWARD;
        bool forward_follows = i + 1 < base->count && base->actions[i + 1].kind == ACTION_FORWARD;
        if (forward) walk_before_forward_(walk, forward_follows);
        if (!forward && walk->forwards < microbatches) walk_swap_(walk);
        if (!forward && walk->forwards == microbatches) walk_home_(walk);
        list_push_(&walk->list, action.kind, action.microbatch, action.peer);
        if (forward) walk->forwards++;
        if (!forward) walk->backwards++;
        walk->used += forward ? 1 : -1;
    }
}

static int balance_stage_(Schedule *schedule, int s, const StageSchedule *base, EvictTarget target, int ahead,
                          Error *err) {
    int peer = target == EVICT_TO_HOST ? SCHEDULE_HOST : bpipe_partner(schedule->stages, s);
    Walk walk = {.slots = schedule->slots, .ahead = ahead, .peer = peer};
    walk.away = calloc((size_t)schedule->microbatches, sizeof *walk.away);
    if (walk.away == NULL) return error_set(err, EXIT_FAILED, "no memory for a schedule of this size");
    walk_stage_(&walk, base, schedule->microbatches);
    free(walk.away);
    return list_finish_(&walk.list, &schedule->stage[s], err);
}

// Writes A and R into the acceptor's list: what the evictor posts after its B(i), the acceptor posts right after its own
// B(i). That one is complete before the evictor's B(i) can begin, whatever the durations, so no transfer ever waits for
// the acceptor to reach it.
static int balance_acceptor_(Schedule *schedule, int s, Error *err) {
    const StageSchedule *evictor = &schedule->stage[s];
    StageSchedule *acceptor = &schedule->stage[bpipe_partner(schedule->stages, s)];
    List list = {0};
    int64_t next = 0;
    for (int64_t i = 0; i < evictor->count; i++) {
        Action action = evictor->actions[i];
        if (action.kind == ACTION_EVICT) list_push_(&list, ACTION_ACCEPT, action.microbatch, s);
        if (action.kind == ACTION_LOAD) list_push_(&list, ACTION_RETURN, action.microbatch, s);
        while (action.kind == ACTION_BACKWARD && next < acceptor->count) {
            Action own = acceptor->actions[next++];
            list_push_(&list, own.kind, own.microbatch, own.peer);
            if (own.kind == ACTION_BACKWARD && own.microbatch == action.microbatch) break;
        }
    }
    return list_finish_(&list, acceptor, err);
}

// The slots that stage s of the base needs at least, where fewer than it keeps in flight will do: with a partner, both
// in-flight counts and one place to move to, over two stages.
static int balance_needs_(const Schedule *base, int s, EvictTarget target) {
    int in_flight = most_open_(&base->stage[s], ACTION_FORWARD, ACTION_BACKWARD);
    if (target == EVICT_TO_HOST) return least_(in_flight, 2);
    int partner = bpipe_partner(base->stages, s);
    if (partner == SCHEDULE_NO_PEER) return in_flight;
    int pair = in_flight + most_open_(&base->stage[partner], ACTION_FORWARD, ACTION_BACKWARD);
    return least_(in_flight, pair / 2 + 1);
}

static int balance_allowed_(const Schedule *base, int slots, EvictTarget target, Error *err) {
    for (int s = 0; s < base->stages; s++) {
        for (int64_t i = 0; i < base->stage[s].count; i++) {
            if (base->forward_only || !action_computes(base->stage[s].actions[i].kind)) {
                return error_set(err, EXIT_USAGE, "schedule %s cannot be balanced; start from 1f1b or gpipe",
                                 base->name);
            }
        }
    }
    int least = 1;
    for (int s = 0; s < base->stages; s++) {
        int needed = balance_needs_(base, s, target);
        if (needed > least) least = needed;
    }
    if (slots >= least) return 0;
    return error_set(err, EXIT_USAGE,
                     "%d slots are too few to balance %s on %d stages; the smallest number that works is %d", slots,
                     base->name, base->stages, least);
}

Schedule *bpipe_balance_ahead(const Schedule *base, int slots, EvictTarget target, int ahead, Error *err) {
    if (balance_allowed_(base, slots, target, err) != 0) return NULL;
    if (ahead < 1) {
        error_set(err, EXIT_USAGE, "bundles have to come home at least 1 backward ahead, not %d", ahead);
        return NULL;
    }
    Schedule *schedule = schedule_new_("bpipe", base->stages, base->microbatches, slots, err);
    if (schedule == NULL) return NULL;
    int status = 0;
    for (int s = 0; s < base->stages && status == 0; s++) {
        status = balance_stage_(schedule, s, &base->stage[s], target, ahead, err);
    }
    for (int s = 0; s < base->stages && status == 0 && target == EVICT_TO_PEER; s++) {
        if (most_open_(&schedule->stage[s], ACTION_EVICT, ACTION_LOAD) > 0)
            status = balance_acceptor_(schedule, s, err);
    }
    if (status != 0) {
        schedule_free(schedule);
        return NULL;
    }
    schedule_size_slots_(schedule);
    return schedule;
}

Schedule *bpipe_balance(const Schedule *base, int slots, EvictTarget target, Error *err) {
    return bpipe_balance_ahead(base, slots, target, 1, err);
}

Schedule *schedule_bpipe(int stages, int microbatches, int slots, Error *err) {
    Schedule *base = schedule_1f1b(stages, microbatches, err);
    if (base == NULL) return NULL;
    Schedule *schedule = bpipe_balance(base, slots, EVICT_TO_PEER, err);
    schedule_free(base);
    return schedule;
}

// ---------------------------------------------------------------------------------------------------------------------
// The text form

// Text v1 is for schedules that need nothing else: one chunk, whole backwards, and the usual edge buffers.
static bool is_version_1_(const Schedule *schedule) {
    return schedule->chunks == 1 && !schedule->split && schedule->edge_buffers == SCHEDULE_EDGE_BUFFERS;
}

char *action_text(const Schedule *schedule, Action action, char text[32]) {
    char chunk[12] = "", peer[12] = "";
    if (!is_version_1_(schedule)) snprintf(chunk, sizeof chunk, ".%d", action.chunk);
    if (!action_computes(action.kind)) {
        bool leaves = action.kind == ACTION_EVICT || action.kind == ACTION_RETURN;
        snprintf(peer, sizeof peer, action.peer == SCHEDULE_HOST ? "%ch" : "%c%d", leaves ? '>' : '<', action.peer);
    }
    snprintf(text, 32, "%c%d%s%s", action.kind, action.microbatch, chunk, peer);
    return text;
}

int schedule_write(const Schedule *schedule, FILE *file) {
    fprintf(file, "# schedule %s  stages %d  microbatches %d  slots %d\n", schedule->name, schedule->stages,
            schedule->microbatches, schedule->slots);
    for (int s = 0; s < schedule->stages; s++) {
        fprintf(file, "stage %d:", s);
        for (int64_t i = 0; i < schedule->stage[s].count; i++) {
            char text[32];
            fprintf(file, " %s", action_text(schedule, schedule->stage[s].actions[i], text));
        }
        fputc('\n', file);
    }
    return ferror(file) ? -1 : 0;
}

// Where the reader is. Every bpipe_take_ moves past what it names, or leaves `at` where it was and says no.
typedef struct Reader {
    const char *at;
    int line;
    Error *err;
} Reader;

static int bpipe_unreadable_(const Reader *reader, const char *expected) {
    char found[24];
    size_t used = 0;
    for (; used + 1 < sizeof found && !isspace((unsigned char)reader->at[used]) && reader->at[used] != 0; used++) {
        found[used] = isgraph((unsigned char)reader->at[used]) ? reader->at[used] : '?';
    }
    found[used] = 0;
    return error_set(reader->err, EXIT_USAGE, "schedule, line %d: \"%s\" where %s should stand", reader->line, found,
                     expected);
}

static bool bpipe_take_(Reader *reader, const char *text) {
    size_t length = strlen(text);
    if (strncmp(reader->at, text, length) != 0) return false;
    reader->at += length;
    return true;
}

static bool take_spaces_(Reader *reader) {
    const char *start = reader->at;
    while (*reader->at == ' ') reader->at++;
    return reader->at > start;
}

static bool take_number_(Reader *reader, int *number) {
    int64_t value = 0;
    const char *at = reader->at;
    for (; isdigit((unsigned char)*at); at++) {
        value = 10 * value + (*at - '0');
        if (value > INT_MAX) return false;
    }
    if (at == reader->at) return false;
    reader->at = at;
    *number = (int)value;
    return true;
}

// " word 12"
static bool take_field_(Reader *reader, const char *word, int *number) {
    return take_spaces_(reader) && bpipe_take_(reader, word) && take_spaces_(reader) && take_number_(reader, number);
}

static bool take_line_end_(Reader *reader) {
    take_spaces_(reader);
    if (*reader->at == 0) return true;
    if (*reader->at != '\n') return false;
    reader->at++;
    reader->line++;
    return true;
}

static int bpipe_read_header_(Reader *reader, Schedule *schedule) {
    const char *form = "the header \"# schedule NAME  stages P  microbatches M  slots K\"";
    if (!bpipe_take_(reader, "# schedule ")) return bpipe_unreadable_(reader, form);
    take_spaces_(reader);
    size_t used = 0;
    for (; isalnum((unsigned char)*reader->at) && used + 1 < sizeof schedule->name; reader->at++) {
        schedule->name[used++] = *reader->at;
    }
    schedule->forward_only = strcmp(schedule->name, "forward") == 0;
    if (used > 0 && take_field_(reader, "stages", &schedule->stages) &&
        take_field_(reader, "microbatches", &schedule->microbatches) &&
        take_field_(reader, "slots", &schedule->slots) && take_line_end_(reader)) {
        return 0;
    }
    return bpipe_unreadable_(reader, form);
}

static int read_action_(Reader *reader, List *list) {
    static const struct {
        ActionKind kind;
        char arrow;
    } forms[] = {{ACTION_FORWARD, 0},  {ACTION_BACKWARD, 0}, {ACTION_EVICT, '>'},
                 {ACTION_ACCEPT, '<'}, {ACTION_RETURN, '>'}, {ACTION_LOAD, '<'}};
    const char *form = "one of F3, B3, E3>q, E3>h, A3<q, R3>q, L3<q or L3<h";
    Reader start = *reader;
    int microbatch, peer = SCHEDULE_NO_PEER;
    size_t kind = 0;
    while (kind < 6 && (char)forms[kind].kind != *reader->at) kind++;
    if (kind == 6) return bpipe_unreadable_(&start, form);
    reader->at++;
    if (!take_number_(reader, &microbatch)) return bpipe_unreadable_(&start, form);
    if (forms[kind].arrow != 0) {
        if (*reader->at++ != forms[kind].arrow) return bpipe_unreadable_(&start, form);
        bool own = forms[kind].kind == ACTION_EVICT || forms[kind].kind == ACTION_LOAD;
        if (own && bpipe_take_(reader, "h")) peer = SCHEDULE_HOST;
        if (peer != SCHEDULE_HOST && !take_number_(reader, &peer)) return bpipe_unreadable_(&start, form);
    }
    if (!isspace((unsigned char)*reader->at) && *reader->at != 0) return bpipe_unreadable_(&start, form);
    list_push_(list, forms[kind].kind, microbatch, peer);
    return 0;
}

static int bpipe_read_stage_(Reader *reader, int s, StageSchedule *stage) {
    int number;
    Reader start = *reader;
    if (!bpipe_take_(reader, "stage ") || !take_number_(reader, &number) || !bpipe_take_(reader, ":") || number != s) {
        char form[32];
        snprintf(form, sizeof form, "\"stage %d:\"", s);
        return bpipe_unreadable_(&start, form);
    }
    List list = {0};
    int status = 0;
    while (status == 0 && !take_line_end_(reader)) status = read_action_(reader, &list);
    return list_finish_(&list, stage, reader->err) != 0 ? -1 : status;
}

// Room for the stages grows with the lines that are there, not with the number that the header promises.
static int read_stages_(Reader *reader, Schedule *schedule, int promised) {
    for (int capacity = 0; schedule->stages < promised; schedule->stages++) {
        if (schedule->stages == capacity) {
            capacity = 2 * capacity + 8;
            StageSchedule *stage = realloc(schedule->stage, (size_t)capacity * sizeof *stage);
            if (stage == NULL) return error_set(reader->err, EXIT_FAILED, "no memory for a schedule of this size");
            schedule->stage = stage;
        }
        schedule->stage[schedule->stages] = (StageSchedule){0};
        if (bpipe_read_stage_(reader, schedule->stages, &schedule->stage[schedule->stages]) != 0) {
            free(schedule->stage[schedule->stages].actions);
            return -1;
        }
    }
    while (*reader->at != 0 && take_line_end_(reader)) {}
    return *reader->at == 0 ? 0 : bpipe_unreadable_(reader, "the end of the schedule");
}

Schedule *schedule_parse(const char *text, Error *err) {
    Schedule *schedule = calloc(1, sizeof *schedule);
    if (schedule == NULL) {
        error_set(err, EXIT_FAILED, "no memory for a schedule");
        return NULL;
    }
    Reader reader = {text, 1, err};
    schedule->chunks = 1;
    schedule->edge_buffers = SCHEDULE_EDGE_BUFFERS;
    int status = bpipe_read_header_(&reader, schedule), promised = schedule->stages;
    schedule->stages = 0;
    if (status == 0 && (promised < 1 || schedule->microbatches < 1 || schedule->slots < 1)) {
        status = error_set(err, EXIT_USAGE, "schedule, line 1: stages, microbatches and slots start at 1");
    }
    if (status == 0) status = read_stages_(&reader, schedule, promised);
    if (status != 0) {
        schedule_free(schedule);
        return NULL;
    }
    schedule_size_slots_(schedule);
    return schedule;
}

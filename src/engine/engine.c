#include "engine.h"
#include "base/alloc.h"
#include "base/clock.h"

#include "offload.h"
#include <stdlib.h>
#include <string.h>

// What a compute action lacks, in the order in which it is asked: a wait for a load or a slot counts as exposed transfer only where
// the input is already there.
typedef enum Lack { LACK_NOTHING, LACK_INPUT, LACK_OUTPUT, LACK_SLOT, LACK_LOAD } Lack;

// The transfer queue: items are actions of the list in list order; [0, done) are complete, item `done` may be under way.
typedef struct Queue {
    int64_t *actions;
    int64_t posted, done;
    bool under_way;
    Slot *slot;          // of the transfer under way
    CommRequest request; // to or from the partner
} Queue;

struct Engine {
    Stage *stage;
    Backend *be;
    StatusPage *status_page;
    int index;
    Comm *pair, *control; // EngineGroups
    int partner;          // rank in pair
    SlotPool own, lent;
    OffloadStore host, partners; // where this stage evicts to by itself: host memory, slots that its partner lends
    bool alone;                  // the evictor of this pair moves bundles by itself; A and R are bookkeeping
    Checksum *checksum;          // NULL: none
    char note[256];
    P2pLink forward_in, forward_out, backward_in, backward_out;
    Queue queue;
    // --- the run under way
    const char *label;
    const Schedule *schedule;
    const StageSchedule *list;
    int64_t capacity;                   // actions that times, begin and end have room for
    Event **begin_events, **end_events; // per action; of compute actions
    ActionTime *times;
    int64_t *forward_action; // per microbatch, the action that was its F; -1 before
    uint64_t *left_with;     // per microbatch, checksum of its bundle where it was evicted
    EngineRun run;
    bool forward_only;
    float scale;
    Error error; // of a transfer that failed while compute went on
};

static const Action *action_(const Engine *engine, int64_t i) {
    return &engine->list->actions[i];
}

static int64_t compute_microbatches_(const Engine *engine) {
    return engine->schedule->microbatches;
}

// ---------------------------------------------------------------- the queue

// Where the transfer goes by a copy of ours, or NULL: by messages.
static OffloadStore *offload_store_(Engine *engine, const Action *action) {
    if (action->peer == SCHEDULE_HOST) return &engine->host;
    return engine->alone ? &engine->partners : NULL;
}

// Which pool a transfer moves, and between which states its slot goes.
typedef struct Movement {
    SlotPool *pool;
    SlotState before, during, after;
    bool sends;
} Movement;

static Movement movement_(Engine *engine, ActionKind kind) {
    Movement evict = {&engine->own, SLOT_HELD, SLOT_LEAVING, SLOT_FREE, true};
    Movement load = {&engine->own, SLOT_FREE, SLOT_FILLING, SLOT_HELD, false};
    Movement accept = {&engine->lent, SLOT_FREE, SLOT_FILLING, SLOT_HELD, false};
    Movement give_back = {&engine->lent, SLOT_HELD, SLOT_LEAVING, SLOT_FREE, true};
    return kind == ACTION_EVICT ? evict : kind == ACTION_LOAD ? load : kind == ACTION_ACCEPT ? accept : give_back;
}

// The slot the transfer at the head of the queue needs, or NULL while it has to wait.
static Slot *transfer_slot_(Engine *engine, const Action *action, const Movement *move) {
    if (!move->sends) return slots_free(move->pool, true);
    if (action->kind == ACTION_EVICT) {
        int64_t made = engine->forward_action[action->microbatch];
        if (made < 0 || !engine->be->event_done(engine->be, engine->end_events[made])) return NULL;
    }
    return slots_find(move->pool, action->microbatch);
}

// An error of a message says which one it was: "step 12: the bundle of microbatch 5 from stage 0 to stage 3: ...".
static int blame_message_(const Engine *engine, const char *what, int64_t microbatch, int from, const char *to,
                          Error *err) {
    Error whole = *err;
    snprintf(whole.text, sizeof whole.text, "%s: %s of microbatch %lld from stage %d to %s: %.800s", engine->label,
             what, (long long)microbatch, from, to, err->text);
    *err = whole;
    return -1;
}

static int blame_transfer_(const Engine *engine, const Action *action, Error *err) {
    char to[48] = "host memory and back";
    bool mine = action->kind == ACTION_EVICT || action->kind == ACTION_LOAD;
    bool back = action->kind == ACTION_RETURN || action->kind == ACTION_LOAD;
    int evictor = mine ? engine->index : action->peer, acceptor = mine ? action->peer : engine->index;
    if (action->peer != SCHEDULE_HOST) snprintf(to, sizeof to, "stage %d%s", acceptor, back ? " and back" : "");
    return blame_message_(engine, "the bundle", action->microbatch, evictor, to, err);
}

// A bundle that comes back has to be the one that left, whichever way it went and wherever it stayed.
static int check_bundle_(Engine *engine, const Action *action, Error *err) {
    const SlotPool *own = &engine->own;
    if (engine->checksum == NULL || action->kind != ACTION_LOAD) return 0;
    uint64_t back = checksum_of(engine->checksum, engine->queue.slot->memory, own->slot_bytes);
    return checksum_compare(engine->left_with[action->microbatch], back, err);
}

static int engine_start_transfer_(Engine *engine, const Action *action, const Movement *move, Error *err) {
    void *memory = engine->queue.slot->memory;
    Comm *pair = engine->pair;
    OffloadStore *store = offload_store_(engine, action);
    if (store != NULL)
        return move->sends ? offload_put(store, action->microbatch, memory, err)
                           : offload_get(store, action->microbatch, memory, err);
    int64_t bytes = move->pool->slot_bytes;
    CommRequest *request = &engine->queue.request;
    return move->sends ? pair->send(pair, engine->partner, memory, bytes, request, err)
                       : pair->receive(pair, engine->partner, memory, bytes, request, err);
}

// 1 when the head of the queue was started, 0 when it has to wait, -1 with err.
static int queue_start_(Engine *engine, Error *err) {
    Queue *queue = &engine->queue;
    const Action *action = action_(engine, queue->actions[queue->done]);
    Movement move = movement_(engine, action->kind);
    Slot *slot = transfer_slot_(engine, action, &move);
    if (slot == NULL) return 0;
    char who[32];
    if (slots_move(move.pool, slot, move.before, move.during, action->microbatch,
                   action_text(engine->schedule, *action, who), err) != 0)
        return -1;
    queue->slot = slot;
    queue->under_way = true;
    if (engine->checksum != NULL && action->kind == ACTION_EVICT)
        engine->left_with[action->microbatch] = checksum_of(engine->checksum, slot->memory, engine->own.slot_bytes);
    engine->times[queue->actions[queue->done]].begin = clock_seconds();
    return engine_start_transfer_(engine, action, &move, err) == 0 ? 1 : -1;
}

static int queue_test_(Engine *engine, const Action *action, Error *err) {
    OffloadStore *store = offload_store_(engine, action);
    if (store != NULL) return offload_done(store);
    return engine->pair->test(engine->pair, &engine->queue.request, err);
}

static int queue_finish_(Engine *engine, Error *err) {
    Queue *queue = &engine->queue;
    const Action *action = action_(engine, queue->actions[queue->done]);
    int done = queue_test_(engine, action, err);
    if (done == 0) return 0;
    if (done < 0 || check_bundle_(engine, action, err) != 0) return blame_transfer_(engine, action, err);
    Movement move = movement_(engine, action->kind);
    char who[32];
    queue->slot->occupied = NULL;
    if (slots_move(move.pool, queue->slot, move.during, move.after, action->microbatch,
                   action_text(engine->schedule, *action, who), err) != 0)
        return -1;
    engine->times[queue->actions[queue->done]].end = clock_seconds();
    engine->run.evictions += action->kind == ACTION_EVICT;
    queue->under_way = false;
    queue->done++;
    return 1;
}

static int queue_progress_(Engine *engine, Error *err) {
    Queue *queue = &engine->queue;
    while (queue->done < queue->posted) {
        int moved = queue->under_way ? queue_finish_(engine, err) : queue_start_(engine, err);
        if (moved <= 0) return moved;
    }
    return 0;
}

// A or R where the evictor moves bundles by itself: nothing to wait for, and nothing to do but to keep the books.
static int note_lent_(Engine *engine, int64_t i, Error *err) {
    const Action *action = action_(engine, i);
    bool accept = action->kind == ACTION_ACCEPT;
    char who[32];
    Slot *slot = accept ? slots_free(&engine->lent, false) : slots_find(&engine->lent, action->microbatch);
    engine->times[i].begin = engine->times[i].end = clock_seconds();
    return slots_move(&engine->lent, slot, accept ? SLOT_FREE : SLOT_HELD, accept ? SLOT_HELD : SLOT_FREE,
                      action->microbatch, action_text(engine->schedule, *action, who), err);
}

// Messages of an edge go in the order of microbatches.
static void blame_link_(const Engine *engine, const P2pLink *link, bool forward, Error *err) {
    char to[32];
    snprintf(to, sizeof to, "stage %d", link->sends ? link->peer : engine->index);
    blame_message_(engine, forward ? "the activation" : "the gradient", link->finished,
                   link->sends ? engine->index : link->peer, to, err);
}

// Moves everything that can be moved beside compute. The first error stays; the run ends at the next look at it.
static void engine_progress_(void *argument) {
    Engine *engine = (Engine *)argument;
    Error *err = &engine->error;
    if (err->code != 0) return;
    P2pLink *links[] = {&engine->forward_in, &engine->forward_out, &engine->backward_in, &engine->backward_out};
    for (int i = 0; i < 4; i++)
        if (links[i]->comm != NULL && p2p_progress(links[i], err) != 0) {
            blame_link_(engine, links[i], i < 2, err);
            return;
        }
    queue_progress_(engine, err);
}

// The same from inside compute, where a call means that something got done.
static void engine_poll_(void *argument) {
    status_page_progress(((Engine *)argument)->status_page);
    engine_progress_(argument);
}

// ---------------------------------------------------------------- compute

static Slot *forward_slot_(Engine *engine) {
    return slots_free(&engine->own, false);
}

static bool bundle_home_(Engine *engine, int microbatch) {
    Slot *slot = slots_find(&engine->own, microbatch);
    return slot != NULL && slot->state == SLOT_HELD;
}

static Lack lack_(Engine *engine, const Action *action) {
    bool forward = action->kind == ACTION_FORWARD;
    if (!p2p_ready(forward ? &engine->forward_in : &engine->backward_in)) return LACK_INPUT;
    if (!p2p_ready(forward ? &engine->forward_out : &engine->backward_out)) return LACK_OUTPUT;
    if (forward) return forward_slot_(engine) == NULL ? LACK_SLOT : LACK_NOTHING;
    return bundle_home_(engine, action->microbatch) ? LACK_NOTHING : LACK_LOAD;
}

// What a wait is for, on the board: "B14 from stage 3".
static void say_lack_(Engine *engine, const Action *action, Lack lack) {
    bool forward = action->kind == ACTION_FORWARD;
    const Queue *queue = &engine->queue;
    int peer = engine->index + (forward == (lack == LACK_INPUT) ? -1 : 1);
    char what[64], who[32];
    action_text(engine->schedule, *action, who);
    if (lack == LACK_INPUT) {
        snprintf(what, sizeof what, "%s from stage %d", who, peer);
    } else if (lack == LACK_OUTPUT) {
        snprintf(what, sizeof what, "a free buffer to stage %d", peer);
    } else {
        const Action *head = queue->done < queue->posted ? action_(engine, queue->actions[queue->done]) : action;
        peer = head->peer >= 0 ? head->peer : -1;
        snprintf(what, sizeof what, "%s, %s", lack == LACK_SLOT ? "a free slot" : "its bundle",
                 action_text(engine->schedule, *head, who));
    }
    status_page_set_wait(engine->status_page, lack == LACK_NOTHING ? NULL : what, peer);
}

// Waits until the action can run, moving transfers meanwhile.
static int await_(Engine *engine, const Action *action, Error *err) {
    double since = 0.0;
    int tries = 0;
    Lack said = LACK_NOTHING;
    for (;;) {
        engine_progress_(engine);
        if (engine->error.code != 0) {
            *err = engine->error;
            return -1;
        }
        Lack lack = lack_(engine, action);
        bool transfer = lack == LACK_SLOT || lack == LACK_LOAD;
        double now = transfer || since > 0.0 ? clock_seconds() : 0.0;
        if (since > 0.0) engine->run.exposed += now - since;
        since = transfer ? now : 0.0;
        if (lack != said) say_lack_(engine, action, said = lack);
        if (lack == LACK_NOTHING) return 0;
        comm_pause(&tries);
    }
}

static int engine_forward_(Engine *engine, int64_t i, const Action *action, Error *err) {
    char who[32];
    action_text(engine->schedule, *action, who);
    Slot *slot = forward_slot_(engine);
    if (slots_move(&engine->own, slot, SLOT_FREE, SLOT_FILLING, action->microbatch, who, err) != 0) return -1;
    if (stage_forward(engine->stage, action->microbatch, slot->memory, p2p_buffer(&engine->forward_in),
                      p2p_buffer(&engine->forward_out), engine->scale, err) != 0)
        return -1;
    engine->be->event_record(engine->be, engine->end_events[i], STREAM_COMPUTE);
    engine->forward_action[action->microbatch] = i;
    p2p_used(&engine->forward_in, engine->end_events[i]);
    p2p_used(&engine->forward_out, engine->end_events[i]);
    if (slots_move(&engine->own, slot, SLOT_FILLING, SLOT_HELD, action->microbatch, who, err) != 0) return -1;
    if (!engine->forward_only) return 0;
    slot->occupied = engine->end_events[i];
    return slots_move(&engine->own, slot, SLOT_HELD, SLOT_FREE, action->microbatch, who, err);
}

static int engine_backward_(Engine *engine, int64_t i, const Action *action, Error *err) {
    char who[32];
    action_text(engine->schedule, *action, who);
    Slot *slot = slots_find(&engine->own, action->microbatch);
    if (slots_move(&engine->own, slot, SLOT_HELD, SLOT_READING, action->microbatch, who, err) != 0) return -1;
    if (stage_backward(engine->stage, action->microbatch, slot->memory, p2p_buffer(&engine->backward_in),
                       p2p_buffer(&engine->backward_out), false, err) != 0)
        return -1;
    engine->be->event_record(engine->be, engine->end_events[i], STREAM_COMPUTE);
    p2p_used(&engine->backward_in, engine->end_events[i]);
    p2p_used(&engine->backward_out, engine->end_events[i]);
    slot->occupied = engine->end_events[i];
    return slots_move(&engine->own, slot, SLOT_READING, SLOT_FREE, action->microbatch, who, err);
}

// What this rank is at, for whoever asks on the board.
static void engine_say_(Engine *engine, const Action *action) {
    char what[96], who[32];
    snprintf(what, sizeof what, "%s %s", engine->label,
             action == NULL ? "end of the pipeline" : action_text(engine->schedule, *action, who));
    status_page_set_action(engine->status_page, what);
}

static int compute_(Engine *engine, int64_t i, Error *err) {
    const Action *action = action_(engine, i);
    engine_say_(engine, action);
    if (await_(engine, action, err) != 0) return -1;
    char who[32];
    if (engine->be->range_begin != NULL)
        engine->be->range_begin(engine->be, action_text(engine->schedule, *action, who));
    engine->be->event_record(engine->be, engine->begin_events[i], STREAM_COMPUTE);
    int ran = action->kind == ACTION_FORWARD ? engine_forward_(engine, i, action, err)
                                             : engine_backward_(engine, i, action, err);
    if (engine->be->range_end != NULL) engine->be->range_end(engine->be);
    if (ran != 0) return -1;
    engine_progress_(engine); // what this action made can be on its way before the next one is looked at
    return 0;
}

// ---------------------------------------------------------------- a run

static void engine_reserve_(Engine *engine, int64_t actions, int64_t microbatches) {
    if (actions + microbatches <= engine->capacity) return;
    int64_t capacity = actions + microbatches;
    engine->times = xrealloc(engine->times, (size_t)capacity * sizeof *engine->times);
    engine->begin_events = xrealloc(engine->begin_events, (size_t)capacity * sizeof *engine->begin_events);
    engine->end_events = xrealloc(engine->end_events, (size_t)capacity * sizeof *engine->end_events);
    engine->forward_action = xrealloc(engine->forward_action, (size_t)capacity * sizeof *engine->forward_action);
    engine->left_with = xrealloc(engine->left_with, (size_t)capacity * sizeof *engine->left_with);
    engine->queue.actions = xrealloc(engine->queue.actions, (size_t)capacity * sizeof *engine->queue.actions);
    for (int64_t i = engine->capacity; i < capacity; i++) {
        engine->begin_events[i] = engine->be->event_create(engine->be);
        engine->end_events[i] = engine->be->event_create(engine->be);
    }
    engine->capacity = capacity;
}

static int engine_begin_(Engine *engine, const char *label, const Schedule *schedule, float scale, Error *err) {
    const StageSchedule *list = &schedule->stage[engine->index];
    if (list->own_slots > engine->own.count || list->lent_slots > engine->lent.count)
        return error_set(err, EXIT_FAILED, "schedule %s wants %d own and %d lent slots where %d and %d are allocated",
                         schedule->name, list->own_slots, list->lent_slots, engine->own.count, engine->lent.count);
    engine_reserve_(engine, list->count, schedule->microbatches);
    engine->label = label;
    engine->schedule = schedule;
    engine->list = list;
    engine->forward_only = schedule->forward_only;
    engine->scale = scale;
    memset(&engine->run, 0, sizeof engine->run);
    memset(engine->times, 0, (size_t)list->count * sizeof *engine->times);
    for (int i = 0; i < schedule->microbatches; i++) engine->forward_action[i] = -1;
    engine->queue.posted = engine->queue.done = 0;
    slots_begin(&engine->own);
    slots_begin(&engine->lent);
    int64_t messages = compute_microbatches_(engine), back = schedule->forward_only ? 0 : messages;
    p2p_begin(&engine->forward_in, messages);
    p2p_begin(&engine->forward_out, messages);
    p2p_begin(&engine->backward_in, back);
    p2p_begin(&engine->backward_out, back);
    return 0;
}

static bool drained_(const Engine *engine) {
    return p2p_drained(&engine->forward_in) && p2p_drained(&engine->forward_out) && p2p_drained(&engine->backward_in) &&
           p2p_drained(&engine->backward_out) && engine->queue.done == engine->queue.posted;
}

static int drain_(Engine *engine, Error *err) {
    engine_say_(engine, NULL);
    status_page_set_wait(engine->status_page, "its last messages", -1);
    int tries = 0;
    for (engine_progress_(engine); engine->error.code == 0 && !drained_(engine); engine_progress_(engine))
        comm_pause(&tries);
    if (engine->error.code != 0) *err = engine->error;
    if (err->code != 0) return -1;
    if (engine->own.in_use + engine->lent.in_use != 0)
        return error_set(err, EXIT_FAILED, "%d own and %d lent slots are still in use at the end of schedule %s",
                         engine->own.in_use, engine->lent.in_use, engine->schedule->name);
    return engine->be->synchronize(engine->be, err);
}

static void collect_(Engine *engine, EngineRun *run) {
    for (int64_t i = 0; i < engine->list->count; i++) {
        ActionKind kind = action_(engine, i)->kind;
        if (kind != ACTION_FORWARD && kind != ACTION_BACKWARD) continue;
        ActionTime *time = &engine->times[i];
        time->begin = engine->be->event_seconds(engine->be, engine->begin_events[i]);
        time->end = engine->be->event_seconds(engine->be, engine->end_events[i]);
        if (engine->run.begin == 0.0) engine->run.begin = time->begin;
        engine->run.end = time->end;
        engine->run.busy += time->end - time->begin;
    }
    engine->run.times = engine->times;
    engine->run.count = engine->list->count;
    engine->run.slots_used = engine->own.most_in_use;
    engine->run.slots_lent = engine->lent.most_in_use;
    *run = engine->run;
}

static int post_(Engine *engine, int64_t i, Error *err) {
    ActionKind kind = action_(engine, i)->kind;
    if (kind == ACTION_FORWARD || kind == ACTION_BACKWARD) return compute_(engine, i, err);
    if (engine->alone && (kind == ACTION_ACCEPT || kind == ACTION_RETURN)) return note_lent_(engine, i, err);
    engine->queue.actions[engine->queue.posted++] = i;
    engine_progress_(engine);
    return 0;
}

int engine_run(Engine *engine, const char *label, const Schedule *schedule, float scale, EngineRun *run, Error *err) {
    if (engine_begin_(engine, label, schedule, scale, err) != 0) return -1;
    for (int64_t i = 0; i < engine->list->count; i++)
        if (post_(engine, i, err) != 0) return -1;
    if (drain_(engine, err) != 0) return -1;
    collect_(engine, run);
    return 0;
}

// ---------------------------------------------------------------- life

static int create_links_(Engine *engine, Comm *pipeline, Error *err) {
    Backend *be = engine->be;
    int64_t bytes = engine->stage->at.message_bytes;
    Comm *previous = engine->stage->at.first ? NULL : pipeline, *next = engine->stage->at.last ? NULL : pipeline;
    int s = engine->index;
    if (p2p_create(&engine->forward_in, be, previous, s - 1, false, bytes, err) != 0) return -1;
    if (p2p_create(&engine->forward_out, be, next, s + 1, true, bytes, err) != 0) return -1;
    if (p2p_create(&engine->backward_in, be, next, s + 1, false, bytes, err) != 0) return -1;
    return p2p_create(&engine->backward_out, be, previous, s - 1, true, bytes, err);
}

static int create_offload_(Engine *engine, const SlotCounts *slots, Comm *control, Error *err) {
    if (offload_host(&engine->host, engine->be, slots->host, slots->bytes, err) != 0) return -1;
    if (control == NULL) return 0;
    char why[256];
    if (offload_pair(&engine->partners, engine->be, &engine->lent, control, &engine->alone, why, err) != 0) return -1;
    if (why[0] != '\0')
        snprintf(engine->note, sizeof engine->note,
                 "stage %d sends what it evicts as messages, which its partner has to take: %.160s", engine->index,
                 why);
    return 0;
}

Engine *engine_create(Stage *stage, const SlotCounts *slots, const EngineGroups *groups, StatusPage *status_page,
                      Error *err) {
    Engine *engine = xcalloc(1, sizeof *engine);
    engine->stage = stage;
    engine->be = stage->be;
    engine->status_page = status_page;
    engine->index = stage->at.stage;
    engine->pair = groups->pair;
    engine->control = groups->pair_control;
    engine->checksum = groups->checksum;
    engine->partner = groups->pair == NULL ? -1 : 1 - groups->pair->rank;
    stage->pass.poll = engine_poll_;
    stage->pass.poll_argument = engine;
    if (slots_create(&engine->own, engine->be, "own", MEMORY_OWN_SLOTS, slots->own, slots->bytes, err) == 0 &&
        slots_create(&engine->lent, engine->be, "lent", MEMORY_LENT_SLOTS, slots->lent, slots->bytes, err) == 0 &&
        create_offload_(engine, slots, groups->pair_control, err) == 0 &&
        create_links_(engine, groups->pipeline, err) == 0)
        return engine;
    engine_destroy(engine);
    return NULL;
}

const char *engine_note(const Engine *engine) {
    return engine->note;
}

bool engine_alone(const Engine *engine) {
    return engine->alone;
}

int engine_part(Engine *engine, Error *err) {
    return engine->alone ? offload_part(&engine->partners, engine->control, err) : 0;
}

void engine_destroy(Engine *engine) {
    if (engine == NULL) return;
    Backend *be = engine->be;
    for (int64_t i = 0; engine->begin_events != NULL && engine->end_events != NULL && i < engine->capacity; i++) {
        be->event_destroy(be, engine->begin_events[i]);
        be->event_destroy(be, engine->end_events[i]);
    }
    free(engine->times);
    free(engine->begin_events);
    free(engine->end_events);
    free(engine->forward_action);
    free(engine->left_with);
    free(engine->queue.actions);
    offload_destroy(&engine->partners);
    offload_destroy(&engine->host);
    p2p_destroy(&engine->forward_in);
    p2p_destroy(&engine->forward_out);
    p2p_destroy(&engine->backward_in);
    p2p_destroy(&engine->backward_out);
    slots_destroy(&engine->own);
    slots_destroy(&engine->lent);
    free(engine);
}

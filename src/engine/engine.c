// The engine runs one stage's list of a schedule, word for word (engine.h).
//
// Compute actions (F, B, I, W) run in list order on the calling thread. Transfers (E, A, R, L) go into one queue and
// move beside compute, as do the messages between virtual stages. None has a thread of its own: engine_progress_ moves
// all of them, called while an action waits, and by layers between their operations.
//
// A bundle is known by its number, chunk * microbatches + microbatch. Where it is, and who may touch it, is the state
// of its slot (slots.h); an action that finds its slot in another state than the proof promised fails with a sentence.
#include "engine.h"
#include "base/alloc.h"
#include "base/clock.h"

#include "links.h"
#include "offload.h"
#include "rehearsal.h"
#include <stdlib.h>
#include <string.h>

// What a compute action waits for, in the order of the checks: a wait for a load or a slot counts as exposed transfer
// only if the input has arrived.
typedef enum Lack { LACK_NOTHING, LACK_INPUT, LACK_OUTPUT, LACK_SLOT, LACK_LOAD } Lack;

// The transfer queue: the transfers of the list in list order. [0, done) are complete, item `done` may be in progress.
typedef struct Queue {
    int64_t *actions;
    int64_t posted, done;
    bool under_way;
    Slot *slot;          // of the transfer in progress
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
    OffloadStore host, partners; // eviction without the partner's help: to host memory, to slots that the partner lends
    bool alone;                  // the evictor of this pair moves bundles alone; A and R are only noted
    Checksum *checksum;          // NULL: none
    char note[256];
    Links links;
    Queue queue;
    // --- the current run
    const char *label;
    const Schedule *schedule;
    const StageSchedule *list;
    int64_t capacity;                   // capacity of times, begin_events and end_events
    Event **begin_events, **end_events; // per action; of compute actions
    ActionTime *times;
    Event *latest;           // the end of the compute action that was queued last; NULL: none
    int64_t *forward_action; // per bundle, the action that was its F; -1 before
    uint64_t *left_with;     // per bundle, its checksum when it was evicted
    EngineRun run;
    float scale;
    Error error; // of a transfer that failed during compute
};

static const Action *engine_action_(const Engine *engine, int64_t i) {
    return &engine->list->actions[i];
}

static int engine_bundle_(const Engine *engine, const Action *action) {
    return action->chunk * engine->schedule->microbatches + action->microbatch;
}

static char *engine_text_(const Engine *engine, const Action *action, char text[32]) {
    return action_text(engine->schedule, *action, text);
}

// ---------------------------------------------------------------- the queue

// Returns the store that the transfer copies to or from, or NULL if it goes by messages.
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

// Returns the slot that the transfer at the head of the queue needs, or NULL if it has to wait.
static Slot *transfer_slot_(Engine *engine, const Action *action, const Movement *move) {
    if (!move->sends) return slots_free(move->pool, true);
    if (action->kind == ACTION_EVICT) {
        int64_t made = engine->forward_action[engine_bundle_(engine, action)];
        if (made < 0 || !engine->be->event_done(engine->be, engine->end_events[made])) return NULL;
    }
    return slots_find(move->pool, engine_bundle_(engine, action));
}

// Adds to an error which message it was: "step 12: the bundle of microbatch 5 from stage 0 to stage 3: ...". With
// several chunks a stage the microbatch is followed by ", chunk 1 of stage 0,": of the evictor, or of this stage.
static int blame_message_(const Engine *engine, const char *what, int64_t microbatch, int chunk, int owner, int from,
                          const char *to, Error *err) {
    Error whole = *err;
    char which[48] = "";
    if (engine->links.chunks > 1) snprintf(which, sizeof which, ", chunk %d of stage %d,", chunk, owner);
    snprintf(whole.text, sizeof whole.text, "%s: %s of microbatch %lld%s from stage %d to %s: %.800s", engine->label,
             what, (long long)microbatch, which, from, to, err->text);
    *err = whole;
    return -1;
}

static int blame_transfer_(const Engine *engine, const Action *action, Error *err) {
    char to[48] = "host memory and back";
    bool mine = action->kind == ACTION_EVICT || action->kind == ACTION_LOAD;
    bool back = action->kind == ACTION_RETURN || action->kind == ACTION_LOAD;
    int evictor = mine ? engine->index : action->peer, acceptor = mine ? action->peer : engine->index;
    if (action->peer != SCHEDULE_HOST) snprintf(to, sizeof to, "stage %d%s", acceptor, back ? " and back" : "");
    return blame_message_(engine, "the bundle", action->microbatch, action->chunk, evictor, evictor, to, err);
}

// Starts the head of the queue. Returns 1 if it was started, 0 if it has to wait, -1 with err.
static int queue_start_(Engine *engine, Error *err) {
    Queue *queue = &engine->queue;
    const Action *action = engine_action_(engine, queue->actions[queue->done]);
    Movement move = movement_(engine, action->kind);
    Slot *slot = transfer_slot_(engine, action, &move);
    if (slot == NULL) return 0;
    char who[32];
    int bundle = engine_bundle_(engine, action), started;
    if (slots_move(move.pool, slot, move.before, move.during, bundle, engine_text_(engine, action, who), err) != 0)
        return -1;
    queue->slot = slot;
    queue->under_way = true;
    int64_t bytes = move.pool->slot_bytes;
    if (engine->checksum != NULL && action->kind == ACTION_EVICT)
        engine->left_with[bundle] = checksum_of(engine->checksum, slot->memory, bytes);
    engine->times[queue->actions[queue->done]].begin = clock_seconds();
    OffloadStore *store = offload_store_(engine, action);
    Comm *pair = engine->pair;
    if (store != NULL)
        started =
            move.sends ? offload_put(store, bundle, slot->memory, err) : offload_get(store, bundle, slot->memory, err);
    else
        started = move.sends ? pair->send(pair, engine->partner, slot->memory, bytes, &queue->request, err)
                             : pair->receive(pair, engine->partner, slot->memory, bytes, &queue->request, err);
    return started == 0 ? 1 : -1;
}

// Compares the checksum of a bundle that was loaded with the one it was evicted with, whatever way it took.
static int check_bundle_(Engine *engine, const Action *action, Error *err) {
    if (engine->checksum == NULL || action->kind != ACTION_LOAD) return 0;
    uint64_t back = checksum_of(engine->checksum, engine->queue.slot->memory, engine->own.slot_bytes);
    return checksum_compare(engine->left_with[engine_bundle_(engine, action)], back, err);
}

// Returns 1 if the transfer in progress is complete, 0 if not, -1 with err.
static int queue_finish_(Engine *engine, Error *err) {
    Queue *queue = &engine->queue;
    const Action *action = engine_action_(engine, queue->actions[queue->done]);
    OffloadStore *store = offload_store_(engine, action);
    int done = store != NULL ? offload_done(store) : engine->pair->test(engine->pair, &queue->request, err);
    if (done == 0) return 0;
    if (done < 0 || check_bundle_(engine, action, err) != 0) return blame_transfer_(engine, action, err);
    Movement move = movement_(engine, action->kind);
    char who[32];
    queue->slot->occupied = NULL;
    if (slots_move(move.pool, queue->slot, move.during, move.after, engine_bundle_(engine, action),
                   engine_text_(engine, action, who), err) != 0)
        return -1;
    engine->times[queue->actions[queue->done]].end = clock_seconds();
    engine->run.evictions += action->kind == ACTION_EVICT;
    queue->under_way = false;
    queue->done++;
    return 1;
}

// Posts action i, a transfer. If the evictor moves bundles alone, A and R are only noted.
static int engine_post_(Engine *engine, int64_t i, Error *err) {
    const Action *action = engine_action_(engine, i);
    bool accept = action->kind == ACTION_ACCEPT;
    if (!engine->alone || (!accept && action->kind != ACTION_RETURN)) {
        engine->queue.actions[engine->queue.posted++] = i;
        return 0;
    }
    char who[32];
    int bundle = engine_bundle_(engine, action);
    Slot *slot = accept ? slots_free(&engine->lent, false) : slots_find(&engine->lent, bundle);
    engine->times[i].begin = engine->times[i].end = clock_seconds();
    return slots_move(&engine->lent, slot, accept ? SLOT_FREE : SLOT_HELD, accept ? SLOT_HELD : SLOT_FREE, bundle,
                      engine_text_(engine, action, who), err);
}

// ---------------------------------------------------------------- progress

// Names the message that failed; messages of a link go in the order of microbatches.
static void blame_link_(const Engine *engine, const P2pLink *link, int chunk, bool forward, Error *err) {
    char to[32];
    snprintf(to, sizeof to, "stage %d", link->sends ? link->peer : engine->index);
    blame_message_(engine, forward ? "the activation" : "the gradient", link->finished, chunk, engine->index,
                   link->sends ? engine->index : link->peer, to, err);
}

// Advances everything that goes on beside compute. The first error is kept; the run ends when it is next checked.
static void engine_progress_(void *argument) {
    Engine *engine = (Engine *)argument;
    Queue *queue = &engine->queue;
    Error *err = &engine->error;
    P2pLink *link;
    for (int i = 0; err->code == 0 && (link = links_at(&engine->links, i)) != NULL; i++)
        if (p2p_progress(link, err) != 0)
            blame_link_(engine, link, i / (2 * P2P_WAYS), i / 2 % P2P_WAYS == P2P_FORWARD, err);
    int moved = err->code == 0;
    while (moved > 0 && queue->done < queue->posted)
        moved = queue->under_way ? queue_finish_(engine, err) : queue_start_(engine, err);
}

// Does the same from inside compute; being called means that compute has made progress.
static void engine_poll_(void *argument) {
    status_page_progress(((Engine *)argument)->status_page);
    engine_progress_(argument);
}

// ---------------------------------------------------------------- compute

// Returns the links that a compute action reads and writes; W has none.
static void action_links_(Engine *engine, const Action *action, P2pLink **in, P2pLink **out) {
    ChunkLinks *links = &engine->links.chunk[action->chunk];
    P2pWay way = action->kind == ACTION_FORWARD ? P2P_FORWARD : P2P_BACKWARD;
    *in = action->kind == ACTION_WEIGHT ? NULL : &links->in[way];
    *out = action->kind == ACTION_WEIGHT ? NULL : &links->out[way];
}

static Lack lack_(Engine *engine, const Action *action) {
    P2pLink *in, *out;
    if (action->kind == ACTION_WEIGHT) return LACK_NOTHING;
    action_links_(engine, action, &in, &out);
    if (!p2p_ready(in)) return LACK_INPUT;
    if (!p2p_ready(out)) return LACK_OUTPUT;
    if (action->kind == ACTION_FORWARD) return slots_free(&engine->own, false) == NULL ? LACK_SLOT : LACK_NOTHING;
    const Slot *slot = slots_find(&engine->own, engine_bundle_(engine, action));
    return slot != NULL && slot->state == SLOT_HELD ? LACK_NOTHING : LACK_LOAD;
}

// Publishes what the stage waits for: "B14 from stage 3".
static void say_lack_(Engine *engine, const Action *action, Lack lack) {
    const Queue *queue = &engine->queue;
    P2pLink *in, *out;
    char what[64], who[32];
    int peer;
    action_links_(engine, action, &in, &out);
    if (lack == LACK_INPUT) {
        peer = in->comm == NULL ? engine->index : in->peer;
        snprintf(what, sizeof what, "%s from stage %d", engine_text_(engine, action, who), peer);
    } else if (lack == LACK_OUTPUT) {
        peer = out->comm == NULL ? engine->index : out->peer;
        snprintf(what, sizeof what, "a free buffer to stage %d", peer);
    } else {
        const Action *head = queue->done < queue->posted ? engine_action_(engine, queue->actions[queue->done]) : action;
        peer = head->peer >= 0 ? head->peer : -1;
        snprintf(what, sizeof what, "%s, %s", lack == LACK_SLOT ? "a free slot" : "its bundle",
                 engine_text_(engine, head, who));
    }
    status_page_set_wait(engine->status_page, lack == LACK_NOTHING ? NULL : what, peer);
}

// Pauses between two polls. On GPUs only briefly: other stages' hosts wait for this one, hop by hop, and there are
// cores to spare.
static void engine_pause_(const Engine *engine, int *looks) {
    if (engine->be->own_sums)
        comm_pause(looks);
    else
        comm_pause_briefly(looks);
}

// Returns whether compute has nothing left to do. The host runs ahead of a GPU: while that still computes, no transfer
// that the host waits for is exposed.
static bool engine_idle_(const Engine *engine) {
    return engine->latest == NULL || engine->be->event_done(engine->be, engine->latest);
}

// Waits until the action can run, advancing transfers meanwhile.
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
        bool transfer = (lack == LACK_SLOT || lack == LACK_LOAD) && engine_idle_(engine);
        double now = transfer || since > 0.0 ? clock_seconds() : 0.0;
        if (since > 0.0) engine->run.exposed += now - since;
        since = transfer ? now : 0.0;
        if (lack != said) say_lack_(engine, action, said = lack);
        if (lack == LACK_NOTHING) return 0;
        engine_pause_(engine, &tries);
    }
}

// Publishes what this rank is doing.
static void engine_say_(Engine *engine, const char *what) {
    char text[96];
    snprintf(text, sizeof text, "%s %s", engine->label, what);
    status_page_set_action(engine->status_page, text);
}

// Runs action i, a compute action, as soon as it has everything it needs.
static int engine_compute_(Engine *engine, int64_t i, Error *err) {
    const Action *action = engine_action_(engine, i);
    Backend *be = engine->be;
    Stage *stage = engine->stage;
    ActionKind kind = action->kind;
    bool forward = kind == ACTION_FORWARD, weights = kind == ACTION_WEIGHT;
    bool frees = weights || kind == ACTION_BACKWARD || (forward && engine->schedule->forward_only);
    SlotState before = forward ? SLOT_FREE : weights ? SLOT_READING : SLOT_HELD;
    SlotState during = forward ? SLOT_FILLING : SLOT_READING, after = forward ? SLOT_HELD : SLOT_READING;
    P2pLink *in, *out;
    char who[32];
    engine_say_(engine, engine_text_(engine, action, who));
    if (await_(engine, action, err) != 0) return -1;
    int bundle = engine_bundle_(engine, action), c = action->chunk, microbatch = action->microbatch, ran;
    Slot *slot = forward ? slots_free(&engine->own, false) : slots_find(&engine->own, bundle);
    if (slots_move(&engine->own, slot, before, during, bundle, who, err) != 0) return -1;
    action_links_(engine, action, &in, &out);
    if (be->range_begin != NULL) be->range_begin(be, who);
    be->event_record(be, engine->begin_events[i], STREAM_COMPUTE);
    if (forward)
        ran = stage_forward(stage, c, microbatch, slot->memory, p2p_buffer(in), p2p_buffer(out), engine->scale, err);
    else if (weights)
        ran = stage_weights(stage, c, microbatch, slot->memory, err);
    else
        ran = stage_backward(stage, c, microbatch, slot->memory, p2p_buffer(in), p2p_buffer(out), kind == ACTION_INPUT,
                             err);
    be->event_record(be, engine->end_events[i], STREAM_COMPUTE);
    engine->latest = engine->end_events[i];
    if (be->range_end != NULL) be->range_end(be);
    if (ran != 0) return -1;
    if (forward) engine->forward_action[bundle] = i;
    if (in != NULL) p2p_used(in, engine->end_events[i]), p2p_used(out, engine->end_events[i]);
    if (frees) slot->occupied = engine->end_events[i];
    return slots_move(&engine->own, slot, during, frees ? SLOT_FREE : after, bundle, who, err);
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
    const StageShape *at = &engine->stage->at;
    P2pLink *link;
    if (schedule->chunks != at->chunks || schedule->placement != at->placement ||
        schedule->edge_buffers > engine->links.edge_buffers)
        return error_set(err, EXIT_FAILED, "schedule %s does not place layers or messages as this run does",
                         schedule->name);
    if (list->own_slots > engine->own.count || list->lent_slots > engine->lent.count)
        return error_set(err, EXIT_FAILED, "schedule %s wants %d own and %d lent slots where %d and %d are allocated",
                         schedule->name, list->own_slots, list->lent_slots, engine->own.count, engine->lent.count);
    engine_reserve_(engine, list->count, (int64_t)schedule->chunks * schedule->microbatches);
    engine->label = label;
    engine->schedule = schedule;
    engine->list = list;
    engine->scale = scale;
    engine->latest = NULL;
    memset(&engine->run, 0, sizeof engine->run);
    memset(engine->times, 0, (size_t)list->count * sizeof *engine->times);
    for (int i = 0; i < schedule->chunks * schedule->microbatches; i++) engine->forward_action[i] = -1;
    engine->queue.posted = engine->queue.done = 0;
    slots_begin(&engine->own);
    slots_begin(&engine->lent);
    for (int i = 0; (link = links_at(&engine->links, i)) != NULL; i++)
        p2p_begin(link, schedule->forward_only && i / 2 % P2P_WAYS == P2P_BACKWARD ? 0 : schedule->microbatches);
    return 0;
}

static bool drained_(Engine *engine) {
    P2pLink *link;
    for (int i = 0; (link = links_at(&engine->links, i)) != NULL; i++)
        if (!p2p_drained(link)) return false;
    return engine->queue.done == engine->queue.posted;
}

static int drain_(Engine *engine, Error *err) {
    engine_say_(engine, "end of the pipeline");
    status_page_set_wait(engine->status_page, "its last messages", -1);
    int tries = 0;
    for (engine_progress_(engine); engine->error.code == 0 && !drained_(engine); engine_progress_(engine))
        engine_pause_(engine, &tries);
    if (engine->error.code != 0) *err = engine->error;
    if (err->code != 0) return -1;
    if (engine->own.in_use + engine->lent.in_use != 0)
        return error_set(err, EXIT_FAILED, "%d own and %d lent slots are still in use at the end of schedule %s",
                         engine->own.in_use, engine->lent.in_use, engine->schedule->name);
    return engine->be->synchronize(engine->be, err);
}

static void collect_(Engine *engine, EngineRun *run) {
    for (int64_t i = 0; i < engine->list->count; i++) {
        if (!action_computes(engine_action_(engine, i)->kind)) continue;
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

int engine_run(Engine *engine, const char *label, const Schedule *schedule, float scale, EngineRun *run, Error *err) {
    if (engine_begin_(engine, label, schedule, scale, err) != 0) return -1;
    for (int64_t i = 0; i < engine->list->count; i++) {
        bool computes = action_computes(engine_action_(engine, i)->kind);
        if ((computes ? engine_compute_(engine, i, err) : engine_post_(engine, i, err)) != 0) return -1;
        engine_progress_(engine); // send what was just made or posted, before the next action is checked
        if (engine->be->check != NULL && engine->be->check(engine->be, err) != 0) return -1;
    }
    if (drain_(engine, err) != 0) return -1;
    collect_(engine, run);
    return 0;
}

// ---------------------------------------------------------------- life

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

Engine *engine_create(Stage *stage, const Schedule *schedule, const SlotCounts *slots, const EngineGroups *groups,
                      StatusPage *status_page, Error *err) {
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
        links_create(&engine->links, engine->be, schedule, engine->index, stage->at.message_bytes, groups->lanes,
                     err) == 0)
        return engine;
    engine_destroy(engine);
    return NULL;
}

int engine_rehearse(Engine *engine, const Schedule *schedule, Error *err) {
    if (!engine->be->loads_late) return 0;
    return rehearse(engine->stage, schedule, &engine->links, engine->own.slots[0].memory, err);
}

const char *engine_note(const Engine *engine) {
    return engine->note;
}

void engine_use_pair(Engine *engine, Comm *pair) {
    engine->pair = pair;
    engine->partner = 1 - pair->rank;
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
    links_destroy(&engine->links);
    slots_destroy(&engine->own);
    slots_destroy(&engine->lent);
    free(engine);
}

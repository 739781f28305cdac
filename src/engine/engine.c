// The engine runs one stage's list of a schedule, word for word (engine.h).
//
// Compute actions (F, B, I, W) run in list order on the calling thread. Transfers (E, A, R, L) go into one queue and
// move during compute, as do the messages between virtual stages. No transfer has a thread of its own: engine_progress_
// moves all of them. The engine calls it while an action waits, and layers call it between their operations.
//
// Three decisions to know:
//
//   - A bundle's number is schedule_bundle. The state of its slot (slots.h) says where it is and who may touch it, as
//     the proof of the schedule promised.
//   - A bundle goes to the partner and back as a message of the pair's group. The evictor moves the messages of E
//     and L, one at a time. A and R only permit the evictor to write or read a lent slot (comm_pushed.h). So every
//     posted A or R that has its slot is in flight at once, and the evictor never waits for the acceptor's compute:
//
//       evictor   queue  E1 | E3 | L1 | E5 ...      one copy at a time, in list order
//       acceptor  queue  [A1 A3 R1] A5 ...          offered ahead; A5 waits for the slot that R1 frees
//
//   - The host runs ahead of a GPU. The memory that an action reads or frees is guarded by the events of the actions
//     before it, never by the order of calls.
#include "engine.h"
#include "base/alloc.h"
#include "batch.h"
#include "comm/comm_pushed.h"
#include "base/clock.h"
#include "base/units.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

// The first unmet condition of a compute action. The input is checked before slots and loads, so a wait for a load or a
// slot counts as exposed transfer only once the input has arrived.
typedef enum Lack { LACK_NOTHING, LACK_INPUT, LACK_OUTPUT, LACK_SLOT, LACK_LOAD } Lack;

// A transfer in flight.
typedef struct Flight {
    Slot *slot;
    CommRequest request; // the bundle's message to or from the partner
} Flight;

// The transfer queue: the transfers of the list in list order. [0, done) are complete, [done, started) in flight.
typedef struct Queue {
    int64_t *actions;
    int64_t posted, started, done;
    Flight *flights; // [most]: transfer i at i % most
    int most;        // most in flight: one E or L, and an A or R for each lent slot
} Queue;

struct Engine {
    Stage *stage;
    Backend *be;
    StatusPage *status_page;
    int index;
    Comm *pair;  // EngineGroups.pair
    int partner; // rank in pair
    SlotPool own, lent, host;
    Event *host_copied; // end of the latest copy to or from host memory
    Links links;
    Queue queue;
    Pause pause;                 // comm_pause's state while an action waits
    Event *queued[LAYERS_AHEAD]; // ends of the latest layers on a GPU: layer i at i % LAYERS_AHEAD
    int64_t layers;              // layers_queued of the stage at the latest poll
    // --- the current run
    const char *label;
    const Schedule *schedule;
    const StageSchedule *list;
    int64_t capacity; // allocated entries of each per-action and per-bundle array
    Event **events;   // [2 * capacity] of action i: 2i marks its begin, 2i + 1 its end; recorded for compute actions
    ActionTime *times;
    Event *latest;           // end event of the last compute action queued, or NULL
    int64_t *forward_action; // per bundle, index of its F in the list; -1 before F
    EngineRun run;
    float scale;
    Error error; // the first transfer or message that failed during compute
};

static const Action *engine_action_(const Engine *engine, int64_t i) { return &engine->list->actions[i]; }

static int engine_bundle_(const Engine *engine, const Action *action) {
    return (int)schedule_bundle(engine->schedule, *action);
}

static char *engine_text_(const Engine *engine, const Action *action, char text[ACTION_TEXT]) {
    return action_text(engine->schedule, *action, text);
}

// ---------------------------------------------------------------- the queue

static SlotPool *pool_of_(Engine *engine, ActionKind kind) {
    return kind == ACTION_EVICT || kind == ACTION_LOAD ? &engine->own : &engine->lent;
}

// Returns whether a transfer empties its slot; else it fills one.
static bool empties_(ActionKind kind) { return kind == ACTION_EVICT || kind == ACTION_RETURN; }

// Returns the state of a transfer's slot during the transfer.
static SlotState in_flight_(ActionKind kind) { return empties_(kind) ? SLOT_LEAVING : SLOT_FILLING; }

// Prefixes an error with the name of the message that failed: "step 12: the bundle of microbatch 5 from stage 0 to
// stage 3: ...". With several chunks per stage, ", chunk 1 of stage 0," follows the microbatch. Returns -1.
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

// Starts the next transfer of the queue. Returns 1 if it was started, 0 if it has to wait, -1 with err.
static int queue_start_(Engine *engine, Error *err) {
    Queue *queue = &engine->queue;
    Backend *be = engine->be;
    int64_t i = queue->actions[queue->started];
    const Action *action = engine_action_(engine, i);
    SlotPool *pool = pool_of_(engine, action->kind);
    bool sends = empties_(action->kind);
    int bundle = engine_bundle_(engine, action);

    // 1. E and L go one at a time. E waits for its forward, R for its A, L and A for a slot that the device no longer
    // uses.
    if (pool == &engine->own && queue->done < queue->started) return 0;
    if (action->kind == ACTION_EVICT) {
        int64_t made = engine->forward_action[bundle];
        if (made < 0 || !be->event_done(be, engine->events[2 * made + 1])) return 0;
    }
    Slot *slot = sends ? slots_find(pool, bundle) : slots_free(pool, true);
    if (slot == NULL || slot->state == SLOT_FILLING) return 0;

    // 2. The slot changes its state, and the transfer enters the queue.
    slots_move(pool, slot, sends ? SLOT_HELD : SLOT_FREE, in_flight_(action->kind), bundle);
    assert(queue->started - queue->done < queue->most);
    Flight *flight = &queue->flights[queue->started++ % queue->most];
    flight->slot = slot;
    engine->times[i].begin = clock_seconds();

    // 3. A message to or from the partner, or a copy to or from host memory. The host slot changes its state at once,
    // because the next transfer of the queue starts only after this copy is complete.
    int64_t bytes = pool->slot_bytes;
    if (action->peer != SCHEDULE_HOST) {
        Comm *pair = engine->pair;
        int failed = pair->message(pair, sends, engine->partner, slot->memory, bytes, &flight->request, err);
        return failed == 0 ? 1 : -1;
    }
    bool evicts = action->kind == ACTION_EVICT;
    Slot *there = evicts ? slots_free(&engine->host, false) : slots_find(&engine->host, bundle);
    slots_move(&engine->host, there, evicts ? SLOT_FREE : SLOT_HELD, evicts ? SLOT_HELD : SLOT_FREE, bundle);
    be->copy(be, STREAM_EVICT, evicts ? there->memory : slot->memory, evicts ? slot->memory : there->memory, bytes);
    be->event_record(be, engine->host_copied, STREAM_EVICT);
    return 1;
}

// Returns 1 if the oldest transfer in flight is complete, 0 if not, -1 with err.
static int queue_finish_(Engine *engine, Error *err) {
    Queue *queue = &engine->queue;
    int64_t i = queue->actions[queue->done];
    const Action *action = engine_action_(engine, i);
    Flight *flight = &queue->flights[queue->done % queue->most];
    int done = action->peer == SCHEDULE_HOST ? engine->be->event_done(engine->be, engine->host_copied)
                                             : engine->pair->test(engine->pair, &flight->request, err);
    if (done == 0) return 0;
    if (done < 0) return blame_transfer_(engine, action, err);
    flight->slot->occupied = NULL;
    slots_move(pool_of_(engine, action->kind), flight->slot, in_flight_(action->kind),
               empties_(action->kind) ? SLOT_FREE : SLOT_HELD, engine_bundle_(engine, action));
    engine->times[i].end = clock_seconds();
    engine->run.evictions += action->kind == ACTION_EVICT;
    // The partner moves one bundle at a time, so a transfer that was offered early begins when it becomes the oldest.
    if (++queue->done < queue->started) engine->times[queue->actions[queue->done]].begin = engine->times[i].end;
    return 1;
}

// ---------------------------------------------------------------- progress

// Prefixes a link's error with the failed activation or gradient. A link carries messages in the order of microbatches.
static void blame_link_(const Engine *engine, const P2pLink *link, Error *err) {
    char to[ACTION_TEXT];
    snprintf(to, sizeof to, "stage %d", link->sends ? link->peer : engine->index);
    blame_message_(engine, link->way == P2P_FORWARD ? "the activation" : "the gradient",
                   link->finished / engine->schedule->slices, link->chunk, engine->index,
                   link->sends ? engine->index : link->peer, to, err);
}

// Advances the messages and transfers that run during compute. Keeps the first error in engine->error; the next check
// of engine->error ends the run.
static void engine_progress_(void *argument) {
    Engine *engine = (Engine *)argument;
    Error *err = &engine->error;
    P2pLink *link;
    for (int i = 0; err->code == 0 && (link = links_at(&engine->links, i)) != NULL; i++)
        if (p2p_progress(link, err) != 0) blame_link_(engine, link, err);
    const Queue *queue = &engine->queue;
    for (int moved = 1; err->code == 0 && moved > 0;) {
        moved = queue->done < queue->started ? queue_finish_(engine, err) : 0;
        if (moved == 0 && queue->started < queue->posted) moved = queue_start_(engine, err);
    }
}

// Pauses between polls, briefly on GPUs: a delay of this host delays other stages' hosts, and CPU cores are plentiful.
static void engine_pause_(Engine *engine) {
    if (engine->be->own_sums) comm_pause(&engine->pause);
    else comm_pause_briefly(&engine->pause.looks);
}

// Calls engine_progress_ from inside compute. moved: compute has made progress. After a layer on a GPU, also waits
// until the device is less than LAYERS_AHEAD layers behind the host.
static bool engine_poll_(void *argument, bool moved) {
    Engine *engine = (Engine *)argument;
    Backend *be = engine->be;
    if (moved) status_page_progress(engine->status_page);
    engine_progress_(engine);
    if (engine->queued[0] != NULL && engine->layers < engine->stage->layers_queued) {
        Event *event = engine->queued[engine->layers % LAYERS_AHEAD];
        engine->pause.looks = 0;
        while (engine->error.code == 0 && !be->event_done(be, event)) {
            engine_progress_(engine);
            engine_pause_(engine);
        }
        be->event_record(be, event, STREAM_COMPUTE);
    }
    engine->layers = engine->stage->layers_queued;
    return engine->error.code == 0;
}

// ---------------------------------------------------------------- compute

// Returns the links that a compute action reads and writes; NULL for W.
static void action_links_(Engine *engine, const Action *action, P2pLink **in, P2pLink **out) {
    ChunkLinks *links = &engine->links.chunk[action->chunk];
    P2pWay way = action->kind == ACTION_FORWARD ? P2P_FORWARD : P2P_BACKWARD;
    *in = action->kind == ACTION_WEIGHT ? NULL : &links->in[way];
    *out = action->kind == ACTION_WEIGHT ? NULL : &links->out[way];
}

// Returns whether an eviction of the bundle is posted and has not started. Its backward comes after its load, so the
// backward has to wait although the bundle is still here.
static bool evicts_later_(const Engine *engine, int bundle) {
    const Queue *queue = &engine->queue;
    for (int64_t i = queue->started; i < queue->posted; i++) {
        const Action *action = engine_action_(engine, queue->actions[i]);
        if (action->kind == ACTION_EVICT && engine_bundle_(engine, action) == bundle) return true;
    }
    return false;
}

static Lack lack_(Engine *engine, const Action *action) {
    P2pLink *in, *out;
    int bundle = engine_bundle_(engine, action);
    if (action->kind == ACTION_WEIGHT) return LACK_NOTHING;
    action_links_(engine, action, &in, &out);
    if (!p2p_ready(in)) return LACK_INPUT;
    if (!p2p_ready(out)) return LACK_OUTPUT;
    if (action->kind == ACTION_FORWARD) return slots_free(&engine->own, false) == NULL ? LACK_SLOT : LACK_NOTHING;
    const Slot *slot = slots_find(&engine->own, bundle);
    return slot != NULL && slot->state == SLOT_HELD && !evicts_later_(engine, bundle) ? LACK_NOTHING : LACK_LOAD;
}

// Publishes the message, buffer, slot or bundle that the stage waits for: "B14 from stage 3".
static void say_lack_(Engine *engine, const Action *action, Lack lack) {
    const Queue *queue = &engine->queue;
    P2pLink *in, *out;
    char what[64], who[ACTION_TEXT];
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

// Waits until the action can run, advancing transfers meanwhile.
static int await_(Engine *engine, const Action *action, Error *err) {
    double since = 0.0;
    engine->pause.looks = 0;
    Lack said = LACK_NOTHING;
    for (;;) {
        engine_progress_(engine);
        if (engine->error.code != 0) {
            *err = engine->error;
            return -1;
        }
        Lack lack = lack_(engine, action);
        // The host runs ahead of a GPU: while the GPU computes, a transfer that the host waits for is not exposed.
        bool transfer = (lack == LACK_SLOT || lack == LACK_LOAD) &&
                        (engine->latest == NULL || engine->be->event_done(engine->be, engine->latest));
        double now = transfer || since > 0.0 ? clock_seconds() : 0.0;
        if (since > 0.0) engine->run.exposed += now - since;
        since = transfer ? now : 0.0;
        if (lack != said) say_lack_(engine, action, said = lack);
        if (lack == LACK_NOTHING) return 0;
        engine_pause_(engine);
    }
}

// Publishes this rank's action.
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
    bool frees = action_frees(kind, engine->schedule->forward_only);
    SlotState before = forward ? SLOT_FREE : weights ? SLOT_READING : SLOT_HELD;
    SlotState during = forward ? SLOT_FILLING : SLOT_READING, after = forward ? SLOT_HELD : SLOT_READING;
    P2pLink *in, *out;
    char who[ACTION_TEXT];
    engine_say_(engine, engine_text_(engine, action, who));
    if (await_(engine, action, err) != 0) return -1;
    int bundle = engine_bundle_(engine, action), c = action->chunk, ran;
    int64_t unit = (int64_t)action->microbatch * engine->stage->at.shape.slices + action->slice;
    Slot *slot = forward ? slots_free(&engine->own, false) : slots_find(&engine->own, bundle);
    slots_move(&engine->own, slot, before, during, bundle);
    action_links_(engine, action, &in, &out);
    if (be->range_begin != NULL) be->range_begin(be, who);
    Event *end = engine->latest = engine->events[2 * i + 1];
    be->event_record(be, engine->events[2 * i], STREAM_COMPUTE);
    if (forward) ran = stage_forward(stage, c, unit, slot->memory, p2p_buffer(in), p2p_buffer(out), engine->scale, err);
    else if (weights) ran = stage_weights(stage, c, unit, slot->memory, err);
    else ran = stage_backward(stage, c, unit, slot->memory, p2p_buffer(in), p2p_buffer(out), kind == ACTION_INPUT, err);
    be->event_record(be, end, STREAM_COMPUTE);
    if (be->range_end != NULL) be->range_end(be);
    if (ran != 0) return -1;
    if (forward) engine->forward_action[bundle] = i;
    if (!weights) {
        p2p_used(in, end);
        p2p_used(out, end);
    }
    if (frees) slot->occupied = end;
    slots_move(&engine->own, slot, during, frees ? SLOT_FREE : after, bundle);
    return 0;
}

// ---------------------------------------------------------------- a run

static void engine_begin_(Engine *engine, const char *label, const Schedule *schedule, float scale) {
    const StageSchedule *list = &schedule->stage[engine->index];
    const StageShape *at = &engine->stage->at;
    P2pLink *link;
    assert(schedule->chunks == at->chunks && schedule->placement == at->placement);
    assert(schedule->slices <= at->shape.slices && schedule->edge_buffers <= engine->links.edge_buffers);
    assert(list->own_slots <= engine->own.count && list->lent_slots <= engine->lent.count);
    int64_t messages = (int64_t)schedule->microbatches * schedule->slices;
    int64_t bundles = schedule->chunks * messages, capacity = list->count + bundles;
    if (capacity > engine->capacity) {
        engine->times = xrealloc(engine->times, (size_t)capacity * sizeof *engine->times);
        engine->events = xrealloc(engine->events, (size_t)capacity * 2 * sizeof *engine->events);
        engine->forward_action = xrealloc(engine->forward_action, (size_t)capacity * sizeof *engine->forward_action);
        engine->queue.actions = xrealloc(engine->queue.actions, (size_t)capacity * sizeof *engine->queue.actions);
        for (int64_t i = 2 * engine->capacity; i < 2 * capacity; i++)
            engine->events[i] = engine->be->event_create(engine->be);
        engine->capacity = capacity;
    }
    engine->label = label;
    engine->schedule = schedule;
    engine->list = list;
    engine->scale = scale;
    engine->latest = NULL;
    engine->stage->prepared = 0;
    memset(&engine->run, 0, sizeof engine->run);
    memset(engine->times, 0, (size_t)list->count * sizeof *engine->times);
    for (int64_t i = 0; i < bundles; i++) engine->forward_action[i] = -1;
    engine->queue.posted = engine->queue.started = engine->queue.done = 0;
    slots_begin(&engine->own);
    slots_begin(&engine->lent);
    for (int i = 0; (link = links_at(&engine->links, i)) != NULL; i++)
        p2p_begin(link, schedule->forward_only && link->way == P2P_BACKWARD ? 0 : messages);
}

int engine_run(Engine *engine, const char *label, const Schedule *schedule, float scale, EngineRun *run, Error *err) {
    Backend *be = engine->be;
    engine_begin_(engine, label, schedule, scale);

    // 1. Run the list. After each action, start the messages and transfers that it allows. The wait for the first input
    // is time to prepare weights.
    const StageSchedule *list = engine->list;
    const P2pLink *first = &engine->links.chunk[0].in[P2P_FORWARD];
    while (engine->error.code == 0 && !p2p_ready(first) && stage_prepare(engine->stage, err)) engine_progress_(engine);
    if (err->code != 0) return -1;
    for (int64_t i = 0; i < list->count; i++) {
        if (!action_computes(list->actions[i].kind)) engine->queue.actions[engine->queue.posted++] = i;
        else if (engine_compute_(engine, i, err) != 0) return -1;
        engine_progress_(engine);
        if (be->check != NULL && be->check(be, err) != 0) return -1;
    }

    // 2. Wait for the last messages and transfers, then for the device.
    engine_say_(engine, "end of the pipeline");
    status_page_set_wait(engine->status_page, "its last messages", -1);
    engine->pause.looks = 0;
    for (engine_progress_(engine);
         engine->error.code == 0 && (engine->queue.done < engine->queue.posted || !links_drained(&engine->links));
         engine_progress_(engine))
        engine_pause_(engine);
    if (engine->error.code != 0) *err = engine->error;
    if (err->code != 0) return -1;
    assert(engine->own.in_use == 0 && engine->lent.in_use == 0);
    if (be->synchronize(be, err) != 0) return -1;

    // 3. Read the times of compute from the device's clock.
    *run = engine->run;
    for (int64_t i = 0; i < list->count; i++) {
        ActionKind kind = list->actions[i].kind;
        ActionTime *time = &engine->times[i];
        if (!action_computes(kind)) continue;
        time->begin = be->event_seconds(be, engine->events[2 * i]);
        time->end = be->event_seconds(be, engine->events[2 * i + 1]);
        if (run->begin == 0.0) run->begin = time->begin;
        run->end = time->end;
        run->busy += time->end - time->begin;
        if (kind == ACTION_FORWARD) run->forward += time->end - time->begin;
    }
    run->times = engine->times, run->count = list->count;
    run->slots_used = engine->own.most_in_use, run->slots_lent = engine->lent.most_in_use;
    return 0;
}

// ---------------------------------------------------------------- life

// Connects this stage and its partner: first messages from the lower stage to the upper, then the other way. Every
// message begins or ends in a lent slot of the acceptor, so only the acceptor opens its memory, the lent slots, to the
// other rank. If each stage evicts to the other, a direction uses lent slots of both stages. Then neither stage opens
// memory, and bundles are sent as messages.
static int connect_pair_(Engine *engine, const Schedule *schedule, Error *err) {
    Comm *pair = engine->pair;
    if (pair == NULL || pair->connect == NULL) return 0;
    int lent = schedule->stage[engine->index].lent_slots;
    int theirs = schedule->stage[bpipe_partner(schedule->stages, engine->index)].lent_slots;
    bool lends = lent > 0 && theirs == 0, borrows = lent == 0 && theirs > 0;
    int64_t bytes = lends ? lent * engine->lent.slot_bytes : borrows ? theirs * engine->own.slot_bytes : 0;
    for (int sender = 0; sender < 2; sender++)
        if (pair->connect(pair, engine->partner, pair->rank == sender, lends ? engine->lent.memory : NULL, bytes,
                          err) != 0)
            return -1;
    int direct, far = 0;
    if (!engine->be->own_sums) comm_pushed_ways(pair, &direct, &far);
    if (far > 0) engine->be->moving = true;
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
    engine->partner = groups->pair == NULL ? -1 : 1 - groups->pair->rank;
    for (int i = 0; i < LAYERS_AHEAD && !engine->be->own_sums; i++)
        engine->queued[i] = engine->be->event_create(engine->be);
    stage->pass.poll = engine_poll_;
    stage->pass.poll_argument = engine;
    if (!engine->be->own_sums) stage->pass.routed = engine->be->event_create(engine->be);
    engine->queue.most = slots->lent + 1;
    engine->queue.flights = xcalloc((size_t)engine->queue.most, sizeof *engine->queue.flights);
    engine->host_copied = engine->be->event_create(engine->be);
    if (slots_create(&engine->own, engine->be, MEMORY_OWN_SLOTS, slots->own, slots->bytes, err) == 0 &&
        slots_create(&engine->lent, engine->be, MEMORY_LENT_SLOTS, slots->lent, slots->bytes, err) == 0 &&
        slots_create(&engine->host, engine->be, SLOTS_ON_HOST, slots->host, slots->bytes, err) == 0 &&
        connect_pair_(engine, schedule, err) == 0 &&
        links_create(&engine->links, engine->be, schedule, engine->index, stage->at.message_bytes, groups->lanes,
                     err) == 0)
        return engine;
    engine_destroy(engine);
    return NULL;
}

void engine_destroy(Engine *engine) {
    if (engine == NULL) return;
    Backend *be = engine->be;
    for (int64_t i = 0; i < 2 * engine->capacity; i++) be->event_destroy(be, engine->events[i]);
    free_all(engine->times, engine->events, engine->forward_action, engine->queue.actions, engine->queue.flights);
    be->event_destroy(be, engine->host_copied);
    for (int i = 0; i < LAYERS_AHEAD; i++) be->event_destroy(be, engine->queued[i]);
    be->event_destroy(be, engine->stage->pass.routed);
    engine->stage->pass.routed = NULL;
    links_destroy(&engine->links);
    slots_destroy(&engine->host);
    slots_destroy(&engine->own);
    slots_destroy(&engine->lent);
    free(engine);
}

// ---------------------------------------------------------------- the rehearsal

int engine_draw(Backend *be, void *to, int64_t count, uint64_t lane, Error *err) {
    enum { PIECE = 1 << 20 };
    float *drawn = be->allocate(be, MEMORY_WORKSPACE, PIECE * 4, "random numbers", err);
    if (drawn == NULL) return -1;
    for (int64_t begin = 0; begin < count; begin += PIECE) {
        int64_t piece = min_i64(PIECE, count - begin);
        NormalRows normals = {1.0f, 1, lane, 0, (uint64_t)piece};
        be->draw_normal(be, drawn, 1, piece, &normals);
        be->from_float(be, (char *)to + begin * be->element, drawn, piece);
    }
    int status = be->synchronize(be, err);
    be->release(be, MEMORY_WORKSPACE, drawn, PIECE * 4);
    return status;
}

// Runs a microbatch through one chunk and back, slice by slice: each slice sees a different number of keys, for which a
// GPU may use a different kernel. parts: whether to run with [0] a complete, [1] a split backward.
static int rehearse_chunk_(Engine *engine, int chunk, int64_t microbatch, float scale, const bool parts[2],
                           Error *err) {
    Stage *stage = engine->stage;
    void *bundle = engine->own.slots[0].memory;
    const P2pLink *in = engine->links.chunk[chunk].in, *out = engine->links.chunk[chunk].out;
    void *x = p2p_buffer(&in[P2P_FORWARD]), *y = p2p_buffer(&out[P2P_FORWARD]);
    void *dy = p2p_buffer(&in[P2P_BACKWARD]), *dx = p2p_buffer(&out[P2P_BACKWARD]);
    for (int split = 0; split < 2; split++)
        for (int64_t slice = 0; parts[split] && slice < stage->at.shape.slices; slice++) {
            int64_t unit = microbatch * stage->at.shape.slices + slice;
            if (stage_forward(stage, chunk, unit, bundle, x, y, scale, err) != 0) return -1;
            if (scale > 0.0f && stage_backward(stage, chunk, unit, bundle, dy, dx, split == 1, err) != 0) return -1;
            if (split == 1 && stage_weights(stage, chunk, unit, bundle, err) != 0) return -1;
        }
    return 0;
}

// Rehearses complete backwards (B), split backwards (I and W), or both, as the list contains them.
int engine_rehearse(Engine *engine, const Schedule *schedule, Error *err) {
    Stage *stage = engine->stage;
    const StageSchedule *list = &schedule->stage[engine->index];
    bool parts[2] = {schedule->forward_only, false};
    void (*layer_done)(void *, int64_t) = stage->layer_done;
    double *copies = stage->copies;
    // Weights are gathered only during the first microbatch; products then use other kernels.
    bool again = !schedule->forward_only || stage->gather_flops > 0;
    int status = 0, both = again && stage->most_microbatches > 1 ? 2 : 1;
    if (!engine->be->loads_late) return 0;
    for (int64_t i = 0; i < list->count; i++)
        parts[0] |= list->actions[i].kind == ACTION_BACKWARD, parts[1] |= list->actions[i].kind == ACTION_INPUT;
    bool measures = engine->be->products != NULL && engine->be->products->measures;
    for (int i = 0; measures && i < P2P_WAYS * schedule->chunks; i++) {
        const P2pLink *link = &engine->links.chunk[i / P2P_WAYS].in[i % P2P_WAYS];
        void *to = p2p_buffer(link);
        int64_t count = link->bytes / engine->be->element;
        if (to != NULL && engine_draw(engine->be, to, count, (uint64_t)i, err) != 0) return -1;
    }
    stage->documents = stage->places != NULL;
    if (stage->documents) batch_rehearse(stage);
    stage->layer_done = NULL; // gradients of a rehearsal belong to no step and are not summed
    stage->copies = NULL;     // nor are its rows counted
    engine->be->rehearses = true;
    for (int round = 0; round < (layer_done != NULL ? 2 : 1); round++) { // round 1: products while sums are in flight
        engine->be->summing = round == 1;
        for (int i = 0; status == 0 && i < schedule->chunks * both; i++) // gradients are written, then added to
            status = rehearse_chunk_(engine, i / both, i % both, schedule->forward_only ? 0.0f : 1.0f, parts, err);
    }
    engine->be->summing = engine->be->rehearses = stage->documents = false;
    stage->layer_done = layer_done, stage->copies = copies;
    stage->pass.load = (ExpertLoad){0};
    return status == 0 ? engine->be->synchronize(engine->be, err) : -1;
}

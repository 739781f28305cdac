// Messages between virtual stages (p2p.h). A link never blocks: the engine asks whether its next message is ready and
// lets all links advance while it waits or computes.
#include "p2p.h"
#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------- which links a schedule has

static int virtual_stages_(const Schedule *schedule) {
    return schedule->stages * schedule->chunks;
}

static int stage_of_(const Schedule *schedule, int g) {
    int stage, chunk;
    schedule_home(schedule, g, &stage, &chunk);
    return stage;
}

// Counts the directions before this one, in order of boundaries and forward first, that go from the same stage to the
// same other one.
int p2p_lane(const Schedule *schedule, int g, P2pWay way) {
    int from = stage_of_(schedule, way == P2P_FORWARD ? g : g + 1), lane = 0;
    int to = stage_of_(schedule, way == P2P_FORWARD ? g + 1 : g);
    for (int i = 0; i <= g; i++) {
        int low = stage_of_(schedule, i), high = stage_of_(schedule, i + 1);
        lane += low == from && high == to && (i < g || way == P2P_BACKWARD);
        lane += high == from && low == to && i < g;
    }
    return lane;
}

int p2p_lanes(const Schedule *schedule) {
    int most = 0;
    if (schedule->stages == 1) return 0;
    for (int g = 0; g + 1 < virtual_stages_(schedule); g++)
        for (int way = 0; way < P2P_WAYS; way++) {
            if (stage_of_(schedule, g) == stage_of_(schedule, g + 1)) continue;
            int lane = p2p_lane(schedule, g, (P2pWay)way);
            if (lane >= most) most = lane + 1;
        }
    return most;
}

int64_t p2p_bytes(const Schedule *schedule, int stage, int64_t message_bytes, int64_t page) {
    int64_t ends = 0;
    for (int g = 0; g + 1 < virtual_stages_(schedule); g++) {
        int low = stage_of_(schedule, g), high = stage_of_(schedule, g + 1);
        ends += (low == stage || high == stage) * P2P_WAYS; // a direction within the stage also counts once
    }
    return ends * memory_pages(schedule->edge_buffers * message_bytes, page);
}

// ---------------------------------------------------------------- links

static void p2p_set_(P2pLink *link, Backend *be, bool sends, int buffers, int64_t bytes) {
    memset(link, 0, sizeof *link);
    link->be = be;
    link->sends = sends;
    link->buffers = buffers;
    link->bytes = bytes;
    link->used = xcalloc((size_t)buffers, sizeof *link->used);
    link->requests = xcalloc((size_t)buffers, sizeof *link->requests);
}

static int p2p_allocate_(P2pLink *link, Error *err) {
    const char *what = link->sends ? "send buffers" : "receive buffers";
    link->memory = link->be->allocate(link->be, MEMORY_MESSAGES, link->buffers * link->bytes, what, err);
    return link->memory == NULL ? -1 : 0;
}

int p2p_create(P2pLink *link, Backend *be, Comm *comm, int peer, bool sends, int buffers, int64_t bytes, Error *err) {
    p2p_set_(link, be, sends, buffers, bytes);
    link->comm = comm;
    link->peer = peer;
    return comm == NULL ? 0 : p2p_allocate_(link, err);
}

int p2p_create_local(P2pLink *from, P2pLink *to, Backend *be, int buffers, int64_t bytes, Error *err) {
    p2p_set_(from, be, true, buffers, bytes);
    p2p_set_(to, be, false, buffers, bytes);
    from->end = to;
    to->end = from;
    return p2p_allocate_(from, err);
}

int p2p_connect(P2pLink *link, Error *err) {
    Comm *comm = link->comm;
    if (comm == NULL || comm->connect == NULL) return 0;
    void *memory = link->sends ? NULL : link->memory;
    return comm->connect(comm, link->peer, link->sends, memory, link->buffers * link->bytes, err);
}

void p2p_destroy(P2pLink *link) {
    if (link->memory != NULL) link->be->release(link->be, MEMORY_MESSAGES, link->memory, link->buffers * link->bytes);
    free(link->used);
    free(link->requests);
    memset(link, 0, sizeof *link);
}

void p2p_begin(P2pLink *link, int64_t expected) {
    link->expected = link->comm == NULL ? 0 : expected;
    link->started = link->finished = link->opened = 0;
    for (int i = 0; i < link->buffers; i++) link->used[i] = NULL;
}

static void *buffer_(const P2pLink *link, int64_t message) {
    const P2pLink *owner = link->memory == NULL ? link->end : link;
    return (char *)owner->memory + message % link->buffers * link->bytes;
}

static bool p2p_event_done_(const P2pLink *link, int64_t message) {
    const Event *event = link->used[message % link->buffers];
    return event == NULL || link->be->event_done(link->be, (Event *)event);
}

// Returns whether the next transfer may start: a sender's once its message was written, a receiver's once its buffer's
// previous message was read.
static bool may_start_(const P2pLink *link) {
    if (link->started == link->expected) return false;
    if (link->sends) return link->started < link->opened && p2p_event_done_(link, link->started);
    return link->started < link->opened + link->buffers && p2p_event_done_(link, link->started);
}

static int p2p_start_(P2pLink *link, Error *err) {
    CommRequest *request = &link->requests[link->started % link->buffers];
    void *buffer = buffer_(link, link->started);
    int started = link->sends ? link->comm->send(link->comm, link->peer, buffer, link->bytes, request, err)
                              : link->comm->receive(link->comm, link->peer, buffer, link->bytes, request, err);
    link->started += started == 0;
    return started;
}

int p2p_progress(P2pLink *link, Error *err) {
    if (link->comm == NULL) return 0;
    while (link->finished < link->started) {
        int done = link->comm->test(link->comm, &link->requests[link->finished % link->buffers], err);
        if (done < 0) return -1;
        if (done == 0) break;
        link->finished++;
    }
    while (link->started - link->finished < link->buffers && may_start_(link))
        if (p2p_start_(link, err) != 0) return -1;
    return 0;
}

// Between two chunks of one rank the order on the compute stream suffices: the read of a buffer is queued after its
// write, and the next write after that read.
bool p2p_ready(const P2pLink *link) {
    if (link->end != NULL)
        return link->sends ? link->opened < link->end->opened + link->buffers : link->opened < link->end->opened;
    if (link->comm == NULL) return true;
    return link->sends ? link->opened < link->finished + link->buffers : link->opened < link->finished;
}

void *p2p_buffer(const P2pLink *link) {
    return link->comm == NULL && link->end == NULL ? NULL : buffer_(link, link->opened);
}

void p2p_used(P2pLink *link, const Event *when) {
    link->used[link->opened % link->buffers] = when;
    link->opened++;
}

bool p2p_drained(const P2pLink *link) {
    return link->finished == link->expected;
}

// Messages between virtual stages (p2p.h). A link never blocks: the engine asks whether its next message is ready and
// lets all links advance while it waits or computes.
//
// The counters of both ends while message 3 is in flight, with two buffers per side (message i uses buffer i % 2):
//
//   sender    finished 3   messages 0-2 have left; their buffers may be written
//             started 4    message 3 is with `comm`
//             opened 5     F4 has written message 4, which leaves when F4 is complete on the device
//   receiver  opened 2     messages 0 and 1 have been read; their buffers may be received into
//             finished 3   message 2 has arrived and waits for the action that reads it
//             started 4    message 3 is expected; message 4 needs the buffer that still holds message 2
#include "p2p.h"
#include "base/alloc.h"
#include "base/units.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------- which links a schedule has

static int virtual_stages_(const Schedule *schedule) { return schedule->stages * schedule->chunks; }

static int stage_of_(const Schedule *schedule, int g) {
    int stage, chunk;
    schedule_home(schedule, g, &stage, &chunk);
    return stage;
}

// Returns the lane of a direction over the boundary between virtual stages g and g+1: the number of earlier directions
// from the same source to the same destination stage. Boundaries are counted in order; at each, forward comes first.
static int lane_of_(const Schedule *schedule, int g, P2pWay way) {
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
    int64_t lanes = 0;
    for (int g = 0; g + 1 < virtual_stages_(schedule); g++)
        for (int way = 0; way < P2P_WAYS && stage_of_(schedule, g) != stage_of_(schedule, g + 1); way++)
            lanes = max_i64(lanes, lane_of_(schedule, g, (P2pWay)way) + 1);
    return (int)lanes;
}

int64_t p2p_bytes(const Schedule *schedule, int stage, int64_t message_bytes, int64_t page) {
    int64_t ends = 0;
    for (int c = 0; c < schedule->chunks; c++) {
        int g = schedule_virtual(schedule, stage, c), last = g + 1 == virtual_stages_(schedule);
        ends += (g > 0) + (!last && stage_of_(schedule, g + 1) != stage); // two ends within a stage share their buffers
    }
    return ends * P2P_WAYS * memory_pages(schedule->edge_buffers * message_bytes, page);
}

// ---------------------------------------------------------------- links

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

int p2p_progress(P2pLink *link, Error *err) {
    if (link->comm == NULL) return 0;
    while (link->finished < link->started) {
        int done = link->comm->test(link->comm, &link->requests[link->finished % link->buffers], err);
        if (done < 0) return -1;
        if (done == 0) break;
        link->finished++;
    }
    // The next transfer starts once, on a sender, its message has been written, and on a receiver, the previous message
    // in its buffer has been read.
    while (link->started < link->expected && link->started - link->finished < link->buffers &&
           link->started < link->opened + (link->sends ? 0 : link->buffers) && p2p_event_done_(link, link->started)) {
        CommRequest *request = &link->requests[link->started % link->buffers];
        void *buffer = buffer_(link, link->started);
        if (link->comm->message(link->comm, link->sends, link->peer, buffer, link->bytes, request, err) != 0) return -1;
        link->started++;
    }
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
    assert(p2p_ready(link));
    link->used[link->opened % link->buffers] = when;
    link->opened++;
}

// ---------------------------------------------------------------- all links of a stage

// If the virtual stages on both sides of a boundary are on this stage, only the sending end has memory.
int links_create(Links *links, Backend *be, const Schedule *schedule, int stage, int64_t message_bytes,
                 Comm *const *lanes, Error *err) {
    const int depth = schedule->edge_buffers;
    P2pLink *link;
    *links = (Links){.chunks = schedule->chunks, .edge_buffers = depth};
    for (int i = 0; (link = links_at(links, i)) != NULL; i++) {
        int chunk = i / (2 * P2P_WAYS), peer, theirs;
        P2pWay way = (P2pWay)(i / 2 % P2P_WAYS);
        bool sends = i % 2 == 1;
        bool above = sends == (way == P2P_FORWARD); // the other end is on g + 1, else on g - 1
        int g = schedule_virtual(schedule, stage, chunk), other = above ? g + 1 : g - 1;
        *link = (P2pLink){.be = be, .peer = -1, .chunk = chunk, .way = way, .sends = sends, .buffers = depth};
        link->bytes = message_bytes, link->boundary = above ? g : other;
        link->used = xcalloc((size_t)depth, sizeof *link->used);
        link->requests = xcalloc((size_t)depth, sizeof *link->requests);
        if (other < 0 || other == virtual_stages_(schedule)) continue;
        schedule_home(schedule, other, &peer, &theirs);
        if (peer == stage) link->end = sends ? &links->chunk[theirs].in[way] : &links->chunk[theirs].out[way];
        else link->comm = lanes[lane_of_(schedule, link->boundary, way)], link->peer = peer;
        if (peer == stage && !sends) continue;
        const char *what = sends ? "send buffers" : "receive buffers";
        link->memory = be->allocate(be, MEMORY_MESSAGES, depth * message_bytes, what, err);
        if (link->memory == NULL) return -1;
    }
    // The boundaries to other stages are connected, first the even ones, then the odd ones. With one chunk per stage,
    // no two even boundaries share a stage. All stages use the same order, so that each finds its peer at the same
    // boundary.
    for (int step = 0; step < 2 * P2P_WAYS; step++)
        for (int i = 0; (link = links_at(links, i)) != NULL; i++) {
            Comm *comm = link->comm;
            if (comm == NULL || comm->connect == NULL || link->boundary % 2 != step / P2P_WAYS) continue;
            void *memory = link->sends ? NULL : link->memory; // a receiver's, which the sender may write
            if ((int)link->way == step % P2P_WAYS &&
                comm->connect(comm, link->peer, link->sends, memory, depth * message_bytes, err) != 0)
                return -1;
        }
    return 0;
}

P2pLink *links_at(Links *links, int i) {
    ChunkLinks *chunk = &links->chunk[i / (2 * P2P_WAYS)];
    int way = i / 2 % P2P_WAYS;
    if (i >= 2 * P2P_WAYS * links->chunks) return NULL;
    return i % 2 == 0 ? &chunk->in[way] : &chunk->out[way];
}

bool links_drained(Links *links) {
    P2pLink *link;
    for (int i = 0; (link = links_at(links, i)) != NULL; i++)
        if (link->finished < link->expected) return false;
    return true;
}

void links_destroy(Links *links) {
    P2pLink *link;
    for (int i = 0; (link = links_at(links, i)) != NULL; i++) {
        backend_release(link->be, MEMORY_MESSAGES, link->memory, link->buffers * link->bytes);
        free_all(link->used, link->requests);
        memset(link, 0, sizeof *link);
    }
}

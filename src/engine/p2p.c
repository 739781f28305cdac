#include "p2p.h"

#include <string.h>

int p2p_create(P2pLink *link, Backend *be, Comm *comm, int peer, bool sends, int64_t bytes, Error *err) {
    memset(link, 0, sizeof *link);
    link->be = be;
    link->comm = comm;
    link->peer = peer;
    link->sends = sends;
    link->bytes = bytes;
    if (comm == NULL) return 0;
    link->memory =
        be->allocate(be, MEMORY_MESSAGES, P2P_BUFFERS * bytes, sends ? "send buffers" : "receive buffers", err);
    return link->memory == NULL ? -1 : 0;
}

void p2p_destroy(P2pLink *link) {
    if (link->memory != NULL) link->be->release(link->be, MEMORY_MESSAGES, link->memory, P2P_BUFFERS * link->bytes);
    memset(link, 0, sizeof *link);
}

void p2p_begin(P2pLink *link, int64_t expected) {
    link->expected = link->comm == NULL ? 0 : expected;
    link->started = link->finished = link->opened = 0;
    for (int i = 0; i < P2P_BUFFERS; i++) link->used[i] = NULL;
}

static void *buffer_(const P2pLink *link, int64_t message) {
    return (char *)link->memory + message % P2P_BUFFERS * link->bytes;
}

static bool p2p_event_done_(const P2pLink *link, int64_t message) {
    const Event *event = link->used[message % P2P_BUFFERS];
    return event == NULL || link->be->event_done(link->be, (Event *)event);
}

// A sender's message may go once written, a receiver's may come once its buffer's last message was read.
static bool may_start_(const P2pLink *link) {
    if (link->started == link->expected) return false;
    if (link->sends) return link->started < link->opened && p2p_event_done_(link, link->started);
    return link->started < link->opened + P2P_BUFFERS && p2p_event_done_(link, link->started);
}

static int p2p_start_(P2pLink *link, Error *err) {
    CommRequest *request = &link->requests[link->started % P2P_BUFFERS];
    void *buffer = buffer_(link, link->started);
    int started = link->sends ? link->comm->send(link->comm, link->peer, buffer, link->bytes, request, err)
                              : link->comm->receive(link->comm, link->peer, buffer, link->bytes, request, err);
    link->started += started == 0;
    return started;
}

int p2p_progress(P2pLink *link, Error *err) {
    while (link->finished < link->started) {
        int done = link->comm->test(link->comm, &link->requests[link->finished % P2P_BUFFERS], err);
        if (done < 0) return -1;
        if (done == 0) break;
        link->finished++;
    }
    while (link->started - link->finished < P2P_BUFFERS && may_start_(link))
        if (p2p_start_(link, err) != 0) return -1;
    return 0;
}

bool p2p_ready(const P2pLink *link) {
    if (link->comm == NULL) return true;
    return link->sends ? link->opened < link->finished + P2P_BUFFERS : link->opened < link->finished;
}

void *p2p_buffer(const P2pLink *link) {
    return link->comm == NULL ? NULL : buffer_(link, link->opened);
}

void p2p_used(P2pLink *link, const Event *when) {
    link->used[link->opened % P2P_BUFFERS] = when;
    link->opened++;
}

bool p2p_drained(const P2pLink *link) {
    return link->finished == link->expected;
}

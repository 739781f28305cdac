#include "edges.h"

#include <string.h>

int edge_create(Edge *edge, Backend *be, Comm *comm, int peer, bool sends, int64_t bytes, Error *err) {
    memset(edge, 0, sizeof *edge);
    edge->be = be;
    edge->comm = comm;
    edge->peer = peer;
    edge->sends = sends;
    edge->bytes = bytes;
    if (comm == NULL) return 0;
    edge->memory =
        be->allocate(be, MEMORY_MESSAGES, EDGE_BUFFERS * bytes, sends ? "send buffers" : "receive buffers", err);
    return edge->memory == NULL ? -1 : 0;
}

void edge_destroy(Edge *edge) {
    if (edge->memory != NULL) edge->be->release(edge->be, MEMORY_MESSAGES, edge->memory, EDGE_BUFFERS * edge->bytes);
    memset(edge, 0, sizeof *edge);
}

void edge_begin(Edge *edge, int64_t expected) {
    edge->expected = edge->comm == NULL ? 0 : expected;
    edge->started = edge->finished = edge->opened = 0;
    for (int i = 0; i < EDGE_BUFFERS; i++) edge->used[i] = NULL;
}

static void *buffer_(const Edge *edge, int64_t message) {
    return (char *)edge->memory + message % EDGE_BUFFERS * edge->bytes;
}

static bool event_done_(const Edge *edge, int64_t message) {
    const Event *event = edge->used[message % EDGE_BUFFERS];
    return event == NULL || edge->be->event_done(edge->be, (Event *)event);
}

// A sender's message may go once written, a receiver's may come once its buffer's last message was read.
static bool may_start_(const Edge *edge) {
    if (edge->started == edge->expected) return false;
    if (edge->sends) return edge->started < edge->opened && event_done_(edge, edge->started);
    return edge->started < edge->opened + EDGE_BUFFERS && event_done_(edge, edge->started);
}

static int start_(Edge *edge, Error *err) {
    CommRequest *request = &edge->requests[edge->started % EDGE_BUFFERS];
    void *buffer = buffer_(edge, edge->started);
    int started = edge->sends ? edge->comm->send(edge->comm, edge->peer, buffer, edge->bytes, request, err)
                              : edge->comm->receive(edge->comm, edge->peer, buffer, edge->bytes, request, err);
    edge->started += started == 0;
    return started;
}

int edge_progress(Edge *edge, Error *err) {
    while (edge->finished < edge->started) {
        int done = edge->comm->test(edge->comm, &edge->requests[edge->finished % EDGE_BUFFERS], err);
        if (done < 0) return -1;
        if (done == 0) break;
        edge->finished++;
    }
    while (edge->started - edge->finished < EDGE_BUFFERS && may_start_(edge))
        if (start_(edge, err) != 0) return -1;
    return 0;
}

bool edge_ready(const Edge *edge) {
    if (edge->comm == NULL) return true;
    return edge->sends ? edge->opened < edge->finished + EDGE_BUFFERS : edge->opened < edge->finished;
}

void *edge_buffer(const Edge *edge) {
    return edge->comm == NULL ? NULL : buffer_(edge, edge->opened);
}

void edge_used(Edge *edge, const Event *when) {
    edge->used[edge->opened % EDGE_BUFFERS] = when;
    edge->opened++;
}

bool edge_drained(const Edge *edge) {
    return edge->finished == edge->expected;
}

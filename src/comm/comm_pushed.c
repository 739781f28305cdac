// Announced messages (comm_pushed.h). Two kinds of mail go through the host's group, both of fixed size:
//
//   GRANT   receiver to sender: my next buffer is free, at this offset of what I lent
//   NOTICE  sender to receiver: your next message has been written (pushed), or is about to be sent (far)
//
// Every message takes one of each, so when all is done as much mail was received as sent and none is waited for.
// Between two ranks mail of both directions mixes; messages of one direction stay in order, which is why they are
// queued.
#include "comm_pushed.h"
#include "base/alloc.h"
#include "lending.h"

#include <stdlib.h>
#include <string.h>

typedef enum MailKind { MAIL_GRANT = 1, MAIL_NOTICE } MailKind;

typedef struct Mail {
    int64_t kind, offset, bytes;
} Mail;

// The steps of a message. A sender goes WAITS (for a grant), COPIES (pushed) or TRAVELS (far), MAILS; a receiver WAITS
// (for a notice), TRAVELS (far), MAILS (its grant may still be on its way).
typedef enum PushStep { PUSH_WAITS, PUSH_COPIES, PUSH_TRAVELS, PUSH_MAILS, PUSH_DONE } PushStep;

typedef struct Parcel {
    PushStep step;
    bool queued; // until it and all earlier ones are done
    void *memory;
    int64_t bytes, steps;
    Event *copied; // made when first needed, kept
    Mail mail;
    CommRequest mailed, far;
    struct Parcel *next;
} Parcel;

// One direction between this rank and a peer.
typedef struct PushWay {
    bool open;
    char *memory; // sender: what the peer lent, NULL if nothing; receiver: what was lent
    int64_t bytes;
    bool pushed;
    Parcel *first, *last;    // in the order they were started
    int64_t started, mail;   // messages; grants (sender) or notices (receiver) that came for them
    int64_t taken;           // of that mail
    int64_t *offsets, slots; // of grants not taken yet: mail i at i % slots
} PushWay;

typedef struct PushPeer {
    PushWay out, in;
    Mail inbox;
    CommRequest receiving;
} PushPeer;

typedef struct Pushed {
    Comm base;
    Backend *be;
    Comm *host, *far;
    bool owns;
    PushPeer *peers; // [size]
    Parcel *idle;
} Pushed;

static Pushed *pushed_self_(const Comm *comm) {
    return comm->self;
}

// ---------------------------------------------------------------- mail

static int mail_(Pushed *self, int peer, Parcel *parcel, MailKind kind, int64_t offset, Error *err) {
    parcel->mail = (Mail){kind, offset, parcel->bytes};
    return self->host->send(self->host, peer, &parcel->mail, sizeof parcel->mail, &parcel->mailed, err);
}

static void keep_grant_(PushWay *way, int64_t offset) {
    if (way->mail - way->taken == way->slots) {
        int64_t slots = way->slots == 0 ? 4 : 2 * way->slots, *offsets = xmalloc((size_t)slots * sizeof *offsets);
        for (int64_t i = way->taken; i < way->mail; i++) offsets[i % slots] = way->offsets[i % way->slots];
        free(way->offsets);
        way->offsets = offsets;
        way->slots = slots;
    }
    way->offsets[way->mail++ % way->slots] = offset;
}

static int64_t missing_(const PushWay *way) {
    return way->started > way->mail ? way->started - way->mail : 0;
}

// Takes the mail that has come from this peer; listens only while some is missing, so that nothing is listened for at
// the end.
static int read_mail_(Pushed *self, int number, Error *err) {
    PushPeer *peer = &self->peers[number];
    Comm *host = self->host;
    for (;;) {
        if (!peer->receiving.active) {
            if (missing_(&peer->out) + missing_(&peer->in) == 0) return 0;
            if (host->receive(host, number, &peer->inbox, sizeof peer->inbox, &peer->receiving, err) != 0) return -1;
        }
        int come = host->test(host, &peer->receiving, err);
        if (come <= 0) return come;
        if (peer->inbox.kind == MAIL_GRANT)
            keep_grant_(&peer->out, peer->inbox.offset);
        else
            peer->in.mail++;
    }
}

// ---------------------------------------------------------------- messages

// Returns 1: advanced, 0: not yet, -1 with err.
static int advance_send_(Pushed *self, int peer, PushWay *way, Parcel *parcel, Error *err) {
    Backend *be = self->be;
    Comm *far = self->far;
    if (parcel->step == PUSH_WAITS) {
        if (way->taken == way->mail) return 0;
        int64_t offset = way->offsets[way->taken++ % way->slots];
        if (way->pushed) {
            be->copy(be, STREAM_MESSAGES, way->memory + offset, parcel->memory, parcel->bytes);
            be->event_record(be, parcel->copied, STREAM_MESSAGES);
            parcel->step = PUSH_COPIES;
            return 1;
        }
        parcel->step = PUSH_TRAVELS;
        if (mail_(self, peer, parcel, MAIL_NOTICE, 0, err) != 0) return -1;
        return far->send(far, peer, parcel->memory, parcel->bytes, &parcel->far, err) == 0 ? 1 : -1;
    }
    if (parcel->step == PUSH_COPIES) {
        if (!be->event_done(be, parcel->copied)) return 0;
        if (be->check != NULL && be->check(be, err) != 0) return -1; // nothing was copied
        parcel->step = PUSH_MAILS;
        return mail_(self, peer, parcel, MAIL_NOTICE, 0, err) == 0 ? 1 : -1;
    }
    Comm *comm = parcel->step == PUSH_TRAVELS ? far : self->host;
    int done = comm->test(comm, parcel->step == PUSH_TRAVELS ? &parcel->far : &parcel->mailed, err);
    if (done > 0) parcel->step++;
    return done;
}

static int advance_receive_(Pushed *self, int peer, PushWay *way, Parcel *parcel, Error *err) {
    Comm *far = self->far;
    if (parcel->step == PUSH_WAITS) {
        if (way->taken == way->mail) return 0;
        way->taken++;
        parcel->step = way->pushed ? PUSH_MAILS : PUSH_TRAVELS;
        if (way->pushed) return 1;
        return far->receive(far, peer, parcel->memory, parcel->bytes, &parcel->far, err) == 0 ? 1 : -1;
    }
    Comm *comm = parcel->step == PUSH_TRAVELS ? far : self->host;
    int done = comm->test(comm, parcel->step == PUSH_TRAVELS ? &parcel->far : &parcel->mailed, err);
    if (done > 0) parcel->step++;
    return done;
}

// Advances the messages of one direction in order: if one lacks mail, so do those after it.
static int advance_way_(Pushed *self, int peer, PushWay *way, bool sends, Error *err) {
    for (Parcel *parcel = way->first; parcel != NULL; parcel = parcel->next) {
        int moved = 1;
        while (moved == 1 && parcel->step != PUSH_DONE) {
            moved =
                sends ? advance_send_(self, peer, way, parcel, err) : advance_receive_(self, peer, way, parcel, err);
            parcel->steps += moved == 1;
        }
        if (moved < 0) return -1;
    }
    while (way->first != NULL && way->first->step == PUSH_DONE) {
        way->first->queued = false;
        way->first = way->first->next;
    }
    if (way->first == NULL) way->last = NULL;
    return 0;
}

static Parcel *take_parcel_(Pushed *self, void *memory, int64_t bytes) {
    Parcel *parcel = self->idle;
    if (parcel == NULL) {
        parcel = xcalloc(1, sizeof *parcel);
        parcel->copied = self->be->event_create(self->be);
    } else {
        self->idle = parcel->next;
    }
    *parcel = (Parcel){.memory = memory, .bytes = bytes, .copied = parcel->copied};
    return parcel;
}

static int pushed_start_(Pushed *self, int peer, PushWay *way, Parcel *parcel, CommRequest *request, Error *err) {
    if (!way->open)
        return error_set(err, EXIT_FAILED, "%s group, rank %d of %d: no way to or from rank %d was prepared",
                         self->base.name, self->base.rank, self->base.size, peer);
    if (way->last != NULL) way->last->next = parcel;
    if (way->first == NULL) way->first = parcel;
    way->last = parcel;
    parcel->queued = true;
    way->started++;
    memset(request, 0, sizeof *request);
    request->handle[0] = parcel;
    request->detail[0] = peer;
    request->active = true;
    return 0;
}

static int pushed_send_(Comm *comm, int peer, const void *from, int64_t bytes, CommRequest *request, Error *err) {
    Pushed *self = pushed_self_(comm);
    Parcel *parcel = take_parcel_(self, (void *)from, bytes);
    return pushed_start_(self, peer, &self->peers[peer].out, parcel, request, err);
}

static int pushed_receive_(Comm *comm, int peer, void *to, int64_t bytes, CommRequest *request, Error *err) {
    Pushed *self = pushed_self_(comm);
    PushWay *way = &self->peers[peer].in;
    Parcel *parcel = take_parcel_(self, to, bytes);
    int64_t offset = way->pushed ? (char *)to - way->memory : 0;
    if (way->pushed && (offset < 0 || offset + bytes > way->bytes))
        return error_set(err, EXIT_FAILED, "%s group, rank %d of %d: a receive outside of what was lent to rank %d",
                         comm->name, comm->rank, comm->size, peer);
    if (pushed_start_(self, peer, way, parcel, request, err) != 0) return -1;
    return mail_(self, peer, parcel, MAIL_GRANT, offset, err);
}

static int pushed_test_(Comm *comm, CommRequest *request, Error *err) {
    Pushed *self = pushed_self_(comm);
    if (!request->active) return 1;
    Parcel *parcel = request->handle[0];
    int number = (int)request->detail[0];
    PushPeer *peer = &self->peers[number];
    if (read_mail_(self, number, err) != 0) return -1;
    if (advance_way_(self, number, &peer->out, true, err) != 0) return -1;
    if (advance_way_(self, number, &peer->in, false, err) != 0) return -1;
    request->steps = parcel->steps;
    if (parcel->queued) return 0;
    request->active = false;
    parcel->next = self->idle;
    self->idle = parcel;
    return 1;
}

// ---------------------------------------------------------------- life

static int connect_pushed_(Pushed *self, int peer, PushWay *way, bool sends, void *memory, int64_t bytes, Error *err) {
    char why[256];
    void *borrowed = NULL;
    if (!sends) {
        way->memory = memory;
        return lending_lend(self->be, memory, bytes, self->host, peer, &way->pushed, err);
    }
    if (lending_borrow(self->be, bytes, self->host, peer, &borrowed, why, err) != 0) return -1;
    way->memory = borrowed;
    way->pushed = borrowed != NULL;
    return 0;
}

static int pushed_connect_(Comm *comm, int peer, bool sends, void *memory, int64_t bytes, Error *err) {
    Pushed *self = pushed_self_(comm);
    PushWay *way = sends ? &self->peers[peer].out : &self->peers[peer].in;
    way->open = true;
    way->bytes = bytes;
    if (connect_pushed_(self, peer, way, sends, memory, bytes, err) != 0) return -1;
    if (way->pushed || self->far->connect == NULL) return 0;
    return self->far->connect(self->far, peer, sends, memory, bytes, err);
}

static void pushed_destroy_(Comm *comm) {
    Pushed *self = pushed_self_(comm);
    for (int i = 0; i < comm->size; i++) {
        PushWay *out = &self->peers[i].out;
        if (out->pushed) self->be->give_back(self->be, out->memory, out->bytes);
        free(out->offsets);
    }
    for (Parcel *parcel = self->idle, *next; parcel != NULL; parcel = next) {
        next = parcel->next;
        self->be->event_destroy(self->be, parcel->copied);
        free(parcel);
    }
    self->far->destroy(self->far);
    if (self->owns) self->host->destroy(self->host);
    free(self->peers);
    free(self);
}

Comm *comm_pushed_create(Backend *be, Comm *host, Comm *far, bool owns) {
    Pushed *self = xcalloc(1, sizeof *self);
    Comm *comm = &self->base;
    memcpy(comm->name, host->name, sizeof comm->name);
    comm->rank = host->rank;
    comm->size = host->size;
    comm->self = self;
    comm->connect = pushed_connect_;
    comm->send = pushed_send_;
    comm->receive = pushed_receive_;
    comm->test = pushed_test_;
    comm->destroy = pushed_destroy_;
    self->be = be;
    self->host = host;
    self->far = far;
    self->owns = owns;
    self->peers = xcalloc((size_t)host->size, sizeof *self->peers);
    return comm;
}

void comm_pushed_ways(const Comm *comm, int *pushed, int *through_far) {
    const Pushed *self = pushed_self_(comm);
    *pushed = *through_far = 0;
    for (int i = 0; i < comm->size; i++) {
        const PushWay *ways[] = {&self->peers[i].out, &self->peers[i].in};
        for (int w = 0; w < 2; w++) {
            *pushed += ways[w]->open && ways[w]->pushed;
            *through_far += ways[w]->open && !ways[w]->pushed;
        }
    }
}

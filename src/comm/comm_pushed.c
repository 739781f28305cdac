// Announced messages (comm_pushed.h). One end of a message *grants*, the other end *moves* the bytes. An end that lends
// its memory grants; if no memory is lent, the receiver grants. The ends exchange two kinds of control message (mail),
// of fixed size, through the host's group:
//
//   GRANT   my end of the next message is ready, at this offset of the memory that I lent: free to be written, or
//           written and ready to be read
//   NOTICE  the bytes have been moved (direct), or are about to be sent (far)
//
//   pushed: the receiver lends      pulled: the sender lends       far: nothing is lent
//
//   sender          receiver        sender          receiver       sender          receiver
//     <---- GRANT -----               ---- GRANT ----->              <---- GRANT -----
//   copies                                          copies           ---- NOTICE ---->
//     ----- NOTICE --->               <--- NOTICE -----            sends ===far===> receives
//
// For BPipe the acceptor lends its slots for both directions. A bundle is pushed when it is evicted (E, A) and pulled
// when it is loaded (R, L), so the evictor makes all copies and the acceptor's device does nothing.
//
// Every message takes one mail in each direction. At the end every mail that was sent has been received, so no receive
// stays posted. Between two ranks, mail about both directions arrives interleaved. The messages of one direction stay
// in order, so each direction has a queue. Mail may arrive before its message is started here.
#include "comm_pushed.h"
#include "base/alloc.h"
#include "lending.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

// A granting end receives only notices, and a moving end receives only grants. So mail does not name its kind.
typedef struct Mail {
    int64_t of_sender; // 1: the mail's sender also sends the message; 0: it receives the message
    int64_t offset;    // grant: offset of the message in the lent memory; notice: 0
} Mail;

// The steps of a message. The sender WAITS for a grant, COPIES (direct) or TRAVELS (far), then MAILS its notice. The
// receiver WAITS for a notice, TRAVELS (far), then MAILS its grant.
typedef enum PushStep { PUSH_WAITS, PUSH_COPIES, PUSH_TRAVELS, PUSH_MAILS, PUSH_DONE } PushStep;

typedef struct Parcel {
    bool started; // this rank has posted it
    bool come;    // its mail has arrived, with this offset
    bool arrived; // this message and all earlier messages of its direction are done
    int64_t offset;
    PushStep step;
    void *memory;
    int64_t bytes, steps;
    Event *copied; // event after the copy; NULL: not copied by this rank
    Mail mail;
    CommRequest mailed, far;
    struct Parcel *next;
} Parcel;

// One direction between this rank and a peer.
typedef struct PushWay {
    bool open, sends;
    bool lends;   // this end passed memory to `connect`
    bool direct;  // one end has mapped the memory of the other; else messages go through `far`
    bool mapped;  // `memory` is the peer's; this direction mapped it and must give it back
    bool grants;  // this end grants, the other end copies or sends
    char *memory; // memory lent by either end
    int64_t bytes;
    Parcel *first; // the messages that are started or announced, in order
} PushWay;

typedef struct PushPeer {
    PushWay out, in;
    Mail inbox;
    CommRequest receiving;
} PushPeer;

typedef struct Pushed {
    Comm base;
    Backend *be;
    Stream stream;
    Comm *host, *far;
    PushPeer *peers; // [size]
    char why[256];
} Pushed;

// ---------------------------------------------------------------- mail

static int mail_(Pushed *self, int peer, const PushWay *way, Parcel *parcel, int64_t offset, Error *err) {
    parcel->mail = (Mail){way->sends, offset};
    return comm_send(self->host, peer, &parcel->mail, sizeof parcel->mail, &parcel->mailed, err);
}

// Returns the first message of a direction that this rank has not started (`starts`), or whose mail has not come
// (otherwise). Adds a message if there is none.
static Parcel *next_(PushWay *way, bool starts) {
    Parcel **link = &way->first;
    while (*link != NULL && (starts ? (*link)->started : (*link)->come)) link = &(*link)->next;
    if (*link == NULL) *link = xcalloc(1, sizeof **link);
    return *link;
}

static bool lacks_mail_(const PushWay *way) {
    const Parcel *parcel = way->first;
    while (parcel != NULL && parcel->come) parcel = parcel->next;
    return parcel != NULL;
}

// Receives the mail that has arrived from this peer. Posts a receive only while a message lacks its mail, so that no
// receive stays posted at shutdown.
static int read_mail_(Pushed *self, int number, Error *err) {
    PushPeer *peer = &self->peers[number];
    Comm *host = self->host;
    for (;;) {
        if (!peer->receiving.active) {
            if (!lacks_mail_(&peer->out) && !lacks_mail_(&peer->in)) return 0;
            if (comm_receive(host, number, &peer->inbox, sizeof peer->inbox, &peer->receiving, err) != 0) return -1;
        }
        int come = host->test(host, &peer->receiving, err);
        if (come <= 0) return come;
        Parcel *parcel = next_(peer->inbox.of_sender ? &peer->in : &peer->out, false);
        parcel->come = true;
        parcel->offset = peer->inbox.offset;
    }
}

// ---------------------------------------------------------------- messages

// Advances a message by one step. Returns 1 if it advanced, 0 if it cannot advance yet, -1 with err.
static int push_advance_(Pushed *self, int peer, PushWay *way, Parcel *parcel, Error *err) {
    Backend *be = self->be;
    if (parcel->step == PUSH_WAITS) {
        if (!parcel->started || !parcel->come) return 0;
        if (way->direct && way->grants) { // the notice: the other end has copied
            parcel->step = PUSH_MAILS;
        } else if (way->direct) { // the grant: copy
            char *there = way->memory + parcel->offset;
            be->copy(be, self->stream, way->sends ? there : parcel->memory, way->sends ? parcel->memory : there,
                     parcel->bytes);
            parcel->copied = be->event_create(be);
            be->event_record(be, parcel->copied, self->stream);
            parcel->step = PUSH_COPIES;
        } else if (way->grants) { // the notice: the bytes are on their way
            parcel->step = PUSH_TRAVELS;
            if (comm_receive(self->far, peer, parcel->memory, parcel->bytes, &parcel->far, err) != 0) return -1;
        } else { // the grant: announce the bytes and send them
            parcel->step = PUSH_TRAVELS;
            if (mail_(self, peer, way, parcel, 0, err) != 0) return -1;
            if (comm_send(self->far, peer, parcel->memory, parcel->bytes, &parcel->far, err) != 0) return -1;
        }
        return 1;
    }
    if (parcel->step == PUSH_COPIES) {
        if (!be->event_done(be, parcel->copied)) return 0;
        if (be->check != NULL && be->check(be, err) != 0) return -1; // the device failed, so nothing was copied
        parcel->step = PUSH_MAILS;
        return mail_(self, peer, way, parcel, 0, err) == 0 ? 1 : -1;
    }
    Comm *comm = parcel->step == PUSH_TRAVELS ? self->far : self->host;
    int done = comm->test(comm, parcel->step == PUSH_TRAVELS ? &parcel->far : &parcel->mailed, err);
    if (done > 0) parcel->step++;
    return done;
}

// Advances the messages of one direction in order. If a message lacks mail, so do all later messages.
static int advance_way_(Pushed *self, int peer, PushWay *way, Error *err) {
    for (Parcel *parcel = way->first; parcel != NULL; parcel = parcel->next) {
        int moved = 1;
        while (moved == 1 && parcel->step != PUSH_DONE) {
            moved = push_advance_(self, peer, way, parcel, err);
            parcel->steps += moved == 1;
        }
        if (moved < 0) return -1;
    }
    while (way->first != NULL && way->first->step == PUSH_DONE) {
        way->first->arrived = true;
        way->first = way->first->next;
    }
    return 0;
}

static int pushed_message_(Comm *base, bool sends, int peer, void *memory, int64_t bytes, CommRequest *request,
                           Error *err) {
    Pushed *self = base->self;
    PushWay *way = sends ? &self->peers[peer].out : &self->peers[peer].in;
    bool lent = way->direct && way->grants;
    int64_t offset = lent ? (char *)memory - way->memory : 0;
    assert(way->open && (!lent || (offset >= 0 && offset + bytes <= way->bytes)));
    Parcel *parcel = next_(way, true);
    parcel->started = true;
    parcel->memory = memory;
    parcel->bytes = bytes;
    *request = (CommRequest){.handle = {parcel}, .detail = {peer}, .active = true};
    return way->grants ? mail_(self, peer, way, parcel, offset, err) : 0;
}

static int pushed_test_(Comm *comm, CommRequest *request, Error *err) {
    Pushed *self = comm->self;
    if (!request->active) return 1;
    Parcel *parcel = request->handle[0];
    int number = (int)request->detail[0];
    PushPeer *peer = &self->peers[number];
    if (read_mail_(self, number, err) != 0) return -1;
    if (advance_way_(self, number, &peer->out, err) != 0) return -1;
    if (advance_way_(self, number, &peer->in, err) != 0) return -1;
    request->steps = parcel->steps;
    if (!parcel->arrived) return 0;
    request->active = false;
    if (parcel->copied != NULL) self->be->event_destroy(self->be, parcel->copied);
    free(parcel);
    return 1;
}

// ---------------------------------------------------------------- life

// Lends `memory`, or maps the peer's memory. An end that lends for both directions lends the same memory, so both ends
// reuse the first direction's mapping.
static int pushed_connect_(Comm *comm, int peer, bool sends, void *memory, int64_t bytes, Error *err) {
    Pushed *self = comm->self;
    PushPeer *at = &self->peers[peer];
    PushWay *way = sends ? &at->out : &at->in;
    const PushWay *other = sends ? &at->in : &at->out;
    void *borrowed = NULL;
    way->sends = sends;
    way->lends = memory != NULL;
    way->bytes = bytes;
    if (bytes > 0 && other->open && other->lends == way->lends && other->bytes == bytes) {
        way->memory = other->memory;
        way->direct = other->direct;
    } else if (bytes > 0 && way->lends) {
        way->memory = memory;
        if (lending_lend(self->be, memory, bytes, self->host, peer, &way->direct, err) != 0) return -1;
    } else if (bytes > 0) {
        if (lending_borrow(self->be, bytes, self->host, peer, &borrowed, self->why, err) != 0) return -1;
        way->memory = borrowed;
        way->direct = way->mapped = borrowed != NULL;
    }
    way->open = true;
    way->grants = way->direct ? way->lends : !sends;
    if (way->direct || self->far->connect == NULL) return 0;
    return self->far->connect(self->far, peer, sends, memory, bytes, err);
}

static void pushed_destroy_(Comm *comm) {
    Pushed *self = comm->self;
    for (int i = 0; i < 2 * comm->size; i++) {
        PushWay *way = i % 2 == 0 ? &self->peers[i / 2].out : &self->peers[i / 2].in;
        if (way->mapped) self->be->give_back(self->be, way->memory, way->bytes);
    }
    self->far->destroy(self->far);
    self->host->destroy(self->host);
    free_all(self->peers, self);
}

Comm *comm_pushed_create(Backend *be, Stream stream, Comm *host, Comm *far) {
    Pushed *self = xcalloc(1, sizeof *self);
    *self = (Pushed){.be = be, .stream = stream, .host = host, .far = far};
    Comm *comm = &self->base;
    memcpy(comm->name, host->name, sizeof comm->name);
    comm->rank = host->rank;
    comm->size = host->size;
    comm->self = self;
    comm->connect = pushed_connect_;
    comm->message = pushed_message_;
    comm->test = pushed_test_;
    comm->destroy = pushed_destroy_;
    self->peers = xcalloc((size_t)host->size, sizeof *self->peers);
    return comm;
}

void comm_pushed_ways(const Comm *comm, int *direct, int *through_far) {
    const Pushed *self = comm->self;
    *direct = *through_far = 0;
    for (int i = 0; i < 2 * comm->size; i++) {
        const PushWay *way = i % 2 == 0 ? &self->peers[i / 2].out : &self->peers[i / 2].in;
        *direct += way->open && way->direct;
        *through_far += way->open && !way->direct;
    }
}

const char *comm_pushed_why(const Comm *comm) { return ((const Pushed *)comm->self)->why; }

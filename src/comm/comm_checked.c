#include "comm_checked.h"
#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

// One message under way, and its checksum. Requests must not move while active, so flights live apart and are used again.
typedef struct Flight {
    CommRequest data, sum;
    bool checked, receives; // not checked: of a collective
    void *memory;           // received into
    int64_t bytes;
    uint64_t crc;               // as sent
    struct Flight *next, *made; // of the idle ones, of all
} Flight;

typedef struct Checked {
    Comm *data, *sums;
    bool owns;
    Checksum *checksum;
    Flight *idle, *all;
} Checked;

static Checked *checked_self_(Comm *comm) {
    return (Checked *)comm->self;
}

static Flight *checked_take_(Checked *self) {
    Flight *flight = self->idle;
    if (flight != NULL) {
        self->idle = flight->next;
        Flight *made = flight->made;
        memset(flight, 0, sizeof *flight);
        flight->made = made;
        return flight;
    }
    flight = xcalloc(1, sizeof *flight);
    flight->made = self->all;
    return self->all = flight;
}

static void put_back_(Checked *self, Flight *flight) {
    flight->next = self->idle;
    self->idle = flight;
}

// The request stands for the flight that was started, or was not.
static int checked_started_(Checked *self, Flight *flight, int status, CommRequest *request) {
    memset(request, 0, sizeof *request);
    request->handle[0] = flight;
    request->active = status == 0;
    if (status != 0) put_back_(self, flight);
    return status;
}

static int checked_send_(Comm *comm, int peer, const void *from, int64_t bytes, CommRequest *request, Error *err) {
    Checked *self = checked_self_(comm);
    Flight *flight = checked_take_(self);
    flight->checked = true;
    flight->crc = checksum_of(self->checksum, from, bytes);
    int status = self->data->send(self->data, peer, from, bytes, &flight->data, err);
    if (status == 0) status = self->sums->send(self->sums, peer, &flight->crc, sizeof flight->crc, &flight->sum, err);
    return checked_started_(self, flight, status, request);
}

static int checked_receive_(Comm *comm, int peer, void *to, int64_t bytes, CommRequest *request, Error *err) {
    Checked *self = checked_self_(comm);
    Flight *flight = checked_take_(self);
    flight->checked = flight->receives = true;
    flight->memory = to;
    flight->bytes = bytes;
    int status = self->data->receive(self->data, peer, to, bytes, &flight->data, err);
    if (status == 0)
        status = self->sums->receive(self->sums, peer, &flight->crc, sizeof flight->crc, &flight->sum, err);
    return checked_started_(self, flight, status, request);
}

static int checked_all_reduce_(Comm *comm, void *data, int64_t count, CommType type, CommRequest *request, Error *err) {
    Checked *self = checked_self_(comm);
    Flight *flight = checked_take_(self);
    int status = self->data->all_reduce(self->data, data, count, type, &flight->data, err);
    return checked_started_(self, flight, status, request);
}

static int checked_all_gather_(Comm *comm, void *out, const void *in, int64_t count, CommType type,
                               CommRequest *request, Error *err) {
    Checked *self = checked_self_(comm);
    Flight *flight = checked_take_(self);
    int status = self->data->all_gather(self->data, out, in, count, type, &flight->data, err);
    return checked_started_(self, flight, status, request);
}

static int checked_reduce_scatter_(Comm *comm, void *out, const void *in, int64_t count, CommType type,
                                   CommRequest *request, Error *err) {
    Checked *self = checked_self_(comm);
    Flight *flight = checked_take_(self);
    int status = self->data->reduce_scatter(self->data, out, in, count, type, &flight->data, err);
    return checked_started_(self, flight, status, request);
}

static int checked_test_(Comm *comm, CommRequest *request, Error *err) {
    Checked *self = checked_self_(comm);
    if (!request->active) return 1;
    Flight *flight = (Flight *)request->handle[0];
    int done = self->data->test(self->data, &flight->data, err);
    if (done > 0 && flight->checked) done = self->sums->test(self->sums, &flight->sum, err);
    request->steps = flight->data.steps + flight->sum.steps;
    if (done == 0) return 0;
    if (done > 0 && flight->receives &&
        checksum_compare(flight->crc, checksum_of(self->checksum, flight->memory, flight->bytes), err) != 0)
        done = -1;
    request->active = false;
    put_back_(self, flight);
    return done;
}

static void checked_destroy_(Comm *comm) {
    Checked *self = checked_self_(comm);
    if (self->owns) self->data->destroy(self->data);
    for (Flight *flight = self->all, *made; flight != NULL; flight = made) {
        made = flight->made;
        free(flight);
    }
    free(self);
    free(comm);
}

Comm *comm_checked_create(Comm *data, bool owns, Comm *sums, Checksum *checksum, Error *err) {
    Comm *comm = xcalloc(1, sizeof *comm);
    Checked *self = xcalloc(1, sizeof *self);
    if (comm == NULL || self == NULL) {
        free(comm);
        free(self);
        error_set(err, EXIT_FAILED, "out of memory making the %s group", data->name);
        if (owns) data->destroy(data);
        return NULL;
    }
    *self = (Checked){data, sums, owns, checksum, NULL, NULL};
    memcpy(comm->name, data->name, sizeof comm->name);
    comm->rank = data->rank;
    comm->size = data->size;
    comm->self = self;
    comm->send = checked_send_;
    comm->receive = checked_receive_;
    comm->all_reduce = checked_all_reduce_;
    comm->all_gather = checked_all_gather_;
    comm->reduce_scatter = checked_reduce_scatter_;
    comm->test = checked_test_;
    comm->destroy = checked_destroy_;
    return comm;
}

// Checks the messages, gathers and sums of another group. If its collectives are messages of our own (MPI), each
// message is checked on arrival; a library's collectives (NCCL) can only be checked by their inputs and outputs.
//
//   message   data, then 8 bytes of checksum through the group `sums`; the receiver compares when both have arrived
//   gather    data; then every rank gathers the checksums of all parts and compares each part with its checksum
//   sum       data; then every rank gathers the checksums of all results, which have to be equal
//
// A message's checksum is computed when the message starts, so its data must be complete, as for any message. A
// library's collective is only queued on the device. Its checksums are computed after an event that follows it; the
// caller lets other messages progress until then.
#include "comm_checked.h"
#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

typedef enum FlightKind { FLIGHT_SEND, FLIGHT_RECEIVE, FLIGHT_GATHER, FLIGHT_SUM, FLIGHT_PLAIN } FlightKind;

// One message or collective in progress, and its checksum. Requests must not move while active, so flights are
// allocated one by one and reused.
typedef struct Flight {
    CommRequest data, sum;
    FlightKind kind;
    void *memory;               // data of a message; all ranks' parts of a gather; result of a sum
    const void *own;            // this rank's part of a gather, or the sum
    int64_t bytes;              // size of the message, of one part, or of the sum
    bool on_host;               // `memory` is the host's: collectives of doubles (comm.h)
    uint64_t crc;               // checksum of the message as sent, or of our part
    Event *written;             // event after the collective, recorded on compute
    bool marked;                // `written` is recorded
    bool gathers;               // the data have arrived; the gather of all ranks' checksums has started
    double *all;                // (size): checksums of all ranks, each stored as the bits of a double
    struct Flight *next, *made; // next in the list of idle flights; next in the list of all flights
} Flight;

typedef struct Checked {
    Comm *data, *sums;
    bool owns;
    bool exact; // `data` checks its collectives itself
    Checksum *checksum;
    Flight *idle, *all;
} Checked;

static Checked *checked_self_(Comm *comm) { return (Checked *)comm->self; }

// Returns an idle flight with its allocations, or a new one.
static Flight *checked_take_(Checked *self, FlightKind kind, void *memory, const void *own, int64_t bytes) {
    Flight *flight = self->idle;
    if (flight != NULL) {
        self->idle = flight->next;
    } else {
        flight = xcalloc(1, sizeof *flight);
        flight->made = self->all;
        self->all = flight;
    }
    *flight = (Flight){.kind = kind,
                       .memory = memory,
                       .own = own,
                       .bytes = bytes,
                       .made = flight->made,
                       .all = flight->all,
                       .written = flight->written};
    return flight;
}

static void put_back_(Checked *self, Flight *flight) {
    flight->next = self->idle;
    self->idle = flight;
}

// Makes the request refer to the flight, or makes the flight idle if its start failed. Returns `status`.
static int checked_started_(Checked *self, Flight *flight, int status, CommRequest *request) {
    *request = (CommRequest){.handle = {flight}, .active = status == 0};
    if (status != 0) put_back_(self, flight);
    return status;
}

// Returns the checksum of the flight's bytes at `memory`, which is host memory in a collective of doubles.
static uint64_t checked_crc_(const Checked *self, const Flight *flight, const void *memory) {
    const Crc64 *crc = checksum_crc(self->checksum);
    if (flight->on_host) return crc64_finish(crc, crc64_add(crc, 0, memory, (size_t)flight->bytes), flight->bytes);
    return checksum_of(self->checksum, memory, flight->bytes);
}

static int checked_connect_(Comm *comm, int peer, bool sends, void *memory, int64_t bytes, Error *err) {
    Comm *data = checked_self_(comm)->data;
    return data->connect == NULL ? 0 : data->connect(data, peer, sends, memory, bytes, err);
}

static int checked_message_(Comm *comm, bool sends, int peer, void *memory, int64_t bytes, CommRequest *request,
                            Error *err) {
    Checked *self = checked_self_(comm);
    Comm *data = self->data, *sums = self->sums;
    Flight *flight = checked_take_(self, sends ? FLIGHT_SEND : FLIGHT_RECEIVE, memory, memory, bytes);
    if (sends) flight->crc = checksum_of(self->checksum, memory, bytes);
    int status = data->message(data, sends, peer, memory, bytes, &flight->data, err);
    if (status == 0) status = sums->message(sums, sends, peer, &flight->crc, sizeof flight->crc, &flight->sum, err);
    return checked_started_(self, flight, status, request);
}

static int checked_collective_(Comm *comm, CommOperation operation, void *out, const void *in, int64_t count,
                               CommType type, CommRequest *request, Error *err) {
    Checked *self = checked_self_(comm);
    FlightKind kind = operation == COMM_ALL_GATHER ? FLIGHT_GATHER : FLIGHT_SUM;
    if (self->exact || operation == COMM_REDUCE_SCATTER) kind = FLIGHT_PLAIN;
    Flight *flight = checked_take_(self, kind, out, in, count * comm_type_bytes(type));
    flight->on_host = type == COMM_DOUBLE;
    int status = self->data->collective(self->data, operation, out, in, count, type, &flight->data, err);
    return checked_started_(self, flight, status, request);
}

// --- collectives: all ranks exchange the checksums of their parts

static bool collects_(const Flight *flight) { return flight->kind == FLIGHT_GATHER || flight->kind == FLIGHT_SUM; }

// Returns whether the device has completed the collective: the compute stream, which waits for it, has passed an event.
static bool written_(const Checked *self, Flight *flight) {
    Backend *be = checksum_backend(self->checksum);
    if (flight->on_host) return true;
    if (flight->written == NULL) flight->written = be->event_create(be);
    if (!flight->marked) be->event_record(be, flight->written, STREAM_COMPUTE);
    flight->marked = true;
    return be->event_done(be, flight->written);
}

// Starts the exchange of checksums. Returns 1 once it has started, 0 while the data are incomplete, -1 with err.
static int exchange_(Comm *comm, Flight *flight, Error *err) {
    Checked *self = checked_self_(comm);
    if (flight->gathers) return 1;
    if (!written_(self, flight)) return 0;
    if (flight->all == NULL) flight->all = xcalloc((size_t)comm->size, sizeof *flight->all);
    flight->crc = checked_crc_(self, flight, flight->own);
    double *own = flight->all + comm->rank;
    memcpy(own, &flight->crc, sizeof *own);
    flight->gathers = true;
    Comm *sums = self->sums;
    return sums->collective(sums, COMM_ALL_GATHER, flight->all, own, 1, COMM_DOUBLE, &flight->sum, err) == 0 ? 1 : -1;
}

// Compares each part of a gather with the checksum of the rank it came from. For a sum, checks that every rank has the
// same bits; this cannot tell whether every rank's addend was included.
static int compare_collected_(Comm *comm, const Flight *flight, Error *err) {
    Checked *self = checked_self_(comm);
    bool gather = flight->kind == FLIGHT_GATHER;
    for (int q = 0; q < comm->size; q++) {
        uint64_t theirs, here = flight->crc;
        Error differs = {0};
        memcpy(&theirs, flight->all + q, sizeof theirs);
        if (gather) here = checked_crc_(self, flight, (char *)flight->memory + q * flight->bytes);
        if (checksum_compare(theirs, here, &differs) == 0) continue;
        return error_set(err, differs.code,
                         gather ? "the part of a gather from rank %d to rank %d of the %s group: %s"
                                : "a sum differs between rank %d and rank %d of the %s group: %s",
                         q, comm->rank, comm->name, differs.text);
    }
    return 0;
}

static int compare_(Comm *comm, const Flight *flight, Error *err) {
    Checked *self = checked_self_(comm);
    if (collects_(flight)) return compare_collected_(comm, flight, err);
    if (flight->kind != FLIGHT_RECEIVE) return 0;
    return checksum_compare(flight->crc, checksum_of(self->checksum, flight->memory, flight->bytes), err);
}

static int checked_test_(Comm *comm, CommRequest *request, Error *err) {
    Checked *self = checked_self_(comm);
    if (!request->active) return 1;
    Flight *flight = (Flight *)request->handle[0];
    int done = self->data->test(self->data, &flight->data, err);
    if (done > 0 && collects_(flight)) done = exchange_(comm, flight, err);
    if (done > 0 && flight->kind != FLIGHT_PLAIN) done = self->sums->test(self->sums, &flight->sum, err);
    request->steps = flight->data.steps + flight->sum.steps + flight->gathers;
    if (done == 0) return 0;
    if (done > 0 && compare_(comm, flight, err) != 0) done = -1;
    request->active = false;
    put_back_(self, flight);
    return done;
}

static void checked_use_workspace_(Comm *comm, void *memory, int64_t bytes, int sums) {
    Checked *self = checked_self_(comm);
    self->data->use_workspace(self->data, memory, bytes, sums);
}

static int checked_use_memory_(Comm *comm, const CommMemory *memory, Error *err) {
    Checked *self = checked_self_(comm);
    int used = self->data->use_memory(self->data, memory, err);
    memcpy(comm->why, self->data->why, sizeof comm->why);
    return used;
}

static void checked_destroy_(Comm *comm) {
    Checked *self = checked_self_(comm);
    Backend *be = checksum_backend(self->checksum);
    if (self->owns) self->data->destroy(self->data);
    for (Flight *flight = self->all, *made; flight != NULL; flight = made) {
        made = flight->made;
        free(flight->all);
        if (flight->written != NULL) be->event_destroy(be, flight->written);
        free(flight);
    }
    free_all(self, comm);
}

Comm *comm_checked_create(Comm *data, bool owns, Comm *sums, Checksum *checksum) {
    Comm *comm = xcalloc(1, sizeof *comm);
    Checked *self = xcalloc(1, sizeof *self);
    *self = (Checked){data, sums, owns, data->use_checksums != NULL, checksum, NULL, NULL};
    if (self->exact) data->use_checksums(data, checksum_crc(checksum));
    memcpy(comm->name, data->name, sizeof comm->name);
    comm->rank = data->rank;
    comm->size = data->size;
    comm->self = self;
    comm->connect = checked_connect_;
    comm->message = checked_message_;
    comm->collective = checked_collective_;
    if (data->use_workspace != NULL) comm->use_workspace = checked_use_workspace_;
    if (data->use_memory != NULL) comm->use_memory = checked_use_memory_;
    comm->test = checked_test_;
    comm->destroy = checked_destroy_;
    return comm;
}

// A group of one rank: a sum is the data itself, and there is no peer to send to.
#include "comm.h"
#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

static int self_message_(Comm *comm, bool sends, int peer, void *memory, int64_t bytes, CommRequest *request,
                         Error *err) {
    (void)sends, (void)memory, (void)bytes, (void)request;
    return error_set(err, EXIT_FAILED, "the %s group has one rank; there is no rank %d to exchange messages with",
                     comm->name, peer);
}

static int self_collective_(Comm *comm, CommOperation operation, int root, void *out, const void *in, int64_t count,
                            CommType type, CommRequest *request, Error *err) {
    (void)comm, (void)operation, (void)root, (void)err;
    if (out != in && count > 0) memcpy(out, in, (size_t)(count * comm_type_bytes(type)));
    *request = (CommRequest){0};
    return 0;
}

static int self_exchange_(Comm *comm, void *out, const int64_t *received, const void *in, const int64_t *sent,
                          CommRequest *request, Error *err) {
    (void)received;
    return self_collective_(comm, COMM_ALL_GATHER, NO_ROOT, out, in, sent[0], COMM_BYTE, request, err);
}

static int self_test_(Comm *comm, CommRequest *request, Error *err) {
    (void)comm, (void)err;
    *request = (CommRequest){0};
    return 1;
}

static void self_destroy_(Comm *comm) { free(comm); }

Comm *comm_self_create(const char *name) {
    Comm *comm = xcalloc(1, sizeof *comm);
    snprintf(comm->name, sizeof comm->name, "%s", name);
    comm->size = 1;
    comm->message = self_message_;
    comm->collective = self_collective_;
    comm->exchange = self_exchange_;
    comm->test = self_test_;
    comm->destroy = self_destroy_;
    return comm;
}

// Messages and collectives of GPU memory through pinned host memory, for ranks that share one GPU. Data are copied to
// the host, sent or summed by the host's group, and copied back; `test` advances each step. Copies have their own
// stream; sums and gathers start after the work queued on compute before the call.
//
//               GOES_DOWN               IN_TRANSIT                      GOES_UP
//   sent        GPU to pinned memory    a message of the host's group   -
//   received    -                       a message of the host's group   pinned memory to GPU
//   collective  GPU to pinned memory    the host's own collective       pinned memory to GPU
#include "base/alloc.h"
#include "cuda_library.h"
#include "internal.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

typedef enum Step { GOES_DOWN, IN_TRANSIT, GOES_UP } Step;

typedef struct StagedWork {
    bool message, sends;     // message: a message, else a collective; sends: the message is outgoing
    CommOperation operation; // kind of the collective
    int root;                // root of a reduce or broadcast
    Step step;
    int peer;
    CommType type;
    int64_t count, in_bytes, out_bytes;
    int64_t *blocks; // [2 * size] bytes that an exchange receives from each rank, and sends; NULL: no exchange
    void *to;        // destination on the GPU; NULL for a message that is sent
    char *workspace; // pinned host memory, in_bytes + out_bytes
    int64_t result;  // offset of the result in the workspace
    int64_t workspace_bytes;
    cudaEvent_t copied;
    CommRequest transit;
    struct StagedWork *next; // next item of the idle list
} StagedWork;

typedef struct StagedGroup {
    Comm base;
    Comm *host;
    bool owns_host;
    CudaBackend *cuda;
    cudaStream_t stream;
    cudaEvent_t ordered;
    StagedWork *idle;
} StagedGroup;

static StagedGroup *staged_group_(Comm *comm) { return (StagedGroup *)comm->self; }

static int staged_fail_(StagedGroup *group, cudaError_t status, Error *err) {
    return error_set(err, EXIT_FAILED, "%s group, rank %d of %d: a message through host memory failed: %s%s",
                     group->base.name, group->base.rank, group->base.size, cudaGetErrorString(status), cuda_remedy());
}

static void free_work_(StagedWork *work) {
    if (work->workspace != NULL) cudaFreeHost(work->workspace);
    if (work->copied != NULL) cudaEventDestroy(work->copied);
    free(work->blocks);
    free(work);
}

// Returns an idle item that is large enough, else an enlarged or a new item. So the number of items never exceeds
// the peak number in flight, and no item exceeds the largest message, as plans assume (sums.c). NULL with err.
static StagedWork *take_work_(StagedGroup *group, int64_t bytes, Error *err) {
    StagedWork **at = &group->idle;
    while (*at != NULL && (*at)->workspace_bytes < bytes) at = &(*at)->next;
    if (*at == NULL) at = &group->idle;
    StagedWork *work = *at != NULL ? *at : (StagedWork *)xcalloc(1, sizeof *work);
    if (*at != NULL) *at = work->next;
    if (work->workspace_bytes >= bytes && work->copied != NULL) return work;
    cudaError_t status = cudaSuccess;
    if (work->copied == NULL) status = cudaEventCreateWithFlags(&work->copied, cudaEventDisableTiming);
    if (work->workspace != NULL) cudaFreeHost(work->workspace);
    work->workspace = NULL;
    if (status == cudaSuccess) status = cudaMallocHost(&work->workspace, (size_t)(bytes > 0 ? bytes : 1));
    work->workspace_bytes = bytes;
    if (status == cudaSuccess) return work;
    cudaGetLastError();
    free_work_(work);
    staged_fail_(group, status, err);
    return NULL;
}

static int staged_copy_(StagedGroup *group, StagedWork *work, void *to, const void *from, int64_t bytes, Step step,
                        Error *err) {
    cudaError_t status = cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyDefault, group->stream);
    if (status == cudaSuccess) status = cudaEventRecord(work->copied, group->stream);
    work->step = step;
    return status == cudaSuccess ? 0 : staged_fail_(group, status, err);
}

static int start_transit_(StagedGroup *group, StagedWork *work, Error *err) {
    Comm *host = group->host;
    char *in = work->workspace, *out = in + work->result;
    work->step = IN_TRANSIT;
    memset(&work->transit, 0, sizeof work->transit);
    if (work->message)
        return host->message(host, work->sends, work->peer, in, work->in_bytes + work->out_bytes, &work->transit, err);
    if (work->blocks != NULL)
        return host->exchange(host, out, work->blocks, in, work->blocks + host->size, &work->transit, err);
    return host->collective(host, work->operation, work->root, out, in, work->count, work->type, &work->transit, err);
}

static void staged_finish_(StagedGroup *group, StagedWork *work, CommRequest *request) {
    free(work->blocks);
    work->blocks = NULL;
    work->next = group->idle;
    group->idle = work;
    request->active = false;
}

// Advances the work by one step. Returns 1 if a next step can be tried, 0 if it must wait or is complete, -1 with err.
static int staged_advance_(StagedGroup *group, StagedWork *work, CommRequest *request, Error *err) {
    if (work->step == IN_TRANSIT) {
        int done = group->host->test(group->host, &work->transit, err);
        if (done <= 0) return done;
        request->steps++;
        if (work->to == NULL) return staged_finish_(group, work, request), 0;
        char *out = work->workspace + work->result;
        return staged_copy_(group, work, work->to, out, work->out_bytes, GOES_UP, err) == 0 ? 1 : -1;
    }
    cudaError_t status = cuda_event_status(work->copied);
    if (status == cudaErrorNotReady) return 0;
    if (status != cudaSuccess) return staged_fail_(group, status, err);
    request->steps++;
    if (work->step == GOES_UP) return staged_finish_(group, work, request), 0;
    return start_transit_(group, work, err) == 0 ? 1 : -1;
}

static int staged_test_(Comm *comm, CommRequest *request, Error *err) {
    StagedGroup *group = staged_group_(comm);
    if (!request->active) return 1;
    if (request->detail[COMM_ON_HOST] == 1) return group->host->test(group->host, request, err);
    int moved = 1;
    while (moved == 1 && request->active)
        moved = staged_advance_(group, (StagedWork *)request->handle[0], request, err);
    return moved < 0 ? -1 : request->active ? 0 : 1;
}

// Starts work with the operands of `like`. from NULL: nothing is copied to the host first. A collective starts after
// the work that is already queued on compute.
static int staged_start_(StagedGroup *group, StagedWork like, const void *from, CommRequest *request, Error *err) {
    StagedWork *work = take_work_(group, like.in_bytes + like.out_bytes, err);
    if (work == NULL) return -1;
    like.workspace = work->workspace, like.workspace_bytes = work->workspace_bytes, like.copied = work->copied;
    *work = like;
    memset(request, 0, sizeof *request);
    request->handle[0] = work;
    request->active = true;
    if (!work->message) {
        cuda_note(group->cuda, cudaEventRecord(group->ordered, cuda_compute(group->cuda)), "recording an event");
        cuda_note(group->cuda, cudaStreamWaitEvent(group->stream, group->ordered, 0), "ordering streams");
    }
    if (from == NULL) return start_transit_(group, work, err);
    return staged_copy_(group, work, work->workspace, from, work->in_bytes, GOES_DOWN, err);
}

static int staged_message_(Comm *comm, bool sends, int peer, void *memory, int64_t bytes, CommRequest *request,
                           Error *err) {
    StagedWork like = {};
    like.message = true, like.sends = sends, like.peer = peer;
    if (sends) like.in_bytes = bytes;
    else like.out_bytes = bytes, like.to = memory;
    return staged_start_(staged_group_(comm), like, sends ? memory : NULL, request, err);
}

// Every rank copies its operand to the host, even if no rank reads it, so that all ranks start their hosts' collectives
// in the order in which the callers test them, as the host's group requires.
static int staged_collective_(Comm *comm, CommOperation operation, int root, void *out, const void *in, int64_t count,
                              CommType type, CommRequest *request, Error *err) {
    Comm *host = staged_group_(comm)->host;
    if (type == COMM_DOUBLE) {
        int started = host->collective(host, operation, root, out, in, count, type, request, err);
        request->detail[COMM_ON_HOST] = 1;
        return started;
    }
    StagedWork like = {};
    bool divides = operation == COMM_ALL_GATHER || operation == COMM_REDUCE_SCATTER, roots = comm->rank == root;
    like.operation = operation, like.root = root, like.type = type, like.count = count, like.to = out;
    like.in_bytes = like.out_bytes = count * comm_type_bytes(type);
    if (operation == COMM_ALL_GATHER) like.out_bytes *= comm->size;
    if (operation == COMM_REDUCE_SCATTER) like.in_bytes *= comm->size;
    if (divides) like.result = like.in_bytes; // after the operand; the host's other collectives work in place
    if (operation == (roots ? COMM_BROADCAST : COMM_REDUCE)) like.to = NULL; // this rank receives no result
    return staged_start_(staged_group_(comm), like, in, request, err);
}

static int staged_exchange_(Comm *comm, void *out, const int64_t *received, const void *in, const int64_t *sent,
                            CommRequest *request, Error *err) {
    StagedWork like = {};
    like.blocks = (int64_t *)xcalloc((size_t)comm->size * 2, sizeof *like.blocks);
    for (int q = 0; q < comm->size; q++) {
        like.blocks[q] = received[q], like.blocks[comm->size + q] = sent[q];
        like.out_bytes += received[q], like.in_bytes += sent[q];
    }
    like.to = out, like.result = like.in_bytes;
    return staged_start_(staged_group_(comm), like, in, request, err);
}

// Work that a failure interrupted keeps its memory until the process ends: the host's group may still write there.
static void staged_destroy_(Comm *comm) {
    StagedGroup *group = staged_group_(comm);
    cudaSetDevice(group->cuda->device);
    while (group->idle != NULL) {
        StagedWork *work = group->idle;
        group->idle = work->next;
        free_work_(work);
    }
    if (group->ordered != NULL) cudaEventDestroy(group->ordered);
    if (group->stream != NULL) cudaStreamDestroy(group->stream);
    if (group->owns_host) group->host->destroy(group->host);
    free(group);
}

Comm *comm_staged_create(Backend *be, Comm *host, bool owns, Error *err) {
    StagedGroup *group = (StagedGroup *)xcalloc(1, sizeof *group);
    Comm *base = &group->base;
    snprintf(base->name, sizeof base->name, "%s", host->name);
    base->rank = host->rank, base->size = host->size, base->self = group;
    base->message = staged_message_, base->collective = staged_collective_;
    base->exchange = staged_exchange_;
    base->test = staged_test_, base->destroy = staged_destroy_;
    group->host = host, group->owns_host = owns, group->cuda = cuda_self(be);
    cudaSetDevice(group->cuda->device);
    cudaError_t status = cudaStreamCreateWithFlags(&group->stream, cudaStreamNonBlocking);
    if (status == cudaSuccess) status = cudaEventCreateWithFlags(&group->ordered, cudaEventDisableTiming);
    if (status == cudaSuccess) return base;
    staged_fail_(group, status, err);
    staged_destroy_(base);
    return NULL;
}

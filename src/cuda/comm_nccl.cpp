// Communication over NCCL. All ranks create all communicators at start, in the same order. If NCCL fails later, the job
// ends with an error message, and the communicators end with the process.
//
// NCCL connects a link inside its first send or receive, and that call returns only after the peer has made the
// matching call. So every new link carries one tiny message, and every new group runs each kind of collective that it
// will run later.
#include "base/alloc.h"
#include "cuda_library.h"
#include "internal.h"

#include <nccl.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

// A communicator and its stream. The groups of COMM_USE_BESIDE, whose collectives every rank of a stage queues in one
// order, share a stream: two of their collectives at once would take twice the multiprocessors from the last backward.
typedef struct NcclLink {
    ncclComm_t nccl;
    cudaStream_t stream;
} NcclLink;

// The limits of blocks by CommUse (backend.h). NCCL rounds the blocks of sends and receives up to a power of two
// (ncclTopoComputeP2pChannels in its paths.cc), so their limits are powers of two, even if scaled. All blocks that can
// wait at once fit on 108 multiprocessors: more groups, or smaller GPUs, scale the limits (cuda_ctas). Without limits,
// sums that wait for another rank could occupy all multiprocessors, while that rank waits for work that needs some of
// them. Products run during messages and sums, and with parallel.overlap also during collectives over tensor ranks.
static const int LIMITS[] = {COMPUTE_CTAS, EXCHANGE_CTAS, BESIDE_CTAS, LINK_CTAS};
enum { NUMBER = 1 }; // index into CommRequest.detail: number of the collective
// NCCL's buffers per block: 10 MiB to receive and 2 MiB to send, for a ring and again for a tree (init.cc, p2p.cc).
static const int64_t CTA_BYTES = 24 << 20;
enum { EVENTS = 64 };               // idle events kept for reuse
enum { LOOKS_BETWEEN_CHECKS = 64 }; // tests of unfinished messages between checks for NCCL errors

typedef struct NcclGroup {
    Comm base;
    Comm *host;
    bool owns_host, failed;
    CommUse use;
    CudaBackend *cuda;
    NcclLink all;                  // link of all ranks, for collectives
    void *registered;              // handle of ncclCommRegister, or NULL
    NcclLink *out, *in;            // [size] links to and from each rank; most are never connected
    cudaEvent_t idle[EVENTS];      // [idle_count] events for reuse
    cudaEvent_t ordered, starting; // ordered: all.stream waits for compute; starting: compute waits for all.stream
    int idle_count;
    int64_t started, awaited; // numbers, from 1: last collective started; last collective that compute waits for
    int64_t looks;
} NcclGroup;

static NcclGroup *nccl_group_(Comm *comm) { return (NcclGroup *)comm->self; }

// Returns whether compute waits on the device for the group's collectives.
static bool computes_(const NcclGroup *group) {
    return group->use == COMM_USE_COMPUTE || group->use == COMM_USE_EXCHANGE;
}

// Returns 0 if `text`, the error of a call, is NULL. Otherwise marks the group as failed, so that its later operations
// fail too, and returns -1 with err.
static int checked_(NcclGroup *group, const char *doing, int peer, const char *text, Error *err) {
    Comm *base = &group->base;
    char whom[32] = "";
    if (text == NULL) return 0;
    if (peer >= 0) snprintf(whom, sizeof whom, " %d", peer);
    const char *remedy = cuda_remedy();
    group->failed = true;
    return error_set(err, EXIT_FAILED, "%s group, rank %d of %d: %s%s failed: %s%s", base->name, base->rank, base->size,
                     doing, whom, text,
                     remedy[0] != '\0' ? remedy
                                       : "; check the other ranks' hosts, GPUs and network (NCCL_DEBUG=INFO logs "
                                         "more), and resume from the last checkpoint with --resume");
}

// Return the text of a call's error, or NULL if it succeeded.
static const char *cuda_text_(cudaError_t status) { return status == cudaSuccess ? NULL : cudaGetErrorString(status); }

static const char *nccl_text_(ncclResult_t status) {
    const char *last = ncclGetLastError(NULL);
    if (status == ncclSuccess) return NULL;
    return last != NULL && last[0] != '\0' ? last : ncclGetErrorString(status);
}

// --- making and ending communicators

static int open_link_(NcclGroup *group, NcclLink *link, const ncclUniqueId *id, int size, int rank, Error *err) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    // By default a kernel on Hopper uses clusters of four blocks, and a cluster must fit in one GPC. A product leaves
    // only about three multiprocessors per GPC to NCCL.
    config.cgaClusterSize = 1;
    config.maxCTAs = cuda_ctas(group->cuda, LIMITS[group->use]);
    const bool messages = group->use == COMM_USE_NEIGHBOURS || group->use == COMM_USE_EXCHANGE;
    while (messages && (config.maxCTAs & (config.maxCTAs - 1)) != 0) config.maxCTAs &= config.maxCTAs - 1;
    // Checks the free memory first: if NCCL ran out of memory, its error would not name the holders of the memory.
    Backend *be = &group->cuda->backend;
    if (be->check_free(be, config.maxCTAs * CTA_BYTES, err) != 0) return -1;
    enum { OF_NCCL = 2 }; // streams that NCCL makes for a communicator (deviceStream, hostStream in its init.cc)
    be->streams += OF_NCCL;
    cudaStream_t *stream = group->use == COMM_USE_BESIDE ? &group->cuda->beside : &link->stream;
    const char *text = *stream == NULL ? cuda_text_(cuda_first_stream(group->cuda, stream)) : NULL;
    link->stream = *stream;
    if (checked_(group, "making a stream", -1, text, err) != 0) return -1;
    text = nccl_text_(ncclCommInitRankConfig(&link->nccl, size, *id, rank, &config));
    // NCCL passes over its kernels without code for this GPU (ncclInitKernelsForDevice). Where it shares our CUDA
    // runtime, their error would be reported for our next kernel.
    cudaGetLastError();
    return checked_(group, "starting NCCL", -1, text, err);
}

static int pass_id_(Comm *host, int peer, ncclUniqueId *id, bool sends, Error *err) {
    CommRequest request = {};
    return host->message(host, sends, peer, id, sizeof *id, &request, err) == 0 ? comm_wait(host, &request, err) : -1;
}

// Waits for the work queued on the link, so that a broken link fails here.
static int settle_(NcclGroup *group, NcclLink *link, ncclResult_t status, Error *err) {
    if (checked_(group, "connecting", -1, nccl_text_(status), err) != 0) return -1;
    return checked_(group, "connecting", -1, cuda_text_(cudaStreamSynchronize(link->stream)), err);
}

// Queues the sends and receives of an exchange: one operation on the link's stream. Empty blocks need none.
static ncclResult_t exchange_blocks_(NcclGroup *group, char *out, const int64_t *received, const char *in,
                                     const int64_t *sent) {
    const NcclLink *all = &group->all;
    ncclResult_t status = ncclGroupStart();
    for (int q = 0; q < group->base.size; out += received[q], in += sent[q++]) {
        if (q == group->base.rank) continue;
        if (status == ncclSuccess && sent[q] > 0)
            status = ncclSend(in, (size_t)sent[q], ncclInt8, q, all->nccl, all->stream);
        if (status == ncclSuccess && received[q] > 0)
            status = ncclRecv(out, (size_t)received[q], ncclInt8, q, all->nccl, all->stream);
    }
    ncclResult_t ended = ncclGroupEnd();
    return status == ncclSuccess ? ended : status;
}

static const ncclDataType_t types[] = {ncclFloat32, ncclBfloat16, ncclFloat64, ncclInt8};

static ncclResult_t collect_(NcclGroup *group, CommOperation operation, int root, void *out, const void *in, size_t n,
                             CommType type) {
    const NcclLink *all = &group->all;
    if (operation == COMM_ALL_GATHER) return ncclAllGather(in, out, n, types[type], all->nccl, all->stream);
    if (operation == COMM_ALL_REDUCE) return ncclAllReduce(in, out, n, types[type], ncclSum, all->nccl, all->stream);
    if (operation == COMM_REDUCE) return ncclReduce(in, out, n, types[type], ncclSum, root, all->nccl, all->stream);
    if (operation == COMM_BROADCAST) return ncclBroadcast(in, out, n, types[type], root, all->nccl, all->stream);
    return ncclReduceScatter(in, out, n, types[type], ncclSum, all->nccl, all->stream);
}

// Runs every collective in fp32 and bf16, at a small and a large size, because NCCL has different kernels for these
// cases, and an exchange of a few bytes. All run in `scratch`, which is cleared.
static int try_collectives_(NcclGroup *group, Error *err) {
    enum { FEW = 16 };
    static const size_t bytes[] = {1024, 4 << 20}; // per rank
    char *memory = (char *)group->cuda->scratch;
    const size_t size = (size_t)group->base.size, rank = (size_t)group->base.rank;
    const size_t most = CUDA_SCRATCH_BYTES / size < bytes[1] ? CUDA_SCRATCH_BYTES / size : bytes[1];
    const int kinds = group->use == COMM_USE_BESIDE ? COMM_BROADCAST + 1 : COMM_REDUCE;
    cudaError_t cleared = cudaMemsetAsync(memory, 0, most * size, group->all.stream);
    ncclResult_t status = cleared == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
    for (int i = 0; i < 4 * kinds && status == ncclSuccess; i++) {
        const CommOperation operation = (CommOperation)(i % kinds);
        const CommType type = i / kinds % 2 == 0 ? COMM_FLOAT : COMM_BF16;
        const size_t element = (size_t)comm_type_bytes(type), wanted = bytes[i / kinds / 2];
        const size_t count = (wanted < most ? wanted : most) / element;
        char *mine = memory + rank * count * element;
        status = collect_(group, operation, 0, operation == COMM_REDUCE_SCATTER ? mine : memory,
                          operation == COMM_ALL_GATHER ? mine : memory, count, type);
    }
    if (status == ncclSuccess && group->use == COMM_USE_EXCHANGE) {
        int64_t *few = (int64_t *)xcalloc(size, sizeof *few);
        for (size_t q = 0; q < size; q++) few[q] = FEW;
        status = exchange_blocks_(group, memory, few, memory + FEW * size, few);
        free(few);
    }
    return settle_(group, &group->all, status, err);
}

static int open_all_(NcclGroup *group, Error *err) {
    Comm *host = group->host;
    ncclUniqueId id;
    if (host->rank == 0 && checked_(group, "starting NCCL", -1, nccl_text_(ncclGetUniqueId(&id)), err) != 0) return -1;
    for (int peer = 1; peer < host->size; peer++) {
        if (host->rank != 0 && host->rank != peer) continue;
        if (pass_id_(host, host->rank == 0 ? peer : 0, &id, host->rank == 0, err) != 0) return -1;
    }
    if (open_link_(group, &group->all, &id, host->size, host->rank, err) != 0) return -1;
    return try_collectives_(group, err);
}

// Queues a message on a link. The sender is rank 0 of the link's communicator.
static ncclResult_t move_(NcclLink *link, bool sends, void *memory, int64_t bytes) {
    return sends ? ncclSend(memory, (size_t)bytes, ncclInt8, 1, link->nccl, link->stream)
                 : ncclRecv(memory, (size_t)bytes, ncclInt8, 0, link->nccl, link->stream);
}

// Connects one direction between this rank and a peer: creates a communicator (rank 0 sends) and sends a first message.
static int nccl_connect_(Comm *comm, int peer, bool sends, void *memory, int64_t bytes, Error *err) {
    NcclGroup *group = (NcclGroup *)comm->self;
    NcclLink *link = sends ? &group->out[peer] : &group->in[peer];
    void *scratch = group->cuda->scratch;
    ncclUniqueId id;
    (void)memory, (void)bytes;
    if (sends && checked_(group, "starting NCCL", -1, nccl_text_(ncclGetUniqueId(&id)), err) != 0) return -1;
    if (pass_id_(group->host, peer, &id, sends, err) != 0) return -1;
    if (open_link_(group, link, &id, 2, sends ? 0 : 1, err) != 0) return -1;
    const char *text = cuda_text_(cudaMemsetAsync(scratch, 0, 1, link->stream));
    if (checked_(group, "connecting", -1, text, err) != 0) return -1;
    return settle_(group, link, move_(link, sends, scratch, 1), err);
}

static void close_link_(const NcclGroup *group, NcclLink *link) {
    if (link->nccl != NULL) ncclCommDestroy(link->nccl);
    if (link->stream != NULL && link->stream != group->cuda->beside) cudaStreamDestroy(link->stream);
}

static void nccl_destroy_(Comm *comm) {
    NcclGroup *group = nccl_group_(comm);
    cudaSetDevice(group->cuda->device);
    // ncclCommDestroy returns only after the peers on this node have called it for the same communicator. So two ranks
    // must close the two directions between them in the same order: first from the lower rank to the higher. Ranks
    // cannot wait for each other in a circle, because each rank closes its links in the order of peer numbers. If a
    // waits for b while b waits for c, then c < a. In a circle, a number would be lower than itself.
    //
    // A failed group keeps its communicators until the process ends, which is soon. ncclCommAbort would wait for other
    // ranks to abort and, to free device memory, for other communicators' kernels. So the failure might never be
    // reported.
    if (!group->failed) close_link_(group, &group->all);
    for (int peer = 0; peer < comm->size && !group->failed; peer++) {
        bool up = comm->rank < peer;
        close_link_(group, up ? &group->out[peer] : &group->in[peer]);
        close_link_(group, up ? &group->in[peer] : &group->out[peer]);
    }
    for (int i = 0; i < group->idle_count; i++) cudaEventDestroy(group->idle[i]);
    if (group->ordered != NULL) cudaEventDestroy(group->ordered);
    if (group->starting != NULL) cudaEventDestroy(group->starting);
    if (group->owns_host) group->host->destroy(group->host);
    free(group->out);
    free(group->in);
    free(group);
}

// --- operations in flight

static int check_link_(NcclGroup *group, NcclLink *link, Error *err) {
    ncclResult_t state = ncclSuccess;
    if (group->failed || link->nccl == NULL) return 0;
    ncclResult_t status = ncclCommGetAsyncError(link->nccl, &state);
    if (status == ncclSuccess && state != ncclInProgress) status = state;
    return checked_(group, "a message in flight", -1, nccl_text_(status), err);
}

static int nccl_check_(NcclGroup *group, Error *err) {
    if (group->failed) return checked_(group, "a message", -1, "an earlier operation of the group failed", err);
    if (check_link_(group, &group->all, err) != 0) return -1;
    for (int peer = 0; peer < group->base.size; peer++)
        if (check_link_(group, &group->out[peer], err) != 0 || check_link_(group, &group->in[peer], err) != 0)
            return -1;
    return 0;
}

static void keep_event_(NcclGroup *group, cudaEvent_t event) {
    if (group->idle_count < EVENTS) group->idle[group->idle_count++] = event;
    else cudaEventDestroy(event);
}

// Records an event after the work just queued on the link, and stores the event in the request.
static int mark_(NcclGroup *group, NcclLink *link, CommRequest *request, Error *err) {
    cudaEvent_t event = NULL;
    memset(request, 0, sizeof *request);
    cudaError_t status = cudaSuccess;
    if (group->idle_count > 0) event = group->idle[--group->idle_count];
    else status = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    if (status == cudaSuccess) status = cudaEventRecord(event, link->stream);
    if (status != cudaSuccess && event != NULL) keep_event_(group, event);
    if (checked_(group, "recording an event", -1, cuda_text_(status), err) != 0) return -1;
    request->handle[0] = event;
    request->active = true;
    return 0;
}

static int nccl_test_(Comm *comm, CommRequest *request, Error *err) {
    NcclGroup *group = nccl_group_(comm);
    if (request->active && request->detail[COMM_ON_HOST] == 1) return group->host->test(group->host, request, err);
    cudaEvent_t event = (cudaEvent_t)request->handle[0];
    if (computes_(group)) {
        // Compute waits on the device for the collective before any work queued later. The host does not wait.
        if (request->active) {
            if (request->detail[NUMBER] > group->awaited) group->awaited = request->detail[NUMBER];
            if (group->awaited == group->started) group->cuda->collective_flops = 0;
            cuda_note(group->cuda, cudaStreamWaitEvent(cuda_compute(group->cuda), event, 0), "ordering streams");
            keep_event_(group, event);
        }
        request->active = false;
        return nccl_check_(group, err) == 0 ? 1 : -1;
    }
    if (!request->active) return 1;
    cudaError_t status = group->failed ? cudaSuccess : cuda_event_status(event);
    if (status == cudaErrorNotReady)
        return ++group->looks % LOOKS_BETWEEN_CHECKS == 0 && nccl_check_(group, err) != 0 ? -1 : 0;
    request->active = false;
    keep_event_(group, event);
    if (group->failed) return nccl_check_(group, err);
    if (checked_(group, "a message", -1, cuda_text_(status), err) != 0) return -1;
    request->steps++;
    return 1;
}

// --- messages

static int nccl_message_(Comm *comm, bool sends, int peer, void *memory, int64_t bytes, CommRequest *request,
                         Error *err) {
    NcclGroup *group = nccl_group_(comm);
    NcclLink *link = sends ? &group->out[peer] : &group->in[peer];
    const char *doing = sends ? "a send to rank" : "a receive from rank";
    if (group->failed) return nccl_check_(group, err);
    if (link->nccl == NULL) return checked_(group, doing, peer, "not connected", err);
    ncclResult_t status = move_(link, sends, memory, bytes);
    if (checked_(group, doing, peer, nccl_text_(status), err) != 0) return -1;
    return mark_(group, link, request, err);
}

// --- collectives

// Orders the collective after the work queued on compute so far; it overlaps later work.
static int order_(NcclGroup *group, Error *err) {
    if (group->failed) return nccl_check_(group, err);
    cudaError_t status = cudaEventRecord(group->ordered, cuda_compute(group->cuda));
    if (status == cudaSuccess) status = cudaStreamWaitEvent(group->all.stream, group->ordered, 0);
    if (status == cudaSuccess) status = cudaEventRecord(group->starting, group->all.stream);
    return checked_(group, "ordering streams", -1, cuda_text_(status), err);
}

// Makes compute wait until the collective can start. Otherwise the next product would start first: it follows in its
// own stream, while the collective waits for an event of another stream. On Hopper the blocks of a product stay until
// the product ends, so the collective would run after the product instead of during it.
//
//     compute   norm | record ordered ----------- wait starting | product
//     stream         +--> wait ordered, record starting | all-gather
//
// If an earlier collective is still running on the stream, compute does not wait. The wait would last until that
// collective ends, and the new collective will start in the middle of some product anyway.
static void start_first_(NcclGroup *group) {
    if (group->awaited < group->started++) return;
    cudaError_t status = cudaStreamWaitEvent(cuda_compute(group->cuda), group->starting, 0);
    cuda_note(group->cuda, status, "ordering streams");
}

// Records a queued collective, and the compute work that may overlap it. sent: bytes that this rank sends.
static int nccl_started_(NcclGroup *group, double sent, CommRequest *request, Error *err) {
    if (mark_(group, &group->all, request, err) != 0) return -1;
    if (!computes_(group)) return 0;
    start_first_(group);
    request->detail[NUMBER] = group->started;
    double rate = group->cuda->backend.flops_per_sent_byte;
    group->cuda->collective_flops += rate > 0 ? rate * sent : INFINITY;
    return 0;
}

// This rank's own block is a copy on the same stream.
static int nccl_exchange_(Comm *comm, void *out, const int64_t *received, const void *in, const int64_t *sent,
                          CommRequest *request, Error *err) {
    NcclGroup *group = nccl_group_(comm);
    int64_t to = 0, from = 0, all = 0, own = sent[comm->rank];
    for (int q = 0; q < comm->rank; q++) to += received[q], from += sent[q];
    for (int q = 0; q < comm->size; q++) all += sent[q];
    if (order_(group, err) != 0) return -1;
    cudaError_t copied = cudaMemcpyAsync((char *)out + to, (const char *)in + from, (size_t)own,
                                         cudaMemcpyDeviceToDevice, group->all.stream);
    if (checked_(group, "a copy", -1, cuda_text_(copied), err) != 0) return -1;
    ncclResult_t status = exchange_blocks_(group, (char *)out, received, (const char *)in, sent);
    if (checked_(group, "an exchange", -1, nccl_text_(status), err) != 0) return -1;
    return nccl_started_(group, (double)(all - own), request, err);
}

// Queues a collective, and adds the FLOPs that can overlap it to collective_flops. The FLOPs follow from the bytes that
// this rank sends: one block of elements in each of the `steps` steps of a ring.
static int nccl_collective_(Comm *comm, CommOperation operation, int root, void *out, const void *in, int64_t count,
                            CommType type, CommRequest *request, Error *err) {
    static const char *const doing[] = {"an all-reduce", "an all-gather", "a reduce-scatter", "a reduce",
                                        "a broadcast"};
    NcclGroup *group = nccl_group_(comm);
    if (type == COMM_DOUBLE) {
        int started = group->host->collective(group->host, operation, root, out, in, count, type, request, err);
        request->detail[COMM_ON_HOST] = 1;
        return started;
    }
    if (order_(group, err) != 0) return -1;
    ncclResult_t status = collect_(group, operation, root, out, in, (size_t)count, type);
    if (checked_(group, doing[operation], -1, nccl_text_(status), err) != 0) return -1;
    bool reduces = operation == COMM_ALL_REDUCE;
    int64_t block = reduces ? count / comm->size : count, steps = (reduces ? 2 : 1) * (comm->size - 1);
    return nccl_started_(group, (double)(block * steps * comm_type_bytes(type)), request, err);
}

// --- registered memory

// "If any rank in a communicator passes registered buffers to a NCCL communication function, all other ranks in the
// same communicator must pass their registered buffers" (NCCL user guide, "User Buffer Registration"). So memory is
// registered on all ranks or on no rank. The memory holds results of gathers and inputs of reduce-scatters: NVLink
// SHARP, unlike other algorithms, needs them registered (ncclRegisterCollNvlsBuffers in NCCL's coll_reg.cc).
static int nccl_use_memory_(Comm *comm, const CommMemory *memory, Error *err) {
    NcclGroup *group = nccl_group_(comm);
    if (group->registered != NULL) {
        cudaStreamSynchronize(group->all.stream);
        ncclCommDeregister(group->all.nccl, group->registered);
        group->registered = NULL;
    }
    if (memory == NULL) return 0;
    double able = memory->memory == group->cuda->registered;
    if (comm_collect_now(group->host, COMM_ALL_REDUCE, &able, &able, 1, COMM_DOUBLE, err) != 0) return -1;
    if ((int)able < comm->size) return 0;
    ncclResult_t status = ncclCommRegister(group->all.nccl, memory->memory, (size_t)memory->bytes, &group->registered);
    if (checked_(group, "registering memory", -1, nccl_text_(status), err) != 0) return -1;
    return group->registered != NULL;
}

Comm *comm_nccl_create(Backend *be, Comm *host, CommUse use, bool owns, Error *err) {
    const char *blocking = getenv("CUDA_LAUNCH_BLOCKING");
    if (blocking != NULL && atoi(blocking) != 0) {
        if (owns) host->destroy(host);
        error_set(err, EXIT_FAILED,
                  "CUDA_LAUNCH_BLOCKING=1 makes every send block until it is received, so ranks would deadlock; unset "
                  "it, or use one rank");
        return NULL;
    }
    NcclGroup *group = (NcclGroup *)xcalloc(1, sizeof *group);
    Comm *base = &group->base;
    snprintf(base->name, sizeof base->name, "%s", host->name);
    base->rank = host->rank, base->size = host->size, base->self = group;
    base->connect = nccl_connect_, base->message = nccl_message_, base->collective = nccl_collective_;
    base->test = nccl_test_, base->destroy = nccl_destroy_;
    if (use == COMM_USE_EXCHANGE) base->exchange = nccl_exchange_;
    // Only NVLink SHARP uses registered memory, and cuda_library.h disables it by default.
    const char *sharp = getenv("NCCL_NVLS_ENABLE");
    bool registers = use == COMM_USE_COMPUTE && (sharp == NULL || strcmp(sharp, "0") != 0);
    if (registers) base->use_memory = nccl_use_memory_;
    group->host = host, group->owns_host = owns, group->use = use, group->cuda = cuda_self(be);
    group->out = (NcclLink *)xcalloc((size_t)host->size, sizeof *group->out);
    group->in = (NcclLink *)xcalloc((size_t)host->size, sizeof *group->in);
    cudaSetDevice(group->cuda->device);
    cudaEvent_t *events[] = {&group->ordered, &group->starting};
    for (cudaEvent_t *event : events)
        cuda_note(group->cuda, cudaEventCreateWithFlags(event, cudaEventDisableTiming), "making an event");
    group->cuda->registers |= registers; // read when the memory is allocated, after this call
    if (use == COMM_USE_NEIGHBOURS || open_all_(group, err) == 0) return base;
    group->failed = true;
    nccl_destroy_(base);
    return NULL;
}

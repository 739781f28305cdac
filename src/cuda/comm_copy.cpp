// Gathers and sums over the tensor ranks of a node by copy engines, which leave all multiprocessors to concurrent
// products. Each rank maps the memory of its peers (lending.h) and copies its rows there. For a sum, a kernel adds the
// arrived blocks in rank order (cuda_sum_blocks), so the result has the same bits as on CPUs.
//
// Two flags per pair of ranks synchronize the devices; their value is the number of the collective. No host waits.
//
//   ready    "my memory has been read: write there"              arrived   "my rows are in your memory"
//
// A copy of 4 bytes keeps the copy engine busy for as long as a copy of some hundred KB (cost_copy), and a rank makes
// 3(t-1) copies. So only the first of several collectives whose memory is free at once says `ready`: in a forward, the
// first strip of a gather for all strips and for the sum after them (CommRequest.follows).
//
//     compute, rank 0  | product | record ordered ------------------------------ wait pushed, arrived | sum or product
//     stream, rank 0             +-> ready to 1 | wait ready of 1 | copy | arrived to 1, record pushed
//     stream, rank 1             +-> ready to 0 | wait ready of 0 | copy | arrived to 0, record pushed
//
// A stream waits by cuStreamWaitValue32 on flags in its own device's memory. The comparison is cyclic, (int32_t)(flag -
// number) >= 0 (cuda.h, CU_STREAM_WAIT_VALUE_GEQ), so numbers may wrap around. A flag is set by copying 4 bytes from a
// word that cuStreamWriteValue32 has set; the copy follows the rows in the same stream and engine (as in NCCL's
// ce_coll.cc). Where a device can, it flushes remote writes after a wait, since it may reorder the rows and the flag
// inside (cuda.h, CU_STREAM_WAIT_VALUE_FLUSH). All ranks start their collectives in the same order, so a rank waits
// only for work that its peers have queued already, or will queue without waiting for that rank.
//
// A rank's own rows are copied last, as CUDA may run copies within a GPU as a kernel, which waits for multiprocessors.
#include "base/alloc.h"
#include "comm/lending.h"
#include "cuda_library.h"
#include "internal.h"

#include <cassert>
#include <cstdio>
#include <cstdlib>
#include <cstring>

typedef int (*MemoryOperation)(cudaStream_t stream, unsigned long long address, uint32_t value, unsigned flags);

enum { PUSHED = 16 };                     // ring size, more than the collectives in flight at once
enum { NUMBER = 0, BY_COPIES = 2 };       // NUMBER: index into CommRequest.detail; BY_COPIES: value at COMM_ON_HOST
static const uint32_t BEFORE = 0u - 100u; // initial number; close to the limit, so that numbers wrap in every run

typedef struct Copies {
    Comm base;
    Comm *other, *host; // `other` runs collectives that copies cannot do
    CudaBackend *cuda;
    bool demanded;
    cudaStream_t stream;
    cudaEvent_t ordered, pushed[PUSHED];
    MemoryOperation write, wait;
    unsigned flush; // flags of a wait: CU_STREAM_WAIT_VALUE_FLUSH, or 0 where the device does not support it
    CommMemory memory;
    char **mapped;              // [size] address of each rank's memory in this process; NULL: nothing is mapped
    uint32_t number, announced; // number of the last collective; number of the last one that sent `ready` to its peers
    bool announces;             // the last collective that follows no other is the one in `announced`
    struct {
        void *out;
        const char *own, *others;
        int64_t count; // elements of the sum; 0: a gather
    } sums[PUSHED];
} Copies;

static Copies *copies_of_(Comm *comm) { return (Copies *)comm->self; }

static int copy_fail_(const Copies *self, int status, Error *err) {
    return error_set(err, EXIT_FAILED, "%s group, rank %d of %d: copies to the other ranks failed: %s%s",
                     self->base.name, self->base.rank, self->base.size, cudaGetErrorString((cudaError_t)status),
                     cuda_remedy());
}

// --- flags, in each rank's memory: `ready` of every rank, then `arrived` of every rank, then the word to copy

static uint32_t *flag_(const Copies *self, int at_rank, bool arrived, int of_rank) {
    char *flags = self->mapped[at_rank] + ((char *)self->memory.flags - (char *)self->memory.memory);
    return (uint32_t *)flags + (arrived ? self->base.size : 0) + of_rank;
}

static int raise_(const Copies *self, int peer, bool arrived) {
    const uint32_t *word = flag_(self, self->base.rank, true, self->base.size);
    return cudaMemcpyAsync(flag_(self, peer, arrived, self->base.rank), word, sizeof *word, cudaMemcpyDeviceToDevice,
                           self->stream);
}

static int await_flag_(const Copies *self, cudaStream_t stream, int peer, bool arrived, uint32_t number) {
    return self->wait(stream, (unsigned long long)flag_(self, self->base.rank, arrived, peer), number, self->flush);
}

// --- collectives

static bool inside_(const Copies *self, const void *data, int64_t bytes, const void *memory, int64_t size) {
    const char *at = (const char *)data, *from = (const char *)memory;
    return self->mapped != NULL && at >= from && at + bytes <= from + size;
}

// A gather writes this rank's rows into every peer's result, a reduce-scatter one block into every peer's `received`.
static int copy_collective_(Comm *comm, CommOperation operation, int root, void *out, const void *in, int64_t count,
                            CommType type, CommRequest *request, Error *err) {
    Copies *self = copies_of_(comm);
    const CommMemory *memory = &self->memory;
    const int64_t bytes = count * comm_type_bytes(type);
    const bool gathers = operation == COMM_ALL_GATHER;
    bool ours = gathers ? inside_(self, out, bytes * comm->size, memory->memory, memory->bytes)
                        : operation == COMM_REDUCE_SCATTER &&
                              inside_(self, in, bytes * comm->size, memory->partial, memory->part);
    if (!request->follows) self->announces = ours;
    if (!ours) return self->other->collective(self->other, operation, root, out, in, count, type, request, err);
    assert(self->announces);
    const char *blocks = (const char *)in;
    char *to = gathers ? (char *)out : (char *)memory->received + (blocks - (const char *)memory->partial);
    char *mine = to + comm->rank * bytes;

    // 1. The stream follows the work queued on compute, and tells the peers that they may write, unless they know it.
    uint32_t *word = flag_(self, comm->rank, true, comm->size);
    int status = cudaEventRecord(self->ordered, cuda_compute(self->cuda));
    if (status == cudaSuccess) status = cudaStreamWaitEvent(self->stream, self->ordered, 0);
    if (status == cudaSuccess) status = self->write(self->stream, (unsigned long long)word, ++self->number, 0);
    if (!request->follows) self->announced = self->number;
    for (int i = 1; i < comm->size && status == cudaSuccess && !request->follows; i++)
        status = raise_(self, (comm->rank + comm->size - i) % comm->size, false);

    // 2. To each peer, once it is ready: this rank's rows, then the flag that they have arrived.
    for (int i = 1; i < comm->size && status == cudaSuccess; i++) {
        int peer = (comm->rank + i) % comm->size;
        char *there = self->mapped[peer] + (mine - (const char *)memory->memory);
        status = await_flag_(self, self->stream, peer, false, self->announced);
        if (status == cudaSuccess)
            status = cudaMemcpyAsync(there, gathers ? blocks : blocks + peer * bytes, (size_t)bytes,
                                     cudaMemcpyDeviceToDevice, self->stream);
        if (status == cudaSuccess) status = raise_(self, peer, true);
    }

    // 3. This rank's own rows.
    if (gathers && status == cudaSuccess && mine != in)
        status = cudaMemcpyAsync(mine, in, (size_t)bytes, cudaMemcpyDeviceToDevice, self->stream);
    self->sums[self->number % PUSHED] = {out, blocks + comm->rank * bytes, to, gathers ? 0 : count};
    if (status == cudaSuccess) status = cudaEventRecord(self->pushed[self->number % PUSHED], self->stream);
    memset(request, 0, sizeof *request);
    if (status != cudaSuccess) return copy_fail_(self, status, err);
    request->detail[NUMBER] = self->number;
    request->detail[COMM_ON_HOST] = BY_COPIES;
    request->active = true;
    return 0;
}

// Makes compute wait for the rows of all ranks, and queues the sum. The host does not wait.
static int copy_test_(Comm *comm, CommRequest *request, Error *err) {
    Copies *self = copies_of_(comm);
    if (!request->active || request->detail[COMM_ON_HOST] != BY_COPIES)
        return self->other->test(self->other, request, err);
    const uint32_t number = (uint32_t)request->detail[NUMBER];
    cudaStream_t compute = cuda_compute(self->cuda);
    int status = cudaStreamWaitEvent(compute, self->pushed[number % PUSHED], 0);
    for (int peer = 0; peer < comm->size && status == cudaSuccess; peer++)
        if (peer != comm->rank) status = await_flag_(self, compute, peer, true, number);
    const auto &sum = self->sums[number % PUSHED];
    request->active = false;
    if (status != cudaSuccess) return copy_fail_(self, status, err);
    if (sum.count > 0)
        cuda_sum_blocks(&self->cuda->backend, sum.out, sum.own, sum.others, comm->size, comm->rank, sum.count);
    return 1;
}

// --- mapping

// An empty sum is a barrier: no rank continues before all ranks have called it.
static int unmap_(Copies *self, Error *err) {
    Backend *be = &self->cuda->backend;
    double all = 0;
    if (self->mapped == NULL) return 0;
    for (int peer = 0; peer < self->base.size; peer++)
        if (peer != self->base.rank) cuda_give_back(be, self->mapped[peer], self->memory.bytes);
    free(self->mapped);
    self->mapped = NULL;
    if (be->check(be, err) != 0 || comm_collect_now(self->host, COMM_ALL_REDUCE, &all, &all, 1, COMM_DOUBLE, err) != 0)
        return -1;
    cuda_take_back(self->cuda, self->memory.memory);
    return 0;
}

// Maps the memory of every rank into every other rank, one pair at a time.
static int map_all_(Copies *self, Error *err) {
    Backend *be = &self->cuda->backend;
    const CommMemory *m = &self->memory;
    for (int lender = 0; lender < self->base.size; lender++)
        for (int peer = 0; peer < self->base.size; peer++) {
            char why[256] = "";
            void *there = NULL;
            bool lent, lends = lender == self->base.rank;
            if (lender == peer || (!lends && peer != self->base.rank)) continue;
            self->cuda->unordered = NULL;
            int status = lends ? lending_lend(be, m->memory, m->bytes, self->host, peer, &lent, err)
                               : lending_borrow(be, m->bytes, self->host, lender, &there, why, err);
            if (status != 0) return -1;
            if (!lends) self->mapped[lender] = (char *)there;
            // Rows and the flag that follows them are two copies; CUDA does not promise that PCIe delivers them in
            // order.
            const char *unordered = self->cuda->unordered;
            if (why[0] == '\0' && unordered != NULL && !self->demanded) snprintf(why, sizeof why, "%s", unordered);
            if (why[0] != '\0') snprintf(self->base.why, sizeof self->base.why, "rank %d: %.140s", lender, why);
        }
    return 0;
}

// Finds the driver's functions `write` and `wait`, and tests them on a flag of this rank only. Returns a CUDA status.
static int try_flags_(Copies *self) {
    const char *names[] = {"cuStreamWriteValue32", "cuStreamWaitValue32"};
    void *found[2] = {};
    int status = cudaSuccess;
    for (int i = 0; i < 2 && status == cudaSuccess; i++)
#if CUDART_VERSION >= 12050
        status = cudaGetDriverEntryPointByVersion(names[i], &found[i], 12000, cudaEnableDefault, NULL);
#else
        status = cudaGetDriverEntryPoint(names[i], &found[i], cudaEnableDefault);
#endif
    if (status != cudaSuccess || found[0] == NULL || found[1] == NULL) return cudaErrorNotSupported;
    int flushes = 0;
    cudaDeviceGetAttribute(&flushes, cudaDevAttrCanFlushRemoteWrites, self->cuda->device);
    self->flush = flushes ? 1u << 30 : 0;
    self->write = (MemoryOperation)found[0], self->wait = (MemoryOperation)found[1];
    uint32_t *own = flag_(self, self->base.rank, false, self->base.rank);
    status = self->write(self->stream, (unsigned long long)own, BEFORE, 0);
    if (status == cudaSuccess) status = await_flag_(self, self->stream, self->base.rank, false, BEFORE);
    return status == cudaSuccess ? (int)cudaStreamSynchronize(self->stream) : status;
}

static int copy_use_memory_(Comm *comm, const CommMemory *memory, Error *err) {
    Copies *self = copies_of_(comm);
    uint32_t before[COMM_FLAGS];
    double missing = 0;
    if (memory == NULL) return unmap_(self, err);
    for (uint32_t &flag : before) flag = BEFORE;
    self->memory = *memory, self->number = self->announced = BEFORE;
    self->mapped = (char **)xcalloc((size_t)comm->size, sizeof *self->mapped);
    self->mapped[comm->rank] = (char *)memory->memory;
    int status = try_flags_(self);
    if (status != cudaSuccess) cudaGetLastError();
    if (map_all_(self, err) != 0) return -1;
    // After the lending, which overwrites memory, and before any rank can raise a flag here.
    self->cuda->backend.upload(&self->cuda->backend, memory->flags, before, sizeof before);
    if (status != cudaSuccess)
        snprintf(comm->why, sizeof comm->why, "the driver does not support stream memory operations: %.60s",
                 cudaGetErrorString((cudaError_t)status));
    if (comm->why[0] != '\0') missing = 1;
    if (comm_collect_now(self->host, COMM_ALL_REDUCE, &missing, &missing, 1, COMM_DOUBLE, err) != 0) return -1;
    if (missing == 0) return 1;
    if (comm->why[0] == '\0') snprintf(comm->why, sizeof comm->why, "another tensor rank cannot map a peer's memory");
    if (unmap_(self, err) != 0) return -1;
    if (!self->demanded) return 0;
    return error_set(err, EXIT_FAILED,
                     "%s group, rank %d of %d: parallel.collectives copy is impossible here (%s); use auto or nccl",
                     comm->name, comm->rank, comm->size, comm->why);
}

// --- life

static void copy_destroy_(Comm *comm) {
    Copies *self = copies_of_(comm);
    cudaSetDevice(self->cuda->device);
    for (cudaEvent_t event : self->pushed)
        if (event != NULL) cudaEventDestroy(event);
    if (self->ordered != NULL) cudaEventDestroy(self->ordered);
    if (self->stream != NULL) cudaStreamDestroy(self->stream);
    self->other->destroy(self->other);
    free(self->mapped);
    free(self);
}

Comm *comm_copy_create(Backend *be, Comm *other, Comm *host, bool demanded, Error *err) {
    Copies *self = (Copies *)xcalloc(1, sizeof *self);
    Comm *base = &self->base;
    snprintf(base->name, sizeof base->name, "%s", other->name);
    base->rank = other->rank, base->size = other->size, base->self = self;
    base->collective = copy_collective_, base->use_memory = copy_use_memory_, base->test = copy_test_,
    base->destroy = copy_destroy_;
    self->other = other, self->host = host, self->cuda = cuda_self(be), self->demanded = demanded;
    self->cuda->registers = false; // memory that other processes map must come from cudaMalloc
    cudaError_t status = cuda_first_stream(self->cuda, &self->stream);
    if (status == cudaSuccess) status = cudaEventCreateWithFlags(&self->ordered, cudaEventDisableTiming);
    for (int i = 0; i < PUSHED && status == cudaSuccess; i++)
        status = cudaEventCreateWithFlags(&self->pushed[i], cudaEventDisableTiming);
    if (status == cudaSuccess) return base;
    copy_fail_(self, status, err);
    copy_destroy_(base);
    return NULL;
}

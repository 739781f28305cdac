// NCCL's messages and collectives between the ranks of a run. When a rank's device reaches one, it posts a record in
// the job's segment. The receiver copies from the sender's memory, and sums are computed in rank order.
//
// Rules, with the documents they come from:
// - The first message between two ranks, and the first collective of a kind, connects them. That call blocks the host
//   until the other ranks have made theirs (NCCL 2.28 sources: group.cc asks transport.cc for ncclTransportP2pSetup;
//   user guide, NCCL_RUNTIME_CONNECT). A send ends when the receiver has taken the message. On hardware small sends may
//   end earlier, but no code may rely on that.
// - Calls of one communicator match in their order; a collective needs the same call, count and type on all ranks (user
//   guide, "Collective operations").
// - A receive that waits for long holds multiprocessors, and calls that drain the device wait with it. So our receives
//   are queued after their sender has announced the message (docs/cuda.md, "Messages and bundles"). By then the
//   receiver's clock covers all but the last few calls that the sender made before its send.
// - In place means that the rank's part of the larger buffer is the smaller one (user guide, "In-place operations").
// - ncclCommDestroy is "an intra-node collective call, which all ranks on the same node should call to avoid a hang"
//   (user guide, "Destroying a communicator"): a rank's proxy thread ends when its peers of the node have closed their
//   connections, and init.cc joins it. "All active ranks are required to call [ncclCommAbort] in order to abort".
// - A GPU is in a communicator once (init.cc: "Duplicate GPU detected").
// - A kernel that waits owns its blocks' multiprocessors (GROUP_BLOCKS each, or maxCTAs). Those of sends and receives
//   are a power of two, rounded up (paths.cc: ncclTopoComputeP2pChannels).
// - From compute capability 9.0 on NCCL launches clusters of four blocks (init.cc: cgaClusterSize), which share the
//   multiprocessors of one GPC. A product that leaves some free leaves about three in each GPC.
// - Ranks that launch the kernels of several communicators in different orders need room for all of them at once, or
//   a waiting kernel may keep out the kernel that it waits for (user guide, "Using multiple NCCL communicators
//   concurrently"). Here one kernel of each stream of a rank must fit on the smallest GPU with NVLink at once.
// - Sends and receives between ncclGroupStart and ncclGroupEnd are one operation of the stream, which ends when all of
//   them have ended (user guide, "Group Calls", "Point-to-point communication"). Here it is a collective: every rank of
//   the communicator makes the call, so nothing announces its messages. ncclGroupEnd connects all pairs at once. Groups
//   of other calls, and of several communicators or streams, are not modelled.
// - A communicator has two streams of its own (init.cc: deviceStream, hostStream).
// - Registered memory must not be freed before it is deregistered. Only memory from ncclMemAlloc is used as registered,
//   and only ncclMemFree frees it. If one rank's buffer of a collective is registered, the buffers of all ranks must be
//   registered, at the same offset (user guide, "User Buffer Registration").
#include "virtual.h"

#include <cstdio>
#include <cstdlib>
#include <list>
#include <map>
#include <nccl.h>
#include <set>
#include <sstream>
#include <unistd.h>

using namespace virtual_gpu;

struct VirtualComm {
    int index, rank, size, blocks, cluster;
    int64_t bytes = 0; // of its buffers
    uint64_t collectives = 0;
    std::map<std::pair<int, int>, uint64_t> messages; // from, to
    bool aborted = false;
};

namespace {

// Bytes of a channel's connections in both directions, of ring and tree: 10 MiB to receive and 2 MiB to send (NCCL's
// init.cc, p2p.cc: LL, LL128 and Simple).
constexpr int64_t CHANNEL_BYTES = 2 * (10 + 2) << 20;

enum Kind {
    KIND_MESSAGE,
    KIND_ALL_REDUCE,
    KIND_ALL_GATHER,
    KIND_REDUCE_SCATTER,
    KIND_REDUCE,
    KIND_BROADCAST,
    KIND_EXCHANGE
};
enum { GROUP_BLOCKS = 32, SMALLEST_GPU = 108, LAST_CALLS = 16 };
const char *const KIND_NAMES[] = {"a message",  "ncclAllReduce", "ncclAllGather",      "ncclReduceScatter",
                                  "ncclReduce", "ncclBroadcast", "a group of messages"};

thread_local std::string last_error;

Communicator *shared(const VirtualComm *comm) { return &job()->comms[comm->index]; }

// Returns whether this rank aborted, or a rank of another node, which closes a socket. Ranks of the same node share
// memory and do not notice an abort.
bool cut_off(const VirtualComm *comm) {
    int on = shared(comm)->aborted_on;
    return comm->aborted || (on > 0 && on != 1 + node());
}

int64_t width(int type) {
    return type == ncclInt8 ? 1 : type == ncclBfloat16 ? 2 : type == ncclFloat64 || type == ncclInt64 ? 8 : 4;
}

// One call: an end of a message, or this rank's part of a collective.
struct Part : NcclCall {
    VirtualComm *group;
    const void *in; // NULL: the receiving end of a message
    void *out;
    cudaStream_t stream;
    int root = -1;
    bool grouped = false; // a message of an exchange
    int post = -1;        // index of its post
    bool read = false;    // has read the inputs of all ranks
    std::vector<char> result = {};
};

Part collective_part(VirtualComm *comm, Kind kind, const void *in, void *out, size_t count, int type,
                     cudaStream_t stream) {
    return {{comm->index, kind, comm->rank, -1, 0, (int64_t)count, type}, comm, in, out, stream};
}

int64_t in_bytes(const Part &p) {
    return p.count * width(p.type) * (p.kind == KIND_REDUCE_SCATTER ? p.group->size : 1);
}

int64_t out_bytes(const Part &p) { return p.count * width(p.type) * (p.kind == KIND_ALL_GATHER ? p.group->size : 1); }

std::string describe(const Part &p) {
    if (p.kind != KIND_MESSAGE)
        return text("%s of %lld elements among %d ranks", KIND_NAMES[p.kind], (long long)p.count, p.group->size);
    return text("%s of %lld bytes %s rank %d", p.in != nullptr ? "ncclSend" : "ncclRecv",
                (long long)(p.count * width(p.type)), p.in != nullptr ? "to" : "from",
                shared(p.group)->process[p.in != nullptr ? p.target : p.source]);
}

// --- registered memory

struct Registered {
    const VirtualComm *comm;
    uintptr_t base;
    size_t bytes;
};
std::set<uintptr_t> by_nccl; // memory from ncclMemAlloc
std::list<Registered> registrations;

// Returns the offset in memory registered with the communicator; -1: not registered.
int64_t registered_at(const VirtualComm *comm, const void *memory) {
    uintptr_t at = (uintptr_t)memory;
    for (const Registered &each : registrations)
        if (each.comm == comm && at >= each.base && at < each.base + each.bytes) return (int64_t)(at - each.base);
    return -1;
}

// --- messages and collectives on the device

Outcome put_up(Part &p, const Access &access) {
    int owner = process();
    Post post = {p, true, false, process(), 0, {registered_at(p.group, p.in), registered_at(p.group, p.out)}};
    post.in = arena_offset(p.in, &owner);
    if (owner != process()) defect("%s reads memory of rank %d, mapped here: not modelled", access.what, owner);
    touch(access, p.in, in_bytes(p), false);
    JobLock lock;
    for (p.post = 0; p.post < POSTS && job()->posts[p.post].used;) p.post++;
    if (p.post == POSTS) defect("more than %d messages under way", POSTS);
    job()->clocks[p.post].copy(*access.clock);
    job()->posts[p.post] = post;
    ring();
    return OUTCOME_WAITS;
}

void join_post(const Part &p, int post) {
    auto lock = device_lock();
    stream_clock(p.stream).join(job()->clocks[post].at, job()->clocks[post].width);
}

Outcome send(Part &p, const Access &access) {
    if (p.post < 0) return put_up(p, access);
    JobLock lock;
    Post *post = &job()->posts[p.post];
    if (!post->taken && !cut_off(p.group)) return OUTCOME_WAITS;
    post->used = false;
    return OUTCOME_DONE;
}

Outcome receive(Part &p, const Access &access) {
    int at = 0;
    Post found; // a sender that is cut off takes its post away
    {
        JobLock lock;
        if (cut_off(p.group)) return OUTCOME_DONE;
        while (at < POSTS && !(job()->posts[at].used && !job()->posts[at].taken && job()->posts[at].same(p))) at++;
        if (at == POSTS) return OUTCOME_WAITS;
        found = job()->posts[at];
    }
    int64_t bytes = p.count * width(p.type), sent = found.count * width(found.type);
    if (sent != bytes) defect("%s meets a send of %lld bytes", describe(p).c_str(), (long long)sent);
    int host = found.process * CONTEXTS + HOST;
    uint32_t made = job()->clocks[at].get(host), known = access.clock->get(host);
    if (!p.grouped && p.sequence > 0 && made > known + LAST_CALLS) // the first message connects
        defect("%s was queued before its sender had announced the message: %u calls of the sender lie between, and "
               "during them the receive holds multiprocessors",
               describe(p).c_str(), made - known);
    join_post(p, at);
    touch(access, p.out, bytes, true);
    memcpy(p.out, arena_of(found.process) + found.in, (size_t)bytes);
    JobLock lock;
    job()->posts[at].taken = true;
    ring();
    return OUTCOME_DONE;
}

// Finds each rank's post of this collective; -1: it has not posted, or has left. Returns the number of posts.
int find_posts(const Part &p, int posts[RANKS]) {
    int count = 0;
    std::fill_n(posts, p.group->size, -1);
    for (int i = 0; i < POSTS; i++)
        if (job()->posts[i].used && job()->posts[i].same(p)) posts[job()->posts[i].source] = i, count++;
    return count;
}

void check_match(const Part &p, const Post &other) {
    const int64_t mine[] = {registered_at(p.group, p.in), registered_at(p.group, p.out)};
    for (int i = 0; i < 2; i++)
        if (mine[i] != other.registered[i])
            defect(
                "%s: its %s is at %lld of what is registered here, and at %lld on rank %d of the communicator (-1: not "
                "registered)",
                describe(p).c_str(), i == 0 ? "input" : "output", (long long)mine[i], (long long)other.registered[i],
                other.source);
    if (other.kind == p.kind && other.count == p.count && other.type == p.type) return;
    defect("%s meets %s of %lld elements of type %d on rank %d of the communicator", describe(p).c_str(),
           KIND_NAMES[other.kind], (long long)other.count, other.type, other.source);
}

// Elements [first, first + count) of all inputs, summed in single precision in the order of the ranks.
void sum(const Part &p, char *out, const char *const inputs[], int64_t first) {
    cudaDataType_t type = p.type == ncclFloat64 ? CUDA_R_64F : p.type == ncclFloat32 ? CUDA_R_32F : CUDA_R_16BF;
    if (type == CUDA_R_16BF && p.type != ncclBfloat16)
        defect("%s: sums of this type are not modelled", describe(p).c_str());
    for (int64_t i = 0; i < p.count; i++) {
        float single = 0;
        double exact = 0;
        for (int r = 0; r < p.group->size; r++) {
            double each = number_at(inputs[r], first + i, type);
            single = r == 0 ? (float)each : single + (float)each;
            exact += each;
        }
        put_number(out, i, type, type == CUDA_R_64F ? exact : single);
    }
}

void compute(Part &p, const Post posts[]) {
    const char *inputs[RANKS];
    int64_t bytes = p.count * width(p.type);
    int rank = p.group->rank;
    for (int r = 0; r < p.group->size; r++) inputs[r] = arena_of(posts[r].process) + posts[r].in;
    if (p.kind == KIND_REDUCE && p.root != rank) return; // only the root writes
    p.result.resize((size_t)out_bytes(p));
    if (p.kind == KIND_BROADCAST) memcpy(p.result.data(), inputs[p.root], (size_t)bytes);
    else if (p.kind == KIND_ALL_GATHER)
        for (int r = 0; r < p.group->size; r++) memcpy(p.result.data() + r * bytes, inputs[r], (size_t)bytes);
    else sum(p, p.result.data(), inputs, p.kind == KIND_REDUCE_SCATTER ? rank * p.count : 0);
}

// Every rank reads all inputs before any rank writes an output, since outputs may be inputs.
Outcome collective(Part &p, const Access &access) {
    int posts[RANKS];
    if (p.post < 0) return put_up(p, access);
    Post *mine = &job()->posts[p.post];
    if (!p.read) {
        Post copies[RANKS]; // a rank that is cut off takes its post away
        {
            JobLock lock;
            if (cut_off(p.group)) return mine->used = false, OUTCOME_DONE;
            if (find_posts(p, posts) < p.group->size) return OUTCOME_WAITS;
            for (int r = 0; r < p.group->size; r++) copies[r] = job()->posts[posts[r]];
        }
        for (int r = 0; r < p.group->size; r++) check_match(p, copies[r]), join_post(p, posts[r]);
        compute(p, copies);
        JobLock lock;
        mine->taken = p.read = true;
        ring();
        return OUTCOME_WAITS;
    }
    {
        JobLock lock;
        find_posts(p, posts);
        for (int r = 0; r < p.group->size; r++)
            if (posts[r] >= 0 && !job()->posts[posts[r]].taken) return OUTCOME_WAITS;
        mine->used = false;
    }
    touch(access, p.out, (int64_t)p.result.size(), true);
    memcpy(p.out, p.result.data(), p.result.size());
    ring();
    return OUTCOME_DONE;
}

// --- connecting

void announce(const Part &p) {
    JobLock lock;
    if (p.kind == KIND_MESSAGE) shared(p.group)->first[p.source][p.target][p.in == nullptr] = 1;
    else shared(p.group)->called[p.group->rank] |= 1u << p.kind;
    ring();
}

void connect(const Part &p) {
    const Communicator *all = shared(p.group);
    bool message = p.kind == KIND_MESSAGE;
    auto called = [&] {
        if (message && all->first[p.source][p.target][0] && all->first[p.source][p.target][1]) return true;
        int ranks = 0;
        while (!message && ranks < p.group->size && (all->called[ranks] >> p.kind & 1) != 0) ranks++;
        return ranks == p.group->size || cut_off(p.group);
    };
    if (called() || (!message && !options().connects_late)) return;
    host_waits(called,
               text("%s, to connect for %s", message ? "its peer's first matching call" : "the other ranks' first call",
                    describe(p).c_str()),
               true);
}

// --- queueing

// The bytes of a gather or a scatter are those of all ranks. A reduce and a broadcast send as much as their halves of
// an all-reduce.
Encounter encounter(const Part &p) {
    bool whole = p.kind == KIND_ALL_GATHER || p.kind == KIND_REDUCE_SCATTER, both = p.kind == KIND_ALL_REDUCE;
    int64_t bytes = p.count * width(p.type) * (whole ? p.group->size : 1);
    CostCollective as = both                                                     ? COST_ALL_REDUCE
                        : p.kind == KIND_REDUCE_SCATTER || p.kind == KIND_REDUCE ? COST_REDUCE_SCATTER
                                                                                 : COST_ALL_GATHER;
    return {p, p.group->size, bytes, 0, both ? 2 : 1, p.group->blocks, p.group->cluster, as};
}

// One encounter of all ranks in a dry run. Its bytes are those that this rank sends, and an equal block for itself.
Encounter encounter_of(const std::vector<Part> &parts) {
    VirtualComm *comm = parts[0].group;
    Part whole = collective_part(comm, KIND_EXCHANGE, nullptr, nullptr, 0, ncclInt8, parts[0].stream);
    whole.sequence = comm->collectives++;
    Encounter e = encounter(whole);
    int64_t sent = 0;
    for (const Part &p : parts) {
        if (p.in == nullptr) continue;
        sent += p.count;
        if (shared(comm)->node[p.target] != node()) e.away += p.count;
    }
    e.bytes = sent * comm->size / (comm->size - 1), e.collective = COST_EXCHANGE;
    return e;
}

std::map<cudaStream_t, std::set<VirtualComm *>> users; // of streams; one kernel of a stream runs at a time

void check_room(VirtualComm *comm, cudaStream_t stream) {
    const int fits = std::min((int)SMALLEST_GPU, options().multiprocessors);
    int blocks = 0;
    if (!users[stream].insert(comm).second) return;
    for (const auto &each : users) {
        int most = 0;
        for (const VirtualComm *user : each.second) most = std::max(most, user->blocks);
        blocks += most;
    }
    if (blocks > fits)
        defect("the communicators of this rank have kernels of %d blocks on its streams, of which %d fit at once: used "
               "in different orders on two ranks, what waits keeps out what it waits for (set maxCTAs)",
               blocks, fits);
}

// Queues one call, or the messages of a group.
ncclResult_t launch(std::shared_ptr<std::vector<Part>> parts) {
    const Part &first = parts->front();
    check_room(first.group, first.stream);
    for (const Part &p : *parts) announce(p);
    for (const Part &p : *parts) connect(p);
    if (first.kind != KIND_MESSAGE || first.grouped) note_collective(first.stream);
    if (first.kind == KIND_MESSAGE && (first.group->blocks & (first.group->blocks - 1)) != 0)
        defect("%s takes more than the %d blocks of maxCTAs", describe(first).c_str(), first.group->blocks);
    if (first.group->cluster > 1) clusters_used() = true;
    Op op;
    op.dry.kind = STEP_MEET, op.dry.blocks = first.group->blocks;
    if (dry()) op.dry.encounter = first.grouped ? encounter_of(*parts) : encounter(first);
    op.what = describe(first);
    if (first.grouped) op.what = text("a group of %zu messages, %s first", parts->size(), op.what.c_str());
    op.remote = true;
    op.blocks = first.group->blocks;
    auto open = std::make_shared<std::vector<bool>>(parts->size(), true);
    op.step = [parts, open](const Access &access) {
        bool waits = false;
        for (size_t i = 0; i < parts->size(); i++) {
            Part &p = (*parts)[i];
            auto step = p.kind != KIND_MESSAGE ? collective : p.in != nullptr ? send : receive;
            if ((*open)[i]) (*open)[i] = step(p, access) != OUTCOME_DONE;
            waits |= (*open)[i];
        }
        return waits ? OUTCOME_WAITS : OUTCOME_DONE;
    };
    op.waits_for = [parts, open] {
        size_t i = 0;
        while (!(*open)[i]) i++;
        return "the other side of " + describe((*parts)[i]);
    };
    enqueue(first.stream, std::move(op));
    return sticky() == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

struct Group {
    int depth = 0;
    std::vector<Part> parts;
};
thread_local Group group;

ncclResult_t call(Part part) {
    VirtualComm *comm = part.group;
    bool message = part.kind == KIND_MESSAGE;
    if (cut_off(comm)) return last_error = "socketProgress: Connection closed by remote peer", ncclRemoteError;
    if (sticky() != cudaSuccess)
        return last_error = "Cuda failure 'unspecified launch failure'", ncclUnhandledCudaError;
    if (part.in != nullptr) range(part.in, in_bytes(part), describe(part).c_str());
    if (part.out != nullptr) range(part.out, out_bytes(part), describe(part).c_str());
    part.sequence = message ? comm->messages[{part.source, part.target}]++ : comm->collectives++;
    part.grouped = group.depth > 0;
    if (part.grouped && !message) defect("%s in a group: not modelled", describe(part).c_str());
    if (part.grouped) return group.parts.push_back(std::move(part)), ncclSuccess;
    if (message && part.sequence > 0) messages_begin(); // the first one connects
    return launch(std::make_shared<std::vector<Part>>(1, std::move(part)));
}

// Makes a collective call. Reports a defect if its buffers overlap but its input is not at `in_place`, as the guide
// defines that. root -1: the call has none.
ncclResult_t collect(Part part, const void *in_place, int root = -1) {
    const char *in = (const char *)part.in, *out = (const char *)part.out;
    bool apart = in + in_bytes(part) <= out || out + out_bytes(part) <= in;
    if (root < -1 || root >= part.group->size) return ncclInvalidArgument;
    if (part.kind == KIND_REDUCE && root != part.group->rank) apart = true; // only the root writes
    if (!apart && part.in != in_place) defect("%s: its buffers overlap without being in place", describe(part).c_str());
    part.root = root;
    return call(std::move(part));
}

// Sends, or receives if `from` is NULL.
ncclResult_t message(VirtualComm *comm, int source, int target, const void *from, void *to, size_t count, int type,
                     cudaStream_t stream) {
    if (source < 0 || source >= comm->size || target < 0 || target >= comm->size) return ncclInvalidArgument;
    return call({{comm->index, KIND_MESSAGE, source, target, 0, (int64_t)count, type}, comm, from, to, stream});
}

// Blocks of a cluster. The environment has precedence over the configuration (init.cc: envConfigOverride).
int cluster_size(const ncclConfig_t *config) {
    enum { DEFAULT = 4, FIRST_WITH_CLUSTERS = 90 };
    const char *asked = getenv("NCCL_CGA_CLUSTER_SIZE");
    if (dry() && dry_figures().capability < FIRST_WITH_CLUSTERS) return 1;
    if (asked != nullptr) return atoi(asked);
    return config->cgaClusterSize != NCCL_CONFIG_UNDEF_INT ? config->cgaClusterSize : DEFAULT;
}

int join_communicator(const ncclUniqueId &id, int size, int rank) {
    JobLock lock;
    Communicator *comm = nullptr, *unused = nullptr;
    for (Communicator &each : job()->comms) {
        if (each.used && memcmp(each.id, id.internal, sizeof id.internal) == 0) comm = &each;
        if (!each.used && unused == nullptr) unused = &each;
    }
    if (comm == nullptr) {
        if (unused == nullptr) defect("more than %d communicators", COMMUNICATORS);
        comm = unused;
        memset(comm, 0, sizeof *comm);
        memcpy(comm->id, id.internal, sizeof id.internal);
        comm->used = true, comm->size = size;
    }
    if (comm->size != size) defect("a communicator of %d ranks is joined as one of %d", comm->size, size);
    comm->process[rank] = process(), comm->gpu[rank] = current_gpu(), comm->node[rank] = node();
    ncclGetVersion(&comm->version[rank]);
    comm->joined++;
    ring();
    return (int)(comm - job()->comms);
}

// Waits until the other ranks have called too: the ranks of this node if `of_node`, else all ranks.
void leave_communicator(VirtualComm *comm, bool of_node, const char *call) {
    Communicator *all = shared(comm);
    memory_charge(-comm->bytes);
    for (auto &each : users) each.second.erase(comm);
    __atomic_store_n(&all->leaves[comm->rank], true, __ATOMIC_SEQ_CST);
    ring();
    auto others_called = [=] {
        for (int r = 0; r < comm->size; r++)
            if (!all->leaves[r] && (!of_node || all->node[r] == node())) return false;
        return true;
    };
    host_waits(others_called, text("the other ranks' %s of a communicator of %d", call, comm->size), true);
    JobLock lock;
    if (++all->left == all->size) all->used = false;
}

} // namespace

bool &virtual_gpu::clusters_used() {
    static bool used = false;
    return used;
}

void virtual_gpu::check_unregistered(const Region &region) {
    for (const Registered &each : registrations)
        if (each.base >= region.base && each.base < region.base + region.size)
            defect("device allocation %lld is freed while it is registered with a communicator",
                   (long long)region.number);
    if (by_nccl.count(region.base) > 0)
        defect("cudaFree frees device allocation %lld, which is ncclMemAlloc's", (long long)region.number);
}

extern "C" {

ncclResult_t ncclMemAlloc(void **memory, size_t bytes) {
    static uint64_t asked = 0;
    if (fault_comes("memalloc", ++asked) || cudaMalloc(memory, bytes) != cudaSuccess) return ncclUnhandledCudaError;
    by_nccl.insert((uintptr_t)*memory);
    return ncclSuccess;
}

ncclResult_t ncclMemFree(void *memory) {
    if (by_nccl.erase((uintptr_t)memory) == 0)
        defect("ncclMemFree is given %s, which is not ncclMemAlloc's", place_of(memory).c_str());
    return cudaFree(memory) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}

// Other memory is accepted but not used as registered ("legacy buffer registration is disabled by default").
ncclResult_t ncclCommRegister(const ncclComm_t comm, void *memory, size_t bytes, void **handle) {
    Region region = range(memory, (int64_t)bytes, "ncclCommRegister");
    bool usable = by_nccl.count(region.base) > 0;
    registrations.push_back({comm, (uintptr_t)memory, usable ? bytes : 0});
    *handle = &registrations.back();
    return ncclSuccess;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle) {
    size_t before = registrations.size();
    registrations.remove_if([=](const Registered &each) { return &each == handle && each.comm == comm; });
    if (registrations.size() < before) return ncclSuccess;
    last_error = "Deregister: Could not find handle";
    return ncclInvalidUsage;
}

ncclResult_t ncclGetVersion(int *version) {
    std::istringstream versions(options().nccl);
    for (int n = 0; n <= node(); n++) versions >> *version;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result) {
    return result == ncclSuccess              ? "no error"
           : result == ncclUnhandledCudaError ? "unhandled cuda error (run with NCCL_DEBUG=INFO for details)"
           : result == ncclInvalidUsage       ? "invalid usage (run with NCCL_DEBUG=WARN for details)"
           : result == ncclRemoteError        ? "remote process exited or there was a network error"
                                              : "internal error - please report this issue to the NCCL developers";
}

const char *ncclGetLastError(ncclComm_t) { return last_error.c_str(); }

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    static int count = 0;
    memset(id, 0, sizeof *id);
    snprintf(id->internal, sizeof id->internal, "%d.%d", (int)getpid(), count++);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int size, ncclUniqueId id, int rank, ncclConfig_t *config) {
    if (size < 1 || size > RANKS || rank < 0 || rank >= size) return ncclInvalidArgument;
    if (sticky() != cudaSuccess) return ncclUnhandledCudaError;
    take_queues(2);
    VirtualComm *comm = new VirtualComm();
    comm->rank = rank, comm->size = size;
    comm->blocks = config->maxCTAs != NCCL_CONFIG_UNDEF_INT ? config->maxCTAs : (int)GROUP_BLOCKS;
    comm->cluster = cluster_size(config);
    comm->bytes = comm->blocks * CHANNEL_BYTES;
    if (!memory_charge(comm->bytes)) return last_error = "Cuda failure 2 'out of memory'", ncclUnhandledCudaError;
    comm->index = join_communicator(id, size, rank);
    Communicator *all = shared(comm);
    host_waits([all] { return __atomic_load_n(&all->joined, __ATOMIC_SEQ_CST) >= all->size; },
               text("the other ranks of a communicator of %d (ncclCommInitRank)", size), true);
    // init.cc of NCCL compares the versions of all ranks before it looks at their GPUs.
    for (int r = 0; r < size; r++)
        if (all->version[r] != all->version[rank]) {
            last_error = text("Mismatched NCCL version detected : rank %d version %d rank %d version %d", r,
                              all->version[r], rank, all->version[rank]);
            return ncclInvalidUsage;
        }
    for (int r = 0; r < size; r++)
        if (r != rank && (options().mig || all->gpu[r] == all->gpu[rank]) && all->node[r] == all->node[rank]) {
            last_error =
                text("Duplicate GPU detected : rank %d and rank %d both on CUDA device %d", rank, r, all->gpu[rank]);
            return ncclInvalidUsage;
        }
    *out = comm;
    answer(cudaErrorNoKernelImageForDevice); // ncclInitKernelsForDevice ignores kernels without code for this GPU
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    wait_for_device("the device to drain, so that a communicator can end (ncclCommDestroy)");
    leave_communicator(comm, true, "ncclCommDestroy");
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
    {
        JobLock lock;
        comm->aborted = true;
        shared(comm)->aborted_on = 1 + node();
    }
    leave_communicator(comm, false, "ncclCommAbort");
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state) {
    static uint64_t asked = 0;
    bool broken = fault_comes("nccl", ++asked), fails = fault_comes("query", asked);
    if (broken || fails) last_error = "socketPollConnect: connect to 10.0.0.2 returned Connection refused";
    *state = broken || cut_off(comm) ? ncclRemoteError : ncclSuccess;
    return fails ? ncclRemoteError : ncclSuccess;
}

ncclResult_t ncclGroupStart(void) {
    group.depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void) {
    if (group.depth-- == 0) return ncclInvalidUsage;
    std::vector<Part> parts;
    parts.swap(group.parts);
    for (const Part &p : parts)
        if (p.group != parts[0].group || p.stream != parts[0].stream)
            defect("a group of messages on several communicators or streams: not modelled");
    return parts.empty() ? ncclSuccess : launch(std::make_shared<std::vector<Part>>(std::move(parts)));
}

ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
    return message(comm, comm->rank, peer, from, nullptr, count, type, stream);
}

ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
    return message(comm, peer, comm->rank, nullptr, to, count, type, stream);
}

ncclResult_t ncclAllReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t, ncclComm_t comm,
                           cudaStream_t stream) {
    return collect(collective_part(comm, KIND_ALL_REDUCE, from, to, count, type, stream), to);
}

ncclResult_t ncclAllGather(const void *from, void *to, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
    const void *in_place = (char *)to + comm->rank * (int64_t)count * width(type);
    return collect(collective_part(comm, KIND_ALL_GATHER, from, to, count, type, stream), in_place);
}

ncclResult_t ncclReduce(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t, int root,
                        ncclComm_t comm, cudaStream_t stream) {
    return collect(collective_part(comm, KIND_REDUCE, from, to, count, type, stream), to, root);
}

ncclResult_t ncclBroadcast(const void *from, void *to, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
    return collect(collective_part(comm, KIND_BROADCAST, from, to, count, type, stream), to, root);
}

ncclResult_t ncclReduceScatter(const void *from, void *to, size_t count, ncclDataType_t type, ncclRedOp_t,
                               ncclComm_t comm, cudaStream_t stream) {
    const void *in_place = (char *)to - comm->rank * (int64_t)count * width(type);
    return collect(collective_part(comm, KIND_REDUCE_SCATTER, from, to, count, type, stream), in_place);
}
}

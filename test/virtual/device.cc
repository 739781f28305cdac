// Streams, events and the one thread that executes. It takes one step of one stream at a time: a kernel, a piece of a
// copy, or a check whether an event has passed or a partner has arrived. VIRTUAL_ORDER selects among the streams that
// can advance: the first issued, the last issued, or a random one by a seed. A program without races computes the same
// results in every order.
//
// Rules, with the documents they come from:
// - Work of one stream runs in order; only events order streams (CUDA C++ programming guide, "Streams").
// - An MPI library with support for CUDA may start CUDA in MPI_Init (openucx/ucx issue 9493, pmodels/mpich issue 5810).
//   So the variables that CUDA reads at its start are set before.
// - Streams share the hardware's queues (CUDA_DEVICE_MAX_CONNECTIONS): work that cannot start yet holds up what was
//   issued after it to other streams of its queue ("False dependencies", Hyper-Q sample, programming guide).
// - The first launch of a kernel loads it, which may wait until the device has drained (programming guide, "Lazy
//   loading", "Concurrent execution"); here it always does.
// - A kernel that waits for another GPU keeps its multiprocessors; one that finds none waits (NCCL user guide, "Using
//   multiple NCCL communicators concurrently").
// - A matrix product of Hopper's persistent kernels owns its multiprocessors until it ends. A collective that becomes
//   ready together with a product must start first: the product's stream waits for an event that the collective's
//   stream records after its own wait (TransformerEngine orders them for this reason, comm_gemm_overlap.cpp). The rule
//   applies only if the collective's stream has no other work left by then.
#include "virtual.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <dlfcn.h>
#include <map>
#include <set>
#include <thread>
#include <unistd.h>

struct VirtualStream {
    int context, queue;
    virtual_gpu::Clock clock;
    std::deque<virtual_gpu::Op> ops;
    // calls: waits and collectives so far. collective: number of the latest collective among them. first: it must start
    // before products of `after`, the stream that it waited for. seen: calls of each other stream that were waited for.
    int64_t calls, collective;
    bool first;
    cudaStream_t after;
    std::map<cudaStream_t, int64_t> seen;
};

namespace virtual_gpu {

namespace {

struct Device {
    std::mutex lock;
    std::condition_variable changed, idle;
    std::vector<VirtualStream *> streams;
    bool contexts[CONTEXTS] = {true}; // in use; the host's is
    std::vector<Clock> left;          // clocks of destroyed streams, by context
    Clock host;
    uint64_t issued = 0, random = 0, steps = 0;
    int next_queue = 0, busy_blocks = 0;
    bool reads_late = false; // an upload may still read ordinary memory (VIRTUAL_PAGEABLE=late)
    bool listens = false;    // waits for the job's bell, not for `idle`
    bool messages = false;   // messages_begin
    std::set<std::string> loaded;
    std::string host_waits;
    cudaError_t error = cudaSuccess;
};

void serve(Device *d);
void connect_messages();

bool drained(const VirtualStream *stream) {
    return dry() ? line_idle(stream->context % CONTEXTS) : stream->ops.empty();
}

Device &device() {
    // Never destroyed: its thread runs until the process ends.
    static Device *made = [] {
        Device *d = new Device;
        d->left.resize(CONTEXTS);
        d->random = options().seed * 6364136223846793005ull + (uint64_t)process();
        d->host.set(process() * CONTEXTS + HOST, 1);
        if (getenv("VIRTUAL_MPI_WITHOUT") != nullptr)
            defect(
                "%s was not set when MPI started; an MPI with support for CUDA starts CUDA there, which reads it once",
                getenv("VIRTUAL_MPI_WITHOUT"));
        if (dry()) return d; // its streams are lines of clock.cc
        std::thread(serve, d).detach();
        connect_messages();
        return d;
    }();
    return *made;
}

uint64_t draw(Device *d) {
    d->random = d->random * 6364136223846793005ull + 1442695040888963407ull;
    return d->random >> 33;
}

// Returns whether all earlier work of the same hardware queue has started.
bool queue_lets(Device *d, const VirtualStream *stream) {
    const Op &head = stream->ops.front();
    if (head.started) return true;
    for (const VirtualStream *other : d->streams) {
        if (other == stream || other->queue != stream->queue) continue;
        for (const Op &op : other->ops)
            if (op.issue < head.issue && !op.started) return false;
    }
    return true;
}

bool blocks_free(Device *d, const Op &op) {
    return op.started || op.blocks + d->busy_blocks <= options().multiprocessors;
}

std::vector<VirtualStream *> candidates(Device *d) {
    std::vector<VirtualStream *> found;
    for (VirtualStream *stream : d->streams)
        if (!stream->ops.empty() && queue_lets(d, stream) && blocks_free(d, stream->ops.front()))
            found.push_back(stream);
    std::sort(found.begin(), found.end(), [](const VirtualStream *a, const VirtualStream *b) {
        return a->ops.front().issue < b->ops.front().issue;
    });
    if (options().order == ORDER_NEWEST) std::reverse(found.begin(), found.end());
    if (options().order == ORDER_RANDOM)
        for (size_t i = found.size(); i > 1; i--) std::swap(found[i - 1], found[draw(d) % i]);
    return found;
}

void finish(Device *d, VirtualStream *stream) {
    Op &op = stream->ops.front();
    if (op.started && op.remote) d->busy_blocks -= op.blocks;
    stream->ops.pop_front();
    progressed();
    d->changed.notify_all();
}

// Runs one step of the stream's first operation, with the lock released meanwhile. Returns its outcome.
Outcome advance(Device *d, VirtualStream *stream, std::unique_lock<std::mutex> &lock) {
    Op &op = stream->ops.front();
    if (!op.started) {
        op.started = true;
        if (op.remote) d->busy_blocks += op.blocks;
        stream->clock.join(op.queued);
        stream->clock.set(stream->context, stream->clock.get(stream->context) + 1);
        remember(stream->context % CONTEXTS, stream->clock.get(stream->context), op.what.c_str());
    }
    Access access = {&stream->clock, stream->context, op.what.c_str()};
    lock.unlock();
    Outcome outcome = op.step(access);
    lock.lock();
    if (outcome == OUTCOME_DONE) finish(d, stream);
    if (outcome == OUTCOME_WAITS && !op.remote) op.started = false; // an event: nothing runs yet
    return outcome;
}

void inject_fault(Device *d) {
    if (fault_comes("stops", d->steps + 1)) raise(SIGSTOP);
    if (!fault_comes("lost", ++d->steps)) return;
    __atomic_store_n(&job()->lost, true, __ATOMIC_SEQ_CST);
    d->error = cudaErrorLaunchFailure;
    for (VirtualStream *stream : d->streams) stream->ops.clear();
    d->changed.notify_all();
}

// Waits until work is queued or, if `remote`, until another process may have posted something.
void rest(Device *d, std::unique_lock<std::mutex> &lock, bool remote, uint32_t bell) {
    if (!remote) {
        d->idle.wait_for(lock, std::chrono::milliseconds(200));
        return;
    }
    d->listens = true;
    lock.unlock();
    wait_bell(bell, 0.002);
    lock.lock();
    d->listens = false;
}

void serve(Device *d) {
    std::unique_lock<std::mutex> lock(d->lock);
    for (;;) {
        uint32_t bell = __atomic_load_n(&job()->bell, __ATOMIC_SEQ_CST);
        bool moved = false, waits = false, remote = false;
        for (VirtualStream *stream : candidates(d)) {
            remote = remote || stream->ops.front().remote;
            Outcome outcome = advance(d, stream, lock);
            waits = waits || outcome == OUTCOME_WAITS;
            moved = outcome != OUTCOME_WAITS;
            if (moved) break;
        }
        if (moved) {
            inject_fault(d);
            continue;
        }
        bool pending = false;
        for (const VirtualStream *stream : d->streams) pending = pending || !stream->ops.empty();
        if (pending) {
            lock.unlock();
            watch_progress();
            lock.lock();
        }
        rest(d, lock, remote || waits, bell);
    }
}

// --- the host's clock goes with the messages that the program sends through MPI (messages.c)

void sent(int to) {
    auto lock = device_lock();
    int self = process() * CONTEXTS + HOST;
    Clock &clock = device().host;
    {
        JobLock job_lock;
        job()->mail[process()][to].copy(clock);
    }
    clock.set(self, clock.get(self) + 1);
    progressed();
}

void received(int from) {
    auto lock = device_lock();
    JobLock job_lock;
    const SharedClock *mail = &job()->mail[from][process()];
    device().host.join(mail->at, mail->width);
    progressed();
}

void touched(void *memory, int64_t bytes, bool writes) {
    if (memory == nullptr || bytes == 0) return;
    Region region = region_of(memory);
    if (region.kind == REGION_NONE) return;
    if (region.kind != REGION_PINNED)
        defect("MPI is given %s: it reads and writes host memory", place_of(memory).c_str());
    auto lock = device_lock();
    touch(host_access("MPI"), memory, bytes, writes);
}

void connect_messages() {
    VirtualMessages *table = (VirtualMessages *)dlsym(RTLD_DEFAULT, "virtual_messages");
    if (table != nullptr) *table = {sent, received, touched}; // test_cuda sends no messages
}

} // namespace

std::unique_lock<std::mutex> device_lock() { return std::unique_lock<std::mutex>(device().lock); }

cudaError_t sticky() { return device().error; }

void host_join(const Clock &other) {
    auto lock = device_lock();
    device().host.join(other);
}

Clock &stream_clock(cudaStream_t stream) { return stream->clock; }

Access host_access(const char *what) { return {&device().host, process() * CONTEXTS + HOST, what}; }

const char *stream_name(int context) {
    static std::string texts[CONTEXTS];
    if (texts[context].empty()) texts[context] = text("stream %d", context);
    return texts[context].c_str();
}

void enqueue(cudaStream_t stream, Op op) {
    Device &d = device();
    std::unique_lock<std::mutex> lock(d.lock);
    if (std::find(d.streams.begin(), d.streams.end(), stream) == d.streams.end())
        defect("%s is queued on a stream that does not exist (the default stream is not used here)", op.what.c_str());
    if (d.error != cudaSuccess) return;
    if (d.reads_late)
        defect(
            "%s is queued after an upload from ordinary memory that was not waited for: a GPU that reaches this memory "
            "itself may read it later",
            op.what.c_str());
    d.reads_late = op.reads_late;
    if (dry()) return lock.unlock(), line_add(stream->context % CONTEXTS, op.dry);
    int host = process() * CONTEXTS + HOST;
    op.queued = d.host;
    d.host.set(host, d.host.get(host) + 1); // what the host does from here on is not ordered before it
    op.issue = ++d.issued;
    stream->ops.push_back(std::move(op));
    progressed();
    d.idle.notify_all();
    if (d.listens) ring();
    lock.unlock();
    if (options().blocking) cudaStreamSynchronize(stream);
}

void host_waits(const std::function<bool()> &done, const std::string &what, bool remote) {
    if (dry()) return clock_wait(done, what);
    Device &d = device();
    std::unique_lock<std::mutex> lock(d.lock);
    d.host_waits = what;
    while (!done()) {
        if (d.error != cudaSuccess && !remote) break;
        uint32_t bell = __atomic_load_n(&job()->bell, __ATOMIC_SEQ_CST);
        if (!remote) d.changed.wait_for(lock, std::chrono::milliseconds(200));
        else {
            lock.unlock();
            if (!done()) wait_bell(bell, 0.002);
            lock.lock();
        }
        lock.unlock();
        watch_progress();
        lock.lock();
    }
    d.host_waits.clear();
    d.reads_late = false;
    progressed();
}

void wait_for_device(const std::string &why) {
    Device &d = device();
    host_waits([&d] { return std::all_of(d.streams.begin(), d.streams.end(), drained); }, why, false);
}

// Waits for the device to drain at a kernel's first launch.
//
// The size of the libraries' kernels is not measured; 8 MiB each is a guess.
void load_once(const std::string &kernel, bool library) {
    constexpr int64_t LOADED_BYTES = 8 << 20;
    static std::set<std::string> charged;
    if (library && charged.insert(kernel).second && !memory_charge(LOADED_BYTES)) memory_charge(memory_left());
    if (!options().loads_late) return;
    {
        auto lock = device_lock();
        if (!device().loaded.insert(kernel).second) return;
        if (options().loads_late == 2 && device().messages)
            defect("%s is launched for the first time after messages between ranks have begun: to load it may take "
                   "a device that has drained, and a receive may wait there for its sender",
                   kernel.c_str());
    }
    wait_for_device("the device to drain, so that " + kernel + " can be loaded at its first launch");
}

void take_queues(int count) {
    auto lock = device_lock();
    device().next_queue += count;
}

void messages_begin() {
    auto lock = device_lock();
    device().messages = true;
}

void note_collective(cudaStream_t stream) {
    auto lock = device_lock();
    stream->first = stream->after != nullptr && stream->after->seen[stream] >= stream->collective;
    stream->collective = ++stream->calls;
}

void check_order(cudaStream_t stream, const std::string &product) {
    auto lock = device_lock();
    for (VirtualStream *other : device().streams)
        if (other->first && other->after == stream && stream->seen[other] < other->collective - 1)
            defect(
                "%s is queued after a collective on %s, and may start before it and keep its multiprocessors until it "
                "ends: nothing orders the two",
                product.c_str(), stream_name(other->context % CONTEXTS));
}

// Prints the waits of the host and of each stream on this rank.
void dump_waits() {
    Device &d = device();
    std::unique_lock<std::mutex> lock(d.lock, std::try_to_lock);
    std::string all = text("virtual GPU: [rank %d] deadlock: nothing has moved on any rank for %.0f s.", process(),
                           options().patience);
    if (!d.host_waits.empty()) all += " The host waits for " + d.host_waits + ".";
    for (const VirtualStream *stream : d.streams) {
        if (stream->ops.empty()) continue;
        const Op &op = stream->ops.front();
        std::string reason = op.waits_for ? op.waits_for() : "its turn";
        if (!queue_lets(&d, stream)) reason = "earlier work of another stream in the same hardware queue";
        if (!blocks_free(&d, op)) reason = "free multiprocessors";
        all += text(" %s: %s waits for %s, %zu more after it.", stream_name(stream->context % CONTEXTS),
                    op.what.c_str(), reason.c_str(), stream->ops.size() - 1);
    }
    fprintf(stderr, "%s\n", all.c_str());
}

} // namespace virtual_gpu

// --- streams and events, as the runtime's calls make them

using namespace virtual_gpu;

// One recording of an event; in a dry run it holds a mark.
struct Record {
    bool done = false;
    Clock clock;
    double seconds = 0;
    int mark = dry() ? mark_make() : -1;
    ~Record() {
        if (mark >= 0) mark_release(mark);
    }
    bool passed() {
        if (mark >= 0 && !done && mark_passed(mark)) done = true, seconds = mark_time(mark);
        return done;
    }
};

struct VirtualEvent {
    bool timing;
    std::shared_ptr<Record> latest; // NULL: never recorded
    cudaStream_t stream = nullptr;  // stream that recorded it last
    int64_t calls = 0;              // calls of `stream` at that time
};

static std::set<cudaEvent_t> &events() {
    static std::set<cudaEvent_t> all;
    return all;
}

static void check_event(cudaEvent_t event, const char *call) {
    auto lock = device_lock();
    if (events().count(event) == 0) defect("%s is given an event that does not exist", call);
}

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned, int) {
    if (sticky() != cudaSuccess) return answer(sticky());
    Device &d = device();
    std::unique_lock<std::mutex> lock(d.lock);
    int context = 1;
    while (context < CONTEXTS && d.contexts[context]) context++;
    if (context == CONTEXTS) defect("more than %d streams", CONTEXTS - 1);
    VirtualStream *made = new VirtualStream();
    d.contexts[context] = true;
    made->context = process() * CONTEXTS + context;
    made->clock = d.left[(size_t)context];
    made->queue = d.next_queue++ % options().queues;
    d.streams.push_back(made);
    *stream = made;
    return answer(cudaSuccess);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

// Work that is still queued goes on: "the function will return immediately and the resources associated with stream
// will be released automatically once the device has completed all work in stream". Here the call waits for that.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    Device &d = device();
    host_waits([stream] { return drained(stream); }, "the work of a stream that it destroys", false);
    std::unique_lock<std::mutex> lock(d.lock);
    auto at = std::find(d.streams.begin(), d.streams.end(), stream);
    if (at == d.streams.end()) defect("cudaStreamDestroy is given a stream that does not exist");
    d.streams.erase(at);
    for (VirtualStream *other : d.streams) {
        other->seen.erase(stream);
        if (other->after == stream) other->after = nullptr;
    }
    d.contexts[stream->context % CONTEXTS] = false;
    d.left[(size_t)(stream->context % CONTEXTS)] = stream->clock;
    delete stream;
    return answer(sticky());
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    host_waits([stream] { return drained(stream); }, "a stream to drain (cudaStreamSynchronize)", false);
    host_join(stream->clock);
    return answer(sticky());
}

cudaError_t cudaDeviceSynchronize(void) {
    wait_for_device("the device to drain (cudaDeviceSynchronize)");
    auto lock = device_lock();
    for (VirtualStream *stream : device().streams) device().host.join(stream->clock);
    return answer(device().error);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    if (sticky() != cudaSuccess) return answer(sticky());
    auto lock = device_lock();
    *event = new VirtualEvent{(flags & cudaEventDisableTiming) == 0, nullptr};
    events().insert(*event);
    return answer(cudaSuccess);
}

cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    check_event(event, "cudaEventDestroy");
    auto lock = device_lock();
    events().erase(event);
    delete event;
    return answer(cudaSuccess);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    check_event(event, "cudaEventRecord");
    if (sticky() != cudaSuccess) return answer(sticky());
    event->stream = stream, event->calls = stream->calls;
    auto record = std::make_shared<Record>();
    {
        auto lock = device_lock();
        event->latest = record;
    }
    Op op;
    op.what = "recording an event";
    op.blocks = 0;
    op.dry.kind = STEP_RECORD, op.dry.mark = record->mark;
    op.step = [record, stream](const Access &access) {
        auto lock = device_lock();
        record->clock = *access.clock;
        record->seconds = real_seconds();
        record->done = true;
        return OUTCOME_DONE;
    };
    enqueue(stream, std::move(op));
    return answer(cudaSuccess);
}

static std::shared_ptr<Record> latest_of(cudaEvent_t event) {
    auto lock = device_lock();
    return event->latest;
}

static void note_wait(cudaStream_t stream, cudaStream_t other, int64_t calls) {
    if (other == nullptr || other == stream) return;
    auto lock = device_lock();
    stream->calls++, stream->after = other;
    stream->seen[other] = std::max(stream->seen[other], calls);
}

// "cudaStreamWaitEvent ... the most recent call to cudaEventRecord"; an event never recorded is no wait at all.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    check_event(event, "cudaStreamWaitEvent");
    if (sticky() != cudaSuccess) return answer(sticky());
    note_wait(stream, event->stream, event->calls);
    std::shared_ptr<Record> record = latest_of(event);
    if (record == nullptr) return answer(cudaSuccess);
    Op op;
    op.what = "waiting for an event";
    op.blocks = 0;
    op.dry.kind = STEP_WAIT, op.dry.mark = record->mark;
    op.step = [record, stream](const Access &) {
        auto lock = device_lock();
        if (!record->done) return OUTCOME_WAITS;
        stream->clock.join(record->clock);
        return OUTCOME_DONE;
    };
    op.waits_for = [] { return std::string("an event that another stream has not reached"); };
    enqueue(stream, std::move(op));
    return answer(cudaSuccess);
}

// Returns whether this rank is late (VIRTUAL_LATE) and does not notice yet that the event has passed.
static bool found_late(const Record &record) {
    static const bool late = options().late_ranks.find(" " + std::to_string(process()) + " ") != std::string::npos;
    return late && real_seconds() < record.seconds + 0.02;
}

// Runtime API, cudaEventQuery: cudaErrorNotReady where the work is not complete. Like any other code but success it
// becomes the thread's last error, which the next cudaGetLastError returns (CUDA 13.0 leaves no error).
cudaError_t cudaEventQuery(cudaEvent_t event) {
    check_event(event, "cudaEventQuery");
    if (sticky() != cudaSuccess) return answer(sticky());
    auto lock = device_lock();
    if (event->latest == nullptr) return answer(cudaSuccess);
    if (!event->latest->passed() || found_late(*event->latest)) return answer(cudaErrorNotReady);
    device().host.join(event->latest->clock);
    return answer(cudaSuccess);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    check_event(event, "cudaEventSynchronize");
    std::shared_ptr<Record> record = latest_of(event);
    if (record == nullptr) return answer(sticky());
    host_waits([record] { return record->passed(); }, "an event (cudaEventSynchronize)", false);
    host_join(record->clock);
    return answer(sticky());
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end) {
    check_event(start, "cudaEventElapsedTime");
    check_event(end, "cudaEventElapsedTime");
    if (sticky() != cudaSuccess) return answer(sticky());
    auto lock = device_lock();
    if (!start->timing || !end->timing || start->latest == nullptr || end->latest == nullptr)
        return answer(cudaErrorInvalidResourceHandle);
    if (!start->latest->passed() || !end->latest->passed()) return answer(cudaErrorNotReady);
    *ms = (float)(1e3 * (end->latest->seconds - start->latest->seconds));
    return answer(cudaSuccess);
}
}

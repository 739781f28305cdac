// Virtual time. In a dry run (VIRTUAL_DRY=1) nothing is computed and no device memory is touched, but every call is
// made and takes the time that src/device/cost.h gives it: a product by its shape, a kernel by the bytes that it reads
// and writes, a copy, a message and a collective by their bytes. Waits and overlap follow only from the streams, events
// and messages of the calls: this code knows nothing of stages, microbatches or schedules.
//
// The job has one time, in the segment that its processes share. Host code takes no time: everything between two waits
// happens at one instant (a launch costs the host nothing, a host message takes the latency of the cost file). If a
// host asks whether an event has passed or a message has arrived, is told no, and pauses, it sleeps until the first
// thing comes that it asked for. Time advances only when all hosts sleep, to the next such moment, so that no host
// learns of an event before all earlier events have happened.
//
// A stream is a line of steps, in the order in which the host queued them. A step begins when the previous one has
// ended. Kernels share the multiprocessors of their device. Transfers that leave a node share its network at equal
// rates. Both are simulated in the order of time, before the next host wakes (lines.cc).
//
// If all hosts sleep and no event is pending, the job is deadlocked, and every rank reports what it waits for.
#include "timeline.h"

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace virtual_gpu {

size_t timeline_bytes() { return sizeof(Timeline); }

Here here;

namespace {

const VirtualDry *figures() {
    static const VirtualDry *found = (const VirtualDry *)dlsym(RTLD_DEFAULT, "virtual_dry");
    return found;
}

const Cost &cost() { return figures()->cost; }

// --- hosts

// Returns the gathering. If no rank has called it, returns NULL or, with `make`, an unused one (NULL: none is left).
Gathering *find_gathering(uint64_t channel, uint64_t number, bool make = false) {
    auto &bucket = timeline()->gatherings[(channel + number) % BUCKETS];
    for (Gathering &g : bucket)
        if (g.used && g.channel == channel && g.number == number) return &g;
    for (Gathering &g : bucket)
        if (make && !g.used) return &g;
    return nullptr;
}

double ends_at(const Gathering *g) { return g == nullptr || g->called < g->ranks ? NEVER : g->latest + g->takes; }

double known_time(int process, const Watch &watch) {
    Timeline *t = timeline();
    switch (watch.kind) {
    case WATCH_MARK: return t->marks[process][watch.index].passed ? t->marks[process][watch.index].time : NEVER;
    case WATCH_LINE: return idle_from(&t->lines[process][watch.index]);
    case WATCH_GATHERING: return ends_at(find_gathering(watch.channel, watch.number));
    case WATCH_ROOM: return has_room(&t->lines[process][watch.index]) ? t->now : NEVER;
    case WATCH_BELL: return job()->bell != (uint32_t)watch.number ? t->now : NEVER;
    default: return NEVER;
    }
}

} // namespace

void watch(WatchKind kind, int index, uint64_t channel, uint64_t number) {
    Host *host = &timeline()->hosts[here.process];
    for (int i = 0; i < host->watches; i++) {
        const Watch &w = host->watch[i];
        if (w.kind == kind && w.index == index && w.channel == channel && w.number == number) return;
    }
    if (host->watches == WATCHES) defect("the host waits for more than %d things at once", WATCHES);
    host->watch[host->watches++] = {kind, index, channel, number};
}

namespace {

void futex_wake(uint32_t *word) {
    __atomic_add_fetch(word, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void wake(Host *host) {
    host->state = HOST_RUNS;
    timeline()->awake++;
    futex_wake(&host->wakes);
}

bool waits_for_mpi(const Host &host) {
    for (int i = 0; i < host.watches; i++)
        if (host.watch[i].kind == WATCH_MPI) return true;
    return false;
}

// Advances devices and networks to `time`. Stops early, and returns true, at an event that a host may wait for.
bool move_until(double time) {
    Timeline *t = timeline();
    for (t->news = false; !t->news;) {
        double network = network_next(), device = devices_next(), next = std::min(network, device);
        if (next == NEVER || next > time) return false;
        if (network <= device) network_move(network);
        else devices_move(device);
    }
    return true;
}

// Called when all hosts sleep: advances time to the next event that a host waits for, and wakes its hosts.
void advance() {
    Timeline *t = timeline();
    double times[PROCESSES], next;
    for (;;) {
        bool mpi = false, any = false;
        next = NEVER;
        for (int p = 0; p < PROCESSES; p++) {
            const Host &host = t->hosts[p];
            times[p] = NEVER;
            if (host.state != HOST_SLEEPS || !host.joined) continue;
            any = true;
            mpi = mpi || waits_for_mpi(host);
            for (int i = 0; i < host.watches; i++) times[p] = std::min(times[p], known_time(p, host.watch[i]));
            next = std::min(next, times[p]);
        }
        if (move_until(next)) continue;
        if (next == NEVER) {
            if (!mpi && any) t->deadlocked = true;
            for (Host &host : t->hosts)
                if (t->deadlocked && host.state == HOST_SLEEPS) futex_wake(&host.wakes);
            return;
        }
        break;
    }
    t->now = std::max(t->now, next);
    for (int p = 0; p < PROCESSES; p++)
        if (times[p] <= t->now) wake(&t->hosts[p]);
}

[[noreturn]] void tell_deadlock() {
    std::string all = text("virtual GPU: [rank %d] deadlock: all ranks wait, and nothing is under way.", here.process);
    if (!here.what.empty()) all += " The host waits for " + here.what + ".";
    tell_lines(all);
    pthread_mutex_unlock(&timeline()->lock);
    fprintf(stderr, "%s\n", all.c_str());
    usleep(500000); // lets the other ranks report before the launcher ends them
    _exit(1);
}

} // namespace

// Sleeps until an event that the host watches has come. Call with the lock held.
void sleep_host(bool physical) {
    Timeline *t = timeline();
    Host *host = &t->hosts[here.process];
    host->state = HOST_SLEEPS;
    if (--t->awake == 0) advance();
    while (host->state == HOST_SLEEPS) {
        if (t->deadlocked) tell_deadlock();
        uint32_t seen = host->wakes;
        pthread_mutex_unlock(&t->lock);
        timespec limit = {0, physical ? 200000 : 5000000};
        syscall(SYS_futex, &host->wakes, FUTEX_WAIT, seen, &limit, nullptr, 0);
        if (here.progress != nullptr && __atomic_load_n(&host->wakes, __ATOMIC_SEQ_CST) == seen) here.progress();
        if (pthread_mutex_lock(&t->lock) == EOWNERDEAD) pthread_mutex_consistent(&t->lock);
        if (physical && host->state == HOST_SLEEPS) host->state = HOST_RUNS, t->awake++;
    }
    host->watches = here.rounds = 0;
    progressed();
}

namespace {

void leave_timeline() {
    if (here.timeline == nullptr) return;
    ClockLock lock;
    Host *host = &here.timeline->hosts[here.process];
    if (host->state == HOST_RUNS && --here.timeline->awake == 0) {
        host->state = HOST_ENDED;
        advance();
    }
    host->state = HOST_ENDED;
}

void make_timeline(Timeline *t) {
    make_lock(&t->lock);
    t->awake = processes();
    t->now = t->moment = t->network_time = real_seconds();
    std::fill_n(t->next, (int)PROCESSES, NEVER);
    t->made = true;
}

} // namespace

Timeline *timeline() {
    if (here.timeline != nullptr) return here.timeline;
    Timeline *t = (Timeline *)job_timeline();
    {
        JobLock lock;
        if (!t->made) make_timeline(t);
    }
    here.process = process();
    here.timeline = t;
    t->hosts[here.process].joined = true;
    atexit(leave_timeline);
    return t;
}

static VirtualClock *program() {
    static VirtualClock *const found = (VirtualClock *)dlsym(RTLD_DEFAULT, "virtual_clock");
    return found;
}

namespace {

// --- what the program calls (program.h)

// A program may start something in one round of polling and ask for it only in the next round. So it gets a few more
// rounds at the same instant before it sleeps.
bool pause_program() {
    enum { LOOKS = 3 };
    ClockLock lock;
    Host *host = &timeline()->hosts[here.process];
    if (host->watches == 0) return false;
    if (++here.rounds < LOOKS) return true;
    here.what = "events, messages or MPI, asking for them again and again";
    sleep_host(waits_for_mpi(*host));
    return true;
}

void gathering_called(uint64_t channel, uint64_t number, int ranks, int hops) {
    ClockLock lock;
    Gathering *g = find_gathering(channel, number, true);
    if (g == nullptr) defect("too many messages between hosts are in progress");
    if (!g->used) *g = {true, channel, number, ranks, 0, 0, 0, hops * cost().latency};
    g->called++;
    g->latest = timeline()->now;
    here.rounds = 0;
}

bool gathering_met(uint64_t channel, uint64_t number) {
    ClockLock lock;
    if (ends_at(find_gathering(channel, number)) <= timeline()->now) return true;
    watch(WATCH_GATHERING, 0, channel, number);
    return false;
}

void gathering_left(uint64_t channel, uint64_t number) {
    ClockLock lock;
    Gathering *g = find_gathering(channel, number);
    here.rounds = 0;
    if (g != nullptr && ++g->left == g->ranks) g->used = false;
}

void mpi_unfinished() {
    ClockLock lock;
    watch(WATCH_MPI, 0, 0, 0);
}

void progress_with(void (*progress)(void)) { here.progress = progress; }

void join_timeline() {
    timeline();
    *program() = {join_timeline, clock_now,      pause_program,  gathering_called,
                  gathering_met, gathering_left, mpi_unfinished, progress_with};
}

__attribute__((constructor)) void offer_timeline() {
    if (program() != nullptr) program()->join = join_timeline;
}

} // namespace

bool dry() { return figures() != nullptr && figures()->on; }

// A test program without a configuration has what CUDA says of an H100 with 80 GB.
const VirtualDry &dry_figures() {
    static const VirtualDry h100 = {false, "NVIDIA H100 80GB HBM3", 85017493504, 132, 90, {}, 0};
    return figures() != nullptr && figures()->memory_bytes > 0 ? *figures() : h100;
}

double clock_now() { return timeline()->now; }

bool mark_passed(int mark) {
    ClockLock lock;
    const Mark *m = &timeline()->marks[here.process][mark];
    if (m->passed && m->time <= timeline()->now) return true;
    watch(WATCH_MARK, mark, 0, 0);
    return false;
}

bool line_idle(int line) {
    ClockLock lock;
    if (idle_from(&timeline()->lines[here.process][line]) <= timeline()->now) return true;
    watch(WATCH_LINE, line, 0, 0);
    return false;
}

void clock_wait(const std::function<bool()> &done, const std::string &what) {
    for (;;) {
        uint32_t bell = __atomic_load_n(&job()->bell, __ATOMIC_SEQ_CST);
        if (done()) return;
        ClockLock lock;
        here.what = what;
        watch(WATCH_BELL, 0, 0, bell);
        sleep_host(false);
    }
}

} // namespace virtual_gpu

// For the library's own copies of base/clock.h, which src/cuda reads, and of comm_pause.
static const VirtualClock *clock_table() { return virtual_gpu::program(); }

extern "C" {
#include "naps.h"
}

// The race detector. Every 4 bytes of device or pinned memory have a Cell with the last writer and two later readers,
// each as a context and its time. An access is a race if its own clock does not cover theirs (as in FastTrack, Flanagan
// and Freund 2009). Copies, products, attention and messages declare the ranges they touch. Kernels are compiled with
// -fsanitize=thread, which calls a function at each load and store. These functions are at the end of this file and
// replace the sanitizer's.
//
// Races between blocks of one launch are not detected here: emulate.h runs blocks in several orders.
#include "clock.h"
#include "emulate.h"
#include "virtual.h"

#include <cstdio>
#include <fstream>
#include <map>

namespace virtual_gpu {

namespace {

// The names of the latest operations of this process's contexts, for reports.
enum { NAMES = 1 << 12 };
struct Name {
    uint32_t time;
    std::string what;
};
std::vector<Name> names[CONTEXTS];
std::mutex names_guard;

std::string who(uint64_t epoch) {
    int context = (int)(epoch >> 48), rank = context / CONTEXTS, local = context % CONTEXTS;
    uint32_t time = (uint32_t)epoch;
    std::string where = local == HOST ? "the host" : stream_name(local);
    if (rank != process()) return text("%s of rank %d", local == HOST ? "the host" : "a stream", rank);
    std::lock_guard<std::mutex> held(names_guard);
    if (names[local].empty()) return where;
    const Name &name = names[local][time % NAMES];
    return name.time == time ? name.what + " on " + where : "an earlier operation on " + where;
}

[[noreturn]] void race(const Access &access, const void *at, bool writes, uint64_t other, bool wrote) {
    std::string mine = who(epoch(access)), theirs = who(other), place = place_of(at);
    defect("race: %s %s %s, which %s %s, and nothing orders the two", mine.c_str(), writes ? "writes" : "reads",
           place.c_str(), theirs.c_str(), wrote ? "writes" : "reads");
}

inline bool covered(const Access &access, uint64_t other) {
    int context = (int)(other >> 48);
    return context == access.context || access.clock->get(context) >= (uint32_t)other;
}

// The host's writes to pinned memory are not seen, so all pinned memory counts as written.
inline void read_cell(const Access &access, Cell *cell, uint64_t now, const void *at, bool pinned) {
    if (cell->write == 0 && !pinned)
        defect("%s reads %s, which nothing has written", access.what, place_of(at).c_str());
    if (cell->write != 0 && !covered(access, cell->write)) race(access, at, false, cell->write, true);
    for (uint64_t &slot : cell->read)
        if (slot == 0 || covered(access, slot)) {
            slot = now;
            return;
        }
    cell->read[0] = now;
}

inline void write_cell(const Access &access, Cell *cell, uint64_t now, const void *at) {
    if (cell->write != 0 && !covered(access, cell->write)) race(access, at, true, cell->write, true);
    for (uint64_t &slot : cell->read) {
        if (slot != 0 && !covered(access, slot)) race(access, at, true, slot, false);
        slot = 0;
    }
    cell->write = now;
}

void touch_cells(const Access &access, const Region &region, uintptr_t at, int64_t bytes, bool writes) {
    if (__atomic_load_n(&job()->lost, __ATOMIC_RELAXED)) return; // nothing orders what a lost GPU had queued
    uint64_t now = epoch(access);
    Cell *first = region.cells + (at / 4 - region.base / 4);
    int64_t words = (int64_t)((at + (size_t)bytes + 3) / 4 - at / 4);
    for (int64_t i = 0; i < words; i++)
        if (writes) write_cell(access, first + i, now, (const void *)(at / 4 * 4 + 4 * (size_t)i));
        else
            read_cell(access, first + i, now, (const void *)(at / 4 * 4 + 4 * (size_t)i), region.kind == REGION_PINNED);
}

// --- the kernel under way, on the device thread

enum { RECENT = 4 };
struct Running {
    bool kernel;
    Access access;
    Region recent[RECENT];              // regions touched last
    unsigned next;                      // the one to replace next
    uint64_t generation;                // regions_generation() at their lookup
    uintptr_t arguments, arguments_end; // of the launch
    struct {
        uintptr_t from, to;
    } own[2]; // address ranges of kernels' own variables
};
__attribute__((tls_model("initial-exec"))) thread_local Running running;

// Finds the address ranges of kernels' own variables: the emulator's memory for stacks and shared memory, on which this
// function runs, and the program's data. Uninitialised data follow the program's data as a mapping without a name.
void find_own_variables(Running &r) {
    uintptr_t stack = (uintptr_t)__builtin_frame_address(0), code = (uintptr_t)&find_own_variables;
    std::ifstream maps("/proc/self/maps");
    std::string line, program;
    std::vector<std::pair<std::string, std::pair<uintptr_t, uintptr_t>>> all;
    while (std::getline(maps, line)) {
        unsigned long long from = 0, to = 0;
        char file[512] = "";
        sscanf(line.c_str(), "%llx-%llx %*s %*s %*s %*s %511s", &from, &to, file);
        all.push_back({file, {(uintptr_t)from, (uintptr_t)to}});
        if (code >= from && code < to) program = file;
        if (stack >= from && stack < to) r.own[0] = {(uintptr_t)from, (uintptr_t)to};
    }
    // A library's debugging sections may be mapped elsewhere: what counts is the part with this code.
    auto &data = r.own[1];
    for (const auto &[file, bounds] : all) {
        bool follows = bounds.first == data.to && (file == program || file.empty());
        if (follows) data.to = bounds.second;
        else if (file == program && !(code >= data.from && code < data.to)) data = {bounds.first, bounds.second};
    }
}

// Looks up the region of an access outside the recent regions. Returns NULL for a variable of the kernel's own.
__attribute__((noinline)) const Region *access_slow(uintptr_t at, size_t bytes) {
    Running &r = running;
    if (r.generation != regions_generation()) {
        for (Region &region : r.recent) region.size = 0;
        r.generation = regions_generation();
    }
    Region region = region_of((const void *)at);
    if (region.kind == REGION_NONE) {
        if (r.own[0].to == 0) find_own_variables(r);
        for (const auto &own : r.own)
            if (at >= own.from && at < own.to) return nullptr;
        defect("%s touches host memory, which a kernel cannot reach", r.access.what);
    }
    r.recent[r.next % RECENT] = range((const void *)at, (int64_t)bytes, r.access.what);
    return &r.recent[r.next++ % RECENT];
}

inline void access(const void *memory, size_t bytes, bool writes) {
    Running &r = running;
    uintptr_t at = (uintptr_t)memory;
    if (!r.kernel) return;
    if (at >= r.arguments && at < r.arguments_end) return;
    for (const auto &own : r.own)
        if (at >= own.from && at < own.to) return;
    const Region *found = nullptr;
    for (const Region &region : r.recent)
        if (at >= region.base && at + bytes <= region.base + region.size) found = &region;
    if (found == nullptr || r.generation != regions_generation()) found = access_slow(at, bytes);
    if (found != nullptr && traffic_counts()) traffic_touch(at, bytes, writes);
    else if (found != nullptr) touch_cells(r.access, *found, at, (int64_t)bytes, writes);
}

} // namespace

uint64_t epoch(const Access &access) { return (uint64_t)access.context << 48 | access.clock->get(access.context); }

void remember(int context, uint32_t time, const char *what) {
    if (!options().races) return;
    std::lock_guard<std::mutex> held(names_guard);
    if (names[context].empty()) names[context].resize(NAMES);
    names[context][time % NAMES] = {time, what};
}

void touch(const Access &access, const void *memory, int64_t bytes, bool writes) {
    if (bytes <= 0) return;
    Region region = range(memory, bytes, access.what);
    if (options().races) touch_cells(access, region, (uintptr_t)memory, bytes, writes);
}

void touch_rows(const Access &access, const void *memory, int64_t rows, int64_t bytes, int64_t stride, bool writes) {
    if (stride == bytes || rows == 1) return touch(access, memory, rows * bytes, writes);
    if (rows <= 0) return;
    Region region = range(memory, (rows - 1) * stride + bytes, access.what);
    for (int64_t i = 0; i < rows && options().races; i++)
        touch_cells(access, region, (uintptr_t)memory + (size_t)(i * stride), bytes, writes);
}

void kernel_run(const Access &access, const VirtualLaunch &launch) {
    Running &r = running;
    r.access = access;
    r.arguments = (uintptr_t)launch.held.get(), r.arguments_end = r.arguments + (size_t)launch.held_bytes;
    r.generation = 0;
    r.kernel = options().races || traffic_counts();
    const char *failure =
        emulate_run(launch.grid, launch.block, launch.shared_bytes, launch.run, launch.held.get(), launch.name);
    r.kernel = false;
    if (failure != nullptr) defect("%s", failure);
}

} // namespace virtual_gpu

// --- what -fsanitize=thread calls (gcc/sanitizer.def)
#define ACCESS(bytes)                                                                                                  \
    void __tsan_read##bytes(void *at) { virtual_gpu::access(at, bytes, false); }                                       \
    void __tsan_write##bytes(void *at) { virtual_gpu::access(at, bytes, true); }                                       \
    void __tsan_unaligned_read##bytes(void *at) { virtual_gpu::access(at, bytes, false); }                             \
    void __tsan_unaligned_write##bytes(void *at) { virtual_gpu::access(at, bytes, true); }
extern "C" {
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
void __tsan_read_range(void *at, size_t bytes) { virtual_gpu::access(at, bytes, false); }
void __tsan_write_range(void *at, size_t bytes) { virtual_gpu::access(at, bytes, true); }
void __tsan_init(void) {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit(void) {}
void __tsan_vptr_update(void *, void *) {}
void __tsan_vptr_read(void *) {}
// Called for the reference count of a launch's copied arguments; kernels have no atomics of this kind.
int __tsan_atomic32_fetch_add(volatile int *at, int value, int order) {
    (void)order;
    return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST);
}
}

// The race detector. Every 4 bytes of device or pinned memory have a Cell with the last writer and two later readers,
// each as a context and its time. An access is a race if its own clock does not cover theirs (as in FastTrack, Flanagan
// and Freund 2009). Copies, products, attention and messages declare the ranges they touch. Kernels are compiled with
// -fsanitize=thread, which calls a function at each load and store. These functions are at the end of this file and
// replace the sanitizer's.
//
// Races between blocks of one launch are not detected here: emulate.h runs blocks in several orders.
#include "emulate.h"
#include "virtual.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <vector>

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

// --- bytes that a kernel reads and writes
//
// They are counted for the clock of a dry run. Some blocks of a launch run on the emulator. Every 32-byte sector of
// device memory that a block loads or stores is counted once, as if a cache kept it. Sectors that the first two blocks
// both touch (a norm's weights) count as shared by all blocks; the rest belongs to each block. So a launch moves
//
//     shared + own of one block * number of blocks
//
// If the first two blocks and the last move different amounts (rows that do not divide evenly, queries that see more
// and more keys), blocks all over the launch are sampled. A launch is assumed to move as much as an earlier launch of
// the same kernel and grid if only addresses in its arguments differ, unless the blocks differ so much that their work
// depends on the data (an embedding's gradient). Launches of at most 32 blocks run completely, so that later kernels
// find their results in memory.

enum { SECTOR = 32, NEWEST = 14 };
typedef std::vector<uint64_t> Sectors; // 2 * number, + 1 where written

Sectors *counted;             // of the running block, some several times; NULL: no block runs
uint64_t newest[1 << NEWEST]; // of them, by a hash of the number: most accesses touch one of these again

void count(uintptr_t at, size_t bytes, bool writes) {
    for (uint64_t sector = at / SECTOR; sector <= (at + bytes - 1) / SECTOR; sector++) {
        uint64_t entry = 2 * sector + (writes ? 1 : 0);
        uint64_t *place = &newest[entry * 0x9E3779B97F4A7C15u >> (64 - NEWEST)];
        if (*place != entry) counted->push_back(entry);
        *place = entry;
    }
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
    if (found != nullptr && counted != nullptr) count(at, bytes, writes);
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
    r.kernel = options().races || counted != nullptr;
    const char *failure =
        emulate_run(launch.grid, launch.block, launch.shared_bytes, launch.run, launch.held.get(), launch.name);
    r.kernel = false;
    if (failure != nullptr) defect("%s", failure);
}

// --- how long a kernel takes in a dry run

namespace {

// The bytes of a launch's arguments, with 1 in place of every address of memory that devices reach.
std::string signature(const VirtualLaunch &launch) {
    std::string bytes((const char *)launch.held.get(), (size_t)launch.held_bytes);
    for (size_t at = 0; at + 8 <= bytes.size(); at += 8) {
        uint64_t word;
        memcpy(&word, &bytes[at], sizeof word);
        if (word < 4096 || region_of((const void *)word).kind == REGION_NONE) continue;
        word = 1;
        memcpy(&bytes[at], &word, sizeof word);
    }
    dim3 shape[2] = {launch.grid, launch.block};
    return bytes + std::string((const char *)shape, sizeof shape) + text("%p", launch.kernel);
}

// Returns the sectors in ascending order, each once.
Sectors of_block(const VirtualLaunch &launch, int64_t block) {
    Sectors sectors;
    counted = &sectors;
    memset(newest, 0, sizeof newest);
    emulate.only = block; // -1: all
    kernel_run(host_access(launch.name), launch);
    emulate.only = -1;
    counted = nullptr;
    std::sort(sectors.begin(), sectors.end());
    sectors.erase(std::unique(sectors.begin(), sectors.end()), sectors.end());
    return sectors;
}

// Returns the size of the smaller set over that of the larger one; 0 if the smaller has fewer than 8 sectors.
double likeness(const Sectors &first, const Sectors &second) {
    enum { LEAST = 8 };
    double less = (double)std::min(first.size(), second.size()), more = (double)std::max(first.size(), second.size());
    return less < LEAST ? 0 : less / more;
}

// Returns the estimated bytes of a launch of many blocks. *lasts: whether they hold for later launches like it.
double sampled_bytes(const VirtualLaunch &launch, int64_t blocks, bool *lasts) {
    enum { SAMPLES = 16 };
    const double GOLDEN = 0.6180339887498949; // its multiples, modulo 1, are spread evenly and repeat no row's place
    // An update begins and ends with tensors of the model's ends; in the middle are those of its layers.
    Sectors first = of_block(launch, 0), second = of_block(launch, 1), middle = of_block(launch, blocks / 2),
            last = of_block(launch, blocks - 1);
    int64_t shared = 0;
    for (uint64_t sector : second) shared += std::binary_search(first.begin(), first.end(), sector);
    double alike = likeness(first, second);
    *lasts = alike > 0.5;
    double all = (double)(first.size() + second.size());
    int64_t count = 2;
    if (std::min({alike, likeness(first, middle), likeness(first, last)}) < 0.9)
        for (all = 0, count = 0; count < SAMPLES; count++)
            all += (double)of_block(launch, (int64_t)(fmod((double)count * GOLDEN, 1) * (double)blocks)).size();
    double own = std::max(0.0, all / (double)count - (double)shared);
    return SECTOR * ((double)shared + own * (double)blocks);
}

} // namespace

double kernel_seconds(const VirtualLaunch &launch) {
    enum { FEW = 32 };
    static std::map<std::string, double> known;
    int64_t blocks = (int64_t)launch.grid.x * launch.grid.y * launch.grid.z;
    const Cost &cost = dry_figures().cost;
    if (blocks <= FEW) return cost_kernel(&cost, SECTOR * (double)of_block(launch, -1).size());
    std::string key = signature(launch);
    auto found = known.find(key);
    if (found != known.end()) return cost_kernel(&cost, found->second);
    bool lasts;
    double bytes = sampled_bytes(launch, blocks, &lasts);
    if (lasts) known[key] = bytes;
    return cost_kernel(&cost, bytes);
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
void __tsan_vptr_update(void *, void *) {}
// Called for the reference count of a launch's copied arguments; kernels have no atomics of this kind.
int __tsan_atomic32_fetch_add(volatile int *at, int value, int order) {
    (void)order;
    return __atomic_fetch_add(at, value, __ATOMIC_SEQ_CST);
}
}

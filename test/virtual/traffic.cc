// Counts the bytes that a kernel reads and writes, for the clock of a dry run. Some blocks of a launch run on the
// emulator. Every 32-byte sector of device memory that a block loads or stores is counted once, as if a cache kept it.
// Sectors that the first two blocks both touch (a norm's weights) count as shared by all blocks; the rest belongs to
// each block. So a launch moves
//
//     shared + own of one block * number of blocks
//
// If the first two blocks and the last move different amounts (rows that do not divide evenly, queries that see more
// and more keys), blocks all over the launch are sampled. A launch is
// assumed to move as much as an earlier launch of the same kernel and grid if only addresses in its arguments differ,
// unless the blocks differ so much that their work depends on the data (an embedding's gradient). Launches of at most
// 32 blocks run completely, so that later kernels find their results in memory.
#include "clock.h"
#include "emulate.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <unordered_set>

namespace virtual_gpu {

namespace {

enum { SECTOR = 32 };
typedef std::unordered_set<uint64_t> Sectors; // 2 * number, + 1 where written

Sectors *counted; // of the running block; NULL: no block runs

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

Sectors of_block(const VirtualLaunch &launch, int64_t block) {
    Sectors sectors;
    counted = &sectors;
    emulate.only = block; // -1: all
    kernel_run(host_access(launch.name), launch);
    emulate.only = -1;
    counted = nullptr;
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
    for (uint64_t sector : second) shared += (int64_t)first.count(sector);
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

bool traffic_counts() { return counted != nullptr; }

void traffic_touch(uintptr_t at, size_t bytes, bool writes) {
    for (uint64_t sector = at / SECTOR; sector <= (at + bytes - 1) / SECTOR; sector++)
        counted->insert(2 * sector + (writes ? 1 : 0));
}

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

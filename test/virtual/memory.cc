// Device memory: one arena per process, in a memfd, so that other processes can map parts of it. Addresses are never
// reused, so accesses to freed memory are recognised. Inaccessible pages separate allocations. New memory is full of
// NaNs. In the file the memory is followed by its shadow (shadow.cc); a process that maps memory maps its shadow too.
#include "virtual.h"

#include <algorithm>
#include <atomic>
#include <fcntl.h>
#include <map>
#include <shared_mutex>
#include <sys/mman.h>
#include <unistd.h>

namespace virtual_gpu {

namespace {

// A dry run touches almost no device memory, so its arena may be large.
constexpr size_t ARENA = (size_t)64 << 30, DRY_ARENA = (size_t)512 << 30, PAGE = 4096, BLOCK = 2 << 20;
constexpr size_t CELLS_PER_WORD = sizeof(Cell);
constexpr int64_t CONTEXT_BYTES = (int64_t)512 << 20; // of every process on a GPU

struct Arena {
    int fd = -1;
    char *memory = nullptr;
    char *cells = nullptr;
    size_t used = BLOCK;
    int64_t count = 0;
};

std::atomic<int64_t> pinned{0}, most_pinned{0}; // by cudaMallocHost

std::shared_mutex guard;
std::atomic<uint64_t> generation{1};

std::map<uintptr_t, Region> &regions() {
    static std::map<uintptr_t, Region> all;
    return all;
}

size_t arena_bytes() { return dry() ? DRY_ARENA : ARENA; }

// Bytes of this process's GPU that processes hold, and that are free. Call with the job's lock held.
int64_t &held() { return job()->held[node() * options().gpus + current_gpu()]; }
int64_t not_held() { return memory_total() - held() - options().taken; }

Arena open_arena() {
    Arena a;
    a.fd = memfd_create("virtual-gpu", MFD_CLOEXEC);
    constexpr size_t SHADOW = ARENA / 4 * CELLS_PER_WORD;
    size_t bytes = arena_bytes();
    if (a.fd < 0 || ftruncate(a.fd, (off_t)(bytes + SHADOW)) != 0) defect("no memory for device memory");
    a.memory = (char *)mmap(nullptr, bytes, PROT_NONE, MAP_SHARED | MAP_NORESERVE, a.fd, 0);
    if (!dry())
        a.cells = (char *)mmap(nullptr, SHADOW, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, a.fd, (off_t)ARENA);
    if (a.memory == MAP_FAILED || a.cells == MAP_FAILED) defect("no address space for device memory");
    job()->members[process()].arena = a.fd;
    JobLock lock;
    held() += CONTEXT_BYTES;
    return a;
}

Arena &arena() {
    static Arena opened = open_arena();
    return opened;
}

void add(const Region &region) {
    std::unique_lock<std::shared_mutex> held(guard);
    regions()[region.base] = region;
    generation++;
}

void erase(uintptr_t base) {
    std::unique_lock<std::shared_mutex> held(guard);
    regions().erase(base);
    generation++;
}

size_t up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

struct Handle {
    uint32_t magic;
    int32_t process, node, gpu;
    uint64_t offset, size;
    int64_t number;
};
enum { HANDLE = 0x69706331 };
static_assert(sizeof(Handle) <= sizeof(cudaIpcMemHandle_t), "a handle has 64 bytes");

} // namespace

Region region_of(const void *memory) {
    uintptr_t at = (uintptr_t)memory;
    std::shared_lock<std::shared_mutex> held(guard);
    auto after = regions().upper_bound(at);
    if (after != regions().begin()) {
        const Region &before = std::prev(after)->second;
        if (at < before.base + before.size) return before;
    }
    const Arena &a = arena();
    Region none = {at, 0, REGION_NONE, nullptr, process(), 0, false, 0, 0};
    // Between allocations: device memory that belongs to no allocation.
    if (at >= (uintptr_t)a.memory && at < (uintptr_t)a.memory + arena_bytes()) none.kind = REGION_FREED;
    return none;
}

uint64_t regions_generation() { return generation.load(std::memory_order_acquire); }

std::string place_of(const void *memory) {
    Region region = region_of(memory);
    long long at = (long long)((uintptr_t)memory - region.base);
    switch (region.kind) {
    case REGION_DEVICE:
        return text("byte %lld of device allocation %lld (%zu bytes)", at, (long long)region.number, region.size);
    case REGION_MAPPED:
        return text("byte %lld of rank %d's allocation %lld, mapped here", at, region.owner, (long long)region.number);
    case REGION_PINNED: return text("byte %lld of %zu pinned bytes", at, region.size);
    case REGION_FREED:
        return region.size == 0
                   ? "device memory that was never allocated"
                   : text("byte %lld of device allocation %lld, which was freed", at, (long long)region.number);
    default: return "host memory";
    }
}

Region range(const void *memory, int64_t bytes, const char *what) {
    Region region = region_of(memory);
    if (region.kind == REGION_NONE || region.kind == REGION_FREED) defect("%s uses %s", what, place_of(memory).c_str());
    if ((uintptr_t)memory + (size_t)bytes > region.base + region.size)
        defect("%s uses %lld bytes from %s on: it runs over the end", what, (long long)bytes, place_of(memory).c_str());
    return region;
}

int64_t memory_total() { return dry_figures().memory_bytes; }

// Runtime API, cudaSetDevice: since CUDA 12 it makes the context, which has to find room on the GPU.
cudaError_t memory_context() {
    if (job()->members[process()].arena == 0) {
        JobLock lock;
        if (not_held() < CONTEXT_BYTES) return cudaErrorMemoryAllocation;
    }
    arena();
    return cudaSuccess;
}

bool memory_charge(int64_t bytes) {
    arena();
    JobLock lock;
    if (not_held() < bytes) return false;
    held() += bytes;
    return true;
}

int64_t memory_left() {
    arena();
    JobLock lock;
    return std::max<int64_t>(not_held(), 0);
}

// Allocations are aligned to at least 256 bytes (CUDA C++ programming guide, "Device memory accesses"). Here a size
// that is not a multiple of 2 MiB gets exactly this alignment, so that no code relies on more.
cudaError_t memory_allocate(void **memory, size_t bytes) {
    Arena &a = arena();
    int64_t charged = (int64_t)up(bytes, bytes < BLOCK ? 512 : BLOCK);
    if (bytes == 0) return *memory = nullptr, cudaSuccess;
    if (!memory_charge(charged)) return cudaErrorMemoryAllocation;
    size_t start = a.used + (bytes % BLOCK == 0 ? 0 : 256);
    size_t end = up(start + bytes, PAGE);
    if (end + BLOCK > arena_bytes()) defect("device memory is used up: addresses are never used twice");
    a.used = up(end + PAGE, BLOCK);
    char *data = a.memory + start;
    mprotect(a.memory + start / PAGE * PAGE, end - start / PAGE * PAGE, PROT_READ | PROT_WRITE);
    // The shadow, if it is on, finds reads of unwritten memory without NaNs.
    if (!dry() && (!options().races || bytes < BLOCK)) memset(data, 0xff, bytes);
    Region region = {
        (uintptr_t)data, bytes,   REGION_DEVICE, (Cell *)(a.cells + start / 4 * CELLS_PER_WORD), process(), ++a.count,
        false,           charged, start};
    add(region);
    *memory = data;
    return cudaSuccess;
}

cudaError_t memory_free(void *memory) {
    Region region = region_of(memory);
    if (region.kind == REGION_FREED && region.base == (uintptr_t)memory)
        defect("cudaFree frees device allocation %lld a second time", (long long)region.number);
    if (region.kind != REGION_DEVICE || region.base != (uintptr_t)memory)
        defect("cudaFree is given %s, not the beginning of an allocation", place_of(memory).c_str());
    check_unregistered(region);
    {
        JobLock lock;
        held() -= region.charged;
        // Runtime API, cudaIpcOpenMemHandle: "Calling cudaFree on an exported memory region before calling
        // cudaIpcCloseMemHandle in the importing context will result in undefined behavior."
        for (const Mapping &mapping : job()->mappings)
            if (mapping.used && mapping.owner == process() && mapping.offset == region.offset)
                defect("cudaFree frees device allocation %lld, which rank %d still has mapped",
                       (long long)region.number, mapping.holder);
    }
    region.kind = REGION_FREED;
    add(region);
    uintptr_t first = region.base / PAGE * PAGE, end = up(region.base + region.size, PAGE);
    madvise((void *)first, end - first, MADV_REMOVE);
    mprotect((void *)first, end - first, PROT_NONE);
    return cudaSuccess;
}

// Pages that are given back to the file read as zeros, and take no memory of this host.
void memory_clear(void *memory, size_t bytes) {
    uintptr_t begin = (uintptr_t)memory, end = begin + bytes, first = up(begin, PAGE), last = end / PAGE * PAGE;
    bool pages = first < last && madvise((void *)first, last - first, MADV_REMOVE) == 0;
    memset(memory, 0, pages ? first - begin : bytes);
    if (pages) memset((void *)last, 0, end - last);
}

cudaError_t memory_pin(void *memory, size_t bytes, bool allocated) {
    if (region_of(memory).kind != REGION_NONE) return cudaErrorHostMemoryAlreadyRegistered;
    void *cells = mmap(nullptr, (bytes / 4 + 2) * sizeof(Cell), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (cells == MAP_FAILED) return cudaErrorMemoryAllocation;
    if (allocated) pinned += (int64_t)bytes;
    if (pinned > most_pinned) most_pinned = pinned.load();
    add({(uintptr_t)memory, bytes, REGION_PINNED, (Cell *)cells, process(), 0, allocated, 0, 0});
    return cudaSuccess;
}

cudaError_t memory_unpin(void *memory, bool allocated) {
    Region region = region_of(memory);
    if (region.kind != REGION_PINNED || region.base != (uintptr_t)memory || region.allocated != allocated)
        return allocated ? cudaErrorInvalidValue : cudaErrorHostMemoryNotRegistered;
    if (allocated) pinned -= (int64_t)region.size;
    erase(region.base);
    munmap(region.cells, (region.size / 4 + 2) * sizeof(Cell));
    return cudaSuccess;
}

int64_t memory_most_pinned() { return most_pinned; }

// CUDA C++ programming guide, "Interprocess communication": an allocation may be part of a larger block, and IPC shares
// the whole block; so only allocations of whole 2 MiB should be shared.
cudaError_t memory_export(cudaIpcMemHandle_t *handle, void *memory) {
    Region region = region_of(memory);
    if (region.kind != REGION_DEVICE) return cudaErrorInvalidValue;
    if (region.size % BLOCK != 0)
        defect("cudaIpcGetMemHandle shares device allocation %lld of %zu bytes: with less than whole blocks of 2 MiB "
               "the driver shares what else lies in the block",
               (long long)region.number, region.size);
    Handle made = {HANDLE, process(), node(), current_gpu(), region.offset, region.size, region.number};
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &made, sizeof made);
    return cudaSuccess;
}

// Opens the file of another process's arena. Returns -1 if the process has ended.
static int open_arena_of(int other) {
    std::string path = text("/proc/%d/fd/%d", job()->members[other].pid, job()->members[other].arena);
    return open(path.c_str(), O_RDWR | O_CLOEXEC);
}

char *arena_of(int other) {
    static char *mapped[PROCESSES];
    if (mapped[other] != nullptr) return mapped[other];
    int fd = open_arena_of(other);
    void *memory = fd < 0 ? MAP_FAILED : mmap(nullptr, ARENA, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0) close(fd);
    if (memory == MAP_FAILED) defect("the memory of rank %d cannot be reached: it has ended", other);
    return mapped[other] = (char *)memory;
}

cudaError_t memory_import(void **memory, const cudaIpcMemHandle_t *handle) {
    Handle h;
    memcpy(&h, handle, sizeof h);
    if (h.magic != HANDLE) return cudaErrorInvalidValue;
    if (h.node != node()) return cudaErrorMapBufferObjectFailed;
    // A process cannot open its own handles: cuIpcOpenMemHandle, CUDA_ERROR_INVALID_CONTEXT.
    if (h.process == process()) return cudaErrorDeviceUninitialized;
    // "CUDA 10.1 and later can use P2P with invisible devices" (NCCL's transport/p2p.cc): the lender's GPU need not be
    // visible here.
    if (!options().peers && h.gpu != current_gpu()) return cudaErrorPeerAccessUnsupported;
    arena();
    int fd = open_arena_of(h.process);
    if (fd < 0) return cudaErrorMapBufferObjectFailed;
    char *data = (char *)mmap(nullptr, h.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)h.offset);
    char *cells = dry() ? nullptr
                        : (char *)mmap(nullptr, h.size / 4 * CELLS_PER_WORD, PROT_READ | PROT_WRITE,
                                       MAP_SHARED | MAP_NORESERVE, fd, (off_t)(ARENA + h.offset / 4 * CELLS_PER_WORD));
    close(fd);
    if (data == MAP_FAILED || cells == MAP_FAILED) return cudaErrorMapBufferObjectFailed;
    JobLock lock;
    for (Mapping &mapping : job()->mappings)
        if (!mapping.used) {
            mapping = {true, h.process, process(), h.offset};
            break;
        }
    add({(uintptr_t)data, h.size, REGION_MAPPED, (Cell *)cells, h.process, h.number, false, 0, h.offset});
    *memory = data;
    return cudaSuccess;
}

cudaError_t memory_close(void *memory) {
    Region region = region_of(memory);
    if (region.kind != REGION_MAPPED || region.base != (uintptr_t)memory) return cudaErrorInvalidValue;
    erase(region.base);
    munmap(memory, region.size);
    if (region.cells != nullptr) munmap(region.cells, region.size / 4 * CELLS_PER_WORD);
    JobLock lock;
    for (Mapping &mapping : job()->mappings)
        if (mapping.used && mapping.owner == region.owner && mapping.holder == process() &&
            mapping.offset == region.offset) {
            mapping.used = false;
            break;
        }
    return cudaSuccess;
}

uint64_t arena_offset(const void *memory, int *owner) {
    Region region = region_of(memory);
    *owner = region.owner;
    return region.offset + ((uintptr_t)memory - region.base);
}

} // namespace virtual_gpu

// The CUDA runtime's calls, except streams and events (device.cc) and the bookkeeping of memory (memory.cc).
#include "emulate.h"
#include "virtual.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <sys/mman.h>

namespace virtual_gpu {

namespace {

thread_local cudaError_t last_error = cudaSuccess;
std::set<uintptr_t> lent; // allocations that other processes may map
int first_gpu = -1;       // GPU of the node that this process uses; -1: not set

int multiprocessors() { return dry() ? dry_figures().multiprocessors : options().multiprocessors; }

// The GPUs of the node that this process sees, in its own order. "If one of the indices is invalid, only the devices
// whose index precedes the invalid index are visible to CUDA applications" (programming guide, CUDA_VISIBLE_DEVICES).
std::vector<int> visible_gpus() {
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    std::vector<int> seen;
    for (int gpu = 0; list == nullptr && gpu < options().gpus; gpu++) seen.push_back(gpu);
    for (const char *at = list; at != nullptr && *at != '\0';) {
        char *end;
        long gpu = strtol(at, &end, 10);
        bool known = end != at && gpu >= 0 && gpu < options().gpus;
        if (!known || std::find(seen.begin(), seen.end(), (int)gpu) != seen.end()) break;
        seen.push_back((int)gpu);
        at = *end == ',' ? end + 1 : end;
    }
    return seen;
}

cudaError_t driver_state(std::vector<int> *gpus) {
    const std::string &driver = options().driver;
    gpus->clear();
    if (driver == "none") return cudaErrorInsufficientDriver;
    if (driver == "notready") return cudaErrorSystemNotReady;
    if (atoi(driver.c_str()) < CUDART_VERSION / 1000 * 1000) return cudaErrorInsufficientDriver;
    *gpus = visible_gpus();
    return gpus->empty() ? cudaErrorNoDevice : cudaSuccess;
}

void store(const void *to, int value, size_t bytes) { memset(const_cast<void *>(to), value, bytes); }

// Makes a copy in up to three pieces, so that unordered accesses find it half done.
Op copy_op(void *to, const void *from, size_t bytes, bool from_device, bool to_device,
           std::shared_ptr<std::vector<char>> aside) {
    Op op;
    op.what = text("a copy of %zu bytes", bytes);
    op.blocks = 0;
    auto done = std::make_shared<size_t>(0);
    size_t piece = options().order == ORDER_FIFO || bytes < 512 ? bytes : (bytes / 3 + 63) / 64 * 64;
    op.step = [=](const Access &access) {
        size_t n = bytes - *done < piece ? bytes - *done : piece;
        const char *source = aside ? aside->data() : (const char *)from;
        if (from_device) touch(access, source + *done, (int64_t)n, false);
        if (to_device) touch(access, (char *)to + *done, (int64_t)n, true);
        memcpy((char *)to + *done, source + *done, n);
        *done += n;
        return *done == bytes ? OUTCOME_DONE : OUTCOME_AGAIN;
    };
    return op;
}

bool on_host(const Region &region) { return region.kind == REGION_NONE || region.kind == REGION_PINNED; }

// Copies in a dry run what the program itself reads: tokens, tables of a kernel, and bytes that prove to two ranks that
// they have mapped the same memory. Other downloads to pageable memory give zeros. Returns the copy's seconds.
double dry_copy(void *to, const void *from, size_t bytes, const Region &source, const Region &target, bool flags) {
    enum { UPLOAD = 4 << 20, DOWNLOAD = 64, PROOF = 1 << 20 };
    const Cost *cost = &dry_figures().cost;
    bool down = on_host(target), up = on_host(source), proof = source.kind == REGION_MAPPED || lent.count(source.base);
    if ((up && bytes <= UPLOAD) || (down && bytes <= (size_t)(proof ? PROOF : DOWNLOAD))) memcpy(to, from, bytes);
    else if (target.kind == REGION_NONE) memset(to, 0, bytes);
    double links = slower("links", process());
    if (down || up) return (double)bytes / cost->host;
    if (target.kind == REGION_MAPPED && flags) return links * cost_copy(cost, (double)bytes);
    if (source.kind == REGION_MAPPED || target.kind == REGION_MAPPED) return links * (double)bytes / cost->pair;
    return cost_pass(cost, 2.0 * (double)bytes);
}

} // namespace

int64_t width_of(cudaDataType_t type) {
    if (type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2) return 1;
    return type == CUDA_R_16BF ? 2 : type == CUDA_R_64F ? 8 : 4;
}

int current_gpu() { return first_gpu < 0 ? 0 : first_gpu; }

// Runtime API, cudaGetLastError: "the last error that has been produced by any of the runtime calls in the same
// instance of the CUDA Runtime library in the host thread and resets it". Success does not reset it.
cudaError_t answer(cudaError_t error) {
    if (error != cudaSuccess) last_error = error;
    if (error != cudaErrorNotReady) progressed();
    return error;
}

} // namespace virtual_gpu

using namespace virtual_gpu;

// Programming guide, "Kernel launch": a grid has at most 2^31-1, 65535, 65535 blocks, a block 1024 threads.
cudaError_t virtual_launch(const VirtualLaunch &launch, cudaStream_t stream) {
    if (sticky() != cudaSuccess) return answer(sticky());
    if (fault_comes("image", 1)) return answer(cudaErrorNoKernelImageForDevice);
    int64_t threads = (int64_t)launch.block.x * launch.block.y * launch.block.z;
    if (launch.grid.x > 0x7fffffffu || launch.grid.y > 65535 || launch.grid.z > 65535 || threads > 1024)
        defect("%s is launched with a grid of (%u, %u, %u) or a block of %lld threads, which no GPU takes", launch.name,
               launch.grid.x, launch.grid.y, launch.grid.z, (long long)threads);
    load_once(text("%s@%p", launch.name, launch.kernel), false);
    Op op;
    op.what = launch.name;
    if (dry()) op.dry.seconds = kernel_seconds(launch);
    op.step = [launch](const Access &access) {
        static uint64_t turn = options().seed;
        turn = turn * 6364136223846793005u + 1442695040888963407u;
        emulate.order = options().order == ORDER_FIFO ? EMULATE_ASCENDING : (EmulateOrder)(1 + (turn >> 33) % 3);
        kernel_run(access, launch);
        return OUTCOME_DONE;
    };
    enqueue(stream, std::move(op));
    return answer(cudaSuccess);
}

extern "C" {

cudaError_t cudaGetLastError(void) {
    cudaError_t error = last_error;
    last_error = sticky(); // a sticky error comes back with every call
    return error;
}

const char *cudaGetErrorString(cudaError_t error) {
#define VIRTUAL_CASE(name, number, text)                                                                               \
    case name: return text;
    switch (error) { VIRTUAL_ERRORS(VIRTUAL_CASE) }
    return "unknown error";
}

// --- what is there

cudaError_t cudaDriverGetVersion(int *version) {
    const std::string &driver = options().driver;
    *version = driver == "none" ? 0 : driver == "notready" ? CUDART_VERSION : atoi(driver.c_str());
    return answer(cudaSuccess);
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return answer(cudaSuccess);
}

cudaError_t cudaGetDeviceCount(int *count) {
    std::vector<int> gpus;
    cudaError_t error = driver_state(&gpus);
    *count = (int)gpus.size();
    return answer(error);
}

cudaError_t cudaSetDevice(int device) {
    std::vector<int> gpus;
    cudaError_t error = driver_state(&gpus);
    if (error != cudaSuccess) return answer(error);
    if (device < 0 || device >= (int)gpus.size()) return answer(cudaErrorInvalidDevice);
    int gpu = gpus[(size_t)device];
    if (first_gpu < 0) first_gpu = gpu;
    if (first_gpu != gpu) defect("a process uses two GPUs, %d and %d", first_gpu, gpu);
    if (fault_comes("busy", 1)) return answer(cudaErrorDevicesUnavailable);
    cudaError_t made = memory_context();
    return answer(made != cudaSuccess ? made : sticky());
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device) {
    std::vector<int> gpus;
    cudaError_t error = driver_state(&gpus);
    if (error != cudaSuccess) return answer(error);
    if (device < 0 || device >= (int)gpus.size()) return answer(cudaErrorInvalidDevice);
    if (fault_comes("silent", 1)) return answer(cudaErrorLaunchFailure);
    int gpu = gpus[(size_t)device];
    memset(properties, 0, sizeof *properties);
    snprintf(properties->name, sizeof properties->name, "%s%s", dry_figures().gpu, options().mig ? " MIG 3g.40gb" : "");
    std::string uuid = text("node %2d gpu %2d    ", node(), gpu);
    memcpy(properties->uuid.bytes, uuid.data(), sizeof properties->uuid.bytes);
    properties->totalGlobalMem = (size_t)memory_total();
    properties->major = dry_figures().capability / 10, properties->minor = dry_figures().capability % 10;
    properties->multiProcessorCount = multiprocessors();
    properties->sharedMemPerBlockOptin = 232448;
    properties->pciDomainID = node();                      // nodes share this machine
    properties->pciBusID = 16 + (options().mig ? 0 : gpu); // the instances of MIG share one
    return answer(cudaSuccess);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0, *greatest = -5;
    return answer(cudaSuccess);
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    *can = options().peers && device != peer;
    return answer(cudaSuccess);
}

cudaError_t cudaDeviceGetP2PAttribute(int *value, cudaDeviceP2PAttr, int device, int peer) {
    *value = options().nvlink && device != peer;
    return answer(cudaSuccess);
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr, int) {
    *value = 1;
    return answer(cudaSuccess);
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *total) {
    if (sticky() != cudaSuccess) return answer(sticky());
    if (memory_context() != cudaSuccess) return answer(cudaErrorMemoryAllocation);
    *left = (size_t)memory_left(), *total = (size_t)memory_total();
    return answer(cudaSuccess);
}

// --- memory

cudaError_t virtual_malloc(void **memory, size_t bytes) {
    return answer(sticky() != cudaSuccess ? sticky() : memory_allocate(memory, bytes));
}

// cudaFree waits for the device (programming guide, "Implicit synchronization"; the runtime's documentation of
// asynchronous frees contrasts the two).
cudaError_t cudaFree(void *memory) {
    if (sticky() != cudaSuccess) return answer(sticky()); // also for NULL
    if (fault_comes("busy", 1)) return answer(cudaErrorDevicesUnavailable);
    if (memory == nullptr) return answer(cudaSuccess);
    if (region_of(memory).kind == REGION_PINNED) return cudaFreeHost(memory);
    wait_for_device("the device to drain, so that memory can be freed (cudaFree)");
    return answer(memory_free(memory));
}

cudaError_t virtual_malloc_host(void **memory, size_t bytes) {
    if (sticky() != cudaSuccess) return answer(sticky());
    void *made = mmap(nullptr, bytes + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) return answer(cudaErrorMemoryAllocation);
    if (!dry()) store(made, 0xff, bytes);
    *memory = made;
    return answer(memory_pin(made, bytes, true));
}

// Managed memory is modelled for tests whose launches block: host memory that kernels may access.
cudaError_t cudaMallocManaged(void **memory, size_t bytes, unsigned) { return virtual_malloc_host(memory, bytes); }

cudaError_t cudaFreeHost(void *memory) {
    size_t bytes = region_of(memory).size;
    if (sticky() == cudaSuccess) wait_for_device("the device to drain, so that memory can be freed (cudaFreeHost)");
    cudaError_t error = memory_unpin(memory, true);
    if (error == cudaSuccess) munmap(memory, bytes + 1);
    return answer(error);
}

// The host's own writes are not seen: memory that is registered counts as written.
cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned) {
    return answer(sticky() != cudaSuccess ? sticky() : memory_pin(memory, bytes, false));
}

cudaError_t cudaHostUnregister(void *memory) {
    wait_for_device("the device to drain, so that memory can be unregistered (cudaHostUnregister)");
    return answer(memory_unpin(memory, false));
}

// Runtime API, "API synchronization behavior": from pageable memory to the device the call returns when the source has
// been copied aside, maybe before the device has it; from the device to pageable memory it returns when the copy is
// complete; from and to pinned memory it is asynchronous.
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    if (sticky() != cudaSuccess) return answer(sticky());
    if (bytes == 0) return answer(cudaSuccess);
    Region source = region_of(from), target = region_of(to);
    bool pageable_from = source.kind == REGION_NONE, pageable_to = target.kind == REGION_NONE;
    bool host_from = on_host(source), host_to = on_host(target);
    bool ordinary = pageable_from && !host_to && !dry(); // copied aside, or read when executed
    if (!pageable_from) range(from, (int64_t)bytes, "a copy");
    if (!pageable_to) range(to, (int64_t)bytes, "a copy");
    if ((kind == cudaMemcpyHostToDevice && (!host_from || host_to)) ||
        (kind == cudaMemcpyDeviceToHost && (host_from || !host_to)) ||
        (kind == cudaMemcpyDeviceToDevice && (host_from || host_to)))
        defect("a copy of %zu bytes says it goes the other way: it is from %s to %s", bytes, place_of(from).c_str(),
               place_of(to).c_str());
    if (bytes == sizeof(uint32_t) && target.kind == REGION_MAPPED && !host_from)
        return copy_flag(to, from, stream), answer(cudaSuccess);
    std::shared_ptr<std::vector<char>> aside;
    if (ordinary && !options().late)
        aside = std::make_shared<std::vector<char>>((const char *)from, (const char *)from + bytes);
    Op op = copy_op(to, from, bytes, !pageable_from, !pageable_to, aside);
    op.reads_late = ordinary && options().late;
    if (dry()) op.dry.seconds = dry_copy(to, from, bytes, source, target, raises_flags(stream));
    enqueue(stream, std::move(op));
    return pageable_to ? cudaStreamSynchronize(stream) : answer(cudaSuccess);
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
    if (sticky() != cudaSuccess) return answer(sticky());
    if (bytes == 0) return answer(cudaSuccess);
    range(to, (int64_t)bytes, "cudaMemsetAsync");
    Op op;
    op.what = text("setting %zu bytes", bytes);
    if (dry()) {
        op.dry.seconds = cost_kernel(&dry_figures().cost, (double)bytes);
        if (value == 0) memory_clear(to, bytes); // counters that a kernel reads
    }
    op.step = [=](const Access &access) {
        touch(access, to, (int64_t)bytes, true);
        store(to, value, bytes);
        return OUTCOME_DONE;
    };
    enqueue(stream, std::move(op));
    return answer(cudaSuccess);
}

// --- memory of other processes

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *memory) {
    static uint64_t asked;
    if (fault_comes("lend", ++asked)) return answer(cudaErrorNotSupported);
    lent.insert(region_of(memory).base);
    return answer(sticky() != cudaSuccess ? sticky() : memory_export(handle, memory));
}

cudaError_t cudaIpcOpenMemHandle(void **memory, cudaIpcMemHandle_t handle, unsigned flags) {
    if (sticky() != cudaSuccess) return answer(sticky());
    // Runtime API: the flag must be cudaIpcMemLazyEnablePeerAccess.
    if (flags != cudaIpcMemLazyEnablePeerAccess) return answer(cudaErrorInvalidValue);
    return answer(memory_import(memory, &handle));
}

cudaError_t cudaIpcCloseMemHandle(void *memory) {
    wait_for_device("the device to drain, so that memory can be unmapped (cudaIpcCloseMemHandle)");
    return answer(memory_close(memory));
}
}

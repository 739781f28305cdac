// One NVIDIA GPU as a device: its memory, its streams, its clock, and the table of operations.
//
// Inside a step nothing here allocates, and only uploads and downloads wait for the device. The time of an event is
// measured from an event that was recorded while the device was idle, at a known time of the host's clock.
#include "backend/attention_scratch.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/units.h"
#include "cuda_library.h"
#include "internal.h"

#include <cublasLt.h>
#include <nccl.h>
#include <nvtx3/nvToolsExt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static_assert(CUDA_OWN_BYTES == CUDA_SCRATCH_BYTES + CUDA_MATMUL_BYTES, "plans count what is allocated here");

struct Event {
    cudaEvent_t event;
};

// The two latest reference points for event times. Times count from the older: the latest may be newer than the event.
typedef struct Clock {
    cudaEvent_t event[2];
    double seconds[2];
    int latest;
} Clock;

typedef struct CudaDevice {
    CudaBackend cuda; // first, so that a CudaDevice * is also a CudaBackend *
    Clock clock;
} CudaDevice;

static Clock *clock_of_(Backend *be) { return &((CudaDevice *)be->self)->clock; }

// --- memory

static int cuda_fail_(const CudaBackend *cuda, const char *doing, cudaError_t status, Error *err) {
    const char *remedy = status == cudaErrorNoKernelImageForDevice
                             ? "; build the program for this GPU: make CUDA_ARCH=-arch=native"
                             : cuda_remedy();
    return error_set(err, EXIT_FAILED, "GPU %d, %s: %s failed: %s%s", cuda->device, cuda->backend.device, doing,
                     cudaGetErrorString(status), remedy);
}

// Reports that the GPU has too little free memory, how the memory is used, and how to free some.
static int no_room_(const CudaBackend *cuda, int64_t bytes, const char *what, Error *err) {
    char own[512];
    size_t left = 0, total = 0;
    const Backend *be = &cuda->backend;
    memory_describe(&be->held, own, sizeof own);
    // On a full GPU CUDA cannot create its context, so it cannot report how much memory is free.
    if (cudaMemGetInfo(&left, &total) != cudaSuccess) left = 0, total = (size_t)be->memory_size;
    int64_t others = (int64_t)(total - left) - memory_total(&be->held);
    return error_set(err, EXIT_FAILED,
                     "GPU %d, %s: %s of %s are free, but %s another %s; this rank holds %s, and other programs, CUDA "
                     "and its libraries hold %s; end other programs on this GPU (nvidia-smi lists them), or use more "
                     "stages, fewer slots or a smaller micro-batch (--plan shows the memory of each)",
                     cuda->device, be->device, memory_size_text((int64_t)left).text,
                     memory_size_text((int64_t)total).text, what, memory_size_text(bytes).text, own,
                     memory_size_text(others).text);
}

static int cuda_check_free_(Backend *be, int64_t bytes, Error *err) {
    size_t left = 0, total = 0;
    cudaSetDevice(cuda_self(be)->device);
    if (cudaMemGetInfo(&left, &total) != cudaSuccess || (int64_t)left >= bytes) return 0;
    return no_room_(cuda_self(be), bytes, "this stage needs", err);
}

static int64_t cuda_held_by_others_(Backend *be) {
    size_t left = 0, total = 0;
    cudaSetDevice(cuda_self(be)->device);
    bool known = cudaMemGetInfo(&left, &total) == cudaSuccess;
    return known ? (int64_t)(total - left) - memory_total(&be->held) : 0;
}

// Returns `bytes`, rounded up to full pages if other processes map the memory, so that its pages hold nothing else.
static int64_t whole_(const Backend *be, MemoryCategory category, int64_t bytes) {
    bool lent = category == MEMORY_LENT_SLOTS || category == MEMORY_MESSAGES;
    return lent ? memory_pages(bytes, be->lent_page) : bytes;
}

static void *cuda_allocate_(Backend *be, MemoryCategory category, int64_t bytes, const char *what, Error *err) {
    CudaBackend *cuda = cuda_self(be);
    void *memory = NULL;
    const int64_t whole = whole_(be, category, bytes);
    cudaSetDevice(cuda->device);
    // NCCL registers only memory allocated as ncclMemAlloc does ("legacy buffer registration is disabled by default",
    // NCCL user guide, "User Buffer Registration").
    bool asks = cuda->registers && cuda->registered == NULL && category == MEMORY_WORKSPACE && bytes > 0;
    bool registers = asks && ncclMemAlloc(&memory, (size_t)whole) == ncclSuccess;
    if (registers) cuda->registered = memory;
    else if (asks) cudaGetLastError();
    cudaError_t status = registers   ? cudaSuccess
                         : bytes < 0 ? cudaErrorMemoryAllocation
                                     : cudaMalloc(&memory, whole > 0 ? (size_t)whole : 1);
    if (status != cudaSuccess) {
        char needs[160];
        cudaGetLastError();
        snprintf(needs, sizeof needs, "%.80s (%s) need", what, memory_name(category));
        if (status == cudaErrorMemoryAllocation) no_room_(cuda, bytes, needs, err);
        else cuda_fail_(cuda, "allocating memory", status, err);
        return NULL;
    }
    cuda_note(cuda, cudaMemsetAsync(memory, 0, (size_t)bytes, cuda_compute(cuda)), "clearing memory");
    cuda_note(cuda, cudaStreamSynchronize(cuda_compute(cuda)), "clearing memory");
    be->held.bytes[category] += whole;
    memory_note_peak(&be->held, &be->peak);
    return memory;
}

static void cuda_release_(Backend *be, MemoryCategory category, void *memory, int64_t bytes) {
    if (memory == NULL) return;
    be->held.bytes[category] -= whole_(be, category, bytes);
    CudaBackend *cuda = cuda_self(be);
    // Another process may still have this memory mapped; freeing it then is undefined in CUDA. The memory is freed when
    // this process ends, which is soon.
    for (int i = 0; i < cuda->lent_count; i++)
        if (memory == cuda->lent[i]) return;
    if (memory != cuda->registered) {
        cudaFree(memory);
        return;
    }
    ncclMemFree(memory);
    cuda->registered = NULL;
}

static void cuda_copy_(Backend *be, Stream stream, void *to, const void *from, int64_t bytes) {
    CudaBackend *cuda = cuda_self(be);
    cuda_note(cuda, cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyDefault, cuda->streams[stream]), "a copy");
}

// Waits for the copy, so that the caller may reuse `from`. The GPU reads pinned memory later, and may also read
// ordinary memory later if it accesses that memory directly (GH200).
static void upload_(Backend *be, void *to, const void *from, int64_t bytes) {
    CudaBackend *cuda = cuda_self(be);
    cudaSetDevice(cuda->device);
    cuda_note(cuda, cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyHostToDevice, cuda_compute(cuda)), "an upload");
    cuda_note(cuda, cudaStreamSynchronize(cuda_compute(cuda)), "an upload");
}

static void download_(Backend *be, void *to, const void *from, int64_t bytes) {
    CudaBackend *cuda = cuda_self(be);
    cudaStream_t stream = cuda_compute(cuda);
    cudaSetDevice(cuda->device);
    cuda_note(cuda, cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyDeviceToHost, stream), "a download");
    cuda_note(cuda, cudaStreamSynchronize(stream), "work before a download");
}

static void zero_(Backend *be, void *memory, int64_t bytes) {
    CudaBackend *cuda = cuda_self(be);
    cuda_note(cuda, cudaMemsetAsync(memory, 0, (size_t)bytes, cuda_compute(cuda)), "clearing memory");
}

// --- time

// If the device is lost, event->event stays NULL, which counts as recorded and complete. The failure is noted here.
static Event *event_create_(Backend *be) {
    Event *event = (Event *)xcalloc(1, sizeof *event);
    cuda_note(cuda_self(be), cudaEventCreate(&event->event), "making an event");
    return event;
}

static void event_destroy_(Backend *be, Event *event) {
    (void)be;
    if (event == NULL) return;
    if (event->event != NULL) cudaEventDestroy(event->event);
    free(event);
}

static void event_record_(Backend *be, Event *event, Stream stream) {
    CudaBackend *cuda = cuda_self(be);
    if (event->event != NULL)
        cuda_note(cuda, cudaEventRecord(event->event, cuda->streams[stream]), "recording an event");
}

// A failed device completes no more work. Every event then counts as done, so that the host reaches `synchronize`.
static bool cuda_event_done_(Backend *be, Event *event) {
    cudaError_t status = event->event != NULL ? cuda_event_status(event->event) : cudaSuccess;
    if (status == cudaErrorNotReady) return false;
    cuda_note(cuda_self(be), status, "work on the device");
    return true;
}

static double event_seconds_(Backend *be, const Event *event) {
    Clock *clock = clock_of_(be);
    int base = 1 - clock->latest;
    float ms = 0.0f;
    if (event->event == NULL) return clock->seconds[base];
    cuda_note(cuda_self(be), cudaEventElapsedTime(&ms, clock->event[base], event->event), "reading an event");
    return clock->seconds[base] + 1e-3 * (double)ms;
}

// Records a new reference point while the device is idle. CUDA returns the time since a reference point as a float of
// milliseconds, which is exact to microseconds only if the point is recent.
static void set_clock_(CudaBackend *cuda, Clock *clock) {
    int next = 1 - clock->latest;
    double before = clock_seconds();
    cuda_note(cuda, cudaEventRecord(clock->event[next], cuda_compute(cuda)), "recording an event");
    cuda_note(cuda, cudaEventSynchronize(clock->event[next]), "work on the device");
    clock->seconds[next] = (before + clock_seconds()) / 2;
    clock->latest = next;
}

// Returns -1 with err if an operation failed. If a lost device made cuBLASLt or cuDNN fail, err reports the loss.
static int cuda_check_(Backend *be, Error *err) {
    CudaBackend *cuda = cuda_self(be);
    if (cuda->failed_at == NULL) return 0;
    if (cuda->status != cudaSuccess) return cuda_fail_(cuda, cuda->failed_at, cuda->status, err);
    cudaError_t lost = cudaFree(NULL);
    if (lost != cudaSuccess) return cuda_fail_(cuda, "work on the device", lost, err);
    return error_set(err, EXIT_FAILED, "GPU %d, %s: %s", cuda->device, be->device, cuda->failed_at);
}

static int synchronize_(Backend *be, Error *err) {
    CudaBackend *cuda = cuda_self(be);
    cudaSetDevice(cuda->device);
    for (int s = 0; s < STREAM_COUNT; s++)
        cuda_note(cuda, cudaStreamSynchronize(cuda->streams[s]), "work on the device");
    cuda_note(cuda, cudaGetLastError(), "a kernel's launch");
    if (cuda->failed_at == NULL) set_clock_(cuda, clock_of_(be));
    return cuda_check_(be, err);
}

static void range_begin_(Backend *be, const char *name) {
    (void)be;
    nvtxRangePushA(name);
}

static void range_end_(Backend *be) {
    (void)be;
    nvtxRangePop();
}

// --- life

static void cuda_destroy_(Backend *be) {
    CudaBackend *cuda = cuda_self(be);
    Clock *clock = clock_of_(be);
    cudaSetDevice(cuda->device);
    cuda_flash_destroy(cuda);
    cuda_matmul_destroy(cuda);
    cudaFree(cuda->scratch);
    for (int i = 0; i < 2; i++)
        if (clock->event[i] != NULL) cudaEventDestroy(clock->event[i]);
    for (int s = 0; s < STREAM_COUNT; s++)
        if (cuda->streams[s] != NULL) cudaStreamDestroy(cuda->streams[s]);
    if (cuda->beside != NULL) cudaStreamDestroy(cuda->beside);
    free(cuda->lent);
    free(cuda);
}

static int cuda_start_(CudaDevice *device, Error *err) {
    CudaBackend *cuda = &device->cuda;
    Backend *be = &cuda->backend;
    cudaDeviceProp properties;
    cudaError_t status = cudaGetDeviceProperties(&properties, cuda->device);
    if (status == cudaSuccess) {
        snprintf(be->device, sizeof be->device, "%.80s", properties.name);
        be->memory_size = (int64_t)properties.totalGlobalMem;
        cuda->multiprocessors = properties.multiProcessorCount;
        cuda->shared_bytes = (int64_t)properties.sharedMemPerBlockOptin;
        be->capability = properties.major * 10;
        snprintf(be->kernels, sizeof be->kernels, "matrix products by cuBLASLt; attention.mode flash %s",
                 cuda_flash_version() > 0 ? "by cuDNN" : "falls back to recompute");
        if (properties.major < 8)
            return error_set(err, EXIT_FAILED,
                             "%s has compute capability %d.%d; this program's kernels need 8.0 or later (A100 and "
                             "newer)",
                             be->device, properties.major, properties.minor);
        status = cudaSetDevice(cuda->device);
    }
    // Evictions and messages get a higher priority: compute may wait for them, but they never wait for compute.
    int least = 0, most = 0;
    if (status == cudaSuccess) status = cudaDeviceGetStreamPriorityRange(&least, &most);
    for (int s = 0; s < STREAM_COUNT && status == cudaSuccess; s++)
        status =
            cudaStreamCreateWithPriority(&cuda->streams[s], cudaStreamNonBlocking, s == STREAM_COMPUTE ? least : most);
    for (int i = 0; i < 2 && status == cudaSuccess; i++) status = cudaEventCreate(&device->clock.event[i]);
    if (status == cudaSuccess) status = cudaMalloc(&cuda->scratch, CUDA_SCRATCH_BYTES);
    cuda->scratch_bytes = CUDA_SCRATCH_BYTES;
    if (status != cudaSuccess) {
        cudaGetLastError();
        if (status == cudaErrorMemoryAllocation) return no_room_(cuda, CUDA_OWN_BYTES, "the start needs", err);
        if (status == cudaErrorDevicesUnavailable)
            return error_set(
                err, EXIT_FAILED,
                "GPU %d, %s: %s; another process may have it alone: see the compute mode and the processes "
                "that nvidia-smi shows, and start one rank per GPU unless the mode is Default",
                cuda->device, be->device, cudaGetErrorString(status));
        return cuda_fail_(cuda, "starting the device", status, err);
    }
    // Sets both reference points, so that every event recorded from now on comes after the older point.
    set_clock_(cuda, &device->clock);
    set_clock_(cuda, &device->clock);
    return cuda_check_(be, err) == 0 ? cuda_matmul_create(cuda, err) : -1;
}

static Backend *cuda_create_(int precision, int device, Error *err) {
    CudaDevice *made = (CudaDevice *)xcalloc(1, sizeof *made);
    Backend *be = &made->cuda.backend;
    be->self = made;
    made->cuda.device = device;
    be->precision = precision;
    be->element = precision == PRECISION_BF16 ? 2 : 4;
    be->destroy = cuda_destroy_;
    be->allocate = cuda_allocate_;
    be->release = cuda_release_;
    be->check_free = cuda_check_free_;
    be->held_by_others = cuda_held_by_others_;
    be->copy = cuda_copy_;
    be->upload = upload_;
    be->download = download_;
    be->zero = zero_;
    be->pin = cuda_pin;
    be->unpin = cuda_unpin;
    be->lend = cuda_lend;
    be->borrow = cuda_borrow;
    be->give_back = cuda_give_back;
    be->event_create = event_create_;
    be->event_destroy = event_destroy_;
    be->event_record = event_record_;
    be->event_done = cuda_event_done_;
    be->event_seconds = event_seconds_;
    be->synchronize = synchronize_;
    be->check = cuda_check_;
    be->range_begin = range_begin_;
    be->range_end = range_end_;
    be->linear_forward_blocks = cuda_linear_forward_blocks;
#define OPERATION(result, name, ...) be->name = cuda_##name
#include "backend/operations.h"
    be->own_bytes = CUDA_OWN_BYTES;
    be->lent_page = CUDA_LENT_PAGE;
    be->loads_late = true;
    be->streams = STREAM_COUNT;
    if (cuda_start_(made, err) != 0) {
        cuda_destroy_(be);
        return NULL;
    }
    be->held.bytes[MEMORY_WORKSPACE] = be->peak.bytes[MEMORY_WORKSPACE] = CUDA_OWN_BYTES;
    return be;
}

// --- devices

static void version_text_(char *text, size_t size, int version) {
    snprintf(text, size, "%d.%d", version / 1000, version % 1000 / 10);
}

static int cuda_count_(char why[256]) {
    int count = 0, driver = 0;
    cudaError_t status = cudaGetDeviceCount(&count);
    why[0] = '\0';
    if (status == cudaSuccess && count > 0) return count;
    cudaGetLastError();
    char has[16], needs[16];
    version_text_(needs, sizeof needs, CUDART_VERSION);
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
        snprintf(why, 256, "no NVIDIA driver is installed here");
    else if (status == cudaErrorInsufficientDriver) {
        version_text_(has, sizeof has, driver);
        snprintf(why, 256,
                 "the NVIDIA driver supports CUDA up to %s; this program was built with %s; build it with the toolkit "
                 "of CUDA %s, put the folder of cuda-compat-%d-%d first in LD_LIBRARY_PATH, or update the driver",
                 has, needs, has, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    } else if (status == cudaErrorSystemNotReady)
        snprintf(why, 256,
                 "the NVIDIA driver reports: %s; GPUs with NVSwitch need the service nvidia-fabricmanager, and GB200 "
                 "nvidia-imex too: start them (systemctl start nvidia-fabricmanager)",
                 cudaGetErrorString(status));
    else if (status == cudaErrorNoDevice || status == cudaSuccess)
        snprintf(why, 256, "the NVIDIA driver shows no GPU (CUDA_VISIBLE_DEVICES=%s)",
                 getenv("CUDA_VISIBLE_DEVICES") == NULL ? "" : getenv("CUDA_VISIBLE_DEVICES"));
    else snprintf(why, 256, "the NVIDIA driver reports: %s", cudaGetErrorString(status));
    return 0;
}

static void cuda_identity_(int device, GpuIdentity *identity) {
    cudaDeviceProp properties;
    memset(identity, 0, sizeof *identity);
    if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) return;
    snprintf(identity->name, sizeof identity->name, "%.79s", properties.name);
    for (int i = 0; i < 16; i++) snprintf(identity->id + 2 * i, 3, "%02x", (unsigned char)properties.uuid.bytes[i]);
    identity->memory_bytes = (int64_t)properties.totalGlobalMem;
    snprintf(identity->bus, sizeof identity->bus, "%04x:%02x:%02x.0", (unsigned)properties.pciDomainID & 0xffff,
             (unsigned)properties.pciBusID & 0xff, (unsigned)properties.pciDeviceID & 0xff);
}

static void cuda_versions_(char *text, int64_t size) {
    int driver = 0, runtime = 0, nccl = 0;
    char driver_text[16], runtime_text[16], cudnn[48] = ", no cuDNN";
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    ncclGetVersion(&nccl);
    version_text_(driver_text, sizeof driver_text, driver);
    version_text_(runtime_text, sizeof runtime_text, runtime);
    long long v = (long long)cuda_flash_version(), blas = (long long)cublasLtGetVersion();
    if (v > 0) snprintf(cudnn, sizeof cudnn, ", cuDNN %lld.%lld.%lld", v / 10000, v % 10000 / 100, v % 100);
    snprintf(text, (size_t)size, "%s%s, CUDA %s, cuBLAS %lld.%lld.%lld%s, NCCL %d.%d.%d",
             driver > 0 ? "driver for CUDA " : "no driver", driver > 0 ? driver_text : "", runtime_text, blas / 10000,
             blas % 10000 / 100, blas % 100, cudnn, nccl / 10000, nccl % 10000 / 100, nccl % 100);
}

const CudaLibrary *cuda_library(void) {
    static const CudaLibrary table = {CUDA_INTERFACE, cuda_count_,      cuda_identity_,   cuda_versions_,
                                      cuda_create_,   comm_nccl_create, comm_copy_create, comm_staged_create};
    cuda_set_environment(); // for programs other than the trainers
    return &table;
}

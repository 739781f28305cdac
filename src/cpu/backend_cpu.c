// The CPU as a device: its memory, its clock, and the table of operations. Work is done when a call returns, so streams
// and events cost nothing: an event is the time at which it was recorded.
#include "cpu.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/units.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct Event {
    double seconds;
};

// --- workspace

// Returns the bytes of one thread's workspace, rounded up to MEMORY_ALIGN.
static int64_t thread_workspace_(const CpuBackend *cpu, int thread, int64_t rows, int64_t hidden,
                                 const AttentionShape *shape) {
    int64_t norm = cpu_norm_workspace(rows, hidden, cpu->threads, thread);
    int64_t heads = cpu_norm_workspace(shape->seq * shape->batch, shape->head_dim, cpu->threads, thread);
    int64_t most = max_i64(max_i64(norm, heads), max_i64(cpu_linear_workspace(), cpu_attention_workspace(shape)));
    return memory_round(most * (int64_t)sizeof(float));
}

static int64_t cpu_workspace_bytes_(Backend *be, int64_t rows, int64_t hidden, const AttentionShape *shape) {
    const CpuBackend *cpu = cpu_self(be);
    int64_t bytes = 0;
    for (int t = 0; t < cpu->threads; t++) bytes += thread_workspace_(cpu, t, rows, hidden, shape);
    return bytes;
}

static void cpu_use_workspace_(Backend *be, void *memory, int64_t rows, int64_t hidden, const AttentionShape *shape) {
    CpuBackend *cpu = cpu_self(be);
    char *at = memory;
    for (int t = 0; t < cpu->threads; t++) {
        int64_t bytes = thread_workspace_(cpu, t, rows, hidden, shape);
        cpu_scratch_drop(cpu, &cpu->scratch[t]);
        if (at == NULL) continue;
        cpu->scratch[t].memory = (void *)at;
        cpu->scratch[t].floats = bytes / (int64_t)sizeof(float);
        cpu->scratch[t].given = true;
        at += bytes;
    }
}

// --- memory that another process of the host can map: an anonymous file that the other process opens through /proc.
// The file has no name, so it cannot be left behind, and it disappears with the last process that has it open.

typedef struct LoanHandle {
    int64_t pid, fd, bytes;
    uint64_t device, inode; // identity of the file: in another container `pid` may be another process
} LoanHandle;

_Static_assert(sizeof(LoanHandle) <= sizeof(Loan), "a handle has to fit into a loan");

// Returns zeroed, page-aligned memory that can be lent; NULL if bytes is 0, on failure, or if a block is allocated.
static void *shared_allocate_(CpuBackend *cpu, int64_t bytes) {
    CpuShared *shared = &cpu->shared;
    if (shared->memory != NULL || bytes == 0) return NULL; // one allocation at a time: a stage needs only one
    int fd = memfd_create("lent slots", MFD_CLOEXEC);
    if (fd < 0) return NULL;
    void *memory = MAP_FAILED;
    if (ftruncate(fd, bytes) == 0) memory = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        close(fd);
        return NULL;
    }
    *shared = (CpuShared){memory, bytes, fd};
    return memory;
}

// Returns false if shared_allocate_ did not allocate the memory.
static bool shared_release_(CpuBackend *cpu, void *memory) {
    CpuShared *shared = &cpu->shared;
    if (memory == NULL || shared->memory != memory) return false;
    munmap(memory, (size_t)shared->bytes);
    close(shared->fd);
    *shared = (CpuShared){NULL, 0, -1};
    return true;
}

static int cpu_lend_(Backend *be, const void *memory, int64_t bytes, Loan *loan, Error *err) {
    const CpuShared *shared = &cpu_self(be)->shared;
    struct stat file;
    if (memory == NULL || shared->memory != memory || fstat(shared->fd, &file) != 0)
        return error_set(err, EXIT_FAILED, "this memory was not allocated to be lent");
    LoanHandle handle = {getpid(), shared->fd, bytes, (uint64_t)file.st_dev, (uint64_t)file.st_ino};
    memset(loan, 0, sizeof *loan);
    memcpy(loan, &handle, sizeof handle);
    return 0;
}

static void *cpu_borrow_(Backend *be, const Loan *loan, int64_t bytes, Error *err) {
    (void)be;
    LoanHandle handle;
    memcpy(&handle, loan, sizeof handle);
    char path[64];
    struct stat file;
    snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)handle.pid, (long long)handle.fd);
    bool same = stat(path, &file) == 0 && (uint64_t)file.st_dev == handle.device &&
                (uint64_t)file.st_ino == handle.inode && handle.bytes >= bytes;
    int fd = same ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *memory = fd < 0 ? MAP_FAILED : mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0) close(fd);
    if (memory != MAP_FAILED) return memory;
    return error_null(err, EXIT_FAILED, "memory of process %lld cannot be mapped (%s)", (long long)handle.pid,
                      same ? strerror(errno) : "its file is not visible in /proc");
}

static void cpu_give_back_(Backend *be, void *memory, int64_t bytes) {
    (void)be;
    if (memory != NULL) munmap(memory, (size_t)bytes);
}

// --- memory

// Memory is zeroed and aligned. The address that calloc returned is stored just before it, for free(). calloc gets
// large pieces from the kernel already zeroed and does not touch them. Huge pages, if the kernel grants them, save many
// TLB misses in the strided reads of packing.
static void *cpu_allocate_(Backend *be, MemoryCategory category, int64_t bytes, const char *what, Error *err) {
    int64_t held = memory_total(&be->held), limit = INT64_MAX / 2;
    if (be->memory_size > 0) limit = be->memory_size;
    bool possible = bytes >= 0 && bytes <= limit - held;
    void *memory = possible && category == MEMORY_LENT_SLOTS ? shared_allocate_(cpu_self(be), bytes) : NULL;
    void *whole = possible && memory == NULL ? calloc(1, (size_t)bytes + MEMORY_ALIGN + sizeof(void *)) : NULL;
    if (whole != NULL) {
        enum { PAGE = 4096, HUGE = 1 << 21 };
        uintptr_t at = ((uintptr_t)whole + sizeof(void *) + MEMORY_ALIGN - 1) & ~(uintptr_t)(MEMORY_ALIGN - 1);
        ((void **)at)[-1] = whole;
        uintptr_t first = (at + PAGE - 1) & ~(uintptr_t)(PAGE - 1);
        if (bytes >= 2 * HUGE) madvise((void *)first, (size_t)(at + (uintptr_t)bytes - first), MADV_HUGEPAGE);
        memory = (void *)at;
    }
    if (memory == NULL) {
        char rest[512], machine[64] = "";
        memory_describe(&be->held, rest, sizeof rest);
        if (be->memory_size > 0)
            snprintf(machine, sizeof machine, ", and the machine has %.2f GiB", (double)be->memory_size / GIB);
        error_set(err, EXIT_FAILED,
                  "%s: cannot allocate %lld bytes (%.2f GiB) for %s (%s); this rank holds %s%s; use more stages, fewer "
                  "slots or a smaller micro-batch",
                  be->device, (long long)bytes, (double)bytes / GIB, what, memory_name(category), rest, machine);
        return NULL;
    }
    be->held.bytes[category] += bytes;
    memory_note_peak(&be->held, &be->peak);
    return memory;
}

static void cpu_release_(Backend *be, MemoryCategory category, void *memory, int64_t bytes) {
    if (memory == NULL) return;
    if (!shared_release_(cpu_self(be), memory)) free(((void **)memory)[-1]);
    be->held.bytes[category] -= bytes;
}

static void cpu_copy_(Backend *be, Stream stream, void *to, const void *from, int64_t bytes) {
    (void)be, (void)stream;
    memcpy(to, from, (size_t)bytes);
}

static void cpu_transfer_(Backend *be, void *to, const void *from, int64_t bytes) {
    (void)be;
    memcpy(to, from, (size_t)bytes);
}

static void cpu_zero_(Backend *be, void *memory, int64_t bytes) {
    enum { PIECE = 1 << 20 };
    CPU_PARALLEL_FOR(be)
    for (int64_t at = 0; at < bytes; at += PIECE) memset((char *)memory + at, 0, (size_t)min_i64(bytes - at, PIECE));
}

// --- time

static Event *cpu_event_create_(Backend *be) {
    (void)be;
    return xcalloc(1, sizeof(Event));
}

static void cpu_event_destroy_(Backend *be, Event *event) {
    (void)be;
    free(event);
}

static void cpu_event_record_(Backend *be, Event *event, Stream stream) {
    (void)stream;
    event->seconds = ((CpuBackend *)be)->own_time ? clock_thread_seconds() : clock_seconds();
}

static void cpu_count_own_time_(Backend *be) {
    CpuBackend *cpu = (CpuBackend *)be;
    cpu->own_time = cpu->threads == 1;
}

static bool cpu_event_done_(Backend *be, Event *event) {
    (void)be, (void)event;
    return true;
}

static double cpu_event_seconds_(Backend *be, const Event *event) {
    (void)be;
    return event->seconds;
}

static int cpu_synchronize_(Backend *be, Error *err) {
    (void)be, (void)err;
    return 0;
}

// --- precision: rows of the run's precision as floats, and back

enum { PIECE = 1 << 16 };

void cpu_from_float(Backend *be, void *to, const float *from, int64_t count) {
    CPU_PARALLEL_FOR(be)
    for (int64_t at = 0; at < count; at += PIECE) cpu_store(be, to, at, from + at, min_i64(count - at, PIECE));
}

void cpu_copy_columns(Backend *be, void *to, int64_t to_cols, const void *from, int64_t from_cols, bool wide,
                      int64_t rows, int64_t cols) {
    int64_t element = be->element;
    CPU_PARALLEL_FOR(be)
    for (int64_t r = 0; r < rows; r++) {
        if (wide) cpu_store(be, to, r * to_cols, (const float *)from + r * from_cols, cols);
        else
            memcpy((char *)to + r * to_cols * element, (const char *)from + r * from_cols * element,
                   (size_t)(cols * element));
    }
}

void cpu_to_float(Backend *be, float *to, const void *from, int64_t count) {
    CPU_PARALLEL_FOR(be)
    for (int64_t at = 0; at < count; at += PIECE) {
        int64_t n = min_i64(count - at, PIECE);
        const float *piece = cpu_load(be, to + at, from, at, n);
        if (piece != to + at) memcpy(to + at, piece, (size_t)n * sizeof *to);
    }
}

// --- life

static void cpu_destroy_(Backend *be) {
    CpuBackend *cpu = cpu_self(be);
    for (int t = 0; t < cpu->threads; t++) {
        cpu_scratch_drop(cpu, &cpu->scratch[t]);
        cpu_products_destroy(cpu->scratch[t].products);
    }
    free_all(cpu->scratch, cpu);
}

// Writes the processor's model name from /proc/cpuinfo, or "CPU" if it is missing.
static void processor_name_(char *name, size_t size) {
    snprintf(name, size, "CPU");
    FILE *file = fopen("/proc/cpuinfo", "r");
    if (file == NULL) return;
    char line[256];
    while (fgets(line, sizeof line, file) != NULL) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || colon == NULL) continue;
        colon[strcspn(colon, "\n")] = '\0';
        snprintf(name, size, "%s", colon + 2);
        break;
    }
    fclose(file);
}

// Returns the bytes of physical memory, or of a container's limit if that is smaller; 0: unknown.
static int64_t memory_size_(void) {
    int64_t pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    int64_t size = pages > 0 && page > 0 ? pages * page : INT64_MAX;
    const char *const limits[] = {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"};
    for (int i = 0; i < 2; i++) {
        FILE *file = fopen(limits[i], "r");
        long long limit = 0;
        if (file != NULL && fscanf(file, "%lld", &limit) == 1 && limit > 0) size = min_i64(limit, size); // not "max"
        if (file != NULL) fclose(file);
    }
    return size == INT64_MAX ? 0 : size;
}

Backend *backend_cpu_create(int precision, int threads, Error *err) {
    (void)err; // never fails; the signature is that of managed_backend_create, which tests call instead
    // oneDNN allocates packing buffers with malloc for every product. If freed buffers went back to the kernel, it
    // would clear their pages again at the next allocation, which costs a few percent of a step.
    alloc_keep_freed();
#ifdef _OPENMP
    if (threads <= 0) threads = omp_get_max_threads();
#else
    threads = 1;
#endif
    CpuBackend *cpu = xcalloc(1, sizeof *cpu);
    cpu->threads = threads;
    cpu->scratch = xcalloc((size_t)threads, sizeof *cpu->scratch);
    cpu->bf16_library = precision == PRECISION_BF16 && cpu_bf16_by_library();
    Backend *be = &cpu->backend;
    be->self = cpu;
    be->precision = precision;
    be->element = precision == PRECISION_BF16 ? 2 : 4;
    be->own_sums = true;
    be->memory_size = memory_size_();
    char name[64];
    processor_name_(name, sizeof name);
    snprintf(be->device, sizeof be->device, "%s, %d thread%s", name, threads, threads == 1 ? "" : "s");
    bool library = cpu_linear_by_library(precision);
    snprintf(be->kernels, sizeof be->kernels,
             "matrix products by %s; attention and all other operations by built-in loops",
             library ? "oneDNN, one tile per thread" : "the built-in kernel");
    be->destroy = cpu_destroy_;
    be->allocate = cpu_allocate_;
    be->release = cpu_release_;
    be->copy = cpu_copy_;
    be->upload = cpu_transfer_;
    be->download = cpu_transfer_;
    be->zero = cpu_zero_;
    be->lend = cpu_lend_;
    be->borrow = cpu_borrow_;
    be->give_back = cpu_give_back_;
    be->event_create = cpu_event_create_;
    be->event_destroy = cpu_event_destroy_;
    be->event_record = cpu_event_record_;
    be->event_done = cpu_event_done_;
    be->event_seconds = cpu_event_seconds_;
    be->count_own_time = cpu_count_own_time_;
    be->synchronize = cpu_synchronize_;
    be->workspace_bytes = cpu_workspace_bytes_;
    be->use_workspace = cpu_use_workspace_;
#define OPERATION(result, name, ...) be->name = cpu_##name
#include "backend/operations.h"
    return be;
}

// --- the measured peak of this machine's cores in matrix products: the denominator of MFU if no peak is given
//
// Every thread times one tile of a linear layer repeatedly, about a millisecond each, and its best time counts. So
// other programs lower the result only if they never leave a thread undisturbed for a millisecond. All threads measure
// at once, so the clock speed is that of a fully loaded processor.

enum { PEAK_ROWS = CPU_GEMM_ROWS, PEAK_COLS = CPU_GEMM_COLS, PEAK_DEPTH = 768 };

// Floats of a thread: two operands, the tile, and the workspace of a product.
enum { PEAK_FLOATS = PEAK_ROWS * PEAK_DEPTH + PEAK_COLS * PEAK_DEPTH + PEAK_ROWS * PEAK_COLS + CPU_GEMM_WORKSPACE };

// Returns the calling thread's fastest time for a tile, in seconds, measured for about `budget` seconds.
static double quickest_tile_(Backend *be, float *memory, double budget) {
    enum { LEAST_TILES = 4 };
    bool bf16 = cpu_is_bf16(be);
    float *x = memory, *w = x + PEAK_ROWS * PEAK_DEPTH, *y = w + PEAK_COLS * PEAK_DEPTH;
    CpuOperand a = {x, PEAK_DEPTH, false, bf16, NULL}, b = {w, PEAK_DEPTH, true, bf16, NULL};
    double start = clock_seconds(), last = start, best = INFINITY;
    for (int tile = 0; tile < LEAST_TILES || last - start < budget; tile++) {
        cpu_tile_product(be, y + PEAK_ROWS * PEAK_COLS, PEAK_ROWS, PEAK_COLS, PEAK_DEPTH, a, b, false, y, PEAK_COLS);
        double now = clock_seconds();
        // The first tile is not counted, because it touches its memory for the first time.
        if (tile > 0 && now - last < best) best = now - last;
        last = now;
    }
    return best;
}

double backend_cpu_measure_peak(int precision, int threads) {
    const double budget = 0.1; // seconds
    Backend *be = backend_cpu_create(precision, threads, NULL);
    if (be == NULL) return 0.0;
    CpuBackend *cpu = cpu_self(be);
    int64_t bytes = (int64_t)cpu->threads * PEAK_FLOATS * 4;
    float *memory = be->allocate(be, MEMORY_WORKSPACE, bytes, "measuring the peak", NULL);
    double *seconds = be->allocate(be, MEMORY_WORKSPACE, cpu->threads * 8, "measuring the peak", NULL);
    double flops = 2.0 * PEAK_ROWS * PEAK_COLS * PEAK_DEPTH, rate = 0.0;
    if (memory != NULL && seconds != NULL) {
        CPU_PARALLEL(be)
        seconds[cpu_thread()] = quickest_tile_(be, memory + (int64_t)cpu_thread() * PEAK_FLOATS, budget);
        for (int t = 0; t < cpu->threads; t++) rate += flops / seconds[t];
    }
    backend_release(be, MEMORY_WORKSPACE, memory, bytes);
    backend_release(be, MEMORY_WORKSPACE, seconds, cpu->threads * 8);
    be->destroy(be);
    return 1e-12 * rate;
}

// State that the processes of one run share: a segment in /dev/shm with the name of the run. The launcher passes the
// name to its ranks in the environment (VIRTUAL_JOB); under another mpirun it is the PMIx namespace. The last process
// to leave removes the segment, and each start removes the segments of runs that died.
#include "virtual.h"

#include <cctype>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <dirent.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace virtual_gpu {

size_t timeline_bytes(); // clock.cc

void tell(const char *variable, int64_t number) {
    const char *folder = getenv(variable);
    FILE *file = folder == nullptr ? nullptr : fopen(text("%s/%d", folder, process()).c_str(), "a");
    if (file == nullptr) return;
    fprintf(file, "%lld\n", (long long)number);
    fclose(file);
}

namespace {

enum { MAGIC = 0x76677032 };
const char PREFIX[] = "virtual-gpu.";

int64_t number(const char *name, int64_t otherwise) {
    const char *value = getenv(name);
    return value == nullptr || *value == '\0' ? otherwise : strtoll(value, nullptr, 10);
}

std::string word(const char *name, const char *otherwise) {
    const char *value = getenv(name);
    return value == nullptr ? otherwise : value;
}

Options read_options() {
    Options o;
    o.gpus = (int)number("VIRTUAL_GPUS", 8);
    o.nodes = (int)number("VIRTUAL_NODES", 1);
    o.multiprocessors = (int)number("VIRTUAL_MULTIPROCESSORS", 132);
    std::string order = word("VIRTUAL_ORDER", "fifo");
    o.order = order == "random" ? ORDER_RANDOM : order == "newest" ? ORDER_NEWEST : ORDER_FIFO;
    o.seed = (uint64_t)number("VIRTUAL_SEED", 1);
    o.races = number("VIRTUAL_RACES", 1) != 0 && number("VIRTUAL_DRY", 0) == 0;
    o.launches = (int)number("VIRTUAL_LAUNCHES", 1024); // fewer than STEPS (timeline.h)
    o.jitter = atof(word("VIRTUAL_JITTER", "0").c_str());
    std::string slow = word("VIRTUAL_SLOW", "");
    char kind[16] = "";
    if (!slow.empty() && sscanf(slow.c_str(), "%15[a-z]@%d@%lf", kind, &o.slow_rank, &o.slow_times) != 3)
        defect("VIRTUAL_SLOW=%s: is not product@RANK@TIMES or links@RANK@TIMES", slow.c_str());
    o.slow = kind;
    o.patience = (double)number("VIRTUAL_PATIENCE", 120);
    // CUDA C++ programming guide, "CUDA environment variables": 1 to 32, 8 by default.
    o.queues = (int)number("CUDA_DEVICE_MAX_CONNECTIONS", 8);
    if (o.queues < 1 || o.queues > 32) o.queues = 8;
    o.loads_late = (int)number("VIRTUAL_LAZY", 1);
    // NCCL user guide, "NCCL_RUNTIME_CONNECT": 1 by default, connections are made when they are first used.
    o.connects_late = number("NCCL_RUNTIME_CONNECT", 1) != 0;
    o.driver = word("VIRTUAL_DRIVER", "13000");
    o.fault = word("VIRTUAL_FAULT", "");
    o.nccl = word("VIRTUAL_NCCL", "22809");
    o.late_ranks = " " + word("VIRTUAL_LATE", "") + " ";
    o.taken = number("VIRTUAL_TAKEN_MIB", 0) << 20;
    o.late = word("VIRTUAL_PAGEABLE", "") == "late";
    o.memory_operations = number("VIRTUAL_MEMOPS", 1) != 0;
    o.blocking = number("CUDA_LAUNCH_BLOCKING", 0) != 0;
    o.mig = number("VIRTUAL_MIG", 0) != 0;
    o.nvlink = word("VIRTUAL_PEERS", "1") == "1";
    o.peers = !o.mig && (o.nvlink || word("VIRTUAL_PEERS", "1") == "pcie");
    return o;
}

std::string job_name() {
    const char *names[] = {"VIRTUAL_JOB", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"};
    for (const char *name : names)
        if (getenv(name) != nullptr) {
            std::string value = getenv(name);
            for (char &c : value)
                if (!isalnum((unsigned char)c)) c = '_';
            return value;
        }
    return std::to_string(getpid());
}

bool alive(int pid) { return pid > 0 && (kill(pid, 0) == 0 || errno == EPERM); }

bool anybody(const Job *job) {
    for (const Member &member : job->members)
        if (member.pid != 0 && alive(member.pid)) return true;
    return false;
}

// The segment contains the job and, from the next page on, the timeline. Untouched pages take no memory.
size_t timeline_offset() { return (sizeof(Job) + 4095) / 4096 * 4096; }

size_t segment_bytes() { return timeline_offset() + timeline_bytes(); }

Job *map_segment(const std::string &path, bool create, int *fd) {
    *fd = open(path.c_str(), O_RDWR | O_CLOEXEC | (create ? O_CREAT : 0), 0600);
    if (*fd < 0) return nullptr;
    if (create && ftruncate(*fd, (off_t)segment_bytes()) != 0) return nullptr;
    size_t bytes = create ? segment_bytes() : sizeof(Job);
    void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, *fd, 0);
    return memory == MAP_FAILED ? nullptr : (Job *)memory;
}

// Removes the segments of runs without a live process.
void sweep() {
    DIR *folder = opendir("/dev/shm");
    if (folder == nullptr) return;
    while (const dirent *entry = readdir(folder)) {
        if (strncmp(entry->d_name, PREFIX, sizeof PREFIX - 1) != 0) continue;
        std::string path = std::string("/dev/shm/") + entry->d_name;
        int fd = -1;
        Job *other = map_segment(path, false, &fd);
        if (other != nullptr && flock(fd, LOCK_EX | LOCK_NB) == 0) {
            struct stat status;
            if (fstat(fd, &status) == 0 && status.st_size >= (off_t)sizeof(Job) && other->magic == MAGIC &&
                !anybody(other))
                unlink(path.c_str());
            flock(fd, LOCK_UN);
        }
        if (other != nullptr) munmap(other, sizeof(Job));
        if (fd >= 0) close(fd);
    }
    closedir(folder);
}

Job *the_job;
std::string the_path;

void leave() {
    if (the_job == nullptr) return;
    if (memory_most_pinned() > 0) tell("VIRTUAL_PINNED", memory_most_pinned()); // the parent of the ranks pins nothing
    the_job->members[process()].pid = 0;
    if (!anybody(the_job)) unlink(the_path.c_str());
}

Job *attach() {
    the_path = std::string("/dev/shm/") + PREFIX + job_name();
    sweep();
    int fd = -1;
    Job *segment = map_segment(the_path, true, &fd);
    if (segment == nullptr) {
        fprintf(stderr, "virtual GPU: cannot create %s: %s\n", the_path.c_str(), strerror(errno));
        _exit(1);
    }
    flock(fd, LOCK_EX);
    if (segment->magic != MAGIC) make_lock(&segment->lock), segment->magic = MAGIC;
    segment->members[process()].pid = getpid();
    flock(fd, LOCK_UN); // the mapping keeps the file open
    close(fd);
    atexit(leave);
    return segment;
}

// Sets the run's name in the environment, for the ranks that this process starts.
__attribute__((constructor)) void name_job() {
    char name[64];
    timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(name, sizeof name, "%d_%lld", (int)getpid(), (long long)now.tv_sec * 1000000000LL + now.tv_nsec);
    if (getenv("VIRTUAL_JOB") == nullptr && getenv("PMIX_NAMESPACE") == nullptr) setenv("VIRTUAL_JOB", name, 0);
}

} // namespace

const Options &options() {
    static const Options read = read_options();
    return read;
}

bool fault_comes(const char *kind, uint64_t count) {
    if (options().fault.empty()) return false;
    char named[16];
    unsigned long long at = 0;
    int rank = process();
    if (sscanf(options().fault.c_str(), "%15[a-z]@%llu@%d", named, &at, &rank) < 2) return false;
    return strcmp(named, kind) == 0 && count >= at && rank == process();
}

Job *job() {
    static Job *attached = the_job = attach();
    return attached;
}

void *job_timeline() { return (char *)job() + timeline_offset(); }

int process() {
    static const int rank = (int)number("OMPI_COMM_WORLD_RANK", number("PMI_RANK", 0)) % PROCESSES;
    return rank;
}

int processes() { return (int)number("OMPI_COMM_WORLD_SIZE", number("PMI_SIZE", 1)); }

int node() { return virtual_node(process(), processes(), options().nodes, options().gpus); }

static std::string formatted(const char *format, va_list list) {
    char line[1024];
    vsnprintf(line, sizeof line, format, list);
    return line;
}

std::string text(const char *format, ...) {
    va_list list;
    va_start(list, format);
    std::string made = formatted(format, list);
    va_end(list);
    return made;
}

void defect(const char *format, ...) {
    va_list list;
    va_start(list, format);
    fprintf(stderr, "virtual GPU: [rank %d] %s\n", process(), formatted(format, list).c_str());
    leave();
    _exit(1);
}

// Initialises a lock that processes share and that survives a process that ends while it holds the lock.
void make_lock(pthread_mutex_t *lock) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(lock, &attributes);
}

SharedLock::SharedLock(pthread_mutex_t *taken) : lock(taken) {
    if (pthread_mutex_lock(lock) == EOWNERDEAD) pthread_mutex_consistent(lock);
}

SharedLock::~SharedLock() { pthread_mutex_unlock(lock); }

double real_seconds() {
    timespec now;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

void ring() {
    __atomic_add_fetch(&job()->bell, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &job()->bell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void wait_bell(uint32_t seen, double wait) {
    timespec limit = {(time_t)wait, (long)(1e9 * (wait - (double)(time_t)wait))};
    syscall(SYS_futex, &job()->bell, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

void progressed() { __atomic_add_fetch(&job()->members[process()].progress, 1, __ATOMIC_RELAXED); }

void dump_waits(); // device.cc

void watch_progress() {
    static std::mutex guard;
    static uint64_t last = 0;
    static double since = real_seconds();
    std::lock_guard<std::mutex> held(guard);
    uint64_t sum = 1;
    for (const Member &member : job()->members) sum += __atomic_load_n(&member.progress, __ATOMIC_RELAXED);
    if (sum != last) last = sum, since = real_seconds();
    if (real_seconds() - since < options().patience) return;
    dump_waits();
    usleep(500000); // lets the other ranks report before the launcher ends them
    leave();
    _exit(1);
}

void Clock::set(int context, uint32_t time) {
    if (context >= (int)at.size()) at.resize((size_t)context + 1);
    at[(size_t)context] = time;
}

void Clock::join(const uint32_t *other, size_t width) {
    if (width > at.size()) at.resize(width);
    for (size_t i = 0; i < width; i++)
        if (other[i] > at[i]) at[i] = other[i];
}

} // namespace virtual_gpu

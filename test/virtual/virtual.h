// Internal declarations that the files of the virtual GPU share.
//
//   job.cc       state that the processes of one run share: members, posted messages, progress
//   memory.cc    device memory, pinned memory, memory of other processes: what is allocated where
//   shadow.cc    vector clocks, and who touched which bytes last: races, unwritten reads, bounds; bytes of a kernel
//   device.cc    streams, events, hardware queues, and the one thread that executes
//   runtime.cc   the CUDA runtime's calls
//   lt.cc        matrix products (cuBLASLt)        sdpa.cc   attention (cuDNN)
//   clock.cc     virtual time in dry runs
//   flags.cc     words in memory that order streams of two processes
//   nccl.cc      messages and collectives (NCCL)   messages.c   clocks on the host's messages (MPI)
//
// A context executes in order: it is a process's host thread or a stream. Each context has a vector clock. An action of
// one context happens before an action of another only if a chain of edges leads from the first to the second: a call
// that queues work, an event waited for, a successful query, a synchronize, a message. Two accesses to the same bytes
// without such a chain are a race, in whatever order they happened in this run.
#pragma once

#include "base/number_formats.h"
#include "program.h"

#include <cuda_runtime.h>

#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

struct VirtualLaunch;

namespace virtual_gpu {

enum { PROCESSES = 128, CONTEXTS = 32, HOST = 0, RANKS = 128 };

// --- job.cc

enum Order { ORDER_FIFO, ORDER_RANDOM, ORDER_NEWEST };

// The environment, read once. Beside it, VIRTUAL_PINNED and VIRTUAL_PRODUCTS name a folder, into which rank N writes
// file N: the most bytes of cudaMallocHost; a line for each product's kernel with its number of multiprocessors (0:
// all). VIRTUAL_JOB is the run's name, which its ranks share; the first process sets it.
struct Options {
    int gpus, nodes;     // GPUs per node; nodes of the run
    int multiprocessors; // VIRTUAL_MULTIPROCESSORS
    Order order;
    uint64_t seed;
    bool races;
    int launches;  // VIRTUAL_LAUNCHES: launches that a stream holds before a call blocks, in a dry run
    double jitter; // VIRTUAL_JITTER: in a dry run a product takes up to this fraction longer
    // VIRTUAL_SLOW: "product" or "links", of rank slow_rank, take slow_times as long in a dry run; "suggestion":
    // cuBLASLt's first suggestions take slow_times - 1 ms longer
    std::string slow;
    int slow_rank;
    double slow_times;
    double patience;        // seconds without progress anywhere that count as a deadlock
    int queues;             // CUDA_DEVICE_MAX_CONNECTIONS
    int loads_late;         // VIRTUAL_LAZY. 0: no kernel is loaded at its first launch; 2: such loading is a defect
                            // once messages between ranks have begun
    bool connects_late;     // NCCL_RUNTIME_CONNECT
    bool blocking;          // CUDA_LAUNCH_BLOCKING: every call waits for what it has queued
    std::string late_ranks; // VIRTUAL_LATE="4 7": ranks that notice passed events 20 ms late
    std::string fault;      // VIRTUAL_FAULT (docs/virtual.md)
    std::string driver;     // VIRTUAL_DRIVER: its CUDA version; none: no driver; notready: what connects NVSwitches is
                            // not running
    std::string nccl;       // VIRTUAL_NCCL="22809 21903": the versions on nodes 0 and 1; the last also on later nodes
    int64_t taken;          // VIRTUAL_TAKEN_MIB: of the GPU, held by other programs
    bool peers;             // VIRTUAL_PEERS: the GPUs of a node reach each other's memory
    bool nvlink;            // VIRTUAL_PEERS=pcie: they do, but over PCIe
    bool late;              // VIRTUAL_PAGEABLE=late: uploads read ordinary memory when they are executed
    bool memory_operations; // VIRTUAL_MEMOPS: streams can wait for a value in memory
    bool mig;               // VIRTUAL_MIG: the GPUs of a node are instances of one GPU
};
const Options &options();
// Returns how many times as long work of this kind takes on a rank (VIRTUAL_SLOW).
inline double slower(const char *kind, int rank) {
    return options().slow == kind && options().slow_rank == rank ? options().slow_times : 1;
}
// Returns whether VIRTUAL_FAULT=KIND@N or KIND@N@RANK names this kind and rank, and `count` has reached N.
bool fault_comes(const char *kind, uint64_t count);

// Reports a mistake of the program that uses the GPU, and ends this process.
[[noreturn]] __attribute__((format(printf, 1, 2))) void defect(const char *format, ...);

std::string text(const char *format, ...) __attribute__((format(printf, 1, 2)));

// For tests: adds a line with a number to this rank's file in the folder that a variable names, if it is set.
void tell(const char *variable, int64_t number);

// A vector clock: how far each context of the run had got.
struct Clock {
    std::vector<uint32_t> at;
    uint32_t get(int context) const { return context < (int)at.size() ? at[(size_t)context] : 0; }
    void set(int context, uint32_t time);
    void join(const uint32_t *other, size_t width);
    void join(const Clock &other) { join(other.at.data(), other.at.size()); }
};

enum { WIDTH = PROCESSES * CONTEXTS, POSTS = 2048, COMMUNICATORS = 512 };

// A clock in memory that processes share.
struct SharedClock {
    uint32_t width;
    uint32_t at[WIDTH];
    uint32_t get(int context) const { return context < (int)width ? at[context] : 0; }
    void copy(const Clock &clock) {
        width = (uint32_t)clock.at.size();
        memcpy(at, clock.at.data(), width * sizeof *at);
    }
};

// One end of a message, or one rank's part of a collective: an NCCL call as its communicator sees it.
struct NcclCall {
    int comm, kind, source, target; // target -1: a collective, of which source is the rank
    uint64_t sequence;
    int64_t count;
    int type;
    bool same(const NcclCall &other) const {
        return comm == other.comm && sequence == other.sequence && target == other.target &&
               (target < 0 || source == other.source);
    }
};

// A call that a rank's device has reached, posted for the devices of the other ranks.
struct Post : NcclCall {
    bool used, taken; // taken: the message was received, or the rank has read all inputs
    int process;
    uint64_t in;           // offset in the arena of `process`
    int64_t registered[2]; // offsets of input and output in registered memory; -1: not registered
};

struct Communicator {
    bool used;
    char id[128];
    int size, joined, left;
    int aborted_on; // 1 + node of a rank that aborted; 0: no rank aborted
    int process[RANKS], gpu[RANKS], node[RANKS], version[RANKS];
    bool leaves[RANKS];             // ncclCommDestroy or ncclCommAbort was called
    uint32_t called[RANKS];         // collectives that a rank has called at least once, a bit each
    uint8_t first[RANKS][RANKS][2]; // [from][to][0: sender, 1: receiver]: has made its first call
};

struct Member {
    int pid, arena;
    uint64_t progress;
};

struct Mapping {
    bool used;
    int owner, holder;
    uint64_t offset;
};

// A word that a stream writes to signal a stream of another process, and the clock of its latest writer.
struct Flag {
    int owner; // 1 + the process that owns the memory; 0: unused
    uint64_t offset;
    SharedClock clock;
};
enum { FLAGS = 1024 };

struct Job {
    uint32_t magic;
    pthread_mutex_t lock;
    uint32_t bell; // rung whenever something is posted
    bool lost;     // a rank has lost its GPU: races are no longer checked
    Member members[PROCESSES];
    int64_t held[PROCESSES]; // bytes by node * gpus + gpu
    Mapping mappings[1024];
    Communicator comms[COMMUNICATORS];
    Post posts[POSTS];
    SharedClock clocks[POSTS];
    Flag flags[FLAGS];
    SharedClock mail[PROCESSES][PROCESSES]; // the host's clock at its latest message from..to
};

Job *job();
void *job_timeline(); // the segment of clock.cc
int process();        // this process's place in the job: its rank
int node();
int processes();
double real_seconds(); // also in a dry run

void make_lock(pthread_mutex_t *lock);
struct SharedLock {
    pthread_mutex_t *lock;
    explicit SharedLock(pthread_mutex_t *taken);
    ~SharedLock();
};
struct JobLock : SharedLock {
    JobLock() : SharedLock(&job()->lock) {}
};
void ring();
void wait_bell(uint32_t seen, double seconds);
void progressed(); // this process has made progress
// Ends this process if the job has made no progress for options().patience seconds. Called repeatedly while it waits.
void watch_progress();

// --- shadow.cc

// Per 4 bytes: the last writer and two readers since then, each as context << 48 | time; 0: no access.
struct Cell {
    uint64_t write, read[2];
};

struct Access {
    const Clock *clock;
    int context;
    const char *what; // "adamw_kernel"
};

uint64_t epoch(const Access &access);
void touch(const Access &access, const void *memory, int64_t bytes, bool writes);
// Touches `rows` pieces of `bytes` bytes that begin `stride` bytes apart.
void touch_rows(const Access &access, const void *memory, int64_t rows, int64_t bytes, int64_t stride, bool writes);
// Runs a kernel with its accesses checked; a failure is a defect.
void kernel_run(const Access &access, const VirtualLaunch &launch);
void remember(int context, uint32_t time, const char *what); // names for reports

// --- memory.cc

enum RegionKind { REGION_DEVICE, REGION_PINNED, REGION_MAPPED, REGION_FREED, REGION_NONE };

struct Region {
    uintptr_t base;
    size_t size;
    RegionKind kind;
    Cell *cells; // of the word at base & ~3
    int owner;   // process
    int64_t number;
    bool allocated; // pinned by cudaMallocHost
    int64_t charged;
    uint64_t offset; // in the owner's arena
};

Region region_of(const void *memory); // kind REGION_NONE: ordinary host memory
uint64_t regions_generation();
// Returns the region that contains the complete range, or reports a defect that names `what`.
Region range(const void *memory, int64_t bytes, const char *what);
cudaError_t memory_allocate(void **memory, size_t bytes);
cudaError_t memory_free(void *memory);
void memory_clear(void *memory, size_t bytes); // sets memory that devices reach to zero
// Reports a defect if the region is registered with a communicator or came from ncclMemAlloc (nccl.cc).
void check_unregistered(const Region &region);
cudaError_t memory_pin(void *memory, size_t bytes, bool allocated);
cudaError_t memory_unpin(void *memory, bool allocated);
int64_t memory_most_pinned(); // peak of the bytes from cudaMallocHost
cudaError_t memory_export(cudaIpcMemHandle_t *handle, void *memory);
char *arena_of(int process); // another process's device memory, mapped here
cudaError_t memory_import(void **memory, const cudaIpcMemHandle_t *handle);
cudaError_t memory_close(void *memory);
cudaError_t memory_context();      // creates this process's context; fails without room for it
bool memory_charge(int64_t bytes); // reserves bytes, or frees them if negative; false: no room
int64_t memory_total();
int64_t memory_left();
uint64_t arena_offset(const void *memory, int *owner); // of own or mapped device memory
std::string place_of(const void *memory);              // "byte 512 of allocation 7 (4096 bytes)"

// --- numbers of device memory

int64_t width_of(cudaDataType_t type);

// Inline, so that the compiler chooses the type outside of loops over numbers.
inline double number_at(const void *memory, int64_t index, cudaDataType_t type) {
    if (type == CUDA_R_64F) return ((const double *)memory)[index];
    if (type == CUDA_R_8F_E4M3) return fp8_to_float(((const uint8_t *)memory)[index], FP8_E4M3);
    if (type == CUDA_R_8F_E5M2) return fp8_to_float(((const uint8_t *)memory)[index], FP8_E5M2);
    if (type == CUDA_R_32F) return ((const float *)memory)[index];
    uint32_t bits = (uint32_t)((const uint16_t *)memory)[index] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// Rounds to the nearest, ties to even.
inline void put_number(void *memory, int64_t index, cudaDataType_t type, double value) {
    float single = (float)value;
    uint32_t bits;
    memcpy(&bits, &single, sizeof bits);
    if (type == CUDA_R_64F) ((double *)memory)[index] = value;
    if (type == CUDA_R_32F) ((float *)memory)[index] = single;
    if (type == CUDA_R_16BF)
        ((uint16_t *)memory)[index] =
            single != single ? 0x7fff : (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// --- operations of a stream

// How an operation of a dry run uses multiprocessors. NONE: not at all, or it is bounded by memory. SPREAD: by short
// blocks, which run on the multiprocessors that other kernels leave free. OWNS: by blocks that keep theirs to the end.
enum Sharing { SHARING_NONE, SHARING_SPREAD, SHARING_OWNS };

// An NCCL call as a step of a stream.
struct Encounter : NcclCall {
    int size;      // ranks of the communicator; a message is met by two
    int64_t bytes; // of the message, or of the collective's full buffer
    int64_t away;  // of an exchange: what this rank sends to other nodes
    int rounds;    // 2: an all-reduce
    int blocks;    // of its kernel, each a multiprocessor
    int cluster;   // blocks that need room in one GPC
    CostCollective collective;
};

enum StepKind { STEP_WORK, STEP_RECORD, STEP_WAIT, STEP_MEET, STEP_RAISE, STEP_AWAIT };

// An operation in a dry run.
struct Step {
    StepKind kind = STEP_WORK;
    double seconds = 0;
    Sharing sharing = SHARING_NONE;
    int blocks = 0;           // multiprocessors that it asks for
    int mark = -1;            // that it records or waits for (mark_make)
    Encounter encounter = {}; // of STEP_MEET
    int flag = 0;             // that it raises, or whose value it awaits
    uint32_t value = 0;
};

enum Outcome { OUTCOME_DONE, OUTCOME_AGAIN, OUTCOME_WAITS };

struct Op {
    std::string what;
    Clock queued; // the host's clock at the call
    std::function<Outcome(const Access &)> step;
    std::function<std::string()> waits_for;
    uint64_t issue;
    int blocks = 1; // multiprocessors that it owns while it waits; 0: not a kernel
    bool started = false;
    bool remote = false;     // waits for another process
    bool reads_late = false; // an upload that reads ordinary memory when it is executed
    Step dry;
};

// --- clock.cc, lines.cc: virtual time, for runs in which nothing is computed (VIRTUAL_DRY=1)

bool dry();
const VirtualDry &dry_figures(); // the GPU that the configuration names and, in dry runs, what work costs on it
double clock_now();

// A mark is one recording of an event, with a reference count: it is reused when every holder has released it.
int mark_make();
void mark_release(int mark);
// Returns whether the mark has passed. If not, it ends the host's next pause when it passes.
bool mark_passed(int mark);
double mark_time(int mark); // of a mark that has passed

void line_add(int line, const Step &step); // a stream's next step; `line` is the stream's context
bool line_idle(int line);                  // like mark_passed, for all steps of the stream

// Makes the host wait, in virtual time, until done() is true. done() is called again when something that it watches has
// come, and whenever another host rings the bell.
void clock_wait(const std::function<bool()> &done, const std::string &what);

// Returns the seconds of one launch, from the memory that some of its blocks touch (shadow.cc).
double kernel_seconds(const VirtualLaunch &launch);

// --- device.cc

void enqueue(cudaStream_t stream, Op op);
void host_waits(const std::function<bool()> &done, const std::string &what, bool remote);
void wait_for_device(const std::string &why); // until all streams are empty
void note_collective(cudaStream_t stream);
void check_order(cudaStream_t stream, const std::string &product); // defect: it may start before a collective
void load_once(const std::string &kernel, bool library);
void take_queues(int count); // by streams of a library
void messages_begin();       // from now on a receive may wait on this device for its sender
Clock &stream_clock(cudaStream_t stream);
void host_join(const Clock &other);
Access host_access(const char *what);
std::unique_lock<std::mutex> device_lock();
cudaError_t sticky();

// --- flags.cc
void copy_flag(void *to, const void *from, cudaStream_t stream); // to another process's memory
bool raises_flags(cudaStream_t stream);                          // it has written a flag

// --- nccl.cc
bool &clusters_used(); // whether a kernel of NCCL's was launched in clusters of several blocks

// --- runtime.cc
int current_gpu();                     // of this process's node
cudaError_t answer(cudaError_t error); // keeps the last error
const char *stream_name(int context);

} // namespace virtual_gpu

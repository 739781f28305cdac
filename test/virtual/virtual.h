// The virtual GPU from the inside: what its files share.
//
//   job.cc       what the processes of one run share: who is there, who posted what, how far each has got
//   memory.cc    device memory, pinned memory, memory of other processes: what is allocated where
//   shadow.cc    vector clocks, and who touched which bytes last: races, unwritten reads, bounds
//   device.cc    streams, events, hardware queues, and the one thread that executes
//   runtime.cc   the CUDA runtime's calls
//   lt.cc        matrix products (cuBLASLt)        sdpa.cc   attention (cuDNN)
//   clock.cc     virtual time in dry runs          traffic.cc  what a kernel reads and writes, for it
//   flags.cc     words by which streams of two processes order each other
//   nccl.cc      messages and collectives (NCCL)   messages.c, host.cc   clocks on the host's messages (MPI)
//
// A context is whoever executes in order: a process's host thread, or a stream. Each has a vector clock. What one
// context does happens before what another does only if a chain of edges leads from the first to the second: a call
// that queues work, an event waited for, a successful query, a synchronize, a message. Two accesses to the same bytes
// without such a chain are a race, whatever the order in which they happened this time.
#pragma once

#include "base/number_formats.h"

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

namespace virtual_gpu {

enum { PROCESSES = 64, CONTEXTS = 32, HOST = 0, RANKS = 64 };

// --- job.cc

enum Order { ORDER_FIFO, ORDER_RANDOM, ORDER_NEWEST };

// The environment, read once.
struct Options {
    int gpus, nodes; // of one node; of the run
    int multiprocessors;
    Order order;
    uint64_t seed;
    bool races;
    double patience;           // seconds without progress anywhere that count as a deadlock
    int queues;                // CUDA_DEVICE_MAX_CONNECTIONS
    bool eager;                // CUDA_MODULE_LOADING=EAGER
    int loads_late;            // VIRTUAL_LAZY. 0: nothing is ever loaded at its first launch; 2: that is a defect, once
                               // messages between ranks have begun
    bool connects_late;        // NCCL_RUNTIME_CONNECT
    std::string late_ranks;    // VIRTUAL_LATE="4 7": there events are found to have passed only a while later
    std::string driver, fault; // VIRTUAL_DRIVER, VIRTUAL_FAULT
    std::string nccl;       // VIRTUAL_NCCL="22809 21903": the versions on nodes 0 and 1; the last also on later nodes
    int64_t taken;          // bytes of the GPU that other programs hold
    bool peers;             // VIRTUAL_PEERS: the GPUs of a node reach each other's memory
    bool late;              // VIRTUAL_PAGEABLE=late: large uploads read ordinary memory when they are executed
    bool memory_operations; // VIRTUAL_MEMOPS: streams can wait for a value in memory
    bool mig;               // VIRTUAL_MIG: they are instances of one GPU
};
const Options &options();
// VIRTUAL_FAULT=KIND@N or KIND@N@RANK: whether this fault comes at this count, or has come.
bool fault_comes(const char *kind, uint64_t count);

// Ends this process with a sentence about a mistake in the program that uses the GPU.
[[noreturn]] __attribute__((format(printf, 1, 2))) void defect(const char *format, ...);

std::string text(const char *format, ...) __attribute__((format(printf, 1, 2)));

// A vector clock: how far each context of the run had got.
struct Clock {
    std::vector<uint32_t> at;
    uint32_t get(int context) const { return context < (int)at.size() ? at[(size_t)context] : 0; }
    void set(int context, uint32_t time);
    void join(const uint32_t *other, size_t width);
    void join(const Clock &other) { join(other.at.data(), other.at.size()); }
};

enum { WIDTH = PROCESSES * CONTEXTS, POSTS = 1024, COMMUNICATORS = 512 };

// A clock in memory that processes share.
struct SharedClock {
    uint32_t width;
    uint32_t at[WIDTH];
};

// What a rank has put up for the others to find: one end of a message, or its part of a collective.
struct Post {
    bool used;
    int comm, kind, source, target; // target -1: collective
    uint64_t sequence;
    int phase, process, type;
    uint64_t in, out; // offsets in the arena of `process`
    int64_t count;
    int64_t registered[2]; // offsets of input and output in what is registered; -1: not registered
};

struct Communicator {
    bool used;
    char id[128];
    int size, joined, left;
    int aborted_on; // one more than the node of a rank that aborted; 0: none did
    int process[RANKS], gpu[RANKS], node[RANKS], version[RANKS];
    bool leaves[RANKS];             // ncclCommDestroy or ncclCommAbort was called
    uint32_t called[RANKS];         // collectives that a rank has called at least once, a bit each
    uint8_t first[RANKS][RANKS][2]; // messages from..to of which the sender, the receiver has made its first call
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

// A word by which a stream tells a stream of another process how far it has come: who wrote it last.
struct Flag {
    int owner; // one more than the process; 0: unused
    uint64_t offset;
    SharedClock clock;
};
enum { FLAGS = 1024 };

struct Job {
    uint32_t magic;
    pthread_mutex_t lock;
    uint32_t bell; // rung whenever something is posted
    bool lost;     // a rank has lost its GPU: for that rank all events count as passed, until the job ends
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
void progressed(); // something happened here
// Called now and then while this process waits for something; ends it where the whole job has stood still too long.
void watch_progress();

// --- shadow.cc

// Per 4 bytes: who wrote last, and two of those who read since. Context << 48 | time; 0: nobody.
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
// `rows` pieces of `bytes`, each `stride` bytes after the one before.
void touch_rows(const Access &access, const void *memory, int64_t rows, int64_t bytes, int64_t stride, bool writes);
void kernel_begin(const Access &access, const void *arguments, int64_t bytes);
void kernel_end();
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
// The whole range, or a defect that names `what`.
Region range(const void *memory, int64_t bytes, const char *what);
cudaError_t memory_allocate(void **memory, size_t bytes);
cudaError_t memory_free(void *memory);
// Whether it may go: neither registered nor NCCL's own (nccl.cc).
void check_unregistered(const Region &region);
cudaError_t memory_pin(void *memory, size_t bytes, bool allocated);
cudaError_t memory_unpin(void *memory, bool allocated);
int64_t memory_most_pinned(); // bytes of cudaMallocHost at a time
cudaError_t memory_export(cudaIpcMemHandle_t *handle, void *memory);
char *arena_of(int process); // another process's device memory, mapped here
cudaError_t memory_import(void **memory, const cudaIpcMemHandle_t *handle);
cudaError_t memory_close(void *memory);
cudaError_t memory_context();      // of this process: made now, or no room
bool memory_charge(int64_t bytes); // takes them, or gives back those below 0; false: no room
int64_t memory_total();
int64_t memory_left();
uint64_t arena_offset(const void *memory, int *owner); // of device memory, also of a mapped one
std::string place_of(const void *memory);              // "byte 512 of allocation 7 (4096 bytes)"

// --- numbers of device memory

int64_t width_of(cudaDataType_t type);
int gpu_generation(); // compute capability: 90

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

// --- device.cc

// How an operation of a dry run uses multiprocessors: not at all, or bounded by memory; by short blocks, which make
// room for other kernels and run on what these leave; by blocks that keep theirs to the end.
enum Sharing { SHARING_NONE, SHARING_SPREAD, SHARING_OWNS };

enum Outcome { OUTCOME_DONE, OUTCOME_AGAIN, OUTCOME_WAITS };

struct Op {
    std::string what;
    Clock queued; // the host's clock at the call
    std::function<Outcome(const Access &)> step;
    std::function<std::string()> waits_for;
    uint64_t issue;
    int blocks = 1; // multiprocessors that it owns while it waits; 0: it is no kernel
    bool started = false;
    bool remote = false;                                   // what it waits for is in another process
    bool event = false;                                    // records one or waits for one: takes no time
    double seconds = 0;                                    // in a dry run (clock.h), as are the next two
    Sharing sharing = SHARING_NONE;
    int multiprocessors = 0; // that it asks for
};

void enqueue(cudaStream_t stream, Op op);
void host_waits(const std::function<bool()> &done, const std::string &what, bool remote);
void wait_for_device(const std::string &why); // until all streams are empty
void note_collective(cudaStream_t stream);
void check_order(cudaStream_t stream, const std::string &product); // after the collectives that were queued before it
void load_once(const std::string &kernel, bool library);
void messages_begin(); // from now on a receive may wait on this device for its sender
Clock &stream_clock(cudaStream_t stream);
// The host's clock, for whoever holds the device's lock.
Clock &host_clock();
void host_join(const Clock &other);
Access host_access(const char *what);
std::unique_lock<std::mutex> device_lock();
cudaError_t sticky();

// --- flags.cc
void copy_flag(void *to, const void *from, cudaStream_t stream); // to another process's memory
bool raises_flags(cudaStream_t stream);                          // it has written a flag

// --- nccl.cc
bool &clusters_used(); // whether a kernel of NCCL's was launched in clusters of several blocks

// --- host.cc
void connect_messages();

// --- runtime.cc
int current_gpu();                     // of this process's node
cudaError_t answer(cudaError_t error); // keeps the last error
const char *stream_name(int context);

} // namespace virtual_gpu

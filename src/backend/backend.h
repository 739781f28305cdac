// One device: its memory, its streams, and the operations a transformer needs. Two implementations, cpu/ and cuda/;
// the models, the engine and the optimizer are written once over this interface and know neither.
//
// Conventions
// - Activations and weights are `void *` in the run's precision (`element` bytes each); gradients of weights, moments,
//   masters and statistics are fp32.
// - A matrix is row-major. Activations are sequence-major: row = position * batch + sequence, so that a split over the
//   sequence is a split into contiguous rows. rows = positions * batch.
// - Operations are queued on the compute stream in the order of the calls. They cannot fail at the call; an error of
//   the device surfaces in `synchronize`. Outputs must not overlap inputs except where "in place" is said.
// - Results do not depend on the number of threads: sums run over blocks that depend on shapes alone.
// - "+=" means that the output's old value is added to.
#pragma once

#include "config/config.h"
#include "base/log.h"
#include "base/random.h"
#include "memory.h"
#include "factor.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

typedef struct Backend Backend;
typedef struct Event Event;

// Compute; bundles that are evicted and loaded; messages to other ranks, which must not wait for bundles.
typedef enum Stream { STREAM_COMPUTE, STREAM_EVICT, STREAM_MESSAGES, STREAM_COUNT } Stream;

typedef enum Epilogue { EPILOGUE_NONE, EPILOGUE_GELU } Epilogue;

// Rows that one product takes out of two larger matrices: `count` blocks of `rows` rows, which begin x_stride rows
// apart in x and y_stride rows apart in y.
typedef struct RowBlocks {
    int64_t count, rows, x_stride, y_stride;
} RowBlocks;

// Self-attention of one microbatch on one tensor rank.
typedef struct AttentionShape {
    int64_t batch, seq, heads, kv_heads, head_dim;
    int mode;          // AttentionMode
    int softmax;       // SoftmaxKind; a CPU has one form and ignores it
    int deterministic; // Determinism of flash's backward; a CPU always is
    // (rows) on the device: each token's place in its document, counted from 0. A query at position i sees the keys
    // [i - place, i]. NULL: every sequence is one document. Sizes and plans do not depend on it.
    const int32_t *places;
    // A range (slices, context ranks): seq queries of a longer sequence, which begin at place `first` of it and see
    // keys from place 0 on. `keys` holds keys and values of the sequence in rows (k | v); qkv is not read for them.
    // `dkeys` += their gradients, fp32 in the same layout; dqkv gets only the queries'. NULL: no range, or its
    // memory does not matter, and without a range first is 0.
    int64_t first;
    void *keys;
    float *dkeys;
    bool full; // every query sees all keys of its sequence, not only those up to its own; places is then NULL
} AttentionShape;

// Returns the elements of a row of queries, keys and values.
static inline int64_t attention_qkv_width(const AttentionShape *shape) {
    return (shape->heads + 2 * shape->kv_heads) * shape->head_dim;
}

// Returns how many keys the last query sees.
static inline int64_t attention_keys(const AttentionShape *shape) { return shape->first + shape->seq; }

static inline bool attention_is_range(const AttentionShape *shape) { return shape->keys != NULL || shape->first > 0; }

// Returns the elements of the rows (k | v) that a range sees.
static inline int64_t attention_range_count(const AttentionShape *shape) {
    return 2 * shape->batch * attention_keys(shape) * shape->kv_heads * shape->head_dim;
}

// How fast each pair of a head rotates (Su et al. 2021): radians per position for the first head_dim / 2 entries, and a
// factor on all cosines and sines, which YaRN uses (Peng et al. 2023) and others leave at 1.
typedef struct RopeTable {
    double scale;
    double frequency[ROPE_PAIRS_MAX];
} RopeTable;

// One parameter tensor as the optimizer sees it, on this rank.
typedef struct AdamwTensor {
    void *weight;  // in the run's precision; the model reads it
    float *master; // fp32 copy, or NULL if weight itself is fp32
    float *m, *v;  // moments
    float *gradient;
    int64_t count;
    bool decay; // weight decay applies
} AdamwTensor;

typedef struct AdamwStep {
    double lr, beta1, beta2, eps, weight_decay;
    double gradient_scale; // clipping
    int64_t step;          // 1 at the first update: bias correction
} AdamwStep;

// A handle with which another process of this host reaches memory allocated here, as plain bytes that can be sent.
typedef struct Loan {
    unsigned char handle[96];
} Loan;

// Blocks of NCCL's collectives over tensor ranks and over data ranks, and of a message, each a multiprocessor:
// concurrent products get the others.
enum { COMPUTE_CTAS = 24, BESIDE_CTAS = 16, LINK_CTAS = 4 };

struct Backend {
    char device[96];    // "AMD EPYC, 2 threads", "NVIDIA H200"
    int precision;      // Precision
    int64_t element;    // bytes of one activation or weight: 4 or 2
    double peak_tflops; // peak of this rank, dense, in this precision; 0 if unknown
    // FLOPs of products in the time in which this rank sends a byte in a collective over tensor ranks; 0: unknown
    double flops_per_sent_byte;
    bool summing;        // sums over data ranks may be in flight: products leave multiprocessors to them
    bool moving;         // bundles move to or from another node, and products leave multiprocessors to the messages
    int64_t memory_size; // bytes the device has for all ranks that share it; 0 if unknown
    int64_t own_bytes;   // workspace held from its creation on; included in `held`
    int capability;      // compute capability of an NVIDIA GPU: 80, 90, 100, 120; 0: unknown, or not such a GPU
    int64_t lent_page;   // unit in which MEMORY_LENT_SLOTS and _MESSAGES are allocated; 0: no rounding
    bool own_sums;       // ranks that compute here add up their gradients in this device's memory (sums.h)
    bool loads_late;     // code is loaded at its first use, which may wait for all that is queued on the device
    MemoryBytes held;    // allocated now, by category
    MemoryBytes peak;    // bytes by category when the total was largest
    char note[384];      // a sentence for the user, once the shapes are known; may be empty
    char kernels[160];   // the libraries or kernels of products and attention, for --verbose
    void *self;          // the implementation's own

    // --- life
    void (*destroy)(Backend *);

    // --- memory. allocate returns zeroed memory aligned to MEMORY_ALIGN, or NULL with err, which names `what`, its
    // bytes and what holds the rest
    void *(*allocate)(Backend *, MemoryCategory, int64_t bytes, const char *what, Error *err);
    void (*release)(Backend *, MemoryCategory, void *memory, int64_t bytes);
    // -1 with err if the device has less than these bytes free. NULL: only `allocate` can tell.
    int (*check_free)(Backend *, int64_t bytes, Error *err);
    // Returns the device's bytes that are neither free nor in `held`: memory of libraries and other programs. May be
    // NULL.
    int64_t (*held_by_others)(Backend *);
    void (*copy)(Backend *, Stream, void *to, const void *from, int64_t bytes); // device to device
    void (*upload)(Backend *, void *to, const void *from,
                   int64_t bytes); // host to device; `from` may be reused at return
    void (*download)(Backend *, void *to, const void *from,
                     int64_t bytes); // device to host, waits for the compute stream
    void (*zero)(Backend *, void *memory, int64_t bytes);

    // Pins host memory, so that copy and STREAM_EVICT reach it at full speed. NULL if the backend makes no such
    // difference.
    int (*pin)(Backend *, void *host, int64_t bytes, Error *err);
    void (*unpin)(Backend *, void *host);

    // --- memory that another process of this host may write. lend: a complete allocation in MEMORY_LENT_SLOTS or
    // MEMORY_MESSAGES (a CPU lends only the former). borrow: maps it; NULL with err if it cannot be reached. copy,
    // upload and download accept the mapped address. give_back must come before the lender releases the memory.
    int (*lend)(Backend *, const void *memory, int64_t bytes, Loan *loan, Error *err);
    void *(*borrow)(Backend *, const Loan *loan, int64_t bytes, Error *err);
    void (*give_back)(Backend *, void *memory, int64_t bytes);

    // --- time. An event marks a point of a stream; `done` returns whether the device has passed it.
    Event *(*event_create)(Backend *);
    void (*event_destroy)(Backend *, Event *);
    void (*event_record)(Backend *, Event *, Stream);
    bool (*event_done)(Backend *, Event *);
    double (*event_seconds)(Backend *,
                            const Event *); // when it was passed, on the clock of clock_seconds(); only once done
    // Makes events read clock_thread_seconds() from now on, if one thread computes; else changes nothing. For a stage
    // that runs alone, whose waits are not real ones. NULL: events are the device's own.
    void (*count_own_time)(Backend *);
    int (*synchronize)(Backend *, Error *err); // waits for all streams; -1 with err if the device failed
    // Returns -1 with err if the device is known to have failed; waits for nothing. All events of such a device count
    // as passed. NULL: it cannot fail.
    int (*check)(Backend *, Error *err);
    // Names the operations that the host queues until range_end, for profilers. NULL if there is no profiler.
    void (*range_begin)(Backend *, const char *name);
    void (*range_end)(Backend *);

    // --- workspace for the operations, in addition to their operands and attention's scratch: workspace_bytes returns
    // the size for a stage whose stream is (rows, hidden), use_workspace supplies it (NULL takes it back; the caller
    // owns it). Without it, operations allocate as needed. Both may be NULL.
    int64_t (*workspace_bytes)(Backend *, int64_t rows, int64_t hidden, const AttentionShape *);
    void (*use_workspace)(Backend *, void *memory, int64_t rows, int64_t hidden, const AttentionShape *);

    // --- linear_forward for blocks of rows; aux has y's. NULL if own_sums is set, which does not divide rows.
    void (*linear_forward_blocks)(Backend *, void *y, void *aux, const void *x, const void *w, const void *bias,
                                  const RowBlocks *blocks, int64_t in, int64_t out, Epilogue epilogue);
    // --- the operations that every device has: operations.h
#define OPERATION(result, name, ...) result (*name)(Backend *, __VA_ARGS__)
#include "operations.h"
};

// Releases memory. Does nothing without memory; the backend may be NULL then.
static inline void backend_release(Backend *be, MemoryCategory category, void *memory, int64_t bytes) {
    if (memory != NULL) be->release(be, category, memory, bytes);
}

// Creates the backend for CPUs with `threads` OpenMP threads (0: OpenMP's choice). Measures nothing; peak_tflops stays
// 0 until backend_cpu_measure_peak.
Backend *backend_cpu_create(int precision, int threads, Error *err);

// Returns TFLOP/s of matrix products in a precision on all `threads` threads together, measured for about a tenth of a
// second. Other programs that run meanwhile hardly lower it.
double backend_cpu_measure_peak(int precision, int threads);

__END_DECLS

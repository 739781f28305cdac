// One device: its memory, its streams, and the operations a transformer needs. Implementations: cpu/, cuda/, and
// device/count.c, which only counts time. The models, the engine and the optimizer use only this interface.
//
// Conventions
// - Activations and weights are `void *` in the run's precision (`element` bytes each); gradients of weights, moments,
//   masters and statistics are fp32.
// - A matrix is row-major. Activations are sequence-major: row = position * batch + sequence, so that a split over the
//   sequence is a split into contiguous rows. rows = positions * batch.
// - Operations are queued on the compute stream in the order of the calls. They cannot fail at the call; an error of
//   the device surfaces in `synchronize`. Outputs must not overlap inputs unless the operation allows it.
// - Results do not depend on the number of threads: sums run over blocks that depend only on the shapes.
// - "+=" means that the result is added to the output's old value.
#pragma once

#include "config/config.h"
#include "base/log.h"
#include "base/random.h"
#include "memory.h"
#include "factor.h"
#include "products.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/cdefs.h>

__BEGIN_DECLS

typedef struct Backend Backend;
typedef struct Event Event;

// Compute; eviction and loading of bundles; messages to other ranks, kept separate so that they never wait for bundles.
typedef enum Stream { STREAM_COMPUTE, STREAM_EVICT, STREAM_MESSAGES, STREAM_COUNT } Stream;

typedef enum Epilogue { EPILOGUE_NONE, EPILOGUE_GELU } Epilogue;

// The rows that one product reads from a larger matrix x and writes to a larger matrix y: `count` blocks of `rows` rows
// that begin x_stride rows apart in x and y_stride rows apart in y.
typedef struct RowBlocks {
    int64_t count, rows, x_stride, y_stride;
} RowBlocks;

// Self-attention of one microbatch on one tensor rank.
typedef struct AttentionShape {
    int64_t batch, seq, heads, kv_heads, head_dim;
    int64_t value_dim; // further dimensions of a value are zeros, which a GPU's flash leaves out; 0: it has none
    int mode;          // AttentionMode
    int softmax;       // SoftmaxKind; ignored by CPUs, which have only one form of softmax
    int deterministic; // Determinism of flash's backward; the CPU is always deterministic
    // (rows) on the device: each token's place in its document, counted from 0. A query at position i sees the keys
    // [i - place, i]. NULL: every sequence is one document. `host_places` is the same on the host.
    const int32_t *places, *host_places;
    bool documents; // `places` may be set, for which a GPU's flash needs more scratch
    // A range (slices, context ranks) is seq queries of a longer sequence. The queries begin at position `first` and
    // see the keys from position 0 on. `keys` holds the sequence's keys and values in rows (k | v), which replace those
    // of qkv. `dkeys` += the gradients of keys and values, fp32 in the same layout; dqkv receives only the gradients of
    // the queries. Without a range, keys is NULL and first is 0. keys is also NULL if only sizes are computed.
    int64_t first;
    void *keys;
    float *dkeys;
    bool full; // true: not causal, every query sees all keys of its sequence; places is then NULL
} AttentionShape;

// Returns the number of elements in a row of queries, keys and values.
static inline int64_t attention_qkv_width(const AttentionShape *shape) {
    return (shape->heads + 2 * shape->kv_heads) * shape->head_dim;
}

// Returns the dimensions of a value that may differ from zero.
static inline int64_t attention_value_dim(const AttentionShape *shape) {
    return shape->value_dim > 0 ? shape->value_dim : shape->head_dim;
}

// Returns how many keys the last query sees.
static inline int64_t attention_keys(const AttentionShape *shape) { return shape->first + shape->seq; }

static inline bool attention_is_range(const AttentionShape *shape) { return shape->keys != NULL || shape->first > 0; }

// Returns the number of elements in the rows (k | v) that a range sees.
static inline int64_t attention_range_count(const AttentionShape *shape) {
    return 2 * shape->batch * attention_keys(shape) * shape->kv_heads * shape->head_dim;
}

// Returns the bytes that attention_forward saves for its backward. element: bytes of one activation.
static inline int64_t attention_saved(const AttentionShape *shape, int64_t element) {
    int64_t rows = shape->batch * shape->heads * shape->seq; // one per query and head
    return shape->mode == ATTENTION_FLASH
               ? rows * 4
               : (shape->mode == ATTENTION_NONE ? rows * attention_keys(shape) * element : 0);
}

// Latent attention on one tensor rank (model/latent.h). A head has `nope` dimensions that are not rotated, `rope` that
// are, its values have `value` dimensions. heads 0: not latent attention.
typedef struct LatentShape {
    int64_t query_rank, key_rank; // widths of the latent rows of queries, and of keys and values
    int64_t heads, nope, rope, value;
    double scale; // factor of the queries
} LatentShape;

// The router of a layer of experts. Each row chooses `chosen` of `experts` experts, those with the largest scores (plus
// bias, where given). Scores s are softmax(logits), or sigmoid(logits) if `sigmoid`. The weight of a chosen expert is
// scale * s, divided by the sum of the chosen scores if `normalize`. With groups > 1 only experts of the top_groups
// groups with the largest scores can be chosen; a group's score is the sum of its two largest scores (plus bias).
typedef struct RouteShape {
    int64_t experts, chosen; // chosen <= ROUTE_CHOSEN_MAX
    bool sigmoid, normalize;
    double scale;
    int64_t groups, top_groups; // groups divides experts; <= ROUTE_GROUPS_MAX
} RouteShape;
enum { ROUTE_CHOSEN_MAX = 32, ROUTE_GROUPS_MAX = 32 };

// Rotation of the pairs of a head (Su et al. 2021): the first 2 * pairs elements, the others stay as they are.
// frequency: radians per position of each pair. scale: factor on all cosines and sines, used by YaRN (Peng et al.
// 2023); 1 without YaRN.
typedef struct RopeTable {
    double scale;
    int64_t pairs; // at most head_dim / 2
    double frequency[]; // [pairs]
} RopeTable;

// One parameter tensor as the optimizer sees it, on this rank.
typedef struct AdamwTensor {
    void *weight;  // the copy that the model reads, in the run's precision
    float *master; // fp32 copy, or NULL if weight itself is fp32
    float *m, *v;  // moments; v NULL: a matrix of Muon's, m is its momentum
    float *gradient;
    int64_t count;
    bool decay;   // weight decay applies
    bool written; // the next step's first product overwrites the gradient, so the update leaves it as it is
    double scale; // Muon: factor on the update's direction
} AdamwTensor;

typedef struct AdamwStep {
    double lr, beta1, beta2, eps, weight_decay;
    double gradient_scale; // factor on every gradient, for clipping; 1: no clipping
    int64_t step;          // number of the update, from 1, for bias correction
} AdamwStep;

// A handle that another process on this host uses to map memory allocated here; plain bytes, so that it can be sent.
typedef struct Loan {
    unsigned char handle[96];
} Loan;

// Largest numbers of blocks that NCCL uses for tensor-parallel collectives, for an exchange, for data-parallel
// collectives and for a message. Each block occupies one multiprocessor. Concurrent products use the remaining ones.
enum { COMPUTE_CTAS = 24, EXCHANGE_CTAS = 32, BESIDE_CTAS = 16, LINK_CTAS = 4 };

struct Backend {
    char device[96];    // "AMD EPYC, 2 threads", "NVIDIA H200"
    int precision;      // Precision
    int64_t element;    // bytes of one activation or weight: 4 or 2
    double peak_tflops; // peak of this rank, dense, in this precision; 0 if unknown
    // FLOPs that products compute while this rank sends one byte of a tensor-parallel collective; 0: unknown
    double flops_per_sent_byte;
    double flops_per_gathered_byte; // the same for gathers of weights over data ranks; 0: unknown
    double gathering;    // FLOPs that products may compute until the weights are gathered; they leave multiprocessors
    int blocks;          // multiprocessors that NCCL's kernels of all groups of a rank may occupy at once
    int streams;         // streams of this process on the device, those of libraries included; 0: not counted
    bool summing;        // true: data-parallel sums may be in flight, so products leave multiprocessors for them
    bool moving;         // true: messages between nodes hold multiprocessors for so long that products leave them free
    int64_t memory_size; // bytes the device has for all ranks that share it; 0 if unknown
    int64_t own_bytes;   // workspace held since the backend's creation; included in `held`
    int capability;      // compute capability of an NVIDIA GPU: 80, 90, 100, 120; 0: unknown, or not such a GPU
    int64_t lent_page;   // unit in which MEMORY_LENT_SLOTS and _MESSAGES are allocated; 0: no rounding
    bool own_sums;       // true: ranks compute sums over ranks themselves, in this device's memory (sums.c)
    bool counts;         // true: operations only advance clocks (device/count.h); memory has no contents
    bool loads_late;     // true: code is loaded at its first use, and loading may wait for all queued work
    bool rehearses;      // true: results are not used; operations of varying size run with other sizes, too
    MemoryBytes held;    // allocated now, by category
    MemoryBytes peak;    // bytes by category when the total was largest
    char note[384];      // a sentence to log for the user, set once the shapes are known; may be empty
    char kernels[160];   // the libraries or kernels of products and attention, for --verbose
    int64_t library;     // version of the library that chooses kernels of products; 0: the device has one for each
    ProductChoices *products; // kernels chosen by --tune; NULL: the library's first suggestions
    void *self;               // the implementation's own struct

    // --- life
    void (*destroy)(Backend *);

    // --- memory. allocate returns zeroed memory aligned to MEMORY_ALIGN, or NULL with err, which names `what`, its
    // bytes and the memory already held
    void *(*allocate)(Backend *, MemoryCategory, int64_t bytes, const char *what, Error *err);
    void (*release)(Backend *, MemoryCategory, void *memory, int64_t bytes);
    // Returns -1 with err if fewer than `bytes` are free. NULL: only `allocate` can find out.
    int (*check_free)(Backend *, int64_t bytes, Error *err);
    // Returns the device's bytes neither free nor in `held`: memory of libraries and other programs. May be NULL.
    int64_t (*held_by_others)(Backend *);
    void (*copy)(Backend *, Stream, void *to, const void *from, int64_t bytes); // device to device
    void (*upload)(Backend *, void *to, const void *from,
                   int64_t bytes); // host to device; `from` may be reused at return
    void (*download)(Backend *, void *to, const void *from,
                     int64_t bytes); // device to host, waits for the compute stream
    void (*zero)(Backend *, void *memory, int64_t bytes);

    // Pins host memory, so that copies to and from it run at full speed. NULL if pinning makes no difference.
    int (*pin)(Backend *, void *host, int64_t bytes, Error *err);
    void (*unpin)(Backend *, void *host);

    // --- memory that another process of this host may write. lend: fills `loan` for a complete allocation in
    // MEMORY_LENT_SLOTS or MEMORY_MESSAGES (a CPU lends only the former). borrow: maps it; NULL with err on failure.
    // copy, upload and download accept the mapped address. give_back must precede the lender's release.
    int (*lend)(Backend *, const void *memory, int64_t bytes, Loan *loan, Error *err);
    void *(*borrow)(Backend *, const Loan *loan, int64_t bytes, Error *err);
    void (*give_back)(Backend *, void *memory, int64_t bytes);

    // --- time. An event marks a point of a stream; `done` returns whether the device has passed it.
    Event *(*event_create)(Backend *);
    void (*event_destroy)(Backend *, Event *);
    void (*event_record)(Backend *, Event *, Stream);
    bool (*event_done)(Backend *, Event *);
    double (*event_seconds)(Backend *,
                            const Event *); // time at which the device passed it, by clock_seconds(); valid once done
    // Makes events record clock_thread_seconds() from now on if only one thread computes; otherwise does nothing. For
    // emulated stages, which never wait for another rank. NULL: the device itself times its events.
    void (*count_own_time)(Backend *);
    int (*synchronize)(Backend *, Error *err); // waits for all streams; -1 with err if the device failed
    // Returns -1 with err if the device is known to have failed; never waits. After a failure all events count as
    // passed. NULL: the device cannot fail.
    int (*check)(Backend *, Error *err);
    // Names the operations that the host queues until range_end, for profilers. NULL if there is no profiler.
    void (*range_begin)(Backend *, const char *name);
    void (*range_end)(Backend *);

    // --- workspace for operations, in addition to operands and attention's scratch. workspace_bytes returns the size
    // for a stage with activations (rows, hidden). use_workspace supplies the memory, which the caller owns; NULL
    // withdraws it. Without it, operations allocate as needed. Both members may be NULL.
    int64_t (*workspace_bytes)(Backend *, int64_t rows, int64_t hidden, const AttentionShape *);
    void (*use_workspace)(Backend *, void *memory, int64_t rows, int64_t hidden, const AttentionShape *);

    // --- linear_forward for blocks of rows; aux is laid out like y. NULL with own_sums: rows are then never divided.
    void (*linear_forward_blocks)(Backend *, void *y, void *aux, const void *x, const void *w, const void *bias,
                                  const RowBlocks *blocks, int64_t in, int64_t out, Epilogue epilogue);
    // --- the operations that every device has: operations.h
#define OPERATION(result, name, ...) result (*name)(Backend *, __VA_ARGS__)
#include "operations.h"
};

// Releases memory. Does nothing if `memory` is NULL; `be` may then be NULL.
static inline void backend_release(Backend *be, MemoryCategory category, void *memory, int64_t bytes) {
    if (memory != NULL) be->release(be, category, memory, bytes);
}

// Creates the backend for CPUs with `threads` OpenMP threads (0: OpenMP's choice). peak_tflops stays 0, because this
// function measures nothing; the caller can set it by backend_cpu_measure_peak.
Backend *backend_cpu_create(int precision, int threads, Error *err);

// Returns the TFLOP/s of matrix products in `precision` on all `threads` threads together. Measures for about a tenth
// of a second and counts each thread's fastest product, so other programs hardly lower the result.
double backend_cpu_measure_peak(int precision, int threads);

__END_DECLS

// One pipeline stage on one rank: its layers' weights, its temporaries, and the forward and backward of one microbatch
// through them. The engine decides the order, and passes the microbatch, the slot and the message buffers.
#pragma once

#include "bpipe.h"
#include "model/blocks.h"
#include "model/layer.h"
#include "model/model.h"
#include "model/quantized.h"
#include "comm/comm.h"
#include "model/tensors.h"

enum { STAGE_MOST_CHUNKS = 64, STAGE_PIECES = 6 };

// Consecutive layers of a stage, one virtual stage of the schedule (bpipe.h).
typedef struct StageChunk {
    int64_t first_layer, layers; // index of its first layer in the model; number of layers
    int64_t before;              // layers of this stage in earlier chunks
    int64_t recomputed;          // number of its first layers that are recomputed: the bundle keeps only their inputs
    int64_t dense;               // number of its first layers without experts, in a model with experts
    int64_t kept;                // most microbatches with keys and values in memory at once; 0 without slices
    int64_t bytes;               // bytes of its bundle, for one microbatch or one slice of it
    bool first, last;            // the model's first chunk, which has the embedding; its last, which has the head
} StageChunk;

// A stage's place in the pipeline, its tensor rank, and the sizes that result from these. Needs no device memory.
typedef struct StageShape {
    int stage, stages, chunks;
    Placement placement;
    int64_t first_layer, layers; // index of chunk 0's first layer; number of layers in all chunks
    bool first, last;            // one of its chunks has the embedding; one of its chunks has the head
    int64_t recomputed;          // layers whose forward runs again in the backward
    bool own_sums;               // the backend's own_sums
    int64_t lent_page;           // the backend's lent_page
    Shape shape;
    int64_t rows;                        // tokens of a microbatch; shape.rows: tokens of a slice
    int64_t layer_bundle;                // bytes of one layer's part of a bundle
    int64_t dense_bundle;                // bytes of a dense layer's part in a model with experts
    int64_t recomputed_bundle;           // bytes of the outputs of one recomputed layer, the largest
    int64_t bundle_bytes;                // bytes of the largest chunk's bundle, for one microbatch or one slice of it
    int64_t keys_bytes;                  // bytes of a microbatch's keys and values in one layer; used with slices
    int64_t dkeys_bytes;                 // bytes of the fp32 gradients of these keys and values
    int64_t message_bytes;               // bytes of an activation or a gradient sent between virtual stages
    StageChunk chunk[STAGE_MOST_CHUNKS]; // only [chunks] of them are set
} StageShape;

// Most sums over data ranks in flight at once. The gradients of most units are complete long before the last unit's;
// summing all at once would need as much memory as the gradients.
enum { SUMS_OVER_DATA = 4 };

// Workspace of one group's sums: `bytes` for each of `sums` concurrent sums. On CPUs ranks compute sums (comm.h) and
// need memory for other ranks' data; NCCL uses its own buffers. staged: also `passing_bytes` of host memory for the
// operand and result of each of `passing` concurrent collectives, gathers included.
typedef struct SumWorkspace {
    void *memory;
    int64_t bytes, passing_bytes;
    int sums, passing;
} SumWorkspace;

typedef struct SumWorkspaces {
    SumWorkspace tensor, data, tied, context[2], experts; // experts: the ranks that hold the same experts
} SumWorkspaces;

// How many layers the host queues ahead of a GPU. A stream holds about a thousand launches. When it is full, a launch
// blocks the host and no messages move. With copies between 8 tensor ranks a layer's backward makes 79 launches, and 49
// more if its forward runs again.
enum { LAYERS_AHEAD = 6 };

typedef struct Stage {
    StageShape at;
    Shape dense; // shape of the layers without experts in a model with experts
    Shape again; // shape of recomputed layers
    const Model *model;
    const Config *config;
    Backend *be;
    TensorTable table;
    StageTensors tensors;
    const Tensor *embedding, *layers,
        *head; // pointers into tensors.tensors; embedding and head may be NULL; layers are in chunk order
    Pass pass;
    RopeTable *rope; // pass.rope
    struct {
        void *memory; // NULL: not needed
        int64_t bytes;
    } memory[STAGE_PIECES];   // allocations in addition to those of `tensors`; the first is the workspace
    CommMemory gathered;      // memory of gathered rows and partial sums; .memory NULL: they are in the workspace
    bool registered;          // the memory of collectives is registered with the tensor group (Comm.use_memory)
    void *op_workspace;       // part of the workspace, for the backend's operations
    void *muon_work;          // part of the workspace that passes use during a step, and Muon after it
    SumWorkspaces workspaces; // lent to the groups that use them
    HeadWork head_work;
    void *recomputed;          // one layer's part of a bundle, for recomputed layers; NULL: no layer is recomputed
    void *gradient;            // (shard_rows, hidden): the running gradient of the first chunk, which sends no gradient
    void *keys;                // per chunk keys (kept, layers, keys_bytes), dkeys (layers, dkeys_bytes); NULL: unsliced
    int32_t *tokens, *targets; // (most_microbatches, rows) on the device; NULL on stages that do not read them
    int32_t *places;           // same size: each token's place in its document; NULL if documents are ignored
    int32_t *host_places;      // copy of `places` on the host
    int32_t *positions;        // (rows) each token's position in its sequence; NULL without context ranks
    bool documents;            // true: `places` are filled in; false: every sequence is one document
    float *losses;             // (most_microbatches, rows), if the stage has the head
    double *copies;            // (layers of the model, E) Pass.copies of every layer, the caller's; NULL: not counted
    int64_t prepared;          // layers of the first chunk prepared before the run's first input
    int64_t layers_queued;     // forwards and backwards of a layer, and weight gradients, since the start
    int64_t microbatches, most_microbatches; // number in this step; largest number of the run, which sizes the memory
    // Called when the gradients of a layer's tensors are complete: in the last microbatch's backward, or in its
    // stage_weights if backwards are split. `layer` counts the layers of all chunks of this stage. May be NULL.
    void (*layer_done)(void *zero, int64_t layer);
    // Called before a run's first use of each part of the stage. Waits for the weights of the first `tensors` tensors,
    // which data ranks may still gather. May be NULL.
    void (*needs_weights)(void *zero, int64_t tensors);
    void *zero;          // argument of layer_done and needs_weights (zero.h)
    double gather_flops; // FLOPs that products may compute while all weights of the stage are gathered
} Stage;

// Fills the shape. Reads only stages, chunks, placement, slices, split and, with slices, the stage's list of
// `schedule`. `schedule` has at most STAGE_MOST_CHUNKS chunks and no more virtual stages than the model has layers.
void stage_shape(StageShape *at, const Config *config, const Schedule *schedule, Backend *be, int stage,
                 int tensor_rank);
// Does the same from the shape of another stage with the same attention mode and schedule.recompute.
void stage_shape_like(StageShape *at, const StageShape *like, const Config *config, const Schedule *schedule,
                      int stage);

// Returns the byte offset of a layer's part of its chunk's bundle. The part holds the layer's input and everything else
// that its backward needs, or only the input if the layer is recomputed.
int64_t stage_layer_offset(const StageShape *at, const StageChunk *chunk, int64_t layer);

enum { STAGE_LAYERS_TEXT = 64 };
// Writes the layers of the stage's chunks as ranges, 0-based and inclusive: "0-9", "0-4,35-39". If the ranges do not
// fit, writes only the first ones and "...". Returns `text`.
char *stage_layers_text(const StageShape *at, char text[STAGE_LAYERS_TEXT]);

// Returns the pipeline stage that holds an entry of the tensor table.
int stage_holding(const Stage *stage, int64_t table_index);

// Add the bytes that stage_create allocates for the model with this table to `bytes`, by category; the engine allocates
// slots and message buffers. stage_state_bytes: weights, gradients, masters and moments, whose bytes are also *states,
// and workspaces of sums. stage_work_bytes: everything else. *staged: bytes of host memory for collectives of ranks
// that share a GPU.
void stage_work_bytes(MemoryBytes *bytes, const TensorTable *table, const Config *config, const StageShape *at);
void stage_state_bytes(MemoryBytes *bytes, StateBytes *states, int64_t *staged, const TensorTable *table,
                       const Config *config, const StageShape *at);

// Allocates a stage of a given shape, and binds it to the memory; the weights are zero. The arguments are those of
// stage_create. whole: the model that the shape's chunks refer to, which may have fewer layers than config's model. -1
// with err.
int stage_allocate(Stage *stage, const Model *model, const Config *config, const StageShape *at,
                   const ModelConfig *whole, Backend *be, Comm *tensor, int replica, Error *err);
// Allocates and initializes a stage. tensor: group of its tensor ranks, NULL for one rank. replica: see
// ranks/topology.h. -1 with err.
int stage_create(Stage *stage, const Model *model, const Config *config, const Schedule *schedule, Backend *be,
                 int index, Comm *tensor, int replica, Error *err);
// Sets the two groups of the stage's context ranks (model/blocks.c). Call it before the stage runs.
void stage_use_context(Stage *stage, Comm *const context[2]);
void stage_destroy(Stage *stage);

// --- sums.c
// Lays out the workspaces, the same in a plan and in a run. staged: ranks share a GPU, so the host computes the sums,
// and complete operands and results go through host memory in addition to the workspace of the sums.
void sums_layout(SumWorkspaces *workspaces, Layout *layout, const Shape *shape, const StageTensors *tensors,
                 bool staged);
// Sets the workspace of a group, if the group uses one; workspace NULL withdraws it. comm may be NULL.
void sums_lend(Comm *comm, const SumWorkspace *workspace);

// Prepares the weights of the first chunk's next layer: waits for them, and quantizes them. A stage does so while it
// waits for a run's first input; its first forward prepares the remaining layers. Returns false if no layer is left.
bool stage_prepare(Stage *stage, Error *err);

// Runs one slice of a microbatch through one chunk. unit: microbatch * slices + slice. bundle: memory of its slot.
// input: message of the previous virtual stage (not read by the first). output: message for the next one (not written
// by the last, which computes loss and gradient of its output at once; scale 0: loss only).
int stage_forward(Stage *stage, int chunk, int64_t unit, void *bundle, const void *input, void *output, float scale,
                  Error *err);
// Runs the backward. input: gradient from the next virtual stage (not read by the last). output: gradient for the
// previous one (not written by the first). split: leaves the gradients of the layers' matrices to stage_weights, and
// keeps their operands in the bundle.
int stage_backward(Stage *stage, int chunk, int64_t unit, void *bundle, const void *input, void *output, bool split,
                   Error *err);
int stage_weights(Stage *stage, int chunk, int64_t unit, void *bundle, Error *err);

// Downloads one row (position * b + sequence) of the logits of the slice that ran last with scale 0: the vocab_count
// values on this tensor rank of the last stage. The logits stay in the head's workspace until the next forward.
void stage_logits(Stage *stage, int64_t row, float *logits);

// The table of a model's tensors, and the part of it that one rank holds.
//
// The table (TensorTable) lists every tensor of the model once, in the order embedding, layers, head. It is cheap (no
// data) and the same on all ranks; initialization, partition, optimizer, gradient norm, checkpoint and the plan's bytes
// all read it. The part (StageTensors) holds the tensors of one pipeline stage, cut for one tensor rank, in one arena
// per kind of state, the layers separate from embedding and head.
#pragma once

#include "backend/backend.h"
#include "config/config.h"
#include "backend/memory.h"

typedef enum TensorSplit { SPLIT_NONE, SPLIT_ROWS, SPLIT_COLS } TensorSplit;
// The use of a layer's tensor in layer.c. Among joined tensors only the first has a role.
typedef enum LayerRole {
    LAYER_NORM1,
    LAYER_QKV,
    LAYER_QKV_BIAS,
    LAYER_Q_NORM, // with latent attention: norms of the latent rows of queries, and of keys and values
    LAYER_K_NORM,
    LAYER_Q_UP,
    LAYER_KV_UP,
    LAYER_OUT,
    LAYER_OUT_BIAS,
    LAYER_NORM2,
    LAYER_UP,
    LAYER_UP_BIAS,
    LAYER_DOWN,
    LAYER_DOWN_BIAS,
    LAYER_ROUTER,
    LAYER_ROUTER_BIAS, // bias of the scores that choose experts
    LAYER_EXPERTS,     // the first expert's gate, the first tensor of the experts' unit
    LAYER_ROLES,
    LAYER_NONE = -1
} LayerRole;

// Returns whether a unit that begins with this role is the matrix of a product of the layers, which is the first to
// touch its gradient in a backward.
static inline bool role_is_linear(int role) {
    return role == LAYER_QKV || role == LAYER_OUT || role == LAYER_UP || role == LAYER_DOWN;
}

typedef enum TensorInit { INIT_ZERO, INIT_ONE, INIT_NORMAL, INIT_OUTPUT } TensorInit;

// One tensor of the model, unsharded. A matrix is (out, in), a vector (rows, 1).
typedef struct TensorSpec {
    char name[72];      // Hugging Face's name
    int64_t rows, cols; // unpadded
    int role;           // LayerRole; LAYER_NONE: no role in layer.c
    int split;          // TensorSplit
    int parts;          // SPLIT_ROWS cuts each of `parts` equal groups of rows (q, k and v of one matrix); else 1
    int init;           // INIT_NORMAL: std; INIT_OUTPUT: std / sqrt(2 layers), for projections into the residual stream
    bool vocabulary;    // rows are tokens: padded to a multiple of 128 t, so that all ranks have the same number
    bool decay;         // weight decay applies
    bool joined;        // directly follows the previous tensor, so that one product computes both
    bool shard_summed;  // not split; with sequence parallelism a rank sees only its rows: gradients are summed over t
    bool head_summed;   // not split; a rank has only its heads' part of the gradient: always summed over t
    bool transposed;    // checkpoints hold it as (in, out): GPT-2 in Hugging Face's form
    int64_t tied_to;    // index of the tensor that owns this weight, or -1
    int expert;         // expert that it belongs to; -1: not an expert's
    bool buffer;        // not a parameter: fp32, without moments; its gradient holds the step's counts (experts.h)
} TensorSpec;

typedef struct TensorTable {
    TensorSpec *specs;
    int64_t count;
    char prefix[64]; // prefix of the names that are added next
    // specs [0, first_layer): embedding; [first_layer + l * per_layer, ... + per_layer): layer l; from `head` on: head
    int64_t first_layer, per_layer, head;
    int64_t experts; // experts per layer; 0: a dense model
} TensorTable;

// Sets the prefix of the names added next, such as "model.layers.%lld." with a layer's number. May be empty.
void table_prefix(TensorTable *table, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Each appends a tensor and returns it for further settings (parts is 1, tied_to and expert are -1). Vectors are not
// split; with sequence parallelism their gradients are summed over the tensor ranks.
TensorSpec *table_vector(TensorTable *table, int role, int64_t rows, int init, const char *name);
// Appends the bias of a matrix. If the matrix is split by rows, so is the bias. If it is split by columns, the bias is
// added once to the sum over the tensor ranks and is not split.
TensorSpec *table_bias(TensorTable *table, int role, int64_t rows, int split, const char *name);
// Appends a matrix with weight decay. Only projections into the residual stream are split by columns; their
// initial values are smaller.
TensorSpec *table_matrix(TensorTable *table, int role, int64_t rows, int64_t cols, int split, const char *name);
// Appends a matrix of an expert, which tensor ranks do not split. The matrices of a layer's experts are consecutive and
// joined; the first has the role LAYER_EXPERTS.
TensorSpec *table_expert(TensorTable *table, int64_t expert, int role, int64_t rows, int64_t cols, int init,
                         const char *name);
// Appends a matrix with a row per vocabulary token. tied: it shares the weight of the table's first tensor.
TensorSpec *table_vocabulary(TensorTable *table, int64_t vocab, int64_t hidden, bool tied, const char *name);
void table_free(TensorTable *table);

// Returns the parameters of specs [begin, end), unpadded, without tied weights and buffers.
int64_t table_parameters(const TensorTable *table, int64_t begin, int64_t end);

// Returns whether train.optimizer muon updates a table entry by Muon: a matrix of a layer, but not a router.
static inline bool table_is_layer_matrix(const TensorTable *table, int64_t index) {
    return index >= table->first_layer && index < table->head && table->specs[index].decay &&
           table->specs[index].role != LAYER_ROUTER;
}

// The part of every tensor that a rank holds, and the part of it for which the rank keeps optimizer states (ZeRO-1).
typedef struct Split {
    int tensor_rank, tensor_ranks;
    int data_rank, data_ranks; // replica (ranks/topology.h) and number of replicas: data ranks * context ranks
    // The tensor ranks of all replicas divide the experts: rank i = data_rank * tensor_ranks + tensor_rank has the
    // experts of expert rank i % e, which has (tensor_ranks * data_ranks) / e replicas. 0 of 0: a model without
    // experts.
    int expert_rank, expert_ranks, expert_replica, expert_replicas;
} Split;

// One tensor on this rank. Pointers into the arenas of StageTensors.
typedef struct Tensor {
    const TensorSpec *spec;
    int64_t index;      // index in the table
    int64_t rows, cols; // size of this rank's part, padding included
    int64_t count;      // rows * cols
    int64_t within;     // elements from the start of its unit
    int64_t unit;       // index of the unit that contains it
    bool written;       // a product overwrites its gradient in a step's first backward, so that it is never zeroed
    bool alias;         // shares another tensor's weight on this stage and has no states of its own
    void *weight;
    float *gradient;
    Factor factor[2]; // operands of products: the weight and its transpose; plain, or quantized (quantized.h)
} Tensor;

// A tensor and the tensors joined to it: the unit that data ranks divide among themselves. Data rank r owns the r-th
// piece: it sums that piece's gradients, keeps its optimizer states and updates its weights. Units depend on the model
// and the split, not on the stage. Muon needs complete matrices, so a unit of matrices belongs to one data rank. The
// experts of a layer are one unit, divided among the replicas of these experts. With Muon, each expert is a unit that
// belongs to one of the replicas.
typedef struct Unit {
    int64_t first, tensors; // index of its first tensor on this stage; number of tensors
    int64_t count;          // elements, padded so that pieces are equal
    int rank, ranks;        // this rank among the ranks that divide the unit; their number
    bool experts;           // the ranks are replicas of experts, not data ranks
    int64_t piece;          // elements per owner: count / ranks, or count with a home
    int64_t owner;          // an alias: the unit that owns these weights; else -1
    int home;               // rank that owns the complete unit; -1: each rank owns a piece
    int group;              // StateGroup of its arenas
    // Offsets in elements: in the weights, in the gradients, and in the masters and each moment of this rank's pieces
    // (with a home: of the home's units). An alias has only gradients.
    int64_t offset, gradient_offset, state_offset;
    void *weights;    // (count)
    float *gradients; // (count)
} Unit;

// The layers' states are counted separately from those of embedding and head, which only the ends of a pipeline hold.
// Buffers, which belong to layers, have only weights and gradients.
typedef enum StateGroup { STATES_OF_LAYERS, STATES_OF_ENDS, STATES_OF_BUFFERS, STATE_GROUPS } StateGroup;

// The states of one group: an arena for each kind.
typedef struct StateArenas {
    int64_t elements;          // elements of the weights
    int64_t gradient_elements; // elements of the gradients, including those of aliases
    int64_t state_elements;    // elements of the masters and of m: the pieces of the data rank that owns the most
    int64_t second_elements;   // elements of v: without the units with a home
    void *weights;
    float *gradients, *masters, *moments; // moments: m, then v
} StateArenas;

// Bytes of a rank's states by kind, summed over both groups.
typedef struct StateBytes {
    int64_t weights, gradients, masters, moments;
    int64_t expert_gradients; // gradients that the replicas of experts sum
    int64_t owned;            // elements (not bytes) with masters and moments on a data rank, which updates them
} StateBytes;

// The part of a tensor inside this rank's piece of its unit: elements [begin, end) of the tensor. Empty if begin >=
// end.
typedef struct TensorPiece {
    int64_t begin, end;
    void *weight;    // address of element `begin`, like the pointers below
    float *gradient; // the sum over data ranks, once reduced
    float *master;   // NULL in fp32
    float *m, *v;    // AdamW's moments, or Muon's momentum and NULL; both NULL for an alias or a buffer
} TensorPiece;

typedef struct StageTensors {
    const TensorTable *table; // the caller's
    Tensor *tensors;
    int64_t count;
    Unit *units;
    int64_t unit_count;
    StateArenas arenas[STATE_GROUPS];
    Split split;
    int64_t element; // bytes of one weight, except in buffers
    int64_t buffer;  // elements of each of the layers' two gradient buffers; 0: every gradient has its own memory
    int fp8;         // Fp8
    bool muon;       // true: train.optimizer is muon
    char *quantized; // the layers' matrices and their transposes in eight bits (quantized.h); NULL: not kept
} StageTensors;

// Specs [begin, end) of a table.
typedef struct TableRange {
    int64_t begin, end;
} TableRange;

// Lays out the specs of each range for one rank. Allocates no device memory. A head that is tied to an embedding on the
// same stage becomes an alias.
void tensors_layout(StageTensors *tensors, const TensorTable *table, const TableRange *ranges, int range_count,
                    const Split *split, const TrainConfig *train);

// Reassigns the gradients' offsets, before allocation: layers alternate between two buffers, each as large as the
// largest layer. This rank's pieces of the sums follow the buffers.
void tensors_shard_gradients(StageTensors *tensors);
// Returns the bytes of one weight of a unit.
int64_t unit_element(const StageTensors *tensors, const Unit *unit);
// Returns the address of this rank's piece of a unit's gradients after the sum over data ranks.
float *tensors_sum(const StageTensors *tensors, const Unit *unit);
// With sharded gradients: zeroes those gradients of a layer that no product overwrites (Tensor.written).
void tensors_zero_layer(const StageTensors *tensors, Backend *be, int64_t layer);

// Adds the bytes that tensors_allocate takes to `bytes`, by category.
void tensors_bytes(const StageTensors *tensors, MemoryBytes *bytes);
StateBytes tensors_states(const StageTensors *tensors);
int64_t states_total(const StateBytes *states);

int tensors_allocate(StageTensors *tensors, Backend *be, Error *err);

// Draws initial weights: element e of the unsharded, unpadded tensor `name` depends only on (seed, name, e). Padding is
// zero.
void tensors_init(StageTensors *tensors, Backend *be, int64_t seed, int64_t layers, double std);

// Maps a local row to its row in the unsharded tensor; -1 for padding. The second function does columns.
int64_t tensor_global_row(const Tensor *tensor, int64_t row, int tensor_rank, int tensor_ranks);
int64_t tensor_global_col(const Tensor *tensor, int64_t col, int tensor_rank, int tensor_ranks);
// Returns the number of rows in the run that begins at `row`, at most `most`. The rows of a run are consecutive in the
// unsharded tensor too, or all are padding.
int64_t tensor_rows_together(const Tensor *tensor, int tensor_rank, int tensor_ranks, int64_t row, int64_t most);

// Returns the part of tensor `index` of this stage that this rank owns.
TensorPiece tensors_piece(const StageTensors *tensors, int64_t index);

// Sets elements [first, last) of tensor `index` (not an alias) to fp32 values, and their masters if they are owned
// here. For start-up: in bf16 the values pass through the gradient's memory, which is zero afterwards.
void tensors_put(const StageTensors *tensors, Backend *be, int64_t index, const float *values, int64_t first,
                 int64_t last);

// Returns whether the tensor's gradients are summed over the tensor ranks at the end of a step.
bool tensor_summed(const TensorSpec *spec, bool sequence);

// Zeroes this rank's gradients: all of them, or only the gradients that the next step adds to.
void tensors_zero_gradients(const StageTensors *tensors, Backend *be, bool all);

void tensors_free(StageTensors *tensors, Backend *be);

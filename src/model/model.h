// The seam between a model and everything that trains it.
//
// A model is a table of tensors and a handful of functions over one layer, written once over backend.h. It knows
// nothing of stages, schedules, slots or optimizers, and they know nothing of norms and MLPs.
#pragma once

#include "backend/backend.h"
#include "comm/comm.h"
#include "config/config.h"
#include "tensors.h"

typedef struct Model Model;

// The operands that tensor ranks gather: the input of a column-parallel product, and the gradient of a row-parallel
// product's output.
typedef enum Gathered { GATHERED_INPUT, GATHERED_GRADIENT, GATHERED_COUNT } Gathered;

// Sizes of one microbatch, or of a slice of it, on one tensor rank. b sequences of s tokens; t tensor ranks.
typedef struct Shape {
    int64_t batch, seq;  // b; s, or the length of a slice or of a context rank's part
    int64_t slices;      // slices of a sequence, computed one after another
    int64_t rows;        // s*b
    int64_t shard_rows;  // rows/t with sequence parallelism, else rows: residual stream, norms, stage-to-stage messages
    int64_t hidden;      // h
    int64_t query_cols;  // q/t, q = heads * head_dim; with latent attention heads * v / t
    int64_t qkv_cols;    // (q + 2 kv)/t, kv = kv_heads * head_dim; with latent attention the width of its latent rows
    int64_t ffn;         // f/t; 0: the layer has only experts
    int64_t mlp_cols;    // width of the MLP's first product: 2f/t if it computes gate and up, else f/t
    int64_t vocab_width; // padded vocabulary / t: width of the logits
    int64_t vocab_first; // first vocabulary row of this rank
    int64_t vocab_count; // vocabulary rows of this rank, without padding
    AttentionShape attention;
    LatentShape latent;
    int64_t saved_bytes;     // saved by attention_forward
    int64_t scratch_bytes;   // scratch of attention
    int64_t workspace_bytes; // workspace of the backend's operations
    int tensor_rank, tensor_ranks;
    int context_rank, context_ranks;
    int pieces; // runs of consecutive positions of a sequence on this rank: 2 with context ranks (below), else 1
    bool sequence;
    bool copies;        // gathers and reduce-scatters may be copies into memory that the other ranks map
    bool overlap;       // collectives run during products that do not depend on them
    int strips;         // strips of the rows: a strip's collective overlaps another strip's product; 1: no overlap
    bool pointwise;     // the backward recomputes the outputs of norms and activation
    bool keeps_experts; // the bundle keeps the experts' inputs and first product (experts.h)
    bool qk_norm;       // heads of q and k are normalized
    double norm_eps;
    float z_loss;
    int64_t element; // bytes of one activation
    int fp8;         // Fp8 format of the layers' products
    // FactorKind of the operands that a layer gathers, and of the norms' and activation's outputs in its bundle. Scales
    // run along rows, so a gather does not change them; FACTOR_PLAIN: 16 bits.
    int narrow[GATHERED_COUNT];
    // --- experts; route.experts 0: the layers have none. Each of e expert ranks holds E/e experts of width expert_ffn.
    RouteShape route;
    int expert_ranks;
    int64_t dense_ffn; // ffn of the first layers, which have no experts; `ffn` is then the shared expert's width
    int64_t expert_ffn, expert_rows; // expert_rows: most rows that the buffers for a rank's experts hold at once
    double balance, router_z;        // balance loss and router's z-loss over the loss of a target (Pass.scale); 0: off
} Shape;

// Fills the shape of a configuration on a stage and tensor rank, of context rank 0. The caller has zeroed `shape`, so
// that shapes can be compared as bytes. Uses only own_sums and capability of `be`, and its sizes of attention's scratch
// and of the operations' workspace.
void shape_from_config(Shape *shape, const Config *config, Backend *be, int stage, int tensor_rank);

// Context ranks share a sequence (parallel.context). It is cut into 2c pieces of equal length, and rank r has pieces r
// and 2c-1-r (zigzag), so that causal attention is the same work on every rank. For c = 2 and digits as pieces:
//
//     rank 0: 0 3    rank 1: 1 2       a query of piece 1 sees the keys of pieces 0 and 1
enum { CONTEXT_PIECES = 2 };

// Returns the position in its sequence at which piece i of this rank begins. Without context ranks, i is 0.
static inline int64_t context_place(const Shape *s, int i) {
    int piece = i == 0 ? s->context_rank : 2 * s->context_ranks - 1 - s->context_rank;
    return piece * (s->seq / s->pieces);
}

// Returns the row on this rank of a position of the batch's first sequence, or -1 if another context rank has it.
int64_t context_row(const Shape *s, int64_t position);

// Returns the shape of the first layers of a model with experts, which have a dense MLP of width dense_ffn instead.
Shape shape_dense(const Shape *shape);
// Returns the shape of recomputed layers: their backward recomputes the experts' first product in any case.
Shape shape_recomputed(const Shape *shape);

// The gradient of a matrix and its bias: dw += dyT x, dbias += column sums of dy.
typedef struct WeightGradient {
    const Tensor *w, *bias; // bias may be NULL
    Factor dy, x;           // (rows, out), (rows, in)
    int64_t in, out;
    bool shard; // x is this rank's shard (shard_rows, in), and is gathered first
} WeightGradient;

// How evenly the forwards of a step used their experts: sums over layers and microbatches.
typedef struct ExpertLoad {
    double forwards;
    double parts;   // parts in which rows were sent
    double fullest; // rows of the fullest rank of the group over the mean
    double spread;  // standard deviation of the experts' rows over their mean
    double balance; // this rank's part of the balance loss, without the factor; 0 without a balance loss
} ExpertLoad;

// One forward or backward in progress: its groups, buffers and state. An error of a collective is kept in `err`; later
// operations of the pass do no harm, and the caller ends the run.
typedef struct Pass {
    Backend *be;
    Comm *tensor;     // NULL or size 1: no tensor parallelism
    Comm *context[2]; // one per half of a sequence (blocks.c); NULL: no context ranks
    Comm *experts;    // the ranks that divide the experts (experts.h); NULL: this rank has all of them
    const Model *model;
    const Shape *shape;
    int place[LAYER_ROLES]; // index of this role's tensor in a layer; -1: not in this model
    const RopeTable *rope;  // unused if the family has no rotary embedding
    // (rows, hidden) each, NULL without sequence parallelism: gathered rows, and this rank's part of a sum. Without
    // shape->overlap they share one buffer, since each is read before the next is written.
    void *gathered[GATHERED_COUNT], *partial;
    bool gathering[GATHERED_COUNT];                                  // true: a gather is in flight
    CommRequest gather[GATHERED_COUNT][2], sum, strip[OVERLAP_MOST]; // gather: [0] numbers, [1] scales
    bool begins;             // a step's first backward: gradients of `written` units (tensors.h) are not added
    WeightGradient later[2]; // weight gradients deferred until a collective is in flight (blocks.c)
    int later_count;
    // The previous layer's output is residual + delta, which the next norm adds. NULL: the output has been written.
    const void *residual, *delta;
    void *scratch; // scratch of attention
    // (rows) each. documents: each token's place in its document, for attention, and the same on the host; NULL: a
    // sequence is one document. positions: each token's position for the model; NULL: counted from `first`.
    const int32_t *documents, *host_documents, *positions;
    // first: position of this slice's first token in its sequence; 0 without slices. keys, dkeys (AttentionShape): with
    // slices or context ranks, the current layer's keys and values of the sequences, and their gradients; else NULL.
    int64_t first;
    void *keys;
    float *dkeys;
    void *quantized[2]; // an input and a gradient of a product in eight bits (quantized.h)
    void *narrowed;     // (shard_rows, hidden) in eight bits: a gradient that is gathered next
    char *scales;       // scales of the output gradients of the last row and column products, for train.fp8 tensor
    void *work;         // a layer's temporaries, see layer.h
    float scale;        // factor on the loss of a token, in the latest forward with a gradient
    bool trains;        // the latest forward had a gradient
    ExpertLoad load;    // load of forwards with a gradient since the caller zeroed it
    double *copies; // (E) forwards with a gradient add this rank's copies for each of the layer's experts; may be NULL
    bool split;     // a backward leaves the gradients of matrices and their biases to layer_weights
    // Lets pending transfers progress. Called between layers, around collectives, and during a wait for a collective
    // (moved: false). Returns false if a transfer has failed. May be NULL.
    bool (*poll)(void *, bool moved);
    void *poll_argument;
    Event *routed; // marks the compute before counts of experts, which the host waits for with `poll`; NULL: no experts
    Error *err;
} Pass;

// Runs a collective to its end. Messages progress meanwhile: another rank may start the collective only after a message
// that depends on a message of this rank. An error is in pass->err.
static inline void pass_collective(Pass *pass, Comm *comm, CommOperation operation, void *out, const void *in,
                                   int64_t count, CommType type) {
    CommRequest request = {0};
    if (comm->collective(comm, operation, NO_ROOT, out, in, count, type, &request, pass->err) == 0)
        comm_wait_polling(comm, &request, pass->poll, pass->poll_argument, pass->err);
}

// The differences between models. All models share the layer, embedding and head (layer.h, blocks.h).
struct Model {
    const char *family; // "llama": the name of its row in config/family.c
    // --- the table. Each function appends its tensors in order. Every layer appends the same number, with roles for
    // layer.c. The head appends the final norm, then the output matrix, which refers to the embedding if tied.
    void (*embedding_tensors)(const ModelConfig *, TensorTable *);
    void (*layer_tensors)(const ModelConfig *, int64_t layer, TensorTable *);
    void (*head_tensors)(const ModelConfig *, TensorTable *);
    enum { NORM_RMS, NORM_LAYER } norm; // LayerNorm's bias follows its weight in the table
    // --- the treatment of q and k between their product and the attention, in place: the norm over single heads
    // (Qwen3) and the rotation (rope). NULL if the model has neither. t: the layer's tensors by role. kept: receives q
    // and k before the norm, for the norm's backward (LayerBundle); unused without model.qk_norm.
    void (*heads_forward)(Pass *, const Tensor *const *t, void *qkv, void *kept);
    void (*heads_backward)(Pass *, const Tensor *const *t, void *dqkv, const void *kept);
    // --- act (rows, f/t) from mlp (rows, mlp_cols). Both functions are NULL with GELU, which is part of the products.
    // With train.fp8 act and dmlp may be in eight bits. If the family is not gated, dmlp and dact are one buffer.
    void (*activation_forward)(Pass *, Factor act, const void *mlp);
    void (*activation_backward)(Pass *, Factor dmlp, const void *dact, const void *mlp);
    // Index of the output matrix among the head's tensors, and whether the embedding's second tensor is a table of
    // positions.
    int head_matrix;
    bool learned_positions;
};

// Makes the complete model's table. The caller frees it.
TensorTable model_table(const Model *model, const ModelConfig *config);

// Returns the rotations of a model (transformers' modeling_rope_utils.py has the three ways of scaling). The caller
// frees them.
RopeTable *model_rope(const ModelConfig *config);

// Returns the FLOPs of one token's forward and backward (3 times the forward) as counted for MFU: matrix products only,
// nothing recomputed; attention over all s*s pairs (full) or half of them (causal, not full). Formula: Megatron-LM's
// (Narayanan et al. 2021), E = 3 products in a SwiGLU MLP, 2 in a GELU MLP:
//   6 * [ L * (h*(q + 2kv) + q*h + E*h*f) + h*V ] + (full ? 12 : 6) * L * q * s
// With latent attention the products are those of latent.h, and attention has heads * (n + r + v) / 2 in place of q.
// In a layer with experts, f is the width of a token's k experts and the shared expert; the router adds h * experts.
double model_flops_per_token(const Config *config, bool full);

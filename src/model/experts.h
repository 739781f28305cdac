// Mixtures of experts: a layer's MLP is E small MLPs, of which each token uses the k that a router chooses for it.
//
//     logits  = norm2 RouterT                       (E), in fp32
//     chosen  = the k experts, ascending, and their weights w (operations.h, route_forward)
//     y       = sum over the chosen, in ascending order:  Down_i (w_i swiglu(GateUp_i norm2))
//
// The e ranks of a group hold E/e experts each. A rank sends every row to the k experts of its token, as k copies, and
// their outputs return the same way. No token is dropped, and every routing needs the same memory: the buffers have
// shape->expert_rows rows, a little over a balanced share, and rows that do not fit at once are sent in 2, 4, ...
// parts. A token's output has the same bits for every e and any number of parts, because a row of a product does not
// depend on other rows, and the sum over i has a fixed order.
//
// With e = 2, E = 4 and k = 2, two rows on each rank (digit: row, letter: its expert; rank 1 holds C and D):
//
//     rank 0   0A 0C 1A 1B   sends 0A 1A 1B | 0C      to the ranks, in the order of experts
//     rank 1   2B 2D 3A 3C         3A 2B    | 3C 2D
//     rank 0   receives 0A 1A 1B 3A 2B and groups  0A 1A 3A | 1B 2B,  a matrix product for each expert
//
// The backward finds the inputs and the first product of the first part's rows in the bundle, if shape->keeps_experts.
// Otherwise, and for the other parts, it sends the rows again and recomputes the first product.
#pragma once

#include "model.h"

// The experts' part of a layer's bundle.
typedef struct ExpertsBundle {
    int32_t *chosen;      // (shard_rows, k) ascending
    float *weights;       // (shard_rows, k)
    float *share;         // (E) gradient of the balance loss with respect to every score; empty without a balance loss
    void *rows, *gate_up; // (n, h), (n, 2 f), as in ExpertsWork; empty without shape->keeps_experts, like row_weights
    float *row_weights;   // (n)
} ExpertsBundle;

// Temporaries. n: expert_rows.
typedef struct ExpertsWork {
    float *logits;            // (shard_rows, E)
    void *dlogits;            // (shard_rows, E)
    int32_t *place, *regroup; // (shard_rows, k): positions of copies; (n): positions by expert
    void *sent, *arrived;     // (k shard_rows, h), (n, h): rows in flight
    void *rows, *drows;       // (n, h) by expert: the experts' inputs, then their outputs; the gradients of both
    void *gate_up, *dgate_up; // (n, 2 f)
    void *act, *dact;         // (n, f)
    float *sent_weights, *arrived_weights, *row_weights, *drow_weights; // (k shard_rows), (n), (n), (n)
    float *dweights;                                                    // (shard_rows, k)
    void *output; // (shard_rows, h) the experts' output without the shared expert's; empty without a shared expert
} ExpertsWork;

void experts_bundle_layout(ExpertsBundle *bundle, Layout *layout, const Shape *shape);
void experts_work_layout(ExpertsWork *work, Layout *layout, const Shape *shape);

// Returns shape->expert_rows: `factor` (schedule.expert_rows) times the rows of a balanced routing.
int64_t experts_rows(const Shape *shape, double factor);

// Chooses the experts of x (shard_rows, h): fills the bundle. t: the layer's tensors by role.
void experts_route(Pass *pass, const Tensor *const *t, const ExpertsBundle *bundle, const ExpertsWork *work,
                   const void *x);
// Sets y (shard_rows, h) to the chosen experts' output for x.
void experts_forward(Pass *pass, const Tensor *const *t, const ExpertsBundle *bundle, const ExpertsWork *work, void *y,
                     const void *x);
// Sets dx to the gradient of x. Adds to the gradients of the router and of this rank's experts. Adds each expert's
// number of copies to the gradient of the scores' bias.
void experts_backward(Pass *pass, const Tensor *const *t, const ExpertsBundle *bundle, const ExpertsWork *work,
                      void *dx, const void *dy, const void *x);

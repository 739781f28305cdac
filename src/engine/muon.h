// Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon): the update of a matrix is its momentum with every
// singular value moved close to 1. It applies to the layers' matrices, except routers. q, k, v, gate and up, also those
// of every expert, are separate matrices. The update is scaled by train.muon_scale * sqrt(max(out, in)), so that with
// 0.2 its RMS is that of an update of AdamW, and AdamW's learning rate and weight decay carry over (Liu et al. 2025,
// Muon is Scalable for LLM Training, arXiv 2502.16982).
#pragma once

#include "backend/backend.h"
#include "comm/comm.h"
#include "model/tensors.h"

// Returns the bytes of workspace for the largest matrix of the layers; 0 if train.optimizer is not muon.
int64_t muon_workspace(const TensorTable *table, const TrainConfig *train);

// Replaces the matrix x (rows, cols), of the run's precision and with norm <= 1, at the beginning of `work` by an
// approximation of U VT, x = U S VT being its singular value decomposition. Singular values below about 0.01 of the
// largest stay smaller. work: orthogonalize_workspace bytes.
void orthogonalize(Backend *be, void *work, int64_t rows, int64_t cols);
int64_t orthogonalize_workspace(int64_t rows, int64_t cols, int64_t element);

// Returns the factor on a matrix's direction, before the learning rate.
double muon_factor(const TrainConfig *train, const TensorSpec *spec);
// Returns how many of a stage's layer matrices are split among tensor ranks, summed over all data ranks.
int64_t muon_split_matrices(const StageTensors *tensors);

typedef struct Muon Muon;

// tensor: group of the tensor ranks, which gather each split matrix and compute the same update; NULL: one tensor rank.
// work: muon_workspace bytes. The stage's tensors have to outlive the result.
Muon *muon_create(const StageTensors *tensors, Backend *be, Comm *tensor, void *work, const TrainConfig *train);
void muon_destroy(Muon *muon); // accepts NULL

// Updates the momentum of this rank's matrices and replaces their gradients by directions, which adamw then applies.
// gradient_scale: factor on gradients, for clipping. Collective over the tensor ranks. -1 with err.
int muon_directions(Muon *muon, double gradient_scale, Error *err);
// Runs every operation of muon_directions for these shapes without communicating. Gradients and momentum have to be 0,
// and stay 0.
void muon_rehearse(Muon *muon);

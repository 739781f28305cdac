// The layout of a model's state in the files of a checkpoint. It depends only on the table of tensors and the
// precision, so every rank computes it without communication, and it is the same for every partition: files are split
// by layer, never by rank.
//
//   model-0000k-of-0000n.safetensors       weights in the run's precision, with Hugging Face's names; buffers in fp32
//   optimizer-0000k-of-0000n.safetensors   NAME.exp_avg, NAME.exp_avg_sq; in bf16 NAME.master (fp32 weights); for a
//                                          matrix of Muon's NAME.momentum_buffer in place of the first two
// k = 1: the embedding, 2 ... n-1: one layer each, n: the head.
//
// Tensors are stored in Hugging Face's form: unsharded, without the padding of the vocabulary, GPT-2's matrices
// transposed, a tied head left out. The functions below take ranges of elements, never ranks, so it does not matter
// which rank holds which part of a state.
#pragma once

#include "safetensors.h"
#include "model/tensors.h"

typedef enum StateKind { STATE_WEIGHT, STATE_MASTER, STATE_M, STATE_V, STATE_MOMENTUM, STATE_KINDS } StateKind;

// Suffixes of tensor names, by StateKind: "", ".master", ".exp_avg", ".exp_avg_sq", ".momentum_buffer".
extern const char *const state_suffix[STATE_KINDS];
// Returns whether a run with these keys has a state of a table entry. A tied head has all its states in the
// embedding's. An entry without rows, such as an expert of a dense layer, has none.
bool state_exists(const TensorTable *table, int64_t table_index, StateKind kind, const TrainConfig *train);

// --- the tensor under which a weight is stored

// Returns the spec under which a weight is stored: `spec` itself, or the embedding's for a tied head.
const TensorSpec *spec_stored(const TensorTable *table, const TensorSpec *spec);
bool spec_is_vector(const TensorSpec *spec);

// --- the files

typedef struct LayoutFile {
    char name[64];
    char *header; // the first header_bytes of the file
    int64_t header_bytes;
    int64_t bytes; // bytes of the file
} LayoutFile;

typedef struct CheckpointLayout {
    const TensorTable *table; // owned by the caller
    int groups;               // number of layers + 2 (embedding, head)
    int files;                // 2 * groups: model files, then optimizer files
    LayoutFile *file;
    int64_t *offset; // (table entries, STATE_KINDS): bytes from the beginning of the tensor's file; -1: not stored
    int64_t model_bytes;
} CheckpointLayout;

void layout_create(CheckpointLayout *layout, const TensorTable *table, const TrainConfig *train);
void layout_free(CheckpointLayout *layout);
int layout_group(const CheckpointLayout *layout, int64_t table_index);
int layout_file(const CheckpointLayout *layout, int64_t table_index, StateKind kind);
// Writes model.safetensors.index.json.
void layout_write_index(const CheckpointLayout *layout, FILE *file);

// --- parts of tensors

// A rectangle of a rank's tensor that is also a rectangle of the unsharded tensor.
typedef struct Block {
    int64_t first;      // index of its first element in the rank's tensor; the row stride is tensor->cols
    int64_t rows, cols; // size of the rectangle
    int64_t row, col;   // its first row and column in the unsharded tensor
} Block;

typedef int (*BlockVisitor)(void *context, const Block *block);

// Splits elements [begin, end) of the rank's tensor, without padding, into blocks and calls `visit` for each block. If
// `visit` does not return 0, stops and returns its result.
int tensor_blocks(const Tensor *tensor, int tensor_rank, int tensor_ranks, int64_t begin, int64_t end,
                  BlockVisitor visit, void *context);

// A block in its file: `rows` runs of `run` bytes, the first at `offset` bytes from the tensor's beginning. `stride`:
// bytes from the start of a run to the start of the next; if it equals `run`, the runs are contiguous.
typedef struct FileBlock {
    int64_t offset, rows, run, stride;
} FileBlock;

FileBlock block_in_file(const TensorSpec *spec, const Block *block, int64_t element);

// Returns the index of the first of `count` values of 4 bytes (fp32) or 2 bytes (bf16) that is not finite, or -1.
int64_t find_not_finite(const void *values, int64_t count, int64_t element);

// Computes the layout: the headers first, because their lengths decide where the data begin, then the offset of every
// tensor's states. Also splits a rank's part of a tensor into blocks and places each block in its file.
#include "checkpoint_layout.h"
#include "base/alloc.h"

#include "base/json_out.h"

#include <stdlib.h>
#include <string.h>

const char *const state_suffix[STATE_KINDS] = {"", ".master", ".exp_avg", ".exp_avg_sq", ".momentum_buffer"};

bool state_exists(const TensorTable *table, int64_t table_index, StateKind kind, const TrainConfig *train) {
    if (table->specs[table_index].rows == 0) return false;
    if (table->specs[table_index].buffer) return kind == STATE_WEIGHT;
    bool muon = train->optimizer == OPTIMIZER_MUON && table_is_layer_matrix(table, table_index);
    if (kind == STATE_MASTER) return train->precision == PRECISION_BF16;
    return kind == STATE_WEIGHT || (kind == STATE_MOMENTUM) == muon;
}

const TensorSpec *spec_stored(const TensorTable *table, const TensorSpec *spec) {
    return spec->tied_to < 0 ? spec : &table->specs[spec->tied_to];
}

bool spec_is_vector(const TensorSpec *spec) { return spec->cols == 1 && !spec->transposed; }

int layout_group(const CheckpointLayout *layout, int64_t table_index) {
    const TensorTable *table = layout->table;
    if (table_index < table->first_layer) return 0;
    if (table_index >= table->head) return layout->groups - 1;
    return 1 + (int)((table_index - table->first_layer) / table->per_layer);
}

int layout_file(const CheckpointLayout *layout, int64_t table_index, StateKind kind) {
    return layout_group(layout, table_index) + (kind == STATE_WEIGHT ? 0 : layout->groups);
}

void layout_create(CheckpointLayout *layout, const TensorTable *table, const TrainConfig *train) {
    *layout = (CheckpointLayout){.table = table};
    layout->groups = (int)((table->head - table->first_layer) / table->per_layer) + 2;
    layout->files = 2 * layout->groups;
    layout->file = xcalloc((size_t)layout->files, sizeof *layout->file);
    layout->offset = xmalloc((size_t)(table->count * STATE_KINDS) * sizeof *layout->offset);
    SafeHeader *headers = xcalloc((size_t)layout->files, sizeof *headers);
    for (int file = 0; file < layout->files; file++) safetensors_header_begin(&headers[file]);
    for (int64_t i = 0; i < table->count; i++)
        for (int kind = 0; kind < STATE_KINDS; kind++) {
            const TensorSpec *spec = &table->specs[i];
            int64_t *offset = &layout->offset[i * STATE_KINDS + kind];
            char name[96];
            *offset = -1;
            if (spec->tied_to >= 0 || !state_exists(table, i, (StateKind)kind, train)) continue;
            snprintf(name, sizeof name, "%s%s", spec->name, state_suffix[kind]);
            bool bent = spec->transposed, weight = kind == STATE_WEIGHT;
            bool narrow = weight && !spec->buffer && train->precision == PRECISION_BF16;
            *offset = safetensors_header_add(&headers[layout_file(layout, i, (StateKind)kind)], name,
                                             narrow ? SAFE_BF16 : SAFE_F32, spec_is_vector(spec) ? 1 : 2,
                                             bent ? spec->cols : spec->rows, bent ? spec->rows : spec->cols);
        }
    for (int file = 0; file < layout->files; file++) {
        LayoutFile *out = &layout->file[file];
        bool model = file < layout->groups;
        safetensors_header_end(&headers[file]);
        snprintf(out->name, sizeof out->name, "%s-%05d-of-%05d.safetensors", model ? "model" : "optimizer",
                 file % layout->groups + 1, layout->groups);
        out->header = headers[file].text;
        out->header_bytes = (int64_t)headers[file].bytes;
        out->bytes = out->header_bytes + headers[file].data;
        if (model) layout->model_bytes += headers[file].data;
    }
    free(headers);
    // So far, offsets count from the beginning of the data.
    for (int64_t i = 0; i < table->count * STATE_KINDS; i++) {
        int file = layout_file(layout, i / STATE_KINDS, (StateKind)(i % STATE_KINDS));
        if (layout->offset[i] >= 0) layout->offset[i] += layout->file[file].header_bytes;
    }
}

void layout_free(CheckpointLayout *layout) {
    for (int i = 0; layout->file != NULL && i < layout->files; i++) free(layout->file[i].header);
    free_all(layout->file, layout->offset);
    memset(layout, 0, sizeof *layout);
}

void layout_write_index(const CheckpointLayout *layout, FILE *file) {
    JsonOut out = {.file = file, .tall = 2};
    json_begin(&out, NULL, '{');
    json_object(&out, "metadata", "total_size %jd", layout->model_bytes);
    json_begin(&out, "weight_map", '{');
    for (int64_t i = 0; i < layout->table->count; i++)
        if (layout->offset[i * STATE_KINDS + STATE_WEIGHT] >= 0)
            json_put_text(&out, layout->table->specs[i].name, layout->file[layout_file(layout, i, STATE_WEIGHT)].name);
    json_end(&out, '}');
    json_end(&out, '}');
    fputc('\n', file);
}

// --- parts of tensors

// Walks elements begin .. end-1 of a rank's tensor in blocks. A range that begins or ends inside a row has up to three
// blocks. If a rank has rows 4 to 7 of a matrix with 10 columns, elements 7 .. 32 of its part are
//
//   row 4   . . . . . . . a a a      block 1: one row, 3 columns from column 7
//   row 5   b b b b b b b b b b      block 2: full rows, as many as are consecutive in the unsharded tensor
//   row 6   b b b b b b b b b b
//   row 7   c c c . . . . . . .      block 3: one row, 3 columns
//
// A rank's rows of q, k and v are consecutive only within each of the three. Padding rows (row -1) are skipped.
int tensor_blocks(const Tensor *tensor, int tensor_rank, int tensor_ranks, int64_t begin, int64_t end,
                  BlockVisitor visit, void *context) {
    while (begin < end) {
        int64_t row = begin / tensor->cols, col = begin % tensor->cols, left = end - begin;
        Block block = {begin, 1, tensor->cols - col, tensor_global_row(tensor, row, tensor_rank, tensor_ranks),
                       tensor_global_col(tensor, col, tensor_rank, tensor_ranks)};
        if (block.cols > left) block.cols = left;
        if (col == 0 && left >= tensor->cols)
            block.rows = tensor_rows_together(tensor, tensor_rank, tensor_ranks, row, left / tensor->cols);
        int status = block.row < 0 ? 0 : visit(context, &block);
        if (status != 0) return status;
        begin += block.rows * block.cols;
    }
    return 0;
}

FileBlock block_in_file(const TensorSpec *spec, const Block *block, int64_t element) {
    bool turned = spec->transposed;
    int64_t width = turned ? spec->rows : spec->cols;
    int64_t row = turned ? block->col : block->row, col = turned ? block->row : block->col;
    FileBlock at = {(row * width + col) * element, turned ? block->cols : block->rows,
                    (turned ? block->rows : block->cols) * element, width * element};
    return at;
}

// A value is not finite if all bits of its exponent are set. Tests a run of values at a time in a loop that vectorizes.
int64_t find_not_finite(const void *values, int64_t count, int64_t element) {
    enum { RUN = 4096 };
    const uint32_t exponent = 0x7F800000;
    const uint32_t *wide = values;
    const uint16_t *narrow = values; // bf16 is the upper half of fp32
    for (int64_t first = 0; first < count; first += RUN) {
        int64_t end = count - first < RUN ? count : first + RUN, at = first;
        bool strange = false;
        for (int64_t i = first; i < end && element == 4; i++) strange |= (wide[i] & exponent) == exponent;
        for (int64_t i = first; i < end && element == 2; i++) strange |= (narrow[i] & exponent >> 16) == exponent >> 16;
        if (!strange) continue;
        while (((element == 4 ? wide[at] : (uint32_t)narrow[at] << 16) & exponent) != exponent) at++;
        return at;
    }
    return -1;
}

// Operands of eight bits (quantized.h).
#include "quantized.h"
#include "base/units.h"

#include <assert.h>

static int kind_(int fp8, FactorUse use) {
    static const int kinds[][3] = {
        [FP8_OFF] = {FACTOR_PLAIN, FACTOR_PLAIN, FACTOR_PLAIN},
        [FP8_TENSOR] = {FACTOR_E4M3, FACTOR_E5M2, FACTOR_E4M3},
        [FP8_BLOCK] = {FACTOR_ROWS_128, FACTOR_ROWS_128, FACTOR_BLOCKS_128},
        [FP8_MX] = {FACTOR_ROWS_32, FACTOR_ROWS_32, FACTOR_ROWS_32},
    };
    return kinds[fp8][use];
}

static Factor lay_factor_(Layout *layout, const void *source, int64_t rows, int64_t depth, int kind) {
    void *numbers = layout_take(layout, rows * depth);
    void *scales = layout_take(layout, factor_scale_bytes(kind, rows, depth));
    return (Factor){numbers, scales, source, kind};
}

void quantized_shape(Shape *s, bool biased) {
    int kind = kind_(s->fp8, FACTOR_INPUT);
    s->narrow[GATHERED_INPUT] = factor_block_rows(kind) == 1 ? kind : FACTOR_PLAIN;
    s->narrow[GATHERED_GRADIENT] = biased ? FACTOR_PLAIN : s->narrow[GATHERED_INPUT];
}

Factor quantized_at(const void *memory, const void *source, int kind, int64_t rows, int64_t cols) {
    if (kind == FACTOR_PLAIN) return factor_plain(memory);
    Layout layout = {(char *)memory, 0};
    return lay_factor_(&layout, source, rows, cols, kind);
}

int64_t quantized_bytes(const Shape *s, int kind, int64_t rows, int64_t cols) {
    if (kind == FACTOR_PLAIN) return rows * cols * s->element;
    return memory_round(rows * cols) + memory_round(factor_scale_bytes(kind, rows, cols));
}

void quantized_make(Pass *pass, const Factor *operand, int64_t rows, int64_t cols) {
    assert(operand->kind != FACTOR_PLAIN);
    pass->be->quantize(pass->be, *operand, factor_plain(operand->source), rows, cols, false);
}

int64_t quantized_work_bytes(const Shape *s) {
    const int64_t widths[] = {s->hidden, s->query_cols, s->qkv_cols, s->ffn, s->mlp_cols};
    int kind = kind_(s->fp8, FACTOR_INPUT);
    int64_t most = 0;
    for (int i = 0; kind != FACTOR_PLAIN && i < 5; i++)
        most = max_i64(
            most, max_i64(quantized_bytes(s, kind, s->rows, widths[i]), quantized_bytes(s, kind, widths[i], s->rows)));
    return most;
}

Factor quantized_factor(Pass *pass, Factor x, int64_t rows, int64_t cols, FactorUse use, bool transposed, int with) {
    if (with == FACTOR_PLAIN || (x.kind != FACTOR_PLAIN && !transposed)) return x;
    bool plain = x.kind == FACTOR_PLAIN;
    Factor operand = quantized_at(pass->quantized[use], x.source, kind_(pass->shape->fp8, use),
                                  transposed ? cols : rows, transposed ? rows : cols);
    if (plain && x.scales != NULL) operand.scales = x.scales;
    // Without overlap, the weight gradient is computed before the input gradient.
    bool first = transposed == (use == FACTOR_GRADIENT && !pass->shape->overlap);
    if (plain && first) x.scales = NULL; // this call has to compute the scale
    pass->be->quantize(pass->be, operand, x, rows, cols, transposed);
    return operand;
}

// If the unit is a matrix of a layer, returns its first tensor, and in *rows the rows of all joined tensors; else
// returns NULL.
static Tensor *matrix_(const StageTensors *tensors, const Unit *unit, int64_t *rows) {
    Tensor *first = &tensors->tensors[unit->first];
    int role = first->spec->role;
    *rows = 0;
    if (!role_is_linear(role)) return NULL;
    for (int64_t i = 0; i < unit->tensors; i++) *rows += first[i].rows;
    return first;
}

int64_t tensors_quantized_layout(const StageTensors *tensors, char *base) {
    Layout layout = {base, 0};
    int kind = kind_(tensors->fp8, FACTOR_WEIGHT);
    for (int64_t u = 0; kind != FACTOR_PLAIN && u < tensors->unit_count; u++) {
        int64_t rows;
        Tensor *w = matrix_(tensors, &tensors->units[u], &rows);
        if (w == NULL) continue;
        w->factor[0] = lay_factor_(&layout, w->weight, rows, w->cols, kind);
        w->factor[1] = lay_factor_(&layout, w->weight, w->cols, rows, kind);
    }
    return layout.used;
}

void tensors_quantize(const StageTensors *tensors, Backend *be, int64_t begin, int64_t end) {
    for (int64_t u = 0; tensors->fp8 != FP8_OFF && u < tensors->unit_count; u++) {
        int64_t rows, first = tensors->units[u].first;
        if (first < begin || first >= end) continue;
        Tensor *w = matrix_(tensors, &tensors->units[u], &rows);
        for (int i = 0; w != NULL && i < 2; i++)
            be->quantize(be, w->factor[i], factor_plain(w->weight), rows, w->cols, i == 1);
    }
}

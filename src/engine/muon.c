// The products of a direction and the gathers around them (muon.h). Everything is an operation of backend.h.
//
// Constants and conventions are those of Jordan's and Moonlight's code, and of torch.optim.Muon: momentum as in AdamW's
// m (which differs from a plain sum by a factor that cancels), Nesterov, x = m / (|m| + 1e-7), and five times the same
// quintic. Megatron-LM's Emerging-Optimizers calls it `simple`; its default `quintic` has other numbers in each step.
// Products have operands in the run's precision and sums in fp32.
//
// Matrices that tensor ranks split are gathered and all of them compute the same direction: its products are small
// next to those of a step (5 (4 n^2 m + 2 n^3) FLOPs for n rows and m columns, against 6 n m per token), and
// distributing matrices over tensor ranks, too, would need a second exchange. Data ranks do not repeat each other's
// work: a matrix has a home (tensors.h).
#include "muon.h"
#include "backend/memory.h"
#include "base/alloc.h"
#include "base/units.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

enum { STEPS = 5 };
static const double A = 3.4445, B = -4.7750, C = 2.0315, TINY = 1e-7;

// One matrix of this rank: a tensor, or q, k or v of a tensor that holds all three.
typedef struct MuonMatrix {
    const Tensor *tensor;
    int64_t place; // index of its norm among all split matrices of the stage; -1: complete on this rank
} MuonMatrix;

struct Muon {
    Backend *be;
    Comm *tensor;
    char *work;
    double beta;
    int64_t count, places;
    MuonMatrix *matrices; // (count)
    AdamwTensor *parts;   // (count) this rank's part of each matrix
    double *own;          // (count) sums of squares of these parts
    double *squares;      // (places)
};

// --- the products

// Memory of one matrix: the matrix, a product of the same size, and two small square matrices. `wide` is the fp32
// square of a tall matrix, in the memory of y and b, which are unused then: (rows * cols + n * n) * 2 >= n * n * 4.
typedef struct MuonWork {
    void *x, *y, *b, *a;
    float *wide;
} MuonWork;

static int64_t work_layout_(MuonWork *work, void *base, int64_t rows, int64_t cols, int64_t element) {
    Layout layout = {base, 0};
    int64_t n = rows < cols ? rows : cols;
    work->x = layout_take(&layout, rows * cols * element);
    work->y = layout_take(&layout, rows * cols * element);
    work->b = layout_take(&layout, n * n * element);
    work->a = layout_take(&layout, n * n * element);
    work->wide = work->y;
    return layout.used;
}

int64_t orthogonalize_workspace(int64_t rows, int64_t cols, int64_t element) {
    MuonWork work;
    return work_layout_(&work, NULL, rows, cols, element);
}

// Each step: x = a x + (b s + c s s) x with s = x xT, on the shorter side of x. s is symmetric, so a product with its
// transpose is a product with itself.
void orthogonalize(Backend *be, void *work, int64_t rows, int64_t cols) {
    MuonWork w;
    work_layout_(&w, work, rows, cols, be->element);
    bool tall = rows > cols;
    int64_t n = tall ? cols : rows;
    Factor x = factor_plain(w.x), s = factor_plain(w.a), polynomial = factor_plain(w.b);
    for (int step = 0; step < STEPS; step++) {
        if (tall) {
            be->linear_backward_weight(be, w.wide, NULL, x, x, rows, n, n, false);
            be->from_float(be, w.a, w.wide, n * n);
        } else {
            be->linear_forward(be, w.a, NULL, x, x, NULL, n, cols, n, EPILOGUE_NONE);
        }
        be->linear_forward(be, w.b, NULL, s, s, NULL, n, n, n, EPILOGUE_NONE);
        be->combine(be, w.b, B, w.a, C, w.b, n * n);
        if (tall) be->linear_forward(be, w.y, NULL, x, polynomial, NULL, rows, n, n, EPILOGUE_NONE);
        else be->linear_backward_input(be, w.y, NULL, polynomial, x, n, cols, n, EPILOGUE_NONE);
        be->combine(be, w.x, A, w.x, 1.0, w.y, rows * cols);
    }
}

// --- the matrices of a stage

static int64_t matrix_rows_(const TensorSpec *spec) { return spec->rows / spec->parts; }

int64_t muon_workspace(const TensorTable *table, const TrainConfig *train) {
    int64_t element = train->precision == PRECISION_BF16 ? 2 : 4, most = 0;
    for (int64_t i = 0; train->optimizer == OPTIMIZER_MUON && i < table->count; i++) {
        // The layers between the first and the last are like one of these two.
        if (i == table->first_layer + table->per_layer) i = max_i64(i, table->head - table->per_layer);
        if (!table_is_layer_matrix(table, i)) continue;
        int64_t bytes = orthogonalize_workspace(matrix_rows_(&table->specs[i]), table->specs[i].cols, element);
        most = bytes > most ? bytes : most;
    }
    return most;
}

double muon_factor(const TrainConfig *train, const TensorSpec *spec) {
    return train->muon_scale * sqrt(fmax((double)matrix_rows_(spec), (double)spec->cols));
}

static bool has_home_(const StageTensors *tensors, const Tensor *tensor) {
    return tensors->units[tensor->unit].home >= 0;
}

int64_t muon_split_matrices(const StageTensors *tensors) {
    int64_t count = 0;
    for (const Tensor *t = tensors->tensors; t < tensors->tensors + tensors->count; t++)
        if (has_home_(tensors, t) && t->spec->split != SPLIT_NONE) count += t->spec->parts;
    return count;
}

static void add_tensor_(Muon *muon, const StageTensors *tensors, int64_t index) {
    const Tensor *tensor = &tensors->tensors[index];
    TensorPiece piece = tensors_piece(tensors, index);
    bool split = tensor->spec->split != SPLIT_NONE;
    int64_t parts = tensor->spec->parts, place = muon->places, count = tensor->count / parts;
    if (split) muon->places += parts;
    if (piece.begin >= piece.end) return;
    assert(piece.begin == 0 && piece.end == tensor->count); // this rank is the tensor's home
    for (int64_t p = 0; p < parts; p++) {
        muon->parts[muon->count] =
            (AdamwTensor){.m = piece.m + p * count, .gradient = piece.gradient + p * count, .count = count};
        muon->matrices[muon->count++] = (MuonMatrix){tensor, split ? place + p : -1};
    }
}

Muon *muon_create(const StageTensors *tensors, Backend *be, Comm *tensor, void *work, const TrainConfig *train) {
    int64_t most = 0;
    for (int64_t i = 0; i < tensors->count; i++) most += tensors->tensors[i].spec->parts;
    Muon *muon = xcalloc(1, sizeof *muon);
    *muon = (Muon){.be = be, .tensor = tensor, .work = work, .beta = train->muon_momentum};
    muon->matrices = xcalloc((size_t)most + 1, sizeof *muon->matrices);
    muon->parts = xcalloc((size_t)most + 1, sizeof *muon->parts);
    muon->squares = xcalloc((size_t)most + 1, sizeof *muon->squares);
    muon->own = xcalloc((size_t)most + 1, sizeof *muon->own);
    for (int64_t i = 0; i < tensors->count; i++)
        if (has_home_(tensors, &tensors->tensors[i])) add_tensor_(muon, tensors, i);
    return muon;
}

void muon_destroy(Muon *muon) {
    if (muon == NULL) return;
    free_all(muon->matrices, muon->parts, muon->squares, muon->own, muon);
}

// --- a step

// Replaces a matrix's gradient, which holds the momentum, by the direction. Multiplying by `factor` makes its norm 1.
// gathers: exchanges the parts of the tensor ranks. x holds the ranks' rows one after another; y gathers columns, one
// block per rank.
static int direct_(Muon *muon, int64_t index, double factor, bool gathers, Error *err) {
    Backend *be = muon->be;
    MuonWork work;
    const AdamwTensor *part = &muon->parts[index];
    const Tensor *tensor = muon->matrices[index].tensor;
    int64_t rows = matrix_rows_(tensor->spec), wide = tensor->spec->cols, narrow = tensor->cols;
    int64_t bytes = part->count * be->element;
    work_layout_(&work, muon->work, rows, wide, be->element);
    bool whole = muon->tensor == NULL || muon->matrices[index].place < 0;
    int ranks = whole ? 1 : muon->tensor->size, rank = whole ? 0 : muon->tensor->rank;
    bool columns = narrow < wide;
    char *x = work.x, *gathered = columns ? work.y : work.x, *own = gathered + rank * bytes;
    if (!gathers) be->zero(be, gathered, ranks * bytes); // zeros stand for the other ranks' parts
    be->from_float(be, own, part->gradient, part->count);
    be->combine(be, own, factor, own, 0.0, own, part->count);
    CommType type = be->element == 2 ? COMM_BF16 : COMM_FLOAT;
    if (gathers && ranks > 1 &&
        comm_collect_now(muon->tensor, COMM_ALL_GATHER, gathered, own, part->count, type, err) != 0)
        return -1;
    for (int r = 0; columns && r < ranks; r++)
        be->copy_columns(be, x + r * narrow * be->element, wide, gathered + r * bytes, narrow, false, rows, narrow);
    orthogonalize(be, muon->work, rows, wide);
    if (columns) be->copy_columns(be, own, narrow, x + rank * narrow * be->element, wide, false, rows, narrow);
    be->to_float(be, part->gradient, own, part->count);
    return 0;
}

int muon_directions(Muon *muon, double gradient_scale, Error *err) {
    muon->be->momentum(muon->be, muon->parts, muon->count, muon->beta, gradient_scale);

    // The squares of every split matrix are summed over the tensor ranks. Ranks of one home have the same matrices. The
    // entries of other homes stay 0, so the number of entries, and with it the workspace of the sum, is as planned.
    muon->be->squared_norms(muon->be, muon->own, muon->parts, muon->count);
    for (int64_t i = 0; i < muon->count; i++)
        if (muon->matrices[i].place >= 0) muon->squares[muon->matrices[i].place] = muon->own[i];
    if (muon->tensor != NULL && muon->places > 0 &&
        comm_collect_now(muon->tensor, COMM_ALL_REDUCE, muon->squares, muon->squares, muon->places, COMM_DOUBLE, err) !=
            0)
        return -1;
    for (int64_t i = 0; i < muon->count; i++) {
        int64_t place = muon->matrices[i].place;
        double squares = place < 0 ? muon->own[i] : muon->squares[place];
        if (direct_(muon, i, 1.0 / (sqrt(squares) + TINY), true, err) != 0) return -1;
    }
    return 0;
}

void muon_rehearse(Muon *muon) {
    muon->be->momentum(muon->be, muon->parts, muon->count, muon->beta, 1.0);
    for (int64_t i = 0; i < muon->count; i++) direct_(muon, i, 1.0, false, NULL);
}

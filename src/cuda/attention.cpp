// Attention in its three modes. `none` and `recompute` are matrix products around the softmax kernels. They process one
// sequence at a time, with its heads as a batch, so scratch does not grow with the micro-batch. `flash` is cuDNN's
// flash attention; a shape for which cuDNN has no plan is computed as in `recompute`.
//
// Row number = position * batch + sequence, so the rows of one sequence are `batch` rows of qkv apart. With grouped
// queries, the query heads of a key/value head are processed one after another. After each, the sums of dk and dv in
// dqkv are rounded to the precision of the run.
#include "backend/attention_scratch.h"
#include "internal.h"

#include <cassert>
#include <cmath>
#include <cstdio>

// Query head number `member` of every key/value head, in one sequence. A product of a part is kv_heads matrix products.
typedef struct HeadPart {
    CudaBackend *cuda;
    const AttentionShape *s;
    int64_t sequence, member;
} HeadPart;

static int64_t attention_group_(const AttentionShape *s) { return s->heads / s->kv_heads; }
static int64_t scores_(const AttentionShape *s) { return s->heads * s->seq * attention_keys(s); }

static char *at_(const HeadPart *part, const void *base, int64_t elements) {
    return (char *)base + elements * part->cuda->backend.element;
}

// The matrices of a part: (seq, head_dim), (keys, head_dim) or (seq, keys). row: stride from row to row, negative if
// the matrix is read transposed; matrix: stride from matrix to matrix.
typedef struct View {
    char *data;
    int64_t row, matrix;
    bool wide = false; // true: the matrices are fp32, and products are added to them
} View;

// Returns the matrices of heads in `rows` (`width` elements a row): the first at `head`, each other one `apart` heads
// after the previous one.
static View heads_(const HeadPart *part, const void *rows, int64_t width, int64_t head, int64_t apart) {
    const AttentionShape *s = part->s;
    return View{at_(part, rows, part->sequence * width + head * s->head_dim), s->batch * width, apart * s->head_dim};
}

static View query_(const HeadPart *part, const void *qkv) {
    return heads_(part, qkv, attention_qkv_width(part->s), part->member, attention_group_(part->s));
}

// Returns the keys, or the values if `value`: columns of qkv, or of the rows (k | v) of a range.
static View attention_key_(const HeadPart *part, const void *qkv, bool value) {
    const AttentionShape *s = part->s;
    int64_t head = value ? s->kv_heads : 0;
    if (s->keys != NULL) return heads_(part, s->keys, 2 * s->kv_heads * s->head_dim, head, 1);
    return heads_(part, qkv, attention_qkv_width(s), s->heads + head, 1);
}

static View key_gradient_(const HeadPart *part, void *dqkv, bool value) {
    View view = attention_key_(part, dqkv, value);
    const AttentionShape *s = part->s;
    if (s->keys == NULL) return view;
    int64_t elements = (view.data - (char *)s->keys) / part->cuda->backend.element;
    return View{(char *)(s->dkeys + elements), view.row, view.matrix, true};
}

static View output_(const HeadPart *part, const void *out) {
    return heads_(part, out, part->s->heads * part->s->head_dim, part->member, attention_group_(part->s));
}

// Returns the (seq, keys) matrices of a part, in the scores (heads, seq, keys) of its sequence.
static View square_(const HeadPart *part, const void *scores) {
    int64_t keys = attention_keys(part->s), each = part->s->seq * keys;
    return View{at_(part, scores, part->member * each), keys, attention_group_(part->s) * each};
}

static View turned_(View view) {
    view.row = -view.row;
    return view;
}

// Computes c (m, n) = a b for all matrices of a part; a view with a negative row stride is read transposed.
static void attention_multiply_(const HeadPart *part, View c, View a, View b, int64_t m, int64_t n, int64_t k,
                                bool accumulate) {
    CudaProduct p = {};
    p.m = m, p.n = n, p.k = k;
    p.a = a.data, p.lda = a.row < 0 ? -a.row : a.row, p.transpose_a = a.row < 0, p.stride_a = a.matrix;
    p.b = b.data, p.ldb = b.row < 0 ? -b.row : b.row, p.transpose_b = b.row < 0, p.stride_b = b.matrix;
    p.c = c.data, p.ldc = c.row, p.stride_c = c.matrix;
    p.batch = part->s->kv_heads, p.accumulate = accumulate || c.wide, p.wide = c.wide;
    cuda_product(part->cuda, &p);
}

// In full attention each row is passed as a matrix with a single row, at position seq - 1, which sees all columns.
static CudaScores scores_of_(const AttentionShape *s, int64_t sequence) {
    float scale = (float)(1.0 / std::sqrt((double)s->head_dim));
    if (s->full) return CudaScores{s->heads * s->seq, 1, (int)s->seq, s->seq - 1, scale, NULL, 0};
    const int32_t *places = s->places == NULL ? NULL : s->places + sequence;
    return CudaScores{s->heads, s->seq, (int)attention_keys(s), s->first, scale, places, s->batch};
}

// --- scratch: probabilities if they are not kept, their gradient, and fp32 workspace for the unfused softmax

typedef struct AttentionSpace {
    void *p, *dp;
    float *wide;
} AttentionSpace;

static int64_t workspace_(AttentionSpace *workspace, void *base, CudaBackend *cuda, const AttentionShape *s) {
    Layout layout = {(char *)base, 0};
    int64_t bytes = scores_(s) * cuda->backend.element;
    workspace->p = s->mode == ATTENTION_NONE ? NULL : layout_take(&layout, bytes);
    workspace->dp = layout_take(&layout, bytes);
    bool fused = attention_softmax_fuses(s, cuda->backend.element);
    workspace->wide = fused ? NULL : (float *)layout_take(&layout, scores_(s) * (int64_t)sizeof(float));
    return layout.used;
}

// Returns the probabilities of one sequence: kept in `saved`, or workspace.
static void *kept_(const CudaBackend *cuda, const AttentionShape *s, const void *saved, int64_t sequence,
                   const AttentionSpace *workspace) {
    return s->mode == ATTENTION_NONE ? (char *)saved + sequence * scores_(s) * cuda->backend.element : workspace->p;
}

// Computes the probabilities p (heads, seq, keys) of one sequence.
static void probabilities_(CudaBackend *cuda, const AttentionShape *s, int64_t sequence, void *p, float *wide,
                           const void *qkv) {
    for (int64_t member = 0; member < attention_group_(s); member++) {
        HeadPart part = {cuda, s, sequence, member};
        attention_multiply_(&part, square_(&part, p), query_(&part, qkv), turned_(attention_key_(&part, qkv, false)),
                            s->seq, attention_keys(s), s->head_dim, false);
    }
    CudaScores shape = scores_of_(s, sequence);
    cuda_softmax_forward(&cuda->backend, p, p, wide, &shape);
}

static void sequence_backward_(CudaBackend *cuda, const AttentionShape *s, int64_t sequence, void *dqkv, const void *p,
                               const AttentionSpace *workspace, const void *dout, const void *qkv) {
    int64_t keys = attention_keys(s);
    for (int64_t member = 0; member < attention_group_(s); member++) {
        HeadPart part = {cuda, s, sequence, member};
        attention_multiply_(&part, key_gradient_(&part, dqkv, true), turned_(square_(&part, p)), output_(&part, dout),
                            keys, s->head_dim, s->seq, member > 0);
        attention_multiply_(&part, square_(&part, workspace->dp), output_(&part, dout),
                            turned_(attention_key_(&part, qkv, true)), s->seq, keys, s->head_dim, false);
    }
    CudaScores shape = scores_of_(s, sequence);
    cuda_softmax_backward(&cuda->backend, workspace->dp, workspace->dp, p, workspace->wide, &shape);
    for (int64_t member = 0; member < attention_group_(s); member++) {
        HeadPart part = {cuda, s, sequence, member};
        View ds = square_(&part, workspace->dp);
        attention_multiply_(&part, query_(&part, dqkv), ds, attention_key_(&part, qkv, false), s->seq, s->head_dim,
                            keys, false);
        attention_multiply_(&part, key_gradient_(&part, dqkv, false), turned_(ds), query_(&part, qkv), keys,
                            s->head_dim, s->seq, member > 0);
    }
}

// --- flash

// Returns flash's bytes of workspace; -1: no plan. Sets backend->note once if the plan is missing or nondeterministic.
static int64_t flash_or_note_(CudaBackend *cuda, const AttentionShape *s) {
    char why[256] = "";
    Backend *be = &cuda->backend;
    int64_t workspace = cuda_flash_prepare(cuda, s, why);
    if (be->note[0] != '\0') return workspace;
    if (workspace < 0) snprintf(be->note, sizeof be->note, "attention.mode: flash falls back to recompute: %s", why);
    else if (!attention_flash_deterministic(s, be->capability))
        snprintf(be->note, sizeof be->note,
                 "attention.mode: flash is not deterministic%s: reruns differ in the last bits%s",
                 s->deterministic == DETERMINISTIC_OFF ? " (attention.deterministic: off)" : " by default on this GPU",
                 s->deterministic == DETERMINISTIC_OFF ? "" : "; set attention.deterministic to on to prevent that");
    else if (s->documents)
        snprintf(be->note, sizeof be->note,
                 "attention.mode: flash with document masks has not been checked against the CPU on any GPU yet; run "
                 "studies/first_gpu_day.sh");
    return workspace;
}

static bool flashes_(CudaBackend *cuda, const AttentionShape *s) {
    assert(s->places == NULL || s->documents);
    return s->mode == ATTENTION_FLASH && flash_or_note_(cuda, s) >= 0;
}

// Lays out scratch: a range's gradients of keys and values, documents, workspace.
static CudaFlashCall flash_call_(const AttentionShape *s, void *scratch) {
    CudaFlashCall call = {};
    call.dkeys = scratch;
    call.documents = (FlashDocuments *)((char *)scratch + attention_flash_gradients(s));
    call.workspace = (char *)scratch + attention_flash_beside(s);
    return call;
}

int64_t cuda_attention_scratch(Backend *be, const AttentionShape *shape) {
    CudaBackend *cuda = cuda_self(be);
    int64_t planned = attention_scratch_cuda(shape, be->element, be->capability);
    AttentionShape as = *shape;
    AttentionSpace workspace;
    int64_t needed = -1;
    if (shape->mode == ATTENTION_FLASH) needed = flash_or_note_(cuda, shape);
    if (needed >= 0) needed = memory_round(needed) + attention_flash_beside(shape);
    if (needed < 0) {
        if (shape->mode == ATTENTION_FLASH) as.mode = ATTENTION_RECOMPUTE;
        needed = workspace_(&workspace, NULL, cuda, &as);
    }
    return needed > planned ? memory_round(needed) : planned;
}

void cuda_attention_forward(Backend *be, void *out, void *saved, void *scratch, const void *qkv,
                            const AttentionShape *shape) {
    CudaBackend *cuda = cuda_self(be);
    if (flashes_(cuda, shape)) {
        CudaFlashCall call = flash_call_(shape, scratch);
        call.qkv = qkv, call.saved = (float *)saved, call.to = out;
        cuda_flash_forward(cuda, shape, &call);
        return;
    }
    AttentionSpace workspace;
    workspace_(&workspace, scratch, cuda, shape);
    for (int64_t i = 0; i < shape->batch; i++) {
        void *p = kept_(cuda, shape, saved, i, &workspace);
        probabilities_(cuda, shape, i, p, workspace.wide, qkv);
        for (int64_t member = 0; member < attention_group_(shape); member++) {
            HeadPart part = {cuda, shape, i, member};
            attention_multiply_(&part, output_(&part, out), square_(&part, p), attention_key_(&part, qkv, true),
                                shape->seq, shape->head_dim, attention_keys(shape), false);
        }
    }
}

void cuda_attention_backward(Backend *be, void *dqkv, void *scratch, const void *dout, const void *out,
                             const void *saved, const void *qkv, const AttentionShape *shape) {
    CudaBackend *cuda = cuda_self(be);
    if (flashes_(cuda, shape)) {
        CudaFlashCall call = flash_call_(shape, scratch);
        call.qkv = qkv, call.out = out, call.dout = dout;
        call.saved = (float *)const_cast<void *>(saved), call.to = dqkv;
        int64_t count = attention_range_count(shape);
        bool range = shape->keys != NULL;
        // the keys of earlier documents have no gradients
        if (range && shape->documents) be->zero(be, call.dkeys, count * be->element);
        cuda_flash_backward(cuda, shape, &call);
        if (range) cuda_accumulate_narrow(be, shape->dkeys, call.dkeys, count);
        // The work of documents depends on the data, but the choice of kernels must not: count them as no work.
        if (shape->documents) return;
        // seen: twice the mean number of keys that a query sees; five products, two of them with values
        int64_t keys = attention_keys(shape), seen = shape->full ? 2 * keys : shape->first + keys;
        double scores = (double)(shape->batch * shape->heads * shape->seq) * (double)seen;
        cuda_beside(cuda, scores * (double)(3 * shape->head_dim + 2 * attention_value_dim(shape)));
        return;
    }
    AttentionSpace workspace;
    workspace_(&workspace, scratch, cuda, shape);
    for (int64_t i = 0; i < shape->batch; i++) {
        void *p = kept_(cuda, shape, saved, i, &workspace);
        if (shape->mode != ATTENTION_NONE) probabilities_(cuda, shape, i, p, workspace.wide, qkv);
        sequence_backward_(cuda, shape, i, dqkv, p, &workspace, dout, qkv);
    }
}

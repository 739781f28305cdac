// Flash attention (Dao et al. 2022) for vector units. Everything is computed transposed, (keys, queries), with as many
// queries side by side as the matrix kernel has columns: maxima and sums over keys then run down the vectors without
// crossing lanes, and what one product leaves, scores or their gradients, already has the layout in which the next one
// reads a factor. Keys and values are packed once for all the queries that see them. Nothing of size seq * seq
// exists; scratch grows with seq * head_dim.
#include "attention.h"
#include "gemm.h"

// Queries of a block; keys of a chunk; blocks of a span.
enum { Q = GEMM_COLS, KEYS = 256, SPAN = 8 };

int64_t flash_spans(int64_t seq) {
    return (seq + SPAN * Q - 1) / (SPAN * Q);
}

typedef struct Block {
    int64_t first, count, keys; // keys: those that its last query sees
} Block;

static Block flash_block_at_(int64_t seq, int64_t first) {
    int64_t count = seq - first < Q ? seq - first : Q;
    return (Block){first, count, first + count};
}

static int64_t round_up_(int64_t n, int64_t unit) {
    return (n + unit - 1) / unit * unit;
}

// --- packed operands. Left factors in panels of GEMM_ROWS rows: "keys" forms have a panel for every few keys, "dims"
// forms are cut into chunks of KEYS keys, each with panels of dimensions.
typedef struct Packed {
    int64_t keys;
    float *k_keys;          // (seq, head_dim)
    float *v_dims;          // forward: (head_dim, chunk) per chunk
    float *k_dims, *v_keys; // backward
} Packed;

static int64_t keys_floats_(const AttentionShape *s) {
    return round_up_(s->seq, GEMM_ROWS) * s->head_dim;
}
static int64_t dims_floats_(const AttentionShape *s) {
    return round_up_(s->head_dim, GEMM_ROWS) * s->seq;
}

int64_t flash_scratch_floats(const AttentionShape *s) {
    return 2 * keys_floats_(s) + dims_floats_(s);
}

// The chunk at k0 of a "dims" form; a block may want fewer keys of it than were packed.
static GemmLeft dims_panels_(const Packed *packed, const float *form, int64_t k0, int64_t d) {
    return gemm_panels(form + k0 * round_up_(d, GEMM_ROWS), packed->keys - k0 < KEYS ? packed->keys - k0 : KEYS);
}

static void pack_dims_(float *to, const AttentionShape *s, int64_t keys, CpuOperand from) {
    const char *data = from.data;
    for (int64_t k0 = 0; k0 < keys; k0 += KEYS) {
        int64_t width = keys - k0 < KEYS ? keys - k0 : KEYS;
        from.data = data + k0 * from.stride * (from.bf16 ? 2 : 4);
        gemm_pack(to + k0 * round_up_(s->head_dim, GEMM_ROWS), GEMM_ROWS, s->head_dim, width, transposed(from));
    }
}

static Packed pack_forward_(const Head *h, float *scratch, const void *qkv, int64_t keys) {
    Packed packed = {.keys = keys, .k_keys = scratch, .v_dims = scratch + keys_floats_(h->shape)};
    gemm_pack(packed.k_keys, GEMM_ROWS, keys, h->shape->head_dim, head_key(h, qkv, 0));
    pack_dims_(packed.v_dims, h->shape, keys, head_value(h, qkv, 0));
    return packed;
}

static Packed pack_backward_(const Head *h, float *scratch, const void *qkv) {
    int64_t seq = h->shape->seq;
    Packed packed = {.keys = seq, .k_keys = scratch, .v_keys = scratch + keys_floats_(h->shape)};
    packed.k_dims = packed.v_keys + keys_floats_(h->shape);
    gemm_pack(packed.k_keys, GEMM_ROWS, seq, h->shape->head_dim, head_key(h, qkv, 0));
    gemm_pack(packed.v_keys, GEMM_ROWS, seq, h->shape->head_dim, head_value(h, qkv, 0));
    pack_dims_(packed.k_dims, h->shape, seq, head_key(h, qkv, 0));
    return packed;
}

// --- a thread's workspace for one block
typedef struct Workspace {
    float *scores, *slopes;  // (KEYS, Q)
    float *query, *dout;     // (head_dim, Q): right factors of scores and of their gradients
    float *query_t, *dout_t; // (Q, head_dim) packed as right factors of dk and dv
    float *sums;             // (head_dim, Q): out or dq, transposed
    float *rows;             // (Q, head_dim)
} Workspace;

int64_t flash_workspace_floats(const AttentionShape *s) {
    return 2 * KEYS * Q + 2 * s->head_dim * Q + 4 * round_up_(s->head_dim, GEMM_COLS) * Q;
}

static Workspace flash_workspace_take_(const Head *h) {
    int64_t tile = KEYS * Q, narrow = h->shape->head_dim * Q, wide = round_up_(h->shape->head_dim, GEMM_COLS) * Q;
    float *at = cpu_scratch(cpu_self((Backend *)h->backend), flash_workspace_floats(h->shape));
    Workspace workspace = {.scores = at, .slopes = at + tile};
    workspace.query = at + 2 * tile, workspace.dout = workspace.query + narrow;
    workspace.query_t = workspace.dout + narrow, workspace.dout_t = workspace.query_t + wide;
    workspace.sums = workspace.dout_t + wide, workspace.rows = workspace.sums + wide;
    return workspace;
}

// The block's transposed result becomes rows of what `to` views.
static void store_block_(const Head *h, const Workspace *workspace, const Block *block, CpuOperand to) {
    int64_t d = h->shape->head_dim;
    gemm_pack(workspace->rows, (int)d, d, block->count, floats(workspace->sums, Q));
    head_store(h, to, workspace->rows, block->count);
}

// --- products that leave out what the diagonal hides: of the keys from the block's first query on, every next STEP see
// STEP queries less.
enum { STEP = GEMM_ROWS > GEMM_LANES ? (int)GEMM_ROWS : (int)GEMM_LANES };
_Static_assert(Q % STEP == 0 && KEYS % STEP == 0, "what sees less starts with a panel");

// Keys [from, to) of the chunk, and the queries before which they see none.
typedef struct Part {
    int64_t from, to, hidden;
} Part;

static Part part_at_(const Block *block, int64_t k0, int64_t width, int64_t from) {
    int64_t hidden = k0 + from - block->first;
    if (hidden < 0) return (Part){from, width < from - hidden ? width : from - hidden, 0};
    return (Part){from, width < from + STEP ? width : from + STEP, hidden};
}

// x (width, Q) = keys (width, head_dim) times right (head_dim, Q); zero where it is left out.
static void keys_by_queries_(const Block *block, int64_t d, int64_t k0, int64_t width, const float *keys,
                             const float *right, float *x) {
    for (Part p = part_at_(block, k0, width, 0);; p = part_at_(block, k0, width, p.to)) {
        int64_t skip = p.hidden, n = Q - skip;
        GemmRight seen = {right + skip, (int)(n / GEMM_LANES), Q, 0};
        gemm_multiply(p.to - p.from, n, d, gemm_panels(keys + (k0 + p.from) * d, d), seen, false, x + p.from * Q + skip,
                      Q);
        for (int64_t k = p.from; skip > 0 && k < p.to; k++) memset(x + k * Q, 0, sizeof(float) * (size_t)skip);
        if (p.to == width) return;
    }
}

// to (width, head_dim) += x (width, Q) times the block's rows in right (Q, head_dim), packed.
static void add_queries_(const Block *block, int64_t d, int64_t k0, int64_t width, const float *x, GemmRight right,
                         float *to) {
    for (Part p = part_at_(block, k0, width, 0);; p = part_at_(block, k0, width, p.to)) {
        GemmRight seen = right;
        seen.data += p.hidden * right.step;
        gemm_multiply(p.to - p.from, d, block->count - p.hidden, gemm_rows(x + p.from * Q + p.hidden), seen, true,
                      to + (k0 + p.from) * d, d);
        if (p.to == width) return;
    }
}

// --- columns: query j of the block is in lane j

// Scores of keys that come after their query: never seen.
static void hide_later_keys_(float *scores, const Block *block, int64_t k0, int64_t width) {
    for (int64_t k = block->first - k0 > 0 ? block->first - k0 : 0; k < width; k++) {
        int64_t hidden = k0 + k - block->first < Q ? k0 + k - block->first : Q;
        for (int64_t j = 0; j < hidden; j++) scores[k * Q + j] = -INFINITY;
    }
}

static void column_max_(float *restrict most, const float *restrict x, int64_t keys) {
    for (int64_t k = 0; k < keys; k++)
        for (int j = 0; j < Q; j++) most[j] = x[k * Q + j] > most[j] ? x[k * Q + j] : most[j];
}

// x = exp(scale x - shift), total += x
static void column_exp_(float *restrict x, float *restrict total, const float *restrict shift, float scale,
                        int64_t keys) {
    for (int64_t k = 0; k < keys; k++)
        for (int j = 0; j < Q; j++) {
            float e = cpu_expf(cpu_fmaf(scale, x[k * Q + j], -shift[j]));
            x[k * Q + j] = e;
            total[j] += e;
        }
}

static void column_scale_(float *restrict x, const float *restrict factor, int64_t rows) {
    for (int64_t r = 0; r < rows; r++)
        for (int j = 0; j < Q; j++) x[r * Q + j] *= factor[j];
}

// ds = p (dp - delta) scale
static void column_slopes_(float *restrict ds, const float *restrict p, const float *restrict delta, float scale,
                           int64_t keys) {
    for (int64_t k = 0; k < keys; k++)
        for (int j = 0; j < Q; j++) ds[k * Q + j] = p[k * Q + j] * (ds[k * Q + j] - delta[j]) * scale;
}

// --- forward

typedef struct Softmax {
    float most[Q], total[Q], shift[Q], shrink[Q];
} Softmax;

// One chunk's scores become exponentials. What was summed before shrinks where the maximum has grown.
static void softmax_chunk_(Softmax *s, float *scores, int64_t width, float scale) {
    for (int j = 0; j < Q; j++) s->shrink[j] = s->most[j];
    column_max_(s->most, scores, width);
    for (int j = 0; j < Q; j++) {
        s->shrink[j] = cpu_expf(scale * (s->shrink[j] - s->most[j]));
        s->total[j] *= s->shrink[j];
        s->shift[j] = scale * s->most[j];
    }
    column_exp_(scores, s->total, s->shift, scale, width);
}

static void flash_block_forward_(const Head *h, const Workspace *workspace, const Packed *packed, void *out, float *lse,
                                 const void *qkv, const Block *block) {
    int64_t d = h->shape->head_dim;
    Softmax s = {.total = {0}};
    for (int j = 0; j < Q; j++) s.most[j] = -INFINITY;
    gemm_pack(workspace->query, Q, block->count, d, head_query(h, qkv, block->first));
    for (int64_t k0 = 0; k0 < block->keys; k0 += KEYS) {
        int64_t width = block->keys - k0 < KEYS ? block->keys - k0 : KEYS;
        keys_by_queries_(block, d, k0, width, packed->k_keys, workspace->query, workspace->scores);
        hide_later_keys_(workspace->scores, block, k0, width);
        softmax_chunk_(&s, workspace->scores, width, head_scale(h));
        if (k0 > 0) column_scale_(workspace->sums, s.shrink, d);
        gemm_multiply(d, Q, width, dims_panels_(packed, packed->v_dims, k0, d),
                      gemm_columns(workspace->scores, GEMM_VECTORS, width), k0 > 0, workspace->sums, Q);
    }
    for (int64_t j = 0; j < block->count; j++) lse[block->first + j] = s.shift[j] + logf(s.total[j]);
    for (int j = 0; j < Q; j++) s.shrink[j] = 1.0f / s.total[j];
    column_scale_(workspace->sums, s.shrink, d);
    store_block_(h, workspace, block, head_output(h, out, block->first));
}

void flash_forward(const Head *h, void *out, float *lse, float *scratch, const void *qkv, int64_t span) {
    int64_t first = span * SPAN * Q, end = first + SPAN * Q < h->shape->seq ? first + SPAN * Q : h->shape->seq;
    Workspace workspace = flash_workspace_take_(h);
    Packed packed = pack_forward_(h, scratch, qkv, end);
    for (; first < end; first += Q) {
        Block block = flash_block_at_(h->shape->seq, first);
        flash_block_forward_(h, &workspace, &packed, out, lse, qkv, &block);
    }
}

// --- backward

typedef struct BlockStatistics {
    float lse[Q], delta[Q], unused[Q];
} BlockStatistics;

// Packs the block's queries and output gradients. Lanes without a query compute zeros times something finite.
static BlockStatistics block_start_(const Head *h, const Workspace *workspace, const AttentionBackward *b,
                                    const Block *block) {
    BlockStatistics s = {.lse = {0}};
    int64_t d = h->shape->head_dim, n = block->count;
    int wide = gemm_vectors(d) * GEMM_LANES;
    CpuOperand query = head_query(h, b->qkv, block->first), dout = head_output(h, b->dout, block->first);
    gemm_pack(workspace->query, Q, n, d, query);
    gemm_pack(workspace->dout, Q, n, d, dout);
    gemm_pack(workspace->query_t, wide, d, n, transposed(query));
    gemm_pack(workspace->dout_t, wide, d, n, transposed(dout));
    head_delta(h, b, block->first, n, s.delta);
    memcpy(s.lse, (const float *)b->saved + head_index(h) * h->shape->seq + block->first, sizeof(float) * (size_t)n);
    return s;
}

static void flash_block_backward_(const Head *h, const Workspace *workspace, const Packed *packed,
                                  const AttentionBackward *b, const Block *block) {
    int64_t d = h->shape->head_dim;
    int vectors = gemm_vectors(d);
    BlockStatistics s = block_start_(h, workspace, b, block);
    for (int64_t k0 = 0; k0 < block->keys; k0 += KEYS) {
        int64_t width = block->keys - k0 < KEYS ? block->keys - k0 : KEYS;
        keys_by_queries_(block, d, k0, width, packed->k_keys, workspace->query, workspace->scores);
        hide_later_keys_(workspace->scores, block, k0, width);
        column_exp_(workspace->scores, s.unused, s.lse, head_scale(h), width);
        add_queries_(block, d, k0, width, workspace->scores, gemm_columns(workspace->dout_t, vectors, block->count),
                     b->dv);
        keys_by_queries_(block, d, k0, width, packed->v_keys, workspace->dout, workspace->slopes);
        column_slopes_(workspace->slopes, workspace->scores, s.delta, head_scale(h), width);
        add_queries_(block, d, k0, width, workspace->slopes, gemm_columns(workspace->query_t, vectors, block->count),
                     b->dk);
        gemm_multiply(d, Q, width, dims_panels_(packed, packed->k_dims, k0, d),
                      gemm_columns(workspace->slopes, GEMM_VECTORS, width), k0 > 0, workspace->sums, Q);
    }
    store_block_(h, workspace, block, head_query(h, b->dqkv, block->first));
}

void flash_backward(const Backend *backend, const AttentionShape *shape, const AttentionBackward *b, int64_t sequence,
                    int64_t kv_head) {
    int64_t group = shape->heads / shape->kv_heads;
    Head h = {backend, shape, sequence, kv_head * group};
    Packed packed = pack_backward_(&h, b->scratch, b->qkv);
    for (int64_t g = 0; g < group; g++, h.head++) {
        Workspace workspace = flash_workspace_take_(&h);
        for (int64_t first = 0; first < shape->seq; first += Q) {
            Block block = flash_block_at_(shape->seq, first);
            flash_block_backward_(&h, &workspace, &packed, b, &block);
        }
    }
}

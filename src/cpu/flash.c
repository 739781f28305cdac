// Flash attention (Dao et al. 2022) for vector units. Everything is computed transposed, (keys, queries), with one
// column of the matrix kernel per query of a block. So maxima and sums over keys stay within vector lanes, and the
// result of one product (scores or their gradients) already has the layout of a factor of the next product. Keys and
// values are packed once for all queries that see them. No array has seq * seq elements; scratch grows with
// seq * head_dim. Keys before the documents of a block's queries are skipped.
//
// The blocks of a group process a tile of keys together: the packed tile is read once from memory and then from the
// second-level cache. Each block still adds its tiles in order, so groups do not change the result.
#include "heads.h"
#include "gemm.h"

// Queries of a block; keys of a tile; blocks of a group.
enum { Q = GEMM_COLS, KEYS = 256, GROUP = 4 };

static int64_t groups_of_(int64_t seq) { return (seq + GROUP * Q - 1) / (GROUP * Q); }

// Returns the number of spans: few, because each packs the keys that it sees, but enough to keep all threads busy.
int64_t flash_spans(const AttentionShape *s, int threads) {
    int64_t heads = s->batch * s->heads, spans = heads % threads == 0 ? 1 : (8 * threads + heads - 1) / heads;
    return spans < groups_of_(s->seq) ? spans : groups_of_(s->seq);
}

static int64_t round_up_(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// --- packed operands. Left factors in panels of GEMM_ROWS rows: in "keys" forms a row is a key. "dims" forms are cut
// into tiles of KEYS keys, and in each tile a row is a dimension.
typedef struct Packed {
    int64_t keys;
    float *k_keys;          // (keys, head_dim)
    float *v_dims;          // forward: (head_dim, tile) per tile
    float *k_dims, *v_keys; // backward
} Packed;

static int64_t keys_floats_(const AttentionShape *s) { return round_up_(attention_keys(s), GEMM_ROWS) * s->head_dim; }

int64_t flash_scratch_floats(const AttentionShape *s) {
    return 2 * keys_floats_(s) + round_up_(s->head_dim, GEMM_ROWS) * attention_keys(s);
}

// Returns the tile at key k0 of `form`, a "dims" form, without the tile's first `skip` keys. A block may use fewer
// keys than the tile contains.
static GemmLeft dims_panels_(const Packed *packed, const float *form, int64_t k0, int64_t skip, int64_t d) {
    int64_t keys = packed->keys - k0 < KEYS ? packed->keys - k0 : KEYS;
    return gemm_panels(form + k0 * round_up_(d, GEMM_ROWS) + skip * GEMM_ROWS, keys);
}

static void pack_dims_(float *to, const AttentionShape *s, int64_t keys, CpuOperand from) {
    const char *data = from.data;
    for (int64_t k0 = 0; k0 < keys; k0 += KEYS) {
        int64_t width = keys - k0 < KEYS ? keys - k0 : KEYS;
        from.data = data + k0 * from.stride * (from.bf16 ? 2 : 4);
        gemm_pack(to + k0 * round_up_(s->head_dim, GEMM_ROWS), GEMM_ROWS, s->head_dim, width, transposed(from));
    }
}

// --- a thread's workspace for one group of blocks
typedef struct FlashBlock {
    int64_t first, count, begin,
        keys;                // begin, keys: first visible key, rounded down to STEP; end of the visible keys
    int64_t place, edge;     // place: key at the position of the block's first query; edge: place rounded up to STEP
    bool full;               // true: queries also see later keys
    float *query, *dout;     // (head_dim, Q): right factors of scores and of their gradients
    float *query_t, *dout_t; // (Q, head_dim) packed as right factors of dk and dv
    float *sums;             // (head_dim, Q): out or dq, transposed
    // One lane per query. Forward: running maximum, sum and shift of the exponentials; backward: shift and delta.
    float most[Q], total[Q], shift[Q], delta[Q];
    int32_t from[Q]; // the first key that each query sees
} FlashBlock;

typedef struct FlashGroup {
    FlashBlock block[GROUP];
    int blocks;
    int64_t begin, keys;    // start of the first block's first tile; end of the last block's visible keys
    float *scores, *slopes; // (KEYS, Q)
    float *rows;            // (Q, head_dim)
} FlashGroup;

static int64_t wide_floats_(const AttentionShape *s) { return round_up_(s->head_dim, GEMM_COLS) * Q; }

int64_t flash_workspace_floats(const AttentionShape *s) {
    return 2 * KEYS * Q + wide_floats_(s) + GROUP * (2 * s->head_dim * Q + 3 * wide_floats_(s));
}

// Keys and queries of a block are cut into parts of STEP.
enum { STEP = GEMM_ROWS > GEMM_LANES ? (int)GEMM_ROWS : (int)GEMM_LANES };
_Static_assert(Q % STEP == 0 && KEYS % STEP == 0, "every part of a block begins with a complete panel");

// Lays out the group of blocks that starts at query `first`, in this thread's scratch.
static FlashGroup group_at_(const Head *h, int64_t first) {
    int64_t seq = h->shape->seq, narrow = h->shape->head_dim * Q, wide = wide_floats_(h->shape);
    float *at = cpu_scratch(h->be, flash_workspace_floats(h->shape));
    FlashGroup group = {.scores = at, .slopes = at + KEYS * Q, .rows = at + 2 * KEYS * Q};
    at = group.rows + wide;
    for (; group.blocks < GROUP && first < seq; group.blocks++, first += Q) {
        FlashBlock *block = &group.block[group.blocks];
        block->first = first, block->count = seq - first < Q ? seq - first : Q;
        block->full = h->shape->full;
        block->place = h->shape->first + first, block->edge = round_up_(block->place, STEP);
        group.keys = block->keys = block->full ? seq : block->place + block->count;
        for (int64_t j = 0; j < Q; j++)
            block->from[j] = (int32_t)head_from(h, first + (j < block->count ? j : block->count - 1));
        block->begin = block->from[0] / STEP * STEP;
        block->query = at, block->dout = at + narrow, block->sums = at + 2 * narrow;
        block->query_t = block->sums + wide, block->dout_t = block->query_t + wide;
        at = block->dout_t + wide;
    }
    group.begin = group.block[0].begin / KEYS * KEYS;
    return group;
}

// Returns the end, counted from k0, of the keys that a block sees in the tile at k0; sets *skip to their start.
static int64_t tile_width_(const FlashBlock *block, int64_t k0, int64_t *skip) {
    int64_t left = block->keys - k0;
    *skip = block->begin > k0 ? block->begin - k0 : 0;
    return left < 0 || *skip >= KEYS ? 0 : left < KEYS ? left : KEYS;
}

// Stores the block's transposed result as rows of the view `to`.
static void store_block_(const Head *h, const FlashGroup *group, const FlashBlock *block, CpuOperand to) {
    int64_t d = h->shape->head_dim;
    gemm_pack(group->rows, (int)d, d, block->count, floats(block->sums, Q));
    head_store(h, to, group->rows, block->count);
}

// --- products of keys [skip, width) of a tile. Products that the diagonal hides are left out: from the block's edge
// on, every further STEP keys are visible to STEP fewer queries.

// Keys [from, to) of the tile. hidden: number of the block's first queries that see no key of this part.
typedef struct KeyRange {
    int64_t from, to, hidden;
} KeyRange;

static KeyRange part_at_(const FlashBlock *block, int64_t k0, int64_t width, int64_t from) {
    int64_t hidden = k0 + from - block->edge;
    if (block->full) return (KeyRange){from, width, 0};
    if (hidden < 0) return (KeyRange){from, width < from - hidden ? width : from - hidden, 0};
    return (KeyRange){from, width < from + STEP ? width : from + STEP, hidden};
}

// Sets x (width, Q) = keys (width, head_dim) times right (head_dim, Q); 0 for the hidden queries of each part.
static void keys_by_queries_(const FlashBlock *block, int64_t d, int64_t k0, int64_t skipped, int64_t width,
                             const float *keys, const float *right, float *x) {
    for (KeyRange p = part_at_(block, k0, width, skipped);; p = part_at_(block, k0, width, p.to)) {
        int64_t skip = p.hidden, n = Q - skip;
        GemmRight seen = {right + skip, (int)(n / GEMM_LANES), Q, 0};
        gemm_multiply(p.to - p.from, n, d, gemm_panels(keys + (k0 + p.from) * d, d), seen, false, x + p.from * Q + skip,
                      Q);
        for (int64_t k = p.from; skip > 0 && k < p.to; k++) memset(x + k * Q, 0, sizeof(float) * (size_t)skip);
        if (p.to == width) return;
    }
}

// Adds x (width, Q) times right (Q, head_dim), the block's packed rows, to `to` (width, head_dim).
static void add_queries_(const FlashBlock *block, int64_t d, int64_t k0, int64_t skipped, int64_t width, const float *x,
                         GemmRight right, float *to) {
    for (KeyRange p = part_at_(block, k0, width, skipped);; p = part_at_(block, k0, width, p.to)) {
        GemmRight seen = right;
        seen.data += p.hidden * right.step;
        gemm_multiply(p.to - p.from, d, block->count - p.hidden, gemm_rows(x + p.from * Q + p.hidden), seen, true,
                      to + (k0 + p.from) * d, d);
        if (p.to == width) return;
    }
}

// --- columns: query j of the block is in lane j

// Sets a score to -inf if its key is hidden from its query. Keys before the query's document are hidden, and keys after
// the query too unless attention is full.
static void hide_keys_(float *scores, const FlashBlock *block, int64_t k0, int64_t skip, int64_t width) {
    int64_t others = block->from[block->count - 1] - k0;
    for (int64_t k = skip; k < others && k < width; k++)
        for (int j = 0; j < Q; j++)
            if (k0 + k < block->from[j]) scores[k * Q + j] = -INFINITY;
    if (block->full) return;
    for (int64_t k = block->place - k0 > 0 ? block->place - k0 : 0; k < width; k++) {
        int64_t hidden = k0 + k - block->place < Q ? k0 + k - block->place : Q;
        for (int64_t j = 0; j < hidden; j++) scores[k * Q + j] = -INFINITY;
    }
}

// Sets x = 2^(scale x - shift) and adds it to total.
static void column_exp_(float *restrict x, float *restrict total, const float *restrict shift, float scale,
                        int64_t keys) {
    for (int64_t k = 0; k < keys; k++)
        for (int j = 0; j < Q; j++) {
            float e = cpu_exp2f(cpu_fmaf(scale, x[k * Q + j], -shift[j]));
            x[k * Q + j] = e;
            total[j] += e;
        }
}

static void column_scale_(float *restrict x, const float *restrict factor, int64_t rows) {
    for (int64_t r = 0; r < rows; r++)
        for (int j = 0; j < Q; j++) x[r * Q + j] *= factor[j];
}

// --- forward. Exponentials are computed as powers of two: the scale of the scores includes the factor log2(e).

static const float LOG2_E = 1.44269504f, LN_2 = 0.693147181f;

// Replaces one tile's scores with their exponentials. Earlier sums are scaled down where the maximum has grown.
static void softmax_tile_(FlashBlock *b, float *scores, int64_t width, float scale, int64_t d, bool first) {
    float shrink[Q], *restrict most = b->most;
    memcpy(shrink, most, sizeof shrink);
    for (int64_t k = 0; k < width; k++)
        for (int j = 0; j < Q; j++) most[j] = scores[k * Q + j] > most[j] ? scores[k * Q + j] : most[j];
    for (int j = 0; j < Q; j++) {
        shrink[j] = cpu_exp2f(scale * (shrink[j] - most[j]));
        b->total[j] *= shrink[j];
        b->shift[j] = scale * most[j];
    }
    bool grown = false;
    for (int j = 0; j < Q; j++) grown |= shrink[j] != 1.0f;
    if (grown && !first) column_scale_(b->sums, shrink, d);
    column_exp_(scores, b->total, b->shift, scale, width);
}

void flash_forward(const Head *h, void *out, float *lse, float *scratch, const void *qkv, int64_t span, int64_t spans) {
    int64_t seq = h->shape->seq, d = h->shape->head_dim, unit = GROUP * Q;
    int64_t first = span * groups_of_(seq) / spans * unit, end = (span + 1) * groups_of_(seq) / spans * unit;
    int64_t keys = h->shape->first + (end < seq && !h->shape->full ? end : seq);
    Packed packed = {.keys = keys, .k_keys = scratch, .v_dims = scratch + keys_floats_(h->shape)};
    gemm_pack(packed.k_keys, GEMM_ROWS, keys, d, head_key(h, qkv, 0));
    pack_dims_(packed.v_dims, h->shape, keys, head_value(h, qkv, 0));
    for (; first < end; first += unit) {
        FlashGroup group = group_at_(h, first);
        // The maximum starts below every score, but finite. A query may see no key of a tile; then all its scores are
        // -inf, and an infinite maximum subtracted from them would give NaN.
        for (FlashBlock *b = group.block; b < group.block + group.blocks; b++) {
            for (int j = 0; j < Q; j++) b->most[j] = -1e30f, b->total[j] = 0.0f;
            gemm_pack(b->query, Q, b->count, d, head_query(h, qkv, b->first));
        }
        for (int64_t k0 = group.begin; k0 < group.keys; k0 += KEYS)
            for (FlashBlock *b = group.block; b < group.block + group.blocks; b++) {
                int64_t skip, width = tile_width_(b, k0, &skip), seen = width - skip;
                float *scores = group.scores + skip * Q;
                if (width == 0) continue;
                keys_by_queries_(b, d, k0, skip, width, packed.k_keys, b->query, group.scores);
                hide_keys_(group.scores, b, k0, skip, width);
                softmax_tile_(b, scores, seen, head_scale(h) * LOG2_E, d, k0 <= b->begin);
                gemm_multiply(d, Q, seen, dims_panels_(&packed, packed.v_dims, k0, skip, d),
                              gemm_columns(scores, GEMM_VECTORS, seen), k0 > b->begin, b->sums, Q);
            }
        for (FlashBlock *b = group.block; b < group.block + group.blocks; b++) {
            float norm[Q];
            for (int64_t j = 0; j < b->count; j++) lse[b->first + j] = LN_2 * b->shift[j] + logf(b->total[j]);
            for (int j = 0; j < Q; j++) norm[j] = 1.0f / b->total[j];
            column_scale_(b->sums, norm, d);
            store_block_(h, &group, b, head_output(h, out, b->first));
        }
    }
}

// --- backward

static void backward_tile_(const Head *h, const FlashGroup *group, FlashBlock *block, const Packed *packed,
                           const AttentionBackward *b, int64_t k0) {
    int64_t d = h->shape->head_dim, skip, width = tile_width_(block, k0, &skip), seen = width - skip;
    int vectors = gemm_vectors(d);
    float scale = head_scale(h);
    if (width == 0) return;
    keys_by_queries_(block, d, k0, skip, width, packed->k_keys, block->query, group->scores);
    hide_keys_(group->scores, block, k0, skip, width);
    column_exp_(group->scores + skip * Q, block->total, block->shift, scale * LOG2_E, seen);
    add_queries_(block, d, k0, skip, width, group->scores, gemm_columns(block->dout_t, vectors, block->count), b->dv);
    keys_by_queries_(block, d, k0, skip, width, packed->v_keys, block->dout, group->slopes);
    { // ds = p (dp - delta) scale; ds holds dp before
        const float *restrict scores = group->scores + skip * Q, *restrict delta = block->delta;
        float *restrict slopes = group->slopes + skip * Q;
        for (int64_t k = 0; k < seen; k++)
            for (int j = 0; j < Q; j++) slopes[k * Q + j] = scores[k * Q + j] * (slopes[k * Q + j] - delta[j]) * scale;
    }
    add_queries_(block, d, k0, skip, width, group->slopes, gemm_columns(block->query_t, vectors, block->count), b->dk);
    gemm_multiply(d, Q, seen, dims_panels_(packed, packed->k_dims, k0, skip, d),
                  gemm_columns(group->slopes + skip * Q, GEMM_VECTORS, seen), k0 > block->begin, block->sums, Q);
}

void flash_backward(Head h, const AttentionBackward *b) {
    const AttentionShape *s = h.shape;
    int64_t keys = attention_keys(s), d = s->head_dim, end = h.head + s->heads / s->kv_heads;
    Packed packed = {.keys = keys, .k_keys = b->scratch, .v_keys = b->scratch + keys_floats_(s)};
    packed.k_dims = packed.v_keys + keys_floats_(s);
    int wide = gemm_vectors(d) * GEMM_LANES;
    gemm_pack(packed.k_keys, GEMM_ROWS, keys, d, head_key(&h, b->qkv, 0));
    gemm_pack(packed.v_keys, GEMM_ROWS, keys, d, head_value(&h, b->qkv, 0));
    pack_dims_(packed.k_dims, s, keys, head_key(&h, b->qkv, 0));
    for (; h.head < end; h.head++)
        for (int64_t first = 0; first < s->seq; first += GROUP * Q) {
            FlashGroup group = group_at_(&h, first);
            for (FlashBlock *block = group.block; block < group.block + group.blocks; block++) {
                // Pack the queries and output gradients. Lanes without a query are zero, so that their results stay
                // finite.
                int64_t n = block->count;
                CpuOperand query = head_query(&h, b->qkv, block->first), dout = head_output(&h, b->dout, block->first);
                const float *lse = (const float *)b->saved + head_index(&h) * s->seq + block->first;
                gemm_pack(block->query, Q, n, d, query);
                gemm_pack(block->dout, Q, n, d, dout);
                gemm_pack(block->query_t, wide, d, n, transposed(query));
                gemm_pack(block->dout_t, wide, d, n, transposed(dout));
                memset(block->delta, 0, sizeof block->delta);
                head_delta(&h, b, block->first, n, block->delta);
                for (int64_t j = 0; j < Q; j++) block->shift[j] = j < n ? LOG2_E * lse[j] : 0.0f;
            }
            for (int64_t k0 = group.begin; k0 < group.keys; k0 += KEYS)
                for (int i = 0; i < group.blocks; i++) backward_tile_(&h, &group, &group.block[i], &packed, b, k0);
            for (int i = 0; i < group.blocks; i++)
                store_block_(&h, &group, &group.block[i], head_query(&h, b->dqkv, group.block[i].first));
        }
}

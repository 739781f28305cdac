// Causal or full attention over strided views of qkv, in three modes that differ in what they keep for the backward:
//   none       the probabilities, (batch, heads, seq, keys)
//   recompute  nothing: probabilities are recomputed, a block of QUERIES rows at a time
//   flash      log-sum-exp of each row; see flash.c
// In all modes a block of queries reads only the keys from the start of its first query's document, rounded down, to
// the position of its last query. If attention is full, the block reads to the end of the sequence. In a range
// (AttentionShape), keys are counted from the start of the sequence, and queries from the start of the range.
//
// The forward is parallel over blocks of queries. The backward is parallel over (sequence, key/value head): one thread
// sums the dk and dv that a group of heads shares, in the order of heads and queries.
#include "heads.h"

enum { QUERIES = 64, KEYS = 256 };

// --- stored and recomputed probabilities

// A block of queries and the keys [from, keys) it sees. `from` is rounded down to a multiple of QUERIES, so that the
// start of a sum does not depend on how queries are cut.
typedef struct QueryBlock {
    int64_t first, count, from, keys;
} QueryBlock;

static QueryBlock attention_block_at_(const Head *h, int64_t index) {
    int64_t seq = h->shape->seq, first = index * QUERIES, count = seq - first < QUERIES ? seq - first : QUERIES;
    int64_t keys = h->shape->full ? seq : h->shape->first + first + count;
    return (QueryBlock){first, count, head_from(h, first) / QUERIES * QUERIES, keys};
}

static int64_t blocks_of_(int64_t seq) { return (seq + QUERIES - 1) / QUERIES; }

// A thread's own workspace, in one piece. p: kept bf16 probabilities as floats; slopes: gradients of the scores; sums:
// out or dq.
typedef struct ThreadSpace {
    float *gemm, *p, *slopes, *sums; // p, slopes: (QUERIES, KEYS); sums: (QUERIES, head_dim)
} ThreadSpace;

static int64_t stored_workspace_(const AttentionShape *s) {
    return CPU_GEMM_WORKSPACE + 2 * QUERIES * KEYS + QUERIES * s->head_dim;
}

int64_t cpu_attention_workspace(const AttentionShape *s) {
    return s->mode == ATTENTION_FLASH ? flash_workspace_floats(s) : stored_workspace_(s);
}

static ThreadSpace attention_workspace_take_(const Head *h) {
    float *gemm = cpu_scratch(h->be, stored_workspace_(h->shape)), *p = gemm + CPU_GEMM_WORKSPACE;
    return (ThreadSpace){gemm, p, p + QUERIES * KEYS, p + 2 * QUERIES * KEYS};
}

// Computes rows of probabilities, which are zero for hidden keys. Fills complete rows if the mode keeps probabilities,
// else only the columns of the block's keys.
static void block_probabilities_(const Head *h, const ThreadSpace *workspace, const void *qkv, const QueryBlock *block,
                                 float *p) {
    bool keep = h->shape->mode == ATTENTION_NONE;
    int64_t stride = attention_keys(h->shape), low = keep ? 0 : block->from, high = keep ? stride : block->keys;
    cpu_gemm(workspace->gemm, block->count, block->keys - block->from, h->shape->head_dim,
             head_query(h, qkv, block->first), transposed(head_key(h, qkv, block->from)), false, p + block->from,
             stride);
    for (int64_t r = 0; r < block->count; r++) {
        float *row = p + r * stride;
        int64_t query = block->first + r, from = head_from(h, query);
        int64_t end = h->shape->full ? stride : h->shape->first + query + 1, seen = end - from;
        float scale = head_scale(h), most = lanes_max(row + from, seen, -INFINITY);
        for (int64_t i = from; i < end; i++) row[i] = cpu_expf(scale * (row[i] - most));
        float factor = 1.0f / lanes_sum(row + from, seen);
        for (int64_t i = from; i < end; i++) row[i] *= factor;
        memset(row + low, 0, sizeof(float) * (size_t)(from - low));
        memset(row + end, 0, sizeof(float) * (size_t)(high - end));
    }
}

// Computes a block's output. Probabilities are written to `saved` if kept as floats, else to `rows` (QUERIES, keys).
static void attention_block_forward_(const Head *h, void *out, void *saved, float *rows, const void *qkv,
                                     const QueryBlock *block) {
    int64_t keys = attention_keys(h->shape), d = h->shape->head_dim, from = block->from;
    int64_t at = (head_index(h) * h->shape->seq + block->first) * keys;
    bool keep = h->shape->mode == ATTENTION_NONE;
    float *p = keep && !cpu_is_bf16(h->be) ? (float *)saved + at : rows;
    ThreadSpace workspace = attention_workspace_take_(h);
    block_probabilities_(h, &workspace, qkv, block, p);
    cpu_gemm(workspace.gemm, block->count, d, block->keys - from, floats(p + from, keys), head_value(h, qkv, from),
             false, workspace.sums, d);
    head_store(h, head_output(h, out, block->first), workspace.sums, block->count);
    if (keep) cpu_store(h->be, saved, at, p, block->count * keys);
}

static void attention_block_backward_(const Head *h, const ThreadSpace *workspace, const AttentionBackward *b,
                                      const QueryBlock *block) {
    int64_t d = h->shape->head_dim, n = block->count, keys = attention_keys(h->shape);
    float delta[QUERIES];
    CpuOperand q = head_query(h, b->qkv, block->first), dout = head_output(h, b->dout, block->first);
    CpuOperand ds = floats(workspace->slopes, KEYS);
    head_delta(h, b, block->first, n, delta);
    if (h->shape->mode == ATTENTION_RECOMPUTE) block_probabilities_(h, workspace, b->qkv, block, b->scratch);
    for (int64_t k0 = block->from; k0 < block->keys; k0 += KEYS) {
        int64_t width = block->keys - k0 < KEYS ? block->keys - k0 : KEYS;
        // p (n, width), recomputed or stored
        int64_t at = (head_index(h) * h->shape->seq + block->first) * keys + k0, stride = keys;
        const float *p = h->shape->mode == ATTENTION_RECOMPUTE ? b->scratch + k0 : (const float *)b->saved + at;
        if (h->shape->mode == ATTENTION_NONE && cpu_is_bf16(h->be)) {
            for (int64_t r = 0; r < n; r++) cpu_load(h->be, workspace->p + r * KEYS, b->saved, at + r * keys, width);
            p = workspace->p, stride = KEYS;
        }
        cpu_gemm(workspace->gemm, width, d, n, transposed(floats(p, stride)), dout, true, b->dv + k0 * d, d);
        cpu_gemm(workspace->gemm, n, width, d, dout, transposed(head_value(h, b->qkv, k0)), false, workspace->slopes,
                 KEYS);
        for (int64_t r = 0; r < n; r++) { // ds = p (dp - delta) scale; ds holds dp before
            float *restrict slopes = workspace->slopes + r * KEYS, scale = head_scale(h), less = delta[r];
            const float *restrict row = p + r * stride;
            for (int64_t i = 0; i < width; i++) slopes[i] = row[i] * (slopes[i] - less) * scale;
        }
        cpu_gemm(workspace->gemm, n, d, width, ds, head_key(h, b->qkv, k0), k0 > block->from, workspace->sums, d);
        cpu_gemm(workspace->gemm, width, d, n, transposed(ds), q, true, b->dk + k0 * d, d);
    }
    head_store(h, head_query(h, b->dqkv, block->first), workspace->sums, n);
}

// --- the operations. Scratch holds, per thread, probabilities or flash's packed operands, and the sums of dk and dv.

static int64_t form_floats_(const AttentionShape *s) {
    return memory_round(s->mode == ATTENTION_FLASH ? flash_scratch_floats(s) : QUERIES * attention_keys(s));
}

static int64_t thread_floats_(const AttentionShape *s) {
    return form_floats_(s) + memory_round(2 * attention_keys(s) * s->head_dim);
}

int64_t cpu_attention_scratch(Backend *be, const AttentionShape *shape) {
    return cpu_self(be)->threads * thread_floats_(shape) * (int64_t)sizeof(float);
}

void cpu_attention_forward(Backend *be, void *out, void *saved, void *scratch, const void *qkv,
                           const AttentionShape *shape) {
    CpuBackend *cpu = cpu_self(be);
    bool flash = shape->mode == ATTENTION_FLASH;
    int64_t parts = flash ? flash_spans(shape, cpu->threads) : blocks_of_(shape->seq);
    int64_t heads = shape->batch * shape->heads;
    CPU_PARALLEL_FOR_DYNAMIC(be)
    for (int64_t i = 0; i < heads * parts; i++) {
        Head h = {be, shape, i / parts / shape->heads, i / parts % shape->heads};
        float *mine = (float *)scratch + cpu_thread() * thread_floats_(shape);
        int64_t part = parts - 1 - i % parts; // the last part first: it sees the most keys
        QueryBlock block = attention_block_at_(&h, part);
        if (flash) flash_forward(&h, out, (float *)saved + head_index(&h) * shape->seq, mine, qkv, part, parts);
        else attention_block_forward_(&h, out, saved, mine, qkv, &block);
    }
}

// Writes one key/value head's dk and dv to dqkv or, for a range, adds them to shape->dkeys.
static void store_keys_(const Head *h, const AttentionBackward *b) {
    const AttentionShape *s = h->shape;
    int64_t width = 2 * s->kv_heads * s->head_dim, d = s->head_dim;
    for (int part = 0; part < 2; part++) {
        const float *sums = part == 0 ? b->dk : b->dv;
        if (s->keys == NULL) head_store(h, (part == 0 ? head_key : head_value)(h, b->dqkv, 0), sums, s->seq);
        for (int64_t key = 0; s->keys != NULL && key < attention_keys(s); key++) {
            float *to = s->dkeys + (key * s->batch + h->sequence) * width + (part * s->kv_heads + head_of_keys(h)) * d;
            for (int64_t i = 0; i < d; i++) to[i] += sums[key * d + i];
        }
    }
}

void cpu_attention_backward(Backend *be, void *dqkv, void *scratch, const void *dout, const void *out,
                            const void *saved, const void *qkv, const AttentionShape *shape) {
    int64_t sums = attention_keys(shape) * shape->head_dim, group = shape->heads / shape->kv_heads;
    CPU_PARALLEL_FOR_DYNAMIC(be)
    for (int64_t i = 0; i < shape->batch * shape->kv_heads; i++) {
        int64_t sequence = i / shape->kv_heads, kv_head = i % shape->kv_heads;
        AttentionBackward b = {.dqkv = dqkv, .dout = dout, .out = out, .saved = saved, .qkv = qkv};
        b.scratch = (float *)scratch + cpu_thread() * thread_floats_(shape);
        b.dk = b.scratch + form_floats_(shape), b.dv = b.dk + sums;
        memset(b.dk, 0, sizeof(float) * (size_t)(2 * sums));
        Head h = {be, shape, sequence, kv_head * group};
        if (shape->mode == ATTENTION_FLASH) flash_backward(h, &b);
        for (int64_t g = 0; g < group && shape->mode != ATTENTION_FLASH; g++) {
            Head query = {be, shape, sequence, kv_head * group + g};
            ThreadSpace workspace = attention_workspace_take_(&query);
            for (int64_t part = 0; part < blocks_of_(shape->seq); part++) {
                QueryBlock block = attention_block_at_(&query, part);
                attention_block_backward_(&query, &workspace, &b, &block);
            }
        }
        store_keys_(&h, &b);
    }
}

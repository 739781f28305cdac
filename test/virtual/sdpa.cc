// Causal attention for the fake cuDNN frontend, in double from bf16. It refuses the shapes that the heuristics of cuDNN
// 9.19 refuse when they are asked without a device: head sizes above 256 (128 except on Hopper, but 192 with values of
// 128 on Blackwell) or not a multiple of 8, query heads that are not a multiple of the key/value heads, types other
// than bf16. The workspace sizes were recorded from cuDNN in the
// same way (docs/cuda.md). With ragged offsets, a batch entry has its own length and begins at its own offset, both
// read from device memory when the attention runs; rows outside of entries are not touched.
#include "virtual.h"

#include <cmath>
#include <cudnn_frontend.h>

using namespace virtual_gpu;

struct VirtualCudnn {
    cudaStream_t stream;
};

namespace fe = cudnn_frontend;
using fe::graph::Attention;
using fe::graph::Graph;
using fe::graph::Tensor;

namespace {

struct View {
    char *data;
    int64_t batch, heads, seq, dim, stride[4];
    const int64_t *ragged;  // offset of each entry, or null
    const int32_t *lengths; // rows of each entry, or null: seq
    int64_t rows(int64_t b) const { return lengths == nullptr ? seq : lengths[b]; }
    int64_t place(int64_t b, int64_t h, int64_t s) const {
        return (ragged == nullptr ? b * stride[0] : ragged[b]) + h * stride[1] + s * stride[2];
    }
    float &statistic(int64_t b, int64_t h, int64_t s) const { return ((float *)data)[place(b, h, s)]; }
};

typedef std::unordered_map<int64_t, void *> Tensors;

void *memory_of(const Tensor &t, const Tensors &tensors) {
    auto found = tensors.find(t->uid);
    if (found == tensors.end()) defect("an attention is executed without its tensor %lld", (long long)t->uid);
    if ((uintptr_t)found->second % (uintptr_t)t->alignment != 0)
        defect("tensor %lld of an attention is at %p, which is not aligned to %lld bytes, as its description says",
               (long long)t->uid, found->second, (long long)t->alignment);
    return found->second;
}

// lengths: those of the tensor's entries, or null.
View view(const Tensor &t, const Tensor &lengths, const Tensors &tensors) {
    View v = {(char *)memory_of(t, tensors), t->dim[0], t->dim[1], t->dim[2], t->dim[3], {}, nullptr, nullptr};
    for (int i = 0; i < 4; i++) v.stride[i] = t->stride[(size_t)i];
    if (t->ragged != nullptr) v.ragged = (const int64_t *)memory_of(t->ragged, tensors);
    if (lengths != nullptr) v.lengths = (const int32_t *)memory_of(lengths, tensors);
    return v;
}

// Entries may not overlap, and their offsets grow: cuDNN's kernels may take an entry's end from the next offset.
void declare_entries(const Access &access, const View &v) {
    if (v.ragged == nullptr) return;
    touch(access, v.ragged, (v.batch + 1) * 8, false), touch(access, v.lengths, v.batch * 4, false);
    for (int64_t b = 0; b < v.batch; b++) {
        if (v.lengths[b] < 0 || v.lengths[b] > v.seq)
            defect("an attention of entries with at most %lld rows gets one of %d", (long long)v.seq, v.lengths[b]);
        if (v.ragged[b + 1] < v.ragged[b] + v.lengths[b] * v.stride[2])
            defect("entry %lld of an attention begins before the end of the one before it", (long long)b + 1);
    }
}

void declare(const Access &access, const View &v, int64_t width, bool writes) {
    declare_entries(access, v);
    for (int64_t b = 0; b < v.batch; b++)
        for (int64_t h = 0; h < v.heads && v.rows(b) > 0; h++)
            touch_rows(access, v.data + v.place(b, h, 0) * width, v.rows(b), v.dim * width, v.stride[2] * width,
                       writes);
}

// One head's matrix (seq, dim) in double.
std::vector<double> matrix(const View &v, int64_t b, int64_t h) {
    std::vector<double> made((size_t)(v.rows(b) * v.dim));
    for (int64_t s = 0; s < v.rows(b); s++)
        for (int64_t d = 0; d < v.dim; d++)
            made[(size_t)(s * v.dim + d)] = number_at(v.data, v.place(b, h, s) + d, CUDA_R_16BF);
    return made;
}

void store(const View &v, int64_t b, int64_t h, const std::vector<double> &from) {
    for (int64_t s = 0; s < v.rows(b); s++)
        for (int64_t d = 0; d < v.dim; d++)
            put_number(v.data, v.place(b, h, s) + d, CUDA_R_16BF, from[(size_t)(s * v.dim + d)]);
}

double inner(const double *x, const double *y, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += x[i] * y[i];
    return sum;
}

void add_scaled(double *to, double scale, const double *x, int64_t count) {
    for (int64_t i = 0; i < count; i++) to[i] += scale * x[i];
}

struct Inputs {
    Attention options;
    View q, k, v;
};

// One query head of a batch entry, with its keys and values.
struct Head {
    const Attention &options;
    int64_t b, h, seq, keys, dim, wide; // wide: dimensions of values and outputs
    std::vector<double> q, k, v;
    Head(const Inputs &in, int64_t entry, int64_t head)
        : options(in.options), b(entry), h(head), seq(in.q.rows(b)), keys(in.k.rows(b)), dim(in.q.dim), wide(in.v.dim),
          q(matrix(in.q, b, h)), k(matrix(in.k, b, h * in.k.heads / in.q.heads)),
          v(matrix(in.v, b, h * in.k.heads / in.q.heads)) {}
    // With `bottom_right` the last query sees the last key.
    int64_t end(int64_t i) const { return !options.causal ? keys : i + 1 + (options.bottom_right ? keys - seq : 0); }
    const double *query(int64_t i) const { return &q[(size_t)(i * dim)]; }
    const double *key(int64_t j) const { return &k[(size_t)(j * dim)]; }
    const double *value(int64_t j) const { return &v[(size_t)(j * wide)]; }
};

// Computes the softmax of one query row's scores in `p`. Returns their log-sum-exp.
double row(const Head &head, int64_t i, std::vector<double> &p) {
    double most = -INFINITY, total = 0;
    for (int64_t j = 0; j < head.end(i); j++) {
        p[(size_t)j] = inner(head.query(i), head.key(j), head.dim) * (double)head.options.scale;
        most = std::max(most, p[(size_t)j]);
    }
    for (int64_t j = 0; j < head.end(i); j++) total += exp(p[(size_t)j] - most);
    double lse = most + log(total);
    for (int64_t j = 0; j < head.end(i); j++) p[(size_t)j] = exp(p[(size_t)j] - lse);
    return lse;
}

void forward(const Inputs &in, const View &out, const View &stats) {
    for (int64_t b = 0; b < in.q.batch; b++)
        for (int64_t h = 0; h < in.q.heads; h++) {
            Head head(in, b, h);
            std::vector<double> p((size_t)head.keys), sums((size_t)(head.seq * head.wide));
            for (int64_t i = 0; i < head.seq; i++) {
                stats.statistic(b, h, i) = (float)row(head, i, p);
                for (int64_t j = 0; j < head.end(i); j++)
                    add_scaled(&sums[(size_t)(i * head.wide)], p[(size_t)j], head.value(j), head.wide);
            }
            store(out, b, h, sums);
        }
}

// Adds to dk (keys, dim) and dv (keys, wide) of one key and value head. Returns dq (rows, dim).
std::vector<double> backward_head(const Head &head, const std::vector<double> &out, const std::vector<double> &dout,
                                  const View &stats, std::vector<double> &dk, std::vector<double> &dv) {
    int64_t dim = head.dim, wide = head.wide;
    std::vector<double> p((size_t)head.keys), dq((size_t)(head.seq * dim));
    for (int64_t i = 0; i < head.seq; i++) {
        const double *slope = &dout[(size_t)(i * wide)];
        double lse = row(head, i, p), kept = stats.statistic(head.b, head.h, i);
        double delta = inner(&out[(size_t)(i * wide)], slope, wide);
        for (int64_t j = 0; j < head.end(i); j++) {
            // The statistics of the forward are used, as cuDNN uses them: wrong ones give wrong gradients.
            double probability = p[(size_t)j] * exp(lse - kept);
            double ds = probability * (inner(slope, head.value(j), wide) - delta) * (double)head.options.scale;
            add_scaled(&dv[(size_t)(j * wide)], probability, slope, wide);
            add_scaled(&dk[(size_t)(j * dim)], ds, head.query(i), dim);
            add_scaled(&dq[(size_t)(i * dim)], ds, head.key(j), dim);
        }
    }
    return dq;
}

// The query heads of a key and value head follow one another.
void backward(const Inputs &in, const View &out, const View &dout, const View &stats, const View to[3]) {
    int64_t group = in.q.heads / in.k.heads;
    std::vector<double> dk, dv;
    for (int64_t b = 0; b < in.q.batch; b++)
        for (int64_t h = 0; h < in.q.heads; h++) {
            Head head(in, b, h);
            if (h % group == 0) dk.assign(head.k.size(), 0), dv.assign(head.v.size(), 0);
            store(to[0], b, h, backward_head(head, matrix(out, b, h), matrix(dout, b, h), stats, dk, dv));
            if (h % group == group - 1) store(to[1], b, h / group, dk), store(to[2], b, h / group, dv);
        }
}

// Of each entry the triangle up to the last key, minus the earlier triangle. In a dry run, kernels of few blocks run
// when they are queued, so the lengths are in memory.
double seconds(const Inputs &in) {
    double sum = 0;
    int64_t entries = 0;
    for (int64_t b = 0; b < in.q.batch; b++) entries += in.q.rows(b) > 0 ? 1 : 0;
    for (int64_t b = 0; b < in.q.batch; b++) {
        int64_t before = in.k.rows(b) - in.q.rows(b);
        const Cost *cost = &dry_figures().cost;
        double heads = (double)(entries * in.q.heads), share = 1.0 / (double)entries;
        if (in.q.rows(b) == 0) continue;
        sum += share * cost_flash(cost, heads, in.k.rows(b), in.q.dim, in.v.dim, in.options.backward);
        if (before > 0) sum -= share * cost_flash(cost, heads, before, in.q.dim, in.v.dim, in.options.backward);
    }
    return sum;
}

int64_t padded(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

int64_t workspace(const Graph &graph) {
    const std::vector<int64_t> &q = graph.q->dim, &k = graph.k->dim;
    int64_t b = q[0], h = q[1], s = q[2], d = q[3], keys = k[2];
    if (!graph.options.backward)
        return graph.q->ragged == nullptr ? 0 : std::max<int64_t>(134, 2 * padded(b + 1, 2) + 2) * 128;
    int64_t table = graph.q->ragged == nullptr ? 0 : 128 * padded(b + 1, 2);
    int64_t sums = b * h * s * 4, grouped = k[1] == h ? 0 : 2 * b * h * keys * d * 2, wide = b * h * s * d * 4;
    bool same = graph.options.deterministic;
    int generation = dry_figures().capability;
    if (generation < 90 || generation >= 120)
        return sums + grouped + 128 +
               (same ? b * h * padded(s, 64) * padded(keys, 64) * 2 : wide + b * h * padded(s, 8) * d * 4);
    int64_t tables = 256 + (grouped > 0 ? 2 : 3) * table;
    if (generation < 100)
        return sums + grouped + tables + (same ? b * h * padded(s, 64) * padded(keys, 128) * 2 : wide);
    if (table > 0 && same) return sums + 384 + (grouped > 0 ? 2 * grouped + 5 * table : 7 * table);
    if (table > 0) return sums + grouped + wide + tables;
    if (same) return grouped > 0 ? sums + 2 * grouped + 128 : sums;
    if (s <= 128) return sums + grouped + 2 * wide + 128;
    return sums + grouped + wide + (grouped > 0 ? 128 : 0);
}

} // namespace

namespace cudnn_frontend {
namespace graph {

std::array<Tensor, 2> Graph::sdpa(Tensor q_, Tensor k_, Tensor v_, SDPA_attributes o) {
    q = q_, k = k_, v = v_, options = o;
    out = std::make_shared<Tensor_attributes>(), stats = std::make_shared<Tensor_attributes>();
    return {out, stats};
}

std::array<Tensor, 3> Graph::sdpa_backward(Tensor q_, Tensor k_, Tensor v_, Tensor out_, Tensor dout_, Tensor stats_,
                                           SDPA_backward_attributes o) {
    q = q_, k = k_, v = v_, out = out_, dout = dout_, stats = stats_, options = o;
    options.backward = true;
    dq = std::make_shared<Tensor_attributes>(), dk = std::make_shared<Tensor_attributes>();
    dv = std::make_shared<Tensor_attributes>();
    return {dq, dk, dv};
}

error_t Graph::validate() {
    if (io != DataType_t::BFLOAT16 || stats->type != DataType_t::FLOAT) return {"only bf16 with fp32 statistics"};
    if (!options.backward && !options.stats) return {"not the attention of this program"};
    for (const Tensor &t : {q, k, v, out, dout, dq, dk, dv})
        if (t != nullptr && (t->dim.size() != 4 || t->stride.size() != 4 || t->stride[3] != 1))
            return {"a tensor has no four dimensions, or its last is not contiguous"};
    int64_t dim = q->dim[3], wide = v->dim[3], generation = dry_figures().capability;
    bool latent = generation / 10 == 10 && dim == 192 && wide == 128;
    if (dim % 8 != 0 || wide % 8 != 0 || std::max(dim, wide) > (generation / 10 == 9 ? 256 : latent ? 192 : 128))
        return {"the heads' sizes should be multiples of 8, and have a limit"};
    if (q->dim[1] % k->dim[1] != 0) return {"query heads should be a multiple of key and value heads"};
    bool ragged = q->ragged != nullptr;
    for (const Tensor &t : {k, v, out, dout, dq, dk, dv, stats})
        if (t != nullptr && (t->ragged != nullptr) != ragged) return {"only some of the tensors are ragged"};
    if (ragged && !(options.padded && options.queries != nullptr && options.keys != nullptr))
        return {"Ragged offsets are only supported with padding mask."};
    if (ragged && options.backward && options.deterministic && (generation < 90 || generation >= 120))
        return {"Deterministic algorithm is not supported for bprop thd on SM8X and SM12X GPUs"};
    if (options.bottom_right && q->dim[2] > k->dim[2]) return {"a mask aligned to the last key has more queries"};
    if (!options.bottom_right && q->dim[2] != k->dim[2]) return {"a mask aligned to the first key hides the last ones"};
    if (built == 0) built = 1;
    return {};
}

error_t Graph::step(int from, int to) {
    if (built < from) return {"the steps of building a graph are out of order"};
    built = to;
    return {};
}

error_t Graph::get_workspace_size(int64_t &bytes) {
    bytes = workspace(*this);
    return step(5, 5);
}

error_t Graph::execute(cudnnHandle_t handle, std::unordered_map<int64_t, void *> &tensors, void *memory) {
    if (built < 5) return {"the graph is not built"};
    if (sticky() != cudaSuccess) return {"CUDNN_STATUS_EXECUTION_FAILED"};
    const Tensor &rows = options.queries, &keys = options.keys;
    Inputs in = {options, view(q, rows, tensors), view(k, keys, tensors), view(v, keys, tensors)};
    View o = view(out, rows, tensors), st = view(stats, rows, tensors);
    View slope = options.backward ? view(dout, rows, tensors) : o;
    std::array<View, 3> to = {o, o, o};
    if (options.backward) to = {view(dq, rows, tensors), view(dk, keys, tensors), view(dv, keys, tensors)};
    int64_t scratch = workspace(*this);
    if (scratch > 0) range(memory, scratch, "the workspace of an attention");
    load_once(text("attention of %lld heads of %lld, backward %d, entries of %lld, bottom right %d",
                   (long long)in.q.heads, (long long)in.q.dim, options.backward,
                   q->ragged == nullptr ? 0LL : (long long)in.q.seq, options.bottom_right),
              true);
    Op op;
    op.what = options.backward ? "the backward of an attention" : "an attention";
    op.dry.sharing = SHARING_SPREAD;
    if (dry()) op.dry.seconds = seconds(in);
    op.step = [=](const Access &access) {
        for (const View *input : {&in.q, &in.k, &in.v}) declare(access, *input, 2, false);
        if (scratch > 0) touch(access, memory, scratch, true);
        if (!in.options.backward) {
            declare(access, o, 2, true), declare(access, st, 4, true);
            forward(in, o, st);
            return OUTCOME_DONE;
        }
        declare(access, o, 2, false), declare(access, slope, 2, false), declare(access, st, 4, false);
        for (const View &output : to) declare(access, output, 2, true);
        backward(in, o, slope, st, to.data());
        return OUTCOME_DONE;
    };
    enqueue(handle->stream, std::move(op));
    return {};
}

} // namespace graph
} // namespace cudnn_frontend

size_t cudnnGetVersion(void) { return 91900; }

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle) {
    static uint64_t asked;
    if (fault_comes("cudnn", ++asked) || sticky() != cudaSuccess) return CUDNN_STATUS_NOT_INITIALIZED;
    *handle = new VirtualCudnn{nullptr};
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
    delete handle;
    return CUDNN_STATUS_SUCCESS;
}

const char *cudnnGetErrorString(cudnnStatus_t) { return "CUDNN_STATUS_NOT_INITIALIZED"; }

void cudnnGetLastErrorString(char *message, size_t size) { snprintf(message, size, "libcudnn_ops.so.9 is missing"); }

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

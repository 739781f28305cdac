// Flash attention by cuDNN, through its frontend: one forward and one backward graph for each shape, built once. This
// is the only file that needs the frontend's headers, which are C++ only. It calls nothing of libcuda itself, so the
// program starts without a driver.
//
// The statistics are the log-sum-exp of each row, as in operations.h. cuDNN's tensors are (batch, heads, seq,
// head_dim) with any strides; our rows are numbered position * batch + sequence.
#include "backend/attention_scratch.h"
#include "internal.h"

#include <cstdio>

#ifdef HAVE_CUDNN_FRONTEND
#include <cudnn_frontend.h>

#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <new>
#include <unordered_map>

namespace fe = cudnn_frontend;

typedef std::shared_ptr<fe::graph::Graph> CudnnGraph;
typedef std::shared_ptr<fe::graph::Tensor_attributes> CudnnTensor;
typedef std::array<int64_t, 9> AttentionKey;

enum Name { QUERY = 1, KEY, VALUE, OUT, STATS, DOUT, DQUERY, DKEY, DVALUE };

struct CudnnPlan {
    CudnnGraph forward, backward; // NULL: not built
    int64_t workspace;
    std::string why;
};

struct CudaFlash {
    cudnnHandle_t handle;
    std::map<AttentionKey, CudnnPlan> plans;
    std::string failure; // error message of the first graph that failed to run
};

int64_t cuda_flash_version(void) { return (int64_t)cudnnGetVersion(); }

void cuda_flash_destroy(CudaBackend *cuda) {
    if (cuda->flash == NULL) return;
    cuda->flash->plans.clear();
    cudnnDestroy(cuda->flash->handle);
    delete cuda->flash;
    cuda->flash = NULL;
}

static CudaFlash *flash_(CudaBackend *cuda) {
    if (cuda->flash != NULL) return cuda->flash;
    CudaFlash *flash = new (std::nothrow) CudaFlash();
    if (flash == NULL) return NULL;
    if (cudnnCreate(&flash->handle) != CUDNN_STATUS_SUCCESS) {
        delete flash;
        return NULL;
    }
    cuda->flash = flash;
    if (cudnnSetStream(flash->handle, cuda_compute(cuda)) == CUDNN_STATUS_SUCCESS) return flash;
    cuda_flash_destroy(cuda);
    return NULL;
}

// --- graphs

// Returns the width, in elements, of the rows that hold keys and values: of qkv, or of a range (k | v).
static int64_t keys_width_(const AttentionShape *s) {
    return attention_is_range(s) ? 2 * s->kv_heads * s->head_dim : attention_qkv_width(s);
}

static int64_t length_(const AttentionShape *s, int name) {
    bool keys = name == KEY || name == VALUE || name == DKEY || name == DVALUE;
    return keys ? attention_keys(s) : s->seq;
}

// Sets the mask: causal unless `full`. In a range the last query sees the last key.
template <typename Options> static void mask_(Options &options, const AttentionShape *s) {
    if (s->first > 0) options.set_causal_mask_bottom_right(true);
    else options.set_causal_mask(!s->full);
}

// Describes `heads` matrices (length, head_dim) of each of `batch` sequences, in rows of `width` elements.
static fe::graph::Tensor_attributes rows_(const AttentionShape *s, int64_t batch, int name, int64_t heads,
                                          int64_t width) {
    return fe::graph::Tensor_attributes()
        .set_uid(name)
        .set_dim({batch, heads, length_(s, name), s->head_dim})
        .set_stride({width, s->head_dim, s->batch * width, 1});
}

static fe::graph::Tensor_attributes stats_(const AttentionShape *s, const AttentionShape *part) {
    return fe::graph::Tensor_attributes()
        .set_uid(STATS)
        .set_dim({part->batch, part->heads, s->seq, 1})
        .set_stride({s->heads * s->seq, s->seq, 1, 1})
        .set_data_type(fe::DataType_t::FLOAT);
}

static void as_rows_(const CudnnTensor &tensor, const AttentionShape *s, int64_t batch, int name, int64_t heads,
                     int64_t width) {
    tensor->set_output(true)
        .set_uid(name)
        .set_dim({batch, heads, length_(s, name), s->head_dim})
        .set_stride({width, s->head_dim, s->batch * width, 1});
}

static CudnnGraph graph_() {
    CudnnGraph graph = std::make_shared<fe::graph::Graph>();
    graph->set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    return graph;
}

static float scale_(const AttentionShape *s) { return (float)(1.0 / std::sqrt((double)s->head_dim)); }

static CudnnGraph describe_forward_(const AttentionShape *s) {
    CudnnGraph graph = graph_();
    CudnnTensor q = graph->tensor(rows_(s, s->batch, QUERY, s->heads, attention_qkv_width(s)));
    CudnnTensor k = graph->tensor(rows_(s, s->batch, KEY, s->kv_heads, keys_width_(s)));
    CudnnTensor v = graph->tensor(rows_(s, s->batch, VALUE, s->kv_heads, keys_width_(s)));
    auto options = fe::graph::SDPA_attributes().set_name("flash").set_generate_stats(true);
    options.set_attn_scale(scale_(s));
    mask_(options, s);
    auto [out, stats] = graph->sdpa(q, k, v, options);
    as_rows_(out, s, s->batch, OUT, s->heads, s->heads * s->head_dim);
    stats->set_output(true).set_uid(STATS).set_data_type(fe::DataType_t::FLOAT);
    stats->set_dim({s->batch, s->heads, s->seq, 1}).set_stride({s->heads * s->seq, s->seq, 1, 1});
    return graph;
}

// Describes the backward of a part of `s`: fewer sequences or heads in the same rows.
static CudnnGraph describe_backward_(const AttentionShape *s, const AttentionShape *part, bool deterministic) {
    CudnnGraph graph = graph_();
    int64_t width = attention_qkv_width(s), keys_width = keys_width_(s), out_width = s->heads * s->head_dim;
    CudnnTensor q = graph->tensor(rows_(s, part->batch, QUERY, part->heads, width));
    CudnnTensor k = graph->tensor(rows_(s, part->batch, KEY, part->kv_heads, keys_width));
    CudnnTensor v = graph->tensor(rows_(s, part->batch, VALUE, part->kv_heads, keys_width));
    CudnnTensor out = graph->tensor(rows_(s, part->batch, OUT, part->heads, out_width));
    CudnnTensor dout = graph->tensor(rows_(s, part->batch, DOUT, part->heads, out_width));
    CudnnTensor stats = graph->tensor(stats_(s, part));
    auto options = fe::graph::SDPA_backward_attributes().set_name("flash_backward");
    options.set_attn_scale(scale_(s)).set_deterministic_algorithm(deterministic);
    mask_(options, s);
    auto [dq, dk, dv] = graph->sdpa_backward(q, k, v, out, dout, stats, options);
    as_rows_(dq, s, part->batch, DQUERY, part->heads, width);
    as_rows_(dk, s, part->batch, DKEY, part->kv_heads, keys_width);
    as_rows_(dv, s, part->batch, DVALUE, part->kv_heads, keys_width);
    return graph;
}

// Builds the plan that cuDNN ranks first, and raises *workspace to the plan's bytes. Returns "", or why it failed.
static std::string build_(const CudnnGraph &graph, cudnnHandle_t handle, int64_t *workspace) {
    fe::error_t status = graph->validate();
    if (status.is_good()) status = graph->build_operation_graph(handle);
    if (status.is_good()) status = graph->create_execution_plans({fe::HeurMode_t::A});
    if (status.is_good()) status = graph->check_support(handle);
    if (status.is_good()) status = graph->build_plans(handle);
    int64_t bytes = 0;
    if (status.is_good()) status = graph->get_workspace_size(bytes);
    if (bytes > *workspace) *workspace = bytes;
    return status.is_good() ? std::string() : "cuDNN: " + status.get_message();
}

static CudnnPlan cudnn_make_plan_(CudaBackend *cuda, CudaFlash *flash, const AttentionShape *s) {
    CudnnPlan plan = {};
    if (!cuda_is_bf16(&cuda->backend)) {
        plan.why = "train.precision is fp32, and cuDNN's flash attention supports only bf16";
        return plan;
    }
    int capability = cuda->backend.capability;
    AttentionShape part = attention_flash_part(s, capability);
    CudnnGraph forward = describe_forward_(s),
               backward = describe_backward_(s, &part, attention_flash_deterministic(s, capability));
    plan.why = build_(forward, flash->handle, &plan.workspace);
    if (plan.why.empty()) plan.why = build_(backward, flash->handle, &plan.workspace);
    if (plan.why.empty()) plan.forward = forward, plan.backward = backward;
    return plan;
}

static CudnnPlan *plan_(CudaBackend *cuda, CudaFlash *flash, const AttentionShape *s) {
    AttentionKey key = {s->batch,        s->seq,  s->heads, s->kv_heads,
                        s->head_dim,     s->full, s->first, attention_is_range(s),
                        s->deterministic};
    auto known = flash->plans.find(key);
    if (known == flash->plans.end()) known = flash->plans.emplace(key, cudnn_make_plan_(cuda, flash, s)).first;
    return &known->second;
}

int64_t cuda_flash_prepare(CudaBackend *cuda, const AttentionShape *shape, char why[256]) {
    CudaFlash *flash = flash_(cuda);
    if (flash == NULL) {
        snprintf(why, 256, "cannot create a cuDNN handle");
        return -1;
    }
    CudnnPlan *plan = plan_(cuda, flash, shape);
    if (plan->forward != NULL) return plan->workspace;
    snprintf(why, 256, "%.255s", plan->why.c_str());
    return -1;
}

// --- running

// Returns a head's address. `head` counts over all rows: a row has the heads of q | k | v, of k | v, or of the output.
static void *cudnn_part_(const CudaBackend *cuda, const void *rows, int64_t head, const AttentionShape *s) {
    return (char *)rows + head * s->head_dim * cuda->backend.element;
}

static void execute_(CudaBackend *cuda, const CudnnGraph &graph, std::unordered_map<int64_t, void *> &tensors,
                     void *workspace, const char *what) {
    fe::error_t status = graph->execute(cuda->flash->handle, tensors, workspace);
    if (status.is_good() || cuda->failed_at != NULL) return;
    cuda->flash->failure = std::string(what) + " failed: " + status.get_message();
    cuda_refuse(cuda, cuda->flash->failure.c_str());
}

void cuda_flash_forward(CudaBackend *cuda, const AttentionShape *s, const CudaFlashCall *call) {
    bool range = s->keys != NULL;
    const void *keys = range ? s->keys : call->qkv;
    int64_t key = range ? 0 : s->heads;
    std::unordered_map<int64_t, void *> tensors = {
        {QUERY, cudnn_part_(cuda, call->qkv, 0, s)},
        {KEY, cudnn_part_(cuda, keys, key, s)},
        {VALUE, cudnn_part_(cuda, keys, key + s->kv_heads, s)},
        {OUT, call->to},
        {STATS, call->saved},
    };
    execute_(cuda, plan_(cuda, cuda->flash, s)->forward, tensors, call->workspace, "cuDNN's attention");
}

// Runs the backward of one part, which begins at the given sequence, query head and key head.
static void backward_from_(CudaBackend *cuda, const AttentionShape *s, const CudaFlashCall *call, int64_t sequence,
                           int64_t head, int64_t kv_head) {
    bool range = s->keys != NULL;
    const void *keys = range ? s->keys : call->qkv;
    void *dkeys = range ? call->dkeys : call->to;
    int64_t row = s->heads + 2 * s->kv_heads, query = sequence * row + head, out = sequence * s->heads + head;
    int64_t key = range ? sequence * 2 * s->kv_heads + kv_head : sequence * row + s->heads + kv_head;
    std::unordered_map<int64_t, void *> tensors = {
        {QUERY, cudnn_part_(cuda, call->qkv, query, s)},
        {KEY, cudnn_part_(cuda, keys, key, s)},
        {VALUE, cudnn_part_(cuda, keys, key + s->kv_heads, s)},
        {OUT, cudnn_part_(cuda, call->out, out, s)},
        {DOUT, cudnn_part_(cuda, call->dout, out, s)},
        {STATS, call->saved + out * s->seq},
        {DQUERY, cudnn_part_(cuda, call->to, query, s)},
        {DKEY, cudnn_part_(cuda, dkeys, key, s)},
        {DVALUE, cudnn_part_(cuda, dkeys, key + s->kv_heads, s)},
    };
    execute_(cuda, plan_(cuda, cuda->flash, s)->backward, tensors, call->workspace,
             "the backward of cuDNN's attention");
}

void cuda_flash_backward(CudaBackend *cuda, const AttentionShape *s, const CudaFlashCall *call) {
    AttentionShape part = attention_flash_part(s, cuda->backend.capability);
    for (int64_t sequence = 0; sequence < s->batch; sequence += part.batch)
        for (int64_t kv_head = 0; kv_head < s->kv_heads; kv_head += part.kv_heads)
            backward_from_(cuda, s, call, sequence, kv_head * (s->heads / s->kv_heads), kv_head);
}

#else // without the frontend there are no plans: forward and backward are never called

int64_t cuda_flash_prepare(CudaBackend *, const AttentionShape *, char why[256]) {
    snprintf(why, 256, "this program was built without cuDNN's frontend headers (scripts/install_deps.sh)");
    return -1;
}
void cuda_flash_forward(CudaBackend *, const AttentionShape *, const CudaFlashCall *) {}
void cuda_flash_backward(CudaBackend *, const AttentionShape *, const CudaFlashCall *) {}
void cuda_flash_destroy(CudaBackend *) {}
int64_t cuda_flash_version(void) { return 0; }

#endif

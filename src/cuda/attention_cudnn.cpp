// Flash attention by cuDNN, through its frontend: one forward and one backward graph for each shape, and with documents
// for each kind of call (attention_flash_kind), built once. This is the only file that needs the frontend's headers,
// which are C++ only. It calls nothing of libcuda itself, so the program starts without a driver.
//
// The statistics are the log-sum-exp of each row, as in operations.h. cuDNN's tensors are (batch, heads, seq,
// head_dim) with any strides; our rows are numbered position * batch + sequence. Documents are cuDNN's batch entries:
// each begins at an offset of its own (cuDNN's ragged offsets) and has a length of its own (its padding mask), and rows
// outside of documents are not touched. A call has documents of one sequence, in their order, so that offsets grow.
#include "backend/attention_scratch.h"
#include "internal.h"

#include <cstdio>
#include <cstring>

#ifdef HAVE_CUDNN_FRONTEND
#include <cudnn_frontend.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

namespace fe = cudnn_frontend;

typedef std::shared_ptr<fe::graph::Graph> CudnnGraph;
typedef std::shared_ptr<fe::graph::Tensor_attributes> CudnnTensor;
typedef std::array<int64_t, 14> AttentionKey;
typedef std::unordered_map<int64_t, void *> Tensors; // by Name

enum Name { QUERY = 1, KEY, VALUE, OUT, STATS, DOUT, DQUERY, DKEY, DVALUE, QUERIES, KEYS, BEGIN };

struct CudnnPlan {
    CudnnGraph forward, backward; // NULL: not built
    int64_t workspace;
    std::string why;
};

struct CudaFlash {
    cudnnHandle_t handle;
    std::map<AttentionKey, CudnnPlan> plans;
    std::string failure; // error message of the first graph that failed to run, or of the start
};

int64_t cuda_flash_version(void) { return (int64_t)cudnnGetVersion(); }

void cuda_flash_destroy(CudaBackend *cuda) {
    if (cuda->flash == NULL) return;
    cuda->flash->plans.clear();
    if (cuda->flash->handle != NULL) cudnnDestroy(cuda->flash->handle);
    delete cuda->flash;
    cuda->flash = NULL;
}

// Starts cuDNN once; a start takes too long to try it again in every layer. On failure `handle` is NULL.
static CudaFlash *flash_(CudaBackend *cuda) {
    if (cuda->flash != NULL) return cuda->flash;
    CudaFlash *flash = cuda->flash = new CudaFlash();
    char more[160] = "";
    cudnnStatus_t status = cudnnCreate(&flash->handle);
    if (status == CUDNN_STATUS_SUCCESS) status = cudnnSetStream(flash->handle, cuda_compute(cuda));
    if (status == CUDNN_STATUS_SUCCESS) return flash;
    cudnnGetLastErrorString(more, sizeof more);
    more[strcspn(more, "\n")] = '\0';
    flash->failure = std::string("cannot create a cuDNN handle: ") + cudnnGetErrorString(status) + " " + more;
    if (flash->handle != NULL) cudnnDestroy(flash->handle);
    flash->handle = NULL;
    return flash;
}

// --- graphs

// Returns the width, in elements, of the rows that hold keys and values: of qkv, or of a range (k | v).
static int64_t keys_width_(const AttentionShape *s) {
    return attention_is_range(s) ? 2 * s->kv_heads * s->head_dim : attention_qkv_width(s);
}

// A graph of the calls of `kind`, in the rows of `s`. documents: begins and lengths, NULL without documents.
typedef struct Call {
    const AttentionShape *s, *kind;
    CudnnGraph graph;
    CudnnTensor begin[FLASH_ROW_KINDS], queries, keys;
} Call;

static CudnnTensor integers_(const CudnnGraph &graph, int name, int64_t count, fe::DataType_t type) {
    auto attributes = fe::graph::Tensor_attributes().set_uid(name).set_data_type(type);
    return graph->tensor(attributes.set_dim({count, 1, 1, 1}).set_stride({1, 1, 1, 1}));
}

static Call call_(const AttentionShape *s, const AttentionShape *kind) {
    Call call = {s, kind, std::make_shared<fe::graph::Graph>(), {}, nullptr, nullptr};
    call.graph->set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    if (!s->documents) return call;
    call.queries = integers_(call.graph, QUERIES, kind->batch, fe::DataType_t::INT32);
    call.keys = integers_(call.graph, KEYS, kind->batch, fe::DataType_t::INT32);
    for (int i = 0; i < FLASH_ROW_KINDS; i++)
        call.begin[i] = integers_(call.graph, BEGIN + i, kind->batch + 1, fe::DataType_t::INT64);
    return call;
}

// Sets scale and mask: causal unless `full`. In a range, and in a document that begins before it, the last query sees
// the last key.
template <typename Options> static void options_(Options &options, const Call &call) {
    options.set_attn_scale((float)(1.0 / std::sqrt((double)call.s->head_dim)));
    if (call.kind->first > 0) options.set_causal_mask_bottom_right(true);
    else options.set_causal_mask(!call.s->full);
    if (call.queries != nullptr) options.set_padding_mask(true).set_seq_len_q(call.queries).set_seq_len_kv(call.keys);
}

// Describes a tensor: `heads` matrices (length, head_dim) of each sequence or document, in rows of q | k | v, of k | v,
// or of outputs. Leaves out the zeros of values and outputs: Blackwell supports heads of 192 only with values of 128.
static void describe_(fe::graph::Tensor_attributes &tensor, const Call &call, int name, int64_t heads) {
    bool keys = name == KEY || name == VALUE || name == DKEY || name == DVALUE;
    bool queries = name == QUERY || name == DQUERY;
    int64_t length = keys ? attention_keys(call.kind) : call.kind->seq;
    int64_t width = keys      ? keys_width_(call.s)
                    : queries ? attention_qkv_width(call.s)
                              : call.s->heads * call.s->head_dim;
    bool values = name == VALUE || name == DVALUE || name == OUT || name == DOUT;
    int64_t dim = values ? attention_value_dim(call.s) : call.s->head_dim;
    tensor.set_uid(name).set_dim({call.kind->batch, heads, length, dim});
    tensor.set_stride({width, call.s->head_dim, call.s->batch * width, 1});
    if (call.queries != nullptr)
        tensor.set_ragged_offset(call.begin[keys ? FLASH_KEYS : queries ? FLASH_QUERIES : FLASH_OUTPUTS]);
}

static CudnnTensor input_(const Call &call, int name, int64_t heads) {
    fe::graph::Tensor_attributes attributes;
    describe_(attributes, call, name, heads);
    return call.graph->tensor(attributes);
}

static void output_(const CudnnTensor &tensor, const Call &call, int name, int64_t heads) {
    describe_(tensor->set_output(true), call, name, heads);
}

// The statistics of a sequence are (heads, seq), with documents (seq, heads).
static void describe_stats_(fe::graph::Tensor_attributes &tensor, const Call &call) {
    int64_t all = call.s->heads * call.s->seq;
    bool documents = call.queries != nullptr, part = call.kind->heads < call.s->heads;
    tensor.set_uid(STATS)
        .set_data_type(fe::DataType_t::FLOAT)
        .set_dim({call.kind->batch, call.kind->heads, call.kind->seq, 1});
    tensor.set_stride(documents ? std::vector<int64_t>{all, 1, call.s->heads, 1}
                                : std::vector<int64_t>{all, call.s->seq, 1, 1});
    // A part of the heads begins at any float: in a row of heads, or after a length that is no multiple of four. So do
    // a sequence after the first, and a context rank's second piece, if `all` is none.
    if (part ? documents || call.s->seq % 4 != 0 : all % 4 != 0) tensor.set_alignment(sizeof(float));
    if (documents) tensor.set_ragged_offset(call.begin[FLASH_STATISTICS]);
}

static CudnnGraph describe_forward_(const AttentionShape *s, const AttentionShape *kind) {
    Call call = call_(s, kind);
    CudnnTensor q = input_(call, QUERY, s->heads), k = input_(call, KEY, s->kv_heads),
                v = input_(call, VALUE, s->kv_heads);
    auto options = fe::graph::SDPA_attributes().set_name("flash").set_generate_stats(true);
    options_(options, call);
    auto [out, stats] = call.graph->sdpa(q, k, v, options);
    output_(out, call, OUT, s->heads);
    describe_stats_(stats->set_output(true), call);
    return call.graph;
}

// `kind` may have fewer sequences or heads than `s`, in the same rows.
static CudnnGraph describe_backward_(const AttentionShape *s, const AttentionShape *kind, bool deterministic) {
    Call call = call_(s, kind);
    CudnnTensor q = input_(call, QUERY, kind->heads), k = input_(call, KEY, kind->kv_heads),
                v = input_(call, VALUE, kind->kv_heads), out = input_(call, OUT, kind->heads),
                dout = input_(call, DOUT, kind->heads);
    fe::graph::Tensor_attributes statistics;
    describe_stats_(statistics, call);
    auto options = fe::graph::SDPA_backward_attributes().set_name("flash_backward");
    options_(options, call);
    options.set_deterministic_algorithm(deterministic);
    auto [dq, dk, dv] = call.graph->sdpa_backward(q, k, v, out, dout, call.graph->tensor(statistics), options);
    output_(dq, call, DQUERY, kind->heads);
    output_(dk, call, DKEY, kind->kv_heads);
    output_(dv, call, DVALUE, kind->kv_heads);
    return call.graph;
}

// Builds the plan that cuDNN ranks first, and raises *workspace to the plan's bytes. Returns "" or the error.
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

// Builds the plans of one kind of calls. `part`: the backward's part of that kind.
static CudnnPlan cudnn_make_plan_(CudaBackend *cuda, CudaFlash *flash, const AttentionShape *s,
                                  const AttentionShape *kind, const AttentionShape *part) {
    CudnnPlan plan = {};
    if (!cuda_is_bf16(&cuda->backend)) {
        plan.why = "train.precision is fp32, and cuDNN's flash attention supports only bf16";
        return plan;
    }
    // On Hopper older versions give wrong gradients where rows between two entries belong to none, and where the
    // workspace has other contents (TransformerEngine, issues 2186 and 2448).
    if (s->documents && cudnnGetVersion() < 91800) {
        plan.why = "document masks in cuDNN's flash attention need cuDNN 9.18 or later";
        return plan;
    }
    CudnnGraph forward = describe_forward_(s, kind),
               backward = describe_backward_(s, part, attention_flash_deterministic(s, cuda->backend.capability));
    plan.why = build_(forward, flash->handle, &plan.workspace);
    if (plan.why.empty()) plan.why = build_(backward, flash->handle, &plan.workspace);
    if (plan.why.empty()) plan.forward = forward, plan.backward = backward;
    return plan;
}

// Returns the plans of kind i of calls, which exists.
static CudnnPlan *plan_(CudaBackend *cuda, CudaFlash *flash, const AttentionShape *s, int i) {
    AttentionShape kind, part, most = attention_flash_part(s, cuda->backend.capability);
    attention_flash_kind(s, i, &kind);
    AttentionKey key = {s->batch,         s->seq,       s->heads,
                        s->kv_heads,      s->head_dim,  attention_value_dim(s),
                        s->full,          s->first,     attention_is_range(s),
                        s->deterministic, s->documents, kind.batch,
                        kind.seq,         kind.first};
    auto known = flash->plans.find(key);
    if (known != flash->plans.end()) return &known->second;
    attention_flash_kind(&most, i, &part);
    return &flash->plans.emplace(key, cudnn_make_plan_(cuda, flash, s, &kind, &part)).first->second;
}

int64_t cuda_flash_prepare(CudaBackend *cuda, const AttentionShape *shape, char why[256]) {
    CudaFlash *flash = flash_(cuda);
    AttentionShape kind;
    int64_t most = 0;
    if (flash->handle == NULL) {
        snprintf(why, 256, "%.255s", flash->failure.c_str());
        return -1;
    }
    for (int i = 0; attention_flash_kind(shape, i, &kind); i++) {
        CudnnPlan *plan = plan_(cuda, flash, shape, i);
        if (plan->forward == NULL) {
            snprintf(why, 256, "%.255s", plan->why.c_str());
            return -1;
        }
        if (plan->workspace > most) most = plan->workspace;
    }
    return most;
}

// --- running

// Returns a head's address. `head` counts over all rows: a row has the heads of q | k | v, of k | v, or of the output.
static void *cudnn_part_(const CudaBackend *cuda, const void *rows, int64_t head, const AttentionShape *s) {
    return (char *)rows + head * s->head_dim * cuda->backend.element;
}

static void execute_(CudaBackend *cuda, const CudnnGraph &graph, Tensors &tensors, void *workspace, const char *what) {
    fe::error_t status = graph->execute(cuda->flash->handle, tensors, workspace);
    if (status.is_good() || cuda->failed_at != NULL) return;
    cuda->flash->failure = std::string(what) + " failed: " + status.get_message();
    cuda_refuse(cuda, cuda->flash->failure.c_str());
}

// One execution of the graphs of kind `kind`, from the given sequence, query head and key head on. With documents,
// their lengths and offsets are in call->documents.
typedef struct Part {
    int kind;
    int64_t sequence, head, kv_head;
} Part;

// Adds the addresses of q, k and v, or of their gradients, by the names from `first` on. range: rows (k | v) of a range
// in place of those of qkv, or NULL.
static void point_(Tensors &tensors, int first, const CudaBackend *cuda, const AttentionShape *s, const Part *part,
                   const void *qkv, const void *range) {
    int64_t row = s->heads + 2 * s->kv_heads;
    int64_t key = (range != NULL ? part->sequence * 2 * s->kv_heads : part->sequence * row + s->heads) + part->kv_head;
    const void *keys = range != NULL ? range : qkv;
    tensors[first] = cudnn_part_(cuda, qkv, part->sequence * row + part->head, s);
    tensors[first + 1] = cudnn_part_(cuda, keys, key, s);
    tensors[first + 2] = cudnn_part_(cuda, keys, key + s->kv_heads, s);
}

// Returns the tensors that forward and backward share.
static Tensors tensors_(CudaBackend *cuda, const AttentionShape *s, const CudaFlashCall *call, const Part *part) {
    Tensors tensors;
    point_(tensors, QUERY, cuda, s, part, call->qkv, s->keys);
    tensors[STATS] = call->saved + part->sequence * s->heads * s->seq + part->head * (s->documents ? 1 : s->seq);
    if (!s->documents) return tensors;
    tensors[QUERIES] = call->documents->queries, tensors[KEYS] = call->documents->keys;
    for (int i = 0; i < FLASH_ROW_KINDS; i++) tensors[BEGIN + i] = call->documents->begin[i];
    return tensors;
}

static void forward_part_(CudaBackend *cuda, const AttentionShape *s, const CudaFlashCall *call, Part part) {
    Tensors tensors = tensors_(cuda, s, call, &part);
    tensors[OUT] = cudnn_part_(cuda, call->to, part.sequence * s->heads, s);
    execute_(cuda, plan_(cuda, cuda->flash, s, part.kind)->forward, tensors, call->workspace, "cuDNN's attention");
}

// Runs the backward of the key heads of a part, some of them at a time, each with its query heads.
static void backward_heads_(CudaBackend *cuda, const AttentionShape *s, const CudaFlashCall *call, Part part) {
    int64_t step = attention_flash_part(s, cuda->backend.capability).kv_heads;
    for (; part.kv_head < s->kv_heads; part.kv_head += step, part.head += step * (s->heads / s->kv_heads)) {
        Tensors tensors = tensors_(cuda, s, call, &part);
        int64_t out = part.sequence * s->heads + part.head;
        tensors[OUT] = cudnn_part_(cuda, call->out, out, s);
        tensors[DOUT] = cudnn_part_(cuda, call->dout, out, s);
        point_(tensors, DQUERY, cuda, s, &part, call->to, s->keys != NULL ? call->dkeys : NULL);
        execute_(cuda, plan_(cuda, cuda->flash, s, part.kind)->backward, tensors, call->workspace,
                 "the backward of cuDNN's attention");
    }
}

// --- documents

// Returns the documents of a sequence in their order. A document's first key is before its first query if the document
// begins before the range.
static std::vector<CudaDocument> documents_of_(const AttentionShape *s, int64_t sequence) {
    std::vector<CudaDocument> found;
    for (int64_t end = s->seq; end > 0; end = found.back().query) {
        int64_t last = s->first + end - 1; // the place of the document's last query in the sequence
        int64_t key = s->host_places == NULL ? 0 : last - s->host_places[(end - 1) * s->batch + sequence];
        int64_t query = key > s->first ? key - s->first : 0;
        found.push_back({(int32_t)query, (int32_t)(end - query), (int32_t)key, (int32_t)(last + 1 - key)});
    }
    std::reverse(found.begin(), found.end());
    return found;
}

// Returns the kind of a document's call: the shortest kind that has room for it.
static int document_kind_(const AttentionShape *s, const CudaDocument *document) {
    AttentionShape next;
    int kind = s->first > 0 ? 1 : 0;
    if (document->keys > document->queries) return 0;
    while (attention_flash_kind(s, kind + 1, &next) && document->queries <= next.seq) kind++;
    return kind;
}

// Runs all documents of one kind in a sequence, as many a call as its graphs have room for.
template <typename Run>
static void run_kind_(CudaBackend *cuda, const AttentionShape *s, const CudaFlashCall *call, Part part,
                      const std::vector<CudaDocument> &documents, Run run) {
    AttentionShape kind;
    attention_flash_kind(s, part.kind, &kind);
    CudaDocuments list = {};
    int64_t rows[FLASH_ROW_KINDS] = {attention_qkv_width(s), keys_width_(s), s->heads * s->head_dim, s->heads};
    for (int i = 0; i < FLASH_ROW_KINDS; i++) list.row[i] = rows[i] * (i == FLASH_STATISTICS ? 1 : s->batch);
    for (const CudaDocument &document : documents) {
        if (document_kind_(s, &document) == part.kind) list.document[list.count++] = document;
        if (list.count == 0 || (list.count < kind.batch && &document != &documents.back())) continue;
        cuda_flash_documents(&cuda->backend, call->documents, &list);
        run(cuda, s, call, part);
        list.count = 0;
    }
}

// Short documents first: if a call writes past the end of one, the call of the longer document after it overwrites
// that.
template <typename Run>
static void run_documents_(CudaBackend *cuda, const AttentionShape *s, const CudaFlashCall *call, Run run) {
    AttentionShape kind;
    int kinds = 0;
    while (attention_flash_kind(s, kinds, &kind)) kinds++;
    for (int64_t sequence = 0; sequence < s->batch; sequence++) {
        std::vector<CudaDocument> documents = documents_of_(s, sequence);
        for (int i = kinds - 1; i >= 0; i--) run_kind_(cuda, s, call, Part{i, sequence, 0, 0}, documents, run);
    }
}

void cuda_flash_forward(CudaBackend *cuda, const AttentionShape *s, const CudaFlashCall *call) {
    if (s->documents) run_documents_(cuda, s, call, forward_part_);
    else forward_part_(cuda, s, call, Part{});
}

void cuda_flash_backward(CudaBackend *cuda, const AttentionShape *s, const CudaFlashCall *call) {
    if (s->documents) return run_documents_(cuda, s, call, backward_heads_);
    int64_t step = attention_flash_part(s, cuda->backend.capability).batch;
    for (int64_t sequence = 0; sequence < s->batch; sequence += step)
        backward_heads_(cuda, s, call, Part{0, sequence, 0, 0});
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

// Asks cuDNN, without a device or a driver, for plans of the graphs that src/cuda/attention_cudnn.cpp builds:
// `ask_cudnn 90` reads lines "batch seq heads kv_heads head_dim" and answers each with "workspace planned", where
// planned is attention_flash_workspace, or with "none: why". `ask_cudnn 90 16` asks for up to 16 documents a sequence,
// `ask_cudnn 90 full` for attention that is not causal, `ask_cudnn 90 range` for the last of four slices. cuDNN's
// frontend takes a description of a device in place of one; what it asks the CUDA runtime is answered below, and
// libcuda.so.1 is a stub that test_cudnn.py makes.
#include "backend/attention_scratch.h"
#include "cuda/attention_cudnn.cpp"

#include <cstdlib>
#include <cstring>
#include <vector>

static int capability;

static int multiprocessors() {
    return capability == 80 ? 108 : capability == 90 ? 132 : 148;
}

extern "C" cudaError_t cudaGetDevice(int *device) {
    *device = 0;
    return cudaSuccess;
}

extern "C" cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int) {
    memset(properties, 0, sizeof *properties);
    properties->major = capability / 10;
    properties->multiProcessorCount = multiprocessors();
    return cudaSuccess;
}

static std::shared_ptr<fe::DeviceProperties> device() {
    std::string text =
        "{\"deviceName\":\"NVIDIA\",\"cudaDeviceId\":0,\"deviceVer\":" + std::to_string(capability * 10) +
        ",\"multiProcessorCount\":" + std::to_string(multiprocessors()) +
        ",\"maxSharedMemoryPerBlockOptin\":" + (capability == 80 ? "166912" : "232448") +
        ",\"driverVer\":13000,\"totalGlobalMem\":85017493504,\"maxGridSize\":[2147483647,65535,65535],"
        "\"maxBlockSize\":[1024,1024,64],\"regsPerBlock\":65536,\"warpSize\":32,"
        "\"maxSharedMemoryPerBlock\":49152,\"reservedSharedMemoryPerBlock\":1024,"
        "\"maxRegistersPerSM\":65536,\"maxCtasPerSM\":32,\"maxThreadsPerBlock\":1024,"
        "\"maxThreadsPerSM\":2048,\"pciDeviceId\":0,\"isTccDriver\":0,\"supportCoopLaunch\":1,"
        "\"smClockRateKHz\":1980000,\"memClockRateKHz\":2619000,\"l2CacheSize\":52428800}";
    auto made = std::make_shared<fe::DeviceProperties>();
    fe::error_t status = made->deserialize(std::vector<uint8_t>(text.begin(), text.end()));
    if (status.is_good()) return made;
    fprintf(stderr, "%s\n", status.get_message().c_str());
    exit(1);
}

// --- documents: each is a sequence of its own, up to `documents` per row of the batch, with its length and its offset
// on the device (padding mask and ragged offsets); statistics (tokens, heads)

enum { LENGTHS = 20, OFFSETS_QKV, OFFSETS_OUT, OFFSETS_STATS };

static CudnnTensor integers(const CudnnGraph &graph, int name, int64_t count) {
    return graph->tensor(fe::graph::Tensor_attributes()
                             .set_uid(name)
                             .set_dim({count, 1, 1, 1})
                             .set_stride({1, 1, 1, 1})
                             .set_data_type(name == LENGTHS ? fe::DataType_t::INT32 : fe::DataType_t::INT64));
}

struct Documents {
    CudnnTensor lengths, qkv, out, stats;
    CudnnTensor q, k, v;
    int64_t tokens;
};

static CudnnTensor ragged(CudnnTensor tensor, const CudnnTensor &offsets) {
    tensor->set_ragged_offset(offsets);
    return tensor;
}

static Documents documents_of(const CudnnGraph &graph, const AttentionShape *s, int64_t tokens) {
    int64_t width = cudnn_qkv_width_(s);
    Documents d = {integers(graph, LENGTHS, s->batch), integers(graph, OFFSETS_QKV, s->batch + 1),
                   integers(graph, OFFSETS_OUT, s->batch + 1), integers(graph, OFFSETS_STATS, s->batch + 1)};
    d.q = ragged(graph->tensor(rows_(s, s->batch, QUERY, s->heads, width)), d.qkv);
    d.k = ragged(graph->tensor(rows_(s, s->batch, KEY, s->kv_heads, width)), d.qkv);
    d.v = ragged(graph->tensor(rows_(s, s->batch, VALUE, s->kv_heads, width)), d.qkv);
    d.tokens = tokens;
    return d;
}

static void as_stats(const CudnnTensor &stats, const AttentionShape *s, const Documents &d) {
    stats->set_uid(STATS).set_data_type(fe::DataType_t::FLOAT).set_dim({s->batch, s->heads, s->seq, 1});
    stats->set_stride({s->heads * s->seq, 1, s->heads, 1}).set_ragged_offset(d.stats);
}

static CudnnGraph documents_forward(const AttentionShape *s, int64_t tokens) {
    CudnnGraph graph = graph_();
    Documents d = documents_of(graph, s, tokens);
    auto options = fe::graph::SDPA_attributes().set_name("flash").set_generate_stats(true).set_causal_mask(true);
    options.set_attn_scale(scale_(s)).set_padding_mask(true).set_seq_len_q(d.lengths).set_seq_len_kv(d.lengths);
    auto [out, stats] = graph->sdpa(d.q, d.k, d.v, options);
    as_rows_(out, s, s->batch, OUT, s->heads, s->heads * s->head_dim);
    ragged(out, d.out);
    stats->set_output(true);
    as_stats(stats, s, d);
    return graph;
}

static CudnnGraph documents_backward(const AttentionShape *s, int64_t tokens, bool deterministic) {
    CudnnGraph graph = graph_();
    int64_t width = cudnn_qkv_width_(s), out_width = s->heads * s->head_dim;
    Documents d = documents_of(graph, s, tokens);
    CudnnTensor out = ragged(graph->tensor(rows_(s, s->batch, OUT, s->heads, out_width)), d.out);
    CudnnTensor dout = ragged(graph->tensor(rows_(s, s->batch, DOUT, s->heads, out_width)), d.out);
    CudnnTensor stats = graph->tensor(stats_(s, s));
    as_stats(stats, s, d);
    auto options = fe::graph::SDPA_backward_attributes().set_name("backward").set_causal_mask(true);
    options.set_attn_scale(scale_(s)).set_deterministic_algorithm(deterministic);
    options.set_padding_mask(true).set_seq_len_q(d.lengths).set_seq_len_kv(d.lengths);
    options.set_max_total_seq_len_q(tokens).set_max_total_seq_len_kv(tokens);
    auto [dq, dk, dv] = graph->sdpa_backward(d.q, d.k, d.v, out, dout, stats, options);
    as_rows_(dq, s, s->batch, DQUERY, s->heads, width);
    as_rows_(dk, s, s->batch, DKEY, s->kv_heads, width);
    as_rows_(dv, s, s->batch, DVALUE, s->kv_heads, width);
    ragged(dq, d.qkv), ragged(dk, d.qkv), ragged(dv, d.qkv);
    return graph;
}

int main(int argc, char **argv) {
    capability = argc > 1 ? atoi(argv[1]) : 90;
    int64_t documents = argc > 2 ? atoi(argv[2]) : 0;
    auto properties = device();
    AttentionShape s = {};
    s.mode = ATTENTION_FLASH;
    s.full = argc > 2 && strcmp(argv[2], "full") == 0;
    long b, q, h, k, d;
    char word[8];
    while (scanf("%ld %ld %ld %ld %ld %7s", &b, &q, &h, &k, &d, word) == 6) {
        s.deterministic = word[1] == 'n' ? DETERMINISTIC_ON : word[1] == 'f' ? DETERMINISTIC_OFF : DETERMINISTIC_AUTO;
        s.first = argc > 2 && strcmp(argv[2], "range") == 0 ? 3 * q : 0;
        s.batch = b, s.seq = q, s.heads = h, s.kv_heads = k, s.head_dim = d;
        bool same = attention_flash_deterministic(&s, capability);
        int64_t planned = attention_flash_workspace(&s, capability), tokens = s.batch * s.seq;
        AttentionShape part = attention_flash_part(&s, capability);
        s.batch *= documents > 0 ? documents : 1;
        CudnnGraph forward = documents > 0 ? documents_forward(&s, tokens) : describe_forward_(&s);
        CudnnGraph backward =
            documents > 0 ? documents_backward(&s, tokens, same) : describe_backward_(&s, &part, same);
        forward->set_device_properties(properties);
        backward->set_device_properties(properties);
        int64_t workspace = 0;
        std::string why = build_(forward, nullptr, &workspace);
        if (why.empty()) why = build_(backward, nullptr, &workspace);
        if (why.empty())
            printf("%lld %lld\n", (long long)workspace, (long long)planned);
        else
            printf("none: %s\n", why.c_str());
        fflush(stdout);
    }
}

// cuDNN's frontend as src/cuda uses it: graphs of one attention, forward or backward. The real header is a library of
// templates over cuDNN's graph interface; faking the part in between would need an interpreter of graphs, so the fake
// begins here. Names as in cudnn-frontend 1.x; a graph's attributes are stored, checked in `validate` and passed to
// test/virtual/sdpa.cc.
#pragma once

#include <array>
#include <cuda_runtime.h>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

typedef enum cudnnStatus_t { CUDNN_STATUS_SUCCESS = 0, CUDNN_STATUS_NOT_INITIALIZED = 1001 } cudnnStatus_t;
typedef struct VirtualCudnn *cudnnHandle_t;
size_t cudnnGetVersion(void);
cudnnStatus_t cudnnCreate(cudnnHandle_t *handle);
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle);
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream);
const char *cudnnGetErrorString(cudnnStatus_t status);
void cudnnGetLastErrorString(char *message, size_t size);

namespace cudnn_frontend {

enum class DataType_t { NOT_SET, FLOAT, BFLOAT16, INT32, INT64 };
enum class HeurMode_t { A, B, FALLBACK };

struct error_t {
    std::string message;
    bool is_good() const { return message.empty(); }
    std::string get_message() const { return message; }
};

namespace graph {

struct Tensor_attributes {
    int64_t uid = 0, alignment = 16; // bytes
    std::vector<int64_t> dim, stride;
    DataType_t type = DataType_t::NOT_SET;
    bool output = false;
    std::shared_ptr<Tensor_attributes> ragged;
    Tensor_attributes &set_uid(int64_t value) { return uid = value, *this; }
    Tensor_attributes &set_name(const std::string &) { return *this; }
    Tensor_attributes &set_dim(const std::vector<int64_t> &value) { return dim = value, *this; }
    Tensor_attributes &set_stride(const std::vector<int64_t> &value) { return stride = value, *this; }
    Tensor_attributes &set_data_type(DataType_t value) { return type = value, *this; }
    Tensor_attributes &set_ragged_offset(const std::shared_ptr<Tensor_attributes> &value) {
        return ragged = value, *this;
    }
    Tensor_attributes &set_alignment(int64_t value) { return alignment = value, *this; }
    Tensor_attributes &set_output(bool value) { return output = value, *this; }
};

typedef std::shared_ptr<Tensor_attributes> Tensor;

struct Attention {
    bool causal = false, bottom_right = false, stats = false, deterministic = false, backward = false, padded = false;
    float scale = 1.0f;
    Tensor queries, keys; // lengths of each batch entry
};

template <typename Self> struct Setters : Attention {
    Self &set_name(const std::string &) { return self(); }
    Self &set_causal_mask(bool value) { return causal = value, self(); }
    Self &set_causal_mask_bottom_right(bool value) { return causal = bottom_right = value, self(); }
    Self &set_attn_scale(float value) { return scale = value, self(); }
    Self &set_padding_mask(bool value) { return padded = value, self(); }
    Self &set_seq_len_q(const Tensor &value) { return queries = value, self(); }
    Self &set_seq_len_kv(const Tensor &value) { return keys = value, self(); }
    Self &self() { return *(Self *)this; }
};

struct SDPA_attributes : Setters<SDPA_attributes> {
    SDPA_attributes &set_generate_stats(bool value) { return stats = value, *this; }
};

struct SDPA_backward_attributes : Setters<SDPA_backward_attributes> {
    SDPA_backward_attributes &set_deterministic_algorithm(bool value) { return deterministic = value, *this; }
};

class Graph {
  public:
    Graph &set_io_data_type(DataType_t value) { return io = value, *this; }
    Graph &set_intermediate_data_type(DataType_t) { return *this; }
    Graph &set_compute_data_type(DataType_t) { return *this; }
    Tensor tensor(const Tensor_attributes &attributes) { return std::make_shared<Tensor_attributes>(attributes); }
    std::array<Tensor, 2> sdpa(Tensor q, Tensor k, Tensor v, SDPA_attributes options);
    std::array<Tensor, 3> sdpa_backward(Tensor q, Tensor k, Tensor v, Tensor out, Tensor dout, Tensor stats,
                                        SDPA_backward_attributes options);
    error_t validate();
    error_t build_operation_graph(cudnnHandle_t) { return step(1, 2); }
    error_t create_execution_plans(const std::vector<HeurMode_t> &) { return step(2, 3); }
    error_t check_support(cudnnHandle_t) { return step(3, 4); }
    error_t check_support() { return step(3, 4); }
    error_t build_plans(cudnnHandle_t) { return step(4, 5); }
    error_t build_plans() { return step(4, 5); }
    error_t get_workspace_size(int64_t &bytes);
    error_t execute(cudnnHandle_t handle, std::unordered_map<int64_t, void *> &tensors, void *workspace);

    DataType_t io = DataType_t::NOT_SET;
    Attention options;
    Tensor q, k, v, out, dout, stats, dq, dk, dv;

  private:
    error_t step(int from, int to);
    int built = 0; // steps taken
};

} // namespace graph
} // namespace cudnn_frontend

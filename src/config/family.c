// The table of model families. To add a model, write train_NAME.cu and add a row to FAMILIES at the end of this file.
#include "config.h"

#include <string.h>

#define REQUIRED(field, word)                                                                                          \
    { "model." #field, word, .absent = -1 }
#define OPTIONAL(field, word, absent_)                                                                                 \
    { "model." #field, word, .absent = absent_ }

static const FamilyNumber llama_numbers[] = {
    REQUIRED(vocab, "vocab_size"),
    REQUIRED(hidden, "hidden_size"),
    REQUIRED(layers, "num_hidden_layers"),
    REQUIRED(heads, "num_attention_heads"),
    // not in files older than grouped-query attention
    {"model.kv_heads", "num_key_value_heads", .absent = 1, .times = "num_attention_heads"},
    REQUIRED(ffn, "intermediate_size"),
    REQUIRED(seq_len, "max_position_embeddings"),
    OPTIONAL(norm_eps, "rms_norm_eps", 1e-6),
    OPTIONAL(rope_theta, "rope_theta", 10000.0),
    {.key = NULL},
};

static const FamilyDemand llama_demands[] = {
    {"hidden_act", {"silu", "swish"}, "hidden_act is not silu"},
    {"attention_bias", {"false", NULL}, "attention_bias is set, which gives o_proj a bias too"},
    {"mlp_bias", {"false", NULL}, "mlp_bias is set"},
    {"partial_rotary_factor", {"1", NULL}, "partial_rotary_factor is not 1"},
    {"scoring_func", {"sigmoid", NULL}, "scoring_func is not sigmoid"},
    {"topk_method", {"noaux_tc", NULL}, "topk_method is not noaux_tc"},
    {"moe_layer_freq", {"1", NULL}, "moe_layer_freq leaves layers without experts"},
    {"rope_interleave", {"true", NULL}, "rope_interleave is false"},
    {"quantization_config", {NULL, NULL}, "quantization_config is set"},
    {"dual_chunk_attention_config", {NULL, NULL}, "dual_chunk_attention_config is set"},
    {"mlp_only_layers", {"[]", NULL}, "mlp_only_layers has layers without experts"},
    {"decoder_sparse_step", {"1", NULL}, "decoder_sparse_step leaves layers without experts"},
    {"router_jitter_noise", {"0", NULL}, "router_jitter_noise changes the router's input at random"},
    {.word = NULL},
};

static const FamilyNumber mixtral_experts[] = {
    REQUIRED(experts, "num_local_experts"),
    REQUIRED(experts_per_token, "num_experts_per_tok"),
    {"model.expert_ffn", "intermediate_size", .again = true, .absent = -1},
    {.key = NULL},
};

static const FamilyNumber qwen3_experts[] = {
    REQUIRED(experts, "num_experts"),
    REQUIRED(experts_per_token, "num_experts_per_tok"),
    REQUIRED(expert_ffn, "moe_intermediate_size"),
    OPTIONAL(router_normalize, "norm_topk_prob", 0),
    {.key = NULL},
};

// GLM-4.5 took its experts and their names from DeepSeek-V3.
#define GROUPED_EXPERTS                                                                                                \
    REQUIRED(experts, "n_routed_experts"), REQUIRED(experts_per_token, "num_experts_per_tok"),                         \
        REQUIRED(expert_ffn, "moe_intermediate_size"),                                                                 \
        {"model.shared_ffn", "n_shared_experts", .unit = "model.expert_ffn", .absent = 1},                             \
        OPTIONAL(dense_layers, "first_k_dense_replace", 1), OPTIONAL(router_groups, "n_group", 1),                     \
        OPTIONAL(router_group_top, "topk_group", 1), OPTIONAL(router_scale, "routed_scaling_factor", 1),               \
        OPTIONAL(router_normalize, "norm_topk_prob", 1)

static const FamilyNumber glm4_experts[] = {
    GROUPED_EXPERTS,
    OPTIONAL(qkv_bias, "attention_bias", 0),
    OPTIONAL(qk_norm, "use_qk_norm", 0),
    OPTIONAL(rope_share, "partial_rotary_factor", 0.5),
    {.key = NULL},
};

static const FamilyNumber deepseek_experts[] = {
    GROUPED_EXPERTS,
    REQUIRED(kv_lora, "kv_lora_rank"),
    REQUIRED(q_lora, "q_lora_rank"),
    REQUIRED(nope_dim, "qk_nope_head_dim"),
    REQUIRED(rope_dim, "qk_rope_head_dim"),
    REQUIRED(v_dim, "v_head_dim"),
    {.key = NULL},
};

static const FamilyNumber gpt_numbers[] = {
    REQUIRED(vocab, "vocab_size"),
    REQUIRED(hidden, "n_embd"),
    REQUIRED(layers, "n_layer"),
    REQUIRED(heads, "n_head"),
    {"model.ffn", "n_inner", .absent = 4, .times = "n_embd"},
    REQUIRED(seq_len, "n_positions"),
    OPTIONAL(norm_eps, "layer_norm_epsilon", 1e-5),
    {.key = NULL},
};

static const FamilyDemand gpt_demands[] = {
    {"activation_function", {"gelu_new", "gelu_pytorch_tanh"}, "activation_function is not gelu_new"},
    {"scale_attn_by_inverse_layer_idx", {"false", NULL}, "scale_attn_by_inverse_layer_idx is set"},
    {"scale_attn_weights", {"true", NULL}, "scale_attn_weights is off"},
    {.word = NULL},
};

#define NEXT  ",\n  "
#define SILU  "\"hidden_act\": \"silu\""
#define PLAIN SILU NEXT "\"attention_bias\": false"

#define PROJECTIONS                                                                                                    \
    { "gate_proj.weight", "up_proj.weight", "down_proj.weight" }

// Mistral's layers are the same as LLaMA's; a checkpoint of a Mistral model is written as a LLaMA checkpoint.
static const FamilyForm llama_forms[] = {
    {"llama", "LlamaForCausalLM", .constants = PLAIN NEXT "\"mlp_bias\": false"},
    {"mistral", "MistralForCausalLM", .constants = SILU},
    {"qwen2", "Qwen2ForCausalLM", .qkv_bias = true, .constants = SILU NEXT "\"use_sliding_window\": false"},
    {"qwen3", "Qwen3ForCausalLM", .qk_norm = true, .head_dim = 128,
     .constants = PLAIN NEXT "\"use_sliding_window\": false"},
    {"mixtral", "MixtralForCausalLM", .constants = SILU, .experts = mixtral_experts, .routed = "block_sparse_moe.",
     .matrix = {"w1.weight", "w3.weight", "w2.weight"}},
    {"qwen3_moe", "Qwen3MoeForCausalLM", .qk_norm = true,
     .constants =
         PLAIN NEXT "\"use_sliding_window\": false" NEXT "\"mlp_only_layers\": []" NEXT "\"decoder_sparse_step\": 1",
     .experts = qwen3_experts, .routed = "mlp.", .matrix = PROJECTIONS},
    {"glm4_moe", "Glm4MoeForCausalLM", .any = true, .constants = SILU, .router = ROUTER_SIGMOID,
     .experts = glm4_experts, .routed = "mlp.", .matrix = PROJECTIONS},
    {"deepseek_v3", "DeepseekV3ForCausalLM", .latent = true, .constants = PLAIN NEXT "\"rope_interleave\": true",
     .router = ROUTER_SIGMOID, .experts = deepseek_experts, .routed = "mlp.", .matrix = PROJECTIONS},
    {"kimi_k2", "DeepseekV3ForCausalLM", .latent = true, .constants = PLAIN, .router = ROUTER_SIGMOID,
     .experts = deepseek_experts, .routed = "mlp.", .matrix = PROJECTIONS},
    {.model_type = NULL},
};

// Dropout rates are written as zero, because this trainer has no dropout.
static const FamilyForm gpt_forms[] = {
    {"gpt2", "GPT2LMHeadModel",
     .constants = "\"activation_function\": \"gelu_new\"" NEXT "\"attn_pdrop\": 0.0" NEXT "\"embd_pdrop\": 0.0" NEXT
                  "\"resid_pdrop\": 0.0"},
    {.model_type = NULL},
};

// clang-format off
#define FAMILIES(ROW)                                                                                                  \
    ROW("llama", .rotary = true, .grouped = true, .gated = true,                                                       \
        .forms = llama_forms, .numbers = llama_numbers, .demands = llama_demands)                                      \
    ROW("gpt", .biased = true, .tied = true,                                                                           \
        .forms = gpt_forms, .numbers = gpt_numbers, .demands = gpt_demands)
// clang-format on

#define AS_ROW(word, ...)  {__VA_ARGS__},
#define AS_WORD(word, ...) word,

const Family families[] = {FAMILIES(AS_ROW)};
const char *const family_words[] = {FAMILIES(AS_WORD) NULL};

int family_find(const char *word) {
    for (int i = 0; family_words[i] != NULL; i++)
        if (strcmp(family_words[i], word) == 0) return i;
    return -1;
}

const FamilyForm *family_form(const ModelConfig *model) {
    const FamilyForm *found = families[model->family].forms;
    for (const FamilyForm *form = found; form->model_type != NULL; form++) {
        if ((form->experts != NULL) != (model->experts > 0) || form->latent != (model->kv_lora > 0)) continue;
        found = form;
        bool heads = form->any || (form->qkv_bias == model->qkv_bias && form->qk_norm == model->qk_norm);
        if (heads && form->router == model->router) break;
    }
    return found;
}

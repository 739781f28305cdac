// The table of model families. To add a model, write train_NAME.cu and add a row to FAMILIES at the end of this file.
#include "config.h"

#include <string.h>

#define COUNT(field, word, absent_, times_)                                                                            \
    { .key = "model." #field, word, offsetof(ModelConfig, field), .absent = absent_, .times = times_ }
#define REAL(field, word, absent_)                                                                                     \
    { .key = "model." #field, word, offsetof(ModelConfig, field), .real = true, .absent = absent_ }
#define TRUTH(field, word, absent_)                                                                                    \
    { .key = "model." #field, word, offsetof(ModelConfig, field), .truth = true, .absent = absent_ }
#define AGAIN(field, word)                                                                                             \
    { .key = "model." #field, word, offsetof(ModelConfig, field), .absent = -1, .again = true }

static const FamilyNumber llama_numbers[] = {
    COUNT(vocab, "vocab_size", -1, NULL),
    COUNT(hidden, "hidden_size", -1, NULL),
    COUNT(layers, "num_hidden_layers", -1, NULL),
    COUNT(heads, "num_attention_heads", -1, NULL),
    COUNT(kv_heads, "num_key_value_heads", 1, "num_attention_heads"), // not in files older than grouped-query attention
    COUNT(ffn, "intermediate_size", -1, NULL),
    COUNT(seq_len, "max_position_embeddings", -1, NULL),
    REAL(norm_eps, "rms_norm_eps", 1e-6),
    REAL(rope_theta, "rope_theta", 10000.0),
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
    COUNT(experts, "num_local_experts", -1, NULL),
    COUNT(experts_per_token, "num_experts_per_tok", -1, NULL),
    AGAIN(expert_ffn, "intermediate_size"),
    {.key = NULL},
};

static const FamilyNumber qwen3_experts[] = {
    COUNT(experts, "num_experts", -1, NULL),
    COUNT(experts_per_token, "num_experts_per_tok", -1, NULL),
    COUNT(expert_ffn, "moe_intermediate_size", -1, NULL),
    TRUTH(router_normalize, "norm_topk_prob", 0),
    {.key = NULL},
};

// GLM-4.5 took its experts and their names from DeepSeek-V3.
#define GROUPED_EXPERTS                                                                                                \
    COUNT(experts, "n_routed_experts", -1, NULL), COUNT(experts_per_token, "num_experts_per_tok", -1, NULL),           \
        COUNT(expert_ffn, "moe_intermediate_size", -1, NULL),                                                          \
        {.key = "model.shared_ffn",                                                                                    \
         "n_shared_experts",                                                                                           \
         offsetof(ModelConfig, shared_ffn),                                                                            \
         .absent = 1,                                                                                                  \
         .unit = offsetof(ModelConfig, expert_ffn)},                                                                   \
        COUNT(dense_layers, "first_k_dense_replace", 1, NULL), COUNT(router_groups, "n_group", 1, NULL),               \
        COUNT(router_group_top, "topk_group", 1, NULL), REAL(router_scale, "routed_scaling_factor", 1),                \
        TRUTH(router_normalize, "norm_topk_prob", 1)

static const FamilyNumber glm4_experts[] = {
    GROUPED_EXPERTS,
    TRUTH(qkv_bias, "attention_bias", 0),
    TRUTH(qk_norm, "use_qk_norm", 0),
    REAL(rope_share, "partial_rotary_factor", 0.5),
    {.key = NULL},
};

static const FamilyNumber deepseek_experts[] = {
    GROUPED_EXPERTS,
    COUNT(kv_lora, "kv_lora_rank", -1, NULL),
    COUNT(q_lora, "q_lora_rank", -1, NULL),
    COUNT(nope_dim, "qk_nope_head_dim", -1, NULL),
    COUNT(rope_dim, "qk_rope_head_dim", -1, NULL),
    COUNT(v_dim, "v_head_dim", -1, NULL),
    {.key = NULL},
};

static const FamilyNumber gpt_numbers[] = {
    COUNT(vocab, "vocab_size", -1, NULL),       COUNT(hidden, "n_embd", -1, NULL),
    COUNT(layers, "n_layer", -1, NULL),         COUNT(heads, "n_head", -1, NULL),
    COUNT(ffn, "n_inner", 4, "n_embd"),         COUNT(seq_len, "n_positions", -1, NULL),
    REAL(norm_eps, "layer_norm_epsilon", 1e-5), {.key = NULL},
};

static const FamilyDemand gpt_demands[] = {
    {"activation_function", {"gelu_new", "gelu_pytorch_tanh"}, "activation_function is not gelu_new"},
    {"scale_attn_by_inverse_layer_idx", {"false", NULL}, "scale_attn_by_inverse_layer_idx is set"},
    {"scale_attn_weights", {"true", NULL}, "scale_attn_weights is off"},
    {.word = NULL},
};

#define SILU  "  \"hidden_act\": \"silu\",\n"
#define PLAIN SILU "  \"attention_bias\": false,\n"

#define PROJECTIONS                                                                                                    \
    { "gate_proj.weight", "up_proj.weight", "down_proj.weight" }

// Mistral's layers are the same as LLaMA's; a checkpoint of a Mistral model is written as a LLaMA checkpoint.
static const FamilyForm llama_forms[] = {
    {"llama", "LlamaForCausalLM", .constants = PLAIN "  \"mlp_bias\": false,\n"},
    {"mistral", "MistralForCausalLM", .constants = SILU},
    {"qwen2", "Qwen2ForCausalLM", .qkv_bias = true, .constants = SILU "  \"use_sliding_window\": false,\n"},
    {"qwen3", "Qwen3ForCausalLM", .qk_norm = true, .head_dim = 128,
     .constants = PLAIN "  \"use_sliding_window\": false,\n"},
    {"mixtral", "MixtralForCausalLM", .constants = SILU, .experts = mixtral_experts, .routed = "block_sparse_moe.",
     .matrix = {"w1.weight", "w3.weight", "w2.weight"}},
    {"qwen3_moe", "Qwen3MoeForCausalLM", .qk_norm = true, .head_dim = 128,
     .constants = PLAIN "  \"use_sliding_window\": false,\n  \"mlp_only_layers\": [],\n  \"decoder_sparse_step\": 1,\n",
     .experts = qwen3_experts, .routed = "mlp.", .matrix = PROJECTIONS},
    {"glm4_moe", "Glm4MoeForCausalLM", .any = true, .constants = SILU, .router = ROUTER_SIGMOID,
     .experts = glm4_experts, .routed = "mlp.", .matrix = PROJECTIONS},
    {"deepseek_v3", "DeepseekV3ForCausalLM", .latent = true, .constants = PLAIN "  \"rope_interleave\": true,\n",
     .router = ROUTER_SIGMOID, .experts = deepseek_experts, .routed = "mlp.", .matrix = PROJECTIONS},
    {"kimi_k2", "DeepseekV3ForCausalLM", .latent = true, .constants = PLAIN, .router = ROUTER_SIGMOID,
     .experts = deepseek_experts, .routed = "mlp.", .matrix = PROJECTIONS},
    {.model_type = NULL},
};

// Dropout rates are written as zero, because this trainer has no dropout.
static const FamilyForm gpt_forms[] = {
    {"gpt2", "GPT2LMHeadModel",
     .constants =
         "  \"activation_function\": \"gelu_new\",\n  \"attn_pdrop\": 0.0,\n  \"embd_pdrop\": 0.0,\n  \"resid_pdrop\": "
         "0.0,\n"},
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

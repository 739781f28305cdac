// The table of model families. To add a model, write train_NAME.cu and add a row to FAMILIES at the end of this file.
#include "config.h"

#include <string.h>

#define COUNT(field, word, absent_, times_)                                                                            \
    { .key = "model." #field, word, offsetof(ModelConfig, field), .absent = absent_, .times = times_ }
#define REAL(field, word, absent_)                                                                                     \
    { .key = "model." #field, word, offsetof(ModelConfig, field), .real = true, .absent = absent_ }

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
    {"quantization_config", {NULL, NULL}, "quantization_config is set"},
    {"dual_chunk_attention_config", {NULL, NULL}, "dual_chunk_attention_config is set"},
    {.word = NULL},
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

// Mistral's layers are the same as LLaMA's; a checkpoint of a Mistral model is written as a LLaMA checkpoint.
static const FamilyForm llama_forms[] = {
    {"llama", "LlamaForCausalLM", .constants = PLAIN "  \"mlp_bias\": false,\n"},
    {"mistral", "MistralForCausalLM", .constants = SILU},
    {"qwen2", "Qwen2ForCausalLM", .qkv_bias = true, .constants = SILU "  \"use_sliding_window\": false,\n"},
    {"qwen3", "Qwen3ForCausalLM", .qk_norm = true, .head_dim = 128,
     .constants = PLAIN "  \"use_sliding_window\": false,\n"},
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

// The table of model families. To add a model, write train_NAME.cu and add a row, a word and an entry of ModelFamily here.
#include "config.h"

const char *const family_words[] = {[FAMILY_LLAMA] = "llama", [FAMILY_GPT] = "gpt", NULL};

#define COUNT(field, word, absent, times)                                                                              \
    { "model." #field, word, offsetof(ModelConfig, field), false, absent, times }
#define REAL(field, word, absent)                                                                                      \
    { "model." #field, word, offsetof(ModelConfig, field), true, absent, NULL }

static const FamilyNumber llama_numbers[] = {
    COUNT(vocab, "vocab_size", -1, NULL),
    COUNT(hidden, "hidden_size", -1, NULL),
    COUNT(layers, "num_hidden_layers", -1, NULL),
    COUNT(heads, "num_attention_heads", -1, NULL),
    COUNT(kv_heads, "num_key_value_heads", 1, "num_attention_heads"), // files older than grouped-query attention
    COUNT(ffn, "intermediate_size", -1, NULL),
    COUNT(seq_len, "max_position_embeddings", -1, NULL),
    REAL(norm_eps, "rms_norm_eps", 1e-6),
    REAL(rope_theta, "rope_theta", 10000.0),
    {NULL, NULL, 0, false, 0, NULL},
};

static const FamilyDemand llama_demands[] = {
    {"hidden_act", {"silu", "swish"}, "hidden_act is not silu"},
    {NULL, {NULL, NULL}, NULL},
};

static const FamilyNumber gpt_numbers[] = {
    COUNT(vocab, "vocab_size", -1, NULL),       COUNT(hidden, "n_embd", -1, NULL),
    COUNT(layers, "n_layer", -1, NULL),         COUNT(heads, "n_head", -1, NULL),
    COUNT(ffn, "n_inner", 4, "n_embd"),         COUNT(seq_len, "n_positions", -1, NULL),
    REAL(norm_eps, "layer_norm_epsilon", 1e-5), {NULL, NULL, 0, false, 0, NULL},
};

static const FamilyDemand gpt_demands[] = {
    {"activation_function", {"gelu_new", "gelu_pytorch_tanh"}, "activation_function is not gelu_new"},
    {"scale_attn_by_inverse_layer_idx", {"false", NULL}, "scale_attn_by_inverse_layer_idx is set"},
    {"scale_attn_weights", {"true", NULL}, "scale_attn_weights is off"},
    {NULL, {NULL, NULL}, NULL},
};

const Family families[FAMILIES] = {
    [FAMILY_LLAMA] = {.rotary = true,
                      .grouped = true,
                      .gated = true,
                      .model_type = "llama",
                      .architecture = "LlamaForCausalLM",
                      .constants = "  \"hidden_act\": \"silu\",\n  \"attention_bias\": false,\n"
                                   "  \"mlp_bias\": false,\n  \"rope_scaling\": null,\n",
                      .numbers = llama_numbers,
                      .demands = llama_demands},
    // Trained without dropout, and so to be trained on.
    [FAMILY_GPT] = {.biased = true,
                    .tied = true,
                    .model_type = "gpt2",
                    .architecture = "GPT2LMHeadModel",
                    .constants = "  \"activation_function\": \"gelu_new\",\n  \"attn_pdrop\": 0.0,\n"
                                 "  \"embd_pdrop\": 0.0,\n  \"resid_pdrop\": 0.0,\n",
                    .numbers = gpt_numbers,
                    .demands = gpt_demands},
};

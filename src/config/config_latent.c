// Checks the keys of latent attention, and refuses features that it does not support. Every error names a remedy.
#include "config_schema.h"

int config_check_latent(Config *config, Error *err) {
    ModelConfig *m = &config->model;
    if (m->kv_lora == 0)
        return config_refuse_given(config, "model.q_lora model.nope_dim model.rope_dim model.v_dim model.rope_mscale",
                                   "does not apply without latent attention; give model.kv_lora, or remove the key",
                                   err);
    static const char needed[] = "latent attention needs it; give it, such as 128";
    const Refusal missing[] = {{m->q_lora == 0, "model.q_lora", needed},
                               {m->nope_dim == 0, "model.nope_dim", needed},
                               {m->rope_dim == 0, "model.rope_dim", needed},
                               {m->v_dim == 0, "model.v_dim", needed}};
    if (config_refuse_rows(config, missing, sizeof missing / sizeof *missing, "model.kv_lora", err) != 0) return -1;
    int64_t width = m->nope_dim + m->rope_dim;
    if (m->rope_dim % 2 != 0)
        return config_error(config, "model.rope_dim", err, "must be even for rotary embedding, not %lld; use %lld",
                            (long long)m->rope_dim, (long long)m->rope_dim + 1);
    if (m->v_dim > width)
        return config_error(config, "model.v_dim", err, "must not exceed nope_dim + rope_dim, %lld; use that or less",
                            (long long)width);
    if (m->head_dim != 0 && m->head_dim != width)
        return config_error(config, "model.head_dim", err,
                            "is nope_dim + rope_dim with latent attention, %lld; remove the key", (long long)width);
    m->head_dim = width;
    const Refusal refused[] = {
        {!families[m->family].rotary, "model.kv_lora", "only family llama has latent attention; use it, or kv_lora: 0"},
        {m->kv_heads != 0 && m->kv_heads != m->heads, "model.kv_heads",
         "latent attention has keys and values for every head; use auto"},
        {m->rope_share != 1, "model.rope_share", "latent attention rotates rope_dim dimensions; remove the key"},
        {m->qkv_bias, "model.qkv_bias", "latent attention has no biases; use false"},
        {m->qk_norm, "model.qk_norm", "latent attention has its own norms; use false"},
        {config->parallel.context > 1, "parallel.context",
         "latent attention does not support context ranks yet; use 1"},
        {config_slices(config) > 1, "schedule.slices", "latent attention does not support slices yet; use 1"},
        {config->train.fp8 != FP8_OFF, "train.fp8", "latent attention is computed in bf16; use off"},
        {config->parallel.tensor > 1 && config->parallel.overlap >= OVERLAP_2, "parallel.overlap",
         "a model with latent attention cannot split forward products; use auto, on or off"},
    };
    return config_refuse_rows(config, refused, sizeof refused / sizeof *refused, "model.kv_lora", err);
}

// LLaMA (Touvron et al. 2023): RMSNorm, rotary positions, grouped-query attention, SwiGLU, no biases. With
// model.qkv_bias it is Qwen2, with model.qk_norm Qwen3, with model.experts Mixtral, with both Qwen3-MoE, with experts
// and model.kv_lora DeepSeek-V3. Tensor names are those of Hugging Face's models (family_form). The layer's forward and
// backward are in src/model/layer.c.
#include "model/blocks.h"
#include "run/trainer.h"

static void llama_embedding_tensors_(const ModelConfig *c, TensorTable *table) {
    table_vocabulary(table, c->vocab, c->hidden, false, "model.embed_tokens.weight");
}

// A layer's router, and the matrices of its experts one after another. In a layer without experts they have no rows,
// because all layers of a model have the same number of tensors.
static void llama_expert_tensors_(const ModelConfig *c, int64_t layer, TensorTable *table) {
    const FamilyForm *form = family_form(c);
    int64_t h = c->hidden, f = layer < c->dense_layers ? 0 : c->expert_ffn;
    table_prefix(table, "model.layers.%lld.%s", (long long)layer, form->routed);
    table_matrix(table, LAYER_ROUTER, f > 0 ? c->experts : 0, h, SPLIT_NONE, "gate.weight")->shard_summed = true;
    if (c->router == ROUTER_SIGMOID)
        table_vector(table, LAYER_ROUTER_BIAS, f > 0 ? c->experts : 0, INIT_ZERO, "gate.e_score_correction_bias")
            ->buffer = true;
    for (int64_t n = 0; n < c->experts; n++) {
        table_prefix(table, "model.layers.%lld.%sexperts.%lld.", (long long)layer, form->routed, (long long)n);
        table_expert(table, n, n == 0 ? LAYER_EXPERTS : LAYER_NONE, f, h, INIT_NORMAL, form->matrix[0]);
        table_expert(table, n, LAYER_NONE, f, h, INIT_NORMAL, form->matrix[1]);
        table_expert(table, n, LAYER_NONE, f > 0 ? h : 0, f, INIT_OUTPUT, form->matrix[2]);
    }
}

// Latent attention: every tensor rank computes the complete product of the latent rows, but only its heads' part of the
// gradient.
static void llama_latent_tensors_(const ModelConfig *c, TensorTable *table) {
    int64_t h = c->hidden, heads = c->heads, ql = c->q_lora, kl = c->kv_lora;
    TensorSpec *first = table_matrix(table, LAYER_QKV, ql, h, SPLIT_NONE, "self_attn.q_a_proj.weight");
    first->head_summed = true;
    TensorSpec *second =
        table_matrix(table, LAYER_NONE, kl + c->rope_dim, h, SPLIT_NONE, "self_attn.kv_a_proj_with_mqa.weight");
    second->head_summed = second->joined = true;
    table_vector(table, LAYER_Q_NORM, ql, INIT_ONE, "self_attn.q_a_layernorm.weight")->head_summed = true;
    table_vector(table, LAYER_K_NORM, kl, INIT_ONE, "self_attn.kv_a_layernorm.weight")->head_summed = true;
    table_matrix(table, LAYER_Q_UP, heads * c->head_dim, ql, SPLIT_ROWS, "self_attn.q_b_proj.weight");
    table_matrix(table, LAYER_KV_UP, heads * (c->nope_dim + c->v_dim), kl, SPLIT_ROWS, "self_attn.kv_b_proj.weight");
}

// q, k and v are joined, so that one product computes all three. gate and up are joined for the same reason.
static void llama_layer_tensors_(const ModelConfig *c, int64_t layer, TensorTable *table) {
    int64_t h = c->hidden, q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    table_prefix(table, "model.layers.%lld.", (long long)layer);
    table_vector(table, LAYER_NORM1, h, INIT_ONE, "input_layernorm.weight");
    if (c->kv_lora > 0) {
        llama_latent_tensors_(c, table);
    } else {
        table_matrix(table, LAYER_QKV, q, h, SPLIT_ROWS, "self_attn.q_proj.weight");
        table_matrix(table, LAYER_NONE, kv, h, SPLIT_ROWS, "self_attn.k_proj.weight")->joined = true;
        table_matrix(table, LAYER_NONE, kv, h, SPLIT_ROWS, "self_attn.v_proj.weight")->joined = true;
    }
    if (c->qkv_bias) {
        table_bias(table, LAYER_QKV_BIAS, q, SPLIT_ROWS, "self_attn.q_proj.bias");
        table_bias(table, LAYER_NONE, kv, SPLIT_ROWS, "self_attn.k_proj.bias")->joined = true;
        table_bias(table, LAYER_NONE, kv, SPLIT_ROWS, "self_attn.v_proj.bias")->joined = true;
    }
    if (c->qk_norm) {
        table_vector(table, LAYER_Q_NORM, c->head_dim, INIT_ONE, "self_attn.q_norm.weight")->head_summed = true;
        table_vector(table, LAYER_K_NORM, c->head_dim, INIT_ONE, "self_attn.k_norm.weight")->head_summed = true;
    }
    int64_t values = c->kv_lora > 0 ? c->heads * c->v_dim : q;
    table_matrix(table, LAYER_OUT, h, values, SPLIT_COLS, "self_attn.o_proj.weight");
    table_vector(table, LAYER_NORM2, h, INIT_ONE, "post_attention_layernorm.weight");
    // The MLP that computes every token: of a dense layer, or the shared expert, which some models lack.
    bool routed = c->experts > 0 && layer >= c->dense_layers;
    int64_t f = routed ? c->shared_ffn : c->ffn;
    if (c->experts == 0 || c->dense_layers > 0 || c->shared_ffn > 0) {
        table_prefix(table, "model.layers.%lld.mlp.%s", (long long)layer, routed ? "shared_experts." : "");
        table_matrix(table, LAYER_UP, f, h, SPLIT_ROWS, "gate_proj.weight");
        table_matrix(table, LAYER_NONE, f, h, SPLIT_ROWS, "up_proj.weight")->joined = true;
        table_matrix(table, LAYER_DOWN, f > 0 ? h : 0, f, SPLIT_COLS, "down_proj.weight");
    }
    if (c->experts > 0) llama_expert_tensors_(c, layer, table);
}

static void llama_head_tensors_(const ModelConfig *c, TensorTable *table) {
    table_vector(table, LAYER_NONE, c->hidden, INIT_ONE, "model.norm.weight");
    table_vocabulary(table, c->vocab, c->hidden, c->tie_embeddings == TIE_TRUE, "lm_head.weight");
}

static void llama_heads_forward_(Pass *pass, const Tensor *const *t, void *qkv, void *kept) {
    const Shape *s = pass->shape;
    AttentionShape attention = pass_attention(pass);
    if (s->qk_norm)
        pass->be->heads_norm_forward(pass->be, qkv, kept, t[LAYER_Q_NORM]->weight, t[LAYER_K_NORM]->weight,
                                     &s->attention, s->norm_eps);
    pass->be->rope(pass->be, qkv, &attention, pass->rope, pass->positions, +1);
}

static void llama_heads_backward_(Pass *pass, const Tensor *const *t, void *dqkv, const void *kept) {
    const Shape *s = pass->shape;
    AttentionShape attention = pass_attention(pass);
    pass->be->rope(pass->be, dqkv, &attention, pass->rope, pass->positions, -1);
    if (!s->qk_norm) return;
    const Tensor *q = t[LAYER_Q_NORM], *k = t[LAYER_K_NORM];
    pass->be->heads_norm_backward(pass->be, dqkv, q->gradient, k->gradient, kept, q->weight, k->weight, &s->attention,
                                  s->norm_eps);
}

static void llama_activation_forward_(Pass *pass, Factor act, const void *mlp) {
    pass->be->swiglu_forward(pass->be, act, mlp, NULL, pass->shape->rows, pass->shape->ffn);
}

static void llama_activation_backward_(Pass *pass, Factor dmlp, const void *dact, const void *mlp) {
    pass->be->swiglu_backward(pass->be, dmlp, NULL, dact, mlp, NULL, pass->shape->rows, pass->shape->ffn);
}

const Model llama_model = {
    .family = "llama",
    .embedding_tensors = llama_embedding_tensors_,
    .layer_tensors = llama_layer_tensors_,
    .head_tensors = llama_head_tensors_,
    .norm = NORM_RMS,
    .heads_forward = llama_heads_forward_,
    .heads_backward = llama_heads_backward_,
    .activation_forward = llama_activation_forward_,
    .activation_backward = llama_activation_backward_,
    .head_matrix = 1, // index of lm_head, after the final norm's weight
};

int main(int argc, char **argv) { return trainer_main("train_llama", &llama_model, argc, argv); }

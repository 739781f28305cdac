// GPT-2 and GPT-3 (Radford et al. 2019; Brown et al. 2020): LayerNorm, learned positions, a bias in every product, GELU
// (tanh form). Tensor names are those of Hugging Face's GPT2LMHeadModel. Matrices are (out, in) here; Hugging Face
// stores their transposes.
#include "model/blocks.h"
#include "run/trainer.h"

static void gpt_embedding_tensors_(const ModelConfig *c, TensorTable *table) {
    table_vocabulary(table, c->vocab, c->hidden, false, "transformer.wte.weight");
    table_matrix(table, LAYER_NONE, c->seq_len, c->hidden, SPLIT_NONE, "transformer.wpe.weight");
}

static void gpt_norm_tensors_(TensorTable *table, int role, int64_t hidden) {
    table_vector(table, role, hidden, INIT_ONE, "weight");
    table_vector(table, LAYER_NONE, hidden, INIT_ZERO, "bias");
}

// Appends a matrix, and its bias with the next role. q, k and v are three groups of rows of one matrix.
static void gpt_linear_tensors_(TensorTable *table, int role, int64_t rows, int64_t cols, int split) {
    TensorSpec *matrix = table_matrix(table, role, rows, cols, split, "weight");
    int parts = matrix->parts = role == LAYER_QKV ? 3 : 1;
    matrix->transposed = true;
    table_bias(table, role + 1, rows, split, "bias")->parts = parts;
}

static void gpt_layer_tensors_(const ModelConfig *c, int64_t layer, TensorTable *table) {
    int64_t h = c->hidden;
    long long l = layer;
    table_prefix(table, "transformer.h.%lld.ln_1.", l);
    gpt_norm_tensors_(table, LAYER_NORM1, h);
    table_prefix(table, "transformer.h.%lld.attn.c_attn.", l);
    gpt_linear_tensors_(table, LAYER_QKV, 3 * h, h, SPLIT_ROWS);
    table_prefix(table, "transformer.h.%lld.attn.c_proj.", l);
    gpt_linear_tensors_(table, LAYER_OUT, h, h, SPLIT_COLS);
    table_prefix(table, "transformer.h.%lld.ln_2.", l);
    gpt_norm_tensors_(table, LAYER_NORM2, h);
    table_prefix(table, "transformer.h.%lld.mlp.c_fc.", l);
    gpt_linear_tensors_(table, LAYER_UP, c->ffn, h, SPLIT_ROWS);
    table_prefix(table, "transformer.h.%lld.mlp.c_proj.", l);
    gpt_linear_tensors_(table, LAYER_DOWN, h, c->ffn, SPLIT_COLS);
}

static void gpt_head_tensors_(const ModelConfig *c, TensorTable *table) {
    table_prefix(table, "transformer.ln_f.");
    gpt_norm_tensors_(table, LAYER_NONE, c->hidden);
    table_prefix(table, "lm_head.");
    table_vocabulary(table, c->vocab, c->hidden, c->tie_embeddings == TIE_TRUE, "weight");
}

// No rotary embedding or head norms; GELU is fused into the adjacent products.
const Model gpt_model = {
    .family = "gpt",
    .embedding_tensors = gpt_embedding_tensors_,
    .layer_tensors = gpt_layer_tensors_,
    .head_tensors = gpt_head_tensors_,
    .norm = NORM_LAYER,
    .head_matrix = 2, // index of lm_head, after the final norm's weight and bias
    .learned_positions = true,
};

int main(int argc, char **argv) { return trainer_main("train_gpt", &gpt_model, argc, argv); }

// Keys and values of other trainers, for users who port a configuration. An unknown key is looked up here before the
// nearest of our own keys is suggested. Case is ignored, and - counts as _.
#include "hints.h"

#include "base/units.h"
#include "config_schema.h"

#include <ctype.h>
#include <limits.h>
#include <string.h>

// `words`: other trainers' names for the same key, separated by blanks.
typedef struct Hint {
    const char *words, *answer;
} Hint;

#define NOT_HERE "unsupported, see Limits in README.md"

static const Hint keys[] = {
    // --- batch and length
    {"grad_accum grad_acc_steps gradient_accumulation_steps accumulate_grad_batches gradient_accumulation",
     "it is train.global_batch / (schedule.micro_batch * parallel.data); set train.global_batch"},
    {"batch_size total_batch_size global_batch_size train_batch_size", "set train.global_batch, in sequences"},
    {"micro_batch_size device_batch_size local_batch_size per_device_train_batch_size microbatch_size mbs",
     "set schedule.micro_batch, in sequences"},
    {"num_microbatches microbatches n_microbatches", "it is train.global_batch / (micro_batch * parallel.data)"},
    {"seq_length sequence_length block_size max_position_embeddings encoder_seq_length n_ctx context_length "
     "n_positions",
     "set model.seq_len"},
    {"train_iters max_steps num_steps max_iters num_iterations training_steps train_steps total_steps",
     "set train.steps"},
    {"epochs num_epochs num_train_epochs max_epochs",
     "runs are counted in steps, and the data repeat as needed; set train.steps"},
    // --- model
    {"hidden_size n_embd d_model dim embed_dim", "set model.hidden"},
    {"num_layers num_hidden_layers n_layer n_layers depth", "set model.layers"},
    {"num_attention_heads n_head n_heads num_heads", "set model.heads"},
    {"num_key_value_heads num_query_groups n_kv_heads group_query_attention", "set model.kv_heads"},
    {"kv_channels", "set model.head_dim"},
    {"ffn_hidden_size intermediate_size d_ff n_inner ffn_dim", "set model.ffn"},
    {"vocab_size padded_vocab_size make_vocab_size_divisible_by", "set model.vocab; padding follows"},
    {"rms_norm_eps layernorm_epsilon layer_norm_eps layer_norm_epsilon norm_epsilon", "set model.norm_eps"},
    {"rotary_base rope_base", "set model.rope_theta"},
    {"tie_word_embeddings untie_embeddings_and_output_weights share_embeddings tied_embeddings",
     "set model.tie_embeddings"},
    {"attention_bias add_qkv_bias qkv_proj_bias", "set model.qkv_bias, for biases of q, k and v as in Qwen2"},
    {"qk_layernorm use_qk_norm", "set model.qk_norm"},
    {"use_flash_attn flash_attention attn_implementation use_sdpa flash_attn", "set attention.mode: flash"},
    {"dropout hidden_dropout attention_dropout attn_pdrop resid_pdrop embd_pdrop",
     "this trainer has no dropout; leave it out"},
    {"num_experts num_local_experts n_routed_experts num_moe_experts", "set model.experts"},
    {"moe_router_topk num_experts_per_tok moe_top_k top_k_experts", "set model.experts_per_token"},
    {"moe_ffn_hidden_size moe_intermediate_size", "set model.expert_ffn"},
    {"moe_shared_expert_intermediate_size n_shared_experts", "set model.shared_ffn"},
    {"first_k_dense_replace moe_layer_freq", "set model.dense_layers"},
    {"expert_model_parallel_size expert_parallel expert_parallel_degree ep", "set parallel.expert"},
    {"router_aux_loss_coef moe_aux_loss_coeff", "set train.balance: loss and train.balance_rate"},
    {"moe_z_loss_coeff router_z_loss_coef", "set train.router_z_loss"},
    {"expert_tensor_parallel_size moe_expert_capacity_factor capacity_factor",
     "experts are never split and never drop tokens; leave it out"},
    {"sliding_window window_size", "sliding-window attention is " NOT_HERE},
    {"lora peft adapter", "adapters such as LoRA are " NOT_HERE},
    {"swiglu openai_gelu squared_relu activation_function hidden_act normalization disable_bias_linear "
     "position_embedding_type use_rotary_position_embeddings",
     "the family decides norm, activation, biases and positions; set model.family: llama or gpt"},
    // --- optimizer
    {"optimizer optim optimizer_name optimizer_type", "set train.optimizer: adamw or muon"},
    {"muon use_muon dist_muon", "set train.optimizer: muon"},
    {"sgd adafactor lion shampoo soap", "train.optimizer is adamw or muon; other optimizers are " NOT_HERE},
    {"momentum momentum_beta muon_beta", "set train.muon_momentum, with train.optimizer muon"},
    {"muon_extra_scale_factor extra_scale_factor muon_scale_mode rms_scale adjust_lr_fn muon_update_rms",
     "set train.muon_scale: an update is scaled by it times the square root of the matrix's longer side"},
    {"muon_lr matrix_lr lr_muon embedding_lr unembedding_lr adam_lr",
     "train.lr is for all tensors; train.muon_scale sets how far matrices move"},
    {"ns_steps muon_num_ns_steps num_ns_steps ns_coefficients muon_coefficient_type muon_use_nesterov muon_split_qkv "
     "muon_tp_mode muon_fp32_matmul_prec",
     "Muon takes five Newton-Schulz steps and Nesterov momentum, with q, k and v separate; leave it out"},
    {"learning_rate max_lr peak_lr", "set train.lr"},
    {"min_lr lr_min decay_lr_min", "set train.min_lr_ratio, the final learning rate as a fraction of train.lr"},
    {"lr_warmup_samples warmup_ratio lr_warmup_fraction", "set train.warmup_steps, in steps"},
    {"lr_schedule lr_decay_style lr_scheduler lr_scheduler_type scheduler decay_type learning_rate_schedule",
     "set train.schedule"},
    {"warmup warmup_iters lr_warmup_iters lr_warmup_steps num_warmup_steps", "set train.warmup_steps"},
    {"clip_grad max_grad_norm max_norm gradient_clip_val gradient_clipping", "set train.grad_clip"},
    {"adam_beta1 betas", "set train.beta1 and train.beta2"},
    {"adam_beta2", "set train.beta2"},
    {"adam_eps adam_epsilon epsilon", "set train.eps"},
    {"wd", "set train.weight_decay"},
    {"bf16 fp16 fp32 dtype torch_dtype mixed_precision mixed_precision_param params_dtype",
     "set train.precision: fp32 or bf16"},
    {"fp8 fp8_recipe float8 fp8_format", "set train.fp8: tensor, block or mx"},
    {"products", "set hardware.products_file, which --tune writes"},
    // --- parallelism
    {"tensor_model_parallel_size tensor_parallel_degree tensor_parallel tp tp_size", "set parallel.tensor"},
    {"pipeline_model_parallel_size pipeline_parallel_degree pipeline_parallel pp pp_size", "set parallel.pipeline"},
    {"data_parallel_size data_parallel_replicate_degree dp dp_size", "set parallel.data"},
    {"sequence_parallel enable_sequence_parallel sp", "set parallel.sequence"},
    {"tp_comm_overlap sequence_parallel_overlap", "set parallel.overlap"},
    {"context_parallel_size context_parallel_degree context_parallel cp", "set parallel.context"},
    {"zero zero_stage use_distributed_optimizer fsdp data_parallel_shard_degree distributed_optimizer",
     "optimizer states are always divided among the parallel.data ranks (ZeRO-1); leave it out, or set "
     "parallel.shard_gradients for ZeRO-2"},
    {"pipeline_parallel_schedule pipeline_schedule", "set schedule.name"},
    {"num_layers_per_virtual_pipeline_stage virtual_pipeline_model_parallel_size num_virtual_stages",
     "set schedule.chunks, the pieces of the model on a rank"},
    {"recompute_granularity recompute_activations activation_checkpoint activation_checkpointing "
     "gradient_checkpointing "
     "recompute_num_layers recompute_method selective_ac_option",
     "set schedule.recompute_layers for whole layers, schedule.recompute: pointwise, or attention.mode: flash for "
     "less"},
    {"cpu_offload offload_activations cpu_offloading", "set schedule.evict_to: host"},
    {"nproc_per_node nnodes node_rank master_addr master_port rdzv_backend rdzv_endpoint rdzv_id num_gpus world_size",
     "on one machine the program starts its ranks itself; on several, start it with srun or mpirun as in "
     "docs/slurm.md"},
    {"overlap_grad_reduce overlap_param_gather distributed_backend nccl_communicator_config_path",
     "gradient sums over data ranks always overlap the last backwards; leave it out"},
    {"comm checksum",
     "comm.checksum is gone: links and NCCL check what they carry, and scripts/verify.py compares runs; remove the "
     "key"},
    {"verify", "scripts/verify.py N TRAINER -c FILE compares runs bit by bit"},
    // --- the rest
    {"train_samples train_tokens", "set train.steps, or train.tokens with steps: auto"},
    {"data_path dataset dataset_path train_data_path train_data train_files input_bin", "set data.train"},
    {"valid_data_path val_data val_files input_val_bin", "set data.val"},
    {"eval_interval val_check_interval eval_steps val_loss_every", "set data.val_every"},
    {"eval_iters limit_val_batches", "set data.val_batches"},
    {"tokenizer tokenizer_model tokenizer_path tokenizer_type",
     "set sample.tokenizer; data are made with scripts/prepare_data.py"},
    {"save_interval checkpoint_every save_steps", "set checkpoint.every"},
    {"save save_dir output_dir out_dir checkpoint_folder dump_folder", "set checkpoint.dir"},
    {"load resume resume_from_checkpoint", "give --resume DIR, or checkpoint.init_from for only the weights"},
    {"pretrained_checkpoint init_from_hf hf_checkpoint model_name_or_path", "set checkpoint.init_from"},
    {"keep_latest_k save_total_limit", "set checkpoint.keep"},
    {"log_interval log_freq logging_steps log_every", "set log.every"},
    {"rampup_batch_size batch_size_rampup batch_size_warmup", "set train.batch_ramp, a list of [step, global_batch]"},
    {"init_method_std initializer_range init_stddev", "set train.init_std"},
    {"z_loss_coef softmax_auxiliary_loss auxiliary_loss_multiplier", "set train.z_loss"},
    {"lr_wsd_decay_iters decay_iters wsd_decay_steps lr_decay_steps", "set train.decay_steps, with train.schedule wsd"},
    {"lr_wsd_decay_style decay_style", "set train.decay_shape, with train.schedule wsd"},
    {"wandb wandb_project tensorboard tensorboard_dir enable_wandb report_to",
     "every step goes to log.metrics, which scripts/metrics.py converts for TensorBoard"},
    {"compile torch_compile use_compile", "there is nothing to compile; leave it out"},
};

static const struct {
    const char *key, *words, *ours;
} values[] = {
    {"schedule.name", "interleaved1f1b interleaved_1f1b 1f1b_interleaved virtual_pipeline", "interleaved"},
    {"schedule.name", "onef_oneb one_f_one_b pipedream_flush", "1f1b"},
    {"schedule.name", "gpipe_schedule schedulegpipe fill_drain", "gpipe"},
    {"schedule.name", "zbvzerobubble zero_bubble_v zbv", "zb-v"},
    {"schedule.name", "interleavedzerobubble zero_bubble zb zb_h1 zbh1", "zb-d"},
    {"schedule.name", "dualpipe dualpipev scheduledualpipev", "dualpipe-v"},
    {"schedule.name", "vhalf", "v-half"},
    {"schedule.name", "vmin", "v-min"},
    {"train.schedule", "cosine_with_warmup cosine_annealing cosineannealinglr", "cosine"},
    {"train.schedule", "constant_with_warmup", "constant"},
    {"train.schedule", "warmup_stable_decay trapezoidal", "wsd"},
    {"train.decay_shape", "minus_sqrt minus_sqrt_decay one_minus_sqrt", "1-sqrt"},
    {"train.optimizer", "adam adamw_fused fused_adam fusedadam distributed_fused_adam adamw_torch", "adamw"},
    {"train.optimizer", "dist_muon muonwithadamw muon_adamw muonclip", "muon"},
    {"train.precision", "bf16_mixed bfloat16 amp bf16_true", "bf16"},
    {"train.precision", "fp16 float16 fp16_mixed", "bf16"},
    {"train.precision", "float32 32 tf32", "fp32"},
    {"attention.mode", "sdpa flash_attention_2 fa2 fa3 flash_attn", "flash"},
    {"attention.mode", "eager math full", "none"},
    {"attention.mode", "selective", "recompute"},
    {"schedule.recompute", "full uniform block layers all", "schedule.recompute_layers for whole layers"},
    {"schedule.recompute", "moe moe_layer", "experts"},
    {"schedule.recompute", "selective", "pointwise"},
};

// Returns whether the first `length` letters of `word` are one of `words`.
static bool is_one_of_(const char *word, size_t length, const char *words) {
    for (const char *at = words; *at != '\0'; at += strspn(at, " ")) {
        size_t size = strcspn(at, " "), i = 0;
        while (size == length && i < size && (word[i] == '-' ? '_' : tolower((unsigned char)word[i])) == at[i]) i++;
        if (size > 0 && i == size) return true;
        at += size;
    }
    return false;
}

const char *hint_for_key(const char *name) {
    const char *dot = strrchr(name, '.'), *word = dot == NULL ? name : dot + 1;
    size_t count = sizeof keys / sizeof keys[0];
    for (size_t i = 0; i < count; i++)
        if (is_one_of_(word, strlen(word), keys[i].words)) return keys[i].answer;
    // Then look up the section: `optimizer` in torchtitan's optimizer.name.
    for (size_t i = 0; dot != NULL && i < count; i++)
        if (is_one_of_(name, (size_t)(dot - name), keys[i].words)) return keys[i].answer;
    return NULL;
}

const char *hint_for_word(const char *key, const char *word) {
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        if (strcmp(values[i].key, key) == 0 && is_one_of_(word, strlen(word), values[i].words)) return values[i].ours;
    return NULL;
}

const char *hint_near_key(const char *name) {
    const char *near = NULL, *dot = strrchr(name, '.');
    int best = INT_MAX;
    for (int i = 0; i < config_key_count; i++) {
        const ConfigKey *key = &config_keys[i];
        size_t section = (size_t)(config_short_name(key) - key->name);
        const char *typed = strncmp(name, key->name, section) == 0 ? name + section : name;
        if (suggest_nearer(typed, typed == name ? key->name : config_short_name(key), &best)) near = key->name;
    }
    for (int i = 0; near == NULL && i < config_key_count; i++)
        if (suggest_nearer(dot != NULL ? dot + 1 : name, config_short_name(&config_keys[i]), &best))
            near = config_keys[i].name;
    return near;
}

bool hint_for_option(const char *typed, const char *next, char *out, size_t size) {
    char name[80];
    bool dashes = typed[0] == '-';
    const char *equals = strchr(typed, '=');
    if (!dashes && equals == NULL) return false;
    const char *value = equals != NULL ? equals + 1 : next != NULL && next[0] != '-' ? next : NULL;
    typed += strspn(typed, "-");
    snprintf(name, sizeof name, "%.*s", (int)strcspn(typed, "="), typed);
    for (char *at = name; *at != '\0'; at++)
        if (*at == '-') *at = '_';
    const char *hint = hint_for_key(name), *near = hint_near_key(name);
    if (near != NULL && strchr(name, '.') == NULL && strcmp(name, strchr(near, '.') + 1) != 0) near = NULL;
    const ConfigKey *key = config_find(name);
    if (key == NULL && hint != NULL) {
        // If the hint is only "set KEY" or "set KEY, in sequences", the user's value is also valid for KEY.
        char ours[64], rest[16] = "";
        int found = sscanf(hint, "set %63[^,;: ]%15[^\n]", ours, rest);
        if (found == 1 || strcmp(rest, ", in sequences") == 0) key = config_find(ours);
        if (key == NULL || value == NULL) return snprintf(out, size, "no such option; %s", hint) > 0;
    }
    if (key == NULL && near != NULL) key = config_find(near);
    if (key == NULL) return false;
    snprintf(out, size, "%s; write -o %s=%.60s", dashes ? "no such option" : "is not an option", key->name,
             value != NULL ? value : "VALUE");
    return true;
}

// --- "did you mean": the nearest of a list of words. Case is ignored: people also write "1F1B".

enum { MAX_WORD = 63 };

static bool suggest_same_(char a, char b) { return tolower((unsigned char)a) == tolower((unsigned char)b); }

int suggest_distance(const char *a, const char *b) {
    int na = (int)strnlen(a, MAX_WORD + 1), nb = (int)strnlen(b, MAX_WORD + 1);
    if (na > MAX_WORD || nb > MAX_WORD) return INT_MAX;
    int d[MAX_WORD + 1][MAX_WORD + 1]; // d[i][j]: distance of the first i letters of a and the first j of b
    for (int i = 0; i <= na; i++) d[i][0] = i;
    for (int j = 0; j <= nb; j++) d[0][j] = j;
    for (int i = 1; i <= na; i++)
        for (int j = 1; j <= nb; j++) {
            int replace = d[i - 1][j - 1] + !suggest_same_(a[i - 1], b[j - 1]);
            d[i][j] = min_int(replace, 1 + min_int(d[i - 1][j], d[i][j - 1]));
            bool swapped = i > 1 && j > 1 && suggest_same_(a[i - 1], b[j - 2]) && suggest_same_(a[i - 2], b[j - 1]);
            if (swapped) d[i][j] = min_int(d[i][j], d[i - 2][j - 2] + 1);
        }
    return d[na][nb];
}

bool suggest_nearer(const char *typed, const char *known, int *best) {
    int distance = suggest_distance(typed, known);
    // A third of the letters may be wrong, and in any word at least one.
    int allowed = (int)strnlen(known, MAX_WORD) / 3;
    if (allowed < 1) allowed = 1;
    if (distance > allowed || distance >= *best) return false;
    *best = distance;
    return true;
}

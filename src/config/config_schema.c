// The schema: one row per key, in the order of `--help-config`. A new key needs one row here and one field in Config.
#include "config_schema.h"
#include "gpus.h"

#include <string.h>

// The words of a key, in the order of its enum in config.h.
#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define MODES      WORDS("none", "recompute", "flash")
#define RECOMPUTES WORDS("none", "experts", "pointwise")

// Columns that every key of a type needs are positional, the meaning last. Optional columns follow by name: INT(model,
// kv_heads, "auto", 1, 65536, "key and value heads", .zero_word = "auto").
#define FIELD(type, field) .offset = offsetof(type, field), .size = sizeof(((type *)0)->field)
#define KEY(section, key, field, kind, default_, ...)                                                                  \
    { .name = #section "." #key, .type = kind, FIELD(Config, section.field), .def = default_, .meaning = __VA_ARGS__ }
#define INT(section, key, default_, low, high, ...)                                                                    \
    KEY(section, key, key, KEY_INT, default_, __VA_ARGS__, .min = low, .max = high)
#define NUMBER(section, key, default_, low, high, ...)                                                                 \
    KEY(section, key, key, KEY_NUMBER, default_, __VA_ARGS__, .min = low, .max = high)
// An integer, or "auto", which is the default.
#define AUTO(section, key, low, high, ...) INT(section, key, "auto", low, high, __VA_ARGS__, .zero_word = "auto")
// A number above 0; a figure of the hardware may also be "auto", which is the default.
#define ABOVE(section, key, default_, high, ...)                                                                       \
    NUMBER(section, key, default_, 0, high, __VA_ARGS__, .flags = KEY_ABOVE_MIN)
#define FIGURE(section, key, high, ...)          ABOVE(section, key, "auto", high, __VA_ARGS__, .zero_word = "auto")
#define BOOL(section, key, default_, ...)        KEY(section, key, key, KEY_BOOL, default_, __VA_ARGS__, .max = 1)
#define WORD(section, key, default_, list_, ...) KEY(section, key, key, KEY_WORD, default_, __VA_ARGS__, .words = list_)
#define TEXT(section, key, default_, ...)                                                                              \
    KEY(section, key, key, KEY_TEXT, default_, __VA_ARGS__, .max = CONFIG_TEXT - 1)
#define LIST(section, key, field, default_, list_, ...)                                                                \
    KEY(section, key, field, KEY_LIST, default_, __VA_ARGS__, .list = &list_)

// Bounds are generous but finite; products of keys that could still overflow 64 bits are checked in config_check.c.
// Integers are at most 2^53, so that every reader of the JSON sees the same number.
#define MAX_LAYERS 4096
#define MAX_WIDTH  (1 << 20)
#define MAX_LENGTH (1 << 22)
#define MAX_BATCH  (1 << 24)
#define MAX_COUNT  1e12
#define MAX_EXACT  9007199254740992.0

#define PART(type_, field, kind) .name = #field, .type = kind, FIELD(type_, field), .meaning = ""

// The parts of a list's entry. An entry that is one value has one part without a name.
static const ConfigKey layer_count_[] = {{.type = KEY_INT, .size = sizeof(int16_t), .max = MAX_LAYERS, .meaning = ""}};
static const ConfigKey mode_word_[] = {{.type = KEY_WORD, .size = sizeof(int8_t), .words = MODES, .meaning = ""}};
static const ConfigKey recompute_word_[] = {
    {.type = KEY_WORD, .size = sizeof(int8_t), .words = RECOMPUTES, .meaning = ""}};
static const ConfigKey source_parts_[] = {
    {PART(DataSource, path, KEY_TEXT), .min = 1, .max = CONFIG_TEXT - 1},
    {PART(DataSource, weight, KEY_NUMBER), .def = "1", .max = 1e9, .flags = KEY_ABOVE_MIN},
};

static const ConfigKey ramp_parts_[] = {
    {PART(BatchRamp, step, KEY_INT), .max = MAX_COUNT},
    {PART(BatchRamp, global_batch, KEY_INT), .min = 1, .max = MAX_BATCH},
};

#define ENTRIES(given_, valid_, type, parts_)                                                                          \
    .given = offsetof(Config, given_), .valid = offsetof(Config, valid_), .entry = sizeof(type), .parts = parts_,      \
    .part_count = sizeof parts_ / sizeof *parts_

static const ConfigList layers_list = {ENTRIES(parallel.layers_given, parallel.layers_count, int16_t, layer_count_),
                                       .most = CONFIG_MAX_STAGES,
                                       .expected = "a list with the layers of each stage such as [2, 3, 3, 2]",
                                       .form = "an integer, the layers of one stage or chunk"};
static const ConfigList mode_list = {
    ENTRIES(attention.modes_given, attention.modes_given, int8_t, mode_word_), .most = CONFIG_MAX_STAGES, .alone = true,
    .expected = "a list with one word per stage such as [recompute, flash]", .form = "a word"};
static const ConfigList recompute_list = {
    ENTRIES(schedule.recompute_given, schedule.recompute_given, int16_t, layer_count_), .most = CONFIG_MAX_STAGES,
    .alone = true, .expected = "a list with one integer per stage such as [2, 1, 0, 0]", .form = "an integer"};
static const ConfigList pointwise_list = {
    ENTRIES(schedule.pointwise_given, schedule.pointwise_given, int8_t, recompute_word_), .most = CONFIG_MAX_STAGES,
    .alone = true, .expected = "a list with one word per stage such as [pointwise, none]", .form = "a word"};
static const ConfigList source_list = {
    ENTRIES(data.train_sources, data.train_sources, DataSource, source_parts_), .most = CONFIG_MAX_SOURCES,
    .alone = true, .expected = "a list such as [{path: \"a/*.bin\", weight: 0.7}, {path: \"b/*.bin\", weight: 0.3}]",
    .form = "of the form {path: \"a/*.bin\", weight: 0.7}"};
static const ConfigList ramp_list = {
    ENTRIES(train.ramp_count, train.ramp_count, BatchRamp, ramp_parts_), .most = CONFIG_MAX_RAMP, .tuple = true,
    .expected = "a list such as [[1, 64], [1000, 128]]", .form = "a list [step, global_batch]"};

const ConfigKey config_keys[] = {
    WORD(model, family, NULL, family_words, "architecture; each trainer runs its own"),
    INT(model, hidden, NULL, 1, MAX_WIDTH, "width of the residual stream"),
    INT(model, layers, NULL, 1, MAX_LAYERS, "transformer layers of the whole model"),
    INT(model, heads, NULL, 1, 65536, "query heads; divides hidden"),
    AUTO(model, kv_heads, 1, 65536, "key and value heads; divides heads; auto: as many as heads"),
    AUTO(model, head_dim, 1, 2048, "width of a head; auto: hidden / heads"),
    INT(model, kv_lora, "0", 0, MAX_WIDTH, "latent attention: width that keys and values are compressed to; 0: off"),
    INT(model, q_lora, "0", 0, MAX_WIDTH, "latent attention: width that queries are compressed to"),
    INT(model, nope_dim, "0", 0, 1024, "latent attention: unrotated dimensions of a query or key"),
    INT(model, rope_dim, "0", 0, 1024, "latent attention: rotated dimensions; all heads share those of the keys"),
    INT(model, v_dim, "0", 0, 2048, "latent attention: dimensions of a head's values"),
    INT(model, ffn, NULL, 1, MAX_LENGTH, "inner width of the feed-forward part"),
    INT(model, vocab, NULL, 1, MAX_LENGTH, "tokens in the vocabulary, before padding"),
    INT(model, seq_len, NULL, 1, MAX_LENGTH, "tokens in one sequence"),
    ABOVE(model, norm_eps, "1.0e-5", 1, "added to the variance in every norm; in those of latent attention it is 1e-6"),
    BOOL(model, qkv_bias, "false", "q, k and v have a bias, as in Qwen2; llama only"),
    BOOL(model, qk_norm, "false", "RMSNorm over each head of q and k, as in Qwen3; llama only"),
    INT(model, experts, "0", 0, 65536, "mixture of experts: experts per layer; 0: a dense model; llama only"),
    INT(model, experts_per_token, "0", 0, 32, "experts per token; required in a model with experts"),
    AUTO(model, expert_ffn, 1, MAX_LENGTH, "inner width of an expert; auto: ffn"),
    INT(model, shared_ffn, "0", 0, MAX_LENGTH, "inner width of the shared expert, which sees every token; 0: none"),
    INT(model, dense_layers, "0", 0, MAX_LAYERS, "number of leading layers that have a dense ffn instead of experts"),
    WORD(model, router, "softmax", WORDS("softmax", "sigmoid"),
         "how the router scores experts; a token goes to those with the highest scores"),
    INT(model, router_groups, "1", 1, 32, "groups of experts; a token's experts are in router_group_top of them"),
    INT(model, router_group_top, "1", 1, 32, "how many groups, those with the highest scores, a token may use"),
    ABOVE(model, router_scale, "1", 1e6, "scales the weights of a token's experts"),
    BOOL(model, router_normalize, "true", "divide the weights of a token's experts by their sum"),
    NUMBER(model, rope_theta, "10000", 1, 1e12, "base of the rotary embedding; llama only"),
    ABOVE(model, rope_share, "1", 1, "fraction of a head's dimensions that is rotated, from the first on; llama only"),
    WORD(model, rope_scaling, "none", WORDS("none", "linear", "llama3", "yarn"),
         "how rotary frequencies are scaled for longer sequences; llama only"),
    NUMBER(model, rope_factor, "1", 1, 1e6, "by how much rope_scaling stretches the sequence"),
    AUTO(model, rope_original, 1, MAX_LENGTH, "sequence length before llama3 or yarn scaling, which need it"),
    ABOVE(model, rope_low_freq, "1", 1e6, "llama3: low_freq_factor"),
    ABOVE(model, rope_high_freq, "4", 1e6, "llama3: high_freq_factor"),
    ABOVE(model, rope_beta_fast, "32", 1e6, "yarn: frequencies with more turns than this are unchanged"),
    ABOVE(model, rope_beta_slow, "1", 1e6, "yarn: frequencies with fewer turns than this are divided by rope_factor"),
    NUMBER(model, rope_attention, "auto", 0, 1e3, "yarn: factor of q and k; auto: 0.1 ln(rope_factor) + 1",
           .zero_word = "auto"),
    NUMBER(model, rope_mscale, "0", 0, 100, "yarn with latent attention: mscale_all_dim, which scales the scores"),
    BOOL(model, causal, "true", "attention sees only earlier tokens; false: all of the sequence, for encoders"),
    WORD(model, tie_embeddings, "auto", WORDS("auto", "false", "true"),
         "tie the output matrix to the embedding; auto: yes for gpt, no for llama"),

    INT(parallel, pipeline, "1", 1, CONFIG_MAX_STAGES, "p: pipeline stages"),
    INT(parallel, tensor, "1", 1, 1024, "t: ranks that split every layer; divides heads, kv_heads and ffn"),
    INT(parallel, data, "1", 1, 65536, "d: copies of the pipeline, each with its share of the batch"),
    INT(parallel, context, "1", 1, 1024, "c: ranks that share a sequence, each with two of 2c pieces"),
    INT(parallel, expert, "1", 1, 65536, "e: ranks that divide a stage's experts; divides tensor * context * data"),
    BOOL(parallel, sequence, "false", "split norms and residuals over the tensor ranks along the sequence"),
    WORD(parallel, overlap, "auto", WORDS("auto", "off", "on", "2", "3", "4"),
         "overlap tensor-parallel collectives with products; n: forward products in n strips of rows"),
    WORD(parallel, collectives, "auto", WORDS("auto", "nccl", "copy"),
         "tensor ranks gather by NCCL or copy engines (needs sequence: true); auto: copy if possible"),
    WORD(parallel, shard_gradients, "off", WORDS("off", "on", "auto"),
         "data ranks keep only their pieces of gradients; needs 1 stage and 1 microbatch a step"),
    WORD(parallel, placement, "linear", WORDS("linear", "adjacent", "stages"),
         "adjacent: BPipe partners are neighbours; stages: all ranks of a stage are neighbours"),
    LIST(parallel, layers, layers_per_stage, "auto", layers_list,
         "layers of each stage or virtual stage, such as [2, 3, 3, 2]; 0 is allowed; auto: even", .zero_word = "auto"),

    WORD(schedule, name, "1f1b", schedule_words, "order of forwards and backwards; auto: the fastest that fits"),
    AUTO(schedule, chunks, 1, 64, "chunks of layers per stage; auto: 2 if the schedule supports several"),
    INT(schedule, group, "auto", 1, 65536, "gis: microbatches in a row on one chunk; auto: p, half: ceil(p/2)",
        .zero_word = "auto", .words = WORDS("half")),
    INT(schedule, delay, "auto", 0, 65536, "zb-d: delay of weight gradients in microbatches; auto: p-1",
        .words = WORDS("auto")),
    INT(schedule, slices, "1", 1, 64,
        "parts of a sequence that pass through the pipeline in turn; seq1f1b, interleaved"),
    WORD(schedule, split_backward, "auto", WORDS("auto", "on", "off"),
         "compute weight gradients after the input's gradient is sent; auto: on GPUs where that pays"),
    TEXT(schedule, file, "", "run the schedule in this file, see docs/schedules.md; empty: schedule.name"),
    WORD(schedule, bpipe, "off", WORDS("off", "on", "auto"),
         "balance activation memory between paired stages; auto: if it pays"),
    AUTO(schedule, slots, 1, 65536, "with bpipe: activation slots per stage; auto: the fewest that work"),
    AUTO(schedule, load_ahead, 1, 65536, "with bpipe: how many backwards ahead a bundle is loaded; auto: 1 to 3"),
    INT(schedule, micro_batch, "1", 1, 65536, "b: sequences in one microbatch"),
    WORD(schedule, evict_to, "peer", WORDS("peer", "host"),
         "where evicted activations go: paired stage or host memory"),
    LIST(schedule, recompute_layers, recompute_of_stage, "0", recompute_list,
         "layers per stage, or a list, whose forward is recomputed in the backward"),
    LIST(schedule, recompute, pointwise_of_stage, "none", pointwise_list,
         "experts: recompute their first product; pointwise: also norms, activation; or a list", .words = RECOMPUTES),
    NUMBER(schedule, expert_rows, "1.25", 1, 65536,
           "rows of the experts' buffers over balanced routing's; rows beyond them take more rounds"),

    LIST(attention, mode, mode_of_stage, "flash", mode_list,
         "none: store the probabilities; recompute or flash: do not; or a list", .words = MODES),
    WORD(attention, softmax, "fused", WORDS("fused", "unfused", "megatron"),
         "megatron: fused only where Megatron-LM's kernel would be"),
    WORD(attention, deterministic, "auto", WORDS("auto", "on", "off"),
         "flash on GPUs: the same bits in every run; auto: on compute capability 9.x and 10.x"),

    INT(train, global_batch, "8", 1, MAX_BATCH, "B: sequences in one step, over all data ranks"),
    LIST(train, batch_ramp, batch_ramp, "none", ramp_list,
         "[[step, global_batch], ...]: sequences per step, from that step on", .zero_word = "none"),
    INT(train, steps, "100", 1, MAX_COUNT,
        "total steps, including those before a resume; auto: enough for train.tokens", .zero_word = "auto"),
    AUTO(train, tokens, 1, MAX_EXACT,
         "total training tokens, for steps auto and for days and cost in plans; auto: from steps"),
    INT(train, seed, "1337", 0, MAX_EXACT, "random seed of initial weights and of the order of samples"),
    NUMBER(train, lr, "3.0e-4", 0, 100, "learning rate after the warm-up"),
    NUMBER(train, min_lr_ratio, "0.1", 0, 1, "learning rate at the end, as a fraction of lr"),
    INT(train, warmup_steps, "0", 0, MAX_COUNT, "steps until lr is reached; may exceed steps"),
    WORD(train, schedule, "cosine", WORDS("cosine", "linear", "constant", "wsd"),
         "learning rate after the warm-up; wsd: constant, then a decay at the end"),
    AUTO(train, decay_steps, 1, MAX_COUNT, "wsd: steps of the decay; auto: a tenth of the steps after the warm-up"),
    WORD(train, decay_shape, "linear", WORDS("linear", "cosine", "sqrt", "1-sqrt"),
         "wsd: shape of the decay; sqrt, 1-sqrt: 1 - sqrt(done)"),
    WORD(train, objective, "next", WORDS("next", "masked"),
         "the next token, or 15 % of tokens that are masked (encoders)"),
    ABOVE(train, init_std, "0.02", 1e3,
          "standard deviation of initial weights, less for projections into the residual stream"),
    NUMBER(train, z_loss, "0", 0, 1e3, "adds z_loss * log(Z)^2 per token, Z being the softmax's sum; 0: off"),
    WORD(train, balance, "off", WORDS("off", "loss", "bias"),
         "how to balance the experts: by a loss, or by a bias on the routing scores"),
    ABOVE(train, balance_rate, "1.0e-3", 1e3, "factor of the balance loss, or change of the bias per step"),
    NUMBER(train, router_z_loss, "0", 0, 1e3,
           "adds router_z_loss * log(Z)^2 per token and layer, Z being the router's sum; 0: off"),
    WORD(train, optimizer, "adamw", WORDS("adamw", "muon"),
         "muon: Muon for the layers' matrices, AdamW for everything else"),
    NUMBER(train, muon_momentum, "0.95", 0, 1, "Muon: decay rate of the momentum", .flags = KEY_BELOW_MAX),
    ABOVE(train, muon_scale, "0.2", 1e3, "Muon: RMS of an update at lr 1; 0.2 as with AdamW, so its lr carries over"),
    NUMBER(train, weight_decay, "0.1", 0, 100, "decoupled weight decay, except on norms and biases"),
    NUMBER(train, beta1, "0.9", 0, 1, "AdamW: decay rate of the first moment", .flags = KEY_BELOW_MAX),
    NUMBER(train, beta2, "0.95", 0, 1, "AdamW: decay rate of the second moment", .flags = KEY_BELOW_MAX),
    ABOVE(train, eps, "1.0e-8", 1, "AdamW: added to the denominator"),
    NUMBER(train, grad_clip, "1.0", 0, 1e12, "the gradient is clipped to this norm; 0: no clipping"),
    WORD(train, precision, "fp32", WORDS("fp32", "bf16"),
         "bf16: matrix products and activations; weights keep fp32 masters"),
    WORD(train, fp8, "off", WORDS("off", "tensor", "block", "mx"),
         "bf16 only: layers' products in 8 bits; a scale per tensor, 128 (block) or 32 numbers (mx)"),
    INT(train, max_restarts, "0", 0, 1000000,
        "restarts from the newest checkpoint after a rank dies or falls silent; 0: none"),
    NUMBER(train, peer_timeout_s, "10", 0, 1e6, "end if a rank is silent for this many seconds; 0: never"),
    NUMBER(train, timeout_s, "600", 0, 1e9, "end if no rank makes progress for this many seconds; 0: never"),
    INT(train, skip_bad_steps, "0", 0, MAX_COUNT,
        "most steps that a run may skip because of NaN or inf, consecutive or not"),
    NUMBER(train, skip_outlier_z, "0", 0, 1e12,
           "skip steps with loss or norm this many deviations above the last 32 to 128 steps; 0: off"),

    LIST(data, train, train, NULL, source_list,
         "token files to train on, a glob such as \"data/train_*.bin\", or a blend of several"),
    TEXT(data, val, "", "token files to validate on, a glob; empty: no validation"),
    INT(data, val_every, "0", 0, MAX_COUNT, "steps between validations; 0: none"),
    INT(data, val_batches, "8", 1, MAX_COUNT, "batches in one validation"),
    BOOL(data, mixed_tokenizers, "false", "allow data of different tokenizers in one run"),
    INT(data, mask_token, "none", 0, MAX_LENGTH, "objective masked: the token that replaces masked tokens",
        .words = WORDS("none")),
    WORD(data, mask_documents, "off", WORDS("off", "on"), "attention sees only the tokens of its own document"),
    WORD(data, reset_positions, "off", WORDS("off", "on"), "positions count from the beginning of the document"),
    INT(data, end_of_text, "auto", 0, MAX_LENGTH, "the token that begins every document; auto: known from the data",
        .words = WORDS("auto")),
    TEXT(data, hellaswag, "", "multiple-choice evaluation file, see docs/watching.md; empty: none"),
    INT(data, hellaswag_every, "0", 0, MAX_COUNT, "steps between evaluations of data.hellaswag; 0: none"),

    INT(sample, every, "0", 0, MAX_COUNT, "steps between samples of the model's text while training; 0: none"),
    TEXT(sample, prompt, "", "text that samples continue; empty: the start of a document"),
    WORD(sample, begin, "auto", WORDS("auto", "on", "off"),
         "put the token that begins documents before prompts; auto: if known and prompts are text"),
    INT(sample, tokens, "100", 1, 1000000, "maximum tokens in a sample, after the prompt"),
    INT(sample, count, "1", 1, 65536, "samples from one prompt, micro_batch of them at a time"),
    NUMBER(sample, temperature, "0.8", 0, 1000, "divides the logits; 0: always the likeliest token"),
    INT(sample, top_k, "0", 0, 1000, "choose among this many of the likeliest tokens; 0: all"),
    INT(sample, seed, "1337", 0, MAX_EXACT, "random seed for choosing tokens"),
    TEXT(sample, tokenizer, "", "bytes, ids, a tokenizer.json or a *.model; empty: the data's own tokenizer, if known"),

    TEXT(checkpoint, dir, "", "where checkpoints go; empty: none are written"),
    INT(checkpoint, every, "0", 0, MAX_COUNT, "steps between checkpoints; 0: none, not even at the end"),
    INT(checkpoint, keep, "3", 1, 1000000, "number of newest checkpoints to keep"),
    INT(checkpoint, keep_every, "0", 0, 1000000, "also keep checkpoints of steps divisible by N * every; 0: none"),
    TEXT(checkpoint, init_from, "", "weights to start from; empty: random ones"),
    BOOL(checkpoint, overwrite, "false",
         "start in another run's folder; its checkpoints are removed after the first save"),
    WORD(checkpoint, changed, "refuse", WORDS("refuse", "accept"),
         "whether to resume with different data, seed, seq_len, rope_* or optimizer"),

    TEXT(log, metrics, "", "JSON lines are appended to this file; empty: none"),
    INT(log, every, "1", 1, MAX_COUNT, "steps between step lines; log.metrics has every step"),
    BOOL(log, experts, "false", "write the token count of each expert in each layer to log.metrics at every step"),

    WORD(hardware, device, "auto", WORDS("auto", "cpu", "cuda"), "where to compute; auto: on GPUs if there are any"),
    WORD(hardware, gpu, "none", gpu_words,
         "fills the keys below from data sheets; keys given in the same place take precedence"),
    WORD(hardware, trainer, "this", trainer_words,
         "for plans: whose days and band (nvidia: NeMo, Megatron-Core; megatron: Megatron-LM)"),
    FIGURE(hardware, peak_tflops, 1e9, "peak of one rank, 1e12 FLOP/s; auto: known or measured"),
    FIGURE(hardware, memory_gib, 1e9, "memory of one rank; auto: ask the device"),
    FIGURE(hardware, memory_gb_s, 1e9, "memory bandwidth of the device, 1e9 bytes/s; auto: from its peak"),
    NUMBER(hardware, reserve_gib, "4", 0, 1e9, "memory that context, libraries and NCCL use in addition"),
    INT(hardware, gpus_per_node, "8", 1, 1024, "ranks that share one node"),
    AUTO(hardware, gpus_per_domain, 1, 1024,
         "for plans: ranks connected by NVLink, across nodes in NVL72; auto: one node's"),
    BOOL(hardware, share_gpu, "false", "let several ranks share one GPU"),
    ABOVE(hardware, pair_gb_s, "240", 1e9, "between paired stages, per rank, 1e9 bytes/s one way"),
    ABOVE(hardware, tensor_gb_s, "240", 1e9, "between tensor ranks, per rank, 1e9 bytes/s one way"),
    ABOVE(hardware, network_gb_s, "25", 1e9,
          "between nodes, per node, 1e9 bytes/s one way: a long all_reduce_perf's bus bandwidth"),
    ABOVE(hardware, host_gb_s, "25", 1e9, "to host memory, per rank, 1e9 bytes/s one way"),
    NUMBER(hardware, latency_us, "10", 0, 1e9, "latency of one message, microseconds"),
    FIGURE(hardware, matmul_efficiency, 1,
           "for plans: share of the peak that long products reach; auto: as measured, on CPUs 0.9"),
    FIGURE(hardware, matmul_half, 1e6,
           "for plans: inner size k at which products run at half rate; auto: as measured, on CPUs 8"),
    FIGURE(hardware, flash_forward, 1,
           "for plans: share of the peak in long flash forwards; auto: as measured, on CPUs 0.45"),
    FIGURE(hardware, flash_backward, 1, "for plans: peak share of flash backwards; auto: as measured, on CPUs 0.45"),
    FIGURE(hardware, stream_gb_s, 1e9,
           "for plans: rate of memory passes; auto: 0.72 to 0.8 of memory_gb_s, on CPUs 8 per thread"),
    ABOVE(hardware, run_share, "1", 1, "for plans: fraction of the measured kernels' rates that runs reach"),
    NUMBER(hardware, expert_spread, "auto", 0, 1e3,
           "for plans: deviation / mean of tokens per expert; 1e-6: even; auto: 0.3 for 128 experts",
           .flags = KEY_ABOVE_MIN | KEY_OF_RUN, .zero_word = "auto"),
    BOOL(hardware, calibrated, "false", "for plans: true if these figures were fitted to runs; sets the plan's band"),
    NUMBER(hardware, action_us, "0", 0, 1e9, "for plans: overhead of every forward and backward"),
    NUMBER(hardware, step_overhead_ms, "0", 0, 1e9, "for plans: overhead of every step"),
    NUMBER(hardware, gpu_hour, "auto", 0, 1e9, "price of one GPU hour, for plans; auto: unknown", .zero_word = "auto"),
    FIGURE(hardware, gpu_watts, 1e6, "power of one GPU, for plans; auto: its data sheet's maximum"),
    FIGURE(hardware, mtbf_hours, 1e9, "mean hours between failures of one node, for plans; auto: unknown"),
    ABOVE(hardware, checkpoint_s, "10", 1e6, "for plans: seconds that training stops for a checkpoint"),
    NUMBER(hardware, restart_s, "300", 0, 1e6, "for plans: seconds from a failure to the next step"),
    TEXT(hardware, profile, "profile.json", "measured stage times, written by --profile"),
    TEXT(hardware, products_file, "",
         "kernels for matrix products, from --tune; empty: the library's first suggestions"),
};

const int config_key_count = (int)(sizeof config_keys / sizeof config_keys[0]);
_Static_assert(sizeof config_keys / sizeof config_keys[0] <= CONFIG_MAX_KEYS, "Config.place has a place for every key");

const ConfigKey *config_find(const char *name) {
    for (int i = 0; i < config_key_count; i++)
        if (strcmp(config_keys[i].name, name) == 0) return &config_keys[i];
    return NULL;
}

int config_section(const char *section) {
    size_t length = strlen(section);
    for (int i = 0; i < config_key_count; i++)
        if (strncmp(config_keys[i].name, section, length) == 0 && config_keys[i].name[length] == '.') return i;
    return -1;
}

const char *config_short_name(const ConfigKey *key) { return strchr(key->name, '.') + 1; }

const char *config_word(const char *key_name, int value) {
    const ConfigKey *key = config_find(key_name);
    if (key == NULL || key->words == NULL || key->type == KEY_INT || value < 0) return "?";
    for (int i = 0; i <= value; i++)
        if (key->words[i] == NULL) return "?";
    return key->words[value];
}

bool config_takes_text(const ConfigKey *key) {
    return key->type == KEY_TEXT || (key->type == KEY_LIST && key->list->alone && key->list->parts[0].type == KEY_TEXT);
}

void config_expected(const ConfigKey *key, char *out, size_t n) {
    switch (key->type) {
    case KEY_INT:
    case KEY_NUMBER:
        snprintf(out, n, "%s %s %.16g %s %.16g", key->type == KEY_INT ? "an integer" : "a number",
                 key->flags & KEY_ABOVE_MIN ? "above" : "from", key->min,
                 key->flags & KEY_BELOW_MAX   ? "to below"
                 : key->flags & KEY_ABOVE_MIN ? "up to"
                                              : "to",
                 key->max);
        if (key->zero_word != NULL) text_add(out, n, ", or %s", key->zero_word);
        if (key->words != NULL) text_add(out, n, ", or %s", key->words[0]);
        if (key->flags & KEY_OF_RUN) text_add(out, n, ", or the log.metrics file of a run");
        break;
    case KEY_BOOL: snprintf(out, n, "true or false"); break;
    case KEY_WORD:
        snprintf(out, n, "one of ");
        for (int i = 0; key->words[i] != NULL; i++) text_add(out, n, "%s%s", i > 0 ? ", " : "", key->words[i]);
        break;
    case KEY_TEXT:
        snprintf(out, n, "a text of %s%.0f bytes%s", key->min > 0 ? "1 to " : "at most ", key->max,
                 key->min > 0 ? "" : ", \"\" for none");
        break;
    case KEY_LIST:
        snprintf(out, n, "%s", key->zero_word != NULL ? key->zero_word : "");
        if (key->list->alone) config_expected(&key->list->parts[0], out, n);
        text_add(out, n, ", or %s", key->list->expected);
        break;
    }
}

// --- errors name the place of the key: a line of the file, or the option -o

static void config_place_(const Config *config, int line, const char *name, char *where, size_t size) {
    if (line == CONFIG_OVERRIDE) snprintf(where, size, "-o %s", name);
    else if (line == CONFIG_DEFAULT) snprintf(where, size, "%s", config->path);
    else snprintf(where, size, "%s:%d", config->path, line);
}

int config_line(const Config *config, const char *name) {
    const ConfigKey *key = config_find(name);
    return key != NULL ? config->place[key - config_keys] : CONFIG_DEFAULT;
}

void config_where(const Config *config, const char *name, char *where, size_t size) {
    config_place_(config, config_line(config, name), name, where, size);
}

int config_error_at(const Config *config, int line, const char *name, Error *err, const char *format, ...) {
    char text[sizeof err->text], where[CONFIG_TEXT + 16];
    bool named = name != NULL && line != CONFIG_OVERRIDE;
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    config_place_(config, line, name != NULL ? name : "", where, sizeof where);
    return error_set(err, EXIT_USAGE, "%s%s%s: %s", where, named ? ": " : "", named ? name : "", text);
}

const char *config_blame(const Config *config, const char *first, const char *second) {
    bool overridden = config_line(config, second) == CONFIG_OVERRIDE;
    return overridden && config_line(config, first) != CONFIG_OVERRIDE ? second : first;
}

bool config_lacks(const Config *config, const ConfigKey *key) {
    return key->def == NULL && config->place[key - config_keys] == CONFIG_DEFAULT;
}

int config_require(const Config *config, const char *section, Error *err) {
    char missing[256] = "";
    for (int i = 0; i < config_key_count; i++) {
        const ConfigKey *key = &config_keys[i];
        if (strncmp(key->name, section, strlen(section)) != 0 || !config_lacks(config, key)) continue;
        text_add(missing, sizeof missing, "%s%s", missing[0] != '\0' ? ", " : "", key->name);
    }
    if (missing[0] == '\0') return 0;
    return config_error(config, missing, err, "missing, and without a default; see --help-config for what to give");
}

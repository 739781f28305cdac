// The schema: one row a key, in the order of `--help-config`. Adding a key means one row here and one field in Config.
#include "config_schema.h"
#include "gpus.h"

#include <string.h>

static const char *const tie_words[] = {[TIE_AUTO] = "auto", [TIE_FALSE] = "false", [TIE_TRUE] = "true", NULL};
static const char *const rope_words[] = {
    [ROPE_NONE] = "none", [ROPE_LINEAR] = "linear", [ROPE_LLAMA3] = "llama3", [ROPE_YARN] = "yarn", NULL};
static const char *const placement_words[] = {[PLACEMENT_LINEAR] = "linear", [PLACEMENT_ADJACENT] = "adjacent", NULL};
static const char *const shard_words[] = {[SHARD_OFF] = "off", [SHARD_ON] = "on", [SHARD_AUTO] = "auto", NULL};
static const char *const bpipe_words[] = {[BPIPE_OFF] = "off", [BPIPE_ON] = "on", [BPIPE_AUTO] = "auto", NULL};
static const char *const group_words[] = {"half", NULL};
static const char *const delay_words[] = {"auto", NULL};
static const char *const overlap_words[] = {[OVERLAP_AUTO] = "auto",
                                            [OVERLAP_OFF] = "off",
                                            [OVERLAP_ON] = "on",
                                            [OVERLAP_2] = "2",
                                            [OVERLAP_3] = "3",
                                            [OVERLAP_4] = "4",
                                            NULL};
static const char *const split_words[] = {[SPLIT_AUTO] = "auto", [SPLIT_ON] = "on", [SPLIT_OFF] = "off", NULL};
static const char *const evict_to_words[] = {[EVICT_TO_PEER] = "peer", [EVICT_TO_HOST] = "host", NULL};
static const char *const mode_words[] = {
    [ATTENTION_NONE] = "none", [ATTENTION_RECOMPUTE] = "recompute", [ATTENTION_FLASH] = "flash", NULL};
static const char *const softmax_words[] = {
    [SOFTMAX_FUSED] = "fused", [SOFTMAX_UNFUSED] = "unfused", [SOFTMAX_MEGATRON] = "megatron", NULL};
static const char *const deterministic_words[] = {
    [DETERMINISTIC_AUTO] = "auto", [DETERMINISTIC_ON] = "on", [DETERMINISTIC_OFF] = "off", NULL};
static const char *const lr_words[] = {
    [LR_COSINE] = "cosine", [LR_LINEAR] = "linear", [LR_CONSTANT] = "constant", [LR_WSD] = "wsd", NULL};
static const char *const precision_words[] = {[PRECISION_FP32] = "fp32", [PRECISION_BF16] = "bf16", NULL};
static const char *const checksum_words[] = {[CHECKSUM_OFF] = "off", [CHECKSUM_ON] = "on", NULL};
static const char *const device_words[] = {[DEVICE_AUTO] = "auto", [DEVICE_CPU] = "cpu", [DEVICE_CUDA] = "cuda", NULL};

#define FIELD(section, key) offsetof(Config, section.key), sizeof(((Config *)0)->section.key)
#define INT(section, key, def, min, max, zero_word, meaning)                                                           \
    { #section "." #key, KEY_INT, FIELD(section, key), def, min, max, 0, zero_word, NULL, meaning, NULL, NULL }
#define INTWORD(section, key, def, min, max, zero_word, words, meaning)                                                \
    { #section "." #key, KEY_INT, FIELD(section, key), def, min, max, 0, zero_word, words, meaning, NULL, NULL }
#define NUMBER(section, key, def, min, max, flags, zero_word, meaning)                                                 \
    { #section "." #key, KEY_NUMBER, FIELD(section, key), def, min, max, flags, zero_word, NULL, meaning, NULL, NULL }
#define BOOL(section, key, def, meaning)                                                                               \
    { #section "." #key, KEY_BOOL, FIELD(section, key), def, 0, 1, 0, NULL, NULL, meaning, NULL, NULL }
#define WORD(section, key, def, words, meaning)                                                                        \
    { #section "." #key, KEY_WORD, FIELD(section, key), def, 0, 0, 0, NULL, words, meaning, NULL, NULL }
#define TEXT(section, key, def, min_length, meaning)                                                                   \
    {                                                                                                                  \
#section "." #key, KEY_TEXT, FIELD(section, key), def, min_length, CONFIG_TEXT - 1, 0, NULL, NULL, meaning,    \
            NULL, NULL                                                                                                 \
    }
#define LIST(section, key, field, def, zero_word, list, meaning)                                                       \
    { #section "." #key, KEY_LIST, FIELD(section, field), def, 0, 0, 0, zero_word, NULL, meaning, &list, NULL }

#define LIST_OF_WORDS(section, key, field, def, words, list, meaning)                                                  \
    { #section "." #key, KEY_LIST, FIELD(section, field), def, 0, 0, 0, NULL, words, meaning, &list, NULL }

// Bounds are generous but finite; products that could still leave 64 bits are checked in config_check.c. Integers end
// at 2^53, so that every reader of the JSON sees the same number.
#define MAX_LAYERS 4096
#define MAX_WIDTH  (1 << 20)
#define MAX_LENGTH (1 << 22)
#define MAX_BATCH  (1 << 24)
#define MAX_COUNT  1e12
#define MAX_EXACT  9007199254740992.0

#define PART(name, type, struct_, field, def, min, max, flags)                                                         \
    {                                                                                                                  \
        name, type, offsetof(struct_, field), sizeof(((struct_ *)0)->field), def, min, max, flags, NULL, NULL, "",     \
            NULL, name                                                                                                 \
    }

static const ConfigKey layers_parts[] = {
    {NULL, KEY_INT, 0, sizeof(int64_t), NULL, 0, MAX_LAYERS, 0, NULL, NULL, "", NULL, NULL}};
static const ConfigList layers_list = {offsetof(Config, parallel.layers_given),
                                       offsetof(Config, parallel.layers_count),
                                       sizeof(int64_t),
                                       CONFIG_MAX_STAGES,
                                       layers_parts,
                                       1,
                                       false,
                                       "a list with the layers of each stage such as [2, 3, 3, 2]",
                                       "one integer per stage, or per chunk"};

static const ConfigKey mode_parts[] = {
    {NULL, KEY_WORD, 0, sizeof(int), NULL, 0, 0, 0, NULL, mode_words, "", NULL, NULL}};
static const ConfigList mode_list = {offsetof(Config, attention.modes_given),
                                     offsetof(Config, attention.modes_given),
                                     sizeof(int),
                                     CONFIG_MAX_STAGES,
                                     mode_parts,
                                     1,
                                     true,
                                     "a list with one for each stage such as [recompute, flash]",
                                     "one word per stage"};

static const ConfigKey recompute_parts[] = {
    {NULL, KEY_INT, 0, sizeof(int64_t), NULL, 0, MAX_LAYERS, 0, NULL, NULL, "", NULL, NULL}};
static const ConfigList recompute_list = {offsetof(Config, schedule.recompute_given),
                                          offsetof(Config, schedule.recompute_given),
                                          sizeof(int64_t),
                                          CONFIG_MAX_STAGES,
                                          recompute_parts,
                                          1,
                                          true,
                                          "a list with one for each stage such as [2, 1, 0, 0]",
                                          "one integer per stage"};

static const ConfigKey source_parts[] = {PART("path", KEY_TEXT, DataSource, path, NULL, 1, CONFIG_TEXT - 1, 0),
                                         PART("weight", KEY_NUMBER, DataSource, weight, "1", 0, 1e9, KEY_ABOVE_MIN)};
static const ConfigList source_list = {
    offsetof(Config, data.train_sources),
    offsetof(Config, data.train_sources),
    sizeof(DataSource),
    CONFIG_MAX_SOURCES,
    source_parts,
    2,
    true,
    "a list such as [{path: \"a/*.bin\", weight: 0.7}, {path: \"b/*.bin\", weight: 0.3}]",
    "{path: \"a/*.bin\", weight: 0.7}"};

const ConfigKey config_keys[] = {
    WORD(model, family, NULL, family_words, "architecture; each trainer runs its own"),
    INT(model, hidden, NULL, 1, MAX_WIDTH, NULL, "width of the residual stream"),
    INT(model, layers, NULL, 1, MAX_LAYERS, NULL, "transformer layers of the whole model"),
    INT(model, heads, NULL, 1, 65536, NULL, "query heads; divides hidden"),
    INT(model, kv_heads, "auto", 1, 65536, "auto", "key and value heads; divides heads; auto: as many as heads"),
    INT(model, head_dim, "auto", 1, 2048, "auto", "width of a head; auto: hidden / heads"),
    INT(model, ffn, NULL, 1, MAX_LENGTH, NULL, "inner width of the feed-forward part"),
    INT(model, vocab, NULL, 1, MAX_LENGTH, NULL, "tokens in the vocabulary, before padding"),
    INT(model, seq_len, NULL, 1, MAX_LENGTH, NULL, "tokens in one sequence"),
    NUMBER(model, norm_eps, "1.0e-5", 0, 1, KEY_ABOVE_MIN, NULL, "added to the variance in every norm"),
    BOOL(model, qkv_bias, "false", "q, k and v have a bias, as in Qwen2; llama only"),
    BOOL(model, qk_norm, "false", "RMSNorm over each head of q and k, as in Qwen3; llama only"),
    NUMBER(model, rope_theta, "10000", 1, 1e12, 0, NULL, "base of the rotary embedding; llama only"),
    WORD(model, rope_scaling, "none", rope_words, "how rotations are slowed down for longer sequences; llama only"),
    NUMBER(model, rope_factor, "1", 1, 1e6, 0, NULL, "by how much rope_scaling stretches the sequence"),
    INT(model, rope_original, "auto", 1, MAX_LENGTH, "auto",
        "sequence length before llama3 or yarn scaling, which need it"),
    NUMBER(model, rope_low_freq, "1", 0, 1e6, KEY_ABOVE_MIN, NULL, "llama3: low_freq_factor"),
    NUMBER(model, rope_high_freq, "4", 0, 1e6, KEY_ABOVE_MIN, NULL, "llama3: high_freq_factor"),
    NUMBER(model, rope_beta_fast, "32", 0, 1e6, KEY_ABOVE_MIN, NULL,
           "yarn: turns above which a frequency stays as it is"),
    NUMBER(model, rope_beta_slow, "1", 0, 1e6, KEY_ABOVE_MIN, NULL,
           "yarn: turns below which it is divided by the factor"),
    NUMBER(model, rope_attention, "auto", 0, 1e3, 0, "auto", "yarn: factor of q and k; auto: 0.1 ln(rope_factor) + 1"),
    WORD(model, tie_embeddings, "auto", tie_words,
         "tie the output matrix to the embedding; auto: yes for gpt, no for llama"),

    INT(parallel, pipeline, "1", 1, CONFIG_MAX_STAGES, NULL, "p: pipeline stages"),
    INT(parallel, tensor, "1", 1, 1024, NULL, "t: ranks that split every layer; divides heads, kv_heads and ffn"),
    INT(parallel, data, "1", 1, 65536, NULL, "d: copies of the pipeline, each with its share of the batch"),
    BOOL(parallel, sequence, "false", "split norms and residuals over the tensor ranks along the sequence"),
    WORD(parallel, overlap, "auto", overlap_words,
         "run collectives over tensor ranks beside products; n: the forward's in n chunks"),
    WORD(parallel, shard_gradients, "off", shard_words,
         "data ranks keep only their pieces of gradients; needs 1 stage and 1 microbatch a step"),
    WORD(parallel, placement, "linear", placement_words, "adjacent: the two stages of a BPipe pair are neighbours"),
    LIST(parallel, layers, layers_per_stage, "auto", "auto", layers_list,
         "layers of each stage, or virtual stage, such as [2, 3, 3, 2], 0 is allowed; auto: even"),

    WORD(schedule, name, "1f1b", schedule_words, "order of forwards and backwards; auto: the quickest that fits"),
    INT(schedule, chunks, "auto", 1, 64, "auto",
        "chunks of layers on every stage; auto: 2 where a schedule has several"),
    INTWORD(schedule, group, "auto", 1, 65536, "auto", group_words,
            "gis: microbatches in a row on one chunk; auto: p, half: ceil(p/2)"),
    INTWORD(schedule, delay, "auto", 0, 65536, NULL, delay_words,
            "zb-d: microbatches by which weight gradients come later; auto: p-1"),
    WORD(schedule, split_backward, "auto", split_words,
         "compute weight gradients after the input's has left; auto: on GPUs where that pays"),
    TEXT(schedule, file, "", 0, "run the schedule in this file, see docs/schedules.md; empty: the one named"),
    WORD(schedule, bpipe, "off", bpipe_words, "balance activation memory between paired stages; auto: if it pays"),
    INT(schedule, slots, "auto", 1, 65536, "auto", "with bpipe: activation slots per stage; auto: as few as work"),
    INT(schedule, load_ahead, "auto", 1, 65536, "auto",
        "with bpipe: how many backwards early a bundle is loaded; auto: 1 to 3"),
    INT(schedule, micro_batch, "1", 1, 65536, NULL, "b: sequences in one microbatch"),
    WORD(schedule, evict_to, "peer", evict_to_words, "where evicted activations go: paired stage or host memory"),
    LIST(schedule, recompute_layers, recompute_of_stage, "0", NULL, recompute_list,
         "layers per stage, or a list, whose forward runs again in the backward"),

    LIST_OF_WORDS(attention, mode, mode_of_stage, "flash", mode_words, mode_list,
                  "none: store the probabilities; recompute or flash: do not; or a list"),
    WORD(attention, softmax, "fused", softmax_words, "megatron: fused only where Megatron-LM's kernel would be"),
    WORD(attention, deterministic, "auto", deterministic_words,
         "flash on GPUs: the same bits at every run; auto: from compute capability 9.0 on"),

    INT(train, global_batch, "8", 1, MAX_BATCH, NULL, "B: sequences in one step, over all data ranks"),
    INT(train, steps, "100", 1, MAX_COUNT, NULL, "steps in total, also after a resume"),
    INT(train, tokens, "auto", 1, MAX_EXACT, "auto",
        "tokens of the whole training, for days and cost in plans; auto: those of steps"),
    INT(train, seed, "1337", 0, MAX_EXACT, NULL, "random seed of initial weights and of the order of samples"),
    NUMBER(train, lr, "3.0e-4", 0, 100, 0, NULL, "learning rate after the warm-up"),
    NUMBER(train, min_lr_ratio, "0.1", 0, 1, 0, NULL, "learning rate at the end, as a fraction of lr"),
    INT(train, warmup_steps, "0", 0, MAX_COUNT, NULL, "steps until lr is reached; may exceed steps"),
    WORD(train, schedule, "cosine", lr_words, "learning rate after the warm-up; wsd: constant, then linear at the end"),
    NUMBER(train, weight_decay, "0.1", 0, 100, 0, NULL, "decoupled weight decay, except on norms and biases"),
    NUMBER(train, beta1, "0.9", 0, 1, KEY_BELOW_MAX, NULL, "AdamW: decay rate of the first moment"),
    NUMBER(train, beta2, "0.95", 0, 1, KEY_BELOW_MAX, NULL, "AdamW: decay rate of the second moment"),
    NUMBER(train, eps, "1.0e-8", 0, 1, KEY_ABOVE_MIN, NULL, "AdamW: added to the denominator"),
    NUMBER(train, grad_clip, "1.0", 0, 1e12, 0, NULL, "largest norm of the gradient; 0: no clipping"),
    WORD(train, precision, "fp32", precision_words, "bf16: matrix products and activations; weights keep fp32 masters"),
    INT(train, max_restarts, "0", 0, 1000000, NULL,
        "restarts from the newest checkpoint after a rank dies or falls silent; 0: none"),
    NUMBER(train, peer_timeout_s, "10", 0, 1e6, 0, NULL, "end if a rank is silent for this many seconds; 0: never"),
    NUMBER(train, timeout_s, "600", 0, 1e9, 0, NULL, "end if no rank makes progress for this many seconds; 0: never"),
    INT(train, skip_bad_steps, "0", 0, MAX_COUNT, NULL,
        "steps of the whole run, in a row or not, that may be skipped for a nan or inf"),
    NUMBER(train, skip_outlier_z, "0", 0, 1e12, 0, NULL,
           "skip steps this many deviations above the last 128, 32 at least; 0: off"),

    LIST(data, train, train, NULL, NULL, source_list,
         "token files to train on, a glob such as \"data/train_*.bin\", or a blend of several"),
    TEXT(data, val, "", 0, "token files to validate on, a glob; empty: no validation"),
    INT(data, val_every, "0", 0, MAX_COUNT, NULL, "steps between validations; 0: none"),
    INT(data, val_batches, "8", 1, MAX_COUNT, NULL, "batches in one validation"),
    BOOL(data, mixed_tokenizers, "false", "allow data of different tokenizers in one run"),
    TEXT(data, hellaswag, "", 0, "evaluation file to choose completions from, see docs/sampling.md; empty: none"),
    INT(data, hellaswag_every, "0", 0, MAX_COUNT, NULL, "steps between such evaluations; 0: none"),

    INT(sample, every, "0", 0, MAX_COUNT, NULL, "steps between samples of the model's text while training; 0: none"),
    TEXT(sample, prompt, "", 0, "text that samples continue; empty: the beginning of a text"),
    INT(sample, tokens, "100", 1, 1000000, NULL, "most tokens of one sample, after the prompt"),
    INT(sample, count, "1", 1, 65536, NULL, "samples from one prompt, micro_batch of them at a time"),
    NUMBER(sample, temperature, "0.8", 0, 1000, 0, NULL, "0: always the likeliest token"),
    INT(sample, top_k, "0", 0, 1000, NULL, "choose among this many of the likeliest tokens; 0: among all"),
    INT(sample, seed, "1337", 0, MAX_EXACT, NULL, "random seed of the choice between tokens"),
    TEXT(sample, tokenizer, "", 0,
         "bytes, ids, a tokenizer.json or a *.model; empty: what made the data, as far as known"),

    TEXT(checkpoint, dir, "", 0, "where checkpoints go; empty: none are written"),
    INT(checkpoint, every, "0", 0, MAX_COUNT, NULL, "steps between checkpoints; 0: none, not at the end either"),
    INT(checkpoint, keep, "3", 1, 1000000, NULL, "newest checkpoints to keep"),
    TEXT(checkpoint, init_from, "", 0, "weights to start from; empty: random ones"),
    BOOL(checkpoint, overwrite, "false",
         "start anew in another run's folder; its checkpoints are removed after the first save"),

    TEXT(log, metrics, "", 0, "JSON lines are appended to this file; empty: none"),

    WORD(comm, checksum, "off", checksum_words,
         "check every bundle, message, gather and sum between ranks where it arrives"),

    WORD(hardware, device, "auto", device_words, "where to compute; auto: on GPUs if there are any"),
    WORD(hardware, gpu, "none", gpu_words, "fills the keys below from data sheets; keys given in the same place win"),
    NUMBER(hardware, peak_tflops, "auto", 0, 1e9, KEY_ABOVE_MIN, "auto",
           "of one rank, 1e12 FLOP/s; auto: known or measured"),
    NUMBER(hardware, memory_gib, "auto", 0, 1e9, KEY_ABOVE_MIN, "auto", "of one rank; auto: ask the device"),
    NUMBER(hardware, memory_gb_s, "auto", 0, 1e9, KEY_ABOVE_MIN, "auto",
           "rate of the device's memory, 1e9 bytes/s; auto: by its peak"),
    NUMBER(hardware, reserve_gib, "4", 0, 1e9, 0, NULL, "memory that context, libraries and NCCL use in addition"),
    INT(hardware, gpus_per_node, "8", 1, 1024, NULL, "ranks that share one node"),
    BOOL(hardware, share_gpu, "false", "let several ranks share one GPU"),
    NUMBER(hardware, pair_gb_s, "240", 0, 1e9, KEY_ABOVE_MIN, NULL, "paired stages, per rank, 1e9 bytes/s one way"),
    NUMBER(hardware, tensor_gb_s, "240", 0, 1e9, KEY_ABOVE_MIN, NULL, "tensor ranks, per rank, 1e9 bytes/s one way"),
    NUMBER(hardware, network_gb_s, "25", 0, 1e9, KEY_ABOVE_MIN, NULL, "between nodes, per node, 1e9 bytes/s one way"),
    NUMBER(hardware, host_gb_s, "25", 0, 1e9, KEY_ABOVE_MIN, NULL, "to host memory, per rank, 1e9 bytes/s one way"),
    NUMBER(hardware, latency_us, "10", 0, 1e9, 0, NULL, "of one message, microseconds"),
    NUMBER(hardware, matmul_efficiency, "auto", 0, 1, KEY_ABOVE_MIN, "auto",
           "for plans: share of the peak that wide products reach; auto: 0.85, on CPUs 0.9"),
    NUMBER(hardware, matmul_half, "auto", 0, 1e6, KEY_ABOVE_MIN, "auto",
           "for plans: side of a product that halves it; auto: 128, on CPUs 8"),
    NUMBER(hardware, flash_forward, "auto", 0, 1, KEY_ABOVE_MIN, "auto",
           "for plans: share of the peak in flash attention's forward; auto: 0.5, on CPUs 0.45"),
    NUMBER(hardware, flash_backward, "auto", 0, 1, KEY_ABOVE_MIN, "auto",
           "for plans: in its backward; auto: 0.42, on CPUs 0.45"),
    NUMBER(hardware, stream_gb_s, "auto", 0, 1e9, KEY_ABOVE_MIN, "auto",
           "for plans: rate of passes over memory; auto: 0.8 of memory_gb_s, on CPUs 8 a thread"),
    NUMBER(hardware, action_us, "0", 0, 1e9, 0, NULL, "for plans: overhead of every forward and backward"),
    NUMBER(hardware, step_overhead_ms, "0", 0, 1e9, 0, NULL, "for plans: overhead of every step"),
    NUMBER(hardware, gpu_hour, "auto", 0, 1e9, 0, "auto", "price of one GPU for an hour, for plans; auto: not known"),
    NUMBER(hardware, gpu_watts, "auto", 0, 1e6, KEY_ABOVE_MIN, "auto",
           "power of one GPU, for plans; auto: the most its data sheet allows"),
    TEXT(hardware, profile, "profile.json", 0, "measured stage times, written by --profile"),
    TEXT(hardware, products, "products.json", 0,
         "GPUs: timed kernels of matrix products; empty: cuBLASLt's first suggestions"),
};

const int config_key_count = (int)(sizeof config_keys / sizeof config_keys[0]);
_Static_assert(sizeof config_keys / sizeof config_keys[0] <= CONFIG_MAX_KEYS, "Config.place has a place for every key");

const ConfigKey *config_find(const char *name) {
    for (int i = 0; i < config_key_count; i++) {
        if (strcmp(config_keys[i].name, name) == 0) return &config_keys[i];
    }
    return NULL;
}

bool config_has_section(const char *section, size_t length) {
    for (int i = 0; i < config_key_count; i++) {
        const char *name = config_keys[i].name;
        if (strncmp(name, section, length) == 0 && name[length] == '.') return true;
    }
    return false;
}

const char *config_short_name(const ConfigKey *key) {
    return strchr(key->name, '.') + 1;
}

const char *config_word(const char *key_name, int value) {
    const ConfigKey *key = config_find(key_name);
    if (key == NULL || key->words == NULL || key->type == KEY_INT || value < 0) return "?";
    for (int i = 0; i <= value; i++) {
        if (key->words[i] == NULL) return "?";
    }
    return key->words[value];
}

bool config_takes_text(const ConfigKey *key) {
    return key->type == KEY_TEXT || (key->type == KEY_LIST && key->list->alone && key->list->parts[0].type == KEY_TEXT);
}

static void join_words_(const ConfigKey *key, const char *between, char *out, size_t n) {
    size_t used = 0;
    out[0] = '\0';
    for (int i = 0; key->words[i] != NULL && used < n; i++) {
        used += (size_t)snprintf(out + used, n - used, "%s%s", i > 0 ? between : "", key->words[i]);
    }
}

static void range_(const ConfigKey *key, char *out, size_t n) {
    const char *low = key->flags & KEY_ABOVE_MIN ? "above" : "from";
    const char *high = key->flags & KEY_BELOW_MAX ? "to below" : key->flags & KEY_ABOVE_MIN ? "up to" : "to";
    snprintf(out, n, "%s %.16g %s %.16g", low, key->min, high, key->max);
}

void config_expected(const ConfigKey *key, char *out, size_t n) {
    char text[CONFIG_EXPECTED];
    switch (key->type) {
    case KEY_INT:
    case KEY_NUMBER:
        range_(key, text, sizeof text);
        snprintf(out, n, "%s %s%s%s%s%s", key->type == KEY_INT ? "an integer" : "a number", text,
                 key->zero_word != NULL ? ", or " : "", key->zero_word != NULL ? key->zero_word : "",
                 key->words != NULL ? ", or " : "", key->words != NULL ? key->words[0] : "");
        break;
    case KEY_BOOL:
        snprintf(out, n, "true or false");
        break;
    case KEY_WORD:
        join_words_(key, ", ", text, sizeof text);
        snprintf(out, n, "one of %s", text);
        break;
    case KEY_TEXT:
        snprintf(out, n, "a text of %s%.0f bytes%s", key->min > 0 ? "1 to " : "at most ", key->max,
                 key->min > 0 ? "" : ", \"\" for none");
        break;
    case KEY_LIST:
        text[0] = '\0';
        if (key->list->alone) config_expected(&key->list->parts[0], text, sizeof text);
        snprintf(out, n, "%s%s, or %s", text, key->zero_word != NULL ? key->zero_word : "", key->list->expected);
        break;
    }
}

// Checks that the keys are consistent. Every error names a remedy.
#include "config_schema.h"
#include "gpus.h"
#include "base/units.h"

#include <math.h>
#include <string.h>

// A combination of keys that cannot work: the key to blame, and why with the remedy.
typedef struct Refusal {
    bool wrong;
    const char *key, *why;
} Refusal;

// Refuses the first of the rows {wrong, key, why} that is wrong, if any. Blames `other`, and names the row's key, if
// only `other` was set with -o; other NULL: always blames the row's key.
#define refuse_(config, other, err, ...) refuse_rows_(config, other, err, (const Refusal[]){__VA_ARGS__, {0}})
static int refuse_rows_(const Config *config, const char *other, Error *err, const Refusal *row) {
    while (row->key != NULL && !row->wrong) row++;
    if (row->key == NULL) return 0;
    const char *blamed = other != NULL ? config_blame(config, row->key, other) : row->key;
    if (blamed == row->key) return config_error(config, row->key, err, "%s", row->why);
    return config_error(config, blamed, err, "%s: %s", row->key, row->why);
}

// Refuses the first of several keys, separated by blanks, that does not have its default value.
static int refuse_given_(const Config *config, const char *keys, const char *why, Error *err) {
    char key[64];
    for (const char *at = keys; sscanf(at, "%63s", key) == 1; at = strstr(at, key) + strlen(key))
        if (!config_at_default(config, key)) return config_error(config, key, err, "%s", why);
    return 0;
}

enum { DIVISORS = 128 }; // bytes of a list of divisors
#define LIST ((char[DIVISORS]){0})

// Writes the first divisors of n as "1, 2, 4, 8, ...". Returns `out`.
static const char *first_divisors_(int64_t n, char out[DIVISORS]) {
    int found = 0;
    out[0] = '\0';
    for (int64_t i = 1; i <= n && found < 5; i++) {
        if (n % i != 0) continue;
        if (++found == 5) text_add(out, DIVISORS, ", ...");
        else text_add(out, DIVISORS, "%s%lld", found > 1 ? ", " : "", (long long)i);
    }
    return out;
}

// Writes the divisors of n just below and just above value, as "4 or 8". Returns `out`.
static const char *near_divisors_(int64_t n, int64_t value, char out[DIVISORS]) {
    int64_t below = value < n ? value : n, above = value;
    while (n % below != 0) below--;
    while (above < n && n % above != 0) above++;
    snprintf(out, DIVISORS, "%lld", (long long)below);
    if (above <= n && above != below) text_add(out, DIVISORS, " or %lld", (long long)above);
    return out;
}

// Checks the heads of attention. Resolves kv_heads auto, and head_dim auto to hidden / heads.
static int check_heads_(Config *config, Error *err) {
    ModelConfig *m = &config->model;
    const Family *family = &families[m->family];
    // A head that is rotated in pairs has an even size, so heads must divide hidden / 2.
    int64_t units = family->rotary ? m->hidden / 2 : m->hidden;
    if (m->kv_heads == 0) m->kv_heads = m->heads;
    if (m->head_dim == 0 && family->rotary && m->hidden % 2 != 0)
        return config_error(config, "model.hidden", err, "must be even for rotary embedding; use %lld",
                            (long long)m->hidden + 1);
    if (m->head_dim == 0 && units % m->heads != 0)
        return config_clash(config, "model.heads", "model.hidden", err, "heads %lld %s hidden %lld; use %s heads%s",
                            (long long)m->heads,
                            m->hidden % m->heads != 0 ? "does not divide" : "gives an odd head size for",
                            (long long)m->hidden, near_divisors_(units, m->heads, LIST),
                            family->rotary ? ", or give model.head_dim" : "");
    if (m->head_dim == 0) m->head_dim = m->hidden / m->heads;
    if (refuse_(config, "model.heads", err,
                {family->rotary && m->head_dim % 2 != 0, "model.head_dim",
                 "must be even for rotary embedding; use one more"},
                {family->rotary && m->head_dim > 2 * ROPE_PAIRS_MAX, "model.heads",
                 "a rotated head has at most 2048 dimensions; use more heads, or a smaller head_dim"},
                {!family->rotary && m->heads * m->head_dim != m->hidden, "model.head_dim",
                 "is hidden / heads in this family; remove the key"},
                {!family->grouped && m->kv_heads != m->heads, "model.kv_heads",
                 "must equal heads in this family, which has no grouped attention; use auto"}) != 0)
        return -1;
    int64_t width = (int64_t)((double)m->head_dim * m->rope_share); // as transformers rounds it
    if (family->rotary && (width < 2 || width % 2 != 0))
        return config_error(config, "model.rope_share", err,
                            "%g of head_dim %lld is %lld dimensions; rotary embedding needs 2, 4, 6, ...; use %g",
                            m->rope_share, (long long)m->head_dim, (long long)width,
                            2.0 * ceil((double)(width + 1) / 2.0) / (double)m->head_dim);
    if (m->heads % m->kv_heads == 0) return 0;
    return config_clash(config, "model.kv_heads", "model.heads", err,
                        "kv_heads %lld does not divide %lld heads; use %s", (long long)m->kv_heads, (long long)m->heads,
                        near_divisors_(m->heads, m->kv_heads, LIST));
}

// Checks the extents that tensor ranks split, and the key of their collectives.
static int check_tensor_(Config *config, Error *err) {
    const ModelConfig *m = &config->model;
    int64_t t = config->parallel.tensor;
    const struct {
        int64_t count;
        const char *what;
    } split[] = {{m->heads, "heads"},
                 {m->kv_heads, "kv_heads"},
                 {config_split_ffn(m), m->shared_ffn > 0 ? "shared_ffn" : "ffn"},
                 {config->parallel.sequence ? m->seq_len : 0, "seq_len (sequence: true)"}};
    int64_t common = 0;
    for (int i = 0; i < 4; i++) common = greatest_common_divisor(common, split[i].count);
    for (int i = 0; i < 4; i++) {
        if (split[i].count % t == 0) continue;
        return config_error(config, "parallel.tensor", err, "%lld does not divide %lld %s; use %s", (long long)t,
                            (long long)split[i].count, split[i].what, first_divisors_(common, LIST));
    }
    if (config->parallel.collectives != COLLECTIVES_COPY || t == 1 || config_copies(config)) return 0;
    return config_error(config, "parallel.collectives", err,
                        "copy needs rows that are split over the tensor ranks of one node; %s, or use auto",
                        config->parallel.sequence ? "use fewer tensor ranks" : "set parallel.sequence: true");
}

// Sets train.steps, if it is auto, to the fewest steps that take train.tokens.
static int resolve_steps_(Config *config, Error *err) {
    TrainConfig *train = &config->train;
    const int64_t most = 1000000000000; // limit of train.steps
    if (train->steps > 0) return 0;
    if (train->tokens == 0)
        return config_error(config, "train.steps", err, "auto needs train.tokens; set it, or set steps");
    train->steps = config_steps_for_tokens(config, 0, 0);
    if (train->steps <= most) return 0;
    return config_error(config, "train.tokens", err, "needs more than %lld steps; use fewer tokens", (long long)most);
}

// Checks one batch of the run: train.global_batch, or an entry of the ramp.
static int check_one_batch_(const Config *config, long long batch, const char *name, Error *err) {
    long long b = config->schedule.micro_batch, d = config->parallel.data, p = config->parallel.pipeline;
    long long unit = b * d, rest = batch % unit;
    const char *key = config_blame(config, config_blame(config, name, "schedule.micro_batch"), "parallel.data");
    if (rest != 0) {
        char below[32] = "";
        if (batch > unit) snprintf(below, sizeof below, "%lld or ", batch - rest);
        return config_error(
            config, key, err,
            "global_batch %lld is not a multiple of micro_batch * data = %lld * %lld; use global_batch %s%lld", batch,
            b, d, below, batch - rest + unit);
    }
    long long slices = config_slices(config), made = batch / unit, least = (p + slices - 1) / slices;
    if (made >= least) return 0;
    bool sliced = config_schedule_kind(config)->sliced && config->parallel.context == 1 && config->model.kv_lora == 0;
    return config_clash(config, key, "parallel.pipeline", err,
                        "global_batch %lld makes %lld microbatch%s for %lld stages, which need %lld or more; the "
                        "smallest global_batch is %lld, or use pipeline %lld or less%s",
                        batch, made, made == 1 ? "" : "es", p, least, least * unit, made * slices,
                        sliced ? ", or more schedule.slices" : "");
}

static int check_batch_(Config *config, Error *err) {
    for (int64_t i = 1; config_batch(config, i) > 0; i++)
        if (check_one_batch_(config, config_batch(config, i), "train.batch_ramp", err) != 0) return -1;
    return check_one_batch_(config, config->train.global_batch, "train.global_batch", err);
}

static int check_decay_(Config *config, Error *err) {
    const TrainConfig *train = &config->train;
    bool given = train->decay_steps > 0, shaped = train->decay_shape != DECAY_LINEAR;
    return refuse_(config, "train.schedule", err,
                   {train->schedule != LR_WSD && (given || shaped), given ? "train.decay_steps" : "train.decay_shape",
                    "applies only to train.schedule wsd; use wsd, or remove the key"},
                   {given && train->decay_steps > train->steps - train->warmup_steps, "train.decay_steps",
                    "exceeds the steps after the warm-up; use fewer, or auto"});
}

// Checks the spec with batch i of the run (config_batch) against the named schedule's limits. `only`: the field for
// which a fault is reported; NULL: all.
static int check_kind_(const Config *config, int64_t i, const char *only, Error *err) {
    static const struct {
        const char *field, *key;
    } keys[] = {{"stages", "parallel.pipeline"}, {"microbatches", "train.global_batch"},
                {"chunks", "schedule.chunks"},   {"slices", "schedule.slices"},
                {"group", "schedule.group"},     {"delay", "schedule.delay"}};
    const ScheduleKind *kind = config_schedule_kind(config);
    ScheduleSpec spec = config_schedule_spec(config);
    spec.microbatches = (int)(config_batch(config, i) / (config->schedule.micro_batch * config->parallel.data));
    const char *field;
    Error why = {0};
    if (config->schedule.file[0] != '\0') return 0;
    if (config->schedule.split_backward == SPLIT_OFF && kind->splits)
        return config_clash(config, "schedule.split_backward", "schedule.name", err,
                            "schedule %s always splits its backwards; use split_backward auto or on", kind->name);
    if (schedule_complete(kind, &spec, &field, &why) == 0) return 0;
    if (only != NULL && strcmp(field, only) != 0) return 0;
    const char *key = "schedule.name";
    for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++)
        if (strcmp(keys[k].field, field) == 0) key = keys[k].key;
    if (i == 0) return config_clash(config, key, "schedule.name", err, "%s", why.text);
    return config_clash(config, "train.batch_ramp", "schedule.name", err, "global_batch %lld makes %d microbatches: %s",
                        (long long)config_batch(config, i), spec.microbatches, why.text);
}

// Checks that every stage and chunk can get layers, and distributes the layers.
static int check_layers_(Config *config, Error *err) {
    ParallelConfig *parallel = &config->parallel;
    long long layers = config->model.layers, p = parallel->pipeline, sum = 0;
    int chunks = config_chunks(config);
    char parts[64];
    if (check_kind_(config, 0, "chunks", err) != 0) return -1;
    snprintf(parts, sizeof parts, chunks > 1 ? "%lld stage%s of %d chunks" : "%lld stage%s", p, p == 1 ? "" : "s",
             chunks);
    parallel->layers_count = p * chunks;
    if (parallel->layers_count > CONFIG_MAX_STAGES)
        return config_clash(config, "schedule.chunks", "parallel.pipeline", err,
                            "%s make more than %d parts; use fewer", parts, CONFIG_MAX_STAGES);
    // A list may give a stage no layers: the first stage still computes the embedding, the last stage the head.
    if (parallel->layers_given == 0 && layers < parallel->layers_count) {
        char remedy[96] = "use a schedule with fewer chunks";
        if (layers >= chunks) snprintf(remedy, sizeof remedy, "use pipeline %lld or less", layers / chunks);
        return config_clash(config, "parallel.pipeline", "model.layers", err,
                            "%s for %lld layer%s, but every %s needs one; %s, or more layers", parts, layers,
                            layers == 1 ? "" : "s", chunks > 1 ? "chunk" : "stage", remedy);
    }
    if (parallel->layers_given == 0) {
        config_spread_layers(config, parallel->layers_count);
        return 0;
    }
    const char *key = config_blame(config, "parallel.layers", "parallel.pipeline");
    if (parallel->layers_given != parallel->layers_count)
        return config_error(config, key, err, "the list of layers has %lld entries for %s; give %lld, or layers auto",
                            (long long)parallel->layers_given, parts, (long long)parallel->layers_count);
    for (int64_t s = 0; s < parallel->layers_count; s++) sum += parallel->layers_per_stage[s];
    if (sum == layers) return 0;
    return config_clash(config, "parallel.layers", "model.layers", err,
                        "the stages' layers add up to %lld, the model has %lld; make them equal, or use layers auto",
                        sum, layers);
}

// Checks the per-stage lists: each needs one entry for all stages, or one entry per stage.
static int check_stage_lists_(Config *config, Error *err) {
    int64_t p = config->parallel.pipeline;
    const struct {
        const char *key;
        int64_t given;
    } lists[] = {{"attention.mode", config->attention.modes_given},
                 {"schedule.recompute_layers", config->schedule.recompute_given},
                 {"schedule.recompute", config->schedule.pointwise_given}};
    for (int i = 0; i < 3; i++) {
        if (lists[i].given == 1 || lists[i].given == p) continue;
        return config_clash(config, lists[i].key, "parallel.pipeline", err,
                            "the list has %lld entries for %lld stage%s; give %lld, or one value for all",
                            (long long)lists[i].given, (long long)p, p == 1 ? "" : "s", (long long)p);
    }
    for (int s = 0; s < p; s++)
        if (config_recompute_kind(config, s) == RECOMPUTE_EXPERTS && config->model.experts == 0)
            return config_error(config, "schedule.recompute", err,
                                "experts needs model.experts; use none, or pointwise");
    config->attention.mode = config->attention.mode_of_stage[0];
    return 0;
}

// Checks that the header of schedule.file agrees with the other keys, because the schedule is run unchanged. Stores its
// chunks, microbatches, slices and eviction target for the checks of other keys.
static int check_file_(Config *config, Error *err) {
    ScheduleConfig *keys = &config->schedule;
    long long p = config->parallel.pipeline, m = config_microbatches(config), chunks = keys->chunks;
    Error why = {0};
    keys->file_chunks = keys->file_microbatches = keys->file_slices = 0;
    if (keys->file[0] == '\0') return 0;
    Schedule *schedule = config_read_schedule(config, &why);
    if (schedule == NULL) return config_error(config, "schedule.file", err, "%s", why.text);
    for (int s = 0; s < schedule->stages; s++)
        for (int64_t i = 0; i < schedule->stage[s].count; i++) {
            Action action = schedule->stage[s].actions[i];
            if (action.kind == ACTION_EVICT)
                keys->evict_to = action.peer == SCHEDULE_HOST ? EVICT_TO_HOST : EVICT_TO_PEER;
        }
    Schedule header = *schedule;
    schedule_free(schedule);
    keys->file_slices = header.slices; // with slices, fewer microbatches fill the stages
    if (check_batch_(config, err) != 0) return -1;
    if (header.stages != p || header.microbatches != m)
        return config_error(config, "schedule.file", err,
                            "%s has %d stages and %d microbatches a step; pipeline and global_batch / (micro_batch * "
                            "data) are %lld and %lld here, make them equal",
                            keys->file, header.stages, header.microbatches, p, m);
    bool splits = keys->split_backward == SPLIT_ON;
    if (refuse_(config, "schedule.file", err,
                {chunks > 0 && header.chunks != chunks, "schedule.chunks",
                 "the schedule in schedule.file has another number of chunks; leave schedule.chunks out"},
                {header.chunks > 64, "schedule.file", "the schedule has more than 64 chunks; use fewer"},
                {header.forward_only, "schedule.file",
                 "the name \"forward\" is reserved for schedules without backwards; rename it"},
                {keys->split_backward != SPLIT_AUTO && splits != header.split, "schedule.split_backward",
                 "a schedule from a file is run unchanged; use split_backward auto"},
                {keys->bpipe == BPIPE_ON, "schedule.bpipe",
                 "a schedule from a file is run unchanged; use bpipe off, and put E and L into the file"}) != 0)
        return -1;
    keys->file_chunks = header.chunks;
    keys->file_microbatches = header.microbatches;
    keys->bpipe = BPIPE_OFF;
    return 0;
}

// Checks that slices and the pieces of context ranks have equal lengths, and that tensor ranks get equal parts of them
// with sequence parallelism.
static int check_pieces_(Config *config, Error *err) {
    long long c = config->parallel.context, s = config->model.seq_len, t = config->parallel.tensor;
    long long slices = config_slices(config), parts = config->parallel.sequence ? s / t : s;
    char of[64] = "";
    if (parts % slices != 0) {
        if (parts < s) snprintf(of, sizeof of, " / tensor %lld", t);
        return config_clash(config, "schedule.slices", "schedule.file", err,
                            "%lld does not divide seq_len %lld%s; use %s", slices, s, of, first_divisors_(parts, LIST));
    }
    if (c == 1) return 0;
    const char *key = config_blame(config, "parallel.context", "model.seq_len");
    if (!config->model.causal)
        return config_error(config, key, err, "context ranks would do unequal work in an encoder; set context: 1");
    if (slices > 1) return config_error(config, key, err, "context ranks support no slices; set schedule.slices: 1");
    if (s % (2 * c) != 0)
        return config_error(config, key, err, "2 * %lld pieces do not divide seq_len %lld; use %s", c, s,
                            s % 2 == 0 ? first_divisors_(s / 2, LIST) : "an even seq_len");
    if (!config->parallel.sequence || s / c % t == 0) return 0;
    return config_error(config, key, err, "tensor %lld does not divide seq_len / context = %lld; use sequence: false",
                        t, s / c);
}

// Checks that BPipe can run with the named schedule, and that it has enough slots.
static int check_schedule_(Config *config, Error *err) {
    const ScheduleConfig *schedule = &config->schedule;
    const ScheduleKind *kind = config_schedule_kind(config);
    int p = (int)config->parallel.pipeline;
    if (schedule->file[0] != '\0' || schedule->bpipe == BPIPE_OFF) return 0;
    if (!kind->pairs && schedule->evict_to == EVICT_TO_PEER) {
        if (schedule->bpipe == BPIPE_AUTO) return 0;
        return config_clash(config, "schedule.bpipe", "schedule.name", err,
                            "schedule %s fills all stages equally, so paired stages have no slots to lend; use name "
                            "1f1b, bpipe off or evict_to host",
                            kind->name);
    }
    // Without BPipe, slots have no effect and are not checked: -o schedule.bpipe=off must not need a second override.
    int smallest = schedule->slots == 0 ? 0 : config_min_slots(config);
    if (schedule->slots >= smallest) return 0;
    return config_clash(config, "schedule.slots", "parallel.pipeline", err,
                        "%lld slots are too few for bpipe with %d stages; use slots %d or more, or auto",
                        (long long)schedule->slots, p, smallest);
}

#define MULTIPLE(what, remedy) "train.fp8 needs " what " to be a multiple of 16 (mx: 32); use " remedy ", or fp8 off"

// cuBLASLt requires multiples of 16 for FP8; for mx, 32 numbers share a scale.
int config_check_fp8(Config *config, Error *err) {
    const ModelConfig *m = &config->model;
    int64_t t = config->parallel.tensor, group = config->train.fp8 == FP8_MX ? 32 : 16;
    int64_t rows = config->schedule.micro_batch * m->seq_len / config_slices(config) / config->parallel.context;
    if (config->train.fp8 == FP8_OFF) return 0;
    if (refuse_(config, NULL, err,
                {config->train.precision != PRECISION_BF16, "train.fp8",
                 "needs train.precision bf16; use bf16, or fp8 off"},
                {m->hidden % group != 0, "model.hidden", MULTIPLE("hidden", "another hidden")},
                {m->heads / t * m->head_dim % group != 0, t > 1 ? "parallel.tensor" : "model.head_dim",
                 MULTIPLE("heads * head_dim / tensor", "another head_dim, fewer tensor ranks")},
                {m->kv_heads / t * m->head_dim * 2 % group != 0, t > 1 ? "parallel.tensor" : "model.head_dim",
                 MULTIPLE("2 * kv_heads * head_dim / tensor", "another head_dim, fewer tensor ranks")},
                {m->ffn / t % group != 0, t > 1 ? "parallel.tensor" : "model.ffn",
                 MULTIPLE("ffn / tensor", "another ffn, fewer tensor ranks")},
                {rows % group != 0, "schedule.micro_batch",
                 MULTIPLE("micro_batch * seq_len / (slices * context)", "another micro_batch")}) != 0)
        return -1;
    const char *why = gpu_without_fp8(config->train.fp8, gpu_capability(gpu_row(config->hardware.gpu)));
    bool planned = config->hardware.gpu > 0 && config->hardware.device != DEVICE_CPU;
    return planned && why != NULL ? config_error(config, "train.fp8", err, "%s", why) : 0;
}

// Checks that the products of keys that the program computes fit int64_t; bounds on single keys cannot ensure that.
static int check_size_(Config *config, Error *err) {
    const ModelConfig *m = &config->model;
    const long double limit = 0x1p60L;
    long double s = m->seq_len, b = config->schedule.micro_batch, layers = m->layers;
    long double ffn = m->ffn + m->shared_ffn + (long double)m->experts_per_token * (m->expert_ffn + m->ffn);
    long double width = 16.0L * m->hidden + 6.0L * ffn + 2.0L * m->heads * s + 8.0L * m->heads * 2048;
    long double tokens = s * config->train.steps * config->train.global_batch;
    return refuse_(
        config, NULL, err,
        {4 * (s * b * layers * width + s * b * m->vocab) > limit, "model.seq_len",
         "the activations of one microbatch take more than 2^60 bytes; use a smaller seq_len or micro_batch"},
        {tokens > limit, "train.steps", "the run takes more than 2^60 tokens; use fewer steps"},
        {config_world(config) > 1 << 20, "parallel.data",
         "pipeline * tensor * context * data are more than 2^20 ranks; use smaller numbers"});
}

// Checks the keys that depend on the family: norms and biases of q, k and v, and rotary positions with their scaling.
static int check_family_(Config *config, Error *err) {
    ModelConfig *m = &config->model;
    const Family *family = &families[m->family];
    if (m->tie_embeddings == TIE_AUTO) m->tie_embeddings = family->tied ? TIE_TRUE : TIE_FALSE;
    if (!family->rotary) {
        char why[80];
        snprintf(why, sizeof why, "does not apply to family %s; remove the key", family_words[m->family]);
        return refuse_given_(config,
                             "model.rope_theta model.rope_scaling model.rope_factor model.rope_original "
                             "model.rope_share model.qkv_bias model.qk_norm",
                             why, err);
    }
    if (m->rope_attention == 0) m->rope_attention = m->rope_scaling == ROPE_YARN ? 0.1 * log(m->rope_factor) + 1 : 1;
    return refuse_(
        config, "model.rope_scaling", err,
        {m->qkv_bias && m->qk_norm && m->router != ROUTER_SIGMOID, "model.qk_norm",
         "qkv_bias (Qwen2) and qk_norm (Qwen3) cannot be combined; remove one of them"},
        {m->rope_scaling >= ROPE_LLAMA3 && m->rope_original == 0, "model.rope_original",
         "llama3 and yarn scaling need the sequence length before scaling; set model.rope_original, such as 8192"},
        {m->rope_scaling == ROPE_LLAMA3 && m->rope_high_freq <= m->rope_low_freq, "model.rope_high_freq",
         "must be above rope_low_freq; use a larger value"},
        {m->rope_scaling == ROPE_NONE && m->rope_factor != 1, "model.rope_factor",
         "has no effect without rope_scaling; use rope_scaling linear, llama3 or yarn"},
        {m->rope_scaling != ROPE_YARN && m->rope_attention != 1, "model.rope_attention",
         "is a factor of yarn's rotations alone; use rope_scaling yarn, or remove the key"});
}

// Checks a blend's shares. Refuses a share below a millionth of the sum: its samples would almost never be used.
static int check_sources_(Config *config, Error *err) {
    DataConfig *data = &config->data;
    double sum = 0.0;
    if (data->train_sources == 1) data->train[0].weight = 1.0; // a single source gets all samples
    for (int64_t i = 0; i < data->train_sources; i++) sum += data->train[i].weight;
    for (int64_t i = 0; i < data->train_sources; i++) {
        const DataSource *source = &data->train[i];
        if (source->weight < 1e-6 * sum)
            return config_error(config, "data.train", err,
                                "weight %g of %s is below a millionth of the sum; increase it, or remove the source",
                                source->weight, source->path);
        for (int64_t j = 0; j < i; j++)
            if (strcmp(source->path, data->train[j].path) == 0)
                return config_error(config, "data.train", err,
                                    "%s is listed twice; list it once, with the sum of the weights", source->path);
    }
    return 0;
}

// Checks that stream_gb_s is at most the memory's rate: memory_gb_s, or the rate of the GPU with the given peak.
static int check_rates_(Config *config, Error *err) {
    const HardwareConfig *given = &config->hardware;
    const Gpu *gpu = gpu_by_peak(given->peak_tflops);
    double memory = given->memory_gb_s > 0 ? given->memory_gb_s : gpu != NULL ? gpu->memory_gb_s : 0;
    if (given->device == DEVICE_CPU || memory == 0 || given->stream_gb_s <= memory) return 0;
    return config_error(config, "hardware.stream_gb_s", err,
                        "%.6g exceeds the memory's %.6g (hardware.memory_gb_s); use at most that", given->stream_gb_s,
                        memory);
}

// Checks the keys of latent attention, and refuses features that it does not support. Resolves model.head_dim.
static int check_latent_(Config *config, Error *err) {
    ModelConfig *m = &config->model;
    if (m->kv_lora == 0)
        return refuse_given_(config, "model.q_lora model.nope_dim model.rope_dim model.v_dim model.rope_mscale",
                             "does not apply without latent attention; give model.kv_lora, or remove the key", err);
    static const char needed[] = "latent attention needs it; give it, such as 128";
    if (refuse_(config, "model.kv_lora", err, {m->q_lora == 0, "model.q_lora", needed},
                {m->nope_dim == 0, "model.nope_dim", needed}, {m->rope_dim == 0, "model.rope_dim", needed},
                {m->v_dim == 0, "model.v_dim", needed}) != 0)
        return -1;
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
    return refuse_(
        config, "model.kv_lora", err,
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
         "a model with latent attention cannot split forward products; use auto, on or off"});
}

// Checks a mixture of experts, and refuses features that it does not support. In dense models, refuses the keys of
// experts. Resolves model.expert_ffn auto.
static int check_experts_(Config *config, Error *err) {
    ModelConfig *m = &config->model;
    if (m->experts == 0)
        return refuse_given_(config,
                             "model.experts_per_token model.expert_ffn model.shared_ffn model.dense_layers "
                             "model.router model.router_groups model.router_group_top model.router_scale "
                             "model.router_normalize parallel.expert train.balance train.router_z_loss "
                             "log.experts",
                             "does not apply to a model without experts; give model.experts, or remove the key", err);
    if (m->expert_ffn == 0) m->expert_ffn = m->ffn;
    long long experts = m->experts, chosen = m->experts_per_token, groups = m->router_groups, top = m->router_group_top;
    if (chosen == 0 && families[m->family].gated)
        return config_error(config, "model.experts_per_token", err,
                            "is missing: a model of %lld experts needs it; give it, such as 2", experts);
    if (refuse_(config, "model.experts", err,
                {!families[m->family].gated, "model.experts", "only family llama has experts; use it, or 0"},
                {chosen > experts, "model.experts_per_token",
                 "a token cannot use more experts than model.experts; use fewer"},
                {60.0L * m->layers * experts * m->hidden * m->expert_ffn > 0x1p60L, "model.experts",
                 "the experts take more than 2^60 bytes; use fewer or smaller ones"},
                // Each expert of a layer has three entries in the table of tensors.
                {experts * m->layers > 1 << 18, "model.experts",
                 "the layers have more than 2^18 experts in total; use fewer"},
                {m->dense_layers >= m->layers, "model.dense_layers",
                 "all layers would be dense; use fewer than model.layers, or model.experts: 0"},
                {groups > 1 && m->router != ROUTER_SIGMOID, "model.router_groups",
                 "groups of experts need router sigmoid; use it, or 1 group"}) != 0)
        return -1;
    if (experts % groups != 0)
        return config_clash(config, "model.router_groups", "model.experts", err,
                            "%lld groups do not divide %lld experts; use %s", groups, experts,
                            first_divisors_(experts, LIST));
    if (top > groups || chosen > experts / groups * top)
        return config_clash(config, "model.router_group_top", "model.router_groups", err,
                            "a token's %lld experts cannot come from %lld of %lld groups of %lld experts; use %lld",
                            chosen, top, groups, experts / groups, (chosen * groups + experts - 1) / experts);
    const ParallelConfig *p = &config->parallel;
    int64_t ranks = p->tensor * p->context * p->data, e = p->expert;
    char use[DIVISORS];
    first_divisors_(greatest_common_divisor(m->experts, ranks), use);
    if (m->experts % e != 0)
        return config_clash(config, "parallel.expert", "model.experts", err,
                            "%lld does not divide %lld experts; use %s", (long long)e, (long long)m->experts, use);
    if (ranks % e != 0)
        return config_error(config, "parallel.expert", err,
                            "%lld does not divide the %lld ranks of a stage (tensor * context * data); use %s",
                            (long long)e, (long long)ranks, use);
    if (p->tensor > 1 && !p->sequence)
        return config_clash(config, "parallel.sequence", "parallel.tensor", err,
                            "experts need rows split over the tensor ranks; set parallel.sequence: true, or tensor: 1");
    return refuse_(config, "model.experts", err,
                   {config->train.fp8 != FP8_OFF, "train.fp8", "experts are computed in bf16; use off"},
                   {config->train.balance == BALANCE_LOSS && config_slices(config) > 1, "train.balance",
                    "the balance loss counts complete sequences; use slices: 1, or balance: off"},
                   {config->train.balance == BALANCE_BIAS && m->router != ROUTER_SIGMOID, "train.balance",
                    "bias needs model.router: sigmoid; set that, or use loss"},
                   {config->parallel.tensor > 1 && config->parallel.overlap >= OVERLAP_2, "parallel.overlap",
                    "a model with experts cannot split forward products; use auto, on or off"});
}

// Checks the masked objective, the keys that do not work for encoders, where attention sees the complete sequence, and
// the tokens that keys name.
static int check_objective_(Config *config, Error *err) {
    bool masked = config->train.objective == OBJECTIVE_MASKED, causal = config->model.causal;
    if (refuse_(config, NULL, err,
                {masked && causal, "train.objective", "masked is for encoders; set model.causal: false"},
                {!causal && config->data.mask_documents, "data.mask_documents",
                 "attention inside documents is causal; set model.causal: true, or turn this off"},
                {!causal && config_slices(config) > 1, "schedule.slices",
                 "an encoder's tokens attend to later slices; set slices: 1"}) != 0)
        return -1;
    bool mask = config->data.mask_token >= config->model.vocab;
    if (!mask && config->data.end_of_text < config->model.vocab) return 0;
    return config_error(config, mask ? "data.mask_token" : "data.end_of_text", err, "must be below model.vocab, %lld",
                        (long long)config->model.vocab);
}

// Checks the schedule with every batch of the run, and the sharding of gradients over data ranks.
static int check_kinds_(Config *config, Error *err) {
    for (int64_t i = 0; config_batch(config, i) > 0; i++)
        if (check_kind_(config, i, NULL, err) != 0) return -1;
    const char *whole = config->parallel.shard_gradients == SHARD_ON ? config_why_whole(config) : NULL;
    return whole == NULL ? 0 : config_error(config, "parallel.shard_gradients", err, "%s", whole);
}

// The order matters: a check may use a value that an earlier check resolved.
static int (*const checks[])(Config *config, Error *err) = {
    resolve_steps_, check_size_,        check_family_, check_latent_, check_objective_, check_heads_,  check_tensor_,
    check_file_,    check_layers_,      check_batch_,  check_kinds_,  check_experts_,   check_pieces_, config_check_fp8,
    check_sources_, check_stage_lists_, check_decay_,  check_rates_,  check_schedule_};

int config_check(Config *config, Error *err) {
    int status = config_require(config, "model.", err);
    for (size_t i = 0; status == 0 && i < sizeof checks / sizeof *checks; i++) status = checks[i](config, err);
    return status;
}

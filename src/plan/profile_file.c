// Writes and reads the file of a profile, and looks up the times of a stage in it.
#include "profile.h"
#include "backend/attention_scratch.h"
#include "base/alloc.h"

#include "base/files.h"
#include "hardware_model.h"
#include "base/json.h"
#include "base/json_out.h"
#include "config/gpus.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char FORMAT[] = "stage profile";
enum { VERSION_ = 1 };

void profile_free(Profile *profile) {
    free(profile->stages);
    memset(profile, 0, sizeof *profile);
}

// ---------------------------------------------------------------- keys

// The integers of a model that stage times depend on.
#define EXTENT(key)                                                                                                    \
    { #key, offsetof(ModelConfig, key) }
typedef struct ModelKey {
    const char *key;
    size_t at;
} ModelKey;
static const ModelKey extents_[] = {EXTENT(hidden),     EXTENT(heads),      EXTENT(kv_heads),
                                    EXTENT(ffn),        EXTENT(vocab),      EXTENT(seq_len),
                                    EXTENT(head_dim),   EXTENT(experts),    EXTENT(experts_per_token),
                                    EXTENT(expert_ffn), EXTENT(shared_ffn), EXTENT(dense_layers),
                                    EXTENT(kv_lora),    EXTENT(q_lora),     EXTENT(nope_dim),
                                    EXTENT(rope_dim),   EXTENT(v_dim)};
enum { EXTENTS_ = sizeof extents_ / sizeof *extents_, POSITIVE_ = 7 }; // extents after the first seven may be 0
// The choices of a model that stage times depend on.
static const ModelKey truths_[] = {EXTENT(causal), EXTENT(qk_norm), EXTENT(qkv_bias)};
enum { TRUTHS_ = sizeof truths_ / sizeof *truths_ };

static const char *const timed_keys_[TIMED_ACTIONS] = {"forward_ms", "backward_ms", "input_ms", "weight_ms"};

static int64_t extent_(const ModelConfig *model, int i) {
    return *(const int64_t *)((const char *)model + extents_[i].at);
}

static bool *truth_(const ModelConfig *model, int i) { return (bool *)((char *)model + truths_[i].at); }

// ---------------------------------------------------------------- writing

static int unwritable_(const char *path, int code, Error *err) {
    return error_set(err, EXIT_FAILED, "%s: the profile cannot be written: %s; name another file with hardware.profile",
                     path, strerror(code));
}

int profile_check(const char *path, Error *err) {
    struct stat status;
    int code = file_check_to_write(path);
    if (code != 0) return unwritable_(path, code, err);
    // profile_write replaces an existing file.
    if (stat(path, &status) != 0 || S_ISREG(status.st_mode)) return 0;
    return error_set(err, EXIT_FAILED, "%s: is not a regular file; name another with hardware.profile", path);
}

int profile_write(const Profile *profile, const char *path, Error *err) {
    char *text;
    size_t length;
    FILE *file = xmemstream(&text, &length);
    JsonOut out = {.file = file};
    json_begin(&out, NULL, '{');
    json_members(&out, "format %s version %d", FORMAT, VERSION_);
    json_line(&out);
    json_object(&out, "device", "kind %s name %s peak_tflops %g", profile->cpu ? "cpu" : "cuda", profile->device,
                profile->peak_tflops);
    json_line(&out);
    json_begin(&out, "model", '{');
    json_put_text(&out, "family", config_word("model.family", profile->model.family));
    for (int i = 0; i < EXTENTS_; i++) json_put_integer(&out, extents_[i].key, extent_(&profile->model, i));
    for (int i = 0; i < TRUTHS_; i++) json_put_truth(&out, truths_[i].key, *truth_(&profile->model, i));
    json_end(&out, '}');
    json_line(&out);
    json_members(&out, "precision %s fp8 %s tensor %jd expert %jd sequence? %d keeps_experts? %d mask_documents? %d",
                 config_word("train.precision", profile->precision), config_word("train.fp8", profile->fp8),
                 profile->tensor, profile->expert, profile->sequence, profile->keeps_experts, profile->mask_documents);
    json_line(&out);
    json_members(&out, "optimizer_ns_per_element %g norm_ns_per_element %g", 1e9 * profile->optimizer_seconds,
                 1e9 * profile->norm_seconds);
    json_line(&out);
    json_begin(&out, "stages", '[');
    for (int64_t i = 0; i < profile->count; i++) {
        const ProfileStage *stage = &profile->stages[i];
        json_line(&out);
        json_begin(&out, NULL, '{');
        json_members(&out, "attention %s softmax %s", config_word("attention.mode", stage->attention),
                     config_word("attention.softmax", stage->softmax));
        json_members(&out, "micro_batch %jd layers %jd first? %d last? %d", stage->micro_batch, stage->layers,
                     stage->first, stage->last);
        int timed = stage->seconds[TIMED_INPUT] > 0 ? TIMED_ACTIONS : TIMED_INPUT; // I and W may not be measured
        for (int k = 0; k < timed; k++) json_put_number(&out, timed_keys_[k], 1e3 * stage->seconds[k]);
        json_members(&out, "peak_bytes %jd", stage->peak_bytes);
        json_end(&out, '}');
    }
    json_line(&out);
    json_end(&out, ']');
    json_end(&out, '}');
    fputc('\n', file);
    xmemstream_close(file);
    int status = file_replace(path, text, (int64_t)length), code = errno;
    free(text);
    return status == 0 ? 0 : unwritable_(path, code, err);
}

// ---------------------------------------------------------------- reading

static int profile_damaged_(const char *path, const char *what, Error *err) {
    return error_set(err, EXIT_USAGE, "%s: %s; make the profile again with --profile", path, what);
}

static double profile_number_(const JsonValue *object, const char *key) {
    const JsonValue *value = json_find(object, key);
    return value != NULL && value->type == JSON_NUMBER ? value->number : -1;
}

// Returns the value of a word of the configuration; -1 if the word is unknown.
static int word_(const JsonValue *object, const char *member, const char *key) {
    const char *text = json_text(object, member, "");
    for (int i = 0;; i++) {
        const char *word = config_word(key, i);
        if (strcmp(word, "?") == 0) return -1;
        if (strcmp(word, text) == 0) return i;
    }
}

static int profile_read_all_(Profile *profile, const JsonValue *root, const char *path, Error *err) {
    if (strcmp(json_text(root, "format", ""), FORMAT) != 0) return profile_damaged_(path, "this is not a profile", err);
    if (json_integer(root, "version", 0) != VERSION_) return profile_damaged_(path, "its version is unsupported", err);
    const JsonValue *device = json_find(root, "device"), *stages = json_find(root, "stages");
    const char *kind = json_text(device, "kind", "");
    profile->cpu = strcmp(kind, "cpu") == 0;
    if (!profile->cpu && strcmp(kind, "cuda") != 0) return profile_damaged_(path, "it names no device", err);
    snprintf(profile->device, sizeof profile->device, "%s", json_text(device, "name", ""));
    profile->peak_tflops = profile_number_(device, "peak_tflops");
    profile->precision = word_(root, "precision", "train.precision");
    profile->fp8 = json_find(root, "fp8") == NULL ? FP8_OFF : word_(root, "fp8", "train.fp8");
    profile->tensor = json_integer(root, "tensor", 0);
    profile->expert = json_integer(root, "expert", 1); // absent in older profiles
    profile->sequence = json_true(root, "sequence");
    profile->keeps_experts = json_true(root, "keeps_experts");
    profile->mask_documents = json_true(root, "mask_documents");
    profile->optimizer_seconds = 1e-9 * profile_number_(root, "optimizer_ns_per_element");
    profile->norm_seconds = 1e-9 * profile_number_(root, "norm_ns_per_element");
    if (profile->precision < 0 || profile->optimizer_seconds < 0 || profile->norm_seconds < 0 || stages == NULL ||
        stages->type != JSON_ARRAY || stages->count == 0)
        return profile_damaged_(path, "it is incomplete", err);
    ModelConfig *m = &profile->model;
    const JsonValue *model = json_find(root, "model");
    m->family = word_(model, "family", "model.family");
    for (int i = 0; i < TRUTHS_; i++) *truth_(m, i) = json_true(model, truths_[i].key);
    m->causal |= json_find(model, "causal") == NULL; // absent in older profiles
    for (int i = 0; i < EXTENTS_; i++) {
        int64_t *field = (int64_t *)((char *)m + extents_[i].at);
        // Profiles from before model.head_dim have head_dim = hidden / heads, which are read earlier in this loop.
        int64_t absent = field == &m->head_dim && m->heads > 0 ? m->hidden / m->heads : 0;
        *field = json_integer(model, extents_[i].key, absent);
        if (*field < (i < POSITIVE_) || m->family < 0) return profile_damaged_(path, "its model is incomplete", err);
    }
    for (const JsonValue *from = stages->first; from != NULL; from = from->next) {
        ProfileStage stage = {.attention = word_(from, "attention", "attention.mode"),
                              .softmax = word_(from, "softmax", "attention.softmax"),
                              .micro_batch = json_integer(from, "micro_batch", 0),
                              .layers = json_integer(from, "layers", 0),
                              .first = json_true(from, "first"),
                              .last = json_true(from, "last"),
                              .peak_bytes = json_integer(from, "peak_bytes", 0)};
        double *seconds = stage.seconds;
        bool split =
            json_find(from, timed_keys_[TIMED_INPUT]) != NULL || json_find(from, timed_keys_[TIMED_WEIGHT]) != NULL;
        for (int k = 0; k < (split ? TIMED_ACTIONS : TIMED_INPUT); k++)
            seconds[k] = 1e-3 * profile_number_(from, timed_keys_[k]);
        if (split && (seconds[TIMED_INPUT] <= 0 || seconds[TIMED_WEIGHT] < 0))
            return profile_damaged_(path, "one of its stages lacks the times of a split backward", err);
        if (stage.attention < 0 || stage.softmax < 0 || stage.micro_batch < 1 || stage.micro_batch > 65536 ||
            stage.layers < 0 || seconds[TIMED_FORWARD] <= 0 || seconds[TIMED_BACKWARD] <= 0)
            return profile_damaged_(path, "one of its stages is incomplete", err);
        xpush(profile->stages, profile->count, stage);
    }
    return 0;
}

int profile_read(Profile *profile, const char *path, Error *err) {
    Json json;
    Error unread = {0};
    memset(profile, 0, sizeof *profile);
    int status = json_read_file(&json, path, &unread);
    if (status != 0) error_set(err, unread.code, "%s; make one with --profile", unread.text);
    else status = profile_read_all_(profile, json.root, path, err);
    json_free(&json);
    if (status != 0) profile_free(profile);
    return status;
}

// ---------------------------------------------------------------- answers

// Returns whether an entry has the attention and the kind of stage of the run. A CPU has one softmax; flash attention
// has no choice of softmax. Without layers, a stage between first and last has no times.
static bool alike_(const Profile *profile, const ProfileStage *entry, const AttentionShape *attention, bool first,
                   bool last) {
    bool softmax = profile->cpu || attention->mode == ATTENTION_FLASH || entry->softmax == attention->softmax;
    return entry->attention == attention->mode && softmax && entry->first == first && entry->last == last &&
           (entry->layers > 0 || first || last);
}

// Returns, for one kind of stage, the entry nearest to a micro-batch size. other_than: the result has another size than
// this entry and lies, if possible, on the other side of the micro-batch size. kernel: only entries with the same
// softmax kernel. Megatron-LM switches kernels at some size, and times across it cannot be interpolated.
static const ProfileStage *nearest_(const Profile *profile, const AttentionShape *attention, bool first, bool last,
                                    bool kernel, const ProfileStage *other_than) {
    const ProfileStage *best = NULL;
    int64_t b = attention->batch, distance = INT64_MAX, element = profile->precision == PRECISION_BF16 ? 2 : 4;
    for (int64_t i = 0; i < profile->count; i++) {
        const ProfileStage *entry = &profile->stages[i];
        int64_t away = entry->micro_batch > b ? entry->micro_batch - b : b - entry->micro_batch;
        if (other_than != NULL && (entry->micro_batch > b) == (other_than->micro_batch > b)) away += INT32_MAX;
        if (!alike_(profile, entry, attention, first, last) || away >= distance) continue;
        AttentionShape measured = *attention;
        measured.batch = entry->micro_batch;
        bool one_kernel = profile->cpu || attention->mode == ATTENTION_FLASH ||
                          attention_softmax_fuses(&measured, element) == attention_softmax_fuses(attention, element);
        if (kernel && !one_kernel) continue;
        if (other_than != NULL && entry->micro_batch == other_than->micro_batch) continue;
        best = entry;
        distance = away;
    }
    return best;
}

// Returns the layers of the complete model that was measured; 0 if the time of a single layer is known, from which the
// times of other numbers of layers follow.
static int64_t whole_(const Profile *profile, const AttentionShape *attention, int64_t stages) {
    const ProfileStage *first = nearest_(profile, attention, true, stages == 1, false, NULL);
    const ProfileStage *last = nearest_(profile, attention, false, true, false, NULL);
    if (nearest_(profile, attention, false, false, false, NULL) != NULL) return 0;
    return first->layers + (stages == 1 ? 0 : last->layers);
}

const char *profile_differs(const Profile *profile, const Config *config, const char *device, char *why, size_t size) {
    const char *kind = profile->cpu ? "cpu" : "cuda", *precision = config_word("train.precision", profile->precision);
    const char *softmax = config_word("attention.softmax", config->attention.softmax), *lacks = NULL;
    const Gpu *gpu = gpu_row(config->hardware.gpu), *measured = profile->cpu ? NULL : gpu_by_name(profile->device);
    AttentionShape run = {.batch = 1, .mode = config->attention.mode, .softmax = config->attention.softmax};
    int64_t p = config->parallel.pipeline, whole;
    int extent = 0, truth = 0;
    while (truth < TRUTHS_ && *truth_(&profile->model, truth) == *truth_(&config->model, truth)) truth++;
    while (extent < EXTENTS_ && extent_(&profile->model, extent) == extent_(&config->model, extent)) extent++;
    for (int s = 0; s < p && lacks == NULL; s++) { // a kind of stage that the run has
        bool first = s == 0, last = s == p - 1;
        run.mode = config_attention(config, s);
        if (nearest_(profile, &run, first, last, false, NULL) != NULL) continue;
        lacks = first && last ? "stage that is first and last"
                : first       ? "first stage"
                : last        ? "last stage"
                              : "stage between first and last";
    }
    if (profile->cpu != hardware_is_cpu(config)) snprintf(why, size, "it is for hardware.device %s", kind);
    else if (device[0] != '\0' && strcmp(device, profile->device) != 0)
        snprintf(why, size, "it is for device %s, not %s", profile->device, device);
    else if (gpu != NULL && measured != NULL && gpu != measured)
        snprintf(why, size, "it is for device %s, not hardware.gpu %s", profile->device, gpu->word);
    else if (profile->model.family != config->model.family)
        snprintf(why, size, "it is for model.family %s", config_word("model.family", profile->model.family));
    else if (extent < EXTENTS_)
        snprintf(why, size, "it is for model.%s %lld, not %lld", extents_[extent].key,
                 (long long)extent_(&profile->model, extent), (long long)extent_(&config->model, extent));
    else if (truth < TRUTHS_)
        snprintf(why, size, "it is for model.%s %s", truths_[truth].key,
                 *truth_(&profile->model, truth) ? "true" : "false");
    else if (profile->mask_documents != (config->data.mask_documents != 0))
        snprintf(why, size, "it is for data.mask_documents %s", profile->mask_documents ? "on" : "off");
    else if (config_slices(config) > 1) snprintf(why, size, "it has no times for slices");
    else if (config->parallel.context > 1) snprintf(why, size, "it has no times for context ranks");
    else if (profile->precision != config->train.precision)
        snprintf(why, size, "it is for train.precision %s", precision);
    else if (profile->fp8 != config->train.fp8)
        snprintf(why, size, "it is not for train.fp8 %s", config_word("train.fp8", config->train.fp8));
    else if (profile->tensor != config->parallel.tensor)
        snprintf(why, size, "it is for parallel.tensor %lld", (long long)profile->tensor);
    else if (profile->expert != config->parallel.expert)
        snprintf(why, size, "it is for parallel.expert %lld", (long long)profile->expert);
    else if (profile->sequence != config->parallel.sequence && profile->tensor > 1)
        snprintf(why, size, "it is for parallel.sequence %s", profile->sequence ? "true" : "false");
    else if (lacks != NULL)
        snprintf(why, size, "it has no %s with attention.mode %s and attention.softmax %s", lacks,
                 config_word("attention.mode", run.mode), softmax);
    else if ((whole = whole_(profile, &run, p)) > 0 && whole != config->model.layers)
        snprintf(why, size, "without a stage between first and last, it is for model.layers %lld", (long long)whole);
    else return NULL;
    return why;
}

// Finds the seconds of a kind of stage at this micro-batch size, and the number of layers that they are for.
static bool kind_time_(const Profile *profile, const AttentionShape *attention, bool first, bool last, double *seconds,
                       int64_t *layers) {
    bool kernel = true;
    const ProfileStage *one = nearest_(profile, attention, first, last, kernel, NULL);
    if (one == NULL) one = nearest_(profile, attention, first, last, kernel = false, NULL);
    if (one == NULL) return false;
    memcpy(seconds, one->seconds, sizeof one->seconds);
    *layers = one->layers;
    if (one->micro_batch == attention->batch) return true;
    const ProfileStage *two = nearest_(profile, attention, first, last, kernel, one);
    bool line =
        two != NULL && two->layers == one->layers && (one->seconds[TIMED_INPUT] > 0) == (two->seconds[TIMED_INPUT] > 0);
    double ratio = (double)attention->batch / (double)one->micro_batch;
    for (int k = 0; k < TIMED_ACTIONS; k++) {
        double at = one->seconds[k];
        seconds[k] = ratio * at;
        if (!line) continue;
        double along = (double)(attention->batch - one->micro_batch) / (double)(two->micro_batch - one->micro_batch);
        double between = at + along * (two->seconds[k] - at);
        if (between > 0) seconds[k] = between;
    }
    return true;
}

bool profile_chunk_time(const Profile *profile, const AttentionShape *attention, const StageChunk *at,
                        double seconds[TIMED_ACTIONS]) {
    double like[TIMED_ACTIONS], layer[TIMED_ACTIONS];
    int64_t likes, layers;
    if (profile == NULL) return false;
    bool found = kind_time_(profile, attention, at->first, at->last, like, &likes);
    // A first stage can stand in for a middle one: the embedding takes next to no time.
    if (!found && !at->first && !at->last) found = kind_time_(profile, attention, true, false, like, &likes);
    if (!found) return false;
    if (!kind_time_(profile, attention, false, false, layer, &layers)) {
        memcpy(layer, like, sizeof layer);
        layers = likes;
    }
    if (layers == 0) return false; // the time of a layer is unknown
    double more = (double)(at->layers - likes) / (double)layers;
    double again = (double)at->recomputed * layer[TIMED_FORWARD] / (double)layers;
    for (int k = 0; k < TIMED_ACTIONS; k++) {
        bool recomputes = k == TIMED_BACKWARD || k == TIMED_INPUT;
        seconds[k] = like[k] + more * layer[k] + (recomputes ? again : 0);
    }
    bool split = like[TIMED_INPUT] > 0 && layer[TIMED_INPUT] > 0;
    if (!split || seconds[TIMED_INPUT] <= 0 || seconds[TIMED_WEIGHT] < 0)
        seconds[TIMED_INPUT] = seconds[TIMED_WEIGHT] = 0;
    return seconds[TIMED_FORWARD] > 0 && seconds[TIMED_BACKWARD] > 0;
}

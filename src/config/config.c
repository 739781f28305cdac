// Writes a configuration as JSON, computes values derived from its keys, and prints the tables of keys and options.
// Loading is in config_yaml.c, checks of combinations in config_check.c.
#include "config_schema.h"
#include "gpus.h"
#include "options.h"
#include "base/files.h"
#include "base/json_out.h"
#include "base/units.h"
#include "base/version.h"

#include <stdlib.h>
#include <string.h>

void config_plan_device(Config *config) {
    HardwareConfig *hardware = &config->hardware;
    bool described = hardware->gpu > 0 || hardware->peak_tflops > 0 || hardware->memory_gib > 0;
    if (hardware->device == DEVICE_AUTO && described) hardware->device = DEVICE_CUDA;
}

// Writes a field as the member `name`, or as an array entry if `name` is NULL. The words true and false become JSON
// booleans. An entry of a list is a value, an object of named parts, or a tuple.
static void put_field_(JsonOut *out, const char *name, const Config *config, const ConfigKey *key, const void *field) {
    int64_t whole = key->type == KEY_INT || key->type == KEY_WORD ? config_get_whole(key->size, field) : 1;
    bool zero = key->type == KEY_NUMBER ? *(const double *)field == 0 : key->type == KEY_INT && whole == 0;
    const char *word = zero ? key->zero_word : NULL;
    if (key->type == KEY_WORD) word = key->words[whole];
    if (key->type == KEY_INT && key->words != NULL && whole == -1) word = key->words[0];
    if (key->type == KEY_WORD && (strcmp(word, "true") == 0 || strcmp(word, "false") == 0))
        return json_put_truth(out, name, word[0] == 't');
    if (word != NULL) return json_put_text(out, name, word);
    if (key->type == KEY_INT) return json_put_integer(out, name, whole);
    if (key->type == KEY_NUMBER) return json_put_number(out, name, *(const double *)field);
    if (key->type == KEY_BOOL) return json_put_truth(out, name, *(const bool *)field);
    if (key->type == KEY_TEXT) return json_put_text(out, name, field);
    const ConfigList *list = key->list;
    int64_t count = *(const int64_t *)((const char *)config + list->valid);
    bool named = list->parts[0].name != NULL;
    if (list->tuple && count == 0) return json_put_text(out, name, "none");
    if (list->alone && count == 1) return put_field_(out, name, config, &list->parts[0], field);
    json_begin(out, name, '[');
    for (const char *entry = field, *end = entry + (size_t)count * list->entry; entry < end; entry += list->entry) {
        if (named) json_begin(out, NULL, list->tuple ? '[' : '{');
        for (const ConfigKey *part = list->parts; part < list->parts + list->part_count; part++)
            put_field_(out, list->tuple ? NULL : part->name, config, part, entry + part->offset);
        if (named) json_end(out, list->tuple ? ']' : '}');
    }
    json_end(out, ']');
}

void config_write_field(const Config *config, const ConfigKey *key, const void *field, FILE *file) {
    put_field_(&(JsonOut){.file = file}, NULL, config, key, field);
}

void config_write_value(const Config *config, const char *name, FILE *file) {
    const ConfigKey *key = config_find(name);
    config_write_field(config, key, (const char *)config + key->offset, file);
}

void config_write_json(const Config *config, FILE *file) {
    JsonOut out = {.file = file};
    const ConfigKey *before = NULL;
    json_begin(&out, NULL, '{');
    for (int i = 0; i < config_key_count; i++) {
        const ConfigKey *key = &config_keys[i];
        char section[32];
        size_t dot = (size_t)(config_short_name(key) - key->name); // length of the section's name and its dot
        if (config_lacks(config, key)) continue;
        if (before == NULL || strncmp(before->name, key->name, dot) != 0) {
            if (before != NULL) json_end(&out, '}');
            snprintf(section, sizeof section, "%.*s", (int)dot - 1, key->name);
            json_begin(&out, section, '{');
        }
        before = key;
        put_field_(&out, config_short_name(key), config, key, (const char *)config + key->offset);
    }
    json_end(&out, '}');
    json_end(&out, '}');
}

// --- values derived from the keys, used by several modules

int64_t config_microbatches(const Config *config) {
    return config->train.global_batch / (config->schedule.micro_batch * config->parallel.data);
}

int64_t config_step_tokens(const Config *config) { return config->train.global_batch * config->model.seq_len; }

int64_t config_batch_at(const Config *config, int64_t step) { return config_samples(config, step - 1, step); }

int64_t config_samples(const Config *config, int64_t first, int64_t last) {
    const TrainConfig *train = &config->train;
    int64_t sum = 0, count = train->ramp_count;
    if (count == 0) return (last - first) * train->global_batch;
    for (int64_t i = 0; i < count; i++) {
        // Entry i applies to the steps from its own step up to the next entry's step.
        int64_t from = train->batch_ramp[i].step - 1, to = i + 1 < count ? train->batch_ramp[i + 1].step - 1 : last;
        if (i == 0 || from < first) from = first;
        if (to > last) to = last;
        if (to > from) sum += (to - from) * train->batch_ramp[i].global_batch;
    }
    return sum;
}

int64_t config_steps_for_tokens(const Config *config, int64_t step, int64_t samples) {
    const TrainConfig *train = &config->train;
    int64_t left = (train->tokens - 1) / config->model.seq_len + 1 - samples;
    for (int64_t i = 0; left > 0; i++) {
        bool last = i + 1 >= train->ramp_count;
        int64_t batch = train->ramp_count > 0 ? train->batch_ramp[i].global_batch : train->global_batch;
        int64_t steps = (left - 1) / batch + 1;
        if (!last) steps = max_i64(0, min_i64(steps, train->batch_ramp[i + 1].step - 1 - step));
        step += steps;
        left -= min_i64(steps * batch, left);
    }
    return step;
}

int64_t config_batch(const Config *config, int64_t i) {
    if (i == 0) return config->train.global_batch;
    return i <= config->train.ramp_count ? config->train.batch_ramp[i - 1].global_batch : 0;
}

int64_t config_world(const Config *config) {
    return config->parallel.pipeline * config->parallel.tensor * config_replicas(config);
}

char *config_cut_text(const Config *config, char text[CONFIG_CUT]) {
    const ParallelConfig *p = &config->parallel;
    snprintf(text, CONFIG_CUT, "pipeline %lld x tensor %lld x data %lld", (long long)p->pipeline, (long long)p->tensor,
             (long long)p->data);
    if (p->context > 1) text_add(text, CONFIG_CUT, " x context %lld", (long long)p->context);
    return text;
}

int64_t config_replicas(const Config *config) { return config->parallel.data * config->parallel.context; }

bool config_copies(const Config *config) {
    const ParallelConfig *p = &config->parallel;
    int64_t node = config->hardware.gpus_per_node;
    bool one_node = config_world(config) <= node || node % p->tensor == 0;
    bool by_default = p->collectives == COLLECTIVES_AUTO && !config->hardware.share_gpu;
    return (by_default || p->collectives == COLLECTIVES_COPY) && p->tensor > 1 && p->sequence && one_node;
}

// Returns the layer count of part g of `parts`. The remainder goes to the parts before the last, later parts first:
// 1F1B keeps fewer microbatches there. The last part has the head, which takes more time than the embedding.
static int64_t even_layers_(int64_t layers, int64_t parts, int64_t g) {
    return layers / parts + (g < parts - 1 && g >= parts - 1 - layers % parts);
}

int64_t config_layers(const Config *config, int virtual_stages, int g) {
    const ParallelConfig *parallel = &config->parallel;
    if (parallel->layers_given == virtual_stages) return parallel->layers_per_stage[g];
    return even_layers_(config->model.layers, virtual_stages, g);
}

int64_t config_targets(const Config *config) {
    int64_t length = config->model.seq_len, chosen = (15 * length + 50) / 100;
    return config->train.objective == OBJECTIVE_NEXT ? length : chosen > 0 ? chosen : 1;
}

bool config_uses_documents(const Config *config) {
    return config->data.mask_documents != 0 || config->data.reset_positions != 0;
}

int config_attention(const Config *config, int stage) {
    const AttentionConfig *attention = &config->attention;
    return attention->modes_given > 1 ? attention->mode_of_stage[stage] : attention->mode;
}

int64_t config_recompute(const Config *config, int stage) {
    const ScheduleConfig *schedule = &config->schedule;
    return schedule->recompute_of_stage[schedule->recompute_given > 1 ? stage : 0];
}

Recompute config_recompute_kind(const Config *config, int stage) {
    const ScheduleConfig *schedule = &config->schedule;
    return schedule->pointwise_of_stage[schedule->pointwise_given > 1 ? stage : 0];
}

void config_set_attention(Config *config, int mode) {
    config->attention.modes_given = 1;
    config->attention.mode = config->attention.mode_of_stage[0] = (int8_t)mode;
}

void config_spread_layers(Config *config, int64_t parts) {
    config->parallel.layers_count = parts;
    for (int64_t g = 0; g < parts; g++)
        config->parallel.layers_per_stage[g] = (int16_t)even_layers_(config->model.layers, parts, g);
}

int64_t config_split_ffn(const ModelConfig *model) {
    int64_t ffn = model->experts == 0 || model->dense_layers > 0 ? model->ffn : 0;
    return greatest_common_divisor(ffn, model->shared_ffn);
}

const char *config_why_whole(const Config *config) {
    if (config_replicas(config) == 1) return "one data rank has nothing to shard; use data 2 or more, or off";
    if (config->parallel.pipeline > 1)
        return "a pipeline stage completes its gradients only at the last microbatch, so its layers cannot share "
               "gradient memory; use pipeline 1, or off";
    if (config_microbatches(config) > 1)
        return "gradients are summed over microbatches before data ranks, which needs memory for all of them; use one "
               "microbatch a step (micro_batch = global_batch / data), or off";
    if (config_slices(config) > 1)
        return "gradients are summed over slices before data ranks, which needs memory for all layers' gradients; use "
               "schedule.slices 1, or off";
    if (config->schedule.split_backward == SPLIT_ON || config_schedule_kind(config)->splits ||
        config->schedule.file[0] != '\0')
        return "split backwards compute weight gradients only after the input gradients of all layers; "
               "use a schedule without split backwards such as 1f1b, or off";
    if (config->model.experts > 0)
        return "experts' gradients are summed over a different set of ranks than other gradients; use off";
    return NULL;
}

// Returns whether data ranks shard gradients. With auto they do so if sharding works, and if the gradients of 2 layers
// and 1 shard of every layer need less memory than the gradients of all layers.
bool config_shards_gradients(const Config *config) {
    int64_t layers = config->model.layers, shards = config_replicas(config);
    bool saves = (layers - 2) * shards > layers;
    bool wanted =
        config->parallel.shard_gradients == SHARD_ON || (config->parallel.shard_gradients == SHARD_AUTO && saves);
    return wanted && config_why_whole(config) == NULL;
}

int64_t config_active_parameters(const ModelConfig *m, int64_t parameters) {
    return parameters -
           (m->layers - m->dense_layers) * (m->experts - m->experts_per_token) * 3 * m->hidden * m->expert_ffn;
}

int64_t config_padded_vocab(const Config *config) {
    int64_t unit = 128 * config->parallel.tensor;
    return (config->model.vocab + unit - 1) / unit * unit;
}

// --- the schedule: its row in the table of schedules, its spec, and the file schedule.file. Defaults that depend on
// the number of stages are computed on demand and never stored, so a configuration stays valid when a planner changes
// that number.

const ScheduleKind *config_schedule_kind(const Config *config) {
    int name = config->schedule.name;
    return &schedule_kinds[name < schedule_kind_count ? name : schedule_kind_plain()];
}

ScheduleSpec config_schedule_spec(const Config *config) {
    const ScheduleConfig *schedule = &config->schedule;
    return (ScheduleSpec){.stages = (int)config->parallel.pipeline,
                          .microbatches = (int)config_microbatches(config),
                          .chunks = schedule->name < schedule_kind_count ? (int)schedule->chunks : 0,
                          .group = (int)schedule->group,
                          .delay = (int)schedule->delay,
                          .slices = schedule->name < schedule_kind_count ? (int)schedule->slices : 1,
                          .split = schedule->split_backward == SPLIT_ON};
}

int config_chunks(const Config *config) {
    if (config->schedule.file_chunks > 0) return (int)config->schedule.file_chunks;
    return config->schedule.chunks > 0 ? (int)config->schedule.chunks : config_schedule_kind(config)->chunks;
}

int config_slices(const Config *config) {
    return (int)(config->schedule.file_slices > 0 ? config->schedule.file_slices : config->schedule.slices);
}

bool config_schedule_legal(const Config *config) {
    Error ignored = {0};
    int64_t batch, unit = config->schedule.micro_batch * config->parallel.data;
    if (config->schedule.file[0] != '\0') return config_microbatches(config) == config->schedule.file_microbatches;
    for (int64_t i = 0; (batch = config_batch(config, i)) > 0; i++) {
        ScheduleSpec spec = config_schedule_spec(config);
        spec.microbatches = (int)(batch / unit);
        if (schedule_complete(config_schedule_kind(config), &spec, NULL, &ignored) != 0) return false;
    }
    return true;
}

int64_t config_fewer_microbatches(const Config *config, int64_t least) {
    Error ignored = {0};
    ScheduleSpec spec = config_schedule_spec(config);
    if (config->schedule.file[0] != '\0') return spec.microbatches;
    if (schedule_complete(config_schedule_kind(config), &spec, NULL, &ignored) != 0) return spec.microbatches;
    int64_t group = spec.group, rest = spec.microbatches % group;
    int64_t rounds = spec.slices > 1 ? spec.stages : 2 * spec.stages;
    if (least < rounds) least = rounds;
    int64_t fewer = least <= rest ? rest : rest + (least - rest + group - 1) / group * group;
    return fewer < spec.microbatches ? fewer : spec.microbatches;
}

Schedule *config_read_schedule(const Config *config, Error *err) {
    enum { MOST = 1 << 28 };
    const char *path = config->schedule.file;
    int64_t length;
    if (strncmp(path, "/dev/", 5) == 0)
        return error_null(err, EXIT_USAGE, "%s: every rank has to open the schedule; write it to a regular file", path);
    char *text = file_read_whole(path, MOST, &length, err);
    if (text == NULL) return NULL;
    Error why = {0};
    bool plain = strlen(text) == (size_t)length;
    Schedule *schedule = plain ? schedule_parse(text, &why) : NULL;
    if (!plain) error_set(&why, EXIT_USAGE, "byte %lld is NUL; a schedule is plain text", (long long)strlen(text) + 1);
    free(text);
    if (schedule == NULL) error_set(err, why.code, "%s: %s", path, why.text);
    return schedule;
}

int config_min_slots(const Config *config) {
    ScheduleSpec spec = config_schedule_spec(config);
    spec.microbatches = (int)config_fewer_microbatches(config, 4 * (int64_t)spec.stages);
    return schedule_least_slots(config_schedule_kind(config), &spec, (EvictTarget)config->schedule.evict_to);
}

// --- the tables of keys and options: as text for the terminal, and as JSON, from which make/faces.py generates the
// manual page, shell completion and docs/configuration.md

void config_help(FILE *file) {
    for (int i = 0; i < config_key_count; i++) {
        const ConfigKey *key = &config_keys[i];
        char expected[CONFIG_EXPECTED];
        int section = (int)(config_short_name(key) - key->name) - 1;
        config_expected(key, expected, sizeof expected);
        if (i == 0 || strncmp(config_keys[i - 1].name, key->name, (size_t)section + 1) != 0)
            fprintf(file, "%s%.*s:\n", i ? "\n" : "", section, key->name);
        fprintf(file, "  %-14s %s\n", config_short_name(key), key->meaning);
        fprintf(file, "  %-14s %s%s; %s\n", "", key->def != NULL ? "default " : "required",
                key->def == NULL      ? ""
                : key->def[0] == '\0' ? "\"\""
                                      : key->def,
                expected);
    }
}

void config_help_json(const char *program, FILE *file) {
    static const char *const kinds[] = {
        [OPTION_FLAG] = "flag", [OPTION_TEXT] = "text", [OPTION_MAYBE] = "maybe", [OPTION_LIST] = "list"};
    JsonOut out = {.file = file};
    json_begin(&out, NULL, '{');
    json_members(&out, "program %s version %s date %s", program, VERSION, VERSION_DATE);
    json_line(&out);
    json_begin(&out, "options", '[');
    for (int i = 0; i < option_row_count; i++) {
        const OptionRow *row = &option_rows[i];
        json_line(&out);
        json_object(&out, NULL, "name %s letter %s kind %s argument %s meaning %s", row->name,
                    (char[]){row->letter, '\0'}, kinds[row->kind], row->argument, row->meaning);
    }
    json_end(&out, ']');
    json_line(&out);
    json_begin(&out, "keys", '[');
    for (const ConfigKey *key = config_keys; key < config_keys + config_key_count; key++) {
        char expected[CONFIG_EXPECTED];
        config_expected(key, expected, sizeof expected);
        json_line(&out);
        json_begin(&out, NULL, '{');
        json_members(&out, "name %s default %s text? %d", key->name, key->def, config_takes_text(key));
        // The words that the key accepts. The zero word, such as "auto", precedes the words of an enum.
        json_begin(&out, "words", '[');
        if (key->type == KEY_BOOL) json_put_text(&out, NULL, "true"), json_put_text(&out, NULL, "false");
        if (key->zero_word != NULL) json_put_text(&out, NULL, key->zero_word);
        for (int i = 0; key->words != NULL && key->words[i] != NULL; i++) json_put_text(&out, NULL, key->words[i]);
        json_end(&out, ']');
        json_members(&out, "expected %s meaning %s", expected, key->meaning);
        json_end(&out, '}');
    }
    json_end(&out, ']');
    json_end(&out, '}');
    fputc('\n', file);
}

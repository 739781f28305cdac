// Loads a configuration and writes it as JSON. Parsing is in config_yaml.c, checks of combinations in config_check.c,
// figures that follow from the keys in config_derived.c.
#include "config_schema.h"
#include "gpus.h"
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

static int place_of_(const Config *config, const char *key) { return config->place[config_find(key) - config_keys]; }

// Returns whether the row's value applies to `key`: not if the key was given in the same place or later.
static bool row_counts_(const Config *config, const char *key) {
    int given = place_of_(config, key), gpu = place_of_(config, "hardware.gpu");
    return given == CONFIG_DEFAULT || (gpu == CONFIG_OVERRIDE && given != CONFIG_OVERRIDE);
}

// Fills keys of `hardware` from the row that hardware.gpu names. Keys given in the same place (file, or -o) or later
// win over the row; `-o hardware.gpu` replaces the file's keys. A row says nothing about CPUs.
static void fill_from_gpu_(Config *config) {
    HardwareConfig *hardware = &config->hardware;
    const Gpu *gpu = gpu_row(hardware->gpu);
    if (gpu == NULL || hardware->device == DEVICE_CPU) return;
    if (row_counts_(config, "hardware.peak_tflops")) hardware->peak_tflops = gpu_peak(gpu, config->train.precision);
    if (row_counts_(config, "hardware.memory_gib")) hardware->memory_gib = gpu->memory_gib;
    if (row_counts_(config, "hardware.memory_gb_s")) hardware->memory_gb_s = gpu->memory_gb_s;
    if (row_counts_(config, "hardware.gpu_watts")) hardware->gpu_watts = gpu->watts;
    if (row_counts_(config, "hardware.gpus_per_node")) hardware->gpus_per_node = gpu->gpus_per_node;
    if (row_counts_(config, "hardware.pair_gb_s")) hardware->pair_gb_s = gpu->link_gb_s;
    if (row_counts_(config, "hardware.tensor_gb_s")) hardware->tensor_gb_s = gpu->link_gb_s;
    if (row_counts_(config, "hardware.network_gb_s")) hardware->network_gb_s = gpu->network_gb_s;
    if (row_counts_(config, "hardware.host_gb_s")) hardware->host_gb_s = gpu->host_gb_s;
}

void config_plan_device(Config *config) {
    HardwareConfig *hardware = &config->hardware;
    bool described = hardware->gpu > 0 || hardware->peak_tflops > 0 || hardware->memory_gib > 0;
    if (hardware->device == DEVICE_AUTO && described) hardware->device = DEVICE_CUDA;
}

int config_load(Config *config, const char *path, const char *const *overrides, int override_count, Error *err) {
    memset(config, 0, sizeof *config);
    if (strlen(path) >= sizeof config->path)
        return error_set(err, EXIT_USAGE, "the name of the configuration is longer than %d bytes; use a shorter path",
                         CONFIG_TEXT - 1);
    strcpy(config->path, path);
    for (int i = 0; i < config_key_count; i++)
        if (config_keys[i].def != NULL && config_set_default(config, &config_keys[i], err) != 0) return -1;
    if (config_read_file(config, err) != 0) return -1;
    for (int i = 0; i < override_count; i++)
        if (config_read_override(config, overrides[i], err) != 0) return -1;
    fill_from_gpu_(config);
    if (config_resolve_ramp(config, err) != 0) return -1;
    return config_check(config, err);
}

bool config_lacks(const Config *config, const ConfigKey *key) {
    return key->def == NULL && config->place[key - config_keys] == CONFIG_DEFAULT;
}

// Writes a word; those that mean true and false become JSON's own, as in the file.
static void config_write_word_(FILE *file, const char *word) {
    if (strcmp(word, "true") == 0 || strcmp(word, "false") == 0) fputs(word, file);
    else json_write_text(file, word);
}

static void config_write_value_(FILE *file, const Config *config, const ConfigKey *key, const void *field);

static void config_write_entry_(FILE *file, const Config *config, const ConfigList *list, const char *entry) {
    for (int i = 0; i < list->part_count; i++) {
        const ConfigKey *part = &list->parts[i];
        if (list->tuple) fputc(i == 0 ? '[' : ',', file);
        else if (part->name != NULL) fprintf(file, "%c\"%s\":", i == 0 ? '{' : ',', part->name);
        config_write_value_(file, config, part, entry + part->offset);
    }
    if (list->parts[0].name != NULL) fputc(list->tuple ? ']' : '}', file);
}

static void config_write_list_(FILE *file, const Config *config, const ConfigList *list, const char *field) {
    int64_t count = *(const int64_t *)((const char *)config + list->valid);
    if (list->tuple && count == 0) {
        fputs("\"none\"", file);
        return;
    }
    if (list->alone && count == 1) {
        config_write_value_(file, config, &list->parts[0], field);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        fputc(i == 0 ? '[' : ',', file);
        config_write_entry_(file, config, list, field + (size_t)i * list->entry);
    }
    fputc(']', file);
}

static void config_write_value_(FILE *file, const Config *config, const ConfigKey *key, const void *field) {
    bool zero = (key->type == KEY_INT && config_get_whole(key, field) == 0) ||
                (key->type == KEY_NUMBER && *(const double *)field == 0);
    if (zero && key->zero_word != NULL) {
        json_write_text(file, key->zero_word);
        return;
    }
    if (key->type == KEY_INT && key->words != NULL && config_get_whole(key, field) == -1) {
        json_write_text(file, key->words[0]);
        return;
    }
    switch (key->type) {
    case KEY_INT: fprintf(file, "%lld", (long long)config_get_whole(key, field)); break;
    case KEY_NUMBER: json_write_number(file, *(const double *)field); break;
    case KEY_BOOL: fputs(*(const bool *)field ? "true" : "false", file); break;
    case KEY_WORD: config_write_word_(file, key->words[config_get_whole(key, field)]); break;
    case KEY_TEXT: json_write_text(file, field); break;
    case KEY_LIST: config_write_list_(file, config, key->list, field); break;
    }
}

void config_write_value(const Config *config, const char *name, FILE *file) {
    const ConfigKey *key = config_find(name);
    config_write_value_(file, config, key, (const char *)config + key->offset);
}

void config_write_json(const Config *config, FILE *file) {
    const ConfigKey *before = NULL;
    for (int i = 0; i < config_key_count; i++) {
        const ConfigKey *key = &config_keys[i];
        size_t section = (size_t)(config_short_name(key) - key->name); // length with its dot
        if (config_lacks(config, key)) continue;
        bool same = before != NULL && strncmp(before->name, key->name, section) == 0;
        if (same) fputc(',', file);
        else fprintf(file, "%s\"%.*s\":{", before == NULL ? "{" : "},", (int)section - 1, key->name);
        before = key;
        fprintf(file, "\"%s\":", config_short_name(key));
        config_write_value_(file, config, key, (const char *)config + key->offset);
    }
    fputs("}}", file);
}

// Compares the configuration in a checkpoint's training.json with this run's. Both are JSON, so no key is listed here.
#include "run.h"
#include "base/alloc.h"
#include "base/files.h"
#include "base/json.h"
#include "engine/optimizer.h"

#include <stdlib.h>
#include <string.h>

static bool same_(const JsonValue *a, const JsonValue *b) {
    if (a->type != b->type || a->count != b->count) return false;
    const JsonValue *x = a->first, *y = b->first;
    while (x != NULL && same_(x, y)) x = x->next, y = y->next;
    return x == NULL && (a->type != JSON_NUMBER || a->number == b->number) &&
           (a->type != JSON_BOOL || a->truth == b->truth) && (a->type != JSON_TEXT || strcmp(a->text, b->text) == 0);
}

static void write_value_(const JsonValue *value, FILE *file) {
    if (value->type == JSON_NUMBER) json_write_number(file, value->number);
    else if (value->type == JSON_BOOL) fputs(value->truth ? "true" : "false", file);
    else fputs(value->type == JSON_TEXT ? value->text : "a list", file);
}

void run_tell_resumed(const Run *run) {
    const ResumePoint *from = &run->from;
    const Config *config = run->config;
    const Log *log = &run->all;
    char path[CHECKPOINT_PATH], *text;
    size_t length;
    Json saved = {0}, own = {0};
    Error ignored = {0};
    FILE *file = xmemstream(&text, &length);
    config_write_json(config, file);
    xmemstream_close(file);
    if (file_path_within(path, from->dir, CHECKPOINT_TRAINING, &ignored) == 0 &&
        json_read_file(&saved, path, &ignored) == 0 && json_parse(&own, text, (int64_t)length, "", &ignored) == 0) {
        const JsonValue *then = json_find(json_find(saved.root, "config"), "train"),
                        *now = json_find(own.root, "train");
        char *keys;
        FILE *list = xmemstream(&keys, &length);
        for (const JsonValue *key = now == NULL ? NULL : now->first; key != NULL; key = key->next) {
            const JsonValue *before = json_find(then, key->key);
            if (before == NULL || same_(before, key)) continue;
            fprintf(list, "%s train.%s ", ftell(list) > 0 ? "," : "", key->key);
            write_value_(before, list);
            fputs(" -> ", list);
            write_value_(key, list);
        }
        xmemstream_close(list);
        if (length > 0) log_status(log, "settings that differ from the checkpoint's (old -> new):%.1000s", keys);
        free(keys);
        char products[17] = "";
        if (run->products.checksum != 0)
            snprintf(products, sizeof products, "%016llx", (unsigned long long)run->products.checksum);
        if (strcmp(json_text(saved.root, "products", ""), products) != 0)
            log_status(log, "matrix products use different kernels than before (hardware.products_file), so sums "
                            "differ in the last bits");
        const JsonValue *lr = json_find(saved.root, "lr");
        double next = optimizer_lr(&config->train, from->state.step + 1);
        const JsonValue *highest = json_find(then, "lr");
        bool warm = from->state.step < config->train.warmup_steps || from->state.step >= config->train.steps;
        bool decayed = lr != NULL && highest != NULL && lr->number < 0.99 * highest->number;
        if (decayed && !warm && next > 1.01 * lr->number)
            log_status(log,
                       "the learning rate had decayed to %.3g at step %lld and rises to %.3g; to train on without the "
                       "decay, resume from a checkpoint before it",
                       lr->number, (long long)from->state.step, next);
    }
    json_free(&saved);
    json_free(&own);
    free(text);
}

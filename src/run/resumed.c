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

static void add_value_(char *list, size_t size, const JsonValue *value) {
    if (value->type == JSON_NUMBER) text_add(list, size, "%.15g", value->number);
    else if (value->type == JSON_BOOL) text_add(list, size, "%s", value->truth ? "true" : "false");
    else text_add(list, size, "%s", value->type == JSON_TEXT ? value->text : "a list");
}

void run_tell_resumed(const Run *run) {
    const ResumePoint *from = &run->from;
    const TrainConfig *train = &run->config->train;
    const Log *log = &run->all;
    char path[CHECKPOINT_PATH], list[1000] = "", products[17] = "", *text;
    size_t length;
    Json saved = {0}, own;
    FILE *file = xmemstream(&text, &length);
    config_write_json(run->config, file);
    xmemstream_close(file);
    json_parse(&own, text, (int64_t)length, "", NULL);
    if (file_path_within(path, from->dir, CHECKPOINT_TRAINING, NULL) == 0) json_read_file(&saved, path, NULL);
    const JsonValue *then = json_find(json_find(saved.root, "config"), "train"), *now = json_find(own.root, "train");
    for (const JsonValue *key = now == NULL ? NULL : now->first; key != NULL; key = key->next) {
        const JsonValue *before = json_find(then, key->key);
        if (before == NULL || same_(before, key)) continue;
        text_add(list, sizeof list, "%s train.%s ", list[0] != '\0' ? "," : "", key->key);
        add_value_(list, sizeof list, before);
        text_add(list, sizeof list, " -> ");
        add_value_(list, sizeof list, key);
    }
    if (list[0] != '\0') log_status(log, "settings that differ from the checkpoint's (old -> new):%s", list);
    if (run->products.checksum != 0)
        snprintf(products, sizeof products, "%016llx", (unsigned long long)run->products.checksum);
    if (strcmp(json_text(saved.root, "products", ""), products) != 0)
        log_status(log, "matrix products use different kernels than before (hardware.products_file), so sums differ in "
                        "the last bits");
    const JsonValue *lr = json_find(saved.root, "lr"), *highest = json_find(then, "lr");
    double next = optimizer_lr(train, from->state.step + 1);
    bool warm = from->state.step < train->warmup_steps || from->state.step >= train->steps;
    bool decayed = lr != NULL && highest != NULL && lr->number < 0.99 * highest->number;
    if (decayed && !warm && next > 1.01 * lr->number)
        log_status(log,
                   "the learning rate had decayed to %.3g at step %lld and rises to %.3g; to train on without the "
                   "decay, resume from a checkpoint before it",
                   lr->number, (long long)from->state.step, next);
    json_free(&saved);
    json_free(&own);
    free(text);
}

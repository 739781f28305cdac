// JSON: what is read, written and read again is the same.
#include "fuzz.h"

#include "base/json.h"

static void write_(const JsonValue *value, FILE *file) {
    static const char *const words[] = {"null", "false", "true"};
    bool object = value->type == JSON_OBJECT;
    switch (value->type) {
    case JSON_NULL:
    case JSON_BOOL: fputs(words[value->type == JSON_NULL ? 0 : 1 + value->truth], file); return;
    case JSON_NUMBER:
        if (value->whole) fprintf(file, "%lld", (long long)value->integer);
        else json_write_number(file, value->number);
        return;
    case JSON_TEXT: json_write_text(file, value->text); return;
    case JSON_ARRAY:
    case JSON_OBJECT:
        fputc(object ? '{' : '[', file);
        for (const JsonValue *entry = value->first; entry != NULL; entry = entry->next) {
            if (object) json_write_text(file, entry->key);
            if (object) fputc(':', file);
            write_(entry, file);
            if (entry->next != NULL) fputc(',', file);
        }
        fputc(object ? '}' : ']', file);
    }
}

static void compare_(const JsonValue *a, const JsonValue *b) {
    PROMISE(a->type == b->type && a->count == b->count && (a->key == NULL) == (b->key == NULL));
    PROMISE(a->key == NULL || strcmp(a->key, b->key) == 0);
    PROMISE(a->type != JSON_NUMBER || a->number == b->number);
    PROMISE(a->type != JSON_BOOL || a->truth == b->truth);
    PROMISE(a->type != JSON_TEXT || strcmp(a->text, b->text) == 0);
    const JsonValue *x = a->first, *y = b->first;
    for (; x != NULL && y != NULL; x = x->next, y = y->next) {
        PROMISE(x->key == NULL || json_find(a, x->key) == x);
        compare_(x, y);
    }
    PROMISE(x == NULL && y == NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Json json, again;
    Error err = {0};
    int status = json_parse(&json, (const char *)data, (int64_t)size, "x", &err);
    PROMISE(status == 0 ? err.code == 0 : err.code == EXIT_FAILED && strncmp(err.text, "x: byte ", 8) == 0);
    if (status == 0) {
        char *text = unit_written(write_(json.root, file));
        PROMISE(json_parse(&again, text, (int64_t)strlen(text), "x", &err) == 0);
        compare_(json.root, again.root);
        json_free(&again);
        free(text);
    }
    json_free(&json);
    return 0;
}

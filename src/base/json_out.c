// JSON with its commas.
#include "json_out.h"
#include "json.h"

#include <math.h>

static void separate_(JsonOut *out) {
    if (out->comma) fputc(',', out->file);
    if (out->line) fputc('\n', out->file);
    out->comma = out->line = false;
}

FILE *json_put(JsonOut *out, const char *key) {
    separate_(out);
    if (key != NULL) {
        json_write_text(out->file, key);
        fputc(':', out->file);
    }
    out->comma = true;
    return out->file;
}

void json_begin(JsonOut *out, const char *key, char bracket) {
    fputc(bracket, json_put(out, key));
    out->comma = false;
}

void json_end(JsonOut *out, char bracket) {
    out->comma = false;
    separate_(out);
    fputc(bracket, out->file);
    out->comma = true;
}

void json_line(JsonOut *out) { out->line = true; }

void json_put_text(JsonOut *out, const char *key, const char *text) {
    FILE *file = json_put(out, key);
    if (text == NULL) fputs("null", file);
    else json_write_text(file, text);
}

void json_put_integer(JsonOut *out, const char *key, int64_t value) {
    fprintf(json_put(out, key), "%lld", (long long)value);
}

void json_put_truth(JsonOut *out, const char *key, bool value) { fputs(value ? "true" : "false", json_put(out, key)); }

void json_put_null(JsonOut *out, const char *key) { fputs("null", json_put(out, key)); }

void json_put_number(JsonOut *out, const char *key, double value) { json_write_number(json_put(out, key), value); }

void json_put_digits(JsonOut *out, const char *key, double value, int digits) {
    if (isfinite(value)) fprintf(json_put(out, key), "%.*g", digits, value);
    else json_put_null(out, key);
}

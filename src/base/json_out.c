// Writes JSON values and the commas between them.
#include "json_out.h"
#include "json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void new_line_(JsonOut *out, bool tall) {
    if (out->line || tall) fprintf(out->file, "\n%*s", tall ? 2 * out->depth : 0, "");
    out->comma = out->line = false;
}

FILE *json_put(JsonOut *out, const char *key) {
    bool tall = out->depth > 0 && out->depth <= out->tall;
    if (out->comma) fputs(tall || out->tall == 0 ? "," : ", ", out->file);
    new_line_(out, tall);
    if (key != NULL) {
        json_write_text(out->file, key);
        fputs(out->tall == 0 ? ":" : ": ", out->file);
    }
    out->comma = true;
    return out->file;
}

void json_begin(JsonOut *out, const char *key, char bracket) {
    fputc(bracket, json_put(out, key));
    out->comma = false;
    out->depth++;
}

void json_end(JsonOut *out, char bracket) {
    bool tall = out->comma && out->depth <= out->tall; // an empty container stays on one line
    out->depth--;
    new_line_(out, tall);
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

static void put_members_(JsonOut *out, const char *at, va_list args) {
    while (*at != '\0') {
        char key[48];
        int length = (int)strcspn(at, "? ");
        bool truth = at[length] == '?';
        snprintf(key, sizeof key, "%.*s", length, at);
        at += length + truth + 2; // + 2: the blank and the % before it
        if (*at == 's') json_put_text(out, key, va_arg(args, const char *));
        else if (*at == 'j') json_put_integer(out, key, va_arg(args, intmax_t));
        else if (*at == 'g') json_put_number(out, key, va_arg(args, double));
        else if (*at == '.') {
            double value = va_arg(args, double);
            if (isfinite(value)) fprintf(json_put(out, key), "%.*g", atoi(at + 1), value);
            else json_put_null(out, key);
        } else if (truth) json_put_truth(out, key, va_arg(args, int) != 0);
        else json_put_integer(out, key, va_arg(args, int));
        at += strcspn(at, " ");
        at += *at == ' ';
    }
}

void json_members(JsonOut *out, const char *format, ...) {
    va_list args;
    va_start(args, format);
    put_members_(out, format, args);
    va_end(args);
}

void json_object(JsonOut *out, const char *key, const char *format, ...) {
    va_list args;
    va_start(args, format);
    json_begin(out, key, '{');
    put_members_(out, format, args);
    json_end(out, '}');
    va_end(args);
}

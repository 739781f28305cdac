// Prints the tables of keys and options: for people at a terminal, and as JSON, from which scripts/faces.py makes the
// manual page, the completion of shells and docs/configuration.md.
#include "config_schema.h"
#include "options.h"
#include "base/json.h"
#include "base/version.h"

#include <string.h>

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

static void json_option_(const OptionRow *row, FILE *file) {
    static const char *const kinds[] = {
        [OPTION_FLAG] = "flag", [OPTION_TEXT] = "text", [OPTION_MAYBE] = "maybe", [OPTION_LIST] = "list"};
    fprintf(file, "{\"name\":\"%s\",\"letter\":\"%.1s\",\"kind\":\"%s\",\"argument\":", row->name, &row->letter,
            kinds[row->kind]);
    row->argument != NULL ? json_write_text(file, row->argument) : (void)fputs("null", file);
    fputs(",\"meaning\":", file);
    json_write_text(file, row->meaning);
    fputc('}', file);
}

// Writes the words that the key takes, the one for "decide it yourself" first.
static void json_words_(const ConfigKey *key, FILE *file) {
    const char *between = "";
    if (key->type == KEY_BOOL) fputs("\"true\",\"false\"", file);
    if (key->zero_word != NULL) fprintf(file, "\"%s\"", key->zero_word), between = ",";
    for (int i = 0; key->words != NULL && key->words[i] != NULL; i++, between = ",")
        fprintf(file, "%s\"%s\"", between, key->words[i]);
}

static void json_key_(const ConfigKey *key, FILE *file) {
    char expected[CONFIG_EXPECTED];
    config_expected(key, expected, sizeof expected);
    fprintf(file, "{\"name\":\"%s\",\"default\":", key->name);
    key->def != NULL ? json_write_text(file, key->def) : (void)fputs("null", file);
    fprintf(file, ",\"text\":%s,\"words\":[", config_takes_text(key) ? "true" : "false");
    json_words_(key, file);
    fputs("],\"expected\":", file);
    json_write_text(file, expected);
    fputs(",\"meaning\":", file);
    json_write_text(file, key->meaning);
    fputc('}', file);
}

void config_help_json(const char *program, FILE *file) {
    fprintf(file, "{\"program\":\"%s\",\"version\":\"%s\",\"date\":\"%s\",\n\"options\":[", program, VERSION,
            VERSION_DATE);
    for (int i = 0; i < option_row_count; i++) {
        fputs(i > 0 ? ",\n" : "\n", file);
        json_option_(&option_rows[i], file);
    }
    fputs("],\n\"keys\":[", file);
    for (int i = 0; i < config_key_count; i++) {
        fputs(i > 0 ? ",\n" : "\n", file);
        json_key_(&config_keys[i], file);
    }
    fputs("]}\n", file);
}

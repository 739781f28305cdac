// What --help-config prints, for people at a terminal and as the page docs/configuration.md.
#include "config_schema.h"

#include <string.h>

// Returns whether row i begins a section, and the length of the section's name.
static bool begins_section_(int i, int *length) {
    const ConfigKey *key = &config_keys[i];
    *length = (int)(config_short_name(key) - key->name) - 1;
    return i == 0 || strncmp(config_keys[i - 1].name, key->name, (size_t)*length + 1) != 0;
}

static const char *default_(const ConfigKey *key) {
    return key->def == NULL ? "required" : key->def[0] == '\0' ? "\"\"" : key->def;
}

void config_help(FILE *file) {
    for (int i = 0; i < config_key_count; i++) {
        const ConfigKey *key = &config_keys[i];
        char expected[CONFIG_EXPECTED];
        int section;
        config_expected(key, expected, sizeof expected);
        if (begins_section_(i, &section)) fprintf(file, "%s%.*s:\n", i ? "\n" : "", section, key->name);
        fprintf(file, "  %-14s %s\n", config_short_name(key), key->meaning);
        fprintf(file, "  %-14s %s%s; %s\n", "", key->def != NULL ? "default " : "", default_(key), expected);
    }
}

// Escapes a bar, which would end the cell.
static void cell_(FILE *file, const char *text) {
    for (; *text != '\0'; text++) {
        if (*text == '|') fputc('\\', file);
        fputc(*text, file);
    }
}

static void markdown_key_(FILE *file, const ConfigKey *key) {
    char expected[CONFIG_EXPECTED];
    config_expected(key, expected, sizeof expected);
    fprintf(file, "| `%s` | ", config_short_name(key));
    cell_(file, key->meaning);
    fprintf(file, key->def == NULL ? " | %s | " : " | `%s` | ", default_(key));
    cell_(file, expected);
    fputs(" |\n", file);
}

void config_help_markdown(FILE *file) {
    fputs(
        "# Configuration\n\n"
        "After this page you can look up any key: its type, default, range and meaning. `make docs` writes it from\n"
        "`--help-config --markdown`.\n\n"
        "A configuration is one YAML file of sections that hold keys. `-o SECTION.KEY=VALUE` on the command line sets "
        "one key,\n"
        "repeatable, the last one wins. An unknown key, a wrong type, a value out of bounds or a combination that "
        "cannot work\n"
        "ends the program with code 2 and one sentence that names file, line, key and what would be right.\n\n"
        "An integer may be written as 300000, 3e5, 300k or 0.3M; k, M, B and T are powers of 1000. The sizes under "
        "model take\n"
        "no suffix, because there 8k often means 8192.\n",
        file);
    for (int i = 0; i < config_key_count; i++) {
        int section;
        if (begins_section_(i, &section))
            fprintf(file, "\n## %.*s\n\n| key | meaning | default | value |\n|---|---|---|---|\n", section,
                    config_keys[i].name);
        markdown_key_(file, &config_keys[i]);
    }
}

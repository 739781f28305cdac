// Errors about a configuration name the place of the key: a line of the file, or the option -o.
#include "config_schema.h"

void config_where(const Config *config, const char *name, char *where, size_t size) {
    const ConfigKey *key = config_find(name);
    int place = key != NULL ? config->place[key - config_keys] : CONFIG_DEFAULT;
    if (place == CONFIG_OVERRIDE)
        snprintf(where, size, "-o %s", name);
    else if (place == CONFIG_DEFAULT)
        snprintf(where, size, "%s", config->path);
    else
        snprintf(where, size, "%s:%d", config->path, place);
}

static int config_word_error_(const Config *config, int line, const char *name, Error *err, const char *format,
                              va_list args) {
    char text[sizeof err->text];
    vsnprintf(text, sizeof text, format, args);
    const char *colon = name != NULL ? ": " : "";
    if (name == NULL) name = "";
    if (line == CONFIG_OVERRIDE) return error_set(err, EXIT_USAGE, "-o %s: %s", name, text);
    if (line == CONFIG_DEFAULT) return error_set(err, EXIT_USAGE, "%s%s%s: %s", config->path, colon, name, text);
    return error_set(err, EXIT_USAGE, "%s:%d%s%s: %s", config->path, line, colon, name, text);
}

int config_error_at(const Config *config, int line, const char *name, Error *err, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int rc = config_word_error_(config, line, name, err, format, args);
    va_end(args);
    return rc;
}

int config_error(const Config *config, const char *name, Error *err, const char *format, ...) {
    const ConfigKey *key = config_find(name);
    int line = key != NULL ? config->place[key - config_keys] : CONFIG_DEFAULT;
    va_list args;
    va_start(args, format);
    int rc = config_word_error_(config, line, name, err, format, args);
    va_end(args);
    return rc;
}

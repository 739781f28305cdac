// Loads a configuration: defaults, the file, overrides, the row of hardware.gpu, and the checks. Turns YAML events into
// calls of config_set. A configuration is a mapping of sections, each a mapping of keys to scalars or one list.
// Everything else that YAML offers (anchors, tags, deeper nesting, several documents) is refused where it occurs, so
// the nesting depth is limited by this code and not by the input.
#include "config_schema.h"
#include "gpus.h"
#include "hf_model.h"
#include "base/alloc.h"
#include "base/units.h"
#include "hints.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <yaml.h>

enum { MAX_FILE = 1 << 20, MAX_NAME = 80, PATIENCE_S = 5 };

typedef struct YamlReader {
    Config *config;
    Error *err;
    yaml_parser_t parser;
    yaml_event_t event;   // current event
    const ConfigKey *key; // an override's key; NULL while reading a file
    const char *input;
    size_t length;
} YamlReader;

static int yaml_line_(const YamlReader *r) {
    return r->key != NULL ? CONFIG_OVERRIDE : (int)r->event.start_mark.line + 1;
}

static const char *yaml_name_(const YamlReader *r) { return r->key != NULL ? r->key->name : NULL; }

// Errors that name the line that is being read.
#define yaml_error_(r, name, ...) config_error_at((r)->config, yaml_line_(r), name, (r)->err, __VA_ARGS__)

// Takes the next event. Refuses invalid YAML, and YAML that a configuration may not contain. -1 with an error that
// names the line.
static int yaml_next_(YamlReader *r) {
    const yaml_parser_t *parser = &r->parser;
    const yaml_event_t *e = &r->event;
    yaml_event_delete(&r->event);
    if (yaml_parser_parse(&r->parser, &r->event)) {
        // All three begin with anchor and tag.
        bool node =
            e->type == YAML_SCALAR_EVENT || e->type == YAML_SEQUENCE_START_EVENT || e->type == YAML_MAPPING_START_EVENT;
        const char *extra = node && e->data.scalar.tag != NULL      ? "tag (!name)"
                            : node && e->data.scalar.anchor != NULL ? "anchor (&name)"
                            : e->type == YAML_ALIAS_EVENT           ? "alias (*name)"
                                                                    : NULL;
        if (extra == NULL) return 0;
        return yaml_error_(r, yaml_name_(r),
                           "%s is unsupported; write the value itself, in quotes if it begins with &, * or !", extra);
    }
    const char *at = r->input, *end = r->input + r->length, *remedy = "check quotes, brackets and indentation";
    int line = (int)parser->problem_mark.line + 1;
    if (parser->error == YAML_READER_ERROR) { // for an invalid byte, libyaml gives an offset instead of a line
        line = 1;
        for (size_t i = 0; i < parser->problem_offset && i < r->length; i++) line += r->input[i] == '\n';
        remedy = "use UTF-8 text without control characters";
    }
    for (int before = line; before > 1 && at < end; at++) before -= *at == '\n';
    while (at < end && *at == ' ') at++;
    if (at < end && *at == '\t' && parser->error != YAML_READER_ERROR) remedy = "indent with spaces instead of tabs";
    char context[160] = "";
    if (parser->context != NULL)
        snprintf(context, sizeof context, " %s begun in line %d", parser->context, (int)parser->context_mark.line + 1);
    return config_error_at(r->config, r->key != NULL ? CONFIG_OVERRIDE : line, yaml_name_(r), r->err,
                           "not valid YAML: %s%s; %s", parser->problem != NULL ? parser->problem : "out of memory",
                           context, remedy);
}

static ConfigScalar scalar_(const YamlReader *r) {
    return (ConfigScalar){(const char *)r->event.data.scalar.value, r->event.data.scalar.length,
                          r->event.data.scalar.style != YAML_PLAIN_SCALAR_STYLE};
}

static int read_name_(YamlReader *r, char name[MAX_NAME]) {
    if (r->event.type != YAML_SCALAR_EVENT)
        return yaml_error_(r, NULL, "a key must be a plain word such as hidden, not a list or mapping");
    ConfigScalar scalar = scalar_(r);
    config_printable(scalar.text, scalar.length, name, MAX_NAME);
    return 0;
}

// Reads an entry of a list: a value, a mapping of its parts, or a list of its parts such as [1000, 64].
static int read_entry_(YamlReader *r, const ConfigKey *key) {
    const ConfigList *list = key->list;
    bool plain = list->parts[0].name == NULL, wrong;
    unsigned seen = 0; // a bit for each part
    if (config_list_add(r->config, key, r->err) != 0) return -1;
    if (plain && r->event.type == YAML_SCALAR_EVENT) return config_list_set(r->config, key, 0, scalar_(r), r->err);
    wrong = plain || r->event.type != (list->tuple ? YAML_SEQUENCE_START_EVENT : YAML_MAPPING_START_EVENT);
    for (int part = 0; !wrong; part++) {
        if (yaml_next_(r) != 0) return -1;
        if (r->event.type == YAML_SEQUENCE_END_EVENT || r->event.type == YAML_MAPPING_END_EVENT) break;
        if (!list->tuple) {
            char name[MAX_NAME];
            if (read_name_(r, name) != 0 || yaml_next_(r) != 0) return -1;
            for (part = 0; part < list->part_count && strcmp(list->parts[part].name, name) != 0;) part++;
            if (part == list->part_count)
                return config_error(r->config, key->name, r->err, "has an entry that is not %s: %s is unknown",
                                    list->form, name);
        }
        wrong = part >= list->part_count || seen >> part & 1 || r->event.type != YAML_SCALAR_EVENT;
        if (!wrong && config_list_set(r->config, key, part, scalar_(r), r->err) != 0) return -1;
        seen |= wrong ? 0 : 1u << part;
    }
    for (int i = 0; i < list->part_count; i++) wrong = wrong || (list->parts[i].def == NULL && !(seen >> i & 1));
    return wrong ? config_error(r->config, key->name, r->err, "has an entry that is not %s", list->form) : 0;
}

// Reads the value that begins with the current event. The key's place must be set before; while an entry of a list is
// read, it is the entry's line, so that an error names that line.
static int read_value_(YamlReader *r, const ConfigKey *key) {
    int32_t *place = &r->config->place[key - config_keys], begin = *place;
    if (r->event.type == YAML_SCALAR_EVENT) return config_set(r->config, key, scalar_(r), r->err);
    if (r->event.type != YAML_SEQUENCE_START_EVENT) return config_refuse(r->config, key, "is a mapping", r->err);
    if (config_list_begin(r->config, key, r->err) != 0 || yaml_next_(r) != 0) return -1;
    if (r->event.type == YAML_SEQUENCE_END_EVENT) return config_refuse(r->config, key, "is an empty list", r->err);
    while (r->event.type != YAML_SEQUENCE_END_EVENT) {
        *place = yaml_line_(r);
        if (read_entry_(r, key) != 0 || yaml_next_(r) != 0) return -1;
    }
    *place = begin;
    return 0;
}

// Refuses an unknown name of a key, or of a section of the file.
static int unknown_key_(YamlReader *r, int line, const char *name) {
    const char *hint = hint_for_key(name), *near = hint_near_key(name), *dot = strchr(name, '.');
    char section[MAX_NAME] = "", of[MAX_NAME];
    int best = INT_MAX;
    if (config_find(name) != NULL)
        return config_error_at(r->config, line, name, r->err, "is outside its section; write %.*s: {%s: ...}",
                               (int)(dot - name), name, dot + 1);
    for (int i = 0; line != CONFIG_OVERRIDE && dot == NULL && hint == NULL && i < config_key_count; i++) {
        snprintf(of, sizeof of, "%.*s", (int)strcspn(config_keys[i].name, "."), config_keys[i].name);
        if (suggest_nearer(name, of, &best)) strcpy(section, of);
    }
    if (section[0] != '\0')
        return config_error_at(r->config, line, name, r->err, "no such section; did you mean %s?", section);
    if (hint != NULL) return config_error_at(r->config, line, name, r->err, "no such key; %s", hint);
    if (near != NULL) return config_error_at(r->config, line, name, r->err, "no such key; did you mean %s?", near);
    return config_error_at(r->config, line, name, r->err, "no such key; --help-config lists all");
}

static bool is_nothing_(const YamlReader *r) {
    return r->event.type == YAML_SCALAR_EVENT && config_is_null(scalar_(r));
}

// Reads a section. If all its keys are commented out, the section is null in YAML, which is allowed.
static int read_section_(YamlReader *r, const char *section) {
    if (is_nothing_(r)) return yaml_next_(r);
    if (r->event.type != YAML_MAPPING_START_EVENT)
        return yaml_error_(r, section, "is a section; write its keys below it, indented, as key: value");
    if (yaml_next_(r) != 0) return -1;
    while (r->event.type != YAML_MAPPING_END_EVENT) {
        char name[MAX_NAME], full[2 * MAX_NAME + 1];
        if (read_name_(r, name) != 0) return -1;
        snprintf(full, sizeof full, "%s.%s", section, name);
        const ConfigKey *key = config_find(full);
        if (key == NULL) return unknown_key_(r, yaml_line_(r), full);
        int32_t *place = &r->config->place[key - config_keys];
        if (*place != CONFIG_DEFAULT) return yaml_error_(r, full, "given twice; line %d has it already", *place);
        *place = yaml_line_(r);
        if (yaml_next_(r) != 0 || read_value_(r, key) != 0 || yaml_next_(r) != 0) return -1;
    }
    return yaml_next_(r);
}

static int read_root_(YamlReader *r) {
    if (is_nothing_(r)) return yaml_next_(r); // a file of comments; required keys are reported missing later
    if (r->event.type != YAML_MAPPING_START_EVENT)
        return yaml_error_(
            r, NULL, "the file is not a mapping of sections; begin with a line such as model: {family: llama, ...}");
    int lines[CONFIG_MAX_KEYS] = {0}; // line of each section, indexed by its first row in config_keys
    if (yaml_next_(r) != 0) return -1;
    while (r->event.type != YAML_MAPPING_END_EVENT) {
        char section[MAX_NAME];
        if (read_name_(r, section) != 0) return -1;
        int first = config_section(section);
        if (first < 0) return unknown_key_(r, yaml_line_(r), section);
        if (lines[first] != 0)
            return yaml_error_(r, section, "given twice; put its keys into the section in line %d", lines[first]);
        lines[first] = yaml_line_(r);
        if (yaml_next_(r) != 0 || read_section_(r, section) != 0) return -1;
    }
    return yaml_next_(r);
}

static int read_document_(YamlReader *r) {
    if (yaml_next_(r) != 0 || yaml_next_(r) != 0) return -1; // start of the stream; then a document or the stream's end
    if (r->event.type == YAML_STREAM_END_EVENT) {
        if (r->key == NULL) return 0;
        return config_set(r->config, r->key, (ConfigScalar){"", 0, false}, r->err);
    }
    if (yaml_next_(r) != 0) return -1;
    if (r->key == NULL && read_root_(r) != 0) return -1;
    if (r->key != NULL && (read_value_(r, r->key) != 0 || yaml_next_(r) != 0)) return -1;
    if (yaml_next_(r) != 0) return -1;
    if (r->event.type == YAML_STREAM_END_EVENT) return 0;
    return yaml_error_(r, yaml_name_(r), "a second YAML document begins here; keep one, without ---");
}

static int read_yaml_(Config *config, const char *input, size_t length, const ConfigKey *key, Error *err) {
    YamlReader r = {.config = config, .err = err, .key = key, .input = input, .length = length};
    if (!yaml_parser_initialize(&r.parser))
        return error_set(err, EXIT_FAILED, "out of memory while reading %s", config->path);
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)input, length);
    int rc = read_document_(&r);
    yaml_event_delete(&r.event);
    yaml_parser_delete(&r.parser);
    return rc;
}

// Reads at most MAX_FILE bytes from a file or pipe. Waits for PATIENCE_S seconds at most, because a named pipe may
// never get a writer. Returns the length, or -1 with err.
static ssize_t yaml_read_all_(const char *path, int fd, char *buffer, Error *err) {
    struct pollfd file = {fd, POLLIN, 0};
    size_t used = 0;
    for (int ready; (ready = poll(&file, 1, 1000 * PATIENCE_S)) != 0;) {
        if (ready < 0 && errno == EINTR) continue;
        ssize_t got = read(fd, buffer + used, MAX_FILE + 1 - used);
        if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (got < 0 && errno == EISDIR)
            return error_set(err, EXIT_USAGE,
                             "%s: cannot be read: Is a directory; give a file in it, such as %s/config.json", path,
                             path);
        if (got < 0)
            return error_set(err, EXIT_USAGE, "%s: cannot be read: %s; give a YAML file", path, strerror(errno));
        if (got == 0) return (ssize_t)used;
        used += (size_t)got;
        if (used > MAX_FILE)
            return error_set(err, EXIT_USAGE,
                             "%s: is larger than 1 MiB; give a configuration or a model's config.json, not data", path);
    }
    return error_set(err, EXIT_USAGE, "%s: no data for %d s; give a YAML file", path, PATIENCE_S);
}

// Reads the copy that config_keep_copy made, else the file. The caller frees the text; NULL with err.
static char *yaml_read_text_(const char *path, ssize_t *length, Error *err) {
    const char *copy = getenv(CONFIG_COPY_VARIABLE);
    int fd = copy != NULL ? open(copy, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // O_NONBLOCK: does not wait for a pipe's writer
    if (fd < 0) {
        const char *slash = strchr(path, '/'); // a model's name on a hub is owner/name
        bool hub = errno == ENOENT && slash != NULL && slash > path && strchr(slash + 1, '/') == NULL &&
                   strcmp(path + strlen(path) - 1, "/") != 0 && strstr(slash, ".yaml") == NULL && path[0] != '.';
        return error_null(err, EXIT_USAGE, "%s: cannot be opened: %s; give a YAML file with -c FILE%s", path,
                          strerror(errno), hub ? ", or the downloaded config.json of that model" : "");
    }
    char *text = xmalloc(MAX_FILE + 2);
    *length = yaml_read_all_(path, fd, text, err);
    close(fd);
    if (*length >= 0) return text;
    free(text);
    return NULL;
}

int config_keep_copy(const char *path, Error *err) {
    ssize_t length;
    char name[64], *text = getenv(CONFIG_COPY_VARIABLE) == NULL ? yaml_read_text_(path, &length, err) : NULL;
    if (text == NULL) return err->code != 0 ? -1 : 0;
    // No MFD_CLOEXEC: the copy outlives an exec (trainer.c).
    int copy = memfd_create("configuration", 0);
    bool kept = copy >= 0 && write(copy, text, (size_t)length) == length;
    free(text);
    snprintf(name, sizeof name, "/proc/%d/fd/%d", (int)getpid(), copy);
    if (kept) return setenv(CONFIG_COPY_VARIABLE, name, 1);
    return error_set(err, EXIT_FAILED, "%s: cannot write a copy into memory: %s; raise ulimit -n or -f", path,
                     strerror(errno));
}

int config_read_file(Config *config, Error *err) {
    ssize_t length;
    char *text = yaml_read_text_(config->path, &length, err);
    if (text == NULL) return -1;
    text[length] = '\0';
    char *model = hf_model_yaml(text, (size_t)length, config->path, &config->window, err);
    int rc = model != NULL    ? read_yaml_(config, model, strlen(model), NULL, err)
             : err->code != 0 ? -1
                              : read_yaml_(config, text, (size_t)length, NULL, err);
    free_all(model, text);
    return rc;
}

int config_read_override(Config *config, const char *override, Error *err) {
    char name[MAX_NAME];
    const char *equals = strchr(override, '=');
    size_t length = equals != NULL ? (size_t)(equals - override) : strlen(override);
    config_printable(override, length, name, sizeof name);
    if (equals == NULL)
        return config_error_at(config, CONFIG_OVERRIDE, name, err,
                               "has no value; write -o KEY=VALUE, as in -o train.steps=10");
    const ConfigKey *key = config_find(name);
    if (key == NULL && config_section(name) >= 0)
        return config_error_at(config, CONFIG_OVERRIDE, name, err,
                               "is a section; name one of its keys, as in -o train.steps=10");
    if (key == NULL) return unknown_key_(&(YamlReader){.config = config, .err = err}, CONFIG_OVERRIDE, name);
    config->place[key - config_keys] = CONFIG_OVERRIDE;
    if (strpbrk(equals + 1, "\r\n") != NULL)
        return config_error(config, key->name, err, "the value contains a line break; write it on one line");
    // A text is quoted, unless the user did, so YAML reads no alias in `-o data.train=*.bin`. A list that begins with
    // [{ is one of mappings, not a glob that begins with a character set.
    const char *text = equals + 1;
    bool mappings = key->type == KEY_LIST && text[0] == '[' && text[1 + strspn(text + 1, " ")] == '{';
    if (!config_takes_text(key) || mappings || text[0] == '\'' || text[0] == '"')
        return read_yaml_(config, text, strlen(text), key, err);
    char *value = xmalloc(2 * strlen(text) + 3), *at = value;
    *at++ = '\'';
    for (; *text != '\0'; text++) {
        if (*text == '\'') *at++ = '\'';
        *at++ = *text;
    }
    strcpy(at, "'");
    int rc = read_yaml_(config, value, strlen(value), key, err);
    free(value);
    return rc;
}

// --- loading

// Fills keys of `hardware` from the row that hardware.gpu names. A key given with -o wins over the row. A key given in
// the file wins too, unless hardware.gpu was given with -o; then it is named in `replaced`. Does nothing for
// hardware.device cpu.
static void fill_from_gpu_(Config *config) {
    const Gpu *gpu = gpu_row(config->hardware.gpu);
    if (gpu == NULL || config->hardware.device == DEVICE_CPU) return;
    const struct {
        const char *name;
        double value;
    } rows[] = {
        {"hardware.peak_tflops", gpu_peak(gpu, config->train.precision)},
        {"hardware.memory_gib", gpu->memory_gib},
        {"hardware.memory_gb_s", gpu->memory_gb_s},
        {"hardware.gpu_watts", gpu->watts},
        {"hardware.gpus_per_node", (double)gpu->gpus_per_node},
        {"hardware.gpus_per_domain", (double)gpu->domain},
        {"hardware.pair_gb_s", gpu->link_gb_s},
        {"hardware.tensor_gb_s", gpu->link_gb_s},
        {"hardware.network_gb_s", gpu->network_gb_s},
        {"hardware.host_gb_s", gpu->host_gb_s},
    };
    bool overridden = config_line(config, "hardware.gpu") == CONFIG_OVERRIDE;
    char *replaced = config->replaced;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const ConfigKey *key = config_find(rows[i].name);
        void *field = (char *)config + key->offset;
        int given = config->place[key - config_keys];
        bool whole = key->type == KEY_INT;
        if (given == CONFIG_OVERRIDE || (given != CONFIG_DEFAULT && !overridden)) continue;
        double old = whole ? (double)config_get_whole(key->size, field) : *(double *)field;
        if (given != CONFIG_DEFAULT && old != rows[i].value)
            text_add(replaced, sizeof config->replaced, "%s%s %.6g by %.6g", replaced[0] != '\0' ? ", " : "",
                     config_short_name(key), old, rows[i].value);
        if (whole) config_set_whole(key->size, field, (int64_t)rows[i].value);
        else *(double *)field = rows[i].value;
    }
}

// Adds an entry for step 1 to the batch ramp if it lacks one; sets train.global_batch to its largest batch.
static int resolve_ramp_(Config *config, Error *err) {
    TrainConfig *train = &config->train;
    BatchRamp *ramp = train->batch_ramp;
    if (train->ramp_count == 0) return 0;
    if (config->schedule.file[0] != '\0')
        return config_clash(
            config, "train.batch_ramp", "schedule.file", err,
            "a schedule from a file has a fixed number of microbatches; remove schedule.file, or the ramp");
    for (int64_t i = 1; i < train->ramp_count; i++)
        if (ramp[i].step <= ramp[i - 1].step)
            return config_error(config, "train.batch_ramp", err, "step %lld follows step %lld; use increasing steps",
                                (long long)ramp[i].step, (long long)ramp[i - 1].step);
    if (ramp[0].step > 1) {
        if (train->ramp_count == CONFIG_MAX_RAMP)
            return config_error(config, "train.batch_ramp", err,
                                "has the maximum of %d entries, but none for step 1; let it begin with [1, ...]",
                                CONFIG_MAX_RAMP);
        memmove(ramp + 1, ramp, (size_t)train->ramp_count++ * sizeof *ramp);
        ramp[0] = (BatchRamp){1, train->global_batch};
    }
    train->global_batch = 1;
    for (int64_t i = 0; i < train->ramp_count; i++)
        train->global_batch = max_i64(ramp[i].global_batch, train->global_batch);
    return 0;
}

int config_load_unchecked(Config *config, const char *path, const char *const *overrides, int override_count,
                          Error *err) {
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
    if (config->window > 0 && config->window < config->model.seq_len)
        return error_set(err, EXIT_USAGE,
                         "%s: sliding_window is %lld, and only full attention can be planned; use -o "
                         "model.seq_len=%lld or less, or remove sliding_window from a copy of the file",
                         config->path, (long long)config->window, (long long)config->window);
    fill_from_gpu_(config);
    return resolve_ramp_(config, err);
}

int config_load(Config *config, const char *path, const char *const *overrides, int override_count, Error *err) {
    if (config_load_unchecked(config, path, overrides, override_count, err) != 0) return -1;
    return config_check(config, err);
}

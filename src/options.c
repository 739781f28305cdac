#include "options.h"
#include "suggest.h"

#include <limits.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef enum OptionKind { OPTION_FLAG, OPTION_TEXT, OPTION_LIST } OptionKind;

typedef struct OptionRow {
    const char *name;     // after --
    char letter;          // after -; 0: none
    const char *argument; // name of the value in the help; NULL: takes none
    OptionKind kind;
    size_t offset; // in Options: bool, const char * or the list's const char **
    const char *meaning;
} OptionRow;

static const OptionRow rows[] = {
    {"config", 'c', "FILE", OPTION_TEXT, offsetof(Options, config), "the run's configuration, a YAML file"},
    {"override", 'o', "KEY=VALUE", OPTION_LIST, offsetof(Options, overrides),
     "set one key, as in -o train.steps=10; repeatable, the last one wins"},
    {"resume", 0, "DIR", OPTION_TEXT, offsetof(Options, resume),
     "go on from the newest complete checkpoint in DIR, or from DIR itself"},
    {"trace", 0, "FILE", OPTION_TEXT, offsetof(Options, trace),
     "write what ran when, for ui.perfetto.dev; with --plan what will run"},
    {"plan", 0, NULL, OPTION_FLAG, offsetof(Options, plan),
     "print memory, step time and whether BPipe pays, and exit; starts no rank"},
    {"profile", 0, NULL, OPTION_FLAG, offsetof(Options, profile),
     "time stages on this device, write hardware.profile, and plan with it"},
    {"emulate-stage", 0, "S", OPTION_TEXT, offsetof(Options, emulate_stage),
     "run stage S alone on this device, its neighbours emulated, and exit"},
    {"json", 0, NULL, OPTION_FLAG, offsetof(Options, json), "what --plan and --profile print, as JSON"},
    {"schedule", 0, NULL, OPTION_FLAG, offsetof(Options, schedule),
     "print the pipeline schedule as text and exit; starts no rank"},
    {"quiet", 'q', NULL, OPTION_FLAG, offsetof(Options, quiet), "say nothing but results and what went wrong"},
    {"verbose", 'v', NULL, OPTION_FLAG, offsetof(Options, verbose),
     "say more: what was found and chosen, and how long the start-up takes"},
    {"help", 'h', NULL, OPTION_FLAG, offsetof(Options, help), "print this and exit"},
    {"help-config", 0, NULL, OPTION_FLAG, offsetof(Options, help_config),
     "print every configuration key, its type, default, range and meaning, and exit"},
    {"version", 0, NULL, OPTION_FLAG, offsetof(Options, version), "print the version and exit"},
};

enum { ROWS = sizeof rows / sizeof rows[0] };

static const OptionRow *find_name_(const char *name, size_t length) {
    for (int i = 0; i < ROWS; i++) {
        if (strlen(rows[i].name) == length && strncmp(rows[i].name, name, length) == 0) return &rows[i];
    }
    return NULL;
}

static const OptionRow *find_letter_(char letter) {
    for (int i = 0; i < ROWS; i++) {
        if (rows[i].letter != 0 && rows[i].letter == letter) return &rows[i];
    }
    return NULL;
}

static int unknown_(const char *typed, Error *err) {
    char name[64];
    const char *near = NULL;
    int best = INT_MAX;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(typed, "="), typed);
    for (int i = 0; i < ROWS; i++) {
        // One dash too few is the commonest slip, so dashes do not count.
        if (suggest_nearer(name + strspn(name, "-"), rows[i].name, &best)) near = rows[i].name;
    }
    if (near != NULL) return error_set(err, EXIT_USAGE, "%s: no such option; did you mean --%s?", name, near);
    return error_set(err, EXIT_USAGE, "%s: no such option; --help lists all", name);
}

static int store_(Options *options, const OptionRow *row, const char *value, Error *err) {
    void *field = (char *)options + row->offset;
    if (row->kind == OPTION_LIST) {
        options->overrides[options->override_count++] = value;
        return 0;
    }
    if (row->kind == OPTION_FLAG) {
        *(bool *)field = true;
        return 0;
    }
    if (*(const char **)field != NULL) {
        return error_set(err, EXIT_USAGE, "--%s: given twice, %s and %s; give one", row->name, *(const char **)field,
                         value);
    }
    if (value[0] == '\0')
        return error_set(err, EXIT_USAGE, "--%s: the value is empty; give %s", row->name, row->argument);
    *(const char **)field = value;
    return 0;
}

// What stands in one argument: the option, and its value where that is part of it (-cFILE, --config=FILE).
static const OptionRow *split_(const char *argument, const char **value) {
    *value = NULL;
    if (argument[1] == '-') {
        size_t length = strcspn(argument + 2, "=");
        if (argument[2 + length] == '=') *value = argument + 2 + length + 1;
        return find_name_(argument + 2, length);
    }
    const OptionRow *row = find_letter_(argument[1]);
    if (row == NULL || argument[2] == '\0') return row;
    // -config FILE: a single dash before a long name, not a file called "onfig".
    if (row->argument == NULL || find_name_(argument + 1, strcspn(argument + 1, "=")) != NULL) return NULL;
    *value = argument + 2;
    return row;
}

// Takes one option and its value; returns how many arguments that were, or -1.
static int take_(Options *options, int left, char **argv, Error *err) {
    if (argv[0][0] != '-' || argv[0][1] == '\0') {
        return error_set(err, EXIT_USAGE, "%s: is no option; a configuration is given with -c FILE", argv[0]);
    }
    const char *value;
    const OptionRow *row = split_(argv[0], &value);
    if (row == NULL) return unknown_(argv[0], err);
    if (row->argument == NULL && value != NULL) {
        return error_set(err, EXIT_USAGE, "--%s: takes no value; leave out =%s", row->name, value);
    }
    if (row->argument == NULL || value != NULL) return store_(options, row, value, err) != 0 ? -1 : 1;
    // A value that looks like an option was forgotten, not meant.
    if (left < 2 || argv[1][0] == '-') {
        return error_set(err, EXIT_USAGE, "%s: needs a value; write %s %s", argv[0], argv[0], row->argument);
    }
    return store_(options, row, argv[1], err) != 0 ? -1 : 2;
}

int options_parse(Options *options, int argc, char **argv, Error *err) {
    *options = (Options){0};
    options->overrides = calloc((size_t)argc + 1, sizeof *options->overrides);
    if (options->overrides == NULL) return error_set(err, EXIT_FAILED, "out of memory while reading the command line");
    for (int i = 1; i < argc;) {
        int taken = take_(options, argc - i, argv + i, err);
        if (taken < 0) return -1;
        i += taken;
    }
    if (options->help || options->help_config || options->version) return 0;
    if (options->quiet && options->verbose)
        return error_set(err, EXIT_USAGE, "--quiet: says less and --verbose more; give one of them");
    if (options->json && !options->plan && !options->profile)
        return error_set(err, EXIT_USAGE, "--json: belongs to --plan and --profile; give one of them too");
    if (options->trace != NULL && !options->plan && !options->profile &&
        (options->schedule || options->emulate_stage != NULL))
        return error_set(err, EXIT_USAGE, "--trace: belongs to training and to --plan; leave out --%s",
                         options->schedule ? "schedule" : "emulate-stage");
    if (options->config != NULL) return 0;
    return error_set(err, EXIT_USAGE, "no configuration; give one with -c FILE (--help explains)");
}

void options_free(Options *options) {
    free(options->overrides);
    *options = (Options){0};
}

void options_help(const char *program, FILE *file) {
    fprintf(file, "usage: %s -c FILE [-o KEY=VALUE]...\n", program);
    fprintf(file, "Trains a model across pipeline stages as the configuration says.\n\n");
    for (int i = 0; i < ROWS; i++) {
        char left[48], letter[8] = "    ";
        if (rows[i].letter != 0) snprintf(letter, sizeof letter, "-%c, ", rows[i].letter);
        const char *argument = rows[i].argument != NULL ? rows[i].argument : "";
        snprintf(left, sizeof left, "%s--%s%s%s", letter, rows[i].name, argument[0] != '\0' ? " " : "", argument);
        fprintf(file, "  %-26s  %s\n", left, rows[i].meaning);
    }
    fprintf(file, "\nexit codes: %d done, %d failed while running, %d bad usage or configuration,\n", EXIT_DONE,
            EXIT_FAILED, EXIT_USAGE);
    fprintf(file, "            %d stopped on request with its checkpoint saved\n", EXIT_STOPPED);
    fprintf(file, "results go to stdout, status and errors to stderr\n");
    const char *family = strncmp(program, "train_", 6) == 0 ? program + 6 : "llama";
    fprintf(file, "\nexample: ./%s -c configs/%s_tiny.yaml -o train.steps=10\n", program, family);
}

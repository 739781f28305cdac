// The table of options, and parsing a command line with it.
#include "options.h"
#include "base/alloc.h"
#include "hints.h"

#include <limits.h>
#include <string.h>

const OptionRow option_rows[] = {
    {"config", 'c', "FILE", OPTION_TEXT, offsetof(Options, config),
     "the run's configuration, a YAML file; for plans also the config.json of a model at Hugging Face"},
    {"override", 'o', "KEY=VALUE", OPTION_LIST, offsetof(Options, overrides),
     "set one key, as in -o train.steps=10; repeatable, the last one wins"},
    {"resume", 0, "DIR", OPTION_TEXT, offsetof(Options, resume),
     "resume from the newest complete checkpoint in DIR, or from DIR itself"},
    {"resume-if-any", 0, "DIR", OPTION_TEXT, offsetof(Options, resume_if_any),
     "like --resume, but start at step 0 if DIR does not exist or has no complete checkpoint"},
    {"generate", 0, "PROMPT", OPTION_TEXT, offsetof(Options, generate),
     "generate text continuing PROMPT, using sample.*, and exit; with --resume or checkpoint.init_from"},
    {"validate", 0, NULL, OPTION_FLAG, offsetof(Options, validate),
     "print the loss of data.val and exit; with --resume or checkpoint.init_from"},
    {"check", 0, NULL, OPTION_FLAG, offsetof(Options, check),
     "before a long run: measure every device, link and file system of the run, name slow ones, and exit"},
    {"tune", 0, NULL, OPTION_FLAG, offsetof(Options, tune),
     "measure the kernels of every matrix product of the run, write the fastest to hardware.products_file, and exit"},
    {"trace", 0, "FILE", OPTION_TEXT, offsetof(Options, trace),
     "write a timeline for ui.perfetto.dev; with --plan, the predicted timeline"},
    {"plan", 0, NULL, OPTION_FLAG, offsetof(Options, plan),
     "print memory, step time and whether BPipe pays, and exit; starts no rank"},
    {"profile", 0, NULL, OPTION_FLAG, offsetof(Options, profile),
     "time stages on this device, write hardware.profile, and plan with it"},
    {"dry-run", 0, NULL, OPTION_FLAG, offsetof(Options, dry_run),
     "run on virtual GPUs that compute nothing: memory, step times and traces at any size; built on demand"},
    {"emulate-stage", 0, "S", OPTION_TEXT, offsetof(Options, emulate_stage),
     "run only stage S on this device, with emulated neighbours, and exit; all: each in turn"},
    {"search", 0, NULL, OPTION_FLAG, offsetof(Options, search),
     "print the fastest configurations of this model for the same number of ranks, and exit; -o fixes a key"},
    {"gpus", 0, "N[,N...]", OPTION_TEXT, offsetof(Options, gpus),
     "with --search: number of GPUs of hardware.gpu, or several for one table; default: as configured"},
    {"for", 0, "megatron|torchtitan|nanotron", OPTION_TEXT, offsetof(Options, program),
     "with --search: only what that program supports, with its memory; with --plan: its memory and days"},
    {"deadline", 0, "30d", OPTION_TEXT, offsetof(Options, deadline),
     "with --search: find the cheapest row that trains within these days (d) or hours (h)"},
    {"write", 0, "FILE", OPTION_TEXT, offsetof(Options, write), "with --search: write the best row as a configuration"},
    {"write-five", 0, "DIR", OPTION_TEXT, offsetof(Options, write_five),
     "with --search: write the best and the four fastest others as DIR/1.yaml, ...; scripts/five.sh times them"},
    {"sweep", 0, "KEY=A,B,C", OPTION_LIST, offsetof(Options, sweeps),
     "with --plan or --search: answer for each of these values, in one table; repeatable"},
    {"json", 0, NULL, OPTION_FLAG, offsetof(Options, json),
     "print the output of --plan, --search, --profile, --check, --validate or --help-config as JSON"},
    {"schedule", 0, NULL, OPTION_FLAG, offsetof(Options, schedule),
     "print the pipeline schedule as text and exit; starts no rank"},
    {"times", 0, "F=1,I=1,W=1,message=0,transfer=0", OPTION_TEXT, offsetof(Options, times),
     "with --schedule: durations of actions for its idle time, --draw and --trace"},
    {"draw", 0, "FILE", OPTION_MAYBE, offsetof(Options, draw),
     "with --schedule: draw a lane per stage instead, or with FILE a picture (.svg)"},
    {"quiet", 'q', NULL, OPTION_FLAG, offsetof(Options, quiet), "print only results and errors"},
    {"verbose", 'v', NULL, OPTION_FLAG, offsetof(Options, verbose),
     "also print detected hardware, choices, start-up times, and the assumptions of a plan"},
    {"help", 'h', NULL, OPTION_FLAG, offsetof(Options, help), "print this and exit"},
    {"help-config", 0, NULL, OPTION_FLAG, offsetof(Options, help_config),
     "print every configuration key, its type, default, range and meaning, and exit"},
    {"version", 0, NULL, OPTION_FLAG, offsetof(Options, version),
     "print the version and the built-in features, and exit"},
};

const int option_row_count = sizeof option_rows / sizeof option_rows[0];

static const OptionRow *find_name_(const char *name, size_t length) {
    for (int i = 0; i < option_row_count; i++)
        if (strlen(option_rows[i].name) == length && strncmp(option_rows[i].name, name, length) == 0)
            return &option_rows[i];
    return NULL;
}

static int unknown_(const char *typed, const char *next, Error *err) {
    char name[64], answer[400];
    const char *near = NULL;
    int best = INT_MAX;
    snprintf(name, sizeof name, "%.*s", (int)strcspn(typed, "="), typed);
    for (int i = 0; i < option_row_count; i++) {
        // One dash too few is the most common slip, so dashes are ignored.
        if (suggest_nearer(name + strspn(name, "-"), option_rows[i].name, &best)) near = option_rows[i].name;
    }
    if (hint_for_option(typed, next, answer, sizeof answer)) return error_set(err, EXIT_USAGE, "%s: %s", name, answer);
    if (typed[0] != '-')
        return error_set(err, EXIT_USAGE, "%s: is not an option; a configuration is given with -c FILE", typed);
    if (near != NULL) return error_set(err, EXIT_USAGE, "%s: no such option; did you mean --%s?", name, near);
    return error_set(err, EXIT_USAGE, "%s: no such option; --help lists all", name);
}

// Splits one argument into the option, and its value if the argument contains one (-cFILE, --config=FILE).
static const OptionRow *split_(const char *argument, const char **value) {
    *value = NULL;
    if (argument[1] == '-') {
        size_t length = strcspn(argument + 2, "=");
        if (argument[2 + length] == '=') *value = argument + 2 + length + 1;
        return find_name_(argument + 2, length);
    }
    int i = 0;
    while (i < option_row_count && (argument[1] == '\0' || option_rows[i].letter != argument[1])) i++;
    const OptionRow *row = i < option_row_count ? &option_rows[i] : NULL;
    if (row == NULL || argument[2] == '\0') return row;
    // -config FILE is a long name with a dash missing, not -c with a file "onfig".
    if (row->argument == NULL || find_name_(argument + 1, strcspn(argument + 1, "=")) != NULL) return NULL;
    *value = argument + 2;
    return row;
}

bool options_sweep(const Options *options) {
    bool list = options->gpus != NULL && strchr(options->gpus, ',') != NULL;
    return options->sweep_count > 0 || list || options->deadline != NULL;
}

// Refuses options that cannot be combined; the first row with `wrong` set gives the message.
static int options_check_(const Options *o, Error *err) {
    bool emulates = o->emulate_stage != NULL, plans = o->plan || o->search, resumes = o->resume_if_any != NULL;
    bool other = plans || o->profile || o->schedule || emulates || o->trace != NULL;
    bool runs = o->generate != NULL || o->validate;
    const struct {
        bool wrong;
        const char *why;
    } rows[] = {
        {o->resume != NULL && resumes, "--resume and --resume-if-any exclude each other; give one of them"},
        {o->quiet && o->verbose, "--quiet and --verbose exclude each other; give one of them"},
        {o->json && !plans && !o->profile && !o->check && !o->validate,
         "--json: needs --plan, --search, --profile, --check, --validate or --help-config; add one of them"},
        {!o->search && o->gpus != NULL, "--gpus: needs --search; add --search"},
        {!o->search && o->write != NULL, "--write: needs --search; add --search"},
        {!o->search && o->write_five != NULL, "--write-five: needs --search; add --search"},
        {!o->search && !o->plan && o->program != NULL, "--for: needs --search or --plan; add one of them"},
        {!o->search && o->deadline != NULL, "--deadline: needs --search; add --search"},
        {options_sweep(o) && o->write_five != NULL,
         "--write-five: a table of searches has no five best configurations; leave out --write-five"},
        {options_sweep(o) && o->write != NULL,
         "--write: a table of searches has no single best configuration; leave out --write"},
        {o->sweep_count > 0 && (!plans || o->profile || o->trace != NULL),
         "--sweep needs --plan or --search, and excludes --profile and --trace"},
        {o->search && o->trace != NULL, "--search only plans; it cannot be combined with --trace"},
        {o->search && o->resume != NULL, "--search only plans; it cannot be combined with --resume"},
        {o->search && resumes, "--search only plans; it cannot be combined with --resume-if-any"},
        {o->trace != NULL && emulates,
         "--trace: belongs to training, --plan and --schedule; leave out --emulate-stage"},
        {!o->schedule && o->times != NULL, "--times: needs --schedule; add --schedule"},
        {!o->schedule && o->draw != NULL, "--draw: needs --schedule; add --schedule"},
        {(o->plan || o->profile) + o->search + o->schedule + emulates > 1,
         "--plan, --search, --schedule and --emulate-stage exclude each other; give one of them"},
        {o->dry_run && (o->profile || emulates),
         "--dry-run: computes nothing, so nothing can be timed; leave out --profile or --emulate-stage"},
        {o->generate != NULL && (other || o->validate),
         "--generate: cannot be combined with another action; leave out the other action"},
        {o->validate && other, "--validate: cannot be combined with another action; leave out the other action"},
        {o->check && (other || runs || o->tune),
         "--check: cannot be combined with another action; leave out the other action"},
        {o->tune && (other || runs || o->dry_run),
         "--tune: cannot be combined with another action; leave out the other action"},
        {o->config == NULL, "no configuration; give one with -c FILE (--help explains)"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].wrong) return error_set(err, EXIT_USAGE, "%s", rows[i].why);
    return 0;
}

int options_parse(Options *options, int argc, char **argv, Error *err) {
    *options = (Options){0};
    options->overrides = xcalloc((size_t)argc + 1, sizeof *options->overrides);
    options->sweeps = xcalloc((size_t)argc + 1, sizeof *options->sweeps);
    for (int i = 1; i < argc; i++) {
        const char *given = argv[i], *value, *next = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(given, "-") == 0)
            return error_set(err, EXIT_USAGE, "-: is not an option; a configuration is given with -c FILE");
        const OptionRow *row = given[0] == '-' ? split_(given, &value) : NULL;
        if (row == NULL) return unknown_(given, next, err);
        if (row->argument == NULL && value != NULL)
            return error_set(err, EXIT_USAGE, "--%s: takes no value; leave out =%s", row->name, value);
        if (row->argument != NULL && value == NULL) {
            // If the next argument looks like an option, the value was forgotten.
            bool missing = next == NULL || next[0] == '-';
            if (missing && row->kind != OPTION_MAYBE)
                return error_set(err, EXIT_USAGE, "%s: needs a value; write %s %s%s", given, given, row->argument,
                                 next != NULL && given[1] == '-' ? ", with = if it begins with -" : "");
            value = missing ? OPTION_ALONE : argv[++i];
            const char *after = i + 1 < argc ? argv[i + 1] : "-";
            if (row->kind == OPTION_LIST && strchr(value, '=') == NULL && after[0] != '-')
                return error_set(err, EXIT_USAGE, "%s %s %s: a key and its value are one word; write %s %s=%s", given,
                                 value, after, given, value, after);
        }
        void *field = (char *)options + row->offset;
        const char **text = field;
        if (row->kind == OPTION_FLAG) *(bool *)field = true;
        else if (row->kind == OPTION_LIST) {
            const char **list = *(const char ***)field;
            list[list == options->overrides ? options->override_count++ : options->sweep_count++] = value;
        } else if (*text != NULL)
            return error_set(err, EXIT_USAGE, "--%s: given twice, %s and %s; give one", row->name, *text, value);
        else if (value[0] == '\0')
            return error_set(err, EXIT_USAGE, "--%s: the value is empty; give %s", row->name, row->argument);
        else *text = value;
    }
    if (options->help || options->help_config || options->version) return 0;
    if (options_check_(options, err) != 0) return -1;
    if (options->resume == NULL) options->resume = options->resume_if_any;
    return 0;
}

void options_free(Options *options) {
    free_all(options->overrides, options->sweeps);
    *options = (Options){0};
}

void options_help(const char *program, FILE *file) {
    fprintf(file, "usage: %s -c FILE [-o KEY=VALUE]...\n", program);
    fprintf(file, "Trains a model across pipeline stages as the configuration says.\n\n");
    for (int i = 0; i < option_row_count; i++) {
        char left[48], letter[8] = "    ";
        if (option_rows[i].letter != 0) snprintf(letter, sizeof letter, "-%c, ", option_rows[i].letter);
        const char *argument = option_rows[i].argument != NULL ? option_rows[i].argument : "";
        snprintf(left, sizeof left, "%s--%s%s%s", letter, option_rows[i].name, argument[0] != '\0' ? " " : "",
                 argument);
        fprintf(file, "  %-26s  %s\n", left, option_rows[i].meaning);
    }
    fprintf(file, "\nexit codes: %d done, %d failed while running, %d bad usage or configuration,\n", EXIT_DONE,
            EXIT_FAILED, EXIT_USAGE);
    fprintf(file, "            %d stopped on request with its checkpoint saved\n", EXIT_STOPPED);
    fprintf(file, "results go to stdout, status and errors to stderr\n");
    const char *family = strncmp(program, "train_", 6) == 0 ? program + 6 : "llama";
    fprintf(file, "\nexample: ./%s -c configs/%s_tiny.yaml -o train.steps=10\n", program, family);
}

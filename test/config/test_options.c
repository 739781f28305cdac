// The command line, and the suggestions for misspelt words.
#include "config/options.h"
#include "config/hints.h"
#include "unit.h"

#include <limits.h>
#include <string.h>

TEST(distances_count_letters) {
    assert_int_equal(suggest_distance("", ""), 0);
    assert_int_equal(suggest_distance("steps", "steps"), 0);
    assert_int_equal(suggest_distance("stpes", "steps"), 1);
    assert_int_equal(suggest_distance("", "abc"), 3);
    assert_int_equal(suggest_distance("kitten", "sitting"), 3);
    int best = INT_MAX;
    assert_false(suggest_nearer("zzz", "lr", &best));
    assert_true(suggest_nearer("tensr", "tensor", &best));
    assert_false(suggest_nearer("tensr", "tensor", &best));
}

typedef struct CommandLine {
    const char *words[6];
    const char *contains; // expected part of the error
} CommandLine;

static int parse(const char *const words[6], Options *options, Error *err) {
    char *argv[8] = {"train_llama"};
    int argc = 1;
    for (int i = 0; i < 6 && words[i] != NULL; i++) argv[argc++] = (char *)words[i];
    *err = (Error){0};
    return options_parse(options, argc, argv, err);
}

static const CommandLine wrong_lines[] = {
    {{"--schedule", NULL}, "no configuration"},
    {{"x.yaml", NULL}, "x.yaml: is not an option; a configuration is given with -c FILE"},
    {{"-c", "-o", "a=b", NULL}, "-c: needs a value"},
    {{"-c", "x", "-o", "train.steps", "10", NULL},
     "-o train.steps 10: a key and its value are one word; write -o train.steps=10"},
    {{"--config=", NULL}, "the value is empty"},
    {{"-c", "a", "-c", "b", NULL}, "given twice, a and b"},
    {{"--shedule", "-c", "x", NULL}, "--shedule: no such option; did you mean --schedule?"},
    {{"-config", "x", NULL}, "-config: no such option; did you mean --config?"},
    {{"--schedule=yes", "-c", "x", NULL}, "--schedule: takes no value"},
    {{"-x", NULL}, "-x: no such option; --help lists all"},
    {{"--train.steps", "10", NULL}, "--train.steps: no such option; write -o train.steps=10"},
    {{"--train.steps=10", NULL}, "--train.steps: no such option; write -o train.steps=10"},
    {{"train.steps=10", NULL}, "train.steps: is not an option; write -o train.steps=10"},
    {{"--train.steps", "-q", NULL}, "write -o train.steps=VALUE"},
    {{"--steps", "10", NULL}, "--steps: no such option; write -o train.steps=10"},
    {{"--training.stps", "10", NULL}, "--training.stps: no such option; write -o train.steps=10"},
    {{"--tensor-model-parallel-size", "4", NULL}, "no such option; write -o parallel.tensor=4"},
    {{"--global-batch-size", "64", NULL}, "no such option; write -o train.global_batch=64"},
    {{"--lr", "1e-4", NULL}, "--lr: no such option; write -o train.lr=1e-4"},
    {{"--min-lr", "1e-5", NULL}, "--min-lr: no such option; set train.min_lr_ratio, the final"},
    {{"--nproc_per_node=8", NULL}, "--nproc_per_node: no such option; on one machine the program starts its ranks"},
    {{"--", NULL}, "--: no such option"},
    {{"-", NULL}, "-: is not an option"},
    {{"-c", "x", "--json", NULL}, "--plan"},
    {{"", NULL}, "is not an option"},
    {{"-c", "x", "--trace", NULL}, "--trace: needs a value; write --trace FILE"},
    {{"-c", "x", "--generate", "-1 is", NULL}, "write --generate PROMPT, with = if it begins with -"},
    {{"-c", "x", "--resume=a", "--resume-if-any=b", NULL}, "exclude each other; give one of them"},
    {{"-c", "x", "-q", "-v", NULL}, "--quiet and --verbose exclude each other; give one of them"},
    {{"--plan", "--schedule", "-c", "x", NULL}, "exclude each other"},
    {{"--profile", "--dry-run", "-c", "x", NULL}, "--dry-run: computes nothing, so nothing can be timed"},
};

TEST(every_wrong_command_line_is_refused) {
    for (size_t i = 0; i < sizeof wrong_lines / sizeof wrong_lines[0]; i++) {
        Options options;
        assert_refused(parse(wrong_lines[i].words, &options, &unit_error), EXIT_USAGE, wrong_lines[i].contains);
        options_free(&options);
    }
}

TEST(command_lines_are_understood_in_every_form) {
    static const char *const forms[][6] = {{"-c", "f", "-o", "a=b", "-oc=d", NULL},
                                           {"-cf", "--override", "a=b", "--override=c=d", NULL},
                                           {"--config", "f", "-o", "a=b", "-o", "c=d"},
                                           {"-o", "a=b", "--config=f", "-o", "c=d", NULL}};
    Options options;
    for (int i = 0; i < 4; i++) {
        assert_succeeds(parse(forms[i], &options, &unit_error));
        assert_string_equal(options.config, "f");
        assert_int_equal(options.override_count, 2);
        assert_string_equal(options.overrides[0], "a=b");
        assert_string_equal(options.overrides[1], "c=d");
        assert_false(options.schedule || options.help || options.help_config || options.version);
        options_free(&options);
    }
    const char *flags[6] = {"--help", "--help-config", "--version", "--schedule", NULL};
    assert_succeeds(parse(flags, &options, &unit_error));
    assert_true(options.schedule && options.help && options.help_config && options.version);
    options_free(&options);
}

// Configuration: what is accepted, what it means, and the sentence for everything else.
#include "config_schema.h"
#include "options.h"
#include "suggest.h"

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

// The shortest complete file: model in line 1, data in line 2.
#define MODEL "model: {family: llama, hidden: 64, layers: 8, heads: 8, ffn: 96, vocab: 257, seq_len: 32}\n"
#define GPT   "model: {family: gpt, hidden: 64, layers: 8, heads: 8, ffn: 96, vocab: 257, seq_len: 32}\n"
#define DATA  "data: {train: x.bin}\n"
#define BASE  MODEL DATA

static char path[64]; // of the file under test

static void write_bytes(const char *bytes, size_t length) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, length, file), length);
    assert_int_equal(fclose(file), 0);
}

static int load_with(Config *config, const char *text, const char *const *overrides, int count, Error *err) {
    *err = (Error){0};
    write_bytes(text, strlen(text));
    return config_load(config, path, overrides, count, err);
}

static int load(Config *config, const char *text, const char *override, Error *err) {
    return load_with(config, text, &override, override != NULL, err);
}

static void load_well(Config *config, const char *text, const char *override) {
    Error err;
    if (load(config, text, override, &err) != 0) fail_msg("%s", err.text);
}

// The message starts with `starts` ('@' stands for the file's name) and contains `contains`.
static void expect_message(const Error *err, const char *starts, const char *contains) {
    const char *text = err->text;
    assert_int_equal(err->code, EXIT_USAGE);
    if (starts[0] == '@') {
        if (strncmp(text, path, strlen(path)) != 0) fail_msg("no file name in: %s", text);
        text += strlen(path);
        starts++;
    }
    if (strncmp(text, starts, strlen(starts)) != 0) fail_msg("expected \"%s\" to begin:\n%s", starts, text);
    if (strstr(text, contains) == NULL) fail_msg("expected \"%s\" in:\n%s", contains, text);
}

typedef struct BadInput {
    const char *text, *override, *starts, *contains;
} BadInput;

static void expect_refused(const BadInput *rows, size_t count) {
    static Config config;
    for (size_t i = 0; i < count; i++) {
        Error err;
        if (load(&config, rows[i].text, rows[i].override, &err) == 0) {
            fail_msg("accepted: %s -o %s", rows[i].text, rows[i].override ? rows[i].override : "");
        }
        expect_message(&err, rows[i].starts, rows[i].contains);
    }
}

#define EXPECT_REFUSED(rows) expect_refused(rows, sizeof(rows) / sizeof(rows)[0])

static void every_malformed_file_is_refused_in_its_line(void **state) {
    (void)state;
    static const BadInput rows[] = {
        {"", NULL, "@: model.family: is missing", "model.hidden, model.layers"},
        {"# nothing\n\n", NULL, "@: model.family: is missing", "data.train"},
        {"---\n", NULL, "@: model.family: is missing", "data.train"},
        {MODEL, NULL, "@: data.train: is missing", "every configuration says it"},
        {"- a\n- b\n", NULL, "@:1: the file is no mapping", "begin with a line such as model:"},
        {"hello\n", NULL, "@:1: the file is no mapping", "model:"},
        {"[1, 2]\n", NULL, "@:1: the file is no mapping", "model:"},
        {BASE "train:\n\tsteps: 5\n", NULL, "@:4: not valid YAML", "spaces instead of tabs"},
        {BASE "train: {steps: 5\n", NULL, "@:4: not valid YAML", "begun in line 3"},
        {BASE "train: {steps: 5}}\n", NULL, "@:3: not valid YAML", "check quotes"},
        {BASE "train:\n  steps: 5\n lr: 1\n", NULL, "@:5: not valid YAML", "indentation"},
        {BASE "log: {metrics: \"open}\n", NULL, "@:4: not valid YAML", "quotes"},
        {BASE "train: {lr: \x01}\n", NULL, "@:3: not valid YAML", "control characters"},
        {BASE "\xff\xfe\n", NULL, "@:3: not valid YAML", "UTF-8"},
        {BASE "---\ntrain: {steps: 5}\n", NULL, "@:3: a second YAML document", "keep one"},
        {BASE "...\n---\ntrain: {steps: 5}\n", NULL, "@:4: a second YAML document", "keep one"},
        {BASE "...\ntrain: {steps: 5}\n", NULL, "@:4: not valid YAML", "document start"},
        {BASE "train: &t {steps: 5}\n", NULL, "@:3: anchor", "write the value itself"},
        {BASE "train: {steps: &n 5}\n", NULL, "@:3: anchor", "write the value itself"},
        {BASE "train: {steps: *n}\n", NULL, "@:3: ", "alias"},
        {BASE "*n : {steps: 5}\n", NULL, "@:3: alias", "write the value itself"},
        {BASE "parallel: {layers: &l [8]}\n", NULL, "@:3: anchor", "write the value itself"},
        {BASE "train: {steps: !!int 5}\n", NULL, "@:3: tag", "write the value itself"},
        {BASE "train: {<<: {steps: 5}}\n", NULL, "@:3: train.<<: no such key", "--help-config"},
        {BASE "? [a, b]\n: 3\n", NULL, "@:3: a key must be a plain word", ""},
        {BASE "train: {{a: b}: 3}\n", NULL, "@:3: a key must be a plain word", ""},
        {BASE "train: 5\n", NULL, "@:3: train: is a section", "key: value"},
        {BASE "train: [5]\n", NULL, "@:3: train: is a section", "key: value"},
    };
    EXPECT_REFUSED(rows);
}

static void every_unknown_name_is_refused_with_what_was_meant(void **state) {
    (void)state;
    static const BadInput rows[] = {
        {BASE "train: {stpes: 5}\n", NULL, "@:3: train.stpes: no such key", "did you mean train.steps?"},
        {BASE "train:\n  steps: 5\n  warmup: 5\n", NULL, "@:5: train.warmup: no such key", ""},
        {BASE "train: {micro_batch: 5}\n", NULL, "@:3: train.micro_batch: no such key",
         "did you mean schedule.micro_batch?"},
        {BASE "paralel: {tensor: 1}\n", NULL, "@:3: paralel: no such section", "did you mean parallel?"},
        {BASE "optimizer: {lr: 1}\n", NULL, "@:3: optimizer: no such key", "--help-config"},
        {BASE "steps: 5\n", NULL, "@:3: steps: no such key", "did you mean train.steps?"},
        {BASE "train.steps: 5\n", NULL, "@:3: train.steps: stands outside its section", "write train: {steps: ...}"},
        {BASE "train: {steps: 5, lr: 0.1,\n  steps: 6}\n", NULL, "@:4: train.steps: given twice", "in line 3"},
        {BASE "model: {norm_eps: 1e-6}\n", NULL, "@:3: model: given twice", "in line 1"},
        {BASE "\"tra\\0in\": {steps: 5}\n", NULL, "@:3: tra?in: no such section", "did you mean train?"},
        {BASE "? ''\n: 1\n", NULL, "@:3: : no such key", ""},
        {BASE, "train.stpes=5", "-o train.stpes: no such key", "did you mean train.steps?"},
        {BASE, "steps=5", "-o steps: no such key", "did you mean train.steps?"},
        {BASE, "train=5", "-o train: is a section", "-o train.steps=10"},
        {BASE, "train.steps", "-o train.steps: has no value", "KEY=VALUE"},
        {BASE, "=5", "-o : no such key", ""},
        {BASE, "", "-o : has no value", ""},
        {BASE, "TRAIN.STEPS=5", "-o TRAIN.STEPS: no such key", ""},
        {BASE, "train.steps =5", "-o train.steps : no such key", "did you mean train.steps?"},
    };
    EXPECT_REFUSED(rows);
}

static void every_wrong_value_is_refused_with_what_would_be_right(void **state) {
    (void)state;
    static const BadInput rows[] = {
        {BASE "train: {steps: five}\n", NULL, "@:3: train.steps: five is no number", "an integer from 1 to"},
        {BASE "train: {steps: 1.5}\n", NULL, "@:3: train.steps: 1.5 is no integer", "an integer from 1 to"},
        {BASE "train: {steps: 1e3}\n", NULL, "@:3: train.steps: 1e3 is not written as an integer (1000)", "use"},
        {BASE "train: {steps: \"5\"}\n", NULL, "@:3: train.steps: \"5\" is text", "an integer"},
        {BASE "train: {steps: 0}\n", NULL, "@:3: train.steps: 0 is out of range", "from 1 to 1000000000000"},
        {BASE "train: {steps: -5}\n", NULL, "@:3: train.steps: -5 is out of range", "from 1"},
        {BASE "train: {steps: 99999999999999999999}\n", NULL, "@:3: train.steps: 99999999999999999999 is out of range",
         ""},
        {BASE "train: {steps: 0x10}\n", NULL, "@:3: train.steps: 0x10 is no number", ""},
        {BASE "train: {steps: 010}\n", NULL, "@:3: train.steps: 010 is not written as an integer (10)", ""},
        {BASE "train: {steps: 1_000}\n", NULL, "@:3: train.steps: 1_000 is no number", ""},
        {BASE "train: {steps: }\n", NULL, "@:3: train.steps: has no value", "an integer"},
        {BASE "train: {steps: ~}\n", NULL, "@:3: train.steps: has no value", "an integer"},
        {BASE "train: {steps: null}\n", NULL, "@:3: train.steps: has no value", "an integer"},
        {BASE "train: {steps: true}\n", NULL, "@:3: train.steps: true is no number", ""},
        {BASE "train: {steps: auto}\n", NULL, "@:3: train.steps: auto is no number", ""},
        {BASE "train: {steps: [5]}\n", NULL, "@:3: train.steps: is a list", "an integer"},
        {BASE "train: {steps: {a: 5}}\n", NULL, "@:3: train.steps: is a mapping", "an integer"},
        {BASE "train: {seed: -1}\n", NULL, "@:3: train.seed: -1 is out of range", "from 0 to 9007199254740992"},
        {BASE "train: {lr: fast}\n", NULL, "@:3: train.lr: fast is no number", "a number from 0"},
        {BASE "train: {lr: .nan}\n", NULL, "@:3: train.lr: .nan is no number", ""},
        {BASE "train: {lr: nan}\n", NULL, "@:3: train.lr: nan is no number", ""},
        {BASE "train: {lr: .inf}\n", NULL, "@:3: train.lr: .inf is no number", ""},
        {BASE "train: {lr: 1e999}\n", NULL, "@:3: train.lr: 1e999 does not fit", ""},
        {BASE "train: {lr: 1e-999}\n", NULL, "@:3: train.lr: 1e-999 does not fit", ""},
        {BASE "train: {lr: 1e}\n", NULL, "@:3: train.lr: 1e is no number", ""},
        {BASE "train: {lr: 1e-4x}\n", NULL, "@:3: train.lr: 1e-4x is no number", ""},
        {BASE "train: {lr: -1e-4}\n", NULL, "@:3: train.lr: -1e-4 is out of range", ""},
        {BASE "train: {beta1: 1}\n", NULL, "@:3: train.beta1: 1 is out of range", "to below 1"},
        {BASE "train: {beta2: 1.0}\n", NULL, "@:3: train.beta2: 1.0 is out of range", "to below 1"},
        {BASE "train: {eps: 0}\n", NULL, "@:3: train.eps: 0 is out of range", "above 0"},
        {BASE "train: {min_lr_ratio: 1.1}\n", NULL, "@:3: train.min_lr_ratio: 1.1 is out of range", "from 0 to 1"},
        {BASE "parallel: {tensor: 0}\n", NULL, "@:3: parallel.tensor: 0 is out of range", "from 1"},
        {BASE "parallel: {pipeline: 1025}\n", NULL, "@:3: parallel.pipeline: 1025 is out of range", "to 1024"},
        {BASE "parallel: {sequence: 2}\n", NULL, "@:3: parallel.sequence: 2 is neither", "true or false"},
        {BASE "parallel: {sequence: \"true\"}\n", NULL, "@:3: parallel.sequence: \"true\" is neither", "true or false"},
        {BASE "parallel: {placement: adjcent}\n", NULL, "@:3: parallel.placement: adjcent", "did you mean adjacent"},
        {BASE "parallel: {layers: 8}\n", NULL, "@:3: parallel.layers: 8 is no list", "[2, 3, 3, 2]"},
        {BASE "parallel: {layers: []}\n", NULL, "@:3: parallel.layers: is an empty list", "auto"},
        {BASE "parallel: {layers: [8, a]}\n", NULL, "@:3: parallel.layers: a is no number", "an integer from 1"},
        {BASE "parallel: {layers: [8, 0]}\n", NULL, "@:3: parallel.layers: 0 is out of range", "an integer from 1"},
        {BASE "parallel: {layers: [8, [1]]}\n", NULL, "@:3: parallel.layers: has an entry that is no integer", ""},
        {BASE "parallel: {layers: {a: 1}}\n", NULL, "@:3: parallel.layers: is a mapping", "auto"},
        {BASE "schedule: {bpipe: true}\n", NULL, "@:3: schedule.bpipe: true is not known", "one of off, on, auto"},
        {BASE "schedule: {name: 1F1B}\n", NULL, "@:3: schedule.name: 1F1B is not known", "one of gpipe, 1f1b"},
        {BASE "schedule: {slots: 0}\n", NULL, "@:3: schedule.slots: 0 is out of range", "or auto"},
        {BASE "attention: {mode: flsh}\n", NULL, "@:3: attention.mode: flsh", "did you mean flash"},
        {BASE "train: {precision: fp16}\n", NULL, "@:3: train.precision: fp16 is not known", "one of fp32, bf16"},
        {BASE "hardware: {peak_tflops: 0}\n", NULL, "@:3: hardware.peak_tflops: 0 is out of range", "above 0"},
        {BASE "hardware: {device: gpu}\n", NULL, "@:3: hardware.device: gpu", "one of auto, cpu, cuda"},
        {BASE "checkpoint: {keep: 0}\n", NULL, "@:3: checkpoint.keep: 0 is out of range", "from 1"},
        {BASE "log: {metrics: \"a\\0b\"}\n", NULL, "@:3: log.metrics: \"a?b\" contains a control", ""},
        {BASE "log: {metrics: \"a\\x1b[31mb\"}\n", NULL, "@:3: log.metrics: \"a?[31mb\" contains a control", ""},
        {BASE "log: {metrics: }\n", NULL, "@:3: log.metrics: has no value", "\"\" for none"},
        {MODEL "data: {train: \"\"}\n", NULL, "@:2: data.train: \"\" is empty", "a text of 1 to 511 bytes"},
        {BASE, "train.steps=", "-o train.steps: has no value", "an integer"},
        {BASE, "train.steps=abc", "-o train.steps: abc is no number", "an integer"},
        {BASE, "train.steps=5 6", "-o train.steps: 5 6 is no number", ""},
        {BASE, "train.steps={a: 5}", "-o train.steps: is a mapping", ""},
        {BASE, "train.steps=&a 5", "-o train.steps: anchor", ""},
        {BASE, "train.steps=[5", "-o train.steps: ", "is a list"},
        {BASE, "parallel.layers=[5", "-o parallel.layers: not valid YAML", ""},
        {BASE, "train.steps=5\ntrain: 3", "-o train.steps: the value contains a line break", ""},
        {BASE, "data.train=", "-o data.train: \"\" is empty", ""},
        {BASE, "log.metrics=\xff", "-o log.metrics: not valid YAML", "UTF-8"},
    };
    EXPECT_REFUSED(rows);
}

static void every_impossible_combination_is_refused_with_a_remedy(void **state) {
    (void)state;
    static const BadInput rows[] = {
        {BASE "parallel:\n  tensor: 5\n", NULL, "@:4: parallel.tensor: 5 does not divide 8 heads", "use 1, 2, 4, 8"},
        {BASE, "parallel.tensor=5", "-o parallel.tensor: 5 does not divide 8 heads", "use 1, 2, 4, 8"},
        {BASE "parallel: {tensor: 4}\n", "model.kv_heads=2", "@:3: parallel.tensor: 4 does not divide 2 kv_heads",
         "use 1, 2"},
        {BASE "parallel: {tensor: 8}\n", "model.ffn=100", "@:3: parallel.tensor: 8 does not divide 100 ffn",
         "use 1, 2, 4"},
        {BASE "parallel: {tensor: 4, sequence: on}\n", "model.seq_len=30",
         "@:3: parallel.tensor: 4 does not divide 30 seq_len", "use 1, 2"},
        {BASE, "model.heads=7", "-o model.heads: heads 7 does not divide hidden 64", "use 4 or 8 heads"},
        {BASE, "model.heads=64", "-o model.heads: heads 64 leaves an odd head size", "use 32 heads"},
        {BASE, "model.heads=200", "-o model.heads: heads 200 does not divide hidden 64", "use 32 heads"},
        {BASE, "model.hidden=63", "-o model.hidden: 63 is odd", "use 64"},
        {BASE, "model.hidden=1", "-o model.hidden: 1 is odd", "use 2"},
        {BASE, "model.kv_heads=3", "-o model.kv_heads: kv_heads 3 does not divide 8 heads", "use 2 or 4"},
        {BASE, "model.kv_heads=16", "-o model.kv_heads: kv_heads 16 does not divide 8 heads", "use 8"},
        {GPT DATA, "model.kv_heads=4", "-o model.kv_heads: family gpt", "use kv_heads 8 or auto"},
        {BASE "train: {global_batch: 10}\n", "schedule.micro_batch=4", "-o schedule.micro_batch: global_batch 10",
         "use global_batch 8 or 12"},
        {BASE "train: {global_batch: 10}\nschedule: {micro_batch: 4}\n", NULL,
         "@:3: train.global_batch: global_batch 10", "8 or 12"},
        {BASE "train: {global_batch: 3}\nparallel: {data: 4}\n", NULL,
         "@:3: train.global_batch: ", "use global_batch 4"},
        {BASE "parallel: {pipeline: 8}\n", "train.global_batch=7",
         "-o train.global_batch: global_batch 7 makes 7 microbatches for 8 stages", "smallest global_batch is 8"},
        {BASE "train: {global_batch: 12}\nschedule: {micro_batch: 3}\nparallel: {data: 2}\n", "parallel.pipeline=4",
         "-o parallel.pipeline: global_batch 12 makes 2 microbatches for 4 stages", "smallest global_batch is 24"},
        {BASE, "parallel.pipeline=9", "-o parallel.pipeline: 9 stages for 8 layers", "use pipeline 8 or less"},
        {BASE "parallel: {pipeline: 4, layers: [2, 2, 4]}\n", NULL,
         "@:3: parallel.layers: the list of layers has 3 entries for 4 stages", "auto"},
        {BASE "parallel: {pipeline: 4, layers: [2, 2, 2, 3]}\n", NULL,
         "@:3: parallel.layers: the stages' layers add up to 9", "8"},
        {BASE "parallel: {pipeline: 4, layers: [2, 2, 2, 2]}\n", "parallel.pipeline=2",
         "-o parallel.pipeline: the list of layers has 4 entries", "give 2, or layers auto"},
        {BASE "parallel: {pipeline: 4, layers: [2, 2, 2, 2]}\n", "model.layers=12",
         "-o model.layers: the stages' layers add up to 8", "12"},
        {BASE "schedule: {name: gpipe, bpipe: on}\n", NULL, "@:3: schedule.bpipe: name gpipe",
         "use name 1f1b, bpipe off"},
        {BASE "schedule: {bpipe: on}\n", "schedule.name=gpipe", "-o schedule.name: name gpipe", "bpipe off"},
        {BASE "parallel: {pipeline: 8}\nschedule: {bpipe: on, slots: 4}\n", NULL,
         "@:4: schedule.slots: 4 slots are too few", "slots 5 or more"},
        {BASE "parallel: {pipeline: 7}\nschedule: {bpipe: auto, slots: 4}\n", NULL,
         "@:4: schedule.slots: 4 slots are too few", "slots 5 or more"},
        {BASE "parallel: {pipeline: 8}\nschedule: {bpipe: on, slots: 1, evict_to: host}\n", NULL,
         "@:4: schedule.slots: 1 slots", "slots 2 or more"},
        {BASE "schedule: {micro_batch: 65536}\ntrain: {global_batch: 65536}\n", "model.seq_len=4194304",
         "-o model.seq_len: the activations", "smaller seq_len"},
        {BASE "train: {steps: 1000000000000, global_batch: 16777216}\n", NULL, "@:3: train.steps: the run takes more",
         "use at most"},
        {MODEL DATA "parallel: {tensor: 8, pipeline: 8, data: 65536}\n", NULL,
         "@:3: parallel.data: pipeline * tensor * data", "use data 16384 or less"},
    };
    EXPECT_REFUSED(rows);
}

static void what_cannot_be_read_is_named(void **state) {
    (void)state;
    static Config config;
    Error err = {0};
    assert_int_equal(config_load(&config, "no/such.yaml", NULL, 0, &err), -1);
    assert_string_equal(err.text,
                        "no/such.yaml: cannot be opened: No such file or directory; give a YAML file with -c FILE");
    err = (Error){0};
    assert_int_equal(config_load(&config, "/", NULL, 0, &err), -1);
    assert_non_null(strstr(err.text, "Is a directory"));
    err = (Error){0};
    assert_int_equal(config_load(&config, "/dev/zero", NULL, 0, &err), -1);
    assert_non_null(strstr(err.text, "larger than 1 MiB"));
    char name[CONFIG_TEXT + 1];
    memset(name, 'a', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    err = (Error){0};
    assert_int_equal(config_load(&config, name, NULL, 0, &err), -1);
    assert_non_null(strstr(err.text, "longer than 511 bytes"));
    assert_int_equal(err.code, EXIT_USAGE);
}

static void long_and_deep_input_is_refused_quickly(void **state) {
    (void)state;
    static Config config;
    static char text[1 << 20];
    Error err;
    memset(text, '[', sizeof text - 1);
    assert_int_equal(load(&config, text, NULL, &err), -1);
    expect_message(&err, "@:1: ", "no mapping");
    memset(text, 'a', sizeof text - 1);
    assert_int_equal(load(&config, text, NULL, &err), -1);
    expect_message(&err, "@:1: ", "no mapping");
    strcpy(text, BASE "parallel: {layers: [1");
    size_t used = strlen(text);
    for (int i = 0; i < 2000; i++) memcpy(text + used + 2 * i, ",1", 2);
    strcpy(text + used + 4000, "]}\n");
    assert_int_equal(load(&config, text, NULL, &err), -1);
    expect_message(&err, "@:3: parallel.layers: ", "more than 1024");
    strcpy(text, BASE "log: {metrics: ");
    used = strlen(text);
    memset(text + used, 'x', 600);
    strcpy(text + used + 600, "}\n");
    assert_int_equal(load(&config, text, NULL, &err), -1);
    expect_message(&err, "@:3: log.metrics: xxx", "is too long");
    assert_true(strlen(err.text) < 300);
}

// Every input made from a good one by cutting it off or by changing one byte is read or refused, with code 2 and a text.
static void no_damaged_file_breaks_the_reader(void **state) {
    (void)state;
    static Config config;
    static const char good[] =
        "model:\n  {family: llama, hidden: 64, layers: 8, heads: 8, ffn: 96, vocab: 257, seq_len: 32}\n"
        "parallel:\n  layers: [3, 5]\n  pipeline: 2\ndata: {train: \"x\"}\n";
    static const char bytes[] = "\0\t\n \"'#%&*,-:?@[]`{}|!>~\x80\xff";
    for (size_t i = 0; i < sizeof good - 1; i++) {
        for (size_t k = 0; k <= sizeof bytes; k++) {
            char text[sizeof good];
            memcpy(text, good, sizeof good);
            size_t length = k < sizeof bytes ? sizeof good - 1 : i;
            if (k < sizeof bytes) text[i] = bytes[k];
            Error err = {0};
            write_bytes(text, length);
            if (config_load(&config, path, NULL, 0, &err) == 0) continue;
            assert_int_equal(err.code, EXIT_USAGE);
            assert_true(strncmp(err.text, path, strlen(path)) == 0);
        }
    }
}

static void values_reach_their_fields(void **state) {
    (void)state;
    static Config c;
    load_well(&c,
              "\xEF\xBB\xBFmodel: {family: gpt, hidden: 64, layers: 7, heads: 8, ffn: 96, vocab: 257, seq_len: 32, "
              "norm_eps: 1e-6}\r\n"
              "data:\r\n  train: data/a b.bin\r\n  val: 'it''s'\r\n  val_every: 0\r\n"
              "parallel: {pipeline: 2, tensor: 2, sequence: Yes, placement: adjacent, layers: [3, 4]}\r\n"
              "schedule: {bpipe: on, slots: 3, micro_batch: 2, evict_to: host}\r\n"
              "train: {lr: 3E-4, beta1: .5, seed: 9007199254740992, precision: \"bf16\", global_batch: 8}\r\n"
              "hardware: {device: cpu, peak_tflops: 0.25, share_gpu: on}\r\nlog:\r\n",
              NULL);
    assert_int_equal(c.model.family, FAMILY_GPT);
    assert_int_equal(c.model.kv_heads, 8);
    assert_true(c.model.norm_eps == 1e-6);
    assert_string_equal(c.data.train, "data/a b.bin");
    assert_string_equal(c.data.val, "it's");
    assert_true(c.parallel.sequence);
    assert_int_equal(c.parallel.placement, PLACEMENT_ADJACENT);
    assert_int_equal(c.parallel.layers_per_stage[0], 3);
    assert_int_equal(c.parallel.layers_per_stage[1], 4);
    assert_int_equal(c.schedule.slots, 3);
    assert_int_equal(c.schedule.bpipe, BPIPE_ON);
    assert_int_equal(c.schedule.evict_to, EVICT_TO_HOST);
    assert_true(c.train.lr == 3e-4 && c.train.beta1 == 0.5);
    assert_int_equal(c.train.seed, INT64_C(9007199254740992));
    assert_int_equal(c.train.precision, PRECISION_BF16);
    assert_int_equal(c.hardware.device, DEVICE_CPU);
    assert_true(c.hardware.peak_tflops == 0.25 && c.hardware.share_gpu);
    assert_int_equal(config_microbatches(&c), 4);
    assert_int_equal(config_world(&c), 4);
    assert_int_equal(config_padded_vocab(&c), 512);
}

static void overrides_win_in_the_order_given_and_are_named_as_the_place(void **state) {
    (void)state;
    static Config c;
    Error err;
    char where[600], line[128];
    const char *overrides[] = {
        "train.steps=7",           "train.steps=9",        "data.train=*.bin",     "data.val=",
        "log.metrics=\"a=b # c\"", "checkpoint.dir=x # y", "parallel.layers=auto", "train.lr=1e-5",
        "log.metrics='a=b'"};
    assert_int_equal(load_with(&c, BASE "train: {steps: 5,\n lr: 3}\n", overrides, 9, &err), 0);
    assert_int_equal(c.train.steps, 9);
    assert_true(c.train.lr == 1e-5);
    assert_string_equal(c.data.train, "*.bin");
    assert_string_equal(c.data.val, "");
    assert_string_equal(c.log.metrics, "a=b");
    assert_string_equal(c.checkpoint.dir, "x # y");
    config_where(&c, "train.steps", where, sizeof where);
    assert_string_equal(where, "-o train.steps");
    config_where(&c, "model.hidden", where, sizeof where);
    snprintf(line, sizeof line, "%s:1", path);
    assert_string_equal(where, line);
    config_where(&c, "train.seed", where, sizeof where);
    assert_string_equal(where, path);
    assert_int_equal(config_error(&c, "train.steps", &err, "is %d", 9), -1);
    assert_string_equal(err.text, "-o train.steps: is 9");
}

static void an_override_never_needs_a_second_one_to_turn_bpipe_off(void **state) {
    (void)state;
    static Config c;
    load_well(&c, BASE "schedule: {bpipe: on, slots: 5}\nparallel: {pipeline: 8}\n", "schedule.bpipe=off");
    load_well(&c, BASE "schedule: {bpipe: off, slots: 1}\nparallel: {pipeline: 8}\n", NULL);
    load_well(&c, BASE "schedule: {bpipe: on, slots: 1}\nparallel: {pipeline: 8}\n", "parallel.pipeline=1");
    load_well(&c, BASE "schedule: {bpipe: on, name: gpipe, evict_to: host}\nparallel: {pipeline: 8}\n", NULL);
    load_well(&c, BASE "parallel: {sequence: true}\n", NULL);
    load_well(&c, BASE "train: {warmup_steps: 2000, steps: 10}\n", NULL);
}

// The rule of parallel.layers: auto, stated apart from the code: as even as possible, the surplus on stages that have
// neither embedding nor head as long as there are any, never on the last stage.
static void auto_spreads_any_number_of_layers(void **state) {
    (void)state;
    static Config c;
    load_well(&c, BASE, NULL);
    c.train.global_batch = 64;
    for (int64_t p = 1; p <= 64; p++) {
        for (int64_t layers = p; layers <= 200; layers++) {
            Error err = {0};
            c.model.layers = layers;
            c.parallel.pipeline = p;
            if (config_check(&c, &err) != 0) fail_msg("%s", err.text);
            int64_t sum = 0, least = layers / p, rest = layers % p, middle = 0;
            for (int64_t s = 0; s < p; s++) {
                int64_t mine = c.parallel.layers_per_stage[s];
                assert_true(mine == least || mine == least + 1);
                if (s > 0 && s < p - 1) middle += mine - least;
                sum += mine;
            }
            assert_int_equal(sum, layers);
            assert_int_equal(middle, p > 2 ? (rest < p - 2 ? rest : p - 2) : 0);
            assert_int_equal(c.parallel.layers_per_stage[p - 1], least);
        }
    }
}

static size_t field_size(KeyType type) {
    switch (type) {
    case KEY_INT:
        return sizeof(int64_t);
    case KEY_NUMBER:
        return sizeof(double);
    case KEY_BOOL:
        return sizeof(bool);
    case KEY_WORD:
        return sizeof(int);
    case KEY_TEXT:
        return CONFIG_TEXT;
    case KEY_LAYERS:
        return CONFIG_MAX_STAGES * sizeof(int64_t);
    }
    return 0;
}

static void every_row_of_the_schema_is_whole(void **state) {
    (void)state;
    static Config c;
    for (int i = 0; i < config_key_count; i++) {
        const ConfigKey *key = &config_keys[i];
        Error err = {0};
        assert_int_equal(key->size, field_size(key->type));
        assert_true(strlen(key->meaning) >= 10 && strlen(key->meaning) <= 90);
        assert_true(key->min <= key->max);
        assert_int_equal(key->type == KEY_WORD, key->words != NULL);
        if (key->def != NULL && config_set_default(&c, key, &err) != 0) fail_msg("%s: %s", key->name, err.text);
        for (int j = 0; j < i; j++) {
            const ConfigKey *other = &config_keys[j];
            assert_string_not_equal(key->name, other->name);
            assert_true(key->offset >= other->offset + other->size || other->offset >= key->offset + key->size);
        }
    }
}

static void required_are_the_model_and_the_data_and_nothing_else(void **state) {
    (void)state;
    static const char *const required[] = {"model.family", "model.hidden", "model.layers",  "model.heads",
                                           "model.ffn",    "model.vocab",  "model.seq_len", "data.train"};
    int found = 0;
    for (int i = 0; i < config_key_count; i++) found += config_keys[i].def == NULL;
    assert_int_equal(found, 8);
    for (int i = 0; i < 8; i++) assert_null(config_find(required[i])->def);
}

static char *json_of(const Config *config) {
    char *text = NULL;
    size_t length;
    FILE *file = open_memstream(&text, &length);
    config_write_json(config, file);
    fclose(file);
    return text;
}

// Clears what differs between two ways to say the same: where it was said, and whether layers were counted out.
static void forget_places(Config *config) {
    memset(config->place, 0, sizeof config->place);
    config->parallel.layers_given = 0;
}

static void json_reads_back_as_the_same_configuration(void **state) {
    (void)state;
    static const char *const texts[] = {
        BASE,
        BASE
        "train: {lr: 0.1234567890123456789, eps: 1e-300, beta2: 0.3, global_batch: 24, seed: 9007199254740991}\n"
        "parallel: {pipeline: 3, tensor: 4, data: 2, sequence: true}\nschedule: {bpipe: on, slots: 4}\n"
        "log: {metrics: \"quote \\\" back \\\\ slash \xC3\xA9 end\"}\nhardware: {memory_gib: 79.6, peak_tflops: 312}\n",
    };
    static Config first, second;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        load_well(&first, texts[i], NULL);
        char *json = json_of(&first);
        assert_null(strchr(json, '\n'));
        load_well(&second, json, NULL);
        free(json);
        forget_places(&first);
        forget_places(&second);
        assert_memory_equal(&first, &second, sizeof first);
    }
    load_well(&first, texts[1], NULL);
    char *json = json_of(&first);
    assert_non_null(strstr(json, "\"kv_heads\":8,"));
    assert_non_null(strstr(json, "\"layers\":[3,3,2]"));
    assert_non_null(strstr(json, "\"memory_gib\":79.6,"));
    assert_non_null(strstr(json, "\"rope_theta\":10000}"));
    free(json);
}

static void words_are_spelt_as_in_the_file(void **state) {
    (void)state;
    assert_string_equal(config_word("model.family", FAMILY_GPT), "gpt");
    assert_string_equal(config_word("schedule.name", SCHEDULE_NAME_1F1B), "1f1b");
    assert_string_equal(config_word("schedule.bpipe", BPIPE_AUTO), "auto");
    assert_string_equal(config_word("train.schedule", LR_WSD), "wsd");
    assert_string_equal(config_word("hardware.device", DEVICE_CUDA), "cuda");
    assert_string_equal(config_word("train.schedule", 99), "?");
    assert_string_equal(config_word("train.schedule", -1), "?");
    assert_string_equal(config_word("train.steps", 0), "?");
}

static void the_ready_made_configurations_load(void **state) {
    (void)state;
    static Config c;
    static const char *const big[] = {"configs/llama65b.yaml", "configs/gpt3_96b.yaml"};
    static const char *const tiny[] = {"configs/llama_tiny.yaml", "configs/gpt_tiny.yaml"};
    for (int i = 0; i < 2; i++) {
        Error err = {0};
        if (config_load(&c, big[i], NULL, 0, &err) != 0) fail_msg("%s", err.text);
        assert_int_equal(c.model.family, i == 0 ? FAMILY_LLAMA : FAMILY_GPT);
        assert_true(c.parallel.tensor == 4 && c.parallel.pipeline == 8 && c.train.global_batch == 128);
        assert_true(c.model.layers == 80 && c.model.seq_len == 2048 && c.parallel.sequence);
        assert_true(c.hardware.device == DEVICE_CUDA && c.hardware.peak_tflops == 312 && c.hardware.memory_gib == 80);
        if (config_load(&c, tiny[i], NULL, 0, &err) != 0) fail_msg("%s", err.text);
        assert_int_equal(c.model.family, i == 0 ? FAMILY_LLAMA : FAMILY_GPT);
        assert_true(c.parallel.pipeline == 4 && c.schedule.bpipe == BPIPE_ON && c.train.precision == PRECISION_FP32);
        assert_true(c.model.layers >= 8 && config_microbatches(&c) >= 8 && c.model.vocab == 257);
        assert_true(c.model.heads % 4 == 0 && c.model.kv_heads % 4 == 0 && c.model.seq_len % 4 == 0);
        assert_true(c.parallel.layers_given == 0 && c.schedule.slots == 0 && c.hardware.device == DEVICE_AUTO);
    }
}

static void help_names_every_key_with_its_default(void **state) {
    (void)state;
    char *text = NULL;
    size_t length;
    FILE *file = open_memstream(&text, &length);
    config_help(file);
    fclose(file);
    for (int i = 0; i < config_key_count; i++) {
        char name[64], def[64];
        snprintf(name, sizeof name, "  %s ", config_short_name(&config_keys[i]));
        assert_non_null(strstr(text, name));
        snprintf(def, sizeof def, "default %s", config_keys[i].def != NULL ? config_keys[i].def : "");
        if (config_keys[i].def != NULL && config_keys[i].def[0] != '\0') assert_non_null(strstr(text, def));
        assert_non_null(strstr(text, config_keys[i].meaning));
    }
    free(text);
}

static void distances_count_letters(void **state) {
    (void)state;
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
    const char *contains; // in the error
} CommandLine;

static int parse(const char *const words[6], Options *options, Error *err) {
    char *argv[8] = {"train_llama"};
    int argc = 1;
    for (int i = 0; i < 6 && words[i] != NULL; i++) argv[argc++] = (char *)words[i];
    *err = (Error){0};
    return options_parse(options, argc, argv, err);
}

static void every_wrong_command_line_is_refused(void **state) {
    (void)state;
    static const CommandLine lines[] = {
        {{NULL}, "no configuration; give one with -c FILE"},
        {{"--schedule", NULL}, "no configuration"},
        {{"x.yaml", NULL}, "x.yaml: is no option; a configuration is given with -c FILE"},
        {{"-c", NULL}, "-c: needs a value; write -c FILE"},
        {{"--config", NULL}, "--config: needs a value; write --config FILE"},
        {{"-c", "-o", "a=b", NULL}, "-c: needs a value"},
        {{"-c", "", NULL}, "the value is empty"},
        {{"--config=", NULL}, "the value is empty"},
        {{"-c", "a", "-c", "b", NULL}, "given twice, a and b"},
        {{"--shedule", "-c", "x", NULL}, "--shedule: no such option; did you mean --schedule?"},
        {{"-config", "x", NULL}, "-config: no such option; did you mean --config?"},
        {{"--confg=x", NULL}, "--confg: no such option; did you mean --config?"},
        {{"--schedule=yes", "-c", "x", NULL}, "--schedule: takes no value"},
        {{"-x", NULL}, "-x: no such option; --help lists all"},
        {{"--", NULL}, "--: no such option"},
        {{"-", NULL}, "-: is no option"},
        {{"", NULL}, "is no option"},
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        Options options;
        Error err;
        assert_int_equal(parse(lines[i].words, &options, &err), -1);
        assert_int_equal(err.code, EXIT_USAGE);
        if (strstr(err.text, lines[i].contains) == NULL)
            fail_msg("expected \"%s\" in: %s", lines[i].contains, err.text);
        options_free(&options);
    }
}

static void command_lines_are_understood_in_every_form(void **state) {
    (void)state;
    static const char *const forms[][6] = {{"-c", "f", "-o", "a=b", "-oc=d", NULL},
                                           {"-cf", "--override", "a=b", "--override=c=d", NULL},
                                           {"--config", "f", "-o", "a=b", "-o", "c=d"},
                                           {"-o", "a=b", "--config=f", "-o", "c=d", NULL}};
    Options options;
    Error err;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(parse(forms[i], &options, &err), 0);
        assert_string_equal(options.config, "f");
        assert_int_equal(options.override_count, 2);
        assert_string_equal(options.overrides[0], "a=b");
        assert_string_equal(options.overrides[1], "c=d");
        assert_false(options.schedule || options.help || options.help_config || options.version);
        options_free(&options);
    }
    const char *flags[6] = {"--help", "--help-config", "--version", "--schedule", NULL};
    assert_int_equal(parse(flags, &options, &err), 0);
    assert_true(options.schedule && options.help && options.help_config && options.version);
    options_free(&options);
}

static int make_path(void **state) {
    (void)state;
    const char *directory = getenv("TMPDIR");
    snprintf(path, sizeof path, "%.40s/test_config_XXXXXX", directory != NULL ? directory : P_tmpdir);
    int fd = mkstemp(path);
    if (fd < 0) return -1;
    return close(fd);
}

static int remove_path(void **state) {
    (void)state;
    return unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_malformed_file_is_refused_in_its_line),
        cmocka_unit_test(every_unknown_name_is_refused_with_what_was_meant),
        cmocka_unit_test(every_wrong_value_is_refused_with_what_would_be_right),
        cmocka_unit_test(every_impossible_combination_is_refused_with_a_remedy),
        cmocka_unit_test(what_cannot_be_read_is_named),
        cmocka_unit_test(long_and_deep_input_is_refused_quickly),
        cmocka_unit_test(no_damaged_file_breaks_the_reader),
        cmocka_unit_test(values_reach_their_fields),
        cmocka_unit_test(overrides_win_in_the_order_given_and_are_named_as_the_place),
        cmocka_unit_test(an_override_never_needs_a_second_one_to_turn_bpipe_off),
        cmocka_unit_test(auto_spreads_any_number_of_layers),
        cmocka_unit_test(every_row_of_the_schema_is_whole),
        cmocka_unit_test(required_are_the_model_and_the_data_and_nothing_else),
        cmocka_unit_test(json_reads_back_as_the_same_configuration),
        cmocka_unit_test(words_are_spelt_as_in_the_file),
        cmocka_unit_test(the_ready_made_configurations_load),
        cmocka_unit_test(help_names_every_key_with_its_default),
        cmocka_unit_test(distances_count_letters),
        cmocka_unit_test(every_wrong_command_line_is_refused),
        cmocka_unit_test(command_lines_are_understood_in_every_form),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}

// Configuration: the error message for each kind of wrong input.
#include "config_file.h"
#include "unit.h"

#include <string.h>

// The message starts with `starts` ('@': the file's name) and contains `contains`.
static void expect_message(const Error *err, const char *starts, const char *contains) {
    const char *text = err->text;
    assert_int_equal(err->code, EXIT_USAGE);
    if (starts[0] == '@') {
        if (strncmp(text, config_file_path, strlen(config_file_path)) != 0) fail_msg("no file name in: %s", text);
        text += strlen(config_file_path);
        starts++;
    }
    if (strncmp(text, starts, strlen(starts)) != 0) fail_msg("expected \"%s\" to begin:\n%s", starts, text);
    assert_contains(text, contains);
}

typedef struct BadInput {
    const char *text, *override, *starts, *contains;
} BadInput;

static void expect_refused(const BadInput *rows, size_t count) {
    static Config config;
    for (size_t i = 0; i < count; i++) {
        Error err;
        if (config_file_load_one(&config, rows[i].text, rows[i].override, &err) == 0)
            fail_msg("accepted: %s -o %s", rows[i].text, rows[i].override ? rows[i].override : "");
        expect_message(&err, rows[i].starts, rows[i].contains);
    }
}

#define EXPECT_REFUSED(rows) expect_refused(rows, sizeof(rows) / sizeof(rows)[0])

static const BadInput malformed[] = {
    {"", NULL, "@: model.family, model.hidden, model.layers, ", "model.seq_len: missing, and without a default"},
    {"---\n", NULL, "@: model.family, model.hidden", "--help-config"},
    {"hello\n", NULL, "@:1: the file is not a mapping", "model:"},
    {BASE "train:\n\tsteps: 5\n", NULL, "@:4: not valid YAML", "spaces instead of tabs"},
    {BASE "train: {steps: 5\n", NULL, "@:4: not valid YAML", "begun in line 3"},
    {BASE "train: {steps: auto}\n", NULL, "@:3: train.steps: auto needs train.tokens", "set it, or set steps"},
    {BASE "train: {steps: auto, tokens: 9007199254740991}\n", NULL, "@:3: train.tokens: needs more than", "use fewer"},
    {BASE "train:\n  steps: 5\n lr: 1\n", NULL, "@:5: not valid YAML", "indentation"},
    {BASE "log: {metrics: \"open}\n", NULL, "@:4: not valid YAML", "quotes"},
    {BASE "train: {lr: \x01}\n", NULL, "@:3: not valid YAML", "control characters"},
    {BASE "\xff\xfe\n", NULL, "@:3: not valid YAML", "UTF-8"},
    {BASE "---\ntrain: {steps: 5}\n", NULL, "@:3: a second YAML document", "keep one"},
    {BASE "...\ntrain: {steps: 5}\n", NULL, "@:4: not valid YAML", "document start"},
    {BASE "train: &t {steps: 5}\n", NULL, "@:3: anchor", "write the value itself"},
    {BASE "*n : {steps: 5}\n", NULL, "@:3: alias", "write the value itself"},
    {BASE "train: {steps: !!int 5}\n", NULL, "@:3: tag", "write the value itself"},
    {BASE "train: {<<: {steps: 5}}\n", NULL, "@:3: train.<<: no such key", "--help-config"},
    {BASE "? [a, b]\n: 3\n", NULL, "@:3: a key must be a plain word", ""},
    {BASE "train: 5\n", NULL, "@:3: train: is a section", "key: value"},
};

TEST(every_malformed_file_is_refused_in_its_line) { EXPECT_REFUSED(malformed); }

static const BadInput unknown_names[] = {
    {BASE "train: {stpes: 5}\n", NULL, "@:3: train.stpes: no such key", "did you mean train.steps?"},
    {BASE "train:\n  steps: 5\n  warmup: 5\n", NULL, "@:5: train.warmup: no such key", ""},
    {BASE "train: {micro_batch: 5}\n", NULL, "@:3: train.micro_batch: no such key",
     "did you mean schedule.micro_batch?"},
    {BASE "paralel: {tensor: 1}\n", NULL, "@:3: paralel: no such section", "did you mean parallel?"},
    {BASE "train.steps: 5\n", NULL, "@:3: train.steps: is outside its section", "write train: {steps: ...}"},
    {BASE "train: {steps: 5, lr: 0.1,\n  steps: 6}\n", NULL, "@:4: train.steps: given twice", "line 3 has it"},
    {BASE "model: {norm_eps: 1e-6}\n", NULL, "@:3: model: given twice", "section in line 1"},
    {BASE "\"tra\\0in\": {steps: 5}\n", NULL, "@:3: tra?in: no such section", "did you mean train?"},
    {BASE "? ''\n: 1\n", NULL, "@:3: : no such key", ""},
    {BASE, "optimizer.name=adam", "-o optimizer.name: no such key; set train.optimizer", "muon"},
    {BASE "train: {grad_accum: 4}\n", NULL, "@:3: train.grad_accum: no such key; it is train.", "set train.global"},
    {BASE "optimizer: {name: AdamW}\n", NULL, "@:3: optimizer: no such key; set train.optimizer", "muon"},
    {BASE, "model.dropout=0.1", "-o model.dropout: no such key; this trainer has no dropout", "leave it out"},
    {BASE, "parallel.context-parallel-size=2", "-o parallel.context-parallel-size: no such key",
     "set parallel.context"},
    {BASE, "training.Local_Batch_Size=2", "-o training.Local_Batch_Size: no such key", "set schedule.micro_batch"},
    {BASE, "steps=5", "-o steps: no such key", "did you mean train.steps?"},
    {BASE, "train=5", "-o train: is a section", "-o train.steps=10"},
    {BASE, "train.steps", "-o train.steps: has no value", "KEY=VALUE"},
    {BASE, "", "-o : has no value", ""},
    {BASE, "train.steps =5", "-o train.steps : no such key", "did you mean train.steps?"},
};

TEST(every_unknown_name_is_refused_with_what_was_meant) { EXPECT_REFUSED(unknown_names); }

static const BadInput wrong_values[] = {
    {BASE "train: {steps: five}\n", NULL, "@:3: train.steps: five is not a number", "an integer from 1 to"},
    {BASE "train: {steps: 1.5}\n", NULL, "@:3: train.steps: 1.5 is not an integer", "an integer from 1 to"},
    {BASE "train: {tokens: 9007199254740.993k}\n", NULL, "@:3: train.tokens: 9007199254740.993k is out of range", ""},
    {BASE "train: {steps: 2T}\n", NULL, "@:3: train.steps: 2T is out of range", "from 1 to 1000000000000"},
    {BASE "train: {steps: 1kk}\n", NULL, "@:3: train.steps: 1kk is not a number", ""},
    {BASE "train: {lr: 1k}\n", NULL, "@:3: train.lr: 1k is not a number", ""},
    {BASE, "model.seq_len=8k", "-o model.seq_len: 8k may mean 8000 or 8192; write the number", ""},
    {BASE, "hardware.gpu=a100", "-o hardware.gpu: a100 is unknown, did you mean a100-40g or a100-80g;", "mi355x"},
    {BASE, "hardware.gpu=H100", "-o hardware.gpu: H100 is unknown, did you mean h100;", "mi355x"},
    {BASE, "hardware.gpu=h100-sxm", "-o hardware.gpu: h100-sxm is unknown, did you mean h100;", "mi355x"},
    {BASE, "hardware.gpu=nonsense", "-o hardware.gpu: nonsense is unknown; use one of none, a100-40g", "mi355x"},
    {BASE "train: {steps: \"5\"}\n", NULL, "@:3: train.steps: \"5\" is a quoted string", "an integer"},
    {BASE "train: {steps: 0}\n", NULL, "@:3: train.steps: 0 is out of range", "from 1 to 1000000000000"},
    {BASE "train: {steps: 99999999999999999999}\n", NULL, "@:3: train.steps: 99999999999999999999 is out of range", ""},
    {BASE "train: {steps: 0x10}\n", NULL, "@:3: train.steps: 0x10 is not a number", ""},
    {BASE "train: {steps: 010}\n", NULL, "@:3: train.steps: 010 is not written as an integer (10)", ""},
    {BASE "train: {steps: }\n", NULL, "@:3: train.steps: has no value", "an integer"},
    {BASE "train: {steps: ~}\n", NULL, "@:3: train.steps: has no value", "an integer"},
    {BASE "train: {seed: auto}\n", NULL, "@:3: train.seed: auto is not a number", ""},
    {BASE "train: {steps: {a: 5}}\n", NULL, "@:3: train.steps: is a mapping", "an integer"},
    {BASE "train: {seed: 9007199254740993}\n", NULL, "@:3: train.seed: 9007199254740993 is out of range",
     "9007199254740992"},
    {BASE "train: {lr: nan}\n", NULL, "@:3: train.lr: nan is not a number", ""},
    {BASE "train: {lr: 1e999}\n", NULL, "@:3: train.lr: 1e999 does not fit", ""},
    {BASE "train: {lr: 1e-999}\n", NULL, "@:3: train.lr: 1e-999 does not fit", ""},
    {BASE "train: {lr: 1e}\n", NULL, "@:3: train.lr: 1e is not a number", ""},
    {BASE "comm: {checksum: off}\n", NULL, "@:3: comm: no such key; comm.checksum is gone", "remove the key"},
    {BASE "train: {beta1: 1}\n", NULL, "@:3: train.beta1: 1 is out of range", "to below 1"},
    {BASE "train: {eps: 0}\n", NULL, "@:3: train.eps: 0 is out of range", "above 0"},
    {BASE "parallel: {sequence: 2}\n", NULL, "@:3: parallel.sequence: 2 is neither", "true or false"},
    {BASE "parallel: {layers: 8}\n", NULL, "@:3: parallel.layers: 8 is not a list", "[2, 3, 3, 2]"},
    {BASE "parallel: {layers: []}\n", NULL, "@:3: parallel.layers: is an empty list", "auto"},
    {BASE "parallel: {layers: [8, a]}\n", NULL, "@:3: parallel.layers: a is not a number", "an integer from 0"},
    {BASE "parallel: {layers: [8, [1]]}\n", NULL, "@:3: parallel.layers: has an entry that is not an integer", ""},
    {BASE "schedule: {bpipe: \"true\"}\n", NULL, "@:3: schedule.bpipe: \"true\" is unknown", "one of off, on, auto"},
    {BASE, "schedule.recompute=full",
     "-o schedule.recompute: full is unknown, set schedule.recompute_layers for whole layers;", "experts, pointwise"},
    {BASE, "schedule.recompute=selective", "-o schedule.recompute: selective is unknown, did you mean pointwise;",
     "one of none, experts, pointwise"},
    {BASE, "schedule.recompute=experts", "-o schedule.recompute: experts needs model.experts;", "none, or pointwise"},
    {BASE "schedule: {group: halves}\n", NULL, "@:3: schedule.group: halves is not a number", "or auto, or half"},
    {BASE "schedule: {delay: -2}\n", NULL, "@:3: schedule.delay: -2 is out of range", "or auto"},
    {BASE "train: {schedule: WSD}\n", NULL, "@:3: train.schedule: WSD is unknown", "did you mean wsd"},
    {BASE "train: {Global_Batch: 8}\n", NULL, "@:3: train.Global_Batch: no such key",
     "did you mean train.global_batch?"},
    {BASE "attention: {mode: flsh}\n", NULL, "@:3: attention.mode: flsh", "did you mean flash"},
    {BASE "hardware: {gpu: h100}\n", "hardware.stream_gb_s=3351", "-o hardware.stream_gb_s: 3351 exceeds", "3350"},
    {BASE "log: {metrics: \"a\\0b\"}\n", NULL, "@:3: log.metrics: \"a?b\" contains a control", ""},
    {BASE "log: {metrics: }\n", NULL, "@:3: log.metrics: has no value", "\"\" for none"},
    {BASE "checkpoint: {dir: ~/out}\n", NULL, "@:3: checkpoint.dir: ~/out: only shells replace ~", "path in full"},
    {BASE, "data.train=~/a_*.bin", "-o data.train: ~/a_*.bin: only shells replace ~", ""},
    {MODEL "data: {train: \"\"}\n", NULL, "@:2: data.train: \"\" is empty", "a text of 1 to 511 bytes"},
    {BASE, "train.steps=", "-o train.steps: has no value", "an integer"},
    {BASE, "train.steps=5 6", "-o train.steps: 5 6 is not a number", ""},
    {BASE, "train.steps=&a 5", "-o train.steps: anchor", ""},
    {BASE, "train.steps=[5", "-o train.steps: ", "is a list"},
    {BASE, "parallel.layers=[5", "-o parallel.layers: not valid YAML", ""},
    {BASE, "train.steps=5\ntrain: 3", "-o train.steps: the value contains a line break", ""},
    {MODEL "data: {train: {path: a}}\n", NULL, "@:2: data.train: is a mapping", "or a list such as [{path:"},
    {MODEL "data: {train: [a.bin, b.bin]}\n", NULL, "@:2: data.train: has an entry that is not of the form", "{path: "},
    {MODEL "data:\n  train:\n    - {path: a}\n    - {path: b, weight: 0}\n", NULL,
     "@:5: data.train: weight 0 is out of range", "a number above 0 up to 1000000000"},
    {MODEL "data: {train: [{path: a, weight: 2e9}]}\n", NULL, "@:2: data.train: weight 2e9 is out of range", ""},
    {MODEL "data: {train: [{path: \"\"}]}\n", NULL, "@:2: data.train: path \"\" is empty", "a text of 1 to 511 bytes"},
    {MODEL "data: {train: [{path: [a]}]}\n", NULL, "@:2: data.train: has an entry that is not of the form", "{path: "},
    {MODEL "data: {train: [{weight: 1}]}\n", NULL, "@:2: data.train: has an entry that is not of the form", "{path: "},
    {MODEL "data: {train: [{path: a, wieght: 1}]}\n", NULL, "@:2: data.train: has an entry that is not of the form",
     "weight: 0.7}: wieght is unknown"},
    {MODEL "data: {train: [{path: a, path: b}]}\n", NULL, "@:2: data.train: has an entry that is not of the form", ""},
    {MODEL "data: {train: [{path: *a}]}\n", NULL, "@:2: ", "alias"},
    {MODEL "data: {train: [{path: a}, {path: b}, {path: a}]}\n", NULL, "@:2: data.train: a is listed twice",
     "list it once"},
    {MODEL "data: {train: [{path: a, weight: 1e-7}, {path: b}]}\n", NULL, "@:2: data.train: weight 1e-07 of a",
     "millionth"},
    {BASE, "data.train=[{path: a", "-o data.train: not valid YAML", ""},
    {BASE, "data.train=", "-o data.train: \"\" is empty", ""},
    {BASE "train: {decay_shape: minus_sqrt, schedule: wsd}\n", NULL, "@:3: train.decay_shape: ", "did you mean 1-sqrt"},
    {BASE "train: {batch_ramp: [[1, 0]]}\n", NULL, "@:3: train.batch_ramp: ", "global_batch 0 is out of range"},
    {BASE "train: {batch_ramp: [[1, 4, 5]]}\n", NULL,
     "@:3: train.batch_ramp: has an entry that is not a list [step, global_batch]", ""},
    {BASE "train: {batch_ramp: [4, 8]}\n", NULL,
     "@:3: train.batch_ramp: has an entry that is not a list [step, global_batch]", ""},
};

TEST(every_wrong_value_is_refused_with_what_would_be_right) { EXPECT_REFUSED(wrong_values); }

static const BadInput impossible[] = {
    {BASE "parallel:\n  tensor: 5\n", NULL, "@:4: parallel.tensor: 5 does not divide 8 heads", "use 1, 2, 4, 8"},
    {BASE "parallel: {tensor: 4}\n", "model.kv_heads=2", "@:3: parallel.tensor: 4 does not divide 2 kv_heads",
     "use 1, 2"},
    {BASE "parallel: {tensor: 8}\n", "model.ffn=100", "@:3: parallel.tensor: 8 does not divide 100 ffn", "use 1, 2, 4"},
    {BASE "parallel: {tensor: 4, sequence: on}\n", "model.seq_len=30",
     "@:3: parallel.tensor: 4 does not divide 30 seq_len", "use 1, 2"},
    {BASE, "model.heads=7", "-o model.heads: heads 7 does not divide hidden 64", "use 4 or 8 heads"},
    {BASE, "model.heads=64", "-o model.heads: heads 64 gives an odd head size", "use 32 heads"},
    {BASE, "model.heads=200", "-o model.heads: heads 200 does not divide hidden 64", "use 32 heads"},
    {BASE, "model.hidden=63", "-o model.hidden: must be even", "use 64"},
    {BASE, "model.kv_heads=3", "-o model.kv_heads: kv_heads 3 does not divide 8 heads", "use 2 or 4"},
    {GPT DATA, "model.kv_heads=4", "-o model.kv_heads: must equal heads in this family", "use auto"},
    {"model: {family: gpt, hidden: 64, layers: 8, heads: 8, kv_heads: 8, ffn: 96, vocab: 257, seq_len: 32}\n" DATA,
     "model.heads=4", "-o model.heads: model.kv_heads: must equal heads", "use auto"},
    {BASE, "model.head_dim=7", "-o model.head_dim: must be even", "use one more"},
    {GPT DATA, "model.head_dim=7", "-o model.head_dim: is hidden / heads in this family", "remove the key"},
    {GPT DATA, "model.qkv_bias=true", "-o model.qkv_bias: does not apply to family gpt", "remove the key"},
    {BASE, "model.rope_attention=2", "-o model.rope_attention: is a factor of yarn's",
     "use rope_scaling yarn, or remove"},
    {BASE, "model.rope_factor=8", "-o model.rope_factor: has no effect", "use rope_scaling linear, llama3 or yarn"},
    {BASE, "model.rope_scaling=llama3", "-o model.rope_scaling: model.rope_original: llama3 and yarn", "such as 8192"},
    {BASE, "model.rope_share=0.4", "-o model.rope_share: 0.4 of head_dim 8 is 3 dimensions", "use 0.5"},
    {BASE "train: {global_batch: 10}\nschedule: {micro_batch: 4}\n", NULL, "@:3: train.global_batch: global_batch 10",
     "8 or 12"},
    {BASE "train: {global_batch: 3}\nparallel: {data: 4}\n", NULL, "@:3: train.global_batch: ", "use global_batch 4"},
    {BASE "parallel: {pipeline: 8}\n", "train.global_batch=7",
     "-o train.global_batch: global_batch 7 makes 7 microbatches for 8 stages", "is 8, or use pipeline 7 or less"},
    {BASE "train: {global_batch: 12}\nschedule: {micro_batch: 3}\nparallel: {data: 2}\n", "parallel.pipeline=4",
     "-o parallel.pipeline: global_batch 12 makes 2 microbatches for 4 stages", "smallest global_batch is 24"},
    {BASE, "parallel.pipeline=9", "-o parallel.pipeline: 9 stages for 8 layers", "use pipeline 8 or less"},
    {BASE "parallel: {pipeline: 4, layers: [2, 2, 4]}\n", NULL,
     "@:3: parallel.layers: the list of layers has 3 entries for 4 stages", "auto"},
    {BASE "parallel: {pipeline: 4, layers: [2, 2, 2, 3]}\n", NULL,
     "@:3: parallel.layers: the stages' layers add up to 9", "8"},
    {BASE "schedule: {bpipe: on}\n", "schedule.name=gpipe", "-o schedule.name: schedule gpipe", "bpipe off"},
    {BASE "schedule: {name: gis, chunks: 1}\n", NULL, "@:3: schedule.chunks: schedule gis supports 2 to 64 chunks",
     "not 1"},
    {BASE "schedule: {chunks: 2}\n", NULL, "@:3: schedule.chunks: schedule 1f1b has 1 chunk", "not 2"},
    {BASE "parallel: {pipeline: 4}\nschedule: {name: gis, chunks: 4}\n", NULL,
     "@:3: parallel.pipeline: 4 stages of 4 chunks for 8 layers", "use pipeline 2 or less"},
    {BASE "parallel: {pipeline: 4, layers: [2, 2, 2, 2]}\n", "schedule.name=v-half",
     "@:3: parallel.layers: the list of layers has 4 entries for 4 stages of 2 chunks", "give 8, or layers auto"},
    {BASE "parallel: {pipeline: 4}\nschedule: {name: gis, group: 1}\n", NULL,
     "@:4: schedule.group: schedule gis needs groups of 2 to 4", "not 1"},
    {BASE "parallel: {pipeline: 4}\nschedule: {name: gis}\n", "train.global_batch=9",
     "-o train.global_batch: schedule gis takes 9 microbatches in groups of 4, and the last group of 1",
     "use 8 or 10 microbatches"},
    {BASE "parallel: {pipeline: 4}\nschedule: {name: interleaved}\n", "train.global_batch=9",
     "-o train.global_batch: schedule interleaved takes microbatches in groups of 4", "use 8 or 12 microbatches"},
    {BASE "parallel: {pipeline: 4}\nschedule: {name: dualpipe-v}\n", "train.global_batch=7",
     "-o train.global_batch: schedule dualpipe-v needs at least 8 microbatches", "not 7"},
    {BASE "parallel: {pipeline: 4}\nschedule: {name: zb-d, delay: 4}\n", NULL,
     "@:4: schedule.delay: delay is 4; on 4 stages zb-d allows", "0 to 3"},
    {BASE "schedule: {name: zb-v}\n", "model.layers=1",
     "-o model.layers: 1 stage of 2 chunks for 1 layer, but every chunk needs one",
     "use a schedule with fewer chunks, or more layers"},
    {BASE "schedule: {name: zb-v, split_backward: off}\n", NULL,
     "@:3: schedule.split_backward: schedule zb-v always splits its backwards", "auto or on"},
    {BASE, "train.decay_steps=5",
     "-o train.decay_steps: ", "applies only to train.schedule wsd; use wsd, or remove the key"},
    {BASE, "train.decay_shape=sqrt",
     "-o train.decay_shape: ", "applies only to train.schedule wsd; use wsd, or remove the key"},
    {BASE "train: {schedule: wsd, steps: 8, warmup_steps: 2}\n", "train.decay_steps=7",
     "-o train.decay_steps: exceeds the steps", "use fewer, or auto"},
    {BASE "train: {schedule: wsd, steps: 8, warmup_steps: 9}\n", "train.decay_steps=1",
     "-o train.decay_steps: exceeds the steps", "use fewer, or auto"},
    {BASE, "train.batch_ramp=[[1, 4], [1, 8]]", "-o train.batch_ramp: ", "step 1 follows step 1; use increasing steps"},
    {BASE "schedule: {micro_batch: 2}\n", "train.batch_ramp=[[1, 4], [2, 7]]",
     "-o train.batch_ramp: ", "global_batch 7 is not a multiple of micro_batch * data = 2 * 1"},
    {BASE "parallel: {pipeline: 4}\n", "train.batch_ramp=[[1, 2], [2, 8]]",
     "-o train.batch_ramp: ", "makes 2 microbatches for 4 stages"},
    {BASE "parallel: {pipeline: 2}\nschedule: {name: interleaved}\n", "train.batch_ramp=[[1, 3], [2, 8]]",
     "-o train.batch_ramp: ", "schedule interleaved takes microbatches in groups of 2"},
    {BASE "schedule: {file: nothing/there.txt}\n", NULL, "@:3: schedule.file: nothing/there.txt",
     "No such file or directory"},
    {BASE "parallel: {pipeline: 8}\nschedule: {bpipe: on, slots: 4}\n", NULL,
     "@:4: schedule.slots: 4 slots are too few", "slots 5 or more"},
    {BASE "parallel: {pipeline: 8}\nschedule: {bpipe: on, slots: 1, evict_to: host}\n", NULL,
     "@:4: schedule.slots: 1 slots", "slots 2 or more"},
    {BASE "schedule: {micro_batch: 65536}\ntrain: {global_batch: 65536}\n", "model.seq_len=4194304",
     "-o model.seq_len: the activations", "smaller seq_len"},
    {BASE "train: {steps: 1000000000000, global_batch: 16777216}\n", NULL, "@:3: train.steps: the run takes more",
     "use fewer"},
    {MODEL DATA "parallel: {tensor: 8, pipeline: 8, data: 65536}\n", NULL,
     "@:3: parallel.data: pipeline * tensor * context * data are more than 2^20 ranks", "use smaller"},
};

TEST(every_impossible_combination_is_refused_with_a_remedy) { EXPECT_REFUSED(impossible); }

// --- keys that exclude each other

#define SHARDED(keys) BASE "train: {global_batch: 8}\n" keys
#define EIGHT(keys)   BASE "train: {precision: bf16}\n" keys

static const BadInput excluded[] = {
    {BASE, "parallel.context=3", "-o parallel.context: ", "2 * 3 pieces do not divide seq_len"},
    {BASE "schedule: {name: seq1f1b, slices: 2}\n", "parallel.context=2",
     "-o parallel.context: ", "set schedule.slices: 1"},
    {BASE "train: {objective: masked}\nparallel: {context: 2}\n", "model.causal=false",
     "@:4: parallel.context: ", "set context: 1"},
    {BASE "parallel: {context: 16, tensor: 4, sequence: true}\n", NULL, "@:3: parallel.", "tensor 4 does not divide"},
    {BASE "schedule: {name: seq1f1b}\n", "schedule.slices=3", "-o schedule.slices: 3 does not divide seq_len",
     "use 1, 2, 4, 8"},
    {BASE "schedule: {name: zb-d}\n", "schedule.slices=2", "-o schedule.slices: ", "use seq1f1b or interleaved"},
    {SHARDED(""), "parallel.shard_gradients=on", "-o parallel.shard_gradients: ", "one data rank has nothing to shard"},
    {SHARDED("parallel: {data: 2, pipeline: 2}\n"), "parallel.shard_gradients=on",
     "-o parallel.shard_gradients: ", "use pipeline 1, or off"},
    {SHARDED("parallel: {data: 2}\n"), "parallel.shard_gradients=on",
     "-o parallel.shard_gradients: ", "use one microbatch a step (micro_batch = global_batch / data), or off"},
    {SHARDED("parallel: {data: 2}\nschedule: {micro_batch: 4, split_backward: on}\n"), "parallel.shard_gradients=on",
     "-o parallel.shard_gradients: ", "use a schedule without split backwards"},
    {SHARDED("parallel: {data: 2}\nschedule: {micro_batch: 4, name: seq1f1b, slices: 2}\n"),
     "parallel.shard_gradients=on", "-o parallel.shard_gradients: ", "use schedule.slices 1, or off"},
    {BASE, "train.fp8=tensor", "-o train.fp8: ", "needs train.precision bf16; use bf16, or fp8 off"},
    {BASE "train: {precision: bf16, fp8: tensor}\n", "model.ffn=40",
     "-o model.ffn: ", "ffn / tensor to be a multiple of 16 (mx: 32); use another ffn, fewer tensor ranks, or fp8 off"},
    {BASE "train: {precision: bf16, fp8: mx}\n", "model.ffn=48", "", "ffn / tensor to be a multiple of 16 (mx: 32)"},
    {EIGHT("hardware: {device: cuda, gpu: a100-80g}\n"), "train.fp8=tensor",
     "-o train.fp8: ", "needs Hopper or Blackwell GPUs (H100 and newer); use off"},
    {EIGHT("hardware: {device: cuda, gpu: h100}\n"), "train.fp8=mx",
     "-o train.fp8: ", "mx needs Blackwell GPUs (B200 and newer)"},
    {EIGHT("hardware: {device: cuda, gpu: b200}\n"), "train.fp8=block",
     "-o train.fp8: ", "block needs Hopper GPUs (H100, H200); use mx or tensor"},
};

TEST(every_key_that_excludes_another_is_refused_with_a_remedy) { EXPECT_REFUSED(excluded); }

#define EXPERTS                                                                                                        \
    "model: {family: llama, hidden: 64, layers: 8, heads: 8, ffn: 96, vocab: 257, seq_len: 32, experts: 8, "           \
    "experts_per_token: 2}\n" DATA

#define LATENT                                                                                                         \
    "model: {family: llama, hidden: 64, layers: 8, heads: 8, ffn: 96, vocab: 257, seq_len: 32, kv_lora: 16, "          \
    "q_lora: 24, nope_dim: 8, rope_dim: 4, v_dim: 8}\n" DATA

static const BadInput mixtures[] = {
    {BASE, "model.q_lora=8", "-o model.q_lora: does not apply without latent attention", "give model.kv_lora"},
    {LATENT, "model.q_lora=0", "-o model.q_lora: latent attention needs it", "such as 128"},
    {LATENT, "model.rope_dim=5", "-o model.rope_dim: must be even for rotary embedding, not 5", "use 6"},
    {LATENT, "model.v_dim=13", "-o model.v_dim: must not exceed nope_dim + rope_dim, 12", "use that or less"},
    {LATENT, "model.head_dim=16", "-o model.head_dim: is nope_dim + rope_dim with latent attention, 12", "remove the"},
    {LATENT, "model.kv_heads=4", "-o model.kv_heads: latent attention has keys and values for every head", "use auto"},
    {LATENT, "parallel.context=2", "-o parallel.context: latent attention does not support context ranks yet", "use 1"},
    {LATENT "schedule: {name: seq1f1b}\n", "schedule.slices=2",
     "-o schedule.slices: latent attention does not support slices yet", "use 1"},
    {BASE, "model.experts=8", "@: model.experts_per_token: is missing: a model of 8 experts needs it", "such as 2"},
    {BASE, "model.experts_per_token=2", "-o model.experts_per_token: does not apply", "give model.experts, or remove"},
    {GPT DATA, "model.experts=8", "-o model.experts: only family llama has experts", "use it, or 0"},
    {EXPERTS, "model.experts_per_token=9", "-o model.experts_per_token: a token cannot use more", "use fewer"},
    {EXPERTS, "model.experts=65536", "-o model.experts: the layers have more than 2^18", "use fewer"},
    {EXPERTS, "model.dense_layers=8", "-o model.dense_layers: all layers would be dense", "use fewer"},
    {EXPERTS, "model.router_groups=2", "-o model.router_groups: groups of experts need router sigmoid", "or 1 group"},
    {"model: {family: llama, hidden: 64, layers: 8, heads: 8, ffn: 96, vocab: 257, seq_len: 32, experts: 8, "
     "experts_per_token: 2, router: sigmoid}\n" DATA,
     "model.router_groups=3", "-o model.router_groups: 3 groups do not divide 8 experts", "use 1, 2, 4, 8"},
    {EXPERTS, "model.router_group_top=2",
     "-o model.router_group_top: a token's 2 experts cannot come from 2 of 1 groups of 8 experts", "use 1"},
    {EXPERTS "parallel: {data: 4, expert: 3}\n", NULL, "@:3: parallel.expert: 3 does not divide 8 experts",
     "use 1, 2, 4"},
    {EXPERTS "parallel: {data: 2, expert: 4}\n", NULL,
     "@:3: parallel.expert: 4 does not divide the 2 ranks of a stage (tensor * context * data)", "use 1, 2"},
    {EXPERTS "parallel: {tensor: 2}\n", NULL, "@: parallel.sequence: experts need rows split over the tensor ranks",
     "set parallel.sequence: true, or tensor: 1"},
    {EXPERTS "train: {precision: bf16}\n", "train.fp8=tensor", "-o train.fp8: experts are computed in bf16", "use off"},
    {EXPERTS "schedule: {name: seq1f1b, slices: 2}\n", "train.balance=loss",
     "-o train.balance: the balance loss counts complete sequences", "use slices: 1, or balance: off"},
    {EXPERTS "parallel: {tensor: 2, sequence: true}\n", "parallel.overlap=2",
     "-o parallel.overlap: a model with experts cannot split forward products", "use auto, on or off"},
};

TEST(every_mixture_that_cannot_be_trained_is_refused_with_a_remedy) { EXPECT_REFUSED(mixtures); }

TEST(plans_need_no_data_and_runs_do) {
    static Config config;
    Error err = {0};
    assert_int_equal(config_file_load_one(&config, MODEL, NULL, &err), 0);
    assert_int_equal(config_require(&config, "data.", &err), -1);
    expect_message(&err, "@: data.train: missing", "without a default");
    assert_int_equal(config_file_load_one(&config, BASE, NULL, &err), 0);
    assert_int_equal(config_require(&config, "data.", &err), 0);
}

TEST(what_cannot_be_read_is_named) {
    static Config config;
    assert_refused(config_load(&config, "no/such.yaml", NULL, 0, &unit_error), EXIT_USAGE, "");
    assert_string_equal(unit_error.text,
                        "no/such.yaml: cannot be opened: No such file or directory; give a YAML file with -c FILE");
    assert_refused(config_load(&config, "/", NULL, 0, &unit_error), EXIT_USAGE,
                   "Is a directory; give a file in it, such as");
    assert_refused(config_load(&config, "/dev/zero", NULL, 0, &unit_error), EXIT_USAGE, "larger than 1 MiB");
    char name[CONFIG_TEXT + 1];
    memset(name, 'a', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    assert_refused(config_load(&config, name, NULL, 0, &unit_error), EXIT_USAGE, "longer than 511 bytes");
}

TEST(long_and_deep_input_is_refused_quickly) {
    static Config config;
    static char text[1 << 20];
    Error err;
    memset(text, '[', sizeof text - 1);
    assert_int_equal(config_file_load_one(&config, text, NULL, &err), -1);
    expect_message(&err, "@:1: ", "not a mapping");
    memset(text, 'a', sizeof text - 1);
    assert_int_equal(config_file_load_one(&config, text, NULL, &err), -1);
    expect_message(&err, "@:1: ", "not a mapping");
    strcpy(text, BASE "parallel: {layers: [1");
    size_t used = strlen(text);
    for (int i = 0; i < 2000; i++) memcpy(text + used + 2 * i, ",1", 2);
    strcpy(text + used + 4000, "]}\n");
    assert_int_equal(config_file_load_one(&config, text, NULL, &err), -1);
    expect_message(&err, "@:3: parallel.layers: ", "more than 1024");
    strcpy(text, MODEL "data: {train: [{path: a0}");
    for (int i = 1; i <= CONFIG_MAX_SOURCES; i++) sprintf(text + strlen(text), ", {path: a%d}", i);
    strcat(text, "]}\n");
    assert_int_equal(config_file_load_one(&config, text, NULL, &err), -1);
    expect_message(&err, "@:2: data.train: ", "more than 64");
    strcpy(text, BASE "log: {metrics: ");
    used = strlen(text);
    memset(text + used, 'x', 600);
    strcpy(text + used + 600, "}\n");
    assert_int_equal(config_file_load_one(&config, text, NULL, &err), -1);
    expect_message(&err, "@:3: log.metrics: xxx", "is too long");
    assert_true(strlen(err.text) < 300);
}

TESTS_BETWEEN(config_file_create, config_file_remove)

// The configuration of one run: its YAML file and the overrides on the command line.
//
// A single schema table (config_schema.c) holds every key: its place in Config, type, default, bounds and meaning.
// Parsing, validation, `--help-config` and the suggestions for misspelt keys all read only that table. Every error is
// one line, `FILE:LINE: key: the fault; the remedy`, or `-o key: ...` for an override. The exit code is 2.
#pragma once

#include "bpipe.h"
#include "schedule/kinds.h"
#include "base/log.h"
#include "family.h"

#include <sys/cdefs.h>

__BEGIN_DECLS

// Values of keys that are words, in the order of the words in config_schema.c.
typedef enum TieEmbeddings { TIE_AUTO, TIE_FALSE, TIE_TRUE } TieEmbeddings;
typedef enum RopeScaling { ROPE_NONE, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN } RopeScaling;
typedef enum RankPlacement { PLACEMENT_LINEAR, PLACEMENT_ADJACENT, PLACEMENT_STAGES } RankPlacement;
typedef enum ShardGradients { SHARD_OFF, SHARD_ON, SHARD_AUTO } ShardGradients;
typedef enum BpipeMode { BPIPE_OFF, BPIPE_ON, BPIPE_AUTO } BpipeMode;
// OVERLAP_ON leaves the forward's products uncut. OVERLAP_2, ... OVERLAP_4 cut each into 2, ... 4 chunks of rows.
typedef enum Overlap { OVERLAP_AUTO, OVERLAP_OFF, OVERLAP_ON, OVERLAP_2, OVERLAP_3, OVERLAP_4 } Overlap;
enum { OVERLAP_MOST = 1 + OVERLAP_4 - OVERLAP_ON };
typedef enum Collectives { COLLECTIVES_AUTO, COLLECTIVES_NCCL, COLLECTIVES_COPY } Collectives;
typedef enum SplitBackward { SPLIT_AUTO, SPLIT_ON, SPLIT_OFF } SplitBackward;
typedef enum AttentionMode { ATTENTION_NONE, ATTENTION_RECOMPUTE, ATTENTION_FLASH } AttentionMode;
// Each recomputes what the one before does, too: the experts' first product, the outputs of norms and activation.
typedef enum Recompute { RECOMPUTE_NONE, RECOMPUTE_EXPERTS, RECOMPUTE_POINTWISE } Recompute;
typedef enum Determinism { DETERMINISTIC_AUTO, DETERMINISTIC_ON, DETERMINISTIC_OFF } Determinism;
typedef enum SoftmaxKind { SOFTMAX_FUSED, SOFTMAX_UNFUSED, SOFTMAX_MEGATRON } SoftmaxKind;
typedef enum LrSchedule { LR_COSINE, LR_LINEAR, LR_CONSTANT, LR_WSD } LrSchedule;
typedef enum Objective { OBJECTIVE_NEXT, OBJECTIVE_MASKED } Objective;
typedef enum DecayShape { DECAY_LINEAR, DECAY_COSINE, DECAY_SQRT, DECAY_1_SQRT } DecayShape;
typedef enum RouterScore { ROUTER_SOFTMAX, ROUTER_SIGMOID } RouterScore;
typedef enum Balance { BALANCE_OFF, BALANCE_LOSS, BALANCE_BIAS } Balance;
typedef enum OptimizerKind { OPTIMIZER_ADAMW, OPTIMIZER_MUON } OptimizerKind;
typedef enum Precision { PRECISION_FP32, PRECISION_BF16 } Precision;
typedef enum Fp8 { FP8_OFF, FP8_TENSOR, FP8_BLOCK, FP8_MX } Fp8;
// The programs of published runs: this one; NeMo, Megatron-Core and Megatron-Bridge since 2024; Megatron-LM of 2021 to
// 2023 and its forks; Aleph Alpha's; nanotron; trainers that shard everything.
typedef enum Program {
    TRAINER_THIS,
    TRAINER_NVIDIA,
    TRAINER_MEGATRON,
    TRAINER_ALEPH_ALPHA,
    TRAINER_NANOTRON,
    TRAINER_FSDP
} Program;
typedef enum ChangedMode { CHANGED_REFUSE, CHANGED_ACCEPT } ChangedMode;
typedef enum SampleBegin { BEGIN_AUTO, BEGIN_ON, BEGIN_OFF } SampleBegin;
typedef enum DeviceKind { DEVICE_AUTO, DEVICE_CPU, DEVICE_CUDA } DeviceKind;

enum {
    CONFIG_MAX_STAGES = 1024,
    CONFIG_MAX_SOURCES = 64,
    CONFIG_MAX_RAMP = 64,
    CONFIG_TEXT = 512,
    CONFIG_MAX_KEYS = 176
};

enum { ROPE_PAIRS_MAX = 1024 }; // most pairs of dimensions that are rotated in a head

// Values of Config.place for keys that were not set on a line of the file (lines count from 1).
enum { CONFIG_DEFAULT = 0, CONFIG_OVERRIDE = -1 };

typedef struct ModelConfig {
    int family;       // index in `families`
    int64_t hidden;   // h
    int64_t layers;   // L
    int64_t heads;    // query heads
    int64_t kv_heads; // key and value heads; divides heads. Default: heads
    int64_t head_dim; // width of a head; config_check resolves auto: hidden / heads
    int64_t ffn;      // f
    int64_t vocab;    // unpadded
    int64_t seq_len;  // s
    double norm_eps;
    int64_t kv_lora, q_lora;               // latent attention: widths of the latent rows; kv_lora 0: off
    int64_t nope_dim, rope_dim, v_dim;     // widths in a latent head: unrotated, rotated, and value dimensions
    bool qkv_bias;                         // q, k and v have a bias, as in Qwen2
    bool qk_norm;                          // an RMSNorm over each head of q and k, as in Qwen3
    double rope_theta;                     // base of the rotary embedding; rope_* apply only to rotary families
    double rope_share;                     // fraction of a head's dimensions that is rotated
    int rope_scaling;                      // RopeScaling
    double rope_factor;                    // factor by which the sequence is stretched
    int64_t rope_original;                 // sequence length before scaling; 0: not needed
    double rope_low_freq, rope_high_freq;  // llama3: low_freq_factor and high_freq_factor
    double rope_beta_fast, rope_beta_slow; // yarn: beta_fast and beta_slow, in rotations
    double rope_attention;                 // yarn: factor applied to cosines and sines; config_check resolves auto
    double rope_mscale;        // yarn with latent attention: scores grow by (0.1 rope_mscale ln factor + 1)^2
    bool causal;               // false: an encoder; attention also sees later tokens
    int tie_embeddings;        // TieEmbeddings; config_check resolves auto by the family
    int64_t experts;           // E, of every layer after dense_layers; 0: a dense model
    int64_t experts_per_token; // k; 0 in a dense model
    int64_t expert_ffn;        // width of an expert; config_check resolves auto: ffn
    int64_t shared_ffn;        // width of the shared MLP that every token also passes; 0: none
    int64_t dense_layers;      // leading layers with one dense MLP of width ffn
    int router;                // RouterScore
    int64_t router_groups;     // groups of experts; a token's experts are in router_group_top of them
    int64_t router_group_top;  //
    double router_scale;       // factor of the experts' weights
    bool router_normalize;     // the weights of a token's experts sum to router_scale
} ModelConfig;

typedef struct ParallelConfig {
    int64_t pipeline; // p
    int64_t tensor;   // t
    int64_t data;     // d
    int64_t context;  // c
    int64_t expert;   // e: ranks of a stage that divide its experts
    bool sequence;
    int overlap;                                 // Overlap
    int collectives;                             // Collectives
    int shard_gradients;                         // ShardGradients
    int placement;                               // RankPlacement
    int64_t layers_given;                        // entries of the user's list; 0: auto
    int64_t layers_count;                        // p * chunks; set by config_check
    int16_t layers_per_stage[CONFIG_MAX_STAGES]; // layers of each virtual stage, resolved if `auto`
} ParallelConfig;

typedef struct ScheduleConfig {
    int name;                                      // row of schedule_kinds; schedule_kind_count: auto
    int64_t chunks;                                // 0: auto; config_chunks resolves it
    int64_t group;                                 // 0: auto; SCHEDULE_GROUP_HALF: ceil(p/2)
    int64_t delay;                                 // SCHEDULE_DELAY_MOST: auto
    int split_backward;                            // SplitBackward
    char file[CONFIG_TEXT];                        // file with the schedule to run; empty: run the schedule `name`
    int64_t file_chunks, file_microbatches;        // from the header of `file`; 0 without a file
    int64_t slices, file_slices;                   // slices per sequence by the key, and by `file`; 0 without a file
    int bpipe;                                     // BpipeMode
    int64_t slots;                                 // 0: auto
    int64_t load_ahead;                            // number of backwards by which a bundle is loaded early; 0: auto
    int64_t micro_batch;                           // b, sequences
    int evict_to;                                  // EvictTarget
    int64_t recompute_given;                       // entries of the list; 1: one value for all
    int16_t recompute_of_stage[CONFIG_MAX_STAGES]; // recomputed layers per stage; read by config_recompute
    int64_t pointwise_given;                       // entries of the list; 1: one value for all
    int8_t pointwise_of_stage[CONFIG_MAX_STAGES];  // Recompute, per stage; read by config_recompute_kind
    double expert_rows;                            // rows of the experts' buffers, relative to a balanced routing's
} ScheduleConfig;

typedef struct AttentionConfig {
    int mode;                                // AttentionMode; if the stages differ, the mode of stage 0
    int softmax;                             // SoftmaxKind
    int deterministic;                       // Determinism
    int64_t modes_given;                     // entries of the list; 1: one value for all
    int8_t mode_of_stage[CONFIG_MAX_STAGES]; // AttentionMode per stage; read by config_attention
} AttentionConfig;

// An entry of the batch ramp: from `step` on, every step has `global_batch` sequences.
typedef struct BatchRamp {
    int64_t step, global_batch;
} BatchRamp;

typedef struct TrainConfig {
    int64_t global_batch; // B, sequences; with a ramp, config_load sets it to the largest batch
    int64_t ramp_count;   // 0: every step has global_batch
    BatchRamp batch_ramp[CONFIG_MAX_RAMP];
    int64_t steps;
    int64_t tokens; // tokens of the complete training, for a plan's days and price; 0: those of `steps`
    int64_t seed;
    double lr, min_lr_ratio;
    int64_t warmup_steps;
    int objective;       // Objective
    int schedule;        // LrSchedule
    int64_t decay_steps; // wsd: length of the decay; 0: a tenth of the steps after the warm-up
    int decay_shape;     // DecayShape
    double init_std, z_loss;
    int balance; // Balance
    double balance_rate, router_z_loss;
    int optimizer; // OptimizerKind of the layers' matrices
    double muon_momentum, muon_scale;
    double weight_decay, beta1, beta2, eps, grad_clip;
    int precision; // Precision
    int fp8;       // Fp8 format of the layers' products
    int64_t max_restarts;
    double peer_timeout_s, timeout_s; // timeouts for a silent rank and for a job without progress; 0: no timeout
    int64_t skip_bad_steps;           // steps with a nan or inf that a run may skip
    double skip_outlier_z;            // limit for loss and norm in standard deviations; 0: off
} TrainConfig;

typedef struct DataSource {
    char path[CONFIG_TEXT]; // a glob
    double weight;          // relative share of the samples; the shares need not add up to 1
} DataSource;

typedef struct DataConfig {
    int64_t train_sources;
    DataSource train[CONFIG_MAX_SOURCES]; // one, or a blend of several
    char val[CONFIG_TEXT];                // a glob; empty: no validation
    int64_t val_every, val_batches;
    bool mixed_tokenizers;
    int mask_documents, reset_positions; // 0: off, 1: on
    int64_t mask_token;                  // masked objective: the token that replaces chosen tokens; -1: not set
    int64_t end_of_text;                 // token that begins every document; -1: from the data set
    char hellaswag[CONFIG_TEXT];         // an evaluation file; may be empty
    int64_t hellaswag_every;
} DataConfig;

typedef struct SampleConfig {
    int64_t every; // steps between samples; 0: no samples during training
    char prompt[CONFIG_TEXT];
    int begin; // SampleBegin: whether the token that begins every document comes before the prompt
    int64_t tokens, count;
    double temperature; // 0: greedy
    int64_t top_k;      // 0: the complete vocabulary
    int64_t seed;
    char tokenizer[CONFIG_TEXT]; // "bytes", "ids" or a tokenizer's file; empty: the data set's own
} SampleConfig;

typedef struct CheckpointConfig {
    char dir[CONFIG_TEXT];
    int64_t every, keep, keep_every;
    char init_from[CONFIG_TEXT];
    bool overwrite; // true: another run's checkpoints in dir may be replaced
    int changed;    // ChangedMode: whether data, seed, seq_len, rope_*, optimizer may differ from the checkpoint's
} CheckpointConfig;

typedef struct LogConfig {
    char metrics[CONFIG_TEXT]; // empty: no metrics file
    int64_t every;             // steps between step lines
    bool experts;              // log.metrics has the number of tokens of every expert
} LogConfig;

typedef struct HardwareConfig {
    int device;         // DeviceKind
    int trainer;        // Program whose band and days a plan prints
    int gpu;            // index in gpu_words; its row fills in keys that were not given; 0: no GPU named
    double peak_tflops; // peak of one rank; 0: from the device
    double memory_gib;  // memory of one rank; 0: from the device
    double memory_gb_s; // memory bandwidth, 1e9 bytes/s; 0: that of the GPU with this peak
    double reserve_gib; // memory used by the CUDA context, libraries and NCCL
    int64_t gpus_per_node, gpus_per_domain;
    bool share_gpu;
    double pair_gb_s, tensor_gb_s, network_gb_s, host_gb_s; // 1e9 bytes/s, one direction
    double latency_us;
    // Assumptions of a plan without a profile; 0: the figures of device/cost.c. studies/calibrate.py fits them to runs.
    double matmul_efficiency, matmul_half, flash_forward, flash_backward, stream_gb_s;
    double run_share;
    double expert_spread; // standard deviation / mean of the tokens per expert; 0: auto
    bool calibrated;      // true: these figures were fitted to runs
    double action_us, step_overhead_ms;
    double gpu_hour;   // price of one GPU hour; 0: not given
    double gpu_watts;  // 0: from the row of hardware.gpu, or unknown
    double mtbf_hours; // mean time between failures of one node; 0: unknown
    double checkpoint_s, restart_s;
    char profile[CONFIG_TEXT];
    char products_file[CONFIG_TEXT]; // kernels of matrix products, written by --tune (backend/products.h); empty: none
} HardwareConfig;

typedef struct Config {
    char path[CONFIG_TEXT];
    ModelConfig model;
    ParallelConfig parallel;
    ScheduleConfig schedule;
    AttentionConfig attention;
    TrainConfig train;
    DataConfig data;
    SampleConfig sample;
    CheckpointConfig checkpoint;
    LogConfig log;
    HardwareConfig hardware;
    int program;                    // program whose bytes a plan counts (plan/foreign.h); 0: this program
    char replaced[320];             // keys of the file whose values -o hardware.gpu replaced, in words; "": none
    int64_t window;                 // sliding window, if the file is a config.json; 0: none
    int32_t place[CONFIG_MAX_KEYS]; // per row of the schema: line, CONFIG_DEFAULT or CONFIG_OVERRIDE
} Config;

// Reads the file, applies overrides ("key=value", last wins) and checks the result. Returns 0, or -1 with err (code 2).
int config_load(Config *config, const char *path, const char *const *overrides, int override_count, Error *err);
// Does the same without the check, for a caller that decides keys first.
int config_load_unchecked(Config *config, const char *path, const char *const *overrides, int override_count,
                          Error *err);

// Checks that the required keys of a section ("data.") were given. config_load checks only the section `model`, because
// plans read no data. Returns 0, or -1 with err (code 2).
int config_require(const Config *config, const char *section, Error *err);

// Resolves hardware.device auto for a plan. It becomes cuda if hardware.gpu, peak_tflops or memory_gib describes a GPU,
// even if this machine has no driver. Otherwise it remains auto, and the plan is for this machine.
void config_plan_device(Config *config);

// The environment variable that names the copy of the configuration which every process of a run reads.
#define CONFIG_COPY_VARIABLE "TRAINER_CONFIG"

// Copies a file, or the data of a pipe, into memory. From then on config_load reads the copy, in this process and in
// processes that it starts: a pipe cannot be read twice, and the file may be edited before ranks start again. Does
// nothing if the process that started this one made a copy. -1 with err.
int config_keep_copy(const char *path, Error *err);

// Writes where a key was set, for errors found after config_load: "configs/x.yaml:12", "-o parallel.tensor", or the
// file's name if the key has its default.
void config_where(const Config *config, const char *key, char *where, size_t size);

// Returns the place of a key: its line, CONFIG_DEFAULT or CONFIG_OVERRIDE. CONFIG_DEFAULT if there is no such key.
int config_line(const Config *config, const char *name);
// Sets an error that blames a key, with its place: "configs/x.yaml:12: parallel.tensor: TEXT" or "-o parallel.tensor:
// TEXT". Code 2, returns -1. For checks that need more than the configuration (devices, data, the schedule).
#define config_error(config, key, err, ...) config_error_at(config, config_line(config, key), key, err, __VA_ARGS__)
// The same for a name that need not be a key. line: line of the file, or CONFIG_OVERRIDE. name NULL: an error about the
// file.
int config_error_at(const Config *config, int line, const char *name, Error *err, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

// Writes the configuration as one JSON object on one line without a newline (keys as in the file), for the metrics
// file's first line. An `auto` that was resolved is written as its value. An `auto` that depends on the hardware is
// written as "auto". JSON is YAML, so config_load reads the object back to the same values.
void config_write_json(const Config *config, FILE *file);
// Writes the value of one key as config_write_json does. JSON is YAML, so `key: VALUE` is a valid configuration line.
void config_write_value(const Config *config, const char *key, FILE *file);

// Prints every key with its type, default, range and meaning, for `--help-config`.
void config_help(FILE *file);
// Prints every key and every option of the command line as JSON. `program`: the trainer's name without directories.
void config_help_json(const char *program, FILE *file);

// Returns the YAML spelling ("llama", "1f1b", ...) of a value of an enum key, from the schema table. `key`: the key's
// name, such as "model.family".
const char *config_word(const char *key, int value);

// Derived figures.
int64_t config_microbatches(const Config *config);  // m = B / (b * d)
bool config_shards_gradients(const Config *config); // shard_gradients on, or auto where sharding works and saves memory
int64_t config_step_tokens(const Config *config);   // B * s
// Return the sequences in step `step`, and in steps first + 1 to last together. Without a ramp every step has B.
int64_t config_batch_at(const Config *config, int64_t step);
int64_t config_samples(const Config *config, int64_t first, int64_t last);
// Returns the fewest steps that take train.tokens, for a run that took `samples` sequences in its first `step` steps.
int64_t config_steps_for_tokens(const Config *config, int64_t step, int64_t samples);
// Returns batch i of the run: train.global_batch, then the entries of train.batch_ramp; 0 beyond the last.
int64_t config_batch(const Config *config, int64_t i);
int64_t config_world(const Config *config); // p * t * d * c
enum { CONFIG_CUT = 128 };
// Writes "pipeline 8 x tensor 4 x data 1", and the context ranks if there are several. Returns `text`.
char *config_cut_text(const Config *config, char text[CONFIG_CUT]);
int64_t config_replicas(const Config *config);    // d * c: ranks that sum their gradients (ranks/topology.h)
bool config_uses_documents(const Config *config); // data.mask_documents or data.reset_positions is on
// Returns the tokens per sequence that the loss counts: all, or the 15 % that the masked objective chooses.
int64_t config_targets(const Config *config);
// Returns whether GPUs may gather and sum over tensor ranks by copies. The tensor ranks must split the rows and be on
// one node, and parallel.collectives must be copy, or auto with hardware.share_gpu off.
bool config_copies(const Config *config);
// Returns the number of layers of virtual stage g: its entry in parallel.layers if that list has `virtual_stages`
// entries, else an even share. The remainder goes to the virtual stages just before the last one.
int64_t config_layers(const Config *config, int virtual_stages, int g);
// Return the attention mode of a stage, how many of its layers recompute their forward in the backward, and which
// outputs its other layers recompute.
int config_attention(const Config *config, int stage);
int64_t config_recompute(const Config *config, int stage);
Recompute config_recompute_kind(const Config *config, int stage);
void config_set_attention(Config *config, int mode); // sets all stages
int config_min_slots(const Config *config);          // smallest schedule.slots with which BPipe works
int config_chunks(const Config *config);             // chunks on every stage
int config_slices(const Config *config);             // slices of a microbatch
// Distributes the layers evenly over `parts` virtual stages, as parallel.layers auto does; parts <= layers.
void config_spread_layers(Config *config, int64_t parts);
// Returns the MLP width that tensor ranks split: ffn, shared_ffn, or the greatest common divisor if the model has both.
// 0: the model has only experts, which tensor ranks do not split.
int64_t config_split_ffn(const ModelConfig *model);
// Returns the parameters that compute one token, of a model with `parameters` in total: all of them, except that a
// mixture of experts counts only experts_per_token experts per layer.
int64_t config_active_parameters(const ModelConfig *model, int64_t parameters);
int64_t config_padded_vocab(const Config *config); // vocab rounded up to a multiple of 128 * t

// Returns the row of schedule.name, or of 1f1b while auto is unresolved. Meaningless if schedule.file is set.
const ScheduleKind *config_schedule_kind(const Config *config);

// Returns the spec of the named schedule for this configuration; schedule_complete fills in the defaults. spec.split is
// set if schedule.split_backward is on; the plan resolves split_backward auto. While schedule.name is auto, the spec is
// for 1f1b, which has only one chunk, so it ignores schedule.chunks. That key then restricts the choice of a schedule.
ScheduleSpec config_schedule_spec(const Config *config);

// Returns whether the schedule accepts the configuration's stages and microbatches, for planners that vary them.
bool config_schedule_legal(const Config *config);

// Checks that every dimension of the layers' products on one rank suits train.fp8. -1 with err.
int config_check_fp8(Config *config, Error *err);

// Returns the fewest microbatches, at least `least`, with which the schedule behaves as with the configured number: its
// last group has the same size. Never returns more than the configured number.
int64_t config_fewer_microbatches(const Config *config, int64_t least);

// Reads the schedule in schedule.file. The caller owns it; NULL with err if it cannot be read or is not a schedule.
Schedule *config_read_schedule(const Config *config, Error *err);

__END_DECLS

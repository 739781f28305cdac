// Other training programs: the features of each, and the bytes that it needs, counted from its sources. One row each;
// --search --for and scripts/export.py use them. Config.program is 1 + the index of the row: then a plan counts that
// program's bytes; or 0 for this program.
#pragma once

#include "engine/stage.h"
#include "layout.h"

typedef struct ForeignProgram {
    const char *word, *title; // "megatron", "Megatron-LM"
    int trainers[2];          // values of hardware.trainer with runs of this program, the most similar first
    const char *schedules;    // words of schedule.name
    bool gpt;                 // supports GPT-2's architecture
    bool context, experts;    // supports context ranks, experts
    bool muon, fp8;           // supports Muon, products in 8 bits
    bool latent;              // export.py can write latent attention
    bool scores;              // supports attention that keeps or recomputes its scores
    bool modules;             // can recompute experts alone, or norms alone, as export.py requests
    bool deals;               // deals the layers to stages itself, see foreign_deal
    bool sharded;             // FSDP: every data rank keeps a part of each parameter
    bool reshards;            // can gather weights at each use, or shard within groups of data ranks (HSDP)
    int gate;                 // bytes that a gated MLP keeps per value of ffn
    int selective;            // the same with selective recomputation, which keeps no norm's output; 0: not supported
    double logits;            // bytes that the head keeps per logit
    double error;             // factor on the bytes; see foreign.c
} ForeignProgram;

enum { FOREIGN_PROGRAMS = 3 };
extern const ForeignProgram foreign_programs[FOREIGN_PROGRAMS];
// Returns the row of Config.program, which is not 0.
static inline const ForeignProgram *foreign_row(int program) { return &foreign_programs[program - 1]; }

// Returns whether a program's bytes are counted from this trainer's: with experts, or with latent attention.
bool foreign_counted_here(const ModelConfig *model);

// Returns whether Config.program deals the layers to stages itself; writes its parallel.layers, if that is auto.
bool foreign_deals(const Config *config);
void foreign_deal(Config *config);

// Returns the bytes of a stage's weights, gradients and optimizer states if `shards` ranks share them. again: weights
// are gathered for each use, so only two layers' weights and gradients are complete at a time. Includes `error`.
int64_t foreign_states(const Config *config, const StageShape *at, int64_t parameters, int64_t shards, bool again);

// Return the bytes of one microbatch that the program keeps in the largest chunk; write all other bytes of a stage with
// `parameters` parameters on all tensor ranks together. Both include `error`.
int64_t foreign_bundle(const Config *config, const StageShape *at);
void foreign_bytes(MemoryBytes *memory, const Config *config, const StageShape *at, int64_t parameters);

// ---------------------------------------------------------------- plans and searches (foreign_choice.c)

// Sets Config.program to the program with this word of --for, and hardware.trainer if it is not given: the first of its
// trainers that has runs on these GPUs. -1 with err if the program is unknown or does not support the configuration
// (`searched`: the keys fixed by -o).
int foreign_take(Config *config, const char *word, bool searched, Error *err);

// Returns a program's schedules, a bit for each of schedule_kinds.
uint32_t foreign_schedules(int program);

// Fixes the keys of a space that the program cannot choose, and keeps to its schedules. base: the configuration of the
// space, whose keys are written.
void foreign_fix(int program, Config *base, LayoutSpace *space);

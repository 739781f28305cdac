// The measurements of one device: forward and backward of the stages of a model at several micro-batch sizes and
// attention modes. Each stage has the tensor-parallel shapes of the run, and its neighbours are emulated, so
// measurements on one device predict a cluster.
//
// The file is JSON. It records its device, model and shapes; runs with other devices, models or shapes ignore it.
#pragma once

#include "counted.h"

// One stage at one micro-batch size: medians over microbatches, without collectives over tensor ranks.
typedef struct ProfileStage {
    int attention; // AttentionMode
    int softmax;   // SoftmaxKind
    int64_t micro_batch, layers;
    bool first, last;              // stage has the embedding; stage has the head
    double seconds[TIMED_ACTIONS]; // I and W: 0 in profiles of versions that did not measure them
    int64_t peak_bytes;            // peak bytes, with one slot
} ProfileStage;

typedef struct Profile {
    bool cpu;
    char device[96];
    int precision, fp8;
    ModelConfig model; // the number of layers may differ from the run's
    int64_t tensor, expert;
    bool sequence;
    bool keeps_experts;       // as in the measured Shape; older profiles: false
    bool mask_documents;      // attention saw only its own document
    double peak_tflops;       // peak of one rank with cores of its own; 0: unknown
    double optimizer_seconds; // AdamW, per element of a rank's states
    double norm_seconds;      // norm of the gradient, per element
    ProfileStage *stages;
    int64_t count;
} Profile;

void profile_free(Profile *profile);

// Checks that a profile can be written to `path`, before a long measurement; creates its folders. -1 with err.
int profile_check(const char *path, Error *err);

// Write and read the file. -1 with err (code 1: cannot be written; code 2: not a profile, or damaged).
int profile_write(const Profile *profile, const char *path, Error *err);
int profile_read(Profile *profile, const char *path, Error *err);

// Returns NULL if the profile fits the configuration and the device ("": not present; any device of the kind fits),
// else the first difference, in `why`.
const char *profile_differs(const Profile *profile, const Config *config, const char *device, char *why, size_t size);

// Finds the seconds of one microbatch on a chunk from a measured stage of its kind; of I and W 0 if they were not
// measured. For each layer that the chunk has more or fewer than the measured stage, the time of a layer is added or
// subtracted. A micro-batch size that was not measured is interpolated from its neighbours. Returns false if no stage
// of its kind was measured, or if profile is NULL.
bool profile_chunk_time(const Profile *profile, const AttentionShape *attention, const StageChunk *at,
                        double seconds[TIMED_ACTIONS]);

// Runs the program's --profile: measures, writes hardware.profile. 0, or -1 with err.
int profile_command(const Config *config, const Model *model, const Log *log, Error *err);

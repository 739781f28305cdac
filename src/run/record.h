// A run's results as a table of numbers: for each step the loss, the gradient norm, and checksums of every tensor's
// gradient and updated weight. A checksum covers the unsharded, unpadded tensor. Each rank computes the checksum of its
// part, shifted to the part's place in the tensor. The joined checksums (crc64.h) do not depend on the partition.
#pragma once

#include "run.h"

// A table of 64-bit words: for each step the bits of loss and norm, then gradients, then weights, in table order (0 for
// a tied tensor).
typedef struct Record {
    int64_t first, steps; // numbers of the steps: first .. first + steps - 1
    int64_t entries;      // entries of the tensor table
    uint64_t *words;      // (steps, 2 + 2 * entries); NULL except on rank 0
} Record;

static inline int64_t record_width(const Record *record) { return 2 + 2 * record->entries; }
void record_free(Record *record);

// Finds the first difference, in the order in which a step computes: loss, gradients from the last tensor to the first,
// norm, weights. Returns 0 if the records agree, else 1, with the difference in text ("step 2: the loss is ...").
int record_compare(const Record *one, const Record *other, const TensorTable *table, char *text, size_t size);

// Write and read a file. -1 with err.
int record_write(const Record *record, const char *path, Error *err);
int record_read(Record *record, int file, Error *err);

// --- making a record

typedef struct Recorder Recorder;

// Creates run->recorder for the next `steps` steps, at most up to train.steps. -1 with err.
int recorder_create(Run *run, int64_t steps, Error *err);
void recorder_destroy(Recorder *recorder); // accepts NULL
int64_t recorder_last_step(const Recorder *recorder);

// Record gradients after the norm was computed, and weights after the update. Collective. Return -1 with err.
int recorder_gradients(Run *run, double loss, double norm, Error *err);
int recorder_weights(Run *run, Error *err);

// Returns the record so far; the caller owns it.
Record recorder_take(Recorder *recorder);

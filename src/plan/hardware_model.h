// The assumed speed of a device without measurements: seconds of every part of a model, from the costs of its pieces
// (device/cost.h, which has the assumptions) and how often a layer makes each of them. Attention `none` and `recompute`
// compute all s*s pairs as products over the head dimension and pass over the scores in memory.
#pragma once

#include "device/cost.h"
#include "model/model.h"

typedef struct Hardware {
    bool cpu;
    char device[96]; // "" if it is not present
    double peak;     // FLOP/s of one rank that MFU is relative to; 0: unknown
    Cost cost;
    double action, step;  // seconds of overhead per forward or backward, and per step
    double cores_share;   // CPU: ranks that compute at full speed at a time; else 0: all do
    int64_t memory_bytes; // limit of one rank; 0: unknown
    int64_t host_bytes;   // CPU: the limit of all ranks together if memory_bytes is 0; 0: unknown
} Hardware;

// Reads the configuration and, on a CPU, measures the peak (a tenth of a second) unless it is given. device: name from
// the backend that the plan asks, "" for a GPU that is not present.
void hardware_describe(Hardware *hardware, const Config *config, const char *device);

// Takes the peak that was measured for a profile (1e12 FLOP/s of one rank with cores of its own, 0: unknown), unless
// the configuration gives one.
void hardware_take_peak(Hardware *hardware, const Config *config, double peak_tflops);

// Returns whether the configuration runs on CPUs; for `auto` that depends on this machine.
bool hardware_is_cpu(const Config *config);

// A time's seconds by kind of work. The rest of the time is the matrix products' loss relative to the device's peak.
typedef struct Spent {
    double peak; // matrix products at the device's peak
    double attention, passes;
} Spent;

// One microbatch through one part of a model on one tensor rank, in seconds. `weight` is the part of `backward` that W
// takes if a backward is split into I and W, which adds `kept` to I: gradients are copied into the bundle for W. norms,
// act: parts of `backward`, the former of `weight` too, in which outputs are computed again (schedule.recompute).
// tensor_*: the seconds that collectives over tensor ranks add to the above; parallel.overlap hides a part of them. A
// split backward takes tensor_input + tensor_weight instead of tensor_backward. spent: of forward, and of backward.
typedef struct PartTime {
    double forward, backward, weight, kept, norms, act;
    double tensor_forward, tensor_backward, tensor_input, tensor_weight;
    Spent spent[2];
} PartTime;

// The head's backward runs with its forward, so its time is all in `forward`. pass: one pass over a rank's part of the
// residual stream.
typedef struct ModelTimes {
    PartTime layer, embedding, head;
    double pass;
} ModelTimes;

// Computes the times of all parts. hardware->cost.flops must be known.
void hardware_times(ModelTimes *times, const Hardware *hardware, const Config *config, const Shape *shape);
// Returns the share of the weight gradients that a split backward leaves to W: with schedule.recompute: pointwise those
// of products whose rows are split over tensor ranks, else all.
double hardware_left_to_w(const Shape *shape);
// Computes only the collectives, for parts with measured compute.
void hardware_tensor_times(ModelTimes *times, const Hardware *hardware, const Config *config, const Shape *shape);

// Returns the seconds of the gradient's norm and AdamW over `owned` elements, whose gradients and states a rank keeps.
double hardware_optimizer_seconds(const Hardware *hardware, const Config *config, int64_t owned);
// Returns the seconds to quantize this many weights and their transpose; 0 without train.fp8.
double hardware_quantize_seconds(const Hardware *hardware, const Config *config, double weights);

// Returns how many times as long a layer's backward takes during sums over data ranks.
double hardware_summing(const Hardware *hardware, const PartTime *layer);

// Returns a rank's node: a CPU run is one node; else gpus_per_node consecutive ranks are one.
int hardware_node(const Hardware *hardware, const Config *config, int rank);

// If the plan is for CPUs, prints a line that says so and names the machine.
void hardware_print_cpus(const Hardware *hardware, FILE *file);

// Returns the error band of a planned step: for measured plans if `measured`, for a single GPU if the configuration has
// one rank, else from published runs on such GPUs. runs is 0 on CPUs without a profile.
GpuBand hardware_band(const Hardware *hardware, const Config *config, bool measured);
// Writes a time with three digits: "823 ms", from 10 s on "14.9 s". Returns `text`.
enum { SECONDS_TEXT = 24 };
char *hardware_seconds_text(double seconds, char text[SECONDS_TEXT]);

// Prints a band, in seconds and as MFU.
void hardware_print_band(const Hardware *hardware, GpuBand band, double step, double mfu, FILE *file);

// Prints the assumptions of the model, one line each.
void hardware_print(const Hardware *hardware, FILE *file);

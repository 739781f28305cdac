// The assumed speed of a device without measurements: seconds of every part of a model, from the costs of its
// operations and their number per layer. device/cost.h lists the assumptions. Attention `none` and `recompute` compute
// all s*s pairs as products over the head dimension and pass over the scores in memory.
#pragma once

#include "device/cost.h"
#include "model/model.h"

typedef struct Hardware {
    bool cpu;
    char device[96]; // name of the device; "" if it is not present
    double peak;     // FLOP/s of one rank, to which MFU is relative; 0: unknown
    Cost cost;
    double action, step;  // seconds of overhead per forward or backward, and per step
    double cores_share;   // CPU: number of ranks that can compute at full speed at once; GPU: 0
    int64_t memory_bytes; // limit of one rank; 0: unknown
    int64_t host_bytes;   // CPU: the limit of all ranks together if memory_bytes is 0; 0: unknown
} Hardware;

// Describes the hardware of a configuration. On a CPU, measures the peak (a tenth of a second) unless it is given.
// device: the backend's name for the device; "" for a GPU that is not present.
void hardware_describe(Hardware *hardware, const Config *config, const char *device);

// Replaces the peak by a profile's measured peak (TFLOP/s of one rank with cores of its own; 0: unknown), unless the
// configuration gives one.
void hardware_take_peak(Hardware *hardware, const Config *config, double peak_tflops);

// Returns whether the configuration runs on CPUs; for `auto` that depends on this machine.
bool hardware_is_cpu(const Config *config);

// Seconds of compute by kind of work. The remaining compute time is the matrix products' loss relative to the peak.
typedef struct Spent {
    double peak; // matrix products at the device's peak
    double attention, passes;
} Spent;

// One microbatch through one part of a model on one tensor rank, in seconds. If a backward is split into I and W, W
// takes `weight` of `backward`. I takes the rest plus `kept`, mainly copies of gradients into the bundle for W.
// norms, act: parts of `backward` that compute outputs again (schedule.recompute); `weight` includes `norms`. tensor_*:
// seconds that collectives over tensor and context ranks add after overlap (parallel.overlap). A split backward takes
// tensor_input + tensor_weight instead of tensor_backward. spent: kinds of work of the forward, then of the backward.
typedef struct PartTime {
    double forward, backward, weight, kept, norms, act;
    double tensor_forward, tensor_backward, tensor_input, tensor_weight;
    Spent spent[2];
} PartTime;

// The head's backward runs with its forward, so `forward` has the time of both. pass: seconds of one pass over a rank's
// part of the residual stream.
typedef struct ModelTimes {
    PartTime layer, embedding, head;
    double pass;
} ModelTimes;

// Computes the times of all parts. hardware->cost.flops must be known.
void hardware_times(ModelTimes *times, const Hardware *hardware, const Config *config, const Shape *shape);
// Returns the share of the weight gradients that a split backward leaves to W: all, or if schedule.recompute is
// pointwise, only the gradients of the column-parallel products.
double hardware_left_to_w(const Shape *shape);
// Computes only the collectives, for parts with measured compute.
void hardware_tensor_times(ModelTimes *times, const Hardware *hardware, const Config *config, const Shape *shape);

// Returns the seconds of the gradient norm and AdamW over the `owned` elements of a rank's gradients and states.
double hardware_optimizer_seconds(const Hardware *hardware, const Config *config, int64_t owned);
// Returns the seconds to quantize this many weights and their transpose; 0 without train.fp8.
double hardware_quantize_seconds(const Hardware *hardware, const Config *config, double weights);

// Returns the factor (1 or more) by which concurrent sums over data ranks slow down a layer's backward.
double hardware_summing(const Hardware *hardware, const PartTime *layer);

// Returns the node of a rank. A CPU run has one node; else a node has gpus_per_node consecutive ranks.
int hardware_node(const Hardware *hardware, const Config *config, int rank);

// If the plan is for CPUs, prints a line that says so and names the machine.
void hardware_print_cpus(const Hardware *hardware, FILE *file);

// Returns the error band of a planned step. measured: the band of measured plans. Otherwise, one rank gets the band of
// runs on a single GPU, and several ranks get the band of published runs on the same kind of GPU. runs is 0 if no band
// is known, as on CPUs without a profile.
GpuBand hardware_band(const Hardware *hardware, const Config *config, bool measured);
// Writes a time with three digits: "823 ms", from 10 s on "14.9 s". Returns `text`.
enum { SECONDS_TEXT = 24 };
char *hardware_seconds_text(double seconds, char text[SECONDS_TEXT]);

// Prints a band, in seconds and as MFU.
void hardware_print_band(const Hardware *hardware, GpuBand band, double step, double mfu, FILE *file);

// Prints the assumptions of the hardware model.
void hardware_print(const Hardware *hardware, FILE *file);

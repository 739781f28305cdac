// The device that a configuration is planned for: the costs of work on it (device/cost.h), its memory, and the errors
// of earlier plans for it.
#pragma once

#include "base/json_out.h"
#include "device/cost.h"

typedef struct Hardware {
    bool cpu;
    char device[96]; // name of the device; "" if it is not present
    double peak;     // FLOP/s of one rank, to which MFU is relative; 0: unknown
    Cost cost;
    const Gpu *gpu;       // row in the table of GPUs, by name or peak, for bands; NULL: a CPU, or unknown
    int capability;       // compute capability (Backend.capability); 0: unknown, or not an NVIDIA GPU
    double action, step;  // seconds of overhead per forward or backward, and per step
    double cores_share;   // CPU: number of ranks that can compute at full speed at once; GPU: 0
    int64_t memory_bytes; // limit of one rank; 0: unknown
    double theirs;        // planned step of NVIDIA's programs over this trainer's (planner_theirs); 0: unknown
    int64_t host_bytes;   // CPU: the limit of all ranks together if memory_bytes is 0; 0: unknown
} Hardware;

// Describes the hardware of a configuration. On a CPU, measures the peak (a tenth of a second) unless it is given.
// device: the backend's name for the device; "" for a GPU that is not present.
void hardware_describe(Hardware *hardware, const Config *config, const char *device);

// Returns whether the configuration runs on CPUs; for `auto` that depends on this machine.
bool hardware_is_cpu(const Config *config);

// Returns the number of ranks that reach each other without the network: all of a CPU run, else those of a domain.
int64_t hardware_domain(const Hardware *hardware, const Config *config);

// Returns the domain of a rank: a CPU run has one, else a domain has consecutive ranks.
int hardware_node(const Hardware *hardware, const Config *config, int rank);

// The groups of ranks that communicate: the tensor ranks, and the context ranks, of a data rank; a stage's replicas;
// the ranks that divide a stage's experts; those that have the same experts.
typedef enum RankGroup {
    GROUP_TENSOR,
    GROUP_CONTEXT,
    GROUP_DATA,
    GROUP_EXPERTS,
    GROUP_SAME_EXPERTS,
    RANK_GROUPS
} RankGroup;

// Where a stage's groups of a kind are. Only groups with ranks in several domains count, except for `nodes` and `here`.
typedef struct GroupPlace {
    int64_t near;    // most ranks of a group in one domain
    int64_t leaving; // most groups with ranks in one domain, whose collectives share its network; 0: there are none
    int64_t crowd;   // most groups of all stages in one of these domains
    int64_t nodes;   // domains spanned by a group, rounded up from the mean
    int64_t here;    // most ranks of the stage (for tensor and context groups, of a group) in one domain
} GroupPlace;

typedef struct StagePlace {
    GroupPlace of[RANK_GROUPS]; // those of experts are all 0 in a model without experts
} StagePlace;

// Returns the places of all stages' groups. The caller frees the array.
StagePlace *hardware_places(const Hardware *hardware, const Config *config);

// Returns whether NVIDIA's programs work differently from this trainer, so that their step is counted separately
// (counted.h): with one scale for a tensor in eight bits, or with exchanges between nodes.
bool hardware_theirs_differs(const Hardware *hardware, const Config *config);

// Returns the bytes/s of a domain's network: the sum over its nodes.
double hardware_network(const Hardware *hardware, const Config *config);

// If the plan is for CPUs, prints a line that says so and names the machine.
void hardware_print_cpus(const Hardware *hardware, FILE *file);

// Returns the error band of a planned step of the configuration's trainer. measured: the plan uses a profile. This
// trainer has a band for such plans and for one Hopper GPU; other trainers have the bands of published runs. runs is 0
// if no band is known.
GpuBand hardware_band(const Hardware *hardware, const Config *config, bool measured);
// Writes a time with three digits: "823 ms", from 10 s on "14.9 s". Returns `text`.
enum { SECONDS_TEXT = 24 };
char *hardware_seconds_text(double seconds, char text[SECONDS_TEXT]);

// Writes "others": the bands in which runs of other programs (hardware.trainer) would lie for a step of `step` seconds;
// NAN: unknown.
void hardware_put_others(const Hardware *hardware, const Config *config, double step, JsonOut *out);

// Writes a value scaled to the runs of each other trainer: "nvidia 62.9 days (60 to 65.1), nanotron 83.9 days (...)".
// Returns `text`.
enum { OTHERS_TEXT = 320 };
char *hardware_others_text(const Hardware *hardware, const Config *config, double value, const char *unit,
                           char text[OTHERS_TEXT]);

// Prints the middle and the ends of the expected step, from its band, or without a band from the bands of other
// trainers.
void hardware_print_band(const Hardware *hardware, const Config *config, GpuBand band, double step, double mfu,
                         FILE *file);

// Prints the assumptions about the device.
void hardware_print(const Hardware *hardware, FILE *file);

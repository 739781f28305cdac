// Answers what-if questions: bytes and time of a configuration with another micro-batch size, with or without BPipe,
// with another attention. Answers come from the same tables and schedules that a run would use; nothing is allocated
// and no rank is started.
#pragma once

#include "layout.h"
#include "plan_time.h"

typedef struct Planner {
    const Config *config;
    const Model *model;
    Hardware hardware;
    Profile profile;
    bool measured;        // times come from `profile`
    Backend *be;          // reports the attention's scratch; allocates nothing
    TensorTable table;    // the model's tensors
    ScheduleCache *lists; // schedules already built, to reuse for other layouts; NULL with schedule.file
    Memo *counted;        // seconds already counted on `hardware`
    Memo *parts;          // PartTimes by the shape of a layout (space.h)
    Memo *held;           // bytes of stages already counted (plan_make_from)
    Memo *asked;          // forecasts of variants of this configuration (verdict_forecast)
} Planner;

// Returns where the planner's times come from.
TimeSource planner_source(const Planner *planner);

// Describes the device and reads hardware.profile. If the profile is not for this run, logs that and uses the model of
// the hardware. If the profile was named on the command line, a wrong or missing file is an error. -1 with err;
// planner_free in both cases.
int planner_create(Planner *planner, const Config *config, const Model *model, const Log *log, Error *err);
void planner_free(Planner *planner);

// Looks up the profile of `config`, as planner_create does for its own. -1 with err.
int planner_find_profile(Planner *planner, const Config *config, const Log *log, Error *err);

// Creates a backend for plans: the CPU's, with the threads of a run, or a stub that only reports the allocations of a
// GPU's backend.
Backend *planner_backend(const Config *config, Error *err);

// The plan's answer for one layout: bytes of the fullest rank, whether they fit, seconds of a step.
typedef struct Forecast {
    RunLayout layout;   // layout of the configuration, with split_backward decided
    bool possible;      // the configuration is valid and, with evictions, something is evicted
    int fullest;        // stage with the most bytes per rank
    int64_t peak_bytes; // bytes of the fullest rank
    double lacks;       // bytes that the fullest rank lacks (plan_lacks)
    bool fits;          // the plan fits with the reserve; true if no limit is known
    PlanTime time;      // step time; `known` is false unless the time was requested
    int64_t slot_bytes; // bytes of the largest slot
    int slots;          // slots of the schedule, own and lent together
    int load_ahead;     // schedule.load_ahead with auto resolved; 0 without evictions
    double split_gain;  // if split_backward was open and is on: the fraction of a step that this saves; else 0
} Forecast;

// Returns the step time to compare: the planned time, plus 0.1 % if the step evicts. So evictions have to save
// more than 0.1 %: a smaller gain is within the plan's error. The verdict, the table of schedules, auto and search
// compare this time.
double planner_compared(const Forecast *forecast);

// Returns whether a is preferred to b: it is faster (by over 1e-9), else recomputes nothing, else evicts nothing, else
// has fewer bytes, else has the simpler schedule. The plain kind is the simplest, and the other kinds follow in the
// order of schedule_kinds. Within a kind, complete backwards are simpler than split backwards.
bool planner_prefers(const Forecast *a, const Forecast *b);

// Forecasts bytes, and time if `timed`, of a complete configuration. possible: false if it would be refused, or should
// evict but has nothing to evict. Decides an open split_backward: on if the keys of `hardware` describe GPUs on which
// it makes a step faster by more than 0.5 %. A profile and the machine's own GPU do not count, so every machine decides
// alike. -1 with err.
int planner_forecast_config(const Planner *planner, const Config *config, bool timed, Forecast *forecast, Error *err);

// Forecasts the time and bytes of a run: if `config` should evict but has nothing to evict, turns its evictions off.
int planner_forecast_run(const Planner *planner, Config *config, Forecast *forecast, Error *err);

// Forecasts the bytes of a configuration and its time. The time stays unknown if the transfers take more than `worth`
// seconds, or if the first rounds predict clearly more (INFINITY: no limit). An open split_backward counts as off. -1
// with err.
int planner_forecast_within(const Planner *planner, const Config *config, double worth, Forecast *forecast, Error *err);

// Returns whether schedule.split_backward is auto and may become on: the schedule is not from a file, its kind has
// complete backwards, there is more than one stage, and the device may be a GPU.
bool planner_split_open(const Config *config);

// Plans a configuration of the planner's model. Freed with plan_free.
Plan planner_plan(const Planner *planner, const Config *config, const Schedule *schedule);

// Returns the ratio of the planned steps of NVIDIA's programs and of this trainer (`step`) for the same configuration;
// 0 if both do the same work, or if it is unknown.
double planner_theirs(const Planner *planner, const Config *config, double step);

// Returns true if the configuration does not fit even with the slots that a formula counts, which may be too few.
// Builds no lists. False: unknown.
bool planner_never_fits(const Planner *planner, const Config *config);

// Returns how many microbatches suffice to count the slots of a schedule kind, with and without evictions.
int planner_enough_for_slots(const ScheduleKind *kind, int stages);

// Returns the schedule of a possible configuration, as short as plan_time accepts.
ScheduleLoan planner_schedule(const Planner *planner, const Config *config, Error *err);
// Returns a schedule for counting bytes, as short as its slots allow. Without evictions, a kind with an in_flight
// formula gets only counts, no lists.
ScheduleLoan planner_borrow(const Planner *planner, const Config *config, Error *err);

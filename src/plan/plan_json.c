// The plan as JSON. Scripts rely on its keys.
#include "budget.h"
#include "plan_report.h"

#include <math.h>

// Writes the first and last layer of a chunk: null, null if it has no layer.
static void put_layers_(JsonOut *out, const StageChunk *chunk) {
    int64_t first = chunk->first_layer;
    if (chunk->layers == 0) json_members(out, "first_layer %g last_layer %g", NAN, NAN);
    else json_members(out, "first_layer %jd last_layer %jd", first, first + chunk->layers - 1);
}

static void put_stage_(JsonOut *out, const PlanAnswer *answer, int s) {
    const PlanStage *stage = &answer->plan.stage[s], *plain = &answer->plan_1f1b.stage[s];
    json_begin(out, NULL, '{');
    json_put_integer(out, "stage", s);
    put_layers_(out, &stage->at.chunk[0]);
    json_begin(out, "chunks", '[');
    for (int c = 0; c < stage->at.chunks; c++) {
        json_begin(out, NULL, '{');
        put_layers_(out, &stage->at.chunk[c]);
        json_end(out, '}');
    }
    json_end(out, ']');
    json_members(out, "parameters %jd states_bytes %jd bundle_bytes %jd slots %d lent %d in_flight_1f1b %d",
                 stage->parameters, states_total(&stage->states), stage->at.bundle_bytes, stage->own_slots,
                 stage->lent_slots, plain->own_slots);
    json_members(out, "peak_bytes_1f1b %jd peak_bytes %jd", memory_total(&plain->memory), memory_total(&stage->memory));
    json_begin(out, "memory", '{'); // every category, in the order of the human-readable table
    for (int c = 0; c < MEMORY_CATEGORIES; c++) {
        char name[64];
        snprintf(name, sizeof name, "%s", memory_name((MemoryCategory)c));
        for (char *at = name; *at != '\0'; at++)
            if (*at == ' ') *at = '_';
        json_put_integer(out, name, stage->memory.bytes[c]);
    }
    json_end(out, '}');
    json_members(out, "host_bytes %jd fits? %d", plan_host_bytes(stage),
                 plan_answer_holds(answer, memory_total(&stage->memory)));
    json_end(out, '}');
}

int plan_write_json(const PlanAnswer *answer, FILE *file) {
    JsonOut out = {.file = file};
    const Config *config = &answer->config;
    const PlanTime *time = &answer->time;
    const Verdict *verdict = &answer->verdict;
    Waterfall waterfall;
    Error err;
    json_begin(&out, NULL, '{');
    json_object(&out, "model", "parameters %jd active_parameters %jd flops_per_token_full %g flops_per_token_causal %g",
                answer->plan.parameters, config_active_parameters(&config->model, answer->plan.parameters),
                model_flops_per_token(config, true), model_flops_per_token(config, false));
    json_members(&out, "world %jd microbatches %jd", config_world(config), config_microbatches(config));
    // The request for a batch system. A CPU run has one node; a GPU run has hardware.gpus_per_node GPUs per node.
    int64_t world = config_world(config), gpus = answer->planner.hardware.cpu ? 0 : config->hardware.gpus_per_node;
    int64_t tasks = gpus == 0 || world < gpus ? world : gpus;
    json_object(&out, "job", "nodes %jd tasks_per_node %jd gpus_per_node %jd checkpoint_dir %s",
                (world + tasks - 1) / tasks, tasks, gpus == 0 ? 0 : tasks, config->checkpoint.dir);
    config_write_json(config, json_put(&out, "config"));
    json_begin(&out, "stages", '[');
    for (int s = 0; s < answer->plan.stages; s++) put_stage_(&out, answer, s);
    json_end(&out, ']');
    // The figures of the step. The band scales times; MFU is divided by it.
    GpuBand band = hardware_band(&answer->planner.hardware, config, answer->planner.measured);
    bool known = time->known, banded = known && band.low > 0, mfu = time->mfu > 0;
    PlanSpeed speed = plan_speed(&answer->planner.hardware, config, time);
    double step = known ? 1e3 * time->step : NAN;
    json_members(&out, "step_ms %g step_ms_low %g step_ms_mid %g step_ms_high %g", step, banded ? step * band.low : NAN,
                 banded ? step * band.middle : NAN, banded ? step * band.high : NAN);
    json_members(&out, "mfu %g mfu_causal %g tokens_per_s_gpu %g tflops_gpu %g mfu_low %g mfu_high %g",
                 known && mfu ? time->mfu : NAN, known && mfu ? speed.mfu_causal : NAN, known ? speed.tokens : NAN,
                 known && mfu ? speed.tflops : NAN, banded && mfu ? time->mfu / band.high : NAN,
                 banded && mfu ? time->mfu / band.low : NAN);
    Hardware hardware = answer->planner.hardware;
    if (known) hardware.theirs = planner_theirs(&answer->planner, config, time->step);
    hardware_put_others(&hardware, config, known ? time->step : NAN, &out);
    unsure_write_json(&answer->unsure, time->step, &out);
    json_members(&out, "bubble %g transfer_exposed_ms %g source %s", known ? time->bubble : NAN,
                 known ? 1e3 * time->exposed : NAN, answer->planner.measured ? "profile" : "model");
    Budget budget = budget_make(config, time->step, !answer->planner.hardware.cpu, band);
    if (known) budget_write_json(&budget, &out);
    else json_put_null(&out, "budget");
    json_object(&out, "verdict", "use_bpipe? %d reason %s required_stage_gain %g measured_stage_gain %g",
                verdict->use_bpipe, verdict->reason, verdict->gains ? verdict->required_gain : NAN,
                verdict->gains ? verdict->stage_gain : NAN);
    if (waterfall_make(&waterfall, answer, true, &err) != 0) waterfall.known = false; // the plan is complete without it
    waterfall_write_json(&waterfall, &out);
    schedule_table_write_json(&answer->schedules, config, &out);
    json_end(&out, '}');
    fputc('\n', file);
    return ferror(file) ? -1 : 0;
}

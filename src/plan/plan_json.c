// Writes the plan as JSON. Scripts rely on the keys.
#include "budget.h"
#include "plan_report.h"
#include "waterfall.h"

#include <math.h>

// Writes the first and last layer of a chunk: null, null if it has no layer.
static void put_layers_(JsonOut *out, const StageChunk *chunk) {
    if (chunk->layers == 0) {
        json_put_null(out, "first_layer");
        json_put_null(out, "last_layer");
    } else {
        json_put_integer(out, "first_layer", chunk->first_layer);
        json_put_integer(out, "last_layer", chunk->first_layer + chunk->layers - 1);
    }
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
    json_put_integer(out, "parameters", stage->parameters);
    json_put_integer(out, "states_bytes", states_total(&stage->states));
    json_put_integer(out, "bundle_bytes", stage->at.bundle_bytes);
    json_put_integer(out, "slots", stage->own_slots);
    json_put_integer(out, "lent", stage->lent_slots);
    json_put_integer(out, "in_flight_1f1b", plain->own_slots);
    json_put_integer(out, "peak_bytes_1f1b", memory_total(&plain->memory));
    json_put_integer(out, "peak_bytes", memory_total(&stage->memory));
    json_begin(out, "memory", '{'); // every category, in the order of the human-readable table
    for (int c = 0; c < MEMORY_CATEGORIES; c++) {
        char name[64];
        snprintf(name, sizeof name, "%s", memory_name((MemoryCategory)c));
        for (char *at = name; *at != '\0'; at++)
            if (*at == ' ') *at = '_';
        json_put_integer(out, name, stage->memory.bytes[c]);
    }
    json_end(out, '}');
    json_put_integer(out, "host_bytes", plan_host_bytes(stage));
    json_put_truth(out, "fits", plan_answer_holds(answer, memory_total(&stage->memory)));
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
    json_begin(&out, "model", '{');
    json_put_integer(&out, "parameters", answer->plan.parameters);
    json_put_integer(&out, "active_parameters", config_active_parameters(&config->model, answer->plan.parameters));
    json_put_number(&out, "flops_per_token_full", model_flops_per_token(config, true));
    json_put_number(&out, "flops_per_token_causal", model_flops_per_token(config, false));
    json_end(&out, '}');
    json_put_integer(&out, "world", config_world(config));
    json_put_integer(&out, "microbatches", config_microbatches(config));
    // The request for a batch system. A CPU run has one node; a GPU run has hardware.gpus_per_node GPUs per node.
    int64_t world = config_world(config), gpus = answer->planner.hardware.cpu ? 0 : config->hardware.gpus_per_node;
    int64_t tasks = gpus == 0 || world < gpus ? world : gpus;
    json_begin(&out, "job", '{');
    json_put_integer(&out, "nodes", (world + tasks - 1) / tasks);
    json_put_integer(&out, "tasks_per_node", tasks);
    json_put_integer(&out, "gpus_per_node", gpus == 0 ? 0 : tasks);
    json_put_text(&out, "checkpoint_dir", config->checkpoint.dir);
    json_end(&out, '}');
    config_write_json(config, json_put(&out, "config"));
    json_begin(&out, "stages", '[');
    for (int s = 0; s < answer->plan.stages; s++) put_stage_(&out, answer, s);
    json_end(&out, ']');
    // The figures of the step. The band scales times; MFU is divided by it.
    GpuBand band = hardware_band(&answer->planner.hardware, config, answer->planner.measured);
    bool known = time->known, banded = known && band.low > 0, mfu = time->mfu > 0;
    PlanSpeed speed = plan_speed(&answer->planner, config, time);
    json_put_number(&out, "step_ms", known ? 1e3 * time->step : NAN);
    json_put_number(&out, "step_ms_low", banded ? 1e3 * time->step * band.low : NAN);
    json_put_number(&out, "step_ms_mid", banded ? 1e3 * time->step * band.middle : NAN);
    json_put_number(&out, "step_ms_high", banded ? 1e3 * time->step * band.high : NAN);
    json_put_number(&out, "mfu", known && mfu ? time->mfu : NAN);
    json_put_number(&out, "mfu_causal", known && mfu ? speed.mfu_causal : NAN);
    json_put_number(&out, "tokens_per_s_gpu", known ? speed.tokens : NAN);
    json_put_number(&out, "tflops_gpu", known && mfu ? speed.tflops : NAN);
    json_put_number(&out, "mfu_low", banded && mfu ? time->mfu / band.high : NAN);
    json_put_number(&out, "mfu_high", banded && mfu ? time->mfu / band.low : NAN);
    Hardware hardware = answer->planner.hardware;
    if (known) hardware.theirs = planner_theirs(&answer->planner, config, time->step);
    hardware_put_others(&hardware, config, known ? time->step : NAN, &out);
    unsure_write_json(&answer->unsure, time->step, &out);
    json_put_number(&out, "bubble", known ? time->bubble : NAN);
    json_put_number(&out, "transfer_exposed_ms", known ? 1e3 * time->exposed : NAN);
    json_put_text(&out, "source", answer->planner.measured ? "profile" : "model");
    Budget budget = budget_make(config, time->step, !answer->planner.hardware.cpu, band);
    if (known) budget_write_json(&budget, &out);
    else json_put_null(&out, "budget");
    json_begin(&out, "verdict", '{');
    json_put_truth(&out, "use_bpipe", verdict->use_bpipe);
    json_put_text(&out, "reason", verdict->reason);
    json_put_number(&out, "required_stage_gain", verdict->gains ? verdict->required_gain : NAN);
    json_put_number(&out, "measured_stage_gain", verdict->gains ? verdict->stage_gain : NAN);
    json_end(&out, '}');
    if (waterfall_make(&waterfall, answer, true, &err) != 0) waterfall.known = false; // the plan is complete without it
    waterfall_write_json(&waterfall, &out);
    schedule_table_write_json(&answer->schedules, config, &out);
    json_end(&out, '}');
    fputc('\n', file);
    return ferror(file) ? -1 : 0;
}

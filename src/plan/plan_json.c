// Writes the plan as JSON. Scripts rely on the keys.
#include "base/json.h"
#include "budget.h"
#include "plan_report.h"
#include "waterfall.h"

#include <math.h>

static void integer_(FILE *file, const char *key, int64_t value) {
    fprintf(file, "\"%s\":%lld,", key, (long long)value);
}

// Writes {"weights":0,"own_slots":0,...}: every category, in the order of the human-readable table.
static void json_write_memory_(const MemoryBytes *memory, FILE *file) {
    fputs("\"memory\":{", file);
    for (int c = 0; c < MEMORY_CATEGORIES; c++) {
        fputs(c == 0 ? "\"" : ",\"", file);
        for (const char *name = memory_name((MemoryCategory)c); *name != '\0'; name++)
            fputc(*name == ' ' ? '_' : *name, file);
        fprintf(file, "\":%lld", (long long)memory->bytes[c]);
    }
    fputs("},", file);
}

// Writes the first and last layer of a chunk: null, null if it has no layer.
static void json_write_layers_(const StageChunk *chunk, FILE *file) {
    if (chunk->layers == 0) fputs("\"first_layer\":null,\"last_layer\":null", file);
    else
        fprintf(file, "\"first_layer\":%lld,\"last_layer\":%lld", (long long)chunk->first_layer,
                (long long)(chunk->first_layer + chunk->layers - 1));
}

static void json_write_stage_(const PlanAnswer *answer, int s, FILE *file) {
    const PlanStage *stage = &answer->plan.stage[s], *plain = &answer->plan_1f1b.stage[s];
    fputs(s == 0 ? "{" : ",{", file);
    integer_(file, "stage", s);
    json_write_layers_(&stage->at.chunk[0], file);
    for (int c = 0; c < stage->at.chunks; c++) {
        fputs(c == 0 ? ",\"chunks\":[{" : ",{", file);
        json_write_layers_(&stage->at.chunk[c], file);
        fputc('}', file);
    }
    fputs("],", file);
    integer_(file, "parameters", stage->parameters);
    integer_(file, "states_bytes", states_total(&stage->states));
    integer_(file, "bundle_bytes", stage->at.bundle_bytes);
    integer_(file, "slots", stage->own_slots);
    integer_(file, "lent", stage->lent_slots);
    integer_(file, "in_flight_1f1b", plain->own_slots);
    integer_(file, "peak_bytes_1f1b", memory_total(&plain->memory));
    integer_(file, "peak_bytes", memory_total(&stage->memory));
    json_write_memory_(&stage->memory, file);
    integer_(file, "host_bytes", plan_host_bytes(stage));
    fprintf(file, "\"fits\":%s}", plan_answer_holds(answer, memory_total(&stage->memory)) ? "true" : "false");
}

// Writes the request for a batch system. A CPU run has one node; a GPU run has hardware.gpus_per_node GPUs per node.
static void write_job_(const PlanAnswer *answer, FILE *file) {
    const Config *config = &answer->config;
    int64_t world = config_world(config), gpus = answer->planner.hardware.cpu ? 0 : config->hardware.gpus_per_node;
    int64_t tasks = gpus == 0 || world < gpus ? world : gpus;
    fputs("\"job\":{", file);
    integer_(file, "nodes", (world + tasks - 1) / tasks);
    integer_(file, "tasks_per_node", tasks);
    integer_(file, "gpus_per_node", gpus == 0 ? 0 : tasks);
    fputs("\"checkpoint_dir\":", file);
    json_write_text(file, config->checkpoint.dir);
    fputs("},", file);
}

// Writes the figures of the step. The band scales times; MFU is divided by it.
static void json_write_step_(const PlanAnswer *answer, FILE *file) {
    const PlanTime *time = &answer->time;
    GpuBand band = hardware_band(&answer->planner.hardware, &answer->config, answer->planner.measured);
    bool known = time->known, banded = known && band.low > 0, mfu = time->mfu > 0;
    double causal = model_flops_per_token(&answer->config, false) / model_flops_per_token(&answer->config, true);
    const struct {
        const char *key;
        double value;
        bool known;
    } rows[] = {{"step_ms", 1e3 * time->step, known},
                {"step_ms_low", 1e3 * time->step * band.low, banded},
                {"step_ms_high", 1e3 * time->step * band.high, banded},
                {"mfu", time->mfu, known && mfu},
                {"mfu_causal", time->mfu * causal, known && mfu},
                {"mfu_low", time->mfu / band.high, banded && mfu},
                {"mfu_high", time->mfu / band.low, banded && mfu},
                {"bubble", time->bubble, known},
                {"transfer_exposed_ms", 1e3 * time->exposed, known}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_write_member(file, rows[i].key, rows[i].known ? rows[i].value : NAN);
        fputc(',', file);
    }
    fprintf(file, "\"source\":\"%s\",", answer->planner.measured ? "profile" : "model");
    if (known) {
        Budget budget = budget_make(&answer->config, time->step, !answer->planner.hardware.cpu, band);
        budget_write_json(&budget, file);
        fputc(',', file);
    } else {
        fputs("\"budget\":null,", file);
    }
}

int plan_write_json(const PlanAnswer *answer, FILE *file) {
    Waterfall waterfall;
    Error err;
    fputs("{\"model\":{", file);
    integer_(file, "parameters", answer->plan.parameters);
    json_write_member(file, "flops_per_token_full", model_flops_per_token(&answer->config, true));
    json_write_next(file, "flops_per_token_causal", model_flops_per_token(&answer->config, false));
    fputs("},", file);
    integer_(file, "world", config_world(&answer->config));
    integer_(file, "microbatches", config_microbatches(&answer->config));
    write_job_(answer, file);
    fputs("\"config\":", file);
    config_write_json(&answer->config, file);
    fputs(",\"stages\":[", file);
    for (int s = 0; s < answer->plan.stages; s++) json_write_stage_(answer, s, file);
    fputs("],", file);
    json_write_step_(answer, file);
    const Verdict *verdict = &answer->verdict;
    fprintf(file, "\"verdict\":{\"use_bpipe\":%s,\"reason\":", verdict->use_bpipe ? "true" : "false");
    json_write_text(file, verdict->reason);
    json_write_next(file, "required_stage_gain", verdict->gains ? verdict->required_gain : NAN);
    json_write_next(file, "measured_stage_gain", verdict->gains ? verdict->stage_gain : NAN);
    fputs("},", file);
    if (waterfall_make(&waterfall, answer, true, &err) != 0) waterfall.known = false; // the plan is complete without it
    waterfall_write_json(&waterfall, file);
    schedule_table_write_json(&answer->schedules, &answer->config, file);
    fputs("}\n", file);
    return ferror(file) ? -1 : 0;
}

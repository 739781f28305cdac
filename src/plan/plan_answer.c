// Gathers the answer of --plan: the plan, the plain schedule for comparison, the verdict and the table of schedules.
#include "plan_report.h"

#include <stdlib.h>
#include <string.h>

// Returns the verdict's forecast of this configuration; without BPipe if BPipe is on but has nothing to evict.
static const Forecast *answer_forecast_(const PlanAnswer *answer) {
    const Verdict *verdict = &answer->verdict;
    bool bpipe = answer->config.schedule.bpipe == BPIPE_ON && verdict->bpipe.possible;
    return bpipe ? &verdict->bpipe : &verdict->plain;
}

int plan_answer_make(PlanAnswer *answer, const Config *config, const Model *model, const Log *log, Error *err) {
    enum { MOST_FORWARDS = 1 << 20 };
    memset(answer, 0, sizeof *answer);
    answer->config = *config;
    if (planner_create(&answer->planner, config, model, log, err) != 0) return -1;
    if (verdict_make(&answer->verdict, &answer->planner, err) != 0) return -1;
    if (config->schedule.bpipe == BPIPE_AUTO)
        answer->config.schedule.bpipe = answer->verdict.use_bpipe ? BPIPE_ON : BPIPE_OFF;
    if (planner_split_open(config)) verdict_take_split(&answer->config, answer_forecast_(answer)->split_gain, log);
    answer->loan =
        schedule_cache_borrow(answer->planner.lists, &answer->config, config_microbatches(&answer->config), err);
    answer->schedule = answer->loan.schedule;
    if (answer->schedule == NULL || plan_check_ramp(&answer->config, answer->schedule, err) != 0) return -1;
    answer->plan = planner_plan(&answer->planner, &answer->config, answer->schedule);
    answer->time = answer_forecast_(answer)->time;
    // The same with 1F1B and without BPipe, which without slices needs a microbatch per stage.
    Config plain = answer->config;
    plain.schedule.bpipe = BPIPE_OFF;
    plain.schedule.name = schedule_kind_plain();
    plain.schedule.chunks = plain.schedule.file_slices = 0;
    plain.schedule.slices = 1;
    plain.schedule.file[0] = '\0';
    if (config_microbatches(&plain) < plain.parallel.pipeline)
        plain.train.global_batch = plain.parallel.pipeline * plain.schedule.micro_batch * plain.parallel.data;
    ScheduleLoan loan = planner_schedule(&answer->planner, &plain, err);
    if (loan.schedule == NULL) return -1;
    answer->plan_1f1b = planner_plan(&answer->planner, &plain, loan.schedule);
    schedule_cache_return(&loan);
    // What it is unsure of; not for a schedule of which every simulation takes a second.
    answer->unsure.skipped = answer->config.parallel.pipeline * config_microbatches(&answer->config) > MOST_FORWARDS;
    if (!answer->unsure.skipped) {
        Config doubted = answer->config;
        Doubters doubters;
        if (!answer->verdict.bpipe.possible) doubted.schedule.bpipe = BPIPE_OFF;
        doubters_make(&doubters, &answer->planner);
        int status = unsure_find(&answer->unsure, &doubters, &doubted, answer_forecast_(answer), NULL, err);
        doubters_free(&doubters);
        if (status != 0) return -1;
    }
    return schedule_table_make(&answer->schedules, &answer->planner, true, err);
}

void plan_answer_free(PlanAnswer *answer) {
    plan_free(&answer->plan);
    plan_free(&answer->plan_1f1b);
    schedule_cache_return(&answer->loan);
    schedule_table_free(&answer->schedules);
    planner_free(&answer->planner);
    memset(answer, 0, sizeof *answer);
}

bool plan_answer_holds(const PlanAnswer *answer, int64_t bytes) {
    double limit = (double)answer->planner.hardware.memory_bytes;
    if (limit > 0) return plan_lacks((double)bytes, limit, answer->config.hardware.reserve_gib) <= 0;
    return answer_forecast_(answer)->fits; // no limit per rank: all ranks share the host
}

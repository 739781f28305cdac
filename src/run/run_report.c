// What a step reports: every rank's figures travel to rank 0, which writes the step line and the line of metrics. If
// the metrics file's disk is full, training continues without; if standard output is gone, the run ends.
#include "base/alloc.h"
#include "run.h"

#include <stdlib.h>
#include <string.h>

static void own_figures_(const Run *run, const EngineRun *pipeline, StageFigures *mine) {
    const MemoryBytes *peak = &run->be->peak;
    double offset = world_place(run->world)->clock_offset;
    mine->peak_bytes = memory_total(peak);
    mine->activation_bytes = run->be->held.bytes[MEMORY_OWN_SLOTS] + run->be->held.bytes[MEMORY_LENT_SLOTS];
    mine->slots_used = pipeline->slots_used;
    mine->slots_lent = pipeline->slots_lent;
    mine->evictions = pipeline->evictions;
    mine->busy = pipeline->busy;
    mine->exposed = pipeline->exposed;
    mine->begin = pipeline->begin + offset;
    mine->end = pipeline->end + offset;
}

// Merges the ranks of a stage: the fullest and slowest count, busy adds up.
static void merge_figures_(StageFigures *stage, const StageFigures *rank, bool first) {
    if (first) {
        *stage = *rank;
        return;
    }
    if (rank->peak_bytes > stage->peak_bytes) stage->peak_bytes = rank->peak_bytes;
    stage->busy += rank->busy;
    if (rank->exposed > stage->exposed) stage->exposed = rank->exposed;
    if (rank->begin < stage->begin) stage->begin = rank->begin;
    if (rank->end > stage->end) stage->end = rank->end;
}

// Collective. Gives rank 0 one entry per stage.
static int gather_figures_(Run *run, const EngineRun *pipeline, StageFigures *stages, Error *err) {
    StageFigures mine;
    memset(&mine, 0, sizeof mine);
    own_figures_(run, pipeline, &mine);
    int world = world_size(run->world);
    StageFigures *all = xcalloc((size_t)world, sizeof *all);
    int gathered = world_gather(run->world, 0, all, &mine, sizeof mine, err);
    for (int r = 0; gathered == 0 && world_rank(run->world) == 0 && r < world; r++) {
        Coordinates at = topology_coordinates(&run->config->parallel, r);
        merge_figures_(&stages[at.stage], &all[r], at.tensor == 0 && at.data == 0);
    }
    for (int s = 0; s < run->config->parallel.pipeline; s++)
        stages[s].busy /= (double)(run->config->parallel.tensor * run->config->parallel.data);
    free(all);
    return gathered;
}

void run_tell_metrics(Run *run, int64_t step, const Error *trouble) {
    bool failing = trouble->code != 0;
    if (metrics_unheard(run->metrics)) {
        // No reader is left: end the run as if asked to, with a checkpoint. A closed terminal sends a request by
        // itself.
        if (run_stop_requested()) return;
        run->unheard = *trouble;
        run_request_stop();
        return;
    }
    if (failing == run->metrics_failing) return;
    run->metrics_failing = failing;
    Log all = log_of_all(run->log);
    if (failing)
        log_line(&all, "step %lld: %s; training goes on and leaves out what cannot be written", (long long)step,
                 trouble->text);
    else
        log_line(&all, "step %lld: %s can be written again", (long long)step, run->config->log.metrics);
}

int run_report_step(Run *run, const EngineRun *pipeline, StepFigures *say, Error *err) {
    int stages = (int)run->config->parallel.pipeline;
    StageFigures *figures = xcalloc((size_t)stages, sizeof *figures);
    int status = gather_figures_(run, pipeline, figures, err);
    if (status == 0 && run->metrics != NULL) {
        say->lr = optimizer_lr(&run->config->train, say->step);
        say->tokens = config_step_tokens(run->config);
        say->stages = stages;
        say->stage = figures;
        Error trouble = {0};
        metrics_step(run->metrics, say, &trouble);
        run_tell_metrics(run, say->step, &trouble);
    }
    free(figures);
    return status;
}

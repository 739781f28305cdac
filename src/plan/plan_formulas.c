// Rivals that this engine cannot run, by their authors' formulas, printed under the table of those it can. They are not
// rows of the table and take part in no decision: a formula knows neither messages nor uneven stages.
#include "base/grid.h"
#include "plan_report.h"

#include <string.h>

// Returns the row of 1F1B with whole backwards and no evictions, the formulas' reference; NULL: it cannot run here.
static const ScheduleRow *plain_row_(const PlanAnswer *answer) {
    const ScheduleTable *table = &answer->schedules;
    int kind = schedule_kind_index("1f1b");
    for (int i = 0; i < table->count; i++) {
        const ScheduleRow *row = &table->rows[i];
        bool plain = row->schedule.split_backward == SPLIT_OFF && row->schedule.bpipe == BPIPE_OFF &&
                     row->schedule.recompute_of_stage[0] == answer->config.schedule.recompute_of_stage[0] &&
                     row->attention.mode == answer->config.attention.mode;
        if (row->schedule.name == kind && plain) return row;
    }
    return NULL;
}

static int64_t not_negative_(double bytes) {
    return bytes > 0 ? (int64_t)bytes : 0;
}

// A sequence in q slices: (p-1)/q of 1F1B's idle time, (p-1+q)/q microbatches on the first stage instead of p.
static void print_slices_(const PlanAnswer *answer, const ScheduleRow *row, FILE *file) {
    enum { SLICES = 4 };
    char bytes[32];
    const PlanTime *time = &row->forecast.time;
    double p = (double)answer->config.parallel.pipeline, q = SLICES, fewer = p - (p - 1 + q) / q;
    double step = time->step - time->bubble * time->pipeline * (1 - 1 / q);
    int64_t peak = not_negative_((double)row->forecast.peak_bytes - fewer * (double)row->forecast.slot_bytes);
    grid_line(
        file, "",
        "Seq1F1B and SlimPipe with sequences in %d slices: %.4g bundles, about %s on the fullest rank and %.1f ms "
        "a step, before what narrower products lose (arXiv 2406.03488, 2504.14519)",
        SLICES, (p - 1 + q) / q, grid_bytes(peak, bytes), 1e3 * step);
}

// Every layer on two stages: idle for (p/2 - 1) (F + B + B - 3W), which is 2 (p/2 - 1) where F, I and W take 1 each.
static void print_dualpipe_(const PlanAnswer *answer, const ScheduleRow *row, FILE *file) {
    char bytes[32];
    const PlanTime *time = &row->forecast.time;
    const PlanStage *stage = &answer->plan_1f1b.stage[row->forecast.fullest];
    double p = (double)answer->config.parallel.pipeline, idle = (p / 2 - 1) * 2 / 3 * time->slowest;
    double step = time->step - time->bubble * time->pipeline + idle;
    int64_t peak = row->forecast.peak_bytes + states_total(&stage->states) + row->forecast.slot_bytes;
    grid_line(
        file, "",
        "DualPipe, which holds all weights and their states twice: %.4g bundles, about %s on the fullest rank and "
        "%.1f ms a step, for equal F, I and W (arXiv 2412.19437 and its README)",
        p + 1, grid_bytes(peak, bytes), 1e3 * step);
}

void plan_formulas_print(const PlanAnswer *answer, FILE *file) {
    const ScheduleRow *row = plain_row_(answer);
    int64_t p = answer->config.parallel.pipeline;
    if (row == NULL || !row->forecast.time.known || p < 2) return;
    grid_line(file, "formulas", "not run here, not simulated, not among the schedules above:");
    print_slices_(answer, row, file);
    if (p % 2 == 0) print_dualpipe_(answer, row, file);
}

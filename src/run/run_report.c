// The times of a start's phases, and the report of a step: every rank sends its figures to rank 0, which writes the
// step line and the line of metrics, and after the first step compares the allocated bytes with the plan. If the
// metrics file's disk is full, training continues without it; if standard output is gone, the run ends.
#include "base/alloc.h"
#include "base/clock.h"
#include "base/grid.h"
#include "base/units.h"
#include "run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// --- the lines of --verbose

Details details_begin(Log log) {
    double now = clock_seconds();
    return (Details){log, now, now};
}

void details_phase(Details *details, const char *what) {
    double now = clock_seconds();
    log_detail(&details->log, "start-up: %s, %.1f ms", what, 1e3 * (now - details->since));
    details->since = now;
}

// --- the slowest rank (slowest.h): the seconds of the last steps are summed and compared. Example with one rank per
// stage: planned forward times of 10, 10, 12 and measured times of 21, 20, 28 give ratios of 2.1, 2.0 and 2.33. The
// median, 2.1, is the error of the plan for all ranks. So the third rank is expected to need 12 * 2.1 = 25.2; it needs
// 28: +11 %.

Slowest *slowest_create(int ranks) {
    Slowest *slowest = xcalloc(1, sizeof *slowest);
    size_t count = (size_t)ranks;
    slowest->ranks = ranks;
    slowest->planned = xcalloc(count, sizeof *slowest->planned);
    slowest->peers = xcalloc(count, sizeof *slowest->peers);
    slowest->window = xcalloc(SLOWEST_WINDOW * count, sizeof *slowest->window);
    return slowest;
}

void slowest_destroy(Slowest *slowest) {
    if (slowest == NULL) return;
    free_all(slowest->planned, slowest->peers, slowest->window, slowest);
}

RankSeconds *slowest_add(Slowest *slowest, double step_seconds) {
    long at = slowest->steps++ % SLOWEST_WINDOW;
    slowest->step_seconds[at] = step_seconds;
    return slowest->window + at * slowest->ranks;
}

// The expected time of a rank is the median of all ranks with the same work. If no other rank has the same work, it is
// the rank's planned time times the median of actual / planned over all ranks; 0: unknown.
bool slowest_find(Slowest *slowest, SlowestRank *found) {
    double steps = 0.0, worst = 0.0;
    *found = (SlowestRank){.rank = -1};
    if (slowest->steps < SLOWEST_WINDOW) return false;
    for (int i = 0; i < SLOWEST_WINDOW; i++) steps += slowest->step_seconds[i];
    double *sum = xcalloc(2 * (size_t)slowest->ranks, sizeof *sum), *sorted = sum + slowest->ranks;
    for (SlowestPart part = SLOWEST_FORWARD; part < SLOWEST_PARTS; part++) {
        memset(sum, 0, (size_t)slowest->ranks * sizeof *sum);
        for (int i = 0; i < SLOWEST_WINDOW * slowest->ranks; i++)
            sum[i % slowest->ranks] += slowest->window[i].part[part];
        for (int rank = 0; rank < slowest->ranks; rank++) {
            int count = 0;
            double unit = 1.0; // factor on the values in `sorted` for this rank
            for (int r = 0; r < slowest->ranks; r++)
                if (slowest->peers[r] == slowest->peers[rank]) sorted[count++] = sum[r];
            if (count < 2) {
                count = 0, unit = slowest->planned[rank].part[part];
                for (int r = 0; r < slowest->ranks; r++)
                    if (slowest->planned[r].part[part] > 0.0) sorted[count++] = sum[r] / slowest->planned[r].part[part];
            }
            if (count < 2) continue;
            qsort(sorted, (size_t)count, sizeof *sorted, compare_doubles);
            // Of two middle values, the lower one, so that the slower rank of a pair exceeds the median.
            double expected = unit * sorted[(count - 1) / 2], lost = sum[rank] - expected;
            if (expected <= 0.0 || lost <= worst) continue;
            worst = lost;
            *found = (SlowestRank){rank, part, lost / expected, lost / steps};
        }
    }
    free(sum);
    return found->rank >= 0;
}

// --- the report

// Writes the slowest rank of the last steps to `say`, and logs it once it has cost more than a twentieth of the time
// for SLOWEST_WINDOW steps in a row.
static void name_slowest_(Run *run, const StageFigures *ranks, StepFigures *say) {
    static const char *const parts[] = {[SLOWEST_FORWARD] = "forward", [SLOWEST_BACKWARD] = "backward"};
    SlowestRank found;
    if (say->step > run->from.state.step + 1) { // the first step of a start also loads and chooses kernels
        RankSeconds *seconds = slowest_add(run->slowest, say->seconds);
        for (int r = 0; r < world_size(run->world); r++)
            seconds[r] = (RankSeconds){{ranks[r].run.forward, ranks[r].run.busy - ranks[r].run.forward}};
    }
    if (!slowest_find(run->slowest, &found)) return;
    int stage = topology_coordinates(&run->config->parallel, found.rank).stage;
    const char *host = run->roster.ranks[found.rank].host, *part = parts[found.part];
    snprintf(say->slowest, sizeof say->slowest,
             "{\"rank\":%d,\"stage\":%d,\"host\":\"%s\",\"part\":\"%s\",\"excess\":%.4f,\"cost\":%.4f}", found.rank,
             stage, host, part, found.excess, found.cost);
    snprintf(say->slow, sizeof say->slow, "slowest %d +%.0f%% %s", found.rank, 100 * found.excess, part);
    run->slow_steps = found.cost <= 0.05 ? 0 : found.rank == run->slow_rank ? run->slow_steps + 1 : 1;
    run->slow_rank = found.rank;
    if (run->slow_steps == SLOWEST_WINDOW)
        log_status(&run->all,
                   "step %lld: slowest rank %d (stage %d, host %s): +%.0f %% in %ss, which costs %.0f %% of a step",
                   (long long)say->step, found.rank, stage, host, 100 * found.excess, part, 100 * found.cost);
}

void run_tell_metrics(Run *run, int64_t step, const Error *trouble) {
    bool failing = trouble->code != 0;
    if (metrics_unheard(run->metrics)) {
        // Nothing reads stdout: end the run with a checkpoint, as on request. A closed terminal sends such a request
        // itself (SIGHUP).
        if (run_stop_requested()) return;
        run->unheard = *trouble;
        run_request_stop();
        return;
    }
    if (failing == run->metrics_failing) return;
    run->metrics_failing = failing;
    if (failing)
        log_line(&run->all, "step %lld: %s; training continues, but these lines are lost", (long long)step,
                 trouble->text);
    else log_line(&run->all, "step %lld: %s can be written again", (long long)step, run->config->log.metrics);
}

int run_report_step(Run *run, const EngineRun *pipeline, double update, StepFigures *say, Error *err) {
    const Config *config = run->config;
    const ParallelConfig *parallel = &config->parallel;
    ExpertLoad *load = &run->stage.pass.load;
    int stages = (int)parallel->pipeline, world = world_size(run->world), columns = world / stages;
    int64_t count = config->model.layers * config->model.experts;
    const WorldPlace *place = world_place(run->world);
    int compared = max_int(32, 4 * place->nodes); // steps between comparisons of the hosts' clocks
    if (place->nodes > 1 && say->step % compared == 0 && world_compare_clocks(run->world, err) != 0) return -1;
    // 1. Sums over all ranks: the balance loss, of which each rank has its rows' part, and tokens of experts.
    if (config->model.experts > 0) {
        double sums[] = {load->balance, load->forwards};
        if (world_sum(run->world, sums, 2, err) != 0) return -1;
        double alike = (double)(parallel->tensor * parallel->context); // ranks that share a microbatch
        say->balance_loss = config->train.balance == BALANCE_LOSS && sums[1] > 0 ? sums[0] * alike / sums[1] : NAN;
        say->copies = run->stage.copies;
        if (say->copies != NULL && world_sum(run->world, run->stage.copies, count, err) != 0) return -1;
    }
    // 2. Every rank's figures, with times on rank 0's clock. The step ends when the last rank has updated its weights.
    //    All begin their updates together, after the norm. Each measures its own: clocks of hosts drift.
    const int64_t *held = run->be->held.bytes;
    StageFigures mine = {memory_total(&run->be->peak), held[MEMORY_OWN_SLOTS] + held[MEMORY_LENT_SLOTS], *load,
                         *pipeline, update};
    *load = (ExpertLoad){0};
    mine.run.begin += place->clock_offset, mine.run.end += place->clock_offset;
    StageFigures *all = xcalloc((size_t)world, sizeof *all), *figures = xcalloc((size_t)stages, sizeof *figures);
    int status = world_gather(run->world, all, &mine, sizeof mine, err);
    // 3. The figures of each stage: the largest memory and times over its ranks, and the mean of busy. Pipelines have
    //    their own begin and end: replicas do not wait for each other until their sums.
    double longest = 0;
    for (int c = 0; status == 0 && run->metrics != NULL && c < columns; c++) {
        double begin = INFINITY, end = -INFINITY;
        for (int s = 0; s < stages; s++) {
            Coordinates at = {.replica = c / (int)parallel->tensor, .stage = s, .tensor = c % (int)parallel->tensor};
            const StageFigures *rank = &all[topology_rank(parallel, at)];
            StageFigures *stage = &figures[s];
            if (c == 0) *stage = *rank;
            else stage->run.busy += rank->run.busy;
            begin = fmin(begin, rank->run.begin), end = fmax(end, rank->run.end), longest = fmax(longest, rank->update);
            stage->peak_bytes = max_i64(stage->peak_bytes, rank->peak_bytes);
            stage->run.exposed = fmax(stage->run.exposed, rank->run.exposed);
            if (rank->experts.fullest > stage->experts.fullest) stage->experts = rank->experts;
        }
        say->pipeline += (end - begin) / columns;
    }
    say->seconds += longest;
    for (int s = 0; s < stages; s++) figures[s].run.busy /= columns;
    if (status == 0 && run->slowest != NULL) name_slowest_(run, all, say);
    // 4. The lines.
    if (status == 0 && run->metrics != NULL) {
        say->lr = optimizer_lr(&config->train, say->step);
        say->tokens = config_batch_at(config, say->step) * config->model.seq_len;
        say->tokens_seen = batch_position(&run->batch, say->step) * config->model.seq_len;
        say->stages = stages;
        say->stage = figures;
        Error trouble = {0};
        metrics_step(run->metrics, say, &trouble);
        run_tell_metrics(run, say->step, &trouble);
    }
    free_all(all, figures);
    if (run->stage.copies != NULL) memset(run->stage.copies, 0, (size_t)count * sizeof(double));
    return status;
}

// --- planned and allocated bytes of every stage and category, after the first step

int run_compare_plan(Run *run, Error *err) {
    const Plan *plan = &run->plan;
    int world = world_size(run->world), fullest = plan_fullest(plan);
    MemoryBytes *all = xcalloc((size_t)world, sizeof *all);
    enum { MOST = 16 }; // lines
    int64_t different = 0;
    char bytes[32];
    int status = world_gather(run->world, all, &run->be->peak, sizeof *all, err);
    for (int r = 0; status == 0 && world_rank(run->world) == 0 && r < world; r++) {
        int stage = topology_coordinates(&run->config->parallel, r).stage;
        for (int c = 0; c < MEMORY_CATEGORIES; c++) {
            int64_t planned = plan->stage[stage].memory.bytes[c], held = all[r].bytes[c];
            if (planned == held || ++different > MOST) continue;
            log_line(&run->all, "rank %d, stage %d: %s: %lld bytes were planned, but %lld are allocated", r, stage,
                     memory_name((MemoryCategory)c), (long long)planned, (long long)held);
        }
    }
    if (different > MOST) log_line(&run->all, "and %lld further differences of this kind", (long long)different - MOST);
    if (status == 0 && different == 0 && world_rank(run->world) == 0 && run->log->level != LOG_QUIET)
        fprintf(stderr, "memory    as planned, to the byte, on %s; the fullest, stage %d, has allocated %s\n",
                plan->stages == 1 ? "the one stage" : "all stages", fullest,
                grid_bytes(memory_total(&plan->stage[fullest].memory), bytes));
    free(all);
    return status;
}

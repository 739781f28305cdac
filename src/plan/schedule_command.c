// --schedule: the schedule of a configuration as text, or drawn, and the result of its proof. The simulated times are
// those of --times, in any unit; no model of the hardware takes part.
#include "plan_report.h"
#include "schedule/optimal.h"
#include "schedule/study.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

// Returns the columns of the terminal, else of $COLUMNS, else 120.
static int terminal_columns_(void) {
    struct winsize window;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0) return window.ws_col;
    const char *given = getenv("COLUMNS");
    int columns = given == NULL ? 0 : atoi(given);
    return columns > 0 ? columns : 120;
}

static int draw_picture_(const Schedule *schedule, const Timeline *timeline, const char *path, Error *err) {
    size_t length = strlen(path);
    if (length < 4 || strcmp(path + length - 4, ".svg") != 0)
        return error_set(err, EXIT_USAGE, "--draw: %s does not end in .svg; give a file that does, or no file", path);
    FILE *file = fopen(path, "w");
    if (file == NULL) return error_set(err, EXIT_FAILED, "--draw: cannot write %s: %s", path, strerror(errno));
    int status = study_draw_svg(schedule, timeline, file);
    if (fclose(file) != 0 || status != 0)
        return error_set(err, EXIT_FAILED, "--draw: cannot write %s: %s", path, strerror(errno));
    return 0;
}

// Prints the schedule's text, or its lanes where --draw asks for them.
static int show_(const Schedule *schedule, const Timeline *timeline, const Options *options, Error *err) {
    bool lanes = options->draw != NULL && strcmp(options->draw, OPTION_ALONE) == 0;
    if (options->draw != NULL && !lanes && draw_picture_(schedule, timeline, options->draw, err) != 0) return -1;
    bool colour = isatty(STDOUT_FILENO) && getenv("NO_COLOR") == NULL;
    int written =
        lanes ? study_draw(schedule, timeline, terminal_columns_(), colour, stdout) : schedule_write(schedule, stdout);
    if (written != 0 || fflush(stdout) != 0)
        return error_set(err, EXIT_FAILED, "the schedule could not be written to stdout");
    return 0;
}

// Reports the least idle time of any schedule with the same slots and placement, in units of a chunk's F = I = W.
static int say_optimum_(const Schedule *schedule, const Log *log, Error *err) {
    enum { MOST_STATES = 4000000 }; // some seconds
    StudyTimes units = {.forward = schedule->chunks, .input = schedule->chunks, .weight = schedule->chunks};
    OptimalAsk ask = {.stages = schedule->stages,
                      .microbatches = schedule->microbatches,
                      .chunks = schedule->chunks,
                      .split = schedule->split,
                      .slots = schedule->slots,
                      .loop = schedule->placement == PLACEMENT_LOOP,
                      .most_states = MOST_STATES};
    for (int s = 0; s < schedule->stages; s++)
        for (int64_t i = 0; i < schedule->stage[s].count; i++)
            if (!action_computes(schedule->stage[s].actions[i].kind))
                return error_set(err, EXIT_USAGE,
                                 "--optimum: the schedule moves bundles, and the search knows of none; "
                                 "set schedule.bpipe=off");
    if (schedule->slices > 1)
        return error_set(err, EXIT_USAGE,
                         "--optimum: the exhaustive search does not support slices; set schedule.slices=1");
    Timeline *timeline = study_run(schedule, &units, err);
    if (timeline == NULL) return -1;
    int idle = (int)lround(timeline->makespan) - 3 * schedule->microbatches * schedule->chunks;
    int least = optimal_idle(&ask, idle);
    timeline_free(timeline);
    if (least == OPTIMAL_TOO_LARGE)
        return error_set(err, EXIT_USAGE,
                         "--optimum: no answer for so many stages, chunks and microbatches within %d "
                         "states; try 4 stages and 8 microbatches",
                         MOST_STATES);
    log_status(log, "optimum: a stage idles for %d units (F=I=W=1 of a chunk); the least of any schedule is %d", idle,
               least);
    return 0;
}

int schedule_command(Config *config, const Model *model, const Options *options, const Log *log, Error *err) {
    StudyTimes times;
    char found[256];
    if (study_times_parse(options->times, &times, err) != 0) return -1;
    Schedule *schedule = verdict_resolve(config, model, log, err) == 0 ? plan_schedule(config, err) : NULL;
    Timeline *timeline = schedule == NULL ? NULL : study_run(schedule, &times, err);
    int status = timeline == NULL ? -1 : show_(schedule, timeline, options, err);
    if (status == 0 && options->trace != NULL)
        status = plan_trace_write(schedule, timeline, timeline->makespan, options->trace, err);
    if (status == 0) status = study_say(schedule, &times, found, sizeof found, err);
    if (status == 0) log_status(log, "proved: %s", found);
    if (status == 0 && options->optimum) status = say_optimum_(schedule, log, err);
    timeline_free(timeline);
    schedule_free(schedule);
    return status;
}

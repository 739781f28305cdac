// --schedule: prints or draws the schedule of a configuration and reports the result of its proof. The simulation
// uses the action times of --times, in any unit, and does not depend on the hardware.
#include "plan_report.h"
#include "base/files.h"
#include "schedule/study.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

// Prints the schedule as text, or as lanes with --draw; with --draw FILE, also draws it into the file.
static int show_(const Schedule *schedule, const Timeline *timeline, const char *draw, Error *err) {
    struct winsize window;
    bool lanes = draw != NULL && strcmp(draw, OPTION_ALONE) == 0, colour = isatty(STDOUT_FILENO);
    size_t length = draw != NULL ? strlen(draw) : 0;
    if (draw != NULL && !lanes) {
        if (length < 4 || strcmp(draw + length - 4, ".svg") != 0)
            return error_set(err, EXIT_USAGE, "--draw: %s does not end in .svg; rename it, or give no file", draw);
        int fd = file_open_to_write(draw, O_TRUNC);
        FILE *file = fd < 0 ? NULL : fdopen(fd, "w");
        if (file == NULL) return error_set(err, EXIT_FAILED, "--draw: cannot write %s: %s", draw, file_why(errno));
        int status = study_draw_svg(schedule, timeline, file);
        if (fclose(file) != 0 || status != 0)
            return error_set(err, EXIT_FAILED, "--draw: cannot write %s: %s", draw, strerror(errno));
    }
    const char *given = getenv("COLUMNS"); // for a terminal of unknown width
    int columns = given == NULL ? 0 : atoi(given);
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0) columns = window.ws_col;
    if (columns <= 0) columns = 120;
    colour = colour && getenv("NO_COLOR") == NULL;
    int written = lanes ? study_draw(schedule, timeline, columns, colour, stdout) : schedule_write(schedule, stdout);
    if (written != 0 || fflush(stdout) != 0) return error_set(err, EXIT_FAILED, "cannot write the schedule to stdout");
    return 0;
}

int schedule_command(Config *config, const Model *model, const Options *options, const Log *log, Error *err) {
    StudyTimes times;
    char found[256];
    if (study_times_parse(options->times, &times, err) != 0) return -1;
    Schedule *schedule = verdict_resolve(config, model, log, err) == 0 ? plan_schedule(config, err) : NULL;
    bool proved = schedule != NULL && plan_check_ramp(config, schedule, err) == 0;
    Timeline *timeline = proved ? study_run(schedule, &times, err) : NULL;
    int status = timeline == NULL ? -1 : show_(schedule, timeline, options->draw, err);
    if (status == 0 && options->trace != NULL)
        status = plan_trace_write(schedule, timeline, timeline->makespan, options->trace, err);
    if (status == 0) study_say(schedule, timeline, &times, found, sizeof found);
    if (status == 0) log_status(log, "proved: %s", found);
    timeline_free(timeline);
    schedule_free(schedule);
    return status;
}

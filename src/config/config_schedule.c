// What the keys of `schedule` ask for, in the words of the table of schedules: its row, its spec, and the list in
// schedule.file. Defaults that depend on the number of stages are filled in when they are asked for and never stored,
// so a configuration stays valid when a planner changes its stages.
#include "base/files.h"
#include "config.h"

#include <stdlib.h>
#include <string.h>

const ScheduleKind *config_schedule_kind(const Config *config) {
    int name = config->schedule.name;
    return &schedule_kinds[name < schedule_kind_count ? name : schedule_kind_index("1f1b")];
}

ScheduleSpec config_schedule_spec(const Config *config) {
    const ScheduleConfig *schedule = &config->schedule;
    return (ScheduleSpec){.stages = (int)config->parallel.pipeline,
                          .microbatches = (int)config_microbatches(config),
                          .chunks = schedule->name < schedule_kind_count ? (int)schedule->chunks : 0,
                          .group = (int)schedule->group,
                          .delay = (int)schedule->delay,
                          .split = schedule->split_backward == SPLIT_ON};
}

int config_chunks(const Config *config) {
    if (config->schedule.file_chunks > 0) return (int)config->schedule.file_chunks;
    return config->schedule.chunks > 0 ? (int)config->schedule.chunks : config_schedule_kind(config)->chunks;
}

bool config_schedule_legal(const Config *config) {
    Error ignored = {0};
    ScheduleSpec spec = config_schedule_spec(config);
    if (config->schedule.file[0] != '\0') return spec.microbatches == config->schedule.file_microbatches;
    return schedule_complete(config_schedule_kind(config), &spec, NULL, &ignored) == 0;
}

int64_t config_fewer_microbatches(const Config *config, int64_t least) {
    Error ignored = {0};
    ScheduleSpec spec = config_schedule_spec(config);
    if (config->schedule.file[0] != '\0') return spec.microbatches;
    if (schedule_complete(config_schedule_kind(config), &spec, NULL, &ignored) != 0) return spec.microbatches;
    int64_t group = spec.group, rest = spec.microbatches % group;
    if (least < 2 * spec.stages) least = 2 * spec.stages;
    int64_t fewer = least <= rest ? rest : rest + (least - rest + group - 1) / group * group;
    return fewer < spec.microbatches ? fewer : spec.microbatches;
}

Schedule *config_read_schedule(const Config *config, Error *err) {
    enum { MOST = 1 << 28 };
    const char *path = config->schedule.file;
    int64_t length;
    if (strncmp(path, "/dev/", 5) == 0) {
        error_set(err, EXIT_USAGE, "%s: every rank opens the schedule by its name; write it to a file", path);
        return NULL;
    }
    char *text = file_read_whole(path, MOST, &length, err);
    if (text == NULL) return NULL;
    Error why = {0};
    bool plain = strlen(text) == (size_t)length;
    Schedule *schedule = plain ? schedule_parse(text, &why) : NULL;
    if (!plain) error_set(&why, EXIT_USAGE, "byte %lld is NUL; a schedule is plain text", (long long)strlen(text) + 1);
    free(text);
    if (schedule == NULL) error_set(err, why.code, "%s: %s", path, why.text);
    return schedule;
}

int config_min_slots(const Config *config) {
    ScheduleSpec spec = config_schedule_spec(config);
    spec.microbatches = (int)config_fewer_microbatches(config, 4 * (int64_t)spec.stages);
    return schedule_least_slots(config_schedule_kind(config), &spec, (EvictTarget)config->schedule.evict_to);
}

// What other programs can do, as keys that a configuration may have and that a search may not choose.
#include "foreign_choice.h"

#include "config/config_schema.h"
#include "config/gpus.h"

#include <string.h>

static const ForeignProgram *row_(int program) { return &foreign_programs[program - 1]; }

int foreign_find(const char *word, Error *err) {
    for (int i = 0; i < FOREIGN_PROGRAMS; i++)
        if (strcmp(word, foreign_programs[i].word) == 0) return 1 + i;
    return error_set(err, EXIT_USAGE,
                     "--for: %s is not a program that is known here; use megatron, torchtitan or nanotron", word);
}

// Returns the index of the n-th word of a program's schedules in schedule_kinds; -1: it has fewer.
static int schedule_of_(const ForeignProgram *row, int n) {
    const char *at = row->schedules;
    for (; n > 0 && *at != '\0'; n--) {
        at += strcspn(at, " ");
        at += strspn(at, " ");
    }
    for (int i = 0; i < schedule_kind_count && *at != '\0'; i++)
        if (strlen(schedule_kinds[i].name) == strcspn(at, " ") &&
            strncmp(schedule_kinds[i].name, at, strcspn(at, " ")) == 0)
            return i;
    return -1;
}

static bool has_schedule_(const ForeignProgram *row, int name) {
    for (int n = 0; schedule_of_(row, n) >= 0; n++)
        if (schedule_of_(row, n) == name) return true;
    return false;
}

int foreign_take(Config *config, int program, bool searched, Error *err) {
    const ForeignProgram *row = row_(program);
    const ScheduleConfig *schedule = &config->schedule;
    bool named = schedule->name < schedule_kind_count && config->parallel.pipeline > 1;
    LayoutMask asked = searched ? layout_decided(config, true) : ~(LayoutMask)0;
    const struct {
        const char *key;
        bool lacking;
    } lacks[] = {
        {"schedule.file", schedule->file[0] != '\0'},
        {"schedule.name", (asked & LAYOUT_BIT(name)) != 0 && named && !has_schedule_(row, schedule->name)},
        {"schedule.bpipe", (asked & LAYOUT_BIT(bpipe)) != 0 && schedule->bpipe == BPIPE_ON},
        {"schedule.slices", (asked & LAYOUT_BIT(slices)) != 0 && schedule->slices > 1},
        {"schedule.split_backward", (asked & LAYOUT_BIT(split)) != 0 && schedule->split_backward == SPLIT_ON && named &&
                                        !schedule_kinds[schedule->name].splits},
        {"schedule.recompute", (searched || row->sharded || row->trainers[0] == TRAINER_NANOTRON) &&
                                   (asked & LAYOUT_BIT(pointwise)) != 0 && config_pointwise(config, 0) != 0},
        {"parallel.context", config->parallel.context > 1 && !row->context},
        {"model.experts", config->model.experts > 0 && !row->experts},
    };
    for (size_t i = 0; i < sizeof lacks / sizeof *lacks; i++)
        if (lacks[i].lacking)
            return config_error(config, lacks[i].key, err, "%s does not have this; leave it out, or leave out --for",
                                row->title);
    if (config->schedule.split_backward == SPLIT_AUTO && schedule->name < schedule_kind_count &&
        !schedule_kinds[schedule->name].splits)
        config->schedule.split_backward = SPLIT_OFF; // none of them splits the backward of such a schedule
    // Their default. A search does not take the file's value, but fixes this one (foreign_fix).
    if (!searched && config->place[config_find("parallel.overlap") - config_keys] == CONFIG_DEFAULT)
        config->parallel.overlap = OVERLAP_OFF;
    config->program = program;
    if (config->hardware.trainer != TRAINER_THIS) return 0;
    const Gpu *gpu = gpu_row(config->hardware.gpu);
    bool first = gpu_band(row->trainers[0], gpu, config->model.experts > 0, config->train.fp8).runs > 0;
    config->hardware.trainer = row->trainers[first ? 0 : 1];
    return 0;
}

int foreign_ways(int program) {
    int count = 0;
    while (schedule_of_(row_(program), count) >= 0) count++;
    return 2 * count;
}

void foreign_fix(int program, int way, Config *base, LayoutSpace *space) {
    const ForeignProgram *row = row_(program);
    LayoutMask fixed = LAYOUT_BIT(bpipe) | LAYOUT_BIT(slices) | LAYOUT_BIT(pointwise) | LAYOUT_BIT(attention) |
                       LAYOUT_BIT(placement) | LAYOUT_BIT(collectives) | LAYOUT_BIT(name) | LAYOUT_BIT(recompute);
    RunLayout at = space->given;
    bool open = (space->fixed & LAYOUT_BIT(name)) == 0, again = (space->fixed & LAYOUT_BIT(recompute)) == 0;
    at.bpipe = BPIPE_OFF;
    at.slices = 1;
    at.pointwise = RECOMPUTE_NONE;
    at.attention = ATTENTION_FLASH;
    at.placement = PLACEMENT_STAGES;   // the default of all of them
    at.collectives = COLLECTIVES_AUTO; // as import.py reads their words
    if (open) at.name = schedule_of_(row, way / 2);
    if (open) at.chunks = at.group = at.delay = 0;
    if (again) at.recompute = way % 2 == 0 ? 0 : (int32_t)base->model.layers;
    if (!schedule_kinds[at.name].splits) at.split = SPLIT_OFF, fixed |= LAYOUT_BIT(split);
    if ((space->fixed & LAYOUT_BIT(overlap)) == 0)
        at.overlap = OVERLAP_OFF, fixed |= LAYOUT_BIT(overlap); // their default
    if (!row->context) at.context = 1, fixed |= LAYOUT_BIT(context);
    layout_set(&at, base);
    space->given = at;
    space->fixed |= fixed;
}

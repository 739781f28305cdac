// The keys that other programs support: checks configurations, and limits searches to them.
#include "foreign.h"

#include "config/config_schema.h"
#include "config/gpus.h"

#include <string.h>

uint32_t foreign_schedules(int program) {
    const ForeignProgram *row = &foreign_programs[program - 1];
    uint32_t schedules = 0;
    for (int i = 0; i < schedule_kind_count; i++) {
        size_t length = strlen(schedule_kinds[i].name);
        for (const char *at = row->schedules; *at != '\0'; at += strcspn(at, " "), at += strspn(at, " "))
            if (strcspn(at, " ") == length && strncmp(at, schedule_kinds[i].name, length) == 0)
                schedules |= (uint32_t)1 << i;
    }
    return schedules;
}

int foreign_take(Config *config, const char *word, bool searched, Error *err) {
    int program = FOREIGN_PROGRAMS;
    while (program > 0 && strcmp(word, foreign_programs[program - 1].word) != 0) program--;
    if (program == 0)
        return error_set(err, EXIT_USAGE, "--for: unknown program %s; use megatron, torchtitan or nanotron", word);
    const ForeignProgram *row = &foreign_programs[program - 1];
    const ScheduleConfig *schedule = &config->schedule;
    bool named = schedule->name < schedule_kind_count && config->parallel.pipeline > 1;
    LayoutMask asked = searched ? layout_decided(config, true) : ~(LayoutMask)0;
    const struct {
        const char *key;
        bool lacking;
    } lacks[] = {
        {"schedule.file", schedule->file[0] != '\0'},
        {"schedule.name",
         (asked & LAYOUT_BIT(name)) != 0 && named && (foreign_schedules(program) >> schedule->name & 1) == 0},
        {"schedule.bpipe", (asked & LAYOUT_BIT(bpipe)) != 0 && schedule->bpipe == BPIPE_ON},
        {"schedule.slices", (asked & LAYOUT_BIT(slices)) != 0 && schedule->slices > 1},
        {"schedule.split_backward", (asked & LAYOUT_BIT(split)) != 0 && schedule->split_backward == SPLIT_ON && named &&
                                        !schedule_kinds[schedule->name].splits},
        {"schedule.recompute",
         (searched || row->selective == 0) && (asked & LAYOUT_BIT(pointwise)) != 0 && config_pointwise(config, 0) != 0},
        {"parallel.context", config->parallel.context > 1 && !row->context},
        {"model.experts", config->model.experts > 0 && !row->experts},
    };
    for (size_t i = 0; i < sizeof lacks / sizeof *lacks; i++)
        if (lacks[i].lacking)
            return config_error(config, lacks[i].key, err, "%s does not support this; leave it out, or leave out --for",
                                row->title);
    if (config->schedule.split_backward == SPLIT_AUTO && schedule->name < schedule_kind_count &&
        !schedule_kinds[schedule->name].splits)
        config->schedule.split_backward = SPLIT_OFF; // none of them splits the backward of such a schedule
    // None of them evicts, and their default overlaps nothing. A search fixes both itself (foreign_fix).
    if (!searched && schedule->bpipe == BPIPE_AUTO) config->schedule.bpipe = BPIPE_OFF;
    if (!searched && config->place[config_find("parallel.overlap") - config_keys] == CONFIG_DEFAULT)
        config->parallel.overlap = OVERLAP_OFF;
    config->program = program;
    if (config->hardware.trainer != TRAINER_THIS) return 0;
    const Gpu *gpu = gpu_row(config->hardware.gpu);
    bool first = gpu_band(row->trainers[0], gpu, config->model.experts > 0, config->train.fp8).runs > 0;
    config->hardware.trainer = row->trainers[first ? 0 : 1];
    return 0;
}

void foreign_fix(int program, Config *base, LayoutSpace *space) {
    const ForeignProgram *row = &foreign_programs[program - 1];
    LayoutMask fixed = LAYOUT_BIT(bpipe) | LAYOUT_BIT(slices) | LAYOUT_BIT(pointwise) | LAYOUT_BIT(attention) |
                       LAYOUT_BIT(placement) | LAYOUT_BIT(collectives);
    RunLayout at = space->given;
    at.bpipe = BPIPE_OFF;
    at.slices = 1;
    at.pointwise = RECOMPUTE_NONE;
    at.attention = ATTENTION_FLASH;
    at.placement = PLACEMENT_STAGES;   // the default of all of them
    at.collectives = COLLECTIVES_AUTO; // as import.py converts their settings
    if ((space->fixed & LAYOUT_BIT(overlap)) == 0)
        at.overlap = OVERLAP_OFF, fixed |= LAYOUT_BIT(overlap); // their default
    if (!row->context) at.context = 1, fixed |= LAYOUT_BIT(context);
    layout_set(&at, base);
    space->given = at;
    space->fixed |= fixed;
    space->schedules = foreign_schedules(program);
}

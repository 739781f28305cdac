// Enumerates a few numbers of chunks and two sizes of groups: with more chunks, messages cost more than the bubble they
// save, and between the smallest and the largest group memory and bubble change evenly.
#include "schedule_choices.h"

static int add_splits_(ScheduleChoice choice, ScheduleChoice *choices, int count) {
    if (!schedule_kinds[choice.kind].splits) {
        choice.split = false;
        choices[count++] = choice;
    }
    choice.split = true;
    choices[count++] = choice;
    return count;
}

int schedule_choices(const Config *config, ScheduleChoice choices[SCHEDULE_CHOICES]) {
    enum { MOST_CHUNKS = 4 };
    int count = 0, p = (int)config->parallel.pipeline;
    for (int kind = 0; kind < schedule_kind_count; kind++) {
        const ScheduleKind *row = &schedule_kinds[kind];
        for (int chunks = row->chunks; chunks <= row->most_chunks && chunks <= MOST_CHUNKS; chunks *= 2) {
            ScheduleChoice choice = {.kind = kind, .chunks = chunks, .delay = row->delayed ? p - 1 : 0};
            int64_t parts = (int64_t)p * chunks;
            if (parts > config->model.layers && parts != config->parallel.layers_given) continue;
            choice.group = row->grouped ? p : 0;
            count = add_splits_(choice, choices, count);
            if (!row->grouped || p < 3) continue;
            choice.group = (p + 1) / 2;
            count = add_splits_(choice, choices, count);
        }
    }
    return count;
}

void schedule_choose(const ScheduleChoice *choice, Config *config) {
    ScheduleConfig *schedule = &config->schedule;
    schedule->file[0] = '\0';
    schedule->file_chunks = schedule->file_microbatches = 0;
    schedule->name = choice->kind;
    schedule->chunks = choice->chunks;
    schedule->group = choice->group;
    schedule->delay = choice->delay;
    schedule->split_backward = choice->split ? SPLIT_ON : SPLIT_OFF;
    schedule->slots = schedule->load_ahead = 0;
}

#include "pays.h"
#include "base/alloc.h"
#include "base/grid.h"
#include "plan_schedules.h"

#include <math.h>
#include <stdlib.h>

static const char *const ways_[PAYS_WAYS] = {"1F1B",   "interleaving", "zero bubble",
                                             "slices", "to a partner", "to the host"};

PaysWay pays_way(const RunLayout *at) {
    const ScheduleKind *kind = &schedule_kinds[at->name];
    if (layout_evicts(at)) return at->evict_to == EVICT_TO_PEER ? PAYS_PARTNER : PAYS_HOST;
    if (at->slices > 1) return PAYS_SLICES;
    if (kind->splits || at->split == SPLIT_ON) return PAYS_ZERO_BUBBLE;
    return at->chunks > 1 ? PAYS_INTERLEAVED : PAYS_PLAIN;
}

// Returns by how many percent a step takes longer than another.
static double more_(const Forecast *one, const Forecast *than) {
    double more = 100 * (one->time.step / than->time.step - 1);
    return fabs(more) < 0.05 ? 0 : more;
}

void pays_print(const Forecast *found, size_t stride, int64_t count, const Forecast *own, const char *named, bool bpipe,
                const char *nothing, FILE *file) {
    const Forecast *best[PAYS_WAYS] = {NULL}, *plain = NULL; // plain: the fastest without evictions
    char *text, title[SCHEDULE_TEXT], step[32];
    const char *comma = "";
    size_t length;
    for (int64_t i = 0; i < count; i++) {
        const Forecast *at = (const void *)((const char *)found + (size_t)i * stride);
        const Forecast **way = &best[pays_way(&at->layout)];
        if (!at->fits || !at->time.known) continue;
        if (*way == NULL || planner_prefers(at, *way)) *way = at;
    }
    for (int way = 0; way < PAYS_PARTNER; way++)
        if (best[way] != NULL && (plain == NULL || best[way]->time.step < plain->time.step)) plain = best[way];

    // 1. The schedules against this one.
    FILE *line = xmemstream(&text, &length);
    fprintf(line, "time against %s:", named != NULL ? named : schedule_text(&own->layout, title));
    for (int way = 0; way < PAYS_PARTNER; way++) {
        const Forecast *row = best[way];
        bool asked = way == PAYS_ZERO_BUBBLE || way == PAYS_INTERLEAVED;
        bool same = way == (int)pays_way(&own->layout) && row != NULL && row->time.step >= 0.999 * own->time.step;
        if ((same && named == NULL) || (row == NULL && !asked)) continue;
        fprintf(line, "%s %s ", comma, ways_[way]);
        if (row == NULL) fputs(nothing, line);
        else if (way == PAYS_ZERO_BUBBLE)
            fprintf(line, "(%s) %+.1f %%", schedule_kinds[row->layout.name].title, more_(row, own));
        else fprintf(line, "%+.1f %%", more_(row, own));
        comma = ",";
    }
    // 2. Evictions against the fastest forecast without them, which may have another schedule.
    comma = comma[0] != '\0' ? "; evicting" : " evicting";
    bool evicts = false;
    for (int way = bpipe ? PAYS_HOST : PAYS_PARTNER; way < PAYS_WAYS && plain != NULL; way++) {
        if (best[way] == NULL) continue;
        fprintf(line, "%s %s %+.1f %%", evicts ? "," : comma, ways_[way], more_(best[way], plain));
        evicts = true;
    }
    if (evicts) fputs(" against the best without", line);
    xmemstream_close(line);
    grid_line(file, "schedule?", "%s", own->layout.pipeline == 1 ? "with one stage there is no bubble to fill" : text);
    free(text);
    if (!bpipe) return;

    // 3. BPipe: the fastest with evictions to the partner against the fastest without evictions.
    const Forecast *with = best[PAYS_PARTNER];
    if (with == NULL) grid_line(file, "BPipe?", "No: of layouts that evict to a partner, %s", nothing);
    else if (plain == NULL) grid_line(file, "BPipe?", "Yes: of layouts that evict nothing, %s", nothing);
    else
        grid_line(file, "BPipe?", "%s: %s (%s) takes %+.1f %% against the fastest without evictions%s",
                  fabs(planner_compared(with) / planner_compared(plain) - 1) < 0.02 // the limit of verdict.c
                      ? "Cannot be told apart"
                      : planner_compared(with) < planner_compared(plain) ? "Yes" : "No",
                  schedule_text(&with->layout, title), grid_seconds(with->time.step, step), more_(with, plain),
                  pays_way(&own->layout) == PAYS_HOST ? "; bpipe=on above evicts to the host" : "");
}

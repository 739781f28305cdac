#include "pays.h"
#include "base/grid.h"
#include "plan_schedules.h"

#include <math.h>
#include <string.h>

typedef enum PaysWay { WAY_PLAIN, WAY_INTERLEAVED, WAY_ZERO_BUBBLE, WAY_SLICES, WAY_PARTNER, WAY_HOST, WAYS } PaysWay;

static const char *const ways_[WAYS] = {"1F1B",   "interleaving",          "zero bubble",
                                        "slices", "evicting to a partner", "evicting to the host"};

static PaysWay way_of_(const RunLayout *at) {
    const ScheduleKind *kind = &schedule_kinds[at->name];
    if (layout_evicts(at)) return at->evict_to == EVICT_TO_PEER ? WAY_PARTNER : WAY_HOST;
    if (at->slices > 1) return WAY_SLICES;
    if (kind->splits || at->split == SPLIT_ON) return WAY_ZERO_BUBBLE;
    return at->chunks > 1 ? WAY_INTERLEAVED : WAY_PLAIN;
}

// Writes by how much longer a step takes than another: "+0.3 %", "-4.2 %".
static const char *more_text_(const Forecast *one, const Forecast *than, char text[32]) {
    double more = 100 * (one->time.step / than->time.step - 1);
    snprintf(text, 32, "%+.1f %%", fabs(more) < 0.05 ? 0 : more);
    return text;
}

// Prints whether the fastest forecast with BPipe beats the fastest one without evictions.
static void print_bpipe_(const Forecast *const best[WAYS], const char *nothing, FILE *file) {
    const Forecast *with = best[WAY_PARTNER], *without = NULL;
    char more[32], step[32], title[SCHEDULE_TEXT];
    for (int way = 0; way < WAY_PARTNER; way++)
        if (best[way] != NULL && (without == NULL || best[way]->time.step < without->time.step)) without = best[way];
    if (with == NULL) grid_line(file, "BPipe?", "No: of layouts that evict to a partner, %s", nothing);
    else if (without == NULL) grid_line(file, "BPipe?", "Yes: of layouts that evict nothing, %s", nothing);
    else
        grid_line(file, "BPipe?", "%s: %s (%s) takes %s against the fastest without evictions",
                  fabs(planner_compared(with) / planner_compared(without) - 1) < 0.02 // as the verdict of a plan
                      ? "Cannot be told apart"
                      : planner_compared(with) < planner_compared(without) ? "Yes" : "No",
                  schedule_text(&with->layout, title), grid_seconds(with->time.step, step),
                  more_text_(with, without, more));
}

void pays_print(const Forecast *const *found, int64_t count, const Forecast *own, bool bpipe, const char *nothing,
                FILE *file) {
    const Forecast *best[WAYS] = {NULL};
    int first = -1; // the first way that is named
    char text[512], more[32], title[SCHEDULE_TEXT];
    for (int64_t i = 0; i < count; i++) {
        const Forecast **way = &best[way_of_(&found[i]->layout)];
        if (!found[i]->fits || !found[i]->time.known) continue;
        if (*way == NULL || planner_prefers(found[i], *way)) *way = found[i];
    }
    PaysWay given = way_of_(&own->layout);
    size_t used = (size_t)snprintf(text, sizeof text, "time against %s", schedule_text(&own->layout, title));
    for (int way = 0; way < WAYS; way++) {
        const char *before =
            way == WAY_HOST && best[WAY_PARTNER] != NULL && given != WAY_PARTNER ? "to the host" : ways_[way];
        if (best[way] != NULL && (way != (int)given || best[way]->time.step < 0.999 * own->time.step)) {
            used += (size_t)snprintf(text + used, sizeof text - used, "%s %s%s%s%s %s", first >= 0 ? "," : ":", before,
                                     way == WAY_ZERO_BUBBLE ? " (" : "",
                                     way == WAY_ZERO_BUBBLE ? schedule_kinds[best[way]->layout.name].title : "",
                                     way == WAY_ZERO_BUBBLE ? ")" : "", more_text_(best[way], own, more));
        } else if (best[way] == NULL && (way == WAY_ZERO_BUBBLE || way == WAY_INTERLEAVED)) {
            used +=
                (size_t)snprintf(text + used, sizeof text - used, "%s %s %s", first >= 0 ? "," : ":", before, nothing);
        } else continue;
        first = first < 0 ? way : first;
    }
    if (own->layout.pipeline == 1) grid_line(file, "schedule?", "with one stage there is no bubble to fill");
    else grid_line(file, "schedule?", "%s", text);
    if (bpipe) print_bpipe_(best, nothing, file);
}

// Writes the best configuration as YAML with a comment on every line, and the result as JSON.
#include "search_command.h"

#include "base/alloc.h"
#include "base/files.h"
#include "base/grid.h"
#include "base/json_out.h"
#include "config/config_schema.h"
#include "plan/budget.h"
#include "plan/foreign.h"
#include "plan/plan_report.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// ---------------------------------------------------------------- why

// The printed settings, too, replace train.steps that end a run before train.tokens are taken.
static bool takes_all_tokens_(const SearchSpace *space, const ConfigKey *key) {
    return strcmp(key->name, "train.steps") == 0 && budget_taken(space->keys.asked) < 0.99;
}

// Writes why a key has its value: for a searched key, the step of the fastest candidate with another value, unless the
// key applies only with certain values of another key, such as schedule.group.
static void why_(const SearchSpace *space, const SearchResult *result, int index, const ConfigKey *key, char *text,
                 size_t size) {
    const Forecast *best = &result->found.items[index].forecast, *other = NULL;
    int at = layout_index(key->name);
    if (at < 0 || layout_keys[at].belongs != NULL) {
        const char *profile = space->planner->measured
                                  ? "the search used the times of this profile"
                                  : "the search planned from the figures above; name a profile to plan from measured "
                                    "times";
        bool slots = strcmp(key->name, "schedule.slots") == 0 && layout_evicts(&best->layout);
        snprintf(text, size, "%s",
                 slots                           ? "the configuration fits with these slots"
                 : takes_all_tokens_(space, key) ? "until train.tokens are consumed; the given steps end earlier"
                 : strcmp(key->name, "hardware.profile") == 0 ? profile
                                                              : key->meaning);
        return;
    }
    if (space_fixes(space, (LayoutMask)1 << at) || (at == LAYOUT_layers && foreign_deals(space->keys.base))) {
        bool given = (layout_decided(space->keys.asked, true) >> at & 1) != 0;
        snprintf(text, size, "fixed with %s", given ? "-o" : "--for");
        return;
    }
    for (int64_t i = 0; i < result->found.count; i++) {
        const Forecast *found = &result->found.items[i].forecast;
        if (layout_get(&found->layout, at) == layout_get(&best->layout, at)) continue;
        if (other == NULL || found->time.step < other->time.step) other = found;
    }
    if (other == NULL) {
        snprintf(text, size, "all other values do not fit or are slower by their lower bounds");
        return;
    }
    char value[LAYOUT_TEXT];
    layout_value_text(at, layout_get(&other->layout, at), value);
    double longer = 100 * (other->time.step / best->time.step - 1);
    if (fabs(longer) < 0.005) snprintf(text, size, "%s is as fast, with all other keys at their best", value);
    else
        snprintf(text, size, "%s takes %.2f %% %s, with all other keys at their best", value, fabs(longer),
                 longer > 0 ? "longer" : "less");
}

// ---------------------------------------------------------------- YAML

static void write_comment_(const char *text, FILE *file) {
    enum { WIDTH = 116 };
    while (strlen(text) > WIDTH) {
        int end = WIDTH;
        while (end > 1 && text[end] != ' ') end--;
        fprintf(file, "  # %.*s\n", end, text);
        text += end + 1;
    }
    fprintf(file, "  # %s\n", text);
}

int search_write_config(const SearchSpace *space, const SearchResult *result, int index, const char *path, Error *err) {
    enum { WIDTH = 120, VALUES = 44 };
    const Forecast *found = &result->found.items[index].forecast;
    const PlanTime *best = &found->time;
    char *text, step[32];
    size_t size;
    Config config;
    struct stat there;
    // 1. Every key has a comment.
    space_config(space, &found->layout, &config);
    FILE *file = xmemstream(&text, &size);
    fprintf(file, "# %s configuration for %lld rank%s that --search found: %s a step",
            index == result->best ? "The best" : "A fast", (long long)space->keys.world, grid_plural(space->keys.world),
            grid_seconds(best->step, step));
    if (best->mfu > 0) fprintf(file, ", MFU %.1f %%", 100 * best->mfu);
    fprintf(file, " by the plan, with nothing lost.\n# From %s\n", space->keys.base->path);
    if (result->stopped) fputs("# The search was stopped before it was complete.\n", file);
    for (int i = 0; i < config_key_count; i++) {
        const ConfigKey *key = &config_keys[i];
        size_t section = (size_t)(config_short_name(key) - key->name), length;
        char why[256], *line;
        bool lacks = config_lacks(&config, key);
        if (i == 0 || strncmp(config_keys[i - 1].name, key->name, section) != 0)
            fprintf(file, "\n%.*s:\n", (int)section - 1, key->name);
        FILE *stream = xmemstream(&line, &length);
        fprintf(stream, "  %s: ", config_short_name(key));
        if (takes_all_tokens_(space, key)) fputs("auto", stream);
        else config_write_value(&config, key->name, stream);
        xmemstream_close(stream);
        if (lacks) snprintf(why, sizeof why, "%s: missing; set it before a run", config_short_name(key));
        else why_(space, result, index, key, why, sizeof why);
        // The comment follows the value if both fit on one line, else it goes above.
        if (lacks) write_comment_(why, file);
        else if (length <= VALUES && VALUES + 3 + strlen(why) <= WIDTH) fprintf(file, "%-*s # %s\n", VALUES, line, why);
        else write_comment_(why, file), fprintf(file, "%s\n", line);
        free(line);
    }
    xmemstream_close(file);
    // 2. A regular file appears complete or not at all. Terminals, pipes and targets of links are written directly.
    bool regular = lstat(path, &there) != 0 || S_ISREG(there.st_mode);
    int fd = regular ? -1 : file_open_to_write(path, O_TRUNC), status = -1;
    if (regular) status = file_replace(path, text, (int64_t)size);
    else if (fd >= 0) status = file_write_all(fd, text, (int64_t)size);
    if (fd >= 0 && close(fd) != 0) status = -1;
    int code = errno;
    free(text);
    return status == 0 ? 0 : error_set(err, EXIT_FAILED, "--write: %s: %s; name another file", path, strerror(code));
}

int search_write_five(const SearchSpace *space, const SearchResult *result, const char *folder, Error *err) {
    enum { FIVE = 5 };
    char path[4096];
    int rows[FIVE] = {result->best}, count = 1;
    for (int i = 0; i < result->ten_count && count < FIVE; i++)
        if (result->ten[i] != result->best) rows[count++] = result->ten[i];
    for (int i = 0; i < FIVE; i++) {
        snprintf(path, sizeof path, "%s/%d.yaml", folder, i + 1);
        if (i >= count) remove(path); // a file of an earlier search
        else if (search_write_config(space, result, rows[i], path, err) != 0) return -1;
    }
    return 0;
}

// ---------------------------------------------------------------- JSON

static void put_found_(JsonOut *out, const char *key, const SearchSpace *space, const SearchResult *result, int index) {
    const Candidate *candidate = &result->found.items[index];
    const Forecast *found = &candidate->forecast;
    Config config;
    space_config(space, &found->layout, &config);
    json_begin(out, key, '{');
    config_write_json(&config, json_put(out, "config"));
    Hardware hardware = space->planner->hardware;
    GpuBand band = hardware_band(&hardware, &config, space->planner->measured);
    PlanSpeed speed = plan_speed(&hardware, &config, &found->time);
    bool best = key != NULL, banded = band.low > 0, mfu = found->time.mfu > 0; // rows of the front have no name
    double step = found->time.step;
    json_members(out, "step_ms %g step_ms_low %g step_ms_high %g", 1e3 * step, banded ? band.low * 1e3 * step : NAN,
                 banded ? band.high * 1e3 * step : NAN);
    if (best) hardware.theirs = planner_theirs(space->planner, &config, step);
    if (best) hardware_put_others(&hardware, &config, step, out);
    if (best) json_put_number(out, "step_ms_mid", banded ? band.middle * 1e3 * step : NAN);
    json_put_number(out, "mfu", mfu ? found->time.mfu : NAN);
    if (best)
        json_members(out, "mfu_causal %g tokens_per_s_gpu %g tflops_gpu %g", mfu ? speed.mfu_causal : NAN, speed.tokens,
                     mfu ? speed.tflops : NAN);
    if (best && index == result->best) unsure_write_json(&result->unsure, step, out);
    json_members(out, "class %d robust %g peak_bytes %jd", search_class(result, found), candidate->robust,
                 found->peak_bytes);
    json_end(out, '}');
}

int search_write_json(const Searched *found, const Searched *here, FILE *file, Error *err) {
    JsonOut out = {.file = file};
    const SearchSpace *space = here != NULL ? &here->space : &found->space;
    const SearchResult *result = here != NULL ? &here->result : &found->result;
    json_begin(&out, NULL, '{');
    if (here != NULL && found->result.best < 0) json_put_null(&out, "for");
    else if (here != NULL) { // the other program's configuration and bytes, and this program's bytes for it
        const Forecast *best = &found->result.found.items[found->result.best].forecast;
        Config config;
        Forecast own;
        space_config(&found->space, &best->layout, &config);
        json_begin(&out, "for", '{');
        config_write_json(&config, json_put(&out, "config"));
        json_put_number(&out, "step_ms", 1e3 * best->time.step);
        Planner bytes = found->planner;
        bytes.held = NULL; // bytes counted for the other program
        config.program = 0;
        if (planner_forecast_config(&bytes, &config, false, &own, err) != 0) return -1;
        json_members(&out, "peak_bytes %jd theirs_bytes %jd", own.peak_bytes, best->peak_bytes);
        json_end(&out, '}');
    }
    if (result->best >= 0) put_found_(&out, "best", space, result, result->best);
    else json_put_null(&out, "best");
    if (result->tightest >= 0) put_found_(&out, "tightest", space, result, result->tightest);
    else json_put_null(&out, "tightest");
    json_begin(&out, "front", '[');
    for (int i = 0; i < result->front_count; i++) put_found_(&out, NULL, space, result, result->front[i]);
    json_end(&out, ']');
    json_members(&out, "evaluated %jd seconds %g", result->evaluated, result->seconds);
    if (result->stopped) json_put_truth(&out, "complete", false);
    SmallestWorld world = {0}; // the world of the program that --for names, as in the report
    bool none = found->result.best < 0;
    if (none && space_smallest_world(&found->space, &world, err) != 0) return -1;
    if (world.ranks > 0)
        json_object(&out, "smallest_world", "ranks %jd pipeline %d tensor %d data %d context %d", world.ranks,
                    world.at.pipeline, world.at.tensor, world.at.data, world.at.context);
    else if (none) json_put_null(&out, "smallest_world");
    json_end(&out, '}');
    fputc('\n', file);
    return 0;
}

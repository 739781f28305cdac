// Step lines and log.metrics. A line of the file is built in memory and written at once, so that a reader never sees
// half a line and a crash truncates at most the last one. All lines that belong to a step begin with their type and
// step, so cutting the file at a step needs no JSON parser.
#include "metrics.h"
#include "base/alloc.h"
#include "base/clock.h"

#include "backend/backend.h"
#include "base/files.h"
#include "base/grid.h"
#include "base/json_out.h"
#include "base/units.h"
#include "launch/launch.h"
#include "base/version.h"
#include "ranks/world.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct Metrics {
    MetricsSetup setup;
    const Config *config;
    const char *path;   // log.metrics; empty: no file
    int64_t after_step; // step of the checkpoint that this start resumes; -1: none
    int fd;             // -1: no file
    FileLock lock;      // keeps other runs from writing to a regular file
    bool said;          // the first step line of this start is written
    bool terminal, progress_shown;
    double quickest, raised; // highest MFU of a step; ratio of remeasured to initial peak
    int measurements;        // measurements of the peak, after the first
    bool unheard;            // standard output cannot be written
    double ended;            // end of the latest step; on a terminal, first the start of the first step; 0: unknown
    double pace;             // mean wall-clock seconds of a sequence, with validation and saving; 0: unknown
    int paced;               // number of the latest steps in `pace`
};

StepTotals figures_totals(const StepFigures *figures) {
    StepTotals totals = {0};
    double busy = 0.0, all = figures->pipeline * figures->stages;
    for (int s = 0; s < figures->stages; s++) {
        const StageFigures *stage = &figures->stage[s];
        busy += stage->run.busy;
        totals.exposed = fmax(totals.exposed, stage->run.exposed);
        totals.evictions += stage->run.evictions;
        if (stage->peak_bytes > figures->stage[totals.fullest].peak_bytes) totals.fullest = s;
        if (stage->peak_bytes <= figures->stage[totals.emptiest].peak_bytes) totals.emptiest = s;
    }
    // Clocks of several hosts agree only to microseconds, so `busy` may exceed `all`; the bubble is then 0.
    totals.bubble = all > 0.0 ? fmax(0.0, 1.0 - busy / all) : 0.0;
    return totals;
}

// ---------------------------------------------------------------------------------------------------------------------
// The file

static int file_error_(const Metrics *metrics, const char *what, Error *err) {
    int code = errno;
    return error_set(err, EXIT_FAILED, "log.metrics: %s %s: %s; %s", what, metrics->path, file_why(code),
                     code == ENOSPC || code == EDQUOT ? "free some space there, or name a file elsewhere"
                                                      : "name a file that can be written, or \"\" for none");
}

// Cuts the file after the last line to keep. A file may contain several runs: a step number that does not increase
// begins another run. A fresh start (`after_step` -1) keeps every complete line of earlier runs; a resume also removes
// the last run's steps > after_step. Reads the open file, since the path may name another file by now.
static int cut_(Metrics *metrics, int64_t after_step, Error *err) {
    static const char begin[] = "{\"type\":\"";
    char open_file[64], *line = NULL;
    snprintf(open_file, sizeof open_file, "/proc/self/fd/%d", metrics->fd);
    FILE *file = fopen(open_file, "re");
    if (file == NULL) return file_error_(metrics, "cannot read", err);
    size_t capacity = 0;
    off_t position = 0, end = 0;            // end: of the last line to keep
    long long last = 0, number;             // last: number of the last step line read
    bool finished = false, foreign = false; // finished: lines are dropped until another run begins
    for (ssize_t length; (length = getline(&line, &capacity, file)) > 0; position += length) {
        bool torn = line[length - 1] != '\n'; // the last line; after a power cut some file systems leave zeros there
        size_t compared = (size_t)length < sizeof begin - 1 ? (size_t)length : sizeof begin - 1;
        foreign = (torn || position == 0) && line[0] != '\0' && strncmp(line, begin, compared) != 0;
        if (torn || foreign) break;
        bool any = sscanf(line, "{\"type\":\"%*[a-z]\",\"step\":%lld", &number) == 1; // lines that belong to a step
        bool step = sscanf(line, "{\"type\":\"step\",\"step\":%lld", &number) == 1;
        if (step && number <= last) finished = false;
        if (step) last = number;
        if (any && after_step >= 0 && number > after_step) finished = true;
        if (!finished) end = position + length;
    }
    free(line);
    fclose(file);
    if (foreign)
        return error_set(err, EXIT_FAILED,
                         "log.metrics: %s begins or ends in something that is not a metrics line; name another file",
                         metrics->path);
    return ftruncate(metrics->fd, end) == 0 ? 0 : file_error_(metrics, "cannot truncate", err);
}

static int open_file_(Metrics *metrics, int64_t after_step, Error *err) {
    if (file_make_folders(metrics->path) != 0) return file_error_(metrics, "cannot make the folder of", err);
    metrics->fd = file_open_to_write(metrics->path, O_APPEND);
    struct stat status;
    if (metrics->fd < 0 || fstat(metrics->fd, &status) != 0) return file_error_(metrics, "cannot open", err);
    if (!S_ISREG(status.st_mode)) return 0;
    // Lock a file next to the metrics. A lock on the metrics themselves could be held by any user who can read them.
    char path[PATH_MAX + 16], taken[CONFIG_TEXT + 128], *real = realpath(metrics->path, NULL);
    if (real != NULL) { // NULL: the file was removed meanwhile
        const char *name = strrchr(real, '/') + 1;
        snprintf(path, sizeof path, "%.*s.%s.lock", (int)(name - real), real, name);
        free(real);
        snprintf(taken, sizeof taken,
                 "log.metrics: another run writes its lines to %s; wait until it ends, or name another file",
                 metrics->path);
        if (file_lock(&metrics->lock, path, taken, err) != 0) return -1;
    }
    return cut_(metrics, after_step, err);
}

Metrics *metrics_open(const Config *config, const MetricsSetup *setup, int64_t after_step, Error *err) {
    Metrics *metrics = xcalloc(1, sizeof *metrics);
    *metrics = (Metrics){.setup = *setup, .config = config, .path = config->log.metrics, .fd = -1};
    metrics->after_step = after_step, metrics->raised = 1.0;
    // Progress goes to a terminal that can overwrite a line. mpirun gives its first rank a terminal even if the output
    // goes to a file, so a parent tells its ranks whether its stdout is a terminal; other launchers' ranks have none.
    const char *parent = getenv(LAUNCH_TERMINAL_VARIABLE), *kind = getenv("TERM");
    bool dumb = kind != NULL && strcmp(kind, "dumb") == 0, under = false;
    metrics->terminal =
        !dumb && (parent != NULL ? strcmp(parent, "1") == 0
                                 : world_under_launcher(&under, NULL) == 0 && !under && isatty(STDOUT_FILENO));
    if (metrics->path[0] == '\0' || open_file_(metrics, after_step, err) == 0) return metrics;
    metrics_close(metrics);
    return NULL;
}

bool metrics_unheard(const Metrics *metrics) { return metrics->unheard; }

void metrics_close(Metrics *metrics) {
    if (metrics == NULL) return;
    if (metrics->progress_shown && file_accepts(STDOUT_FILENO, 0)) {
        fputs("\r\033[K", stdout);
        fflush(stdout);
    }
    if (metrics->fd >= 0) close(metrics->fd);
    file_unlock(&metrics->lock);
    free(metrics);
}

// A line under construction.
typedef struct Line {
    JsonOut out;
    char *text;
    size_t length;
} Line;

static void line_begin_(Line *line, const char *type) {
    *line = (Line){0};
    line->out.file = xmemstream(&line->text, &line->length);
    json_begin(&line->out, NULL, '{');
    json_put_text(&line->out, "type", type);
}

// Writes the line to the file, if there is one, at once. A line that could not be written completely is cut off again,
// or the next line would be joined to it; if that fails, the next start cuts it off.
static int line_end_(Line *line, Metrics *metrics, Error *err) {
    json_end(&line->out, '}');
    fputc('\n', line->out.file);
    xmemstream_close(line->out.file);
    int status = 0;
    if (metrics->fd >= 0) {
        off_t before = lseek(metrics->fd, 0, SEEK_END);
        if (file_write_all(metrics->fd, line->text, (int64_t)line->length) != 0) {
            status = file_error_(metrics, "cannot write to", err);
            bool cut = before >= 0 && ftruncate(metrics->fd, before) == 0;
            (void)cut;
        }
    }
    free(line->text);
    return status;
}

// Values that must read back as the same bits have 17 significant digits, all others 9.

int metrics_run(Metrics *metrics, int64_t parameters, Error *err) {
    const Config *config = metrics->config;
    if (metrics->fd < 0) return 0;
    Line line;
    JsonOut *out = &line.out;
    const MetricsSetup *setup = &metrics->setup;
    line_begin_(&line, "run");
    json_members(out, "version %s", VERSION);
    config_write_json(config, json_put(out, "config"));
    json_members(out, "world %jd parameters %jd active_parameters %jd microbatches %jd", setup->world, parameters,
                 config_active_parameters(&config->model, parameters), config_microbatches(config));
    json_members(out, "peak_tflops %.17g flops_per_token_full %.17g flops_per_token_causal %.17g",
                 setup->peak_tflops > 0.0 ? setup->peak_tflops : NAN, setup->flops_per_token_full,
                 setup->flops_per_token_causal);
    if (setup->outside_gib > 0) json_members(out, "outside_gib %.9g", setup->outside_gib);
    json_members(out, "after_step %jd", max_i64(metrics->after_step, 0));
    return line_end_(&line, metrics, err);
}

// Returns the MFU relative to the peak in the file's run line, or NAN if the peak is unknown.
static double mfu_(const Metrics *metrics, double flops_per_token, const StepFigures *figures) {
    const MetricsSetup *setup = &metrics->setup;
    double achieved = flops_per_token * (double)figures->tokens / figures->seconds;
    return setup->peak_tflops > 0.0 ? achieved / ((double)setup->world * setup->peak_tflops * 1e12) : NAN;
}

// Writes the line of a step. The experts' figures are those of the stage with the fullest rank; dense models have none,
// and dense layers have no token counts.
static int write_step_(Metrics *metrics, const StepFigures *figures, Error *err) {
    if (metrics->fd < 0) return 0;
    Line line;
    JsonOut *out = &line.out;
    const ModelConfig *model = &metrics->config->model;
    StepTotals totals = figures_totals(figures);
    line_begin_(&line, "step");
    json_members(out, "step %jd loss %.17g loss_z %.9g grad_norm %.17g norm_z %.9g lr %.17g", figures->step,
                 figures->loss, figures->loss_z, figures->norm, figures->norm_z, figures->lr);
    double rate = (double)figures->tokens / figures->seconds;
    json_members(out, "step_ms %.9g tokens %jd tokens_seen %jd tokens_per_s %.9g tokens_per_s_per_gpu %.9g",
                 figures->seconds * 1e3, figures->tokens, figures->tokens_seen, rate,
                 rate / (double)metrics->setup.world);
    json_members(out, "mfu %.9g mfu_causal %.9g bubble %.9g transfer_exposed_ms %.9g evictions %jd",
                 mfu_(metrics, metrics->setup.flops_per_token_full, figures),
                 mfu_(metrics, metrics->setup.flops_per_token_causal, figures), totals.bubble, totals.exposed * 1e3,
                 totals.evictions);
    if (figures->skipped) json_members(out, "skipped? %d", true);
    if (figures->slowest[0] != '\0') fputs(figures->slowest, json_put(out, "slowest"));
    const ExpertLoad *load = &figures->stage[0].experts;
    for (int s = 1; s < figures->stages; s++) {
        const ExpertLoad *other = &figures->stage[s].experts;
        if (other->fullest * fmax(1, load->forwards) > load->fullest * fmax(1, other->forwards)) load = other;
    }
    if (load->forwards > 0) {
        json_begin(out, "experts", '{');
        json_members(out, "fullest %.9g spread %.9g chunks %.9g balance_loss %.9g", load->fullest / load->forwards,
                     load->spread / load->forwards, load->parts / load->forwards, figures->balance_loss);
        if (figures->copies != NULL) {
            json_begin(out, "tokens", '[');
            for (int64_t l = 0; l < model->layers; l++) {
                json_begin(out, NULL, '[');
                for (int64_t n = 0; n < model->experts && l >= model->dense_layers; n++)
                    json_put_integer(out, NULL, (int64_t)figures->copies[l * model->experts + n]);
                json_end(out, ']');
            }
            json_end(out, ']');
        }
        json_end(out, '}');
    }
    json_begin(out, "stages", '[');
    for (int s = 0; s < figures->stages; s++) {
        const StageFigures *stage = &figures->stage[s];
        json_object(out, NULL, "stage %d peak_bytes %jd activation_bytes %jd slots_used %d slots_lent %d", s,
                    stage->peak_bytes, stage->activation_bytes, stage->run.slots_used, stage->run.slots_lent);
    }
    json_end(out, ']');
    return line_end_(&line, metrics, err);
}

// ---------------------------------------------------------------------------------------------------------------------
// Lines for people

static int say_(Metrics *metrics, const char *text, Error *err) {
    enum { LOOK_MS = 200, PIECE = PIPE_BUF - 8 }; // PIECE: with the bytes around it, a ready pipe accepts it at once
    metrics->unheard = false;
    for (bool last = false; !last && !metrics->unheard; text += PIECE) {
        while (metrics->setup.waits != NULL && !file_accepts(STDOUT_FILENO, LOOK_MS))
            if (!metrics->setup.waits(metrics->setup.context)) return 0;
        last = strnlen(text, PIECE + 1) <= PIECE;
        // Flush each piece, so that a line is one write and visible at once.
        metrics->unheard =
            printf("%s%.*s%s", metrics->progress_shown ? "\r\033[K" : "", PIECE, text, last ? "\n" : "") < 0 ||
            fflush(stdout) != 0;
        metrics->progress_shown = false;
    }
    if (metrics->unheard) return error_set(err, EXIT_FAILED, "cannot write to standard output: %s", strerror(errno));
    return 0;
}

// Writes "24s", "3m05s", "1h02m", "2d03h".
static char *duration_(double seconds, char text[48]) {
    int64_t s = (int64_t)(seconds + 0.5);
    if (s >= 86400) snprintf(text, 48, "%lldd%02lldh", (long long)(s / 86400), (long long)(s / 3600 % 24));
    else if (s >= 3600) snprintf(text, 48, "%lldh%02lldm", (long long)(s / 3600), (long long)(s / 60 % 60));
    else if (s >= 60) snprintf(text, 48, "%lldm%02llds", (long long)(s / 60), (long long)(s % 60));
    else snprintf(text, 48, "%llds", (long long)s);
    return text;
}

enum { STEP_LINE = 1024 };

// Adds a field to a step line, if it is shown.
__attribute__((format(printf, 3, 4))) static void field_(char *line, bool shown, const char *format, ...) {
    char text[64];
    va_list args;
    if (!shown) return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    text_add(line, STEP_LINE, "%s%s", line[0] != '\0' ? " | " : "", text);
}

// Writes "loss 3.2145", and the deviation if it is unusual or `always` is set. A NaN is written without its sign.
static void deviating_(char *line, const char *name, int digits, double value, double z, bool always) {
    double plain = isnan(value) ? fabs(value) : value;
    char deviation[32] = "";
    if (always || fabs(z) > 3.0)
        snprintf(deviation, sizeof deviation, fabs(z) < 1000.0 ? " (z %+.1f)" : " (z %+.0e)", isnan(z) ? fabs(z) : z);
    if (fabs(plain) < 1e4) field_(line, true, "%s %.*f%s", name, digits, plain, deviation);
    else field_(line, true, "%s %.*e%s", name, digits, plain, deviation);
}

static int say_step_(Metrics *metrics, const StepFigures *figures, Error *err) {
    enum { MOST_OUT = 5 };
    bool all = metrics->setup.say_all;
    StepTotals totals = figures_totals(figures);
    double mfu = mfu_(metrics, metrics->setup.flops_per_token_full, figures), ms = figures->seconds * 1e3;
    double exposed = totals.exposed * 1e3;
    int64_t steps = metrics->config->train.steps;
    char most[32], least[32], remaining[48], line[STEP_LINE];
    grid_bytes(figures->stage[totals.fullest].peak_bytes, most);
    grid_bytes(figures->stage[totals.emptiest].peak_bytes, least);
    // While the line is too long, one more of five fields is left out. The file has them in every step, except the
    // remaining time.
    for (int out = 0; out == 0 || (!all && out <= MOST_OUT && strlen(line) > GRID_WIDTH); out++) {
        line[0] = '\0';
        field_(line, true, "step %4lld/%lld", (long long)figures->step, (long long)steps);
        if (figures->dry) {
            field_(line, true, "loss - | norm -");
        } else {
            deviating_(line, "loss", 4, figures->loss, figures->loss_z, all);
            deviating_(line, "norm", 2, figures->norm, figures->norm_z, all);
        }
        field_(line, out < 1, "lr %.1e", figures->lr);
        field_(line, true, ms < 100.0 ? "%.1f ms" : "%.0f ms", ms);
        field_(line, out < 5, "%.0f tok/s", (double)figures->tokens / figures->seconds);
        if (metrics->quickest > metrics->raised) field_(line, true, "MFU ? (peak too low)");
        else if (isfinite(mfu)) field_(line, true, "MFU %.1f%%", mfu / metrics->raised * 100.0);
        else field_(line, true, "MFU n/a");
        field_(line, out < 3, "bubble %.0f%%", totals.bubble * 100.0);
        if (!all || figures->stages == 1) field_(line, true, "%s@%d", most, totals.fullest);
        else field_(line, true, "%s@%d %s@%d", most, totals.fullest, least, totals.emptiest);
        field_(line, out < 4 && (all || exposed >= 0.05), "xfer +%.1f ms", exposed);
        field_(line, figures->skipped, "skipped");
        field_(line, all && figures->slow[0] != '\0', "%s", figures->slow);
        field_(line, out < 2 && figures->step < steps, "%s",
               duration_(metrics->pace * (double)config_samples(metrics->config, figures->step, steps), remaining));
    }
    return say_(metrics, line, err);
}

int metrics_step(Metrics *metrics, const StepFigures *figures, Error *err) {
    enum { MOST_MEASUREMENTS = 8, PACE = 32 }; // a tenth of a second each; steps that the remaining time looks back
    const MetricsSetup *setup = &metrics->setup;
    double now = clock_seconds(), took = metrics->ended > 0.0 ? now - metrics->ended : figures->seconds;
    took /= (double)config_batch_at(metrics->config, figures->step);
    metrics->pace += (took - metrics->pace) / min_int(++metrics->paced, PACE);
    metrics->ended = now;
    // An MFU above 1: the peak was measured while other programs ran, or was configured for another device. A measured
    // peak is measured again. The fastest step's rate cannot serve as the peak: the MFU would then be 98 % in a case in
    // which a peak measured on an idle machine gives 77 %. If the peak remains below a step's rate, the step lines
    // report from then on that the peak is too low.
    double mfu = mfu_(metrics, setup->flops_per_token_full, figures);
    if (mfu > metrics->quickest) metrics->quickest = mfu;
    if (mfu > metrics->raised && setup->measure != NULL && metrics->measurements++ < MOST_MEASUREMENTS)
        metrics->raised = fmax(metrics->raised, setup->measure(setup->context) / setup->peak_tflops);
    int written = write_step_(metrics, figures, err);
    // A step line is printed for the first and the last step, every log.every steps, and for unusual steps.
    bool first = !metrics->said, unusual = figures->skipped || figures->loss_z > 3.0 || figures->norm_z > 3.0;
    metrics->said = true;
    if (!first && !unusual && figures->step % metrics->config->log.every != 0 &&
        figures->step != metrics->config->train.steps)
        return written;
    return say_step_(metrics, figures, err) == 0 ? written : -1;
}

// Writes the file's line first, so that the file has it even if stdout is closed.
static int tell_(Metrics *metrics, Line *line, const char *text, Error *err) {
    int written = line_end_(line, metrics, err);
    return say_(metrics, text, err) == 0 ? written : -1;
}

int metrics_val(Metrics *metrics, int64_t step, double loss, Error *err) {
    char text[128];
    Line line;
    if (isnan(loss)) loss = NAN; // written without its sign
    line_begin_(&line, "val");
    json_members(&line.out, "step %jd loss %.17g perplexity %.9g", step, loss, exp(loss));
    snprintf(text, sizeof text, "val  %4lld/%lld | loss %.4f | perplexity %.2f", (long long)step,
             (long long)metrics->config->train.steps, loss, exp(loss));
    return tell_(metrics, &line, text, err);
}

int metrics_eval(Metrics *metrics, int64_t step, int64_t correct, int64_t examples, int64_t left_out, Error *err) {
    char text[128];
    double accuracy = (double)correct / (double)examples;
    Line line;
    line_begin_(&line, "eval");
    json_members(&line.out, "step %jd name %s accuracy %.17g correct %jd examples %jd left_out %jd", step, "hellaswag",
                 accuracy, correct, examples, left_out);
    snprintf(text, sizeof text, "val  %4lld/%lld | hellaswag %.2f%% (%lld of %lld)", (long long)step,
             (long long)metrics->config->train.steps, 100.0 * accuracy, (long long)correct, (long long)examples);
    return tell_(metrics, &line, text, err);
}

int metrics_sample(Metrics *metrics, int64_t step, int64_t index, const char *text, Error *err) {
    Line line;
    line_begin_(&line, "sample");
    json_members(&line.out, "step %jd index %jd text %s", step, index, text);
    char *shown;
    size_t length;
    FILE *file = xmemstream(&shown, &length);
    fprintf(file, "sample %lld/%lld | ", (long long)step, (long long)metrics->config->train.steps);
    for (const char *at = text; *at != '\0'; at++) {
        fputc(*at, file);
        if (*at == '\n' && at[1] != '\0') fputs("    ", file);
    }
    xmemstream_close(file);
    while (length > 0 && shown[length - 1] == '\n') shown[--length] = '\0'; // the text may end in its own newline
    shown[text_make_printable(shown, length, "\n\t")] = '\0';
    int status = tell_(metrics, &line, shown, err);
    free(shown);
    return status;
}

void metrics_progress(Metrics *metrics, int64_t step) {
    int64_t steps = metrics->config->train.steps;
    if (!metrics->terminal || !file_accepts(STDOUT_FILENO, 0)) return;
    if (metrics->ended == 0.0) metrics->ended = clock_seconds();
    char left[48];
    printf("\r\033[Kstep %4lld/%lld is running", (long long)step, (long long)steps);
    double seconds = metrics->pace * (double)config_samples(metrics->config, step - 1, steps);
    if (metrics->pace > 0.0) printf(", about %s left", duration_(seconds, left));
    fflush(stdout);
    metrics->progress_shown = true;
}

// The metrics of a run: figures, the step line, and a file of JSON lines that survives crashes, resumes and full disks.
#include "run/metrics.h"
#include "base/files.h"
#include "scratch_folder.h"
#include "unit.h"

#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#define NEAR(a, b) assert_true(fabs((a) - (b)) <= 1e-12 * fabs(b))

// ---- files, and captured stdout -------------------------------------------------------------------------------------

static struct {
    char path[CONFIG_TEXT], *said, *file; // said, file: stdout and metrics file of the last record()
} desk;

static int desk_open(void **state) {
    (void)state;
    snprintf(desk.path, sizeof desk.path, "%s", test_path("a/b/metrics.jsonl"));
    unlink(desk.path);
    unsetenv("TRAINER_TTY");
    return 0;
}

static int desk_close(void **state) {
    (void)state;
    free(desk.said), free(desk.file);
    desk.said = desk.file = NULL;
    return 0;
}

static void write_whole(const char *path, const char *text, size_t length) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, length, file), length);
    fclose(file);
}

// Returns the content of a file; the caller frees it.
static char *read_whole(const char *path) {
    int64_t length;
    char *text = file_read_whole(path, 1 << 20, &length, NULL);
    assert_non_null(text);
    return text;
}

// ---- a run of four stages -------------------------------------------------------------------------------------------

static const int64_t MIB = 1 << 20;

// Four stages with four forwards of 1 s and four backwards of 2 s each: with 1F1B the phase takes (4 + 3) * 3 seconds.
static StageFigures stages_of_1f1b[4];

static StepFigures made_figures(int64_t step) {
    for (int s = 0; s < 4; s++) {
        stages_of_1f1b[s] = (StageFigures){.peak_bytes = (4 - s) * 512 * MIB,
                                           .activation_bytes = 100 + s,
                                           .run.slots_used = 4 - s,
                                           .run.slots_lent = s,
                                           .run.evictions = s < 2 ? 3 : 0,
                                           .run.busy = 12.0,
                                           .run.exposed = s == 2 ? 0.0004 : 0.0001};
    }
    return (StepFigures){.step = step,
                         .loss = 3.25 + 0.1 * (double)(step % 3),
                         .norm = 1.23,
                         .lr = 3e-4,
                         .seconds = 0.5,
                         .pipeline = 21,
                         .tokens = 2048,
                         .tokens_seen = 2048 * step,
                         .stages = 4,
                         .stage = stages_of_1f1b,
                         .loss_z = 0.5 * (double)(step % 4),
                         .norm_z = -0.5};
}

static const MetricsSetup known_peak = {8e6, 6e6, 0.02, 4, NULL, NULL, 0, false, NULL};

static Config *made_config(const char *path) {
    static Config config;
    memset(&config, 0, sizeof config);
    config.train.steps = 60;
    config.log.every = 1;
    config.train.global_batch = 8;
    config.train.ramp_count = 2;
    config.train.batch_ramp[0] = (BatchRamp){1, 8}, config.train.batch_ramp[1] = (BatchRamp){37, 16};
    config.schedule.micro_batch = config.parallel.data = config.parallel.context = 1;
    config.parallel.pipeline = config.parallel.tensor = 1;
    config.parallel.layers_per_stage[0] = 2;
    snprintf(config.log.metrics, sizeof config.log.metrics, "%s", path);
    return &config;
}

static Metrics *opened(const char *path, int64_t after_step) {
    return assert_made(metrics_open(made_config(path), &known_peak, after_step, &unit_error));
}

// Records steps with these figures in the desk's file, and every even step's validation; keeps stdout in desk.said and
// the file in desk.file. after_step: the run continues after it; FRESH: the run writes its first line.
enum { FRESH = -1 };
static void record(const MetricsSetup *setup, int64_t after_step, const StepFigures *figures, int count) {
    desk_close(NULL);
    Metrics *metrics = assert_made(metrics_open(made_config(desk.path), setup, after_step, &unit_error));
    fflush(stdout);
    int kept = dup(STDOUT_FILENO), file = open(test_path("stdout"), O_RDWR | O_CREAT | O_TRUNC, 0600), status = 0;
    dup2(file, STDOUT_FILENO);
    close(file);
    if (after_step == FRESH) status = metrics_run(metrics, INT64_C(65285660672), &unit_error);
    for (int i = 0; i < count; i++) {
        status += metrics_step(metrics, &figures[i], &unit_error);
        double loss = isnan(figures[i].loss) ? figures[i].loss : 0.1;
        if (figures[i].step % 2 == 0) status += metrics_val(metrics, figures[i].step, loss, &unit_error);
    }
    fflush(stdout);
    dup2(kept, STDOUT_FILENO);
    close(kept);
    metrics_close(metrics);
    desk.said = read_whole(test_path("stdout"));
    desk.file = read_whole(desk.path);
    assert_int_equal(status, 0);
}

static void record_steps(int64_t after_step, int64_t first, int64_t last) {
    StepFigures figures[64];
    for (int64_t step = first; step <= last; step++) figures[step - first] = made_figures(step);
    record(&known_peak, after_step, figures, (int)(last - first + 1));
}

// Returns the line of one step in desk.said; with `all`, it says everything.
static const char *line_of(const StepFigures *figures, bool all) {
    MetricsSetup setup = known_peak;
    setup.say_all = all;
    record(&setup, FRESH, figures, 1);
    char *end = strstr(desk.said, "\nval ");
    if (end != NULL) end[1] = '\0';
    return desk.said;
}

// ---- figures --------------------------------------------------------------------------------------------------------

TEST(bubble_of_1f1b_is_p_minus_1_over_m_plus_p_minus_1) {
    StepFigures figures = made_figures(1);
    StepTotals totals = figures_totals(&figures);
    NEAR(totals.bubble, 3.0 / 7.0);
    NEAR(totals.exposed, 0.0004);
    assert_int_equal(totals.evictions, 6);
    figures.stages = 1;
    stages_of_1f1b[0].run.busy = 21.0 + 1e-9; // as if clocks disagree slightly
    assert_true(figures_totals(&figures).bubble == 0.0);
    figures.pipeline = 0;
    assert_true(figures_totals(&figures).bubble == 0.0);
}

// ---- the line for people --------------------------------------------------------------------------------------------

TEST_BETWEEN(step_line_says_what_matters_in_its_place, desk_open, desk_close) {
    StepFigures figures = made_figures(12);
    for (int s = 0; s < 4; s++) stages_of_1f1b[s].run.exposed = 0.0;
    const char *text = line_of(&figures, false);
    // MFU: 8e6 * 2048 / 0.5 s over 4 * 0.02e12; 24 steps of 0.5 s and 24 of 1 s are left.
    assert_string_equal(text, "step   12/60 | loss 3.2500 | norm 1.23 | lr 3.0e-04 | 500 ms | 4096 tok/s | MFU 41.0% | "
                              "bubble 43% | 2.00 GiB@0 | 36s\n");
}

TEST_BETWEEN(step_line_says_everything_if_asked, desk_open, desk_close) {
    StepFigures figures = made_figures(60);
    const char *text = line_of(&figures, true);
    assert_string_equal(text, "step   60/60 | loss 3.2500 (z +0.0) | norm 1.23 (z -0.5) | lr 3.0e-04 | 500 ms | 4096 "
                              "tok/s | MFU 41.0% | bubble 43% | 2.00 GiB@0 512.0 MiB@3 | xfer +0.4 ms\n");
}

TEST_BETWEEN(step_line_shows_what_is_unusual_alone, desk_open, desk_close) {
    StepFigures figures = made_figures(12);
    const char *text = line_of(&figures, false);
    assert_string_equal(text, "step   12/60 | loss 3.2500 | norm 1.23 | 500 ms | 4096 tok/s | MFU 41.0% | bubble 43% | "
                              "2.00 GiB@0 | xfer +0.4 ms | 36s\n");
    for (int s = 0; s < 4; s++) stages_of_1f1b[s].run.exposed = 0.0;
    figures.loss_z = 3.04;
    figures.norm_z = -2.9;
    text = line_of(&figures, false);
    assert_non_null(strstr(text, "| loss 3.2500 (z +3.0) | norm 1.23 | "));
    assert_non_null(strstr(text, "| 2.00 GiB@0 | 36s\n"));
}

TEST_BETWEEN(step_line_never_exceeds_120_columns, desk_open, desk_close) {
    const double values[] = {1.5, 123.25, 1e4, 1e8, 1e30, NAN, INFINITY};
    enum { VALUES = sizeof values / sizeof values[0] };
    for (int i = 0; i < VALUES * VALUES; i++) {
        StepFigures figures = made_figures(12);
        figures.step = 123456;
        figures.loss = figures.norm = values[i % VALUES];
        figures.loss_z = figures.norm_z = values[i / VALUES];
        figures.seconds = 123.456;
        figures.tokens = INT64_C(1) << 20;
        figures.skipped = true;
        for (int s = 0; s < 4; s++) stages_of_1f1b[s].run.exposed = 1000.0;
        stages_of_1f1b[0].peak_bytes = INT64_C(179) << 30;
        const char *text = line_of(&figures, false);
        if (strlen(text) > 121) fail_msg("%zu columns: %s", strlen(text) - 1, text);
        assert_non_null(strstr(text, "| 179.00 GiB@0 | "));
        assert_non_null(strstr(text, "| skipped"));
    }
}

// Applies to the step that shows it and to later slower steps, as their fraction uses the same low peak. The file keeps
// the computed value.
TEST_BETWEEN(a_peak_too_low_is_said_from_then_on, desk_open, desk_close) {
    StepFigures figures[] = {made_figures(1), made_figures(2), made_figures(3)};
    figures[1].seconds = 0.1; // MFU 204.8%
    record(&known_peak, FRESH, figures, 3);
    assert_non_null(strstr(desk.said, "| MFU 41.0% |"));
    const char *doubt = strstr(desk.said, "| MFU ? (peak too low) |");
    assert_non_null(doubt);
    assert_non_null(strstr(doubt + 1, "| MFU ? (peak too low) |"));
    assert_non_null(strstr(desk.file, "\"mfu\":2.048"));
}

// Each call returns 50 % of the known peak more: 1.5 times, 2 times, ...
static double more_each_time_(void *context) {
    int *times = context;
    return known_peak.peak_tflops * (1.0 + 0.5 * ++*times);
}

static MetricsSetup growing_peak(int *times) {
    MetricsSetup peak = known_peak;
    peak.measure = more_each_time_;
    peak.context = times;
    return peak;
}

// The first step runs at almost twice the peak. The first measurement returns 1.5 times the peak, which is too low to
// explain it. The second returns twice the peak, and there is no third.
TEST_BETWEEN(a_measured_peak_is_measured_again_and_not_without_end, desk_open, desk_close) {
    int times = 0;
    MetricsSetup peak = growing_peak(&times);
    StepFigures figures[] = {made_figures(1), made_figures(2), made_figures(3)};
    figures[0].seconds = figures[1].seconds = 0.1025; // MFU 199.8%
    record(&peak, FRESH, figures, 3);
    assert_int_equal(times, 2);
    const char *doubt = strstr(desk.said, "| MFU ? (peak too low) |"), *again = strstr(desk.said, "| MFU 99.9% |");
    assert_true(doubt != NULL && again > doubt);
    assert_non_null(strstr(again, "| MFU 20.5% |"));
    times = 0;
    StepFigures fast[20];
    for (int i = 0; i < 20; i++) fast[i] = made_figures(1), fast[i].seconds = 1e-3;
    record(&peak, FRESH, fast, 20);
    assert_int_equal(times, 8);
}

TEST_BETWEEN(unknown_peak_is_said_and_never_a_number, desk_open, desk_close) {
    MetricsSetup unknown = known_peak;
    unknown.peak_tflops = 0.0;
    StepFigures figures = made_figures(1);
    record(&unknown, FRESH, &figures, 1);
    assert_non_null(strstr(desk.said, "| MFU n/a |"));
    assert_non_null(strstr(desk.file, "\"peak_tflops\":null,"));
    assert_non_null(strstr(desk.file, "\"mfu\":null,\"mfu_causal\":null,"));
}

// ---- the file -------------------------------------------------------------------------------------------------------

TEST_BETWEEN(step_line_of_the_file_has_every_key_with_its_unit, desk_open, desk_close) {
    StepFigures figures = made_figures(12);
    figures.loss = 10.0 / 3.0;
    figures.norm = 0.1;
    figures.stages = 2;
    record(&known_peak, 11, &figures, 1);
    assert_non_null(strstr(desk.said, "\nval    12/60 | loss 0.1000 | perplexity 1.11\n"));
    assert_string_equal(
        desk.file,
        "{\"type\":\"step\",\"step\":12,\"loss\":3.3333333333333335,\"loss_z\":0,\"grad_norm\":0.10000000000000001,"
        "\"norm_z\":-0.5,\"lr\":0.00029999999999999997,\"step_ms\":500,\"tokens\":2048,\"tokens_seen\":24576,\"tokens_"
        "per_s\":4096,"
        "\"tokens_per_s_per_gpu\":1024,\"mfu\":0.4096,\"mfu_causal\":0.3072,\"bubble\":0.428571429,\"transfer_exposed_"
        "ms\":0.1,\"evictions\":6,"
        "\"stages\":[{\"stage\":0,\"peak_bytes\":2147483648,\"activation_bytes\":100,\"slots_used\":4,"
        "\"slots_lent\":0},{\"stage\":1,\"peak_bytes\":1610612736,\"activation_bytes\":101,\"slots_used\":3,"
        "\"slots_lent\":1}]}\n"
        "{\"type\":\"val\",\"step\":12,\"loss\":0.10000000000000001,\"perplexity\":1.10517092}\n");
}

TEST_BETWEEN(a_skipped_step_says_so_and_others_do_not, desk_open, desk_close) {
    StepFigures figures = made_figures(4);
    figures.skipped = true;
    figures.loss_z = 12.5;
    record(&known_peak, FRESH, &figures, 1);
    assert_non_null(strstr(desk.said, "| loss 3.3500 (z +12.5) |"));
    assert_non_null(strstr(desk.said, "| xfer +0.4 ms | skipped\n"));
    assert_non_null(strstr(desk.file, ",\"loss_z\":12.5,"));
    assert_non_null(strstr(desk.file, ",\"evictions\":6,\"skipped\":true,\"stages\":["));
}

TEST_BETWEEN(run_line_carries_the_configuration, desk_open, desk_close) {
    record(&known_peak, FRESH, NULL, 0);
    assert_ptr_equal(strstr(desk.file, "{\"type\":\"run\",\"version\":\""), desk.file);
    assert_non_null(strstr(desk.file, "\",\"config\":{\"model\":{"));
    assert_non_null(strstr(desk.file, "},\"world\":4,\"parameters\":65285660672,\"active_parameters\":65285660672,"
                                      "\"microbatches\":8,\"peak_tflops\":0.02,"
                                      "\"flops_per_token_full\":8000000,\"flops_per_token_causal\":6000000,"
                                      "\"after_step\":0}\n"));
}

TEST_BETWEEN(what_is_not_a_number_is_null, desk_open, desk_close) {
    StepFigures figures = made_figures(2);
    figures.norm = INFINITY;
    figures.seconds = 0.0;
    figures.loss = -NAN;
    record(&known_peak, FRESH, &figures, 1);
    const char *file = strstr(desk.file, "{\"type\":\"step\"");
    assert_non_null(strstr(desk.said, "| loss nan | norm"));
    assert_non_null(strstr(desk.said, "| loss nan | perplexity nan\n"));
    assert_non_null(strstr(file, "\"loss\":null,"));
    assert_non_null(strstr(file, "\"grad_norm\":null,"));
    assert_non_null(strstr(file, "\"tokens_per_s\":null,\"tokens_per_s_per_gpu\":null,\"mfu\":null,"));
    assert_null(strstr(file, "inf"));
    assert_null(strstr(file, "nan"));
}

TEST_BETWEEN(resume_continues_the_file_as_if_nothing_had_happened, desk_open, desk_close) {
    record_steps(FRESH, 1, 40);
    AutoText *whole = read_whole(desk.path);

    // The same run, cut in the middle of the line of step 31, with a checkpoint at step 20.
    write_whole(desk.path, whole, (size_t)(strstr(whole, "{\"type\":\"step\",\"step\":31,") + 70 - whole));
    record_steps(20, 21, 40);
    assert_string_equal(desk.file, whole);
}

TEST_BETWEEN(fresh_start_keeps_earlier_runs_and_cuts_a_torn_tail, desk_open, desk_close) {
    record_steps(FRESH, 1, 5);
    AutoText *first = read_whole(desk.path);
    size_t length = strlen(first);

    char torn[1 << 16];
    static const char *const tails[] = {"{", "{\"type\":\"st", "{\"type\":\"step\",\"step\":6,\"lo", "\0\0\0"};
    for (int i = 0; i < 4; i++) {
        memcpy(torn, first, length);
        size_t extra = i == 3 ? 3 : strlen(tails[i]);
        memcpy(torn + length, tails[i], extra);
        write_whole(desk.path, torn, length + extra);
        metrics_close(opened(desk.path, -1));
        AutoText *kept = read_whole(desk.path);
        assert_string_equal(kept, first);
    }

    // A second run in the same file, resumed: the lines of the first run stay.
    record_steps(FRESH, 1, 3);
    metrics_close(opened(desk.path, 2));
    AutoText *both = read_whole(desk.path);
    assert_ptr_equal(strstr(both, first), both);
    const char *second = both + length;
    assert_non_null(strstr(second, "{\"type\":\"step\",\"step\":2,"));
    assert_null(strstr(second, "{\"type\":\"step\",\"step\":3,"));
}

TEST_BETWEEN(a_file_that_is_not_ours_is_left_alone, desk_open, desk_close) {
    char path[TEST_PATH];
    snprintf(path, sizeof path, "%s", test_path("thesis.txt"));
    for (size_t length = 16; length <= 17; length++) { // without and with the last line's end
        write_whole(path, "line\nall my work\n", length);
        assert_refused(metrics_open(made_config(path), &known_peak, -1, &unit_error), EXIT_FAILED,
                       "begins or ends in something that is not a metrics line; name another file");
        AutoText *kept = read_whole(path);
        assert_memory_equal(kept, "line\nall my work\n", length);
    }
}

TESTS_BETWEEN(test_folder_create, test_folder_remove)

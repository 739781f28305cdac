// Which updates are skipped: the deviations and the two rules. Resumes: test_numbers.py.
#include "engine/step_guard.h"
#include "unit.h"

#include <math.h>
#include <string.h>

#define NEAR(a, b) assert_true(fabs((a) - (b)) <= 1e-12 * fabs(b))

TEST(deviation_is_against_the_last_128_values_in_standard_deviations) {
    ZScore z = {{0}, 0};
    for (int i = 0; i < 8; i++) assert_true(zscore_add(&z, i % 2 == 0 ? 1.0 : 3.0) == 0.0); // too few to judge by
    NEAR(zscore_add(&z, 5.0), 3.0);                                                         // mean 2, deviation 1
    for (int i = 0; i < ZSCORE_WINDOW; i++) zscore_add(&z, i % 2 == 0 ? 10.0 : 30.0);
    NEAR(zscore_add(&z, 0.0), -2.0); // the first nine are forgotten: mean 20, deviation 10
}

TEST(deviation_of_equal_values_is_zero_and_infinity_is_not_kept) {
    ZScore z = {{0}, 0};
    for (int i = 0; i < 50; i++) assert_true(zscore_add(&z, 0.1) == 0.0);
    assert_true(zscore_add(&z, 0.3) == 0.0);
    assert_true(zscore_add(&z, INFINITY) > 1e300);
    assert_true(isfinite(zscore_add(&z, 0.1)));
}

// Noise around 3 and around 1, of deviation about 0.06.
static double usual(int64_t step, double mean) {
    return mean + 0.1 * sin(37.0 * (double)step) * cos(11.0 * (double)step);
}

static StepDecision judged(StepGuard *state, const TrainConfig *train, double loss, double norm) {
    double loss_z, norm_z;
    return step_guard_decide(state, train, loss, norm, &loss_z, &norm_z);
}

static void usual_steps(StepGuard *state, const TrainConfig *train, int count) {
    for (int i = 0; i < count; i++) assert_int_equal(judged(state, train, usual(i, 3.0), usual(i, 1.0)), STEP_APPLY);
}

TEST(unless_it_is_allowed_the_first_bad_number_stops) {
    const TrainConfig train = {0};
    const double bad[][2] = {{NAN, 1.0}, {INFINITY, 1.0}, {3.0, NAN}, {3.0, INFINITY}};
    for (int i = 0; i < 4; i++) assert_int_equal(judged(&(StepGuard){0}, &train, bad[i][0], bad[i][1]), STEP_STOP);
}

TEST(outliers_are_counted_once_the_window_holds_enough) {
    TrainConfig train = {.skip_outlier_z = 6.0};
    for (int count = STEP_LEAST - 1; count <= STEP_LEAST; count++) {
        StepDecision expected = count < STEP_LEAST ? STEP_APPLY : STEP_SKIP_OUTLIER;
        StepGuard high_loss = {0}, high_norm = {0};
        usual_steps(&high_loss, &train, count);
        usual_steps(&high_norm, &train, count);
        assert_int_equal(judged(&high_loss, &train, 9.0, 1.0), expected);
        assert_int_equal(judged(&high_norm, &train, 3.0, 9.0), expected);
        assert_int_equal(high_loss.skipped + high_norm.skipped, expected == STEP_APPLY ? 0 : 2);
        assert_int_equal(high_loss.bad, 0);
    }
}

TEST(what_lies_below_the_usual_is_no_outlier_and_zero_turns_it_off) {
    TrainConfig train = {.skip_outlier_z = 6.0}, off = {0};
    StepGuard step_guard = {0};
    usual_steps(&step_guard, &train, 100);
    assert_int_equal(judged(&step_guard, &train, -9.0, -9.0), STEP_APPLY);
    memset(&step_guard, 0, sizeof step_guard);
    usual_steps(&step_guard, &off, 100);
    assert_int_equal(judged(&step_guard, &off, 1e9, 1e9), STEP_APPLY);
}

TEST(a_lasting_change_becomes_the_usual) {
    TrainConfig train = {.skip_outlier_z = 4.0};
    StepGuard step_guard = {0};
    usual_steps(&step_guard, &train, ZSCORE_WINDOW);
    int skipped = 0;
    for (int i = 0; i < ZSCORE_WINDOW; i++) skipped += judged(&step_guard, &train, usual(i, 30.0), 1.0) != STEP_APPLY;
    assert_in_range(skipped, 1, 16);
}

// When ranks may be started again. Whole runs: test_restarts.py.
#include "run/restart.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

static bool allowed_(Restarts *restarts, int rank, int64_t step, const char *action) {
    char why[256];
    LaunchEnd end = {.lost = true, .rank = rank, .step = step};
    snprintf(end.action, sizeof end.action, "%s", action);
    return restart_allowed(restarts, &end, why);
}

static void a_loss_after_new_steps_costs_one_restart(void **state) {
    (void)state;
    Restarts restarts = {.left = 2};
    assert_true(allowed_(&restarts, 1, 10, "step 10 F0"));
    assert_true(allowed_(&restarts, 1, 20, "step 20 F0"));
    assert_int_equal(restarts.left, 0);
    assert_false(allowed_(&restarts, 1, 30, "step 30 F0"));
}

static void a_loss_without_a_new_step_counts_double(void **state) {
    (void)state;
    Restarts restarts = {.left = 4};
    assert_true(allowed_(&restarts, 1, 10, "step 10 F0"));
    assert_true(allowed_(&restarts, 2, 10, "step 10 B0"));
    assert_int_equal(restarts.left, 1);
    assert_false(allowed_(&restarts, 0, 9, "step 9 F0"));
}

static void the_same_action_twice_in_a_row_stops_it(void **state) {
    (void)state;
    Restarts restarts = {.left = 100};
    assert_true(allowed_(&restarts, 1, 10, "step 10 F3"));
    assert_false(allowed_(&restarts, 1, 10, "step 10 F3"));
    Restarts others = {.left = 100};
    assert_true(allowed_(&others, 1, 10, "step 10 F3"));
    assert_true(allowed_(&others, 2, 10, "step 10 F3")); // of another rank
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_loss_after_new_steps_costs_one_restart),
        cmocka_unit_test(a_loss_without_a_new_step_counts_double),
        cmocka_unit_test(the_same_action_twice_in_a_row_stops_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

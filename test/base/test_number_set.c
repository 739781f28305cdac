// Compares sets of numbers with arrays of flags, at sizes around the boundaries of words and of levels.
#include "base/number_set.h"
#include "unit.h"

static int before(const bool *has, int number) {
    do number--;
    while (number >= 0 && !has[number]);
    return number;
}

static int after(const bool *has, int numbers, int number) {
    do number++;
    while (number < numbers && !has[number]);
    return number < numbers ? number : -1;
}

static void assert_same(const NumberSet *set, const bool *has, int numbers) {
    for (int step = 0; step < 40; step++) {
        int number = rand() % numbers;
        assert_int_equal(number_set_has(set, number), has[number]);
        assert_int_equal(number_set_before(set, number), before(has, number));
        assert_int_equal(number_set_after(set, number), after(has, numbers, number));
    }
    assert_int_equal(number_set_before(set, numbers), before(has, numbers));
    assert_int_equal(number_set_after(set, -1), after(has, numbers, -1));
}

TEST(members_are_found_on_both_sides) {
    static const int sizes[] = {1, 2, 63, 64, 65, 127, 128, 4095, 4096, 4097, 262143, 262144, 262145};
    srand(1);
    for (size_t at = 0; at < sizeof sizes / sizeof sizes[0]; at++) {
        int numbers = sizes[at];
        NumberSet set;
        bool *has = calloc((size_t)numbers, sizeof *has);
        number_set_create(&set, numbers);
        assert_int_equal(number_set_before(&set, numbers), -1);
        assert_int_equal(number_set_after(&set, -1), -1);
        for (int round = 0; round < 60; round++) {
            int number = round == 0 ? 0 : round == 1 ? numbers - 1 : rand() % numbers;
            has[number] = round % 3 != 2;
            (has[number] ? number_set_add : number_set_remove)(&set, number);
            assert_same(&set, has, numbers);
        }
        number_set_clear(&set);
        assert_int_equal(number_set_after(&set, -1), -1);
        number_set_free(&set);
        free(has);
    }
}

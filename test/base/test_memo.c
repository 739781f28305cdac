// A memo gives back what was kept for a key, and nothing for any other.
#include "base/memo.h"

#include "unit.h"

#include <stdint.h>
#include <string.h>

typedef struct Key {
    int64_t a, b;
} Key;

static int64_t sum;

static void add_value(void *value) { sum += *(const int64_t *)value; }

TEST(a_key_has_the_value_that_was_kept_first) {
    Memo *memo = memo_create(sizeof(Key));
    char value[64] = "";
    for (int64_t i = 0; i < 2000; i++) {
        Key key = {i, i % 7};
        assert_false(memo_find(memo, &key, value));
        assert_true(memo_keep(memo, &key, &i, sizeof i));
        assert_false(memo_keep(memo, &key, "another", 8));
    }
    for (int64_t i = 0; i < 2000; i++) {
        Key key = {i, i % 7}, other = {i, 7};
        int64_t found = -1;
        assert_true(memo_find(memo, &key, &found));
        assert_int_equal(found, i);
        assert_false(memo_find(memo, &other, value));
    }
    memo_each(memo, add_value);
    assert_int_equal(sum, 2000 * 1999 / 2);
    memo_free(memo);
}

TEST(values_of_one_memo_may_have_different_sizes) {
    Memo *memo = memo_create(sizeof(Key));
    char text[64] = "";
    Key one = {1, 0}, two = {2, 0};
    memo_keep(memo, &one, "a", 2);
    memo_keep(memo, &two, "a longer value", 15);
    assert_true(memo_find(memo, &two, text));
    assert_string_equal(text, "a longer value");
    assert_true(memo_find(memo, &one, text));
    assert_string_equal(text, "a");
    memo_free(memo);
}

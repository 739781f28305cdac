// A memo gives back what was kept first for a key, also while other threads keep the same keys.
#include "base/memo.h"
#include "base/threads.h"
#include "unit.h"

enum { KEYS = 4000, LANES = 3 }; // so many keys that more than 100 share a list of the memo with another

// A value is a text whose length depends on its key. lane: one digit, so that it does not change the length.
static size_t write_value(char *value, int64_t key, int lane) {
    return (size_t)sprintf(value, "%lld by %d%*s", (long long)key, lane, (int)(key % 40), "") + 1;
}

static int keep_and_find(void *memo, int lane, int64_t first, Error *err) {
    bool right = true;
    for (int64_t k = first; k < first + LANES; k++) { // the threads meet at the same keys
        char own[80], kept[80] = "", again[80] = "";
        uint64_t key[2] = {(uint64_t)k, (uint64_t)k % 7}, other[2] = {(uint64_t)k, 7};
        size_t bytes = write_value(own, k, lane);
        if (memo_find(memo, key, kept)) right = right && strlen(kept) + 1 == bytes; // maybe while another keeps it
        bool fresh = memo_keep(memo, key, own, bytes);
        right = right && memo_find(memo, key, kept) && atoll(kept) == k && strlen(kept) + 1 == bytes;
        right = right && (!fresh || strcmp(kept, own) == 0);
        right = right && !memo_keep(memo, key, "another value", 14) && memo_find(memo, key, again);
        right = right && strcmp(again, kept) == 0 && !memo_find(memo, other, again);
    }
    return right ? 0 : error_set(err, EXIT_FAILED, "key %lld or one of the next", (long long)first);
}

static int64_t values;

static void count_value(void *value) { values += atoll(value) >= 0; }

TEST(a_key_has_the_value_that_was_kept_first_whatever_other_threads_keep) {
    Memo *memo = memo_create(2 * sizeof(uint64_t));
    assert_succeeds(threads_each(LANES, KEYS, keep_and_find, memo, &unit_error));
    memo_each(memo, count_value);
    assert_int_equal(values, KEYS + LANES - 1);
    memo_free(memo);
}

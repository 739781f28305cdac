// The pieces of a sequence on context ranks: they cover it, need equal work, and each position has its row.
#include "model/model.h"
#include "unit.h"

// Returns the shape of a rank for b sequences of 2 * ranks * length positions.
static Shape rank_of(int rank, int ranks, int64_t length, int64_t b) {
    int pieces = ranks > 1 ? CONTEXT_PIECES : 1;
    Shape shape = {.batch = b, .seq = 2 * length, .context_rank = rank, .context_ranks = ranks, .pieces = pieces};
    return shape;
}

TEST(every_position_is_on_one_rank_and_rows_are_in_order) {
    for (int ranks = 1; ranks <= 9; ranks++)
        for (int64_t length = 1; length <= 3; length++)
            for (int64_t position = 0; position < 2 * ranks * length; position++) {
                int holders = 0;
                for (int r = 0; r < ranks; r++) {
                    Shape shape = rank_of(r, ranks, length, 5);
                    int64_t row = context_row(&shape, position), part = shape.seq / shape.pieces;
                    if (row < 0) continue;
                    holders++;
                    assert_int_equal(row % shape.batch, 0);
                    int piece = (int)(row / shape.batch / part);
                    assert_int_equal(context_place(&shape, piece) + row / shape.batch % part, position);
                }
                assert_int_equal(holders, 1);
            }
}

TEST(all_ranks_see_as_many_keys) {
    enum { LENGTH = 4 };
    for (int ranks = 2; ranks <= 9; ranks++)
        for (int r = 0; r < ranks; r++) {
            Shape shape = rank_of(r, ranks, LENGTH, 1);
            int64_t before = context_place(&shape, 0) + context_place(&shape, 1);
            assert_int_equal(before, (2 * ranks - 1) * LENGTH);
        }
}

TEST(the_halves_of_a_sequence_are_in_the_order_of_the_ranks_and_in_reverse) {
    for (int r = 0; r < 4; r++) {
        Shape shape = rank_of(r, 4, 10, 1);
        assert_int_equal(context_place(&shape, 0), 10 * r);
        assert_int_equal(context_place(&shape, 1), 10 * (7 - r));
    }
}

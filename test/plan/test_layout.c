// The record of the keys that planners choose: every row is complete, and an encoded layout decodes to the same layout.
#include "config/config_schema.h"
#include "plan/layout.h"
#include "made_plan.h"
#include "unit.h"

#include <string.h>

static const char TINY[] = "configs/llama_tiny.yaml";

TEST(each_row_is_a_key_of_its_own) {
    for (int i = 0; i < LAYOUT_COUNT; i++) {
        assert_int_equal(layout_index(layout_keys[i].name), i);
        assert_non_null(config_find(layout_keys[i].name)); // its table sets the order of printed keys
    }
    assert_int_equal(layout_index("train.lr"), -1);
}

// A layout survives encoding and decoding, and a round trip through another configuration of the same model.
TEST(a_layout_survives_a_text_and_a_configuration) {
    Config config = loaded(TINY, "parallel.pipeline=4 schedule.name=gis schedule.group=half schedule.bpipe=on "
                                 "schedule.evict_to=host schedule.slots=3 schedule.recompute_layers=1 "
                                 "attention.mode=recompute schedule.load_ahead=2 schedule.recompute=pointwise"),
           other = loaded(TINY, "parallel.pipeline=4");
    RunLayout layout = layout_of(&config), read, back;
    char text[LAYOUT_ENCODED];
    assert_true(layout_decode(&read, layout_encode(&layout, text)));
    assert_memory_equal(&read, &layout, sizeof layout);
    layout_set(&read, &other);
    back = layout_of(&other);
    assert_memory_equal(&back, &layout, sizeof layout);
    assert_int_equal(config_recompute(&other, 2), 1);
    assert_int_equal(config_attention(&other, 3), ATTENTION_RECOMPUTE);
    assert_int_equal(config_recompute_kind(&other, 3), RECOMPUTE_POINTWISE);
}

TEST(a_text_that_is_cut_or_longer_is_refused) {
    RunLayout layout = {.tensor = 2}, read;
    char text[LAYOUT_ENCODED + 8];
    layout_encode(&layout, text);
    size_t length = strlen(text);
    strcat(text, " 0");
    assert_false(layout_decode(&read, text));
    text[length - 2] = '\0';
    assert_false(layout_decode(&read, text));
    assert_false(layout_decode(&read, ""));
}

// Two and four chunks, and with a limit the counts up to it that divide layers evenly; a fixed count is tried alone.
TEST(chunks_divide_the_layers_evenly_or_are_few) {
    Config config = loaded(TINY, "parallel.pipeline=4 schedule.name=interleaved model.layers=60");
    LayoutSpace space = {.base = &config, .given = layout_of(&config), .world = 4};
    int64_t values[LAYOUT_CANDIDATES];
    assert_int_equal(layout_candidates(&space, LAYOUT_chunks, &space.given, values), 2);
    space.most_chunks = 8;
    assert_int_equal(layout_most_chunks(&space), 8);
    const int64_t even[] = {2, 3, 4, 5};
    assert_int_equal(layout_candidates(&space, LAYOUT_chunks, &space.given, values), 4);
    assert_memory_equal(values, even, sizeof even);
    space.given.chunks = 12;
    space.fixed = LAYOUT_BIT(chunks);
    assert_int_equal(layout_candidates(&space, LAYOUT_chunks, &space.given, values), 1);
    assert_int_equal(values[0], 12);
}

// A run refuses copies between tensor ranks that do not split rows.
TEST(fixed_copies_are_tried_only_where_a_run_accepts_them) {
    Config config = loaded(TINY, "parallel.pipeline=1 parallel.collectives=copy");
    LayoutSpace space = {.base = &config, .given = layout_of(&config), .world = 4, .fixed = LAYOUT_BIT(collectives)};
    int64_t values[LAYOUT_CANDIDATES];
    for (int i = 0; i < 4; i++) {
        RunLayout at = {.tensor = i < 2 ? 1 : 2, .sequence = i % 2};
        assert_int_equal(layout_candidates(&space, LAYOUT_collectives, &at, values), i != 2);
    }
}

// Changing one key counts as one change, unless the key follows from others or has no meaning in the layout.
TEST(a_change_of_one_key_is_one_change) {
    Config config = loaded(TINY, "parallel.pipeline=4 schedule.bpipe=on schedule.slots=3");
    RunLayout from = layout_of(&config), to;
    from.chunks = 1; // layout_distance expects layouts without auto
    from.split = SPLIT_OFF;
    assert_int_equal(layout_distance(&from, &from, ~(LayoutMask)0), 0);
    for (int i = 0; i < LAYOUT_COUNT; i++) {
        bool means = layout_keys[i].belongs == NULL || layout_keys[i].belongs(&from);
        if (i == LAYOUT_name || i == LAYOUT_bpipe) continue; // other keys follow from these
        to = from;
        layout_put(&to, i, layout_get(&from, i) + 2);
        if (layout_distance(&from, &to, ~(LayoutMask)0) != (means && !layout_keys[i].free))
            fail_msg("%s", layout_keys[i].name);
    }
    assert_int_equal(layout_decided(&config, true), LAYOUT_BIT(pipeline) | LAYOUT_BIT(bpipe) | LAYOUT_BIT(slots));
}

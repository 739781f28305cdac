// JSON is written with its commas, on one line or on several.
#include "base/json_out.h"
#include "unit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

TEST(commas_stand_between_values_and_nowhere_else) {
    char text[512] = "";
    JsonOut out = {.file = fmemopen(text, sizeof text, "w")};
    json_begin(&out, NULL, '{');
    json_put_text(&out, "a", "b\"c");
    json_put_text(&out, "none", NULL);
    json_begin(&out, "empty", '[');
    json_end(&out, ']');
    json_begin(&out, "list", '[');
    json_put_integer(&out, NULL, -9007199254740993);
    json_put_number(&out, NULL, 0.1);
    json_put_number(&out, NULL, NAN);
    json_put_digits(&out, NULL, 2.0 / 3, 3);
    json_begin(&out, NULL, '{');
    json_put_truth(&out, "yes", true);
    json_put_null(&out, "nothing");
    json_end(&out, '}');
    json_end(&out, ']');
    fputs("{}", json_put(&out, "own"));
    json_end(&out, '}');
    fclose(out.file);
    assert_string_equal(text, "{\"a\":\"b\\\"c\",\"none\":null,\"empty\":[],\"list\":[-9007199254740993,0.1,null,0.667,"
                              "{\"yes\":true,\"nothing\":null}],\"own\":{}}");
}

TEST(lines_break_after_commas_and_before_brackets) {
    char text[64] = "";
    JsonOut out = {.file = fmemopen(text, sizeof text, "w")};
    json_begin(&out, NULL, '[');
    json_line(&out);
    json_put_integer(&out, NULL, 1);
    json_line(&out);
    json_put_integer(&out, NULL, 2);
    json_line(&out);
    json_end(&out, ']');
    fclose(out.file);
    assert_string_equal(text, "[\n1,\n2\n]");
}

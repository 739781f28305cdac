// Kernels of products: what is timed, what is used, and what the file keeps, with a backend that measures what a test
// tells it to. How ranks share their choices is a test of the virtual GPU (test/virtual).
#include "device/products.h"
#include "scratch_folder.h"
#include "base/alloc.h"
#include "base/files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { MOST = 16 };

// A device that meets the products 1 .. `products` and finds kernel `favourite` the quickest for each.
typedef struct Bench {
    Backend be;
    Config config;
    int products;
    unsigned char favourite;
    int measured, given;      // in the latest call
    ProductChoice used[MOST]; // [given]
} Bench;

static bool is_used(const Bench *bench, int64_t product) {
    for (int i = 0; i < bench->given; i++)
        if (bench->used[i].product[0] == product) return true;
    return false;
}

static int64_t measure(Backend *be, ProductChoice **choices) {
    Bench *bench = be->self;
    *choices = xcalloc(MOST, sizeof **choices);
    bench->measured = 0;
    for (int64_t product = 1; product <= bench->products; product++) {
        if (is_used(bench, product)) continue;
        ProductChoice *choice = &(*choices)[bench->measured++];
        choice->product[0] = product;
        choice->product[1] = -5;
        memset(choice->kernel, bench->favourite, sizeof choice->kernel);
        choice->seconds = 1e-3;
        choice->suggested = 2e-3;
    }
    return bench->measured;
}

static void use(Backend *be, const ProductChoice *choices, int64_t count) {
    Bench *bench = be->self;
    assert_true(count <= MOST);
    bench->given = (int)count;
    for (int64_t i = 0; i < count; i++) bench->used[i] = choices[i];
}

// The kernel of a product; 0: the library's first suggestion.
static int kernel_of(const Bench *bench, int64_t product) {
    for (int i = 0; i < bench->given; i++)
        if (bench->used[i].product[0] == product) return bench->used[i].kernel[0];
    return 0;
}

// What was logged since the last call.
static const char *said(void) {
    static char text[4096];
    static long before;
    FILE *file = fopen(test_path("said"), "r");
    assert_non_null(file);
    assert_int_equal(fseek(file, before, SEEK_SET), 0);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    before = ftell(file);
    fclose(file);
    return text;
}

static int create(void **state) {
    return test_folder_create(state) != 0 || freopen(test_path("said"), "a", stderr) == NULL;
}

// One start of a run: its products from 1 on, and the kernel that this run's timing prefers.
static void start(Bench *bench, const char *file, int products, unsigned char favourite) {
    Log log = {"test", -1, -1, LOG_NORMAL};
    Error err = {0};
    memset(bench, 0, sizeof *bench);
    bench->be.self = bench;
    bench->be.measure_products = measure;
    bench->be.use_products = use;
    snprintf(bench->be.choices, sizeof bench->be.choices, "a GPU, a \"library\" 1");
    bench->products = products;
    bench->favourite = favourite;
    snprintf(bench->config.hardware.products, CONFIG_TEXT, "%s", file[0] == '\0' ? "" : test_path(file));
    if (products_recall(&bench->config, &bench->be, NULL, &log, &err) != 0) fail_msg("%s", err.text);
    if (products_choose(&bench->config, &bench->be, NULL, &log, &err) != 0) fail_msg("%s", err.text);
}

static void a_later_start_measures_only_what_is_new_and_keeps_every_choice(void **state) {
    Bench bench;
    (void)state;
    start(&bench, "kept/products.json", 3, 7);
    assert_int_equal(bench.measured, 3);
    assert_int_equal(kernel_of(&bench, 3), 7);
    start(&bench, "kept/products.json", 5, 9);
    assert_int_equal(bench.measured, 2);
    assert_int_equal(kernel_of(&bench, 3), 7);
    assert_int_equal(kernel_of(&bench, 5), 9);
    start(&bench, "kept/products.json", 5, 11);
    assert_int_equal(bench.measured, 0);
    assert_int_equal(kernel_of(&bench, 3), 7);
    assert_int_equal(kernel_of(&bench, 5), 9);
    assert_string_equal(said(), "");
}

static void a_choice_is_read_as_it_was_written(void **state) {
    Bench bench;
    (void)state;
    start(&bench, "exact.json", 1, 0xa5);
    ProductChoice written = bench.used[0];
    start(&bench, "exact.json", 1, 1);
    assert_memory_equal(written.product, bench.used[0].product, sizeof written.product);
    assert_memory_equal(written.kernel, bench.used[0].kernel, sizeof written.kernel);
}

// Another run writes its choices after this one has read the file.
static int64_t measure_while_another_run_starts(Backend *be, ProductChoice **choices) {
    Bench other;
    start(&other, "two.json", 2, 3);
    return measure(be, choices);
}

static void of_two_runs_that_start_at_once_both_use_the_choices_of_the_first_to_write(void **state) {
    Bench bench;
    Error err = {0};
    Log log = {"test", -1, -1, LOG_NORMAL};
    (void)state;
    start(&bench, "two.json", 0, 4);
    bench.products = 3;
    bench.be.measure_products = measure_while_another_run_starts;
    assert_int_equal(products_choose(&bench.config, &bench.be, NULL, &log, &err), 0);
    assert_int_equal(bench.measured, 3);
    assert_int_equal(kernel_of(&bench, 1), 3);
    assert_int_equal(kernel_of(&bench, 2), 3);
    assert_int_equal(kernel_of(&bench, 3), 4);
}

static void many_runs_that_start_at_once_agree(void **state) {
    enum { RUNS = 8 };
    int used[RUNS], ends[2];
    (void)state;
    assert_int_equal(pipe(ends), 0);
    for (int i = 0; i < RUNS; i++) {
        if (fork() != 0) continue;
        Bench bench;
        start(&bench, "many.json", 4, (unsigned char)(i + 1));
        int kernel = kernel_of(&bench, 4);
        _exit(write(ends[1], &kernel, sizeof kernel) == sizeof kernel ? 0 : 1);
    }
    for (int i = 0; i < RUNS; i++) {
        int status = 1;
        assert_true(wait(&status) > 0);
        assert_int_equal(status, 0);
    }
    assert_int_equal(read(ends[0], used, sizeof used), sizeof used);
    for (int i = 0; i < RUNS; i++) assert_int_equal(used[i], used[0]);
    assert_true(used[0] > 0);
    close(ends[0]), close(ends[1]);
}

static char *contents(const char *file, int64_t *length) {
    Error err = {0};
    char *text = file_read_whole(test_path(file), 1 << 20, length, &err);
    assert_non_null(text);
    return text;
}

static void put(const char *file, const char *text, int64_t length) {
    FILE *to = fopen(test_path(file), "w");
    assert_non_null(to);
    assert_int_equal(fwrite(text, 1, (size_t)length, to), length);
    fclose(to);
}

static void of_a_damaged_file_no_choice_is_used_and_products_are_timed_anew(void **state) {
    Bench bench;
    int64_t length;
    (void)state;
    start(&bench, "damaged.json", 2, 7);
    char *whole = contents("damaged.json", &length);
    for (int64_t i = 0; i < length; i += 5) {
        whole[i] ^= 1;
        put("damaged.json", whole, length);
        whole[i] ^= 1;
        start(&bench, "damaged.json", 2, 9);
        assert_int_equal(kernel_of(&bench, 1), 9);
        const char *sentence = said();
        assert_non_null(strstr(sentence, "hardware.products: "));
        assert_non_null(strstr(sentence, "is torn or was changed; products are timed anew\n"));
        assert_null(strchr(strchr(sentence, '\n') + 1, '\n')); // one sentence
    }
    for (int64_t left = 1; left < length; left += 50) {
        put("damaged.json", whole, left);
        start(&bench, "damaged.json", 2, 9);
        assert_int_equal(kernel_of(&bench, 2), 9);
        assert_non_null(strstr(said(), "timed anew"));
    }
    start(&bench, "damaged.json", 2, 11); // the file was written again
    assert_int_equal(bench.measured, 0);
    assert_int_equal(kernel_of(&bench, 2), 9);
    assert_string_equal(said(), "");
    free(whole);
}

static void choices_of_another_gpu_or_library_are_not_used(void **state) {
    Bench bench;
    Error err = {0};
    Log log = {"test", -1, -1, LOG_NORMAL};
    (void)state;
    start(&bench, "foreign.json", 2, 7);
    snprintf(bench.be.choices, sizeof bench.be.choices, "a GPU, a \"library\" 2");
    assert_int_equal(products_recall(&bench.config, &bench.be, NULL, &log, &err), 0);
    assert_int_equal(bench.given, 0);
    assert_non_null(strstr(said(), "is of another GPU, driver or cuBLASLt; products are timed anew"));
    bench.favourite = 8;
    assert_int_equal(products_choose(&bench.config, &bench.be, NULL, &log, &err), 0);
    assert_int_equal(kernel_of(&bench, 2), 8);
}

static void only_choices_that_the_file_holds_are_used(void **state) {
    Bench bench;
    (void)state;
    assert_int_equal(mkdir(test_path("folder.json"), 0777), 0);
    start(&bench, "folder.json", 2, 7); // no file can have this name
    assert_int_equal(bench.measured, 2);
    assert_int_equal(bench.given, 0);
    const char *sentences = said();
    assert_non_null(strstr(sentences, "cannot be written: "));
    assert_non_null(strstr(sentences, "are computed by cuBLASLt's first suggestion: name another file"));
}

static void without_a_file_or_a_choice_nothing_is_timed(void **state) {
    Bench bench;
    (void)state;
    start(&bench, "", 2, 7);
    assert_int_equal(bench.measured + bench.given, 0);
    bench.be.measure_products = NULL;
    snprintf(bench.config.hardware.products, CONFIG_TEXT, "%s", test_path("never.json"));
    assert_int_equal(products_recall(&bench.config, &bench.be, NULL, NULL, NULL), 0);
    assert_int_equal(products_choose(&bench.config, &bench.be, NULL, NULL, NULL), 0);
    assert_int_equal(access(test_path("never.json"), F_OK), -1);
    assert_string_equal(said(), "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_later_start_measures_only_what_is_new_and_keeps_every_choice),
        cmocka_unit_test(a_choice_is_read_as_it_was_written),
        cmocka_unit_test(of_two_runs_that_start_at_once_both_use_the_choices_of_the_first_to_write),
        cmocka_unit_test(many_runs_that_start_at_once_agree),
        cmocka_unit_test(of_a_damaged_file_no_choice_is_used_and_products_are_timed_anew),
        cmocka_unit_test(choices_of_another_gpu_or_library_are_not_used),
        cmocka_unit_test(only_choices_that_the_file_holds_are_used),
        cmocka_unit_test(without_a_file_or_a_choice_nothing_is_timed),
    };
    return cmocka_run_group_tests(tests, create, test_folder_remove);
}

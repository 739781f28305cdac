// The record by which runs are compared: checksums of unsharded tensors for any layout, and which difference is
// reported.
#include "made_plan.h"
#include "models.h"
#include "run/record.h"

#include "base/crc64.h"
#include "unit.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

// ---- one rank's part of a small model, without the rest of a run ----------------------------------------------------

typedef struct Bench {
    Config config;
    Run run;
    Comm group; // the group of tensor ranks
} Bench;

static Bench *bench_open(const char *path, const char *overrides, int tensor_rank, int data_rank) {
    Bench *bench = calloc(1, sizeof *bench);
    Error err = {0};
    int argc = 0;
    char **argv = NULL;
    Run *run = &bench->run;
    bench->config = loaded(path, overrides);
    run->config = &bench->config;
    run->be = backend_cpu_create(bench->config.train.precision, 1, &err);
    run->world = world_join(&argc, &argv, &err);
    bench->group = (Comm){.rank = tensor_rank, .size = (int)bench->config.parallel.tensor};
    Comm *tensor = bench->group.size > 1 ? &bench->group : NULL;
    const Schedule placed = {.stages = (int)bench->config.parallel.pipeline, .chunks = 1};
    if (stage_create(&run->stage, model_of(&bench->config), &bench->config, &placed, run->be, 0, tensor, data_rank,
                     &err) != 0)
        fail_msg("%s", err.text);
    if (recorder_create(run, 1, &err) != 0) fail_msg("%s", err.text);
    return bench;
}

static void bench_close(Bench *bench) {
    recorder_destroy(bench->run.recorder);
    stage_destroy(&bench->run.stage);
    world_leave(bench->run.world, 0);
    bench->run.be->destroy(bench->run.be);
    free(bench);
}

// Sets the gradients equal to the weights, which depend only on the place in the unsharded tensor.
static Record recorded(Bench *bench) {
    StageTensors *tensors = &bench->run.stage.tensors;
    Error err = {0};
    for (int64_t i = 0; i < tensors->count; i++)
        if (!tensors->tensors[i].alias)
            memcpy(tensors->tensors[i].gradient, tensors->tensors[i].weight, (size_t)tensors->tensors[i].count * 4);
    assert_int_equal(recorder_gradients(&bench->run, 1.5, 2.5, &err), 0);
    assert_int_equal(recorder_weights(&bench->run, &err), 0);
    Record record = recorder_take(bench->run.recorder);
    assert_int_equal(record.steps, 1);
    return record;
}

static const uint64_t *gradients_of(const Record *record) { return record->words + 2; }

static const uint64_t *weights_of(const Record *record) { return record->words + 2 + record->entries; }

#define SMALL "parallel.pipeline=1 model.layers=2 schedule.bpipe=off"

static const char *const configs[] = {"configs/llama_tiny.yaml", "configs/gpt_tiny.yaml"};

// ---- tests ----------------------------------------------------------------------------------------------------------

TEST(checksums_are_those_of_the_whole_tensors_without_padding) {
    Crc64 crc = crc64_make();
    for (int f = 0; f < 2; f++) {
        Bench *bench = bench_open(configs[f], SMALL, 0, 0);
        Record record = recorded(bench);
        const StageTensors *tensors = &bench->run.stage.tensors;
        int seen = 0;
        for (int64_t i = 0; i < tensors->count; i++) {
            const Tensor *tensor = &tensors->tensors[i];
            if (tensor->alias) continue;
            int64_t bytes = tensor->spec->rows * tensor->spec->cols * 4; // padding is at the end
            uint64_t whole = crc64_finish(&crc, crc64_add(&crc, 0, tensor->weight, (size_t)bytes), bytes);
            assert_true(weights_of(&record)[tensor->index] == whole);
            assert_true(gradients_of(&record)[tensor->index] == whole);
            seen++;
        }
        assert_true(seen > 15);
        record_free(&record);
        bench_close(bench);
    }
}

// finish(x) is x XOR a constant, so XOR of the ranks' results sums the parts. With four ranks the constants cancel, and
// one more finish completes the sum.
TEST(parts_of_tensor_and_data_ranks_add_up_to_the_whole) {
    Crc64 crc = crc64_make();
    for (int f = 0; f < 2; f++) {
        Bench *whole = bench_open(configs[f], SMALL, 0, 0);
        Record one = recorded(whole);
        const TensorTable *table = &whole->run.stage.table;
        uint64_t *sum = calloc((size_t)table->count, sizeof *sum);
        for (int rank = 0; rank < 4; rank++) {
            Bench *part = bench_open(configs[f], SMALL " parallel.tensor=2 parallel.data=2", rank % 2, rank / 2);
            Record record = recorded(part);
            for (int64_t i = 0; i < table->count; i++) sum[i] ^= weights_of(&record)[i];
            record_free(&record);
            bench_close(part);
        }
        for (int64_t i = 0; i < table->count; i++) {
            int64_t bytes = table->specs[i].rows * table->specs[i].cols * 4;
            if (table->specs[i].tied_to >= 0) continue;
            assert_true((sum[i] ^ crc64_finish(&crc, 0, bytes)) == weights_of(&one)[i]);
        }
        free(sum);
        record_free(&one);
        bench_close(whole);
    }
}

static Record made_record(const TensorTable *table) {
    Record record = {5, 3, table->count, NULL};
    record.words = calloc((size_t)(3 * record_width(&record)), sizeof *record.words);
    for (int64_t i = 0; i < 3 * record_width(&record); i++) record.words[i] = (uint64_t)i * 0x9e3779b97f4a7c15u;
    return record;
}

TEST(the_first_difference_is_named_in_the_order_of_a_step) {
    Config config = loaded(configs[0], "");
    TensorTable table = model_table(&llama_model, &config.model);
    char text[256];
    Record one = made_record(&table), other = made_record(&table);
    int64_t width = record_width(&one), second = width, entries = table.count;
    assert_int_equal(record_compare(&one, &other, &table, text, sizeof text), 0);
    // In reverse order: each new difference precedes those before it, and must be the one reported.
    const struct {
        int64_t word;
        const char *expected;
    } later_to_earlier[] = {
        {2 * width, "step 7: the loss is"},
        {second + 2 + entries + 3, "step 6: the updated weight "},
        {second + 2 + entries, "step 6: the updated weight model.embed_tokens.weight has the checksums"},
        {second + 1, "step 6: the norm is"},
        {second + 2, "step 6: the gradient of model.embed_tokens.weight"},
        {second + 2 + entries - 1, "step 6: the gradient of lm_head.weight"},
        {second, "step 6: the loss is"},
        {1, "step 5: the norm is"},
    };
    for (int i = 0; i < COUNT(later_to_earlier); i++) {
        other.words[later_to_earlier[i].word] ^= 1;
        assert_int_equal(record_compare(&one, &other, &table, text, sizeof text), 1);
        if (strstr(text, later_to_earlier[i].expected) != text) fail_msg("%s", text);
    }
    record_free(&other);
    other = made_record(&table);
    other.steps = 2;
    assert_int_equal(record_compare(&one, &other, &table, text, sizeof text), 1);
    record_free(&one);
    record_free(&other);
    table_free(&table);
}

TEST(a_record_comes_back_from_a_file_and_half_of_one_does_not) {
    char path[] = P_tmpdir "/test_record_XXXXXX";
    int file = mkstemp(path);
    TensorTable table = {.count = 7};
    Record one = made_record(&table), back;
    Error err = {0};
    assert_true(file >= 0);
    assert_int_equal(record_read(&back, file, &err), -1);
    memset(&err, 0, sizeof err);
    assert_int_equal(record_write(&one, path, &err), 0);
    assert_int_equal(record_read(&back, file, &err), 0);
    assert_int_equal(back.first, 5);
    assert_int_equal(back.entries, 7);
    assert_memory_equal(back.words, one.words, (size_t)(3 * record_width(&one)) * sizeof *one.words);
    record_free(&back);
    assert_int_equal(ftruncate(file, 100), 0);
    assert_int_equal(record_read(&back, file, &err), -1);
    record_free(&back);
    record_free(&one);
    close(file);
    unlink(path);
}

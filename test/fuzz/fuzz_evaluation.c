// A multiple-choice file: opens it and reads every row.
#include "fuzz.h"

#include "data/evaluate.h"

enum { LENGTH = 16, VOCABULARY = 300 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Error err = {0};
    Evaluation *evaluation = evaluation_open("x", fuzz_file("eval.bin", data, size), LENGTH, VOCABULARY, &err);
    PROMISE(evaluation != NULL ? err.code == 0 : err.code != 0 && strncmp(err.text, "x: ", 3) == 0);
    if (evaluation == NULL) return 0;
    int64_t rows = evaluation->rows;
    float losses[LENGTH] = {0};
    double *means = calloc((size_t)rows + 1, sizeof *means);
    PROMISE(means != NULL);
    for (int64_t row = 0; row < rows; row++) {
        int32_t inputs[LENGTH], targets[LENGTH];
        evaluation_fetch(evaluation, row, inputs, targets, 1);
        for (int i = 0; i < LENGTH; i++) PROMISE(inputs[i] >= 0 && inputs[i] < VOCABULARY && targets[i] < VOCABULARY);
        means[row] = evaluation_mean(evaluation, row, losses, 1);
        PROMISE(means[row] == 0.0);
    }
    PROMISE(evaluation_correct(evaluation, means) <= evaluation->examples);
    free(means);
    evaluation_close(evaluation);
    return 0;
}

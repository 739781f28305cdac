// A token file, another file next to it, and every sample. The first byte is the sequence length. The bytes up to the
// next 0xFF go to the side file, or to a Megatron-LM index if the first byte is above 127.
#include "fuzz.h"

#include "data/dataset.h"

enum { VOCABULARY = 257 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) return 0;
    int64_t seq_len = 1 + data[0] % 64;
    const uint8_t *split = memchr(data + 1, 0xFF, size - 1);
    size_t side = split == NULL ? 0 : (size_t)(split - data - 1), shard = 1 + side + (split != NULL);
    remove(fuzz_file("own.json", "", 0));
    remove(fuzz_file("own_train_000.idx", "", 0));
    if (side > 0) fuzz_file(data[0] > 127 ? "own_train_000.idx" : "own.json", data + 1, side);
    Error err = {0};
    Dataset *dataset = dataset_open("data.train", fuzz_file("own_train_000.bin", data + shard, size - shard), seq_len,
                                    VOCABULARY, 1, &err);
    PROMISE(dataset != NULL ? err.code == 0 : err.code != 0 && strncmp(err.text, "data.train: ", 12) == 0);
    int32_t inputs[64], targets[64];
    for (int64_t i = 0; dataset != NULL && i < dataset->samples; i++) {
        int64_t sample = dataset_shuffled(dataset, 1337, i);
        PROMISE(sample >= 0 && sample < dataset->samples);
        if (dataset_fetch(dataset, sample, inputs, targets, 1, &err) != 0) continue;
        for (int64_t k = 0; k < seq_len; k++) {
            PROMISE(inputs[k] >= 0 && inputs[k] < VOCABULARY && targets[k] >= 0 && targets[k] < VOCABULARY);
            PROMISE(k == 0 || inputs[k] == targets[k - 1]);
        }
    }
    dataset_close(dataset);
    return 0;
}

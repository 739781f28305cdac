// A SentencePiece model; then a text through it, and every id back. Up to a 0xFF byte goes the text.
#include "fuzz.h"

#include "data/sentencepiece.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const uint8_t *split = memchr(data, 0xFF, size);
    size_t text = split == NULL ? 0 : (size_t)(split - data), model = split == NULL ? 0 : text + 1;
    Error err = {0};
    SentencePiece *pieces = sentencepiece_open("x", fuzz_file("x.model", data + model, size - model), &err);
    PROMISE(pieces != NULL ? err.code == 0 : err.code != 0 && err.text[0] != '\0');
    if (pieces == NULL) return 0;
    int64_t capacity = sentencepiece_capacity((int64_t)text), count = sentencepiece_count(pieces);
    int32_t *ids = malloc((size_t)capacity * sizeof *ids);
    PROMISE(ids != NULL);
    int64_t used = sentencepiece_encode(pieces, (const char *)data, (int64_t)text, ids);
    PROMISE(used >= -1 && used <= capacity);
    for (int64_t i = 0; i < used; i++) PROMISE(ids[i] >= 0 && ids[i] < count);
    FILE *null = fopen("/dev/null", "w");
    if (used > 0) sentencepiece_decode(pieces, ids, used, null);
    for (int32_t id = 0; id < count && id < 64; id++) sentencepiece_decode(pieces, &id, 1, null);
    fclose(null);
    free(ids);
    sentencepiece_close(pieces);
    return 0;
}

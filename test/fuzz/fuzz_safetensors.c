// A safetensors file: reads the header, and every byte of every tensor in it.
#include "fuzz.h"

#include "base/files.h"
#include "checkpoint/safetensors.h"

static void read_all_(const SafeFile *file, int64_t bytes) {
    int64_t covered = 0;
    for (int64_t i = 0; i < file->count; i++) {
        const SafeTensor *tensor = &file->tensors[i];
        Error err = {0};
        char shape[96];
        PROMISE(tensor->bytes >= 0 && tensor->offset >= 8 && tensor->offset + tensor->bytes <= bytes);
        PROMISE(strlen(safetensors_shape(tensor, shape, sizeof shape)) < sizeof shape);
        covered += tensor->bytes;
        void *raw = malloc((size_t)tensor->bytes + 1);
        float *values = malloc((size_t)tensor->bytes * 2 + sizeof *values); // at least two bytes per value
        PROMISE(raw != NULL && values != NULL);
        PROMISE(file_read(file->fd, file->path, tensor->offset, raw, tensor->bytes, &err) == 0);
        if (tensor->type != SAFE_OTHER)
            safetensors_to_float(values, raw, tensor->type, tensor->bytes / tensor->element);
        free(values);
        free(raw);
    }
    PROMISE(covered <= bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    SafeFile file;
    Error err = {0};
    int status = safetensors_open(&file, fuzz_file("x.safetensors", data, size), &err);
    PROMISE(status == 0 ? err.code == 0 : err.code == EXIT_FAILED && strstr(err.text, "x.safetensors: ") != NULL);
    if (status == 0) read_all_(&file, (int64_t)size);
    safetensors_close(&file);
    return 0;
}

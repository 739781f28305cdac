// The small files of a checkpoint of one tensor. The first byte selects the file: 'm' manifest.json (with a corrected
// checksum, or it would be refused at once), 'i' the index of a model, 'c' config.json, 't' training.json.
#include "fuzz.h"

#include "base/crc64.h"
#include "checkpoint/checkpoint_files.h"
#include "checkpoint/checkpoint_source.h"
#include "checkpoint/hf_config.h"

#include <inttypes.h>

static const char tensor[] =
    "\x40\0\0\0\0\0\0\0{\"norm.weight\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}\0\0\0\0\0\0\0";
static Config config;
static Crc64 crc;

static void prepare_(void) {
    Error err = {0};
    if (config.path[0] != '\0') return;
    crc = crc64_make();
    fuzz_file("a.safetensors", tensor, sizeof tensor);
    SafeFile file;
    char path[256];
    snprintf(path, sizeof path, "%s/a.safetensors", fuzz_folder());
    PROMISE(safetensors_open(&file, path, &err) == 0 && file.count == 1);
    safetensors_close(&file);
    PROMISE(config_load(&config, fuzz_file("model.yaml", FUZZ_MODEL, sizeof FUZZ_MODEL - 1), NULL, 0, &err) == 0);
}

static void manifest_(const uint8_t *data, size_t size, Error *err) {
    char *text = malloc(size + 64);
    PROMISE(text != NULL);
    memcpy(text, data, size);
    uint64_t sum = crc64_finish(&crc, crc64_add(&crc, 0, text, size), (int64_t)size);
    size += (size_t)sprintf(text + size, "  \"crc64\": \"%016" PRIx64 "\"\n}\n", sum);
    fuzz_file(CHECKPOINT_MANIFEST, text, size);
    Manifest manifest;
    Source source;
    int status = manifest_read(&manifest, fuzz_folder(), err);
    if (status == 0) {
        Error damage = {0}; // damage of the checkpoint's files
        checkpoint_verify(fuzz_folder(), 0, 1, NULL, &damage);
        source_open_manifest(&source, fuzz_folder(), &manifest, NULL);
        source_close(&source);
    }
    manifest_free(&manifest);
    free(text);
}

static void index_(const uint8_t *data, size_t size, Error *err) {
    Source source;
    fuzz_file(CHECKPOINT_INDEX, data, size);
    if (source_open_model(&source, fuzz_folder(), err) == 0) {
        SourceTensor *found = source_find(&source, "model.norm.weight");
        PROMISE(found == NULL || found->tensor->bytes == 8);
    }
    source_close(&source);
}

static void training_(const uint8_t *data, size_t size, Error *err) {
    TrainingState state;
    fuzz_file(CHECKPOINT_TRAINING, data, size);
    if (training_state_read(&state, fuzz_folder(), err) != 0) return;
    FILE *null = fopen("/dev/null", "w");
    training_state_write(&config, &state, null);
    fclose(null);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Error err = {0};
    prepare_();
    if (size < 1) return 0;
    uint8_t kind = data[0];
    data++, size--;
    if (kind == 'm') manifest_(data, size, &err);
    if (kind == 'i') index_(data, size, &err);
    if (kind == 't') training_(data, size, &err);
    if (kind == 'c') {
        fuzz_file(CHECKPOINT_CONFIG, data, size);
        hf_config_compare(&config, fuzz_folder(), true, &err);
        hf_config_compare(&config, fuzz_folder(), false, NULL);
    }
    PROMISE(err.code == 0 || (err.text[0] != '\0' && err.text[0] != ':'));
    return 0;
}

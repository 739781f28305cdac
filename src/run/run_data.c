// Opens the data sets of a run, and compares their tokenizers and what the ranks see of them.
#include "run.h"

#include "base/crc64.h"

// Returns the data sets in their order, the sources of data.train first; NULL after the last.
static const Dataset *dataset_at_(const RunData *data, int i) {
    int sources = data->train == NULL ? 0 : data->train->count;
    return i < sources ? data->train->source[i] : i == sources ? data->val : NULL;
}

static int open_(const Config *config, const Options *ask, RunData *data, Error *err) {
    const ModelConfig *m = &config->model;
    const DataConfig *c = &config->data;
    const Dataset *set;
    int64_t batch = config->train.global_batch;
    // 1. An encoder needs a masked objective, and writes no text.
    bool writes = ask->generate != NULL || config->sample.every > 0 || c->hellaswag[0] != '\0';
    if (!m->causal && writes)
        return config_error(
            config, "model.causal", err,
            "an encoder does not predict the next token; leave out --generate, sample.every and data.hellaswag");
    if (!m->causal && config->train.objective != OBJECTIVE_MASKED)
        return config_error(config, "train.objective", err,
                            "an encoder would see the token that it predicts; set train.objective: masked");
    if (!m->causal && c->mask_token < 0)
        return config_error(config, "data.mask_token", err,
                            "is missing, and train.objective masked needs it; set it to a token of the vocabulary");
    if (ask->generate != NULL) return 0;
    // 2. The data sets. data.hellaswag is used at its intervals while training, and always for --validate.
    if (!ask->validate) {
        data->train = blend_open("data.train", c->train, c->train_sources, m->seq_len, m->vocab, batch, err);
        if (data->train == NULL) return -1;
    } else if (c->val[0] == '\0') {
        return config_error(config, "data.val", err, "is empty, so there is nothing to validate on; name token files");
    }
    if (ask->validate || (c->val[0] != '\0' && c->val_every > 0)) {
        data->val = dataset_open("data.val", c->val, m->seq_len, m->vocab, c->val_batches * batch, err);
        if (data->val == NULL) return -1;
    }
    // 3. With two tokenizers the same token would mean different text, and the model would learn neither.
    const SideFile *first = NULL, *other = NULL;
    for (int i = 0; data->train != NULL && other == NULL && (set = dataset_at_(data, i / 2)) != NULL; i++) {
        const SideFile *side = &set->side[i % 2]; // the set's first side file, then the first that differs
        if (side->vocab == 0) continue;
        if (first == NULL) first = side;
        if (!side_file_same_tokenizer(first, side)) other = side;
    }
    if (other != NULL && !c->mixed_tokenizers)
        return config_error(config, "data.train", err,
                            "%s and %s name different tokenizers, so that the same token means different text; prepare "
                            "all data with one, or set data.mixed_tokenizers: true",
                            first->path, other->path);
    if (c->hellaswag[0] != '\0' && (c->hellaswag_every > 0 || ask->validate)) {
        data->hellaswag = evaluation_open("data.hellaswag", c->hellaswag, m->seq_len, m->vocab, err);
        if (data->hellaswag == NULL) return -1;
    }
    // 4. The token that begins documents, if data.mask_documents or data.reset_positions needs it.
    data->end_of_text = c->end_of_text;
    for (int i = 0; config_uses_documents(config) && (set = dataset_at_(data, i)) != NULL; i++) {
        int64_t token = c->end_of_text >= 0 ? c->end_of_text : dataset_end_of_text(set);
        int found = token < 0 ? 0 : dataset_has_token(set, token, err);
        char absent[CONFIG_TEXT + 64];
        snprintf(absent, sizeof absent, "token %lld does not occur early in %.400s", (long long)token,
                 set->shards[0].path);
        if (found < 0) return -1;
        if (found == 0 || (i > 0 && token != data->end_of_text))
            return config_error(config, "data.end_of_text", err, "%s; set it to the token that begins every document",
                                token < 0    ? "the data do not name this token"
                                : found == 0 ? absent
                                             : "the data sets begin their documents with different tokens");
        data->end_of_text = token;
    }
    return 0;
}

// Compares the sizes of all shards. A network file system shows new files to some hosts later than to others, and
// copies on the hosts' disks may differ; the first stage would then read other samples than the last one.
int run_open_data(const Config *config, const Options *ask, World *world, RunData *data, Error *err) {
    int status = open_(config, ask, data, err);
    const Dataset *set;
    Crc64 crc = crc64_make();
    uint64_t mine = 0;
    for (int i = 0; status == 0 && (set = dataset_at_(data, i)) != NULL; i++)
        for (int k = 0; k < set->count; k++)
            mine = crc64_add(&crc, mine, &set->shards[k].tokens, sizeof set->shards[k].tokens);
    uint64_t first = mine;
    if (world != NULL && world_broadcast(world, &first, sizeof first, err) != 0) return -1;
    if (status != 0 || mine == first) return status;
    return config_error(config, data->train != NULL ? "data.train" : "data.val", err,
                        "rank %d sees other files than rank 0, or files of other sizes; copy the same files to all "
                        "hosts, or wait until all of them see the new files",
                        world_rank(world));
}

void run_close_data(RunData *data) {
    evaluation_close(data->hellaswag);
    dataset_close(data->val);
    blend_close(data->train);
}

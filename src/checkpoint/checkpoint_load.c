// Loading: finds a checkpoint, checks that it is intact and fits this model, and reads this rank's part. No rank loads
// before every rank has checked everything, and an error on one rank is an error on all ranks, so that no rank trains
// on a state that other ranks lack.
#include "checkpoint.h"
#include "base/alloc.h"
#include "base/units.h"

#include "checkpoint_source.h"
#include "hf_config.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct Load {
    Stage *stage;
    World *world;
    const Log *log; // log of this rank; `all` is for messages on behalf of all ranks
    Log all;
    Source source;
    bool states;       // true (a resume): also loads the moments, and reads weights from the masters if saved
    bool beyond;       // the source has layers for multi-token prediction, which are not loaded
    bool fresh;        // matrices of the layers start without moments: the checkpoint is from another optimizer
    char strange[320]; // description of the first non-finite value that train.skip_bad_steps allowed, or ""
} Load;

// Checks the files of `dir` collectively; every file is read by one rank. -1 with err on all ranks.
static int verify_(const Load *load, const char *dir, Error *err) {
    Error mine = {0};
    checkpoint_verify(dir, world_rank(load->world), world_size(load->world), load->world, &mine);
    return world_agree(load->world, &mine, err);
}

// --- finding and checking tensors

// Returns the source's tensor with one state of a spec, or NULL.
static SourceTensor *find_(Load *load, const TensorSpec *spec, StateKind kind) {
    char name[96];
    snprintf(name, sizeof name, "%s%s", spec_stored(&load->stage->table, spec)->name, state_suffix[kind]);
    return source_find(&load->source, name);
}

// Returns whether a resume reads this state of a tensor. Masters are found by the weights that they replace.
static bool loads_(const Load *load, int64_t table_index, StateKind kind) {
    const TensorTable *table = &load->stage->table;
    if (!load->states && kind != STATE_WEIGHT) return false;
    if (load->fresh && kind != STATE_WEIGHT && table_is_layer_matrix(table, table_index)) return false;
    return kind != STATE_MASTER && state_exists(table, table_index, kind, &load->stage->config->train);
}

static int check_tensors_(Load *load, Error *err) {
    const TensorTable *table = &load->stage->table;
    for (int64_t i = 0; i < table->count; i++)
        for (int kind = 0; kind < STATE_KINDS; kind++) {
            bool optional = kind == STATE_MASTER;
            if (optional ? !load->states : !loads_(load, i, (StateKind)kind)) continue;
            SourceTensor *found = find_(load, &table->specs[i], (StateKind)kind);
            if (found == NULL && optional) continue;
            if (found == NULL)
                return error_set(err, EXIT_FAILED, "%s: tensor %s%s is missing; this checkpoint cannot be loaded",
                                 load->source.dir, spec_stored(table, &table->specs[i])->name, state_suffix[kind]);
            if (source_check(&load->source, found, &table->specs[i], err) != 0) return -1;
        }
    return 0;
}

// Refuses a source with a tensor this model lacks, such as a bias or third norm: the source computes something else.
// Ignores masks and tables in older files, and a tied head that is stored separately. Leaves out the layers for
// multi-token prediction, which GLM-4.5 and DeepSeek-V3 have after their last layer.
static int check_rest_(Load *load, Error *err) {
    static const char *const ends[] = {".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"};
    const Source *source = &load->source;
    const TensorTable *table = &load->stage->table;
    int64_t layers = (table->head - table->first_layer) / table->per_layer;
    for (int64_t i = 0; i < source->tensor_count; i++) {
        const SourceTensor *entry = &source->tensors[i];
        const char *name = entry->tensor->name;
        long long layer = -1;
        bool harmless = entry->asked;
        for (int k = 0; k < 3 && !harmless; k++) harmless = name_ends_with(name, ends[k]);
        for (int64_t k = 0; k < table->count && !harmless; k++)
            harmless = table->specs[k].tied_to >= 0 && strcmp(table->specs[k].name, name) == 0;
        if (harmless) continue;
        if (table->experts == 0 || sscanf(name, "model.layers.%lld.", &layer) != 1 || layer < layers)
            return error_set(err, EXIT_USAGE,
                             "%s: tensor %s does not exist in this model; load a model of the same architecture",
                             source->files[entry->file].path, name);
        load->beyond = true;
    }
    return 0;
}

// --- reading the tensors' contents

// Takes a piece of a tensor. Reports a value that is not finite; -1 with err unless train.skip_bad_steps is above 0.
// Without this check, a bad value in a weight that no token uses and no gradient changes would be saved again
// unnoticed.
static int put_piece_(void *context, const ReadPiece *piece, const float *values, int64_t strange, Error *err) {
    Load *load = context;
    StageTensors *tensors = &load->stage->tensors;
    Backend *be = load->stage->be;
    if (strange >= 0) {
        const Split *split = &tensors->split;
        const Tensor *tensor = piece->tensor;
        int64_t element = piece->begin + strange;
        char text[sizeof load->strange];
        snprintf(text, sizeof text, "%.150s: %s%s has a non-finite value in row %lld, column %lld", load->source.dir,
                 tensor->spec->name, state_suffix[piece->kind],
                 (long long)tensor_global_row(tensor, element / tensor->cols, split->tensor_rank, split->tensor_ranks),
                 (long long)tensor_global_col(tensor, element % tensor->cols, split->tensor_rank, split->tensor_ranks));
        if (load->stage->config->train.skip_bad_steps == 0)
            return error_set(err, EXIT_FAILED,
                             "%s; use other weights, or set train.skip_bad_steps above 0 to start with them anyway",
                             text);
        if (load->strange[0] == '\0') strcpy(load->strange, text);
    }
    world_progress(load->world);
    if (piece->kind == STATE_WEIGHT) {
        tensors_put(tensors, be, piece->index, values, piece->begin, piece->end);
        return 0;
    }
    TensorPiece mine = tensors_piece(tensors, piece->index);
    float *to = piece->kind == STATE_V ? mine.v : mine.m;
    be->upload(be, to + (piece->begin - mine.begin), values, (piece->end - piece->begin) * 4);
    return 0;
}

// Reads this rank's part of every tensor, of which each data rank owns a piece, in pieces that are cut at row ends if
// possible. If the checkpoint has fp32 masters, a resume reads the weights from them, in every precision.
static int load_tensors_(Load *load, Error *err) {
    StageTensors *tensors = &load->stage->tensors;
    ReadPiece *pieces = NULL;
    int64_t count = 0;
    for (int64_t i = 0; i < tensors->count; i++)
        for (int kind = 0; kind < STATE_KINDS; kind++) {
            const Tensor *tensor = &tensors->tensors[i];
            bool weight = kind == STATE_WEIGHT;
            if (tensor->alias || !loads_(load, tensor->index, (StateKind)kind)) continue;
            SourceTensor *found = weight && load->states ? find_(load, tensor->spec, STATE_MASTER) : NULL;
            if (found == NULL) found = find_(load, tensor->spec, (StateKind)kind);
            assert(found != NULL); // check_tensors_
            TensorPiece mine = tensors_piece(tensors, i);
            for (int64_t begin = mine.begin, most; begin < mine.end; begin = most) {
                most = (begin + SOURCE_PIECE) / tensor->cols * tensor->cols;
                most = min_i64(most > begin ? most : begin + SOURCE_PIECE, mine.end);
                pieces = xgrow(pieces, count, sizeof *pieces);
                pieces[count++] = (ReadPiece){found, tensor, i, (StateKind)kind, begin, most};
            }
        }
    int status = pieces_read(&load->source, &tensors->split, pieces, count, put_piece_, load, err);
    free(pieces);
    return status != 0 ? -1 : load->stage->be->synchronize(load->stage->be, err);
}

// Collective: checks that all ranks find every tensor, then loads. Closes the source. mine: this rank's error so far.
static int load_(Load *load, Error *mine, Error *err) {
    if (mine->code == 0 && check_tensors_(load, mine) == 0 && !load->states) check_rest_(load, mine);
    int status = world_agree(load->world, mine, err);
    if (status == 0) {
        if (load_tensors_(load, mine) != 0 && mine->code == 0)
            error_set(mine, EXIT_FAILED, "%s: cannot be loaded", load->source.dir);
        if (load->strange[0] != '\0') log_line(load->log, "%s; training starts anyway", load->strange);
        if (load->beyond) log_line(&load->all, "%s: its multi-token prediction layer is not loaded", load->source.dir);
        status = world_agree(load->world, mine, err);
    }
    source_close(&load->source);
    return status;
}

// --- resume

// Opens a checkpoint and checks that this run can resume from it. The caller frees the manifest. -1 with err.
static int open_checkpoint_(Load *load, const char *dir, TrainingState *state, Manifest *manifest, Error *err) {
    const Config *config = load->stage->config;
    bool accepts = config->checkpoint.changed == CHANGED_ACCEPT;
    if (hf_config_compare(config, dir, true, err) != 0 || training_state_read(state, dir, err) != 0) return -1;
    // 1. If seq_len changed, the position is computed from the number of tokens.
    int64_t length = config->model.seq_len;
    if (state->tokens >= 0 && state->tokens != state->samples * length) {
        if (!accepts)
            return error_set(err, EXIT_USAGE,
                             "%s: was trained with a sequence length other than model.seq_len %lld; set model.seq_len "
                             "back, or set checkpoint.changed: accept to continue with the new one",
                             dir, (long long)length);
        state->samples = state->tokens / length + (state->tokens % length > 0);
    }
    // 2. Entries and ids: a manifest that was edited by hand can be resealed with a valid checksum.
    if (manifest_read(manifest, dir, err) != 0) return -1;
    bool listed = false, trained = false;
    for (int64_t i = 0; i < manifest->count; i++) {
        listed = listed || strcmp(manifest->file[i].name, CHECKPOINT_CONFIG) == 0;
        trained = trained || strcmp(manifest->file[i].name, CHECKPOINT_TRAINING) == 0;
    }
    if (!listed || !trained || manifest->run != state->run || manifest->sequence != state->sequence ||
        manifest->step != state->step)
        return error_set(err, EXIT_FAILED,
                         "%s/" CHECKPOINT_MANIFEST ": does not match " CHECKPOINT_TRAINING
                         " or lacks " CHECKPOINT_CONFIG
                         "; resume from another checkpoint, or load this one's weights with checkpoint.init_from",
                         dir);
    // 3. The optimizer: moments of different optimizers are not interchangeable.
    if (source_open_manifest(&load->source, dir, manifest, err) != 0) return -1;
    bool muon = false;
    for (int64_t i = 0; i < load->source.tensor_count && !muon; i++)
        muon = name_ends_with(load->source.tensors[i].tensor->name, state_suffix[STATE_MOMENTUM]);
    load->fresh = muon != (config->train.optimizer == OPTIMIZER_MUON);
    if (!load->fresh || accepts) return 0;
    return error_set(
        err, EXIT_USAGE,
        "%s: was trained with train.optimizer: %s, which has different moments; set train.optimizer back, or "
        "set checkpoint.changed: accept to start the moments of the layers' matrices at zero",
        dir, muon ? "muon" : "adamw");
}

// Loads the first intact checkpoint of the list and logs why each checkpoint before it was skipped.
static int try_candidates_(const Candidates *candidates, ResumePoint *point, const char *dir, bool if_any, Load *load,
                           Error *err) {
    bool itself = candidates->count > 0 && candidates->names[0].name[0] == '\0';
    for (int64_t i = 0; i < candidates->count; i++) {
        char path[CHECKPOINT_PATH];
        Error damage = {0};
        if (itself) strcpy(path, dir);
        else if (file_join(path, dir, candidates->names[i].name, err) != 0) return err->everywhere = true, -1;
        if (verify_(load, path, &damage) == 0) {
            Manifest manifest = {0};
            Error mine = {0};
            open_checkpoint_(load, path, &point->state, &manifest, &mine);
            manifest_free(&manifest);
            TrainingState first = point->state;
            if (world_broadcast(load->world, &first, sizeof first, err) != 0) return -1;
            bool other = first.run != point->state.run || first.sequence != point->state.sequence;
            if (other && mine.code == 0)
                error_set(&mine, EXIT_FAILED,
                          "%s: rank %d reads another run's checkpoint there than rank 0; name a folder that all hosts "
                          "share",
                          path, world_rank(load->world));
            if (load_(load, &mine, err) != 0) return -1;
            point->found = true;
            strcpy(point->dir, path);
            log_status(&load->all, "resumed from %s after step %lld", path, (long long)point->state.step);
            if (load->fresh)
                log_line(&load->all,
                         "%s has another optimizer's moments: the moments of the layers' matrices start at zero", path);
            return 0;
        }
        if (!damage.everywhere) return *err = damage, -1; // ranks cannot communicate
        if (itself) return error_on_all(err, damage.code, "%.900s; resume from another checkpoint", damage.text);
        log_line(&load->all, "%s%s", damage.text, i + 1 < candidates->count ? "; trying the previous checkpoint" : "");
    }
    if (candidates->complete == 0) return 0;
    // A start at step 0 would be refused too if these are the checkpoints in checkpoint.dir.
    const CheckpointConfig *config = &load->stage->config->checkpoint;
    bool refused = same_file(dir, config->dir) && !config->overwrite;
    const char *option = resume_option(if_any);
    return error_on_all(err, EXIT_FAILED,
                        "%s %s: no intact checkpoint among %lld; name another folder, or, to start at step 0, leave "
                        "out %s%s",
                        option, dir, (long long)candidates->count, option,
                        refused ? " and name another checkpoint.dir or set checkpoint.overwrite: true" : "");
}

int checkpoint_resume(ResumePoint *point, const char *dir, bool if_any, Stage *stage, World *world, const Log *log,
                      Error *err) {
    memset(point, 0, sizeof *point);
    char plain[CHECKPOINT_PATH];
    snprintf(plain, sizeof plain, "%s", dir);
    for (size_t n = strlen(plain); n > 1 && plain[n - 1] == '/'; n--) plain[n - 1] = '\0';
    Load load = {.stage = stage, .world = world, .log = log, .all = world_log(world, log), .states = true};
    // Rank 0 lists the candidates for all ranks, because hosts may see different states of the folder.
    Candidates candidates = {0};
    Error mine = {0};
    bool first = world_rank(world) == 0;
    if (first) candidates_find(&candidates, plain, stage->config->checkpoint.overwrite, if_any, &mine);
    CheckpointName *names = candidates.names;
    int status = world_agree(world, &mine, err);
    if (status == 0) status = world_broadcast(world, &candidates, sizeof candidates, err);
    candidates.names = names; // NULL if this is not rank 0
    int64_t bytes = candidates.count * (int64_t)sizeof *names;
    if (status == 0 && !first) candidates.names = xmalloc((size_t)bytes);
    if (status == 0) status = world_broadcast(world, candidates.names, bytes, err);
    if (status == 0) status = try_candidates_(&candidates, point, plain, if_any, &load, err);
    if (status == 0 && candidates.complete == 0)
        log_status(&load.all, "no complete checkpoint in %s: training starts at step 0", plain);
    free(candidates.names);
    return status;
}

// --- init_from

int checkpoint_init_from(const char *dir, Stage *stage, World *world, const Log *log, Error *err) {
    // Only our own checkpoints have a manifest with checksums to verify.
    Error mine = {0};
    char manifest[CHECKPOINT_PATH];
    double own = file_join(manifest, dir, CHECKPOINT_MANIFEST, NULL) == 0 && access(manifest, F_OK) == 0;
    Load load = {.stage = stage, .world = world, .log = log, .all = world_log(world, log)};
    if (world_max(world, &own, 1, err) != 0) return -1;
    if (own > 0.0 && verify_(&load, dir, &mine) != 0) {
        if (!mine.everywhere) return *err = mine, -1; // ranks cannot communicate
        return error_on_all(err, mine.code, "%.900s; set checkpoint.init_from to another checkpoint", mine.text);
    }
    uint64_t sum = 0;
    if (source_open_model(&load.source, dir, &mine) == 0 && hf_config_compare(stage->config, dir, false, &mine) == 0)
        source_sample(&load.source, &sum, &mine);
    uint64_t first = sum;
    if (world_broadcast(world, &first, sizeof first, err) != 0) return -1;
    if (mine.code == 0 && sum != first)
        error_set(&mine, EXIT_USAGE,
                  "checkpoint.init_from %s: rank %d sees another model there than rank 0; copy the same files to all "
                  "hosts",
                  dir, world_rank(world));
    if (load_(&load, &mine, err) != 0) return -1;
    log_status(&load.all, "weights from %s", dir);
    return 0;
}

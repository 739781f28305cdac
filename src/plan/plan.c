// Makes a plan and prints its tables. The bytes of each stage come from the functions that lay out the memory of a run,
// which are called here only to count.
#include "plan.h"
#include "base/alloc.h"
#include "foreign.h"

#include "engine/batch.h"
#include "data/blend.h"
#include "checkpoint/checkpoint.h"
#include "backend/attention_scratch.h"
#include "engine/p2p.h"
#include "base/grid.h"
#include "base/units.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

int64_t plan_evictions(const Schedule *schedule) {
    int64_t moves = 0;
    for (int s = 0; s < schedule->stages; s++) moves += schedule->stage[s].moves;
    return moves / 2; // every evicted bundle is loaded again
}

bool plan_evicts(const Schedule *schedule) { return plan_evictions(schedule) > 0; }

bool plan_schedule_holds(int64_t virtual_stages, int64_t microbatches) {
    enum { MOST = 1 << 24 }; // forwards; the lists, with their backwards, take 670 MB
    return microbatches <= MOST / virtual_stages;
}

bool plan_can_balance(const Config *config) {
    if (config->schedule.file[0] != '\0') return false;
    return config_schedule_kind(config)->pairs || config->schedule.evict_to == EVICT_TO_HOST;
}

const char *plan_plain_name(const Config *config) {
    return config->schedule.file[0] != '\0' ? "schedule.file" : config_schedule_kind(config)->title;
}

// Makes the schedule of a configuration with this number of microbatches. proved: also proves it.
static Schedule *schedule_of_(const Config *config, int64_t microbatches, bool proved, Error *err) {
    const ScheduleConfig *asked = &config->schedule;
    int64_t p = config->parallel.pipeline, layers = config->model.layers;
    if (!plan_schedule_holds(p * config_chunks(config), microbatches)) {
        config_error(
            config, "train.global_batch", err,
            "%lld microbatches a step on %d stages are more than a schedule can hold; use a larger micro_batch",
            (long long)microbatches, (int)p);
        return NULL;
    }
    ScheduleSpec spec = config_schedule_spec(config);
    spec.microbatches = (int)microbatches;
    Schedule *schedule = asked->file[0] != '\0' ? config_read_schedule(config, err)
                                                : schedule_make(config_schedule_kind(config), &spec, err);
    if (schedule != NULL && (asked->bpipe == BPIPE_ON || (asked->bpipe == BPIPE_AUTO && plan_can_balance(config)))) {
        EvictTarget target = (EvictTarget)asked->evict_to;
        int ahead = asked->load_ahead > 0 ? (int)asked->load_ahead : bpipe_load_ahead(schedule, target);
        Schedule *balanced = bpipe_balance(schedule, (int)asked->slots, target, ahead, err);
        bool keep = balanced != NULL && asked->bpipe == BPIPE_AUTO && !plan_evicts(balanced);
        schedule_free(keep ? balanced : schedule);
        if (!keep) schedule = balanced;
    }
    if (schedule == NULL) return NULL;
    // A list from a file may have more chunks than there are layers. If the layers are listed for several chunks,
    // --plan also plans 1F1B, which may then have empty stages.
    int64_t chunks = schedule->chunks, parts = schedule->stages * chunks, given = config->parallel.layers_given;
    int status = proved ? schedule_check(schedule, err) : 0;
    if (status == 0 && chunks > STAGE_MOST_CHUNKS)
        status = config_error(config, "schedule.name", err, "%d chunks per stage; the limit is %d; use fewer",
                              schedule->chunks, STAGE_MOST_CHUNKS);
    else if (status == 0 && parts > layers && parts != given && !(chunks == 1 && given > schedule->stages))
        status = config_error(config, "schedule.name", err,
                              "%d chunks on each of %d stages need a layer each, but the model has only %lld; "
                              "use fewer",
                              schedule->chunks, schedule->stages, (long long)layers);
    if (status == 0) return schedule;
    schedule_free(schedule);
    return NULL;
}

Schedule *plan_schedule(const Config *config, Error *err) {
    return schedule_of_(config, config_microbatches(config), true, err);
}

Schedule *plan_schedule_with(const Config *config, int64_t microbatches, Error *err) {
    // A search makes thousands of schedules. Tests prove that the generators' are legal, and a run proves its own.
    return schedule_of_(config, microbatches, config->schedule.file[0] != '\0', err);
}

int plan_ramp(const Config *config, const Schedule *largest, Schedule *ramp[CONFIG_MAX_RAMP], Error *err) {
    memset(ramp, 0, CONFIG_MAX_RAMP * sizeof *ramp);
    for (int64_t i = 0; i < config->train.ramp_count; i++) {
        int64_t batch = config_batch(config, i + 1);
        ramp[i] = schedule_of_(config, batch / (config->schedule.micro_batch * config->parallel.data), true, err);
        if (ramp[i] == NULL) return -1;
        for (int s = 0; s < ramp[i]->stages; s++) {
            const StageSchedule *has = &largest->stage[s], *needs = &ramp[i]->stage[s];
            if (needs->own_slots > has->own_slots || needs->lent_slots > has->lent_slots ||
                needs->host_slots > has->host_slots)
                return config_error(config, "train.batch_ramp", err,
                                    "a batch of %lld needs %d own, %d lent and %d host slots on stage %d, but that of "
                                    "%lld has %d, %d and %d; leave it out, or use schedule.bpipe off",
                                    (long long)batch, needs->own_slots, needs->lent_slots, needs->host_slots, s,
                                    (long long)config->train.global_batch, has->own_slots, has->lent_slots,
                                    has->host_slots);
        }
    }
    return 0;
}

void plan_ramp_free(Schedule *ramp[CONFIG_MAX_RAMP]) {
    for (int i = 0; i < CONFIG_MAX_RAMP; i++) schedule_free(ramp[i]);
}

int plan_check_ramp(const Config *config, const Schedule *largest, Error *err) {
    Schedule *ramp[CONFIG_MAX_RAMP];
    int status = plan_ramp(config, largest, ramp, err);
    plan_ramp_free(ramp);
    return status;
}

// A stage's figures that do not depend on its list: parameters, and memory without slots and messages between stages.
typedef struct Held {
    MemoryBytes memory;
    StateBytes states;
    int64_t staged, parameters, layer_gradients;
} Held;

// The inputs of a stage's bytes that differ between layouts of a model. Compared as bytes.
typedef struct HeldKey {
    char shape[sizeof(Shape)];
    int64_t layers, dense, kept; // kept: microbatches with keys in memory, times layers
    int64_t microbatches, data, context;
    bool recomputed, first, last, alone; // alone: the only stage
    bool sharded;                        // gradients are sharded, which also depends on split backwards
    bool states;                         // the key of held_states_
} HeldKey;

Memo *plan_memo(void) { return memo_create(sizeof(HeldKey)); }

// Counts the parameters and the bytes that depend on them. Except for the sums of ranks on CPUs, these do not depend on
// how a layer is computed, so many keys have the same.
static void held_states_(Held *held, const HeldKey *of, const TensorTable *table, const Config *config,
                         const StageShape *at, Memo *memo) {
    HeldKey key = *of;
    key.states = true;
    if (!at->own_sums && !config->hardware.share_gpu) {
        Shape shape;
        memset(&shape, 0, sizeof shape);
        shape.tensor_ranks = at->shape.tensor_ranks, shape.expert_ranks = at->shape.expert_ranks;
        memcpy(key.shape, &shape, sizeof key.shape);
        key.kept = key.microbatches = 0, key.recomputed = false;
    }
    if (memo != NULL && memo_find(memo, &key, held)) return;
    *held = (Held){0};
    stage_state_bytes(&held->memory, &held->states, &held->staged, table, config, at);
    for (int c = 0; c < at->chunks; c++) {
        int64_t first = table->first_layer + at->chunk[c].first_layer * table->per_layer;
        held->parameters += table_parameters(table, first, first + at->chunk[c].layers * table->per_layer);
    }
    if (at->first) held->parameters += table_parameters(table, 0, table->first_layer);
    if (at->last) held->parameters += table_parameters(table, table->head, table->count);
    held->layer_gradients = held->memory.bytes[MEMORY_GRADIENTS];
    if (memo != NULL) memo_keep(memo, &key, held, sizeof *held);
}

// last: the key of *held; all zero at first.
static void held_(Held *held, HeldKey *last, const TensorTable *table, const Config *config, const StageShape *at,
                  Memo *memo) {
    HeldKey key;
    memset(&key, 0, sizeof key);
    memcpy(key.shape, &at->shape, sizeof key.shape);
    key.layers = at->layers;
    for (int c = 0; c < at->chunks; c++) {
        key.dense += at->chunk[c].dense;
        key.kept += at->chunk[c].layers * at->chunk[c].kept;
    }
    key.microbatches = config_microbatches(config);
    key.data = config->parallel.data, key.context = config->parallel.context;
    key.recomputed = at->recomputed > 0, key.first = at->first, key.last = at->last, key.alone = at->stages == 1;
    key.sharded = config_shards_gradients(config);
    if (memcmp(&key, last, sizeof key) == 0) return; // most stages are alike
    *last = key;
    if (memo != NULL && memo_find(memo, &key, held)) return;
    held_states_(held, &key, table, config, at, memo);
    stage_work_bytes(&held->memory, table, config, at);
    if (memo != NULL) memo_keep(memo, &key, held, sizeof *held);
}

SlotCounts plan_slots(const PlanStage *stage) {
    return (SlotCounts){stage->own_slots, stage->lent_slots, stage->host_slots, stage->slot_bytes};
}

int64_t plan_host_bytes(const PlanStage *stage) {
    return stage->host_slots * stage->slot_bytes + stage->copy_bytes + stage->order_bytes + stage->buffer_bytes;
}

// Writes Plan.flash, once the stages have their shapes. own_bytes is 0 except in a GPU's backend.
static void flash_clause_(Plan *plan, const Config *config, const Backend *be) {
    for (int s = 0; s < plan->stages; s++) {
        const Shape *shape = &plan->stage[s].at.shape;
        if (config_attention(config, s) == shape->attention.mode) continue;
        plan->no_flash = true;
        snprintf(plan->flash, sizeof plan->flash, "flash falls back to recompute: %s",
                 attention_without_flash(&shape->attention, shape->element, be->capability));
        return;
    }
    const AttentionShape *shape = &plan->stage[0].at.shape.attention;
    if (config->attention.mode != ATTENTION_FLASH || be->own_bytes == 0) return;
    const char *how = be->capability == 0 && shape->deterministic == DETERMINISTIC_AUTO
                          ? "deterministic on compute capability 9.x and 10.x"
                      : attention_flash_deterministic(shape, be->capability) ? "deterministic"
                                                                             : "not deterministic";
    snprintf(plan->flash, sizeof plan->flash, "%s", how);
}

Plan plan_make_from(const TensorTable *table, const Config *config, const Schedule *schedule, Backend *be, Memo *memo) {
    Plan plan = {.stages = schedule->stages};
    Held held;
    HeldKey last;
    memset(&last, 0, sizeof last);
    plan.stage = xmalloc((size_t)plan.stages * sizeof *plan.stage);
    for (int s = 0; s < plan.stages; s++) {
        PlanStage *stage = &plan.stage[s], *before = s > 0 ? stage - 1 : stage;
        bool like = s > 0 && config_attention(config, s) == config_attention(config, s - 1) &&
                    config_recompute_kind(config, s) == config_recompute_kind(config, s - 1);
        if (like) stage_shape_like(&stage->at, &before->at, config, schedule, s);
        else stage_shape(&stage->at, config, schedule, be, s, 0);
    }
    for (int s = 0; s < plan.stages && config->program != 0; s++)
        plan.stage[s].at.bundle_bytes = foreign_bundle(config, &plan.stage[s].at);
    for (int s = 0; s < plan.stages; s++) {
        PlanStage *stage = &plan.stage[s];
        const StageSchedule *list = &schedule->stage[s];
        int partner = bpipe_partner(schedule->stages, s);
        held_(&held, &last, table, config, &stage->at, memo);
        stage->own_slots = list->own_slots, stage->lent_slots = list->lent_slots;
        stage->host_slots = list->host_slots;
        stage->slot_bytes = memory_round(stage->at.bundle_bytes);
        if (partner != SCHEDULE_NO_PEER && (list->lent_slots > 0 || schedule->stage[partner].lent_slots > 0))
            stage->slot_bytes = max_i64(stage->slot_bytes, memory_round(plan.stage[partner].at.bundle_bytes));
        stage->memory = held.memory;
        stage->states = held.states;
        stage->parameters = held.parameters;
        stage->layer_gradients = held.layer_gradients;
        if (config->program != 0) foreign_bytes(&stage->memory, config, &stage->at, stage->parameters);
        int64_t *bytes = stage->memory.bytes, edges = p2p_bytes(schedule, s, stage->at.message_bytes, be->lent_page);
        bytes[MEMORY_OWN_SLOTS] += stage->own_slots * stage->slot_bytes;
        bytes[MEMORY_LENT_SLOTS] += memory_pages(stage->lent_slots * stage->slot_bytes, be->lent_page);
        bytes[MEMORY_MESSAGES] += config->program == 0 ? edges : 0;
        bytes[MEMORY_WORKSPACE] += config->program == 0 ? be->own_bytes : 0;
        stage->copy_bytes = checkpoint_copy_bytes(config, &stage->states);
        stage->order_bytes = blend_order_bytes(&config->data);
        stage->buffer_bytes = checkpoint_buffer_bytes(config) + batch_bytes(config, &stage->at);
        bool staged = config->hardware.share_gpu && !be->own_sums; // messages pass through host memory
        if (staged) stage->buffer_bytes += held.staged + edges;
        plan.parameters += stage->parameters;
    }
    flash_clause_(&plan, config, be);
    return plan;
}

Plan plan_make(const Model *model, const Config *config, const Schedule *schedule, Backend *be) {
    TensorTable table = model_table(model, &config->model);
    Plan plan = plan_make_from(&table, config, schedule, be, NULL);
    table_free(&table);
    return plan;
}

void plan_free(Plan *plan) {
    free(plan->stage);
    memset(plan, 0, sizeof *plan);
}

double plan_lacks(double bytes, double limit, double reserve_gib) {
    return limit > 0 ? bytes + reserve_gib * GIB - limit : -INFINITY;
}

int plan_fullest(const Plan *plan) {
    int fullest = 0;
    for (int s = 1; s < plan->stages; s++)
        if (memory_total(&plan->stage[s].memory) > memory_total(&plan->stage[fullest].memory)) fullest = s;
    return fullest;
}

char *plan_parameters_text(int64_t parameters, const ModelConfig *model, char text[PLAN_PARAMETERS_TEXT]) {
    char total[32], active[32];
    grid_count(config_active_parameters(model, parameters), active);
    snprintf(text, PLAN_PARAMETERS_TEXT, model->experts > 0 ? "%s parameters, %s of them active" : "%s parameters",
             grid_count(parameters, total), active);
    return text;
}

static void print_host_(const Plan *plan, FILE *file) {
    int most = 0;
    char text[512] = "";
    for (int s = 1; s < plan->stages; s++)
        if (plan_host_bytes(&plan->stage[s]) > plan_host_bytes(&plan->stage[most])) most = s;
    const PlanStage *stage = &plan->stage[most];
    char bundles[64];
    snprintf(bundles, sizeof bundles, "up to %d evicted bundle%s", stage->host_slots,
             stage->host_slots == 1 ? "" : "s");
    const struct {
        const char *what;
        int64_t bytes;
    } parts[] = {{bundles, stage->host_slots * stage->slot_bytes},
                 {"the copy that checkpoints are written from", stage->copy_bytes},
                 {"the order of the blend", stage->order_bytes},
                 {"buffers", stage->buffer_bytes}};
    for (int i = 0; i < 4; i++) {
        char bytes[32];
        if (parts[i].bytes < 1 << 16) continue; // too small to show
        text_add(text, sizeof text, "%s %s (%s)", text[0] == '\0' ? "memory per rank:" : ",", parts[i].what,
                 grid_bytes(parts[i].bytes, bytes));
    }
    if (text[0] != '\0') grid_line(file, "host", "%s", text);
}

void plan_print(const Plan *plan, const Config *config, const Schedule *schedule, FILE *file) {
    enum { OTHER = MEMORY_MESSAGES }; // categories from here on share one column, so that the table fits on a screen
    // 1. The run.
    const ModelConfig *m = &config->model;
    char parameters[PLAN_PARAMETERS_TEXT], tokens[32], cut[CONFIG_CUT], experts[80] = "";
    if (m->experts > 0)
        snprintf(experts, sizeof experts, ", %lld experts of %lld, %lld a token", (long long)m->experts,
                 (long long)m->expert_ffn, (long long)m->experts_per_token);
    int64_t microbatches = config_microbatches(config), evictions = plan_evictions(schedule);
    const char *before = plan->no_flash ? " (" : plan->flash[0] != '\0' ? ", " : "";
    grid_line(file, "model",
              "%s, %s: %lld layers, hidden %lld, %lld heads, ffn %lld%s, vocabulary %lld, %s attention%s%s%s",
              config_word("model.family", m->family), plan_parameters_text(plan->parameters, m, parameters),
              (long long)m->layers, (long long)m->hidden, (long long)m->heads, (long long)m->ffn, experts,
              (long long)m->vocab,
              config->attention.modes_given > 1 ? "various" : config_word("attention.mode", config->attention.mode),
              before, plan->flash, plan->no_flash ? ")" : "");
    fprintf(file, "world     %lld rank%s: %s, %s\n", (long long)config_world(config),
            config_world(config) == 1 ? "" : "s", config_cut_text(config, cut),
            config_word("train.precision", config->train.precision));
    fprintf(file, "step      %s tokens: %lld microbatch%s of %lld x %lld on each data rank%s\n",
            grid_count(config->train.global_batch * m->seq_len, tokens), (long long)microbatches,
            microbatches == 1 ? "" : "es", (long long)config->schedule.micro_batch, (long long)m->seq_len,
            config->train.ramp_count > 0 ? ", the largest of batch_ramp" : "");
    fprintf(file, "schedule  %s%s, at most %d slot%s a stage, %lld eviction%s a step\n", schedule->name,
            schedule->split ? ", split backwards" : "", schedule->slots, schedule->slots == 1 ? "" : "s",
            (long long)evictions, evictions == 1 ? "" : "s");
    // 2. Each stage.
    GridUnit unit = grid_unit(memory_total(&plan->stage[plan_fullest(plan)].memory));
    int64_t most[MEMORY_CATEGORIES] = {0};
    for (int s = 0; s < plan->stages; s++)
        for (int c = 0; c < MEMORY_CATEGORIES; c++) most[c] = max_i64(most[c], plan->stage[s].memory.bytes[c]);
    const char *cells[] = {"stage", "layers", "parameters", "slots"};
    static const char *const heads[OTHER] = {"weights",   "gradients", "masters", "optimizer",
                                             "embedding", "own",       "lent",    "keys"};
    Grid grid = {.columns = 6};
    for (int c = 0; c < OTHER; c++) grid.columns += most[c] > 0;
    fprintf(file, "memory of each rank, by stage, in %s; own, lent: slots of activations\n", unit.name);
    for (int i = 0; i < 4; i++) grid_cell(&grid, "%s", cells[i]);
    for (int c = 0; c < OTHER; c++)
        if (most[c] > 0) grid_cell(&grid, "%s", heads[c]);
    grid_cell(&grid, "other");
    grid_cell(&grid, "total");
    for (int s = 0; s < plan->stages; s++) {
        const PlanStage *stage = &plan->stage[s];
        char count[32], layers[STAGE_LAYERS_TEXT], lent[16] = "";
        bool many = stage->parameters >= 1000000000;
        int64_t total = memory_total(&stage->memory), other = total;
        grid_cell(&grid, "%d", s);
        grid_cell(&grid, "%s", stage_layers_text(&stage->at, layers));
        grid_cell(&grid, "%s%s", grid_count(many ? (stage->parameters + 500000) / 1000000 : stage->parameters, count),
                  many ? " M" : "");
        if (stage->lent_slots > 0) snprintf(lent, sizeof lent, "+%d", stage->lent_slots);
        grid_cell(&grid, "%d%s", stage->own_slots, lent);
        for (int c = 0; c < OTHER; c++) {
            other -= stage->memory.bytes[c];
            if (most[c] == 0) continue;
            if (stage->memory.bytes[c] == 0) grid_cell(&grid, "-");
            else grid_cell(&grid, "%.*f", unit.digits, (double)stage->memory.bytes[c] / unit.bytes);
        }
        grid_cell(&grid, "%.*f", unit.digits, (double)other / unit.bytes);
        grid_cell(&grid, "%.*f", unit.digits, (double)total / unit.bytes);
    }
    grid_print(&grid, file);
    grid_free(&grid);
    // 3. The parts of the column "other", each with its largest value over the stages, and the host's memory.
    char text[256] = "";
    for (int c = OTHER; c < MEMORY_CATEGORIES; c++) {
        char bytes[32];
        if (most[c] < 1 << 16) continue; // too small to show
        text_add(text, sizeof text, "%s%s up to %s", text[0] != '\0' ? ", " : "", memory_name((MemoryCategory)c),
                 grid_bytes(most[c], bytes));
    }
    if (text[0] != '\0') grid_line(file, "other", "%s", text);
    print_host_(plan, file);
}

// The rows of LAYOUT_KEYS and the loops over them. Walks try only a few chunk counts and two group sizes. With many
// chunks, messages cost more than the smaller bubble saves; between the smallest and the largest group, memory and
// bubble change evenly. The caller of a walk skips the combinations that a schedule refuses.
#include "layout.h"

#include "base/alloc.h"
#include "base/units.h"
#include "config/config_schema.h"
#include "device/cost.h"
#include "plan.h"

#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static const ScheduleKind *kind_of_(const RunLayout *at) {
    return &schedule_kinds[at->name < schedule_kind_count ? at->name : schedule_kind_plain()];
}

static bool fixes_(const LayoutSpace *space, LayoutMask bit) { return (space->fixed & bit) != 0; }

// ---------------------------------------------------------------- where keys apply, and the meaning of auto

static bool is_grouped_(const RunLayout *at) { return kind_of_(at)->grouped; }

static bool is_delayed_(const RunLayout *at) { return kind_of_(at)->delayed; }

static bool is_sliced_(const RunLayout *at) { return kind_of_(at)->sliced; }

bool layout_evicts(const RunLayout *layout) { return layout->bpipe != BPIPE_OFF; }

static int64_t settled_chunks_(const RunLayout *at, int64_t value) { return value == 0 ? kind_of_(at)->chunks : value; }

static int64_t settled_group_(const RunLayout *at, int64_t value) {
    if (value == SCHEDULE_GROUP_HALF) return (at->pipeline + 1) / 2;
    return value == 0 ? at->pipeline : value;
}

static int64_t settled_delay_(const RunLayout *at, int64_t value) {
    return value == SCHEDULE_DELAY_MOST ? at->pipeline - 1 : value;
}

static int64_t settled_split_(const RunLayout *at, int64_t value) {
    return value == SPLIT_AUTO && kind_of_(at)->splits ? SPLIT_ON : value;
}

// ---------------------------------------------------------------- lists as rules

static const char *const layers_words_[] = {"evenly", "by time", "by list"};
static const char *const recompute_words_[] = {"some", "0"};

static int64_t get_layers_(const Config *config) {
    return config->parallel.layers_given > 0 ? LAYERS_LISTED : LAYERS_EVEN;
}

static void set_layers_(const RunLayout *at, Config *config) {
    if (at->layers == LAYERS_LISTED) return;
    config->parallel.layers_given = 0;
    config_spread_layers(config, at->pipeline * (int64_t)config_chunks(config));
}

static bool same_layers_(const Config *from, const Config *to) {
    int parts = (int)to->parallel.pipeline * config_chunks(to);
    if (to->parallel.layers_given == 0) return from->parallel.layers_given == 0;
    if (from->parallel.pipeline * config_chunks(from) != parts) return false;
    for (int g = 0; g < parts; g++)
        if (config_layers(from, parts, g) != config_layers(to, parts, g)) return false;
    return true;
}

static int64_t get_recompute_(const Config *config) {
    return config->schedule.recompute_given > 1 ? RECOMPUTE_LISTED : config_recompute(config, 0);
}

static void set_recompute_(const RunLayout *at, Config *config) {
    if (at->recompute == RECOMPUTE_LISTED) return;
    config->schedule.recompute_given = 1;
    config->schedule.recompute_of_stage[0] = at->recompute > 0 ? (int16_t)at->recompute : 0;
}

static bool same_recompute_(const Config *from, const Config *to) {
    bool same = from->parallel.pipeline == to->parallel.pipeline ||
                (from->schedule.recompute_given == 1 && to->schedule.recompute_given == 1);
    for (int s = 0; s < to->parallel.pipeline && same; s++) same = config_recompute(from, s) == config_recompute(to, s);
    return same;
}

static int64_t get_attention_(const Config *config) {
    return config->attention.modes_given > 1 ? ATTENTION_LISTED : config->attention.mode_of_stage[0];
}

static void set_attention_(const RunLayout *at, Config *config) {
    if (at->attention != ATTENTION_LISTED) config_set_attention(config, at->attention);
}

static int64_t get_pointwise_(const Config *config) {
    return config->schedule.pointwise_given > 1 ? POINTWISE_LISTED : (int)config_recompute_kind(config, 0);
}

static void set_pointwise_(const RunLayout *at, Config *config) {
    if (at->pointwise == POINTWISE_LISTED) return;
    config->schedule.pointwise_given = 1;
    config->schedule.pointwise_of_stage[0] = (int8_t)at->pointwise;
}

// ---------------------------------------------------------------- candidates: how ranks are cut up

// Tensor ranks exchange data several times a layer, so they stay within a domain.
static int tensor_values_(const LayoutSpace *space, const RunLayout *at, int64_t *values) {
    const ModelConfig *m = &space->base->model;
    int64_t node = fixes_(space, LAYOUT_BIT(tensor)) ? space->world : cost_domain(space->base, space->world);
    int count = 0;
    (void)at;
    for (int64_t t = 1; t <= space->world && t <= m->heads && t <= node; t++)
        if (space->world % t == 0 && m->heads % t == 0 && m->kv_heads % t == 0 && config_split_ffn(m) % t == 0)
            values[count++] = t;
    return count;
}

// Sequences of LONG tokens or more are divided, into pieces of at least SHORT tokens; shorter sequences gain less than
// 1 %. Counts of context ranks up to the given count are always tried.
static int context_values_(const LayoutSpace *space, const RunLayout *at, int64_t *values) {
    enum { LONG = 16384, SHORT = 1024 };
    int64_t left = space->world / at->tensor / at->pipeline, given = space->given.context;
    int64_t s = space->base->model.seq_len, most = s >= LONG ? s / (2 * SHORT) : 1;
    bool divisible = space->base->model.causal && space->base->model.kv_lora == 0;
    int count = 0;
    if (fixes_(space, LAYOUT_BIT(context))) most = given;
    for (int64_t c = fixes_(space, LAYOUT_BIT(context)) ? given : 1; c <= max_i64(most, given); c *= 2)
        if (left % c == 0 && (c == 1 || (s % (2 * c) == 0 && divisible))) values[count++] = c;
    return count;
}

// Tries slices of at least SHORT tokens, and the given number of slices; if it is fixed, only the given number.
static int slice_values_(const LayoutSpace *space, const RunLayout *at, int64_t *values) {
    enum { MOST = 8, SHORT = 512 };
    int64_t s = space->base->model.seq_len, given = space->given.slices;
    bool fixed = fixes_(space, LAYOUT_BIT(slices)),
         unsliced = fixes_(space, LAYOUT_BIT(name)) && !is_sliced_(&space->given);
    int count = 0;
    if (!fixed || given == 1) values[count++] = 1;
    bool balanced = space->base->model.experts > 0 && space->base->train.balance == BALANCE_LOSS; // complete sequences
    if (unsliced || at->context > 1 || !space->base->model.causal || space->base->model.kv_lora > 0 || balanced)
        return count;
    for (int64_t n = 2; n <= MOST && s / n >= SHORT && !fixed; n *= 2)
        if (s % n == 0 && n != given) values[count++] = n;
    if (given > 1 && s % given == 0) values[count++] = given;
    return count;
}

// Skips numbers of stages for which the fixed lists, with a value for each stage or chunk, are not valid.
static int pipeline_values_(const LayoutSpace *space, const RunLayout *at, int64_t *values) {
    const Config *base = space->base;
    int64_t left = space->world / at->tensor, layers = base->model.layers;
    const struct {
        LayoutMask key;
        int64_t given;
    } lists[] = {{LAYOUT_BIT(recompute), base->schedule.recompute_given},
                 {LAYOUT_BIT(attention), base->attention.modes_given},
                 {LAYOUT_BIT(pointwise), base->schedule.pointwise_given}};
    int count = 0;
    for (int64_t p = 1; p <= left && p <= LAYOUT_MOST_STAGES && p <= layers; p++) {
        bool valid = left % p == 0 && (!fixes_(space, LAYOUT_BIT(layers)) || base->parallel.layers_given % p == 0);
        for (int i = 0; i < 3; i++)
            if (fixes_(space, lists[i].key) && lists[i].given > 1 && lists[i].given != p) valid = false;
        if (valid) values[count++] = p;
    }
    return count;
}

static int data_values_(const LayoutSpace *space, const RunLayout *at, int64_t *values) {
    values[0] = space->world / at->tensor / at->pipeline / at->context;
    return 1;
}

// Tries numbers of expert ranks that double, or the largest divisor below twice the previous number.
static int expert_values_(const LayoutSpace *space, const RunLayout *at, int64_t *values) {
    enum { MOST = 64 };
    int64_t experts = space->base->model.experts, ranks = (int64_t)at->tensor * at->context * at->data;
    int count = 0;
    if (fixes_(space, LAYOUT_BIT(expert)) || experts == 0) {
        int64_t given = experts == 0 ? 1 : space->given.expert;
        values[0] = given;
        return experts == 0 || ranks % given == 0;
    }
    for (int64_t most = 1; most <= MOST && most <= ranks; most *= 2) {
        int64_t e = most;
        while (experts % e != 0 || ranks % e != 0) e--;
        if (count == 0 || values[count - 1] != e) values[count++] = e;
    }
    return count;
}

// Returns whether a stage has more expert ranks than consecutive ranks in the linear order.
static bool scatters_experts_(const RunLayout *at) {
    return at->pipeline > 1 && at->expert > (int64_t)at->tensor * at->context;
}

bool layout_places(const LayoutSpace *space, const RunLayout *at) {
    return !scatters_experts_(at) &&
           (int64_t)at->pipeline * at->tensor * at->context > cost_domain(space->base, space->world) &&
           !fixes_(space, LAYOUT_BIT(placement));
}

bool layout_places_both(const LayoutSpace *space, const RunLayout *at) {
    return space->base->model.tie_embeddings == TIE_TRUE && layout_places(space, at);
}

static int placement_values_(const LayoutSpace *space, const RunLayout *at, int64_t *values) {
    bool linear = layout_places(space, at) || space->given.placement == PLACEMENT_STAGES;
    values[0] = scatters_experts_(at) ? PLACEMENT_STAGES : linear ? PLACEMENT_LINEAR : space->given.placement;
    values[1] = PLACEMENT_ADJACENT;
    return layout_places_both(space, at) ? 2 : 1;
}

// A schedule from a file has a fixed number of microbatches.
static int micro_batch_values_(const LayoutSpace *space, const RunLayout *at, int64_t *values) {
    const Config *base = space->base;
    enum { MOST = 65536 }; // largest schedule.micro_batch
    int64_t batch = base->train.global_batch, p = at->pipeline;
    int count = 0;
    if (batch % at->data != 0) return 0;
    batch /= at->data;
    for (int64_t b = 1; b <= batch && b <= MOST && count < LAYOUT_CANDIDATES; b++) {
        if (batch % b != 0 || (p > 1 && batch / b * at->slices < p) || !plan_schedule_holds(p, batch / b)) continue;
        if (base->schedule.file[0] == '\0' || b == base->schedule.micro_batch) values[count++] = b;
    }
    return count;
}

// With one tensor rank, sequence parallelism has nothing to split. With several, experts need it.
static int sequence_values_(const LayoutSpace *space, const RunLayout *at, int64_t *values) {
    bool useful = at->tensor > 1 || fixes_(space, LAYOUT_BIT(sequence));
    bool divides = space->base->model.seq_len / at->context / at->slices % at->tensor == 0;
    values[0] = 0, values[1] = 1;
    if (at->tensor == 1 || space->base->model.experts == 0) return useful && divides ? 2 : 1;
    values[0] = 1;
    return divides;
}

// auto uses copies between the GPUs of a node where such copies are possible. Only there is NCCL a second candidate,
// and a fixed `copy` legal with several tensor ranks.
static int collectives_values_(const LayoutSpace *space, const RunLayout *at, int64_t *values) {
    int64_t node = space->base->hardware.gpus_per_node, given = space->given.collectives;
    bool copies = at->tensor > 1 && at->sequence && (space->world <= node || node % at->tensor == 0);
    bool fixed = fixes_(space, LAYOUT_BIT(collectives));
    values[0] = fixed ? given : COLLECTIVES_AUTO, values[1] = COLLECTIVES_NCCL;
    if (fixed) return given != COLLECTIVES_COPY || copies || at->tensor == 1;
    return copies && space->base->hardware.device != DEVICE_CPU ? 2 : 1;
}

// Tries chunk counts of the forward's products, which overlap the collectives. auto: as many as the rows allow.
static int overlap_values_(const LayoutSpace *space, const RunLayout *at, int64_t *values) {
    values[0] = OVERLAP_AUTO, values[1] = OVERLAP_2, values[2] = OVERLAP_3, values[3] = OVERLAP_OFF;
    bool plain = space->base->model.experts == 0 && space->base->model.kv_lora == 0;
    return at->tensor > 1 && plain && space->base->hardware.device != DEVICE_CPU ? 4 : 1;
}

static int attention_values_(const LayoutSpace *space, const RunLayout *at, int64_t *values) {
    (void)space, (void)at;
    for (int m = ATTENTION_NONE; m <= ATTENTION_FLASH; m++) values[m] = m;
    return ATTENTION_FLASH + 1;
}

static int pointwise_values_(const LayoutSpace *space, const RunLayout *at, int64_t *values) {
    (void)at;
    int count = 0;
    values[count++] = RECOMPUTE_NONE;
    if (space->base->model.experts > 0) values[count++] = RECOMPUTE_EXPERTS;
    values[count++] = RECOMPUTE_POINTWISE;
    return count;
}

// ---------------------------------------------------------------- candidates: the list of actions

// A sliced schedule with one chunk and one slice is the same as 1F1B, so it is tried only if it is named.
static int name_values_(const LayoutSpace *space, const RunLayout *at, int64_t *values) {
    bool named = fixes_(space, LAYOUT_BIT(name));
    int count = 0;
    for (int kind = 0; kind < schedule_kind_count; kind++) {
        bool sliced = schedule_kinds[kind].sliced, whole = !sliced || named || schedule_kinds[kind].chunks > 1;
        if (space->schedules != 0 && (space->schedules >> kind & 1) == 0) continue;
        if (at->slices > 1 ? sliced : whole) values[count++] = kind;
    }
    return count;
}

enum { FEW_CHUNKS = 4 };

int layout_most_chunks(const LayoutSpace *space) {
    return max_int((int)space->given.chunks, max_int(space->most_chunks, FEW_CHUNKS));
}

// Tries counts that double up to FEW_CHUNKS, the given or fixed count and, up to the space's limit, counts that divide
// the layers evenly.
static int chunk_values_(const LayoutSpace *space, const RunLayout *at, int64_t *values) {
    const ScheduleKind *kind = kind_of_(at);
    bool listed = fixes_(space, LAYOUT_BIT(layers)), fixed = fixes_(space, LAYOUT_BIT(chunks));
    int64_t layers = space->base->model.layers;
    int count = 0;
    for (int chunks = kind->chunks; chunks <= kind->most_chunks && chunks <= layout_most_chunks(space); chunks++) {
        int64_t parts = (int64_t)at->pipeline * chunks;
        bool doubles = chunks <= FEW_CHUNKS && (chunks & (chunks - 1)) == 0;
        bool even = chunks <= space->most_chunks && layers % parts == 0;
        if (!fixed && !doubles && !even && chunks != space->given.chunks) continue;
        if (listed ? parts == space->base->parallel.layers_given : parts <= layers) values[count++] = chunks;
    }
    return count;
}

static int group_values_(const LayoutSpace *space, const RunLayout *at, int64_t *values) {
    (void)space;
    values[0] = is_grouped_(at) ? at->pipeline : 0;
    values[1] = (at->pipeline + 1) / 2;
    return is_grouped_(at) && at->pipeline > 2 ? 2 : 1;
}

static int delay_values_(const LayoutSpace *space, const RunLayout *at, int64_t *values) {
    (void)space;
    values[0] = is_delayed_(at) ? settled_delay_(at, SCHEDULE_DELAY_MOST) : 0;
    return 1;
}

static int split_values_(const LayoutSpace *space, const RunLayout *at, int64_t *values) {
    bool always = kind_of_(at)->splits, foreign = space->base->program != 0; // other programs split no other kinds
    values[0] = always ? SPLIT_ON : SPLIT_OFF;
    values[1] = SPLIT_ON;
    return always || foreign ? 1 : 2;
}

// ---------------------------------------------------------------- the rows

#define AS_ROW(field_, name_, config, ...)                                                                             \
    [LAYOUT_##field_] = {.name = name_,                                                                                \
                         .offset = offsetof(RunLayout, field_),                                                        \
                         .field = offsetof(Config, config),                                                            \
                         .size = sizeof(((Config *)0)->config),                                                        \
                         __VA_ARGS__},
const LayoutKey layout_keys[LAYOUT_COUNT] = {LAYOUT_KEYS(AS_ROW)};
_Static_assert(LAYOUT_COUNT <= 32, "a LayoutMask has a bit for every key");
_Static_assert(sizeof(RunLayout) == LAYOUT_COUNT * sizeof(int32_t), "a RunLayout has no gaps, so memcmp compares it");

int layout_index(const char *key) {
    int i = LAYOUT_COUNT - 1;
    while (i >= 0 && strcmp(layout_keys[i].name, key) != 0) i--;
    return i;
}

int64_t layout_get(const RunLayout *layout, int index) {
    return *(const int32_t *)(const void *)((const char *)layout + layout_keys[index].offset);
}

void layout_put(RunLayout *layout, int index, int64_t value) {
    *(int32_t *)(void *)((char *)layout + layout_keys[index].offset) = (int32_t)value;
}

RunLayout layout_of(const Config *config) {
    RunLayout layout;
    for (int i = 0; i < LAYOUT_COUNT; i++) {
        const LayoutKey *row = &layout_keys[i];
        const char *field = (const char *)config + row->field;
        layout_put(&layout, i, row->get != NULL ? row->get(config) : config_get_whole(row->size, field));
    }
    return layout;
}

void layout_set(const RunLayout *layout, Config *config) {
    for (int i = 0; i < LAYOUT_COUNT; i++) {
        const LayoutKey *row = &layout_keys[i];
        if (row->set != NULL) row->set(layout, config);
        else config_set_whole(row->size, (char *)config + row->field, layout_get(layout, i));
    }
}

// ---------------------------------------------------------------- comparisons

LayoutMask layout_decided(const Config *config, bool overrides) {
    RunLayout given = layout_of(config);
    LayoutMask mask = 0;
    for (int i = 0; i < LAYOUT_COUNT; i++) {
        const ConfigKey *key = config_find(layout_keys[i].name);
        int32_t place = config->place[key - config_keys];
        int64_t undecided = key->zero_word != NULL                       ? 0
                            : key->type == KEY_INT && key->words != NULL ? -1
                                                                         : INT64_MIN; // the key has no auto
        for (int word = 0; key->type == KEY_WORD && key->words[word] != NULL; word++)
            if (undecided == INT64_MIN && strcmp(key->words[word], "auto") == 0) undecided = word;
        bool there = overrides ? place == CONFIG_OVERRIDE : place != CONFIG_DEFAULT || undecided != INT64_MIN;
        if (there && layout_get(&given, i) != undecided) mask |= (LayoutMask)1 << i;
    }
    return mask;
}

// Returns `from`'s value of a key, with `auto` resolved in `at`.
static int64_t settled_(int index, const RunLayout *from, const RunLayout *at) {
    const LayoutKey *row = &layout_keys[index];
    int64_t value = layout_get(from, index);
    return row->settled != NULL ? row->settled(at, value) : value;
}

bool layout_keeps(const RunLayout *at, const RunLayout *given, LayoutMask mask) {
    for (int i = 0; i < LAYOUT_COUNT; i++) {
        if ((mask >> i & 1) == 0 || (layout_keys[i].belongs == layout_evicts && !layout_evicts(at))) continue;
        if (settled_(i, given, at) != layout_get(at, i)) return false;
    }
    return true;
}

bool layout_same(const RunLayout *a, const RunLayout *b, LayoutMask mask) {
    for (int i = 0; i < LAYOUT_COUNT; i++)
        if ((mask >> i & 1) != 0 && layout_get(a, i) != layout_get(b, i)) return false;
    return true;
}

int layout_distance(const RunLayout *from, const RunLayout *to, LayoutMask mask) {
    int changes = 0;
    for (int i = 0; i < LAYOUT_COUNT; i++) {
        const LayoutKey *row = &layout_keys[i];
        int64_t value = settled_(i, from, to), wanted = layout_get(to, i);
        if ((mask >> i & 1) == 0 || row->free || (row->belongs != NULL && !row->belongs(to))) continue;
        if (value == row->open) value = row->undecided;
        changes += row->rules != NULL ? value != 0 || wanted != 0 : value != wanted; // a list counts as changed
    }
    return changes;
}

int layout_write_changes(const Config *from, const Config *to, FILE *file) {
    RunLayout a = layout_of(from), b = layout_of(to);
    int changes = 0;
    for (int place = 0; place < config_key_count; place++) {
        const char *key = config_keys[place].name;
        int i = layout_index(key);
        const LayoutKey *row = &layout_keys[i < 0 ? 0 : i];
        if (i < 0 || (row->same != NULL && row->same(from, to))) continue;
        bool belongs = row->belongs == NULL || row->belongs(&b);
        if (row->same == NULL && (!belongs || settled_(i, &a, &b) == layout_get(&b, i))) continue;
        fprintf(file, "%s-o %s=", changes++ > 0 ? " " : "", key);
        if (i == LAYOUT_layers && to->parallel.layers_given == 0) fputs("auto", file);
        else config_write_value(to, key, file);
    }
    return changes;
}

char *layout_value_text(int index, int64_t value, char text[LAYOUT_TEXT]) {
    const LayoutKey *row = &layout_keys[index];
    const ConfigKey *key = config_find(row->name);
    const char *const *words = row->rules != NULL ? row->rules : key->type == KEY_INT ? NULL : key->words;
    bool again = index == LAYOUT_recompute;
    int64_t word = !again ? value : value < 0 ? 0 : 1;
    if (key->type == KEY_BOOL) snprintf(text, LAYOUT_TEXT, "%s", value == 1 ? "true" : "false");
    else if (words != NULL && !(again && value > 0)) snprintf(text, LAYOUT_TEXT, "%s", words[word]);
    else snprintf(text, LAYOUT_TEXT, "%lld", (long long)value);
    return text;
}

RunLayout layout_list(const RunLayout *layout) {
    RunLayout list = {0};
    for (int i = 0; i < LAYOUT_COUNT; i++) {
        const LayoutKey *row = &layout_keys[i];
        if (row->lists && (row->belongs == NULL || row->belongs(layout)))
            layout_put(&list, i, settled_(i, layout, layout));
    }
    return list;
}

// ---------------------------------------------------------------- enumeration

int layout_candidates(const LayoutSpace *space, int index, const RunLayout *at, int64_t values[LAYOUT_CANDIDATES]) {
    const LayoutKey *row = &layout_keys[index];
    bool fixed = (space->fixed >> index & 1) != 0 && (row->belongs == NULL || row->belongs(at));
    if (fixed && row->any) return values[0] = settled_(index, &space->given, at), 1;
    int all = row->candidates(space, at, values), count = 0;
    for (int i = 0; i < all; i++)
        if (!fixed || values[i] == settled_(index, &space->given, at)) values[count++] = values[i];
    return count;
}

// Sets keys first .. last to every combination of their candidates, in the order of LAYOUT_KEYS. The candidates of a
// key may depend on the keys before it. For 8 ranks with two or more stages:
//
//   tensor 1, pipeline 2, data 4      tensor 2, pipeline 2, data 2      tensor 4, pipeline 2, data 1
//             pipeline 4, data 2                pipeline 4, data 1
//             pipeline 8, data 1
static void layout_walk_(LayoutList *list, const LayoutSpace *space, int first, int last, RunLayout at) {
    int64_t values[LAYOUT_CANDIDATES];
    int count = first > last ? 0 : layout_candidates(space, first, &at, values);
    if (first > last) xpush(list->layouts, list->count, at);
    for (int i = 0; i < count; i++) {
        layout_put(&at, first, values[i]);
        layout_walk_(list, space, first + 1, last, at);
    }
}

LayoutList layout_walk(const LayoutSpace *space, int first, int last, const RunLayout *at) {
    LayoutList list = {0};
    layout_walk_(&list, space, first, last, *at);
    return list;
}

// ---------------------------------------------------------------- layers by time

// For two stages of one chunk, 5 layers of 1 s each, and a head of 1.5 s on stage 1:
//
//   start            load 0  1.5   layers 0 0
//   one each              1  2.5          1 1
//   two more              3  2.5          3 1    stage 0 had the smaller load, 1 and then 2
//   the last one          3  3.5          3 2
void layout_deal_layers(const Schedule *placed, int64_t layers, double layer, double *load, int16_t *dealt) {
    int p = placed->stages, chunks = placed->chunks, parts = p * chunks;
    double sum[CONFIG_MAX_STAGES] = {0}; // sum over a stage's chunks
    int home[CONFIG_MAX_STAGES];         // [p * chunks] the virtual stages of each stage
    assert(parts <= layers);
    for (int g = 0; g < parts; g++) dealt[g] = 1, load[g] += layer;
    for (int i = 0; i < parts; i++) {
        home[i] = schedule_virtual(placed, i / chunks, i % chunks);
        sum[i / chunks] += load[home[i]];
    }
    for (int64_t left = layers - parts; left > 0; left--) {
        int to = 0;
        for (int s = 1; s < p; s++)
            if (sum[s] <= sum[to]) to = s;
        const int *own = &home[to * chunks];
        int chunk = own[0];
        for (int c = 1; c < chunks; c++)
            if (load[own[c]] < load[chunk]) chunk = own[c];
        dealt[chunk]++;
        load[chunk] += layer;
        sum[to] = 0;
        for (int c = 0; c < chunks; c++) sum[to] += load[own[c]];
    }
}

// ---------------------------------------------------------------- as a message

#define ENCODED_AS "layout 1"

char *layout_encode(const RunLayout *layout, char text[LAYOUT_ENCODED]) {
    snprintf(text, LAYOUT_ENCODED, ENCODED_AS);
    for (int i = 0; i < LAYOUT_COUNT; i++) text_add(text, LAYOUT_ENCODED, " %lld", (long long)layout_get(layout, i));
    return text;
}

bool layout_decode(RunLayout *layout, const char *text) {
    size_t length = strlen(ENCODED_AS);
    if (strncmp(text, ENCODED_AS, length) != 0) return false;
    text += length;
    for (int i = 0; i < LAYOUT_COUNT; i++) {
        char *end;
        long long value = strtoll(text, &end, 10);
        if (end == text) return false;
        layout_put(layout, i, value);
        text = end;
    }
    return *text == '\0';
}

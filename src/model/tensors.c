// Builds the table, lays out one rank's part of it in arenas, and draws initial weights. The layout is computed from
// the table only, so plan, optimizer and checkpoint independently compute the same offsets.
#include "tensors.h"
#include "quantized.h"
#include "base/alloc.h"

#include "base/random.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

// Every tensor that is not joined starts at a multiple of this, which aligns it in bf16 and in fp32.
enum { TENSOR_ALIGN_ELEMENTS = MEMORY_ALIGN / 2 };

void table_prefix(TensorTable *table, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(table->prefix, sizeof table->prefix, format, args);
    va_end(args);
}

static TensorSpec *table_add_(TensorTable *table, int role, int64_t rows, int64_t cols, int split, int init,
                              const char *name) {
    table->specs = xgrow(table->specs, table->count, sizeof *table->specs);
    TensorSpec *spec = &table->specs[table->count++];
    *spec = (TensorSpec){.role = role, .rows = rows, .cols = cols, .split = split, .init = init, .parts = 1};
    spec->tied_to = spec->expert = -1;
    assert(strlen(table->prefix) + strlen(name) < sizeof spec->name);
    strcpy(stpcpy(spec->name, table->prefix), name); // a search makes millions of names
    return spec;
}

TensorSpec *table_vector(TensorTable *table, int role, int64_t rows, int init, const char *name) {
    TensorSpec *spec = table_add_(table, role, rows, 1, SPLIT_NONE, init, name);
    spec->shard_summed = true;
    return spec;
}

TensorSpec *table_bias(TensorTable *table, int role, int64_t rows, int split, const char *name) {
    return table_add_(table, role, rows, 1, split == SPLIT_COLS ? SPLIT_NONE : split, INIT_ZERO, name);
}

TensorSpec *table_matrix(TensorTable *table, int role, int64_t rows, int64_t cols, int split, const char *name) {
    TensorSpec *spec =
        table_add_(table, role, rows, cols, split, split == SPLIT_COLS ? INIT_OUTPUT : INIT_NORMAL, name);
    spec->decay = true;
    return spec;
}

TensorSpec *table_expert(TensorTable *table, int64_t expert, int role, int64_t rows, int64_t cols, int init,
                         const char *name) {
    TensorSpec *spec = table_add_(table, role, rows, cols, SPLIT_NONE, init, name);
    spec->decay = true;
    spec->joined = role != LAYER_EXPERTS;
    spec->expert = (int)expert;
    return spec;
}

TensorSpec *table_vocabulary(TensorTable *table, int64_t vocab, int64_t hidden, bool tied, const char *name) {
    TensorSpec *spec = table_matrix(table, LAYER_NONE, vocab, hidden, SPLIT_ROWS, name);
    spec->vocabulary = true;
    if (tied) spec->tied_to = 0;
    return spec;
}

void table_free(TensorTable *table) {
    free(table->specs);
    memset(table, 0, sizeof *table);
}

int64_t table_parameters(const TensorTable *table, int64_t begin, int64_t end) {
    int64_t total = 0;
    for (int64_t i = begin; i < end; i++)
        if (table->specs[i].tied_to < 0 && !table->specs[i].buffer)
            total += table->specs[i].rows * table->specs[i].cols;
    return total;
}

bool tensor_summed(const TensorSpec *spec, bool sequence) {
    return spec->head_summed || (sequence && spec->shard_summed);
}

// Returns the rows before the split over t tensor ranks; vocabulary rows are rounded up to a multiple of 128 t.
static int64_t padded_rows_(const TensorSpec *spec, int tensor_ranks) {
    int64_t unit = spec->vocabulary ? 128 * (int64_t)tensor_ranks : 1;
    return (spec->rows + unit - 1) / unit * unit;
}

// --- layout
//
// Units lie one after another in the arenas of their group. With bf16 and 2 data ranks, for a layer of norm and q, k, v
// (joined: one unit), data rank 0 holds the following; r0 and r1 are the halves that rank 0 and rank 1 own:
//
//     weights    | norm r0 | norm r1 | q k v r0      | q k v r1      |   16 bit, complete on every rank
//     gradients  | norm r0 | norm r1 | q k v r0      | q k v r1      |   fp32, summed into the owner's half
//     masters    | norm r0 | q k v r0      |                             fp32, only what this rank owns
//     moments    | m: norm r0 | m: q k v r0 | v: norm r0 | v: q k v r0 |
//
// The boundary between r0 and r1 may lie inside a tensor; tensors_piece says which elements of it this rank owns. With
// Muon a unit of matrices has a home, the one data rank that owns all of it, and has no v:
//
//     weights    | norm r0 | norm r1 | q k v (of r1) | o (of r0) |
//     masters    | norm r0 | o |                                        rank 1: | norm r1 | q k v |
//     moments    | m: norm r0 | m: o | v: norm r0 |

// Opens a unit with its first tensor, where the previous unit ended.
static Unit *open_unit_(StageTensors *tensors, int64_t index, int64_t owner) {
    const TensorTable *table = tensors->table;
    Unit *unit = &tensors->units[tensors->unit_count++];
    memset(unit, 0, sizeof *unit);
    unit->first = tensors->count;
    unit->owner = owner < 0 ? -1 : tensors->tensors[owner].unit;
    unit->home = tensors->muon && table_is_layer_matrix(table, index) ? 0 : -1; // dealt by deal_units_
    unit->group = index < table->first_layer || index >= table->head ? STATES_OF_ENDS : STATES_OF_LAYERS;
    if (table->specs[index].buffer) unit->group = STATES_OF_BUFFERS;
    unit->experts = table->specs[index].expert >= 0;
    unit->rank = unit->experts ? tensors->split.expert_replica : tensors->split.data_rank;
    unit->ranks = unit->experts ? tensors->split.expert_replicas : tensors->split.data_ranks;
    return unit;
}

// Appends a tensor to its unit: a joined tensor follows the previous one without a gap, so that one product reads both.
// An expert of another rank takes no space in the unit.
static void tensors_add_tensor_(StageTensors *tensors, const TensorSpec *spec, int64_t index) {
    int64_t owner = spec->tied_to < 0 ? -1 : tensors->count - 1, ranks = tensors->split.tensor_ranks;
    while (owner >= 0 && tensors->tensors[owner].index != spec->tied_to) owner--;
    // With Muon, every expert may have its own home.
    bool joins = spec->joined && !(tensors->muon && spec->expert != spec[-1].expert);
    Unit *unit = joins ? &tensors->units[tensors->unit_count - 1] : open_unit_(tensors, index, owner);
    Tensor *tensor = &tensors->tensors[tensors->count++];
    tensor->spec = spec;
    tensor->index = index;
    tensor->rows = padded_rows_(spec, (int)ranks) / (spec->split == SPLIT_ROWS ? ranks : 1);
    tensor->cols = spec->split == SPLIT_COLS ? spec->cols / ranks : spec->cols;
    // Expert rank r of e holds the experts [r E/e, (r+1) E/e) of E.
    const Split *split = &tensors->split;
    int64_t holder = spec->expert < 0 ? -1 : spec->expert * (int64_t)split->expert_ranks / tensors->table->experts;
    if (spec->expert >= 0 && holder != split->expert_rank) tensor->rows = 0;
    tensor->count = tensor->rows * tensor->cols;
    tensor->alias = owner >= 0;
    tensor->unit = tensors->unit_count - 1;
    tensor->within = unit->count;
    tensor->written = role_is_linear(tensors->tensors[unit->first].spec->role);
    unit->count += tensor->count;
    unit->tensors++;
}

static int longest_first_(const void *a, const void *b) {
    const Unit *x = *(Unit *const *)a, *y = *(Unit *const *)b;
    if (x->count != y->count) return x->count > y->count ? -1 : 1;
    return x < y ? -1 : 1;
}

static int64_t aligned_(int64_t elements) {
    return (elements + TENSOR_ALIGN_ELEMENTS - 1) / TENSOR_ALIGN_ELEMENTS * TENSOR_ALIGN_ELEMENTS;
}

// Assigns the units with a home to the `ranks` data ranks, or replicas of experts: the longest first (ties in table
// order), each to the rank that owns least so far. Every rank allocates as many states as the rank that owns most, so
// plans need not know the data rank.
static void deal_units_(StageTensors *tensors, bool experts, int ranks) {
    StateArenas *arenas = &tensors->arenas[STATES_OF_LAYERS];
    int64_t *owned = xcalloc((size_t)ranks + 1, sizeof *owned), most = 0, count = 0;
    Unit **units = xcalloc((size_t)tensors->unit_count + 1, sizeof *units);
    for (int64_t u = 0; u < tensors->unit_count; u++)
        if (tensors->units[u].home >= 0 && tensors->units[u].experts == experts) units[count++] = &tensors->units[u];
    qsort(units, (size_t)count, sizeof(Unit *), longest_first_);
    for (int64_t i = 0; i < count; i++) {
        int home = 0;
        for (int rank = 1; rank < ranks; rank++)
            if (owned[rank] < owned[home]) home = rank;
        units[i]->home = home;
        units[i]->state_offset = arenas->state_elements + owned[home];
        owned[home] += aligned_(units[i]->count);
        if (owned[home] > most) most = owned[home];
    }
    arenas->state_elements += most;
    free_all(owned, units);
}

// Sets every unit's size and offsets. The experts of a layer have no gaps between them, even if each is a unit. The
// gradients of aliases follow all other gradients.
static void place_units_(StageTensors *tensors) {
    for (int64_t u = 0; u < tensors->unit_count; u++) {
        Unit *unit = &tensors->units[u];
        int64_t owners = unit->home >= 0 ? 1 : unit->ranks;
        if (unit->home < 0 || !unit->experts) unit->count = aligned_((unit->count + owners - 1) / owners) * owners;
        unit->piece = unit->count / owners;
        if (unit->owner >= 0) continue;
        StateArenas *arenas = &tensors->arenas[unit->group];
        bool joined = tensors->tensors[unit->first].spec->joined;
        unit->offset = unit->gradient_offset = joined ? arenas->elements : aligned_(arenas->elements);
        arenas->elements = unit->offset + unit->count;
        arenas->gradient_elements = arenas->elements;
        if (unit->home >= 0 || unit->group == STATES_OF_BUFFERS) continue;
        unit->state_offset = arenas->state_elements;
        arenas->state_elements = arenas->second_elements += unit->piece;
    }
    deal_units_(tensors, false, tensors->split.data_ranks);
    deal_units_(tensors, true, tensors->split.expert_replicas);
    for (int64_t u = 0; u < tensors->unit_count; u++) {
        Unit *unit = &tensors->units[u];
        if (unit->owner < 0) continue;
        unit->gradient_offset = tensors->arenas[unit->group].gradient_elements;
        tensors->arenas[unit->group].gradient_elements += unit->count;
    }
}

void tensors_layout(StageTensors *tensors, const TensorTable *table, const TableRange *ranges, int range_count,
                    const Split *split, const TrainConfig *train) {
    *tensors = (StageTensors){.table = table, .split = *split, .fp8 = train->fp8};
    tensors->muon = train->optimizer == OPTIMIZER_MUON;
    tensors->element = train->precision == PRECISION_BF16 ? 2 : 4;
    int64_t total = 0;
    for (int r = 0; r < range_count; r++) total += ranges[r].end - ranges[r].begin;
    tensors->tensors = xcalloc((size_t)total + 1, sizeof *tensors->tensors);
    tensors->units = xcalloc((size_t)total + 1, sizeof *tensors->units);
    for (int r = 0; r < range_count; r++)
        for (int64_t i = ranges[r].begin; i < ranges[r].end; i++) tensors_add_tensor_(tensors, &table->specs[i], i);
    place_units_(tensors);
}

static int64_t tensors_layer_(const StageTensors *tensors, const Unit *unit) {
    return (tensors->tensors[unit->first].index - tensors->table->first_layer) / tensors->table->per_layer;
}

void tensors_shard_gradients(StageTensors *tensors) {
    StateArenas *arenas = &tensors->arenas[STATES_OF_LAYERS];
    int64_t layer = -1, used = 0;
    for (int64_t u = 0; u < tensors->unit_count; u++) {
        Unit *unit = &tensors->units[u];
        if (unit->group != STATES_OF_LAYERS) continue;
        used = tensors_layer_(tensors, unit) == layer ? used : 0;
        layer = tensors_layer_(tensors, unit);
        unit->gradient_offset = used;
        used += unit->count;
        tensors->buffer = used > tensors->buffer ? used : tensors->buffer;
    }
    for (int64_t u = 0; u < tensors->unit_count; u++) {
        Unit *unit = &tensors->units[u];
        if (unit->group == STATES_OF_LAYERS)
            unit->gradient_offset += tensors_layer_(tensors, unit) % 2 * tensors->buffer;
    }
    arenas->gradient_elements = 2 * tensors->buffer + arenas->state_elements;
}

float *tensors_sum(const StageTensors *tensors, const Unit *unit) {
    if (tensors->buffer == 0 || unit->group != STATES_OF_LAYERS)
        return unit->gradients + (unit->home < 0 ? unit->rank * unit->piece : 0);
    return tensors->arenas[STATES_OF_LAYERS].gradients + 2 * tensors->buffer + unit->state_offset;
}

void tensors_zero_layer(const StageTensors *tensors, Backend *be, int64_t layer) {
    for (int64_t u = 0; u < tensors->unit_count; u++) {
        const Unit *unit = &tensors->units[u];
        if (unit->group != STATES_OF_LAYERS || tensors_layer_(tensors, unit) != layer) continue;
        float *gradients = tensors->arenas[STATES_OF_LAYERS].gradients + unit->gradient_offset;
        if (!tensors->tensors[unit->first].written) be->zero(be, gradients, unit->count * 4);
    }
}

static int64_t group_element_(const StageTensors *tensors, int group) {
    return group == STATES_OF_BUFFERS ? (int64_t)sizeof(float) : tensors->element;
}

int64_t unit_element(const StageTensors *tensors, const Unit *unit) { return group_element_(tensors, unit->group); }

// Returns the bytes of one group as they are allocated. In fp32 the weights are their own masters.
static StateBytes group_bytes_(const StageTensors *tensors, int group) {
    const StateArenas *arenas = &tensors->arenas[group];
    bool masters = group_element_(tensors, group) != 4;
    StateBytes bytes = {memory_round(arenas->elements * group_element_(tensors, group)),
                        memory_round(arenas->gradient_elements * 4),
                        masters ? memory_round(arenas->state_elements * 4) : 0,
                        memory_round((arenas->state_elements + arenas->second_elements) * 4),
                        0,
                        arenas->state_elements};
    for (int64_t u = 0; u < tensors->unit_count; u++)
        if (tensors->units[u].experts && tensors->units[u].group == group)
            bytes.expert_gradients += tensors->units[u].count * 4;
    return bytes;
}

StateBytes tensors_states(const StageTensors *tensors) {
    StateBytes all = {0};
    for (int group = 0; group < STATE_GROUPS; group++) {
        StateBytes bytes = group_bytes_(tensors, group);
        all.weights += bytes.weights;
        all.gradients += bytes.gradients;
        all.masters += bytes.masters;
        all.moments += bytes.moments;
        all.expert_gradients += bytes.expert_gradients;
        all.owned += bytes.owned;
    }
    return all;
}

int64_t states_total(const StateBytes *states) {
    return states->weights + states->gradients + states->masters + states->moments;
}

void tensors_bytes(const StageTensors *tensors, MemoryBytes *bytes) {
    StateBytes layers = group_bytes_(tensors, STATES_OF_LAYERS), ends = group_bytes_(tensors, STATES_OF_ENDS),
               buffers = group_bytes_(tensors, STATES_OF_BUFFERS);
    bytes->bytes[MEMORY_WEIGHTS] += layers.weights + buffers.weights + tensors_quantized_layout(tensors, NULL);
    bytes->bytes[MEMORY_GRADIENTS] += layers.gradients + buffers.gradients;
    bytes->bytes[MEMORY_MASTERS] += layers.masters;
    bytes->bytes[MEMORY_OPTIMIZER] += layers.moments;
    bytes->bytes[MEMORY_EMBEDDING] += states_total(&ends);
}

// Turns offsets into addresses. An alias reads its owner's weights but has its own gradients, so that the gradients of
// head and embedding are added in the same order with one stage as with several.
static void tensors_bind_(StageTensors *tensors) {
    for (int64_t u = 0; u < tensors->unit_count; u++) {
        Unit *unit = &tensors->units[u];
        const StateArenas *arenas = &tensors->arenas[unit->group];
        unit->weights = unit->owner >= 0 ? tensors->units[unit->owner].weights
                                         : (char *)arenas->weights + unit->offset * unit_element(tensors, unit);
        unit->gradients = arenas->gradients + unit->gradient_offset;
        assert(unit->owner >= 0 || unit->offset + unit->count <= arenas->elements);
        assert(unit->owner >= 0 || unit->group == STATES_OF_BUFFERS ||
               unit->state_offset + unit->piece <= arenas->state_elements);
        assert(unit->gradient_offset + unit->count <= arenas->gradient_elements);
    }
    for (int64_t i = 0; i < tensors->count; i++) {
        Tensor *tensor = &tensors->tensors[i];
        const Unit *unit = &tensors->units[tensor->unit];
        tensor->weight = (char *)unit->weights + tensor->within * unit_element(tensors, unit);
        tensor->gradient = unit->gradients + tensor->within;
        tensor->factor[0] = tensor->factor[1] = factor_plain(tensor->weight);
    }
}

TensorPiece tensors_piece(const StageTensors *tensors, int64_t index) {
    const Tensor *tensor = &tensors->tensors[index];
    const Unit *unit = &tensors->units[tensor->unit];
    const StateArenas *arenas = &tensors->arenas[unit->group];
    bool elsewhere = unit->home >= 0 && unit->home != unit->rank;
    int64_t begin = (unit->home < 0 ? unit->rank : elsewhere ? 1 : 0) * unit->piece - tensor->within;
    TensorPiece piece = {begin < 0 ? 0 : begin, begin + unit->piece, NULL, NULL, NULL, NULL, NULL};
    if (piece.end > tensor->count) piece.end = tensor->count;
    if (piece.begin >= piece.end) return piece;
    int64_t state = unit->state_offset + (piece.begin - begin);
    piece.weight = (char *)tensor->weight + piece.begin * unit_element(tensors, unit);
    piece.gradient = tensors_sum(tensors, unit) + (piece.begin - begin);
    if (tensor->alias || unit->group == STATES_OF_BUFFERS) return piece;
    piece.master = arenas->masters == NULL ? NULL : arenas->masters + state;
    piece.m = arenas->moments + state;
    if (unit->home < 0) piece.v = arenas->moments + arenas->state_elements + state;
    return piece;
}

static MemoryCategory category_(int group, MemoryCategory of_layers) {
    return group == STATES_OF_ENDS ? MEMORY_EMBEDDING : of_layers;
}

// Returns NULL, too, if there are no bytes, or after an earlier failure.
static void *allocate_(Backend *be, int group, MemoryCategory of_layers, int64_t bytes, const char *what, Error *err) {
    return bytes > 0 && err->code == 0 ? be->allocate(be, category_(group, of_layers), bytes, what, err) : NULL;
}

int tensors_allocate(StageTensors *tensors, Backend *be, Error *err) {
    for (int group = 0; group < STATE_GROUPS; group++) {
        StateArenas *arenas = &tensors->arenas[group];
        StateBytes bytes = group_bytes_(tensors, group);
        arenas->weights = allocate_(be, group, MEMORY_WEIGHTS, bytes.weights, "weights", err);
        arenas->gradients = allocate_(be, group, MEMORY_GRADIENTS, bytes.gradients, "gradients", err);
        arenas->masters = allocate_(be, group, MEMORY_MASTERS, bytes.masters, "master weights", err);
        arenas->moments = allocate_(be, group, MEMORY_OPTIMIZER, bytes.moments, "optimizer moments", err);
    }
    int64_t quantized = tensors_quantized_layout(tensors, NULL);
    tensors->quantized = allocate_(be, STATES_OF_LAYERS, MEMORY_WEIGHTS, quantized, "weights of 8 bits", err);
    if (err->code != 0) return -1;
    tensors_bind_(tensors);
    tensors_quantized_layout(tensors, tensors->quantized);
    return 0;
}

int64_t tensor_global_row(const Tensor *tensor, int64_t row, int tensor_rank, int tensor_ranks) {
    const TensorSpec *spec = tensor->spec;
    if (spec->split != SPLIT_ROWS) return row < spec->rows ? row : -1;
    int64_t part_rows = padded_rows_(spec, tensor_ranks) / spec->parts, local = part_rows / tensor_ranks;
    int64_t global = row / local * part_rows + tensor_rank * local + row % local;
    return global < spec->rows ? global : -1;
}

int64_t tensor_global_col(const Tensor *tensor, int64_t col, int tensor_rank, int tensor_ranks) {
    if (tensor->spec->split != SPLIT_COLS) return col;
    return tensor_rank * (tensor->spec->cols / tensor_ranks) + col;
}

int64_t tensor_rows_together(const Tensor *tensor, int tensor_rank, int tensor_ranks, int64_t row, int64_t most) {
    int64_t first = tensor_global_row(tensor, row, tensor_rank, tensor_ranks), count = 1;
    while (count < most &&
           tensor_global_row(tensor, row + count, tensor_rank, tensor_ranks) == (first < 0 ? -1 : first + count))
        count++;
    return count;
}

// Writes the weights and masters of a 16-bit tensor from its fp32 values, which the caller has put into the memory of
// its still unused gradient. Then zeroes the gradient.
static void keep_values_(const StageTensors *tensors, Backend *be, int64_t index, int64_t first, int64_t last) {
    const Tensor *tensor = &tensors->tensors[index];
    be->from_float(be, (char *)tensor->weight + first * be->element, tensor->gradient + first, last - first);
    TensorPiece piece = tensors_piece(tensors, index);
    int64_t from = first > piece.begin ? first : piece.begin, to = last < piece.end ? last : piece.end;
    if (from < to)
        be->copy(be, STREAM_COMPUTE, piece.master + (from - piece.begin), tensor->gradient + from, (to - from) * 4);
    be->zero(be, tensor->gradient + first, (last - first) * 4);
}

// Returns where fp32 values of a tensor are written first: the weights themselves, or in bf16 the unused gradient.
static float *values_place_(const Tensor *tensor, const Backend *be) {
    return be->precision == PRECISION_FP32 || tensor->spec->buffer ? (float *)tensor->weight : tensor->gradient;
}

void tensors_put(const StageTensors *tensors, Backend *be, int64_t index, const float *values, int64_t first,
                 int64_t last) {
    be->upload(be, values_place_(&tensors->tensors[index], be) + first, values, (last - first) * 4);
    if (be->precision != PRECISION_FP32 && !tensors->tensors[index].spec->buffer)
        keep_values_(tensors, be, index, first, last);
}

// Draws the values on the device; padding keeps the zeros of the allocation. The random stream of a tensor is FNV-1a
// (64 bit) of its name, so that its values do not depend on the model's other tensors. A tied tensor has the stream of
// the tensor that it is tied to, even on another stage.
static void draw_(const StageTensors *tensors, int64_t index, Backend *be, int64_t seed, float scale) {
    const Tensor *tensor = &tensors->tensors[index];
    const TensorSpec *spec = tensor->spec, *named = spec->tied_to < 0 ? spec : &tensors->table->specs[spec->tied_to];
    const Split *split = &tensors->split;
    uint64_t stride = (uint64_t)spec->cols, stream = 14695981039346656037ull;
    for (const char *name = named->name; *name != 0; name++) stream = (stream ^ (uint8_t)*name) * 1099511628211ull;
    int64_t count, col = tensor_global_col(tensor, 0, split->tensor_rank, split->tensor_ranks);
    for (int64_t row = 0; row < tensor->rows; row += count) {
        int64_t global = tensor_global_row(tensor, row, split->tensor_rank, split->tensor_ranks);
        count = tensor_rows_together(tensor, split->tensor_rank, split->tensor_ranks, row, tensor->rows - row);
        if (global < 0) continue;
        NormalRows draw = {scale, (uint64_t)seed, stream, (uint64_t)global * stride + (uint64_t)col, stride};
        be->draw_normal(be, values_place_(tensor, be) + row * tensor->cols, count, tensor->cols, &draw);
    }
    if (be->precision != PRECISION_FP32) keep_values_(tensors, be, index, 0, tensor->count);
}

void tensors_init(StageTensors *tensors, Backend *be, int64_t seed, int64_t layers, double std) {
    for (int64_t i = 0; i < tensors->count; i++) {
        const Tensor *tensor = &tensors->tensors[i];
        int init = tensor->spec->init;
        if (tensor->alias || init == INIT_ZERO) continue;
        if (init != INIT_ONE) {
            draw_(tensors, i, be, seed, (float)(init == INIT_OUTPUT ? std / sqrt(2.0 * (double)layers) : std));
            continue;
        }
        float *ones = xmalloc((size_t)tensor->count * sizeof *ones);
        for (int64_t at = 0; at < tensor->count; at++) ones[at] = 1.0f;
        tensors_put(tensors, be, i, ones, 0, tensor->count);
        free(ones);
    }
}

void tensors_zero_gradients(const StageTensors *tensors, Backend *be, bool all) {
    for (int group = 0; group < STATE_GROUPS; group++) {
        const StateArenas *arenas = &tensors->arenas[group];
        int64_t begin = 0, end = 0; // bounds of the current run; the rest of the arena follows the last unit
        if (group == STATES_OF_LAYERS && tensors->buffer > 0 && !all) { // the backward zeroes for the other layers
            int64_t layers = (tensors->table->head - tensors->table->first_layer) / tensors->table->per_layer;
            tensors_zero_layer(tensors, be, layers - 1);
            tensors_zero_layer(tensors, be, layers - 2);
            continue;
        }
        for (int64_t u = 0; u <= tensors->unit_count && arenas->gradients != NULL; u++) {
            const Unit *unit = &tensors->units[u];
            bool last = u == tensors->unit_count;
            if (!last && (unit->group != group || all || !tensors->tensors[unit->first].written)) continue;
            end = last ? arenas->gradient_elements : unit->gradient_offset;
            if (end > begin) be->zero(be, arenas->gradients + begin, (end - begin) * 4);
            if (!last) begin = unit->gradient_offset + unit->count;
        }
    }
}

void tensors_free(StageTensors *tensors, Backend *be) {
    for (int group = 0; group < STATE_GROUPS; group++) {
        const StateArenas *arenas = &tensors->arenas[group];
        StateBytes bytes = group_bytes_(tensors, group);
        backend_release(be, category_(group, MEMORY_WEIGHTS), arenas->weights, bytes.weights);
        backend_release(be, category_(group, MEMORY_GRADIENTS), arenas->gradients, bytes.gradients);
        backend_release(be, category_(group, MEMORY_MASTERS), arenas->masters, bytes.masters);
        backend_release(be, category_(group, MEMORY_OPTIMIZER), arenas->moments, bytes.moments);
    }
    backend_release(be, MEMORY_WEIGHTS, tensors->quantized, tensors_quantized_layout(tensors, NULL));
    free_all(tensors->tensors, tensors->units);
    memset(tensors, 0, sizeof *tensors);
}

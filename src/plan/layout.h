// The keys that a planner may choose: how the model is divided among ranks, the schedule, and where bundles are kept.
//
// A *layout* is one value for each of these keys, a plain record of integers that is compared and hashed as bytes. A
// search keeps a hundred thousand layouts, so four keys that are lists in a configuration are rules in a layout: how
// layers are divided, how many of them are recomputed, whether the others recompute outputs, and the attention mode.
// The lists themselves stay in the configuration that a layout is written into.
//
// Each key is a row of LAYOUT_KEYS. Reading, writing, comparing, printing, enumerating and sending layouts are loops
// over the rows. To let planners choose another key, add its row.
#pragma once

#include "config/config.h"

// Rules for lists. Other values of `recompute` and `attention` apply to every stage. Two rules recompute n layers:
// RECOMPUTE_EVICTING - 2n on each evicting stage; RECOMPUTE_EVICTING - (2n + 1) only on the evicting stages of the
// first half.
enum { LAYERS_EVEN, LAYERS_BY_TIME, LAYERS_LISTED }; // LAYERS_LISTED: the list of the configuration
enum { RECOMPUTE_TO_FIT = -1, RECOMPUTE_LISTED = -2, RECOMPUTE_EVICTING = -3 };
enum { ATTENTION_LISTED = -1, POINTWISE_LISTED = -1 };

// Rows are in the order in which a search decides: first the shape, which is the division into ranks and the size of a
// microbatch; then the list of actions; then how bundles are kept.
//  KEY(field, key of the configuration, field of Config, properties: see LayoutKey)
#define LAYOUT_KEYS(KEY)                                                                                               \
    KEY(tensor, "parallel.tensor", parallel.tensor, .candidates = tensor_values_)                                      \
    KEY(pipeline, "parallel.pipeline", parallel.pipeline, .lists = true, .candidates = pipeline_values_)               \
    KEY(context, "parallel.context", parallel.context, .candidates = context_values_)                                  \
    KEY(data, "parallel.data", parallel.data, .candidates = data_values_)                                              \
    KEY(expert, "parallel.expert", parallel.expert, .candidates = expert_values_)                                      \
    KEY(placement, "parallel.placement", parallel.placement, .any = true, .candidates = placement_values_)             \
    KEY(slices, "schedule.slices", schedule.slices, .lists = true, .candidates = slice_values_)                        \
    KEY(micro_batch, "schedule.micro_batch", schedule.micro_batch, .candidates = micro_batch_values_)                  \
    KEY(sequence, "parallel.sequence", parallel.sequence, .candidates = sequence_values_)                              \
    KEY(collectives, "parallel.collectives", parallel.collectives, .candidates = collectives_values_)                  \
    KEY(overlap, "parallel.overlap", parallel.overlap, .any = true, .candidates = overlap_values_)                     \
    KEY(attention, "attention.mode", attention.mode, .any = true, .candidates = attention_values_,                     \
        .get = get_attention_, .set = set_attention_)                                                                  \
    KEY(pointwise, "schedule.recompute", schedule.pointwise_given, .any = true, .candidates = pointwise_values_,       \
        .get = get_pointwise_, .set = set_pointwise_)                                                                  \
    KEY(name, "schedule.name", schedule.name, .lists = true, .candidates = name_values_)                               \
    KEY(chunks, "schedule.chunks", schedule.chunks, .lists = true, .candidates = chunk_values_,                        \
        .settled = settled_chunks_)                                                                                    \
    KEY(group, "schedule.group", schedule.group, .lists = true, .any = true, .candidates = group_values_,              \
        .settled = settled_group_, .belongs = is_grouped_)                                                             \
    KEY(delay, "schedule.delay", schedule.delay, .lists = true, .any = true, .candidates = delay_values_,              \
        .settled = settled_delay_, .belongs = is_delayed_)                                                             \
    KEY(split, "schedule.split_backward", schedule.split_backward, .lists = true, .candidates = split_values_,         \
        .settled = settled_split_, .open = SPLIT_AUTO, .undecided = SPLIT_OFF)                                         \
    KEY(layers, "parallel.layers", parallel.layers_given, .rules = layers_words_, .get = get_layers_,                  \
        .set = set_layers_, .same = same_layers_)                                                                      \
    KEY(bpipe, "schedule.bpipe", schedule.bpipe, .lists = true, .open = BPIPE_AUTO, .undecided = BPIPE_OFF)            \
    KEY(evict_to, "schedule.evict_to", schedule.evict_to, .lists = true, .belongs = layout_evicts)                     \
    KEY(slots, "schedule.slots", schedule.slots, .lists = true, .belongs = layout_evicts, .free = true)                \
    KEY(load_ahead, "schedule.load_ahead", schedule.load_ahead, .lists = true, .belongs = layout_evicts, .free = true) \
    KEY(recompute, "schedule.recompute_layers", schedule.recompute_given, .rules = recompute_words_,                   \
        .get = get_recompute_, .set = set_recompute_, .same = same_recompute_)

typedef struct RunLayout {
#define AS_FIELD(field, ...) int32_t field;
    LAYOUT_KEYS(AS_FIELD)
#undef AS_FIELD
} RunLayout;

// The index of each row: LAYOUT_tensor, ...
enum {
#define AS_INDEX(field, ...) LAYOUT_##field,
    LAYOUT_KEYS(AS_INDEX)
#undef AS_INDEX
        LAYOUT_COUNT
};

typedef uint32_t LayoutMask; // a bit for each key
#define LAYOUT_BIT(field) ((LayoutMask)1 << LAYOUT_##field)

// The layouts to enumerate: all layouts of a world in which the fixed keys have their given values.
typedef struct LayoutSpace {
    const Config *asked; // the user's configuration
    const Config *base;  // user's configuration with the keys that --for fixes
    RunLayout given;     // layout of that configuration
    LayoutMask fixed;    // keys that keep their value in `given`
    int64_t world;       // ranks
    uint32_t schedules;  // schedules to try, a bit for each of schedule_kinds; 0: all
    int most_chunks;     // most chunks to try where they divide the layers evenly; 0: only 2 and 4
} LayoutSpace;

enum { LAYOUT_CANDIDATES = 1024, LAYOUT_MOST_STAGES = 128 };

typedef struct LayoutKey {
    const char *name;
    size_t offset;            // offset of the value in RunLayout, in bytes
    size_t field, size;       // offset in Config and size of the integer with the value, in bytes
    bool lists;               // the schedule's actions depend on the key
    bool free;                // changes of the key are not counted: its value follows from other keys
    bool any;                 // a fixed value is the only candidate, whatever the keys before it
    int open, undecided;      // value of an auto that only a plan can decide; value that replaces the auto until then
    const char *const *rules; // words of the rules; the first word is for LAYERS_EVEN or RECOMPUTE_TO_FIT
    // Returns whether the key applies to a layout. NULL: it applies to all.
    bool (*belongs)(const RunLayout *at);
    // Returns the number that a value such as `auto` means in a layout. An auto that only a plan can decide is returned
    // unchanged. NULL: the key has no such values.
    int64_t (*settled)(const RunLayout *at, int64_t value);
    // Writes the values to try, given the keys of the rows above, and returns their number. NULL: not enumerated.
    int (*candidates)(const LayoutSpace *space, const RunLayout *at, int64_t *values);
    // Read and write the key, and compare it in two configurations. NULL: the field of Config is the value.
    int64_t (*get)(const Config *config);
    void (*set)(const RunLayout *at, Config *config);
    bool (*same)(const Config *from, const Config *to);
} LayoutKey;

extern const LayoutKey layout_keys[LAYOUT_COUNT];

// Returns the index of a configuration's key, -1 if planners do not choose it.
int layout_index(const char *key);

int64_t layout_get(const RunLayout *layout, int index);
void layout_put(RunLayout *layout, int index, int64_t value);

// Read the layout of a configuration, and write a layout into a configuration. Rules that need a planner are written as
// even layers and as no recomputation. Where the layout's value is ..._LISTED, the configuration keeps its list.
RunLayout layout_of(const Config *config);
void layout_set(const RunLayout *layout, Config *config);

// Returns the keys that a configuration decides. overrides: only keys set with -o; else keys set anywhere, and keys
// that could be `auto` but have another value. A key that is `auto` is never decided.
LayoutMask layout_decided(const Config *config, bool overrides);

// Returns whether `at` has the values of `given` for the keys of a mask. If `at` evicts nothing, the keys of evictions
// are not compared.
bool layout_keeps(const RunLayout *at, const RunLayout *given, LayoutMask mask);

// Returns whether two layouts have the same values for the keys of a mask.
bool layout_same(const RunLayout *a, const RunLayout *b, LayoutMask mask);

// Returns how many keys of a mask must change to turn `from` into `to`. No schedule key of `to` may be auto.
int layout_distance(const RunLayout *from, const RunLayout *to, LayoutMask mask);

// Writes the keys that differ as "-o KEY=VALUE ..." and returns how many. Keys that do not apply to `to` are omitted.
int layout_write_changes(const Config *from, const Config *to, FILE *file);

// Writes a value in human-readable form: "8", "flash", "by time". Returns `text`.
enum { LAYOUT_TEXT = 32 };
char *layout_value_text(int index, int64_t value, char text[LAYOUT_TEXT]);

// Returns the part of a layout on which the actions of its schedule depend, with every other key 0.
RunLayout layout_list(const RunLayout *layout);

bool layout_evicts(const RunLayout *layout);

// Lists each combination of candidates of the rows first to last, the last row varying fastest; the other keys are
// those of `at`. The caller frees `layouts`.
typedef struct LayoutList {
    RunLayout *layouts;
    int64_t count;
} LayoutList;
LayoutList layout_walk(const LayoutSpace *space, int first, int last, const RunLayout *at);

// Writes the candidates of one key and returns how many.
int layout_candidates(const LayoutSpace *space, int index, const RunLayout *at, int64_t values[LAYOUT_CANDIDATES]);

// Returns the largest number of chunks to enumerate.
int layout_most_chunks(const LayoutSpace *space);

// Returns whether parallel.placement matters and is not fixed. It matters if a replica has more ranks than a node.
bool layout_places(const LayoutSpace *space, const RunLayout *at);

// Returns whether both placements are candidates. If the first and the last stage sum the gradients of a tied matrix,
// either placement may be faster. Otherwise neighbouring stages belong on one node, unless pairs evict to each other.
bool layout_places_both(const LayoutSpace *space, const RunLayout *at);

// Deals layers of `layer` seconds to chunks that have load[g] seconds of other work. After one layer per chunk, each
// layer goes to the least loaded chunk of the least loaded stage, so no other split has a faster slowest stage. Among
// equal stages the later one gets the layer, since most schedules keep fewer bundles there. The layers are added to
// `load`.
void layout_deal_layers(const Schedule *placed, int64_t layers, double layer, double *load, int16_t *dealt);

// Write a layout as a short text for another process of this program, and read it back. layout_decode returns false if
// the text is not from this version.
enum { LAYOUT_ENCODED = 16 + 12 * LAYOUT_COUNT };
char *layout_encode(const RunLayout *layout, char text[LAYOUT_ENCODED]);
bool layout_decode(RunLayout *layout, const char *text);

// The search finds the same optimum, front and ten best as a simulation of all candidates, with any number of threads.
// test_brute_force.py draws plans without the search, and finds nothing faster.
#include "models.h"
#include "plan/pays.h"
#include "search/answers.h"
#include "search/bound.h"
#include "made_plan.h"

#include "config/config_schema.h"
#include "unit.h"

#include <math.h>
#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#endif

// A configuration and its search space for `gpus` GPUs; overrides are separated by spaces.
typedef struct World {
    Config base, ranks;
    Planner planner;
    SearchSpace space;
} World;

static World *open_world(const char *path, int64_t gpus, const char *overrides) {
    World *world = calloc(1, sizeof *world);
    char text[768];
    // Slices would make the exhaustive search of every case three times as long.
    bool longer = strstr(overrides, "parallel.context") != NULL;
    snprintf(text, sizeof text, "parallel.pipeline=1 parallel.tensor=1 parallel.data=1 parallel.expert=1 %s %s",
             longer ? "" : "schedule.slices=1", overrides);
    world->base = loaded(path, text);
    world->base.hardware.profile[0] = '\0';
    // These keys stay open unless a case fixes them.
    const char *open[] = {"parallel.pipeline", "parallel.tensor", "parallel.data", "parallel.context",
                          "parallel.expert"};
    for (int i = 0; i < 5; i++)
        if (longer || strstr(overrides, open[i]) == NULL)
            world->base.place[config_find(open[i]) - config_keys] = CONFIG_DEFAULT;
    world->ranks = world->base;
    world->ranks.parallel.pipeline = world->ranks.parallel.tensor = 1;
    world->ranks.parallel.data = gpus;
    world->ranks.parallel.context = 1;
    const Model *model = model_of(&world->base);
    assert_succeeds(planner_create(&world->planner, &world->ranks, model, NULL, &unit_error));
    world->space = space_make(&world->base, &world->planner, gpus);
    world->space.keys.most_chunks = 8;
    return world;
}

static void close_world(World *world) {
    planner_free(&world->planner);
    free(world);
}

UNIT_END(World, close_world)
#define AutoWorld  UNIT_ENDS(close_world) World
#define AutoResult __attribute__((cleanup(search_free))) SearchResult

static SearchResult search(const World *world, bool exhaustive) {
    SearchResult result;
    SearchOptions options = {.exhaustive = exhaustive};
    assert_succeeds(search_run(&result, &world->space, &options, &unit_error));
    return result;
}

static const struct Case {
    const char *path, *overrides;
    int64_t gpus;
} cases[] = {
    // First everything fits. Then nothing fits without evictions or recomputed layers. Then hardly anything fits.
    {"configs/llama65b.yaml", "model.layers=8 train.global_batch=16", 4},
    {"configs/llama65b.yaml", "model.layers=8 train.global_batch=16 hardware.memory_gib=58", 4},
    {"configs/llama65b.yaml", "model.layers=12 train.global_batch=24 hardware.memory_gib=36", 8},
    {"configs/llama3_70b.yaml", "model.layers=8 train.global_batch=8 hardware.memory_gib=40", 8},
    {"configs/gpt3_96b.yaml", "model.layers=6 train.global_batch=12 hardware.memory_gib=60", 6},
    // Nothing fits.
    {"configs/llama65b.yaml", "model.layers=8 train.global_batch=16 hardware.memory_gib=14", 4},
    // Long sequences, cut into slices or split over context ranks.
    {"configs/llama3_70b.yaml",
     "parallel.context=2 model.layers=8 model.seq_len=32768 train.global_batch=4 attention.mode=flash "
     "attention.deterministic=off parallel.overlap=off hardware.memory_gib=48",
     8},
    // Two nodes over a slow network.
    {"configs/llama65b.yaml", "model.layers=8 train.global_batch=16 hardware.gpus_per_node=2 hardware.network_gb_s=2",
     4},
    {"configs/gpt3_96b.yaml", "model.layers=8 train.global_batch=8 hardware.gpus_per_node=2 hardware.network_gb_s=2",
     4},
    // Bundles for partners on the other node slow products down; those for the host do not.
    {"configs/llama65b.yaml",
     "parallel.pipeline=4 parallel.tensor=1 model.layers=8 train.global_batch=12 hardware.gpu=h100 "
     "hardware.gpus_per_node=2 hardware.network_gb_s=200 hardware.host_gb_s=400 hardware.memory_gib=56",
     4},
    // With partners on one node, evictions are faster than no evictions with neighbours on one node.
    {"configs/llama65b.yaml",
     "parallel.tensor=1 model.layers=8 train.global_batch=12 hardware.gpu=h100 hardware.gpus_per_node=2 "
     "hardware.network_gb_s=200 hardware.host_gb_s=400 hardware.memory_gib=44",
     8},
    // Evictions with recomputed layers take less memory than the same evictions without them could.
    {"configs/llama3_70b.yaml",
     "model.layers=8 train.global_batch=16 hardware.gpu=h100 hardware.gpus_per_node=2 "
     "hardware.network_gb_s=50 hardware.host_gb_s=200 hardware.memory_gib=51",
     4},
    {"configs/llama3_70b.yaml",
     "model.layers=8 train.global_batch=8 hardware.gpu=h100 hardware.gpus_per_node=2 "
     "hardware.network_gb_s=100 hardware.host_gb_s=200 hardware.memory_gib=55",
     4},
    // A recomputed layer of GPT takes two thirds of a forward.
    {"configs/gpt3_96b.yaml",
     "model.layers=12 train.global_batch=8 hardware.gpu=a100-80g hardware.gpus_per_node=3 "
     "hardware.network_gb_s=100 hardware.host_gb_s=200 hardware.memory_gib=72",
     4},
    // Recomputing a layer of experts takes less than half of a forward.
    {"configs/qwen3_30b_a3b.yaml",
     "model.layers=8 train.global_batch=16 hardware.gpu=h100 hardware.memory_gib=40 schedule.micro_batch=1", 4},
    // A layout that evicts is in class 0, but by less than an eviction has to gain.
    {"configs/llama3_70b.yaml",
     "parallel.pipeline=4 model.layers=8 train.global_batch=8 hardware.gpu=a100-80g hardware.gpus_per_node=3 "
     "hardware.network_gb_s=12 hardware.host_gb_s=50 hardware.memory_gib=55",
     8},
};

// Under a sanitizer, only every third case runs.
enum { CASES = sizeof cases / sizeof *cases, EACH = UNIT_SANITIZED ? 3 : 1 };

// A case's search space, and the result of an exhaustive search; made once and kept.
typedef struct Searched {
    World *world;
    SearchResult all;
} Searched;

static const Searched *searched(size_t i) {
    static Searched kept[CASES];
    if (kept[i].world != NULL) return &kept[i];
    kept[i].world = open_world(cases[i].path, cases[i].gpus, cases[i].overrides);
    kept[i].all = search(kept[i].world, true);
    return &kept[i];
}

// A thread counts shapes and sets layouts in the same configuration.
TEST(listed_layers_outlast_the_count_of_a_shape) {
    AutoWorld *world = open_world("configs/llama65b.yaml", 4, "model.layers=8 train.global_batch=16");
    Config base = loaded("configs/llama65b.yaml", "model.layers=8 train.global_batch=16 parallel.tensor=1 "
                                                  "parallel.data=1 parallel.pipeline=4 parallel.layers=[1,3,3,1]");
    SearchSpace space = space_make(&base, &world->planner, 4);
    RunLayout layout = space.keys.given;
    Config config = base;
    PartTimes ends = {0};
    space_layer_times(&space, &layout, &ends, &config);
    space_set(&space, &layout, &config);
    for (int s = 0; s < 4; s++) assert_int_equal(config_layers(&config, 4, s), s % 3 == 0 ? 1 : 3);
}

// ---- against all candidates, simulated -----------------------------------------------------------------------------

static char *text_of(const Candidate *found, char text[LAYOUT_ENCODED]) {
    return layout_encode(&found->forecast.layout, text);
}

static double step_of(const Candidate *found) { return found->forecast.time.step; }

static void assert_same_step(const Candidate *one, const Candidate *other) {
    char a[LAYOUT_ENCODED], b[LAYOUT_ENCODED];
    if (fabs(step_of(one) - step_of(other)) > 1e-9 * step_of(other))
        fail_msg("%.9g s: %s\n%.9g s: %s", step_of(one), text_of(one, a), step_of(other), text_of(other, b));
}

// Compares the faster candidate that does not fit and its reason, or the candidate nearest to fitting if nothing fits.
static void compare_misfits(const World *world, const SearchResult *quick, const SearchResult *all) {
    Candidate one = {0}, other = {0};
    double step = 0, other_step = 0;
    Error err = {0};
    assert_int_equal(answer_next_better(&world->space, quick, &one, &step, &err),
                     answer_next_better(&world->space, all, &other, &other_step, &err));
    assert_true(one.forecast.lacks == other.forecast.lacks);
    assert_int_equal(one.forecast.fullest, other.forecast.fullest);
    assert_false(one.all);
}

// Among candidates within 1 % of the fastest, the best has no evictions, the fewest stages, no slices or context ranks,
// no pointwise recomputation, and the most free memory.
static void best_is_the_plainest_of_its_class(const SearchResult *all) {
    const Forecast *best = &all->found.items[all->best].forecast;
    double fastest = step_of(&all->found.items[all->fastest]);
    assert_int_equal(search_class(all, best), 0);
    for (int64_t i = 0; i < all->found.count; i++) {
        const Forecast *at = &all->found.items[i].forecast;
        assert_true(at->time.step >= fastest);
        assert_int_equal(search_class(all, at) == 0, at->time.step < 1.01 * fastest);
        if (at->time.step >= 1.01 * fastest) continue;
        assert_true(layout_evicts(&at->layout) || !layout_evicts(&best->layout));
        if (layout_evicts(&at->layout) != layout_evicts(&best->layout)) continue;
        assert_true(at->layout.pipeline >= best->layout.pipeline);
        if (at->layout.pipeline > best->layout.pipeline) continue;
        bool whole = at->layout.slices * at->layout.context == 1,
             best_whole = best->layout.slices * best->layout.context == 1;
        assert_true(best_whole || !whole);
        if (whole != best_whole) continue;
        assert_true(at->layout.pointwise >= best->layout.pointwise);
        if (at->layout.pointwise == best->layout.pointwise) assert_true(at->peak_bytes >= best->peak_bytes);
    }
}

// The fastest of each way to fill bubbles and to evict is found if it takes at most 10 % longer than the best of all.
static void compare_ways(const SearchResult *quick, const SearchResult *all) {
    const Candidate *best[2][PAYS_WAYS] = {{NULL}};
    for (int i = 0; i < 2; i++) {
        const CandidateList *found = i == 0 ? &quick->found : &all->found;
        for (int64_t k = 0; k < found->count; k++) {
            const Candidate *at = &found->items[k], **way = &best[i][pays_way(&at->forecast.layout)];
            if (*way == NULL || planner_compared(&at->forecast) < planner_compared(&(*way)->forecast)) *way = at;
        }
    }
    for (int way = 0; way < PAYS_WAYS; way++) {
        const Candidate *one = best[0][way], *other = best[1][way];
        if (other == NULL || step_of(other) > 1.09 * step_of(&all->found.items[all->fastest])) continue;
        assert_non_null(one);
        assert_same_step(one, other);
    }
}

static void compare_with_all(const struct Case *at, const Searched *found) {
    const World *world = found->world;
    const SearchResult *all = &found->all;
    AutoResult quick = search(world, false);
    assert_int_equal(quick.best < 0, all->best < 0);
    assert_true(all->simulated > quick.simulated || all->best < 0);
    compare_misfits(world, &quick, all);
    if (all->best >= 0) {
        assert_same_step(&quick.found.items[quick.best], &all->found.items[all->best]);
        assert_same_step(&quick.found.items[quick.fastest], &all->found.items[all->fastest]);
        assert_int_equal(quick.alike, all->alike);
        best_is_the_plainest_of_its_class(all);
        assert_int_equal(quick.front_count, all->front_count);
        for (int i = 0; i < all->front_count; i++) {
            const Candidate *one = &quick.found.items[quick.front[i]], *other = &all->found.items[all->front[i]];
            assert_same_step(one, other);
            assert_int_equal(one->forecast.peak_bytes, other->forecast.peak_bytes);
        }
        compare_ways(&quick, all);
        assert_int_equal(quick.ten_count, all->ten_count);
        for (int i = 0; i < all->ten_count; i++)
            assert_same_step(&quick.found.items[quick.ten[i]], &all->found.items[all->ten[i]]);
    }
    print_message("%s %s: %lld of %lld simulated\n", at->path, at->overrides, (long long)quick.simulated,
                  (long long)all->simulated);
}

TEST(best_front_and_ten_are_those_of_all_candidates_simulated) {
    for (size_t i = 0; i < CASES; i += EACH) compare_with_all(&cases[i], searched(i));
}

// ---- bounds --------------------------------------------------------------------------------------------------------

TEST(no_step_is_shorter_than_its_bound) {
    for (size_t i = 0; i < CASES; i += EACH) {
        const World *world = searched(i)->world;
        const SearchResult *all = &searched(i)->all;
        Config *config = malloc(sizeof *config);
        for (int64_t k = 0; k < all->found.count; k++) {
            Cut cut, list, whole;
            const Candidate *found = &all->found.items[k];
            const RunLayout *layout = &found->forecast.layout;
            assert_true(space_config(&world->space, layout, config));
            cut_open(&cut, &world->space, config);
            assert_succeeds(cut_time(&cut, &world->space, config, &unit_error));
            double bound = cut_bound(&cut, layout);
            char text[LAYOUT_ENCODED];
            if (bound > step_of(found) * (1 + 1e-6))
                fail_msg("%s: bound %.9g, step %.9g: %s", cases[i].overrides, bound, step_of(found),
                         text_of(found, text));
            assert_true(cut.least_bytes <= found->forecast.peak_bytes);
            if (layout->recompute != 0) { // a bound from the times of the list, which recomputes nothing
                Config none = *config, every = *config;
                none.schedule.recompute_given = every.schedule.recompute_given = 1;
                none.schedule.recompute_of_stage[0] = 0;
                every.schedule.recompute_of_stage[0] = (int16_t)config->model.layers;
                cut_open(&list, &world->space, &none);
                cut_open(&whole, &world->space, &every);
                assert_succeeds(cut_time(&list, &world->space, &none, &unit_error));
                assert_succeeds(cut_time(&whole, &world->space, &every, &unit_error));
                bound = cut_recomputing_bound(&list, &whole, config);
                if (bound > step_of(found) * (1 + 1e-6))
                    fail_msg("%s: bound %.9g with recomputed layers, step %.9g: %s", cases[i].overrides, bound,
                             step_of(found), text_of(found, text));
                assert_true(list.recomputing_bytes <= found->forecast.peak_bytes);
                cut_free(&list), cut_free(&whole);
            }
            *config = world->base;
            PartTimes least = space_least_times(&world->space, layout, config),
                      times = space_layer_times(&world->space, layout, &least, config);
            RunLayout shape = *layout;
            shape.name = schedule_kind_plain(), shape.chunks = 1, shape.layers = LAYERS_EVEN;
            shape.bpipe = BPIPE_OFF;
            if (layout->recompute == 0) {
                assert_true(shape_bound(&world->space, layout, &least) <= step_of(found) * (1 + 1e-6));
                assert_true(shape_bound(&world->space, layout, &times) <= step_of(found) * (1 + 1e-6));
                assert_true(space_config(&world->space, layout, config));
                assert_true(cut_rough_bound(&world->space, config, &times) <= bound * (1 + 1e-6));
                *config = world->base;
                assert_true(space_least_bytes(&world->space, &shape, config) <= found->forecast.peak_bytes);
            }
            cut_free(&cut);
        }
        free(config);
    }
}

// Of a long schedule a few rounds are simulated, each only as long as the whole may still take no longer than `worth`.
TEST(a_long_schedule_is_given_up_only_if_it_takes_longer) {
    AutoWorld *world =
        open_world("configs/llama65b.yaml", 4, "model.layers=16 train.global_batch=8192 hardware.memory_gib=4000");
    Config *config = malloc(sizeof *config);
    int given_up = 0, planned = 0;
    for (int kind = 0; kind < schedule_kind_count; kind++)
        for (int host = 0; host < 2; host++) {
            Error err = {0};
            Forecast whole, limited;
            *config = world->base;
            config->parallel.pipeline = 4, config->schedule.micro_batch = 1;
            config->schedule.name = kind, config->schedule.split_backward = SPLIT_OFF;
            config->schedule.slices = schedule_kinds[kind].sliced ? 2 : 1;
            config->schedule.bpipe = host ? BPIPE_ON : BPIPE_OFF, config->schedule.evict_to = EVICT_TO_HOST;
            if (schedule_kinds[kind].splits) config->schedule.split_backward = SPLIT_AUTO;
            if (schedule_kinds[kind].keeps_all || config_check(config, &err) != 0) continue;
            assert_int_equal(planner_forecast_within(&world->planner, config, INFINITY, &whole, &err), 0);
            if (!whole.time.known) continue; // nothing to evict
            planned++;
            for (int percent = 80; percent <= 102; percent++) {
                double worth = whole.time.step * (percent + 0.5) / 100;
                assert_int_equal(planner_forecast_within(&world->planner, config, worth, &limited, &err), 0);
                if (percent >= 100) assert_true(limited.time.known && limited.time.step == whole.time.step);
                given_up += !limited.time.known;
            }
        }
    assert_true(planned > 12 && given_up > 15 * planned);
    free(config);
}

// ---- threads -------------------------------------------------------------------------------------------------------

TEST(results_do_not_depend_on_threads) {
#ifdef _OPENMP
    AutoWorld *world = open_world(cases[2].path, cases[2].gpus, cases[2].overrides);
    omp_set_num_threads(1);
    AutoResult one = search(world, false);
    omp_set_num_threads(5);
    AutoResult many = search(world, false);
    assert_int_equal(one.found.count, many.found.count);
    assert_int_equal(one.evaluated, many.evaluated);
    assert_int_equal(one.best, many.best);
    for (int64_t i = 0; i < one.found.count; i++) {
        char a[LAYOUT_ENCODED], b[LAYOUT_ENCODED];
        const Candidate *x = &one.found.items[i], *y = &many.found.items[i];
        assert_string_equal(text_of(x, a), text_of(y, b));
        assert_true(step_of(x) == step_of(y) && x->forecast.peak_bytes == y->forecast.peak_bytes);
    }
    assert_int_equal(one.front_count, many.front_count);
    assert_memory_equal(one.front, many.front, (size_t)one.front_count * sizeof *one.front);
#else
    skip();
#endif
}

// ---- other answers -------------------------------------------------------------------------------------------------

// The search names the next better candidate, which is faster and does not fit, and its reason.
TEST(the_next_better_is_quicker_and_does_not_fit) {
    Error err = {0};
    char text[ANSWER_TEXT];
    Candidate misfit;
    double step;
    const char *tight = "model.layers=8 train.global_batch=16 hardware.memory_gib=40";
    AutoWorld *world = open_world(cases[1].path, cases[1].gpus, tight);
    AutoResult result = search(world, false);
    assert_true(answer_next_better(&world->space, &result, &misfit, &step, &err));
    assert_true(step < 0.99 * step_of(&result.found.items[result.fastest]) && misfit.forecast.lacks > 0);
    assert_true(strlen(answer_reason(&world->space, &misfit, text)) > 0);
}

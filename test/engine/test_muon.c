// Where Muon's matrices live.
#include "models.h"
#include "engine/muon.h"
#include "made_plan.h"
#include "unit.h"

typedef struct Homes {
    StageTensors tensors[8];
    TensorTable table;
} Homes;

// Two neighbours divide the experts of a model that has some, if the ranks are even.
static Homes *homes(const Config *config, int ranks) {
    int e = ranks % 2 == 0 && config->model.experts > 0 ? 2 : 1;
    Homes *all = calloc(1, sizeof *all);
    all->table = model_table(model_of(config), &config->model);
    for (int rank = 0; rank < ranks; rank++) {
        const TableRange whole = {0, all->table.count};
        const Split split = {0, 1, rank, ranks, rank % e, e, rank / e, ranks / e};
        tensors_layout(&all->tensors[rank], &all->table, &whole, 1, &split, &config->train);
    }
    return all;
}

static void homes_free(Homes *all, int ranks) {
    for (int rank = 0; rank < ranks; rank++) tensors_free(&all->tensors[rank], NULL);
    table_free(&all->table);
    free(all);
}

// Every element has one owner, matrices of the layers whole; only they have no second moment. Ranks take the same
// bytes.
TEST(matrices_have_a_home_and_everything_else_is_divided) {
    static const char *const paths[] = {"configs/llama_tiny.yaml", "configs/gpt_tiny.yaml", "configs/moe_tiny.yaml"};
    for (int path = 0; path < 3; path++)
        for (int ranks = 1; ranks <= 8; ranks++) {
            Config config = loaded(paths[path], "train.optimizer=muon");
            Homes *all = homes(&config, ranks);
            for (int64_t i = 0; i < all->tensors[0].count; i++) {
                int64_t owned = 0, owners = 0, count = 0;
                for (int rank = 0; rank < ranks; rank++) {
                    TensorPiece piece = tensors_piece(&all->tensors[rank], i);
                    int64_t held = all->tensors[rank].tensors[i].count; // 0: another rank's expert
                    count = held > count ? held : count;
                    if (piece.begin >= piece.end) continue;
                    owned += piece.end - piece.begin, owners++;
                }
                assert_int_equal(owned, count);
                if (table_is_layer_matrix(&all->table, all->tensors[0].tensors[i].index))
                    assert_int_equal(owners, count > 0);
            }
            StateBytes first = tensors_states(&all->tensors[0]);
            for (int rank = 1; rank < ranks; rank++) {
                StateBytes bytes = tensors_states(&all->tensors[rank]);
                assert_memory_equal(&bytes, &first, sizeof bytes);
            }
            homes_free(all, ranks);
        }
}

// The longest first, each to the rank that owns least: no rank owns more than the mean and one unit.
TEST(matrices_are_dealt_evenly) {
    static const char *const paths[] = {"configs/llama_tiny.yaml", "configs/moe_tiny.yaml", "configs/moe_tiny.yaml"};
    for (int ranks = 2; ranks <= 8; ranks++)
        for (int path = 0; path < 3; path++) { // the third time, experts among their replicas
            Config config = loaded(paths[path], "train.optimizer=muon");
            Homes *all = homes(&config, ranks);
            int64_t owned[8] = {0}, total = 0, longest = 0, owners = ranks;
            for (int64_t u = 0; u < all->tensors[0].unit_count; u++) {
                const Unit *unit = &all->tensors[0].units[u];
                if (unit->home < 0 || unit->experts != (path == 2)) continue;
                owned[unit->home] += unit->count, total += unit->count, owners = unit->ranks;
                longest = unit->count > longest ? unit->count : longest;
            }
            assert_true(longest > 0);
            for (int rank = 0; rank < owners; rank++) assert_true(owned[rank] <= total / owners + longest);
            homes_free(all, ranks);
        }
}

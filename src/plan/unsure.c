#include "unsure.h"
#include "base/grid.h"
#include "base/units.h"
#include "counted.h"

#include <math.h>

// Factors on figures, 0: unchanged. apart: tensor collectives do not overlap products. reserve: additional GiB. what:
// in JSON; words: for people, in a list; loses: the clause of a candidate that does not survive; brief: one word.
// Without words, a doubt is only in JSON, because the row before is more telling.
static const struct {
    const char *what, *words, *loses, *brief;
    double products, network, reserve;
    bool apart;
} doubts_[DOUBTS] = {
    [DOUBT_PRODUCTS] = {"products at 0.85", "products at 0.85 of their rate",
                        "slow if products run at 0.85 of their rate", "products", .products = 0.85},
    [DOUBT_APART] = {"tensor collectives not overlapped", "tensor collectives not overlapped",
                     "slow if tensor collectives are not overlapped", "overlap", .apart = true},
    [DOUBT_NETWORK] = {"a tenth of the network", "a network 10 times slower", "slow with a tenth of the network's rate",
                       "network", .network = 0.1},
    [DOUBT_HALF] = {"half the network", NULL, "slow with half the network's rate", "network", .network = 0.5},
    [DOUBT_RESERVE] = {"4 GiB more", "if 4 GiB more are needed", "too large if 4 GiB more are needed", "memory",
                       .reserve = 4},
};

void doubters_make(Doubters *doubters, const Planner *planner) {
    for (int i = 0; i < DOUBTS; i++) {
        Planner *at = &doubters->planner[i];
        *at = *planner;
        int64_t *memory = at->hardware.memory_bytes > 0 ? &at->hardware.memory_bytes : &at->hardware.host_bytes;
        if (doubts_[i].products > 0) at->hardware.cost.efficiency *= doubts_[i].products;
        if (doubts_[i].network > 0) at->hardware.cost.network *= doubts_[i].network;
        if (*memory > 0) *memory = max_i64(*memory - (int64_t)(doubts_[i].reserve * GIB), 1);
        // The key of counted seconds includes the rates between ranks, but not the rate of products.
        if (doubts_[i].products > 0) at->counted = counted_memo();
    }
}

void doubters_free(Doubters *doubters) { memo_free(doubters->planner[DOUBT_PRODUCTS].counted); }

int unsure_find(Unsure *unsure, const Doubters *doubters, Config *config, const Forecast *forecast,
                const double worth[DOUBTS], Error *err) {
    int overlap = config->parallel.overlap, status = 0;
    unsure->least = false;
    for (int i = 0; i < DOUBTS && status == 0; i++) {
        const Planner *planner = &doubters->planner[i];
        const Hardware *hardware = &planner->hardware;
        bool timed = doubts_[i].reserve == 0; // more reserve changes only whether it fits
        bool gpus = !hardware->cpu && config->parallel.tensor > 1 && config->parallel.sequence;
        Forecast again;
        unsure->step[i] = forecast->time.step;
        // Whether this doubt can change this plan.
        unsure->applies[i] = !timed                      ? hardware->memory_bytes > 0 || hardware->host_bytes > 0
                             : !forecast->time.known     ? false
                             : hardware->cost.flops == 0 ? false
                             : doubts_[i].products > 0   ? !planner->measured
                             : doubts_[i].network > 0    ? config_world(config) > hardware_domain(hardware, config)
                                                         : gpus && overlap != OVERLAP_OFF;
        if (!unsure->applies[i]) continue;
        if (doubts_[i].apart) config->parallel.overlap = OVERLAP_OFF;
        double most = timed && worth != NULL ? worth[i] : INFINITY;
        status = timed ? planner_forecast_within(planner, config, most, &again, err)
                       : planner_forecast_config(planner, config, false, &again, err);
        bool longer = isfinite(most) && again.possible && !again.time.known;
        unsure->least |= longer;
        if (longer) unsure->step[i] = most;
        else if (timed ? !again.time.known : !again.fits) unsure->step[i] = INFINITY;
        else if (timed) unsure->step[i] = again.time.step;
        config->parallel.overlap = overlap;
    }
    return status;
}

const char *unsure_words(int doubt, bool brief) { return brief ? doubts_[doubt].brief : doubts_[doubt].loses; }

void unsure_print(const Unsure *unsure, double step, FILE *file) {
    char text[256] = "";
    for (int i = 0; i < DOUBTS; i++) {
        double more = fmax(0, 100 * (unsure->step[i] / step - 1));
        if (!unsure->applies[i] || doubts_[i].words == NULL) continue;
        const char *before = doubts_[i].reserve > 0 ? "" : "step with ";
        text_add(text, sizeof text, "%s%s: ", text[0] != '\0' ? "; " : before, doubts_[i].words);
        if (doubts_[i].reserve > 0) text_add(text, sizeof text, isinf(unsure->step[i]) ? "does not fit" : "fits");
        else if (isinf(more)) text_add(text, sizeof text, "cannot run");
        else text_add(text, sizeof text, more < 9.95 ? "+%.1f %%" : "+%.0f %%", more);
    }
    if (unsure->skipped)
        snprintf(text, sizeof text, "not planned: simulating such a long schedule again takes too long");
    if (text[0] != '\0') grid_line(file, "unsure", "%s", text);
}

void unsure_write_json(const Unsure *unsure, double step, JsonOut *out) {
    json_begin(out, "unsure", '[');
    for (int i = 0; i < DOUBTS; i++) {
        if (!unsure->applies[i]) continue;
        json_begin(out, NULL, '{');
        json_put_text(out, "what", doubts_[i].what);
        if (isinf(unsure->step[i])) json_put_truth(out, "fits", false);
        else json_put_number(out, "step_ratio", step > 0 ? unsure->step[i] / step : 1);
        json_end(out, '}');
    }
    json_end(out, ']');
}

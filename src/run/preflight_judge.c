// What the findings of --check mean (preflight.h): each product, file and link beside its plan and beside the others of
// its kind, and what the slowest ones make of a step.
//
// GPUs are judged by the plan. The plan's figures for CPUs are guesses, and other programs may use their cores: there
// the reference is the median, and differences below NOISE do not count.
#include "preflight.h"

#include "base/alloc.h"
#include "base/json_out.h"
#include "base/units.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const preflight_words[PROBE_COUNT] = {"product",  "tensor",   "context", "experts", "data",
                                                  "pipeline", "pipeline", "pair",    "read",    "write"};

static const double NOISE = 0.5, SLOWER = 0.05, FILES_SLOWER = 1.0; // as fractions of the reference's time

// A rank's product or files, or a link.
typedef struct Item {
    Probe probe;
    int rank; // the first of a group
    const Finding *finding;
    double seconds;   // of the slowest rank of a group
    double of_plan;   // seconds / expected; NAN: there is no plan
    double of_median; // relative to the others of its kind
} Item;

typedef struct Judge {
    const Run *run;
    const Hardware *hardware;
} Judge;

typedef struct Judgement {
    Item *items;
    int count;
    const Item *slowest; // the item that exceeds its median most, if that counts; else NULL
    double step, ratio;  // seconds of the planned step, and by how much it would take longer; NAN: unknown
    double read;         // seconds
} Judgement;

static bool is_file_(Probe probe) { return probe >= PROBE_READ; }

static const char *word_(const Item *item) { return preflight_words[item->probe]; }

static bool alike_(const Item *a, const Item *b) {
    return strcmp(word_(a), word_(b)) == 0 && a->finding->between == b->finding->between;
}

static bool counts_(const Judge *p, const Item *item) {
    double most = is_file_(item->probe) ? FILES_SLOWER : p->hardware->cpu ? NOISE : SLOWER;
    return item->of_median > 1 + most;
}

// Makes an item of every product, file and link: the slowest rank of a group tells its time.
static void list_items_(const Judge *p, const Finding (*all)[PROBE_COUNT], Judgement *judged) {
    int world = world_size(p->run->world);
    double *ratios = xmalloc((size_t)world * sizeof *ratios * PROBE_COUNT);
    judged->items = xcalloc((size_t)world * PROBE_COUNT, sizeof *judged->items);
    for (Probe probe = 0; probe < PROBE_COUNT; probe++)
        for (int r = 0; r < world; r++) {
            const Finding *one = &all[r][probe];
            if (one->seconds == 0 || one->leader != r) continue;
            Item item = {probe, r, one, one->seconds, NAN, 1};
            for (int q = 0; q < world; q++)
                if (all[q][probe].leader == r) item.seconds = fmax(item.seconds, all[q][probe].seconds);
            if (one->expected > 0) item.of_plan = item.seconds / one->expected;
            judged->items[judged->count++] = item;
        }
    for (int i = 0; i < judged->count; i++) {
        Item *item = &judged->items[i];
        int alike = 0;
        for (int k = 0; k < judged->count; k++) {
            const Item *other = &judged->items[k];
            if (alike_(item, other))
                ratios[alike++] = other->seconds / (other->finding->expected > 0 ? other->finding->expected : 1);
        }
        qsort(ratios, (size_t)alike, sizeof *ratios, compare_doubles);
        double own = item->seconds / (item->finding->expected > 0 ? item->finding->expected : 1);
        item->of_median = own / ratios[(alike - 1) / 2];
        bool worse = judged->slowest == NULL || item->of_median > judged->slowest->of_median;
        if (counts_(p, item) && worse) judged->slowest = item;
        if (item->probe == PROBE_READ) judged->read = fmax(judged->read, item->seconds);
    }
    free(ratios);
}

// Returns by how much the slowest of a kind of work takes longer than its reference. first, last: its probes.
static double longer_(const Judge *p, const Judgement *judged, Probe first, Probe last, int between) {
    double most = 0;
    for (int i = 0; i < judged->count; i++) {
        const Item *item = &judged->items[i];
        if (item->probe < first || item->probe > last || (between >= 0 && item->finding->between != between)) continue;
        most = fmax(most, !p->hardware->cpu && isfinite(item->of_plan) ? item->of_plan
                          : counts_(p, item)                           ? item->of_median
                                                                       : 1);
    }
    return most == 0 ? 1 : most;
}

// Plans the step again with the rates of the slowest product and links. All ranks wait for the slowest.
static int judge_step_(const Judge *p, const Config *known, Judgement *judged, Error *err) {
    const Run *run = p->run;
    Hardware slower = *p->hardware;
    PlanTime time[2];
    double product = longer_(p, judged, PROBE_PRODUCT, PROBE_PRODUCT, -1),
           collective = longer_(p, judged, PROBE_TENSOR, PROBE_DATA, 0),
           message = longer_(p, judged, PROBE_NEXT, PROBE_PAIR, 0),
           network = longer_(p, judged, PROBE_TENSOR, PROBE_PAIR, 1);
    Cost *cost = &slower.cost;
    cost->efficiency /= product, cost->flash_forward.share /= product, cost->flash_backward.share /= product;
    cost->tensor /= collective, cost->pair /= message, cost->network /= network;
    for (int i = 0; i < GPU_COLLECTIVES * GPU_SIZES; i++) {
        uint16_t *rate = &cost->collectives[i / GPU_SIZES][i % GPU_SIZES];
        *rate = (uint16_t)fmin(*rate / collective, UINT16_MAX);
    }
    for (int i = 0; i < 2; i++) {
        TimeSource source = {.hardware = i == 0 ? p->hardware : &slower, .model = run->model};
        if (plan_time(&time[i], known, run->schedule, &run->plan, &source, INFINITY, err) != 0) return -1;
    }
    judged->step = judged->ratio = NAN;
    if (!time[0].known || !time[1].known) return 0;
    judged->step = time[0].step;
    judged->ratio = (time[1].step + fmax(0, judged->read - time[1].step)) / time[0].step; // it is read a step ahead
    return 0;
}

// Writes "rank 17 (host n3): product 11 % below the median".
static void tell_item_(const Judge *p, const Item *item, char *text, size_t size) {
    const Run *run = p->run;
    const Finding *finding = item->finding;
    const char *host = run->hosts != NULL ? run->hosts[item->rank] : world_place(run->world)->host;
    size_t used = 0;
    if (finding->size == 1) used = (size_t)snprintf(text, size, "rank %d (host %s): ", item->rank, host);
    else if (item->probe >= PROBE_NEXT)
        used = (size_t)snprintf(text, size, "rank %d (host %s) to rank %d: ", item->rank, host, finding->peer);
    else used = (size_t)snprintf(text, size, "%d ranks from rank %d (host %s) on: ", finding->size, item->rank, host);
    snprintf(text + used, size - used, "%s %.0f %% below the median", word_(item), 100 * (1 - 1 / item->of_median));
}

static double rate_(const Item *item) {
    return 1e-9 * item->finding->amount / item->seconds * (item->probe == PROBE_PRODUCT ? 1e-3 : 1);
}

// Prints a line for each kind: how many there are, the lowest and the highest rate, and the median beside the plan.
static void print_kinds_(const Judgement *judged) {
    for (int i = 0, k; i < judged->count; i++) {
        const Item *item = &judged->items[i], *middle = item;
        double low = INFINITY, high = 0;
        int alike = 0;
        for (k = 0; k < judged->count; k++) {
            const Item *other = &judged->items[k];
            if (!alike_(item, other)) continue;
            if (k < i) break; // this kind has its line
            low = fmin(low, rate_(other)), high = fmax(high, rate_(other)), alike++;
            if (fabs(other->of_median - 1) < fabs(middle->of_median - 1)) middle = other;
        }
        if (k < judged->count) continue;
        printf("%-9s %d %s%s: %.3g to %.3g %s", word_(item), alike, item->finding->size == 1 ? "rank" : "link",
               alike == 1 ? "" : "s", low, high, item->probe == PROBE_PRODUCT ? "TFLOP/s" : "GB/s");
        if (item->finding->between) printf(" between nodes");
        if (isfinite(middle->of_plan)) printf("; the plan has %.3g", rate_(middle) * middle->of_plan);
        printf("\n");
    }
}

static void print_text_(const Judge *p, const Judgement *judged) {
    enum { MOST = 8 };
    const Plan *plan = &p->run->plan;
    double writing = 0;
    char text[256];
    int said = 0;
    print_kinds_(judged);
    for (int i = 0; i < judged->count; i++) {
        const Item *item = &judged->items[i];
        if (item->probe == PROBE_WRITE) writing += rate_(item) * 1e9;
        if (!counts_(p, item) || said++ >= MOST) continue;
        tell_item_(p, item, text, sizeof text);
        printf("%s\n", text);
    }
    if (said > MOST) printf("and %d more\n", said - MOST);
    // Weights, and in bf16 their masters, and two moments.
    double saved = (double)plan->parameters * (double)(p->run->be->element + (p->run->be->element == 2 ? 12 : 8));
    if (writing > 0) printf("files     a checkpoint of %.3g GB takes about %.3g s\n", 1e-9 * saved, saved / writing);
    printf("files     a step's samples are read in %.3g ms\n", 1e3 * judged->read);
    if (isfinite(judged->ratio))
        printf("step      %.3g times the planned %.4g ms\n", judged->ratio, 1e3 * judged->step);
}

static void put_item_(JsonOut *out, const Item *item) {
    json_put_digits(out, "of_median", 1 / item->of_median, 4);
    json_put_digits(out, "of_plan", 1 / item->of_plan, 4);
}

static void print_json_(const Judge *p, const Finding (*all)[PROBE_COUNT], const Judgement *judged) {
    const Run *run = p->run;
    JsonOut out = {.file = stdout};
    char text[256] = "";
    json_begin(&out, NULL, '{');
    json_begin(&out, "ranks", '[');
    for (int i = 0; i < judged->count && judged->items[i].probe == PROBE_PRODUCT; i++) {
        const Item *item = &judged->items[i];
        const Finding *of = all[item->rank];
        json_line(&out);
        json_begin(&out, NULL, '{');
        json_put_integer(&out, "rank", item->rank);
        json_put_text(&out, "host", run->hosts != NULL ? run->hosts[item->rank] : world_place(run->world)->host);
        json_put_digits(&out, "tflops", rate_(item), 4);
        put_item_(&out, item);
        json_put_digits(&out, "read_ms", of[PROBE_READ].seconds > 0 ? 1e3 * of[PROBE_READ].seconds : NAN, 4);
        json_put_digits(&out, "write_gb_s", of[PROBE_WRITE].seconds > 0 ? 1e-9 * WRITES / of[PROBE_WRITE].seconds : NAN,
                        4);
        json_end(&out, '}');
    }
    json_end(&out, ']');
    json_begin(&out, "links", '[');
    for (int i = 0; i < judged->count; i++) {
        const Item *item = &judged->items[i];
        if (item->finding->size == 1) continue;
        json_line(&out);
        json_begin(&out, NULL, '{');
        json_put_text(&out, "kind", word_(item));
        json_begin(&out, "ranks", '[');
        for (int r = 0; r < world_size(run->world); r++)
            if (item->probe < PROBE_NEXT && all[r][item->probe].size > 0 && all[r][item->probe].leader == item->rank)
                json_put_integer(&out, NULL, r);
        if (item->probe >= PROBE_NEXT)
            json_put_integer(&out, NULL, item->rank), json_put_integer(&out, NULL, item->finding->peer);
        json_end(&out, ']');
        json_put_digits(&out, "gb_s", rate_(item), 4);
        put_item_(&out, item);
        json_end(&out, '}');
    }
    json_end(&out, ']');
    if (judged->slowest == NULL) json_put_null(&out, "slowest");
    else {
        tell_item_(p, judged->slowest, text, sizeof text);
        json_begin(&out, "slowest", '{');
        json_put_text(&out, "kind", word_(judged->slowest));
        json_put_integer(&out, "rank", judged->slowest->rank);
        json_put_digits(&out, "of_median", 1 / judged->slowest->of_median, 4);
        json_put_text(&out, "text", text);
        json_end(&out, '}');
    }
    json_put_digits(&out, "step_ms", 1e3 * judged->step, 6);
    json_put_digits(&out, "step_ratio", judged->ratio, 4);
    json_end(&out, '}');
    printf("\n");
}

int preflight_judge(const Run *run, const Config *known, const Hardware *hardware, const Finding (*all)[PROBE_COUNT],
                    bool json, Diagnosis answer, Error *err) {
    const Judge of = {run, hardware}, *p = &of;
    Judgement judged = {0};
    char text[256] = "no rank or link is slower than the others";
    list_items_(p, all, &judged);
    int status = judge_step_(p, known, &judged, err);
    if (status == 0) json ? print_json_(p, all, &judged) : print_text_(p, &judged);
    if (judged.slowest != NULL) tell_item_(p, judged.slowest, text, sizeof text);
    if (status == 0 && judged.ratio > 1 + SLOWER)
        snprintf(answer, sizeof(Diagnosis), "%s; a step would take %.3g times the planned %.4g ms", text, judged.ratio,
                 1e3 * judged.step);
    free(judged.items);
    if (status == 0 && fflush(stdout) != 0)
        return error_set(err, EXIT_FAILED, "cannot write the result of the check to standard output");
    return status;
}

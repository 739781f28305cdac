// The days, GPU hours, price and energy of a training run, from its planned step time. Validation, saving, restarts and
// the power of hosts, network and cooling are not included.
#include "budget.h"

#include "base/grid.h"

#include <math.h>

static Bill times_(const Bill *step, double steps) {
    return (Bill){steps * step->days, steps * step->gpu_hours, steps * step->price, steps * step->mwh};
}

// Returns the expected seconds per second of training if a checkpoint of C seconds is written every tau seconds, a
// restart takes R seconds, and failures of the job occur at random, M seconds apart on average:
//     M exp(R / M) (exp((tau + C) / M) - 1) / tau
// J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, FGCS 22 (2006).
static double slowdown_(const HardwareConfig *hardware, double mtbf, double tau) {
    return mtbf * exp(hardware->restart_s / mtbf) * expm1((tau + hardware->checkpoint_s) / mtbf) / tau;
}

double budget_taken(const Config *config) {
    double taken = (double)(config_samples(config, 0, config->train.steps) * config->model.seq_len);
    return config->train.tokens > 0 ? taken / (double)config->train.tokens : 1;
}

Budget budget_make(const Config *config, double step_seconds, bool gpus, GpuBand band) {
    const HardwareConfig *hardware = &config->hardware;
    if (band.middle > 0) // another trainer's days; the ends of the band are relative to them
        step_seconds *= band.middle, band.low /= band.middle, band.high /= band.middle;
    double tokens = (double)config_step_tokens(config), hours = step_seconds / 3600;
    double gpu_hours = gpus ? hours * (double)config_world(config) : 0;
    int64_t samples = config_samples(config, 0, config->train.steps);
    double all = (double)(config->train.tokens > 0 ? config->train.tokens : samples * config->model.seq_len);
    Bill step = {hours / 24, gpu_hours, gpu_hours * hardware->gpu_hour, gpu_hours * hardware->gpu_watts / 1e6},
         billion = times_(&step, 1e9 / tokens), whole = times_(&step, all / tokens);
    Budget budget = {.tokens = all, .step = step, .billion = billion, .whole = whole, .band = band};
    Goodput *goodput = &budget.goodput;
    if (hardware->mtbf_hours == 0 || step_seconds <= 0) return budget;
    // The interval with the least slowdown: J. W. Young, A first order approximation to the optimum checkpoint
    // interval, CACM 17 (1974), sqrt(2 C M), with the next terms of Daly's equation 37.
    double nodes = ceil((double)config_world(config) / (double)hardware->gpus_per_node), c = hardware->checkpoint_s;
    double mtbf = 3600 * hardware->mtbf_hours / nodes, ratio = sqrt(c / (2 * mtbf)), interval = mtbf;
    if (c < 2 * mtbf) interval = sqrt(2 * c * mtbf) * (1 + ratio / 3 + ratio * ratio / 9) - c;
    goodput->mtbf = mtbf;
    goodput->every = fmax(1, round(interval / step_seconds));
    double slowdown = slowdown_(hardware, mtbf, goodput->every * step_seconds);
    double own = step_seconds * (double)config->checkpoint.every;
    if (!isfinite(slowdown)) return budget;
    goodput->share = 1 / slowdown;
    goodput->days = whole.days * slowdown;
    goodput->own = own > 0 ? 1 / slowdown_(hardware, mtbf, own) : 0;
    return budget;
}

// ---------------------------------------------------------------- text

enum { BILL_TEXT = 160 };

// Returns how many of the largest unit of which the run takes at least one are in a day. *word: the unit.
static double unit_(const Bill *bill, const char **word) {
    static const double IN_A_DAY[] = {1, 24, 1440, 86400};
    static const char *const WORDS[] = {"days", "hours", "minutes", "seconds"};
    int i = 0;
    while (i < 3 && IN_A_DAY[i] * bill->days < 1) i++;
    *word = WORDS[i];
    return IN_A_DAY[i];
}

// Writes "12.3 days (11.9 to 13), 18,892 GPU hours, price 37,784, 7.6 MWh" without the unknown figures. Returns `text`.
static const char *bill_text_(const Bill *bill, const char *range, char text[BILL_TEXT]) {
    char amount[32];
    const char *word;
    double unit = unit_(bill, &word);
    bool mega = bill->mwh >= 1;
    snprintf(text, BILL_TEXT, "%s %s%s", grid_amount(unit * bill->days, amount), word, range);
    if (bill->gpu_hours > 0) text_add(text, BILL_TEXT, ", %s GPU hours", grid_amount(bill->gpu_hours, amount));
    if (bill->price > 0) text_add(text, BILL_TEXT, ", price %s", grid_amount(bill->price, amount));
    if (bill->mwh > 0)
        text_add(text, BILL_TEXT, ", %s %s", grid_amount(mega ? bill->mwh : 1e3 * bill->mwh, amount),
                 mega ? "MWh" : "kWh");
    return text;
}

void budget_print(const Budget *budget, const Config *config, const Hardware *hardware, bool verbose, FILE *file) {
    char bill[BILL_TEXT], tokens[32], least[BILL_TEXT], most[BILL_TEXT], range[80] = "", others[OTHERS_TEXT] = "";
    char from[32], to[32];
    Bill low = times_(&budget->whole, budget->band.low), high = times_(&budget->whole, budget->band.high);
    const char *word;
    double unit = unit_(&budget->whole, &word);
    if (budget->band.low > 0)
        snprintf(range, sizeof range, " (%s to %s)", grid_amount(unit * low.days, from),
                 grid_amount(unit * high.days, to));
    else if (config->hardware.trainer == TRAINER_THIS)
        hardware_others_text(hardware, config, unit * budget->whole.days, word, others);
    grid_line(file, "run", "%s tokens of %s: %s%s%s%s", grid_count((int64_t)budget->tokens, tokens),
              config->train.tokens > 0 ? "train.tokens" : "train.steps", others, others[0] != '\0' ? "; " : "",
              budget->band.low > 0 ? "" : "with nothing lost ", bill_text_(&budget->whole, range, bill));
    if (budget_taken(config) < 0.99)
        grid_line(file, "", "train.steps ends a run after %.2g %% of them; train.steps=auto takes all",
                  100 * budget_taken(config));
    if (budget->band.low > 0 && verbose)
        grid_line(file, "", "by that band: from %s, to %s", bill_text_(&low, "", least), bill_text_(&high, "", most));
    char rates[96] = "";
    if (budget->step.price > 0) text_add(rates, sizeof rates, " (%.4g a GPU hour", config->hardware.gpu_hour);
    if (budget->step.mwh > 0)
        text_add(rates, sizeof rates, "%s%.4g W a GPU", rates[0] != '\0' ? ", " : " (", config->hardware.gpu_watts);
    if (verbose)
        grid_line(file, "", "a billion tokens: %s%s%s", bill_text_(&budget->billion, "", bill), rates,
                  rates[0] != '\0' ? ")" : "");
    // The time between failures of the job, and the checkpoint interval with the highest goodput.
    const Goodput *goodput = &budget->goodput;
    char own[64] = "";
    if (goodput->mtbf == 0) return;
    if (goodput->share == 0) {
        grid_line(file, "failures", "one in %.3g hours: the training would never end", goodput->mtbf / 3600);
        return;
    }
    if (goodput->own > 0)
        snprintf(own, sizeof own, "; with %lld it is %.1f %%", (long long)config->checkpoint.every, 100 * goodput->own);
    grid_line(file, "failures", "one in %s hours; checkpoint.every %.0f (%s minutes) is best: goodput %.1f %%%s",
              grid_amount(goodput->mtbf / 3600, from), goodput->every,
              grid_amount(goodput->every * 1440 * budget->step.days, to), 100 * goodput->share, own);
    grid_line(file, "", "expected %s %s, with %.4g s per checkpoint and %.4g s per restart%s",
              grid_amount(unit * goodput->days, from), word, config->hardware.checkpoint_s, config->hardware.restart_s,
              verbose ? " (Young 1974, Daly 2006)" : "");
}

// ---------------------------------------------------------------- JSON

// Returns the value, or NAN (null in JSON) for 0, which means unknown.
static double known_(double value) { return value > 0 ? value : NAN; }

static void bill_write_(JsonOut *out, const char *key, const Bill *bill, const GpuBand *band) {
    const struct {
        const char *key;
        double value;
    } rows[] = {{"days", bill->days}, {"gpu_hours", bill->gpu_hours}, {"price", bill->price}, {"mwh", bill->mwh}};
    json_begin(out, key, '{');
    for (int i = 0; i < 4; i++) {
        char end[32];
        json_put_number(out, rows[i].key, known_(rows[i].value));
        for (int high = 0; high < 2 && band->low > 0; high++) {
            snprintf(end, sizeof end, "%s_%s", rows[i].key, high ? "high" : "low");
            json_put_number(out, end, known_(rows[i].value * (high ? band->high : band->low)));
        }
    }
    json_end(out, '}');
}

void budget_write_json(const Budget *budget, JsonOut *out) {
    json_begin(out, "budget", '{');
    json_put_number(out, "tokens", known_(budget->tokens));
    bill_write_(out, "step", &budget->step, &budget->band);
    bill_write_(out, "billion", &budget->billion, &budget->band);
    bill_write_(out, "whole", &budget->whole, &budget->band);
    if (budget->goodput.mtbf > 0) {
        const Goodput *goodput = &budget->goodput;
        json_object(out, "goodput", "mtbf_hours %g every %jd share %g days %g own %g", known_(goodput->mtbf / 3600),
                    (int64_t)goodput->every, known_(goodput->share), known_(goodput->days), known_(goodput->own));
    }
    json_end(out, '}');
}

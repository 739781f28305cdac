// Days, GPU hours, price and energy of a training, from the time of one planned step. Validation, saving, restarts and
// the power of hosts, network and cooling are not included.
#include "budget.h"

#include "base/grid.h"
#include "base/json.h"

static Bill times_(const Bill *step, double steps) {
    return (Bill){steps * step->days, steps * step->gpu_hours, steps * step->price, steps * step->mwh};
}

void budget_make(Budget *budget, const Config *config, double step_seconds, bool gpus) {
    const HardwareConfig *hardware = &config->hardware;
    double tokens = (double)config_step_tokens(config), hours = step_seconds / 3600;
    double gpu_hours = gpus ? hours * (double)config_world(config) : 0;
    *budget = (Budget){
        .step = {hours / 24, gpu_hours, gpu_hours * hardware->gpu_hour, gpu_hours * hardware->gpu_watts / 1e6}};
    budget->tokens = config->train.tokens > 0 ? (double)config->train.tokens : tokens * (double)config->train.steps;
    budget->billion = times_(&budget->step, 1e9 / tokens);
    budget->whole = times_(&budget->step, budget->tokens / tokens);
}

// ---------------------------------------------------------------- for people

enum { BILL_TEXT = 160, AMOUNT_TEXT = 32 };

// Writes 3.41, or from a thousand on 12,345.
static const char *amount_(double value, char text[AMOUNT_TEXT]) {
    if (value >= 999.5) return grid_count((int64_t)(value + 0.5), text);
    snprintf(text, AMOUNT_TEXT, "%.3g", value);
    return text;
}

// Writes "12.3 days, 18,892 GPU hours, price 37,784, 7.6 MWh", as far as these are known.
static const char *bill_text_(const Bill *bill, char text[BILL_TEXT]) {
    char amount[AMOUNT_TEXT];
    bool hours = bill->days < 1, mega = bill->mwh >= 1;
    int used = snprintf(text, BILL_TEXT, "%s %s", amount_(hours ? 24 * bill->days : bill->days, amount),
                        hours ? "hours" : "days");
    if (bill->gpu_hours > 0)
        used += snprintf(text + used, BILL_TEXT - (size_t)used, ", %s GPU hours", amount_(bill->gpu_hours, amount));
    if (bill->price > 0)
        used += snprintf(text + used, BILL_TEXT - (size_t)used, ", price %s", amount_(bill->price, amount));
    if (bill->mwh > 0)
        snprintf(text + used, BILL_TEXT - (size_t)used, ", %s %s", amount_(mega ? bill->mwh : 1e3 * bill->mwh, amount),
                 mega ? "MWh" : "kWh");
    return text;
}

void budget_print(const Budget *budget, const Config *config, FILE *file) {
    const HardwareConfig *hardware = &config->hardware;
    char bill[BILL_TEXT], tokens[AMOUNT_TEXT], rates[96] = "";
    int used = 0;
    if (budget->step.price > 0) used = snprintf(rates, sizeof rates, " (%.4g a GPU hour", hardware->gpu_hour);
    if (budget->step.mwh > 0)
        used += snprintf(rates + used, sizeof rates - (size_t)used, "%s%.4g W a GPU", used > 0 ? ", " : " (",
                         hardware->gpu_watts);
    if (used > 0) snprintf(rates + used, sizeof rates - (size_t)used, ")");
    grid_line(file, "run", "%s tokens of %s: %s", grid_count((int64_t)budget->tokens, tokens),
              config->train.tokens > 0 ? "train.tokens" : "train.steps", bill_text_(&budget->whole, bill));
    grid_line(file, "", "a billion tokens: %s%s", bill_text_(&budget->billion, bill), rates);
}

// ---------------------------------------------------------------- JSON

static void budget_number_(FILE *file, const char *key, double value) {
    fprintf(file, "\"%s\":", key);
    if (value > 0)
        json_write_number(file, value);
    else
        fputs("null", file);
}

static void bill_write_(FILE *file, const char *key, const Bill *bill) {
    fprintf(file, ",\"%s\":{", key);
    budget_number_(file, "days", bill->days);
    fputc(',', file);
    budget_number_(file, "gpu_hours", bill->gpu_hours);
    fputc(',', file);
    budget_number_(file, "price", bill->price);
    fputc(',', file);
    budget_number_(file, "mwh", bill->mwh);
    fputc('}', file);
}

void budget_write_json(const Budget *budget, FILE *file) {
    fputs("\"budget\":{", file);
    budget_number_(file, "tokens", budget->tokens);
    bill_write_(file, "step", &budget->step);
    bill_write_(file, "billion", &budget->billion);
    bill_write_(file, "whole", &budget->whole);
    fputc('}', file);
}

// Generates text with the pipeline (run.h).
#include "run.h"
#include "base/alloc.h"
#include "base/units.h"

#include "sample.h"
#include "base/random.h"
#include "data/tokenizer.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------- the choice of a token (sample.h)

// Part of the key for Gumbel noise. Separates this noise from the random numbers of initial weights and of the order of
// samples, even with equal seeds.
static const uint64_t OTHER_NUMBERS = 0x53616D706C657221;

int64_t sample_capacity(const SampleRule *rule) { return rule->temperature > 0.0 && rule->top_k > 0 ? rule->top_k : 1; }

uint64_t sample_stream(int64_t sequence, int64_t position) { return (uint64_t)sequence << 40 ^ (uint64_t)position; }

// Returns Gumbel noise. (bits + 0.5) / 2^52 is never 0 and never 1, so both logarithms are finite.
static double gumbel_(const SampleRule *rule, uint64_t stream, int64_t token) {
    uint64_t bits = random_bits(rule->seed ^ OTHER_NUMBERS, stream, (uint64_t)token) >> 12;
    return -log(-log(((double)bits + 0.5) * 0x1p-52));
}

static bool wins_(const SampleCandidate *a, const SampleCandidate *b) {
    return a->key > b->key || (a->key == b->key && a->token < b->token);
}

int64_t sample_candidates(const SampleRule *rule, uint64_t stream, const float *logits, int64_t first, int64_t count,
                          SampleCandidate *out) {
    bool random = rule->temperature > 0.0, limited = random && rule->top_k > 0;
    int64_t held = 0, capacity = sample_capacity(rule);
    for (int64_t i = 0; i < count; i++) {
        SampleCandidate one = {logits[i], logits[i], first + i};
        if (!isfinite(one.logit)) continue;
        if (random && !limited) one.key = one.logit / rule->temperature + gumbel_(rule, stream, one.token);
        // Insert it into the sorted list. For top-k, the key is the logit so far.
        if (held == capacity && !wins_(&one, &out[held - 1])) continue;
        int64_t at = held < capacity ? held++ : capacity - 1;
        for (; at > 0 && wins_(&one, &out[at - 1]); at--) out[at] = out[at - 1];
        out[at] = one;
    }
    for (int64_t i = 0; limited && i < held; i++)
        out[i].key = out[i].logit / rule->temperature + gumbel_(rule, stream, out[i].token);
    return held;
}

static int by_likelihood_(const void *a, const void *b) {
    const SampleCandidate *x = a, *y = b;
    return x->logit > y->logit || (x->logit == y->logit && x->token < y->token) ? -1 : 1;
}

int64_t sample_choose(const SampleRule *rule, SampleCandidate *candidates, int64_t count) {
    if (count == 0) return -1;
    // Each part of the vocabulary has its own top_k candidates; keep the top_k of all parts.
    if (rule->temperature > 0.0 && rule->top_k > 0 && count > rule->top_k) {
        qsort(candidates, (size_t)count, sizeof *candidates, by_likelihood_);
        count = rule->top_k;
    }
    const SampleCandidate *best = &candidates[0];
    for (int64_t i = 1; i < count; i++)
        if (wins_(&candidates[i], best)) best = &candidates[i];
    return best->token;
}

// ---------------------------------------------------------------- the sampler

// One text in progress; its tokens begin with the prompt.
typedef struct Text {
    int32_t *tokens; // capacity for the prompt and sample.tokens
    int64_t count;
    bool ended;
} Text;

typedef struct Sampler {
    Tokenizer tokenizer;
    Tokens prompt;
    int64_t seq;    // tokens of a sequence
    int64_t before; // 1: the prompt follows the token that begins every document; the output omits that token
    SampleRule rule;
    int64_t capacity; // candidates of one text on one rank
    Text *texts;      // [b]
    int32_t *tokens;  // memory for the tokens of all texts
    int32_t *window;  // (rows) input tokens of the first stage
    float *logits;    // [vocab_count]: one row
    SampleCandidate *mine, *all,
        *merged;     // candidates: own (b, capacity); of all ranks (world, b, capacity); of one text. Token -1: empty
    int32_t *chosen; // [b] chosen tokens, then whether rank 0 was asked to stop
} Sampler;

// Opens the tokenizer and encodes the prompt (NULL: sample.prompt). Puts the token that begins every document before it
// (sample.begin), since models are trained on texts that follow it. *before: 1 if it was put there, else 0.
static int read_prompt_(Tokenizer *tokenizer, const Config *config, const char *prompt, Tokens *tokens, int64_t *before,
                        Error *err) {
    char name[CONFIG_TEXT + 32] = "--generate", where[CONFIG_TEXT];
    config_where(config, "sample.prompt", where, sizeof where);
    if (prompt == NULL) snprintf(name, sizeof name, "%s: sample.prompt", where);
    *before = 0;
    if (tokenizer_open(tokenizer, config, err) != 0 ||
        tokenizer_encode(tokenizer, name, prompt == NULL ? config->sample.prompt : prompt, tokens, err) != 0)
        return -1;
    int64_t token = tokenizer->end;
    bool known = token >= 0, begin = config->sample.begin == BEGIN_ON;
    if (config->sample.begin == BEGIN_AUTO) begin = known && tokenizer->kind != TOKENIZER_IDS;
    if (begin && !known)
        return config_error(config, "sample.begin", err,
                            "the token that begins every document is unknown; use off, or begin the prompt with it");
    if (!begin || tokens->ids[0] == token) return 0;
    tokens->ids = xrealloc(tokens->ids, (size_t)(tokens->count + 1) * sizeof *tokens->ids);
    memmove(tokens->ids + 1, tokens->ids, (size_t)tokens->count++ * sizeof *tokens->ids);
    tokens->ids[0] = (int32_t)token;
    *before = 1;
    return 0;
}

int run_sample_check(const Config *config, const char *prompt, Error *err) {
    Tokenizer tokenizer;
    Tokens tokens = {0};
    int64_t before;
    int status = read_prompt_(&tokenizer, config, prompt, &tokens, &before, err);
    free(tokens.ids);
    return status;
}

int run_sampler_create(Run *run, const char *prompt, Error *err) {
    const SampleConfig *asked = &run->config->sample;
    Sampler *sampler = run->sampler = xcalloc(1, sizeof *sampler);
    sampler->rule = (SampleRule){asked->temperature, asked->top_k, (uint64_t)asked->seed};
    sampler->capacity = sample_capacity(&sampler->rule);
    if (read_prompt_(&sampler->tokenizer, run->config, prompt, &sampler->prompt, &sampler->before, err) != 0) return -1;
    const Shape *s = &run->stage.at.shape;
    int64_t b = s->batch, most = sampler->prompt.count + asked->tokens, capacity = sampler->capacity;
    int64_t ranks = world_rank(run->world) == 0 ? world_size(run->world) : 0;
    sampler->seq = s->slices * s->context_ranks * s->seq;
    sampler->texts = xcalloc((size_t)b, sizeof *sampler->texts);
    sampler->tokens = xcalloc((size_t)(b * most), sizeof *sampler->tokens);
    sampler->window = xcalloc((size_t)(sampler->seq * b), sizeof *sampler->window);
    sampler->logits = xcalloc((size_t)s->vocab_count, sizeof *sampler->logits);
    sampler->mine = xcalloc((size_t)(b * capacity), sizeof *sampler->mine);
    sampler->all = xcalloc((size_t)(ranks * b * capacity), sizeof *sampler->all);
    sampler->merged = xcalloc((size_t)(ranks * capacity), sizeof *sampler->merged);
    sampler->chosen = xcalloc((size_t)b + 1, sizeof *sampler->chosen);
    for (int64_t j = 0; j < b; j++) sampler->texts[j].tokens = sampler->tokens + j * most;
    return 0;
}

void run_sampler_destroy(Run *run) {
    Sampler *sampler = run->sampler;
    if (sampler == NULL) return;
    free_all(sampler->prompt.ids, sampler->texts, sampler->tokens, sampler->window, sampler->logits, sampler->mine,
             sampler->all, sampler->merged, sampler->chosen, sampler);
    run->sampler = NULL;
}

// ---------------------------------------------------------------- one token for each of b texts

// Adds a token to each text in progress. All texts have the same length, because they began with the same prompt.
static int next_tokens_(Run *run, int64_t first_text, Error *err) {
    Sampler *sampler = run->sampler;
    const ParallelConfig *parallel = &run->config->parallel;
    const Shape *s = &run->stage.at.shape;
    int64_t b = s->batch, capacity = sampler->capacity, bytes = b * capacity * (int64_t)sizeof *sampler->mine;
    const Text *any = sampler->texts;
    while (any->ended) any++;
    int64_t position = min_i64(any->count, sampler->seq) - 1; // position of the last token
    // 1. Data rank 0 computes. Data ranks that share its experts compute the same, for the exchanges. Slices
    //    after the last token's are left out: only the logits of the slice that runs last stay available. The window
    // has the last seq_len tokens of each text; no position sees later positions, so the rest is arbitrary.
    bool first = run->at.replica < parallel->context,
         shared = parallel->context * parallel->tensor % parallel->expert != 0;
    if (first || shared) {
        EngineRun unused;
        Schedule like = *run->schedule;
        if (s->slices > 1) like.slices = (int)(position / s->seq) + 1;
        Schedule *list = schedule_forward_like(&like, 1);
        memset(sampler->window, 0, (size_t)(sampler->seq * b) * sizeof *sampler->window);
        for (int64_t j = 0; j < b; j++) {
            const Text *text = &sampler->texts[j];
            int64_t skip = max_i64(0, text->count - sampler->seq);
            for (int64_t i = skip; i < text->count; i++) sampler->window[(i - skip) * b + j] = text->tokens[i];
        }
        run->stage.documents = false;
        if (run->stage.at.first) batch_upload(&run->stage, run->stage.tokens, sampler->window);
        int status = engine_run(run->engine, "sample", list, 0.0f, &unused, err);
        schedule_free(list);
        if (status != 0) return -1;
    }
    // 2. The tensor ranks of its last stage send candidates.
    int64_t row = context_row(s, s->slices > 1 ? position % s->seq : position);
    for (int64_t i = 0; i < b * capacity; i++) sampler->mine[i].token = -1;
    for (int64_t j = 0; first && run->stage.at.last && row >= 0 && j < b; j++) {
        const Text *text = &sampler->texts[j];
        if (text->ended) continue;
        stage_logits(&run->stage, row + j, sampler->logits);
        sample_candidates(&sampler->rule, sample_stream(first_text + j, text->count), sampler->logits, s->vocab_first,
                          s->vocab_count, sampler->mine + j * capacity);
    }
    // 3. Rank 0 chooses.
    if (world_gather(run->world, sampler->all, sampler->mine, bytes, err) != 0) return -1;
    for (int64_t j = 0; world_rank(run->world) == 0 && j < b; j++) {
        int64_t count = 0;
        for (int64_t r = 0; r < world_size(run->world); r++)
            for (int64_t k = 0; k < capacity; k++)
                if (sampler->all[(r * b + j) * capacity + k].token >= 0)
                    sampler->merged[count++] = sampler->all[(r * b + j) * capacity + k];
        sampler->chosen[j] = (int32_t)sample_choose(&sampler->rule, sampler->merged, count);
    }
    sampler->chosen[b] = run_stop_requested();
    if (world_broadcast(run->world, sampler->chosen, (b + 1) * (int64_t)sizeof *sampler->chosen, err) != 0) return -1;
    // 4. All ranks append.
    for (int64_t j = 0; j < b; j++) {
        Text *text = &sampler->texts[j];
        if (text->ended) continue;
        if (sampler->chosen[j] < 0)
            return error_on_all(err, EXIT_FAILED,
                                "sample: all of the model's logits are NaN or infinite after %lld tokens",
                                (long long)text->count);
        text->ended = sampler->chosen[j] == sampler->tokenizer.end;
        if (!text->ended) text->tokens[text->count++] = sampler->chosen[j];
    }
    return 0;
}

// ---------------------------------------------------------------- texts

// Generates the sample.count texts, a microbatch at a time, and writes them on rank 0: through the run's metrics, or
// without metrics (--generate) on stdout alone. *stop: rank 0 was asked to stop; the texts in progress are left out.
static int sample_all_(Run *run, int64_t step, bool *stop, Error *err) {
    Sampler *sampler = run->sampler;
    int64_t b = run->stage.at.shape.batch, count = run->config->sample.count;
    for (int64_t first = 0; first < count && !*stop; first += b) {
        int64_t open = min_i64(b, count - first); // texts in progress
        for (int64_t j = 0; j < b; j++) {
            Text *text = &sampler->texts[j];
            text->ended = first + j >= count;
            text->count = sampler->prompt.count;
            memcpy(text->tokens, sampler->prompt.ids, (size_t)text->count * sizeof *text->tokens);
        }
        for (int64_t i = 0; i < run->config->sample.tokens && open > 0 && !*stop; i++) {
            if (next_tokens_(run, first, err) != 0) return -1;
            *stop = sampler->chosen[b] != 0;
            open = 0;
            for (int64_t j = 0; j < b; j++) open += !sampler->texts[j].ended;
        }
        for (int64_t j = 0; !*stop && world_rank(run->world) == 0 && j < b && first + j < count; j++) {
            Tokens tokens = {sampler->texts[j].tokens + sampler->before, sampler->texts[j].count - sampler->before};
            char *text = tokenizer_decode(&sampler->tokenizer, &tokens);
            Error trouble = {0};
            bool said = true;
            if (run->metrics != NULL) {
                metrics_sample(run->metrics, step, first + j, text, &trouble);
                run_tell_metrics(run, step, &trouble);
            } else said = printf("%s%s\n", first + j > 0 ? "---\n" : "", text) >= 0 && fflush(stdout) == 0;
            free(text);
            if (!said) return error_set(err, EXIT_FAILED, "cannot write to standard output: %s", strerror(errno));
        }
    }
    return 0;
}

// A request to stop ends the sample at once, and the run after the next step.
int run_sample(Run *run, int64_t step, Error *err) {
    bool stop = false;
    // The other data ranks run no forward, which would wait for their part in gathers.
    return optimizer_wait(run->optimizer, err) != 0 ? -1 : sample_all_(run, step, &stop, err);
}

int run_generate(Run *run, Error *err) {
    bool stop = false;
    run_listen(run);
    if (sample_all_(run, 0, &stop, err) != 0) return -1;
    if (!stop) return 0;
    return error_on_all(err, EXIT_FAILED, "stopped on request before the text was complete");
}

// Checks the keys of mixtures of experts. Every error names a remedy.
#include "config_schema.h"
#include "base/units.h"

static int check_router_(const Config *config, Error *err) {
    const ModelConfig *m = &config->model;
    long long experts = m->experts, chosen = m->experts_per_token, groups = m->router_groups, top = m->router_group_top;
    if (chosen == 0 && families[m->family].gated)
        return config_error(config, "model.experts_per_token", err,
                            "is missing: a model of %lld experts needs it; give it, such as 2", experts);
    const Refusal refused[] = {
        {!families[m->family].gated, "model.experts", "only family llama has experts; use it, or 0"},
        {chosen > experts, "model.experts_per_token", "a token cannot use more experts than model.experts; use fewer"},
        {60.0L * m->layers * experts * m->hidden * m->expert_ffn > 0x1p60L, "model.experts",
         "the experts take more than 2^60 bytes; use fewer or smaller ones"},
        // Each expert of a layer has three entries in the table of tensors.
        {experts * m->layers > 1 << 18, "model.experts", "the layers have more than 2^18 experts in total; use fewer"},
        {m->dense_layers >= m->layers, "model.dense_layers",
         "all layers would be dense; use fewer than model.layers, or model.experts: 0"},
        {groups > 1 && m->router != ROUTER_SIGMOID, "model.router_groups",
         "groups of experts need router sigmoid; use it, or 1 group"},
    };
    if (config_refuse_rows(config, refused, sizeof refused / sizeof *refused, "model.experts", err) != 0) return -1;
    if (experts % groups != 0) {
        char use[96];
        config_first_divisors(experts, use, sizeof use);
        return config_clash(config, "model.router_groups", "model.experts", err,
                            "%lld groups do not divide %lld experts; use %s", groups, experts, use);
    }
    if (top <= groups && chosen <= experts / groups * top) return 0;
    return config_clash(config, "model.router_group_top", "model.router_groups", err,
                        "a token's %lld experts cannot come from %lld of %lld groups of %lld experts; use %lld", chosen,
                        top, groups, experts / groups, (chosen * groups + experts - 1) / experts);
}

int config_check_experts(Config *config, Error *err) {
    ModelConfig *m = &config->model;
    if (m->experts == 0)
        return config_refuse_given(config,
                                   "model.experts_per_token model.expert_ffn model.shared_ffn model.dense_layers "
                                   "model.router model.router_groups model.router_group_top model.router_scale "
                                   "model.router_normalize parallel.expert train.balance train.router_z_loss "
                                   "log.experts",
                                   "does not apply to a model without experts; give model.experts, or remove the key",
                                   err);
    if (m->expert_ffn == 0) m->expert_ffn = m->ffn;
    if (check_router_(config, err) != 0) return -1;
    const ParallelConfig *p = &config->parallel;
    int64_t ranks = p->tensor * p->context * p->data, e = p->expert;
    char use[96];
    config_first_divisors(greatest_common_divisor(m->experts, ranks), use, sizeof use);
    if (m->experts % e != 0)
        return config_clash(config, "parallel.expert", "model.experts", err,
                            "%lld does not divide %lld experts; use %s", (long long)e, (long long)m->experts, use);
    if (ranks % e != 0)
        return config_error(config, "parallel.expert", err,
                            "%lld does not divide the %lld ranks of a stage (tensor * context * data); use %s",
                            (long long)e, (long long)ranks, use);
    if (p->tensor > 1 && !p->sequence)
        return config_clash(config, "parallel.sequence", "parallel.tensor", err,
                            "experts need rows split over the tensor ranks; set parallel.sequence: true, or tensor: 1");
    const Refusal refused[] = {
        {config->train.fp8 != FP8_OFF, "train.fp8", "experts are computed in bf16; use off"},
        {config->train.balance == BALANCE_LOSS && config_slices(config) > 1, "train.balance",
         "the balance loss counts complete sequences; use slices: 1, or balance: off"},
        {config->train.balance == BALANCE_BIAS && m->router != ROUTER_SIGMOID, "train.balance",
         "only the scores of router sigmoid have a bias; use it, or balance: loss"},
        {config->parallel.tensor > 1 && config->parallel.overlap >= OVERLAP_2, "parallel.overlap",
         "a model with experts cannot split forward products; use auto, on or off"},
    };
    return config_refuse_rows(config, refused, sizeof refused / sizeof *refused, "model.experts", err);
}

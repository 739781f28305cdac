"""LLaMA (Touvron et al. 2023) and GPT-2/3 (Radford et al. 2019; Brown et al. 2020) in plain PyTorch, for autograd.

A model is a dictionary of the configuration's `model` section; weights are a dictionary of tensors under Hugging Face's
names, matrices as (out, in) and vectors as (rows,). The code follows the papers and is neither fast, split nor fused.
"""

import math

import torch
from torch.nn import functional


def token_losses(model, weights, tokens, z_loss=0.0):
    """Cross-entropy of each next token, (sequences, seq_len), from tokens (sequences, seq_len + 1), and z_loss times
    the square of its logits' log-sum-exp."""
    logits_of = {"llama": llama_logits, "gpt": gpt_logits}[model["family"]]
    logits, targets = logits_of(model, weights, tokens[:, :-1]).flatten(0, 1), tokens[:, 1:]
    losses = functional.cross_entropy(logits, targets.flatten(), reduction="none")
    return (losses + z_loss * logits.logsumexp(-1) ** 2).view(targets.shape)


def dot_attention(model, query, key, value):
    """softmax(q k^T / sqrt(d)) v over (sequences, heads, positions, d); a position sees itself and those before it, in
    an encoder all."""
    positions = query.shape[-2]
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    later = torch.ones(positions, positions, dtype=torch.bool).triu(1) & model.get("causal", True)
    return scores.masked_fill(later, -math.inf).softmax(-1) @ value


def split_heads(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge_heads(x):
    return x.transpose(1, 2).flatten(2)


# --- LLaMA


SCORE_BIAS = "mlp.gate.e_score_correction_bias"


def routed(model, layer):
    """Whether the layer has experts."""
    return "experts" in model and layer >= model.get("dense_layers", 0)


def expert_names(model, n=0):
    """Names of the router, and of expert n's gate, up and down, in Qwen3-MoE's form or in Mixtral's."""
    if model.get("qk_norm") or model.get("router") == "sigmoid":
        return "mlp.gate", [f"mlp.experts.{n}.{name}_proj" for name in ("gate", "up", "down")]
    return "block_sparse_moe.gate", [f"block_sparse_moe.experts.{n}.{name}" for name in ("w1", "w3", "w2")]


def mlps(model, layer):
    """Names and widths of a layer's gated MLPs: of all tokens first, then of its experts."""
    dense = [[f"mlp.{kind}{name}_proj" for name in ("gate", "up", "down")] for kind in ("", "shared_experts.")]
    if not routed(model, layer):
        return [(dense[0], model["ffn"])]
    shared = [(dense[1], model["shared_ffn"])] if model.get("shared_ffn") else []
    width = model.get("expert_ffn", model["ffn"])
    return shared + [(expert_names(model, n)[1], width) for n in range(model["experts"])]


def gated_mlp(x, names, w):
    gate, up, down = (w(name) for name in names)
    return (functional.silu(x @ gate.T) * (x @ up.T)) @ down.T


def mixture(model, x, w, routers):
    """The sum of a token's experts_per_token experts (Shazeer et al. 2017), weighted by their scores. Appends the
    router's logits and the chosen experts, (tokens, ...), to `routers`."""
    logits = x @ w(expert_names(model)[0]).T
    scores = logits.sigmoid() if model.get("router") == "sigmoid" else logits.softmax(-1)
    groups, keys = model.get("router_groups", 1), scores  # keys: decide which experts are chosen
    if model.get("router") == "sigmoid":
        keys = scores + w("mlp.gate", "e_score_correction_bias")
    if groups > 1:  # a group's score is the sum of its two largest
        best = keys.unflatten(-1, (groups, -1)).topk(2).values.sum(-1).topk(model["router_group_top"]).indices
        kept = torch.zeros(*scores.shape[:-1], groups).scatter(-1, best, 1.0).repeat_interleave(
            model["experts"] // groups, -1)
        keys = keys.masked_fill(kept == 0, -math.inf)
    chosen = keys.topk(model["experts_per_token"]).indices
    weights = scores.gather(-1, chosen)
    if model.get("router_normalize", True):
        weights = weights / weights.sum(-1, keepdim=True)
    routers.append((logits.flatten(0, 1), chosen.flatten(0, 1)))
    out = torch.zeros_like(x)
    for n in range(model["experts"]):
        weight = (weights * (chosen == n)).sum(-1, keepdim=True) * model.get("router_scale", 1.0)
        out = out + weight * gated_mlp(x, expert_names(model, n)[1], w)
    return out


def router_loss(model, weights, tokens, balance=0.0, router_z_loss=0.0):
    """Returns the routers' addition to the mean loss of a microbatch: balance * experts * sum over experts of their
    share of the tokens * their mean score (Fedus et al. 2021), and router_z_loss * mean log(Z)^2 (Zoph et al.
    2022)."""
    routers, total = [], 0.0
    llama_logits(model, weights, tokens[:, :-1], routers)
    for logits, chosen in routers:
        parts = functional.one_hot(chosen, model["experts"]).double().mean((0, 1))
        scores = logits.sigmoid() if model.get("router") == "sigmoid" else logits.softmax(-1)
        means = (scores / scores.sum(-1, keepdim=True)).mean(0)
        total = total + balance * model["experts"] * (parts * means).sum()
        total = total + router_z_loss * logits.logsumexp(-1).square().mean()
    return total


def expert_copies(model, weights, tokens):
    """Returns {name of a router's bias: number of token copies that each expert gets}."""
    routers = []
    if model.get("router") == "sigmoid":
        llama_logits(model, weights, tokens[:, :-1], routers)
    names = [f"model.layers.{layer}.{SCORE_BIAS}" for layer in range(model["layers"]) if routed(model, layer)]
    return {name: chosen.flatten().bincount(minlength=model["experts"]) for name, (_, chosen) in zip(names, routers)}


def rms_norm(x, weight, eps):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def rotation_rates(model, width):
    """Radians a position for each pair, and the factor of cosines and sines."""
    theta, kind = model.get("rope_theta", 10000.0), model.get("rope_scaling", "none")
    factor, original = model.get("rope_factor", 1.0), model.get("rope_original", 1)
    rates = theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    if kind == "linear":
        return rates / factor, 1.0
    if kind == "llama3":
        low, high = model.get("rope_low_freq", 1.0), model.get("rope_high_freq", 4.0)
        keep = ((original * rates / (2 * math.pi) - low) / (high - low)).clamp(0, 1)
        return keep * rates + (1 - keep) * rates / factor, 1.0
    if kind == "yarn":
        betas = model.get("rope_beta_fast", 32.0), model.get("rope_beta_slow", 1.0)
        ends = [width * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta)) for turns in betas]
        low, high = max(math.floor(ends[0]), 0), min(math.ceil(ends[1]), width - 1)
        slow = ((torch.arange(width // 2) - low) / (high - low)).clamp(0, 1)
        return slow * rates / factor + (1 - slow) * rates, model.get("rope_attention", 0.1 * math.log(factor) + 1)
    return rates, 1.0


def rotate(x, model):
    """Rotary positions (Su et al. 2021) in Hugging Face's convention: dimension i turns with dimension i + d/2, of the
    first rope_share of the dimensions."""
    positions, width = x.shape[-2], int(x.shape[-1] * model.get("rope_share", 1.0))
    rates, scale = rotation_rates(model, width)
    x, rest = x[..., :width] * scale, x[..., width:]
    angles = torch.arange(positions, dtype=x.dtype)[:, None] * rates.to(x.dtype)
    first, second = x.chunk(2, -1)
    turned = [first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()]
    return torch.cat([*turned, rest], -1)


def latent_attention(model, x, w):
    """Multi-head latent attention (DeepSeek-AI 2024), with neighbouring dimensions as pairs."""
    heads, rope, nope, eps = model["heads"], model["rope_dim"], model["nope_dim"], 1e-6
    turn = lambda y: rotate(torch.cat([y[..., 0::2], y[..., 1::2]], -1), {**model, "rope_share": 1.0})
    latent, shared = (x @ w("self_attn.kv_a_proj_with_mqa").T).split([model["kv_lora"], rope], -1)
    query = rms_norm(x @ w("self_attn.q_a_proj").T, w("self_attn.q_a_layernorm"), eps) @ w("self_attn.q_b_proj").T
    query, turned = split_heads(query, heads).split([nope, rope], -1)
    rest = split_heads(rms_norm(latent, w("self_attn.kv_a_layernorm"), eps) @ w("self_attn.kv_b_proj").T, heads)
    key, value = rest.split([nope, model["v_dim"]], -1)
    stretched = 0.1 * model.get("rope_mscale", 0.0) * math.log(model.get("rope_factor", 1.0)) + 1
    query = torch.cat([query, turn(turned)], -1) * stretched**2
    key = torch.cat([key, turn(split_heads(shared, 1)).expand(-1, heads, -1, -1)], -1)
    return merge_heads(dot_attention(model, query, key, value)) @ w("self_attn.o_proj").T


def llama_attention(model, x, w):
    if "kv_lora" in model:
        return latent_attention(model, x, w)
    heads, kv_heads = model["heads"], model.get("kv_heads", model["heads"])

    def project(name, count):
        y = x @ w(f"self_attn.{name}_proj").T
        y = split_heads(y + w(f"self_attn.{name}_proj", "bias") if model.get("qkv_bias") else y, count)
        norm = model.get("qk_norm") and name != "v"
        return rms_norm(y, w(f"self_attn.{name}_norm"), model.get("norm_eps", 1e-5)) if norm else y

    query, key, value = project("q", heads), project("k", kv_heads), project("v", kv_heads)
    query, key = rotate(query, model), rotate(key, model)
    key, value = (part.repeat_interleave(heads // kv_heads, 1) for part in (key, value))
    return merge_heads(dot_attention(model, query, key, value)) @ w("self_attn.o_proj").T


def llama_logits(model, weights, tokens, routers=None):
    routers = [] if routers is None else routers
    eps = model.get("norm_eps", 1e-5)
    x = weights["model.embed_tokens.weight"][tokens]
    for layer in range(model["layers"]):

        def w(name, kind="weight", prefix=f"model.layers.{layer}."):
            return weights[f"{prefix}{name}.{kind}"]

        x = x + llama_attention(model, rms_norm(x, w("input_layernorm"), eps), w)
        y = rms_norm(x, w("post_attention_layernorm"), eps)
        for names, _ in mlps(model, layer)[: 1 if not routed(model, layer) or model.get("shared_ffn") else 0]:
            x = x + gated_mlp(y, names, w)
        if routed(model, layer):
            x = x + mixture(model, y, w, routers)
    return rms_norm(x, weights["model.norm.weight"], eps) @ weights["lm_head.weight"].T


# --- GPT


def gpt_logits(model, weights, tokens):
    """The output matrix is read under its own name, so that the caller decides whether it is the embedding."""
    eps = model.get("norm_eps", 1e-5)
    x = weights["transformer.wte.weight"][tokens] + weights["transformer.wpe.weight"][: tokens.shape[1]]
    for layer in range(model["layers"]):

        def norm(name, x, prefix=f"transformer.h.{layer}."):
            parameters = weights[f"{prefix}{name}.weight"], weights[f"{prefix}{name}.bias"]
            return functional.layer_norm(x, x.shape[-1:], *parameters, eps)

        def linear(name, x, prefix=f"transformer.h.{layer}."):
            return functional.linear(x, weights[f"{prefix}{name}.weight"], weights[f"{prefix}{name}.bias"])

        qkv = linear("attn.c_attn", norm("ln_1", x)).chunk(3, -1)
        attention = dot_attention(model, *(split_heads(part, model["heads"]) for part in qkv))
        x = x + linear("attn.c_proj", merge_heads(attention))
        x = x + linear("mlp.c_proj", functional.gelu(linear("mlp.c_fc", norm("ln_2", x)), approximate="tanh"))
    parameters = weights["transformer.ln_f.weight"], weights["transformer.ln_f.bias"]
    return functional.layer_norm(x, x.shape[-1:], *parameters, eps) @ weights["lm_head.weight"].T

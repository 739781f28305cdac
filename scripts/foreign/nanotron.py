"""nanotron's YAML as our configuration. Names and defaults are those of nanotron 0.4 (2411b022: config/config.py,
parallelism_config.py, models_config.py)."""

import re

from run_files import Failure

from .documents import overridden, read_yaml, settings_of
from .megatron import zero
from .settings import NORMS_DECAY, rows_of

M = "model.model_config."
ROWS = rows_of("nanotron")


def read(text, overrides=()):
    return settings_of(overridden(read_yaml(text), overrides))


def convert(s, gpus=None, model=None):
    """Converts the Settings to our configuration."""
    known = model or {}
    config = s.begin(ROWS, known)
    ours, parallel, schedule, train = (config[name] for name in ("model", "parallel", "schedule", "train"))
    ours |= {key: value for key, value in known.items() if key not in ours} | {"family": "llama"}
    wide = max(ours["hidden"] // ours["heads"], 1)
    ours["kv_heads"] = s.number(M + "num_key_value_heads", int, known.get("kv_heads", ours["heads"]), low=1)
    ours["head_dim"] = s.number(M + "head_dim", int, known.get("head_dim", wide), low=1)
    ours["tie_embeddings"] = s.flag(M + "tie_word_embeddings", False)
    qwen = s.flag(M + "is_qwen2_config")
    ours["qkv_bias"] = s.flag(M + "attention_bias", False) and qwen  # which its LLaMA does not read
    ours["qk_norm"] = s.flag(M + "qk_norm", False)
    act = s.text(M + "hidden_act", "silu")
    if act not in ("silu", "swish"):
        s.say("model", f"hidden_act {act}: the gate is planned as SwiGLU; sizes are the same")
    rope(s, ours)
    flex = s.text(M + "flex_attention_mask", "") if s.peek(M + "_attn_implementation") == "flex_attention" else ""
    if any([s.flag(M + "_use_doc_masking"), "document" in flex]):
        config["data"] = {"mask_documents": "on"}
    for name in [name for name in s.values if re.fullmatch(r"data_stages\[\d+\]\.sequence_length", name)]:
        if s.peek(name) != str(ours["seq_len"]):
            s.effect(name, "length", f"{ours['seq_len']} tokens per sequence are planned for the whole run")
        s.quiet(name)
    world(s, parallel, gpus)
    engine = s.text("parallelism.pp_engine", "afab").lower()
    schedule["name"] = "gpipe" if engine == "afab" else "1f1b"
    if engine not in ("afab", "1f1b"):
        raise Failure(f"parallelism.pp_engine {engine}: is neither 1f1b nor afab")
    layers = dealt(ours, parallel["pipeline"])
    if len(set(layers)) > 1:
        parallel["layers"] = layers
    if s.flag("parallelism.recompute_layer", False):
        schedule["recompute_layers"] = max(layers)
    each = s.number("tokens.batch_accumulation_per_replica", int, 1, low=1)
    train["global_batch"] = schedule["micro_batch"] * each * parallel["data"]
    precision(s, train)
    optimizer(s, train)
    penalty = s.number(M + "z_loss_coefficient", float, 1e-4, high=1000)
    if s.flag(M + "z_loss_enabled") and not qwen:  # nanotron's Qwen 2 has no z-loss
        train["z_loss"] = penalty
    if "optimizer.zero_stage" in s:
        s.values["zero-stage"] = ("optimizer.zero_stage", s.take("optimizer.zero_stage"))
    zero(s, config, "optimizer.zero_stage 0")
    config["attention"]["mode"] = "flash"
    s.finish(ROWS)
    return config


def world(s, parallel, gpus):
    if s.number("parallelism.expert_parallel_size", int, 1, low=1) != 1:
        raise Failure("parallelism.expert_parallel_size: ranks of this kind cannot be planned; leave it out")
    ranks = parallel["data"] * parallel["pipeline"] * parallel["tensor"] * parallel["context"]
    if gpus and gpus != ranks:
        raise Failure(f"--gpus {gpus}: the file has {ranks} ranks; leave --gpus out, or change parallelism.dp")
    if parallel["pipeline"] > 1 and parallel["data"] * parallel["context"] > 1:
        parallel["placement"] = "stages"  # its device mesh has the pipeline as the outer dimension
    mode = s.text("parallelism.tp_mode", "ALL_REDUCE")
    parallel["sequence"] = mode.upper() == "REDUCE_SCATTER" and parallel["tensor"] > 1
    overlaps = s.flag("parallelism.tp_linear_async_communication", False)
    parallel["overlap"] = "auto" if overlaps and parallel["sequence"] else "off"


def dealt(model, p):
    """Returns the layers of each stage. build_model (models/base.py) begins a stage after the layer that exceeds a p-th
    of the cost of all layers and the head."""
    cost = (4 * (model["hidden"] // model["heads"]) * model["heads"] + 3 * model["ffn"]) * model["hidden"]
    whole, counts, at = cost * model["layers"] + model["vocab"] * model["hidden"], [0] * p, 0
    for layer in range(model["layers"]):
        counts[at] += 1
        at += cost * (layer + 1) * p > whole * (at + 1)
    return counts


def precision(s, train):
    kind = s.text("model.dtype", "bfloat16")
    train["precision"] = "fp32" if kind == "float32" else "bf16"
    if kind not in ("float32", "bfloat16"):
        s.say("precision", f"model.dtype {kind}: is planned as bf16")
    if not s.flag("optimizer.accumulate_grad_in_fp32", True) and train["precision"] == "bf16":
        s.say("precision", "optimizer.accumulate_grad_in_fp32 false: masters, moments and gradients are planned in"
                           " fp32, 10 bytes per parameter more")


def rope(s, model):
    names = [name for name in s.values if name.startswith(M + "rope_scaling.")]
    scaling = {name[len(M + "rope_scaling.") :]: s.take(name) for name in names}
    kind = scaling.pop("rope_type", scaling.pop("type", "none"))
    numbers = {"factor": "rope_factor", "original_max_position_embeddings": "rope_original",
               "low_freq_factor": "rope_low_freq", "high_freq_factor": "rope_high_freq",
               "beta_fast": "rope_beta_fast", "beta_slow": "rope_beta_slow"}
    if kind in ("linear", "llama3", "yarn"):
        model["rope_scaling"] = kind
        for word, value in scaling.items():
            if word not in numbers or isinstance(value, bool) or not isinstance(value, (int, float)):
                raise Failure(f"{M}rope_scaling.{word}: is unknown, or is not a number")
            model[numbers[word]] = value
    elif kind in ("none", "default", None):
        factor = s.number(M + "rope_seq_len_interpolation_factor", float, 1.0, low=1, high=1e6)
        model |= {"rope_scaling": "linear", "rope_factor": factor} if factor > 1 else {}
    else:
        raise Failure(f"{M}rope_scaling {kind}: cannot be planned; use linear, llama3 or yarn")


def optimizer(s, train):
    R = "optimizer.learning_rate_scheduler."
    name = s.text("optimizer.optimizer_factory.name", "adamW")
    if name.lower() != "adamw":
        s.say("memory", f"optimizer {name}: AdamW is planned, with two moments in fp32")
    if train["weight_decay"] > 0 and "optimizer.weight_decay_exclude_named_params" not in s:
        s.say("training", NORMS_DECAY)
    if s.peek("model.init_method.scaling_method") == "NUM_LAYERS":  # its default, and what is planned
        s.quiet("model.init_method.scaling_method")
    lr, warm = train["lr"], train["warmup_steps"]
    low = s.number(R + "min_decay_lr", float, lr, high=100)
    if low > lr:
        raise Failure(f"{R}min_decay_lr {low:g}: is above learning_rate {lr:g}")
    train["min_lr_ratio"] = float(f"{low / lr if lr else 0:.12g}")
    style = s.text(R + "lr_decay_style", "linear")
    start = s.number(R + "lr_decay_starting_step", int, warm)
    steps = s.number(R + "lr_decay_steps", int, max(1, train["steps"] - warm), low=1)
    if s.text(R + "lr_warmup_style", "linear") != "linear":
        s.say("training", f"{R}lr_warmup_style: the warm-up is linear here")
    if start > warm:
        shape = style if style in ("linear", "cosine", "1-sqrt") else "linear"
        last = max(1, min(steps, train["steps"] - start))
        train |= {"schedule": "wsd", "decay_steps": last, "decay_shape": shape}
    else:
        train["schedule"] = "constant" if low == lr else style if style in ("linear", "cosine") else "linear"
    if style not in ("linear", "cosine") and not (style == "1-sqrt" and start > warm) and low != lr:
        s.say("training", f"{R}lr_decay_style {style}: a linear decay is planned")
    if abs(start + steps - train["steps"]) > 1 and low != lr:
        s.say("training", f"the learning rate falls until step {start + steps} there and until the last,"
                          f" {train['steps']}, here")

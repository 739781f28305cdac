"""Converts our configuration to those of other trainers, for scripts/export.py; scripts/foreign/ converts theirs.

Names and defaults are those of Megatron-LM core 0.20.0 (d98e8a64: megatron/training/arguments.py, config/,
core/transformer/transformer_config.py), torchtitan 0.2.2 (config/job_config.py; later versions use Python instead of
TOML) and nanotron 0.4 (2411b022: config/parallelism_config.py, models_config.py)."""

import functools
import json
import math
import shlex

from foreign import torchtitan
from foreign.megatron import LATENT
from foreign.nanotron import M
from foreign.settings import rows_of

# ---- Megatron-LM -----------------------------------------------------------------------------------------------------

# Numbers whose defaults in Megatron-LM depend on other flags; settings.tsv has all other numbers.
NUMBERS = (("vocab-size", "model.vocab"), ("global-batch-size", "train.global_batch"), ("train-iters", "train.steps"),
           ("lr-warmup-iters", "train.warmup_steps"))
DECAYS = {"linear": "linear", "cosine": "cosine", "sqrt": "minus_sqrt", "1-sqrt": "minus_sqrt"}


def find(config, key):
    section, _, name = key.partition(".")
    return config[section][name]


def numbers_of(program):
    """Yields (setting, our key) of the numbers that are copied unchanged."""
    for kind, names, words in rows_of(program):
        if kind == "number":
            yield names.split()[0], words.split()[0]


def megatron_model(model):
    llama = model["family"] == "llama"
    words = ["--ffn-hidden-size", model["ffn"], "--kv-channels", model["head_dim"]]
    words += ["--max-position-embeddings", model["seq_len"], "--make-vocab-size-divisible-by", 1]
    words += ["--tokenizer-type", "NullTokenizer", "--attention-dropout", 0, "--hidden-dropout", 0]
    if model["kv_heads"] != model["heads"]:
        words += ["--group-query-attention", "--num-query-groups", model["kv_heads"]]
    if llama:
        words += ["--swiglu", "--normalization", "RMSNorm", "--disable-bias-linear"]
        words += ["--position-embedding-type", "rope", "--rotary-base", model["rope_theta"]]
        words += ["--rotary-percent", model["rope_share"]] * (model["rope_share"] != 1)
        words += ["--add-qkv-bias"] * model["qkv_bias"] + ["--qk-layernorm"] * model["qk_norm"]
        if model["kv_lora"] > 0:
            words += megatron_latent(model)
        elif model["rope_scaling"] == "llama3":
            words += ["--use-rope-scaling", "--rope-scaling-factor", model["rope_factor"]]
        elif model["rope_scaling"] == "linear" and float(model["rope_factor"]).is_integer():
            words += ["--rotary-seq-len-interpolation-factor", int(model["rope_factor"])]
    return words + ["--untie-embeddings-and-output-weights"] * (not model["tie_embeddings"])


def megatron_latent(model):
    words = ["--multi-latent-attention", "--qk-layernorm", "--rope-type",
             "yarn" if model["rope_scaling"] == "yarn" else "rope"]
    words += [word for key, flag, _ in LATENT for word in (f"--{flag}", model[key])]
    if model["rope_scaling"] == "yarn":
        grown = 0.1 * math.log(model["rope_factor"])
        scale = (model["rope_attention"] * (grown * model["rope_mscale"] + 1) - 1) / grown if grown > 0 else 1
        words += ["--rotary-scaling-factor", model["rope_factor"], "--mscale", scale,
                  "--mscale-all-dim", model["rope_mscale"]]
    return words


def megatron_experts(config):
    """Returns the flags of a mixture of experts. Tensor ranks do not split an expert."""
    model, train, dense = config["model"], config["train"], config["model"]["dense_layers"]
    if model["experts"] == 0:
        return []
    words = ["--num-experts", model["experts"], "--moe-router-topk", model["experts_per_token"], "--moe-grouped-gemm",
             "--moe-ffn-hidden-size", model["expert_ffn"], "--moe-token-dispatcher-type", "alltoall",
             "--expert-model-parallel-size", config["parallel"]["expert"], "--expert-tensor-parallel-size", 1]
    words += ["--moe-shared-expert-intermediate-size", model["shared_ffn"]] * (model["shared_ffn"] > 0)
    words += ["--moe-layer-freq", f"([0]*{dense}+[1]*{model['layers'] - dense})"] * (dense > 0)
    words += ["--moe-router-score-function", model["router"], "--moe-router-topk-scaling-factor", model["router_scale"]]
    if model["router_groups"] > 1:
        words += ["--moe-router-num-groups", model["router_groups"]]
        words += ["--moe-router-group-topk", model["router_group_top"]]
    words += ["--moe-router-pre-softmax"] * (model["router"] == "softmax" and not model["router_normalize"])
    loss = train["balance"] == "loss"
    words += ["--moe-router-load-balancing-type", "aux_loss" if loss else "none"]
    words += ["--moe-aux-loss-coeff", train["balance_rate"]] * loss
    bias = ["--moe-router-enable-expert-bias", "--moe-router-bias-update-rate", train["balance_rate"]]
    words += bias * (train["balance"] == "bias")
    return words + ["--moe-z-loss-coeff", train["router_z_loss"]] * (train["router_z_loss"] > 0)


def megatron_layout(config):
    parallel, schedule = config["parallel"], config["schedule"]
    words, layers, p = [], parallel["layers"], parallel["pipeline"]
    if len(layers) == 2 * p and schedule["name"] not in ("interleaved", "gis"):  # a V, which becomes 1F1B
        layers = [sum(pair) for pair in zip(layers[:p], reversed(layers[p:]))]
    chunks = len(layers) // p if p > 1 else 1
    words += ["--sequence-parallel"] * (parallel["sequence"] and parallel["tensor"] > 1)
    words += ["--tp-comm-overlap"] * (parallel["sequence"] and parallel["tensor"] > 1 and parallel["overlap"] != "off")
    words += ["--cp-comm-type", "all_gather"] * (parallel["context"] > 1)
    words += ["--use-tp-pp-dp-mapping"] * (parallel["placement"] == "linear" and parallel["pipeline"] > 1)
    if parallel["data"] * parallel["context"] > 1:
        words += ["--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather"]
    if len(layers) == parallel["pipeline"] * chunks and len(set(layers)) > 1:
        words += ["--pipeline-model-parallel-layout", "E" + "|".join(f"t*{n}" if n else "" for n in layers) + "L"]
    elif chunks > 1:
        words += ["--num-virtual-stages-per-pipeline-rank", chunks]
    group = schedule["group"]
    if schedule["name"] == "gis" and isinstance(group, int) and group >= parallel["pipeline"]:
        words += ["--microbatch-group-size-per-virtual-pipeline-stage", group]
    again, modules = schedule["recompute_layers"], []
    if all_again(config):
        return words + ["--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", 1]
    if isinstance(again, int) and again > 0 and again % chunks == 0:
        return words + ["--recompute-granularity", "full", "--recompute-method", "block", "--recompute-num-layers",
                        again // chunks]
    if config["attention"]["mode"] == "recompute":
        modules = ["core_attn"]
    if schedule["recompute"] == "experts" and again == 0:
        modules += ["moe"]
    if schedule["recompute"] == "pointwise" and again == 0:
        modules += ["layernorm"] + ["moe_act"] * (config["model"]["experts"] > 0)
    words += ["--recompute-granularity", "selective", "--recompute-modules", *modules] * bool(modules)
    return words


def most_layers(config):
    """Returns the most layers of a stage."""
    p, name, stages = config["parallel"]["pipeline"], config["schedule"]["name"], {}
    for part, count in enumerate(config["parallel"]["layers"]):
        turn, at = divmod(part, p)
        stage = p - 1 - at if turn % 2 and name in ("zb-v", "v-half", "v-min", "dualpipe-v") else at
        stages[stage] = stages.get(stage, 0) + count
    return max(stages.values())


def all_again(config):
    """Returns whether every stage recomputes all of its layers."""
    again = config["schedule"]["recompute_layers"]
    return isinstance(again, int) and again >= most_layers(config)


def wsd_steps(train):
    steps = train["decay_steps"]
    return max(0, train["steps"] - train["warmup_steps"]) // 10 if steps == "auto" else steps


def megatron_rest(config):
    attention, train, data = config["attention"], config["train"], config["data"]
    words = {"flash": ["--attention-backend", "flash"], "none": ["--attention-backend", "unfused"],
             "recompute": ["--attention-backend", "unfused"]}
    words = words.get(str(attention["mode"]), [])
    words += ["--no-masked-softmax-fusion"] * (attention["softmax"] == "unfused")
    words += ["--reset-attention-mask"] * (data["mask_documents"] == "on")
    words += ["--reset-position-ids"] * (data["reset_positions"] == "on")
    words += ["--bf16"] * (train["precision"] == "bf16") + ["--optimizer", train["optimizer"].replace("adamw", "adam")]
    if train["optimizer"] == "muon":
        words += ["--muon-momentum", train["muon_momentum"], "--muon-extra-scale-factor", train["muon_scale"],
                  "--muon-nesterov", "--muon-coefficient-type", "simple"]
    words += ["--min-lr", train["lr"] * train["min_lr_ratio"]]
    words += ["--lr-decay-style", train["schedule"].replace("wsd", "WSD")]
    if train["schedule"] == "wsd":
        words += ["--lr-wsd-decay-iters", wsd_steps(train), "--lr-wsd-decay-style", DECAYS[train["decay_shape"]]]
    return words


def to_megatron(config, job):
    """Returns the command line, torchrun included."""
    words = ["torchrun", "--nnodes", job["nodes"], "--nproc-per-node", job["tasks_per_node"], "pretrain_gpt.py"]
    for flag, key in (*numbers_of("megatron"), *NUMBERS):
        words += [f"--{flag}", find(config, key)]
    words += megatron_model(config["model"]) + megatron_layout(config) + megatron_rest(config)
    words += megatron_experts(config)
    lines = []
    for word in words:
        text = shlex.quote(f"{word:.12g}" if isinstance(word, float) else str(word))
        if text.startswith("--"):
            lines.append(text)
        else:
            lines[-1:] = [f"{lines[-1]} {text}" if lines else text]
    return " \\\n    ".join(lines) + "\n"


# ---- torchtitan ------------------------------------------------------------------------------------------------------

def to_torchtitan(config, _):
    parallel, schedule, train, model = (config[name] for name in ("parallel", "schedule", "train", "model"))
    p, d, b = parallel["pipeline"], parallel["data"], schedule["micro_batch"]
    tables = {"model": {"name": "llama3"}, "training": {}, "optimizer": {"name": "AdamW"}, "lr_scheduler": {},
              "parallelism": {}, "activation_checkpoint": {}, "debug": {"seed": train["seed"]}}
    for (name, flavor), sizes in torchtitan.FLAVORS.items():
        if name == "llama3" and all(model[key] == value for key, value in sizes.items()):  # 0.2.2 has no llama2
            tables["model"] = {"name": name, "flavor": flavor}
    for name, ours in numbers_of("torchtitan"):
        table, _, key = name.partition(".")
        tables[table][key] = find(config, ours)
    split = tables["parallelism"]
    tables["training"] |= {"global_batch_size": train["global_batch"], "local_batch_size": b}
    split |= {"data_parallel_shard_degree": d, "fsdp_reshard_after_forward": "never"}
    split["enable_async_tensor_parallel"] = parallel["tensor"] > 1 and parallel["overlap"] != "off"
    if split["enable_async_tensor_parallel"]:
        tables["compile"] = {"enable": True}  # without it, 0.2.2 refuses
    if train["precision"] == "fp32":
        tables["training"]["mixed_precision_param"] = "float32"
    if model["experts"] > 0:
        split["expert_parallel_degree"] = parallel["expert"]
    if p > 1:
        tables["training"]["local_batch_size"] = train["global_batch"] // d
        split["pipeline_parallel_schedule"] = torchtitan.SCHEDULES.get(schedule["name"], "1F1B")
        split["pipeline_parallel_microbatch_size"] = b
        if schedule["name"] in torchtitan.SCHEDULES:
            split["module_fqns_per_model_part"] = parts_of(parallel["layers"])
    shape = train["decay_shape"] if train["schedule"] == "wsd" else train["schedule"]
    tables["lr_scheduler"]["decay_type"] = {"cosine": "cosine", "sqrt": "sqrt", "1-sqrt": "sqrt"}.get(shape, "linear")
    if train["schedule"] in ("wsd", "constant"):
        tables["lr_scheduler"]["decay_ratio"] = wsd_steps(train) / train["steps"] if train["schedule"] == "wsd" else 0.0
    tables["activation_checkpoint"]["mode"] = "full" if all_again(config) else "none"
    lines = []
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items()), ""]
    return "\n".join(lines)


def parts_of(layers):
    parts, at = [], 0
    for count in layers:
        parts.append([f"layers.{i}" for i in range(at, at + count)])
        at += count
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "output"]
    return parts


# ---- nanotron --------------------------------------------------------------------------------------------------------


def to_nanotron(config, _):
    return "\n".join(yaml_lines(nanotron_sections(config), "")) + "\n"


def nanotron_sections(config):
    """Returns the sections of nanotron's YAML that a layout needs."""
    model, parallel, schedule, train = (config[name] for name in ("model", "parallel", "schedule", "train"))
    settings = {name: find(config, key) for name, key in numbers_of("nanotron")}
    settings |= {
        "parallelism.pp_engine": "afab" if schedule["name"] == "gpipe" else "1f1b",
        "parallelism.tp_mode": "REDUCE_SCATTER" if parallel["sequence"] else "ALL_REDUCE",
        "parallelism.tp_linear_async_communication": parallel["sequence"] and parallel["overlap"] != "off",
        "parallelism.recompute_layer": all_again(config),
        "tokens.batch_accumulation_per_replica":
            train["global_batch"] // (parallel["data"] * schedule["micro_batch"]),
        "model.dtype": "bfloat16" if train["precision"] == "bf16" else "float32",
        "model.make_vocab_size_divisible_by": 1,
        M + ("is_qwen2_config" if model["qkv_bias"] else "is_llama_config"): True,
        M + "num_key_value_heads": model["kv_heads"], M + "max_position_embeddings": model["seq_len"],
        M + "attention_bias": model["qkv_bias"], M + "tie_word_embeddings": bool(model["tie_embeddings"]),
        M + "rope_theta": float(model["rope_theta"]),
        "optimizer.zero_stage": 1 if parallel["data"] > 1 else 0, "optimizer.accumulate_grad_in_fp32": True,
        "optimizer.optimizer_factory.name": "adamW", "optimizer.optimizer_factory.torch_adam_is_fused": True,
        **{f"optimizer.learning_rate_scheduler.{name}": value for name, value in nanotron_rate(train).items()},
    }
    sections = {}
    for name, value in settings.items():
        *parents, last = name.split(".")
        functools.reduce(lambda table, part: table.setdefault(part, {}), parents, sections)[last] = value
    return sections


def nanotron_rate(train):
    """Returns how the learning rate rises and falls; a constant one falls to itself."""
    style, low = train["schedule"], train["lr"] * train["min_lr_ratio"]
    found = {"lr_warmup_style": "linear", "lr_decay_style": style, "min_decay_lr": low}
    if style == "constant":
        found |= {"lr_decay_style": "linear", "min_decay_lr": train["lr"]}
    elif style == "wsd":
        shape, steps = train["decay_shape"].replace("1-sqrt", "sqrt").replace("sqrt", "1-sqrt"), wsd_steps(train)
        found |= {"lr_decay_style": shape, "lr_decay_starting_step": train["steps"] - steps, "lr_decay_steps": steps}
    return found


def yaml_lines(table, indent):
    for key, value in table.items():
        if isinstance(value, dict):
            yield f"{indent}{key}:"
            yield from yaml_lines(value, indent + "  ")
        else:
            text = value if isinstance(value, str) else json.dumps(value)
            if isinstance(value, float) and "." not in text:
                text = text.replace("e", ".0e")  # 1e-05 is a text in YAML 1.1
            yield f"{indent}{key}: {text}"

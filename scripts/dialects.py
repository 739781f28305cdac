"""Converts our configuration from and to those of other trainers, for scripts/export.py and scripts/import.py.

Names and defaults are those of Megatron-LM core 0.20.0 (d98e8a64: megatron/training/arguments.py, config/,
core/transformer/transformer_config.py), torchtitan 0.2.2 (config/job_config.py; later versions use Python instead of
TOML) and nanotron 0.4 (2411b022: config/parallelism_config.py, models_config.py)."""

import re
import shlex

from run_files import Failure

# ---- Megatron-LM -----------------------------------------------------------------------------------------------------

# flag: our key, type, the program's default (None: required)
NUMBERS = {
    "--num-layers": ("model.layers", int, None),
    "--hidden-size": ("model.hidden", int, None),
    "--num-attention-heads": ("model.heads", int, None),
    "--seq-length": ("model.seq_len", int, None),
    "--vocab-size": ("model.vocab", int, None),
    "--norm-epsilon": ("model.norm_eps", float, 1e-5),
    "--tensor-model-parallel-size": ("parallel.tensor", int, 1),
    "--pipeline-model-parallel-size": ("parallel.pipeline", int, 1),
    "--micro-batch-size": ("schedule.micro_batch", int, None),
    "--global-batch-size": ("train.global_batch", int, None),
    "--train-iters": ("train.steps", int, 100),
    "--lr": ("train.lr", float, 3e-4),
    "--lr-warmup-iters": ("train.warmup_steps", int, 0),
    "--weight-decay": ("train.weight_decay", float, 0.01),
    "--adam-beta1": ("train.beta1", float, 0.9),
    "--adam-beta2": ("train.beta2", float, 0.999),
    "--adam-eps": ("train.eps", float, 1e-8),
    "--clip-grad": ("train.grad_clip", float, 1.0),
    "--init-method-std": ("train.init_std", float, 0.02),
    "--seed": ("train.seed", int, 1234),
}
OTHER_MODELS = ("--num-experts", "--multi-latent-attention", "--squared-relu", "--quick-geglu", "--window-size",
                "--hybrid-layer-pattern", "--mtp-num-layers")  # fmt: skip
ALONE = {"--swiglu", "--untie-embeddings-and-output-weights", "--disable-bias-linear", "--add-qkv-bias", "--bf16",
         "--qk-layernorm", "--group-query-attention", "--sequence-parallel", "--use-distributed-optimizer",
         "--overlap-grad-reduce", "--overlap-param-gather", "--tp-comm-overlap", "--use-rope-scaling",
         "--recompute-activations", "--use-flash-attn", "--no-masked-softmax-fusion"}  # fmt: skip
LR_SHAPES = {"cosine": "cosine", "linear": "linear", "constant": "constant", "wsd": "WSD"}
DECAYS = {"linear": "linear", "cosine": "cosine", "1-sqrt": "minus_sqrt"}


def put(config, key, value):
    section, _, name = key.partition(".")
    config.setdefault(section, {})[name] = value


def find(config, key):
    section, _, name = key.partition(".")
    return config[section][name]


def plain(value):
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def even(layers):
    return len(set(layers)) == 1


def chunks_of(config):
    layers = config["parallel"]["layers"]
    return len(layers) // config["parallel"]["pipeline"]


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
        words += ["--add-qkv-bias"] * model["qkv_bias"] + ["--qk-layernorm"] * model["qk_norm"]
        if model["rope_scaling"] == "llama3":
            words += ["--use-rope-scaling", "--rope-scaling-factor", model["rope_factor"]]
        elif model["rope_scaling"] == "linear" and float(model["rope_factor"]).is_integer():
            words += ["--rotary-seq-len-interpolation-factor", int(model["rope_factor"])]
    return words + ["--untie-embeddings-and-output-weights"] * (not model["tie_embeddings"])


def megatron_layout(config):
    parallel, schedule = config["parallel"], config["schedule"]
    words, chunks = [], chunks_of(config) if schedule["name"] in ("interleaved", "gis") else 1
    layers = parallel["layers"]
    words += ["--sequence-parallel"] * (parallel["sequence"] and parallel["tensor"] > 1)
    words += ["--tp-comm-overlap"] * (parallel["tensor"] > 1 and parallel["overlap"] != "off")
    if parallel["context"] > 1:
        words += ["--context-parallel-size", parallel["context"], "--cp-comm-type", "all_gather"]
    if parallel["data"] * parallel["context"] > 1:
        words += ["--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather"]
    if len(layers) == parallel["pipeline"] * chunks and not even(layers):
        words += ["--pipeline-model-parallel-layout", "E" + "|".join(f"t*{n}" if n else "" for n in layers) + "L"]
    elif chunks > 1:
        words += ["--num-virtual-stages-per-pipeline-rank", chunks]
    group = schedule["group"]
    if schedule["name"] == "gis" and isinstance(group, int) and group >= parallel["pipeline"]:
        words += ["--microbatch-group-size-per-virtual-pipeline-stage", group]
    again = schedule["recompute_layers"]
    if isinstance(again, int) and again > 0 and again % chunks == 0:
        words += ["--recompute-granularity", "full", "--recompute-method", "block", "--recompute-num-layers",
                  again // chunks]  # fmt: skip
    return words


def megatron_rest(config):
    attention, train = config["attention"], config["train"]
    words = {"flash": ["--attention-backend", "flash"], "none": ["--attention-backend", "unfused"],
             "recompute": ["--attention-backend", "unfused", "--recompute-activations"]}.get(str(attention["mode"]), [])  # fmt: skip
    words += ["--no-masked-softmax-fusion"] * (attention["softmax"] == "unfused")
    words += ["--bf16"] * (train["precision"] == "bf16") + ["--optimizer", "adam"]
    words += ["--lr-decay-style", LR_SHAPES[train["schedule"]], "--min-lr", train["lr"] * train["min_lr_ratio"]]
    if train["schedule"] == "wsd":
        steps = train["decay_steps"]
        steps = (train["steps"] - train["warmup_steps"]) // 10 if steps == "auto" else steps
        words += ["--lr-wsd-decay-iters", steps, "--lr-wsd-decay-style", DECAYS.get(train["decay_shape"], "linear")]
    return words


def to_megatron(config, job):
    """Returns the words of a command line, beginning with those of torchrun."""
    words = ["torchrun", "--nnodes", job["nodes"], "--nproc-per-node", job["tasks_per_node"], "pretrain_gpt.py"]
    for flag, (key, _, _) in NUMBERS.items():
        words += [flag, find(config, key)]
    words += megatron_model(config["model"]) + megatron_layout(config) + megatron_rest(config)
    lines = []
    for word in words:
        text = shlex.quote(plain(word))
        if text.startswith("--"):
            lines.append(text)
        else:
            lines[-1:] = [f"{lines[-1]} {text}" if lines else text]
    return " \\\n    ".join(lines) + "\n"


def parsed(words):
    """Returns {flag: value, or True} of words, or of the text of a script."""
    if len(words) == 1:
        words = shlex.split(words[0].replace("\\\n", " "), comments=True)
    flags, flag = {}, None
    for word in words:
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            flags[flag] = value if equals else True
            flag = None if equals or flag in ALONE else flag
        elif flag is not None:
            flags[flag], flag = word, None
    return flags


def number(flags, flag, kind, default):
    if flag not in flags:
        if default is None:
            raise Failure(f"{flag}: is missing; add it")
        return default
    try:
        return kind(flags.pop(flag))
    except (TypeError, ValueError):
        raise Failure(f"{flag}: needs {'an integer' if kind is int else 'a number'}") from None


def model_from_megatron(flags, config):
    model = config["model"]
    for flag in OTHER_MODELS:
        if flag in flags:
            raise Failure(f"{flag}: this model cannot be planned; dense LLaMA- and GPT-like models can")
    gated, norm = flags.pop("--swiglu", False), flags.pop("--normalization", "LayerNorm")
    place = flags.pop("--position-embedding-type", "learned_absolute")
    if gated and norm == "RMSNorm" and place == "rope":
        model["family"] = "llama"
    elif not gated and norm == "LayerNorm" and place == "learned_absolute":
        model["family"] = "gpt"
    else:
        raise Failure(
            f"--normalization {norm}, --position-embedding-type {place}, {'--swiglu' if gated else 'no --swiglu'}: is"
            " neither LLaMA's layer (RMSNorm, rope, --swiglu) nor GPT's (LayerNorm, learned_absolute)"
        )
    default = int(4 * model["hidden"] * 2 / 3 / 64) * 64 if gated else 4 * model["hidden"]
    model["ffn"] = number(flags, "--ffn-hidden-size", int, default)
    grouped = flags.pop("--group-query-attention", False)
    groups = number(flags, "--num-query-groups", int, 1)
    model["kv_heads"] = groups if grouped else model["heads"]
    model["head_dim"] = number(flags, "--kv-channels", int, model["hidden"] // max(model["heads"], 1))
    model["tie_embeddings"] = not flags.pop("--untie-embeddings-and-output-weights", False)
    if model["family"] == "gpt":
        return
    model["qkv_bias"] = flags.pop("--add-qkv-bias", False)
    model["qk_norm"] = flags.pop("--qk-layernorm", False)
    model["rope_theta"] = number(flags, "--rotary-base", float, 10000)
    factor = number(flags, "--rope-scaling-factor", float, 8.0)
    if flags.pop("--use-rope-scaling", False):
        model |= {"rope_scaling": "llama3", "rope_factor": factor, "rope_original": 8192}
    elif "--rotary-seq-len-interpolation-factor" in flags:
        factor = number(flags, "--rotary-seq-len-interpolation-factor", int, 1)
        model |= {"rope_scaling": "linear", "rope_factor": factor}


def layout_from_megatron(flags, config, gpus):
    parallel, schedule = config["parallel"], config["schedule"]
    parallel["context"] = number(flags, "--context-parallel-size", int, 1)
    if str(flags.pop("--expert-model-parallel-size", "1")) != "1":
        raise Failure("--expert-model-parallel-size: ranks of this kind cannot be planned; leave it out")
    flags.pop("--cp-comm-type", None)
    p, t, c = parallel["pipeline"], parallel["tensor"], parallel["context"]
    nodes, each = number(flags, "--nnodes", int, 1), number(flags, "--nproc-per-node", int, 0)
    world = gpus or nodes * each or p * t * c
    if p * t * c < 1 or world % (p * t * c) != 0:
        shared = f" times {c} context" if c > 1 else ""
        raise Failure(f"{world} GPUs: is no multiple of {p} pipeline times {t} tensor{shared} ranks; say --gpus N")
    parallel["data"] = world // (p * t * c)
    parallel["sequence"] = flags.pop("--sequence-parallel", False)
    parallel["overlap"] = "auto" if flags.pop("--tp-comm-overlap", False) else "off"
    chunks = number(flags, "--num-virtual-stages-per-pipeline-rank", int, 1)
    if "--num-layers-per-virtual-pipeline-stage" in flags:
        chunks = config["model"]["layers"] // p // number(flags, "--num-layers-per-virtual-pipeline-stage", int, 1)
    if text := flags.pop("--pipeline-model-parallel-layout", None):
        text = re.sub(r"\(([^)]+)\)\*(\d+)", lambda found: found[1] * int(found[2]), text.replace(",", ""))
        text = re.sub(r"(.)\*(\d+)", lambda found: found[1] * int(found[2]), text)
        parallel["layers"] = [part.count("t") for part in text.split("|")]
        chunks = len(parallel["layers"]) // p
    group = number(flags, "--microbatch-group-size-per-virtual-pipeline-stage", int, p)
    if chunks > 1:
        schedule |= {"name": "interleaved", "chunks": chunks}
        if group != p:
            schedule |= {"name": "gis", "group": group}
    again = number(flags, "--recompute-num-layers", int, 1)
    if flags.pop("--recompute-granularity", None) == "full":
        per_rank = -(-config["model"]["layers"] // p)
        block = flags.pop("--recompute-method", "uniform") == "block"
        schedule["recompute_layers"] = min(again * chunks, per_rank) if block else per_rank


def from_megatron(words, gpus=None):
    """Returns our configuration, and the flags that were not converted."""
    flags, config = parsed(words), {name: {} for name in ("model", "parallel", "schedule", "attention", "train")}
    for flag, (key, kind, default) in NUMBERS.items():
        put(config, key, number(flags, flag, kind, default))
    model_from_megatron(flags, config)
    layout_from_megatron(flags, config, gpus)
    backend = flags.pop("--attention-backend", "auto")
    flash = flags.pop("--use-flash-attn", False) or backend in ("auto", "flash", "fused")
    again = flags.pop("--recompute-activations", False)
    config["attention"]["mode"] = "flash" if flash else "recompute" if again else "none"
    config["attention"]["softmax"] = "unfused" if flags.pop("--no-masked-softmax-fusion", False) else "megatron"
    train = config["train"]
    train["precision"] = "bf16" if flags.pop("--bf16", False) else "fp32"
    style = flags.pop("--lr-decay-style", "linear")
    train["schedule"] = {word: ours for ours, word in LR_SHAPES.items()}.get(style, "cosine")
    low = number(flags, "--min-lr", float, 0.0)
    train["min_lr_ratio"] = float(f"{low / train['lr'] if train['lr'] else 0:.12g}")
    if train["schedule"] == "wsd":
        train["decay_steps"] = number(flags, "--lr-wsd-decay-iters", int, 1)
        shape = flags.pop("--lr-wsd-decay-style", "exponential")
        train["decay_shape"] = {word: ours for ours, word in DECAYS.items()}.get(shape, "linear")
    taken = {"--tokenizer-type", "--make-vocab-size-divisible-by", "--max-position-embeddings", "--optimizer",
             "--disable-bias-linear", "--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather"}  # fmt: skip
    left = [flag for flag in flags if flag not in taken and not (flag.endswith("-dropout") and float(flags[flag]) == 0)]
    return config, left


# ---- torchtitan ------------------------------------------------------------------------------------------------------

TITAN_SCHEDULES = {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "Interleaved1F1B", "zb-v": "ZBVZeroBubble",
                   "dualpipe-v": "DualPipeV"}  # fmt: skip
TITAN_NUMBERS = {
    ("training", "seq_len"): ("model.seq_len", 2048),
    ("training", "steps"): ("train.steps", 10000),
    ("training", "max_norm"): ("train.grad_clip", 1.0),
    ("optimizer", "lr"): ("train.lr", 8e-4),
    ("optimizer", "beta1"): ("train.beta1", 0.9),
    ("optimizer", "beta2"): ("train.beta2", 0.95),
    ("optimizer", "eps"): ("train.eps", 1e-8),
    ("optimizer", "weight_decay"): ("train.weight_decay", 0.1),
    ("lr_scheduler", "warmup_steps"): ("train.warmup_steps", 200),
    ("lr_scheduler", "min_lr_factor"): ("train.min_lr_ratio", 0.0),
    ("parallelism", "tensor_parallel_degree"): ("parallel.tensor", 1),
    ("parallelism", "pipeline_parallel_degree"): ("parallel.pipeline", 1),
}
LLAMA_31 = {"family": "llama", "vocab": 128256, "kv_heads": 8, "head_dim": 128, "norm_eps": 1e-5, "rope_theta": 500000,
            "rope_scaling": "llama3", "rope_factor": 8, "rope_original": 8192, "tie_embeddings": False}  # fmt: skip
FLAVORS = {
    ("llama3", name): LLAMA_31 | dict(zip(("hidden", "layers", "heads", "ffn"), sizes, strict=True))
    for name, sizes in {"8B": (4096, 32, 32, 14336), "70B": (8192, 80, 64, 28672), "405B": (16384, 126, 128, 53248)}.items()
}


def to_torchtitan(config, job):
    del job
    parallel, schedule, train, model = (config[name] for name in ("parallel", "schedule", "train", "model"))
    p, d, b = parallel["pipeline"], parallel["data"], schedule["micro_batch"]
    tables = {"model": {"name": "llama3"}, "training": {}, "optimizer": {"name": "AdamW"}, "lr_scheduler": {},
              "parallelism": {}, "activation_checkpoint": {}, "debug": {"seed": train["seed"]}}  # fmt: skip
    for (name, flavor), sizes in FLAVORS.items():
        if all(model[key] == value for key, value in sizes.items()):
            tables["model"] = {"name": name, "flavor": flavor}
    for (table, key), (ours, _) in TITAN_NUMBERS.items():
        tables[table][key] = find(config, ours)
    split = tables["parallelism"]
    tables["training"] |= {"global_batch_size": train["global_batch"], "local_batch_size": b}
    split |= {"data_parallel_shard_degree": d, "fsdp_reshard_after_forward": "never"}
    if parallel["context"] > 1:
        split["context_parallel_degree"] = parallel["context"]
    split["enable_async_tensor_parallel"] = parallel["tensor"] > 1 and parallel["overlap"] != "off"
    if p > 1:
        tables["training"]["local_batch_size"] = train["global_batch"] // d
        split["pipeline_parallel_schedule"] = TITAN_SCHEDULES.get(schedule["name"], "1F1B")
        split["pipeline_parallel_microbatch_size"] = b
        if schedule["name"] in TITAN_SCHEDULES:
            split["module_fqns_per_model_part"] = parts_of(parallel["layers"])
    if train["schedule"] != "constant":
        tables["lr_scheduler"]["decay_type"] = train["schedule"] if train["schedule"] in ("linear", "cosine") else "linear"
    all_layers = -(-model["layers"] // p)
    tables["activation_checkpoint"]["mode"] = "full" if schedule["recompute_layers"] == all_layers else "none"
    lines = []
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{key} = {toml(value)}" for key, value in table.items()), ""]
    return "\n".join(lines)


def parts_of(layers):
    parts, at = [], 0
    for count in layers:
        parts.append([f"layers.{i}" for i in range(at, at + count)])
        at += count
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "output"]
    return parts


def toml(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ", ".join(toml(each) for each in value) + "]"
    if isinstance(value, float):
        return repr(value) if "." in repr(value) or "e" in repr(value) else f"{value}.0"
    return f'"{value}"' if isinstance(value, str) else str(value)


def from_torchtitan(text, gpus=None, model=None):
    """Returns our configuration, and settings that were not converted. model: sizes that replace the flavor's."""
    import tomllib

    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Failure(f"is not TOML ({error}); torchtitan after 0.2.2 has no TOML files") from None
    get = lambda table, key, default: tables.get(table, {}).get(key, default)  # noqa: E731
    config = {name: {} for name in ("model", "parallel", "schedule", "attention", "train")}
    name, flavor = get("model", "name", "llama3"), get("model", "flavor", None)
    if model is None and (name, flavor) not in FLAVORS:
        known = ", ".join(f"{a} {b}" for a, b in FLAVORS)
        raise Failure(f"model {name} {flavor}: sizes are not known ({known} are); say --model FILE")
    config["model"] = dict(model if model is not None else FLAVORS[name, flavor])
    for (table, key), (ours, default) in TITAN_NUMBERS.items():
        put(config, ours, get(table, key, default))
    parallel, schedule, train = config["parallel"], config["schedule"], config["train"]
    p, t = parallel["pipeline"], parallel["tensor"]
    c = parallel["context"] = get("parallelism", "context_parallel_degree", 1)
    if get("parallelism", "expert_parallel_degree", 1) != 1:
        raise Failure("parallelism.expert_parallel_degree: ranks of this kind cannot be planned; leave it out")
    shard, copies = get("parallelism", "data_parallel_shard_degree", -1), get("parallelism", "data_parallel_replicate_degree", 1)
    if shard < 0 and not gpus:
        raise Failure("parallelism.data_parallel_shard_degree is -1: the number of GPUs is not known; say --gpus N")
    parallel["data"] = gpus // (p * t * c) if shard < 0 else shard * copies
    parallel["sequence"] = t > 1
    parallel["overlap"] = "auto" if get("parallelism", "enable_async_tensor_parallel", False) else "off"
    local, d = get("training", "local_batch_size", 8), parallel["data"]
    batch = get("training", "global_batch_size", -1)
    train["global_batch"] = local * d if batch < 0 else batch
    schedule["micro_batch"] = get("parallelism", "pipeline_parallel_microbatch_size", 1) if p > 1 else local
    if p > 1:
        word = get("parallelism", "pipeline_parallel_schedule", "1F1B")
        ours = {their.lower(): ours for ours, their in TITAN_SCHEDULES.items()}.get(word.lower())
        if ours is None:
            raise Failure(f"pipeline_parallel_schedule {word}: is not among {', '.join(TITAN_SCHEDULES.values())}")
        schedule["name"] = ours
        if parts := get("parallelism", "module_fqns_per_model_part", None):
            parallel["layers"] = [sum(each.startswith("layers.") for each in part) for part in parts]
            if len(parts) > p:
                schedule["chunks"] = len(parts) // p
        elif ours not in ("1f1b", "gpipe"):
            schedule["chunks"] = 2
    if get("activation_checkpoint", "mode", "selective") == "full":
        schedule["recompute_layers"] = -(-config["model"]["layers"] // p)
    train["schedule"] = get("lr_scheduler", "decay_type", "linear" if "lr_scheduler" in tables else "linear")
    train["seed"] = get("debug", "seed", 1337)
    train["precision"] = "bf16"
    config["attention"]["mode"] = "flash"
    return config, sorted(set(tables) - {"model", "training", "optimizer", "lr_scheduler", "parallelism", "debug"})


# ---- nanotron --------------------------------------------------------------------------------------------------------


def to_nanotron(config, job):
    """Returns the sections of nanotron's YAML that a layout needs."""
    del job
    model, parallel, schedule, train = (config[name] for name in ("model", "parallel", "schedule", "train"))
    per = train["global_batch"] // (parallel["data"] * schedule["micro_batch"])
    engine = "afab" if schedule["name"] == "gpipe" else "1f1b"
    mode = "REDUCE_SCATTER" if parallel["sequence"] else "ALL_REDUCE"
    again = schedule["recompute_layers"] == -(-model["layers"] // parallel["pipeline"])
    sections = {
        "parallelism": {"dp": parallel["data"], "pp": parallel["pipeline"], "tp": parallel["tensor"],
                        "pp_engine": engine, "tp_mode": mode, "recompute_layer": again,
                        "tp_linear_async_communication": parallel["sequence"] and parallel["overlap"] != "off"},
        "tokens": {"sequence_length": model["seq_len"], "micro_batch_size": schedule["micro_batch"],
                   "batch_accumulation_per_replica": per, "train_steps": train["steps"]},
        "model": {"dtype": "bfloat16" if train["precision"] == "bf16" else "float32",
                  "init_method": {"std": train["init_std"]}, "make_vocab_size_divisible_by": 1,
                  "model_config": {"is_qwen2_config" if model["qkv_bias"] else "is_llama_config": True,
                      "hidden_size": model["hidden"], "intermediate_size": model["ffn"],
                      "num_hidden_layers": model["layers"], "num_attention_heads": model["heads"],
                      "num_key_value_heads": model["kv_heads"], "vocab_size": model["vocab"],
                      "max_position_embeddings": model["seq_len"], "rms_norm_eps": model["norm_eps"],
                      "rope_theta": float(model["rope_theta"]), "attention_bias": model["qkv_bias"],
                      "tie_word_embeddings": bool(model["tie_embeddings"])}},
        "optimizer": {"zero_stage": 1 if parallel["data"] > 1 else 0, "weight_decay": train["weight_decay"],
                      "clip_grad": train["grad_clip"], "accumulate_grad_in_fp32": True,
                      "optimizer_factory": {"name": "adamW", "adam_beta1": train["beta1"], "adam_beta2": train["beta2"],
                                            "adam_eps": train["eps"], "torch_adam_is_fused": True},
                      "learning_rate_scheduler": {"learning_rate": train["lr"], "lr_warmup_steps": train["warmup_steps"],
                          "lr_warmup_style": "linear", "lr_decay_style": train["schedule"],
                          "min_decay_lr": train["lr"] * train["min_lr_ratio"]}},
    }  # fmt: skip
    return "\n".join(yaml_lines(sections, "")) + "\n"


def yaml_lines(table, indent):
    for key, value in table.items():
        if isinstance(value, dict):
            yield f"{indent}{key}:"
            yield from yaml_lines(value, indent + "  ")
        else:
            yield f"{indent}{key}: {toml(value) if not isinstance(value, str) else value}"

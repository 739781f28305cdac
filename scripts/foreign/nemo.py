"""NeMo's and Megatron-Bridge's YAML as our configuration. Their keys are Megatron-LM's under other names or sections,
so each is renamed to its flag; megatron.py names the unknown ones."""

import re

from run_files import Failure

from .documents import overridden, read_yaml, settings_of
from . import megatron
from .settings import AS_PLANNED, Settings, Whole, brief, is_off, quiet_of, rows_of
from .shell import unknown, unknown_in

# Last part of a key -> flag. A key that is not in any table becomes the flag of the same name.
NAMES = {
    "encoder_seq_length": "seq-length", "sequence_length": "seq-length", "layernorm_epsilon": "norm-epsilon",
    "rotary_percentage": "rotary-percent", "seq_len_interpolation_factor": "rotary-seq-len-interpolation-factor",
    "activations_checkpoint_granularity": "recompute-granularity", "activations_checkpoint_method": "recompute-method",
    "activations_checkpoint_num_layers": "recompute-num-layers", "ub_tp_comm_overlap": "tp-comm-overlap",
    "num_moe_experts": "num-experts", "gradient_clip_val": "clip-grad", "max_steps": "train-iters",
    "train_steps": "train-iters", "override_vocab_size": "padded-vocab-size", "use_flash_attention": "use-flash-attn",
    "num_layers_in_first_pipeline_stage": "decoder-first-pipeline-num-layers",
    "num_layers_in_last_pipeline_stage": "decoder-last-pipeline-num-layers", "min_lr": "min-lr",
    "warmup_steps": "lr-warmup-iters", "warmup_ratio": "lr-warmup-fraction", "attention_backend": "attention-backend",
    "overlap_grad_sync": "overlap-grad-reduce", "overlap_param_sync": "overlap-param-gather", "beta1": "adam-beta1",
    "beta2": "adam-beta2", "scale_positional_embedding": "use-rope-scaling", "rope_scaling": "use-rope-scaling",
    "rope_scaling_factor": "rope-scaling-factor", "moe_num_experts": "num-experts", "qkv_bias": "add-qkv-bias",
    "window_size": "window-size", "fp8_params": "fp8-param-gather", "attention_type": "attention-head-type",
    "parallel_attention": "use-parallel-residual",
    "microbatch_group_size_per_vp_stage": "microbatch-group-size-per-virtual-pipeline-stage",
}
QUIET = quiet_of(rows_of("nemo"))
# Exceptions to QUIET, which are converted.
READ = re.compile(r"model\.data\.(reset_|eod_mask)|dataset\.(seq|reset_|eod_mask|packed)")
# Flag -> its name in the YAML, for messages.
SPELLINGS = {
    "disable-bias-linear": "add_bias_linear false", "swiglu": "gated_linear_unit", "norm-epsilon": "layernorm_epsilon",
    "untie-embeddings-and-output-weights": "share_embeddings_and_output_weights false",
    "group-query-attention": "num_query_groups",
}

# Boolean key -> its flag; with "not", the flag that means the opposite.
FLAGS = {"bias": "not disable-bias-linear", "add_bias_linear": "not disable-bias-linear",
         "share_embeddings_and_output_weights": "not untie-embeddings-and-output-weights",
         "muon_split_qkv": "not muon-no-split-qkv", "fsdp": "use-torch-fsdp2", "fp8_wgrad": "not no-fp8-wgrad",
         "megatron_amp_O2": "not without-amp-O2", "use_scaled_init_method": "not no-scaled-init-method"}
IDLE = ("fp8_hybrid", "fp8_e4m3", "model_parallel_size")  # ignored: other keys set the same
NODES, GPUS = ("num_nodes", "nnodes"), ("devices", "gpus_per_node", "num_gpus_per_node", "num_gpus")
REFUSED = {
    "model.encoder.": "encoder and decoder cannot be planned together; use a decoder alone",
    "model.decoder.": "encoder and decoder cannot be planned together; use a decoder alone",
    "model.teacher.": "distillation cannot be planned; leave the teacher out to plan the student alone",
    "model.mm_cfg.": "a model that sees images cannot be planned; use a language model",
    "model.vision": "a model that sees images cannot be planned; use a language model",
}


def resolved(value, name, tables, deep=0):
    """Returns a value with OmegaConf's ${...} replaced; one that cannot be resolved becomes a mark."""
    if not isinstance(value, str) or "${" not in value or deep > 8 or len(value) > 4096:
        return value
    inner = re.search(r"\$\{([^${}]*)\}", value)
    head, colon, rest = inner[1].partition(":") if inner else ("", "", "")
    if colon:
        numbers = re.fullmatch(r"\s*(-?\d{1,15})\s*,\s*(-?\d{1,15})\s*", rest)
        a, b = map(int, numbers.groups()) if numbers else (0, 0)
        found = {"multiply": a * b, "sum": a + b, "add": a + b, "divide_ceil": b and -(-a // b),
                 "divide_floor": b and a // b}.get(head) if numbers and (b or not head.startswith("divide")) else None
    else:
        parent = name.split(".")[: -(len(head) - len(head.lstrip(".")))] if head.startswith(".") else []
        found = tables
        for part in [*parent, *head.lstrip(".").split(".")]:
            found = found.get(part) if isinstance(found, dict) else None
        found = resolved(found, ".".join([*parent, head.lstrip(".")]), tables, deep + 1)
        if isinstance(found, str) and unknown_in(found):
            return found
    if inner is None or found is None or isinstance(found, (dict, list)):
        return unknown(value)
    text = value.replace(inner[0], str(found))
    return int(text) if re.fullmatch(r"-?\d{1,15}", text) else resolved(text, name, tables, deep + 1)


def read(text, overrides=()):
    tables = overridden(read_yaml(text), overrides)
    if isinstance(flags := tables.get("MODEL_ARGS"), dict):  # Megatron-LM's own tests: {flag: value}
        s = Settings({str(key).lstrip("-").replace("_", "-"): (str(key), value) for key, value in flags.items()})
        s.quiet_ones += [str(key) for key in tables if key != "MODEL_ARGS"]
        return s
    s = settings_of(tables)
    for name in s.values:
        s.values[name] = (name, resolved(s.values[name][1], name, tables))
    return s


def convert(source, gpus=None, model=None):
    """Converts the Settings to our configuration."""
    if any(spelling.startswith("--") for spelling, _ in source.values.values()):
        return megatron.convert(source, gpus, model=model)
    for prefix, sentence in REFUSED.items():
        if any(name.startswith(prefix) for name in source.values):
            raise Failure(f"{prefix.rstrip('.')}: {sentence}")
    flags = Settings(spell=lambda name: SPELLINGS.get(name, name.replace("-", "_")))
    flags.lines, flags.quiet_ones = source.lines, source.quiet_ones
    for name in list(source.values):
        if re.match(r"(model\.)?peft(\.|$)", name):
            if not any("peft" in text for _, text in source.lines):
                source.effect(name, "training", "all parameters are trained here")
            source.quiet(name)
        elif re.match(r"defaults(\[|$)", name) and source.values[name][1] != ["_self_"]:
            source.effect(name, "unknown", "other files are not read; their settings are not planned")
    front = launcher(source)
    flags.defaults = {"lr-decay-style": "constant", "group-query-attention": True, "muon-momentum": 0.95}
    flags.defaults |= absent({name.rpartition(".")[0] for name in source.values})
    special(source, flags)
    renamed(source, flags)
    source.values = {}
    return megatron.convert(flags, gpus, front, None, model)


def absent(sections):
    """Returns defaults of flags that differ from Megatron-LM's: of Megatron-Bridge, of NeMo 1, which clips only by
    trainer.gradient_clip_val and has a constant rate without `sched`, or of NeMo 2's CosineAnnealingScheduler."""
    if sections & {"train", "optimizer", "scheduler"}:
        return {"lr-decay-style": "linear"}
    if "model.optim" in sections:
        return {"clip-grad": 0.0} | ({"lr-decay-style": "cosine"} if "model.optim.sched" in sections else {})
    cosine = {"lr-decay-style": "cosine", "lr-warmup-iters": 750, "min-lr": 6e-5}
    return cosine if "optim.lr_scheduler" in sections else {}


def launcher(source):
    """Returns the file's nodes and GPUs per node as options of torchrun."""
    found = {}
    for name, (_, value) in source.values.items():
        last = name.rpartition(".")[2]
        if last in NODES:
            found["--nnodes"] = str(value)
        elif last in GPUS:
            found["--nproc-per-node"] = str(value)
    words = [word for pair in {"--nnodes": unknown("trainer.num_nodes"), **found}.items() for word in pair]
    return ["torchrun", *words] if "--nproc-per-node" in found else []


def special(source, s):
    """Adds the flags of keys for which renaming is not enough: the flag or its value depends on the key's value."""

    def put(flag, value, shown=None):
        if flag in s.values:
            s.quiet(flag)
        s.values[flag] = (name if shown is None else Whole(f"{name} {brief(shown)}"), value)

    for name, (_, value) in list(source.values.items()):
        last = name.rpartition(".")[2]
        if last == "activation" and isinstance(value, str):
            word = value.lower().replace("fast-", "").replace("_", "-")
            if word not in ("swiglu", "geglu", "squared-relu", "gelu"):
                raise Failure(f"{name} {value}: this activation cannot be planned; use swiglu or gelu")
            put(word, True, value) if word != "gelu" else s.quiet_ones.append(f"{name} {value}")
        elif last in ("recompute_modules", "offload_modules") and isinstance(value, list):
            put(last.replace("_", "-"), " ".join(map(str, value)))
        elif last == "grad_sync_dtype" or (last == "grad_reduce_in_fp32" and isinstance(value, bool)):
            whole = value is None or value is True or str(value) in AS_PLANNED
            s.quiet_ones.append(f"{name} {value}") if whole else put("grad-reduce-in-bf16", True, value)
        elif last == "gated_linear_unit":
            put("swiglu", bool(value))
        elif last == "bert_binary_head":
            put("encoder", True, value)
        elif last in FLAGS and isinstance(value, bool):
            put(FLAGS[last].removeprefix("not "), value != FLAGS[last].startswith("not "), value)
        elif last == "betas" and isinstance(value, list) and len(value) == 2:
            put("adam-beta1", value[0])
            put("adam-beta2", value[1])
        elif re.match(r"((trainer|mixed_precision|precision)\b.*\.)?(precision|mixed_precision|plugins)$", name):
            precision(str(value).lower(), put)
        elif last == "fp8" and isinstance(value, bool):
            put("fp8-format", "hybrid" if value else None)
        elif name.endswith("optim.name"):
            put("optimizer", value)
            if value in ("mcore_distributed_optim", "distributed_fused_adam"):
                put("use-distributed-optimizer", True)
        elif name.endswith(("sched.name", "lr_scheduler._target_")):
            style = str(value).rpartition(".")[2].removesuffix("Scheduler")
            put("lr-decay-style", "cosine" if style == "CosineAnnealing" else style, value)
        elif last == "constant_steps" and isinstance(value, int):
            if value > 0:
                s.say("training", f"{name} {value}: the learning rate falls until the last step here")
            else:
                s.quiet_ones.append(f"{name} {value}")
        elif re.search(r"(optim\.sched|scheduler)\.max_steps$", name):
            put("lr-decay-iters", value)
        elif re.search(r"tokenizer\.((tokenizer_)?(type|model)|vocab_(file|size))$", name):
            put(last.replace("_", "-") if "_" in last else f"tokenizer-{last}", value)
        elif last in (*NODES, *GPUS, *IDLE) or (last == "accumulate_grad_batches" and value == 1):
            s.quiet_ones.append(f"{name} {brief(value)}")
        else:
            continue
        del source.values[name]


def precision(word, put):
    if "fp8" in word:
        put("fp8-format", "hybrid")
        recipes = {"mx": "mxfp8", "delayed": "delayed", "current": "tensorwise", "block": "blockwise",
                   "subchannel": "blockwise"}
        put("fp8-recipe", next((ours for theirs, ours in recipes.items() if theirs in word), "delayed"))
    if word.startswith("bf16"):
        put("bf16", True)
    elif word in ("16", "fp16", "16-mixed") or word.startswith("fp16"):
        put("fp16", True)


def renamed(source, s):
    """Adds the flags of all other keys, each with the key's value."""
    for name, (spelling, value) in source.values.items():
        last = name.rpartition(".")[2]
        flag = NAMES.get(last, last.replace("_", "-"))
        if QUIET(name) and not READ.match(name):
            s.quiet_ones.append(f"{name} {brief(value)}")
        elif flag in s.values and is_off(value):
            s.quiet_ones.append(f"{name} {brief(value)}")
        elif flag in s and s.values[flag][1] != value:
            s.say("unknown", f"{name} {brief(value)}: {s.said(flag)} is planned")
        else:
            s.values[flag] = (spelling, value)

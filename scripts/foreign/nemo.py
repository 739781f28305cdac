"""NeMo's and Megatron-Bridge's YAML as our configuration. Their keys are Megatron-LM's under other names or sections, so
each is renamed to its flag; what megatron.py does not know is named there."""

import re

from run_files import Failure

from .documents import read_yaml, settings_of
from . import megatron
from .settings import NO, Settings
from .shell import unknown

# The last parts of a key: its flag.
NAMES = {
    "encoder_seq_length": "seq-length", "sequence_length": "seq-length", "layernorm_epsilon": "norm-epsilon",
    "rotary_percentage": "rotary-percent", "seq_len_interpolation_factor": "rotary-seq-len-interpolation-factor",
    "activations_checkpoint_granularity": "recompute-granularity", "activations_checkpoint_method": "recompute-method",
    "activations_checkpoint_num_layers": "recompute-num-layers", "ub_tp_comm_overlap": "tp-comm-overlap",
    "num_moe_experts": "num-experts", "gradient_clip_val": "clip-grad", "max_steps": "train-iters", "train_steps": "train-iters",
    "override_vocab_size": "padded-vocab-size", "use_flash_attention": "use-flash-attn", "num_layers_in_first_pipeline_stage":
    "decoder-first-pipeline-num-layers", "num_layers_in_last_pipeline_stage": "decoder-last-pipeline-num-layers",
    "min_lr": "min-lr", "warmup_steps": "lr-warmup-iters", "warmup_ratio": "lr-warmup-fraction", "attention_backend": "attention-backend",
    "overlap_grad_sync": "overlap-grad-reduce", "overlap_param_sync": "overlap-param-gather", "beta1": "adam-beta1", "beta2": "adam-beta2",
    "scale_positional_embedding": "use-rope-scaling", "rope_scaling": "use-rope-scaling", "rope_scaling_factor": "rope-scaling-factor",
    "tp_comm_overlap": "tp-comm-overlap", "moe_num_experts": "num-experts",
}  # fmt: skip
SECTIONS = re.compile(
    r"(exp_manager|run|cluster|hydra|defaults|checkpoint|logger|log|profiling|resume|tokenizer|rerun_state_machine|straggler|ft|inference|nvrx_straggler|peft|"
    r"validation|comm_overlap|env_vars|stages|launcher_scripts_path|base_results_dir|inprocess_restart)(\.|$)|model\.(data|nsys_profile|tokenizer|optim\.(sched\.(monitor|"
    r"reduce|last_epoch|name)|bucket|contig|name|grad_sync)|peft|mm_cfg|resume|restore|hparams)(\.|$)|trainer\.(logger|accel|enable|val_check|limit|log_every|"
    r"max_epochs|max_time|replace|use_dist|benchmark|callbacks|strategy\._|check_val|num_sanity)|dataset\.(?!seq)|.*_target_$|name$|restore_from_path$"
    r"|model\.(mcore_gpt|megatron_amp_O2|megatron_legacy|native_amp|sync_batch_comm|grad_div_ar|gradient_as_bucket|grad_allreduce|async_grad|headscale|normalize_att|"
    r"transformer_engine|use_cpu|pre_process|post_process|gc_interval|onnx|openai_gelu|persist|bias_act|bias_drop|masked|share_token|get_attention_mask|use_emha|"
    r"use_scaled|fp16_lm|reduce_amax|sharp|save_nemo|overlap_p2p|batch_p2p|hysteresis|apply_query|precision|fp8_(amax|interval|margin|wgrad)|num_micro_batches_with|"
    r"fsdp_sharded|attn_mask_type|nccl|tp_only|apply_rope_fusion|create_attention|dist_ckpt|add_bias_dropout|cross_entropy|async_tensor|model_type)"
)

REFUSED = {
    "model.encoder.": "encoder and decoder cannot be planned together; use a decoder alone",
    "model.decoder.": "encoder and decoder cannot be planned together; use a decoder alone",
    "model.mm_cfg.": "a model that sees images cannot be planned; use a language model",
    "model.vision": "a model that sees images cannot be planned; use a language model",
}


def resolved(value, name, tables, deep=0):
    """Returns a value without OmegaConf's ${...}; what cannot be resolved becomes a mark."""
    if not isinstance(value, str) or "${" not in value or deep > 8 or len(value) > 4096:
        return value
    inner = re.search(r"\$\{([^${}]*)\}", value)
    if inner is None:
        return unknown(value)
    head, colon, rest = inner[1].partition(":")
    if colon and head in ("multiply", "divide_ceil", "divide_floor", "sum", "add"):
        words = [word.strip() for word in rest.split(",")]
        if (
            len(words) != 2
            or not all(re.fullmatch(r"-?\d{1,15}", word) for word in words)
            or (head[0] == "d" and int(words[1]) == 0)
        ):
            return unknown(value)
        a, b = (int(word) for word in words)
        found = {"multiply": a * b, "divide_ceil": -(-a // b) if b else 0, "divide_floor": a // b if b else 0}.get(
            head, a + b
        )
    elif colon:
        return unknown(value)
    else:
        path = inner[1]
        if path.startswith("."):
            dots = len(path) - len(path.lstrip("."))
            parent = name.split(".")[: len(name.split(".")) - dots]
            path = ".".join([*parent, path.lstrip(".")])
        found = tables
        for part in path.split("."):
            found = found.get(part, unknown(value)) if isinstance(found, dict) else unknown(value)
        if isinstance(found, (dict, list)):
            return unknown(value)
        found = resolved(found, path, tables, deep + 1)
        if isinstance(found, str) and unknown("")[0] in found:
            return found
    text = value.replace(inner[0], str(found))
    if re.fullmatch(r"-?\d{1,15}", text):
        return int(text)
    return resolved(text, name, tables, deep + 1)


def read(text):
    tables = read_yaml(text)
    if isinstance(tables.get("MODEL_ARGS"), dict):  # Megatron-LM's own tests: {flag: value}
        flags = {key: value for key, value in tables["MODEL_ARGS"].items() if isinstance(key, str)}
        return Settings({key.lstrip("-").replace("_", "-"): (key, value) for key, value in flags.items()})
    s = settings_of(tables)
    for name in s.values:
        s.values[name] = (name, resolved(s.values[name][1], name, tables))
    return s


def convert(source, gpus=None, model=None):
    """Returns our configuration of the Settings."""
    if any(spelling.startswith("--") for spelling, _ in source.values.values()):
        return megatron.convert(source, gpus, model=model)
    for prefix, sentence in REFUSED.items():
        if any(name.startswith(prefix) for name in source.values):
            raise Failure(f"{prefix.rstrip('.')}: {sentence}")
    s, source.lines = source, []
    flags = Settings(spell=lambda name: name.replace("-", "_"))
    flags.lines, flags.quiet_ones = s.lines, s.quiet_ones
    s.effect("model.peft.peft_scheme", "training", "all parameters are trained here")
    front = launcher(source)
    special(source, flags)
    renamed(source, flags)
    source.values = {}
    defaults = {"lr-decay-style": "cosine", "group-query-attention": True}
    return megatron.convert(flags, gpus, front, None, model, defaults)


def launcher(source):
    """Returns torchrun's words for the nodes and GPUs of a node that the file says."""
    found = {}
    for name, (_, value) in source.values.items():
        last = name.rpartition(".")[2]
        if last in ("num_nodes", "nnodes"):
            found["--nnodes"] = str(value)
        elif last in ("devices", "gpus_per_node", "num_gpus_per_node", "num_gpus"):
            found["--nproc-per-node"] = str(value)
    return (
        ["torchrun", *(word for pair in {"--nnodes": "1", **found}.items() for word in pair)]
        if "--nproc-per-node" in found
        else []
    )


def special(source, s):
    """Adds the flags of keys that mean something else than their name says."""

    def put(flag, name, value):
        if flag in s.values:
            s.quiet(flag)
        s.values[flag] = (name, value)

    for name in list(source.values):
        spelling, value = source.values[name]
        last = name.rpartition(".")[2]
        done = True
        if last == "activation" and isinstance(value, str):
            word = value.lower().replace("fast-", "").replace("_", "-")
            flag = {"swiglu": "swiglu", "geglu": "geglu", "squared-relu": "squared-relu", "gelu": None}.get(word, "")
            if flag == "":
                raise Failure(f"{name} {value}: this activation cannot be planned; use swiglu or gelu")
            if flag:
                put(flag, name, True)
        elif last == "gated_linear_unit":
            put("swiglu", name, bool(value))
        elif last in ("bias", "add_bias_linear") and isinstance(value, bool):
            put("disable-bias-linear", name, not value)
        elif last == "share_embeddings_and_output_weights" and isinstance(value, bool):
            put("untie-embeddings-and-output-weights", name, not value)
        elif last == "betas" and isinstance(value, list) and len(value) == 2:
            put("adam-beta1", name, value[0])
            put("adam-beta2", name, value[1])
        elif last in ("precision", "mixed_precision", "plugins") and (
            name.startswith(("trainer", "mixed_precision", "precision"))
        ):
            precision(name, value, put)
        elif last == "fp8" and isinstance(value, bool):
            if value:
                put("fp8-format", name, "hybrid")
        elif name.endswith("optim.name"):
            put("optimizer", name, value)
            if value in ("mcore_distributed_optim", "distributed_fused_adam"):
                put("use-distributed-optimizer", name, True)
        elif name.endswith("sched.name"):
            put("lr-decay-style", name, "cosine" if value == "CosineAnnealing" else str(value))
        elif last == "constant_steps" and isinstance(value, int) and value > 0:
            s.say("training", f"{name} {value}: the learning rate falls until the last step here")
        elif name.endswith("optim.sched.max_steps"):
            put("lr-decay-iters", name, value)
        elif name.endswith(("tokenizer.type", "tokenizer.model", "tokenizer.vocab_file")):
            put("tokenizer-" + last if last != "vocab_file" else "vocab-file", name, value)
        elif last in ("fsdp",) and value is True:
            put("use-torch-fsdp2", name, True)
        elif last == "accumulate_grad_batches" and value == 1:
            s.quiet_ones.append(f"{name} 1")
        elif last == "model_parallel_size":
            s.quiet_ones.append(f"{name} {value}")
        elif last in ("devices", "num_nodes", "gpus_per_node", "num_gpus_per_node", "num_gpus", "nnodes"):
            s.quiet_ones.append(f"{name} {value}")
        else:
            done = False
        if done:
            source.values.pop(name, None)


def precision(name, value, put):
    word = str(value).lower()
    if "fp8" in word:
        put("fp8-format", name, "hybrid")
        recipe = {
            "mx": "mxfp8",
            "delayed": "delayed",
            "current": "tensorwise",
            "block": "blockwise",
            "subchannel": "blockwise",
        }
        put("fp8-recipe", name, next((ours for theirs, ours in recipe.items() if theirs in word), "delayed"))
    if word.startswith("bf16"):
        put("bf16", name, True)
    elif word in ("16", "fp16", "16-mixed") or word.startswith("fp16"):
        put("fp16", name, True)


def renamed(source, s):
    """Moves every other key to its flag."""
    for name, (spelling, value) in source.values.items():
        last = name.rpartition(".")[2]
        flag = NAMES.get(last, last.replace("_", "-"))
        if SECTIONS.match(name) and not re.match(r"(train|dist|rng)\b", name):
            s.values["\0" + name] = (spelling, value)
            continue
        if value in NO and flag in s.values:
            s.quiet_ones.append(f"{name} {value}")
        elif flag in s.values and s.values[flag][1] not in NO and s.values[flag][1] != value:
            s.say("unknown", f"{name} {value}: {s.said(flag)} is planned")
        else:
            s.values[flag] = (spelling, value)
    for name in [each for each in s.values if each.startswith("\0")]:
        s.quiet(name)

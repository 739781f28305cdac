"""torchtitan's TOML as our configuration: job_config.py of 0.2.2, which later versions replaced by Python, and the names
of 2024, when degrees and the batch stood in [training] and [experimental]."""

from run_files import Failure

from .settings import NO, Settings

SCHEDULES = {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "Interleaved1F1B", "zb-v": "ZBVZeroBubble",
             "dualpipe-v": "DualPipeV"}  # fmt: skip
# our key, the names that torchtitan has given it, its default
NUMBERS = (
    ("model.seq_len", int, 2048, "training.seq_len"),
    ("train.steps", int, 10000, "training.steps"),
    ("train.grad_clip", float, 1.0, "training.max_norm"),
    ("train.lr", float, 8e-4, "optimizer.lr"),
    ("train.beta1", float, 0.9, "optimizer.beta1"),
    ("train.beta2", float, 0.95, "optimizer.beta2"),
    ("train.eps", float, 1e-8, "optimizer.eps"),
    ("train.weight_decay", float, 0.1, "optimizer.weight_decay"),
    ("train.warmup_steps", int, 200, "lr_scheduler.warmup_steps training.warmup_steps"),
    ("train.min_lr_ratio", float, 0.0, "lr_scheduler.min_lr_factor lr_scheduler.lr_min"),
    ("train.seed", int, 1337, "debug.seed training.seed"),
    ("parallel.tensor", int, 1, "parallelism.tensor_parallel_degree training.tensor_parallel_degree training.sequence_parallel_degree"),
    ("parallel.pipeline", int, 1, "parallelism.pipeline_parallel_degree experimental.pipeline_parallel_degree training.pipeline_parallel_degree"),
    ("parallel.context", int, 1, "parallelism.context_parallel_degree experimental.context_parallel_degree"),
)  # fmt: skip
LLAMA_31 = {"family": "llama", "vocab": 128256, "kv_heads": 8, "head_dim": 128, "norm_eps": 1e-5, "rope_theta": 500000,
            "rope_scaling": "llama3", "rope_factor": 8, "rope_original": 8192, "tie_embeddings": False}  # fmt: skip
LLAMA_2 = {
    "family": "llama",
    "vocab": 32000,
    "head_dim": 128,
    "norm_eps": 1e-5,
    "rope_theta": 10000,
    "tie_embeddings": False,
}
SIZES = ("hidden", "layers", "heads", "ffn")
FLAVORS = {
    ("llama3", name): LLAMA_31 | dict(zip(SIZES, sizes, strict=True))
    for name, sizes in {
        "8B": (4096, 32, 32, 14336),
        "70B": (8192, 80, 64, 28672),
        "405B": (16384, 126, 128, 53248),
    }.items()
} | {
    ("llama2", name): LLAMA_2 | dict(zip((*SIZES, "kv_heads"), sizes, strict=True))
    for name, sizes in {
        "7B": (4096, 32, 32, 11008, 32),
        "13B": (5120, 40, 40, 13824, 40),
        "70B": (8192, 80, 64, 28672, 8),
    }.items()
}
QUIET_TABLES = (
    "job",
    "metrics",
    "profiling",
    "checkpoint",
    "comm",
    "validation",
    "compile",
    "infra",
    "logging",
    "eval",
    "inference",
)
QUIET = {"training.compile", "training.gc_freq", "training.gc_debug", "training.deterministic", "training.checkpoint_folder",
         "training.checkpoint_interval", "training.checkpoint_interval_type", "training.dataset", "training.dataset_path",
         "training.dataset_name", "training.dataset_streaming", "training.dump_folder", "training.data_parallel_type",
         "optimizer.implementation", "optimizer.fused", "optimizer.foreach", "model.tokenizer_path", "model.hf_assets_path",
         "model.tokenizer_type", "model.print_after_conversion", "debug.deterministic", "debug.print_config", "debug.save_config_file",
         "activation_checkpoint.early_stop", "activation_checkpoint.preserve_rng_state", "activation_checkpoint.visualize_memory_budget_pareto",
         "activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns", "activation_checkpoint.determinism_check",
         "parallelism.prefetch_before_data", "parallelism.prefetch_distance", "parallelism.pipeline_parallel_schedule_csv",
         "parallelism.fsdp_reshard_after_forward", "training.fsdp_reshard_after_forward", "parallelism.enable_compiled_autograd",
         "training.enable_compiled_autograd", "experimental.enable_compiled_autograd", "parallelism.enable_loss_parallel",
         "training.enable_loss_parallel", "experimental.torch_spmd", "float8.filter_fqns", "float8.force_recompute_fp8_weight_in_bwd",
         "float8.emulate", "float8.enable_amax_init", "float8.scaling_type_input", "float8.scaling_type_weight", "float8.scaling_type_grad_output"}  # fmt: skip
EFFECTS = {
    "parallelism.data_parallel_replicate_degree": None,  # read
    "training.dtype": ("memory", "parameters and moments are planned in fp32"),
    "training.mixed_precision_reduce": ("precision", "gradients are summed in fp32 here: twice the traffic"),
    "training.enable_cpu_offload": ("memory", "nothing is kept in the host's memory here"),
    "optimizer.early_step_in_backward": ("memory", "gradients of all layers are kept until the update"),
    "optimizer.name": None,
    "parallelism.disable_loss_parallel": ("memory", "logits stay cut over tensor ranks here"),
    "parallelism.context_parallel_rotate_method": ("speed", "context ranks gather keys and values here"),
    "experimental.context_parallel_rotate_method": ("speed", "context ranks gather keys and values here"),
    "float8.enable_fsdp_float8_all_gather": ("precision", "parameters are gathered in bf16 here"),
    "float8.precompute_float8_dynamic_scale_for_fsdp": ("precision", "parameters are gathered in bf16 here"),
    "activation_checkpoint.memory_budget": ("memory", "is not planned"),
    "fault_tolerance.enable": ("training", "replicas that train apart are not planned"),
    "model.use_flex_attn": ("speed", "flash attention is planned"),
    "model.attn_mask_type": ("model", "attention sees the whole sequence here; data.mask_documents is nearest"),
}
EXPERTS = (
    "parallelism.expert_parallel_degree",
    "parallelism.expert_tensor_parallel_degree",
    "experimental.expert_parallel_degree",
)


def read(text):
    import tomllib

    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Failure(f"is not TOML ({error}); torchtitan after 0.2.2 has no TOML files") from None
    except RecursionError:
        raise Failure("is nested too deeply to be torchtitan's TOML") from None
    settings = Settings(spell=str)
    for table, values in tables.items():
        if not isinstance(values, dict):
            settings.values[table] = (table, values)
            continue
        for key, value in values.items():
            settings.values[f"{table}.{key}"] = (f"{table}.{key}", value)
    return settings


def number(s, names, kind, default, low=0):
    """Returns the number that has one of the names; the first one wins, and the others are named."""
    given = [name for name in names if name in s]
    for name in given[1:]:
        if s.values[name][1] != s.values[given[0]][1]:
            s.effect(name, "unknown", f"{given[0]} is planned")
        s.values.pop(name, None)
    return s.number(given[0] if given else names[0], kind, default, low=low)


def convert(s, gpus=None, model=None):
    """Returns our configuration of the Settings. model: sizes that replace the flavor's."""
    config = {name: {} for name in ("model", "parallel", "schedule", "attention", "train")}
    name, flavor = s.text("model.name", "llama3"), s.text("model.flavor")
    key = ({"llama": "llama2"}.get(name, name), flavor)
    if model is None and key not in FLAVORS:
        known = ", ".join(f"{a} {b}" for a, b in FLAVORS)
        raise Failure(f"model {name} {flavor}: sizes are not known ({known} are); say --model FILE")
    config["model"] = dict(model if model is not None else FLAVORS[key])
    if "rmsnorm" in str(s.values.get("model.norm_type", ("", "rmsnorm"))[1]):
        s.quiet("model.norm_type")
    else:
        s.effect("model.norm_type", "model", "RMSNorm is planned")
    for ours, kind, default, names in NUMBERS:
        section, _, field = ours.partition(".")
        config[section][field] = number(
            s, names.split(), kind, default, low=1 if ours.startswith(("parallel", "model", "train.steps")) else 0
        )
    split(s, config, gpus)
    batch(s, config)
    pipeline(s, config)
    precision(s, config)
    recompute(s, config)
    rate(s, config["train"])
    optimizer = s.text("optimizer.name", "AdamW")
    if optimizer.lower() != "adamw":
        s.say("memory", f"optimizer.name {optimizer}: AdamW is planned, with two moments")
    config["attention"]["mode"] = "flash"
    for name, effect in EFFECTS.items():
        if effect is not None:
            s.effect(name, *effect)
    s.finish(lambda each: each.partition(".")[0] in QUIET_TABLES or each in QUIET)
    return config


def split(s, config, gpus):
    parallel = config["parallel"]
    p, t, c = parallel["pipeline"], parallel["tensor"], parallel["context"]
    for name in EXPERTS:
        if s.number(name, int, 1, low=-1) != 1:
            raise Failure(f"{name}: ranks of this kind cannot be planned; leave it out")
    shard = number(s, ["parallelism.data_parallel_shard_degree", "training.data_parallel_shard_degree",
                       "training.data_parallel_degree"], int, -1, low=-1)  # fmt: skip
    copies = number(
        s, ["parallelism.data_parallel_replicate_degree", "training.data_parallel_replicate_degree"], int, 1, low=1
    )
    if shard == 0 or c < 1:
        raise Failure("data_parallel_shard_degree: 0 is no number of ranks; use -1 or more than 0")
    if gpus and (
        gpus % (p * t * c * (copies if shard < 0 else 1)) or (shard > 0 and gpus != p * t * c * shard * copies)
    ):
        raise Failure(f"--gpus {gpus}: the file has {p} pipeline times {t} tensor times {c} context times {shard if shard > 0 else '?'} shard times"
                      f" {copies} replicate ranks; say a multiple")  # fmt: skip
    if shard < 0 and not gpus:
        raise Failure("data_parallel_shard_degree is -1, so that the number of GPUs is not known; say --gpus N")
    parallel["data"] = gpus // (p * t * c) if shard < 0 else shard * copies
    if copies > 1:
        s.say(
            "memory",
            f"data_parallel_replicate_degree {copies}: optimizer state is cut over all {parallel['data']} data ranks here",
        )
    if parallel["data"] // copies > 1:
        s.say(
            "memory",
            "parameters and gradients are cut over data ranks there (FSDP); here optimizer state alone is (ZeRO-1): more memory, less traffic",
        )
    parallel["sequence"] = t > 1
    asynchronous = [name for name in ("parallelism.enable_async_tensor_parallel", "experimental.enable_async_tensor_parallel",
                                      "training.enable_async_tensor_parallel") if s.flag(name)]  # fmt: skip
    parallel["overlap"] = "auto" if asynchronous else "off"


def batch(s, config):
    train, schedule, parallel = config["train"], config["schedule"], config["parallel"]
    given = set(s.values)
    local = number(s, ["training.local_batch_size", "training.batch_size"], int, 8, low=1)
    total = s.number("training.global_batch_size", int, -1, low=-1)
    train["global_batch"] = local * parallel["data"] if total < 0 else total
    micro = number(s, ["parallelism.pipeline_parallel_microbatch_size"], int, 1, low=1)
    parts = number(
        s, ["parallelism.pipeline_parallel_microbatches", "experimental.pipeline_parallel_microbatches"], int, 0
    )
    old = "training.batch_size" in given  # then there were as many microbatches as stages
    if parallel["pipeline"] > 1 and (parts or old):
        micro = max(1, local // (parts or parallel["pipeline"]))
    schedule["micro_batch"] = micro if parallel["pipeline"] > 1 else local
    if train["global_batch"] % (schedule["micro_batch"] * parallel["data"]) or train["global_batch"] < 1:
        raise Failure(
            f"global_batch_size {train['global_batch']}: is no multiple of micro-batch {schedule['micro_batch']} times {parallel['data']} data ranks; say --gpus N"
        )


def pipeline(s, config):
    schedule, parallel = config["schedule"], config["parallel"]
    names = ("parallelism.pipeline_parallel_schedule", "experimental.pipeline_parallel_schedule")
    word = next((s.text(name) for name in names if name in s), "1F1B")
    parts = s.take("parallelism.module_fqns_per_model_part")
    points = next(
        (
            s.take(name)
            for name in ("experimental.pipeline_parallel_split_points", "parallelism.pipeline_parallel_split_points")
            if name in s
        ),
        None,
    )
    per = s.number("parallelism.pipeline_parallel_layers_per_stage", int, None, low=1)
    for name in (
        "parallelism.pipeline_parallel_first_stage_less_layers",
        "parallelism.pipeline_parallel_last_stage_less_layers",
    ):
        s.effect(name, "world", "layers are planned evenly; parallel.layers is nearest")
    p, layers = parallel["pipeline"], config["model"]["layers"]
    if p == 1:
        return
    ours = {their.lower(): ours for ours, their in SCHEDULES.items()}.get(str(word).lower())
    if ours is None:
        raise Failure(f"pipeline_parallel_schedule {word}: is not among {', '.join(SCHEDULES.values())}")
    schedule["name"] = ours
    points = points.split(",") if isinstance(points, str) and points.strip() else points
    if points and not isinstance(points, list):
        raise Failure(f"pipeline_parallel_split_points {points}: is no list of layers.N; use layers.8 and the like")
    if points and not parts:
        try:
            cuts = [0, *(int(str(each).strip().rpartition(".")[2]) for each in points), layers]
        except ValueError:
            raise Failure(
                f"pipeline_parallel_split_points {points}: is no list of layers.N; use layers.8 and the like"
            ) from None
        counts = [b - a for a, b in zip(cuts, cuts[1:])]
    elif parts:
        if not isinstance(parts, list) or not all(isinstance(part, list) for part in parts):
            raise Failure("module_fqns_per_model_part: is no list of lists of names")
        counts = [sum(str(each).startswith("layers.") for each in part) for part in parts]
    elif per:
        counts = [per] * (layers // per) if layers % per == 0 else []
    else:
        if ours not in ("1f1b", "gpipe"):
            schedule["chunks"] = 2
        return
    if sum(counts) != layers or min(counts, default=0) < 0 or len(counts) % p:
        raise Failure(f"the layers of the stages, {counts}, are not {layers} layers on {p} ranks")
    parallel["layers"] = counts
    if len(counts) > p:
        schedule["chunks"] = len(counts) // p


def precision(s, config):
    train = config["train"]
    kind = s.text("training.mixed_precision_param", "bfloat16")
    train["precision"] = "fp32" if kind == "float32" else "bf16"
    if kind not in ("float32", "bfloat16"):
        s.say("precision", f"training.mixed_precision_param {kind}: is planned as bf16")
    converters = s.take("model.converters", [])
    words = [str(each) for each in (converters if isinstance(converters, list) else [converters]) if each not in NO]
    words = [each for word in words for each in word.split(",") if each]
    eight = any("float8" in each for each in words)
    eight = (
        s.flag("float8.enable_float8_linear")
        or s.flag("training.enable_float8_linear")
        or s.flag("training.enable_fp8_linear")
        or eight
    )
    linear = s.take("training.fp8_linear", "")
    eight = eight or (isinstance(linear, str) and linear not in ("", "false", "False")) or linear is True
    mx = any(each.startswith("mx") or ".mx" in each for each in words)
    others = [each for each in words if "float8" not in each and not each.startswith("mx") and ".mx" not in each]
    if others:
        s.say("precision", f"model.converters {', '.join(others)}: is not planned")
    recipe = s.take("float8.recipe_name")
    if not (eight or mx):
        if recipe not in NO:
            s.quiet_ones.append(f"float8.recipe_name {recipe}")
        return
    train["fp8"] = "mx" if mx else "tensor"
    s.say(
        "precision",
        f"fp8: train.fp8 {train['fp8']}, for the products of the layers"
        + (f"; {recipe} scales there" if recipe not in NO else ""),
    )


def recompute(s, config):
    schedule, p, layers = config["schedule"], config["parallel"]["pipeline"], config["model"]["layers"]
    default = "none" if s.take("training.enable_selective_ac") is False else "selective"
    mode = s.text("activation_checkpoint.mode", default)
    if mode != "selective":
        s.quiet("activation_checkpoint.selective_ac_option")
    option = s.text("activation_checkpoint.selective_ac_option", "2")
    each = max(config["parallel"].get("layers", [-(-layers // p)]) if "layers" not in config["parallel"] else
               [sum(config["parallel"]["layers"][i::p]) for i in range(p)])  # fmt: skip
    if mode == "full":
        schedule["recompute_layers"] = each
    elif mode == "selective" and option.isdigit() and int(option) > 0:
        schedule["recompute_layers"] = each // int(option)
        s.say(
            "memory",
            f"activation_checkpoint selective {option}: {each // int(option)} layers of a stage are recomputed, every {option}th there",
        )
    elif mode == "selective":
        schedule["recompute"] = "pointwise"
        s.say(
            "memory",
            f"activation_checkpoint selective {option}: schedule.recompute pointwise is planned, which keeps more products",
        )
    elif mode != "none":
        raise Failure(f"activation_checkpoint.mode {mode}: cannot be planned; use none, selective or full")


def rate(s, train):
    ratio = s.number("lr_scheduler.decay_ratio", float, None, high=1)
    shape = s.text("lr_scheduler.decay_type", "linear")
    if ratio == 0:
        train["schedule"] = "constant"
    elif ratio is not None and round(train["steps"] * ratio) + train["warmup_steps"] < train["steps"]:
        train |= {
            "schedule": "wsd",
            "decay_steps": max(1, round(train["steps"] * ratio)),
            "decay_shape": shape if shape in ("linear", "cosine", "sqrt") else "linear",
        }
    else:
        train["schedule"] = shape if shape in ("linear", "cosine") else "linear"
    if shape not in ("linear", "cosine", "sqrt") or (shape == "sqrt" and train["schedule"] != "wsd"):
        s.say("training", f"lr_scheduler.decay_type {shape}: a linear decay is planned")
    if train["min_lr_ratio"] > 1:
        raise Failure("lr_scheduler.min_lr_factor: is above 1; use a fraction of optimizer.lr")

"""torchtitan's TOML as our configuration: job_config.py of 0.2.2, which later versions replaced by Python, and the
names of 2024, when degrees and the batch stood in [training] and [experimental]."""

import re
import tomllib

from run_files import Failure

from .documents import overridden, settings_of
from .settings import NORMS_DECAY, is_off, is_zero, rows_of

SCHEDULES = {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "Interleaved1F1B", "zb-v": "ZBVZeroBubble",
             "dualpipe-v": "DualPipeV"}
LLAMA_31 = {"family": "llama", "vocab": 128256, "kv_heads": 8, "head_dim": 128, "norm_eps": 1e-5, "rope_theta": 500000,
            "rope_scaling": "llama3", "rope_factor": 8, "rope_original": 8192, "tie_embeddings": False}
LLAMA_2 = {"family": "llama", "vocab": 32000, "head_dim": 128, "norm_eps": 1e-5, "rope_theta": 10000,
           "tie_embeddings": False}
SIZES = ("hidden", "layers", "heads", "ffn", "kv_heads")
FLAVORS = {
    (name, flavor): LLAMA_31 | dict(zip(SIZES, sizes)) if name == "llama3" else LLAMA_2 | dict(zip(SIZES, sizes))
    for name, flavor, *sizes in (
        ("llama3", "8B", 4096, 32, 32, 14336), ("llama3", "70B", 8192, 80, 64, 28672),
        ("llama3", "405B", 16384, 126, 128, 53248), ("llama2", "7B", 4096, 32, 32, 11008, 32),
        ("llama2", "13B", 5120, 40, 40, 13824, 40), ("llama2", "70B", 8192, 80, 64, 28672, 8),
    )
}
ROWS, EIGHT_BITS = rows_of("torchtitan"), rows_of("torchtitan in 8 bits")
EXPERTS = ("parallelism.expert_parallel_degree", "parallelism.expert_tensor_parallel_degree",
           "experimental.expert_parallel_degree")


def read(text, overrides=()):
    try:
        return settings_of(overridden(tomllib.loads(text), overrides))
    except tomllib.TOMLDecodeError as error:
        raise Failure(f"is not TOML ({error}); torchtitan after 0.2.2 has no TOML files") from None
    except RecursionError:
        raise Failure("is nested too deeply to be torchtitan's TOML") from None


def convert(s, gpus=None, model=None):
    """Converts the Settings to our configuration. model: sizes that replace the flavor's."""
    name, flavor = s.text("model.name", "llama3"), s.text("model.flavor")
    documents = re.search("_(flex|varlen|irope)", flavor or "")
    key = ({"llama": "llama2"}.get(name, name), flavor[: documents.start()] if documents else flavor)
    if model is None and key not in FLAVORS:
        known = ", ".join(f"{a} {b}" for a, b in FLAVORS)
        named = f"model {name} {flavor}" if flavor else "names no model.flavor"
        raise Failure(f"{named}: sizes are not known ({known} are known); give them with --model FILE")
    if "rmsnorm" not in s.peek("model.norm_type"):
        s.effect("model.norm_type", "model", "RMSNorm is planned")
    s.quiet("model.norm_type")
    config = s.begin(ROWS, {})
    config["model"] = (FLAVORS[key] if model is None else model) | config["model"]
    sharded = split(s, config, gpus)
    batch(s, config)
    pipeline(s, config)
    precision(s, config, sharded)
    recompute(s, config)
    rate(s, config["train"])
    balance(s, config, name)
    if not any([s.flag("compile.enable"), s.flag("training.compile")]):
        s.say("speed", "compile.enable is not set: kernels are not fused there, which takes longer than planned")
    if config["train"]["weight_decay"] > 0:
        s.say("training", NORMS_DECAY)
    optimizer = s.text("optimizer.name", "AdamW")
    if optimizer.lower() == "muon":
        config["train"]["optimizer"] = "muon"
        s.say("training", f"optimizer.name {optimizer}: train.optimizer muon, with its own momentum and scale")
    elif optimizer.lower() != "adamw":
        s.say("memory", f"optimizer.name {optimizer}: AdamW is planned, with two moments")
    config["attention"]["mode"] = "flash"
    if documents or name == "deepseek_v3":  # their attn_mask_type is block_causal
        config["data"] = {"mask_documents": "on"}
    for name in ("training.enable_loss_parallel", "parallelism.enable_loss_parallel"):
        if config["parallel"]["tensor"] > 1 and s.peek(name) == "False":
            s.say("memory", f"{name} {s.take(name)}: logits stay sharded over tensor ranks here")
    for before in ("", "quantize.linear."):
        for name in " ".join(names for _, names, _ in EIGHT_BITS if "fp8" not in config["train"]).split():
            s.quiet(before + name)
        s.effects(EIGHT_BITS, before)
    s.finish(ROWS)
    return config


def split(s, config, gpus):
    """Sets the ranks. Returns how many of them shard parameters."""
    parallel = config["parallel"]
    p, t, c = parallel["pipeline"], parallel["tensor"], parallel["context"]
    for name in EXPERTS:
        ranks = s.number(name, int, 1, low=-1)
        if ranks != 1 and config["model"].get("experts", 0) < 2:
            raise Failure(f"{name} {ranks}: needs a model with experts; give --model FILE, or leave it out")
        if "tensor" not in name and ranks > 1:
            parallel["expert"] = ranks
        elif ranks != 1:
            s.say("world", f"{name} {ranks}: every expert is whole here")
    shard = s.number("parallelism.data_parallel_shard_degree training.data_parallel_shard_degree"
                     " training.data_parallel_degree", int, -1, -1)
    copies = s.number("parallelism.data_parallel_replicate_degree training.data_parallel_replicate_degree", int, 1, 1)
    if shard == 0 or c < 1:
        raise Failure("data_parallel_shard_degree: 0 is not a number of ranks; use -1 or more than 0")
    ranks = p * t * c * copies * max(shard, 1)
    if gpus and (gpus % ranks if shard < 0 else gpus != ranks):
        raise Failure(f"--gpus {gpus}: the file needs {p} (pipeline) x {t} (tensor) x {c} (context) x"
                      f" {shard if shard > 0 else 'N'} (shard) x {copies} (replicate) ranks; use a multiple")
    if shard < 0 and not gpus:
        raise Failure("data_parallel_shard_degree is -1, so the number of GPUs is not known; give --gpus N")
    parallel["data"] = gpus // (p * t * c) if shard < 0 else shard * copies
    if copies > 1:
        s.say("memory", f"data_parallel_replicate_degree {copies}: optimizer state is sharded over all"
                        f" {parallel['data']} data ranks here")
    if parallel["data"] // copies > 1:
        s.say("memory", "parameters and gradients are sharded over data ranks there (FSDP); here only optimizer"
                        " state is (ZeRO-1): more memory, less traffic")
    if p > 1 and parallel["data"] * c > 1:
        parallel["placement"] = "stages"  # its device mesh has the pipeline as the outer dimension
    parallel["sequence"] = t > 1
    sections = ("parallelism", "experimental", "training", "compile")
    asynchronous = [s.flag(f"{section}.enable_async_tensor_parallel") for section in sections]
    parallel["overlap"] = "auto" if any(asynchronous) else "off"
    return parallel["data"] // copies


def batch(s, config):
    train, schedule, parallel = config["train"], config["schedule"], config["parallel"]
    old = "training.batch_size" in s  # of 2024, when the microbatches were as many as the stages
    local = s.number("training.local_batch_size training.batch_size", int, 8, 1)
    total = s.number("training.global_batch_size", int, -1, low=-1)
    total = train["global_batch"] = local * parallel["data"] if total < 0 else total
    micro = s.number("parallelism.pipeline_parallel_microbatch_size", int, 1, low=1)
    parts = s.number("parallelism.pipeline_parallel_microbatches experimental.pipeline_parallel_microbatches", int, 0)
    if parts or old:
        micro = max(1, local // (parts or parallel["pipeline"]))
    micro = schedule["micro_batch"] = micro if parallel["pipeline"] > 1 else local
    if total % (micro * parallel["data"]) or total < 1:
        raise Failure(f"global_batch_size {total}: is not a multiple of micro-batch {micro} times"
                      f" {parallel['data']} data ranks; give --gpus N")
    if parallel["pipeline"] > 1 and total > local * parallel["data"]:
        s.say("speed", f"local_batch_size {local}: the pipeline drains {total // (local * parallel['data'])} times a"
                       " step there, once here")


def pipeline(s, config):
    schedule, parallel = config["schedule"], config["parallel"]
    P, E = "parallelism.pipeline_parallel_", "experimental.pipeline_parallel_"
    word = s.text(P + "schedule", s.text(E + "schedule", "1F1B"))
    parts = s.take("parallelism.module_fqns_per_model_part")
    points = s.take(E + "split_points", s.take(P + "split_points"))
    per = s.number(P + "layers_per_stage", int, None, low=1)
    first, last = (s.number(f"{P}{end}_stage_less_layers", int, 1) for end in ("first", "last"))
    p, layers = parallel["pipeline"], config["model"]["layers"]
    if p == 1:
        return
    ours = {their.lower(): ours for ours, their in SCHEDULES.items()}.get(str(word).lower())
    if ours is None:
        raise Failure(f"pipeline_parallel_schedule {word}: is not one of {', '.join(SCHEDULES.values())}")
    schedule["name"] = ours
    if parts:
        if not isinstance(parts, list) or not all(isinstance(part, list) for part in parts):
            raise Failure("module_fqns_per_model_part: is not a list of lists of names")
        counts = [sum(str(each).startswith("layers.") for each in part) for part in parts]
    elif points and not is_off(points):
        points = points.split(",") if isinstance(points, str) else points
        try:
            cuts = [0, *(int(str(each).strip().rpartition(".")[2]) for each in points), layers]
        except (TypeError, ValueError):
            raise Failure(f"pipeline_parallel_split_points {points}: is not a list like layers.8,layers.16") from None
        counts = [b - a for a, b in zip(cuts, cuts[1:])]
    else:
        stages = p if ours in ("1f1b", "gpipe") else 2 * p
        counts = weighted(-(-(layers + first + last) // per) if per else stages, layers, first, last)
    if sum(counts) != layers or min(counts, default=0) < 0 or len(counts) % p:
        raise Failure(f"the layers of the stages, {counts}, are not {layers} layers on {p} ranks")
    if len(set(counts)) > 1:
        parallel["layers"] = counts
    if len(counts) > p:
        schedule["chunks"] = len(counts) // p


def weighted(stages, layers, first, last):
    """Returns the layers of every stage if the embedding counts as `first` layers and the output as `last` layers, as
    torchtitan's generate_llm_fqn_per_model_part does."""
    each, more = divmod(layers + first + last, stages)
    counts = [each + (stage < more) for stage in range(stages)]
    counts[0] -= first
    counts[-1] -= last
    return counts


def precision(s, config, sharded):
    train, model, parallel = (config[name] for name in ("train", "model", "parallel"))
    kind = s.text("training.mixed_precision_param", "bfloat16")
    # maybe_enable_amp of distributed/utils.py: without FSDP, these ranks compute in training.dtype
    wide = sharded * parallel["context"] == 1 < parallel["tensor"] * parallel["pipeline"]
    if wide and kind != "float32" and "bfloat16" not in s.peek("training.dtype"):
        s.say("precision", "data_parallel_shard_degree 1: without FSDP, tensor and pipeline ranks compute in fp32")
        kind = "float32"
    train["precision"] = "fp32" if kind == "float32" else "bf16"
    if kind not in ("float32", "bfloat16"):
        s.say("precision", f"training.mixed_precision_param {kind}: is planned as bf16")
    converters = s.take("model.converters", [])
    words = [str(each) for each in (converters if isinstance(converters, list) else [converters]) if not is_off(each)]
    words = [each for word in words for each in word.split(",") if each]
    old = [s.flag(name) for name in ("float8.enable_float8_linear", "training.enable_float8_linear",
                                     "training.enable_fp8_linear")]
    linear = s.take("training.fp8_linear")
    eight = any("float8" in each for each in words) or any(old) or not is_off(linear) and not is_zero(linear)
    mx = any(each.startswith("mx") or ".mx" in each for each in words)
    others = [each for each in words if "float8" not in each and not each.startswith("mx") and ".mx" not in each]
    if others:
        s.say("precision", f"model.converters {', '.join(others)}: is not planned")
    recipes = [s.text(f"{table}.recipe_name")
               for table in ("float8", "quantize.linear.float8", "quantize.linear.mx", "mx")]
    recipe = next((each for each in recipes if each), None)
    if (eight or mx) and max(model.get("experts", 0), model.get("kv_lora", 0)) > 1:
        s.say("precision", "fp8: experts and latent attention are planned in bf16")
    elif (eight or mx) and train["precision"] == "fp32":
        s.say("precision", "fp8: is planned only beside bf16")
    elif eight or mx:
        train["fp8"] = "mx" if mx else "tensor"
        scales = f"; {recipe} scales there" if recipe else ""
        s.say("precision", f"fp8: train.fp8 {train['fp8']}, for the products of the layers{scales}")


def balance(s, config, name):
    """MoEArgs.load_balance_coeff, which has no key, is 1e-3 in every model that updates its biases."""
    if config["model"].get("experts", 0) < 2 or name == "qwen3":
        return
    if config["model"].get("router") == "sigmoid":
        config["train"] |= {"balance": "bias", "balance_rate": 1e-3}
    else:
        s.say("training", "a softmax router has no balancing bias here; times are the same")


def recompute(s, config):
    schedule, p, layers = config["schedule"], config["parallel"]["pipeline"], config["model"]["layers"]
    default = "none" if s.take("training.enable_selective_ac") is False else "selective"
    mode = s.text("activation_checkpoint.mode", default, none=True)
    option = s.text("activation_checkpoint.selective_ac_option", "2")
    counts = config["parallel"].get("layers") or [-(-layers // p)] * p
    turns = -1 if schedule.get("name") in ("zb-v", "dualpipe-v") else 1  # of every second row of parts, in a V
    rows = [counts[at : at + p][:: turns if at // p % 2 else 1] for at in range(0, len(counts), p)]
    each = max(sum(row[rank] for row in rows) for rank in range(p))
    if mode == "full":
        schedule["recompute_layers"] = each
    elif mode == "selective" and option.isdigit():  # 0 is 1 there
        again = schedule["recompute_layers"] = each // max(int(option), 1)
        s.say("memory", f"activation_checkpoint selective {option}: {again} layers of a stage are recomputed, one"
                        f" in {option} there")
    elif mode == "selective":
        schedule["recompute"] = "pointwise"
        s.say("memory", f"activation_checkpoint selective {option}: schedule.recompute pointwise is planned, which"
                        " keeps more products")
    elif mode != "none":
        raise Failure(f"activation_checkpoint.mode {mode}: cannot be planned; use none, selective or full")


def rate(s, train):
    """Sets the learning rate. Every decay but a linear or cosine one from the warm-up on is the end of a wsd."""
    ratio = s.number("lr_scheduler.decay_ratio", float, None, high=1)
    shape = s.text("lr_scheduler.decay_type", "linear")
    steps = s.number("lr_scheduler.total_steps", int, train["steps"], low=1)
    train["warmup_steps"] = min(train["warmup_steps"], steps)
    most = steps - train["warmup_steps"]
    decay = most if ratio is None else min(round(steps * ratio), most)
    left = min(decay, train["steps"] - train["warmup_steps"])  # of the decay, at most
    if shape not in ("linear", "cosine", "sqrt"):
        s.say("training", f"lr_scheduler.decay_type {shape}: a linear decay is planned")
        shape = "linear"
    if left < 1:
        train["schedule"] = "constant"
    elif decay == most and shape != "sqrt":
        train["schedule"] = shape
    else:
        train |= {"schedule": "wsd", "decay_steps": left, "decay_shape": shape}
    if steps != train["steps"]:
        s.say("training", f"lr_scheduler.total_steps {steps}: the learning rate falls until the last step here")
    if train["min_lr_ratio"] > 1:
        raise Failure("lr_scheduler.min_lr_factor: is above 1; use a fraction of optimizer.lr")

"""Megatron-LM's flags, and those of its descendants (Megatron-DeepSpeed, Pai), as our configuration. Names, defaults
and meanings are those of Megatron-LM core 0.20.0 (d98e8a64), and older names where they meant something else."""

import json
import math
import re
from pathlib import Path

from run_files import Failure, read_text

from .documents import flattened, refuse_others
from .job import gpus_of, slurm_lines
from .settings import REQUIRED, Settings, Whole, brief, is_off, quiet_of, rows_of
from .shell import MARK, Script, readable, unknown_in

ROWS = rows_of("megatron")
ALONE = ("swiglu", "bf16", "fp16", "sequence-parallel", "use-distributed-optimizer", "group-query-attention",
         "disable-bias-linear")
FP8 = {"delayed": "tensor", "tensorwise": "tensor", "blockwise": "block", "mxfp8": "mx"}
# Sizes of latent attention: our key, their flag and its default.
LATENT = (("kv_lora", "kv-lora-rank", 32), ("q_lora", "q-lora-rank", 0), ("nope_dim", "qk-head-dim", 128),
          ("rope_dim", "qk-pos-emb-head-dim", 64), ("v_dim", "v-head-dim", 128))
FSDP = ("use-megatron-fsdp", "use-torch-fsdp2", "use-custom-fsdp")
# Patterns of arguments of other programs: the program, and how to import its file.
OTHERS = ((r"[+~]*[a-z_]+\.[\w.]+=", "NeMo", "nemo FILE.yaml KEY=VALUE..."),
          (r"--[a-z_]+\.[a-z_]+|.*\.toml$", "torchtitan", "torchtitan FILE.toml KEY=VALUE..."),
          (r"--config-file\b", "nanotron", "nanotron FILE.yaml"))
SHARDED = "every data rank holds all optimizer state there; here it is sharded over"


# ---- reading


def cut(word):
    """Splits a quoted text of several flags into words."""
    return word.split() if word.startswith("--") and " " in word.strip() or " --" in word else [word]


def command_settings(command, settings):
    """Adds the flags of a command. Returns the launcher's words: those before the program."""
    words = [each for word in command for each in cut(word)]
    modules = (i for i, word in enumerate(words) if i and words[i - 1] == "-m" and "torch" not in word)
    files = (i for i, word in enumerate(words) if word.endswith(".py"))
    at = min([*files, *modules], default=None)
    front, rest = (words[:at], words[at + 1 :]) if at is not None else ([], words)
    if at is not None and "bert" in words[at].rpartition("/")[2]:
        settings.values["encoder"] = (Whole(words[at]), True)
    flag, spelling, given = None, None, []
    for word in [*rest, "--"]:
        if word.startswith("--"):
            if flag is not None:
                settings.add(flag, spelling, " ".join(given) if given else True)
            spelling, equals, value = word.partition("=")
            flag, given = spelling[2:].replace("_", "-"), [value] if equals else []
        elif flag is not None and not (unknown_in(word) and (given or flag in ALONE)):
            given.append(word)
        elif unknown_in(word):
            settings.say("unknown", f"{readable(word)}: the script does not set this; its flags are not planned")
        elif not word.startswith("-"):
            settings.say("unknown", f"{readable(word)}: belongs to no flag and is ignored")
    return front


def read(words):
    """Returns (settings, words of the launcher, {option: value} of Slurm) of words on our command line: NAME=VALUE...
    FILE [arguments of the script] [more flags], or flags."""
    words, given = list(words), {}
    while words and re.match(r"[A-Za-z_]\w*=", words[0]):
        name, _, given[name] = words.pop(0).partition("=")
    settings, slurm = Settings(), {}
    if words and not re.search(r"^-|\s", words[0]) and not (words[0].endswith(".py") and words[1:]):
        refuse_others(Path(words[0]), "megatron")
    path = existing(words[0]) if words and not words[0].endswith(".py") else None
    if not words or words[0].startswith("-") or not (path or " " in words[0]):
        if words and re.search(r"/|\.(sh|slurm|sbatch|yaml)$", words[0]) and not words[0].endswith(("torchrun", ".py")):
            raise Failure(f"{words[0]}: is not a file here")
        front = command_settings(words, settings)
        deepspeed_file(settings, None, {})
        return settings, front, slurm
    text = read_text(path) if path else words[0]
    more = next((i for i, word in enumerate(words) if i > 0 and word.startswith("--")), len(words))
    if len(text) > 1 << 20:
        raise Failure(f"{path}: is larger than 1 MiB; give a launch script")
    slurm = slurm_lines(text)
    script = Script(given, lambda name: beside(path, name), words[1:more])
    for option, names in {"nodes": "NNODES JOB_NUM_NODES", "ntasks": "NTASKS NPROCS",
                          "ntasks-per-node": "NTASKS_PER_NODE", "gpus-per-node": "GPUS_PER_NODE"}.items():
        if (value := slurm.get(option, "")).isdigit():
            for name in names.split():
                script.given.setdefault(f"SLURM_{name}", value)
    script.run(text)
    for note in script.notes:
        settings.say("unknown", note)
    command = chosen(script, settings)
    if script.missing:
        settings.hint = f", and the script's {script.missing} arguments after its name"
    front = command_settings([*command, *words[more:]], settings)
    if script.ends:
        ends = ", ".join(dict.fromkeys(script.ends))
        settings.quiet_ones.append(f"not followed, since they depend on values that the script does not set: {ends}")
    deepspeed_file(settings, path, script.files)
    return settings, front, slurm


def existing(word):
    try:
        return Path(word) if Path(word).is_file() else None
    except (OSError, ValueError):  # too long for a file's name, or with a zero byte
        return None


def beside(path, name):
    """Returns the text of a file that a script names, if it lies below the script's folder: at the name, or at as many
    of its last parts as there are."""
    parts = Path(readable(name).lstrip("/")).parts
    near = (existing(path.parent.joinpath(*parts[at:])) for at in range(len(parts) if path else 0))
    near = next(filter(None, near), None)
    try:
        return read_text(near) if near and near != path and near.stat().st_size < 1 << 20 else None
    except (Failure, OSError):
        return None


def chosen(script, settings):
    """Returns the command that trains."""
    training = []
    for pattern in (r"--num[-_]layers|--encoder[-_]num[-_]layers", r"pretrain\w*\.py|train\w*\.py"):
        training = training or [each for each in script.commands if any(re.search(pattern, word) for word in each)]
        python = [each for each in script.commands if any(re.search(r"\.py$|^-m$", word) for word in each)]
        own = any(re.search(r"(^|/)pretrain_\w+\.py$", word) for each in python for word in each)
        for pattern, program, remedy in OTHERS if not (training or own) else ():
            word = next((word for each in python for word in each if re.match(pattern, word)), None)
            if word is not None:
                raise Failure(f"{readable(word)}: is an argument of {program}; use {remedy} with the file and the"
                              " arguments of the command")
    # A file with one flag per line has no command.
    loose = [each for each in script.commands if each[0].startswith("--")]
    if loose and (not training or training[0] in loose):
        return [word for each in script.commands for word in each]
    if any(each != training[0] for each in training):
        settings.say("unknown", f"the script starts {len(training)} runs; this is the first")
    if training:
        return training[0]
    # No command names the layers: assumes that another script passes the flags in these variables.
    texts = [" ".join(value.values()) if isinstance(value, dict) else value for value in script.ever.values()]
    texts = [text for text in texts if re.search(r"(^|\s)--\w", text)]
    texts = [text for text in texts if not any(text.strip() in other and text != other for other in texts)]
    if not any(re.search("--num[-_]layers", text) for text in texts):
        ends = f"the script ends in line {script.ended}, and " if script.ended else ""
        ends += "".join(f"{each} is not followed, and " for each in script.ends if each.startswith("the loop"))
        raise Failure(f"{ends}no command of the script has --num-layers; give the flags, or variables that it needs"
                      + settings.because())
    settings.say("unknown", "no command of the script has --num-layers; the flags in its variables are converted")
    return [word for text in dict.fromkeys(texts) for word in text.split()]


# ---- conversion


def convert(s, gpus, front=(), slurm=None, model=None):
    """Returns our configuration."""
    lr_said = "lr" in s and not unknown_in(s.peek("lr"))
    if "lr" not in s:
        s.say("training", f"{s.spelling('lr')} is not given: 3e-4 is planned")
    config = s.begin(ROWS, model or {})
    gated = convert_model(s, config, model or {})
    world, each = gpus_of(s, front, slurm or {}, gpus)
    convert_layout(s, config, world)
    convert_experts(s, config, gated)
    zero(s, config)
    if each:
        config["hardware"] = {"gpus_per_node": each}
    convert_batch(s, config)
    convert_precision(s, config)
    convert_attention(s, config)
    convert_recomputation(s, config)
    convert_optimizer(s, config, lr_said)
    if s.peek("num-distributed-optimizer-instances") == "1":
        s.quiet("num-distributed-optimizer-instances")
    s.finish(ROWS)
    return config


def vocabulary(s, default):
    flags = "padded-vocab-size pad-vocab-size-to vocab-size"
    if default is not REQUIRED or any(flag in s for flag in flags.split()):
        return s.number(flags, int, default, low=1)
    names = ["tokenizer-model", "tokenizer-name-or-path", "patch-tokenizer-type", "tokenizer-type", "vocab-file"]
    if s.peek("tokenizer-type") == "TikTokenizer":  # has this size whatever its file
        names = ["tokenizer-type"]
    said = [s.peek(name) for name in names if name in s]
    if "merge-file" in s and "tokenizer-type" not in s:
        said.append("GPT2BPETokenizer")  # pretrain_gpt.py's own
    for text in said:
        for kind, pattern, size in ROWS:  # the first match counts
            if kind == "vocabulary" and re.search(pattern, text, re.IGNORECASE):
                s.say("model", f"{s.spelling('vocab-size')} is not given: {size}, the size of tokenizer"
                               f" {readable(text)}, is planned")
                return int(size)
    after = " (after the script's name)" if s.spelling("vocab-size").startswith("--") else ""
    raise Failure(f"{s.spelling('vocab-size')}: is missing, and the tokenizer that determines it is unknown here;"
                  f" add it{after}{s.because()}")


def convert_model(s, config, known):
    model = config["model"]
    model["vocab"] = vocabulary(s, known.get("vocab", REQUIRED))
    if s.effect("encoder", "model", "attention sees the whole sequence; the head for sentence pairs is not planned"):
        model["causal"], config["train"]["objective"] = False, "masked"
    gated, place = family_of(s, model, known)
    llama = model["family"] == "llama"
    plain = int(4 * model["hidden"] * 2 / 3 / 64) * 64 if gated else 4 * model["hidden"]
    model["ffn"] = s.number("ffn-hidden-size", int, known.get("ffn", plain), low=1)
    gated = gated or not llama or bool(known)
    if not gated:
        asked, model["ffn"] = model["ffn"], as_gated(model["ffn"])
        s.say("model", f"the feed-forward part of width {asked} is not gated there: SwiGLU of width {model['ffn']} is"
                       " planned, with as many parameters and FLOPs")
    model["kv_heads"] = groups_of(s, model, known)
    if not llama and model["kv_heads"] != model["heads"]:
        raise Failure(f"{s.spelling('group-query-attention')}: GPT's layer cannot be planned with fewer key and value"
                      " heads; leave it out, or use swiglu, RMSNorm and rope")
    model["head_dim"] = s.number("kv-channels", int, known.get("head_dim", max(model["hidden"] // model["heads"], 1)),
                                 low=1)
    model["tie_embeddings"] = known.get("tie_embeddings", True) and not s.flag("untie-embeddings-and-output-weights")
    for name in ("hidden-dropout", "attention-dropout"):
        start = "" if name in s else f"{s.spelling(name)} is not given, so "
        rate = s.number(name, float, 0.1, high=1)
        if rate > 0:
            s.say("model", f"{start}{s.spelling(name)} {rate:g}: there is no dropout here; its masks and passes are not"
                           " planned")
    by = s.number("make-vocab-size-divisible-by", int, 128, low=1) * config["parallel"]["tensor"]
    size = -(-model["vocab"] // by) * by
    if size > 1.01 * model["vocab"]:
        s.say("model", f"{s.spelling('make-vocab-size-divisible-by')} {by // config['parallel']['tensor']}: the"
                       f" vocabulary is padded to {size} there")
    bias = not s.flag("disable-bias-linear")
    if llama and bias and not known:
        s.say("model", f"{s.spelling('disable-bias-linear')} is not given: linear layers have biases there, none are"
                       " planned")
    if not llama and not bias:
        s.say("model", f"{s.spelling('disable-bias-linear')}: GPT's linear layers are planned with biases")
    qkv_bias = s.flag("add-qkv-bias", known.get("qkv_bias", False))
    qk_norm = s.flag("qk-layernorm", known.get("qk_norm", False))
    if llama:
        model |= {"qkv_bias": qkv_bias, "qk_norm": qk_norm}
        rope(s, model, place, known)
        if s.flag("multi-latent-attention"):
            latent(s, model, known)
    elif qk_norm:
        s.say("model", f"{s.spelling('qk-layernorm')}: is not planned for GPT's layer")
    if "max-position-embeddings" in s and not llama:
        longest = s.number("max-position-embeddings", int, low=1)
        if longest != model["seq_len"]:
            s.say("model", f"{s.spelling('max-position-embeddings')} {longest}: the table of positions is planned with"
                           f" {model['seq_len']}")
    s.quiet("max-position-embeddings")
    return gated


def as_gated(width):
    """Returns the width of SwiGLU with as many parameters as two products of this width."""
    return max(64, round(width * 2 / 3 / 64) * 64)


def convert_experts(s, config, gated):
    """Sets the keys of a mixture of experts. In a dense model, settings of experts have no effect."""
    model, parallel, train = config["model"], config["parallel"], config["train"]
    count = s.number("num-experts", int, model.get("experts", 0))
    if count < 2:
        return
    if model["family"] != "llama" or "expert-interval" in s or "topk" in s:
        raise Failure(f"{s.spelling('num-experts')} {count}: only LLaMA's layer can be planned with experts, in all"
                      " layers but the first; leave it out with --moe-* and --expert-* to plan the dense model")
    width = s.number("moe-ffn-hidden-size", int, model.get("expert_ffn", model["ffn"]), low=1)
    shared = s.number("moe-shared-expert-intermediate-size", int, model.get("shared_ffn", 0))
    score = s.text("moe-router-score-function", model.get("router", "softmax"))
    if score not in ("softmax", "sigmoid"):
        raise Failure(f"{s.spelling('moe-router-score-function')} {score}: cannot be planned; use softmax or sigmoid")
    groups = s.number("moe-router-num-groups", int, model.get("router_groups", 1), low=1)
    top = s.number("moe-router-group-topk", int, model.get("router_group_top", 1), low=1)
    if groups > 1 and score == "softmax":
        s.say("training", f"{s.spelling('moe-router-num-groups')} {groups}: only sigmoid routers are planned with"
                          " groups")
        groups = top = 1
    before = s.flag("moe-router-pre-softmax", not model.get("router_normalize", True))
    model |= {"experts": count, "experts_per_token": s.number("moe-router-topk", int,
                                                              model.get("experts_per_token", 2)),
              "expert_ffn": width if gated else as_gated(width), "shared_ffn": shared, "router": score,
              "dense_layers": dense_layers(s, model), "router_groups": groups, "router_group_top": top,
              "router_scale": s.number("moe-router-topk-scaling-factor", float, model.get("router_scale", 1.0)),
              "router_normalize": score == "sigmoid" or not before}
    t = parallel["tensor"]
    cut = s.number("expert-tensor-parallel-size", int, t, low=1, high=1024)
    ranks = s.number("expert-model-parallel-size", int, 1, low=1, high=65536)
    e = parallel["expert"] = ranks * cut if count % (ranks * cut) == 0 else ranks
    if t * parallel["context"] * parallel["data"] % e != 0 or count % e != 0:
        raise Failure(f"{s.spelling('expert-model-parallel-size')} {ranks}: {e} does not divide both the {count}"
                      f" experts and the {t * parallel['context'] * parallel['data']} ranks of a stage; give --gpus N")
    if cut > 1:
        s.say("world", f"experts are sharded over {cut} tensor ranks there; here every expert is whole, on"
                       f" {parallel['expert']} ranks")
    if t > 1 and not parallel["sequence"]:
        parallel["sequence"] = True
        s.say("memory", f"{s.spelling('sequence-parallel')} is planned, which experts with tensor ranks need here")
    dispatcher = s.text("moe-token-dispatcher-type", "allgather")
    if dispatcher == "allgather" and e > 1:
        s.say("speed", f"{s.spelling('moe-token-dispatcher-type')} is allgather, its default: every expert rank gets "
                       "all rows there; here only those of its experts (alltoall)")
    for name in ("moe-router-load-balancing-type", "moe-aux-loss-coeff"):
        words = re.findall(r"[^\s\[\],'\"]+", s.peek(name))
        if len(words) > 1:
            s.say("training", f"{s.said(name)}: only the first is planned")
            s.values[name] = (s.spelling(name), words[0])
    kind, rate = s.text("moe-router-load-balancing-type", "aux_loss"), s.number("moe-aux-loss-coeff", float, 0.0)
    if "aux_loss" in kind:
        train |= {"balance": "loss", "balance_rate": rate} if rate > 0 else {}
        if kind != "aux_loss" and rate > 0:
            s.say("training", f"{s.spelling('moe-router-load-balancing-type')} {kind}: the loss of each microbatch"
                              " balances experts here")
    elif kind != "none":
        s.say("training", f"{s.spelling('moe-router-load-balancing-type')} {kind}: experts are not balanced here")
    biased, rate = s.flag("moe-router-enable-expert-bias"), s.number("moe-router-bias-update-rate", float, 1e-3)
    if biased and score == "sigmoid":
        if train.get("balance") == "loss":
            s.say("training", f"{s.spelling('moe-aux-loss-coeff')}: only the bias balances experts here")
        train |= {"balance": "bias", "balance_rate": rate}
    elif biased:
        s.say("training", "a softmax router has no balancing bias here; times are the same")
    train["router_z_loss"] = s.number("moe-z-loss-coeff", float, 0.0)
    for category, name, text in (
        ("training", "moe-expert-capacity-factor", "no token is dropped here"),
        ("training", "moe-expert-rank-capacity-factor", "no token is dropped here"),
        ("model", "moe-shared-expert-gate", "the shared expert has no gate here"),
        ("model", "moe-latent-size", "experts have the width of the residual stream here"),
        ("speed", "overlap-moe-expert-parallel-comm", "rows are not sent during another microbatch's products here"),
    ):
        s.effect(name, category, text)
    for name in ("moe-dispatch-fwd-dtype", "moe-combine-bwd-dtype"):
        if s.peek(name) != "bf16":
            s.effect(name, "precision", "rows are exchanged in bf16 here")


def dense_layers(s, model):
    """Returns how many of the first layers have no experts."""
    pattern = s.take("moe-layer-freq")
    if pattern is None or str(pattern) == "1":
        return model.get("dense_layers", 0)
    text = re.sub(r"\[([01, ]+)\]\s*\*\s*(\d{1,4})", lambda found: (found[1] + ",") * int(found[2]), str(pattern))
    ones = re.findall(r"[01]", text) if re.fullmatch(r"[01,+()\[\]\s]*", text) else []
    dense = ones.index("1") if "1" in ones else 0
    if len(ones) != model["layers"] or "0" in ones[dense:]:
        raise Failure(f"{s.spelling('moe-layer-freq')} {pattern}: only the first layers can be dense; use"
                      " [0]*N+[1]*M")
    return dense


def groups_of(s, model, known):
    """Returns the key and value heads: by Megatron-DeepSpeed's flag, or by Megatron-LM's two."""
    alone = s.number("num-key-value-heads", int, None, low=1)
    groups = s.number("num-query-groups", int, None, low=1)
    grouped = s.flag("group-query-attention", s.defaults.get("group-query-attention", False) and groups is not None)
    return alone or ((groups or 1) if grouped else known.get("kv_heads", model["heads"]))


def family_of(s, model, known):
    """Sets model.family. Returns (whether the feed-forward part is gated, the kind of positions)."""
    model |= {key: value for key, value in known.items() if key not in model}
    llama = known.get("family") == "llama"
    if "geglu" in s or "quick-geglu" in s:
        s.quiet("swiglu")
    if s.peek("glu-activation") != "swiglu":
        s.effect("glu-activation", "model", "the activation is planned as GELU or SwiGLU")
    gated = any([s.flag("swiglu", llama), s.text("glu-activation", "") == "swiglu"])
    for name in ("geglu", "quick-geglu"):
        gated = s.effect(name, "model", "the gate is planned as SwiGLU; sizes are the same") or gated
    for name in ("squared-relu", "xielu", "relu"):
        gated = not s.effect(name, "model", "the activation is planned as GELU or SwiGLU") and gated
    norm = s.text("normalization", "RMSNorm" if s.flag("RMSNorm", llama) else "LayerNorm")
    norm = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm", "layernorm1p": "LayerNorm"}.get(norm.lower(), norm)
    place = s.text("position-embedding-type", "rope" if llama else "learned_absolute", none=True)
    if s.flag("use-rotary-position-embeddings") or place == "rotary":
        place = "rope"
    if s.flag("no-position-embedding") and place != "rope":
        place = "none"
    if s.flag("use-alibi-position-embeddings"):
        place = "alibi"
    rotary = place in ("rope", "yarn")
    strange = norm not in ("RMSNorm", "LayerNorm") or place in ("mrope", "relative")
    if strange or (gated or norm == "RMSNorm") and not rotary:
        raise Failure(f"{s.spelling('normalization')} {norm}, {s.spelling('position-embedding-type')} {place},"
                      f" {'' if gated else 'no '}{s.spelling('swiglu')}: is neither LLaMA's layer (RMSNorm, rope,"
                      " swiglu) nor GPT's (LayerNorm, learned_absolute); use the nearest of them")
    model["family"] = "llama" if gated or norm == "RMSNorm" else "gpt"
    if model["family"] == "llama" and norm == "LayerNorm":
        s.say("model", f"{s.spelling('normalization')} LayerNorm: RMSNorm is planned")
    if model["family"] == "gpt" and place != "learned_absolute":
        s.say("model", f"{s.spelling('position-embedding-type')} {place}: GPT's learned positions are planned, a table"
                       " of seq_len times hidden")
    return gated, place


def rope(s, model, place, known):
    model["rope_theta"] = s.number("rotary-base", float, known.get("rope_theta", 10000), low=1, high=1e12)
    percent = s.number("rotary-percent", float, 1.0, high=1)
    if percent != 1:
        model["rope_share"] = percent
    factor = s.number("rope-scaling-factor", float, 8.0, low=1, high=1e6)
    stretched = s.number("rotary-seq-len-interpolation-factor", int, 1, low=1, high=1e6)
    if place == "yarn" or "multi-latent-attention" in s and s.text("rope-type", "yarn") == "yarn":
        factor = s.number("yarn-rotary-scaling-factor rotary-scaling-factor", float, 1.0, low=1, high=1e6)
        grown, whole = 0.1 * math.log(factor), s.number("yarn-mscale-all-dim mscale-all-dim", float, 0.0, high=100)
        scale = (grown * s.number("yarn-mscale mscale", float, 1.0, high=100) + 1) / (grown * whole + 1)
        model |= {"rope_scaling": "yarn", "rope_factor": factor, "rope_attention": float(f"{scale:.12g}"),
                  "rope_original": s.number("yarn-original-max-position-embeddings original-max-position-embeddings",
                                            int, 4096),
                  "rope_beta_fast": s.number("yarn-beta-fast beta-fast", float, 32.0),
                  "rope_beta_slow": s.number("yarn-beta-slow beta-slow", float, 1.0)}
        if "multi-latent-attention" in s:
            model["rope_mscale"] = whole  # which scales the scores of latent attention alone
    elif s.flag("use-rope-scaling"):
        model |= {"rope_scaling": "llama3", "rope_factor": factor, "rope_original": 8192}
    elif stretched > 1:
        model |= {"rope_scaling": "linear", "rope_factor": stretched}


def latent(s, model, known):
    """Sets the keys of latent attention."""
    for key, flag, default in LATENT:
        model[key] = s.number(flag, int, known.get(key) or default)
    if model["q_lora"] == 0:
        raise Failure(f"{s.spelling('q-lora-rank')} is not given: latent attention can be planned with compressed"
                      " queries alone; add it")
    if not model["qk_norm"]:
        s.say("model", f"{s.spelling('qk-layernorm')} is not given: norms of the compressed rows are planned")
    model |= {"qk_norm": False, "kv_heads": model["heads"], "head_dim": model["nope_dim"] + model["rope_dim"]}


def convert_layout(s, config, world):
    parallel, schedule, model = config["parallel"], config["schedule"], config["model"]
    if s.flag("no-pipeline-parallel"):  # DeepSpeed's, for its own engine
        parallel["pipeline"] = 1
    p, t, c = parallel["pipeline"], parallel["tensor"], parallel["context"]
    ulysses = s.number("ds-sequence-parallel-size", int, 1, low=1, high=1024)
    if ulysses > 1:
        s.say("world", f"{s.spelling('ds-sequence-parallel-size')} {ulysses}: is planned as {ulysses} context ranks,"
                       " which exchange keys and values instead of heads")
        c *= ulysses
    parallel["context"] = c
    if c > ulysses and s.peek("cp-comm-type") != "all_gather":
        exchange = brief(s.take("cp-comm-type")) if "cp-comm-type" in s else "p2p"
        s.say("speed", f"{s.spelling('cp-comm-type')} {exchange}: context ranks gather keys and values here"
                       " (all_gather)")
    s.quiet("cp-comm-type")
    if world % (p * t * c) != 0:
        shared = f" times {c} context" if c > 1 else ""
        raise Failure(f"{world} GPUs: is not a multiple of {p} pipeline times {t} tensor{shared} ranks; give --gpus N")
    parallel["data"] = world // (p * t * c)
    ordered = s.flag("use-tp-pp-dp-mapping")
    if p > 1 and parallel["data"] * c > 1 and not ordered:
        parallel["placement"] = "stages"
    parallel["sequence"] = s.flag("sequence-parallel") and t > 1
    parallel["overlap"] = "auto" if s.flag("tp-comm-overlap") and t > 1 else "off"
    if s.flag("enable-zbh1-pipeline") and p > 1:
        schedule["name"] = "zb-d"  # whose default delay is that of ZB-H1
    chunks = stages(s, parallel, model["layers"], p)
    group = s.number("microbatch-group-size-per-virtual-pipeline-stage", int, p, low=1, high=65536)
    if chunks > 1:
        schedule |= {"name": "interleaved", "chunks": chunks}
        if group != p:
            schedule |= {"name": "gis", "group": group}


def stages(s, parallel, layers, p):
    """Sets parallel.layers if the layers are split unevenly. Returns the number of chunks."""
    chunks = s.number("virtual-pipeline-model-parallel-size num-virtual-stages-per-pipeline-rank", int, 1, low=1,
                      high=64)
    per = s.number("num-layers-per-virtual-pipeline-stage", int, None, low=1)
    more = [s.flag("account-for-embedding-in-pipeline-split"), s.flag("account-for-loss-in-pipeline-split")]
    if per and p > 1:
        chunks, rest = divmod(layers + sum(more), p * per)
        if rest:
            raise Failure(f"{s.spelling('num-layers-per-virtual-pipeline-stage')} {per}: {layers} layers do not divide"
                          f" into chunks of {per} on {p} stages")
    chunks = chunks if p > 1 else 1
    spelling, parts = s.values.get("pipeline-model-parallel-layout", ("", None))
    if isinstance(parts, list):  # Bridge's form: the names of every part's layers
        named = "|".join("t" * str(part).count("decoder") for part in parts)
        s.values["pipeline-model-parallel-layout"] = spelling, named
    text = s.text("pipeline-model-parallel-layout")
    if text and p > 1:
        text = re.sub(r"\(([^)]+)\)\*(\d{1,3})", lambda found: found[1] * int(found[2]), text.replace(",", ""))
        text = re.sub(r"(.)\*(\d{1,3})", lambda found: found[1] * int(found[2]), text)
        counts = parallel["layers"] = [part.count("t") for part in text.split("|")]
        if len(counts) % p != 0 or sum(counts) != layers:
            raise Failure(f"{s.spelling('pipeline-model-parallel-layout')}: has {len(counts)} parts of {sum(counts)}"
                          f" layers, not {layers} layers on {p} stages")
        return len(counts) // p
    first = s.number("decoder-first-pipeline-num-layers", int, None, low=1)
    last = s.number("decoder-last-pipeline-num-layers", int, None, low=1)
    if p > 1 and (first or last or any(more)):
        others = p - (first is not None) - (last is not None)
        left = layers - (first or 0) - (last or 0)
        even = left / (others or 1) if first or last else (layers + sum(more)) / p
        if even != int(even) or (even < 1 if others else left) or int(even) % chunks:
            raise Failure(f"{s.spelling('decoder-first-pipeline-num-layers')} and the like: the other layers cannot be"
                          " divided evenly over the other stages")
        ranks = [int(even)] * p
        ranks[0], ranks[-1] = (first or ranks[0]), (last or ranks[-1])
        parts = parallel["layers"] = [ranks[i % p] // chunks for i in range(p * chunks)]
        parts[0] -= more[0] and not (first or last)
        parts[-1] -= more[1] and not (first or last)
    return chunks


def parameters(model):
    """Returns the numbers of parameters of the experts and of everything else."""
    gated = 3 if model["family"] == "llama" else 2
    attention = model["hidden"] * model["head_dim"] * 2 * (model["heads"] + model["kv_heads"])
    if model.get("kv_lora", 0) > 0:
        attention = (model["q_lora"] * (model["hidden"] + model["heads"] * model["head_dim"])
                     + model["kv_lora"] * (model["hidden"] + model["heads"] * (model["nope_dim"] + model["v_dim"]))
                     + model["hidden"] * (model["rope_dim"] + model["heads"] * model["v_dim"]))
    tables = model["vocab"] * model["hidden"] * (1 if model["tie_embeddings"] is True else 2)
    mixed = model["layers"] - model.get("dense_layers", 0) if model.get("experts", 0) > 1 else 0
    routed, shared = (mixed * model["experts"] * model["expert_ffn"], mixed * model["shared_ffn"]) if mixed else (0, 0)
    width = shared + (model["layers"] - mixed) * model["ffn"]
    return gated * model["hidden"] * routed, model["layers"] * attention + gated * model["hidden"] * width + tables


def zero(s, config, lacking=None):
    """ZeRO-1 is always planned; without it every data rank holds the whole optimizer state. lacking: the setting
    that turns it off."""
    parallel = config["parallel"]
    copies = parallel["data"] * parallel["context"]
    stage = s.number("zero-stage", int, 0, high=3)
    if stage > 1:
        s.say("memory", f"{s.spelling('zero-stage')} {stage}: ZeRO-1 is planned, which shards optimizer state over"
                        " data ranks, but neither gradients nor parameters")
    if "deepspeed" in s:
        lacking = "zero_optimization.stage is 0, or not known"
    lacking = lacking or f"{s.spelling('use-distributed-optimizer')} is not given"
    given = [s.flag(name) for name in ("use-distributed-optimizer", "overlapped-distributed-optimizer")]
    fsdp = any(name in s for name in FSDP)
    if not fsdp:  # which alone has this
        s.quiet("data-parallel-sharding-strategy")
    cut_there = any(given) or fsdp or stage > 0 or s.peek("optimizer") == "dist_muon"
    if not cut_there and copies > 1:
        experts, rest = parameters(config["model"])  # experts are sharded over their own ranks there, too
        t, e = parallel["tensor"], parallel.get("expert", 1)
        more = rest / t * (1 - 1 / copies) + experts / e * (1 - e / (t * copies))
        more *= 12 / parallel["pipeline"] / (1 << 30)
        s.say("memory", f"{lacking}: {SHARDED} {copies} ranks (ZeRO-1), which saves about {more:.1f} GiB per rank")


def convert_batch(s, config):
    train, schedule, parallel = config["train"], config["schedule"], config["parallel"]
    b, d = schedule["micro_batch"], parallel["data"]
    spelling, counted = s.spelling("global-batch-size"), s.spelling("gradient-accumulation-steps")
    parts = s.number("gradient-accumulation-steps", int, None, low=1, high=1 << 24)
    if "global-batch-size" not in s:
        many = f"{parts} microbatches ({counted})" if (parts or 1) > 1 else "one microbatch"
        s.say("batch", f"{spelling} is not given: {many} per step on each data rank, {b * d * (parts or 1)} sequences")
    total = train["global_batch"] = s.number("global-batch-size", int, b * d * (parts or 1), low=1, high=1 << 24)
    if parts and total != b * d * parts:
        s.say("batch", f"{counted} {parts}: {spelling} {total} is planned, {total // (b * d)} microbatches on each"
                       " data rank")
    if total % (b * d) != 0:
        raise Failure(f"{spelling} {total}: is not a multiple of micro-batch {b} times {d} data ranks; give --gpus N")
    grown = used = 0  # steps and samples before the full batch
    if "rampup-batch-size" in s:
        said = s.said("rampup-batch-size")
        begin, more, samples = s.integers("rampup-batch-size", 3)
        if begin < total and more > 0 and (total - begin) % more == 0:
            train["batch_ramp"], grown, used = ramped(begin, more, samples, total)
            train["batch_ramp"] = shortened(s, said, train["batch_ramp"], b * d * parallel["pipeline"])
            if any(size % (b * d) for _, size in train["batch_ramp"]):
                raise Failure(f"{said}: sizes are not multiples of micro-batch {b} times {d} data ranks")
        elif begin != total:
            raise Failure(f"{said}: does not reach {spelling} {total} in equal steps")
    steps_of(s, train, config["model"]["seq_len"], total, grown, used)


def ramped(begin, more, samples, total):
    """Returns ([[step, batch], ...], steps and samples before the full batch)."""
    count = (total - begin) // more
    each, step, used, ramp = samples / count, 0, 0, []
    for i in range(count):
        size = begin + i * more
        steps = max(0, int(-(-((i + 1) * each - used) // size)))
        if steps > 0:
            ramp.append([step + 1, size])
        step, used = step + steps, used + steps * size
    return [*ramp, [step + 1, total]], step, used


def shortened(s, said, ramp, least):
    """Returns the ramp with batches that give every stage a microbatch, and at most 64 sizes."""
    if ramp[0][1] < least <= ramp[-1][1]:
        s.say("batch", f"{said}: sizes below {least} leave stages without a microbatch; {least} is planned for them")
        later = [entry for entry in ramp if entry[1] >= least]
        ramp = [[1, least], *(later if later[0][1] > least else later[1:])]
    if len(ramp) > 64:
        s.say("batch", f"{said}: only 64 of the {len(ramp)} sizes are planned")
        ramp = [ramp[round(i * (len(ramp) - 1) / 63)] for i in range(64)]
    return ramp


def steps_of(s, train, seq_len, total, grown, used):
    """Sets train.steps and the keys that are counted in steps."""
    steps = s.number("train-iters", int, None, low=1, high=10**12)
    samples = s.number("train-samples", int, None, low=1)
    tokens = s.number("train-tokens", int, None, low=1)

    def in_steps(name, other, kind=int):
        """Returns a length that is given in samples, or in steps."""
        number = s.number(f"{name}-samples", int, None)
        other = s.number(f"{name}-iters", kind, other)
        if number is None:
            return other
        return round((number - used) / total) + grown if number > used else round(number / total)

    if steps is None and samples:
        steps = (samples - used) // total + grown if samples > used else max(1, samples // total)
    if tokens:  # the run ends at whichever limit comes first
        needed = -(-tokens // seq_len)
        needed = -(-(needed - used) // total) + grown if needed > used else -(-needed // total)
        steps = min(steps, needed) if steps else needed
    if steps is None:
        iters, samples = s.spelling("train-iters"), s.spelling("train-samples")
        s.say("length", f"neither {iters} nor {samples} is given: 100 steps are planned")
        steps = 100
    train["steps"] = max(1, steps)
    end = in_steps("lr-decay", None)
    warm = in_steps("lr-warmup", 0)
    fraction = s.number("lr-warmup-fraction", float, None, high=1)
    train["warmup_steps"] = round(fraction * (end or steps)) if fraction is not None else warm
    decay = in_steps("lr-wsd-decay", None)
    if decay is not None:
        train["decay_steps"] = min(decay, max(0, train["steps"] - train["warmup_steps"]))
        if decay > train["decay_steps"]:
            s.say("training", f"{s.spelling('lr-wsd-decay-iters')} {decay}: the decay begins after the warm-up here")
    if end and abs(end - steps) > 1:
        s.say("training", f"the learning rate falls until step {end} there ({s.spelling('lr-decay-iters')}, -samples)"
                          f" and until the last, {steps}, here")


def convert_precision(s, config):
    train = config["train"]
    half, short = s.spelling("fp16"), s.spelling("bf16")
    bf16, fp16 = s.flag("bf16"), s.flag("fp16")
    if fp16 and not bf16:
        summed = s.flag("accumulate-allreduce-grads-in-fp32")
        s.say("precision", f"{half}: is planned as bf16, which takes the same time and needs no loss scale"
                           + ("" if summed else "; gradients are summed in fp32 here: 2 bytes per parameter more"))
    fp8 = s.text("fp8-format fp8")
    for name in ("fp8-hybrid", "fp8-e4m3"):
        fp8 = (name[4:] if s.flag(name) else None) if not fp8 else fp8
    recipe = s.text("fp8-recipe", "delayed").lower()
    train["precision"] = "bf16" if bf16 or fp16 or fp8 else "fp32"
    if fp8 and not (bf16 or fp16):
        s.say("precision", f"fp8 without {short}: bf16 is planned for everything else")
    if not (bf16 or fp16 or fp8):
        s.say("precision", f"neither {short} nor {half} is given: fp32 is planned")
    if fp8 and (config["model"].get("experts", 0) > 1 or config["model"].get("kv_lora", 0) > 0):
        kind = "a mixture of experts" if config["model"].get("experts", 0) > 1 else "latent attention"
        s.say("precision", f"fp8 ({recipe}, {fp8}): {kind} is planned in bf16")
    elif fp8:
        if recipe not in FP8:
            raise Failure(f"{s.spelling('fp8-recipe')} {recipe}: cannot be planned; use one of {', '.join(FP8)}")
        train["fp8"] = FP8[recipe]
        s.say("precision", f"fp8 ({recipe}, {fp8}): train.fp8 {train['fp8']}, for the products of the layers"
                           + (", with scales of the current step" if recipe == "delayed" else ""))


def convert_attention(s, config):
    attention = config["attention"]
    backend = s.text("attention-backend", "auto").lower()
    fused = backend == "auto" and s.peek("transformer-impl") != "local" and "deepspeed" not in s
    kinds = ("use-flash-attn", "use-flash-attn-v2", "use-flash-attn-triton", "use-flash-attn-builder")
    asked = [s.flag(name) for name in kinds]
    flash = any(asked) or backend in ("flash", "fused") or fused
    if not flash and backend == "auto":
        s.say("speed", f"attention is not fused there (no {s.spelling('use-flash-attn')}), nor planned so")
    elif fused and not any(asked):  # older programs had no flash attention without a flag
        s.say("speed", f"{s.spelling('attention-backend')} is not given: flash attention is planned; with"
                       f" {s.spelling('transformer-impl')} local it is not")
    attention["mode"] = "flash" if flash else "none"
    attention["softmax"] = "unfused" if s.flag("no-masked-softmax-fusion") and not flash else "megatron"
    own = [s.flag("reset-attention-mask"), s.flag("dataloader-inter-document-masking")]
    anew = s.flag("reset-position-ids")
    if any(own) or anew:
        config["data"] = {"mask_documents": "on" if any(own) else "off", "reset_positions": "on" if anew else "off"}


def convert_recomputation(s, config):
    schedule, parallel, attention = config["schedule"], config["parallel"], config["attention"]
    p, chunks = parallel["pipeline"], schedule.get("chunks", 1)
    experts = "experts" in config["model"]
    granularity = s.text("recompute-granularity")
    method = s.text("recompute-method")
    old = s.text("activations-checkpoint-method")
    modules = s.text("recompute-modules", "core_attn")
    number = s.number("recompute-num-layers activations-checkpoint-num-layers checkpoint-num-layers", int, 1)
    if s.flag("recompute-activations") and granularity is None:
        granularity = "selective"
    whole = [s.flag("checkpoint-activations"), s.flag("deepspeed-activation-checkpointing"), bool(old)]
    if any(whole):
        granularity, method = "full", old or "uniform"
    if granularity == "full":
        if method not in (None, "uniform", "block"):
            raise Failure(f"{s.spelling('recompute-method')} {method}: is neither uniform nor block")
        counts = parallel.get("layers") or [-(-config["model"]["layers"] // p)] * p
        most = chunks * max(counts) if len(counts) > p else max(counts)
        schedule["recompute_layers"] = min(number * chunks, most) if method == "block" else most
        if method != "block" and number > 1:
            s.say("memory", f"inputs of one in {number} layers are kept there, of every layer here: more"
                            " memory")
    elif granularity == "selective":
        parts = [each for each in re.split(r"[\s,]+", modules) if each]
        if "core_attn" in parts and attention["mode"] == "none":
            attention["mode"] = "recompute"
        elif "core_attn" in parts:
            s.quiet_ones.append("selective recomputation of core_attn (flash attention keeps no probabilities)")
        others = [each for each in parts if each != "core_attn"]
        known = set(others) & {"layernorm", "mlp", "moe_act", "mla_up_proj", "shared_experts", "moe"}
        said = f"{s.spelling('recompute-modules')} {' '.join(others)}"
        if "moe" in others and experts:
            schedule["recompute"] = "experts"
        if "layernorm" in others:
            schedule["recompute"] = "pointwise"
        if known:
            s.say("memory", f"{said}: schedule.recompute {schedule.get('recompute', 'none')} is planned")
        elif others:
            s.say("unknown", f"{said}: not known here; nothing is planned for it")
    elif granularity is not None:
        raise Failure(f"{s.spelling('recompute-granularity')} {granularity}: is neither full nor selective")
    if experts and s.flag("moe-layer-recompute"):
        schedule.setdefault("recompute", "experts")


def convert_optimizer(s, config, lr_said):
    train = config["train"]
    optimizer = s.text("optimizer", "adam").lower()
    if optimizer in ("muon", "dist_muon", "adaptive_muon"):
        muon(s, train, optimizer)
    elif optimizer not in ("adam", "adamw", "fused_adam", "distributed_fused_adam", "mcore_distributed_optim",
                           "hybridadam"):
        s.say("memory", f"{s.spelling('optimizer')} {optimizer}: AdamW is planned, with two moments in fp32")
    style, styles = s.text("lr-decay-style", "linear"), ("cosine", "linear", "constant", "WSD")
    train["schedule"] = style.lower() if style in styles else "cosine"
    if style not in styles:
        s.say("training", f"{s.spelling('lr-decay-style')} {style}: cosine is planned")
    lr, low = train["lr"], s.number("min-lr", float, 0.0, high=100)
    if low > lr and lr_said:
        raise Failure(f"{s.spelling('min-lr')} {low:g}: is above {s.spelling('lr')} {lr:g}")
    train["min_lr_ratio"] = float(f"{min(low / lr, 1) if lr else 0:.12g}")
    shape = s.text("lr-wsd-decay-style", "exponential")
    if train["schedule"] == "wsd" and "decay_steps" not in train:
        raise Failure(f"{s.spelling('lr-wsd-decay-iters')}: is missing; {s.spelling('lr-decay-style')} WSD needs it")
    if train.get("decay_steps") == 0:
        train["schedule"] = "constant"
    if train["schedule"] != "wsd":
        train.pop("decay_steps", None)
        return
    shapes = {"linear": "linear", "cosine": "cosine", "minus_sqrt": "1-sqrt", "1-sqrt": "1-sqrt"}
    train["decay_shape"] = shapes.get(shape, "linear")
    if shape not in shapes:
        s.say("training", f"{s.spelling('lr-wsd-decay-style')} {shape}: a linear decay is planned")


def muon(s, train, optimizer):
    """Muon's keys. Its scale `spectral` is sqrt(max(out, in)), as ours; other scales and coefficients are named."""
    train["optimizer"] = "muon"
    train["muon_momentum"] = s.number("muon-momentum", float, 0.9, high=1)
    train["muon_scale"] = s.number("muon-extra-scale-factor", float, 1.0, high=1000)
    for name, default, category, text in (
        ("muon-scale-mode", "spectral", "training", "updates are scaled by sqrt(max(out, in)) here"),
        ("muon-tp-mode", "duplicated", "speed", "tensor ranks gather each matrix here"),
        ("muon-num-ns-steps", "5", "speed", "five steps are planned"),
        ("muon-fp32-matmul-prec", "medium", "speed", "its products are planned in the run's precision"),
        ("muon-scalar-optimizer", "adam", "memory", "AdamW is planned for all but the layers' matrices"),
    ):
        value = s.text(name, default)
        if value != default:
            s.say(category, f"{s.spelling(name)} {value}: {text}")
    value = s.text("muon-coefficient-type", "quintic")
    if value != "simple":
        s.say("training", f"{s.spelling('muon-coefficient-type')} {value}: the coefficients are those of `simple` here")
    if not s.flag("muon-nesterov"):
        s.say("training", f"{s.spelling('muon-nesterov')} is not given: Nesterov's momentum is used here")
    s.effect("muon-no-split-qkv", "training", "q, k and v are separate matrices here")
    if optimizer == "adaptive_muon":
        s.say("memory", f"{s.spelling('optimizer')} {optimizer}: Muon is planned, with one moment")


# ---- DeepSpeed's JSON


def deepspeed_file(s, path, files):
    """Adds the settings of DeepSpeed's JSON, if the script has it or it lies next to it. files: that the script at
    `path` writes."""
    name = next((each for each in ("deepspeed-config", "ds-config") if each in s), None)
    if name is None:
        return
    spelling, where = s.values.pop(name)
    if files.get(where, "") is None:
        s.say("precision", f"{spelling} {readable(where)}: the content of this file is unknown; its settings are not"
                           " planned")
        return
    text = files.get(where) or beside(path, str(where))
    text = text or (read_text(existing(where)) if isinstance(where, str) and existing(where) else None)
    if text is None:
        s.say("precision", f"{spelling} {readable(where)}: is not here; its settings are not planned")
        return
    s.quiet_ones.append(f"{spelling} {readable(where)}")
    try:  # a number that the script does not set becomes a text with its mark
        found = json.loads(re.sub(r'"(?:[^"\\]|\\.)*"|' + MARK.pattern,
                                  lambda part: part[0] if part[0].startswith('"') else json.dumps(part[0]), text))
        if not isinstance(found, dict):
            raise ValueError("no object")
    except (ValueError, RecursionError) as error:
        raise Failure(f"{readable(where)}: is not JSON ({error}); correct it or leave {spelling} out") from None
    for key, value in flattened(found):
        s.values["ds." + key] = ("ds." + key, value)
    for enabled, flag in (("ds.bf16.enabled", "bf16"), ("ds.fp16.enabled", "fp16"), ("ds.bfloat16.enabled", "bf16")):
        if s.flag(enabled):
            s.values.setdefault(flag, ("--" + flag, True))
    for key, flag, category in (
        ("train_batch_size", "global-batch-size", "batch"),
        ("train_micro_batch_size_per_gpu", "micro-batch-size", "batch"),
        ("gradient_accumulation_steps", "gradient-accumulation-steps", "batch"),
        ("zero_optimization.stage", "zero-stage", "memory"), ("gradient_clipping", "clip-grad", "training"),
    ):
        value = s.take("ds." + key)
        if is_off(value) or value == "auto":
            continue
        engines = category != "batch"  # DeepSpeed's engine reads these from its file alone
        if flag in s and s.peek(flag) != str(value):
            s.say(category, f"{readable(where)} says {value} for --{flag} {s.peek(flag)}; the"
                            f" {'file' if engines else 'flag'} is planned")
        if engines or flag not in s.values:
            s.values[flag] = ("ds." + key, value)
    if s.peek("zero-stage") in ("1", "2", "3") and "bf16" in s and "ds.data_types.grad_accum_dtype" not in s:
        s.say("precision", "data_types.grad_accum_dtype is not given: gradients are summed in bf16 there, in fp32 here:"
                           " 2 bytes per parameter more")
    rows = rows_of("deepspeed")
    s.effects(rows, "ds.")
    quiet = quiet_of(rows)
    for key in [each for each in s.values if each.startswith("ds.") and quiet(each.removeprefix("ds."))]:
        s.quiet(key)

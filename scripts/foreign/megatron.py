"""Megatron-LM's flags, and those of its descendants (Megatron-DeepSpeed, Pai), as our configuration. Names, defaults and
meanings are those of Megatron-LM core 0.20.0 (d98e8a64), and older names where they meant something else."""

import json
import re
from pathlib import Path

from run_files import Failure, read_text

from .job import gpus_of
from .settings import NO, REQUIRED, Settings
from .shell import Script, readable, slurm_lines, unknown_in

OTHER_MODELS = {
    "num-experts": "the model is a mixture of experts by this flag, which cannot be planned; leave it out with --moe-* and"
                   " --expert-* to plan the dense model",
    "multi-latent-attention": "multi-latent attention cannot be planned; use a model with grouped-query attention",
    "hybrid-layer-pattern": "layers of several kinds cannot be planned; use a model of attention layers",
    "hybrid-override-pattern": "layers of several kinds cannot be planned; use a model of attention layers",
    "hybrid-attention-ratio": "layers of several kinds cannot be planned; use a model of attention layers",
    "is-hybrid-model": "layers of several kinds cannot be planned; use a model of attention layers",
    "linear-attention-freq": "linear attention cannot be planned; use a model of softmax attention",
    "heterogeneous-layers-config-path": "layers that differ cannot be planned; give layers of one size",
    "decoder-seq-length": "encoder and decoder cannot be planned together; use a decoder alone",
    "decoder-num-layers": "encoder and decoder cannot be planned together; use a decoder alone",
    "mtp-num-layers": "heads for several tokens cannot be planned; leave the flag out to plan the model without them",
    "vision-pretraining": "images cannot be planned; use a language model",
    "freeze-LM": "a model with frozen parts cannot be planned; use pretraining",
    "freeze-all-layers": "a model with frozen parts cannot be planned; use pretraining",
}  # fmt: skip

# flag: category, effect. Flags that are given and cannot be converted, and what differs there.
EFFECTS = {
    "use-tp-pp-dp-mapping": ("world", "ranks are in another order there; here tensor ranks are neighbours, then context, stages and data"),
    "standalone-embedding-stage": ("world", "the embedding shares the first stage here"),
    "hierarchical-context-parallel-sizes": ("world", "context ranks exchange in one group here"),
    "num-distributed-optimizer-instances": ("memory", "the optimizer is cut over all data ranks here, not within one group of them"),
    "pipeline-model-parallel-split-rank": ("world", "is ignored: there is no decoder beside the stages"),
    "fp4-format": ("precision", "products are planned in bf16, which takes about two to three times as long"),
    "fp8-param-gather": ("precision", "parameters are gathered in bf16 here: 1 byte a parameter more"),
    "fp8-param": ("precision", "parameters are held in bf16 here: 1 byte a parameter more"),
    "fp8-dot-product-attention": ("precision", "attention is planned in bf16"),
    "fp8-multi-head-attention": ("precision", "attention is planned in bf16"),
    "first-last-layers-bf16": ("precision", "fp8 is planned for all layers"),
    "grad-reduce-in-bf16": ("precision", "gradients are summed in fp32 here: 2 bytes a parameter more, and twice the traffic of data ranks"),
    "fp32-residual-connection": ("precision", "the residual stream is planned in bf16: half its bytes"),
    "use-precision-aware-optimizer": ("memory", "masters and moments are planned in fp32, 12 bytes a parameter"),
    "main-grads-dtype": ("memory", "gradients are planned in fp32"),
    "main-params-dtype": ("memory", "masters are planned in fp32"),
    "exp-avg-dtype": ("memory", "moments are planned in fp32"),
    "exp-avg-sq-dtype": ("memory", "moments are planned in fp32"),
    "use-megatron-fsdp": ("memory", "parameters are not cut over data ranks here (ZeRO-1 is planned): more memory, less traffic"),
    "use-custom-fsdp": ("memory", "parameters are not cut over data ranks here (ZeRO-1 is planned): more memory, less traffic"),
    "use-torch-fsdp2": ("memory", "parameters are not cut over data ranks here (ZeRO-1 is planned): more memory, less traffic"),
    "data-parallel-sharding-strategy": ("memory", "optimizer state is cut over data ranks here (ZeRO-1), nothing else"),
    "cpu-offloading": ("memory", "activations stay on the GPU; schedule.bpipe with evict_to: host is nearest"),
    "cpu-offloading-num-layers": ("memory", "activations stay on the GPU; schedule.bpipe with evict_to: host is nearest"),
    "fine-grained-activation-offloading": ("memory", "activations stay on the GPU; schedule.bpipe with evict_to: host is nearest"),
    "offload-modules": ("memory", "activations stay on the GPU; schedule.bpipe with evict_to: host is nearest"),
    "optimizer-cpu-offload": ("memory", "the optimizer stays on the GPU"),
    "cpu-optimizer": ("memory", "the optimizer stays on the GPU"),
    "optimizer-offload-fraction": ("memory", "the optimizer stays on the GPU"),
    "optimizer-offload-policy": ("memory", "the optimizer stays on the GPU"),
    "distribute-saved-activations": ("memory", "saved inputs are cut over tensor ranks only with sequence parallelism here"),
    "distribute-checkpointed-activations": ("memory", "saved inputs are cut over tensor ranks only with sequence parallelism here"),
    "recompute-method": ("memory", "has an effect only with full recomputation, which is not asked for"),
    "recompute-num-layers": ("memory", "has an effect only with full recomputation, which is not asked for"),
    "deallocate-pipeline-outputs": ("memory", "outputs of stages are freed here as soon as they are sent"),
    "cuda-graph-impl": ("speed", "launches are not replayed from graphs here"),
    "enable-cuda-graph": ("speed", "launches are not replayed from graphs here"),
    "external-cuda-graph": ("speed", "launches are not replayed from graphs here"),
    "no-overlap-p2p-communication": ("speed", "messages between stages overlap here"),
    "delay-wgrad-compute": ("speed", "schedule.split_backward: on is nearest"),
    "embedding-layernorm": ("model", "no norm follows the embedding here"),
    "embed-layernorm": ("model", "no norm follows the embedding here"),
    "apply-layernorm-1p": ("model", "the norm's weight is not stored minus one here; sizes and times are the same"),
    "apply-residual-connection-post-layernorm": ("model", "the residual is taken before the norm here; sizes and times are the same"),
    "use-parallel-residual": ("model", "attention and feed-forward follow each other here; sizes are the same"),
    "qk-clip": ("model", "attention logits are not clipped here"),
    "softmax-type": ("model", "the softmax has no sink here"),
    "attention-output-gate": ("model", "attention has no output gate here: fewer parameters"),
    "no-rope-freq": ("model", "every layer has rotary positions here"),
    "window-size": ("model", "attention sees the whole sequence here, which takes longer"),
    "window-attn-skip-freq": ("model", "attention sees the whole sequence here, which takes longer"),
    "mup": ("training", "learning rates are the same for all tensors here"),
    "decoupled-lr": ("training", "the embedding and the output matrix train with --lr here"),
    "decoupled-min-lr": ("training", "the embedding and the output matrix train with --lr here"),
    "start-weight-decay": ("training", "weight decay is constant here"),
    "end-weight-decay": ("training", "weight decay is constant here"),
    "lr-warmup-init": ("training", "the warm-up starts at zero here"),
    "eod-mask-loss": ("training", "the loss counts end-of-text tokens here"),
    "exit-interval": ("length", "the run is planned to its last step"),
    "exit-duration-in-mins": ("length", "the run is planned to its last step"),
    "skip-train": ("length", "training is planned"),
    "finetune": ("training", "weights are loaded with checkpoint.init_from here"),
    "step-batch-size-schedule": ("batch", "the batch is planned as constant; train.batch_ramp is nearest"),
    "decrease-batch-size-if-needed": ("batch", "the batch has to fit the data ranks here"),
    "variable-seq-lengths": ("length", "every sequence is planned with --seq-length tokens"),
    "sft": ("length", "every sequence is planned with --seq-length tokens"),
    "curriculum-learning": ("length", "every sequence is planned with --seq-length tokens"),
    "curriculum-learning-legacy": ("length", "every sequence is planned with --seq-length tokens"),
    "random-ltd": ("length", "every layer is planned with all tokens"),
    "ds-inference": ("training", "training is planned"),
    "goldfish-loss": ("training", "the loss counts all tokens here"),
    "calculate-per-token-loss": ("training", "the loss is the mean over all tokens of a batch here, which is the same without masks"),
    "universal-checkpoint": ("training", "checkpoints of other trainers are not loaded"),
    "kd": ("training", "distillation is not planned"),
    "mos": ("training", "distillation is not planned"),
    "compression-training": ("training", "compression is not planned"),
    "defer-embedding-wgrad-compute": ("speed", "the embedding's gradient is computed in its place here"),
    "sequence-data-parallel-size": ("world", "is ignored; say --gpus N for the number of GPUs"),
}  # fmt: skip

# Flags that have no effect on a plan: what is read, written, logged, checked, and how kernels are fused.
QUIET = re.compile(
    r"(.*-path|.*-paths|.*-dir|.*-file|.*-prefix)$|((no-)?(save|load|log|ckpt|checkpoint|dist-ckpt|async|use-dist-ckpt|use-checkpoint|use-mp-args"
    r"|auto-detect-ckpt|non-persistent|tensorboard|wandb|one-logger|app-tag|timing|profile|use-pytorch-profiler|nvtx|record-memory"
    r"|memory-snapshot|eval|full-validation|exit|data|train-data|valid-data|test-data|per-split|split|mock|num-workers|num-dataset"
    r"|dataloader|dataset|create-attention-mask|tokenizer|vocab-file|merge-file|vocab-extra|tiktoken|null-tokenizer|patch-tokenizer|extra-vocab"
    r"|trust-remote|metadata|special-tokens|chat-template|distributed-|nccl|use-nccl|use-sharp|use-gloo|local-rank|lazy|node-rank|master"
    r"|rdzv|tee|redirects|manual-gc|te-|transformer-|use-mcore|use-legacy|rerun|straggler|error-injection|check-|inprocess|ft-|enable-ft"
    r"|calc-ft|run-workload|flight-recorder|inference|output-bert|max-tokens-to-oom|test-mode|seed|reset-|overlap-|align-|ddp-|gradient-"
    r"|masked-softmax|bias-|rope-fusion|persist-|cross-entropy-|apply-rope|use-transformer-engine|use-flash|use-fused|use-cpu-init"
    r"|cuda-graph-|high-priority|tp-comm-|batch-p2p|barrier|disable-jit|empty-unused|perform-init|override-opt|use-checkpoint-opt"
    r"|exp-|fp8-(margin|interval|amax|history|wgrad)|loss-scale|initial-loss|min-loss-scale|hysteresis|attention-softmax|accumulate-allreduce"
    r"|apply-query-key|deepspeed|deterministic|legacy|yaml|jsonl|num-classes|fim|hf-|enable-experimental|enable-msc|disable-msc|auto-tune"
    r"|trigger|kill-switch|codecarbon|abort-on|sync-tp|logging|verbosity|report|memory-centric|adlr|pad-|attn-mask|local-|bert-|ict|num-gpus"
    r"|num-nodes|hostfile|force-multi|num-channels|mask-|short-seq|sample-rate|onnx|openai-gelu|result-rejected|train-sync|gpu-sniff"
    r"|use-persistent|most-recent|keep-last|finetune-|retro|biencoder|titles|query-in|block-data|embedding-path|indexer|img-|patch-dim|mid-level|phase-"
    r"|rl-|grpo-|langrl|iterations-to-skip|goldfish-|compression-|kd-|curriculum-|random-ltd-|aml-|ds-pipeline|partition|pp-partition"
    r"|synchronize|contigious|checkpoint-in|checkpoint-num|profile-|enable-each|universal|use-one-sent|evidence|init-method-xavier|object-storage"
    r"|replication|verify-|clone-|skip-|wd-incr|valid-|valid|train-mode|max-padding|epochs|lr-warmup-steps|dump-|disable-bf16-red|heterogeneous-"
    r"|weight-decay-incr|disable-mem|actual-|rampup|moe-|expert-|use-turn|use-tutel|sgd-|muon-|lion-|disable-moe|mlp-type|topk|num-key-value-heads$)"
    r".*)"
)  # fmt: skip
ALONE = (
    "swiglu",
    "bf16",
    "fp16",
    "sequence-parallel",
    "use-distributed-optimizer",
    "group-query-attention",
    "disable-bias-linear",
)
TOKENIZERS = (  # size of the vocabulary by the tokenizer's name; the first that fits
    (r"gpt-?2", 50257), (r"llama-?_?3", 128256), (r"llama", 32000), (r"bert.*uncased|BertWordPieceLowerCase", 30522),
    (r"apertus|swissai-tok|mistral-nemo", 131072), (r"qwen-?_?(2|3)", 151936), (r"mistral.*v0\.3|mistral-large", 32768),
    (r"mistral-7b|mixtral-8x7b", 32000), (r"deepseek-?_?v2|deepseek-ai/deepseek-llm", 102400), (r"deepseek-?_?v3", 129280),
    (r"minitron|nemotron.*256k|gemma", 256000), (r"(^|/)mt5-", 250100), (r"(^|/)t5-", 32100), (r"starcoder2", 49152),
    (r"tiiuae/falcon", 65024), (r"bigscience/(tokenizer|bloom)|byte-level-bpe-tokenizer-no-norm-250k", 250680),
)  # fmt: skip
FP8 = {"delayed": "tensor", "tensorwise": "tensor", "blockwise": "block", "mxfp8": "mx"}


# ---- reading


def cut(word):
    """Cuts a quoted text of several flags into words."""
    return word.split() if word.startswith("--") and " " in word.strip() or " --" in word else [word]


def command_settings(command, settings):
    """Adds the flags of a command. Returns the launcher's words: those before the program."""
    words = [each for word in command for each in cut(word)]
    at = next(
        (
            i
            for i, word in enumerate(words)
            if word.endswith(".py") or (i and words[i - 1] == "-m" and "torch" not in word)
        ),
        None,
    )
    front, rest = (words[:at], words[at + 1 :]) if at is not None else ([], words)
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
            settings.say(
                "unknown", f"{readable(word)}: the script does not say what this is; its flags are not planned"
            )
        elif not word.startswith("-"):
            settings.say("unknown", f"{readable(word)}: belongs to no flag and is ignored")
    return front


def read_script(words):
    """Returns (settings, words of the launcher, {option: value} of Slurm) of words on our command line: NAME=VALUE...
    FILE [arguments of the script] [more flags], or flags."""
    given = {}
    while words and re.match(r"[A-Za-z_]\w*=", words[0]):
        name, _, value = words[0].partition("=")
        given[name], words = value, words[1:]
    settings, slurm = Settings(), {}
    path = existing(words[0]) if words else None
    if not words or words[0].startswith("-") or not (path or " " in words[0]):
        if (
            words
            and ("/" in words[0] or words[0].endswith((".sh", ".slurm", ".sbatch", ".yaml")))
            and not words[0].endswith("torchrun")
        ):
            raise Failure(f"{words[0]}: is not a file here")
        return settings, command_settings(words, settings), slurm, None
    text = read_text(path) if path else words[0]
    more = next((i for i, word in enumerate(words) if i > 0 and word.startswith("--")), len(words))
    if len(text) > 1 << 20:
        raise Failure(f"{path}: is larger than 1 MiB; give a launch script")
    if path and path.suffix in (".yaml", ".yml"):
        raise Failure(f"{path}: is YAML; say nemo instead of megatron")
    slurm = slurm_lines(text)
    script = Script(given, lambda name: beside(path, name), words[1:more])
    known = {"SLURM_NNODES": "nodes", "SLURM_JOB_NUM_NODES": "nodes", "SLURM_NTASKS": "ntasks", "SLURM_NPROCS": "ntasks",
             "SLURM_NTASKS_PER_NODE": "ntasks-per-node", "SLURM_GPUS_PER_NODE": "gpus-per-node"}  # fmt: skip
    for name, option in known.items():
        if (value := slurm.get("--" + option, "")).isdigit():
            script.given.setdefault(name, value)
    script.run(text)
    command = chosen(script, settings)
    if script.missing:
        settings.hint = f", and the script's {script.missing} arguments after its name"
    front = command_settings([*command, *words[more:]], settings)
    for note in script.notes:
        settings.say("unknown", note)
    if script.ends:
        settings.quiet_ones.append("not followed, since they depend on what the script does not say: "
                                   + ", ".join(dict.fromkeys(script.ends)))  # fmt: skip
    settings.files = script.files
    return settings, front, slurm, path


def existing(word):
    try:
        return Path(word) if Path(word).is_file() else None
    except (OSError, ValueError):  # too long, or a zero byte: no name of a file
        return None


def beside(path, name):
    """Returns the text of a file that a script names, if it lies next to the script."""
    near = existing(path.parent / Path(readable(name)).name) if path else None
    try:
        return read_text(near) if near and near != path and near.stat().st_size < 1 << 20 else None
    except (Failure, OSError):
        return None


def chosen(script, settings):
    """Returns the command that trains."""
    training = [
        each
        for each in script.commands
        if any("--num-layers" in word or "--encoder-num-layers" in word for word in each)
    ]
    training = training or [
        each for each in script.commands if any(re.search(r"pretrain\w*\.py|train\w*\.py", word) for word in each)
    ]
    # A file of flags has one on each line, and is no command.
    loose = [each for each in script.commands if each[0].startswith("--")]
    if loose and (not training or training[0] in loose):
        return [word for each in script.commands for word in each]
    if len(training) > 1 and any(each != training[0] for each in training):
        settings.say("unknown", f"the script starts {len(training)} runs; this is the first")
    if training:
        return training[0]
    # No command names the layers: the variables that hold flags are what another script will start.
    texts = [" ".join(value.values()) if isinstance(value, dict) else value for value in script.ever.values()]
    texts = [text for text in texts if re.search(r"(^|\s)--\w", text)]
    texts = [text for text in texts if not any(text.strip() in other and text != other for other in texts)]
    if not any("--num-layers" in text for text in texts):
        ends = f"the script ends in line {script.ended}, and no command of it" if script.ended else "no command of the script"
        raise Failure(f"{ends} has --num-layers; give the flags, or the variables that the script needs")
    settings.say("unknown", "no command of the script has --num-layers; the flags in its variables are converted")
    return [word for text in dict.fromkeys(texts) for word in text.split()]


# ---- conversion


def read(words):
    """Returns the Settings, the launcher's words and Slurm's options of words as read_script takes them."""
    settings, front, slurm, path = read_script(list(words))
    deepspeed_file(settings, path)
    return settings, front, slurm


def convert(s, gpus, front=(), slurm=None, model=None, defaults=None):
    """Returns our configuration. defaults: {flag: value} where the program's defaults differ from Megatron-LM's."""
    config = {name: {} for name in ("model", "parallel", "schedule", "attention", "train")}
    defaults = defaults or {}
    for flag, sentence in OTHER_MODELS.items():
        s.refuse(flag, sentence)
    if s.number("expert-model-parallel-size", int, 1) != 1:
        raise Failure("--expert-model-parallel-size: ranks of this kind cannot be planned; leave it out")
    convert_model(s, config, model or {}, defaults)
    world, each = gpus_of(s, front, slurm or {}, gpus)
    convert_layout(s, config, world)
    if each:
        config["hardware"] = {"gpus_per_node": each}
    convert_batch(s, config)
    convert_precision(s, config)
    convert_attention(s, config)
    convert_recomputation(s, config)
    convert_optimizer(s, config, defaults)
    for flag, (category, text) in EFFECTS.items():
        s.effect(flag, category, text)
    s.finish(lambda name: QUIET.match(name) is not None)
    return config


def vocabulary(s, default):
    for flag in ("padded-vocab-size", "pad-vocab-size-to"):
        if flag in s:
            s.quiet("vocab-size")
            return s.number(flag, int, low=1)
    if "vocab-size" in s or default is not REQUIRED:
        return s.number("vocab-size", int, default, low=1)
    said = [
        str(s.values[name][1])
        for name in (
            "tokenizer-model",
            "tokenizer-name-or-path",
            "patch-tokenizer-type",
            "tokenizer-type",
            "vocab-file",
        )
        if name in s
    ]
    if "merge-file" in s and "tokenizer-type" not in s:
        said.append("GPT2BPETokenizer")  # pretrain_gpt.py's own
    for text in said:
        for pattern, size in TOKENIZERS:
            if re.search(pattern, text, re.IGNORECASE):
                s.say("model", f"--vocab-size is not given: {size}, as the tokenizer {readable(text)} has")
                return size
    raise Failure(
        "--vocab-size: is missing, since a tokenizer says it there that is not known here; add it (after the script's name)"
    )


def convert_model(s, config, known, defaults):
    model = config["model"]
    for flag, key in (("num-layers", "layers"), ("hidden-size", "hidden"), ("num-attention-heads", "heads")):
        if flag == "num-layers" and flag not in s and "encoder-num-layers" in s:
            flag = "encoder-num-layers"
        if flag not in s and key not in known:
            raise Failure(f"{s.spelling(flag)}: is missing; add it, or say --model FILE with the sizes")
        model[key] = s.number(flag, int, known.get(key), low=1, high=1 << 20)
    if "seq-length" not in s and "encoder-seq-length" in s:
        s.values["seq-length"] = s.values.pop("encoder-seq-length")
    model["seq_len"] = s.number("seq-length", int, known.get("seq_len", REQUIRED), low=1, high=1 << 22)
    model["vocab"] = vocabulary(s, known.get("vocab", REQUIRED))
    gated, norm, place = family_of(s, model, known, defaults)
    llama = model["family"] == "llama"
    plain = int(4 * model["hidden"] * 2 / 3 / 64) * 64 if gated else 4 * model["hidden"]
    model["ffn"] = s.number("ffn-hidden-size", int, known.get("ffn", plain), low=1)
    if llama and not gated and not known:
        asked, model["ffn"] = model["ffn"], max(64, round(model["ffn"] * 2 / 3 / 64) * 64)
        s.say("model", f"the feed-forward part is not gated there: SwiGLU of width {model['ffn']} is planned for {asked}, which has"
                       " as many parameters and FLOPs")  # fmt: skip
    groups = s.number("num-query-groups", int, None, low=1)
    groups = s.number("num-key-value-heads", int, groups, low=1)
    grouped = s.flag("group-query-attention", defaults.get("group-query-attention", False) and groups is not None)
    model["kv_heads"] = (groups or 1) if grouped else known.get("kv_heads", model["heads"])
    if groups and not grouped and groups != model["heads"] and "num-key-value-heads" not in s:
        model["kv_heads"] = groups if defaults.get("deepspeed") else model["kv_heads"]
    if not llama and model["kv_heads"] != model["heads"]:
        raise Failure("--group-query-attention: GPT's layer cannot be planned with fewer key and value heads; leave it out, or use"
                      " --swiglu, --normalization RMSNorm and --position-embedding-type rope")  # fmt: skip
    model["head_dim"] = s.number(
        "kv-channels", int, known.get("head_dim", max(model["hidden"] // model["heads"], 1)), low=1
    )
    tied = known.get("tie_embeddings", True)
    model["tie_embeddings"] = False if s.flag("untie-embeddings-and-output-weights") else tied
    model["norm_eps"] = s.number("norm-epsilon", float, known.get("norm_eps", 1e-5), high=1)
    dropouts(s, defaults)
    padded(s, model)
    bias = not s.flag("disable-bias-linear", defaults.get("disable-bias-linear", False))
    if llama and bias and not known:
        s.say("model", "--disable-bias-linear is not given: linear layers have biases there, none are planned")
    if not llama and not bias:
        s.say("model", "--disable-bias-linear: GPT's linear layers are planned with biases")
    qkv_bias, qk_norm = (
        s.flag("add-qkv-bias", known.get("qkv_bias", False)),
        s.flag("qk-layernorm", known.get("qk_norm", False)),
    )
    if llama:
        model |= {"qkv_bias": qkv_bias, "qk_norm": qk_norm}
        rope(s, model, place, known)
    elif qk_norm:
        s.say("model", "--qk-layernorm: is not planned for GPT's layer")
    longest = s.number("max-position-embeddings", int, None, low=1)
    if longest and longest != model["seq_len"]:
        if llama:
            s.quiet_ones.append(f"--max-position-embeddings {longest}")
        else:
            s.say(
                "model",
                f"--max-position-embeddings {longest}: the table of positions is planned with {model['seq_len']}",
            )


def family_of(s, model, known, defaults):
    """Sets model.family. Returns (gated, norm, positions)."""
    if known:
        model |= {key: value for key, value in known.items() if key not in model}
    if "geglu" in s or "quick-geglu" in s:
        s.quiet("swiglu")
    gated = s.flag("swiglu", known.get("family") == "llama")
    if str(s.values.get("glu-activation", ("", ""))[1]) != "swiglu":
        s.effect("glu-activation", "model", "the activation is planned as GELU or SwiGLU")
    gated = s.text("glu-activation", "") == "swiglu" or gated
    if s.effect("geglu", "model", "the gate is planned as SwiGLU; sizes are the same") or s.effect(
        "quick-geglu", "model", "the gate is planned as SwiGLU; sizes are the same"
    ):
        gated = True
    ungated = [
        s.effect(name, "model", "the activation is planned as GELU or SwiGLU")
        for name in ("squared-relu", "xielu", "relu")
    ]
    gated = gated and not any(ungated)
    norm = s.text(
        "normalization", "RMSNorm" if known.get("family") == "llama" else defaults.get("normalization", "LayerNorm")
    )
    norm = {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm", "layernorm1p": "LayerNorm"}.get(norm.lower(), norm)
    place = s.text("position-embedding-type", "rope" if known.get("family") == "llama" else "learned_absolute")
    if place == "rope":
        s.quiet("use-rotary-position-embeddings")
    if s.flag("use-rotary-position-embeddings") or place == "rotary":
        place = "rope"
    if place == "rope":
        s.quiet("no-position-embedding")
    elif s.flag("no-position-embedding"):
        place = "none"
    if s.flag("use-alibi-position-embeddings"):
        place = "alibi"
    rotary = place in ("rope", "yarn")
    if (
        norm not in ("RMSNorm", "LayerNorm")
        or place in ("mrope", "relative")
        or (gated and not rotary)
        or (norm == "RMSNorm" and not rotary)
    ):
        raise Failure(
            f"--normalization {norm}, --position-embedding-type {place}, {'--swiglu' if gated else 'no --swiglu'}: is neither"
            " LLaMA's layer (RMSNorm, rope, --swiglu) nor GPT's (LayerNorm, learned_absolute); say one of them, the nearest"
        )
    model["family"] = "llama" if gated or norm == "RMSNorm" else "gpt"
    if model["family"] == "llama" and norm == "LayerNorm":
        s.say("model", "--normalization LayerNorm: RMSNorm is planned")
    if model["family"] == "gpt" and place != "learned_absolute":
        s.say(
            "model",
            f"--position-embedding-type {place}: GPT's learned positions are planned, a table of seq_len times hidden",
        )
    return gated, norm, place


def dropouts(s, defaults):
    kinds = {"hidden-dropout": defaults.get("dropout", 0.1), "attention-dropout": defaults.get("dropout", 0.1)}
    for name, default in kinds.items():
        given = f"--{name} is not given, so " if name not in s else ""
        rate = s.number(name, float, default, high=1)
        if rate > 0:
            s.say("model", f"{given}--{name} {rate:g}: there is no dropout here; its masks and passes are not planned")


def padded(s, model):
    by = s.number("make-vocab-size-divisible-by", int, 128, low=1)
    t = s.values.get("tensor-model-parallel-size", ("", 1))[1]
    t = int(t) if re.fullmatch(r"[1-9]\d{0,3}", str(t)) else 1
    size = -(-model["vocab"] // (by * t)) * by * t
    if size > 1.01 * model["vocab"]:
        s.say("model", f"--make-vocab-size-divisible-by {by}: the vocabulary is padded to {size} there")
    elif by != 1:
        s.quiet_ones.append(f"--make-vocab-size-divisible-by {by}")


def rope(s, model, place, known):
    model["rope_theta"] = s.number("rotary-base", float, known.get("rope_theta", 10000), low=1, high=1e12)
    percent = s.number("rotary-percent", float, 1.0, high=1)
    if percent != 1:
        s.say("model", f"--rotary-percent {percent:g}: all of a head is rotated here; sizes are the same")
    factor = s.number("rope-scaling-factor", float, 8.0, low=1, high=1e6)
    stretched = s.number("rotary-seq-len-interpolation-factor", int, 1, low=1, high=1e6)
    if place == "yarn":
        model |= {"rope_scaling": "yarn", "rope_factor": s.number("yarn-rotary-scaling-factor", float, s.number("rotary-scaling-factor", float, factor), low=1),
                  "rope_original": s.number("yarn-original-max-position-embeddings", int, s.number("original-max-position-embeddings", int, 4096), low=1),
                  "rope_beta_fast": s.number("yarn-beta-fast", float, 32.0), "rope_beta_slow": s.number("yarn-beta-slow", float, 1.0)}  # fmt: skip
    elif s.flag("use-rope-scaling"):
        model |= {"rope_scaling": "llama3", "rope_factor": factor, "rope_original": 8192}
    elif stretched > 1:
        model |= {"rope_scaling": "linear", "rope_factor": stretched}


def convert_layout(s, config, world):
    parallel, schedule, model = config["parallel"], config["schedule"], config["model"]
    p = parallel["pipeline"] = (
        1
        if s.flag("no-pipeline-parallel") and not s.quiet("pipeline-model-parallel-size")
        else s.number("pipeline-model-parallel-size", int, 1, low=1, high=1024)
    )
    old = s.number("model-parallel-size", int, 1, low=1, high=1024)
    t = parallel["tensor"] = s.number("tensor-model-parallel-size", int, old, low=1, high=1024)
    c = s.number("context-parallel-size", int, 1, low=1, high=1024)
    ulysses = s.number("ds-sequence-parallel-size", int, 1, low=1, high=1024)
    if ulysses > 1:
        s.say(
            "world",
            f"--ds-sequence-parallel-size {ulysses}: is planned as {ulysses} context ranks, which exchange keys and values instead of heads",
        )
        c *= ulysses
    parallel["context"] = c
    kind = s.take("cp-comm-type")
    if kind is not None and c > 1 and kind != "all_gather":
        s.say("speed", f"--cp-comm-type {kind}: context ranks gather keys and values here (all_gather)")
    elif kind is not None:
        s.quiet_ones.append(f"--cp-comm-type {kind}")
    if world % (p * t * c) != 0:
        shared = f" times {c} context" if c > 1 else ""
        raise Failure(f"{world} GPUs: is no multiple of {p} pipeline times {t} tensor{shared} ranks; say --gpus N")
    parallel["data"] = world // (p * t * c)
    if t == 1:  # nothing to split or to overlap
        s.quiet("sequence-parallel")
        s.quiet("tp-comm-overlap")
    parallel["sequence"] = s.flag("sequence-parallel")
    parallel["overlap"] = "auto" if s.flag("tp-comm-overlap") else "off"
    chunks = stages(s, parallel, model["layers"], p)
    group = s.number("microbatch-group-size-per-virtual-pipeline-stage", int, p, low=1, high=65536)
    if chunks > 1:
        schedule |= {"name": "interleaved", "chunks": chunks}
        if group != p:
            schedule |= {"name": "gis", "group": group}
    zero(s, config)


def stages(s, parallel, layers, p):
    """Sets parallel.layers where it is not even. Returns the number of chunks."""
    chunks = s.number("num-virtual-stages-per-pipeline-rank", int, 1, low=1, high=64)
    chunks = s.number("virtual-pipeline-model-parallel-size", int, chunks, low=1, high=64)
    per = s.number("num-layers-per-virtual-pipeline-stage", int, None, low=1)
    if per and p > 1:
        if layers % (p * per) != 0:
            raise Failure(
                f"--num-layers-per-virtual-pipeline-stage {per}: {layers} layers do not divide into chunks of {per} on {p} stages"
            )
        chunks = layers // p // per
    if p == 1:
        chunks = 1
    text = s.text("pipeline-model-parallel-layout")
    if text and p > 1:
        text = re.sub(r"\(([^)]+)\)\*(\d{1,3})", lambda found: found[1] * int(found[2]), text.replace(",", ""))
        text = re.sub(r"(.)\*(\d{1,3})", lambda found: found[1] * int(found[2]), text)
        parallel["layers"] = [part.count("t") for part in text.split("|")]
        if len(parallel["layers"]) % p != 0 or sum(parallel["layers"]) != layers:
            raise Failure(
                f"--pipeline-model-parallel-layout: has {len(parallel['layers'])} parts of {sum(parallel['layers'])} layers, not {layers} layers on {p} stages"
            )
        return len(parallel["layers"]) // p
    first, last = (
        s.number("decoder-first-pipeline-num-layers", int, None, low=1),
        s.number("decoder-last-pipeline-num-layers", int, None, low=1),
    )
    more = [s.flag("account-for-embedding-in-pipeline-split"), s.flag("account-for-loss-in-pipeline-split")]
    if p > 1 and (first or last or any(more)):
        even = (
            (layers - (first or 0) - (last or 0)) / (p - (first is not None) - (last is not None) or 1)
            if first or last
            else (layers + sum(more)) / p
        )
        if even != int(even) or even < 1 or (int(even) % chunks):
            raise Failure(
                "--decoder-first-pipeline-num-layers and the like: what remains does not divide over the other stages"
            )
        ranks = [int(even)] * p
        ranks[0], ranks[-1] = (first or ranks[0]), (last or ranks[-1])
        parts = [ranks[i % p] // chunks for i in range(p * chunks)]
        parts[0] -= more[0] and not (first or last)
        parts[-1] -= more[1] and not (first or last)
        parallel["layers"] = parts
    return chunks


def parameters(model):
    gated = 3 if model["family"] == "llama" else 2
    attention = model["hidden"] * model["head_dim"] * 2 * (model["heads"] + model["kv_heads"])
    return model["layers"] * (attention + gated * model["hidden"] * model["ffn"]) + model["vocab"] * model["hidden"] * (
        1 if model["tie_embeddings"] is True else 2
    )


def zero(s, config):
    """ZeRO-1 is always planned; without it every data rank holds the whole optimizer state."""
    parallel = config["parallel"]
    copies = parallel["data"] * parallel["context"]
    stage = s.number("zero-stage", int, None, high=3)
    if copies == 1 or any(name in s for name in ("use-megatron-fsdp", "use-torch-fsdp2", "use-custom-fsdp")):
        s.quiet("use-distributed-optimizer")
    cut_there = (
        s.flag("use-distributed-optimizer")
        or any(name in s for name in ("use-megatron-fsdp", "use-torch-fsdp2", "use-custom-fsdp"))
        or (stage or 0) > 0
    )
    if stage is not None and stage > 1:
        s.say(
            "memory",
            f"--zero-stage {stage}: ZeRO-1 is planned, which cuts optimizer state over data ranks and neither gradients nor parameters",
        )
    if not cut_there and copies > 1:
        more = (
            12
            * parameters(config["model"])
            / (parallel["pipeline"] * parallel["tensor"])
            * (1 - 1 / copies)
            / (1 << 30)
        )
        s.say("memory", f"--use-distributed-optimizer is not given: every data rank holds all optimizer state there; here it is cut over"
                        f" {copies} ranks (ZeRO-1), which saves about {more:.1f} GiB a rank")  # fmt: skip


def convert_batch(s, config):
    train, schedule, parallel = config["train"], config["schedule"], config["parallel"]
    b = schedule["micro_batch"] = (
        s.number(
            "micro-batch-size",
            int,
            s.number("batch-size", int, REQUIRED if "batch-size" in s else None, low=1),
            low=1,
            high=65536,
        )
        or REQUIRED
    )
    if b is REQUIRED:
        raise Failure("--micro-batch-size: is missing; add it")
    if "global-batch-size" not in s:
        s.say(
            "batch",
            f"--global-batch-size is not given: one microbatch a step on each data rank, {b * parallel['data']} sequences",
        )
    total = train["global_batch"] = s.number("global-batch-size", int, b * parallel["data"], low=1, high=1 << 24)
    if total % (b * parallel["data"]) != 0:
        raise Failure(
            f"--global-batch-size {total}: is no multiple of micro-batch {b} times {parallel['data']} data ranks; say --gpus N"
        )
    ramp, grown, used = [], 0, 0  # grown, used: steps and samples until the batch is full
    if "rampup-batch-size" in s:
        begin, more, samples = s.numbers("rampup-batch-size", int, 3)
        if begin < total and more > 0 and (total - begin) % more == 0:
            ramp, grown, used = ramped(begin, more, samples, total)
            least = b * parallel["data"] * parallel["pipeline"]
            if ramp[0][1] < least <= total:
                s.say(
                    "batch",
                    f"--rampup-batch-size {begin} {more} {samples}: sizes below {least} leave stages without a microbatch; {least} is planned for them",
                )
                later = [entry for entry in ramp if entry[1] >= least]
                ramp = (
                    later
                    if later[0][0] == 1
                    else [[1, least], *later]
                    if later[0][1] > least
                    else [[1, least], *later[1:]]
                )
            if len(ramp) > 64:
                s.say(
                    "batch",
                    f"--rampup-batch-size {begin} {more} {samples}: {len(ramp)} sizes there; 64 of them are planned",
                )
                ramp = [ramp[round(i * (len(ramp) - 1) / 63)] for i in range(64)]
            train["batch_ramp"] = ramp
            if any(size % (b * parallel["data"]) for _, size in ramp):
                raise Failure(
                    f"--rampup-batch-size {begin} {more} {samples}: sizes are no multiples of micro-batch {b} times {parallel['data']} data ranks"
                )
        elif begin != total:
            raise Failure(
                f"--rampup-batch-size {begin} {more} {samples}: does not reach --global-batch-size {total} in equal steps"
            )
    steps_of(s, train, total, grown, used)


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


def steps_of(s, train, total, grown, used):
    """Sets train.steps and what counts in steps."""
    steps = s.number("train-iters", int, None, low=1, high=10**12)
    samples = s.number("train-samples", int, None, low=1)
    tokens = s.number("train-tokens", int, None, low=1)
    in_steps = lambda count: round((count - used) / total) + grown if count > used else round(count / total)  # noqa: E731
    if steps is None and samples:
        steps = (samples - used) // total + grown if samples > used else max(1, samples // total)
    if steps is None and tokens:
        raise Failure("--train-tokens: needs --train-iters or --train-samples beside it; add one")
    if steps is None:
        s.say("length", "neither --train-iters nor --train-samples is given: 100 steps are planned")
        steps = 100
    train["steps"] = max(1, steps)
    end = s.number("lr-decay-iters", int, None, low=1)
    end = in_steps(s.number("lr-decay-samples", int, REQUIRED, low=1)) if "lr-decay-samples" in s else end
    warm = s.number("lr-warmup-iters", int, 0)
    warm = in_steps(s.number("lr-warmup-samples", int, 0)) if "lr-warmup-samples" in s else warm
    fraction = s.number("lr-warmup-fraction", float, None, high=1)
    train["warmup_steps"] = round(fraction * (end or steps)) if fraction is not None else warm
    for name in ("lr-decay-tokens", "lr-warmup-tokens"):
        s.effect(name, "training", "the learning rate follows steps here, and falls until the last one")
    for name in (
        ("lr-wsd-decay-iters", "lr-wsd-decay-samples") if "WSD" not in str(s.values.get("lr-decay-style")) else ()
    ):
        s.quiet(name)
    decay = s.number("lr-wsd-decay-iters", int, None)
    decay = in_steps(s.number("lr-wsd-decay-samples", int, REQUIRED)) if "lr-wsd-decay-samples" in s else decay
    if decay is not None:
        train["decay_steps"] = min(decay, train["steps"])
    if end and abs(end - steps) > 1:
        s.say(
            "training",
            f"the learning rate falls until step {end} there (--lr-decay-iters, -samples) and until the last, {steps}, here",
        )


def convert_precision(s, config):
    train = config["train"]
    bf16, fp16 = s.flag("bf16"), s.flag("fp16")
    if fp16 and not bf16:
        s.say("precision", "--fp16: is planned as bf16, which takes as many bytes and as long and needs no loss scale")
    fp8 = s.text("fp8-format", s.text("fp8"))
    fp8 = None if str(fp8).lower() in ("none", "false") else fp8
    for name in ("fp8-hybrid", "fp8-e4m3") if fp8 else ("fp8-hybrid", "fp8-e4m3", "fp8-recipe"):
        s.quiet(name)
    recipe = s.text("fp8-recipe", "delayed").lower()
    train["precision"] = "bf16" if bf16 or fp16 or fp8 else "fp32"
    if fp8 and not (bf16 or fp16):
        s.say("precision", "fp8 without --bf16: bf16 is planned beside it")
    if not (bf16 or fp16 or fp8):
        s.say("precision", "neither --bf16 nor --fp16 is given: fp32 is planned")
    if fp8:
        if recipe not in FP8:
            raise Failure(f"--fp8-recipe {recipe}: cannot be planned; use one of {', '.join(FP8)}")
        train["fp8"] = FP8[recipe]
        s.say("precision", f"fp8 ({recipe}, {fp8}): train.fp8 {train['fp8']}, for the products of the layers"
                           + (", with scales of the same step" if recipe == "delayed" else ""))  # fmt: skip


def convert_attention(s, config):
    attention = config["attention"]
    backend = s.text("attention-backend", "auto").lower()
    local = str(s.values.get("transformer-impl", ("", ""))[1]) == "local"
    fused = backend == "auto" and not local and "deepspeed" not in s
    s.quiet("transformer-impl")
    for name in ("use-flash-attn", "use-flash-attn-v2") if fused or backend in ("flash", "fused") else ():
        s.quiet(name)
    asked = [
        s.flag(name)
        for name in ("use-flash-attn", "use-flash-attn-v2", "use-flash-attn-triton", "use-flash-attn-builder")
    ]
    flash = any(asked) or backend in ("flash", "fused") or fused
    if not flash and backend == "auto":
        s.say("speed", "attention is not fused there (no --use-flash-attn): attention.mode none is planned")
    attention["mode"] = "flash" if flash else "none"
    if flash:
        s.quiet("no-masked-softmax-fusion")
    attention["softmax"] = "unfused" if s.flag("no-masked-softmax-fusion") else "megatron"
    own, anew = (
        s.flag("reset-attention-mask") or s.flag("dataloader-inter-document-masking"),
        s.flag("reset-position-ids"),
    )
    if own or anew:
        config["data"] = {"mask_documents": "on" if own else "off", "reset_positions": "on" if anew else "off"}


def convert_recomputation(s, config):
    schedule, parallel, attention = config["schedule"], config["parallel"], config["attention"]
    layers, p, chunks = config["model"]["layers"], config["parallel"]["pipeline"], config["schedule"].get("chunks", 1)
    granularity = s.text("recompute-granularity")
    method = s.text("recompute-method") if granularity == "full" else None
    if granularity is not None:
        s.quiet("recompute-activations")
    elif s.flag("recompute-activations"):
        granularity = "selective"
    old = s.text("activations-checkpoint-method")
    if s.flag("checkpoint-activations") or s.flag("deepspeed-activation-checkpointing") or old:
        granularity, method = "full", old or "uniform"
    if method not in (None, "uniform", "block"):
        raise Failure(f"--recompute-method {method}: is neither uniform nor block")
    modules = s.text("recompute-modules", "core_attn")
    number = s.number("activations-checkpoint-num-layers", int, s.number("checkpoint-num-layers", int, 1, low=1), low=1)
    number = s.number("recompute-num-layers", int, number, low=1) if granularity == "full" else number
    if granularity == "full":
        most = (
            max(parallel["layers"][s::p] and sum(parallel["layers"][s::p]) for s in range(p))
            if "layers" in parallel
            else -(-layers // p)
        )
        schedule["recompute_layers"] = min(number * chunks, most) if method == "block" else most
        if method != "block" and number > 1:
            s.say("memory", f"the inputs of every {number}th layer are kept there, of every layer here: more memory")
    elif granularity == "selective":
        others = [each for each in re.split(r"[\s,]+", modules) if each not in ("core_attn", "")]
        if "core_attn" in modules:
            if attention["mode"] == "none":
                attention["mode"] = "recompute"
            else:
                s.quiet_ones.append("selective recomputation of core_attn (flash attention keeps no probabilities)")
        if set(others) & {"layernorm", "mlp", "moe_act", "mla_up_proj", "shared_experts", "moe"}:
            if "layernorm" in others:
                schedule["recompute"] = "pointwise"
            s.say(
                "memory",
                f"--recompute-modules {' '.join(others)}: schedule.recompute {'pointwise' if 'layernorm' in others else 'none'} is planned",
            )
        elif others:
            s.say("unknown", f"--recompute-modules {' '.join(others)}: not known here; nothing is planned for it")
    elif granularity is not None:
        raise Failure(f"--recompute-granularity {granularity}: is neither full nor selective")


def convert_optimizer(s, config, defaults):
    train = config["train"]
    optimizer = s.text("optimizer", "adam").lower()
    if optimizer not in (
        "adam",
        "adamw",
        "fused_adam",
        "distributed_fused_adam",
        "mcore_distributed_optim",
        "hybridadam",
    ):
        s.say("memory", f"--optimizer {optimizer}: AdamW is planned, with two moments in fp32")
    for flag, key, default, high in (("weight-decay", "weight_decay", 0.01, 100), ("adam-beta1", "beta1", 0.9, 1), ("adam-beta2", "beta2", 0.999, 1),
                                     ("adam-eps", "eps", 1e-8, 1), ("clip-grad", "grad_clip", 1.0, 1e12), ("init-method-std", "init_std", 0.02, 1000)):  # fmt: skip
        train[key] = s.number(flag, float, defaults.get(flag, default), high=high)
    train["seed"] = s.number("seed", int, defaults.get("seed", 1234), high=1 << 53)
    if "lr" not in s:
        s.say("training", "--lr is not given: 3e-4 is planned")
    train["lr"] = s.number("lr", float, 3e-4, high=100)
    style = s.text("lr-decay-style", defaults.get("lr-decay-style", "linear"))
    train["schedule"] = {"cosine": "cosine", "linear": "linear", "constant": "constant", "WSD": "wsd"}.get(style)
    if train["schedule"] is None:
        train["schedule"] = "cosine"
        s.say("training", f"--lr-decay-style {style}: cosine is planned")
    low = s.number("min-lr", float, 0.0, high=100)
    if low > train["lr"]:
        raise Failure(f"--min-lr {low:g}: is above --lr {train['lr']:g}")
    train["min_lr_ratio"] = float(f"{low / train['lr'] if train['lr'] else 0:.12g}")
    if train["schedule"] == "wsd" and "decay_steps" not in train:
        raise Failure("--lr-wsd-decay-iters: is missing; --lr-decay-style WSD needs it")
    if train.get("decay_steps") == 0:
        train["schedule"] = "constant"
    if train["schedule"] != "wsd":
        train.pop("decay_steps", None)
        s.quiet("lr-wsd-decay-style")
        return
    shape = s.text("lr-wsd-decay-style", "exponential")
    train["decay_shape"] = {"linear": "linear", "cosine": "cosine", "minus_sqrt": "1-sqrt", "1-sqrt": "1-sqrt"}.get(
        shape, "linear"
    )
    if shape not in ("linear", "cosine", "minus_sqrt", "1-sqrt"):
        s.say("training", f"--lr-wsd-decay-style {shape}: a linear decay is planned")


# ---- DeepSpeed's JSON


def deepspeed_file(s, path):
    """Adds the settings of DeepSpeed's JSON, if the script has it or it lies next to it."""
    name = next((each for each in ("deepspeed-config", "ds-config") if each in s), None)
    if name is None:
        if "deepspeed" in s:
            s.quiet("deepspeed")
            s.values["deepspeed"] = ("--deepspeed", True)
        return
    spelling, where = s.values.pop(name)
    text = (
        getattr(s, "files", {}).get(where)
        or beside(path, str(where))
        or (read_text(existing(where)) if isinstance(where, str) and existing(where) else None)
    )
    if text is None:
        s.say("precision", f"{spelling} {readable(where)}: is not here; what it sets is not planned")
        return
    s.quiet_ones.append(f"{spelling} {readable(where)}")
    try:
        found = json.loads(text)
        if not isinstance(found, dict):
            raise ValueError("no object")
    except (ValueError, RecursionError) as error:
        raise Failure(f"{readable(where)}: is not JSON ({error}); mend it or leave {spelling} out") from None
    for key, value in flattened(found, ""):
        s.values["ds." + key] = ("ds." + key, value)
    for enabled, flag in (("ds.bf16.enabled", "bf16"), ("ds.fp16.enabled", "fp16"), ("ds.bfloat16.enabled", "bf16")):
        if s.flag(enabled):
            s.values.setdefault(flag, ("--" + flag, True))
    batch, micro = s.take("ds.train_batch_size"), s.take("ds.train_micro_batch_size_per_gpu")
    for flag, value in (("global-batch-size", batch), ("micro-batch-size", micro)):
        if value in NO or value == "auto":
            continue
        if flag in s and str(s.values[flag][1]) != str(value):
            s.say("batch", f"{readable(where)} says {value} for --{flag} {s.values[flag][1]}; the flag is planned")
        s.values.setdefault(flag, ("--" + flag, value))
    stage = s.take("ds.zero_optimization.stage")
    if stage is not None:
        s.values.setdefault("zero-stage", ("--zero-stage", stage))
    clip = s.take("ds.gradient_clipping")
    if clip is not None:
        s.values.setdefault("clip-grad", ("--clip-grad", clip))
    for key in ("ds.zero_optimization.offload_optimizer.device", "ds.zero_optimization.offload_param.device"):
        s.effect(key, "memory", "optimizer and parameters stay on the GPU here")
    for key in [each for each in s.values if re.match(r"ds\.(steps_per_print|wall_clock|zero_optimization|zero_allow|gradient_acc|fp16|bf16|data_types|"
                                                      r"prescale|flops_profiler|comms|tensorboard|csv|wandb|monitor|activation_check|communication|dump|"
                                                      r"memory_breakdown|checkpoint|train_|optimizer|scheduler|aio|sparse_gradients)", each)]:  # fmt: skip
        s.quiet(key)


def flattened(table, prefix):
    """Yields (a.b.c, value) of nested tables."""
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value

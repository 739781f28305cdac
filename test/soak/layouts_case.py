"""A seed of layouts.py determines what is trained, what may change sums by rounding, and the layouts that may not
change a bit. A configuration is a dictionary of keys that differ from BASE, and of THREADS."""

import math
import random

THREADS = "OMP_NUM_THREADS"
BASE = {
    "model": "{family: llama, hidden: 32, layers: 4, heads: 4, ffn: 48, vocab: 61, seq_len: 16}",
    "data": "{train: a_*.bin}",
    "train": "{global_batch: 8, steps: 2, lr: 3.0e-3, warmup_steps: 1}",
    "sample": "{tokenizer: ids}",
    "hardware": '{device: cpu, peak_tflops: 1, reserve_gib: 0.1, profile: ""}',
}
# With the same sums, these keys do not change a bit.
FREE = {
    THREADS, "parallel.pipeline", "parallel.layers", "parallel.placement", "parallel.overlap", "parallel.collectives",
    "parallel.shard_gradients", "schedule.name", "schedule.chunks", "schedule.group", "schedule.delay",
    "schedule.split_backward", "schedule.bpipe", "schedule.slots", "schedule.load_ahead", "schedule.evict_to",
    "schedule.recompute_layers", "schedule.recompute",
}  # fmt: skip
# These keys change the order of sums, so that results agree to rounding.
SUMS = {"parallel.tensor", "parallel.sequence", "parallel.data", "parallel.context", "parallel.expert",
        "schedule.slices",
        "schedule.expert_rows"}  # fmt: skip
ONE = {"schedule.bpipe": "off"}
WIDE = 200  # a vocabulary of which two tensor ranks have a part; the data have its tokens
# Tensor, data and context ranks, and stages; more than a few ranks take long on a small machine.
RANKS = [(1, 1, 1)] * 16 + [(2, 1, 1), (1, 2, 1), (1, 1, 2)] * 6 + [(4, 1, 1), (1, 3, 1), (1, 4, 1), (1, 1, 4)] * 2
RANKS += [(2, 2, 1), (2, 1, 2), (1, 2, 2)] * 4 + [(2, 2, 2), (4, 2, 1), (1, 2, 4)]
STAGES = (2, 2, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 6, 8)

# Every key is drawn (test_layouts.py) or is here, with the reason or with the test that has it.
NOT_DRAWN = {
    "the checks set it": "schedule.file sample.tokenizer sample.begin checkpoint.dir checkpoint.every checkpoint.keep "
    "log.metrics hardware.device hardware.gpu hardware.peak_tflops hardware.reserve_gib hardware.profile"
    " hardware.products_file",
    "for plans alone": "train.tokens hardware.memory_gib hardware.memory_gb_s hardware.gpus_per_node "
    "hardware.gpus_per_domain hardware.pair_gb_s hardware.tensor_gb_s hardware.network_gb_s hardware.host_gb_s"
    " hardware.latency_us "
    "hardware.matmul_efficiency hardware.matmul_half hardware.flash_forward hardware.flash_backward "
    "hardware.stream_gb_s hardware.run_share hardware.calibrated hardware.trainer hardware.action_us "
    "hardware.step_overhead_ms "
    "hardware.gpu_hour hardware.gpu_watts hardware.mtbf_hours hardware.checkpoint_s hardware.restart_s",
    "it changes no number": "log.every log.experts",
    "chaos.py": "train.max_restarts train.peer_timeout_s train.timeout_s",
    "test_checkpoint_runs.py": "checkpoint.keep_every checkpoint.overwrite checkpoint.changed",
    "test_transformers.py": "checkpoint.init_from",
    "test_models.py": "model.rope_share",
    "test_blend.py": "data.mixed_tokenizers",
    "test_evaluate.c": "data.hellaswag data.hellaswag_every",
    "test_virtual_gpu.py": "hardware.share_gpu",
    "for plans alone, with experts": "hardware.expert_spread",
}


def listed(values):
    return f"[{','.join(map(str, values))}]"


def composition(rng, total, parts):
    """Returns `parts` numbers from 0 on with this sum."""
    cuts = sorted(rng.randint(0, total) for _ in range(parts - 1))
    return [b - a for a, b in zip([0, *cuts], [*cuts, total])]


def number(keys, name, default=1):
    return int(keys.get(name, default))


class Draw:
    """Draws keys; each function writes into `keys`."""

    def __init__(self, rng):
        self.rng, self.keys = rng, {}

    def maybe(self, chance, name, *values):
        if self.rng.random() < chance:
            self.keys[name] = str(self.rng.choice(values))
        return self.keys.get(name)

    def model(self):
        draw, keys = self.rng, self.keys
        llama = draw.random() < 0.6
        heads, width = draw.choice([2, 4, 4, 8]), draw.choice([4, 8, 8, 16])
        keys.update({"model.family": "llama" if llama else "gpt", "model.heads": str(heads),
                     "model.hidden": str(min(64, heads * width)), "model.layers": str(draw.randint(2, 8)),
                     "model.ffn": str(draw.choice([16, 24, 48, 64, 96])),
                     "model.vocab": str(draw.choice([61, WIDE, 97])),
                     "model.seq_len": str(draw.choice([8, 12, 16, 16, 24, 32, 40, 64]))})  # fmt: skip
        self.maybe(0.1, "model.norm_eps", 1e-6, 1e-3)
        self.maybe(0.4, "model.tie_embeddings", "true", "false")
        if self.maybe(0.15, "model.causal", "false"):
            keys.update({"train.objective": "masked", "data.mask_token": "60"})
        if not llama:
            return
        self.maybe(0.5, "model.kv_heads", *[n for n in (1, 2, 4) if heads % n == 0])
        self.maybe(0.15, "model.head_dim", 6, 8, 16)
        self.maybe(0.4, draw.choice(["model.qkv_bias", "model.qk_norm"]), "true")
        self.maybe(0.1, "model.rope_theta", 1000, 500000)
        scaling = self.maybe(0.2, "model.rope_scaling", "linear", "llama3", "yarn")
        if scaling:
            self.maybe(0.9, "model.rope_factor", 2, 8)
            keys["model.rope_original"] = draw.choice(["8", "16"])
        if scaling == "llama3":
            self.maybe(0.5, "model.rope_low_freq", 0.5)
            self.maybe(0.5, "model.rope_high_freq", 8)
        if scaling == "yarn":
            self.maybe(0.5, "model.rope_beta_fast", 4)
            self.maybe(0.5, "model.rope_beta_slow", 0.5)
            self.maybe(0.5, "model.rope_attention", 1.5)

    def experts(self):
        """Draws a mixture of experts."""
        draw, keys = self.rng, self.keys
        if keys["model.family"] != "llama" or draw.random() < 0.7:
            return
        keys.update({"model.experts": draw.choice(["4", "6", "8"]),
                     "model.experts_per_token": draw.choice(["1", "2", "3"])})
        self.keys = keys = without(keys, {"model.qkv_bias", "model.qk_norm"})  # Mixtral has neither
        if self.maybe(0.4, "model.router", "sigmoid"):  # GLM-4.5
            width = number(keys, self.maybe(1, "model.expert_ffn", 8, 16, 24) and "model.expert_ffn")
            for name in ("model.qkv_bias", "model.qk_norm"):
                self.maybe(0.4, name, "true")
            self.maybe(0.6, "model.shared_ffn", width, 2 * width)
            self.maybe(0.5, "model.dense_layers", 1)
            if self.maybe(0.5, "model.router_groups", 2):
                self.maybe(0.8, "model.router_group_top", 1, 2)
            self.maybe(0.3, "model.router_scale", 2.5)
            self.maybe(0.2, "model.router_normalize", "false")
            if draw.random() < 0.5:  # DeepSeek-V3
                others = {"model.qkv_bias", "model.qk_norm", "model.kv_heads", "model.head_dim"}
                self.keys = keys = without(keys, others)
                keys.update({"model.kv_lora": draw.choice(["8", "12"]), "model.q_lora": draw.choice(["6", "16"]),
                             "model.nope_dim": draw.choice(["4", "6"]), "model.rope_dim": draw.choice(["2", "4"]),
                             "model.v_dim": draw.choice(["3", "6"])})  # fmt: skip
                if keys.get("model.rope_scaling") == "yarn":
                    self.maybe(0.5, "model.rope_mscale", 1)
        elif self.maybe(0.7, "model.qk_norm", "true"):  # Qwen3-MoE
            self.maybe(0.8, "model.expert_ffn", 8, 24)
            self.maybe(0.3, "model.router_normalize", "false")
        self.maybe(0.3, "train.router_z_loss", 1e-3)
        if self.maybe(0.5, "train.balance", *["loss", "bias"][: 1 + ("model.router" in keys)]):
            self.maybe(0.5, "train.balance_rate", 0.01)

    def data(self):
        draw, keys = self.rng, self.keys
        kind, a = draw.choice(["one", "shards", "shards", "blend"]), "wide" if keys["model.vocab"] == str(WIDE) else "a"
        paths = {"one": f"{a}_0.bin", "shards": f"{a}_*.bin"}
        weights = [draw.choice([0.2, 1, 3]) for _ in range(2)]
        keys["data.train"] = paths.get(kind) or (
            f'[{{path: "{a}_*.bin", weight: {weights[0]}}}, {{path: "b.bin", weight: {weights[1]}}}]')
        documents = self.maybe(0.3, "data.mask_documents", "on")
        if self.maybe(0.8 if documents else 0.1, "data.reset_positions", "on") or documents:
            keys["data.end_of_text"] = draw.choice(["0", "7"])
        if self.maybe(0.4, "data.val", "val.bin"):
            self.maybe(0.9, "data.val_every", 1, 2)
            self.maybe(0.9, "data.val_batches", 1, 2)
        if "model.causal" not in keys and self.maybe(0.1, "sample.every", 1, 2):
            self.maybe(0.5, "sample.count", 1, 3)
            self.maybe(0.5, "sample.top_k", 5)
            self.maybe(0.5, "sample.temperature", 0, 1)
            self.maybe(0.3, "sample.seed", 5)
            keys.update({"sample.tokens": "6", "sample.prompt": draw.choice(["5", "1 2 3"])})

    def training(self):
        draw, keys = self.rng, self.keys
        keys["train.steps"] = str(draw.choice([2, 2, 3, 4]))
        self.maybe(0.3, "train.lr", 1e-3, 1e-2)
        self.maybe(0.1, "train.min_lr_ratio", 0.5)
        self.maybe(0.2, "train.warmup_steps", 0, 3)
        if self.maybe(0.3, "train.schedule", "cosine", "linear", "constant", "wsd") == "wsd":
            self.maybe(0.5, "train.decay_steps", 1)
            self.maybe(0.5, "train.decay_shape", "cosine", "sqrt", "1-sqrt")
        self.maybe(0.2, "train.seed", 1, 2)
        self.maybe(0.15, "train.init_std", 0.05, 0.1)
        self.maybe(0.15, "train.z_loss", 1e-3)
        self.maybe(0.15, "train.weight_decay", 0, 1)
        self.maybe(0.1, "train.beta1", 0, 0.5)
        self.maybe(0.1, "train.beta2", 0.99)
        self.maybe(0.5, "train.eps", 1e-3)
        self.maybe(0.3, "train.grad_clip", 0, 0.05)
        experts = "model.experts" in keys
        if self.maybe(0.3, "train.optimizer", "muon"):
            self.maybe(0.3, "train.muon_momentum", 0, 0.9)
            self.maybe(0.3, "train.muon_scale", 0.05, 1)
        self.maybe(0.15, "train.skip_bad_steps", 2)
        self.maybe(0.1, "train.skip_outlier_z", 3)
        if self.maybe(0.3, "train.precision", "bf16"):
            # its products need multiples of 16 or 32
            if not experts and self.maybe(0.25, "train.fp8", "tensor", "block", "mx"):
                keys.update({"model.heads": "4", "model.hidden": "64", "model.ffn": "128", "model.seq_len": "64"})
                self.keys = without(keys, {"model.head_dim", "model.kv_heads"})

    def sums(self):
        """Draws what may change sums, and the batch."""
        draw, keys = self.rng, self.keys
        t, d, c = draw.choice(RANKS)
        keys.update({f"parallel.{name}": str(n) for name, n in (("tensor", t), ("data", d), ("context", c)) if n > 1})
        if t > 1:
            self.maybe(1 if "model.experts" in keys else 0.6, "parallel.sequence", "true")
        if "model.experts" in keys:
            self.maybe(0.7, "parallel.expert", *[e for e in (2, 3, 4, 8) if t * d * c % e == 0] or [1])
            self.maybe(0.5, "schedule.expert_rows", 1, 2)
        if c == 1:
            self.maybe(0.35, "schedule.slices", 2, 2, 3, 4, 8)
        self.maybe(0.4, "schedule.micro_batch", 2, 2, 3)
        self.maybe(0.5, "attention.mode", "none", "recompute", "flash")
        self.maybe(0.15, "attention.softmax", "unfused", "megatron")
        self.maybe(0.1, "attention.deterministic", "on", "off")
        unit = number(keys, "schedule.micro_batch") * number(keys, "parallel.data")
        if d * c > 1 and draw.random() < 0.2:
            keys["train.global_batch"] = str(unit)  # gradients can be sharded
            return
        batches = [str(unit * draw.choice([1, 2, 3, 4, 4, 5, 6, 8, 8, 12, 12, 12])) for _ in range(3)]
        keys["train.global_batch"] = batches[0]
        if draw.random() < 0.2:
            keys["train.batch_ramp"] = listed([listed([1 + i, batch]) for i, batch in enumerate(batches)])

    def layout(self, mixed):
        """Draws a layout that may not change a bit; with the chance `mixed`, stages with different attention."""
        draw, keys = self.rng, self.keys
        others = ranks(without(keys, {"parallel.pipeline"}))
        sliced, layers = number(keys, "schedule.slices") > 1, number(keys, "model.layers")
        p = draw.choice([1, *[p for p in STAGES if p * others <= draw.choice([4, 4, 4, 4, 4, 4, 8])]])
        name = draw.choice(["seq1f1b", "interleaved"] if sliced else [
            "1f1b", "1f1b", "1f1b", "gpipe", "zb-d", "interleaved", "interleaved", "gis", "gis", "v-half", "v-min",
            "zb-v", "dualpipe-v", "seq1f1b", "auto"])  # fmt: skip
        keys.update({"parallel.pipeline": str(p), "schedule.name": name})
        chunks = 2 if name in ("v-half", "v-min", "zb-v", "dualpipe-v") else 1
        if name in ("interleaved", "gis"):
            chunks = number(keys, self.maybe(0.7, "schedule.chunks", 2, 2, 3, 4) and "schedule.chunks", 2)
        if name == "gis":
            self.maybe(0.6, "schedule.group", "half", max(1, p - 1), p)
        if name == "zb-d":
            self.maybe(0.7, "schedule.delay", 0, 1, max(0, p - 2))
        self.maybe(0.4, "schedule.split_backward", "on", "on", "off")
        if self.maybe(0.5, "schedule.bpipe", "on", "on", "on", "auto"):
            self.maybe(0.5, "schedule.evict_to", "host", "peer")
            self.maybe(0.3, "schedule.slots", 2, p // 2 + 1, p // 2 + 2, p + 1)
            self.maybe(0.3, "schedule.load_ahead", 1, 2, 3)
        if draw.random() < 0.3 or layers < p * chunks:
            keys["parallel.layers"] = listed(composition(draw, layers, p * chunks))
        self.maybe(0.3, "parallel.placement", "adjacent", "stages")
        if draw.random() < 0.3:
            most = max(1, layers // p)
            keys["schedule.recompute_layers"] = draw.choice(
                [str(draw.randint(1, most)), listed([draw.randint(0, most) for _ in range(p)])])
        if draw.random() < 0.25:
            words = ["none", *(["experts"] if "model.experts" in keys else []), "pointwise"]
            keys["schedule.recompute"] = draw.choice([*words[1:], listed([draw.choice(words) for _ in range(p)])])
        if number(keys, "parallel.tensor") > 1:
            self.maybe(0.4, "parallel.overlap", "off", "on", "2", "4")
            self.maybe(0.3, "parallel.collectives", "nccl", "copy")
        if number(keys, "parallel.data") * number(keys, "parallel.context") > 1 and p == 1:
            self.maybe(0.6, "parallel.shard_gradients", "on", "auto")
        self.maybe(0.25, THREADS, 2, 3)
        if p > 1 and name != "auto" and draw.random() < mixed:
            keys["attention.mode"] = listed([draw.choice(["none", "recompute", "flash"]) for _ in range(p)])
        return keys


def without(keys, names):
    return {key: value for key, value in keys.items() if key not in names}


def ranks(keys):
    return math.prod(number(keys, f"parallel.{name}") for name in ("pipeline", "tensor", "data", "context"))


def mixes(keys):
    """Returns whether the attention of a layer, and so its sums, depends on its stage."""
    return keys.get("attention.mode", "").startswith("[")


def one_stage(keys):
    """Returns one stage with the same sums; if they depend on the stage, the same stages without all else."""
    if mixes(keys):
        return {**without(keys, FREE - {"parallel.pipeline", "parallel.layers", "schedule.name", "schedule.chunks"}),
                **ONE}
    sliced = {"schedule.name": "seq1f1b"} if number(keys, "schedule.slices") > 1 else {}
    return {**without(keys, FREE), **sliced, **ONE}


def one_rank(keys):
    return {**without(keys, FREE | SUMS | ({"attention.mode"} if mixes(keys) else set())), **ONE}


class Case:
    """`keys` is the tested layout; `others` are layouts with the same sums, for some of the `checks`.
    `ask(keys)` tells whether a configuration is legal; `refused` are the drawn ones that are not."""

    def __init__(self, seed, ask, chances):
        rng = random.Random(seed)
        self.seed, self.refused = seed, []
        self.checks = [name for name, chance in chances.items() if rng.random() < chance]
        trained = self.until_legal(lambda: self.draw_trained(rng), ask)
        self.keys, self.others = self.until_legal(lambda: self.draw_layout(rng, trained, 0.15), ask), []
        if {"resume", "forward"} & set(self.checks) and not mixes(self.keys):
            layouts = [self.until_legal(lambda: self.draw_layout(rng, trained, 0), ask) for _ in range(2)]
            self.others = [without(keys, set(trained) - FREE) for keys in layouts]

    def until_legal(self, draw, ask):
        while True:
            keys = draw()
            if ask(keys):
                return keys
            self.refused.append(keys)

    def draw_trained(self, rng):
        draw = Draw(rng)
        draw.model()
        draw.experts()
        draw.data()
        draw.training()
        draw.sums()
        return one_stage(draw.keys)

    def draw_layout(self, rng, trained, mixed):
        draw = Draw(rng)
        draw.keys = without(trained, FREE)
        return draw.layout(mixed)

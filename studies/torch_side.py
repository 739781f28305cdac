"""The PyTorch side of studies/side_by_side.py and studies/curve.py: LLaMA and GPT in plain PyTorch, trained on the
tokens that a trainer of ours would see, in the same order.

    torch_side.py SIDE.json     # a process of its own; prints {"losses", "norms", "ms", "mode"} as its last line

fp32 masters, moments and sums of gradients, clipping by the global norm, AdamW, no dropout, no recomputation. On a GPU
with PyTorch 2: one matrix for q, k and v and one for gate and up, compiled blocks and loss, SDPA, fused AdamW. With
masters "hooks" the model is bf16 and each gradient is added to fp32 when it is complete; "autocast" has fp32 weights.
"""

import argparse
import json
import math
import struct
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MASK = 2**64 - 1
# Settings of both studies, for this trainer and for PyTorch.
TRAIN = {"weight_decay": 0.1, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "grad_clip": 1.0, "seed": 1337}
OURS = {"train.schedule": "constant", "data.val": "", "data.val_every": 0, "checkpoint.every": 0, "checkpoint.dir": ""}


def parser_of(title, name, steps):
    """Returns a parser with the options of both studies."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="models that a CPU trains in a minute")
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--tokens", type=Path, default=ROOT / "data" / "bible_train_000.bin")
    parser.add_argument("--programs", type=lambda folder: Path(folder).resolve(), default=ROOT)
    parser.add_argument("--python", default=sys.executable, help="a Python that has PyTorch")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / name)
    return parser


def their_run(options, path, side, timeout=None):
    """Trains `side` with PyTorch in a separate process. Returns the JSON that it prints."""
    path.write_text(json.dumps({"device": options.device, "compile": options.device == "cuda", "init": 1,
                                "tokens": str(options.tokens), **side}))
    ended = subprocess.run([options.python, __file__, path], check=True, stdout=subprocess.PIPE, text=True,
                           timeout=timeout)
    return json.loads(ended.stdout.splitlines()[-1])


def our_run(options, command, metrics, keys, timeout=None):
    """Trains with this trainer's command and additional keys. Returns its lines of type run and step."""
    metrics.unlink(missing_ok=True)
    keys = OURS | keys | {"data.train": options.tokens, "hardware.device": options.device, "log.metrics": metrics}
    words = [f"{key}={value}" for key, value in keys.items()]
    subprocess.run([*command, "-q", *(word for pair in words for word in ("-o", pair))], check=True, timeout=timeout,
                   stdout=subprocess.DEVNULL)
    lines = list(map(json.loads, metrics.read_text().splitlines()))
    return lines[0], [line for line in lines if line["type"] == "step"]


def random_bits(seed, stream, index):
    """Philox 4x32-10, as src/base/normal.h."""
    c, k = [index & 0xFFFFFFFF, index >> 32, stream & 0xFFFFFFFF, stream >> 32], [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c[1] << 32 | c[0]


def permute(index, count, seed, epoch):
    """The order of samples of src/data/dataset.c: a Feistel network over [0, 4^half)."""
    half = max(1, math.ceil(math.log2(count) / 2))
    while 4**half < count:
        half += 1
    keys, low = [random_bits(~seed & MASK, epoch, i) for i in range(8)], 2**half - 1
    while True:
        left, right = index >> half, index & low
        for key in keys:
            x = (right + key) & MASK
            x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
            x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
            left, right = right, left ^ ((x ^ (x >> 31)) & low)
        index = left << half | right
        if index < count:
            return index


def write_tensors(path, tensors):
    """Writes a safetensors file of fp32 tensors, {name: tensor}."""
    head, at = {}, 0
    for name, value in tensors.items():
        size = value.numel() * 4
        head[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(head).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for value in tensors.values():
            file.write(value.detach().float().contiguous().cpu().numpy().tobytes())


def attend(torch, q, k, v):
    """Causal attention of (b, heads, s, dim); k and v may have fewer heads."""
    F = torch.nn.functional
    groups = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(groups, 1) if groups > 1 else x for x in (k, v))
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    s = q.shape[2]
    scores = (q @ k.transpose(2, 3)).float() / math.sqrt(q.shape[3])
    hidden = torch.ones(s, s, dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(hidden, float("-inf")).softmax(-1).to(v.dtype) @ v


def build(torch, m):
    """Returns a model with the sizes `m`, whose keys are those of our section `model`."""
    nn, F, gpt = torch.nn, torch.nn.functional, m.get("family") == "gpt"
    h, dim, kv = m["hidden"], m["hidden"] // m["heads"], m.get("kv_heads", m["heads"]) * (m["hidden"] // m["heads"])

    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(h))
            self.bias = nn.Parameter(torch.zeros(h)) if gpt else None

        def forward(self, x):
            if gpt:
                return F.layer_norm(x, (h,), self.weight, self.bias, m["norm_eps"])
            wide = x.float()
            return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + m["norm_eps"])).to(x.dtype) * self.weight

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = Norm(), Norm()
            self.qkv = nn.Linear(h, h + 2 * kv, bias=gpt or m.get("qkv_bias", False))
            self.out = nn.Linear(h, h, bias=gpt)
            self.up = nn.Linear(h, m["ffn"] * (1 if gpt else 2), bias=gpt)
            self.down = nn.Linear(m["ffn"], h, bias=gpt)

        def forward(self, x, cos, sin):
            b, s, _ = x.shape
            parts = self.qkv(self.norm1(x)).split((h, kv, kv), -1)
            q, k, v = (part.view(b, s, -1, dim).transpose(1, 2) for part in parts)
            if not gpt:
                q, k = (self.rotate(part, cos, sin) for part in (q, k))
            x = x + self.out(attend(torch, q, k, v).transpose(1, 2).reshape(b, s, h))
            y = self.up(self.norm2(x))
            if gpt:
                return x + self.down(F.gelu(y, approximate="tanh"))
            gate, up = y.chunk(2, -1)
            return x + self.down(F.silu(gate) * up)

        @staticmethod
        def rotate(x, cos, sin):
            low, high = x.float().chunk(2, -1)
            return torch.cat((low * cos - high * sin, high * cos + low * sin), -1).to(x.dtype)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(m["vocab"], h)
            self.places = nn.Embedding(m["seq_len"], h) if gpt else None
            self.blocks = nn.ModuleList(Block() for _ in range(m["layers"]))
            self.norm, self.head = Norm(), nn.Linear(h, m["vocab"], bias=False)
            if m.get("tie_embeddings"):
                self.head.weight = self.tokens.weight
            for name, p in self.named_parameters():
                if p.dim() == 2:
                    scaled = name.endswith(("out.weight", "down.weight"))
                    nn.init.normal_(p, std=0.02 / math.sqrt(2 * m["layers"]) if scaled else 0.02)
                elif name.endswith("bias"):
                    nn.init.zeros_(p)
            angle = torch.arange(m["seq_len"])[:, None] * m.get("rope_theta", 1e4) ** (
                -torch.arange(0, dim, 2, dtype=torch.float64) / dim)
            self.angles = angle.cos().float(), angle.sin().float()

        def loss(self, x, targets):
            logits = self.head(self.norm(x)).float()
            return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")

        def forward(self, inputs, targets):
            x = self.tokens(inputs)
            if gpt:
                x = x + self.places.weight
            for block in self.blocks:
                x = block(x, *self.angles)
            return self.loss(x, targets)

    return Model()


def as_transformers(model, m):
    """Returns the weights of a LLaMA by transformers' names."""
    h, kv = m["hidden"], m.get("kv_heads", m["heads"]) * (m["hidden"] // m["heads"])
    out = {"model.embed_tokens.weight": model.tokens.weight, "model.norm.weight": model.norm.weight,
           "lm_head.weight": model.head.weight}
    for i, block in enumerate(model.blocks):
        at = f"model.layers.{i}."
        q, k, v = block.qkv.weight.split((h, kv, kv))
        gate, up = block.up.weight.chunk(2)
        out |= {at + "self_attn.q_proj.weight": q, at + "self_attn.k_proj.weight": k,
                at + "self_attn.v_proj.weight": v, at + "self_attn.o_proj.weight": block.out.weight,
                at + "mlp.gate_proj.weight": gate, at + "mlp.up_proj.weight": up,
                at + "mlp.down_proj.weight": block.down.weight, at + "input_layernorm.weight": block.norm1.weight,
                at + "post_attention_layernorm.weight": block.norm2.weight}
    return out


def train(torch, side):
    import numpy

    m, t, device = side["model"], side["train"], side["device"]
    torch.manual_seed(side["init"])
    model = build(torch, m).to(device)
    model.angles = tuple(x.to(device) for x in model.angles)
    hooks = side["masters"] == "hooks" and hasattr(torch.Tensor, "register_post_accumulate_grad_hook")
    named = list(model.named_parameters())
    mains = [torch.nn.Parameter(p.detach().clone()) if hooks else p for _, p in named]
    if hooks:
        model.bfloat16()
        for p, main in zip(model.parameters(), mains):
            main.grad = torch.zeros_like(main)
            p.register_post_accumulate_grad_hook(
                lambda p, main=main: (main.grad.add_(p.grad), setattr(p, "grad", None)))
    if side["compile"] and hasattr(torch, "compile"):
        model.blocks = torch.nn.ModuleList(torch.compile(block) for block in model.blocks)
        model.loss = torch.compile(model.loss)
    decays = [p.dim() == 2 and not name.startswith("places") for name, p in named]
    groups = [{"params": [p for p, d in zip(mains, decays) if d], "weight_decay": t["weight_decay"]},
              {"params": [p for p, d in zip(mains, decays) if not d], "weight_decay": 0.0}]
    fused = {"fused": True} if device == "cuda" and hasattr(torch, "compile") else {}
    adamw = torch.optim.AdamW(groups, lr=t["lr"], betas=(t["beta1"], t["beta2"]), eps=t["eps"], **fused)
    tokens = numpy.fromfile(side["tokens"], "<u2", offset=1024).astype(numpy.int64)
    s, b, batch = m["seq_len"], side["micro_batch"], t["global_batch"]
    out = {"losses": [], "norms": [], "ms": [], "mode": "hooks" if hooks else "autocast"}
    samples = (len(tokens) - 1) // s
    for step in range(t["steps"]):
        began, total = time.perf_counter(), 0.0
        for group in adamw.param_groups:
            group["lr"] = t["lr"] * min(1.0, (step + 1) / t["warmup_steps"]) if t["warmup_steps"] else t["lr"]
        places = range(step * batch, (step + 1) * batch)
        order = [permute(i % samples, samples, t["seed"], i // samples) for i in places]
        for first in range(0, batch, b):
            rows = numpy.stack([tokens[i * s : i * s + s + 1] for i in order[first : first + b]])
            rows = torch.from_numpy(rows).to(device)
            wide = not hooks and side["precision"] == "bf16"
            with torch.autocast(device, torch.bfloat16, enabled=wide):
                loss = model(rows[:, :-1], rows[:, 1:])
            (loss / (batch * s)).backward()
            total += loss.detach()
        norm = torch.nn.utils.clip_grad_norm_(mains, t["grad_clip"] or float("inf"))
        adamw.step()
        for main, (_, p) in zip(mains, named):
            main.grad.zero_() if hooks else setattr(p, "grad", None)
        if hooks:
            with torch.no_grad():
                torch._foreach_copy_([p for _, p in named], mains)
        out["losses"].append(float(total) / (batch * s))
        out["norms"].append(float(norm))
        out["ms"].append(1e3 * (time.perf_counter() - began))
    return out


def main():
    import torch

    side = json.loads(Path(sys.argv[1]).read_text())
    if "threads" in side:
        torch.set_num_threads(side["threads"])
    if side.get("write"):  # the initial weights, from which our run starts
        torch.manual_seed(side["init"])
        write_tensors(side["write"], as_transformers(build(torch, side["model"]), side["model"]))
    print(json.dumps(train(torch, side)))


if __name__ == "__main__":
    main()

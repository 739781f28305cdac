"""Muon: against plain PyTorch, and its bytes. test_layouts has the bits for any pipeline, the rounding of any other
layout, momentum in checkpoints, and resumes."""

import json
import math

import numpy
import pytest
import torch
from reference_models import token_losses
from trainer_runs import MODELS, Trainer, close, command, layout, saving, tensors_of, walked_tokens

pytestmark = pytest.mark.usefixtures("ranks")

TINY = {family: {**model, "layers": 4} for family, model in MODELS.items()}
EXPERTS = {**TINY["llama"], "experts": 8, "experts_per_token": 2, "expert_ffn": 24, "qk_norm": True}
# Latent attention, a dense layer, shared experts and biased scores.
LATENT = {**{key: value for key, value in EXPERTS.items() if key not in ("kv_heads", "qk_norm")}, "kv_lora": 12,
          "q_lora": 16, "nope_dim": 6, "rope_dim": 4, "v_dim": 8, "router": "sigmoid", "shared_ffn": 24,
          "dense_layers": 1}  # fmt: skip


# --- bytes


def test_plans_count_its_bytes_and_seconds():
    """A stage's matrices lose 4 bytes a parameter; their products cost seconds. With and without data ranks."""
    for ranks in (1, 2):
        plans = []
        for optimizer in ("adamw", "muon"):
            keys = (f"train.optimizer={optimizer}", f"parallel.data={ranks}", "hardware.device=cuda",
                    "hardware.gpu=h100")
            said = command("llama", "-c", "configs/llama65b.yaml", "--plan", "--json", "-q", overrides=keys)
            plans.append(json.loads(said.stdout))
        adamw, muon = ([{part["what"]: part["ms"] for part in plan["waterfall"]}["optimizer"] for plan in plans])
        assert muon > adamw
        adamw, muon = ([plan["stages"][1]["memory"] for plan in plans])
        assert muon["masters"] + muon["optimizer"] < adamw["masters"] + adamw["optimizer"]
        if ranks == 1:
            assert muon["optimizer"] * 2 < 1.01 * adamw["optimizer"] and muon["masters"] == adamw["masters"]


# --- PyTorch


def orthogonal(x):
    """Five steps of the quintic of Jordan et al. (2024) on the shorter side."""
    turned = x.shape[0] > x.shape[1]
    x = (x.T if turned else x) / (x.norm() + 1e-7)
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.T if turned else x


# Not the defaults of any key.
KEYS = {"train.beta1": 0.8, "train.beta2": 0.97, "train.eps": 1.0e-6, "train.weight_decay": 0.3,
        "train.muon_momentum": 0.9, "train.muon_scale": 0.15, "train.grad_clip": 0.5}  # fmt: skip


def muon_step(weight, gradient, momentum, lr, decay, parts):
    momentum.lerp_(gradient, 1 - KEYS["train.muon_momentum"])
    ahead = gradient.lerp(momentum, KEYS["train.muon_momentum"])
    scale = KEYS["train.muon_scale"]
    direction = torch.cat([orthogonal(part) * scale * math.sqrt(max(part.shape)) for part in ahead.chunk(parts)])
    weight.data.mul_(1 - lr * decay).sub_(lr * direction)


def torch_losses(model, weights, tokens, steps, lr):
    """Trains on the same batch for some steps, in float64; returns losses and norms. Routers are AdamW's."""
    weights = {name: torch.tensor(w, dtype=torch.float64, requires_grad=True) for name, w in weights.items()}
    matrices = {name for name, w in weights.items() if w.ndim == 2 and (".layers." in name or ".h." in name)
                and not name.endswith(".gate.weight")}
    decay, clip = KEYS["train.weight_decay"], KEYS["train.grad_clip"]
    rest = [{"params": [w for n, w in weights.items() if n not in matrices and w.ndim == 2], "weight_decay": decay},
            {"params": [w for n, w in weights.items() if n not in matrices and w.ndim == 1], "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(rest, lr=lr, betas=(KEYS["train.beta1"], KEYS["train.beta2"]), eps=KEYS["train.eps"])
    momentum, found = {name: torch.zeros_like(weights[name]) for name in matrices}, []
    for _ in range(steps):
        tied = {"lm_head.weight": weights["transformer.wte.weight"]} if model["family"] == "gpt" else {}
        loss = token_losses(model, {**weights, **tied}, tokens).mean()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(weights.values(), clip)
        found.append((loss.item(), norm.item()))
        for name in matrices:
            parts = 3 if "c_attn" in name else 1
            muon_step(weights[name], weights[name].grad, momentum[name], lr, decay, parts)
        adamw.step()
        for weight in weights.values():
            weight.grad = None
    return found


@pytest.mark.parametrize("kind", ["llama", "gpt", "experts", "latent"])
def test_steps_are_those_of_pytorch(tmp_path, kind):
    """Twenty; with experts ten, before rounding moves a token to another one."""
    torch.set_num_threads(1)
    model, batch, steps = {**TINY, "experts": EXPERTS, "latent": LATENT}[kind], 8, 20 if kind in TINY else 10
    tokens = walked_tokens(batch * model["seq_len"] + 1, model["vocab"])
    ours = Trainer(tmp_path, model, tokens)
    always = {"train.schedule": "constant", "train.warmup_steps": 0, "train.optimizer": "muon", "train.global_batch": 8,
              **KEYS}
    ours.run(always, layout(), saving(tmp_path / "first", 1), {"train.lr": 0, "train.steps": 1})
    first = tensors_of(tmp_path / "first" / "step_00000001")
    weights = {name: w.T if kind == "gpt" and ".h." in name and w.ndim == 2 else w for name, w in first.items()
               if name.endswith((".weight", "bias"))}
    samples = numpy.stack([tokens[i * model["seq_len"] : (i + 1) * model["seq_len"] + 1] for i in range(batch)])
    want = torch_losses(model, weights, torch.tensor(samples), steps, 0.01)
    curve = ours.run(always, layout(), {"train.lr": 0.01, "train.steps": steps}).curve()
    assert close([step[1] for step in curve], [step[0] for step in want], 1e-4)
    assert close([step[2] for step in curve], [step[1] for step in want], 1e-3)
    assert curve[-1][1] < 0.6 * curve[0][1]


# --- checkpoints


@pytest.mark.parametrize("family", TINY)
@pytest.mark.parametrize("was, now", [("muon", "adamw"), ("adamw", "muon")])
def test_another_optimizer_has_to_be_accepted(tmp_path, family, was, now):
    ours = Trainer(tmp_path, TINY[family], walked_tokens(4000, TINY[family]["vocab"]))
    ours.run(layout(), saving(tmp_path, 4), {"train.optimizer": was, "train.steps": 4})
    changed = {"train.optimizer": now}
    refused = ours.run(layout(), changed, resume=tmp_path, code=2).stderr
    assert f"was trained with train.optimizer: {was}" in refused and "checkpoint.changed: accept" in refused
    accepted = ours.run(layout(p=2), changed, {"checkpoint.changed": "accept"}, resume=tmp_path)
    assert "the moments of the layers' matrices start at zero" in accepted.stderr
    assert accepted.curve(5) and all(math.isfinite(loss) for _, loss, _ in accepted.curve(5))

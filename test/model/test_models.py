"""Compares losses, every gradient and the initial weights of both models with PyTorch's autograd in float64.

The trainer's results come from tool_gradients.c, which runs a batch through all stages in one process.
"""

import functools
import json
import tempfile
from pathlib import Path

import numpy
import pytest
import torch

from reference_models import SCORE_BIAS, expert_copies, router_loss, token_losses
from trainer_runs import TOOLS, execute, one_thread

TOOL = TOOLS / "tool_gradients"

torch.set_num_threads(1)

# Sizes that are not multiples of a vector's or a tile's width; vocabulary 257 is padded to 384.
LLAMA = {"family": "llama", "hidden": 72, "layers": 3, "heads": 6, "ffn": 100, "vocab": 257, "seq_len": 37}
GPT = {"family": "gpt", "hidden": 60, "layers": 3, "heads": 4, "ffn": 100, "vocab": 257, "seq_len": 37}
MODELS = {
    "llama": LLAMA,
    "llama_grouped": dict(LLAMA, kv_heads=2),
    "llama_one_kv_head": dict(LLAMA, kv_heads=1, layers=2, rope_theta=500.0, norm_eps=1e-3),
    "llama_tied": dict(LLAMA, kv_heads=2, tie_embeddings=True),
    "llama_wide_heads": dict(LLAMA, kv_heads=2, head_dim=18),
    "llama_linear": dict(LLAMA, kv_heads=2, rope_scaling="linear", rope_factor=2.5),
    "llama31": dict(LLAMA, kv_heads=2, head_dim=16, rope_scaling="llama3", rope_factor=8.0, rope_original=32,
                    rope_low_freq=1.5, rope_high_freq=3.0),
    "llama_yarn": dict(LLAMA, kv_heads=2, head_dim=32, rope_scaling="yarn", rope_factor=4.0, rope_original=24,
                       rope_beta_fast=0.5, rope_beta_slow=0.1),
    "qwen2": dict(LLAMA, kv_heads=2, qkv_bias=True, tie_embeddings=True),
    "qwen3": dict(LLAMA, kv_heads=2, qk_norm=True, head_dim=20),
    "gpt": GPT,
    "partly_rotated": dict(LLAMA, kv_heads=2, head_dim=20, rope_share=0.5),
    "mixtral": dict(LLAMA, kv_heads=2, experts=5, experts_per_token=2),
    "qwen3_moe": dict(LLAMA, kv_heads=2, qk_norm=True, experts=6, experts_per_token=3, expert_ffn=44),
    "raw_weights": dict(LLAMA, qk_norm=True, experts=6, experts_per_token=3, expert_ffn=44, router_normalize=False),
    "shared_expert": dict(LLAMA, qk_norm=True, experts=4, experts_per_token=2, expert_ffn=40, shared_ffn=28,
                          dense_layers=1),
    "sigmoid_groups": dict(LLAMA, experts=8, experts_per_token=2, expert_ffn=40, shared_ffn=28, router="sigmoid",
                           router_groups=4, router_group_top=2, router_scale=2.5),
    "glm4_moe": dict(LLAMA, kv_heads=2, head_dim=20, qkv_bias=True, qk_norm=True, rope_share=0.5, experts=8,
                     experts_per_token=2, expert_ffn=40, shared_ffn=28, dense_layers=1, router="sigmoid",
                     router_scale=2.5),
    "latent": dict(LLAMA, kv_lora=24, q_lora=20, nope_dim=10, rope_dim=6, v_dim=12, norm_eps=1e-2),
    "latent_yarn": dict(LLAMA, kv_lora=24, q_lora=20, nope_dim=8, rope_dim=4, v_dim=12, rope_scaling="yarn",
                        rope_factor=4.0, rope_original=24, rope_mscale=1.0, rope_attention=1.0),
    "llama_encoder": dict(LLAMA, kv_heads=2, causal=False),
    "gpt_encoder": dict(GPT, causal=False),
    "gpt_untied": dict(GPT, tie_embeddings=False),
}
TIED = ["llama_tied", "qwen2", "gpt", "gpt_encoder"]
MODES = ["none", "recompute", "flash"]


# --- the trainer's side


def read_records(path):
    """Reads the tool's records: a line `name rows cols`, then rows * cols float32."""
    data, records, at = path.read_bytes(), {}, 0
    while at < len(data):
        end = data.index(b"\n", at)
        name, rows, cols = data[at:end].split()
        shape = int(rows), int(cols)
        assert name.decode() not in records
        records[name.decode()] = numpy.frombuffer(data, "<f4", shape[0] * shape[1], end + 1).reshape(shape)
        at = end + 1 + 4 * shape[0] * shape[1]
    return records


def write_records(path, weights):
    with path.open("wb") as file:
        for name, weight in weights.items():
            rows, cols = (*weight.shape, 1)[:2]
            file.write(f"{name} {rows} {cols}\n".encode() + weight.numpy().astype("<f4").tobytes())


def run_tool(folder, model, tokens, weights=None, b=1, mode="flash", p=1, **train):
    """Runs the tool on the batch of `tokens`, (sequences, seq_len + 1); returns its records."""
    config = {
        "model": model,
        "parallel": {"pipeline": p},
        "schedule": {"micro_batch": b},
        "attention": {"mode": mode},
        "train": {"global_batch": len(tokens), "precision": "fp32", **train},
        "data": {"train": "none.bin"},
        "hardware": {"device": "cpu"},
    }
    (folder / "config.yaml").write_text(json.dumps(config))
    (folder / "tokens.bin").write_bytes(tokens.numpy().astype("<i4").tobytes())
    options = []
    if weights is not None:
        write_records(folder / "weights.bin", weights)
        options = [folder / "weights.bin"]
    assert TOOL.exists(), f"{TOOL} is missing; make test builds it"
    execute([TOOL, folder / "config.yaml", folder / "tokens.bin", folder / "out.bin", *options], env=one_thread())
    return read_records(folder / "out.bin")


def parts(records, kind):
    return {name[len(kind) + 1 :]: array for name, array in records.items() if name.startswith(kind + ":")}


# --- the reference's side


def random_tokens(model, sequences, seed=1):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(model["vocab"], (sequences, model["seq_len"] + 1), generator=generator)
    tokens[0, :2] = torch.tensor([0, model["vocab"] - 1])  # both ends of the vocabulary
    return tokens


@functools.cache
def shapes_in(model):
    """Returns {name: shape} of the trainer's tensors for a model as JSON, without padding of the vocabulary.
    test_transformers.py loads files with these names and shapes."""
    model = json.loads(model)
    with tempfile.TemporaryDirectory() as folder:
        found = parts(run_tool(Path(folder), model, random_tokens(model, 1)), "weight")
    padded = embedding(model), "lm_head.weight"
    return {name: (model["vocab"] if name in padded else len(array), *array.shape[1:][: array.shape[1] > 1])
            for name, array in found.items()}


def weight_shapes(model):
    return shapes_in(json.dumps(model))


def random_weights(model, seed=2):
    """Returns weights unlike initial ones: attention is uneven, no bias is zero and no norm weight is one."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in weight_shapes(model).items():
        noise = torch.randn(shape, generator=generator)
        if len(shape) == 2:
            weights[name] = noise * (0.5 if "embed" in name or ".wte." in name or ".wpe." in name else 0.15)
        else:
            weights[name] = 0.2 * noise + (0.0 if name.endswith(".bias") else 1.0)
            if name.endswith(SCORE_BIAS):  # every expert has tokens
                weights[name] *= 0.1
    if model.get("tie_embeddings", model["family"] == "gpt"):
        weights["lm_head.weight"] = weights[embedding(model)]
    return weights


def embedding(model):
    return "transformer.wte.weight" if model["family"] == "gpt" else "model.embed_tokens.weight"


def autograd(model, weights, tokens, z_loss=0.0, b=None, share=1.0, **router):
    """Returns per-token losses and the gradients of their mean, as if only a share of the tokens had a loss. Tied
    matrices have separate gradients; that of the bias of a router's scores is the number of copies for each expert.
    router: factors of what the routers add in each microbatch of b sequences."""
    leaves = {name: weight.double().clone().requires_grad_() for name, weight in weights.items()}
    losses = token_losses(model, leaves, tokens, z_loss)
    added = [router_loss(model, leaves, part, **router) for part in tokens.split(b)] if router else [0.0]
    (losses.mean() / share + sum(added) / len(added)).backward()
    copies = expert_copies(model, leaves, tokens)
    return losses.detach().numpy(), {
        name: (leaf.grad if leaf.grad is not None else copies[name]).numpy() for name, leaf in leaves.items()
    }


def relative_error(array, reference):
    """Returns the largest difference, relative to the reference's largest entry."""
    return abs(array - reference).max() / abs(reference).max()


def cosine(a, b):
    a, b = a.ravel().astype("f8"), b.ravel().astype("f8")
    return a @ b / numpy.sqrt((a @ a) * (b @ b))


def unpadded(array, shape):
    """Returns the array without padding, in `shape`; checks that the padding is zero."""
    assert array[shape[0] :].size == 0 or not array[shape[0] :].any(), "padding is not zero"
    return array[: shape[0]].reshape(shape)


def check_against_autograd(model, tokens, weights, records, tolerance=2e-5, z_loss=0.0, **router):
    losses, gradients = autograd(model, weights, tokens, z_loss, **router)
    found = parts(records, "gradient")
    assert set(found) == set(gradients)
    assert abs(records["losses"].mean(dtype="f8") / losses.mean() - 1) < 1e-6
    assert relative_error(records["losses"], losses) < 1e-5
    errors = {name: relative_error(unpadded(found[name], g.shape), g) for name, g in gradients.items()}
    assert {name: error for name, error in errors.items() if not error < tolerance} == {}
    for name, weight in parts(records, "weight").items():
        assert (unpadded(weight, weights[name].shape) == weights[name].numpy()).all(), name


# --- gradients


@pytest.mark.soak(2)
@pytest.mark.parametrize("b", [1, 3])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_autograd(tmp_path, name, mode, b):
    model = MODELS[name]
    tokens, weights = random_tokens(model, 6), random_weights(model)
    check_against_autograd(model, tokens, weights, run_tool(tmp_path, model, tokens, weights, b=b, mode=mode))


@pytest.mark.parametrize("z_loss", [0.3, 1e-4])
@pytest.mark.parametrize("name", ["llama", "gpt"])
def test_the_z_loss_is_that_of_autograd_and_not_evaluated(tmp_path, name, z_loss):
    model = MODELS[name]
    tokens, weights = random_tokens(model, 6), random_weights(model)
    records = run_tool(tmp_path, model, tokens, weights, b=3, z_loss=z_loss)
    check_against_autograd(model, tokens, weights, records, z_loss=z_loss)
    plain = run_tool(tmp_path, model, tokens, weights, b=3)
    assert (records["evaluated"] == plain["losses"]).all()
    assert (records["losses"] > plain["losses"]).any()


@pytest.mark.parametrize("balance, z_loss", [(0.5, 0.0), (0.0, 0.1)])
@pytest.mark.parametrize("name, share", [("mixtral", 1.0), ("shared_expert", 1.0), ("sigmoid_groups", 1.0),
                                         ("mixtral", 6 / 37)])
def test_what_routers_add_to_the_loss_is_that_of_autograd(tmp_path, name, share, balance, z_loss):
    """Also where 6 of 37 tokens are targets: what routers add stays a mean over all tokens."""
    model = dict(MODELS[name], causal=share == 1.0)
    tokens, weights = random_tokens(model, 6), random_weights(model)
    keys = {"balance": "loss" if balance else "off", "balance_rate": balance or 1.0, "router_z_loss": z_loss}
    keys["objective"] = "next" if share == 1.0 else "masked"
    records = run_tool(tmp_path, model, tokens, weights, b=2, **keys)
    check_against_autograd(model, tokens, weights, records, b=2, share=share, balance=balance, router_z_loss=z_loss)
    plain = run_tool(tmp_path, model, tokens, weights, b=2)
    assert (records["losses"] == plain["losses"]).all()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["llama_grouped", "gpt"])
def test_gradients_of_sequences_longer_than_a_tile(tmp_path, name, mode):
    model = dict(MODELS[name], seq_len=331, layers=1)
    tokens, weights = random_tokens(model, 2), random_weights(model)
    check_against_autograd(model, tokens, weights, run_tool(tmp_path, model, tokens, weights, b=2, mode=mode))


@pytest.mark.parametrize("name", ["llama", "gpt"])
def test_gradients_with_a_vocabulary_that_needs_no_padding(tmp_path, name):
    model = dict(MODELS[name], vocab=256)
    tokens, weights = random_tokens(model, 4), random_weights(model)
    records = run_tool(tmp_path, model, tokens, weights, b=2)
    assert records["weight:lm_head.weight"].shape[0] == 256
    check_against_autograd(model, tokens, weights, records)


@pytest.mark.parametrize("name", MODELS)
def test_a_forward_alone_gives_the_same_losses(tmp_path, name):
    records = run_tool(tmp_path, MODELS[name], random_tokens(MODELS[name], 4), random_weights(MODELS[name]), b=2)
    assert (records["losses"] == records["evaluated"]).all()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["llama_grouped", "qwen2", "qwen3", "gpt"])
def test_bf16_is_near(tmp_path, name, mode):
    model = MODELS[name]
    tokens, weights = random_tokens(model, 6), random_weights(model)
    weights = {name: weight.bfloat16().float() for name, weight in weights.items()}
    records = run_tool(tmp_path, model, tokens, weights, b=3, mode=mode, precision="bf16")
    losses, gradients = autograd(model, weights, tokens)
    assert abs(records["losses"].mean(dtype="f8") / losses.mean() - 1) < 2e-2
    likeness = {name: cosine(unpadded(records["gradient:" + name], g.shape), g) for name, g in gradients.items()}
    assert {name: value for name, value in likeness.items() if not value > 0.99} == {}


WHOLE = {"hidden": 64, "ffn": 96, "seq_len": 32}  # multiples of 32: groups of 32 values share a scale


@pytest.mark.parametrize("fp8", ["tensor", "block", "mx"])
@pytest.mark.parametrize("name", ["llama_grouped", "gpt"])
def test_gradients_of_8_bits_are_near_those_of_bf16(tmp_path, name, fp8):
    model = dict(MODELS[name], **WHOLE, heads=4)
    tokens = random_tokens(model, 6)
    wide = run_tool(tmp_path, model, tokens, b=3, precision="bf16")
    narrow = run_tool(tmp_path, model, tokens, b=3, precision="bf16", fp8=fp8)
    assert 0 < abs(narrow["losses"].mean(dtype="f8") / wide["losses"].mean(dtype="f8") - 1) < 5e-3
    pairs = {key: (narrow[key], wide[key]) for key in wide if key.startswith("gradient:")}
    likeness = {key: cosine(a, b) for key, (a, b) in pairs.items()}
    assert {key: value for key, value in likeness.items() if not value > 0.99} == {}


# --- initial weights


def initial_weights(folder, model, **options):
    shapes = weight_shapes(model)
    records = run_tool(folder, model, random_tokens(model, 4), **options)
    return {name: unpadded(array, shapes[name]) for name, array in parts(records, "weight").items()}


@pytest.mark.parametrize("name", ["llama_grouped", "qwen2", "qwen3", "gpt"])
def test_initial_weights_are_normal_with_the_scale_of_their_kind(tmp_path, name):
    model = dict(MODELS[name], layers=4)
    for tensor, weight in initial_weights(tmp_path, model).items():
        if weight.ndim == 1:
            assert (weight == (0.0 if tensor.endswith(".bias") else 1.0)).all(), tensor
            continue
        projections = ("o_proj.weight", "down_proj.weight", "attn.c_proj.weight", "mlp.c_proj.weight")
        z = weight.astype("f8") / (0.02 / 8**0.5 if tensor.endswith(projections) else 0.02)
        sigma = z.size**-0.5  # standard error of the mean; times sqrt(2) of the variance, sqrt(96) of the fourth moment
        assert abs(z.mean()) < 5 * sigma, tensor
        assert abs((z**2).mean() - 1) < 5 * 2**0.5 * sigma, tensor
        assert abs((z**4).mean() - 3) < 6 * 96**0.5 * sigma, tensor


@pytest.mark.parametrize("name", ["llama_grouped", "gpt"])
def test_no_two_initial_matrices_and_no_two_seeds_are_alike(tmp_path, name):
    weights = initial_weights(tmp_path, MODELS[name])
    other = initial_weights(tmp_path, MODELS[name], seed=7)
    matrices = {tensor: weight for tensor, weight in weights.items() if weight.ndim == 2}
    rows = [tuple(weight[0, :8]) for tensor, weight in matrices.items() if name != "gpt" or tensor != "lm_head.weight"]
    assert len({abs(x) for row in rows for x in row}) > 0.99 * 8 * len(rows)
    assert all((weight != other[tensor]).mean() > 0.99 for tensor, weight in matrices.items())


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_only_a_tied_output_matrix_starts_as_the_embedding(tmp_path, name, p):
    weights = initial_weights(tmp_path, MODELS[name], p=p)
    same = weights["lm_head.weight"] == weights[embedding(MODELS[name])]
    assert same.all() if name in TIED else not same.any()

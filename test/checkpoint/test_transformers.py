"""Models exported to transformers and imported from it: the same losses, the same next tokens, the same names.

transformers is looked for in .deps/transformers, where scripts/install_deps.sh puts it, and among the system's
packages.
"""

import functools
import json
import os
import shutil
import sys

import numpy
import pytest

from trainer_runs import ROOT, Trainer, layout, made_text, saving, verify, without_mpi, write_tokens

sys.path.insert(0, str(ROOT / ".deps" / "transformers"))
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", HF_HOME="/nonexistent")
pytestmark = pytest.mark.thorough
transformers = pytest.importorskip("transformers", reason="transformers is not installed; run scripts/install_deps.sh")
torch = pytest.importorskip("torch")
torch.set_num_threads(1)

# Heads, kv_heads and ffn all differ, so that a transposed matrix or mixed-up heads are noticed.
GPT_SIZES = {"family": "gpt", "hidden": 48, "layers": 3, "heads": 6, "ffn": 80, "vocab": 257, "seq_len": 32}
LLAMA_SIZES = GPT_SIZES | {"family": "llama", "kv_heads": 2}
LLAMA31_KEYS = {"head_dim": 12, "rope_scaling": "llama3", "rope_factor": 8, "rope_original": 16, "tie_embeddings": True}
MODELS = {
    "llama": LLAMA_SIZES,
    "llama31": LLAMA_SIZES | LLAMA31_KEYS,
    "yarn": LLAMA_SIZES | {"rope_scaling": "yarn", "rope_factor": 4, "rope_original": 16},  # of 64, and 32 are trained
    "yarn_whole": LLAMA_SIZES | {"rope_scaling": "yarn", "rope_factor": 2, "rope_original": 16},
    "qwen2": LLAMA_SIZES | {"qkv_bias": True, "rope_theta": 1000000},
    "qwen3": LLAMA_SIZES | {"head_dim": 16, "qk_norm": True, "rope_theta": 1000000},
    "mistral": LLAMA_SIZES | {"head_dim": 10},
    "mixtral": LLAMA_SIZES | {"experts": 4, "experts_per_token": 2, "expert_ffn": 80},
    "qwen3_moe": LLAMA_SIZES | {"head_dim": 16, "qk_norm": True, "experts": 8, "experts_per_token": 2,
                                "expert_ffn": 56},
    "glm4_moe": LLAMA_SIZES | {"head_dim": 16, "qk_norm": True, "rope_share": 0.5, "experts": 8,
                               "experts_per_token": 2, "expert_ffn": 56, "shared_ffn": 56, "dense_layers": 1,
                               "router": "sigmoid", "router_groups": 4, "router_group_top": 2, "router_scale": 1.5},
    "deepseek_v3": LLAMA_SIZES | {"kv_heads": 6, "kv_lora": 20, "q_lora": 24, "nope_dim": 10, "rope_dim": 4,
                                  "v_dim": 12, "norm_eps": 1e-2,
                                  "experts": 8, "experts_per_token": 2, "expert_ffn": 56, "shared_ffn": 56,
                                  "dense_layers": 1, "router": "sigmoid", "router_groups": 4, "router_group_top": 2,
                                  "router_scale": 1.5, "rope_scaling": "yarn", "rope_factor": 2, "rope_original": 16,
                                  "rope_mscale": 1, "rope_attention": 1},
    "gpt": GPT_SIZES | {"ffn": 288},  # 256 rows are transposed at a time
}


def windows(count, length=32):
    """Returns sequences with one extra token, and writes them to a file, one after another."""
    tokens = numpy.frombuffer(made_text(), "u1")[-(count * length + 1) :].astype(int)
    return torch.tensor(numpy.stack([tokens[i * length : i * length + length + 1] for i in range(count)])), tokens


def loss_of(model, rows):
    with torch.no_grad():
        logits = model(rows[:, :-1]).logits.float()
        return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), rows[:, 1:].reshape(-1)).item()


def load(folder):
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    return model.eval()


# transformers' names of these models. The same names describe a model to our trainer and to transformers.
ARCHITECTURES = {"gpt": "GPT2", "qwen2": "Qwen2", "qwen3": "Qwen3", "mistral": "Mistral", "mixtral": "Mixtral",
                 "qwen3_moe": "Qwen3Moe", "glm4_moe": "Glm4Moe", "deepseek_v3": "DeepseekV3"}


# Tests of file handling and naming use only these two models.
FILES = pytest.mark.parametrize("trained", ["llama", "gpt"], indirect=True)


def architecture(name):
    return ARCHITECTURES.get(name, "Llama")


def expert_ranks(trained, ranks):
    """The keys of a layout of a mixture of experts, whose tensor ranks split the rows and divide the experts."""
    return {"parallel.sequence": True, "parallel.expert": ranks} if "experts" in trained.model else {}


@pytest.fixture(scope="module", params=MODELS)
def trained(request, tmp_path_factory):
    """A trained model: a tensor in the wrong place would raise its loss."""
    if not hasattr(transformers, f"{architecture(request.param)}Config"):
        pytest.skip(f"transformers {transformers.__version__} has no {architecture(request.param)}; "
                    "run scripts/install_deps.sh")
    folder = tmp_path_factory.mktemp(request.param)
    text = numpy.frombuffer(made_text(), "u1").astype(int)
    trainer = Trainer(folder, MODELS[request.param], text)
    rows, tokens = windows(64)
    val = {"data.val": str(write_tokens(folder / "val.bin", tokens)), "data.val_every": 1000, "data.val_batches": 4}
    steps = {"train.steps": 200, "train.global_batch": 16, "train.lr": 1.0e-2, "train.warmup_steps": 20}
    ranks = layout(b=8) if without_mpi() else layout(p=2, t=2, b=8) | expert_ranks(trainer, 2)
    trainer.result = trainer.run(val, steps, saving(folder / "saved", 200), ranks)
    trainer.loss, trainer.rows, trainer.val = trainer.result.vals[200], rows, val
    trainer.saved = folder / "saved" / "step_00000200"
    trainer.name = request.param
    return trainer


def test_transformers_computes_the_same_loss(trained):
    assert trained.loss < 3
    model = load(trained.saved)
    written = "Llama" if trained.name == "mistral" else architecture(trained.name)
    assert type(model).__name__ == f"{written}{'LMHeadModel' if trained.name == 'gpt' else 'ForCausalLM'}"
    assert loss_of(model, trained.rows) == pytest.approx(trained.loss, abs=1e-4)


def loss_by_documents(model, rows, start):
    """Returns the mean loss with a block-diagonal mask and positions that restart at each `start` token."""
    inputs = rows[:, :-1]
    places = torch.arange(inputs.shape[1]).expand_as(inputs)
    begins = torch.where((inputs == start) | (places == 0), places, 0).cummax(1).values
    same = (begins[:, :, None] == begins[:, None, :]) & (places[:, :, None] >= places[:, None, :])
    mask = torch.zeros(same.shape).masked_fill(~same, torch.finfo(torch.float32).min)[:, None]
    for name, module in model.named_modules():  # GPT-2's own argument must be two-dimensional
        if name.endswith((".attn", ".self_attn")):
            masked = lambda forward, *args, **more: forward(*args, **more | {"attention_mask": mask})
            module.forward = functools.partial(masked, module.forward)
    with torch.no_grad():
        logits = model(inputs, position_ids=places - begins).logits.float()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).item()


def test_transformers_computes_the_same_loss_of_documents(trained):
    model = transformers.AutoModelForCausalLM.from_pretrained(trained.saved, attn_implementation="eager").eval()
    keys = {"data.mask_documents": "on", "data.reset_positions": "on", "data.end_of_text": 10}
    ended = trained.run(trained.val, keys, {"train.global_batch": 16}, layout(b=8), resume=trained.saved,
                        arguments=["--validate", "--json"])
    expected = loss_by_documents(model, trained.rows, 10)
    assert json.loads(ended.stdout)["loss"] == pytest.approx(expected, abs=1e-4)
    assert abs(expected - trained.loss) > 1e-2


def test_transformers_chooses_the_same_next_tokens(trained):
    """At each position transformers gets our text so far, so that a tie does not change the rest."""
    model, same = load(trained.saved), []
    greedy = {"train.global_batch": 1, "sample.tokenizer": "ids", "sample.temperature": 0, "sample.tokens": 24}
    for row in trained.rows[:8]:
        arguments = ["--generate", " ".join(map(str, row[:8].tolist()))]
        ours = trained.run(layout(), greedy, arguments=arguments, resume=trained.saved).stdout.split()
        text = torch.tensor([int(word) for word in ours])
        assert len(text) == 32 and torch.equal(text[:8], row[:8])
        with torch.no_grad():
            logits = model(text[None, :-1]).logits[0, 7:]
        best, second = logits.topk(2).values.T
        clear = best - second > 1e-3
        assert torch.equal(logits.argmax(-1)[clear], text[8:][clear])
        same.append(clear.float().mean())
    assert numpy.mean(same) > 0.9


def test_generate_works_on_the_folder_alone(trained):
    """The training data were bytes, and the checkpoint's tokenizer records this."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(trained.saved)
    model, text = load(trained.saved), "static int grüße(\n"
    ids = tokenizer(text)["input_ids"]
    assert ids == list(text.encode()) and tokenizer.decode(ids) == text
    assert (model.config.eos_token_id, tokenizer.eos_token_id, len(tokenizer)) == (256, 256, 257)
    written = model.generate(torch.tensor([ids[:8]]), max_new_tokens=6, do_sample=False, pad_token_id=256)
    assert written.shape[1] <= 14 and tokenizer.decode(written[0]).startswith("static i")


@FILES
def test_files_read_as_safetensors(trained):
    from safetensors.torch import load_file

    index = json.loads((trained.saved / "model.safetensors.index.json").read_text())
    names, total = set(), 0
    for name in sorted(set(index["weight_map"].values())):
        tensors = load_file(trained.saved / name)
        names |= set(tensors)
        total += sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        assert {index["weight_map"][tensor] for tensor in tensors} == {name}
    assert names == set(index["weight_map"]) and total == index["metadata"]["total_size"]
    for path in trained.saved.glob("optimizer-*.safetensors"):
        assert all(name.endswith((".exp_avg", ".exp_avg_sq")) for name in load_file(path))


# --- from transformers to the trainer


def make_model(trained, **more):
    """Returns a new model of the kind whose config.json the checkpoint has: transformers reads its sizes there, and a
    wrong one would change the loss of the checkpoint's weights."""
    config, name = json.loads((trained.saved / "config.json").read_text()), architecture(trained.name)
    config = {key: value for key, value in config.items() if key not in ("architectures", "model_type")}
    if name in ("Mistral", "Mixtral"):
        config["sliding_window"] = None
    if trained.name == "yarn":  # the original length is that of the model
        config |= {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}, "max_position_embeddings": 16}
    config = getattr(transformers, f"{name}Config")(**config | {"initializer_range": 0.2} | more)
    kind = "LMHeadModel" if name == "GPT2" else "ForCausalLM"
    return nudged(getattr(transformers, f"{name}{kind}")(config).eval())


def nudged(model):
    """Returns the model with biases and norms moved away from zeros and ones."""
    with torch.no_grad():
        for name, weight in [*model.named_parameters(), *model.named_buffers()]:
            if weight.dim() == 1 and not name.endswith("inv_freq"):
                weight += 0.2 * torch.randn_like(weight)
    return model


def first_loss(trained, folder, *changes, code=0):
    """Returns the loss before the first update, over all of a data set."""
    data = {"data.train": str(trained.folder / "val.bin"), "train.global_batch": 64, "train.steps": 1}
    start = {"checkpoint.init_from": str(folder)}
    result = trained.run(data, start, layout(), *changes, code=code)
    return result.steps[0]["loss"] if code == 0 else result


def starts_from(trained, folder, model, *changes):
    """Returns whether a run that starts from the folder has the loss that transformers computes for the model."""
    return first_loss(trained, folder, *changes) == pytest.approx(loss_of(model, trained.rows), abs=1e-3)


TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@pytest.mark.soak(2)
@pytest.mark.parametrize("precision", TYPES)
@pytest.mark.parametrize("files", ["single", "sharded"])
def test_a_model_of_transformers_trains_on_from_its_loss(trained, tmp_path, precision, files):
    torch.manual_seed(1)
    model = make_model(trained).to(TYPES[precision])
    model.save_pretrained(tmp_path, safe_serialization=True, max_shard_size="30KB" if files == "sharded" else "1GB")
    assert (tmp_path / "model.safetensors").exists() == (files == "single")
    # Loads the saved model: in the original one, to() has also rounded the rotation frequencies, which are not weights.
    assert first_loss(trained, tmp_path) == pytest.approx(loss_of(load(tmp_path).float(), trained.rows), abs=1e-4)


@pytest.mark.skipif(without_mpi(), reason="built without MPI")
def test_ranks_start_from_their_parts(trained, tmp_path):
    torch.manual_seed(2)
    model = make_model(trained)
    model.save_pretrained(tmp_path, safe_serialization=True)
    assert starts_from(trained, tmp_path, model, layout(p=3, t=2, d=2), expert_ranks(trained, 4))


def test_our_own_checkpoint_starts_a_new_run(trained):
    loss = first_loss(trained, trained.saved)
    assert loss == pytest.approx(trained.loss, abs=1e-5)
    assert loss_of(load(trained.saved), trained.rows) == pytest.approx(loss, abs=1e-3)


def rewrite(folder, change):
    """Rewrites the tensors of a model file; change maps a dictionary {name: tensor} to the new one."""
    from safetensors.torch import load_file, save_file

    tensors = change(load_file(folder / "model.safetensors"))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors",
              {"format": "pt"})


def saved_model(trained, folder, **more):
    torch.manual_seed(3)
    model = make_model(trained, **more)
    model.save_pretrained(folder, safe_serialization=True, max_shard_size="1GB")
    return model


def embedding(trained):
    return "transformer.wte.weight" if trained.model["family"] == "gpt" else "model.embed_tokens.weight"


LLAMA = pytest.mark.parametrize("trained", ["llama"], indirect=True)  # for features that GPT lacks


MASKS = {"transformer.h.0.attn.bias": torch.ones(1, 1, 32, 32).bool(),
         "transformer.h.0.attn.masked_bias": torch.tensor(-1e4)}
TABLE = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
# Variants of a weight file: whether the head is tied (None: the model's default), and a change of the tensors.
FORMS = {
    "names_without_prefix": (None, lambda _, tensors: {
        name.removeprefix("transformer.").removeprefix("model."): t for name, t in tensors.items()}),
    "own_head": (False, lambda _, tensors: tensors),
    "tied_head_left_out": (True, lambda _, tensors: {n: t for n, t in tensors.items() if n != "lm_head.weight"}),
    "tied_head_written": (True, lambda trained, tensors: tensors | {
        "lm_head.weight": tensors[embedding(trained)].clone()}),
    "besides_weights_as_in_old_files": (None, lambda trained, tensors: tensors | (
        MASKS if trained.model["family"] == "gpt" else TABLE)),
}


@FILES
@pytest.mark.parametrize("form", FORMS)
def test_a_file_of_weights_may_have_this_form(trained, tmp_path, form):
    tied, change = FORMS[form]
    model = saved_model(trained, tmp_path, **({} if tied is None else {"tie_word_embeddings": tied}))
    rewrite(tmp_path, functools.partial(change, trained))
    assert starts_from(trained, tmp_path, model, {} if tied is None else {"model.tie_embeddings": tied})


@FILES
@pytest.mark.parametrize("tied", [False, True], ids=["own_head", "tied_head"])
def test_the_other_kind_of_head_is_refused_by_name(trained, tmp_path, tied):
    saved_model(trained, tmp_path, tie_word_embeddings=tied)
    there, here = str(tied).lower(), str(not tied).lower()
    refuse(trained, tmp_path, f"model.tie_embeddings is {there} there and {here} here",
           {"model.tie_embeddings": not tied})


@FILES
@pytest.mark.parametrize("tied", [False, True], ids=["own_head", "tied_head"])
def test_either_kind_of_head_is_saved_as_transformers_has_it(trained, tmp_path, tied):
    kind = {"model.tie_embeddings": tied, "train.steps": 20, "train.global_batch": 16, "train.lr": 1.0e-2}
    ranks = layout(b=8) if without_mpi() else layout(p=3, b=4)
    result = trained.run(kind, trained.val, saving(tmp_path, 20), ranks)
    model = load(tmp_path / "step_00000020")
    head, tokens = model.lm_head.weight, model.get_input_embeddings().weight
    assert model.config.tie_word_embeddings == tied and (head is tokens) == tied
    assert loss_of(model, trained.rows) == pytest.approx(result.vals[20], abs=1e-3)


@LLAMA
def test_slower_rotations_are_those_of_transformers(trained, tmp_path):
    model = saved_model(trained, tmp_path, rope_theta=500000.0)
    assert starts_from(trained, tmp_path, model, {"model.rope_theta": 500000})
    refuse(trained, tmp_path, "model.rope_theta is 500000 there and 10000 here")
    config = json.loads((tmp_path / "config.json").read_text())  # newer files use other keys
    for word in ("rope_theta", "rope_scaling"):
        config.pop(word, None)
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": 500000.0}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert starts_from(trained, tmp_path, model, {"model.rope_theta": 500000})


def refuse(trained, tmp_path, expected, *changes, code=2):
    result = first_loss(trained, tmp_path, *changes, code=code)
    assert expected in result.stderr and result.steps == [], result.stderr


@FILES
def test_other_models_are_refused_with_what_differs(trained, tmp_path):
    saved_model(trained, tmp_path)
    refuse(trained, tmp_path, "model.vocab is 257 there and 300 here", {"model.vocab": 300})
    refuse(trained, tmp_path, "model.norm_eps is 1e-05 there and 0.001 here", {"model.norm_eps": 1e-3})
    (tmp_path / "config.json").unlink()
    refuse(trained, tmp_path, "[257, 48], but this model's is [300, 48]", {"model.vocab": 300})
    rewrite(tmp_path, lambda tensors: {**tensors, "model.extra.weight": torch.ones(3)})
    refuse(trained, tmp_path, "model.extra.weight does not exist in this model")


@pytest.mark.skipif(without_mpi(), reason="built without MPI")
@pytest.mark.parametrize("trained", ["llama", "mixtral", "qwen3_moe", "glm4_moe", "deepseek_v3"], indirect=True)
def test_one_step_moves_every_weight_as_pytorch_does(trained, tmp_path):
    """AdamW of PyTorch on the gradient that transformers computes, in float64, except that its sigmoid routers and what
    they weigh are fp32."""
    model = saved_model(trained, tmp_path / "start")
    model = model if trained.model.get("router") == "sigmoid" else model.double()
    rows, rate = trained.rows, 1.0e-3
    keys = {"data.train": str(trained.folder / "val.bin"), "train.global_batch": 64, "train.steps": 1, "train.lr": rate,
            "train.min_lr_ratio": 1, "train.warmup_steps": 0, "train.grad_clip": 0, "train.eps": 1.0e-3}
    start = {"checkpoint.init_from": str(tmp_path / "start")}
    ranks = layout(t=2, d=2, b=2) | expert_ranks(trained, 4)
    trained.run(keys, start, ranks, saving(tmp_path / "ours", 1))
    names = dict(model.named_parameters())
    groups = [{"params": [w for w in names.values() if (w.dim() > 1) == matrices], "weight_decay": 0.1 * matrices}
              for matrices in (True, False)]
    step = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), eps=1.0e-3)
    logits = model(rows[:, :-1]).logits
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).backward()
    before = {name: weight.detach().clone() for name, weight in names.items()}
    step.step()
    ours = dict(load(tmp_path / "ours" / "step_00000001").named_parameters())
    for name, weight in names.items():
        moved, expected = ours[name].to(weight.dtype) - before[name], weight.detach() - before[name]
        assert (moved - expected).abs().max() < 2e-3 * rate, name
        assert expected.abs().max() > 0.02 * rate, name


@pytest.mark.parametrize("trained", ["mixtral", "qwen3_moe"], indirect=True)
def test_an_expert_too_few_or_too_many_is_named(trained, tmp_path):
    saved_model(trained, tmp_path)
    of, down = ("block_sparse_moe", "w2") if trained.name == "mixtral" else ("mlp", "down_proj")
    last = f"model.layers.1.{of}.experts.{trained.model['experts'] - 1}.{down}.weight"
    rewrite(tmp_path, lambda tensors: {**tensors, last.replace(".experts.", ".experts.1"): torch.ones(48, 80)})
    refuse(trained, tmp_path, "does not exist in this model; load a model of the same architecture")
    rewrite(tmp_path, lambda tensors: {n: t for n, t in tensors.items() if n != last})
    refuse(trained, tmp_path, f"tensor {last} is missing", code=1)
    refuse(trained, tmp_path, "model.experts is", {"model.experts": 2})


@pytest.mark.skipif(without_mpi(), reason="built without MPI")
@pytest.mark.parametrize("trained", ["deepseek_v3"], indirect=True)
def test_kimi_k2_is_read_as_deepseek_v3_and_saved_as_it(trained, tmp_path):
    """Kimi K2's config.json has DeepSeek-V3's keys, and its files the same tensors, under a type of their own."""
    shutil.copytree(trained.saved, tmp_path / "kimi", ignore=shutil.ignore_patterns("manifest.json"))
    said = json.loads((trained.saved / "config.json").read_text())
    (tmp_path / "kimi" / "config.json").write_text(json.dumps(said | {"model_type": "kimi_k2"}))
    ranks = layout(p=3, t=2, d=2, b=4) | expert_ranks(trained, 4)
    loss = first_loss(trained, tmp_path / "kimi", saving(tmp_path, 1), ranks, {"train.lr": 0})
    assert loss == pytest.approx(trained.loss, abs=1e-5)
    assert loss_of(load(tmp_path / "step_00000001"), trained.rows) == pytest.approx(loss, abs=1e-4)


@FILES
def test_the_store_of_a_hub_cache_is_followed(trained, tmp_path):
    """In a hub cache, models--x/snapshots/HASH/model.safetensors links to models--x/blobs/HASH, which is accepted."""
    store, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "abc"
    store.mkdir(), snapshot.mkdir(parents=True)
    model = saved_model(trained, snapshot)
    for name in ("model.safetensors", "config.json"):
        shutil.move(snapshot / name, store / name)
        (snapshot / name).symlink_to(f"../../blobs/{name}")
    assert starts_from(trained, snapshot, model)
    shutil.move(store, tmp_path / "other")
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to("../../other/model.safetensors")
    refuse(trained, snapshot, "to a file outside its directory", code=1)


@FILES
def test_a_place_without_a_model_says_what_is_expected(trained, tmp_path):
    refuse(trained, tmp_path, "holds neither model.safetensors nor", code=1)
    refuse(trained, tmp_path / "absent", "cannot read the directory", code=1)


@FILES
def test_a_resumed_run_does_not_start_over(trained, tmp_path):
    """init_from applies only to step 0; a checkpoint takes precedence."""
    torch.manual_seed(4)
    make_model(trained).save_pretrained(tmp_path, safe_serialization=True)
    start = {"checkpoint.init_from": str(tmp_path), "train.steps": 201, "train.global_batch": 16}
    result = trained.run(start, layout(b=8), resume=trained.saved)
    assert "resumed from" in result.stderr and result.numbers == [201]
    assert result.steps[0]["loss"] < 3


@FILES
def test_a_bf16_run_saves_what_transformers_loads(trained, tmp_path):
    steps = {"train.precision": "bf16", "train.steps": 20, "train.global_batch": 16}
    bf16 = trained.run(steps, trained.val, saving(tmp_path, 20), layout(b=8))
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "step_00000020", torch_dtype="auto")
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
    assert verify(tmp_path / "step_00000020") is None
    assert loss_of(model.float().eval(), trained.rows) == pytest.approx(bf16.vals[20], rel=1e-2)

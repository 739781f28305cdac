"""scripts/hf.py describes a model, and checks whether the trainer computes the same results as transformers."""

import json
import shutil
import sys

import pytest
from trainer_runs import BUILD, ROOT, environment, execute, made_tokens, script, write_tokens

sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / ".deps" / "transformers")]
transformers = pytest.importorskip("transformers", reason="transformers is not installed; run scripts/install_deps.sh")
torch = pytest.importorskip("torch")
torch.set_num_threads(1)
import hf

pytestmark = pytest.mark.thorough

LLAMA = {"vocab_size": 120, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 11,
         "num_attention_heads": 6, "num_key_value_heads": 2}
LLAMA |= {"max_position_embeddings": 64, "rope_theta": 500000.0, "rms_norm_eps": 1e-5}
GPT = {"vocab_size": 120, "n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": 32, "bos_token_id": 0,
       "eos_token_id": 0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}
LATENT = {"num_key_value_heads": 6, "kv_lora_rank": 20, "q_lora_rank": 24, "qk_nope_head_dim": 10,
          "qk_rope_head_dim": 4, "v_head_dim": 12, "n_routed_experts": 8, "num_experts_per_tok": 2,
          "moe_intermediate_size": 24, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2}
KINDS = {
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA, initializer_range=0.2)),
    "llama32": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**LLAMA, initializer_range=0.2, tie_word_embeddings=True, head_dim=12,
                                 rope_scaling=LLAMA3)),
    "qwen2": lambda: transformers.Qwen2ForCausalLM(
        transformers.Qwen2Config(**LLAMA, initializer_range=0.2, tie_word_embeddings=True)),
    "mistral": lambda: transformers.MistralForCausalLM(
        transformers.MistralConfig(**LLAMA, initializer_range=0.2, head_dim=10, sliding_window=48)),
    "deepseek_v3": lambda: transformers.DeepseekV3ForCausalLM(
        transformers.DeepseekV3Config(**LLAMA | LATENT, initializer_range=0.2, rope_scaling=None)),
    "gpt": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT, initializer_range=0.2)),
}


@pytest.fixture(scope="module", params=KINDS)
def saved(request, tmp_path_factory):
    return save(request.param, tmp_path_factory.mktemp(request.param))


def save(kind, folder):
    torch.manual_seed(1)
    model = KINDS[kind]()
    model.save_pretrained(folder, safe_serialization=True, max_shard_size="100KB")
    return folder


def run(capsys, *arguments):
    """Runs the script in this process, since loading transformers takes longer than everything else."""
    sys.argv = ["hf.py", *map(str, arguments)]
    code = hf.main()
    return code, *capsys.readouterr()


def check(capsys, folder, *arguments):
    trainer = BUILD / ("train_gpt" if "gpt2" in (folder / "config.json").read_text() else "train_llama")
    return run(capsys, "check", folder, "--trainer", trainer, *arguments)


def test_both_compute_the_same(saved, capsys, tmp_path):
    code, said, errors = check(capsys, saved)
    assert (code, errors) == (0, "")
    assert "loss over 8 windows of" in said and "next tokens: the same, 8 after each of 2 prompts" in said
    data = write_tokens(tmp_path / "d.bin", made_tokens(1000))
    code, with_data, errors = check(capsys, saved, "--data", data, "--windows", 3, "--prompts", 1, "--tokens", 3)
    assert (code, errors) == (0, "") and "over 3 windows" in with_data and "3 after each of 1 prompts" in with_data
    assert with_data.split(": ")[1] != said.split(": ")[1]


def altered(folder, name, extra):
    """Makes a fake trainer with wrong results."""
    path = folder / f"altered_{name}"
    path.write_text(f'#!/bin/sh\nexec {BUILD}/train_llama "$@" {extra}\n')
    path.chmod(0o755)
    return path


def test_a_difference_is_one_sentence_and_code_1(capsys, tmp_path):
    folder = save("llama", tmp_path / "model")
    other = write_tokens(tmp_path / "other.bin", made_tokens(1000, seed=5))
    code, _, errors = run(capsys, "check", folder, "--trainer", altered(tmp_path, "loss", f"-o data.val={other}"))
    assert code == 1 and errors.count("\n") == 1 and "the loss is" in errors and "allowed is 0.001" in errors
    trainer = altered(tmp_path, "text", "-o sample.temperature=3")
    code, _, errors = run(capsys, "check", folder, "--trainer", trainer)
    assert code == 1 and errors.count("\n") == 1 and "next token 1 after 16 tokens is" in errors
    assert "in transformers, whose logit is" in errors


def test_what_cannot_be_compared_is_reported(capsys, tmp_path):
    folder = save("llama", tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())

    def refused(expected, *arguments, **words):
        (folder / "config.json").write_text(json.dumps({**config, **words}))
        code, _, errors = check(capsys, folder, *arguments)
        assert code == 1 and errors.count("\n") == 1 and errors.startswith("hf.py: ") and expected in errors, errors

    refused("attention_bias is set, which gives o_proj a bias too", attention_bias=True)
    refused("this model's is [120, 96]", hidden_size=96, num_attention_heads=12)
    refused("has 1000 tokens, and 4097 are asked for", "--data", write_tokens(tmp_path / "d.bin", made_tokens(1000)),
            "--windows", 64)
    refused("is not a token file", "--data", folder / "config.json")
    refused("cannot be read", "--data", tmp_path / "absent")
    (folder / "config.json").write_text(json.dumps(config))

    def says(expected, *arguments, form="info"):
        code, _, errors = run(capsys, form, folder, *arguments)
        assert code == 1 and expected in errors, errors

    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": 3}}')
    says("holds no 3; transformers writes it")
    says("echo: is not a trainer that answers --plan --json", "--trainer", shutil.which("echo"))
    (folder / "model.safetensors.index.json").unlink()
    data = next(folder.glob("model-*.safetensors")).read_bytes()
    body = 8 + int.from_bytes(data[:8], "little")
    two, text = (data[8:body].replace(b'"shape":[', b'"shape":[' + first, 1) for first in (b"2,", b'"",'))
    for changed, said in ((data[:-10], "lacks its last 10 bytes"), (data + b"x", "has 1 bytes that no tensor has"),
                          (len(two).to_bytes(8, "little") + two + data[body:], "bytes for [2, "),
                          (len(text).to_bytes(8, "little") + text + data[body:], "something in it has another form")):
        (folder / "model.safetensors").write_bytes(changed)
        says(said)
    (folder / "config.json").unlink()
    says("holds no config.json", form="check")


def test_check_asks_the_transformers_of_the_python_that_runs_it(tmp_path):
    """A module imitates another transformers; the copy in .deps must not be used."""
    folder = save("llama", tmp_path / "model")
    (tmp_path / "transformers.py").write_text("raise ImportError('played', name='what this Python has')\n")
    env = environment(PYTHONPATH=str(tmp_path))
    ended = script("hf.py", "check", folder, "--trainer", BUILD / "train_llama", env=env, code=1)
    assert "what this Python has is missing" in ended.stderr, ended.stderr


def test_info_has_the_model_and_every_tensor(saved, capsys, tmp_path):
    code, said, errors = run(capsys, "info", saved)
    assert (code, errors) == (0, "")
    model = transformers.AutoModelForCausalLM.from_pretrained(saved)
    files = len(list(saved.glob("*.safetensors")))
    biases = {name: bias for name, bias in model.named_buffers() if name.endswith("correction_bias")}  # of experts
    weights = dict(model.named_parameters()) | biases
    count = sum(weight.numel() for weight in weights.values())
    assert files > 1
    assert f"{len(weights)} tensors, {count:,} numbers, {4 * count:,} bytes in {files} files" in said
    for name, weight in weights.items():
        assert [line.split()[1:3] for line in said.splitlines() if line.startswith(f"{name} ")] == [
            ["F32", "x".join(map(str, weight.shape))]
        ]
    tensors = [line.split()[0] for line in said.splitlines() if "layers." in line or ".h." in line]
    numbers = [int(name.split(".")[2]) for name in tensors]
    assert numbers == sorted(numbers)
    section = said.partition("\n\n")[0]  # is one for the trainer
    data = write_tokens(tmp_path / "d.bin", made_tokens(1000))
    (tmp_path / "c.yaml").write_text(f"{section}\ntrain: {{steps: 1}}\ndata: {{train: {data}}}\n"
                                     f"hardware: {{device: cpu}}\ncheckpoint: {{init_from: {saved}}}\n")
    program = BUILD / ("train_gpt" if "family: gpt" in section else "train_llama")
    ended = execute([program, "-q", "-c", tmp_path / "c.yaml"])
    assert "step    1/1" in ended.stdout, ended.stderr


def test_a_window_of_attention_bounds_the_sequence(capsys, tmp_path):
    folder = save("mistral", tmp_path / "model")
    said = run(capsys, "info", folder)[1]
    assert "\n  seq_len: 48\n" in said and "sliding_window 48: seq_len is limited to it" in said
    (tmp_path / "c.yaml").write_text(said.partition("\n\n")[0].replace("seq_len: 48", "seq_len: 64")
                                     + f"\ndata: {{train: {write_tokens(tmp_path / 'd.bin', made_tokens(1000))}}}\n")
    program, start = BUILD / "train_llama", f"checkpoint.init_from={folder}"
    ended = execute([program, "-q", "-c", tmp_path / "c.yaml", "-o", start, "-o", "train.steps=1"], code=2)
    assert "sliding_window is 48" in ended.stderr and "use model.seq_len 48 or less" in ended.stderr

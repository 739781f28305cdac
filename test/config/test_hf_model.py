"""Plans of a Hugging Face config.json instead of a configuration equal plans of the same keys written by hand."""

import json

import pytest
from trainer_runs import command

LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": False, "hidden_act": "silu",
    "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}  # fmt: skip
GPT = {
    "model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257,
    "layer_norm_epsilon": 1e-05, "activation_function": "gelu_new",
}  # fmt: skip
LLAMA_KEYS = """
model: {family: llama, hidden: 4096, layers: 32, heads: 32, kv_heads: 8, ffn: 14336, vocab: 128256, seq_len: 131072,
        norm_eps: 1.0e-5, rope_theta: 500000, rope_scaling: llama3, rope_factor: 8, rope_original: 8192,
        rope_low_freq: 1, rope_high_freq: 4, tie_embeddings: false}
"""
GPT_KEYS = "model: {family: gpt, hidden: 768, layers: 12, heads: 12, ffn: 3072, vocab: 50257, seq_len: 1024}\n"
LAYOUT = ["hardware.gpu=h100", "model.seq_len=1024", "parallel.pipeline=4", "train.global_batch=16"]


def asked(family, path, *words, overrides=LAYOUT):
    return command(family, "-c", path, *words, overrides=overrides)


@pytest.mark.parametrize("family, found, keys", [("llama", LLAMA, LLAMA_KEYS), ("gpt", GPT, GPT_KEYS)])
@pytest.mark.parametrize("words", [("--plan", "--json"), ("--schedule",), ("--sweep", "schedule.micro_batch=1,2", "--plan")])
def test_the_file_of_a_model_is_planned_as_its_keys_are(tmp_path, family, found, keys, words):
    given, by_hand = tmp_path / "config.json", tmp_path / "model.yaml"
    given.write_text(json.dumps(found))
    by_hand.write_text(keys)
    ours, expected = asked(family, given, *words), asked(family, by_hand, *words)
    assert ours.returncode == expected.returncode == 0, ours.stderr + expected.stderr
    assert ours.stdout == expected.stdout


@pytest.mark.parametrize("change, sentence", [
    ({"model_type": "mixtral", "num_local_experts": 8}, "is a mixture of experts"),
    ({"model_type": "falcon"}, 'model_type is "falcon"; family llama computes "llama", "mistral"'),
    ({"hidden_act": "relu"}, "hidden_act is not silu, which is unsupported"),
    ({"hidden_act": "relu", "mlp_bias": True}, "hidden_act is not silu; mlp_bias is set, which is unsupported"),
    ({"vocab_size": None}, "vocab_size (model.vocab) is missing; is the file complete?"),
    ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, 'rope_scaling is "dynamic", which is unsupported'),
    ({"hidden_size": 64e57}, "hidden_size is 6.4e+58, not a whole number of at most 2^53"),
    ({"num_attention_heads": 33}, "config.json:1: model."),
])
def test_a_model_that_cannot_be_planned_is_refused_with_its_word(tmp_path, change, sentence):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA, **change}))
    answer = asked("llama", path, "--plan")
    assert answer.returncode == 2 and answer.stdout == ""
    assert answer.stderr.startswith(f"train_llama: {path}") and sentence in answer.stderr, answer.stderr


def test_the_wrong_program_and_a_run_without_data_say_what_to_do(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    assert "use train_llama for llama" in asked("gpt", path, "--plan").stderr
    refused = command("llama", "-c", path)
    assert refused.returncode == 2 and "data.train" in refused.stderr

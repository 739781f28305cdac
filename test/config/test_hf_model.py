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
}
GPT = {
    "model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "vocab_size": 50257,
    "layer_norm_epsilon": 1e-05, "activation_function": "gelu_new",
}
MIXTRAL = {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2, "router_jitter_noise": 0.0}
QWEN_MOE = {
    "model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 768,
    "norm_topk_prob": True, "mlp_only_layers": [], "decoder_sparse_step": 1,
}
GLM = {
    "model_type": "glm4_moe", "hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8, "head_dim": 64,
    "num_hidden_layers": 8, "num_key_value_heads": 4, "vocab_size": 1000, "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "tie_word_embeddings": False, "hidden_act": "silu",
    "rope_scaling": None, "n_routed_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 128,
    "n_shared_experts": 2, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5,
    "norm_topk_prob": True, "attention_bias": True, "use_qk_norm": True, "partial_rotary_factor": 0.5,
    "num_nextn_predict_layers": 1,
}
GLM_KEYS = """
model: {family: llama, hidden: 512, layers: 8, heads: 8, kv_heads: 4, head_dim: 64, ffn: 1024, vocab: 1000,
        seq_len: 2048, norm_eps: 1.0e-5, rope_theta: 1000000, rope_share: 0.5, qkv_bias: true, qk_norm: true,
        experts: 16, experts_per_token: 4, expert_ffn: 128, shared_ffn: 256, dense_layers: 1, router: sigmoid,
        router_groups: 4, router_group_top: 2, router_scale: 2.5, tie_embeddings: false}
"""
DEEPSEEK = {name: value for name, value in GLM.items() if name not in ("head_dim", "partial_rotary_factor")} | {
    "model_type": "deepseek_v3", "num_key_value_heads": 8, "attention_bias": False, "kv_lora_rank": 64,
    "q_lora_rank": 96, "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32, "moe_layer_freq": 1,
    "scoring_func": "sigmoid", "topk_method": "noaux_tc", "max_position_embeddings": 8192,
    "quantization_config": {"quant_method": "fp8"},
    "rope_scaling": {"type": "yarn", "factor": 4, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
                     "original_max_position_embeddings": 2048},
}
DEEPSEEK_KEYS = """
model: {family: llama, hidden: 512, layers: 8, heads: 8, ffn: 1024, vocab: 1000, seq_len: 8192, norm_eps: 1.0e-5,
        kv_lora: 64, q_lora: 96, nope_dim: 32, rope_dim: 16, v_dim: 32, rope_theta: 1000000, rope_scaling: yarn,
        rope_factor: 4, rope_original: 2048, rope_mscale: 1, rope_attention: 1, experts: 16, experts_per_token: 4,
        expert_ffn: 128, shared_ffn: 256, dense_layers: 1, router: sigmoid, router_groups: 4, router_group_top: 2,
        router_scale: 2.5, tie_embeddings: false}
"""
LLAMA_KEYS = """
model: {family: llama, hidden: 4096, layers: 32, heads: 32, kv_heads: 8, ffn: 14336, vocab: 128256, seq_len: 131072,
        norm_eps: 1.0e-5, rope_theta: 500000, rope_scaling: llama3, rope_factor: 8, rope_original: 8192,
        rope_low_freq: 1, rope_high_freq: 4, tie_embeddings: false}
"""
GPT_KEYS = "model: {family: gpt, hidden: 768, layers: 12, heads: 12, ffn: 3072, vocab: 50257, seq_len: 1024}\n"
LAYOUT = ["hardware.gpu=h100", "model.seq_len=1024", "parallel.pipeline=4", "train.global_batch=16"]


def asked(family, path, *words, overrides=LAYOUT, **options):
    return command(family, "-c", path, *words, overrides=overrides, **options)


def file_of(folder, model):
    """Writes a model, or the text of one, as config.json."""
    path = folder / "config.json"
    path.write_text(model if isinstance(model, str) else json.dumps(model))
    return path


@pytest.mark.parametrize("family, found, keys", [
    ("llama", LLAMA, LLAMA_KEYS), ("llama", GLM, GLM_KEYS), ("llama", DEEPSEEK, DEEPSEEK_KEYS), ("gpt", GPT, GPT_KEYS),
])
@pytest.mark.parametrize("words", [("--plan", "--json"), ("--schedule",),
                                   ("--sweep", "schedule.micro_batch=1,2", "--plan")])
def test_the_file_of_a_model_is_planned_as_its_keys_are(tmp_path, family, found, keys, words):
    by_hand = tmp_path / "model.yaml"
    by_hand.write_text(keys)
    ours, expected = asked(family, file_of(tmp_path, found), *words), asked(family, by_hand, *words)
    assert ours.stdout == expected.stdout


def test_files_of_transformers_5_mean_the_same(tmp_path):
    def model(found):
        return json.loads(asked("llama", file_of(tmp_path, found), "--plan", "--json").stdout)["config"]["model"]

    old = {**LLAMA, **QWEN_MOE, "hidden_size": 2048, "moe_intermediate_size": 256, "rope_scaling": None}
    new = {("num_local_experts" if word == "num_experts" else word): value for word, value in old.items()}
    assert model(new) == model(old) and model(old)["head_dim"] == 64
    share = {**GLM, "partial_rotary_factor": 0.25}
    moved = {word: share.pop(word) for word in ("partial_rotary_factor", "rope_theta")}
    assert model({**share, **moved}) == model({**share, "rope_parameters": moved | {"rope_type": "default"}})


@pytest.mark.parametrize("change, sentence", [
    ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is not 1, which is unsupported"),
    ({"num_local_experts": 8}, 'model_type "llama" has no experts, but the file has num_local_experts'),
    ({"model_type": "deepseek_v2", "n_routed_experts": 160}, "without its latent attention or router"),
    (DEEPSEEK | {"q_lora_rank": None}, "q_lora_rank (model.q_lora) is null, which is unsupported"),
    (DEEPSEEK | {"scoring_func": "softmax"}, "scoring_func is not sigmoid, which is unsupported"),
    (DEEPSEEK | {"topk_method": "greedy"}, "topk_method is not noaux_tc, which is unsupported"),
    ({"model_type": "gpt_oss", "num_local_experts": 32}, "without its attention sinks and windows"),
    (QWEN_MOE | {"mlp_only_layers": [0]}, "mlp_only_layers has layers without experts, which is unsupported"),
    (QWEN_MOE | {"decoder_sparse_step": 2}, "decoder_sparse_step leaves layers without experts"),
    (QWEN_MOE | {"num_experts": None}, "num_experts (model.experts) is null, which is unsupported; use another"),
    (QWEN_MOE | {"num_experts_per_tok": 9}, "a token cannot use more experts"),
    (MIXTRAL | {"router_jitter_noise": 0.1}, "router_jitter_noise changes the router's input at random"),
    ({"model_type": "falcon"}, 'model_type is "falcon"; family llama supports "llama" "mistral" "qwen2" "qwen3"'
                               ' "mixtral" "qwen3_moe" "glm4_moe" "deepseek_v3" "kimi_k2", family gpt supports'
                               ' "gpt2"; nearest is family gpt'),
    ({"model_type": "gemma2"}, "nearest is family llama, without its norms, scaled embeddings and GELU gates"),
    ({"model_type": "my_own"}, "write the sizes of the nearest under model: {family: ...}"),
    ({"model_type": 5}, "model_type"),
    ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config is set, which is unsupported"),
    ({"dual_chunk_attention_config": {"chunk_size": 1024}}, "dual_chunk_attention_config is set"),
    ({"rope_theta": float("nan")}, "rope_theta is NaN; write the number"),
    ({"head_dim": float("inf")}, "head_dim is Infinity; write the number"),
    ({"sliding_window": 512}, "sliding_window is 512"),
    ({"sliding_window": 512, "use_sliding_window": True}, "use -o model.seq_len=512 or less"),
    ({"hidden_act": "relu"}, "hidden_act is not silu, which is unsupported"),
    ({"hidden_act": "relu", "mlp_bias": True}, "hidden_act is not silu; mlp_bias is set, which is unsupported"),
    ({"model_type": "mixtral"}, "num_local_experts (model.experts) is missing; is the file complete?"),
    ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, 'rope_scaling is "dynamic", which is unsupported'),
    ({"hidden_size": 64e57}, "hidden_size is 6.4e+58, not a whole number of at most 2^53"),
    ({"num_attention_heads": 33}, "config.json:1: model."),
    ({"num_attention_heads": 0}, "config.json:1: model.heads: 0 is out of range"),
    ({"num_key_value_heads": "8"}, "num_key_value_heads is not a number of 0 or more"),
    ({"num_hidden_layers": -32}, "num_hidden_layers is not a number of 0 or more"),
    ({"tie_word_embeddings": "false"}, "tie_word_embeddings is not true or false"),
    ({"rope_scaling": {"rope_type": "linear", "factor": "2.0"}}, "factor is not a number of 0 or more"),
    ({"rope_theta": None, "rope_parameters": {"rope_theta": "5e5"}}, "rope_theta is not a number of 0 or more"),
])
def test_a_model_that_cannot_be_planned_is_refused_with_its_word(tmp_path, change, sentence):
    path = file_of(tmp_path, {**LLAMA, **change})
    answer = asked("llama", path, "--plan", code=2)
    assert answer.stdout == ""
    assert answer.stderr.startswith(f"train_llama: {path}") and sentence in answer.stderr, answer.stderr


def test_the_wrong_program_and_a_run_without_data_say_what_to_do(tmp_path):
    path = file_of(tmp_path, LLAMA)
    assert "use train_llama for llama" in asked("gpt", path, "--plan", code=2).stderr
    refused = command("llama", "-c", path, code=2)
    assert "data.train" in refused.stderr


TEXT = json.dumps(LLAMA, indent=2)


@pytest.mark.parametrize("text, sentence", [
    (TEXT[: len(TEXT) // 2], "the JSON text ends too early"),
    (TEXT[:60], "the "),
    ("// a model\n" + TEXT, "a comment, which JSON lacks"),
    (TEXT.replace('"hidden_size": 4096', '"hidden_size": 4096, "hidden_size": 4096'),
     'the key "hidden_size" appears twice'),
    (TEXT.replace('"hidden_size"', '// the width\n"hidden_size"'), "a comment, which JSON lacks"),
    (TEXT.replace('"hidden_size": 4096', '"hidden_size": 4096 # the width'), "a comment, which JSON lacks"),
    (TEXT.rstrip("}\n ") + "},}", "a comma without a key after it"),
    (TEXT.replace('"', "'"), "expected a key in double quotes"),
    (TEXT.replace('"model_type"', '"type"').replace('"llama"', '"llama", "architectures": []', 1),
     "has no model_type; add it"),
])
def test_a_damaged_file_is_refused_for_its_true_reason(tmp_path, text, sentence):
    path = file_of(tmp_path, text)
    answer = asked("llama", path, "--plan", code=2)
    assert answer.stdout == "", answer.stdout
    assert answer.stderr.startswith(f"train_llama: {path}: ") and sentence in answer.stderr, answer.stderr


def test_what_python_and_editors_write_is_read(tmp_path):
    path = file_of(tmp_path, TEXT)
    expected = asked("llama", path, "--plan", "--json").stdout
    path.write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    assert asked("llama", path, "--plan", "--json").stdout == expected
    file_of(tmp_path, {**LLAMA, "time_step_limit": [0.0, float("inf")], "x": float("-inf"), "y": float("nan"),
                       "sliding_window": float("inf")})
    assert asked("llama", path, "--plan", "--json").stdout == expected
    path.write_bytes(TEXT.encode("utf-16"))
    assert "is UTF-16; save it as UTF-8" in asked("llama", path, "--plan", code=2).stderr


@pytest.mark.parametrize("said, precision", [
    ({"torch_dtype": "bfloat16"}, "bf16"), ({"dtype": "bfloat16"}, "bf16"), ({"torch_dtype": "float16"}, "bf16"),
    ({"torch_dtype": "float32"}, "fp32"), ({}, "fp32"),
])
def test_the_answer_begins_with_what_the_file_does_not_say(tmp_path, said, precision):
    path = file_of(tmp_path, {**LLAMA, **said})
    first = asked("llama", path, "--plan").stdout.split("\nfits")[0]
    assert f"{precision}, 1,024 tokens a sequence, 16,384 a step, on 4 h100" in " ".join(first.split())
    assert '"precision":"fp32"' in asked("llama", path, "--plan", "--json",
                                         overrides=[*LAYOUT, "train.precision=fp32"]).stdout


@pytest.mark.parametrize("window, length, planned",
                         [(512, 512, True), (512, 1024, False), (2048, 1024, True), (None, 1024, True)])
def test_a_window_is_compared_with_the_length_that_is_planned(tmp_path, window, length, planned):
    unused = {"model_type": "qwen2", "use_sliding_window": False}
    for more, fits in (({"model_type": "mistral"}, planned), (unused, True)):
        path = file_of(tmp_path, {**LLAMA, **more, "sliding_window": window})
        asked("llama", path, "--plan", overrides=[*LAYOUT, f"model.seq_len={length}"], code=0 if fits else 2)


def test_a_folder_and_the_name_of_a_hub_say_what_to_give(tmp_path):
    assert f"give a file in it, such as {tmp_path}/config.json" in asked("llama", tmp_path, "--plan", code=2).stderr
    hub = asked("llama", "meta-llama/Llama-3.1-8B", "--plan", code=2)
    assert "the downloaded config.json of that model" in hub.stderr
    assert "downloaded" not in asked("llama", tmp_path / "none.yaml", "--plan", code=2).stderr

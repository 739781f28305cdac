"""Configurations converted to Megatron-LM and torchtitan and back: equal, except for settings reported as lost."""

import re
import sys
from pathlib import Path

import pytest
from trainer_runs import script

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from dialects import megatron_layout, yaml_lines  # noqa: E402

CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))


def export(config, program, code=None, **options):
    """Exports for a program; the code is 1 where the bytes there exceed the GPU's memory."""
    return script("export.py", config, "--to", program, code=code, **options)


def unsaid(answer):
    assert answer.code == 0 or " GiB in " in answer.stderr, answer.stderr
    return {line.split(": ")[1] for line in answer.stdout.splitlines() if line.startswith("# cannot be said")}


@pytest.mark.soak(2)
@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_what_megatron_is_told_means_the_configuration_again(config):
    aside = {"schedule.bpipe", "parallel.placement", "attention.softmax", "schedule.split_backward"}
    assert unsaid(export(config, "megatron")) <= aside


@pytest.mark.parametrize("program", ["megatron", "torchtitan"])
def test_context_ranks_are_said_and_read(tmp_path, program):
    path = tmp_path / "our.yaml"
    path.write_text((ROOT / "configs/llama3.1_8b.yaml").read_text().replace("  data: 4", "  context: 4\n  data: 4"))
    answer = export(path, program)
    assert re.search("context.parallel.(size 4|degree = 4)", answer.stdout), answer.stderr
    assert not {"parallel.context", "parallel.data"} & unsaid(answer)
    assert ("norms and biases have weight decay there" in answer.stdout) == (program == "torchtitan")


@pytest.mark.parametrize("keys, said, unsaid", [
    ({"parallel": {"pipeline": 4, "layers": [5, 4, 5, 4]}, "schedule": {"name": "1f1b"}}, "Et*5|t*4|t*5|t*4L", None),
    ({"parallel": {"pipeline": 2, "layers": [5, 4, 4, 4]}, "schedule": {"name": "zb-v"}}, "Et*9|t*8L", None),
    ({"parallel": {"pipeline": 1, "layers": [4, 4]}, "schedule": {"name": "interleaved"}}, None, "virtual-stages"),
    ({"parallel": {"tensor": 2, "overlap": "auto", "sequence": False}}, None, "tp-comm-overlap"),
    ({"attention": {"mode": "recompute"}, "schedule": {"recompute_layers": 3}}, "full", "recompute-modules"),
    ({"attention": {"mode": "recompute"}, "schedule": {"recompute": "pointwise"}}, "core_attn", None),
    ({"model": {"experts": 8}, "schedule": {"recompute": "experts"}}, "moe", "moe_act"),
])
def test_a_layout_is_one_that_megatrons_own_checks_accept(keys, said, unsaid):
    config = {"parallel": {"pipeline": 1, "tensor": 1, "data": 1, "context": 1, "sequence": True, "overlap": "off",
                           "placement": "stages", "layers": [8]}, "attention": {"mode": "flash"},
              "schedule": {"name": "1f1b", "group": 1, "recompute": "none", "recompute_layers": 0},
              "model": {"experts": 0}}
    words = megatron_layout({section: config[section] | keys.get(section, {}) for section in config})
    assert (said is None or said in words) and not any(unsaid in str(word) for word in words if unsaid)


@pytest.mark.parametrize("name, words", [("llama3.1_8b", set()), ("llama2_7b", {"model"})])
def test_what_torchtitan_is_told_means_the_configuration_again(name, words):
    assert unsaid(export(ROOT / f"configs/{name}.yaml", "torchtitan")) == words


@pytest.mark.parametrize("program, root, constant", [("torchtitan", 'decay_type = "sqrt"', "decay_ratio = 0.0"),
                                                     ("megatron", "minus_sqrt", "style constant"),
                                                     ("nanotron", "1-sqrt", "lr_decay_style: linear")])
def test_a_program_is_told_the_learning_rate_that_it_takes(tmp_path, program, root, constant):
    path, text = tmp_path / "our.yaml", (ROOT / "configs/llama3.1_8b.yaml").read_text()
    shape = "wsd\n  decay_shape:"
    for keys, said in ((f"{shape} sqrt", root), (f"{shape} 1-sqrt", root), ("constant", constant)):
        path.write_text(text.replace("\ntrain:", f"\ntrain:\n  precision: fp32\n  schedule: {keys}").replace(
            "  precision: bf16\n", "").replace("  schedule: cosine\n", ""))
        answer = export(path, program)
        assert said in answer.stdout, answer.stderr
        assert ("[compile]\nenable = true" in answer.stdout) == (program == "torchtitan")
        lost = {"schedule", "decay_steps", "decay_shape", "min_lr_ratio", "precision"}
        assert not {f"train.{key}" for key in lost} & unsaid(answer)


def test_bytes_that_do_not_fit_there_end_with_1(tmp_path):
    answer = export(ROOT / "configs/llama3.1_70b.yaml", "megatron", code=1)
    assert "torchrun" in answer.stdout
    said = r"export: stage 0 needs [\d.]+ GiB in Megatron-LM, but only 76 of 80 are free .*; search with .*--for .*\n"
    assert re.fullmatch(said, answer.stderr)
    export(ROOT / "configs/llama3.1_8b.yaml", "megatron", code=0)
    # nanotron has only LLaMA's layer, whose MLP is half as large again as GPT's of the same width.
    answer = export(ROOT / "configs/gpt3_96b.yaml", "nanotron", code=1)
    assert unsaid(answer) == {"model.family", "parallel.layers"}
    assert float(re.search(r"stage 0: +([\d.]+) GiB", answer.stdout)[1]) > 100
    assert answer.stderr.endswith("reserve_gib; recompute more layers\n")  # a search for nanotron refuses GPT
    answer = export(ROOT / "configs/gpt3_96b.yaml", "torchtitan").stdout
    assert "llama3 has no layer of GPT; name a model that has" in answer
    assert "torchtitan has no model.family gpt" in answer


@pytest.mark.parametrize("program, said", [("megatron", "--recompute-method uniform"), ("torchtitan", 'mode = "full"'),
                                           ("nanotron", "recompute_layer: true")])
def test_a_number_of_recomputed_layers_that_no_stage_exceeds_is_full_recomputation(tmp_path, program, said):
    path, text = tmp_path / "our.yaml", (ROOT / "configs/llama3_70b.yaml").read_text()
    keys = "\nschedule:\n  recompute_layers: 80\n"  # as a search writes it
    layers = [21, 20, 20, 19] if program == "nanotron" else [20, 20, 21, 19]
    text = re.sub("  (bpipe|recompute_layers):.*\n", "", text).replace("\nschedule:\n", keys)
    path.write_text(text.replace("\nparallel:\n", f"\nparallel:\n  layers: {layers}\n"))
    answer = export(path, program)
    assert said in answer.stdout, answer.stderr
    assert "schedule.recompute_layers" not in unsaid(answer)


def test_a_schedule_splits_backwards_there_if_it_always_does(tmp_path):
    path, text = tmp_path / "our.yaml", (ROOT / "configs/llama3_70b.yaml").read_text()
    for name, split, named in (("zb-v", "auto", 0), ("zb-v", "on", 0), ("1f1b", "on", 1), ("1f1b", "off", 0)):
        keys = f"{name}\n  split_backward: {split}"
        path.write_text(re.sub("  bpipe:.*\n", "", text).replace("  name: 1f1b", f"  name: {keys}"))
        answer = export(path, "torchtitan")
        assert ("# cannot be said: schedule.split_backward" in answer.stdout) == named, answer.stderr


def test_torchtitan_is_told_the_ranks_that_divide_experts():
    answer = export(ROOT / "configs/mixtral_8x7b.yaml", "torchtitan")
    assert "expert_parallel_degree = 8" in answer.stdout and "# cannot be said: parallel.expert" not in answer.stdout
    assert "# cannot be said: model: llama3 has no experts; name a model that has" in answer.stdout


def test_an_exported_layout_is_judged_on_the_hardware_of_its_configuration(tmp_path):
    path, text = tmp_path / "our.yaml", (ROOT / "configs/llama3.1_8b.yaml").read_text()
    path.write_text(text.replace("\nhardware:\n", "\nhardware:\n  tensor_gb_s: 20\n  memory_gib: 24\n"))
    answer = export(path, "megatron", code=1)
    told = re.search(r"# step as planned here: (\d+) ms; with only these settings: (\d+) ms", answer.stdout)
    assert abs(int(told[1]) - int(told[2])) <= 1
    assert "but only 20 of 24 are free" in answer.stderr


def test_steps_of_tokens_are_exported_of_a_configuration_with_a_name_like_an_option(tmp_path):
    path, text = tmp_path / "-8b.yaml", (ROOT / "configs/llama3.1_8b.yaml").read_text()
    for steps, iters, said in (("auto", 1908, False), ("100", 100, True)):
        path.write_text(re.sub(r"\n  steps: .*", f"\n  steps: {steps}\n  tokens: 4e9", text))
        answer = export("./-8b.yaml", "megatron", cwd=tmp_path)
        assert (f"--train-iters {iters} " in answer.stdout, "% of train.tokens" in answer.stdout) == (True, said)


def test_what_cannot_be_said_is_named(tmp_path):
    path = tmp_path / "our.yaml"
    text = (ROOT / "configs/llama65b.yaml").read_text()
    path.write_text(text.replace("name: 1f1b", "name: zb-v").replace("steps: 100\n", "steps: 100\n  z_loss: 0.1\n"))
    assert {"schedule.name", "train.z_loss", "parallel.layers"} <= unsaid(export(path, "megatron"))
    lost = {"schedule.name", "train.z_loss", "parallel.layers"}
    assert lost >= unsaid(export(path, "nanotron")) != set()
    assert "Megatron-LM needs" in export(path, "megatron").stdout
    path.write_text(text.replace("name: 1f1b", "name: gpipe") + "# unlike family: gpt\n")
    answer = export(path, "torchtitan").stdout
    assert '"GPipe"' in answer and "bytes of a rank are not known: torchtitan has no schedule.name gpipe" in answer
    assert 'cannot be said: train.precision: "bf16"; it becomes "fp32"' in answer  # pipeline 8 and data 1
    path.write_text(text.replace("  heads: 64", "  heads: 64\n  head_dim: 64").replace("steps: 100\n", "steps: 100\n"
                    "  optimizer: muon\n  batch_ramp: [[9, 256]]\n"))
    lost = {"model.head_dim", "train.optimizer", "train.batch_ramp", "parallel.layers"}
    assert unsaid(export(path, "nanotron")) == lost
    path.write_text(text.replace("\ndata:", "\ndata:\n  mask_documents: on\n  reset_positions: on"))
    lost = {"data.mask_documents", "data.reset_positions"}
    assert not lost & unsaid(export(path, "megatron"))
    assert lost <= unsaid(export(path, "torchtitan"))
    assert lost <= unsaid(export(path, "nanotron"))


def test_nanotrons_yaml_has_numbers():
    lines = list(yaml_lines({"eps": 1e-05, "lr": 2.5e-05, "on": True}, ""))
    assert lines == ["eps: 1.0e-05", "lr: 2.5e-05", "on: true"]


def test_latent_attention_is_stretched_there_or_refused_and_not_written_as_another(tmp_path):
    path, text = tmp_path / "our.yaml", (ROOT / "configs/deepseek_v3.yaml").read_text()
    keys = "rope_scaling: yarn\n  rope_factor: 40\n  rope_original: 4096\n  rope_mscale: 0.5\n  rope_attention: 1.1\n"
    path.write_text(text.replace("\nmodel:\n", f"\nmodel:\n  {keys}"))
    answer = export(path, "megatron")
    assert unsaid(answer) <= {"schedule.split_backward"} and "--rotary-scaling-factor 40 " in answer.stdout
    for program in ("torchtitan", "nanotron"):
        answer = export(path, program, code=1)
        assert answer.stdout == "" and "latent attention (model.kv_lora)" in answer.stderr
    answer = export(ROOT / "configs/glm4.5_355b.yaml", "nanotron")  # has no head_dim, and so heads of 5120 / 96
    assert "yaml: what nanotron takes of it is refused: model.head_dim: must be even" in answer.stderr

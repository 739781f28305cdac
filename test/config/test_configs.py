"""The shipped configurations: each can be planned, fits its GPUs, and has the size of the model in its name."""

import json
import re

import pytest
from trainer_runs import ROOT, command

CONFIGS = {path.stem: path for path in sorted((ROOT / "configs").rglob("*.yaml"))}

# Parameters as published, or as Hugging Face counts them in the published weights. GPT-3's weights are not public and
# the paper rounds, so those follow from its table 2.1: see gpt_parameters.
PUBLISHED = {
    "tinyllama_1.1b": 1_100_048_384,
    "llama2_7b": 6_738_415_616,
    "llama2_13b": 13_015_864_320,
    "llama2_70b": 68_976_648_192,
    "llama3_8b": 8_030_261_248,
    "llama3_70b": 70_553_706_496,
    "llama65b": 65_285_660_672,
    "gpt3_96b": 96_235_077_120,
    "llama3.1_8b": 8_030_261_248,
    "llama3.1_70b": 70_553_706_496,
    "llama3.2_1b": 1_235_814_400,
    "llama3.2_3b": 3_212_749_824,
    "qwen2.5_0.5b": 494_032_768,
    "qwen2.5_1.5b": 1_543_714_304,
    "qwen2.5_3b": 3_085_938_688,
    "qwen2.5_7b": 7_615_616_512,
    "qwen2.5_14b": 14_770_033_664,
    "qwen2.5_32b": 32_763_876_352,
    "qwen2.5_72b": 72_706_203_648,
    "qwen3_0.6b": 596_049_920,
    "qwen3_1.7b": 1_720_574_976,
    "qwen3_4b": 4_022_468_096,
    "qwen3_8b": 8_190_735_360,
    "qwen3_14b": 14_768_307_200,
    "qwen3_32b": 32_762_123_264,
    "mistral_7b": 7_248_023_552,
    "mixtral_8x7b": 46_702_792_704,
    "mixtral_8x22b": 140_620_634_112,
    "qwen3_30b_a3b": 30_532_122_624,
    "qwen3_235b_a22b": 235_093_634_560,
    # Published with the bias of the scores, a number for each expert of 58 and 60 layers, which is no parameter here.
    "deepseek_v3": 671_026_419_200 - 58 * 256,
    "kimi_k2": 1_026_408_232_448 - 60 * 384,
    # With the bias of 89 layers, and a layer for multi-token prediction that has embeddings of its own.
    "glm4.5_355b": 358_337_791_296 - 5_539_962_272 - 89 * 160,
    "gpt2_124m": 124_439_808,
    "gpt2_355m": 354_823_168,
    "gpt2_774m": 774_030_080,
    "gpt2_1558m": 1_557_611_200,
}

# Parameters that compute a token, in billions, as published. GLM-4.5's report leaves out embeddings and output layer.
ACTIVE = {"mixtral_8x7b": 12.9, "mixtral_8x22b": 39, "qwen3_30b_a3b": 3.3, "qwen3_235b_a22b": 22,
          "deepseek_v3": 37.5, "kimi_k2": 32.8, "glm4.5_355b": 32 + 2 * 151_552 * 5120 / 1e9}

# Layers, width, heads, and the size in the paper's table. Two rows of the paper have heads that do not multiply to the
# width; they are corrected here.
GPT3 = {
    "gpt3_125m": (12, 768, 12, 125e6), "gpt3_350m": (24, 1024, 16, 350e6), "gpt3_760m": (24, 1536, 16, 760e6),
    "gpt3_1.3b": (24, 2048, 16, 1.3e9), "gpt3_2.7b": (32, 2560, 32, 2.7e9), "gpt3_6.7b": (32, 4096, 32, 6.7e9),
    "gpt3_13b": (40, 5120, 40, 13e9), "gpt3_175b": (96, 12288, 96, 175e9),
}


def gpt_parameters(layers, width, vocab=50257, positions=2048):
    """Returns the parameters: matrices of 3, 1, 4 and 4 widths, their biases, two norms per layer and a final norm, and
    embeddings of tokens and positions."""
    layer = 12 * width**2 + (3 + 1 + 4 + 1) * width + 4 * width
    return layers * layer + 2 * width + (vocab + positions) * width


def family(path):
    return re.search(r"family: (\w+)", path.read_text())[1]


def plan(path, *overrides):
    ended = command(family(path), "-c", path, "--plan", "--json", overrides=overrides)
    return json.loads(ended.stdout)


@pytest.mark.parametrize("name", CONFIGS)
def test_every_configuration_can_be_planned_and_fits(name):
    stages = plan(CONFIGS[name])["stages"]
    assert [stage["stage"] for stage in stages if not stage["fits"]] == []


@pytest.mark.parametrize("name", PUBLISHED)
def test_models_have_the_published_number_of_parameters(name):
    assert plan(CONFIGS[name])["model"]["parameters"] == PUBLISHED[name]


@pytest.mark.parametrize("name", ACTIVE)
def test_mixtures_have_the_published_number_of_active_parameters(name):
    assert plan(CONFIGS[name])["model"]["active_parameters"] / 1e9 == pytest.approx(ACTIVE[name], rel=0.02)


@pytest.mark.parametrize("name", GPT3)
def test_gpt_3_has_the_sizes_of_the_paper(name):
    layers, width, heads, rounded = GPT3[name]
    parameters = plan(CONFIGS[name])["model"]["parameters"]
    assert parameters == gpt_parameters(layers, width)
    assert parameters == pytest.approx(rounded, rel=0.025)
    assert re.search(rf"\n  heads: {heads}\n", CONFIGS[name].read_text()) and width % heads == 0


@pytest.mark.parametrize(
    "name", [name for name, path in CONFIGS.items() if path.parent.name == "configs" and "tiny.yaml" not in path.name]
)
def test_what_a_configuration_says_may_be_changed_may_be_changed(name):
    changes = re.findall(r"^#     ((?:-o \S+ ?)+)", CONFIGS[name].read_text(), re.MULTILINE)
    assert len(changes) >= 2
    for change in changes:
        plan(CONFIGS[name], *change.replace("-o", "").split())

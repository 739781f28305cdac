"""studies/calibrate.py finds the constants that explain a set of metrics, and predicts other runs with them."""

import functools
import json
import re

import pytest
from trainer_runs import BUILD, ROOT, command, script

pytestmark = pytest.mark.thorough
CONSTANTS = {"matmul_efficiency": 0.7, "matmul_half": 200, "flash_forward": 0.4, "stream_gb_s": 1200, "action_us": 60,
             "step_overhead_ms": 12}
SHAPES = {
    "narrow": {"model": {"hidden": 1024, "heads": 8, "ffn": 4096}},
    "wide": {"model": {"hidden": 4096, "heads": 32, "ffn": 16384}},
    "long": {"model": {"seq_len": 8192}},
    "two_stages": {"parallel": {"pipeline": 2}},
    "larger_vocab": {"model": {"vocab": 100000}},
    "stored": {"attention": {"mode": "none"}},
    "micro_batch": {"schedule": {"micro_batch": 4}},
    "short_step": {"train": {"global_batch": 4}},
    "others": {"model": {"hidden": 3072, "heads": 24, "ffn": 8192}, "parallel": {"pipeline": 4},
               "schedule": {"micro_batch": 2}},
}


def configuration(name):
    config = {
        "model": {"family": "gpt", "hidden": 2048, "layers": 8, "heads": 16, "ffn": 8192, "vocab": 50000,
                  "seq_len": 2048},
        "train": {"precision": "bf16", "global_batch": 16},
        "data": {"train": "none"},
        "hardware": {"gpu": "a100-80g", "device": "cuda"},
    }
    for section, keys in SHAPES[name].items():
        config[section] = config.get(section, {}) | keys
    return config | {"attention": {"mode": "flash"} | config.get("attention", {})}


def made(folder, name):
    """Writes metrics of a run on a device with CONSTANTS: steps as the planner predicts, but the first two slower."""
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(configuration(name)))
    options = [f"hardware.{key}={value}" for key, value in CONSTANTS.items()] + [
        "hardware.flash_backward=0.336", "hardware.profile=",
    ]
    ended = command("gpt", "-c", path, "--plan", "--json", overrides=options)
    told = json.loads(ended.stdout)
    lines = [{"type": "run", "config": told["config"], "world": told["world"], "peak_tflops": 312}]
    lines += [{"type": "step", "step_ms": told["step_ms"] * factor} for factor in (9, 2, 1, 1, 1)]
    (folder / name).mkdir()
    (folder / name / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder / name


calibrate = functools.partial(script, "calibrate.py", "--bin", BUILD)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    runs = {name: made(folder, name) for name in SHAPES}
    others = runs.pop("others")
    ended = calibrate(*runs.values(), "--noise", "0", "-o", folder / "hardware.yaml", "--check", others)
    return folder, ended.stdout


def test_the_constants_are_those_that_made_the_metrics(fitted):
    text = (fitted[0] / "hardware.yaml").read_text()
    found = dict(re.findall(r"^  (\w+): ([0-9.]+)$", text, re.MULTILINE))
    for key, value in CONSTANTS.items():
        assert abs(float(found[key]) / value - 1) < 2e-3, (key, found[key])


def test_a_run_that_was_not_fitted_is_predicted(fitted):
    error = re.search(r"predicted.*?([+-][0-9.]+) %", fitted[1], re.DOTALL)
    assert abs(float(error[1])) <= 0.1, fitted[1]


def test_the_spread_of_the_steps_of_a_run_is_shown(tmp_path):
    """Quantiles are steps of the run, not times between two of them."""
    folder = made(tmp_path, "narrow")
    file = folder / "metrics.jsonl"
    head = file.read_text().splitlines()[0]
    steps = [json.dumps({"type": "step", "step_ms": step}) for step in (900, 900, 70, 80, 90, 100, 110, 120)]
    file.write_text("\n".join([head, *steps]) + '\n{"type":"st')  # a killed run's last line
    ended = calibrate(folder)
    assert re.search(r"narrow +100\.0 +15\.0 % ", ended.stdout), ended.stdout


def test_the_section_is_a_configuration(fitted):
    folder, _ = fitted
    config = configuration("wide")
    del config["hardware"]
    text = json.dumps(config)[1:-1].replace("}, ", "}\n").replace('"', "") + "\n"
    path = folder / "whole.yaml"
    path.write_text(
        re.sub(r": \{", ": {", text) + (folder / "hardware.yaml").read_text() + "  gpu: a100-80g\n  device: cuda\n")
    ended = command("gpt", "-c", path, "--plan", "-v")
    assert "matrix products at 70%" in ended.stdout


def test_runs_of_a_device_that_was_left_open_count_as_what_the_option_says(tmp_path):
    """A GPU found by the program must count as a GPU, although its section names no device and no peak."""
    folder = made(tmp_path, "narrow")
    file = folder / "metrics.jsonl"
    file.write_text(file.read_text().replace('"device": "cuda"', '"device": "auto"'))
    ended = calibrate(folder, "--device", "cuda")
    assert "matmul_efficiency: " in ended.stdout and "device: cpu" not in ended.stdout


STEP = '{"type":"step","step_ms":5}\n'
HEAD = ('{"type":"run","config":{"model":{"family":"gpt"},"attention":{"mode":"flash"},"hardware":{"device":"%s"}},'
        '"world":1,"peak_tflops":%d}\n')


@pytest.mark.parametrize(("text", "says"), [
    ("", "has no line of type run"),
    ("x\n", "is not a metrics file"),
    ('{"type":"run","config":{"hardware":{}},"world":1,"peak_tflops":1}\n', "has 0 steps"),
    ("[1]\n", "is not a metrics file"),
    ('{"type":"step","step_ms":null}\n', "is not a metrics file"),
    ('{"type":"run"}\n' + 3 * STEP, "is not a metrics file; give the file of log.metrics (it has no 'config')"),
    ('{"type":"run","config":{},"world":1,"peak_tflops":1}\n' + 3 * STEP, "(it has no 'model')"),
    (HEAD % ("cuda", 0) + 3 * STEP, "is not a positive number"),
    (HEAD % ("auto", 1) + 3 * STEP, "whether its hardware.device auto was a CPU or a GPU; say --device"),
])
def test_files_that_do_not_serve_are_refused(tmp_path, text, says):
    path = tmp_path / "m.jsonl"
    path.write_text(text)
    ended = calibrate(path, code=1)
    assert ended.stderr.startswith("calibrate: ")
    assert says in ended.stderr


@pytest.mark.parametrize("family, measured, seconds", [("llama", "step=20s", 20), ("gpt", "step=1500ms", 1.5)])
def test_one_measured_step_scales_products_once(tmp_path, family, measured, seconds):
    path, section = ROOT / "configs" / "llama65b.yaml", tmp_path / "hardware.yaml"
    if family == "gpt":
        path = tmp_path / "gpt.json"
        path.write_text(json.dumps(configuration("wide")))
    ended = calibrate(measured, "-c", path, "-o", section)
    found = re.fullmatch(r"# Scaled to .*\nhardware:\n  matmul_efficiency: (0\.\d+)\n  calibrated: true\n",
                         section.read_text())
    asked = ["-o", "hardware.profile=", "-o", f"hardware.matmul_efficiency={found[1]}"]
    told = json.loads(command(family, "-c", path, "--plan", "--json", *asked).stdout)
    assert told["step_ms"] / 1000 == pytest.approx(seconds, rel=1e-3)


@pytest.mark.parametrize("arguments, says", [
    (["step=1s", "-c", ROOT / "configs/llama65b.yaml"], "with all at the peak it takes"),
    (["step=58", "-c", ROOT / "configs/llama65b.yaml"], "step=58s or step=812ms"),
    (["step=58s"], "-c CONFIG"),
    (["run", "--skip", "-1"], "calibrate: --skip -1: give 0 or more steps"),
    (["run", "--quantile", "-3"], "calibrate: --quantile -3.0: give a fraction from 0 to 1"),
    (["run", "--noise", "-1"], "calibrate: --noise -1.0: give a fraction of 0 or more"),
])
def test_a_step_that_scales_nothing_and_numbers_that_mean_nothing_are_refused(arguments, says):
    ended = calibrate(*arguments, code=1)
    assert ended.stdout == "" and says in ended.stderr

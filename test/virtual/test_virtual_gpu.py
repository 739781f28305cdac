"""Runs on the virtual GPU (docs/cuda.md): the trainers of build/virtual compute what they compute on CPUs, in every order
that events permit, and the detector of races finds nothing."""

import json
import os
import subprocess

import pytest
import trainer_runs

VIRTUAL = trainer_runs.ROOT / "build" / "virtual"
SMALL = {
    "llama": "{family: llama, hidden: 32, layers: 4, heads: 4, kv_heads: 2, ffn: 64, vocab: 61, seq_len: 16}",
    "gpt": "{family: gpt, hidden: 32, layers: 4, heads: 4, ffn: 64, vocab: 61, seq_len: 16}",
}
ORDERS = ("fifo", "random", "newest")
# Relative: of losses, of gradient norms.
BOUNDS = {"fp32": (1e-6, 1e-5), "bf16": (1e-3, 1e-2)}


def write_config(folder, family):
    trainer_runs.write_tokens(folder / "train.bin", trainer_runs.made_tokens(4000, 61))
    path = folder / f"{family}.yaml"
    path.write_text(
        f"model: {SMALL[family]}\n"
        f"data: {{train: {folder}/train.bin}}\n"
        "train: {global_batch: 8, steps: 2, lr: 1.0e-3, warmup_steps: 1, precision: fp32}\n"
        "hardware: {reserve_gib: 0.5}\n"
    )
    return path


def run(config, family, metrics, *overrides, **environment):
    options = [item for text in overrides for item in ("-o", text)]
    command = [VIRTUAL / f"train_{family}", "-c", config, "-o", f"log.metrics={metrics}", *options]
    env = trainer_runs.environment(OMP_NUM_THREADS="1", VIRTUAL_PATIENCE="60", **environment)
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)


def steps(metrics):
    return [line for line in map(json.loads, metrics.read_text().splitlines()) if line["type"] == "step"]


def compare(folder, family, case, order="fifo", seed=1):
    config = write_config(folder, family)
    precision = "bf16" if "train.precision=bf16" in case else "fp32"
    done = run(config, family, folder / "gpu", "hardware.device=cuda", *case, VIRTUAL_ORDER=order, VIRTUAL_SEED=str(seed))
    assert done.returncode == 0, done.stderr[-2000:]
    on_cpu = [option for option in case if not option.startswith("hardware.")]
    alone = run(config, family, folder / "cpu", "hardware.device=cpu", *on_cpu)
    assert alone.returncode == 0, alone.stderr[-2000:]
    of_loss, of_norm = BOUNDS[precision]
    found, wanted = steps(folder / "gpu"), steps(folder / "cpu")
    assert len(found) == len(wanted) == 2
    for a, b in zip(found, wanted):
        assert a["loss"] == pytest.approx(b["loss"], rel=of_loss)
        assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=of_norm)
    return found


@pytest.mark.parametrize("family", SMALL)
@pytest.mark.parametrize("precision", BOUNDS)
def test_one_stage_trains_as_on_a_cpu(tmp_path, family, precision):
    compare(tmp_path, family, (f"train.precision={precision}",))


def test_operations_of_the_gpu_agree_with_those_of_the_cpu():
    env = dict(os.environ, VIRTUAL_ORDER="random")
    done = subprocess.run([VIRTUAL / "test_cuda"], capture_output=True, text=True, timeout=900, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "SKIPPED" not in done.stdout + done.stderr

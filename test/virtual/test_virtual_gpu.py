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
    env = trainer_runs.environment(**{"OMP_NUM_THREADS": "1", "VIRTUAL_PATIENCE": "60", **environment})
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)


def steps(metrics):
    return [line for line in map(json.loads, metrics.read_text().splitlines()) if line["type"] == "step"]


def compare(folder, family, case, orders=("fifo",), **environment):
    """The steps on the virtual GPU in the last order, after all were found to be those of CPUs."""
    config = write_config(folder, family)
    of_loss, of_norm = BOUNDS["bf16" if "train.precision=bf16" in case else "fp32"]
    on_cpu = [option for option in case if not option.startswith("hardware.")]
    alone = run(config, family, folder / "cpu", "hardware.device=cpu", *on_cpu)
    assert alone.returncode == 0, alone.stderr[-2000:]
    wanted = steps(folder / "cpu")
    for order in orders:
        metrics = folder / order
        done = run(config, family, metrics, "hardware.device=cuda", *case, VIRTUAL_ORDER=order, **environment)
        assert done.returncode == 0, done.stderr[-2000:]
        found = steps(metrics)
        assert len(found) == len(wanted) == 2
        for a, b in zip(found, wanted):
            assert a["loss"] == pytest.approx(b["loss"], rel=of_loss)
            assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=of_norm)
    return found


# Each once in each order; one computation on CPUs serves all three.
CASES = {
    "two stages": ("gpt", "parallel.pipeline=2"),
    "four stages in bf16": ("llama", "parallel.pipeline=4", "train.precision=bf16"),
    "evictions into the partner's memory": ("llama", "parallel.pipeline=4", "schedule.bpipe=on"),
    "evictions to host memory": ("gpt", "parallel.pipeline=4", "schedule.bpipe=on", "schedule.evict_to=host"),
    "a GPU for all stages": ("llama", "parallel.pipeline=4", "schedule.bpipe=on", "hardware.share_gpu=true"),
    "two tensor ranks": ("llama", "parallel.pipeline=2", "parallel.tensor=2", "parallel.sequence=true"),
    "a split backward on two tensor ranks": (
        "gpt", "parallel.pipeline=2", "parallel.tensor=2", "parallel.sequence=true", "schedule.split_backward=on",
    ),
    "collectives in a row with products": ("llama", "parallel.tensor=2", "parallel.sequence=true", "parallel.overlap=off"),
    "two tensor ranks with whole sequences": ("gpt", "parallel.tensor=2", "parallel.sequence=false"),
    "two data ranks": ("llama", "parallel.pipeline=2", "parallel.data=2"),
}


@pytest.mark.usefixtures("ranks")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_several_ranks_train_as_on_cpus_in_every_order(tmp_path, case):
    compare(tmp_path, case[0], case[1:], orders=ORDERS)


@pytest.mark.usefixtures("ranks")
def test_stages_on_two_nodes_exchange_messages_through_nccl(tmp_path):
    found = compare(tmp_path, "llama", ("parallel.pipeline=4", "schedule.bpipe=on"), VIRTUAL_NODES="2")
    assert all(step["evictions"] > 0 for step in found)


# Kernels come to the device at their first launch, the program's own ones too; none may after the first message.
REHEARSED = {
    "chunks and split backwards": ("gpt", "parallel.pipeline=2", "schedule.name=v-half", "train.precision=bf16"),
    "whole and split backwards": ("llama", "parallel.pipeline=2", "schedule.name=dualpipe-v"),
    "layers that are run again": ("llama", "parallel.pipeline=2", "schedule.recompute_layers=1"),
    "tensor ranks and a tied head": ("gpt", "parallel.pipeline=2", "parallel.tensor=2", "model.tie_embeddings=true"),
    "data ranks": ("llama", "parallel.pipeline=2", "parallel.data=2"),
}


@pytest.mark.usefixtures("ranks")
@pytest.mark.parametrize("case", REHEARSED.values(), ids=REHEARSED)
def test_nothing_is_launched_for_the_first_time_after_the_first_message(tmp_path, case):
    nodes = "4" if "parallel.data=2" in case else "2"  # so that stages are on two
    compare(tmp_path, case[0], case[1:], VIRTUAL_NODES=nodes, VIRTUAL_LAZY="2", CUDA_MODULE_LOADING="LAZY")


@pytest.mark.parametrize("family", SMALL)
@pytest.mark.parametrize("precision", BOUNDS)
def test_one_stage_trains_as_on_a_cpu(tmp_path, family, precision):
    compare(tmp_path, family, (f"train.precision={precision}",))


@pytest.mark.thorough
def test_operations_of_the_gpu_agree_with_those_of_the_cpu():
    env = dict(os.environ, VIRTUAL_ORDER="random")
    done = subprocess.run([VIRTUAL / "test_cuda"], capture_output=True, text=True, timeout=900, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "SKIPPED" not in done.stdout + done.stderr

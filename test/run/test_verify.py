"""--verify: several runs of the same steps agree bit by bit; a flipped bit in one of them is found and named."""

import json
import os
import re
import subprocess

import pytest

from faults import build_flipper, flips
from trainer_runs import (GPT, LLAMA, MODELS, ROOT, Trainer, layout, mpirun, mpirun_environment, nothing_left, saving,
                          without_mpi)

pytestmark = pytest.mark.skipif(without_mpi(), reason="built without MPI")

MESSAGE = 16 * 32 * 4


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    return Trainer(tmp_path_factory.mktemp("llama"), LLAMA)


def verify(trainer, *changes, steps=2, arguments=(), prefix=(), environment=None):
    command, metrics = trainer.prepare(*changes)
    environment = environment or {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [*prefix, *command, "--verify", str(steps), *arguments]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert not metrics.exists()
    return ended


def agreed(ended, runs, steps=2, first=1):
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert re.fullmatch(
        rf"verified: {runs} runs agree in {steps} steps? from step {first}, each in loss, norm, and the gradients and "
        r"updated weights of \d+ tensors",
        lines[-1]), ended.stdout
    assert len(lines) == runs and all(line.endswith(": the same bits") for line in lines[:-1])
    return True


@pytest.mark.parametrize("family", MODELS)
def test_one_stage_several_stages_and_bpipe_agree(family, tmp_path):
    ended = verify(Trainer(tmp_path, MODELS[family]), layout(p=4, bpipe=True))
    assert agreed(ended, 3)
    assert ended.stdout.splitlines()[:2] == [
        "1 stage and 4 stages, no BPipe: the same bits", "1 stage and 4 stages, BPipe: the same bits",
    ]
    assert ended.stderr.count("verify: ") == 3 and "step " not in ended.stderr


@pytest.mark.parametrize(
    "change",
    [layout(p=1), layout(p=2, t=2, parallel_sequence=True), layout(p=3, d=2, train_global_batch=12),
     layout(p=4, train_precision="bf16")],
    ids=["configured_one_stage", "tensor_ranks", "data_ranks", "bf16"])
def test_other_layouts_are_verified_alike(tmp_path, change):
    assert agreed(verify(Trainer(tmp_path, GPT), change, steps=1), 3, steps=1)


@pytest.mark.thorough
def test_nothing_is_written_and_nothing_is_left(trainer, tmp_path):
    before = set(trainer.folder.iterdir())
    ended = verify(trainer, layout(p=2), saving(tmp_path / "saved", 1), {"sample.every": 1})
    assert agreed(ended, 3)
    assert not (tmp_path / "saved").exists()
    assert {path.name.partition("_")[0] for path in set(trainer.folder.iterdir()) - before} == {"config"}
    assert nothing_left(str(trainer.folder))


@pytest.mark.thorough
def test_a_resumed_run_is_verified_from_its_checkpoint_on(trainer, tmp_path):
    trainer.run(saving(tmp_path, 3), {"train.steps": 3})
    ended = verify(trainer, layout(p=2), arguments=["--resume", str(tmp_path)])
    assert agreed(ended, 3, first=4)
    ended = verify(trainer, layout(p=2), {"train.steps": 3}, arguments=["--resume", str(tmp_path)])
    assert ended.returncode == 2 and "nothing is left to train" in ended.stderr


@pytest.mark.thorough
def test_ranks_of_a_launcher_compare_their_stages_without_and_with_bpipe(trainer):
    ended = verify(trainer, layout(p=4), prefix=mpirun(4), environment=mpirun_environment(OMP_NUM_THREADS="1"))
    assert agreed(ended, 2)
    assert ended.stdout.splitlines()[0] == "4 stages, no BPipe and 4 stages, BPipe: the same bits"
    ended = verify(trainer, layout(d=2), prefix=mpirun(2), environment=mpirun_environment(OMP_NUM_THREADS="1"))
    assert agreed(ended, 2)
    assert ended.stdout.startswith("1 stage and 1 stage, once more: the same bits\n")


@pytest.fixture(scope="module")
def flipper(tmp_path_factory):
    return build_flipper(tmp_path_factory.mktemp("flipper"))


@pytest.mark.thorough
def test_a_flipped_bit_is_found_and_its_first_effect_named(tmp_path, flipper):
    """The bit belongs to a gradient between stages in step 2. The step's loss is still correct; the gradients of the
    stages below are wrong."""
    trainer = Trainer(tmp_path, LLAMA)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **flips(flipper, rank=3, size=MESSAGE, at=8 + 2)}
    ended = verify(trainer, layout(p=4, bpipe=True), environment=environment, steps=3)
    assert ended.returncode == 1
    assert "verified" not in ended.stdout
    differs = re.findall(r"^1 stage and 4 stages, (?:no )?BPipe: differ from step (\d): the gradient of (\S+) has",
                         ended.stdout, re.M)
    assert [step for step, _ in differs] == ["2", "2"]
    assert all(name.startswith("model.layers.5.") for _, name in differs)  # the last layer of stage 2


def fullest(trainer, *changes):
    """Returns the planned bytes of the fullest stage."""
    command, _ = trainer.prepare(*changes)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    said = subprocess.run([*command, "--plan", "--json"], cwd=ROOT, env=environment, capture_output=True, text=True,
                          check=True)
    return max(stage["peak_bytes"] for stage in json.loads(said.stdout)["stages"])


@pytest.mark.thorough
def test_what_does_not_fit_is_left_out_and_reported(tmp_path):
    trainer = Trainer(tmp_path, LLAMA)
    one, four = fullest(trainer), max(fullest(trainer, layout(p=4, bpipe=bpipe)) for bpipe in (False, True))
    assert four < one
    tight = {"hardware.memory_gib": 0.1 + (one + four) / 2 / 2**30, "hardware.reserve_gib": 0.1}
    ended = verify(trainer, layout(p=4), tight)
    assert re.search(r"verify: 1 stage: left out: .*", ended.stderr), ended.stderr
    assert agreed(ended, 2)
    none = verify(trainer, layout(p=4), {"hardware.memory_gib": 0.1001, "hardware.reserve_gib": 0.1})
    assert none.returncode == 1 and "nothing was compared" in none.stderr


def test_one_stage_that_can_be_no_other_is_run_once_more(tmp_path):
    """With one microbatch a step, as shard_gradients wants it, there is nothing to split over stages."""
    one = layout(d=2, train_global_batch=8, schedule_micro_batch=4, parallel_shard_gradients="on")
    ended = verify(Trainer(tmp_path, LLAMA), one)
    assert agreed(ended, 2)
    assert ended.stdout.startswith("1 stage and 1 stage, once more: the same bits\n")


@pytest.mark.thorough
def test_attention_by_stage_is_compared_with_one_stage_if_that_can_have_its_bits(tmp_path):
    trainer = Trainer(tmp_path, LLAMA)
    assert agreed(verify(trainer, layout(p=2, attention_mode=["none", "recompute"])), 3)
    ended = verify(trainer, layout(p=2, attention_mode=["none", "flash"]))
    assert agreed(ended, 2) and "verify: 1 stage: left out: only some stages have attention.mode flash" in ended.stderr


@pytest.mark.thorough
def test_gpipe_has_no_bpipe_to_compare_with(tmp_path):
    ended = verify(Trainer(tmp_path, GPT), layout(p=4, schedule_name="gpipe"))
    assert agreed(ended, 2)
    assert "4 stages, gpipe, BPipe: left out" in ended.stderr


@pytest.mark.parametrize("value,said",
                         [("0", "give a number of steps from 1 to"), ("two", "give a number"), ("-1", "needs a value")])
def test_a_wrong_number_is_refused(tmp_path, value, said):
    ended = verify(Trainer(tmp_path, LLAMA), steps=value)
    assert ended.returncode == 2 and said in ended.stderr and ended.stdout == ""


def test_a_run_that_fails_ends_the_verification_with_its_error(tmp_path):
    trainer = Trainer(tmp_path, LLAMA)
    wild = {"train.lr": 100, "train.warmup_steps": 0, "train.grad_clip": 0, "train.weight_decay": 100,
            "train.steps": 60}
    ended = verify(trainer, layout(p=2), wild, steps=60)
    assert ended.returncode == 1
    assert "weights are unchanged" in ended.stderr
    assert "verify: the run with 1 stage failed; nothing was compared" in ended.stderr

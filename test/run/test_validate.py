"""--validate: the loss of a checkpoint without training has the bits of the validation in the run that wrote it."""

import json
import re
import subprocess

import pytest

from trainer_runs import GPT, LLAMA, ROOT, Trainer, layout, saving, without_mpi

several_ranks = pytest.mark.skipif(without_mpi(), reason="built without MPI")


@pytest.fixture(scope="module", params=[LLAMA, GPT], ids=["llama", "gpt"])
def trained(request, tmp_path_factory):
    trainer = Trainer(tmp_path_factory.mktemp("validate"), request.param)
    trainer.val = {"data.val": trainer.config["data"]["train"], "data.val_every": 4, "data.val_batches": 3}
    trainer.saved = trainer.folder / "saved"
    trainer.result = trainer.run(trainer.val, saving(trainer.saved, 4))
    return trainer


def validate(trainer, *changes, arguments=(), resume=None, code=0):
    command, metrics = trainer.prepare(trainer.val, {"data.train": "absent.bin", "data.val_every": 0}, *changes)
    command += ["--validate", *arguments] + (["--resume", str(resume)] if resume else [])
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ended.returncode == code, ended.stderr
    assert not metrics.exists()
    return ended.stdout if code == 0 else ended.stderr


def loss_of(trainer, *changes, resume=None):
    return json.loads(validate(trainer, *changes, arguments=["--json"], resume=resume))


LAYOUTS = [layout(), layout(p=2, bpipe=True), layout(p=4, bpipe=True, schedule_slots=4), layout(p=8)]


@pytest.mark.thorough
@several_ranks
def test_it_is_the_validation_of_the_run_to_the_bit(trained):
    assert sorted(trained.result.vals) == [4, 8]
    for ranks in LAYOUTS:
        found = loss_of(trained, ranks, resume=trained.saved)
        expected = {"step": 8, "loss": trained.result.vals[8], "sequences": 24, "tokens": 24 * 16}
        assert {key: found[key] for key in expected} == expected
    split = loss_of(trained, layout(t=2, d=2), resume=trained.saved)
    assert split["loss"] == pytest.approx(trained.result.vals[8], rel=1e-5)


def test_any_checkpoint_and_any_model_is_asked_alike(trained):
    older = trained.saved / "step_00000004"
    assert loss_of(trained, resume=older)["loss"] == trained.result.vals[4]
    assert loss_of(trained, {"checkpoint.init_from": str(older)})["loss"] == trained.result.vals[4]
    said = re.fullmatch(r"loss (\S+) \| perplexity \S+ \| 24 sequences of 16 tokens\n", validate(trained, resume=older))
    assert float(said[1]) == pytest.approx(trained.result.vals[4], abs=1e-6)


def test_a_perplexity_beyond_every_number_is_null(trained, tmp_path):
    trained.run({"train.init_std": 1000, "train.steps": 1}, saving(tmp_path / "wild", 1))
    found = loss_of(trained, resume=tmp_path / "wild")
    assert found["loss"] > 1000 and found["perplexity"] is None


def test_what_cannot_be_validated_is_reported_in_a_sentence(trained, tmp_path):
    assert "--validate: no model is given; give --resume DIR" in validate(trained, code=2)
    assert "there is no checkpoint in it" in validate(trained, resume=tmp_path, code=2)
    assert "data.val: is empty" in validate(trained, {"data.val": ""}, resume=trained.saved, code=2)
    for option in (["--plan"], ["--schedule"], ["--generate", "1"], ["--trace", "t.json"], ["--check"]):
        said = validate(trained, arguments=option, resume=trained.saved, code=2)
        assert "leave out the other action" in said and said.count("\n") == 1, said

"""--validate: the loss of a checkpoint without training has the bits of the validation in the run that wrote it;
test_layouts has other layouts."""

import json
import re

import pytest

from trainer_runs import GPT, LLAMA, Trainer, saving


@pytest.fixture(scope="module", params=[LLAMA, GPT], ids=["llama", "gpt"])
def trained(request, tmp_path_factory):
    trainer = Trainer(tmp_path_factory.mktemp("validate"), request.param)
    trainer.val = {"data.val": trainer.data, "data.val_every": 4, "data.val_batches": 3}
    trainer.saved = trainer.folder / "saved"
    trainer.result = trainer.run(trainer.val, saving(trainer.saved, 4))
    return trainer


def validate(trainer, *changes, arguments=(), resume=None, code=0):
    absent = {"data.train": "absent.bin", "data.val_every": 0}
    ended = trainer.run(trainer.val, absent, *changes, arguments=["--validate", *arguments], resume=resume, code=code)
    assert not ended.metrics.exists()
    return ended.stdout if code == 0 else ended.stderr


def loss_of(trainer, *changes, resume=None):
    return json.loads(validate(trainer, *changes, arguments=["--json"], resume=resume))


def test_any_checkpoint_and_any_model_is_asked_alike(trained):
    older = trained.saved / "step_00000004"
    found, expected = loss_of(trained, resume=older), {"step": 4, "sequences": 24, "tokens": 24 * 16}
    assert {key: found[key] for key in expected} == expected and found["loss"] == trained.result.vals[4]
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

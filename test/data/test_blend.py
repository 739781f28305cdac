"""Training on a blend of data sets: the share of each source, and messages. test_layouts has
layouts and resumes."""

import json

import pytest
from trainer_runs import GPT, Trainer, layout, saving, walked_tokens, without_mpi, write_tokens

needs_ranks = pytest.mark.skipif(without_mpi(), reason="built without MPI")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Eight steps on 70 % of a large set and 30 % of one that has 6 sequences, saved after step 3."""
    folder = tmp_path_factory.mktemp("blend")
    large = write_tokens(folder / "large_train_000.bin", walked_tokens(4000, 30, seed=1))
    small = write_tokens(folder / "small_train_000.bin", 30 + walked_tokens(6 * 16 + 1, 30, seed=2))
    blend = [{"path": str(large), "weight": 0.7}, {"path": str(small), "weight": 0.3}]
    trainer = Trainer(folder, GPT, None, {"data.train": blend})
    trainer.blend = blend
    trainer.saved = trainer.folder / "saved"
    trainer.whole = trainer.run(saving(trainer.saved, 3))
    return trainer


def test_the_share_of_each_source_matters(trained):
    changed = [{**source, "weight": weight} for source, weight in zip(trained.blend, (0.3, 0.7))]
    assert trained.run({"data.train": changed}).curve()[0] != trained.whole.curve()[0]
    alone = trained.run({"data.train": trained.blend[:1]}).curve()
    assert alone == trained.run({"data.train": trained.blend[0]["path"]}).curve()
    refused = trained.run({"data.train": changed}, resume=trained.saved / "step_00000003", code=2).stderr
    assert "a blend had other weights" in refused and "checkpoint.changed: accept" in refused


def test_start_up_says_how_far_each_source_goes_and_the_metrics_hold_the_blend(trained):
    # 8 steps of 8 sequences: 64 * 0.3 / 6 = 3.2.
    large, small = (line for line in trained.whole.stderr.splitlines() if "data.train: " in line)
    assert "70 % of the sequences from " in large and "large_train_000.bin, which has 249: 0.18 passes over it" in large
    assert "30 % of the sequences from " in small and "which has 6: 3.2 passes over it; the run repeats them" in small
    assert "repeats" not in large
    assert trained.whole.head["config"]["data"]["train"] == trained.blend


def side(trainer, name, **what):
    path = trainer.folder / f"{name}.json"
    path.write_text(json.dumps({"name": name, "tokenizer": "sentencepiece", "vocab": 61, **what}))
    return path


def test_a_vocabulary_too_large_is_refused_with_both_numbers(trained):
    told = side(trained, "small", vocab=32000)
    refused = trained.run(code=2)
    told.unlink()
    assert "vocabulary of 32000" in refused.stderr
    assert "more than model.vocab 61; set model.vocab to 32000" in refused.stderr
    assert refused.stderr.count("\n") == 1


@pytest.mark.parametrize("p", [1, pytest.param(2, marks=needs_ranks)])
def test_data_of_two_tokenizers_is_refused_unless_allowed(trained, p):
    val = write_tokens(trained.folder / "held_val_000.bin", walked_tokens(300, 61))
    change = {**layout(p=p), "train.steps": 1, "data.val": str(val), "data.val_every": 1, "data.val_batches": 1}
    told = [side(trained, name, tokenizer_sha256=digest) for name, digest in (("large", "ab"), ("held", "cd"))]
    refused = trained.run(change, code=2).stderr
    allowed = trained.run(change, {"data.mixed_tokenizers": True}).stderr
    told[1].write_text(told[0].read_text())
    same = trained.run(change).stderr
    for path in told:
        path.unlink()
    assert refused.count("name different tokenizers") == 1 and "set data.mixed_tokenizers: true" in refused
    assert "large.json and " in refused and "held.json name different tokenizers" in refused
    assert "tokenizers" not in same and "tokenizers" not in allowed


def test_the_plan_counts_the_order_of_a_blend(trained):
    blend = [{**source, "weight": weight} for source, weight in zip(trained.blend, (3.14159265, 2.71828182))]
    said = trained.run({"data.train": blend}, arguments=["--plan", "-v"]).stdout
    assert "host      memory per rank: the order of the blend (3.8 MiB)" in said
    assert "order of the blend" not in trained.run(arguments=["--plan", "-v"]).stdout

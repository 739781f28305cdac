"""Checkpoints are not trusted: symbolic links, non-finite values, manifests with forged checksums, and names with
terminal escapes."""

import json
import shutil

import numpy
import pytest

from checkpoint_runs import TINY, poison, reseal, saved_run, several_ranks
from trainer_runs import checkpoint_names, layout, metrics_of, saving, verify, wait_until

UNUSED = 15  # no sample holds this token


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    tokens = numpy.random.default_rng(2).integers(0, UNUSED, 2000)
    return saved_run(tmp_path_factory.mktemp("small"), 2, steps=4, model=dict(TINY, kv_heads=2, tie_embeddings=False),
                     tokens=tokens)


# --- symbolic links


LATE = 1500  # steps: long enough to place links after the sweep at the start and before the save


def attacked(small, saved, place, *changes):
    """Runs a trainer and calls `place` after its first step to put links into the folder of its checkpoints."""
    job = small.launch(saving(saved, LATE), {"train.steps": LATE}, *changes)
    wait_until(lambda: metrics_of(job.metrics), "no step")
    place()
    ended = job.end()
    assert "saved" in ended.stderr, ended.stderr
    assert checkpoint_names(saved) == [f"step_{LATE:08}"] and verify(saved / f"step_{LATE:08}") is None


@several_ranks
@pytest.mark.parametrize("p", [1, 2])
def test_a_link_in_the_way_of_a_checkpoint_is_removed_and_not_followed(small, tmp_path, p):
    saved, victim = tmp_path / "saved", tmp_path / "victim"
    victim.mkdir()
    (victim / "config.json").write_text("precious")
    attacked(small, saved, lambda: (saved / f".step_{LATE:08}.partial").symlink_to(victim), layout(p=p))
    assert [path.read_text() for path in victim.iterdir()] == ["precious"]


def test_links_inside_a_folder_in_the_way_are_not_followed(small, tmp_path):
    saved, victim = tmp_path / "saved", tmp_path / "victim"
    victim.write_text("precious")

    def place():
        folder = saved / f".step_{LATE:08}.partial"
        folder.mkdir()
        for name in ("config.json", "manifest.json", "optimizer-00001-of-00004.safetensors"):
            (folder / name).symlink_to(victim)

    attacked(small, saved, place)
    assert victim.read_text() == "precious"


def test_a_link_with_a_checkpoint_s_name_is_replaced_and_not_followed(small, tmp_path):
    saved, victim = tmp_path / "saved", tmp_path / "victim"
    shutil.copytree(small.saved, saved)
    victim.mkdir()
    (victim / "manifest.json").write_text("precious")
    shutil.rmtree(saved / "step_00000004")
    (saved / "step_00000004").symlink_to(victim)
    small.run(saving(saved, 2), resume=saved / "step_00000002")
    assert not (saved / "step_00000004").is_symlink() and verify(saved / "step_00000004") is None
    assert (victim / "manifest.json").read_text() == "precious"


# --- values that are not finite


@pytest.fixture
def poisoned(small, tmp_path):
    """A model with a NaN in the embedding of a token that no sample contains."""
    shutil.copytree(small.saved / "step_00000004", tmp_path / "model")
    (tmp_path / "model" / "manifest.json").unlink()
    poison(tmp_path / "model", "model.embed_tokens.weight", UNUSED * 8 + 3, numpy.nan)
    return tmp_path / "model"


WHERE = "model.embed_tokens.weight has a non-finite value in row 15, column 3"


@several_ranks
@pytest.mark.parametrize("change", [layout(), layout(p=2), layout(t=2), layout(d=2)], ids=["one", "p2", "t2", "d2"])
def test_a_nan_that_no_token_uses_is_noticed_at_the_start(small, poisoned, change):
    refused = small.run({"checkpoint.init_from": str(poisoned)}, change, code=1)
    assert WHERE in refused.stderr and "use other weights" in refused.stderr and refused.steps == []


@several_ranks
@pytest.mark.parametrize("change", [layout(), layout(p=2), layout(t=2), layout(d=2)], ids=["one", "p2", "t2", "d2"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_nan_that_no_token_uses_is_noticed_when_saving(small, poisoned, tmp_path, change, precision):
    """If train.skip_bad_steps allows the start, every save warns again. Otherwise the saved checkpoint is refused."""
    leave = {"checkpoint.init_from": str(poisoned), "train.skip_bad_steps": 1, "train.precision": precision}
    trained = small.run(leave, change, saving(tmp_path / "saved", 4))
    assert WHERE in trained.stderr and "step 4 is saved although model.embed_tokens.weight" in trained.stderr
    again = small.run({"train.precision": precision}, resume=tmp_path / "saved", code=1)
    assert "model.embed_tokens.weight" in again.stderr and "non-finite value in row 15, column 3" in again.stderr


# --- manifests with forged checksums


def without_entry(text, name):
    lines = [line for line in text.splitlines(keepends=True) if f'"name": "{name}"' not in line]
    return "".join(lines).replace('"},\n  ],', '"}\n  ],')


@pytest.mark.parametrize("name", ["training.json", "config.json"])
def test_a_manifest_that_leaves_a_file_out_is_refused(small, tmp_path, name):
    checkpoint = shutil.copytree(small.saved / "step_00000004", tmp_path / "step_00000004")
    manifest = checkpoint / "manifest.json"
    reseal(manifest, without_entry(manifest.read_text(), name))
    if name == "training.json":
        state = (checkpoint / name).read_text()
        state = state.replace('"samples": 16', '"samples": 4').replace('"tokens": 128', '"tokens": 32')
        (checkpoint / name).write_text(state)
    refused = small.run(resume=checkpoint, code=1)
    assert "manifest.json: does not match training.json or lacks config.json" in refused.stderr and refused.steps == []


def test_a_training_state_of_another_checkpoint_is_refused(small, tmp_path):
    checkpoint = shutil.copytree(small.saved / "step_00000004", tmp_path / "step_00000004")
    manifest = checkpoint / "manifest.json"
    reseal(manifest, manifest.read_text().replace('"sequence": 2', '"sequence": 7'))
    refused = small.run(resume=checkpoint, code=1)
    assert "manifest.json: does not match training.json" in refused.stderr


# --- names that move the cursor

NAMES = {"csi": "a\u009b2Jb", "bidi": "a\u202egnp", "escape": "a\x1b[2Jb", "isolate": "a\u2066b"}


@pytest.mark.parametrize("kind", NAMES)
def test_names_from_files_do_not_move_the_cursor(small, tmp_path, kind):
    """The names replace a file's name in a manifest, and a tensor file's name in an index."""
    folder = shutil.copytree(small.saved / "step_00000004", tmp_path / "step_00000004")
    manifest = folder / "manifest.json"
    reseal(manifest, manifest.read_text().replace('"config.json"', json.dumps(NAMES[kind], ensure_ascii=False)))
    said = [small.run(resume=folder, code=1).stderr]
    model = tmp_path / "model"
    shutil.copytree(small.saved / "step_00000004", model)
    (model / "manifest.json").unlink()
    index = model / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("model-00001", json.dumps(NAMES[kind])[1:-1]))
    said.append(small.run({"checkpoint.init_from": str(model)}, code=1).stderr)
    for text in said:
        assert not set(text) & {"\x1b", "\u009b", "\u202e", "\u2066"} and "?" in text.splitlines()[-1], text

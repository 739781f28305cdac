"""Saving, resuming, and the effects of damage and full disks."""

import json
import os
import shutil

import numpy
import pytest

from checkpoint_runs import TINY, crc64, small, several_ranks, tiny
from trainer_runs import (LLAMA, MODELS, TOOLS, Trainer, checkpoint_names, execute, layout, one_thread, preload, saving,
                          verify, without_mpi)


@pytest.fixture(scope="module", params=MODELS)
def trained(request, tmp_path_factory):
    """A run of eight steps over two stages with BPipe, saved after step 4, and its later losses."""
    if without_mpi():
        pytest.skip("built without MPI")
    trainer = Trainer(tmp_path_factory.mktemp(request.param), MODELS[request.param])
    trainer.saved = trainer.folder / "saved"
    trainer.whole = trainer.run(layout(p=2, bpipe=True), saving(trainer.saved, 4))
    return trainer


# --- one model in any layout


def test_tensor_and_data_ranks_resume_with_the_same_bits_in_other_stages(trained, tmp_path):
    """Tensor rank r has the r-th part of a matrix, data rank r the r-th piece of an optimizer state."""
    split = layout(t=2, d=2)
    whole = trained.run(split, saving(tmp_path, 4))
    resumed = trained.run(split, {"parallel.pipeline": 2}, resume=tmp_path / "step_00000004")
    assert resumed.curve() == whole.curve(first=5)


def test_files_do_not_depend_on_the_ranks_that_write(trained, tmp_path):
    """Eight ranks that share files write the same bytes as one rank with the same state."""
    start = trained.saved / "step_00000004"
    for name, change in {"one": layout(), "eight": layout(p=2, t=2, d=2)}.items():
        trained.run(change, saving(tmp_path / name, 1), {"train.steps": 5, "train.lr": 0}, resume=start)
    one, eight = (tmp_path / name / "step_00000005" for name in ("one", "eight"))
    names = [name for name in checkpoint_names(one) if name.startswith("model")]
    assert len(names) == 11 and checkpoint_names(one) == checkpoint_names(eight)
    for name in names:
        assert (one / name).read_bytes() == (eight / name).read_bytes(), name
    assert verify(one) is None and verify(eight) is None


@several_ranks
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_data_ranks_read_a_model_once_together(tmp_path, precision):
    """Each reads what it owns, and gets the other weights from the other data ranks."""
    counts = preload(tmp_path / "counts.so", r"""
    #include <fcntl.h>
    ssize_t pread(int file, void *to, size_t bytes, off_t at) {
        char own[64], path[512] = "";
        snprintf(own, sizeof own, "/proc/self/fd/%d", file);
        int log = readlink(own, path, sizeof path - 1) > 0 && strstr(path, ".safetensors") != NULL
                      ? open(getenv("COUNTS"), O_WRONLY | O_APPEND | O_CREAT, 0600) : -1;
        if (log >= 0) dprintf(log, "%zu\n", bytes), close(log);
        return REAL(pread)(file, to, bytes, at);
    }""")
    trainer = tiny(tmp_path, steps=1, model=dict(TINY, hidden=64, vocab=16000))
    trainer.run(saving(tmp_path / "saved", 1), {"train.precision": precision})
    model = shutil.move(tmp_path / "saved" / "step_00000001", tmp_path / "model")
    (model / "manifest.json").unlink()  # or every byte would be read once more
    keys = {"checkpoint.init_from": str(model), "train.precision": precision}
    losses, read = [], []
    for ranks in (layout(), layout(d=4)):
        log = tmp_path / f"read_{len(read)}"
        run = trainer.run(keys, ranks, env=one_thread(LD_PRELOAD=str(counts), COUNTS=str(log)))
        losses.append(run.curve()[0][1])
        read.append(sum(map(int, log.read_text().split())))
    assert read[1] < 1.5 * read[0] and losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_steps_are_a_total_and_a_finished_run_has_nothing_to_do(tmp_path):
    trainer = Trainer(tmp_path, LLAMA)
    trainer.run(saving(tmp_path / "saved", 8))
    assert checkpoint_names(tmp_path / "saved") == ["step_00000008"]
    done = trainer.run(resume=tmp_path / "saved")
    assert done.curve() == [] and "nothing is left to train" in done.stderr
    assert [c[0] for c in trainer.run({"train.steps": 10}, resume=tmp_path / "saved").curve()] == [9, 10]


def test_a_larger_batch_goes_on_where_the_samples_ended(tmp_path):
    """The position in the data counts samples: 4 steps of 8 samples and 2 of 16 use the same samples as 8 steps of
    8."""
    trainer = Trainer(tmp_path, LLAMA)
    trainer.run(saving(tmp_path / "saved", 4), {"train.steps": 4, "train.lr": 0})
    smaller = trainer.run({"train.lr": 0}, resume=tmp_path / "saved")
    larger = trainer.run({"train.global_batch": 16, "train.steps": 6, "train.lr": 0}, resume=tmp_path / "saved")
    losses = [c[1] for c in smaller.curve()]
    numpy.testing.assert_allclose([c[1] for c in larger.curve()], [sum(losses[:2]) / 2, sum(losses[2:]) / 2], rtol=1e-6)


# --- damage


def copy_of(small, tmp_path):
    shutil.copytree(small.saved, tmp_path / "copy")
    return tmp_path / "copy"


@pytest.mark.thorough
def test_every_flipped_byte_is_noticed(small, tmp_path):
    saved = copy_of(small, tmp_path) / "step_00000003"
    bytes_there = sum(file.stat().st_size for file in saved.iterdir())
    result = execute([TOOLS / "tool_verify", "--flip", saved])
    assert result.stderr == ""
    assert int(result.stdout) == bytes_there
    assert verify(saved) is None


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def truncate(path):
    os.truncate(path, path.stat().st_size - 1)


DAMAGE = {"flipped": flip, "torn": truncate, "gone": lambda path: path.unlink()}
FILES = ["model-00002-of-00004.safetensors", "optimizer-00004-of-00004.safetensors", "config.json", "training.json",
         "manifest.json"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", DAMAGE)
def test_resume_names_the_damage_and_falls_back(small, tmp_path, name, damage):
    saved = copy_of(small, tmp_path)
    DAMAGE[damage](saved / "step_00000002" / name)
    shutil.rmtree(saved / "step_00000003")
    resumed = small.run(resume=saved)
    assert f"step_00000002/{name}" in resumed.stderr and "trying the previous checkpoint" in resumed.stderr
    assert "resumed from " + str(saved / "step_00000001") in resumed.stderr
    assert resumed.curve() == small.whole.curve(first=2)


def test_damaged_checkpoints_are_never_trained_on_and_the_advice_leads_to_a_start(small, tmp_path):
    """Where the folder is also checkpoint.dir, a start without --resume is refused as well."""
    saved = copy_of(small, tmp_path)
    for step in (1, 2, 3):
        flip(saved / f"step_0000000{step}" / FILES[0])
    alone, none = (small.run(resume=path, code=1) for path in (saved / "step_00000003", saved))
    init = small.run({"checkpoint.init_from": str(saved / "step_00000003")}, code=1)
    for ended, remedy in (alone, "resume from"), (init, "set checkpoint.init_from to"):
        assert ended.stderr.endswith(f"{FILES[0]}: checksum mismatch; the file is damaged; {remedy} another "
                                     "checkpoint\n")
    assert alone.steps == none.steps == []
    assert none.stderr.endswith("; name another folder, or, to start at step 0, leave out --resume\n"), none.stderr
    here, steps = saving(saved, 1), {"train.steps": 1}
    for option in ("resume", "resume_if_any"):
        none = small.run(here, steps, code=1, **{option: saved})
        name = "--" + option.replace("_", "-")
        assert f"{name} {saved}: no intact checkpoint among 3" in none.stderr
        advice = f"leave out {name} and name another checkpoint.dir or set checkpoint.overwrite: true\n"
        assert none.stderr.endswith(advice), none.stderr
    small.run(here, steps, code=2)
    small.run(saving(tmp_path / "another", 1), steps)
    allowed = {"checkpoint.overwrite": True}
    assert small.run(here, steps, allowed, code=1, resume=saved).stderr.endswith("leave out --resume\n")
    small.run(here, steps, allowed)


@several_ranks
def test_ranks_agree_on_the_damage(small, tmp_path):
    saved = copy_of(small, tmp_path)
    flip(saved / "step_00000003" / FILES[1])
    resumed = small.run(layout(p=2), resume=saved)
    assert resumed.stderr.count("checksum mismatch") == 1 and resumed.curve() == small.whole.curve(first=3)


def test_another_model_is_refused_with_the_sizes(small, tmp_path):
    result = small.run({"model.hidden": 16, "model.ffn": 24}, resume=small.saved, code=2)
    assert "model.hidden is 8 there and 16 here" in result.stderr
    assert "model.ffn is 8 there and 24 here" in result.stderr and result.steps == []


def write_manifest(saved, names=None):
    """Writes a manifest that agrees with the present files, so that later checks are reached. names: files to rename
    in it, {present name: other name}."""
    manifest = json.loads((saved / "manifest.json").read_text())
    manifest.pop("crc64")
    for entry in manifest["files"]:
        data = (saved / entry["name"]).read_bytes()
        entry.update(bytes=len(data), crc64=crc64(data), name=(names or {}).get(entry["name"], entry["name"]))
    body = json.dumps(manifest)[:-1] + ",\n"
    (saved / "manifest.json").write_text(f'{body}  "crc64": "{crc64(body.encode())}"\n}}\n')


def test_checksums_are_crc64_xz_of_the_files_and_a_missing_tensor_is_named(small, tmp_path):
    assert crc64(b"123456789") == "995dc9bbdf1939fa"
    saved = copy_of(small, tmp_path) / "step_00000003"
    before = (saved / "manifest.json").read_text()
    write_manifest(saved)
    assert json.loads((saved / "manifest.json").read_text())["files"] == json.loads(before)["files"]
    assert {file["name"] for file in json.loads(before)["files"]} == set(checkpoint_names(saved)) - {"manifest.json"}
    path = saved / FILES[1]
    path.write_bytes(path.read_bytes().replace(b"lm_head.weight.exp_avg_sq", b"lm_head.weight.exp_avg_no"))
    write_manifest(saved)
    assert verify(saved) is None
    result = small.run(resume=saved, code=1)
    assert "tensor lm_head.weight.exp_avg_sq is missing" in result.stderr and result.steps == []


@pytest.mark.parametrize("name", ["../copy/step_00000003/config.json", "/etc/hostname", "..", ".hidden", ""])
def test_a_manifest_names_no_file_elsewhere(small, tmp_path, name):
    saved = copy_of(small, tmp_path) / "step_00000003"
    write_manifest(saved, {"config.json": name})
    assert "names" in verify(saved) and "differs" not in verify(saved)


def test_a_link_out_of_the_directory_is_refused(small, tmp_path):
    saved = copy_of(small, tmp_path) / "step_00000003"
    shutil.move(saved / FILES[0], tmp_path / "elsewhere")
    (saved / FILES[0]).symlink_to(tmp_path / "elsewhere")
    assert "to a file outside its directory" in verify(saved)
    os.rename(tmp_path / "elsewhere", saved / "inside")
    (saved / FILES[0]).unlink()
    (saved / FILES[0]).symlink_to("inside")
    assert verify(saved) is None


# --- disks


def test_a_limit_on_file_sizes_is_an_error_and_not_the_end(small, tmp_path):
    result = small.run(saving(tmp_path / "saved", 2), {"train.steps": 4, "log.metrics": ""}, code=1,
                       prefix=["bash", "-c", 'ulimit -f 2; exec "$@"', "-"])
    assert "File too large" in result.stderr
    last = f"training is done, but its last checkpoint could not be written to {tmp_path}/saved; mend that, then"
    assert result.said[-1].endswith(f"{last} give the same command again")
    assert result.stdout.count("step ") == 4 and checkpoint_names(tmp_path / "saved") == []

"""Special files, links from outside, and disks that are full, read-only or lose data. No run hangs, no complete
checkpoint is harmed, and training continues where possible."""

import json
import os
import re
import shutil
import signal
import socket
import stat
import struct
import subprocess

import pytest

from harm import rank_process, small_config
from checkpoint_runs import Disk, small, several_ranks, tiny, whole_checkpoints
from trainer_runs import (LLAMA, Trainer, checkpoint_names, command, execute, launch, layout, metrics_of, one_thread,
                          preload, saving, verify, wait_until)

SOON = 60  # seconds: limit for every run here; a run that waits for a named pipe never ends


# --- what is no file


def make_device(path):
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))  # dev/zero: reading it never ends
    except PermissionError:
        pytest.skip("needs the right to make a device")


def make_socket(path):
    here = os.getcwd()
    os.chdir(path.parent)  # the path of a socket has a short limit
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(here)


KINDS = {"pipe": os.mkfifo, "device": make_device, "socket": make_socket, "directory": os.mkdir}


def replace(path, kind):
    if path.exists():
        path.unlink()
    KINDS[kind](path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["manifest.json", "config.json", "training.json", "model-00002-of-00004.safetensors"])
def test_a_checkpoint_file_that_is_not_regular_is_refused_and_not_waited_for(small, tmp_path, name, kind):
    saved = tmp_path / "step_00000003"
    shutil.copytree(small.saved / saved.name, saved)
    replace(saved / name, kind)
    said = small.run(code=1, resume=saved).said[-1]
    assert f"{saved}/{name}: " in said and ("is not a regular file" in said or kind == "socket"
                                            and "No such device" in said)
    assert kind == "device" or stat.S_IFMT((saved / name).stat().st_mode) != stat.S_IFREG


@pytest.mark.parametrize("kind", ["pipe", "device", "directory"])
def test_a_shard_that_is_not_a_regular_file_is_refused_and_not_waited_for(tmp_path, kind):
    trainer = tiny(tmp_path)
    replace(tmp_path / "train.bin", kind)
    said = trainer.run(code=2).said[-1]
    refused = {"directory": "train.bin/ is a directory; name token files, such as "}
    assert refused.get(kind, "train.bin: is not a regular file; use a regular file") in said


def make_side_file(trainer, folder, tokenizer):
    """Makes a data set of the trainer's tokens, with a side file that names this tokenizer."""
    shutil.copy(trainer.data, folder / "own_train_000.bin")
    side = {"tokenizer": "tokenizers", "tokenizer_file": tokenizer, "vocab": 8, "eot": 0}
    (folder / "own.json").write_text(json.dumps(side))
    return {"data.train": str(folder / "own_train_*.bin"), **saving(folder / "saved", 1)}


@pytest.mark.parametrize("name", ["/etc/hostname", "../secret", "link", "pipe", ".hidden"])
def test_a_side_file_that_names_any_file_as_its_tokenizer_is_refused_and_not_waited_for(tmp_path, name):
    """The file would be copied into every checkpoint, and checkpoints are published."""
    trainer, folder = tiny(tmp_path), tmp_path / "set"
    folder.mkdir()
    (tmp_path / "secret").write_text("secret")
    (folder / ".hidden").write_text("secret")
    (folder / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(folder / "pipe")
    said = trainer.run(make_side_file(trainer, folder, name), code=2).said[-1]
    assert "tokenizer_file" in said and "own.json" in said and not (folder / "saved").exists()


def test_the_tokenizer_of_a_data_set_goes_into_checkpoints_and_a_missing_one_is_said(tmp_path):
    trainer, folder = tiny(tmp_path), tmp_path / "set"
    folder.mkdir()
    own = make_side_file(trainer, folder, "own.tokenizer.json")
    result = trainer.run(own, code=0)
    assert f"checkpoints will have no tokenizer: {folder}/own.tokenizer.json: cannot be read" in result.stderr
    (folder / "own.tokenizer.json").write_text('{"added_tokens": []}')
    trainer.run(own, {"checkpoint.overwrite": True}, code=0)
    assert next((folder / "saved").glob("step_*/tokenizer.json")).read_text() == '{"added_tokens": []}'


@pytest.mark.thorough
def test_a_configuration_that_never_arrives_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.yaml")
    result = command("llama", "-c", tmp_path / "pipe.yaml", "--plan", limit=SOON, code=2)
    assert "no data for 5 s" in result.stderr and result.stderr.count("\n") == 1


@pytest.mark.parametrize("option", ["-o", "--trace"])
def test_output_without_a_reader_is_not_waited_for(tmp_path, option):
    os.mkfifo(tmp_path / "pipe")
    pipe = [option, ("log.metrics=" if option == "-o" else "") + str(tmp_path / "pipe")]
    result = execute([*tiny(tmp_path).words(), *pipe], limit=SOON, code=1)
    assert f"{tmp_path}/pipe: it is a pipe that no program reads" in result.said[-1]


# --- files from elsewhere


def model_in(folder, files, small):
    """Makes a model of one tensor file, with an index that names `files`."""
    folder.mkdir()
    shutil.copy(small.saved / "step_00000003" / "config.json", folder)
    header = json.dumps({"lm_head.weight": {"dtype": "F32", "shape": [16, 8], "data_offsets": [0, 512]}}).encode()
    whole = struct.pack("<Q", len(header)) + header + bytes(512)
    (folder / "model-a.safetensors").write_bytes(whole)
    (folder.parent / "elsewhere.safetensors").write_bytes(whole)
    index = {"weight_map": {f"tensor.{i}": name for i, name in enumerate(files)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return {"checkpoint.init_from": str(folder)}


@pytest.mark.parametrize(
    "name",
    ["../elsewhere.safetensors", "/etc/hostname", "..", ".", ".hidden", "", "a/b", "model-\x1b[2Ja.safetensors",
     "x" * 300],
)
def test_an_index_names_no_file_elsewhere(small, tmp_path, name):
    result = small.run(model_in(tmp_path / "model", [name], small), code=1)
    said = result.said[-1]
    plain = name.startswith("model-")  # the file does not exist, and its escape must not reach the terminal
    assert ("No such file" if plain else "no / and no leading dot") in said and "\x1b" not in result.stderr


@pytest.mark.parametrize("name", ["model-a.safetensors", "model.safetensors.index.json", "config.json"])
def test_a_link_that_leaves_the_directory_is_refused(small, tmp_path, name):
    change = model_in(tmp_path / "model", ["model-a.safetensors"], small)
    shutil.move(tmp_path / "model" / name, tmp_path / "moved")
    (tmp_path / "model" / name).symlink_to(tmp_path / "moved")
    said = small.run(change, code=1).said[-1]
    assert f"model/{name}: is a link to a file outside its directory" in said


# --- links that others have put where we write


def output_options(kind, path):
    return {"metrics": ["-o", f"log.metrics={path}"], "trace": ["--trace", path],
            "profile": ["--profile", "-o", f"hardware.profile={path}"]}[kind]


@pytest.mark.skipif(os.getuid() != 0, reason="makes a link of another user: root")
@pytest.mark.parametrize("kind", ["metrics", "trace", "profile"])
def test_a_link_of_another_user_is_not_written_through(tmp_path, kind):
    """In a folder that others can write to, any user may place a link under a guessable name. test_files.c has the
    table of folders and owners."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    scratch.chmod(0o2777)  # many kernels guard a sticky folder themselves, so this one is not sticky
    precious, path = tmp_path / "precious", scratch / "output"
    precious.write_text("precious\n")
    link = scratch / "output.new" if kind == "profile" else path
    link.symlink_to(precious)
    os.lchown(link, 65534, 65534)
    replaced = kind == "profile"  # written to a temporary file and renamed, which replaces the link
    result = execute([*tiny(tmp_path, steps=1).words(), *output_options(kind, path)], limit=SOON, code=1 - replaced)
    assert precious.read_text() == "precious\n"
    if replaced:
        assert json.loads(path.read_text()) and not path.is_symlink(), result.stderr
    else:
        assert "a symbolic link of another user" in result.said[-1], result.stderr


@pytest.mark.parametrize("target", ["elsewhere/file", "/dev/stdout", "/dev/fd/1"])
def test_a_link_of_one_s_own_is_followed(tmp_path, target):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "second").symlink_to(target)
    (tmp_path / "output").symlink_to("second")
    result = execute([*tiny(tmp_path, steps=1).words(), *output_options("metrics", tmp_path / "output")], limit=SOON)
    text = result.stdout if target.startswith("/dev/") else (tmp_path / target).read_text()
    assert '{"type":"step","step":1' in text, result.stderr


# --- disks


def test_a_full_disk_under_the_metrics_costs_lines_and_no_training(tmp_path):
    trainer = tiny(tmp_path, steps=100000)
    with Disk(tmp_path / "disk", "400k") as disk:
        job = trainer.launch({"log.metrics": disk.folder / "metrics.jsonl"}, saving(tmp_path / "saved", 0))
        wait_until(lambda: len(metrics_of(job.metrics)) > 1, "no steps")
        disk.fill()
        said = job.wait_for("log.metrics")
        assert "No space left on device; free some space there" in said and "training continues" in said
        disk.free()
        again = job.wait_for("can be written again")
        result = job.stop(code=3, limit=SOON)
        missing = set(range(1, result.numbers[-1] + 1)) - set(result.numbers)  # every line is complete JSON
        first, after = (int(line.split("step ")[1].split(":")[0]) for line in (said, again))
        assert missing == set(range(first, after)) and missing
        assert "log.metrics" not in result.stderr  # reported only once


@several_ranks
@pytest.mark.parametrize("fault", ["full", "read-only"])
def test_a_failed_checkpoint_is_tried_again_at_the_next_interval(tmp_path, fault):
    trainer = tiny(tmp_path, steps=100000)
    with Disk(tmp_path / "disk", "1m") as disk:
        saved = disk.folder / "saved"
        job = trainer.launch(layout(p=2), saving(saved, 5, keep=2))
        job.wait_for("saved ", "step_00000010")
        disk.fill() if fault == "full" else disk.remount("ro")
        said = job.wait_for("could not be written")
        assert ("No space left on device" if fault == "full" else "Read-only file system") in said
        assert whole_checkpoints(saved)
        disk.free() if fault == "full" else disk.remount("rw")
        job.wait_for("saved ")
        result = job.stop(code=3, limit=SOON)
        last = result.numbers[-1]
        assert verify(saved / f"step_{last:08}") is None, result.stderr
        assert all(name.startswith("step_") for name in checkpoint_names(saved))


@several_ranks
def test_a_restart_on_a_full_disk_happens_once_and_trains_on(tmp_path):
    """No checkpoint can be saved after the restart, so further restarts would repeat the same step forever."""
    config = small_config(tmp_path)
    with Disk(tmp_path / "disk", "8m") as disk:
        saved = disk.folder / "saved"
        keys = ("parallel.pipeline=4", "train.steps=100000", "train.max_restarts=5",
                f"log.metrics={disk.folder}/metrics.jsonl")
        job = launch(config, *keys, f"checkpoint.dir={saved}", "checkpoint.every=5", "checkpoint.keep=2",
                     stdout=subprocess.DEVNULL)
        job.wait_for("saved ", "/step_")
        disk.fill()
        os.kill(wait_until(lambda: rank_process(job, 2), "no rank"), signal.SIGKILL)
        job.wait_for("starting the ranks again from step")
        assert "No space left on device" in job.wait_for("the checkpoint of step", "could not be written")
        said = job.stop(code=1).stderr
        assert "could not be written" in said and "ranks again" not in said, said
        assert whole_checkpoints(saved)


def test_a_read_only_place_for_checkpoints_is_refused_at_the_start(small, tmp_path):
    with Disk(tmp_path / "disk", "400k") as disk:
        (disk.folder / "saved").mkdir()
        disk.remount("ro")
        for place in (disk.folder / "saved", disk.folder / "new"):
            result = small.run(saving(place, 1), code=1)
            assert f"checkpoint.dir: {place}: cannot be" in result.said[-1] and result.steps == []
            assert "Read-only file system" in result.said[-1]
        small.run(saving(disk.folder / "saved", 0))  # nothing is to be written there


def without_rights():
    """Returns a command prefix that drops root's right to read and write everything."""
    kept = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search,-dac_override", "--inh-caps",
            "-dac_override,-dac_read_search"]
    return kept if os.getuid() == 0 else []


def test_files_without_permission_are_named(tmp_path):
    trainer = tiny(tmp_path)
    for part, name, place in (("train.bin", "data.train", 2), ("saved", "checkpoint.dir", 1)):
        folder = tmp_path / "saved"
        folder.mkdir(exist_ok=True)
        (tmp_path / part).chmod(0)
        result = trainer.run(saving(folder, 1), prefix=without_rights(), limit=SOON, code=place)
        (tmp_path / part).chmod(0o755)
        assert re.search(f"{name}: .*Permission denied", result.stderr), result.stderr


# --- data that changes under a run


@pytest.mark.parametrize("p", [1, pytest.param(4, marks=several_ranks)])
def test_a_shard_that_shrinks_under_a_run_ends_it_with_a_sentence(tmp_path, p):
    trainer = Trainer(tmp_path, dict(LLAMA, layers=4))
    job = trainer.launch(layout(p=p), {"train.steps": 100000}, saving(tmp_path / "saved", 3))
    job.wait_for("saved ")
    os.truncate(tmp_path / "train.bin", 1024)
    result = job.end(code=1, limit=SOON)
    said = result.said[-1]
    assert re.search(r"/train.bin: ends before byte .*restore it", said), result.stderr
    assert result.stderr.count("ends before byte") == 1 and (p == 1 or "[rank " in said)
    assert whole_checkpoints(tmp_path / "saved")


def test_a_run_of_one_rank_that_fails_completes_the_checkpoint_that_it_writes(tmp_path):
    """The shard shrinks while the first checkpoint is written; the next step cannot read its samples."""
    trainer = tiny(tmp_path)
    slow = preload(tmp_path / "slow.so", r"""
    int fsync(int file) {
        struct stat status;
        bool regular = fstat(file, &status) == 0 && S_ISREG(status.st_mode);
        if (regular && truncate(getenv("SHARD"), 1024) == 0) usleep(300000);
        return REAL(fsync)(file);
    }""")
    env = one_thread(LD_PRELOAD=str(slow), SHARD=str(tmp_path / "train.bin"))
    keys = {"train.steps": 100000, "data.val_every": 0}
    result = trainer.run(keys, saving(tmp_path / "saved", 3), code=1, env=env)
    assert "ends before byte" in result.said[-1] and f"saved {tmp_path}/saved/step_00000003" in result.stderr
    assert whole_checkpoints(tmp_path / "saved")

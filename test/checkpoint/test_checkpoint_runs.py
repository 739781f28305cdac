"""Ownership and age of checkpoints: a typing error on the command line or a clock set back never costs a run."""

import contextlib
import fcntl
import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from checkpoint_runs import saved_run, several_ranks
from other_user import OtherUser, let_in, needs_root
from trainer_runs import (checkpoint_names, layout, mpirun, mpirun_environment, one_thread, preload, saving, verify,
                          wait_until)

OVERWRITE = {"checkpoint.overwrite": True}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A run of eight steps, saved after every second."""
    return saved_run(tmp_path_factory.mktemp("small"), 2, steps=8)


@pytest.fixture
def saved(small, tmp_path):
    shutil.copytree(small.saved, tmp_path / "saved")
    return tmp_path / "saved"


def manifest_of(folder):
    return json.loads((folder / "manifest.json").read_text())


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# --- numbers of runs and of checkpoints


def test_checkpoints_of_a_run_share_its_number_and_count_up(small, saved):
    small.run(saving(saved, 2), {"train.steps": 10}, resume=saved)
    manifests = [manifest_of(saved / name) for name in checkpoint_names(saved)]
    assert [entry["sequence"] for entry in manifests] == [1, 2, 3, 4, 5]
    assert len({entry["run"] for entry in manifests}) == 1 and int(manifests[0]["run"], 16) != 0
    states = [json.loads((saved / name / "training.json").read_text()) for name in checkpoint_names(saved)]
    assert [(state["run"], state["sequence"]) for state in states] == [(m["run"], m["sequence"]) for m in manifests]


def test_after_going_back_the_latest_checkpoint_is_the_newest_whatever_its_step(small, saved):
    small.run(saving(saved, 1), {"train.steps": 5}, resume=saved / "step_00000004")
    resumed = small.run({"train.steps": 6}, resume=saved)
    assert "step_00000005 after step 5" in resumed.stderr


def test_a_run_that_went_back_replaces_its_own_later_steps(small, saved):
    before = manifest_of(saved / "step_00000006")
    small.run(saving(saved, 2), {"train.steps": 6, "train.lr": 1.0e-4}, resume=saved / "step_00000004")
    after = manifest_of(saved / "step_00000006")
    assert (after["run"], after["sequence"]) == (before["run"], 5) and after["files"] != before["files"]
    assert verify(saved / "step_00000006") is None


def test_checkpoints_that_a_resume_passed_over_go_before_the_one_that_it_took(small, saved):
    for step in (6, 8):
        with (saved / f"step_0000000{step}" / "training.json").open("r+b") as file:
            file.write(b"#")
    small.run(saving(saved, 5, keep=4), {"train.steps": 5}, resume=saved)
    assert checkpoint_names(saved) == [f"step_0000000{step}" for step in (2, 4, 5, 8)]
    assert verify(saved / "step_00000004") is None and verify(saved / "step_00000005") is None
    small.run(saving(saved, 5, keep=3), {"train.steps": 15}, resume=saved)
    assert checkpoint_names(saved) == ["step_00000005", "step_00000010", "step_00000015"]


# --- clocks

CLOCK = """
// The calendar's clock, CLOCK_AHEAD seconds ahead; from its CLOCK_JUMP-th reading on it is right.
static long ahead(void) {
    static int reads;
    const char *jump = getenv("CLOCK_JUMP");
    return jump != NULL && reads++ >= atoi(jump) ? 0 : atol(getenv("CLOCK_AHEAD"));
}
int clock_gettime(clockid_t id, struct timespec *t) {
    int status = REAL(clock_gettime)(id, t);
    if (id == CLOCK_REALTIME) t->tv_sec += ahead();
    return status;
}
"""


@pytest.fixture(scope="module")
def clock(tmp_path_factory):
    library = preload(tmp_path_factory.mktemp("clock") / "clock.so", CLOCK)
    return lambda ahead, **more: {"LD_PRELOAD": str(library), "CLOCK_AHEAD": str(ahead), **more}


def test_nothing_that_was_reported_saved_is_lost_when_the_clock_goes_back_between_runs(small, tmp_path, clock):
    saved = tmp_path / "saved"
    small.run(saving(saved, 5, keep=2), {"train.steps": 10}, env=one_thread(**clock(3600)))
    assert manifest_of(saved / "step_00000010")["saved"] > manifest_of(small.saved / "step_00000008")["saved"] + 3e12
    small.run(saving(saved, 5, keep=2), {"train.steps": 20}, resume=saved)
    assert checkpoint_names(saved) == ["step_00000015", "step_00000020"]
    assert "step_00000020 after step 20" in small.run({"train.steps": 20}, resume=saved).stderr


@pytest.mark.parametrize("jump", [0, 1, 2, 3, 5, 8])
def test_nothing_is_lost_when_the_clock_goes_back_within_a_run(small, tmp_path, clock, jump):
    saved = tmp_path / "saved"
    small.run(saving(saved, 1, keep=2), env=one_thread(**clock(3600, CLOCK_JUMP=str(jump))))
    assert checkpoint_names(saved) == ["step_00000007", "step_00000008"]
    assert "step_00000008 after step 8" in small.run(resume=saved).stderr


# --- starts among the checkpoints of another run


@several_ranks
@pytest.mark.parametrize("p", [1, 2])
def test_a_start_among_another_run_s_checkpoints_is_refused_and_changes_nothing(small, saved, p):
    before = contents(saved)
    refused = small.run(saving(saved, 1), layout(p=p), code=2)
    said = refused.stderr.splitlines()[-1]
    assert f"checkpoint.dir: {saved} holds checkpoints of another run, such as step_00000008" in said
    assert f"--resume {saved}" in said and "checkpoint.overwrite: true" in said
    assert contents(saved) == before and refused.steps == []


@pytest.mark.thorough
@several_ranks
def test_ranks_of_a_launcher_refuse_it_too(small, saved, tmp_path):
    ended = small.run(saving(saved, 1), layout(p=2), prefix=mpirun(2), env=mpirun_environment(), code=2)
    assert ended.stderr.count("holds checkpoints of another run") == 1, ended.stderr


def test_resuming_from_elsewhere_among_another_run_s_checkpoints_is_refused(small, saved, tmp_path):
    other = tmp_path / "other"
    small.run(saving(other, 4))
    for resume in (other, other / "step_00000004"):
        before = contents(saved)
        assert "holds checkpoints of another run" in small.run(saving(saved, 1), resume=resume, code=2).stderr
        assert contents(saved) == before


def test_a_copied_checkpoint_of_another_run_is_not_resumed_by_accident(small, saved, tmp_path):
    small.run(saving(tmp_path / "other", 3), {"train.steps": 9})
    shutil.copytree(tmp_path / "other" / "step_00000009", saved / "step_00000009")
    mixed = small.run(saving(saved, 2), {"train.steps": 10}, resume=saved, code=2)
    assert "holds checkpoints of several runs" in mixed.stderr and mixed.steps == []
    named = small.run(saving(saved, 2), {"train.steps": 10}, resume=saved / "step_00000008", code=2)
    assert "holds checkpoints of another run, such as step_00000009; name another folder" in named.stderr
    elsewhere = small.run(saving(tmp_path / "new", 2), {"train.steps": 10}, resume=saved / "step_00000008")
    assert elsewhere.numbers == [9, 10] and checkpoint_names(tmp_path / "new") == ["step_00000010"]
    new, old = (manifest_of(path)["run"] for path in (tmp_path / "new/step_00000010", saved / "step_00000008"))
    assert new != old  # in another folder it is a new run


# --- the data of a run


def test_a_resume_over_other_data_or_with_another_seed_is_refused_unless_accepted(small, tmp_path):
    folder, data = tmp_path / "data", small.data.read_bytes()
    folder.mkdir()
    shard = folder / "a_000.bin"
    shard.write_bytes(data)
    where = {"data.train": str(folder / "*.bin"), "train.steps": 2}
    small.run(saving(tmp_path / "saved", 2), where)
    saved, accept = tmp_path / "saved" / "step_00000002", {"checkpoint.changed": "accept"}
    on = {**where, "train.steps": 3}

    shard = shard.rename(folder / "moved_000.bin")  # the same data
    assert small.run(on, resume=saved).numbers == [3]
    (folder / "more.bin").write_bytes(data)
    refused = small.run(on, resume=saved, code=2).stderr
    assert "data.train: " in refused and "was trained on different data" in refused
    assert "checkpoint.changed: accept" in refused
    assert small.run(on, accept, resume=saved).numbers == [3]
    (folder / "more.bin").unlink()
    shard.write_bytes(data[:-2] + bytes([data[-2] ^ 1, data[-1]]))
    assert "was trained on different data" in small.run(on, resume=saved, code=2).stderr
    shard.write_bytes(data)
    assert "train.seed: " in small.run(on, {"train.seed": 5}, resume=saved, code=2).stderr
    small.run(on, {"train.seed": 5}, accept, resume=saved)


# --- checkpoint.overwrite


def test_overwrite_replaces_the_old_run_only_once_the_new_one_has_saved(small, saved):
    """A new run that ends before its first checkpoint keeps the old checkpoints. The first complete new checkpoint
    removes them."""
    before = contents(saved)
    told = small.run(saving(saved, 0), OVERWRITE, {"train.steps": 3}).stderr
    assert contents(saved) == before and "checkpoint.every is 0: nothing is saved" in told
    small.run(saving(saved, 3), OVERWRITE, {"train.steps": 4})
    assert checkpoint_names(saved) == ["step_00000003", "step_00000004"]
    assert manifest_of(saved / "step_00000003")["run"] not in {manifest_of(small.saved / "step_00000004")["run"]}
    assert [manifest_of(saved / name)["sequence"] for name in checkpoint_names(saved)] == [5, 6]


def test_overwrite_removes_nothing_that_has_no_readable_manifest(small, saved):
    """Such a folder may belong to no run, or its manifest may be unreadable only at the moment."""
    for name in ("step_00000002", "step_00000100"):
        shutil.rmtree(saved / name, ignore_errors=True)
        (saved / name).mkdir()
        (saved / name / "notes").write_text("mine")
    small.run(saving(saved, 2, keep=1), OVERWRITE, {"train.steps": 4})
    assert checkpoint_names(saved) == ["step_00000002.kept", "step_00000004", "step_00000100"]
    assert (saved / "step_00000002.kept" / "notes").read_text() == "mine"
    # A damaged checkpoint of the run itself is kept, too, when the run saves the same step again.
    (saved / "step_00000004" / "manifest.json").write_text("{")
    small.run(saving(saved, 2, keep=1), OVERWRITE, {"train.steps": 4})
    assert "step_00000004.kept" in checkpoint_names(saved)


# --- nothing to go on from


def test_resuming_where_there_is_no_checkpoint_is_refused_and_says_how_to_begin(small, tmp_path):
    (tmp_path / "empty").mkdir()
    for place, why in {"absent": "there is no such folder", "empty": "there is no checkpoint in it"}.items():
        refused = small.run(saving(tmp_path / "saved", 2), resume=tmp_path / place, code=2)
        assert f"--resume {tmp_path / place}: {why}" in refused.stderr
        assert f"--resume-if-any {tmp_path / place}" in refused.stderr and refused.steps == []
    assert not (tmp_path / "saved").exists()


def test_resume_if_any_starts_at_step_0_where_nothing_is_and_goes_on_where_something_is(small, tmp_path):
    saved = tmp_path / "saved"
    first = small.run(saving(saved, 2), {"train.steps": 4}, resume_if_any=saved)
    assert f"no complete checkpoint in {saved}: training starts at step 0" in first.stderr
    assert first.curve()[:2] == small.whole.curve()[:2]
    second = small.run(saving(saved, 2), resume_if_any=saved)
    assert "step_00000004 after step 4" in second.stderr and second.numbers == [5, 6, 7, 8]
    assert len({manifest_of(saved / name)["run"] for name in checkpoint_names(saved)}) == 1


UNREADABLE = """
// In each process the FAIL_FROM-th opening of a manifest and the next one fail as on a disk in trouble.
int open(const char *path, int flags, int mode) {
    static int opened;
    int past = strstr(path, "manifest.json") != NULL ? ++opened - atoi(getenv("FAIL_FROM")) : -1;
    if (past == 0 || past == 1) return errno = EIO, -1;
    return REAL(open)(path, flags, mode);
}
"""


UNLISTED = """
#include <dirent.h>
// The folder FOLDER cannot be listed to its end.
struct dirent *readdir(DIR *stream) {
    char link[64], path[4096] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", dirfd(stream));
    bool fails = readlink(link, path, sizeof path - 1) > 0 && strcmp(path, getenv("FOLDER")) == 0;
    return fails ? errno = EIO, NULL : REAL(readdir)(stream);
}
"""


@pytest.mark.parametrize("source, start", [(UNREADABLE, 1), (UNREADABLE, 2), (UNREADABLE, 5), (UNREADABLE, 9),
                                           (UNLISTED, 0)], ids=["1", "2", "5", "9", "unlisted"])
def test_a_folder_that_a_disk_fails_to_read_is_not_taken_for_an_empty_one(small, saved, tmp_path, source, start):
    library, before = preload(tmp_path / "fails.so", source), contents(saved)
    env = one_thread(LD_PRELOAD=str(library), FAIL_FROM=str(start), FOLDER=str(saved.resolve()))
    refused = small.run(saving(saved, 2), {"train.steps": 10}, resume_if_any=saved, env=env, code=1)
    where = "manifest.json" if source == UNREADABLE else saved
    assert f"{where}: cannot be read: Input/output error" in refused.stderr, refused.stderr
    assert refused.steps == [] and contents(saved) == before
    assert "step_00000008 after step 8" in small.run(resume_if_any=saved).stderr


def test_what_cannot_be_read_is_kept_when_its_step_comes_again(small, tmp_path):
    saved = tmp_path / "saved"
    shutil.copytree(small.saved / "step_00000002", saved / "step_00000002")
    os.truncate(saved / "step_00000002" / "manifest.json", 40)
    assert "--resume-if-any" in small.run(saving(saved, 2), {"train.steps": 4}, resume=saved, code=2).stderr
    small.run(saving(saved, 2), {"train.steps": 4}, resume_if_any=saved)
    assert checkpoint_names(saved) == ["step_00000002", "step_00000002.kept", "step_00000004"]
    assert verify(saved / "step_00000002") is None
    assert (saved / "step_00000002.kept" / "manifest.json").stat().st_size == 40


# --- what a resumed run does differently


def test_a_resume_with_other_settings_names_them_in_one_line(small, saved):
    changed = {"train.steps": 9, "train.tokens": 12345678901, "train.lr": 0.25, "train.grad_clip": 2,
               "attention.mode": "none", "train.batch_ramp": "[[1, 2], [8, 4]]", "log.every": 2}
    told = small.run(saving(saved, 0), changed, resume=saved).stderr
    lines = [line for line in told.splitlines() if "settings that differ" in line]
    assert len(lines) == 1 and "train.steps 8 -> 9" in lines[0] and "train.lr" in lines[0]
    assert " attention.mode flash -> none, train.batch_ramp none -> [[1, 2], [8, 4]], " in lines[0]
    assert " -> 12345678901, " in lines[0]
    assert lines[0].endswith("-> 0.25, train.grad_clip 1 -> 2")
    same = small.run(saving(saved, 0), resume=saved / "step_00000006").stderr
    assert "settings that differ" not in same and "decayed" not in same


def test_a_resume_after_the_decay_of_the_rate_says_that_it_rises(small, tmp_path):
    wsd = {"train.schedule": "wsd", "train.decay_steps": 4, "train.lr": 0.01, "train.min_lr_ratio": 0.1}
    small.run(saving(tmp_path / "saved", 2, keep=9), wsd)
    longer = {**wsd, "train.steps": 20}
    told = small.run(longer, resume=tmp_path / "saved" / "step_00000008").stderr
    assert "the learning rate had decayed to 0.001 at step 8 and rises to 0.01; to train on without" in told
    assert "decayed" not in small.run(longer, resume=tmp_path / "saved" / "step_00000004").stderr


def test_a_checkpoint_for_keeps_outlives_a_resume_with_another_interval(small, tmp_path):
    """The older checkpoints were kept by their run's every and keep_every, whatever a later start has."""
    saved = tmp_path / "saved"
    small.run(saving(saved, 1, keep=1), {"checkpoint.keep_every": 3})
    assert checkpoint_names(saved) == ["step_00000003", "step_00000006", "step_00000008"]
    small.run(saving(saved, 2, keep=1), {"train.steps": 12, "checkpoint.keep_every": 5}, resume=saved)
    assert checkpoint_names(saved) == ["step_00000003", "step_00000006", "step_00000010", "step_00000012"]


@pytest.mark.parametrize("keys, said", [({"train.steps": 300}, "; the run repeats them"),
                                        (saving("", 2), "checkpoint.dir is empty, so nothing is saved")])
def test_data_that_repeat_and_a_folder_that_lacks_are_said(small, keys, said):
    assert said not in small.whole.stderr and small.run(keys).stderr.count(said) == 1


def test_two_models_in_one_folder_are_refused(small, tmp_path):
    """An index and a single file may be of different ages."""
    folder = shutil.copytree(small.saved / "step_00000008", tmp_path / "model")
    (folder / "manifest.json").unlink()
    small.run({"checkpoint.init_from": str(folder)})
    shutil.copy(next(folder.glob("model-*")), folder / "model.safetensors")
    refused = small.run({"checkpoint.init_from": str(folder)}, code=1).stderr
    assert f"{folder}/model.safetensors: the folder also has model.safetensors.index.json, which may be" in refused


# --- starts that wait for the lock of a folder


def waits_for_lock(job, lock):
    with contextlib.suppress(OSError):  # one was closed meanwhile
        return any(os.readlink(entry) == str(lock) for entry in Path(f"/proc/{job.pid}/fd").iterdir())
    return False


def run_while_locked(small, folder, meanwhile, *changes, code=0, **more):
    """Starts a run in a folder that another run has locked. Once it waits for the lock, the other run changes the
    folder and ends."""
    lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    job = small.launch(*changes, **more)
    wait_until(lambda: job.poll() is not None or waits_for_lock(job, folder / ".lock"), "it never asked for the lock")
    meanwhile()
    os.close(lock)
    return job.end(code)


def test_a_start_that_waited_resumes_from_what_the_other_run_saved_last(small, saved):
    newest = saved / "step_00000008"
    newest.rename(saved.parent / "later")
    resumed = run_while_locked(small, saved, lambda: (saved.parent / "later").rename(newest),
                               saving(saved, 1, keep=2), {"train.steps": 9}, resume=saved)
    assert "step_00000008 after step 8" in resumed.stderr, resumed.stderr
    assert checkpoint_names(saved) == ["step_00000008", "step_00000009"]
    assert manifest_of(saved / "step_00000009")["sequence"] == 5


@pytest.mark.parametrize("resume", [None, "resume_if_any"])
def test_of_two_starts_in_an_empty_folder_the_second_sees_what_the_first_saved(small, tmp_path, resume):
    saved = tmp_path / "saved"
    saved.mkdir()
    copied = lambda: shutil.copytree(small.saved / "step_00000004", saved / "step_00000004")
    more = {"code": 2} if resume is None else {resume: saved}
    second = run_while_locked(small, saved, copied, saving(saved, 1), {"train.steps": 5}, **more)
    if resume is None:
        assert "holds checkpoints of another run, such as step_00000004" in second.stderr
        assert second.steps == [] and checkpoint_names(saved) == ["step_00000004"]
    else:
        assert "step_00000004 after step 4" in second.stderr and second.numbers == [5], second.stderr
        small.run({"train.steps": 5}, resume=saved)


def test_a_start_that_waited_is_refused_if_its_checkpoint_is_gone(small, saved):
    named = saved / "step_00000002"
    gone = run_while_locked(small, saved, lambda: shutil.rmtree(named), saving(saved, 1), resume=named, code=2)
    said = f"--resume {named}: there is no such folder; name a folder with a run's checkpoints, as is checkpoint.dir:"
    assert gone.stderr.endswith(f"{said} {saved}\n") and gone.steps == []


@needs_root
def test_another_user_who_locks_what_they_can_read_stops_no_run(small, saved):
    """They hold a lock on the folder and on every file in it that they can open."""

    def hold():
        files = [os.open(path, os.O_RDONLY) for path in [saved, *saved.rglob("*")] if os.access(path, os.R_OK)]
        for file in files:
            fcntl.flock(file, fcntl.LOCK_EX)
        return files

    let_in(saved)
    with OtherUser(hold) as other:
        assert len(other.answer) > 10
        small.run(saving(saved, 1, keep=2), {"train.steps": 9}, resume=saved)


@pytest.mark.parametrize("there", ["link", "file of another user"])
def test_a_lock_that_another_user_has_placed_is_named_and_not_used(small, saved, there):
    if there == "link":
        (saved / ".lock").symlink_to(saved.parent / "elsewhere")
    elif os.getuid() != 0:
        pytest.skip("gives a file to another user: root")
    else:
        (saved / ".lock").touch()
        os.chown(saved / ".lock", 65534, 65534)
    refused = small.run(saving(saved, 1), {"train.steps": 9}, resume=saved, code=1)
    assert f"checkpoint.dir: {saved}/.lock: is not this user's lock file; remove it if no run uses it" in refused.stderr
    assert not (saved.parent / "elsewhere").exists()


# --- a folder that goes away while a run saves there


@several_ranks
@pytest.mark.parametrize("how", ["moved", "removed"])
@pytest.mark.parametrize("p", [1, 2])
def test_a_folder_that_is_gone_is_made_again_and_no_message_says_otherwise(small, tmp_path, how, p):
    folder = tmp_path / "deep" / "saved"
    job = small.launch(saving(folder, 5, keep=2), {"train.steps": 100000}, layout(p=p))
    wait_until(lambda: list(folder.glob("step_*")), "nothing saved")
    os.kill(job.pid, signal.SIGSTOP)
    folder.rename(tmp_path / "moved")
    if how == "removed":
        (tmp_path / "deep").rmdir()
        # Several ranks still write there: only their parent is stopped.
        moved = tmp_path / "moved"
        wait_until(lambda: shutil.rmtree(moved, ignore_errors=True) or not moved.exists(), "it cannot be removed")
    os.kill(job.pid, signal.SIGCONT)
    wait_until(lambda: list(folder.glob("step_*")), "it was not made again")
    ended = job.stop(code=3)
    last = f"step_{ended.numbers[-1]:08}"
    assert last in checkpoint_names(folder) and verify(folder / last) is None, ended.stderr
    assert f"{folder} was removed or moved; it was recreated and holds no earlier checkpoints" in ended.stderr
    assert "earlier checkpoints are unchanged" not in ended.stderr
    assert sum("holds no earlier readable checkpoint" in line for line in ended.stderr.splitlines()) <= 1


FIRST_TO_MAKE = """
// Another run makes the folder FOLDER, with all it saves, right before this process does.
int mkdir(const char *path, mode_t mode) {
    const char *folder = getenv("FOLDER"), *copy = getenv("COPY");
    if (strcmp(path, folder) == 0 && access(folder, F_OK) != 0 && rename(copy, folder) != 0) abort();
    return REAL(mkdir)(path, mode);
}
"""


@pytest.mark.parametrize("resume", [None, "resume_if_any"])
def test_a_folder_that_another_run_made_first_is_looked_at_again(small, tmp_path, resume):
    library, saved = preload(tmp_path / "first.so", FIRST_TO_MAKE), tmp_path / "saved"
    shutil.copytree(small.saved, tmp_path / "copy")
    env = one_thread(LD_PRELOAD=str(library), FOLDER=str(saved), COPY=str(tmp_path / "copy"))
    if resume is None:
        second = small.run(saving(saved, 1), code=2, env=env)
        assert f"{saved} holds checkpoints of another run, such as step_00000008" in second.stderr
        assert second.steps == [] and contents(saved) == contents(small.saved)
    else:
        changes = [saving(saved, 1), OVERWRITE, {"train.steps": 9}]
        second = small.run(*changes, resume_if_any=saved, env=env)
        assert "step_00000008 after step 8" in second.stderr and second.numbers == [9]

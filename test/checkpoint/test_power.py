"""Power cuts: after one at any call of a run, the newest checkpoint that it has reported is there, everything with a
checkpoint's name is whole, and the next run resumes."""

import re
import shutil

import pytest
from checkpoint_runs import saved_run, several_ranks
from lost_writes import Disk, Directory, Verifier, listing, read_tree, write_tree
from trainer_runs import layout, one_thread, saving


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Checkpoints after steps 2 and 4."""
    return saved_run(tmp_path_factory.mktemp("small"), 2, steps=4)


def cut_everywhere(small, tmp_path, tree, every, keep, *changes, variables={}, **more):
    """Runs a trainer that saves below tmp_path/disk, and cuts its power at every call. Returns the number of cuts and
    some of the disks."""
    root = tmp_path / "disk"
    listed, calls = listing(tmp_path, root)
    folder = root / "deep" / "saved"
    ended = small.run(saving(folder, every, keep=keep), *changes, env=one_thread(**listed, **variables), **more)
    assert ended.stderr.count(": saved ") >= 3, ended.stderr
    verify, count, disks, names = Verifier(tmp_path / "verified"), 0, [], []
    for said, held in Disk(root, tree, calls).cuts():
        saved = held.get("deep", {}).get("saved", {})
        names = sorted(name for name in saved if name.startswith("step_"))
        for name in names:
            assert verify(name, saved[name]) is None, (said, name, verify(name, saved[name]))
        reported = [re.search(r"/(step_\d+) ", line)[1] for line in said]
        newer = [name for name in names if reported and name >= reported[-1]]
        assert newer or not reported, f"{reported[-1]} was reported as saved, and there are {names}"
        count += 1
        disks.append((reported, held))
    assert len(names) == keep, names  # nothing more is kept at the end
    return count, [disks[i * (len(disks) - 1) // 3] for i in range(1, 4)]


def resumes(small, disks, folder):
    for reported, held in disks:
        write_tree(held, folder)
        ended = small.run(saving(folder / "deep" / "saved", 1), {"train.steps": 9},
                          resume_if_any=folder / "deep" / "saved")
        from_step = re.search(r"resumed from \S+ after step (\d+)", ended.stderr)
        assert from_step or not reported, ended.stderr
        assert not reported or int(from_step[1]) >= int(reported[-1][5:]), (reported, from_step)
        assert all(path.name.startswith("step_") for path in (folder / "deep" / "saved").iterdir()), "leftovers"


@pytest.mark.parametrize("p", [1, pytest.param(2, marks=[several_ranks, pytest.mark.thorough])])
def test_a_power_cut_at_any_call_leaves_what_was_reported_as_saved(small, tmp_path, p):
    (tmp_path / "disk").mkdir()
    count, disks = cut_everywhere(small, tmp_path, Directory(), 1, 2, layout(p=p), {"train.steps": 4})
    assert count > 100
    resumes(small, disks, tmp_path / "after")


@pytest.mark.parametrize("exchange", [True, False])
def test_a_power_cut_leaves_a_checkpoint_while_others_are_replaced(small, tmp_path, exchange):
    """The run goes back to step 2 and keeps one checkpoint, so a replaced one may be the only one."""
    shutil.copytree(small.saved, tmp_path / "disk" / "deep" / "saved")
    tree = read_tree(tmp_path / "disk")
    count, disks = cut_everywhere(small, tmp_path, tree, 2, 1, {"train.steps": 8},
                                  variables={} if exchange else {"NO_EXCHANGE": "1"},
                                  resume=tmp_path / "disk" / "deep" / "saved" / "step_00000002")
    assert count > 100
    resumes(small, disks, tmp_path / "after")

"""scripts/slurm/check_node.sh: which nodes start a program and have the GPUs of the job. Scripts replace the program
and nvidia-smi."""

import pytest
from trainer_runs import ROOT, execute

GPU = "GPU {0}: NVIDIA H100 80GB HBM3 (UUID: GPU-{0}a5c1f6e-4d0c-4d42-b8a9-0123456789ab)"
MIG = "  MIG 3g.40gb     Device  {1}: (UUID: MIG-{0}{1}b2d3c4-66a1-5f8e-9d0c-0123456789ab)"
WHOLE = [GPU.format(i) for i in range(4)]
SPLIT = [line for i in range(2) for line in (GPU.format(i), MIG.format(i, 0), MIG.format(i, 1))]


def script(path, text):
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def check(tmp_path, lines, given, visible=None, program="exit 0", driver="exit 0", code=0):
    folder = tmp_path / "bin"
    folder.mkdir()
    (tmp_path / "list").write_text("".join(f"{line}\n" for line in lines))
    script(folder / "nvidia-smi", f'[ "$*" = -L ] || exit 9\ncat "{tmp_path}/list"\n{driver}\n')
    env = {"PATH": f"{folder}:/usr/bin:/bin"}
    if given is not None:
        env["SLURM_GPUS_ON_NODE"] = str(given)
    if visible is not None:
        env["CUDA_VISIBLE_DEVICES"] = visible
    command = [ROOT / "scripts/slurm/check_node.sh", script(tmp_path / "program", program + "\n")]
    return execute(command, env=env, code=code)


@pytest.mark.parametrize(("lines", "given", "visible", "has"), [
    (WHOLE, 4, None, 4),
    (WHOLE[:3], 4, None, 3),  # a GPU is missing
    (WHOLE, 2, "0,1", 2),
    (WHOLE, 4, "0,1", 2),
    (WHOLE, 2, "3,2", 2),
    (WHOLE, 2, "3,4", 1),  # GPU 4 does not exist
    (WHOLE, 2, "7,0", 0),  # CUDA ignores entries after one that does not exist
    (WHOLE, 2, "GPU-0a5c1f6e-4d0c,GPU-3a5c", 2),
    (WHOLE, 2, "GPU-9a5c1f6e,GPU-0a5c", 0),
    (WHOLE, 1, "", 0),
    (SPLIT, 4, None, 4),  # two GPUs of two instances each
    (SPLIT, 5, None, 4),
    (SPLIT, 2, "MIG-00b2d3c4,MIG-11b2d3c4", 2),
    (SPLIT, 2, "MIG-00b2d3c4,MIG-12b2d3c4", 1),
    ([*SPLIT, GPU.format(2)], 5, None, 5),
    ([], 1, None, 0),
])
def test_a_node_has_the_gpus_that_the_job_was_given(tmp_path, lines, given, visible, has):
    ended = check(tmp_path, lines, given, visible, code=0 if has >= given else 1)
    assert ended.stderr == "" if has >= given else f"has {has} of {given} GPUs" in ended.stderr


def test_a_program_that_does_not_start_and_a_driver_that_fails_are_no_good(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    check(tmp_path / "a", WHOLE, 4, program="exit 127", code=1)
    check(tmp_path / "b", WHOLE, 4, driver="exit 15", code=1)


def test_a_job_without_gpus_does_not_ask_for_any(tmp_path):
    check(tmp_path, [], None, driver="exit 9")

"""The GPU code is a library in the program's folder, loaded only by runs that use a GPU (src/device/cuda_load.c)."""

import re
import shutil
from pathlib import Path

import pytest
from trainer_runs import BUILD, ROOT, environment, execute, shared_library

LIBRARY = "libtrainer_cuda.so"
TINY = ["-c", str(ROOT / "configs/llama_tiny.yaml"), "-o", "parallel.pipeline=1", "-o", "schedule.bpipe=off"]

# A library with a table that begins with -1, which is never a checksum of headers.
OF_ANOTHER_BUILD = """
const long long *cuda_library(void) {
    static const long long table[16] = {-1};
    return table;
}
"""


def alone(folder):
    """Copies the trainer without the library into `folder`; returns the copy's path."""
    shutil.copy(BUILD / "train_llama", folder)
    return str(folder / "train_llama")


def run(program, *arguments, **options):
    return execute([program, *TINY, *arguments], **options)


def loads(*arguments):
    return LIBRARY in run(str(BUILD / "train_llama"), *arguments, env=environment(LD_DEBUG="files")).stderr


@pytest.mark.thorough
@pytest.mark.skipif(not (BUILD / LIBRARY).exists(), reason="built without nvcc, cuBLASLt or NCCL")
def test_the_gpu_code_is_loaded_only_when_a_gpu_is_wanted():
    assert loads("--plan", "-o", "hardware.device=cuda")
    assert not loads("--plan", "-o", "hardware.device=cpu")
    if not Path("/proc/driver/nvidia/version").exists():
        assert not loads("--plan", "-o", "hardware.device=auto")


def test_without_the_gpu_code_a_run_that_wants_a_gpu_says_how_to_build_it(tmp_path):
    ended = run(alone(tmp_path), "-o", "hardware.device=cuda", code=1)
    assert "this program was built without GPU code; run `make` where nvcc is installed" in ended.stderr


@pytest.mark.thorough
def test_without_the_gpu_code_auto_computes_on_the_cpu(tmp_path):
    run(alone(tmp_path), "-o", "train.steps=1", "-o", "checkpoint.every=0", "-o", "checkpoint.dir=",
        "-o", "log.metrics=", "-o", "data.val_every=0")


def test_the_checksum_of_the_interface_covers_its_structs():
    listed = execute(["gcc", "-MM", "-Isrc", "-I.", "-x", "c", "src/cuda/cuda_library.h"]).stdout
    headers = re.findall(r"src/((?:cuda|backend|comm|base)/\w+\.h)", listed)
    rule = re.search(r"^CUDA_INTERFACE := .*?cksum", (ROOT / "make/cuda.mk").read_text(), re.M | re.S)[0]
    shared = {name for name in headers if "struct" in (ROOT / "src" / name).read_text()}
    assert len(shared) > 5 and shared <= set(re.findall(r"\w+/\w+\.h", rule)), shared


def test_a_library_of_another_build_is_refused(tmp_path):
    program = alone(tmp_path)
    shared_library(tmp_path / LIBRARY, OF_ANOTHER_BUILD)
    ended = run(program, "-o", "hardware.device=cuda", code=1)
    assert "is from a different build than this program; run `make` again" in ended.stderr

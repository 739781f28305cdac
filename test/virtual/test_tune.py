"""--tune on the virtual GPU: the kernels it chooses are in a file, runs read it, and the same file gives the same bits.

The virtual cuBLASLt has three suggestions for a product: the first, one that sums in parts, and one that fails. With
VIRTUAL_SLOW=suggestion the first takes some milliseconds longer, so that the second is chosen.
"""

import json
import subprocess

import pytest
from virtual_runs import APART, VIRTUAL, WIDE, run, trained, write_config

pytestmark = pytest.mark.usefixtures("ranks")
SLOW = {"VIRTUAL_SLOW": "suggestion@0@4"}


def tuned(config, path, *options, **environment):
    return run(config, "llama", *options, f"hardware.products_file={path}", arguments=("--tune",), **environment)


def test_the_same_file_gives_the_same_bits(tmp_path):
    config, path = write_config(tmp_path, "llama"), tmp_path / "products.json"
    steps = ("train.steps=2", "train.global_batch=4")
    ended = tuned(config, path, *steps, **SLOW)
    assert ended.code == 0, ended.stderr
    products = json.loads(path.read_text())["products"]
    assert len(products) > 10 and {each["suggestion"] for each in products} == {1}
    assert f"{len(products)} products of" in ended.stderr and f"{len(products)} have a faster kernel" in ended.stderr
    plain = trained(config, "llama", *steps)
    chosen = [trained(config, "llama", *steps, f"hardware.products_file={path}") for _ in range(2)]
    assert chosen[0].bits == chosen[1].bits != plain.bits
    for ours, first in zip(chosen[0].steps, plain.steps, strict=True):
        assert ours["loss"] == pytest.approx(first["loss"], rel=1e-6)


@pytest.mark.thorough
def test_ranks_choose_together_and_name_the_file_at_a_resume(tmp_path):
    config, path = write_config(tmp_path, "llama"), tmp_path / "products.json"
    steps = (*WIDE, "train.global_batch=2", f"checkpoint.dir={tmp_path / 'saved'}", "checkpoint.every=1")
    apart = tuned(config, path, *steps, "train.steps=1", VIRTUAL_CUBLAS="differs", **APART)
    assert apart.code == 2 and "the ranks have different cuBLAS versions" in apart.stderr, apart.stderr
    ended = tuned(config, path, *steps, "train.steps=1", **SLOW)
    assert ended.code == 0, ended.stderr
    with_file = (*steps, f"hardware.products_file={path}")
    trained(config, "llama", *with_file, "train.steps=1")
    state = json.loads((tmp_path / "saved" / "step_00000001" / "training.json").read_text())
    assert len(state["products"]) == 16
    resume = ("--resume", tmp_path / "saved")
    same = run(config, "llama", *with_file, "train.steps=2", arguments=resume)
    assert same.code == 0 and "different kernels than before" not in same.stderr, same.stderr
    other = run(config, "llama", *steps, "train.steps=3", arguments=resume)
    assert other.code == 0 and "matrix products use different kernels than before" in other.stderr, other.stderr


def test_a_file_for_another_gpu_changes_nothing_and_a_changed_file_is_refused(tmp_path):
    config, path = write_config(tmp_path, "llama"), tmp_path / "products.json"
    steps = ("train.steps=1", "train.global_batch=2")
    assert tuned(config, path, *steps).code == 0
    key = f"hardware.products_file={path}"
    other, plain = (trained(config, "llama", *steps, "hardware.gpu=a100-80g", *more) for more in ((key,), ()))
    assert other.bits == plain.bits and "is for NVIDIA H100" in other.stderr, other.stderr
    path.write_text(path.read_text().replace('"suggestion":0', '"suggestion":1', 1))
    changed = run(config, "llama", *steps, key)
    assert changed.code == 2 and "was not written by --tune" in changed.stderr


def test_a_cpu_has_nothing_to_choose(tmp_path):
    config, path = write_config(tmp_path, "llama"), tmp_path / "products.json"
    words = (VIRTUAL.parent / "release" / "train_llama", "-c", config, "-o", "hardware.device=cpu", "--tune")
    refused = subprocess.run(words, capture_output=True, text=True)
    assert refused.returncode == 2 and "hardware.products_file: is empty" in refused.stderr
    ended = subprocess.run((*words, "-o", f"hardware.products_file={path}"), capture_output=True, text=True)
    assert ended.returncode == 0 and "nothing to choose" in ended.stderr, ended.stderr
    assert json.loads(path.read_text())["products"] == []
    with path.open("r+b") as file:
        file.truncate(1 << 40)  # more than memory
    ended = subprocess.run((*words[:-1], "-o", f"hardware.products_file={path}"), capture_output=True, text=True)
    assert ended.returncode == 1 and "the limit for such a file is 16777216" in ended.stderr, ended.stderr

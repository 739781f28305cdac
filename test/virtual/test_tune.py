"""--tune on the virtual GPU: the kernels it chooses are in a file, runs read it, and the same file gives the same bits.

The virtual cuBLASLt has three suggestions for a product: the first, one that sums in parts, and one that fails. With
VIRTUAL_SLOW=suggestion the first takes some milliseconds longer, so that the second is chosen.
"""

import json

import pytest
from trainer_runs import command, environment
from virtual_runs import APART, WIDE, run, write_config

pytestmark = pytest.mark.usefixtures("ranks")
SLOW = {"VIRTUAL_SLOW": "suggestion@0@4"}


def tuned(config, path, *options, **environment):
    return run(config, "llama", *options, f"hardware.products_file={path}", arguments=("--tune",), **environment)


def test_the_same_file_gives_the_same_bits(tmp_path):
    config, path = write_config(tmp_path, "llama"), tmp_path / "products.json"
    steps = ("train.steps=2", "train.global_batch=4")
    ended = tuned(config, path, *steps, **SLOW)
    products = json.loads(path.read_text())["products"]
    assert len(products) > 10 and {each["suggestion"] for each in products} == {1}
    assert f"{len(products)} products of" in ended.stderr and f"{len(products)} have a faster kernel" in ended.stderr
    plain = run(config, "llama", *steps)
    chosen = [run(config, "llama", *steps, f"hardware.products_file={path}") for _ in range(2)]
    assert chosen[0].bits == chosen[1].bits != plain.bits
    for ours, first in zip(chosen[0].steps, plain.steps, strict=True):
        assert ours["loss"] == pytest.approx(first["loss"], rel=1e-6)


@pytest.mark.thorough
def test_ranks_choose_together_and_name_the_file_at_a_resume(tmp_path):
    config, path = write_config(tmp_path, "llama"), tmp_path / "products.json"
    steps = (*WIDE, "train.global_batch=2", f"checkpoint.dir={tmp_path / 'saved'}", "checkpoint.every=1")
    apart = tuned(config, path, *steps, "train.steps=1", code=2, VIRTUAL_CUBLAS="differs", **APART)
    assert "the ranks have different cuBLAS versions" in apart.stderr, apart.stderr
    tuned(config, path, *steps, "train.steps=1", **SLOW)
    with_file = (*steps, f"hardware.products_file={path}")
    run(config, "llama", *with_file, "train.steps=1")
    state = json.loads((tmp_path / "saved" / "step_00000001" / "training.json").read_text())
    assert len(state["products"]) == 16
    same = run(config, "llama", *with_file, "train.steps=2", resume=tmp_path / "saved")
    assert "different kernels than before" not in same.stderr, same.stderr
    other = run(config, "llama", *steps, "train.steps=3", resume=tmp_path / "saved")
    assert "matrix products use different kernels than before" in other.stderr, other.stderr


def test_a_file_for_another_gpu_changes_nothing_and_a_changed_file_is_refused(tmp_path):
    config, path = write_config(tmp_path, "llama"), tmp_path / "products.json"
    steps = ("train.steps=1", "train.global_batch=2")
    tuned(config, path, *steps)
    key = f"hardware.products_file={path}"
    other, plain = (run(config, "llama", *steps, "hardware.gpu=a100-80g", *more) for more in ((key,), ()))
    assert other.bits == plain.bits and "is for NVIDIA H100" in other.stderr, other.stderr
    path.write_text(path.read_text().replace('"suggestion":0', '"suggestion":1', 1))
    changed = run(config, "llama", *steps, key, code=2)
    assert "was not written by --tune" in changed.stderr


def test_a_cpu_has_nothing_to_choose(tmp_path):
    config, path = write_config(tmp_path, "llama"), tmp_path / "products.json"
    cpu = ("llama", "-c", config, "-o", "hardware.device=cpu")
    assert "hardware.products_file: is empty" in command(*cpu, "--tune", code=2).stderr
    ended = command(*cpu, "--tune", "-o", f"hardware.products_file={path}")
    assert "nothing to choose" in ended.stderr, ended.stderr
    assert json.loads(path.read_text())["products"] == []
    with path.open("r+b") as file:
        file.truncate(1 << 40)  # more than memory
    ended = command(*cpu, "-o", f"hardware.products_file={path}", code=1)
    assert "the limit for such a file is 16777216" in ended.stderr, ended.stderr

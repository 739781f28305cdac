"""studies/side_by_side.py and studies/curve.py run on a CPU at tiny size, and notice sides that differ."""

import json
import os
import sys

import pytest

from trainer_runs import BUILD, ROOT, execute, made_tokens, write_tokens

sys.path.insert(0, str(ROOT / "studies"))
import curve  # noqa: E402
import side_by_side  # noqa: E402
import torch_side  # noqa: E402


def test_a_curve_that_drifts_is_noticed_and_noise_is_not():
    falling = [5 * 0.99**i for i in range(200)]
    noisy = [loss * (1 + 0.01 * (-1) ** i) for i, loss in enumerate(falling)]
    assert curve.compare(noisy, falling, 50)["largest"] < 0.001
    drifting = [loss * (1 + 0.03 * i / 200) for i, loss in enumerate(falling)]
    assert curve.compare(drifting, falling, 50)["largest"] > 0.02


def test_sides_that_do_other_work_are_noticed():
    one = {"losses": [6.2], "norms": [3.0]}
    assert side_by_side.differs(one, {"losses": [6.3], "norms": [3.3]}) == ""
    assert "norm" in side_by_side.differs(one, {"losses": [6.2], "norms": [12.0]})
    assert "first loss" in side_by_side.differs(one, {"losses": [5.0], "norms": [3.0]})


def test_samples_have_an_order():
    assert sorted(torch_side.permute(i, 1000, 7, 3) for i in range(1000)) == list(range(1000))


def ran(script, *arguments, folder):
    pytest.importorskip("torch")
    tokens = write_tokens(folder / "tokens.bin", made_tokens(80000, 250))
    command = [sys.executable, ROOT / "studies" / script, "--device", "cpu", "--tiny", "--programs", BUILD]
    # PyTorch's bf16 products need the processor's best instructions, which conftest.py turns off.
    own = {key: value for key, value in os.environ.items() if key != "ONEDNN_MAX_CPU_ISA"}
    done = execute([*command, "--tokens", tokens, "--out", folder / "out", *arguments], env=own)
    return done.stdout


@pytest.mark.thorough
def test_both_sides_are_measured_in_one_run(tmp_path):
    said = ran("side_by_side.py", "--models", "llama3_8b,gpt3_96b", "--steps", "4", "--peak", "0.1", folder=tmp_path)
    report = json.loads((tmp_path / "out" / "side_by_side.json").read_text())
    assert len(report["products"]) == 2 and report["failed"] == []
    for name in ("llama3_8b", "gpt3_96b"):
        assert f"| {name} | ours |" in said and f"| {name} | torch |" in said
        assert all(len(side["ms"]) == 4 for side in report["models"][name].values())


@pytest.mark.thorough
def test_pytorch_s_curve_is_ours_from_the_same_file_on_the_same_tokens(tmp_path):
    """In fp32 the first steps agree to rounding: the same weights, order of samples, gradients and updates."""
    ran("curve.py", "--steps", "100", "--ours", "fp32", "--most", "0.01", folder=tmp_path)
    report = json.loads((tmp_path / "out" / "curve.json").read_text())
    pairs = list(zip(report["ours"]["fp32"]["losses"], report["torch"]))
    assert len(pairs) == 100 and all(abs(a / b - 1) < 1e-4 for a, b in pairs[:10]), pairs[:10]
    assert pairs[-1][0] < 0.9 * pairs[0][0]

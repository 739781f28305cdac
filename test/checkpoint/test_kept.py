"""Files of earlier versions still load: checkpoints, configurations and profiles in test/kept, a folder per version."""

import json
import shutil

import pytest
from checkpoint_runs import reseal
from trainer_runs import ROOT, checkpoint_names, command, run, verify

KEPT = ROOT / "test" / "kept"
VERSIONS = sorted(path.name for path in KEPT.iterdir())
# Tensor names of both families, and states with and without masters.
RUNS = {"gpt": ("gpt", []), "llama_bf16": ("llama", ["train.precision=bf16"])}


def without_what_is_gone(version, family, folder):
    """Copies a configuration without comm.checksum, as the refusal of that key asks."""
    config = folder / f"{family}.yaml"
    config.write_text((KEPT / version / f"{family}.yaml").read_text().replace("comm: {checksum: off}\n", ""))
    return config


def copied(version, name, tmp_path):
    """Copies a configuration and its checkpoints, since a test run writes its metrics next to them."""
    family, overrides = RUNS[name]
    config = without_what_is_gone(version, family, tmp_path)
    shutil.copytree(KEPT / version / name, tmp_path / "saved")
    return family, config, [*overrides, f"checkpoint.dir={tmp_path}/saved"]


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_run_of_an_earlier_version_goes_on(version, name, tmp_path):
    family, config, overrides = copied(version, name, tmp_path)
    curve = json.loads((KEPT / version / "curves.json").read_text())[name]
    saved = tmp_path / "saved" / "step_00000004"
    assert verify(saved) is None
    ended = run(config, *overrides, f"checkpoint.dir={tmp_path}/new", family=family, resume=saved)
    found = [(step["step"], step["loss"], step["grad_norm"]) for step in ended.steps]
    tolerance = 2e-2 if "bf16" in name else 1e-4  # another processor may sum in another order
    assert found == [(step, *(pytest.approx(value, rel=tolerance) for value in values)) for step, *values in curve]


@pytest.mark.parametrize("version", VERSIONS)
def test_its_folder_is_resumed_and_pruned_as_one_run(version, tmp_path):
    family, config, overrides = copied(version, "llama_bf16", tmp_path)
    more = ["train.steps=12", "checkpoint.keep=2"]
    resumed = run(config, *overrides, *more, family=family, resume=tmp_path / "saved")
    assert "step_00000004 after step 4" in resumed.stderr
    assert checkpoint_names(tmp_path / "saved") == ["step_00000008", "step_00000012"]


@pytest.mark.parametrize("version", VERSIONS)
def test_its_weights_start_a_new_run(version, tmp_path):
    family, config, overrides = copied(version, "gpt", tmp_path)
    start = f"checkpoint.init_from={tmp_path}/saved/step_00000004"
    assert "weights from" in run(config, f"checkpoint.dir={tmp_path}/new", start, family=family).stderr


@pytest.mark.thorough
@pytest.mark.parametrize("version", VERSIONS)
def test_a_profile_of_an_earlier_version_is_planned_with(version, tmp_path):
    """A profile names the device it was made on; the test changes that to this machine's device."""
    config = without_what_is_gone(version, "gpt", tmp_path)
    now = tmp_path / "now.json"
    command("gpt", "-c", config, "-o", f"hardware.profile={now}", "--profile")
    profile = json.loads((KEPT / version / "gpt.profile.json").read_text())
    profile["device"] = json.loads(now.read_text())["device"]
    then = tmp_path / "then.json"
    then.write_text(json.dumps(profile))
    plan = command("gpt", "-c", config, "-o", f"hardware.profile={then}", "--plan", "--json")
    assert json.loads(plan.stdout)["source"] == "profile"


def test_a_key_that_is_gone_is_refused_with_what_to_do():
    ended = command("gpt", "-c", KEPT / "0.1.0" / "gpt.yaml", "--plan", code=2)
    assert "gpt.yaml:13: comm: no such key; comm.checksum is gone: links and NCCL check" in ended.stderr
    assert ended.stderr.strip().endswith("remove the key")


def test_a_checkpoint_of_a_later_format_is_refused_by_name(tmp_path):
    family, config, overrides = copied(VERSIONS[-1], "llama_bf16", tmp_path)
    manifest = tmp_path / "saved" / "step_00000004" / "manifest.json"
    reseal(manifest, manifest.read_text().replace('"format": 1', '"format": 9'))
    ended = run(config, *overrides, family=family, resume=manifest.parent, code=1)
    assert "has format 9; this program reads format 1" in ended.stderr

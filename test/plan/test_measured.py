"""Step times of this trainer, measured on GPUs, lie in the band that `--plan` prints for one GPU."""

import json

import pytest
from plans import plan
from trainer_runs import ROOT

MEASURED = json.loads((ROOT / "test/plan/measured_steps.json").read_text())
ALONE = ("parallel.pipeline=1", "parallel.tensor=1", "parallel.data=1", "schedule.bpipe=off",
         f"hardware.gpu={MEASURED['hardware.gpu']}")


@pytest.mark.every_case
@pytest.mark.parametrize("step", MEASURED["steps"], ids=lambda step: f"{step['config']}-{list(step['keys'].values())}")
def test_a_measured_step_lies_in_the_band_of_one_gpu(step):
    keys = (f"{key}={value}" for key, value in step["keys"].items())
    options = (*ALONE, *keys)
    config = ROOT / "configs" / f"{step['config']}.yaml"
    for fp8, measured in step["ms"].items():
        told = plan(config, *options, f"train.fp8={fp8}", family="gpt" if step["config"].startswith("gpt") else "llama")
        low, high = told["step_ms_low"], told["step_ms_high"]
        assert low <= min(measured) and max(measured) <= high < 1.1 * low, (fp8, told["step_ms"], measured)

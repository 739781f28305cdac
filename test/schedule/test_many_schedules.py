"""The long form of test_kinds for a few stages; test/soak/schedules.py has all."""

import subprocess

import pytest
from trainer_runs import TOOLS


@pytest.mark.thorough
@pytest.mark.parametrize("stages", [2, 3, 5])
def test_every_number_of_microbatches_is_sound(stages):
    ended = subprocess.run([TOOLS / "test_kinds", "all", str(stages), str(stages)], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr

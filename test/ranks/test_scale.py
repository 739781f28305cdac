"""The supervisors' messages with many ranks, without MPI and without a model: start, heartbeat and end of processes."""

import re
import subprocess

import pytest
from trainer_runs import TOOLS


@pytest.mark.soak
@pytest.mark.parametrize("ranks", ["64", "256", "1024"])
def test_many_ranks_start_are_all_heard_and_end(ranks):
    ended = subprocess.run([TOOLS / "ranks_scale", ranks, "2"], capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, (ended.stdout, ended.stderr)
    assert re.match(f"{ranks} ranks: heard {ranks} in .* ended in .*, 0 left$", ended.stdout), ended.stdout

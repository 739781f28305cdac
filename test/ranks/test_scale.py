"""The supervisors' messages with many ranks: start, heartbeat and end of processes without MPI and without a model.

The long form, with 1,024 ranks: test/soak/scale.py.
"""

import re
import subprocess

from trainer_runs import TOOLS


def test_many_ranks_start_are_all_heard_and_end(tmp_path):
    ended = subprocess.run([TOOLS / "ranks_scale", "64", "2"], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, (ended.stdout, ended.stderr)
    assert re.match(r"64 ranks: heard 64 in .* ended in .*, 0 left$", ended.stdout), ended.stdout

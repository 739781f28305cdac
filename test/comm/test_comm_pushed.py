"""Messages that are announced before anything is queued on a device: ranks_pushed.c through mpirun."""

import os
import subprocess

import pytest
from trainer_runs import TOOLS

PROGRAM = TOOLS / "ranks_pushed"
PROMISES = [
    "where memory can be lent messages are pushed into it, elsewhere they go through far",
    "messages both ways arrive whole and in order, early and late",
    "nothing is left over for a second run",
    "a receive goes to the device only after its sender began",
    "the end that lends is not needed while the other end copies, out and back",
]


@pytest.fixture(scope="module", params=[2, 3, 4], ids=lambda n: f"{n}_ranks")
def outcome(request, tmp_path_factory, ranks):
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    shared = tmp_path_factory.mktemp("pushed") / "shared"
    command = ["mpirun", "-n", str(request.param), "--oversubscribe", "--bind-to", "none", PROGRAM, shared]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("promise", PROMISES)
def test_holds(outcome, promise):
    assert f"held: {promise}\n" in outcome.stdout, outcome.stderr


def test_all_ranks_end_well(outcome):
    assert outcome.returncode == 0, outcome.stderr

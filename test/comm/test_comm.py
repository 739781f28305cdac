"""Messages, collectives and the control plane with 2, 3 and 4 ranks on this machine: ranks_comm.c through mpirun."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("TEST_PROGRAMS", ROOT / "build" / "release" / "test")) / "ranks_comm"

PROMISES = [
    "messages arrive in the order they were started",
    "hundreds of messages under way at once",
    "a message longer than MPI can count is one message",
    "a message of another length than expected is an error that names group and peer",
    "sums in rank order: the bits of a serial sum on every rank",
    "scratch memory stays within one piece",
    "sums keep to the workspace that is counted for them",
    "many sums under way at once, finished in any order",
    "a waiting rank uses less than a fifth of a core",
    "gather, broadcast, sum, max, hosts and clocks",
    "groups by color, ordered by key",
]


def run_ranks(ranks, *arguments):
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    command = ["mpirun", "-n", str(ranks), "--oversubscribe", "--bind-to", "none", PROGRAM, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180)


@pytest.fixture(scope="module", autouse=True)
def built_with_mpi():
    alone = subprocess.run([PROGRAM], capture_output=True, text=True)
    if "built without MPI" in alone.stderr:
        pytest.skip("built without MPI")


@pytest.fixture(scope="module", params=[2, 3, 4], ids=lambda n: f"{n}_ranks")
def outcome(request):
    return run_ranks(request.param)


@pytest.mark.parametrize("promise", PROMISES)
def test_holds(outcome, promise):
    assert f"held: {promise}\n" in outcome.stdout, outcome.stderr


def test_all_ranks_end_well(outcome):
    assert outcome.returncode == 0, outcome.stderr

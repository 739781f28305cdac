"""Promises that take 2, 3 and 4 ranks on this machine, through mpirun: ranks_comm.c (messages, collectives, the control
plane) and ranks_pushed.c (messages that are announced before anything is queued on a device)."""

import subprocess

import pytest
from trainer_runs import TOOLS, mpirun, mpirun_environment

PROMISES = {
    "ranks_comm": [
        "messages arrive in the order they were started", "hundreds of messages under way at once",
        "a message longer than MPI can count is one message",
        "a message of another length than expected is an error that names group and peer",
        "sums in rank order: the bits of a serial sum on every rank", "scratch memory stays within one piece",
        "sums keep to the workspace that is counted for them", "many sums under way at once, finished in any order",
        "a waiting rank uses less than a fifth of a core", "gather, broadcast, sum, max, hosts and clocks",
        "groups by color, ordered by key",
    ],
    "ranks_pushed": [
        "where memory can be lent messages are pushed into it, elsewhere they go through far",
        "messages both ways arrive whole and in order, early and late", "nothing is left over for a second run",
        "a receive goes to the device only after its sender began",
        "the end that lends is not needed while the other end copies, out and back",
    ],
}


@pytest.fixture(scope="module", params=[2, 3, 4], ids=lambda n: f"{n}_ranks")
def outcomes(request, tmp_path_factory, ranks):
    shared = tmp_path_factory.mktemp("pushed") / "shared"
    streams = {"capture_output": True, "text": True, "timeout": 180, "env": mpirun_environment()}
    return {name: subprocess.run([*mpirun(request.param), TOOLS / name, shared], **streams) for name in PROMISES}


@pytest.mark.parametrize("program,promise", [(name, promise) for name in PROMISES for promise in PROMISES[name]])
def test_holds(outcomes, program, promise):
    assert f"held: {promise}\n" in outcomes[program].stdout, outcomes[program].stderr


def test_all_ranks_end_well(outcomes):
    assert {name: outcome.returncode for name, outcome in outcomes.items()} == dict.fromkeys(PROMISES, 0), outcomes

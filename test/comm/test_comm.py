"""Promises that take several ranks on this machine, through mpirun: ranks_comm.c (messages, collectives, the control
plane), ranks_pushed.c (messages that are announced before anything is queued on a device), and ranks_exchange.c (blocks
of any length)."""

import subprocess

import pytest
from harm import small_config
from trainer_runs import ROOT, TOOLS, Job, environment, mpirun, mpirun_environment, preload

PROMISES = {
    "ranks_comm": [
        "messages arrive in the order they were started", "hundreds of messages under way at once",
        "a message longer than MPI can count is one message",
        "a message of another length than expected is an error that names group and peer",
        "sums in rank order: the bits of a serial sum on every rank",
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


FOLDERS = {"cpu": TOOLS, "nccl": ROOT / "build/virtual", "shared": ROOT / "build/virtual"}


@pytest.mark.parametrize("where,count", [(where, count) for count in (3, 1, 2, 4, 5) for where in FOLDERS])
def test_every_rank_has_every_block(where, count, ranks):
    """Over MPI between CPUs, over NCCL between virtual GPUs, and through host memory where all ranks share one."""
    environment = {**mpirun_environment(), "VIRTUAL_GPUS": "1" if where == "shared" else "8"}
    done = subprocess.run([*mpirun(count), FOLDERS[where] / "ranks_exchange", where], capture_output=True, text=True,
                          timeout=300, env=environment)
    assert (done.returncode, done.stdout) == (0, "held: every rank has every rank's block\n"), done.stderr


# Preloaded, it makes a query of rank 1 for the messages of a collective fail.
FAILS = r"""
#include <mpi.h>
int MPI_Testall(int count, MPI_Request requests[], int *done, MPI_Status statuses[]) {
    static int asked;
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    if (count > 0 && rank != NULL && rank[0] == '1' && ++asked == 300) return MPI_ERR_OTHER;
    return PMPI_Testall(count, requests, done, statuses);
}
"""


def test_an_error_of_mpi_in_a_sum_is_what_the_run_says(tmp_path, ranks):
    fails = environment(OMP_NUM_THREADS="1", LD_PRELOAD=str(preload(tmp_path / "fails.so", FAILS, compiler="mpicc")))
    keys = ("parallel.pipeline=1", "parallel.tensor=2", "schedule.bpipe=off")
    ended = Job(small_config(tmp_path), *keys, env=fails).end()
    assert ended.code == 1 and "tensor group, rank 1 of 2: a collective" in ended.stderr, ended.stderr

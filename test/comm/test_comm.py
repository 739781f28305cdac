"""Promises that take several ranks on this machine, through mpirun: ranks_comm.c (messages, collectives, the control
plane), ranks_pushed.c (messages that are announced before anything is queued on a device), and ranks_exchange.c (blocks
of any length)."""

import pytest
from harm import small_config
from trainer_runs import ROOT, TOOLS, execute, mpirun, mpirun_environment, one_thread, preload, run


@pytest.mark.parametrize("count", [2, 3, 4])
def test_every_promise_holds_on_all_ranks(count, tmp_path, ranks):
    for program, promises in (("ranks_comm", 11), ("ranks_pushed", 5)):
        done = execute([*mpirun(count), TOOLS / program, tmp_path / "shared"], env=mpirun_environment())
        assert done.stdout.count("held: ") == promises, (program, done.stdout, done.stderr)


FOLDERS = {"cpu": TOOLS, "nccl": ROOT / "build/virtual", "shared": ROOT / "build/virtual"}


@pytest.mark.parametrize("where,count", [(where, count) for count in (3, 1, 2, 4, 5) for where in FOLDERS])
def test_every_rank_has_every_block(where, count, ranks):
    """Over MPI between CPUs, over NCCL between virtual GPUs, and through host memory where all ranks share one."""
    done = execute([*mpirun(count), FOLDERS[where] / "ranks_exchange", where],
                   env=mpirun_environment(VIRTUAL_GPUS="1" if where == "shared" else "8"))
    assert done.stdout == "held: every rank has every rank's block\n", done.stderr


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
    fails = one_thread(LD_PRELOAD=str(preload(tmp_path / "fails.so", FAILS, compiler="mpicc")))
    keys = ("parallel.pipeline=1", "parallel.tensor=2", "schedule.bpipe=off")
    ended = run(small_config(tmp_path), *keys, env=fails, code=1)
    assert "tensor group, rank 1 of 2: a collective" in ended.stderr, ended.stderr

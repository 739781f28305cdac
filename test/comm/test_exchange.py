"""Exchanges of blocks of any length between ranks (ranks_exchange.c): over MPI between CPUs, over NCCL between virtual
GPUs, and through host memory where all ranks share one."""

import subprocess

import pytest
from trainer_runs import ROOT, TOOLS, mpirun, mpirun_environment

FOLDERS = {"cpu": TOOLS, "nccl": ROOT / "build/virtual", "shared": ROOT / "build/virtual"}
CASES = [(where, count) for count in (3, 1, 2, 4, 5) for where in FOLDERS]


@pytest.mark.parametrize("where,count", CASES)
def test_every_rank_has_every_block(where, count, ranks):
    environment = {**mpirun_environment(), "VIRTUAL_GPUS": "1" if where == "shared" else "8"}
    done = subprocess.run([*mpirun(count), FOLDERS[where] / "ranks_exchange", where], capture_output=True, text=True,
                          timeout=300, env=environment)
    assert (done.returncode, done.stdout) == (0, "held: every rank has every rank's block\n"), done.stderr

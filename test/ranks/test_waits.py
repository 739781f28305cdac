"""Ranks that wait leave their core only where that costs no time slice: in pauses of their own."""

import subprocess

import pytest

from harm import small_config
from trainer_runs import Job, environment

pytestmark = pytest.mark.usefixtures("ranks")

# Preloaded, it counts the yields of each rank, and those of libraries.
COUNTS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static long all, of_mpi;
int sched_yield(void) {
    Dl_info caller;
    all++;
    of_mpi += dladdr(__builtin_return_address(0), &caller) != 0 && strstr(caller.dli_fname, "train_") == NULL;
    return ((int (*)(void))dlsym(RTLD_NEXT, "sched_yield"))();
}
__attribute__((destructor)) static void tell(void) {
    char path[400];
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    snprintf(path, sizeof path, "%s/yields_%s", getenv("YIELDS"), rank != NULL ? rank : "none");
    FILE *file = all > 0 ? fopen(path, "w") : NULL;
    if (file == NULL) return;
    fprintf(file, "%ld %ld", all, of_mpi);
    fclose(file);
}
"""


def test_a_test_of_a_message_that_has_not_come_yields_no_core(tmp_path):
    """Open MPI yields in each test, if told that ranks outnumber the cores, and another program takes a time slice."""
    (tmp_path / "counts.c").write_text(COUNTS)
    build = ["gcc", "-shared", "-fPIC", "-o", tmp_path / "counts.so", tmp_path / "counts.c", "-ldl"]
    subprocess.run(build, check=True)
    told = {"OMPI_MCA_mpi_yield_when_idle": "1", "LD_PRELOAD": str(tmp_path / "counts.so"), "YIELDS": str(tmp_path)}
    ended = Job(small_config(tmp_path), "parallel.pipeline=4", env=environment(OMP_NUM_THREADS="1", **told)).end()
    assert ended.code == 0, ended.stderr
    counts = [[int(word) for word in path.read_text().split()] for path in tmp_path.glob("yields_[0-9]")]
    every, of_mpi = (sum(column) for column in zip(*counts))
    assert len(counts) == 4 and of_mpi < every / 2, counts

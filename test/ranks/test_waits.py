"""Waiting ranks yield their core only in the trainer's own pauses, which do not cost a time slice; the supervisors of
many ranks hear each other."""

import re

import pytest

from harm import small_config
from trainer_runs import TOOLS, execute, one_thread, preload, run

# Preloaded library that counts calls of MPI_Test and the yields during them, per rank. At the start and the end MPI
# itself waits, and may yield.
COUNTS = r"""
static long tests, yields;
static __thread int testing;
int sched_yield(void) {
    yields += testing;
    return REAL(sched_yield)();
}
int MPI_Test(void *request, int *done, void *status) {
    static __typeof__(&MPI_Test) real;
    if (real == NULL) real = REAL(MPI_Test);
    tests++, testing = 1;
    int result = real(request, done, status);
    testing = 0;
    return result;
}
__attribute__((destructor)) static void tell(void) {
    char path[400];
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    snprintf(path, sizeof path, "%s/yields_%s", getenv("YIELDS"), rank != NULL ? rank : "none");
    FILE *file = tests > 0 ? fopen(path, "w") : NULL;
    if (file == NULL) return;
    fprintf(file, "%ld %ld", tests, yields);
    fclose(file);
}
"""


def test_a_test_of_a_message_that_has_not_come_yields_no_core(tmp_path, ranks):
    """If ranks outnumber the cores, Open MPI yields in every test, and another program gets the time slice."""
    told = {"OMPI_MCA_mpi_yield_when_idle": "1", "LD_PRELOAD": str(preload(tmp_path / "counts.so", COUNTS)),
            "YIELDS": str(tmp_path)}
    run(small_config(tmp_path), "parallel.pipeline=4", env=one_thread(**told))
    counts = [[int(word) for word in path.read_text().split()] for path in tmp_path.glob("yields_[0-9]")]
    assert len(counts) == 4 and all(yields < tests / 100 for tests, yields in counts), counts  # a few at the start


@pytest.mark.soak
@pytest.mark.parametrize("count", ["64", "256", "1024"])
def test_many_ranks_start_are_all_heard_and_end(count):
    """Start, heartbeat and end of processes, without MPI and without a model."""
    ended = execute([TOOLS / "ranks_scale", count, "2"], limit=600)
    assert re.match(f"{count} ranks: heard {count} in .* ended in .*, 0 left$", ended.stdout), ended.stdout

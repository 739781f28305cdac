"""Hardware faults, caused from outside the program: a library that flips one bit of a message in flight."""

from trainer_runs import shared_library

FLIPPER = """
#include <mpi.h>
#include <stdlib.h>
#include <string.h>
static long number(const char *name) { return getenv(name) ? atol(getenv(name)) : -1; }
// Flips one bit of the FLIP_AT-th message of FLIP_BYTES bytes that rank FLIP_RANK sends: in a copy, as a card would.
int MPI_Isend(const void *from, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request) {
    static long seen;
    if (count == number("FLIP_BYTES") && number("OMPI_COMM_WORLD_RANK") == number("FLIP_RANK") &&
        seen++ == number("FLIP_AT")) {
        char *copy = malloc(count);
        memcpy(copy, from, count);
        copy[count / 2] ^= 4;
        from = copy;
    }
    return PMPI_Isend(from, count, type, to, tag, comm, request);
}
"""


def build_flipper(folder):
    return shared_library(folder / "flipper.so", FLIPPER, compiler="mpicc")


def flips(flipper, rank, size, at):
    """Returns the environment of a run in which that message is damaged."""
    return {"LD_PRELOAD": str(flipper), "FLIP_RANK": str(rank), "FLIP_BYTES": str(size), "FLIP_AT": str(at)}

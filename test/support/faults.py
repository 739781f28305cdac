"""Hardware faults, caused from outside the program: a library that flips one bit of a message in flight, and a flipped
bit in memory that a process lends to another."""

import contextlib
import mmap
import os
from pathlib import Path

from trainer_runs import processes_with, shared_library

FLIPPER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static long number(const char *name) { return getenv(name) ? atol(getenv(name)) : -1; }
// Flips one bit of the FLIP_AT-th message of FLIP_BYTES bytes that rank FLIP_RANK sends: in a copy, as a network card would.
int MPI_Isend(const void *from, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request) {
    static long seen;
    if (getenv("TELL_BYTES") != NULL) fprintf(stderr, "isend %d\\n", count);
    if (count == number("FLIP_BYTES") && number("OMPI_COMM_WORLD_RANK") == number("FLIP_RANK") && seen++ == number("FLIP_AT")) {
        char *copy = malloc(count);
        memcpy(copy, from, count);
        copy[count / 2] ^= 4;
        from = copy;
    }
    return PMPI_Isend(from, count, type, to, tag, comm, request);
}
// With NOT_LENT set no memory can be lent, so that bundles go as messages.
int memfd_create(const char *name, unsigned flags) {
    if (getenv("NOT_LENT") != NULL && strcmp(name, "lent slots") == 0) return errno = ENOSYS, -1;
    return ((int (*)(const char *, unsigned))dlsym(RTLD_NEXT, "memfd_create"))(name, flags);
}
"""


def build_flipper(folder):
    return shared_library(folder / "flipper.so", FLIPPER, compiler="mpicc")


def flips(flipper, rank=-1, size=-1, at=0, lent=True):
    """Returns the environment of a run in which that message is damaged; with rank -1, no message is."""
    environment = {"LD_PRELOAD": str(flipper), "FLIP_RANK": str(rank), "FLIP_BYTES": str(size), "FLIP_AT": str(at)}
    return environment if lent else {**environment, "NOT_LENT": "1"}


def lent_memory(config):
    """Returns memory lent by processes with this text in their command line: [(bytes, path)]."""
    found = {}
    for pid in processes_with(config):
        with contextlib.suppress(OSError):  # it has ended
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                if "memfd:lent slots" in os.readlink(entry):
                    status = entry.stat()
                    found[status.st_ino] = (status.st_size, entry)
    return list(found.values())


def flip_byte(path, at):
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory[at] ^= 4

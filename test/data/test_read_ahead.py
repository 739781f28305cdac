"""What a step reads from the data set was announced to the system a step before, so a slow disk reads it meanwhile."""

import pytest

from trainer_runs import one_thread, preload, run, write_config

pytestmark = pytest.mark.usefixtures("ranks")

# A library to preload: writes a line for each announced range of a file, and for each range that is read.
READS = r"""
#include <stdarg.h>
#include <sys/types.h>
static void tell(const char *what, long at, long bytes) {
    char path[400], line[100];
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    static FILE *file;
    snprintf(path, sizeof path, "%s/reads_%s", getenv("READS"), rank != NULL ? rank : "none");
    if (file == NULL) file = fopen(path, "a");
    snprintf(line, sizeof line, "%s %ld %ld\n", what, at, bytes);
    if (file != NULL) fputs(line, file), fflush(file);
}
int posix_fadvise64(int file, off64_t at, off64_t bytes, int advice) {
    if (advice == 3) tell("expects", at, bytes);
    return 0;
}
int posix_fadvise(int file, off_t at, off_t bytes, int advice) { return posix_fadvise64(file, at, bytes, advice); }
ssize_t pread64(int file, void *to, size_t bytes, off64_t at) {
    tell("reads", at, bytes);
    return REAL(pread64)(file, to, bytes, at);
}
ssize_t pread(int file, void *to, size_t bytes, off_t at) { return pread64(file, to, bytes, at); }
"""


def test_what_a_step_reads_was_announced_a_step_before(tmp_path):
    told = {"LD_PRELOAD": str(preload(tmp_path / "reads.so", READS)), "READS": str(tmp_path)}
    run(write_config(tmp_path), "parallel.pipeline=1", "parallel.data=2", "schedule.bpipe=off", "train.steps=4",
                "data.val_every=0", env=one_thread(**told))
    for rank in (0, 1):
        lines = [line.split() for line in (tmp_path / f"reads_{rank}").read_text().splitlines()]
        expected = [(int(at), int(size)) for what, at, size in lines if what == "expects"]
        assert len(expected) == 3 * 8  # steps 2 to 4, 8 sequences each
        after = lines[next(i for i, line in enumerate(lines) if line[0] == "expects") :]
        read = [(int(at), int(size)) for what, at, size in after if what == "reads"]
        assert read == expected

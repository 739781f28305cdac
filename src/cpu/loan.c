// Memory that another process of the host can map: an anonymous file that the other process opens through /proc. The
// file has no name, so it cannot be left behind, and it disappears with the last process that has it open.
#include "cpu.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct LoanHandle {
    int64_t pid, fd, bytes;
    uint64_t device, inode; // identity of the file: in another container `pid` may be another process
} LoanHandle;

_Static_assert(sizeof(LoanHandle) <= sizeof(Loan), "a handle has to fit into a loan");

void *cpu_shared_allocate(CpuBackend *cpu, int64_t bytes) {
    CpuShared *shared = &cpu->shared;
    if (shared->memory != NULL || bytes == 0) return NULL; // one allocation at a time: a stage needs only one
    int fd = memfd_create("lent slots", MFD_CLOEXEC);
    if (fd < 0) return NULL;
    void *memory = MAP_FAILED;
    if (ftruncate(fd, bytes) == 0) memory = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        close(fd);
        return NULL;
    }
    *shared = (CpuShared){memory, bytes, fd};
    return memory;
}

bool cpu_shared_release(CpuBackend *cpu, void *memory) {
    CpuShared *shared = &cpu->shared;
    if (memory == NULL || shared->memory != memory) return false;
    munmap(memory, (size_t)shared->bytes);
    close(shared->fd);
    *shared = (CpuShared){NULL, 0, -1};
    return true;
}

int cpu_lend(Backend *be, const void *memory, int64_t bytes, Loan *loan, Error *err) {
    const CpuShared *shared = &cpu_self(be)->shared;
    struct stat file;
    if (memory == NULL || shared->memory != memory || fstat(shared->fd, &file) != 0)
        return error_set(err, EXIT_FAILED, "this memory was not allocated to be lent");
    LoanHandle handle = {getpid(), shared->fd, bytes, (uint64_t)file.st_dev, (uint64_t)file.st_ino};
    memset(loan, 0, sizeof *loan);
    memcpy(loan, &handle, sizeof handle);
    return 0;
}

void *cpu_borrow(Backend *be, const Loan *loan, int64_t bytes, Error *err) {
    (void)be;
    LoanHandle handle;
    memcpy(&handle, loan, sizeof handle);
    char path[64];
    struct stat file;
    snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)handle.pid, (long long)handle.fd);
    bool same = stat(path, &file) == 0 && (uint64_t)file.st_dev == handle.device &&
                (uint64_t)file.st_ino == handle.inode && handle.bytes >= bytes;
    int fd = same ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *memory = fd < 0 ? MAP_FAILED : mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0) close(fd);
    if (memory != MAP_FAILED) return memory;
    return error_null(err, EXIT_FAILED, "memory of process %lld cannot be mapped (%s)", (long long)handle.pid,
                      same ? strerror(errno) : "its file is not visible in /proc");
}

void cpu_give_back(Backend *be, void *memory, int64_t bytes) {
    (void)be;
    if (memory != NULL) munmap(memory, (size_t)bytes);
}

#include "fuzz.h"

#include <fcntl.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder_[64];
static pid_t owner_;

static int remove_entry_(const char *path, const struct stat *status, int kind, struct FTW *place) {
    (void)status, (void)kind, (void)place;
    return remove(path);
}

static void remove_folder_(void) {
    if (getpid() == owner_) nftw(folder_, remove_entry_, 8, FTW_DEPTH | FTW_PHYS);
}

const char *fuzz_folder(void) {
    if (owner_ != 0) return folder_;
    owner_ = getpid();
    snprintf(folder_, sizeof folder_, "%s/fuzz-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    PROMISE(mkdtemp(folder_) != NULL);
    atexit(remove_folder_);
    return folder_;
}

const char *fuzz_file(const char *name, const void *data, size_t size) {
    static char paths[2][256];
    static int turn;
    char *path = paths[turn++ % 2];
    snprintf(path, sizeof paths[0], "%s/%s", fuzz_folder(), name);
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    PROMISE(file >= 0 && write(file, data, size) == (ssize_t)size);
    close(file);
    return path;
}

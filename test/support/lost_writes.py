"""Power cuts: what a disk may hold after one, at any call of a run, if it keeps only what was synchronized.

A preloaded library lists the calls that change a folder. `Disk` replays the list by the rules of POSIX: contents of a
file are kept once the file is synchronized; names that are made, moved or removed in a directory are kept once that
directory is synchronized. Of later names each directory keeps the first few, independently of the other directories."""

import random
import shutil

from trainer_runs import preload, verify

# Lists calls below LOST_FOLDER in LOST_LOG, and copies each synchronized file to LOST_LOG.<number of the line>.
LISTER = r"""
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <sys/file.h>
#include <sys/syscall.h>
static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
static int list = -1;
// Also other processes list their calls, in the order in which they are made.
static void begin(void) {
    pthread_mutex_lock(&one);
    if (list < 0)
        list = (int)syscall(SYS_openat, AT_FDCWD, getenv("LOST_LOG"), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    flock(list, LOCK_EX);
}
static void end(void) {
    int code = errno;
    flock(list, LOCK_UN);
    pthread_mutex_unlock(&one);
    errno = code;
}
static void note(const char *what, const char *a, const char *b) {
    char line[2400];
    int length = snprintf(line, sizeof line, "%s\t%s\t%s\n", what, a, b);
    for (int i = 0; i < length - 1; i++) line[i] = line[i] == '\n' ? ' ' : line[i];
    syscall(SYS_write, list, line, (size_t)length);
}
static bool full(char path[1100], int folder, const char *name) {
    char link[64];
    const char *below = getenv("LOST_FOLDER");
    path[0] = '\0';
    if (name == NULL || (name[0] != '/' && folder >= 0)) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        ssize_t length = readlink(link, path, 1023);
        path[length > 0 ? length : 0] = '\0';
    }
    if (name != NULL) snprintf(path + strlen(path), 1100 - strlen(path), "%s%s", path[0] != '\0' ? "/" : "", name);
    return below != NULL && strncmp(path, below, strlen(below)) == 0;
}
static int opened(int folder, const char *name, int flags, mode_t mode) {
    char path[1100];
    if (!(flags & O_CREAT) || !full(path, folder, name)) return (int)syscall(SYS_openat, folder, name, flags, mode);
    begin();
    bool there = faccessat(folder, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
    int file = (int)syscall(SYS_openat, folder, name, flags, mode);
    if (file >= 0 && !there) note("create", path, "");
    end();
    return file;
}
#define OPENED(folder)                                \
    va_list more;                                     \
    va_start(more, flags);                            \
    mode_t mode = va_arg(more, mode_t);               \
    va_end(more);                                     \
    return opened(folder, name, flags, mode);
int open(const char *name, int flags, ...) { OPENED(AT_FDCWD) }
int openat(int folder, const char *name, int flags, ...) { OPENED(folder) }
static int noted(long status, const char *what, const char *a, const char *b) {
    if (status == 0) note(what, a, b);
    end();
    return (int)status;
}
int mkdir(const char *name, mode_t mode) {
    char path[1100];
    if (!full(path, AT_FDCWD, name)) return (int)syscall(SYS_mkdir, name, mode);
    begin();
    return noted(syscall(SYS_mkdir, name, mode), "mkdir", path, "");
}
int renameat2(int a, const char *from, int b, const char *to, unsigned flags) {
    char old[1100], new[1100];
    if (flags != 0 && getenv("NO_EXCHANGE") != NULL) return errno = EINVAL, -1;
    if (!full(old, a, from) || !full(new, b, to)) return (int)syscall(SYS_renameat2, a, from, b, to, flags);
    begin();
    return noted(syscall(SYS_renameat2, a, from, b, to, flags), flags != 0 ? "exchange" : "rename", old, new);
}
int rename(const char *from, const char *to) { return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0); }
int unlinkat(int folder, const char *name, int flags) {
    char path[1100];
    if (!full(path, folder, name)) return (int)syscall(SYS_unlinkat, folder, name, flags);
    begin();
    return noted(syscall(SYS_unlinkat, folder, name, flags), "remove", path, "");
}
int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }
int remove(const char *name) { return unlink(name) == 0 ? 0 : rmdir(name); }
int fsync(int file) {
    char path[1100], copy[1100], number[32], bytes[4096];
    struct stat status;
    if (!full(path, file, NULL) || fstat(file, &status) != 0) return (int)syscall(SYS_fsync, file);
    begin();
    if (S_ISDIR(status.st_mode)) return noted(syscall(SYS_fsync, file), "sync", path, "");
    snprintf(number, sizeof number, "%lld", (long long)lseek(list, 0, SEEK_END));
    snprintf(copy, sizeof copy, "%s.%s", getenv("LOST_LOG"), number);
    int from = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY);
    int to = (int)syscall(SYS_openat, AT_FDCWD, copy, O_WRONLY | O_CREAT, 0600);
    for (ssize_t got; (got = read(from, bytes, sizeof bytes)) > 0;) syscall(SYS_write, to, bytes, (size_t)got);
    close(from), close(to);
    return noted(syscall(SYS_fsync, file), "sync", path, number);
}
ssize_t write(int file, const void *text, size_t bytes) {
    char said[600];
    if (file == STDERR_FILENO && getenv("LOST_LOG") != NULL) {
        snprintf(said, sizeof said, "%.*s", (int)bytes, (const char *)text);
        if (strstr(said, ": saved ") != NULL) begin(), note("say", said, ""), end();
    }
    return (ssize_t)syscall(SYS_write, file, text, bytes);
}
"""


def listing(folder, below):
    """Returns the environment of a run whose calls below a folder are listed, and the list's path."""
    library = preload(folder / "lister.so", LISTER, "-pthread")
    return {"LD_PRELOAD": str(library), "LOST_FOLDER": str(below), "LOST_LOG": str(folder / "calls")}, folder / "calls"


class File:
    def __init__(self, kept=b""):
        self.kept = kept  # content after a power cut


class Directory:
    def __init__(self):
        self.now, self.kept, self.later = {}, {}, []  # all names; the synchronized names; changes since the last sync

    def change(self, **names):
        """Changes several names atomically: a power cut keeps all of the changes or none. None removes a name."""
        self.later.append(names)
        self.apply(self.now, names)

    @staticmethod
    def apply(names, change):
        for name, what in change.items():
            names.pop(name, None)
            if what is not None:
                names[name] = what

    def sync(self):
        self.kept, self.later = dict(self.now), []

    def after_a_cut(self, choose):
        names = dict(self.kept)
        for change in self.later[: choose(len(self.later))]:
            self.apply(names, change)
        return {name: what.kept if isinstance(what, File) else what.after_a_cut(choose) for name, what in names.items()}


def read_tree(path):
    """Reads a folder into a Directory, as if everything were synchronized."""
    tree = Directory()
    for child in path.iterdir():
        tree.now[child.name] = read_tree(child) if child.is_dir() else File(child.read_bytes())
    tree.sync()
    return tree


class Disk:
    """Replays a list of calls below a folder, which held `tree` before."""

    def __init__(self, root, tree, calls):
        self.root, self.tree, self.calls = str(root), tree, calls

    def find(self, path):
        """Returns the directory above a path, and the path's last name."""
        at, parts = self.tree, path[len(self.root) :].strip("/").split("/")
        for part in parts[:-1]:
            at = at.now[part]
        return at, parts[-1]

    def call(self, what, a, b):
        above, name = self.find(a)
        if what in ("create", "mkdir"):
            above.change(**{name: File() if what == "create" else Directory()})
        elif what == "remove":
            above.change(**{name: None})
        elif what in ("rename", "exchange"):
            other, to = self.find(b)
            assert other is above, (a, b)
            above.change(**{name: above.now[to] if what == "exchange" else None, to: above.now[name]})
        elif what == "sync" and b:
            above.now[name].kept = (self.calls.parent / f"{self.calls.name}.{b}").read_bytes()
        elif what == "sync":
            (above.now[name] if name else above).sync()

    def cuts(self, seed=1, each=3):
        """Yields (messages so far, contents of the disk) for a power cut before each call and after the last. Of the
        unsynchronized changes the disk has none, all, and `each` times a random number. Skips repeated contents."""
        chance, said, seen = random.Random(seed), [], set()
        for line in [*self.calls.read_text().splitlines(), "end\t\t"]:
            choices = [lambda most: 0, lambda most: most, *[lambda most: chance.randint(0, most)] * each]
            for choose in choices:
                held = self.tree.after_a_cut(choose)
                if (key := (len(said), repr(held))) not in seen:
                    seen.add(key)
                    yield list(said), held
            what, a, b = line.split("\t")
            if what == "say":
                said.append(a)
            elif what != "end":
                self.call(what, a, b)


def write_tree(tree, path):
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    for name, held in tree.items():
        write_tree(held, path / name) if isinstance(held, dict) else (path / name).write_bytes(held)


class Verifier:
    """Verifies checkpoints that are held in memory. Remembers the answers for equal contents."""

    def __init__(self, folder):
        self.folder, self.known = folder, {}

    def __call__(self, name, held):
        key = repr((name, held))
        if key not in self.known:
            write_tree(held, self.folder / name)
            self.known[key] = verify(self.folder / name)
        return self.known[key]

// Started by test_checkpoint.py.
//   tool_verify DIR          checks that the checkpoint is intact; exit code 0, or 1 with the reason on stderr
//   tool_verify --flip DIR   changes one bit in every byte of every file of the checkpoint, one after the other, and
//                            exits with 1 at the first undetected change; prints the number of changes
#include "checkpoint/checkpoint_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int flip_byte_(int fd, off_t at, const char *dir, const char *name) {
    unsigned char byte, flipped;
    if (pread(fd, &byte, 1, at) != 1) return -1;
    flipped = byte ^ (unsigned char)(1u << (at * 5 % 8));
    if (pwrite(fd, &flipped, 1, at) != 1) return -1;
    Error err = {0};
    int verified = checkpoint_verify(dir, 0, 1, NULL, &err);
    if (pwrite(fd, &byte, 1, at) != 1) return -1;
    if (verified != 0 && strstr(err.text, name) != NULL) return 0;
    fprintf(stderr, "%s byte %lld: %s\n", name, (long long)at, verified == 0 ? "not noticed" : err.text);
    return -1;
}

static long long flip_file_(const char *dir, const char *name) {
    char path[CHECKPOINT_PATH];
    struct stat status;
    if (file_join(path, dir, name, NULL) != 0) return -1;
    int fd = open(path, O_RDWR);
    if (fd < 0 || fstat(fd, &status) != 0) return -1;
    long long flips = 0;
    while (flips < status.st_size && flip_byte_(fd, flips, dir, name) == 0) flips++;
    close(fd);
    return flips < status.st_size ? -1 : flips;
}

static int flip_all_(const char *dir) {
    DIR *stream = opendir(dir);
    long long all = 0, flips = 0;
    if (stream == NULL) return EXIT_FAILED;
    for (struct dirent *entry; flips >= 0 && (entry = readdir(stream)) != NULL;) {
        if (entry->d_name[0] == '.') continue;
        flips = flip_file_(dir, entry->d_name);
        all += flips;
    }
    closedir(stream);
    printf("%lld\n", all);
    return flips < 0 ? EXIT_FAILED : EXIT_DONE;
}

int main(int argc, char **argv) {
    Error err = {0};
    if (argc == 3 && strcmp(argv[1], "--flip") == 0) return flip_all_(argv[2]);
    if (argc != 2) return EXIT_USAGE;
    if (checkpoint_verify(argv[1], 0, 1, NULL, &err) == 0) return EXIT_DONE;
    fprintf(stderr, "%s\n", err.text);
    return EXIT_FAILED;
}

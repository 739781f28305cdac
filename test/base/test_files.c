// Which symbolic links file_open_to_write follows: tests files.h's table of owners and permissions with real links.
// Removing trees, and locks. Only root can give a link to another user, so most rows need root.
#include "base/files.h"
#include "scratch_folder.h"
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OURS = 0, FRIEND = 1001, STRANGER = 1002, NOBODY = 65534 };

// Owners and mode of a folder, the owner of a link in it, the user `us` who writes, and whether the link is followed.
typedef struct Case {
    const char *what;
    uid_t us, folder, link;
    mode_t mode;
    bool followed;
} Case;

static const Case cases[] = {
    {"our own link where many write", OURS, OURS, OURS, 01777, true},
    {"root's link where many write", FRIEND, STRANGER, 0, 0777, true},
    {"a stranger's link in a sticky folder for all", FRIEND, 0, STRANGER, 01777, false},
    {"a stranger's link in a folder for all", FRIEND, 0, STRANGER, 0777, false},
    {"a stranger's link in a group's scratch", FRIEND, 0, STRANGER, 02775, false},
    {"a stranger's link in root's eyes", OURS, OURS, STRANGER, 0770, false},
    {"the link of the folder's owner", FRIEND, STRANGER, STRANGER, 01777, true},
    {"root squashed: our link in our folder", OURS, NOBODY, NOBODY, 01777, true},
    {"root squashed: our link in a folder that only its owner writes", OURS, FRIEND, NOBODY, 0755, true},
    {"root squashed: our link in a sticky folder of another", OURS, FRIEND, NOBODY, 01777, false},
};

static int write_through(const char *link) {
    int fd = file_open_to_write(link, O_APPEND), code = fd < 0 ? errno : 0;
    if (fd >= 0) close(fd);
    return code;
}

// Makes the folder, the link and its target. Every user may write the target, so only the link decides the result.
static void make_case(const Case *row, char folder[TEST_PATH], char link[TEST_PATH]) {
    char target[TEST_PATH];
    snprintf(target, sizeof target, "%s", test_path("target"));
    snprintf(folder, TEST_PATH, "%s", test_path("shared"));
    assert_true((size_t)snprintf(link, TEST_PATH, "%.200s/link", folder) < TEST_PATH);
    int fd = open(target, O_CREAT | O_WRONLY, 0666);
    assert_true(fd >= 0 && close(fd) == 0);
    assert_int_equal(chmod(target, 0666) | chmod(test_folder, 0755), 0);
    assert_int_equal(mkdir(folder, 0700) | symlink("../target", link), 0);
    assert_int_equal(lchown(link, row->link, row->link) | chown(folder, row->folder, row->folder), 0);
    assert_int_equal(chmod(folder, row->mode), 0);
}

static void remove_case(const char *folder, const char *link) { assert_int_equal(unlink(link) | rmdir(folder), 0); }

static bool every_user_is_mapped(void) {
    char text[64] = "";
    unsigned inside, outside, count;
    int fd = open("/proc/self/uid_map", O_RDONLY);
    bool read_all = fd >= 0 && read(fd, text, sizeof text - 1) > 0;
    if (fd >= 0) close(fd);
    return read_all && sscanf(text, "%u %u %u", &inside, &outside, &count) == 3 && count == UINT32_MAX;
}

TEST(a_link_is_followed_if_no_stranger_can_have_put_it_there) {
    if (geteuid() != 0) skip();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char folder[TEST_PATH], link[TEST_PATH];
        if (cases[i].link == NOBODY && !every_user_is_mapped()) continue;
        make_case(&cases[i], folder, link);
        assert_int_equal(seteuid(cases[i].us), 0);
        int code = write_through(link);
        assert_int_equal(seteuid(0), 0);
        remove_case(folder, link);
        // If fs.protected_symlinks is set, the kernel itself refuses links in sticky folders, with EACCES.
        bool right = cases[i].followed ? code == 0 : code == ELOOP || code == EACCES;
        if (!right) fail_msg("%s: %s", cases[i].what, strerror(code));
    }
}

// Runs in the child: becomes `user` in a user namespace without mapped users. Exits with the errno of the write, or
// with 255 if the namespace cannot be created.
static void write_within_a_container(uid_t user, const char *link) {
    if (setuid(user) != 0 || unshare(CLONE_NEWUSER) != 0) _exit(255);
    _exit(write_through(link));
}

// In such a namespace the folder's owner, the link's owner and the writing user all have the same number.
TEST(users_that_are_not_mapped_are_not_taken_for_one) {
    static const Case rows[] = {
        {"a stranger's link in a group's scratch", FRIEND, 0, STRANGER, 02775, false},
        {"our link in our own folder", FRIEND, FRIEND, FRIEND, 0755, true},
    };
    if (geteuid() != 0) skip();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char folder[TEST_PATH], link[TEST_PATH];
        int status = 0;
        make_case(&rows[i], folder, link);
        pid_t child = fork();
        if (child == 0) write_within_a_container(rows[i].us, link);
        assert_int_equal(waitpid(child, &status, 0), child);
        remove_case(folder, link);
        if (WEXITSTATUS(status) == 255) skip();
        bool right = WEXITSTATUS(status) == (rows[i].followed ? 0 : ELOOP);
        if (!right) fail_msg("%s: %s", rows[i].what, strerror(WEXITSTATUS(status)));
    }
}

TEST(a_link_of_one_s_own_is_followed_from_the_working_directory) {
    char here[4096], text[8] = "";
    assert_non_null(getcwd(here, sizeof here));
    assert_int_equal(chdir(test_folder), 0);
    assert_int_equal(symlink("second", "first") | symlink("end", "second"), 0);
    int fd = file_open_to_write("first", O_TRUNC);
    assert_true(fd >= 0);
    assert_int_equal(file_write_all(fd, "whole", 5) | close(fd), 0);
    fd = open("end", O_RDONLY);
    assert_int_equal(read(fd, text, sizeof text), 5);
    assert_string_equal(text, "whole");
    close(fd);
    assert_int_equal(chdir(here), 0);
}

// Whoever may write in the folder could have made the link.
TEST(a_link_is_replaced_and_not_the_file_that_it_names) {
    char file[TEST_PATH], link[TEST_PATH], text[8] = "";
    struct stat at;
    snprintf(file, sizeof file, "%s", test_path("named"));
    snprintf(link, sizeof link, "%s", test_path("link_to_it"));
    assert_int_equal(file_replace(file, "old", 3) | symlink(file, link) | file_replace(link, "new", 3), 0);
    assert_true(lstat(link, &at) == 0 && S_ISREG(at.st_mode));
    int fd = open(file, O_RDONLY);
    assert_int_equal(read(fd, text, sizeof text), 3);
    assert_string_equal(text, "old");
    close(fd);
}

TEST(what_cannot_be_replaced_says_why) {
    assert_int_equal(mkdir(test_path("report.json.new"), 0700), 0);
    assert_int_equal(file_replace(test_path("report.json"), "new", 3), -1);
    assert_int_equal(errno, EISDIR); // not EEXIST, since report.json does not exist
}

TEST(links_that_go_in_a_circle_end) {
    char one[TEST_PATH], two[TEST_PATH];
    snprintf(one, sizeof one, "%s", test_path("one"));
    snprintf(two, sizeof two, "%s", test_path("two"));
    assert_int_equal(symlink(one, two) | symlink(two, one), 0);
    assert_int_equal(write_through(one), ELOOP);
    assert_non_null(strstr(file_why(ELOOP), "a loop of symbolic links"));
}

// Removing a folder of ours in which a user may write. When its first file is removed, that user swaps the folder for a
// link to a folder of ours elsewhere.
static char swapped[TEST_PATH], elsewhere[TEST_PATH];

static void swap_when_(const char *path) {
    char aside[TEST_PATH + 8];
    if (swapped[0] == '\0' || strstr(path, "precious") == NULL) return;
    snprintf(aside, sizeof aside, "%s.aside", swapped);
    assert_int_equal(rename(swapped, aside) | symlink(elsewhere, swapped), 0);
    swapped[0] = '\0';
}

int unlinkat(int folder, const char *name, int flags) {
    swap_when_(name);
    return (int)syscall(SYS_unlinkat, folder, name, flags);
}

int remove(const char *path) {
    swap_when_(path);
    return unlink(path) == 0 ? 0 : rmdir(path);
}

TEST(nothing_is_removed_behind_a_folder_that_becomes_a_link) {
    char tree[TEST_PATH], file[TEST_PATH + 16];
    snprintf(tree, sizeof tree, "%s", test_path("tree"));
    snprintf(elsewhere, sizeof elsewhere, "%s", test_path("elsewhere"));
    assert_true((size_t)snprintf(swapped, sizeof swapped, "%.200s/inner", tree) < sizeof swapped);
    assert_int_equal(mkdir(tree, 0700) | mkdir(swapped, 0700) | mkdir(elsewhere, 0700), 0);
    for (int i = 0; i < 2; i++) {
        snprintf(file, sizeof file, "%s/precious", i == 0 ? swapped : elsewhere);
        assert_int_equal(close(open(file, O_CREAT | O_WRONLY, 0600)), 0);
    }
    file_remove_tree(tree);
    assert_string_equal(swapped, "");
    assert_int_equal(access(file, F_OK), 0);
    file_remove_tree(tree); // what the swap has left
    assert_int_equal(access(tree, F_OK), -1);
    assert_int_equal(access(file, F_OK), 0);
}

TEST(a_lock_ends_with_its_process_and_leaves_no_file) {
    char path[TEST_PATH];
    int pipes[2], status;
    snprintf(path, sizeof path, "%s", test_path("lock"));
    FileLock lock;
    Error err = {0};
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    if (child == 0) {
        int failed = file_lock(&lock, path, "taken", &err);
        _exit(write(pipes[1], "", 1) == 1 && pause() != 0 ? failed : 1);
    }
    assert_int_equal(read(pipes[0], path + sizeof path - 1, 1), 1);
    assert_int_equal(file_lock(&lock, path, "taken", &err), -1);
    assert_string_equal(err.text, "taken");
    assert_false(file_locked(&lock));
    file_unlock(&lock);
    assert_int_equal(kill(child, SIGKILL) | (waitpid(child, &status, 0) != child), 0);
    err = (Error){0};
    assert_int_equal(file_lock(&lock, path, "taken", &err), 0);
    assert_true(file_locked(&lock));
    struct stat there;
    assert_int_equal(stat(path, &there), 0);
    assert_int_equal(there.st_mode & 07777, 0600);
    file_unlock(&lock);
    assert_int_equal(access(path, F_OK), -1);
    close(pipes[0]), close(pipes[1]);
}

TEST(a_lock_whose_folder_is_moved_is_not_in_its_place) {
    char folder[TEST_PATH], path[TEST_PATH + 8], aside[TEST_PATH + 8];
    snprintf(folder, sizeof folder, "%s", test_path("held"));
    snprintf(path, sizeof path, "%s/lock", folder);
    snprintf(aside, sizeof aside, "%s.aside", folder);
    FileLock lock, other;
    Error err = {0};
    assert_int_equal(mkdir(folder, 0700) | file_lock(&lock, path, "taken", &err), 0);
    assert_int_equal(rename(folder, aside) | mkdir(folder, 0700) | file_lock(&other, path, "taken", &err), 0);
    assert_false(file_locked(&lock));
    file_unlock(&lock);
    assert_true(file_locked(&other)); // only its own file is removed
    file_unlock(&other);
}

TESTS_BETWEEN(test_folder_create, test_folder_remove)

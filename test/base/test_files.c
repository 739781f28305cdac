// Which symbolic links file_open_to_write follows: tests files.h's table of owners and permissions with real links.
// Only root can give a link to another user, so most rows need root.
#include "base/files.h"
#include "scratch_folder.h"
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
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
    assert_int_equal(chmod(target, 0666) | chmod(test_folder(), 0755), 0);
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
    assert_int_equal(chdir(test_folder()), 0);
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

TEST(links_that_go_in_a_circle_end) {
    char one[TEST_PATH], two[TEST_PATH];
    snprintf(one, sizeof one, "%s", test_path("one"));
    snprintf(two, sizeof two, "%s", test_path("two"));
    assert_int_equal(symlink(one, two) | symlink(two, one), 0);
    assert_int_equal(write_through(one), ELOOP);
    assert_non_null(strstr(file_why(ELOOP), "a loop of symbolic links"));
}

TESTS_BETWEEN(test_folder_create, test_folder_remove)

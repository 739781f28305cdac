// Foreign text on a terminal: control characters are replaced, and printable characters are kept.
#include "base/log.h"
#include "unit.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char *printable(const char *text, const char *keep) {
    static char out[256];
    strcpy(out, text);
    out[text_make_printable(out, strlen(out), keep)] = '\0';
    return out;
}

TEST(letters_of_any_script_stay) {
    const char *text = "model-00001 é ß 日本 שלום مرحبا 🙂 ~";
    assert_string_equal(printable(text, ""), text);
}

TEST(control_characters_of_both_ranges_are_replaced) {
    assert_string_equal(printable("a\x1b[2Jb\r\n\tc\x7f", ""), "a?[2Jb???c?");
    assert_string_equal(printable("a\xc2\x9b"
                                  "31mb\xc2\x80\xc2\x9f",
                                  ""),
                        "a?31mb??"); // encoded as UTF-8
    assert_string_equal(printable("a\x9b"
                                  "31mb",
                                  ""),
                        "a?31mb"); // as a single byte
    assert_string_equal(printable("a\nb\tc\x1b", "\n\t"), "a\nb\tc?");
}

TEST(marks_that_reorder_text_are_replaced) {
    assert_string_equal(printable("a\u202egnp.exe", ""), "a?gnp.exe");
    assert_string_equal(printable("\u202a\u202b\u202c\u202d\u2066\u2067\u2068\u2069\u200e\u200f\u061c\u2028\u2029", ""),
                        "?????????????");
}

TEST(a_text_that_was_cut_ends_with_three_dots) {
    char text[16] = "";
    text_add(text, sizeof text, "%s %d", "memory", 300);
    text_add(text, sizeof text, ", %s", "cut");
    assert_string_equal(text, "memory 300, cut"); // fills the memory
    text_add(text, sizeof text, ", %d", 400);
    assert_string_equal(text, "memory 300, ...");
    text_add(text, sizeof text, "%s", "");
    assert_string_equal(text, "memory 300, ...");
    text[12] = '\0';
    text_add(text, sizeof text, "%s", "network 400");
    assert_string_equal(text, "memory 300, ...");
}

TEST(bytes_that_are_not_utf8_are_replaced) {
    assert_string_equal(printable("\xff\xfe|\xc0\x9b|\xe0\x82\x9b|\xed\xa0\x80|\xe6\x97", ""), "??|??|???|???|??");
}

// Returns in `text` the bytes that log_line writes to stderr for the message.
static void said(char *text, size_t size, const char *message) {
    int pipes[2], before = dup(STDERR_FILENO);
    assert_int_equal(pipe(pipes), 0);
    dup2(pipes[1], STDERR_FILENO);
    Log log = {"train_llama", -1, -1, LOG_NORMAL};
    log_line(&log, "%s", message);
    dup2(before, STDERR_FILENO);
    close(pipes[1]);
    ssize_t got = read(pipes[0], text, size - 1);
    text[got > 0 ? got : 0] = '\0';
    close(pipes[0]);
    close(before);
}

TEST(a_message_has_one_line_whatever_it_quotes) {
    char text[512];
    said(text, sizeof text,
         "x\xc2\x9b"
         "2J\u202e\ntrain_llama: all is well");
    assert_string_equal(text, "train_llama: x?2J??train_llama: all is well\n");
    said(text, sizeof text, "does not fit\xc2\x9b\nrun instead: train_llama\xc2\x9b");
    assert_string_equal(text, "train_llama: does not fit?\nrun instead: train_llama?\n");
}

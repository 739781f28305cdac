#include "launch_output.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// --- texts that grow

static void output_append_(LaunchText *text, const char *bytes, size_t count) {
    if (text->length + count + 1 > text->capacity) {
        size_t capacity = 2 * (text->length + count + 1);
        char *at = realloc(text->at, capacity);
        if (at == NULL) return; // a line less on stderr
        text->at = at;
        text->capacity = capacity;
    }
    memcpy(text->at + text->length, bytes, count);
    text->length += count;
    text->at[text->length] = '\0';
}

static void move_(LaunchText *to, LaunchText *from) {
    output_append_(to, from->at, from->length);
    from->length = 0;
}

static void pass_(const LaunchOutput *output, LaunchText *text) {
    for (size_t done = 0; done < text->length;) {
        ssize_t wrote = write(output->to, text->at + done, text->length - done);
        if (wrote <= 0) break; // nobody reads it any more
        done += (size_t)wrote;
    }
    text->length = 0;
}

// --- what is mpirun's

static bool is_frame_(const LaunchText *line) {
    enum { FRAME = 74 };
    return line->length == FRAME + 1 && strspn(line->at, "-") == FRAME;
}

static bool says_any_(const LaunchText *text, const char *const *phrases, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (strstr(text->at, phrases[i]) != NULL) return true;
    return false;
}

static bool is_comment_(const LaunchText *block) {
    static const char *const phrases[] = {
        "MPI_ABORT was invoked",    "mpirun noticed that",          "mpirun detected that",
        "mpirun has exited due to", "job has been aborted",         "Primary job  terminated normally",
        "orterun noticed that",     "WITHOUT calling \"finalize\"", "without calling \"finalize\"",
    };
    return says_any_(block, phrases, sizeof phrases / sizeof *phrases);
}

static bool is_remark_(const LaunchText *line) {
    static const char *const phrases[] = {"more process has sent help message", "more processes have sent help message",
                                          "orte_base_help_aggregate", "mpirun: Forwarding signal"};
    return says_any_(line, phrases, sizeof phrases / sizeof *phrases);
}

// --- line by line

static void take_line_(LaunchOutput *output) {
    enum { LONGEST_BLOCK = 1 << 14 };
    bool frame = is_frame_(&output->line);
    if (!output->framed && !frame) {
        if (is_remark_(&output->line))
            move_(&output->comment, &output->line);
        else
            pass_(output, &output->line);
        return;
    }
    move_(&output->block, &output->line);
    bool closed = output->framed && frame;
    output->framed = !closed;
    if (closed && is_comment_(&output->block))
        move_(&output->comment, &output->block);
    else if (closed || output->block.length > LONGEST_BLOCK)
        launch_output_settle(output);
}

void launch_output_take(LaunchOutput *output, const char *bytes, size_t count) {
    while (count > 0) {
        const char *newline = memchr(bytes, '\n', count);
        size_t part = newline == NULL ? count : (size_t)(newline - bytes) + 1;
        output_append_(&output->line, bytes, part);
        if (newline != NULL) take_line_(output);
        bytes += part;
        count -= part;
    }
}

void launch_output_settle(LaunchOutput *output) {
    pass_(output, &output->block);
    output->framed = false;
}

void launch_output_end(LaunchOutput *output) {
    if (output->line.length > 0) launch_output_take(output, "\n", 1);
    if (output->framed && is_comment_(&output->block)) move_(&output->comment, &output->block);
    launch_output_settle(output);
}

LaunchComment launch_output_comment(const LaunchOutput *output) {
    LaunchComment comment = {-1, -1, -1};
    const char *text = output->comment.at, *at;
    if (text == NULL) return comment;
    at = strstr(text, "noticed that process rank ");
    if (at != NULL) sscanf(at, "noticed that process rank %d", &comment.rank);
    at = strstr(text, "has exited due to process rank "); // with code 0, and without leaving MPI
    if (at != NULL && sscanf(at, "has exited due to process rank %d", &comment.rank) == 1) comment.code = 0;
    at = strstr(text, "exited on signal ");
    if (at != NULL) sscanf(at, "exited on signal %d", &comment.signal);
    at = strstr(text, "Process name: [[");
    if (at != NULL && comment.rank < 0) sscanf(at, "Process name: [[%*d,%*d],%d]", &comment.rank);
    at = strstr(text, "Exit code:");
    if (at != NULL) sscanf(at, "Exit code: %d", &comment.code);
    return comment;
}

void launch_output_free(LaunchOutput *output) {
    free(output->line.at);
    free(output->block.at);
    free(output->comment.at);
    memset(output, 0, sizeof *output);
}

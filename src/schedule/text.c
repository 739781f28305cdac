// Writes and reads the text form of schedules. Version 1 has F, B, E, A, R and L and one chunk on every stage. Version
// 2 adds I and W, a chunk number in every action, and placement and edge buffers in the header. A schedule that version
// 1 can express is written in version 1. Version 3 adds slice numbers, and is written only with several slices.
#include "bpipe.h"

#include "base/alloc.h"

#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

static bool is_version_1_(const Schedule *schedule) {
    return schedule->chunks == 1 && schedule->slices == 1 && !schedule->split &&
           schedule->edge_buffers == SCHEDULE_EDGE_BUFFERS;
}

// ---------------------------------------------------------------------------------------------------------------------
// Writing

char *action_text(const Schedule *schedule, Action action, char text[ACTION_TEXT]) {
    char chunk[12] = "", slice[12] = "", peer[12] = "";
    if (!is_version_1_(schedule)) snprintf(chunk, sizeof chunk, ".%d", action.chunk);
    if (schedule->slices > 1) snprintf(slice, sizeof slice, ":%d", action.slice);
    if (!action_computes(action.kind)) {
        bool leaves = action.kind == ACTION_EVICT || action.kind == ACTION_RETURN;
        snprintf(peer, sizeof peer, action.peer == SCHEDULE_HOST ? "%ch" : "%c%d", leaves ? '>' : '<', action.peer);
    }
    snprintf(text, ACTION_TEXT, "%c%d%s%s%s", action.kind, action.microbatch, chunk, slice, peer);
    return text;
}

int schedule_write(const Schedule *schedule, FILE *file) {
    fprintf(file, "# schedule %s  stages %d", schedule->name, schedule->stages);
    bool plain = is_version_1_(schedule);
    if (!plain) fprintf(file, "  chunks %d", schedule->chunks);
    if (schedule->slices > 1) fprintf(file, "  slices %d", schedule->slices);
    if (!plain) fprintf(file, "  placement %s", schedule->placement == PLACEMENT_V ? "v" : "loop");
    fprintf(file, "  microbatches %d  slots %d", schedule->microbatches, schedule->slots);
    if (!plain) fprintf(file, "  edges %d", schedule->edge_buffers);
    fputc('\n', file);
    for (int s = 0; s < schedule->stages; s++) {
        fprintf(file, "stage %d:", s);
        for (int64_t i = 0; i < schedule->stage[s].count; i++) {
            char text[ACTION_TEXT];
            fprintf(file, " %s", action_text(schedule, schedule->stage[s].actions[i], text));
        }
        fputc('\n', file);
    }
    return ferror(file) ? -1 : 0;
}

// ---------------------------------------------------------------------------------------------------------------------
// Reading

// The reader's position. Every text_take_ function moves past its item, or leaves `at` unchanged and returns false.
typedef struct TextReader {
    const char *at;
    int line;
    bool chunks; // version 2: actions have chunk numbers
    bool slices; // version 3: actions have chunk and slice numbers
    Error *err;
} TextReader;

static int text_unreadable_(const TextReader *reader, const char *expected) {
    char found[24];
    size_t used = 0;
    for (; used + 1 < sizeof found && !isspace((unsigned char)reader->at[used]) && reader->at[used] != 0; used++)
        found[used] = isgraph((unsigned char)reader->at[used]) ? reader->at[used] : '?';
    found[used] = 0;
    if (used == 0)
        return error_set(reader->err, EXIT_USAGE, "schedule, line %d: found the end of the %s, expected %s",
                         reader->line, *reader->at == 0 ? "text" : "line", expected);
    return error_set(reader->err, EXIT_USAGE, "schedule, line %d: found \"%s\", expected %s", reader->line, found,
                     expected);
}

static bool text_take_(TextReader *reader, const char *text) {
    size_t length = strlen(text);
    if (strncmp(reader->at, text, length) != 0) return false;
    reader->at += length;
    return true;
}

static bool text_take_spaces_(TextReader *reader) {
    const char *start = reader->at;
    while (*reader->at == ' ' || *reader->at == '\t') reader->at++;
    return reader->at > start;
}

static bool text_take_number_(TextReader *reader, int *number) {
    char *end;
    long long value = strtoll(reader->at, &end, 10); // at most LLONG_MAX, whatever the number
    if (!isdigit((unsigned char)*reader->at) || value > INT_MAX) return false;
    reader->at = end;
    *number = (int)value;
    return true;
}

static bool take_word_(TextReader *reader, const char *word) {
    TextReader start = *reader;
    if (text_take_spaces_(reader) && text_take_(reader, word) && text_take_spaces_(reader)) return true;
    *reader = start;
    return false;
}

// Takes a word and a number, with spaces before each: " word 12".
static bool take_field_(TextReader *reader, const char *word, int *number) {
    return take_word_(reader, word) && text_take_number_(reader, number);
}

// Takes the end of a line: LF, CR and LF, or the end of the text.
static bool take_line_end_(TextReader *reader) {
    text_take_spaces_(reader);
    const char *end = *reader->at == '\r' ? reader->at + 1 : reader->at;
    if (*end != 0 && *end != '\n') return false;
    reader->line += *end == '\n';
    reader->at = *end == '\n' ? end + 1 : end;
    return true;
}

// Takes "  chunks 2  placement v" of version 2 or "  chunks 2  slices 4  placement v" of version 3, if present.
static bool take_chunks_(TextReader *reader, Schedule *schedule) {
    reader->chunks = take_word_(reader, "chunks");
    if (!reader->chunks) return true;
    if (!text_take_number_(reader, &schedule->chunks)) return false;
    reader->slices = take_word_(reader, "slices");
    if (reader->slices && !text_take_number_(reader, &schedule->slices)) return false;
    if (!take_word_(reader, "placement")) return false;
    schedule->placement = *reader->at == 'v' ? PLACEMENT_V : PLACEMENT_LOOP;
    return text_take_(reader, schedule->placement == PLACEMENT_V ? "v" : "loop");
}

static int text_read_header_(TextReader *reader, Schedule *schedule) {
    const char *form = "the header \"# schedule NAME  stages P  microbatches M  slots K\"";
    if (!text_take_(reader, "# schedule ")) return text_unreadable_(reader, form);
    text_take_spaces_(reader);
    size_t length = strspn(reader->at, "abcdefghijklmnopqrstuvwxyz0123456789-");
    bool ends = isspace((unsigned char)reader->at[length]) || reader->at[length] == 0;
    if (length == 0 || length >= sizeof schedule->name || !ends)
        return text_unreadable_(reader, "a name of at most 31 characters out of a-z, 0-9 and -");
    memcpy(schedule->name, reader->at, length);
    reader->at += length;
    schedule->forward_only = strcmp(schedule->name, "forward") == 0;
    if (take_field_(reader, "stages", &schedule->stages) && take_chunks_(reader, schedule) &&
        take_field_(reader, "microbatches", &schedule->microbatches) &&
        take_field_(reader, "slots", &schedule->slots) &&
        (!reader->chunks || take_field_(reader, "edges", &schedule->edge_buffers)) && take_line_end_(reader)) {
        if (schedule->stages < 1 || schedule->microbatches < 1 || schedule->slots < 1)
            return error_set(reader->err, EXIT_USAGE, "schedule, line 1: stages, microbatches and slots must be >= 1");
        if (schedule->chunks < 1 || schedule->slices < 1 || schedule->edge_buffers < 1)
            return error_set(reader->err, EXIT_USAGE, "schedule, line 1: chunks, slices and edges must be >= 1");
        return 0;
    }
    if (reader->chunks)
        form = "the header \"# schedule NAME  stages P  chunks V  placement loop|v  microbatches M  slots K  edges E\"";
    return text_unreadable_(reader, form);
}

// Reads an action. After its kind are the numbers of its bundle, "3"; with chunk numbers "3.1"; with chunk and slice
// numbers "3.1:2". Its peer is ">2" or "<2"; for an own bundle also ">h" or "<h".
static int read_action_(TextReader *reader, ActionList *list) {
    const char *form = "one of F3, B3, E3>q, E3>h, A3<q, R3>q, L3<q or L3<h";
    if (reader->chunks) form = "one of F3.1, B3.1, I3.1, W3.1, E3.1>q, E3.1>h, A3.1<q, R3.1>q, L3.1<q or L3.1<h";
    if (reader->slices) form = "an action with chunk and slice, such as F3.1:0, E3.1:0>q or L3.1:0<h";
    TextReader start = *reader;
    ActionKind kind = (ActionKind)(unsigned char)*reader->at;
    int microbatch = 0, chunk = 0, slice = 0, peer = SCHEDULE_NO_PEER;
    bool leaves = kind == ACTION_EVICT || kind == ACTION_RETURN, own = kind == ACTION_EVICT || kind == ACTION_LOAD;
    if (*reader->at == 0 || strchr(reader->chunks ? "FBIWEARL" : "FBEARL", *reader->at) == NULL)
        return text_unreadable_(&start, form);
    reader->at++;
    bool taken = text_take_number_(reader, &microbatch) &&
                 (!reader->chunks || (text_take_(reader, ".") && text_take_number_(reader, &chunk))) &&
                 (!reader->slices || (text_take_(reader, ":") && text_take_number_(reader, &slice)));
    if (taken && !action_computes(kind)) {
        taken = text_take_(reader, leaves ? ">" : "<");
        if (taken && own && text_take_(reader, "h")) peer = SCHEDULE_HOST;
        else taken = taken && text_take_number_(reader, &peer);
    }
    if (taken && (chunk > INT16_MAX || slice > INT16_MAX || peer > INT16_MAX))
        return error_set(reader->err, EXIT_USAGE, "schedule, line %d: numbers of chunks, slices and stages end at %d",
                         reader->line, INT16_MAX);
    if (!taken || !(isspace((unsigned char)*reader->at) || *reader->at == 0)) return text_unreadable_(&start, form);
    list_push(list, (Action){kind, slice, (int16_t)chunk, (int16_t)peer, microbatch});
    return 0;
}

static int text_read_stage_(TextReader *reader, int s, StageSchedule *stage) {
    int number;
    TextReader start = *reader;
    if (!text_take_(reader, "stage ") || !text_take_number_(reader, &number) || !text_take_(reader, ":") ||
        number != s) {
        char form[32];
        snprintf(form, sizeof form, "\"stage %d:\"", s);
        return text_unreadable_(&start, form);
    }
    ActionList list = {0};
    int status = 0;
    while (status == 0 && !take_line_end_(reader)) status = read_action_(reader, &list);
    list_finish(&list, stage);
    return status;
}

// Reads the stages' lines. Memory grows with the number of lines present, not with the number in the header.
static int read_stages_(TextReader *reader, Schedule *schedule, int promised) {
    for (int capacity = 0; schedule->stages < promised; schedule->stages++) {
        if (schedule->stages == capacity) {
            capacity = 2 * capacity + 8;
            schedule->stage = xrealloc(schedule->stage, (size_t)capacity * sizeof *schedule->stage);
        }
        schedule->stage[schedule->stages] = (StageSchedule){0};
        if (text_read_stage_(reader, schedule->stages, &schedule->stage[schedule->stages]) != 0) {
            free(schedule->stage[schedule->stages].actions);
            return -1;
        }
    }
    while (*reader->at != 0 && take_line_end_(reader)) {}
    return *reader->at == 0 ? 0 : text_unreadable_(reader, "the end of the schedule");
}

Schedule *schedule_parse(const char *text, Error *err) {
    Schedule *schedule = xcalloc(1, sizeof *schedule);
    schedule->chunks = schedule->slices = 1;
    schedule->edge_buffers = SCHEDULE_EDGE_BUFFERS;
    TextReader reader = {text, 1, false, false, err};
    int status = text_read_header_(&reader, schedule), promised = schedule->stages;
    schedule->stages = 0;
    if (status == 0) status = read_stages_(&reader, schedule, promised);
    if (status != 0) {
        schedule_free(schedule);
        return NULL;
    }
    schedule_finish(schedule, schedule->slots);
    return schedule;
}

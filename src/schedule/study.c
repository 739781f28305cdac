// A study needs no model and no device: the simulator runs the schedule with the same given times on every stage. The
// time of an action or of a transfer is the stage's divided by the number of chunks and slices, so 1F1B and a schedule
// with chunks compute and move the same amount.
#include "study.h"

#include "base/alloc.h"
#include "bpipe.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- times ----------------------------------------------------------------------------------------------------------

int study_times_parse(const char *text, StudyTimes *times, Error *err) {
    static const double LEAST = 1e-9, MOST = 1e9; // sums of such times are finite, and their ratios can be drawn
    *times = (StudyTimes){.forward = 1, .input = 1, .weight = 1};
    const struct {
        const char *name;
        double *value;
    } names[] = {{"F", &times->forward}, {"I", &times->input},         {"W", &times->weight},
                 {"B", &times->input},   {"message", &times->message}, {"transfer", &times->transfer}};
    enum { I = 1, W, B, NAMES = sizeof names / sizeof *names };
    bool given[NAMES] = {false};
    for (const char *at = text; at != NULL && *at != '\0'; at += strcspn(at, ","), at += *at == ',') {
        size_t length = strcspn(at, "=,");
        int i = 0;
        while (i < NAMES && (strlen(names[i].name) != length || strncmp(names[i].name, at, length) != 0)) i++;
        if (i == NAMES || at[length] != '=')
            return error_set(err, EXIT_USAGE,
                             "--times: %.*s is not one of F=, I=, W=, B=, message=, transfer=", (int)strcspn(at, ","),
                             at);
        const char *number = at + length + 1;
        char *end;
        double value = *names[i].value = strtod(number, &end);
        if (end == number || (*end != '\0' && *end != ',') || (value != 0 && !(value >= LEAST && value <= MOST)))
            return error_set(err, EXIT_USAGE, "--times: %s is %.*s; give 0, or a number from 1e-9 to 1e9",
                             names[i].name, (int)strcspn(number, ","), number);
        if (given[i]) return error_set(err, EXIT_USAGE, "--times: %s is given twice; give it once", names[i].name);
        given[i] = true;
        if (given[B] && (given[I] || given[W]))
            return error_set(err, EXIT_USAGE, "--times: B is I and W together; give B, or I and W");
        if (i == B) times->input = times->weight = value / 2;
    }
    if (times->forward + times->input + times->weight > 0) return 0;
    return error_set(err, EXIT_USAGE, "--times: F, I and W are all 0; give one of them a time");
}

// ---- simulation -----------------------------------------------------------------------------------------------------

Timeline *study_run(const Schedule *schedule, const StudyTimes *times, Error *err) {
    int count = schedule->stages * schedule->chunks * schedule->slices;
    int parts = schedule->chunks * schedule->slices; // number of parts of a stage's work, and of a microbatch's bundle
    double input = times->input / parts, weight = times->weight / parts;
    const double values[] = {times->forward / parts,  input + weight, input, weight,
                             times->transfer / parts, times->message};
    double *each = xcalloc((size_t)count * 6, sizeof *each);
    for (int i = 0; i < 6 * count; i++) each[i] = values[i / count];
    SimulateCosts costs = {.forward = each,
                           .backward = each + count,
                           .input = each + 2 * count,
                           .weight = each + 3 * count,
                           .transfer = each + 4 * count,
                           .edge = each + 5 * count};
    Timeline *timeline = simulate_run(schedule, &costs, err);
    free(each);
    return timeline;
}

void study_say(const Schedule *schedule, const Timeline *timeline, const StudyTimes *times, char *text, size_t size) {
    int fullest = 0;
    for (int s = 1; s < schedule->stages; s++) {
        const StageSchedule *stage = &schedule->stage[s], *most = &schedule->stage[fullest];
        if (stage->own_slots + stage->lent_slots > most->own_slots + most->lent_slots) fullest = s;
    }
    int slots = schedule->stage[fullest].own_slots + schedule->stage[fullest].lent_slots;
    char at[160], plain[32] = "", of[64] = "";
    bool same = times->forward == times->input && times->input == times->weight;
    snprintf(at, sizeof at, same ? "F=I=W=%g" : "F=%g I=%g W=%g", times->forward, times->input, times->weight);
    if (times->message > 0) text_add(at, sizeof at, " message=%g", times->message);
    if (times->transfer > 0) text_add(at, sizeof at, " transfer=%g", times->transfer);
    int parts = schedule->chunks * schedule->slices;
    if (parts > 1) snprintf(of, sizeof of, " = %.4g bundles", (double)slots / parts);
    Error ignored = {0};
    Schedule *rival = schedule->forward_only || schedule->microbatches < schedule->stages
                          ? NULL
                          : schedule_1f1b(schedule->stages, schedule->microbatches, &ignored);
    Timeline *compared = rival == NULL ? NULL : study_run(rival, times, &ignored);
    if (compared != NULL) snprintf(plain, sizeof plain, " (1F1B %.1f %%)", 100 * compared->bubble);
    snprintf(text, size, "cannot hang; at most %d slot%s%s (stage %d); idle %.1f %% at %s%s", slots,
             slots == 1 ? "" : "s", of, fullest, 100 * timeline->bubble, at, plain);
    timeline_free(compared);
    schedule_free(rival);
}

// ---- drawing --------------------------------------------------------------------------------------------------------

// One lane as text: for each column the character, and the kind of action that it belongs to.
typedef struct TextLane {
    char *text, *kinds;
    int columns;  // columns of the complete step
    double scale; // columns per unit of time
} TextLane;

// Fills a lane with the boxes of compute or of transfers: "F3--" over four columns.
static void lane_fill_(TextLane *lane, const Schedule *schedule, const Timeline *timeline, int s, bool computes) {
    memset(lane->text, ' ', (size_t)lane->columns);
    memset(lane->kinds, ' ', (size_t)lane->columns);
    for (int64_t i = 0; i < schedule->stage[s].count; i++) {
        Action action = schedule->stage[s].actions[i];
        if (action_computes(action.kind) != computes) continue;
        char name[ACTION_TEXT];
        int from = (int)lround(timeline->stage[s].times[i].begin * lane->scale);
        int to = (int)lround(timeline->stage[s].times[i].end * lane->scale);
        int letters = (int)strlen(action_text(schedule, action, name));
        if (to == from && from < lane->columns) to = from + 1; // short actions stay visible
        for (int at = from; at < to && at < lane->columns; at++) {
            lane->text[at] = at - from < letters ? name[at - from] : '-';
            lane->kinds[at] = (char)action.kind;
        }
    }
}

static void lane_print_(const TextLane *lane, int from, int to, bool colour, FILE *file) {
    static const char *const paint[128] = {['F'] = "44;97", ['B'] = "43;30", ['I'] = "43;30", ['W'] = "103;30",
                                           ['E'] = "42;30", ['A'] = "42;30", ['L'] = "45;97", ['R'] = "45;97"};
    for (int at = from; at < to; at++) {
        char kind = lane->kinds[at];
        if (colour && (at == from || kind != lane->kinds[at - 1]))
            fprintf(file, "\033[0%s%sm", kind == ' ' ? "" : ";", kind == ' ' ? "" : paint[(int)kind]);
        fputc(lane->text[at], file);
    }
    if (colour) fputs("\033[0m", file);
}

int study_draw(const Schedule *schedule, const Timeline *timeline, int width, bool colour, FILE *file) {
    enum { LABEL = 9, CUT = 5, LEAST = 40, MOST = 1 << 20 };
    char name[ACTION_TEXT];
    Action last = {ACTION_FORWARD, schedule->slices - 1, schedule->chunks - 1, SCHEDULE_NO_PEER,
                   schedule->microbatches - 1};
    double label = (double)strlen(action_text(schedule, last, name)) + 1;
    double shortest = timeline->makespan; // shortest compute action that takes time
    for (int s = 0; s < schedule->stages; s++)
        for (int64_t i = 0; i < schedule->stage[s].count; i++) {
            double length = timeline->stage[s].times[i].end - timeline->stage[s].times[i].begin;
            if (action_computes(schedule->stage[s].actions[i].kind) && length > 0) shortest = fmin(shortest, length);
        }
    int room = (width < LEAST ? LEAST : width) - LABEL;
    // Draws the complete step if it fits with legible labels; else its two ends, at the scale that the labels need.
    TextLane lane = {.scale = fmax(label / shortest, room / timeline->makespan)};
    if (timeline->makespan * lane.scale > MOST) lane.scale = MOST / timeline->makespan;
    lane.columns = (int)ceil(timeline->makespan * lane.scale - 1e-6); // not one more by rounding
    lane.text = xmalloc((size_t)lane.columns + 1);
    lane.kinds = xmalloc((size_t)lane.columns + 1);
    int half = lane.columns > room ? (room - CUT) / 2 : lane.columns;
    for (int row = 0; row < 2 * schedule->stages; row++) {
        int s = row / 2;
        bool computes = row % 2 == 0;
        if (!computes && !schedule_stage_moves(&schedule->stage[s])) continue;
        lane_fill_(&lane, schedule, timeline, s, computes);
        if (computes) fprintf(file, "stage %-*d", LABEL - 6, s);
        else fprintf(file, "%*s", LABEL, "");
        lane_print_(&lane, 0, half, colour, file);
        if (half < lane.columns) {
            fputs(" ... ", file);
            lane_print_(&lane, lane.columns - half, lane.columns, colour, file);
        }
        fputc('\n', file);
    }
    free_all(lane.text, lane.kinds);
    return ferror(file) ? -1 : 0;
}

// Light and dark mode, with colours that also differ for red-green colour-blind viewers. I is paler than B.
static const char svg_head_[] =
    "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"11\">\n"
    "<style>text{fill:#5f6d7a}.b{fill:#14202b;text-anchor:middle;font-size:9px}.F{fill:#4c8fd6}.B{fill:#ee9a3a}"
    ".I{fill:#f7c98f}.W{fill:#8f8540}.E,.A{fill:#1f8f63}.L,.R{fill:#8d4fb0}"
    "@media(prefers-color-scheme:dark){text{fill:#93a1ae}.b{fill:#14202b}}</style>\n";

int study_draw_svg(const Schedule *schedule, const Timeline *timeline, FILE *file) {
    enum { LEFT = 52, RIGHT = 12, LANE = 26, WIDTH = 1200, AXIS = 20, LETTER = 6 };
    double scale = (WIDTH - LEFT - RIGHT) / timeline->makespan;
    int height = schedule->stages * LANE + AXIS;
    fprintf(file, svg_head_, WIDTH, height);
    for (int s = 0; s < schedule->stages; s++) {
        fprintf(file, "<text x=\"4\" y=\"%d\">stage %d</text>\n", s * LANE + 13, s);
        for (int64_t i = 0; i < schedule->stage[s].count; i++) {
            Action action = schedule->stage[s].actions[i];
            double start = timeline->stage[s].times[i].begin, length = timeline->stage[s].times[i].end - start;
            bool computes = action_computes(action.kind);
            double x = LEFT + start * scale, y = s * LANE + (computes ? 1 : 17), w = fmax(length * scale - 0.3, 0.4);
            char name[ACTION_TEXT];
            action_text(schedule, action, name);
            fprintf(file, "<rect class=\"%c\" x=\"%.2f\" y=\"%g\" width=\"%.2f\" height=\"%d\"><title>",
                    (char)action.kind, x, y, w, computes ? 15 : 5);
            for (const char *c = name; *c != '\0'; c++)
                if (*c == '<' || *c == '>') fputs(*c == '<' ? "&lt;" : "&gt;", file);
                else fputc(*c, file);
            fprintf(file, "  %g to %g</title></rect>\n", start, start + length);
            if (computes && w > LETTER * (double)strlen(name))
                fprintf(file, "<text class=\"b\" x=\"%.2f\" y=\"%g\">%s</text>\n", x + w / 2, y + 11, name);
        }
    }
    double tick = pow(10, floor(log10(timeline->makespan / 2)));
    if (timeline->makespan / tick > 10) tick *= 2;
    for (double t = 0; t <= timeline->makespan; t += tick)
        fprintf(file, "<text x=\"%.2f\" y=\"%d\">%g</text>\n", LEFT + t * scale, height - 5, t);
    fputs("</svg>\n", file);
    return ferror(file) ? -1 : 0;
}

// Studies of schedules without a model: from given times of F, I, W, messages and transfers, computes how long a step
// takes and how much of it is idle, and draws the lanes of the stages as text or as SVG.
#pragma once

#include "simulate.h"

#include <stddef.h>

// Times, all in one unit. Compute times are for all layers of a stage. With c chunks and n slices, an action takes
// 1/(c*n) of this time, and so does the transfer of a slot, so that all schedules are comparable. B takes input +
// weight.
typedef struct StudyTimes {
    double forward, input, weight;
    double message;  // one message between neighbouring stages
    double transfer; // transfer of a microbatch's bundle on all chunks of a stage, in either direction
} StudyTimes;

// Reads "F=1,I=1,W=1,message=0.05,transfer=0.5". NULL or absent: F, I and W are 1, message and transfer 0. B=x sets I
// and W to x/2 each. -1 with err (code 2): a name that is unknown or given twice, a value that is neither 0 nor from
// 1e-9 to 1e9, or F, I and W all 0.
int study_times_parse(const char *text, StudyTimes *times, Error *err);

// Simulates one step. The caller owns the result (timeline_free). NULL with err (code 1) if the schedule deadlocks.
Timeline *study_run(const Schedule *schedule, const StudyTimes *times, Error *err);

// Writes a summary of a schedule that schedule_check has accepted, and of its simulation (study_run): "cannot hang; at
// most 5 slots (stage 0); idle 27.3 % at F=I=W=1 (1F1B 27.3 %)".
void study_say(const Schedule *schedule, const Timeline *timeline, const StudyTimes *times, char *text, size_t size);

// Draws a lane per stage, and below it a second lane if the stage has transfers, at most `width` columns wide. Boxes
// begin with the letter of their action. If the step needs more columns, its middle is left out. colour: write terminal
// escape sequences. -1 if the stream fails.
int study_draw(const Schedule *schedule, const Timeline *timeline, int width, bool colour, FILE *file);

// Draws all actions as an SVG picture that follows the viewer's light or dark mode. -1 if the stream fails.
int study_draw_svg(const Schedule *schedule, const Timeline *timeline, FILE *file);

// The timeline that the processes of a dry run share (clock.cc), from the inside. Its times are seconds.
//
//   clock.cc   hosts: who sleeps until when, and how time goes on
//   lines.cc   streams and events, the meetings of ranks, and the network of each node
#ifndef VIRTUAL_TIMELINE_H
#define VIRTUAL_TIMELINE_H

#include "clock.h"

#include <cmath>
#include <utility>

namespace virtual_gpu {

enum { STEPS = 2048, MARKS = 8192, WATCHES = 256, MEETINGS = 512, FLOWS = 512, MAIL = 128, GATHERINGS = 64 };
constexpr double NEVER = INFINITY;

enum StepKind { STEP_WORK, STEP_RECORD, STEP_WAIT, STEP_MEET };

struct Step {
    StepKind kind;
    int mark;
    double queued, seconds;
    Encounter encounter;
};

struct Line {
    bool used;
    int meeting; // one more than the number of that at which its first step waits; 0: none
    double time; // the end of all steps taken so far
    uint32_t first, last;
    Step steps[STEPS];
};

struct Mark {
    int users;
    bool passed;
    double time;
};

enum MeetingState { MEETING_FREE, MEETING_GATHERS, MEETING_FLOWS, MEETING_ENDS };

struct Meeting {
    MeetingState state;
    Encounter encounter;
    int arrived, left, flows;
    double latest, end;
    struct {
        int process, line;
    } members[RANKS];
};

// Bytes that leave a node.
struct Flow {
    bool used, under_way;
    int node, meeting;
    double start, bytes;
};

struct Letter {
    bool used;
    uint64_t channel, number;
    double arrives;
};

// A collective of the hosts'.
struct Gathering {
    bool used;
    uint64_t channel, number;
    int ranks, called, left;
    double latest;
};

enum WatchKind { WATCH_MARK, WATCH_LINE, WATCH_LETTER, WATCH_GATHERING, WATCH_BELL, WATCH_MPI };

struct Watch {
    WatchKind kind;
    int index;
    uint64_t channel, number;
};

enum HostState { HOST_RUNS, HOST_SLEEPS, HOST_ENDED };

struct Host {
    HostState state;
    bool joined;
    uint32_t wakes; // futex
    int watches;
    Watch watch[WATCHES];
    char what[200];
};

struct Timeline {
    pthread_mutex_t lock;
    bool made, deadlocked;
    int awake; // hosts that run, or have not come yet
    double now, network_time;
    Host hosts[PROCESSES];
    Gathering gatherings[GATHERINGS];
    Meeting meetings[MEETINGS];
    Flow flows[FLOWS];
    Letter mail[PROCESSES][PROCESSES][MAIL]; // from..to
    Mark marks[PROCESSES][MARKS];
    Line lines[PROCESSES][CONTEXTS];
};

// This process's part.
struct Here {
    Timeline *timeline;
    int process;
    std::string what; // the host's wait, for a deadlock's report
    void (*progress)(void);
    int next_mark;
    int rounds; // pauses since the host last woke, or made a call that changes something
};
extern Here here;

// The timeline; the first call joins it.
Timeline *timeline();
struct ClockLock : SharedLock {
    ClockLock() : SharedLock(&timeline()->lock) {}
};

// --- lines.cc. With the lock held.

// Lines that may go on, of any process.
typedef std::vector<std::pair<int, int>> Work;

// Takes all steps of these lines of which the time is known, and of the lines that this sets free.
void run_lines(Work work);
double idle_from(const Line *line); // NEVER: not known yet
double network_next();              // when a flow begins or ends; NEVER: none will
void network_move(double time);     // to that moment
void tell_lines(std::string &all);  // what this process's streams wait for

} // namespace virtual_gpu

#endif

// Internals of the timeline that the processes of a dry run share (clock.cc). Times are in seconds.
//
//   clock.cc   hosts: when each one wakes, and how time advances
//   lines.cc   streams and events, the meetings of ranks, and the network of each node
#pragma once

#include "virtual.h"

#include <cmath>
#include <utility>

namespace virtual_gpu {

enum {
    STEPS = 2048,
    BATCHES = 8,
    MARKS = 8192,
    WATCHES = 256,
    MEETINGS = 1024,
    FLOWS = 512,
    BUCKETS = 4096,
    GATHERINGS = 16
};
constexpr double NEVER = INFINITY;

// The latest values of a flag, and when each is seen.
struct FlagTimes {
    uint32_t count;
    struct {
        uint32_t value;
        double time;
    } latest[32];
};

// Blocks of a kernel that started together.
struct Batch {
    int blocks;
    double ends;
};

struct Line {
    int meeting; // 1 + index of the meeting at which its first step waits; 0: no meeting
    double time; // the end of all steps taken so far; the first step begins no earlier
    uint32_t first, last;
    // State of the first step while it is on the device. late: multiprocessors that it still needs. batch: its started
    // blocks. left: for a kernel that shares multiprocessors, the seconds that were left at `since`.
    bool on;
    int late, batches;
    Batch batch[BATCHES];
    double left, since;
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
    double latest, end, latencies; // after its last flow
    double stays;                  // of an exchange: the most bytes that a rank sends inside its node
    struct {
        int process, line, rank;
        int64_t away;
    } members[RANKS];
};

// Bytes that leave a node.
struct Flow {
    bool used, under_way;
    int node, meeting;
    double start, bytes;
};

// A message between hosts, which one host calls and the other awaits, or a collective of hosts.
struct Gathering {
    bool used;
    uint64_t channel, number;
    int ranks, called, left;
    double latest, takes; // seconds from the latest call on
};

enum WatchKind { WATCH_MARK, WATCH_LINE, WATCH_GATHERING, WATCH_BELL, WATCH_MPI, WATCH_ROOM };

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
};

struct Timeline {
    pthread_mutex_t lock;
    bool made, deadlocked;
    int awake; // hosts that run or have not joined yet
    double now, network_time;
    double moment;          // time that the devices have reached
    bool news;              // an event that a host watches came since this was last cleared
    double next[PROCESSES]; // time of the device's next change; NEVER: no change by itself
    int held[PROCESSES];    // multiprocessors
    Host hosts[PROCESSES];
    Gathering gatherings[BUCKETS][GATHERINGS]; // by their channel and number
    Meeting meetings[MEETINGS];
    Flow flows[FLOWS];
    FlagTimes flags[FLAGS];
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

// --- clock.cc. With the lock held.
void watch(WatchKind kind, int index, uint64_t channel, uint64_t number); // it ends the host's next sleep
void sleep_host(bool physical);

// --- lines.cc. With the lock held.

// Lines that may be able to advance, as (process, line).
typedef std::vector<std::pair<int, int>> Work;

// Executes all steps of these lines with a known time, then the steps of the lines that they unblock.
void run_lines(Work work);
double idle_from(const Line *line); // NEVER: not known yet
bool has_room(const Line *line);    // for another launch
double network_next();              // when a flow begins or ends; NEVER: none will
void network_move(double time);     // to that moment
double devices_next();              // when something ends on a device
void devices_move(double time);
void tell_lines(std::string &all); // appends a report of the waits of this process's streams

} // namespace virtual_gpu

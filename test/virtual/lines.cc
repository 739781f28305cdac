// Streams as lines of steps, the meetings at which ranks wait for each other, and the network that flows share; see
// clock.cc. All of it lies in memory that the processes share, so that the process that learns a step's time
// takes all steps that waited for it, in any process: streams need no threads.
#include "timeline.h"

#include <algorithm>

namespace virtual_gpu {

namespace {

const Cost &cost() {
    return dry_figures().cost;
}

Mark *mark_of(int process, int mark) {
    return &timeline()->marks[process][mark];
}

void let_go(int process, int mark) {
    mark_of(process, mark)->users--;
}

int node_of(const Encounter &e, int rank) {
    return job()->comms[e.comm].node[rank];
}

void add_flow(int meeting, int node, double start, double bytes) {
    for (Flow &flow : timeline()->flows)
        if (!flow.used) {
            flow = {true, false, node, meeting, start, bytes};
            timeline()->meetings[meeting].flows++;
            return;
        }
    defect("more than %d transfers between nodes at a time", FLOWS);
}

// The seconds of an encounter inside a node; flows for what leaves one.
void begin_meeting(int number) {
    Meeting *m = &timeline()->meetings[number];
    const Encounter &e = m->encounter;
    bool message = e.target >= 0;
    double bytes = (double)e.bytes * (message ? 1 : (double)e.rounds * (e.size - 1) / e.size);
    std::vector<int> nodes; // that bytes leave
    for (int r = 0; r < e.size; r++) {
        if (message && r != e.source && r != e.target) continue;
        int node = node_of(e, r);
        if (std::find(nodes.begin(), nodes.end(), node) == nodes.end()) nodes.push_back(node);
    }
    if (nodes.size() == 1) {
        m->end = m->latest + (message ? cost_message(&cost(), bytes, cost().pair)
                                      : cost_collective(&cost(), e.collective, (double)e.bytes, e.size));
        m->state = MEETING_ENDS;
        return;
    }
    m->state = MEETING_FLOWS;
    m->end = m->latest + bytes / (message ? cost().pair : cost().tensor); // no sooner than inside a node
    if (message) return add_flow(number, node_of(e, e.source), m->latest, bytes);
    for (int node : nodes) add_flow(number, node, m->latest, bytes);
}

void wake_members(const Meeting *m, Work &work) {
    for (int i = 0; i < m->arrived; i++) work.push_back({m->members[i].process, m->members[i].line});
}

void check_agreement(const Meeting *m, const Encounter &e) {
    const Encounter &first = m->encounter;
    if (first.kind != e.kind || first.bytes != e.bytes || first.count != e.count)
        defect("two ranks of a communicator call differently: %lld elements in all %lld bytes, and %lld in %lld",
               (long long)first.count, (long long)first.bytes, (long long)e.count, (long long)e.bytes);
}

int members_of(const Encounter &e) {
    return e.target >= 0 ? 2 : e.size;
}

// The line comes to a meeting at `time`; returns its number.
int arrive(int process, int line, const Encounter &e, double time, Work &work) {
    int found = -1, free = -1;
    for (int i = 0; i < MEETINGS && found < 0; i++) {
        const Meeting &m = timeline()->meetings[i];
        if (m.state == MEETING_FREE && free < 0) free = i;
        if (m.state == MEETING_GATHERS && m.encounter.same(e)) found = i;
    }
    if (found < 0 && free < 0) defect("more than %d messages under way", MEETINGS);
    if (found < 0) {
        found = free;
        timeline()->meetings[found] = Meeting();
        timeline()->meetings[found].encounter = e;
        timeline()->meetings[found].state = MEETING_GATHERS;
    }
    Meeting *m = &timeline()->meetings[found];
    check_agreement(m, e);
    m->latest = m->arrived == 0 ? time : std::max(m->latest, time);
    m->members[m->arrived].process = process, m->members[m->arrived].line = line;
    m->arrived++;
    if (m->arrived < members_of(e)) return found;
    begin_meeting(found);
    if (m->state == MEETING_ENDS) wake_members(m, work);
    return found;
}

void take_leave(int number) {
    Meeting *m = &timeline()->meetings[number];
    if (++m->left == members_of(m->encounter)) m->state = MEETING_FREE;
}

// Takes the first step of a line. False: what it waits for is not known yet.
bool take_step(int process, int number, Work &work) {
    Line *line = &timeline()->lines[process][number];
    const Step &step = line->steps[line->first % STEPS];
    double start = std::max(line->time, step.queued);
    Mark *mark = step.mark < 0 ? nullptr : mark_of(process, step.mark);
    switch (step.kind) {
    case STEP_WORK:
        line->time = start + step.seconds;
        break;
    case STEP_RECORD:
        line->time = mark->time = start;
        mark->passed = true;
        let_go(process, step.mark);
        for (int other = 0; other < CONTEXTS; other++)
            if (timeline()->lines[process][other].first != timeline()->lines[process][other].last)
                work.push_back({process, other});
        break;
    case STEP_WAIT:
        if (!mark->passed) return false;
        line->time = std::max(start, mark->time);
        let_go(process, step.mark);
        break;
    case STEP_MEET:
        if (line->meeting == 0) line->meeting = 1 + arrive(process, number, step.encounter, start, work);
        if (timeline()->meetings[line->meeting - 1].state != MEETING_ENDS) return false;
        line->time = timeline()->meetings[line->meeting - 1].end;
        take_leave(line->meeting - 1);
        line->meeting = 0;
        break;
    }
    line->first++;
    return true;
}

} // namespace

double idle_from(const Line *line) {
    return line->first == line->last ? line->time : NEVER;
}

void run_lines(Work work) {
    while (!work.empty()) {
        auto [process, number] = work.back();
        work.pop_back();
        const Line *line = &timeline()->lines[process][number];
        while (line->first != line->last && take_step(process, number, work)) continue;
    }
}

// --- the network of each node

static int flows_of(int node) {
    int count = 0;
    for (const Flow &flow : timeline()->flows) count += flow.used && flow.under_way && flow.node == node;
    return count;
}

// When the next flow begins or ends.
double network_next() {
    double next = NEVER;
    for (const Flow &flow : timeline()->flows) {
        if (!flow.used) continue;
        double ends = timeline()->network_time + flow.bytes * flows_of(flow.node) / cost().network;
        next = std::min(next, flow.under_way ? ends : flow.start);
    }
    return next;
}

// Moves all flows to `time`, at which at least one begins or ends.
void network_move(double time) {
    Timeline *t = timeline();
    double passed = std::max(0.0, time - t->network_time);
    int under_way[PROCESSES] = {0};
    for (const Flow &flow : t->flows)
        if (flow.used && flow.under_way) under_way[flow.node]++;
    t->network_time = std::max(time, t->network_time);
    Work work;
    for (Flow &flow : t->flows) {
        if (!flow.used) continue;
        if (flow.under_way) flow.bytes -= passed * cost().network / under_way[flow.node];
        if (!flow.under_way && flow.start <= time) flow.under_way = true;
        if (!flow.under_way || flow.bytes > 1e-9 * cost().network) continue; // a nanosecond's worth is rounding
        flow.used = false;
        Meeting *m = &t->meetings[flow.meeting];
        if (--m->flows > 0) continue;
        bool message = m->encounter.target >= 0;
        double rounds = message ? 1 : m->encounter.rounds * ceil(log2(m->encounter.size));
        m->end = std::max(m->end, time) + rounds * cost().latency;
        m->state = MEETING_ENDS;
        wake_members(m, work);
    }
    run_lines(work);
}

// --- reports

static void tell_line(int number, std::string &all) {
    const Line *line = &timeline()->lines[here.process][number];
    if (line->first == line->last) return;
    const Step &step = line->steps[line->first % STEPS];
    std::string waits = "an event that another stream has not reached";
    if (step.kind == STEP_MEET)
        waits = text("the other ranks of %s of %lld bytes", step.encounter.target < 0 ? "a collective" : "a message",
                     (long long)step.encounter.bytes);
    all +=
        text(" %s waits for %s, %u more after it.", stream_name(number), waits.c_str(), line->last - line->first - 1);
}

void tell_lines(std::string &all) {
    for (int line = 1; line < CONTEXTS; line++) tell_line(line, all);
}

// --- what streams are given

static void give(int line, Step step) {
    ClockLock lock;
    Line *l = &timeline()->lines[here.process][line];
    step.queued = timeline()->now;
    if (l->last - l->first == STEPS) defect("more than %d operations wait on %s", STEPS, stream_name(line));
    l->steps[l->last++ % STEPS] = step;
    run_lines({{here.process, line}});
    here.rounds = 0;
    progressed();
}

int mark_make() {
    ClockLock lock;
    for (int tries = 0; tries < MARKS; tries++) {
        int mark = here.next_mark++ % MARKS;
        Mark *m = mark_of(here.process, mark);
        if (m->users > 0) continue;
        *m = {1, false, 0};
        return mark;
    }
    defect("more than %d events are recorded at a time", MARKS);
}

void mark_hold(int mark) {
    ClockLock lock;
    mark_of(here.process, mark)->users++;
}

void mark_release(int mark) {
    ClockLock lock;
    let_go(here.process, mark);
}

double mark_time(int mark) {
    ClockLock lock;
    return mark_of(here.process, mark)->time;
}

void line_open(int line) {
    ClockLock lock;
    timeline()->lines[here.process][line].used = true;
}

void line_close(int line) {
    ClockLock lock;
    timeline()->lines[here.process][line].used = false;
}

void line_work(int line, double seconds) {
    give(line, {STEP_WORK, -1, 0, seconds, {}});
}

void line_record(int line, int mark) {
    mark_hold(mark);
    give(line, {STEP_RECORD, mark, 0, 0, {}});
}

void line_wait(int line, int mark) {
    mark_hold(mark);
    give(line, {STEP_WAIT, mark, 0, 0, {}});
}

void line_meet(int line, const Encounter &encounter) {
    give(line, {STEP_MEET, -1, 0, 0, encounter});
}

} // namespace virtual_gpu

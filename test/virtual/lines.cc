// Streams as lines of steps, the meetings at which ranks wait for each other, and the network that flows share; see
// clock.cc. This state is in memory that the processes share. The process that determines a step's time also executes
// the steps that waited for it, in any process, so streams need no threads.
#include "timeline.h"

#include <algorithm>
#include <map>

namespace virtual_gpu {

namespace {

const Cost &cost() { return dry_figures().cost; }

Mark *mark_of(int process, int mark) { return &timeline()->marks[process][mark]; }

void let_go(int process, int mark) { mark_of(process, mark)->users--; }

int node_of(const Encounter &e, int rank) { return job()->comms[e.comm].node[rank]; }

void add_flow(int meeting, int node, double start, double bytes) {
    for (Flow &flow : timeline()->flows)
        if (!flow.used) {
            flow = {true, false, node, meeting, start, bytes};
            timeline()->meetings[meeting].flows++;
            return;
        }
    defect("more than %d transfers between nodes at a time", FLOWS);
}

// Starts a meeting that all its ranks have reached. Sets its end if it is inside a node, else adds flows: a message's,
// a ring's, which leaves each node once, or those of all ranks' blocks for other nodes.
void begin_meeting(int number) {
    Meeting *m = &timeline()->meetings[number];
    const Encounter &e = m->encounter;
    bool message = e.target >= 0, exchange = e.collective == COST_EXCHANGE;
    std::map<int, int> ranks; // of each node
    for (int r = 0; r < e.size; r++)
        if (!message || r == e.source || r == e.target) ranks[node_of(e, r)]++;
    double times = 1, sent = (double)e.bytes * (message ? 1 : (double)e.rounds * (e.size - 1) / e.size);
    for (int i = 0; i < m->arrived; i++) times *= slower("links", m->members[i].process);
    int near = 0;
    for (auto [node, count] : ranks) near = std::max(near, count);
    // No sooner than inside a node.
    double inside = exchange             ? cost_exchange(&cost(), m->stays, near, 0, 1)
                    : ranks.size() > 1   ? sent / (message ? cost().pair : cost().tensor)
                    : message            ? cost_message(&cost(), sent, cost().pair)
                                         : cost_collective(&cost(), e.collective, (double)e.bytes, e.size);
    m->end = m->latest + times * inside;
    m->state = MEETING_ENDS;
    if (ranks.size() == 1 || (exchange && e.away == 0)) return;
    m->state = MEETING_FLOWS;
    for (auto [node, count] : ranks) {
        if (message && node != node_of(e, e.source)) continue;
        double away = 0; // the ranks of an exchange send different amounts
        for (int i = 0; i < m->arrived && exchange; i++)
            if (node_of(e, m->members[i].rank) == node) away += (double)m->members[i].away;
        add_flow(number, node, m->latest, times * (exchange ? cost_exchange_flow(away) : sent));
    }
    const int nodes = (int)ranks.size();
    m->latencies = message || exchange ? cost_message(&cost(), 0, 1)
                                       : cost_collective_between(&cost(), e.collective, 0, e.size, nodes, 1);
}

void wake_members(const Meeting *m, Work &work) {
    for (int i = 0; i < m->arrived; i++) work.push_back({m->members[i].process, m->members[i].line});
}

void check_agreement(const Meeting *m, const Encounter &e) {
    const Encounter &first = m->encounter;
    bool apart = e.collective != COST_EXCHANGE && (first.bytes != e.bytes || first.count != e.count);
    if (first.kind != e.kind || apart)
        defect("two ranks of a communicator call differently: %lld elements in all %lld bytes, and %lld in %lld",
               (long long)first.count, (long long)first.bytes, (long long)e.count, (long long)e.bytes);
}

int members_of(const Encounter &e) { return e.target >= 0 ? 2 : e.size; }

// Lets the line arrive at its meeting at `time`. Returns the meeting's index.
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
    m->encounter.away = std::max(m->encounter.away, e.away);
    m->stays = std::max(m->stays, (double)e.bytes * (e.size - 1) / e.size - (double)e.away);
    m->latest = m->arrived == 0 ? time : std::max(m->latest, time);
    m->members[m->arrived] = {process, line, e.source, e.away};
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

// --- the multiprocessors of a device
//
// Kernels get multiprocessors in the order in which they become ready. Persistent kernels and NCCL's own them until
// they end, so a kernel that is ready a moment later may have to wait. NCCL's kernels start only with all their blocks.
// A product may start with some of its blocks. Each later block still has its full share of the work, and takes as long
// as the first ones. When blocks end, a kernel that has begun gets the multiprocessors first.

// Seconds from an event to the work of another stream that waits for it. The next kernel of its own stream is sooner.
constexpr double HOP = 1e-7;
// GPCs of a device. The blocks of a cluster share one (CUDA C++ Programming Guide, "Thread Block Clusters").
enum { GPCS = 8 };

int multiprocessors() { return dry_figures().multiprocessors; }

const Step &head(const Line *line) { return line->steps[line->first % STEPS]; }

bool pending(const Line *line) { return line->first != line->last; }

// Returns the speed of a kernel that shares multiprocessors: the fraction of the device that other kernels leave free.
double rate(int process) {
    return std::max(1.0, (double)multiprocessors() - timeline()->held[process]) / multiprocessors();
}

bool shares(const Line *line) {
    return line->on && head(line).kind == STEP_WORK && head(line).sharing == SHARING_SPREAD;
}

void hold(int process, int blocks) {
    Timeline *t = timeline();
    for (Line &line : t->lines[process])
        if (shares(&line)) line.left -= (t->moment - line.since) * rate(process), line.since = t->moment;
    t->held[process] += blocks;
}

// Returns the multiprocessors that a kernel can get now. For clusters, counts only complete clusters in each GPC.
int room_for(int process, const Step &step) {
    int free = multiprocessors() - timeline()->held[process], cluster = step.encounter.cluster;
    return step.kind != STEP_MEET || cluster <= 1 ? free : free / GPCS / cluster * cluster * GPCS;
}

void add_batch(Line *line, int blocks, double ends) {
    if (line->batches == BATCHES) blocks += line->batch[--line->batches].blocks;
    line->batch[line->batches++] = {blocks, ends};
}

// Gives a kernel on the device the multiprocessors that it can get.
void take_room(int process, int number, Work &work) {
    Line *line = &timeline()->lines[process][number];
    const Step &step = head(line);
    int blocks = std::min(line->late, room_for(process, step));
    if (blocks <= 0) return;
    hold(process, blocks);
    line->late -= blocks;
    if (step.kind == STEP_WORK) return add_batch(line, blocks, timeline()->moment + step.seconds);
    if (line->late == 0) line->meeting = 1 + arrive(process, number, step.encounter, timeline()->moment, work);
}

// Returns whether a gets multiprocessors before b.
bool before(const Line *a, const Line *b) {
    if ((a->batches > 0) != (b->batches > 0)) return a->batches > 0;
    return a->time < b->time;
}

void share_room(int process, Work &work) {
    std::vector<int> waiting;
    Line *lines = timeline()->lines[process];
    for (int i = 0; i < CONTEXTS; i++)
        if (lines[i].on && lines[i].late > 0) waiting.push_back(i);
    std::stable_sort(waiting.begin(), waiting.end(), [=](int a, int b) { return before(&lines[a], &lines[b]); });
    for (int i : waiting) take_room(process, i, work);
}

void launch(int process, Line *line, const Step &step, Work &work) {
    double moment = timeline()->moment;
    line->on = true, line->late = line->batches = 0;
    line->left = step.seconds, line->since = moment, line->time = moment;
    if (step.kind == STEP_MEET || step.sharing == SHARING_OWNS) {
        line->late = step.blocks;
        share_room(process, work);
    } else if (step.sharing == SHARING_NONE) {
        add_batch(line, 0, moment + step.seconds);
    }
}

// Returns when the line's first step, or some of its blocks, will end; NEVER: not known.
double ends_at(int process, const Line *line) {
    if (head(line).kind == STEP_MEET) {
        const Meeting *m = line->meeting == 0 ? nullptr : &timeline()->meetings[line->meeting - 1];
        return m == nullptr || m->state != MEETING_ENDS ? NEVER : m->end;
    }
    if (shares(line)) return line->since + line->left / rate(process);
    double first = NEVER;
    for (int i = 0; i < line->batches; i++) first = std::min(first, line->batch[i].ends);
    return first;
}

// Returns whether the first step, which is on the device, has ended. Frees the multiprocessors of its ended blocks.
bool has_ended(int process, Line *line, Work &work) {
    double moment = timeline()->moment;
    int freed = 0;
    if (ends_at(process, line) > moment) return false;
    if (head(line).kind == STEP_MEET) {
        freed = head(line).blocks;
        take_leave(line->meeting - 1);
        line->meeting = 0;
    }
    int kept = 0;
    for (int i = 0; i < line->batches; i++)
        if (line->batch[i].ends <= moment) freed += line->batch[i].blocks;
        else line->batch[kept++] = line->batch[i];
    line->batches = kept;
    bool ended = line->batches == 0 && line->late == 0;
    if (ended) line->on = false;
    hold(process, -freed);
    share_room(process, work);
    return ended;
}

// Sets `news` if the host, which may be asleep, watches this event.
void tell_host(int process, WatchKind kind, int index) {
    const Host &host = timeline()->hosts[process];
    for (int i = 0; i < host.watches; i++)
        if (host.watch[i].kind == kind && host.watch[i].index == index) timeline()->news = true;
}

void raise_flag(const Step &step, double time, Work &work) {
    FlagTimes *flag = &timeline()->flags[step.flag];
    flag->latest[flag->count++ % 32] = {step.value, time + cost_flag(&cost())};
    int owner = job()->flags[step.flag].owner - 1;
    for (int other = 0; other < CONTEXTS; other++)
        if (pending(&timeline()->lines[owner][other])) work.push_back({owner, other});
}

// Returns when the flag reaches the step's value; NEVER: not known yet.
double flag_time(const Step &step) {
    const FlagTimes *flag = &timeline()->flags[step.flag];
    double time = NEVER;
    for (uint32_t i = 0; i < flag->count && i < 32; i++)
        if ((int32_t)(flag->latest[i].value - step.value) >= 0) time = std::min(time, flag->latest[i].time);
    return time;
}

// Executes the first step of a line. Returns false if it cannot begin or end yet.
bool take_step(int process, int number, Work &work) {
    Timeline *t = timeline();
    Line *line = &t->lines[process][number];
    const Step &step = head(line);
    Mark *mark = step.mark < 0 ? nullptr : mark_of(process, step.mark);
    if (line->time > t->moment) return false;
    switch (step.kind) {
    case STEP_RECORD:
        mark->time = t->moment;
        mark->passed = true;
        tell_host(process, WATCH_MARK, step.mark);
        for (int other = 0; other < CONTEXTS; other++)
            if (pending(&t->lines[process][other])) work.push_back({process, other});
        let_go(process, step.mark);
        line->time = t->moment;
        break;
    case STEP_WAIT:
        if (!mark->passed) return false;
        line->time = std::max(t->moment, mark->time + HOP);
        let_go(process, step.mark);
        break;
    case STEP_WORK:
    case STEP_MEET:
        if (!line->on) launch(process, line, step, work);
        if (!has_ended(process, line, work)) return false;
        line->time = t->moment;
        break;
    case STEP_RAISE:
        line->time = t->moment + step.seconds;
        raise_flag(step, line->time, work);
        break;
    case STEP_AWAIT:
        if (flag_time(step) == NEVER) return false;
        line->time = std::max(t->moment, flag_time(step));
        break;
    }
    line->first++;
    if (!pending(line)) tell_host(process, WATCH_LINE, number);
    if (has_room(line)) tell_host(process, WATCH_ROOM, number);
    return true;
}

double next_of(int process) {
    Timeline *t = timeline();
    double next = NEVER;
    for (const Line &line : t->lines[process]) {
        if (!pending(&line)) continue;
        if (line.on) next = std::min(next, ends_at(process, &line));
        if (!line.on && line.time > t->moment) next = std::min(next, line.time);
    }
    return next;
}

} // namespace

double idle_from(const Line *line) { return pending(line) ? NEVER : line->time; }

bool has_room(const Line *line) { return line->last - line->first < (unsigned)options().launches; }

void run_lines(Work work) {
    bool changed[PROCESSES] = {};
    while (!work.empty()) {
        auto [process, number] = work.back();
        work.pop_back();
        changed[process] = true;
        const Line *line = &timeline()->lines[process][number];
        while (pending(line) && take_step(process, number, work)) continue;
    }
    for (int p = 0; p < PROCESSES; p++)
        if (changed[p]) timeline()->next[p] = next_of(p);
}

double devices_next() { return *std::min_element(timeline()->next, timeline()->next + PROCESSES); }

void devices_move(double time) {
    Timeline *t = timeline();
    Work work;
    t->moment = std::max(t->moment, time);
    for (int p = 0; p < PROCESSES; p++)
        for (int i = 0; t->next[p] <= t->moment && i < CONTEXTS; i++)
            if (pending(&t->lines[p][i])) work.push_back({p, i});
    run_lines(work);
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
    t->moment = std::max(time, t->moment);
    Work work;
    for (Flow &flow : t->flows) {
        if (!flow.used) continue;
        if (flow.under_way) flow.bytes -= passed * cost().network / under_way[flow.node];
        if (!flow.under_way && flow.start <= time) flow.under_way = true;
        if (!flow.under_way || flow.bytes > 1e-9 * cost().network) continue; // a nanosecond's worth is rounding
        flow.used = false;
        Meeting *m = &t->meetings[flow.meeting];
        if (--m->flows > 0) continue;
        m->end = std::max(m->end, time) + m->latencies;
        m->state = MEETING_ENDS;
        wake_members(m, work);
    }
    run_lines(work);
}

// --- reports

void tell_lines(std::string &all) {
    for (int number = 1; number < CONTEXTS; number++) {
        const Line *line = &timeline()->lines[here.process][number];
        if (!pending(line)) continue;
        const Step &step = head(line);
        std::string waits = "an event that another stream has not reached";
        if (step.kind == STEP_AWAIT) waits = "a flag of another rank";
        if (step.kind == STEP_MEET)
            waits = text("the other ranks of %s of %lld bytes",
                         step.encounter.target < 0 ? "a collective" : "a message", (long long)step.encounter.bytes);
        all += text(" %s waits for %s, %u more after it.", stream_name(number), waits.c_str(),
                    line->last - line->first - 1);
    }
}

// --- what streams are given

// "Launches ... block if the number of launches in progress is at its limit", about a thousand (CUDA C++ Programming
// Guide, "Asynchronous Concurrent Execution").
void line_add(int line, const Step &step) {
    ClockLock lock;
    Line *l = &timeline()->lines[here.process][line];
    while (!has_room(l)) {
        here.what = text("room for another launch on %s", stream_name(line));
        watch(WATCH_ROOM, line, 0, 0);
        sleep_host(false);
    }
    timeline()->moment = std::max(timeline()->moment, timeline()->now);
    if (step.mark >= 0) mark_of(here.process, step.mark)->users++;
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

void mark_release(int mark) {
    ClockLock lock;
    let_go(here.process, mark);
}

double mark_time(int mark) {
    ClockLock lock;
    return mark_of(here.process, mark)->time;
}

} // namespace virtual_gpu

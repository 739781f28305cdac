// Supervisors and strangers at the coordinator's door, and the coordinator's conclusions. Complete jobs:
// test_faults.py.
#include "base/clock.h"
#include "ranks/coordinator.h"
#include "unit.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RANKS = 3 };

static const Job local_job = {
    .ranks = RANKS, .patience = {10, 600}, .one_host = true, .remedy = {"the job ends; go on", "saved"}};
static const Log log_to = {"test", -1, -1, LOG_NORMAL};

static Coordinator *coordinator; // over TCP on the loopback: rank 0 is in this process

static int open_(void **state) {
    (void)state;
    coordinator = assert_made(coordinator_open(&local_job, NULL, &unit_error));
    return 0;
}

static int close_(void **state) {
    (void)state;
    coordinator_close(coordinator);
    return 0;
}

static Message report_(int rank) {
    return (Message){.token = coordinator_invitation(coordinator)->supervisor,
                     .rank = rank,
                     .end = -1,
                     .status = {.stage = rank, .wait_stage = -1, .action = "step 12 F3"}};
}

#define AutoConnection __attribute__((cleanup(connection_close))) Connection
static Connection call_(void) {
    Connection line = connection_open_tcp(&coordinator_invitation(coordinator)->address[0]);
    assert_true(line.file >= 0);
    return line;
}

// Runs the coordinator until the line has an answer or is closed, or for `tries` milliseconds.
static Received answer_(Connection *line, Message *answer, int tries) {
    Received received = RECEIVED_NOTHING;
    for (int i = 0; i < tries && received == RECEIVED_NOTHING; i++) {
        coordinator_take(coordinator, clock_seconds());
        received = connection_receive(line, answer);
        if (received == RECEIVED_NOTHING) usleep(1000);
    }
    return received;
}

enum { AWHILE = 20000 };

static Received ask_(Connection *line, const Message *report, Message *answer) {
    return connection_send(line, report) ? answer_(line, answer, AWHILE) : RECEIVED_NOTHING;
}

// --- connections

TEST_BETWEEN(a_report_is_heard_and_answered, open_, close_) {
    AutoConnection line = call_();
    Message answer, report = report_(1);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(ask_(&line, &report, &answer), RECEIVED_MESSAGE);
        assert_true(answer.token == coordinator_invitation(coordinator)->coordinator && answer.rank == 1);
        assert_true(answer.end == -1 && coordinator_open_ranks(coordinator) == 1);
    }
    assert_string_equal(coordinator_status(coordinator, 1)->action, "step 12 F3");
}

TEST_BETWEEN(who_does_not_know_the_token_is_disconnected, open_, close_) {
    Connection line = call_();
    Message answer, report = report_(1);
    report.token ^= 1;
    assert_int_equal(ask_(&line, &report, &answer), RECEIVED_END);
    int first;
    assert_int_equal(coordinator_unknown(coordinator, &first), 2);
    assert_int_equal(first, 1);
}

TEST_BETWEEN(a_field_out_of_range_is_not_heard, open_, close_) {
    Message answer;
    for (int which = 0; which < 4; which++) {
        Connection line = call_();
        Message bad = report_(1);
        int32_t *const fields[] = {&bad.rank, &bad.status.stage, &bad.status.ending, &bad.status.code};
        *fields[which] = 1 << 30;
        assert_int_equal(ask_(&line, &bad, &answer), RECEIVED_END);
    }
    assert_int_equal(coordinator_open_ranks(coordinator), 0);
}

TEST_BETWEEN(a_rank_connects_once, open_, close_) {
    Connection first = call_(), second = call_();
    Message answer, report = report_(1);
    assert_int_equal(ask_(&first, &report, &answer), RECEIVED_MESSAGE);
    assert_int_equal(ask_(&second, &report, &answer), RECEIVED_END);
    assert_int_equal(ask_(&first, &report, &answer), RECEIVED_MESSAGE);
    connection_close(&first);
}

TEST_BETWEEN(a_message_may_arrive_in_pieces, open_, close_) {
    AutoConnection line = call_();
    Message answer, report = report_(2);
    for (size_t sent = 0; sent < sizeof report; sent += 100) {
        size_t left = sizeof report - sent;
        assert_int_equal(answer_(&line, &answer, 2), RECEIVED_NOTHING);
        assert_true(send(line.file, (char *)&report + sent, left < 100 ? left : 100, 0) > 0);
    }
    assert_int_equal(answer_(&line, &answer, AWHILE), RECEIVED_MESSAGE);
}

// Another user opens connections, and says nothing, or something else, or a part of it. A rank that is connected is
// answered at once, and one that connects meanwhile gets through; once all are connected nobody listens.
TEST_BETWEEN(a_flood_of_strangers_keeps_no_rank_out, open_, close_) {
    enum { FLOOD = 400 };
    struct rlimit limit = {FLOOD + 200, FLOOD + 200}, before;
    Connection line = call_(), strangers[FLOOD];
    Message answer, report = report_(1), junk = {0};
    getrlimit(RLIMIT_NOFILE, &before);
    limit.rlim_max = before.rlim_max;
    if (before.rlim_cur < limit.rlim_cur && setrlimit(RLIMIT_NOFILE, &limit) != 0) skip();
    assert_int_equal(ask_(&line, &report, &answer), RECEIVED_MESSAGE);
    for (int i = 0; i < FLOOD; i++) {
        strangers[i] = call_();
        if (i % 3 > 0) send(strangers[i].file, &junk, i % 3 == 1 ? sizeof junk : 1, MSG_NOSIGNAL);
    }
    assert_int_equal(ask_(&line, &report, &answer), RECEIVED_MESSAGE);
    Connection other = call_();
    report = report_(2);
    assert_int_equal(ask_(&other, &report, &answer), RECEIVED_MESSAGE);
    assert_int_equal(coordinator_open_ranks(coordinator), 2);
    Connection late = call_();
    assert_int_equal(ask_(&late, &report, &answer), RECEIVED_END);
    assert_int_equal(ask_(&other, &report, &answer), RECEIVED_MESSAGE);
    for (int i = 0; i < FLOOD; i++) connection_close(&strangers[i]);
    connection_close(&line), connection_close(&other);
}

TEST_BETWEEN(a_connection_that_ends_is_a_death_and_the_first_is_named, open_, close_) {
    Message answer, report;
    Connection lines[RANKS];
    for (int rank = 1; rank < RANKS; rank++) {
        lines[rank] = call_();
        report = report_(rank);
        assert_int_equal(ask_(&lines[rank], &report, &answer), RECEIVED_MESSAGE);
    }
    assert_false(coordinator_look(coordinator, &log_to, clock_seconds()));
    connection_close(&lines[2]), connection_close(&lines[1]);
    for (int i = 0; i < AWHILE && coordinator_open_ranks(coordinator) > 0; i++)
        coordinator_take(coordinator, clock_seconds()), usleep(1000);
    assert_true(coordinator_look(coordinator, &log_to, clock_seconds()));
    JobEnd why = coordinator_why(coordinator);
    assert_true(why.rank == 2 && why.lost && !why.spoken);
    assert_string_equal(why.text, "rank 2 (stage 2) died while at step 12 F3; the job ends; go on");
}

TEST_BETWEEN(the_end_of_a_rank_is_confirmed_by_the_end_of_its_connection, open_, close_) {
    Connection line = call_();
    Message answer, report = report_(1);
    report.status.ending = ENDING_LEFT;
    assert_int_equal(ask_(&line, &report, &answer), RECEIVED_END);
    assert_int_equal(coordinator_status(coordinator, 1)->ending, ENDING_LEFT);
    assert_false(coordinator_look(coordinator, &log_to, clock_seconds()));
}

TEST_BETWEEN(every_rank_is_told_the_end_of_the_job, open_, close_) {
    AutoConnection line = call_();
    Message answer, report = report_(1);
    assert_int_equal(ask_(&line, &report, &answer), RECEIVED_MESSAGE);
    report.status.ending = ENDING_REPORTED, report.status.code = 2;
    coordinator_hear(coordinator, 0, &report.status, 1);
    assert_true(coordinator_look(coordinator, &log_to, 1));
    coordinator_end(coordinator);
    assert_int_equal(answer_(&line, &answer, AWHILE), RECEIVED_MESSAGE);
    assert_int_equal(answer.end, EXIT_FAILED);
}

TEST(a_folder_with_a_long_path_takes_a_socket) {
    char folder[300] = "/tmp/coordinator-XXXXXX", socket[320];
    assert_non_null(mkdtemp(folder));
    size_t top = strlen(folder);
    folder[top] = '/';
    memset(folder + top + 1, 'x', 200);
    assert_int_equal(mkdir(folder, 0700), 0);
    coordinator = assert_made(coordinator_open(&local_job, folder, &unit_error));
    Connection line = connection_open(folder);
    Message answer, report = report_(0);
    assert_true(line.file >= 0);
    assert_int_equal(ask_(&line, &report, &answer), RECEIVED_MESSAGE);
    connection_close(&line);
    coordinator_close(coordinator);
    snprintf(socket, sizeof socket, "%s/coordinator", folder);
    unlink(socket), rmdir(folder);
    folder[top] = '\0';
    rmdir(folder);
}

// --- addresses

TEST(every_address_of_this_host_reaches_the_coordinator) {
    Error err = {0};
    Job job = local_job;
    job.one_host = false;
    coordinator = coordinator_open(&job, NULL, &err);
    assert_non_null(coordinator);
    int count = coordinator_invitation(coordinator)->count;
    assert_true(count > 0);
    for (int i = 0; i < count; i++) {
        close_(NULL);
        coordinator = coordinator_open(&job, NULL, &err);
        AutoConnection line = connection_open_tcp(&coordinator_invitation(coordinator)->address[i]);
        Message answer, report = report_(1);
        assert_true(line.file >= 0);
        assert_int_equal(ask_(&line, &report, &answer), RECEIVED_MESSAGE);
    }
    close_(NULL);
}

// --- ends

static void end_(int rank, Ending ending, int code, int number, int64_t when, const char *text) {
    RankStatus status = report_(rank).status;
    status.ending = ending, status.code = code, status.signal = number, status.when = when;
    snprintf(status.text, sizeof status.text, "%s", text);
    coordinator_hear(coordinator, rank, &status, 1);
}

TEST_BETWEEN(a_job_is_over_when_a_rank_dies_and_says_which, open_, close_) {
    for (int rank = 0; rank < RANKS; rank++) {
        Message report = report_(rank);
        coordinator_hear(coordinator, rank, &report.status, 1);
    }
    assert_false(coordinator_look(coordinator, &log_to, 1));
    end_(2, ENDING_DIED, 139, 11, 10, "");
    end_(1, ENDING_DIED, 137, 9, 20, "");
    assert_true(coordinator_look(coordinator, &log_to, 1));
    JobEnd why = coordinator_why(coordinator);
    assert_int_equal(why.code, EXIT_FAILED);
    assert_int_equal(why.rank, 2);
    assert_string_equal(why.text, "rank 2 (stage 2) was killed by signal 11 (Segmentation fault) while at step 12 F3; "
                                  "the job ends; go on");
    // The remedy is another one once a rank knows of a checkpoint.
    RankStatus saved = report_(0).status;
    saved.saved = 1;
    coordinator_hear(coordinator, 0, &saved, 1);
    assert_non_null(strstr(coordinator_why(coordinator).text, "; saved"));
    // A reported reason explains the deaths of other ranks, even those that came first.
    end_(0, ENDING_REPORTED, 2, 0, 30, "the input is torn");
    why = coordinator_why(coordinator);
    assert_true(why.rank == 0 && why.code == 2 && why.spoken);
    assert_string_equal(why.text, "the input is torn");
    assert_int_equal(coordinator_open_ranks(coordinator), 0);
}

TEST_BETWEEN(a_rank_that_is_killed_while_leaving_is_the_reason_unless_another_left_with_an_error, open_, close_) {
    for (int rank = 0; rank < RANKS; rank++) {
        Message report = report_(rank);
        strcpy(report.status.action, "leaving");
        coordinator_hear(coordinator, rank, &report.status, 1);
    }
    RankStatus status = {.stage = 1, .wait_stage = -1, .ending = ENDING_DIED, .signal = 9, .action = "leaving"};
    end_(0, ENDING_LEFT, 0, 0, 10, "");
    coordinator_hear(coordinator, 1, &status, 1);
    assert_true(coordinator_look(coordinator, &log_to, 1));
    assert_non_null(strstr(coordinator_why(coordinator).text, "rank 1 (stage 1) was killed by signal 9"));
    close_(NULL), open_(NULL);
    end_(0, ENDING_LEFT, 3, 0, 10, "");
    end_(2, ENDING_LEFT, 3, 0, 10, "");
    coordinator_hear(coordinator, 1, &status, 1);
    assert_int_equal(coordinator_code(coordinator), 3);
}

TEST_BETWEEN(of_several_reports_the_earliest_counts_whatever_came_first, open_, close_) {
    end_(0, ENDING_LEFT, 1, 0, 200, "second");
    end_(1, ENDING_LEFT, 1, 0, 100, "first");
    assert_false(coordinator_look(coordinator, &log_to, 1)); // two left in order, and the third may, too
    assert_int_equal(coordinator_code(coordinator), -1);
    end_(2, ENDING_LEFT, 1, 0, 300, "");
    assert_int_equal(coordinator_code(coordinator), 1);
    assert_string_equal(coordinator_why(coordinator).text, "first");
}

// Genuine and forged messages between two sockets, and the coordinator's conclusions. Complete jobs: test_faults.py.
#include "base/clock.h"
#include "ranks/coordinator.h"
#include "unit.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { RANKS = 3 };

static const Job local_job = {.ranks = RANKS, .patience = {10, 600}, .one_host = true, .remedy = "the job ends; go on"};
static const Log log_to = {"test", -1, -1, LOG_NORMAL};

// A coordinator and the channel of one supervisor.
static struct {
    Coordinator *coordinator;
    Channel channel;
    Place place;
} pair;

static int open_(void **state) {
    (void)state;
    Error err = {0};
    pair.coordinator = coordinator_open(&local_job, &err);
    assert_non_null(pair.coordinator);
    assert_int_equal(channel_open(&pair.channel, true, &err), 0);
    channel_set_key(&pair.channel, coordinator_invitation(pair.coordinator)->key);
    assert_true(channel_place(&pair.channel, coordinator_invitation(pair.coordinator), 0, &pair.place));
    return 0;
}

static int close_(void **state) {
    (void)state;
    coordinator_close(pair.coordinator);
    channel_close(&pair.channel);
    return 0;
}

static bool answered_(Message *answer) {
    Place from;
    for (int tries = 0; tries < 40; tries++) {
        struct timespec nap = {0, 2000000};
        int budget = 16;
        coordinator_take(pair.coordinator, clock_seconds());
        if (channel_receive(&pair.channel, RANKS, &from, answer, &budget)) return true;
        nanosleep(&nap, NULL);
    }
    return false;
}

static Message beat_(int rank) {
    return (Message){
        .kind = MESSAGE_BEAT, .rank = rank, .status = {.stage = rank, .wait_stage = -1, .action = "step 12 F3"}};
}

// --- messages

TEST_BETWEEN(a_beat_is_heard_and_answered, open_, close_) {
    Message answer, beat = beat_(1);
    channel_send(&pair.channel, &pair.place, &beat);
    assert_true(answered_(&answer));
    assert_true(answer.kind == MESSAGE_ANSWER && answer.rank == 1 && coordinator_open_ranks(pair.coordinator) == 1);
    assert_string_equal(coordinator_status(pair.coordinator, 1)->action, "step 12 F3");
}

TEST_BETWEEN(what_is_not_signed_with_the_key_is_not_heard, open_, close_) {
    Message answer, beat = beat_(1);
    pair.channel.key.word[0] ^= 1;
    channel_send(&pair.channel, &pair.place, &beat);
    pair.channel.key.word[0] ^= 1;
    assert_false(answered_(&answer));
}

TEST_BETWEEN(a_message_that_was_changed_or_sent_twice_is_not_heard, open_, close_) {
    Message answer, beat = beat_(1);
    channel_send(&pair.channel, &pair.place, &beat);
    assert_true(answered_(&answer));
    size_t bytes = offsetof(Message, status.text);
    const struct sockaddr *to = (const struct sockaddr *)&pair.place.address;
    sendto(pair.channel.file, &beat, bytes, 0, to, pair.place.length);
    assert_false(answered_(&answer));
    beat.counter++, beat.status.progress++;
    sendto(pair.channel.file, &beat, bytes, 0, to, pair.place.length);
    assert_false(answered_(&answer));
}

TEST_BETWEEN(a_field_out_of_range_is_not_heard, open_, close_) {
    Message answer;
    for (int which = 0; which < 9; which++) {
        Message bad = beat_(1);
        int32_t *const fields[] = {
            &bad.rank,          &bad.kind,        &bad.address,      &bad.status.stage, &bad.status.wait_stage,
            &bad.status.ending, &bad.status.code, &bad.status.signal};
        if (which < 8) *fields[which] = 1 << 30;
        else bad.status.step = -1;
        channel_send(&pair.channel, &pair.place, &bad);
        assert_false(answered_(&answer));
    }
    assert_int_equal(coordinator_open_ranks(pair.coordinator), 0);
}

TEST_BETWEEN(a_flood_of_datagrams_delays_no_check_and_hides_no_beat, open_, close_) {
    Message answer, beat = beat_(1);
    const struct sockaddr *to = (const struct sockaddr *)&pair.place.address;
    channel_send(&pair.channel, &pair.place, &beat);
    assert_true(answered_(&answer));
    for (int i = 0; i < 20000; i++) {
        sendto(pair.channel.file, &beat.gate, sizeof beat.gate, 0, to, pair.place.length);
        if (i % 100 == 0) coordinator_take(pair.coordinator, 1.0 + i);
    }
    int budget = 100;
    for (int i = 0; i < 300; i++) sendto(pair.channel.file, &beat.gate, sizeof beat.gate, 0, to, pair.place.length);
    Channel own = {.file = coordinator_file(pair.coordinator)};
    Place from;
    assert_false(channel_receive(&own, RANKS, &from, &answer, &budget));
    assert_int_equal(budget, 0); // channel_receive stopped at its budget; datagrams are left
    channel_send(&pair.channel, &pair.place, &beat);
    assert_true(answered_(&answer));
}

TEST_BETWEEN(datagrams_of_strangers_take_no_space_from_beats, open_, close_) {
    Message answer, beat = beat_(1);
    const struct sockaddr *to = (const struct sockaddr *)&pair.place.address;
    char junk[sizeof(Message)] = {0};
    for (int i = 0; i < 50000; i++) sendto(pair.channel.file, junk, sizeof junk, 0, to, pair.place.length);
    assert_true(recv(coordinator_file(pair.coordinator), junk, sizeof junk, MSG_PEEK | MSG_DONTWAIT) < 0);
    channel_send(&pair.channel, &pair.place, &beat);
    assert_true(answered_(&answer));
}

// --- addresses

TEST(every_address_of_this_host_reaches_a_channel) {
    Channel here, there;
    Invitation invitation;
    Error err = {0};
    assert_int_equal(channel_open(&here, false, &err), 0);
    assert_int_equal(channel_open(&there, false, &err), 0);
    assert_int_equal(channel_invite(&here, &invitation, &err), 0);
    channel_set_key(&there, invitation.key);
    if (invitation.count == 0) skip(); // no network at all
    for (int i = 0; i < invitation.count; i++) {
        Message got, beat = beat_(2);
        Place to, from;
        bool came = false;
        assert_true(channel_place(&there, &invitation, i, &to));
        channel_send(&there, &to, &beat);
        for (int tries = 0, budget = 16; tries < 1000 && !came; tries++, budget = 16) {
            came = channel_receive(&here, RANKS, &from, &got, &budget);
            if (!came) usleep(1000);
        }
        assert_true(came && got.rank == 2);
    }
    channel_close(&here), channel_close(&there);
}

TEST(a_channel_of_one_host_is_reached_through_the_loopback_alone) {
    Channel channel;
    Invitation invitation, read;
    char text[INVITATION_TEXT];
    Error err = {0};
    assert_int_equal(channel_open(&channel, true, &err), 0);
    assert_int_equal(channel_invite(&channel, &invitation, &err), 0);
    assert_int_equal(invitation.count, 1);
    invitation_write(&invitation, text);
    assert_int_equal(invitation_read(&read, text), 0);
    assert_memory_equal(&read, &invitation, sizeof read);
    assert_int_equal(invitation_read(&read, "12:zz"), -1);
    struct sockaddr_storage bound;
    socklen_t length = sizeof bound;
    assert_int_equal(getsockname(channel.file, (struct sockaddr *)&bound, &length), 0);
    assert_true(((struct sockaddr_in *)&bound)->sin_addr.s_addr == htonl(INADDR_LOOPBACK));
    channel_close(&channel);
}

// --- ends

static void end_(int rank, Ending ending, int code, int number, int64_t when, const char *text) {
    RankStatus status = beat_(rank).status;
    status.ending = ending, status.code = code, status.signal = number, status.when = when;
    snprintf(status.text, sizeof status.text, "%s", text);
    coordinator_hear(pair.coordinator, rank, &status, 1);
}

TEST_BETWEEN(a_job_is_over_when_a_rank_dies_and_says_which, open_, close_) {
    for (int rank = 0; rank < RANKS; rank++) {
        Message beat = beat_(rank);
        coordinator_hear(pair.coordinator, rank, &beat.status, 1);
    }
    assert_false(coordinator_look(pair.coordinator, &log_to, 1));
    end_(2, ENDING_DIED, 139, 11, 10, "");
    end_(1, ENDING_DIED, 137, 9, 20, "");
    assert_true(coordinator_look(pair.coordinator, &log_to, 1));
    JobEnd why = coordinator_why(pair.coordinator);
    assert_int_equal(why.code, EXIT_FAILED);
    assert_int_equal(why.rank, 2);
    assert_string_equal(why.text, "rank 2 (stage 2) was killed by signal 11 (Segmentation fault) while at step 12 F3; "
                                  "the job ends; go on");
    // A reported reason explains the deaths of other ranks, even those that came first.
    end_(0, ENDING_REPORTED, 2, 0, 30, "the input is torn");
    why = coordinator_why(pair.coordinator);
    assert_true(why.rank == 0 && why.code == 2 && why.spoken);
    assert_string_equal(why.text, "the input is torn");
    assert_int_equal(coordinator_open_ranks(pair.coordinator), 0);
}

TEST_BETWEEN(a_rank_that_is_killed_while_leaving_is_the_reason_unless_another_left_with_an_error, open_, close_) {
    for (int rank = 0; rank < RANKS; rank++) {
        Message beat = beat_(rank);
        strcpy(beat.status.action, "leaving");
        coordinator_hear(pair.coordinator, rank, &beat.status, 1);
    }
    RankStatus status = {.stage = 1, .wait_stage = -1, .ending = ENDING_DIED, .signal = 9, .action = "leaving"};
    end_(0, ENDING_LEFT, 0, 0, 10, "");
    coordinator_hear(pair.coordinator, 1, &status, 1);
    assert_true(coordinator_look(pair.coordinator, &log_to, 1));
    assert_non_null(strstr(coordinator_why(pair.coordinator).text, "rank 1 (stage 1) was killed by signal 9"));
    close_(NULL), open_(NULL);
    end_(0, ENDING_LEFT, 3, 0, 10, "");
    end_(2, ENDING_LEFT, 3, 0, 10, "");
    coordinator_hear(pair.coordinator, 1, &status, 1);
    assert_int_equal(coordinator_code(pair.coordinator), 3);
}

TEST(a_rank_never_heard_is_missed_once_the_others_have_met) {
    for (int expected = 0; expected < 2; expected++) {
        Error err = {0};
        Coordinator *coordinator = coordinator_open(&local_job, &err);
        if (expected) coordinator_expect_all(coordinator);
        double now = clock_seconds();
        bool over = false;
        // Before the ranks have met, a missing rank may take any time.
        for (int second = 0; second < 90; second++, now++) {
            RankStatus status = {.stage = second < 30 ? -1 : 0, .wait_stage = -1, .progress = second};
            for (int rank = 0; rank < RANKS - 1; rank++) coordinator_hear(coordinator, rank, &status, now);
            over = over || coordinator_look(coordinator, &log_to, now);
            assert_int_equal(over, expected && second > 40);
        }
        if (expected) assert_non_null(strstr(coordinator_why(coordinator).text, "rank 2 has said nothing"));
        coordinator_close(coordinator);
    }
}

TEST_BETWEEN(of_several_reports_the_earliest_counts_whatever_came_first, open_, close_) {
    end_(0, ENDING_LEFT, 1, 0, 200, "second");
    end_(1, ENDING_LEFT, 1, 0, 100, "first");
    assert_false(coordinator_look(pair.coordinator, &log_to, 1)); // two left in order, and the third may, too
    assert_int_equal(coordinator_code(pair.coordinator), -1);
    end_(2, ENDING_LEFT, 1, 0, 300, "");
    assert_int_equal(coordinator_code(pair.coordinator), 1);
    assert_string_equal(coordinator_why(pair.coordinator).text, "first");
}

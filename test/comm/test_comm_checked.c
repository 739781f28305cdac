// Checked messages: intact messages pass, and one flipped bit anywhere is noticed before the message is read.
#include "comm/comm_checked.h"
#include "engine/p2p.h"
#include "unit.h"

#include <string.h>

// ---- a group of two ranks in one process, whose wire flips a bit where it is told to --------------------------------

enum { MOST = 16 };

typedef struct Wire {
    char *message[MOST];
    int64_t bytes[MOST];
    int sent, received;
    int flip_message; // -1: none
    int64_t flip_bit;
} Wire;

typedef struct End {
    Comm base;
    Wire *out, *in;
} End;

static int wire_message(Comm *comm, bool sends, int peer, void *memory, int64_t bytes, CommRequest *request,
                        Error *err) {
    (void)peer, (void)err;
    *request = (CommRequest){.handle = {memory}, .detail = {bytes}, .active = !sends};
    if (!sends) return 0;
    Wire *wire = ((End *)comm->self)->out;
    char *copy = malloc((size_t)bytes);
    memcpy(copy, memory, (size_t)bytes);
    if (wire->sent == wire->flip_message) copy[wire->flip_bit / 8] ^= (char)(1 << wire->flip_bit % 8);
    wire->message[wire->sent] = copy;
    wire->bytes[wire->sent++] = bytes;
    return 0;
}

static int wire_test(Comm *comm, CommRequest *request, Error *err) {
    (void)err;
    Wire *wire = ((End *)comm->self)->in;
    if (!request->active) return 1;
    if (wire->received == wire->sent) return 0;
    assert_int_equal(wire->bytes[wire->received], request->detail[0]); // sizes are those that were planned
    memcpy(request->handle[0], wire->message[wire->received], (size_t)request->detail[0]);
    free(wire->message[wire->received++]);
    request->active = false;
    return 1;
}

static void end_make(End *end, int rank, Wire *out, Wire *in) {
    *end = (End){.base = {.name = "pipeline", .rank = rank, .size = 2}, .out = out, .in = in};
    end->base.self = end;
    end->base.message = wire_message;
    end->base.test = wire_test;
}

// Rank 0 sends to rank 1: data on one wire, checksums on the other.
typedef struct Pair {
    Wire data, sums, none;
    End ends[2], sum_ends[2];
    Comm *checked[2];
    Backend *be;
    Checksum *checksum;
} Pair;

static Pair *pair_open(void) {
    Pair *pair = calloc(1, sizeof *pair);
    Error err = {0};
    pair->data.flip_message = pair->sums.flip_message = -1;
    pair->be = backend_cpu_create(PRECISION_FP32, 1, &err);
    pair->checksum = checksum_create(pair->be);
    for (int rank = 0; rank < 2; rank++) {
        end_make(&pair->ends[rank], rank, rank == 0 ? &pair->data : &pair->none, rank == 1 ? &pair->data : &pair->none);
        end_make(&pair->sum_ends[rank], rank, rank == 0 ? &pair->sums : &pair->none,
                 rank == 1 ? &pair->sums : &pair->none);
        pair->checked[rank] =
            comm_checked_create(&pair->ends[rank].base, false, &pair->sum_ends[rank].base, pair->checksum);
        assert_non_null(pair->checked[rank]);
    }
    return pair;
}

static void pair_close(Pair *pair) {
    for (int rank = 0; rank < 2; rank++) pair->checked[rank]->destroy(pair->checked[rank]);
    while (pair->data.received < pair->data.sent) free(pair->data.message[pair->data.received++]);
    while (pair->sums.received < pair->sums.sent) free(pair->sums.message[pair->sums.received++]);
    checksum_destroy(pair->checksum);
    pair->be->destroy(pair->be);
    free(pair);
}

static void fill(char *bytes, int64_t count, int seed) {
    for (int64_t i = 0; i < count; i++) bytes[i] = (char)(i * 31 + i / 251 + seed);
}

static int pass_on(Pair *pair, const void *from, void *to, int64_t bytes, Error *err) {
    CommRequest sent = {0}, got = {0};
    Comm *sender = pair->checked[0], *receiver = pair->checked[1];
    memset(err, 0, sizeof *err);
    assert_int_equal(comm_receive(receiver, 0, to, bytes, &got, err), 0);
    assert_int_equal(receiver->test(receiver, &got, err), 0);
    assert_int_equal(comm_send(sender, 1, from, bytes, &sent, err), 0);
    assert_int_equal(comm_wait(sender, &sent, err), 0);
    return comm_wait(receiver, &got, err);
}

// ---- tests ----------------------------------------------------------------------------------------------------------

TEST(what_arrives_as_it_was_sent_passes) {
    Pair *pair = pair_open();
    Error err;
    const int64_t sizes[] = {1, 7, 4096, (1 << 20) - 1, 1 << 20, (5 << 19) + 3};
    for (int i = 0; i < 6; i++) {
        char *from = malloc((size_t)sizes[i]), *to = calloc(1, (size_t)sizes[i]);
        fill(from, sizes[i], i);
        if (pass_on(pair, from, to, sizes[i], &err) != 0) fail_msg("%s", err.text);
        assert_memory_equal(from, to, (size_t)sizes[i]);
        free(from);
        free(to);
    }
    assert_int_equal(pair->data.sent, 6);
    assert_int_equal(pair->sums.sent, 6);
    for (int i = 0; i < 6; i++) assert_int_equal(pair->sums.bytes[i], 8);
    pair_close(pair);
}

TEST(a_flipped_bit_of_the_message_or_of_its_checksum_is_noticed) {
    enum { BYTES = (3 << 19) + 5 };
    char *from = malloc(BYTES), *to = malloc(BYTES);
    const int64_t bits[] = {0, 7, 4099, 8LL << 20, 8 * (int64_t)BYTES - 1};
    fill(from, BYTES, 3);
    for (int i = 0; i < 7; i++) {
        Pair *pair = pair_open();
        Error err;
        Wire *wire = i < 5 ? &pair->data : &pair->sums;
        wire->flip_message = 1;
        wire->flip_bit = i < 5 ? bits[i] : i == 5 ? 0 : 63;
        assert_int_equal(pass_on(pair, from, to, BYTES, &err), 0);
        assert_int_equal(pass_on(pair, from, to, BYTES, &err), -1);
        assert_int_equal(err.code, EXIT_FAILED);
        assert_non_null(strstr(err.text, "it left with checksum"));
        pair_close(pair);
    }
    free(from);
    free(to);
}

static void run_edge(Pair *pair, P2pLink *out, P2pLink *in, int messages, Error *err) {
    p2p_begin(out, messages);
    p2p_begin(in, messages);
    for (int i = 0; err->code == 0 && i < messages; i++) {
        if (p2p_progress(in, err) != 0 || p2p_progress(out, err) != 0) return;
        assert_true(p2p_ready(out));
        fill(p2p_buffer(out), out->bytes, i);
        p2p_used(out, NULL);
        if (p2p_progress(out, err) != 0 || p2p_progress(in, err) != 0) return;
        assert_true(p2p_ready(in));
        char *expected = malloc((size_t)out->bytes);
        fill(expected, out->bytes, i);
        assert_memory_equal(p2p_buffer(in), expected, (size_t)out->bytes);
        free(expected);
        p2p_used(in, NULL);
    }
    (void)pair;
}

TEST(an_edge_stops_at_the_damaged_message_before_it_is_read) {
    for (int damaged = -1; damaged < 5; damaged++) {
        Pair *pair = pair_open();
        P2pLink out, in;
        Error err = {0};
        pair->data.flip_message = damaged;
        pair->data.flip_bit = 12345;
        assert_int_equal(p2p_create(&out, pair->be, pair->checked[0], 1, true, 2, 2048, &err), 0);
        assert_int_equal(p2p_create(&in, pair->be, pair->checked[1], 0, false, 2, 2048, &err), 0);
        run_edge(pair, &out, &in, 5, &err);
        assert_int_equal(err.code, damaged < 0 ? 0 : EXIT_FAILED);
        assert_int_equal(in.finished, damaged < 0 ? 5 : damaged);
        assert_int_equal(in.opened, damaged < 0 ? 5 : damaged);
        p2p_destroy(&out);
        p2p_destroy(&in);
        pair_close(pair);
    }
}

// ---- collectives of a library: two ranks in one process that meet in memory -----------------------------------------

typedef struct Meeting {
    char *out[2];
    const char *in[2];
    int64_t bytes;
    bool sums;
    int posted, flip_rank; // flip_rank: its result gets a flipped bit; -1: no rank
    int64_t flip_bit;
} Meeting;

typedef struct Seat {
    Comm base;
    Meeting *meeting;
} Seat;

static int seat_start(Comm *comm, void *out, const void *in, int64_t count, bool sums, CommRequest *request) {
    Meeting *meeting = ((Seat *)comm->self)->meeting;
    meeting->out[comm->rank] = out;
    meeting->in[comm->rank] = in;
    meeting->bytes = count;
    meeting->sums = sums;
    meeting->posted++;
    *request = (CommRequest){.active = true};
    return 0;
}

static int seat_collective(Comm *comm, CommOperation operation, void *out, const void *in, int64_t count, CommType type,
                           CommRequest *request, Error *err) {
    (void)err;
    return seat_start(comm, out, in, count * comm_type_bytes(type), operation == COMM_ALL_REDUCE, request);
}

// Completes the collective on both ranks, once the second rank has started it.
static void meet(Meeting *meeting) {
    int64_t n = meeting->bytes;
    char *parts = malloc((size_t)(2 * n));
    for (int q = 0; q < 2; q++) memcpy(parts + q * n, meeting->in[q], (size_t)n);
    if (meeting->sums)
        for (int64_t i = 0; i < n / 4; i++) ((float *)parts)[i] += ((float *)(parts + n))[i];
    for (int q = 0; q < 2; q++) {
        memcpy(meeting->out[q], parts, (size_t)(meeting->sums ? n : 2 * n));
        if (q == meeting->flip_rank) meeting->out[q][meeting->flip_bit / 8] ^= (char)(1 << meeting->flip_bit % 8);
    }
    free(parts);
    meeting->posted = 0;
}

static int seat_test(Comm *comm, CommRequest *request, Error *err) {
    (void)err;
    Meeting *meeting = ((Seat *)comm->self)->meeting;
    if (meeting->posted == 1) return 0;
    if (meeting->posted == 2) meet(meeting);
    request->active = false;
    return 1;
}

static void seat_make(Seat *seat, int rank, Meeting *meeting) {
    *seat = (Seat){.base = {.name = "data", .rank = rank, .size = 2}, .meeting = meeting};
    seat->base.self = seat;
    seat->base.collective = seat_collective;
    seat->base.test = seat_test;
}

typedef struct Table {
    Meeting data, sums;
    Seat seats[2], sum_seats[2];
    Comm *checked[2];
    Backend *be;
    Checksum *checksum;
} Table;

static void table_open(Table *table, int flip_rank, int64_t flip_bit) {
    Error err = {0};
    memset(table, 0, sizeof *table);
    table->data.flip_rank = flip_rank;
    table->data.flip_bit = flip_bit;
    table->sums.flip_rank = -1;
    table->be = backend_cpu_create(PRECISION_FP32, 1, &err);
    table->checksum = checksum_create(table->be);
    for (int rank = 0; rank < 2; rank++) {
        seat_make(&table->seats[rank], rank, &table->data);
        seat_make(&table->sum_seats[rank], rank, &table->sums);
        table->checked[rank] =
            comm_checked_create(&table->seats[rank].base, false, &table->sum_seats[rank].base, table->checksum);
    }
}

static void table_close(Table *table) {
    for (int rank = 0; rank < 2; rank++) table->checked[rank]->destroy(table->checked[rank]);
    checksum_destroy(table->checksum);
    table->be->destroy(table->be);
}

enum { PART = 1000 };

// Runs the collective on both ranks in turn. came: result of each rank's last test; err: its error.
static void run_collective(Table *table, bool gathers, float out[2][2 * PART], int came[2], Error err[2]) {
    static float in[2][PART];
    CommRequest request[2];
    memset(request, 0, sizeof request);
    memset(err, 0, 2 * sizeof *err);
    for (int rank = 0; rank < 2; rank++) {
        Comm *comm = table->checked[rank];
        for (int i = 0; i < PART; i++) in[rank][i] = (float)(i % 17 + rank);
        if (!gathers) memcpy(out[rank], in[rank], sizeof in[rank]);
        int status = comm->collective(comm, gathers ? COMM_ALL_GATHER : COMM_ALL_REDUCE, out[rank],
                                      gathers ? in[rank] : out[rank], PART, COMM_FLOAT, &request[rank], &err[rank]);
        assert_int_equal(status, 0);
        came[rank] = 0;
    }
    for (int looks = 0; looks < 10 && (came[0] == 0 || came[1] == 0); looks++)
        for (int rank = 0; rank < 2; rank++)
            if (came[rank] == 0)
                came[rank] = table->checked[rank]->test(table->checked[rank], &request[rank], &err[rank]);
}

TEST(gathers_and_sums_of_a_library_pass_where_nothing_flips) {
    static float out[2][2 * PART];
    Table table;
    Error err[2];
    int came[2];
    table_open(&table, -1, 0);
    for (int round = 0; round < 4; round++) {
        run_collective(&table, round % 2 == 0, out, came, err);
        assert_true(came[0] == 1 && came[1] == 1);
        float expected = round % 2 == 0 ? 5.0f : 11.0f;
        assert_true(out[0][5] == expected && out[1][5] == expected);
    }
    table_close(&table);
}

TEST(a_flipped_bit_of_a_library_s_gather_is_named_where_it_arrives) {
    static float out[2][2 * PART];
    for (int sender = 0; sender < 2; sender++) {
        Table table;
        Error err[2];
        int came[2];
        char said[64];
        table_open(&table, 1, 32 * (sender * PART + 7) + 3);
        run_collective(&table, true, out, came, err);
        snprintf(said, sizeof said, "the part of a gather from rank %d to rank 1 of the data group", sender);
        assert_true(came[0] == 1 && came[1] == -1);
        assert_non_null(strstr(err[1].text, said));
        table_close(&table);
    }
}

TEST(a_sum_that_is_not_the_same_on_all_ranks_is_noticed_by_all) {
    static float out[2][2 * PART];
    for (int damaged = 0; damaged < 2; damaged++) {
        Table table;
        Error err[2];
        int came[2];
        table_open(&table, damaged, 1); // a low bit of the first number
        run_collective(&table, false, out, came, err);
        assert_true(came[0] == -1 && came[1] == -1);
        for (int rank = 0; rank < 2; rank++) assert_non_null(strstr(err[rank].text, "a sum differs between rank "));
        table_close(&table);
    }
}

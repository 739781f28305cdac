// Tests the promises of comm.h and world.h with several ranks. Started through mpirun by test_comm.py: every rank runs
// every check, rank 0 prints the checks that held, and the first failure ends the job.
#include "ranks_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#ifdef HAVE_MPI
#include "base/number_formats.h"
#include "comm/comm_mpi.h"

static void fill_bytes_(unsigned char *to, int64_t bytes, uint32_t seed) {
    for (int64_t i = 0; i < bytes; i++) to[i] = (unsigned char)hash_(seed, (uint32_t)i);
}

static void check_bytes_(Test *t, const char *what, const unsigned char *at, int64_t bytes, uint32_t seed) {
    for (int64_t i = 0; i < bytes; i++) EQUAL(t, what, at[i], (unsigned char)hash_(seed, (uint32_t)i));
}

static void send_(Test *t, int peer, const void *from, int64_t bytes, CommRequest *request) {
    EQUAL(t, "send", comm_send(t->comm, peer, from, bytes, request, &t->error), 0);
}

static void receive_(Test *t, int peer, void *to, int64_t bytes, CommRequest *request) {
    EQUAL(t, "receive", comm_receive(t->comm, peer, to, bytes, request, &t->error), 0);
}

static void wait_(Test *t, CommRequest *request) {
    EQUAL(t, "wait", comm_wait(t->comm, request, &t->error), 0);
    EQUAL(t, "a finished request is free", request->active, false);
    EQUAL(t, "a free request is complete", t->comm->test(t->comm, request, &t->error), 1);
}

// --- messages

// Sizes on both sides of Open MPI's eager limit, where a small message could overtake a large one.
static int64_t message_bytes_(int i) {
    static const int64_t sizes[] = {8, 70000, 1, 4096, 0, 300000, 33, 5000};
    return sizes[i % 8];
}

static void in_order_(Test *t) {
    enum { MESSAGES = 64, LONGEST = 300000 };
    int next = (t->rank + 1) % t->size, last = (t->rank + t->size - 1) % t->size;
    unsigned char *out = malloc((size_t)MESSAGES * LONGEST), *in = malloc((size_t)MESSAGES * LONGEST);
    CommRequest sends[MESSAGES] = {0}, receives[MESSAGES] = {0};
    for (int i = 0; i < MESSAGES; i++) {
        unsigned char *from = out + (size_t)i * LONGEST;
        fill_bytes_(from, message_bytes_(i), hash_((uint32_t)t->rank, (uint32_t)i));
        send_(t, next, from, message_bytes_(i), &sends[i]);
    }
    for (int i = 0; i < MESSAGES; i++) receive_(t, last, in + (size_t)i * LONGEST, message_bytes_(i), &receives[i]);
    // Waits in reverse order: only the order of starting identifies a message.
    for (int i = MESSAGES - 1; i >= 0; i--) {
        wait_(t, &receives[i]);
        wait_(t, &sends[i]);
        check_bytes_(t, "message in order", in + (size_t)i * LONGEST, message_bytes_(i),
                     hash_((uint32_t)last, (uint32_t)i));
    }
    free(out), free(in);
    held_(t, "messages arrive in the order they were started");
}

static void many_at_once_(Test *t) {
    enum { EACH = 300 };
    int64_t total = (int64_t)t->size * EACH;
    int64_t *out = malloc((size_t)total * 8), *in = calloc((size_t)total, 8);
    CommRequest *requests = calloc((size_t)total * 2, sizeof *requests);
    for (int i = 0; i < EACH; i++)
        for (int q = 0; q < t->size; q++) {
            int64_t at = (int64_t)q * EACH + i;
            out[at] = (int64_t)t->rank << 32 | at;
            if (q == t->rank) continue;
            receive_(t, q, &in[at], 8, &requests[2 * at]);
            send_(t, q, &out[at], 8, &requests[2 * at + 1]);
        }
    for (int64_t k = 2 * total - 1; k >= 0; k--) wait_(t, &requests[k]);
    for (int q = 0; q < t->size; q++)
        for (int i = 0; i < EACH && q != t->rank; i++)
            EQUAL(t, "one of many", in[q * EACH + i], (int64_t)q << 32 | (t->rank * EACH + i));
    free(out), free(in), free(requests);
    held_(t, "hundreds of messages under way at once");
}

// With a limit of `limit` bytes, a message is sent like a message that is too long for MPI's counts. Only the sender
// has the small limit, which shows whether it still sends one message.
static void one_long_message_(Test *t, int64_t bytes, int64_t limit) {
    CommMpi *mpi = t->comm->self;
    unsigned char *data = malloc((size_t)bytes);
    CommRequest request = {0};
    int other = t->rank ^ 1;
    if (t->rank > 1 || t->size < 2) return free(data);
    mpi->limit = t->rank == 0 ? limit : COMM_MESSAGE_LIMIT;
    if (t->rank == 0) {
        fill_bytes_(data, bytes, (uint32_t)bytes);
        send_(t, other, data, bytes, &request);
        wait_(t, &request);
    } else {
        memset(data, 0, (size_t)bytes);
        receive_(t, other, data, bytes, &request);
        wait_(t, &request);
        check_bytes_(t, "long message", data, bytes, (uint32_t)bytes);
    }
    mpi->limit = COMM_MESSAGE_LIMIT;
    free(data);
}

static void long_messages_(Test *t) {
    static const int64_t sizes[] = {999, 1000, 1001, 2000, 12345, 4000003};
    for (int i = 0; i < 6; i++) one_long_message_(t, sizes[i], 1000);
    held_(t, "a message longer than MPI can count is one message");
}

static void wrong_messages_(Test *t) {
    int64_t data[4] = {0};
    CommRequest request = {0};
    Error error = {0};
    for (int i = 0; i < 2; i++) {
        int64_t sent = i == 0 ? 8 : 32, expected = i == 0 ? 32 : 8;
        if (t->rank == 0) send_(t, 1, data, sent, &request), wait_(t, &request);
        if (t->rank != 1) continue;
        memset(&error, 0, sizeof error);
        receive_(t, 0, data, expected, &request);
        EQUAL(t, "wrong length", comm_wait(t->comm, &request, &error), -1);
        EQUAL(t, "names the peer", strstr(error.text, "rank 0") != NULL, true);
        EQUAL(t, "names the group", strstr(error.text, "everyone group, rank 1") != NULL, true);
    }
    held_(t, "a message of another length than expected is an error that names group and peer");
}

// --- collectives against sums done here, one rank after another

static float value_(int rank, int64_t i) {
    // Magnitudes far apart, so that another order of adding shows in the bits.
    uint32_t h = hash_((uint32_t)rank + 77, (uint32_t)i);
    return ldexpf((float)(int32_t)h / 2147483648.0f, (int)(h % 23) - 11);
}

static void store_(void *to, CommType type, int64_t at, int rank, int64_t i) {
    if (type == COMM_FLOAT) ((float *)to)[at] = value_(rank, i);
    if (type == COMM_DOUBLE) ((double *)to)[at] = (double)value_(rank, i) * (1 + 1e-9 * (double)(i % 1000));
    if (type == COMM_BF16) ((uint16_t *)to)[at] = bf16_from_float(value_(rank, i));
    if (type == COMM_BYTE) ((uint8_t *)to)[at] = (uint8_t)(rank * 31 + i * 7);
}

// Element i summed over `size` ranks in rank order.
static void store_sum_(void *to, CommType type, int64_t at, int size, int64_t i) {
    char x[8];
    float single = 0;
    double twice = 0;
    for (int q = 0; q < size; q++) {
        store_(x, type, 0, q, i);
        float f;
        double d;
        uint16_t h;
        memcpy(&f, x, 4), memcpy(&d, x, 8), memcpy(&h, x, 2);
        if (type == COMM_BF16) f = bf16_to_float(h);
        single = q == 0 ? f : single + f;
        twice = q == 0 ? d : twice + d;
    }
    if (type == COMM_FLOAT) ((float *)to)[at] = single;
    if (type == COMM_DOUBLE) ((double *)to)[at] = twice;
    if (type == COMM_BF16) ((uint16_t *)to)[at] = bf16_from_float(single);
}

static void check_sums_(Test *t, const char *what, const void *got, CommType type, int64_t count, int64_t first) {
    int64_t width = comm_type_bytes(type);
    char wanted[8];
    for (int64_t i = 0; i < count; i++) {
        store_sum_(wanted, type, 0, t->size, first + i);
        if (memcmp((const char *)got + i * width, wanted, (size_t)width) != 0) fail_(t, what, i, count);
    }
}

static void start_(Test *t, CommOperation operation, int root, void *out, const void *in, int64_t count, CommType type,
                   CommRequest *request) {
    int started = t->comm->collective(t->comm, operation, root, out, in, count, type, request, &t->error);
    EQUAL(t, "a collective", started, 0);
}

static void collect_(Test *t, CommOperation operation, int root, void *out, const void *in, int64_t count,
                     CommType type) {
    CommRequest request = {0};
    start_(t, operation, root, out, in, count, type, &request);
    wait_(t, &request);
}

static void all_reduce_(Test *t, CommType type, int64_t count) {
    char *data = malloc((size_t)(count * 8 + 8));
    for (int64_t i = 0; i < count; i++) store_(data, type, i, t->rank, i);
    collect_(t, COMM_ALL_REDUCE, NO_ROOT, data, data, count, type);
    check_sums_(t, "all_reduce: bits of the serial sum, element", data, type, count, 0);
    free(data);
}

static void reduce_scatter_(Test *t, CommType type, int64_t count, bool in_place) {
    int64_t total = count * t->size, width = comm_type_bytes(type);
    char *in = malloc((size_t)(total * 8 + 8)), *apart = malloc((size_t)(count * 8 + 8));
    char *out = in_place ? in + t->rank * count * width : apart;
    for (int64_t i = 0; i < total; i++) store_(in, type, i, t->rank, i);
    collect_(t, COMM_REDUCE_SCATTER, NO_ROOT, out, in, count, type);
    check_sums_(t, "reduce_scatter: bits of the serial sum, element", out, type, count, t->rank * count);
    free(in), free(apart);
}

static void all_gather_(Test *t, CommType type, int64_t count, bool in_place) {
    int64_t width = comm_type_bytes(type);
    char *out = malloc((size_t)(count * t->size * 8 + 8)), *apart = malloc((size_t)(count * 8 + 8));
    char *in = in_place ? out + t->rank * count * width : apart, wanted[8];
    for (int64_t i = 0; i < count; i++) store_(in, type, i, t->rank, i);
    collect_(t, COMM_ALL_GATHER, NO_ROOT, out, in, count, type);
    for (int64_t i = 0; i < count * t->size; i++) {
        store_(wanted, type, 0, (int)(i / count), i % count);
        if (memcmp(out + i * width, wanted, (size_t)width) != 0) fail_(t, "all_gather, element", i, count);
    }
    free(out), free(apart);
}

// The root gets the sums, and nothing is written on the other ranks. A broadcast of them gives all the same.
static void rooted_(Test *t, CommType type, int64_t count, int root, bool in_place) {
    int64_t bytes = count * comm_type_bytes(type);
    char *in = malloc((size_t)bytes + 8), *apart = malloc((size_t)bytes + 8), *kept = malloc((size_t)bytes + 8);
    char *out = in_place ? in : apart;
    for (int64_t i = 0; i < count; i++) store_(in, type, i, t->rank, i);
    if (!in_place) memset(out, 0x5a, (size_t)bytes);
    memcpy(kept, out, (size_t)bytes);
    collect_(t, COMM_REDUCE, root, out, in, count, type);
    if (t->rank == root) check_sums_(t, "reduce: bits of the serial sum, element", out, type, count, 0);
    else EQUAL(t, "reduce writes on its root alone", memcmp(kept, out, (size_t)bytes), 0);
    collect_(t, COMM_BROADCAST, root, out, out, count, type);
    check_sums_(t, "broadcast, element", out, type, count, 0);
    free(in), free(apart), free(kept);
}

static void collectives_(Test *t) {
    // An all-reduce of up to 8192 floats takes one trip; 5 million floats are more than one piece.
    static const int64_t counts[] = {0, 1, 2, 3, 5, 1000, 8192, 8193, 100001, 5000000};
    for (CommType type = COMM_FLOAT; type <= COMM_DOUBLE; type++)
        for (int i = 0; i < 10; i++) {
            int64_t count = counts[i];
            all_reduce_(t, type, count);
            if (count > 100001) count /= t->size;
            reduce_scatter_(t, type, count, i % 2 == 0);
            all_gather_(t, type, count, i % 2 == 1);
            rooted_(t, type, count, i % t->size, i % 2 == 0);
        }
    for (int i = 0; i < 10; i++) all_gather_(t, COMM_BYTE, counts[i], i % 2 == 1);
    held_(t, "sums in rank order: the bits of a serial sum on every rank");
}

// One sum of each kind in exactly the workspace that is counted for it.
static void sums_in_workspace_(Test *t, CommType type, int64_t count) {
    enum { GUARD = 64 };
    static const CommOperation operations[] = {COMM_REDUCE_SCATTER, COMM_ALL_REDUCE, COMM_REDUCE};
    for (int reduce = 0; reduce < 3; reduce++) {
        CommOperation operation = operations[reduce];
        int64_t bytes = comm_sum_workspace(operation, count, type, t->size);
        EQUAL(t, "a sum of any length needs one piece", bytes <= COMM_PIECE_BYTES + 4096, true);
        unsigned char *workspace = malloc((size_t)bytes + GUARD);
        memset(workspace, 0xa5, (size_t)bytes + GUARD);
        t->comm->use_workspace(t->comm, workspace, bytes, 1);
        if (reduce == 0) reduce_scatter_(t, type, count, true);
        else if (reduce == 1) all_reduce_(t, type, count);
        else rooted_(t, type, count, 0, true);
        t->comm->use_workspace(t->comm, NULL, 0, 0);
        for (int i = 0; i < GUARD; i++) EQUAL(t, "a sum keeps to its workspace", workspace[bytes + i], 0xa5);
        EQUAL(t, "and uses it to the end", workspace[bytes - 1] == 0xa5 && t->rank == 0, false);
        free(workspace);
    }
}

static void workspace_(Test *t) {
    static const int64_t counts[] = {1, 8192, 8193, 100001, 5000000};
    for (CommType type = COMM_FLOAT; type <= COMM_DOUBLE; type++)
        for (int i = 0; i < 5; i++) sums_in_workspace_(t, type, counts[i]);
    held_(t, "sums keep to the workspace that is counted for them");
}

static void collectives_at_once_(Test *t) {
    enum { EACH = 20, COUNT = 30011 };
    float *data = malloc(sizeof(float) * EACH * COUNT);
    CommRequest requests[EACH] = {0};
    for (int k = 0; k < EACH; k++) {
        int64_t count = k % 3 == 0 ? 100 : COUNT;
        for (int64_t i = 0; i < count; i++) store_(data + k * COUNT, COMM_FLOAT, i, t->rank, i + k);
        start_(t, COMM_ALL_REDUCE, NO_ROOT, data + k * COUNT, data + k * COUNT, count, COMM_FLOAT, &requests[k]);
    }
    // Every rank waits in its own order.
    for (int k = 0; k < EACH; k++) wait_(t, &requests[t->rank % 2 == 0 ? EACH - 1 - k : k]);
    for (int k = 0; k < EACH; k++)
        check_sums_(t, "one of many sums, element", data + k * COUNT, COMM_FLOAT, k % 3 == 0 ? 100 : COUNT, k);
    free(data);
    held_(t, "many sums under way at once, finished in any order");
}

// --- the world

static double cpu_seconds_(void) {
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
           1e-6 * (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec);
}

static void waiting_sleeps_(Test *t) {
    CommRequest request = {0};
    int64_t word = 0;
    struct timespec half = {0, 500000000};
    held_(t, "all are here");
    double before = cpu_seconds_();
    if (t->rank == 0) nanosleep(&half, NULL);
    for (int q = 1; q < t->size && t->rank == 0; q++) send_(t, q, &word, 8, &request), wait_(t, &request);
    if (t->rank != 0) receive_(t, 0, &word, 8, &request), wait_(t, &request);
    double used = cpu_seconds_() - before;
    EQUAL(t, "milliseconds of CPU in half a second of waiting for a message, above 100", used < 0.1 ? 0 : used * 1000,
          0);
    before = cpu_seconds_();
    if (t->rank == 0) nanosleep(&half, NULL);
    EQUAL(t, "barrier", world_barrier(t->world, &t->error), 0);
    EQUAL(t, "a barrier sleeps as well", cpu_seconds_() - before < 0.1, true);
    if (t->rank == t->size - 1) printf("waiting took %.1f%% of a core\n", used * 200);
    held_(t, "a waiting rank uses less than a fifth of a core");
}

static void world_operations_(Test *t) {
    int32_t words[3] = {t->rank, t->rank * 2, 7}, all[3 * 64] = {0};
    EQUAL(t, "gather", world_gather(t->world, all, words, sizeof words, &t->error), 0);
    for (int q = 0; q < t->size && t->rank == 0; q++) EQUAL(t, "gathered", all[3 * q + 1], 2 * q);
    EQUAL(t, "broadcast", world_broadcast(t->world, all, sizeof all, &t->error), 0);
    EQUAL(t, "broadcast arrived", all[3 * t->size - 3], t->size - 1);
    double sums[2], most[2] = {t->rank, -t->rank}, wanted[2];
    for (int i = 0; i < 2; i++) {
        store_(sums, COMM_DOUBLE, i, t->rank, i);
        store_sum_(wanted, COMM_DOUBLE, i, t->size, i);
    }
    EQUAL(t, "sum", world_sum(t->world, sums, 2, &t->error), 0);
    EQUAL(t, "the bits of the serial sum", memcmp(sums, wanted, sizeof sums), 0);
    EQUAL(t, "max", world_max(t->world, most, 2, &t->error), 0);
    EQUAL(t, "the largest", most[0] == t->size - 1 && most[1] == 0, true);
    EQUAL(t, "local rank", world_place(t->world)->local_rank, t->rank);
    EQUAL(t, "local size", world_place(t->world)->local_size, t->size);
    EQUAL(t, "one host", world_place(t->world)->nodes == 1 && world_place(t->world)->node == 0, true);
    EQUAL(t, "the clock of one host", world_place(t->world)->clock_offset == 0, true);
    double offset;
    EQUAL(t, "clock", comm_clock_offset(t->comm, t->size - 1, &offset, &t->error), 0);
    EQUAL(t, "clocks of one host differ by less than a millisecond", fabs(offset) < 1e-3, true);
    held_(t, "gather, broadcast, sum, max, hosts and clocks");
}

static void groups_(Test *t) {
    // Even ranks form a group in reverse order; odd ranks have no group.
    Comm *even = world_split(t->world, "even", t->rank % 2 == 0 ? 5 : -1, -t->rank, &t->error);
    EQUAL(t, "no error", t->error.code, 0);
    EQUAL(t, "only even ranks have a group", even != NULL, t->rank % 2 == 0);
    if (even != NULL) {
        float one = 1;
        EQUAL(t, "size", even->size, (t->size + 1) / 2);
        EQUAL(t, "ordered by key", even->rank, even->size - 1 - t->rank / 2);
        EQUAL(t, "sum", comm_collect_now(even, COMM_ALL_REDUCE, &one, &one, 1, COMM_FLOAT, &t->error), 0);
        EQUAL(t, "summed in the group", one == (float)even->size, true);
        even->destroy(even);
    }
    Comm *own = world_split(t->world, "own", t->rank, 0, &t->error);
    EQUAL(t, "a group of one", own->size == 1 && own->rank == 0, true);
    own->destroy(own);
    held_(t, "groups by color, ordered by key");
}

int main(int argc, char **argv) {
    Test t = test_join(&argc, &argv);
    t.comm = world_split(t.world, "everyone", 0, t.rank, &t.error);
    if (t.comm == NULL || t.size < 2) fail_(&t, "ranks", t.size, 2);
    static void (*const checks[])(Test *) = {in_order_,         many_at_once_, long_messages_,       wrong_messages_,
                                             collectives_,      workspace_,    collectives_at_once_, waiting_sleeps_,
                                             world_operations_, groups_};
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) checks[i](&t);
    t.comm->destroy(t.comm);
    world_leave(t.world, 0);
    return 0;
}

#else
int main(void) {
    fprintf(stderr, "built without MPI\n");
    return 2;
}
#endif

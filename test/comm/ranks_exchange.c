// Tests exchanges of blocks between several ranks (comm.h), in the memory of their devices. Started through mpirun by
// test_comm.py: `ranks_exchange cpu`, and in build/virtual `ranks_exchange nccl` and `ranks_exchange shared`, where
// all ranks share a GPU. The first failure ends the job.
#include "cuda/cuda_library.h"
#include "device/device.h"
#include "ranks_test.h"

#include <stdlib.h>
#include <string.h>

// Bytes from rank a to rank b: none, few, or more than MPI sends at once. Round 1: nobody sends anything; 2: only the
// last rank receives; 3: only each rank from itself.
static int64_t bytes_(const Test *t, int round, int a, int b) {
    static const int64_t sizes[] = {0, 12, 4096, 300000, 0, 70004, 4, 104858};
    if (round == 1 || (round == 2 && b != t->comm->size - 1) || (round == 3 && a != b)) return 0;
    return sizes[hash_((uint32_t)(a * 64 + b), (uint32_t)round) % 8];
}

static unsigned char byte_(int round, int a, int b, int64_t i) {
    return (unsigned char)hash_((uint32_t)(round * 4096 + a * 64 + b), (uint32_t)i);
}

enum { ROUNDS = 8, MOST = 16 << 20 };

// The device's memory of one round: the blocks are written to `made`, copied to `in`, and received in `out`. `kept` is
// a copy that compute makes of `out`.
typedef struct Round {
    char *made, *in, *out, *kept;
    int64_t received[64], all;
    CommRequest request;
} Round;

static char *take_(Test *t, int64_t bytes) {
    char *memory = t->be->allocate(t->be, MEMORY_WORKSPACE, bytes, "a test", &t->error);
    EQUAL(t, "memory", memory != NULL, true);
    return memory;
}

// The exchange has to follow the copy that compute is asked for right before.
static void start_(Test *t, Round *r, int round, unsigned char *host) {
    int64_t sent[64], all = 0;
    r->all = 0;
    for (int q = 0; q < t->comm->size; q++) {
        sent[q] = bytes_(t, round, t->comm->rank, q);
        for (int64_t i = 0; i < sent[q]; i++) host[all++] = byte_(round, t->comm->rank, q, i);
        r->all += r->received[q] = bytes_(t, round, q, t->comm->rank);
    }
    r->made = take_(t, all + 1), r->in = take_(t, all + 1), r->out = take_(t, r->all + 1),
    r->kept = take_(t, r->all + 1);
    t->be->upload(t->be, r->made, host, all);
    t->be->copy(t->be, STREAM_COMPUTE, r->in, r->made, all);
    EQUAL(t, "exchange", t->comm->exchange(t->comm, r->out, r->received, r->in, sent, &r->request, &t->error), 0);
    memset(sent, 0x77, sizeof sent); // it was read before the call returned
}

static void check_(Test *t, Round *r, int round, unsigned char *host) {
    t->be->copy(t->be, STREAM_COMPUTE, r->kept, r->out, r->all + 1);
    t->be->download(t->be, host, r->kept, r->all + 1);
    for (int64_t q = 0, at = 0; q < t->comm->size; q++)
        for (int64_t i = 0; i < r->received[q]; i++, at++)
            EQUAL(t, "a byte", host[at], byte_(round, (int)q, t->comm->rank, i));
    EQUAL(t, "nothing is written after the blocks", host[r->all], 0);
}

static void wait_(Test *t, Round *r) {
    EQUAL(t, "wait", comm_wait(t->comm, &r->request, &t->error), 0);
    EQUAL(t, "a finished request is free", r->request.active, false);
}

int main(int argc, char **argv) {
    static Config config;
    static Round one[ROUNDS], many[ROUNDS];
    Device device;
    cuda_set_environment();
    config.hardware.run_share = config.parallel.tensor = 1;
    config.hardware.device = argc > 1 && strcmp(argv[1], "cpu") == 0 ? DEVICE_CPU : DEVICE_CUDA;
    config.hardware.share_gpu = argc > 1 && strcmp(argv[1], "shared") == 0;
    Test t = test_join(&argc, &argv);
    unsigned char *host = malloc(MOST);
    t.comm = world_split(t.world, "experts", 0, world_rank(t.world), &t.error);
    t.be = device_open(&device, &config, t.world, 1, &t.error);
    if (t.comm == NULL || t.be == NULL) fail_(&t, "start", 0, 1);
    t.comm = device_comm(&device, t.be, t.comm, USE_EXCHANGE, &t.error);
    if (t.comm == NULL) fail_(&t, "group", 0, 1);
    for (int i = 0; i < ROUNDS; i++) start_(&t, &one[i], i, host), wait_(&t, &one[i]), check_(&t, &one[i], i, host);
    for (int i = 0; i < ROUNDS; i++) start_(&t, &many[i], i, host);
    for (int i = 0; i < ROUNDS; i++) wait_(&t, &many[i]);
    for (int i = 0; i < ROUNDS; i++) check_(&t, &many[i], i, host);
    EQUAL(&t, "the device", t.be->synchronize(t.be, &t.error), 0);
    held_(&t, "every rank has every rank's block");
    t.comm->destroy(t.comm);
    t.be->destroy(t.be);
    world_leave(t.world, 0);
    free(host);
    return 0;
}

// A device that computes nothing and counts: its operations advance a clock by the time they would take, and its
// collectives have a start and an end. The model's and the optimizer's own code runs on it, so a plan's seconds come
// from the calls that a run makes, in their order, with their waits. The cost of an operation is part of its entry in
// backend/operations.h; device/cost.h converts it to seconds.
//
// Each group has a queue, as a communicator of NCCL has a stream. A collective begins when its group's earlier ones
// have ended and the compute that was queued before it is done; waiting for it moves the compute's clock to its end:
//
//     compute      | input gradient |---- weight gradient ----| wait |  norm's backward ...
//     collective                    |== sum of the input's gradient ==|
//                                    began when its operand was ready  ^ the clock moves here: `exposed` grows
//
// Memory is never touched: addresses are only distinct numbers.
#pragma once

#include "backend/backend.h"
#include "comm/comm.h"
#include "cost.h"

// Seconds by kind of work. Their sum, without `peak` and `between`, is the time that has passed on the clock.
typedef struct Account {
    double peak;      // part of `products`: the time of the same FLOPs at the device's peak
    double products;  // matrix products, without attention's
    double attention; // attention of any mode
    double passes;    // everything else that reads and writes memory
    double exposed;   // compute waited for collectives, or ran slower during them
    double exchange;  // compute waited for exchanges of rows with experts
    double count;     // no time: the number of products in `products` and `uneven`
    double between;   // part of `exposed`, `exchange` and `uneven`: waits for collectives between nodes
    double uneven;    // extra time of the fullest rank's experts and exchanges over a balanced routing
} Account;

// a += factor * b
static inline void account_add(Account *a, const Account *b, double factor) {
    a->peak += factor * b->peak;
    a->products += factor * b->products;
    a->attention += factor * b->attention;
    a->passes += factor * b->passes;
    a->exposed += factor * b->exposed;
    a->exchange += factor * b->exchange;
    a->uneven += factor * b->uneven;
    a->count += factor * b->count;
    a->between += factor * b->between;
}

static inline double account_total(const Account *account) {
    return account->products + account->attention + account->passes + account->exposed + account->exchange +
           account->uneven;
}

// A cached cost of one collective, or of the last wave of one product.
typedef struct Priced {
    int64_t what, size;
    double price;
} Priced;
enum { PRICED = 16 };

typedef struct Clocks {
    const Cost *cost;
    bool own_sums;              // a CPU: products of eight bits are emulated, quantizing is a pass of its own
    double compute;             // time at which all compute queued so far has ended
    double busy;                // time at which the last collective that occupies multiprocessors ends
    double gathered;            // time at which the last gather of weights between nodes ends
    double flight;              // FLOPs that products are expected to compute until then, as a run reckons
    Account spent;              // `compute` by kind of work
    double fullest;             // rows that the experts of the counted rank get, relative to a balanced routing
    double flops_per_sent_byte; // see Backend
    int expert_ranks;
    bool once;      // exchanges send a token to each node once, as DeepEP does, and copy it there
    int64_t copies; // copies of a token: the number of its experts
    uintptr_t next; // address of the next allocation
    Priced waves[PRICED];
} Clocks;

// Creates a backend that counts on `clocks`; their cost must have the device's peak. capability: see Backend.
Backend *count_backend_create(Clocks *clocks, int precision, int capability);

// The links of a group. rate: bytes/s of one rank if its ranks are on several nodes; 0: they are on one node. copies:
// gathers and sums in mapped memory are copies that leave all multiprocessors to compute (cuda/comm_copy.cpp).
typedef struct CountLinks {
    double rate;
    bool copies;
    int near;    // largest number of the group's ranks on a node; used with `rate`
    bool beside; // compute does not wait for its collectives (COMM_USE_BESIDE)
} CountLinks;

// Creates rank `rank` of a group whose collectives advance `clocks`. Only collectives are counted; a message is an
// error of the program.
Comm *count_comm_create(const char *name, int rank, int size, Clocks *clocks, const CountLinks *links);
// on: the group's collectives take no time; off: they take the time of its links.
void count_comm_rest(Comm *comm, bool on);

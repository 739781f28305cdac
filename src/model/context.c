// Collectives of context ranks over keys and values, see context.h.
#include "context.h"

int64_t context_row(const Shape *s, int64_t position) {
    int64_t length = s->seq / s->pieces;
    for (int i = 0; i < s->pieces; i++) {
        int64_t within = position - context_place(s, i);
        if (within >= 0 && within < length) return (i * length + within) * s->batch;
    }
    return -1;
}

// One piece's keys and values: their elements, columns of rows in qkv, and the first element among all gathered.
typedef struct Keys {
    int64_t rows, cols, count, column, half, own;
} Keys;

static Keys keys_of_(const Shape *s, int i) {
    Keys keys = {.rows = s->rows / CONTEXT_PIECES, .cols = s->qkv_cols - s->query_cols};
    keys.count = keys.rows * keys.cols;
    keys.column = i * keys.rows * s->qkv_cols + s->query_cols;
    keys.half = i * s->context_ranks * keys.count;
    keys.own = context_place(s, i) * s->batch * keys.cols;
    return keys;
}

static void copy_columns_(Pass *pass, char *to, int64_t to_cols, const char *from, int64_t from_cols,
                          const Keys *keys) {
    int64_t element = pass->shape->element;
    for (int64_t r = 0; r < keys->rows; r++)
        pass->be->copy(pass->be, STREAM_COMPUTE, to + r * to_cols * element, from + r * from_cols * element,
                       keys->cols * element);
}

// Waits as blocks.c does for tensor ranks: messages progress meanwhile.
static void context_wait_(Pass *pass, CommRequest requests[CONTEXT_PIECES]) {
    for (int i = 0; i < CONTEXT_PIECES; i++)
        comm_wait_polling(pass->context[i], &requests[i], pass->poll, pass->poll_argument, pass->err);
}

void context_gather_keys(Pass *pass, const void *qkv) {
    const Shape *s = pass->shape;
    CommRequest requests[CONTEXT_PIECES] = {0};
    char *all = pass->keys;
    for (int i = 0; i < CONTEXT_PIECES; i++) {
        Keys keys = keys_of_(s, i);
        Comm *comm = pass->context[i];
        char *own = all + keys.own * s->element;
        copy_columns_(pass, own, keys.cols, (const char *)qkv + keys.column * s->element, s->qkv_cols, &keys);
        CommType type = s->element == 2 ? COMM_BF16 : COMM_FLOAT;
        if (comm->all_gather(comm, all + keys.half * s->element, own, keys.count, type, &requests[i], pass->err) != 0)
            requests[i].active = false;
    }
    context_wait_(pass, requests);
}

void context_sum_gradients(Pass *pass, void *dqkv) {
    const Shape *s = pass->shape;
    CommRequest requests[CONTEXT_PIECES] = {0};
    for (int i = 0; i < CONTEXT_PIECES; i++) {
        Keys keys = keys_of_(s, i);
        Comm *comm = pass->context[i];
        if (comm->reduce_scatter(comm, pass->dkeys + keys.own, pass->dkeys + keys.half, keys.count, COMM_FLOAT,
                                 &requests[i], pass->err) != 0)
            requests[i].active = false;
    }
    context_wait_(pass, requests);
    // The gathered keys have been read, so their memory takes the rounded sums.
    for (int i = 0; i < CONTEXT_PIECES; i++) {
        Keys keys = keys_of_(s, i);
        char *own = (char *)pass->keys + keys.own * s->element;
        pass->be->from_float(pass->be, own, pass->dkeys + keys.own, keys.count);
        copy_columns_(pass, (char *)dqkv + keys.column * s->element, s->qkv_cols, own, keys.cols, &keys);
    }
}

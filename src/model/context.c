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

static Keys keys_of_(const Pass *pass, int i) {
    const Shape *s = pass->shape;
    Keys keys = {.rows = s->rows / s->pieces, .cols = s->qkv_cols - s->query_cols};
    keys.count = keys.rows * keys.cols;
    keys.column = i * keys.rows * s->qkv_cols + s->query_cols;
    keys.half = i * s->context_ranks * keys.count;
    keys.own = (pass->first + context_place(s, i)) * s->batch * keys.cols;
    return keys;
}

// Waits as blocks.c does for tensor ranks: messages progress meanwhile.
static void context_wait_(Pass *pass, CommRequest requests[CONTEXT_PIECES]) {
    for (int i = 0; i < pass->shape->pieces && pass->shape->context_ranks > 1; i++)
        comm_wait_polling(pass->context[i], &requests[i], pass->poll, pass->poll_argument, pass->err);
}

void context_gather_keys(Pass *pass, const void *qkv) {
    const Shape *s = pass->shape;
    CommRequest requests[CONTEXT_PIECES] = {0};
    char *all = pass->keys;
    for (int i = 0; i < s->pieces; i++) {
        Keys keys = keys_of_(pass, i);
        Comm *comm = pass->context[i];
        char *own = all + keys.own * s->element;
        pass->be->copy_columns(pass->be, own, keys.cols, (const char *)qkv + keys.column * s->element, s->qkv_cols,
                               false, keys.rows, keys.cols);
        if (s->context_ranks == 1) break;
        CommType type = s->element == 2 ? COMM_BF16 : COMM_FLOAT;
        if (comm->all_gather(comm, all + keys.half * s->element, own, keys.count, type, &requests[i], pass->err) != 0)
            requests[i].active = false;
    }
    context_wait_(pass, requests);
}

void context_sum_gradients(Pass *pass, void *dqkv) {
    const Shape *s = pass->shape;
    CommRequest requests[CONTEXT_PIECES] = {0};
    for (int i = 0; i < s->pieces && s->context_ranks > 1; i++) {
        Keys keys = keys_of_(pass, i);
        Comm *comm = pass->context[i];
        if (comm->reduce_scatter(comm, pass->dkeys + keys.own, pass->dkeys + keys.half, keys.count, COMM_FLOAT,
                                 &requests[i], pass->err) != 0)
            requests[i].active = false;
    }
    context_wait_(pass, requests);
    for (int i = 0; i < s->pieces; i++) {
        Keys keys = keys_of_(pass, i);
        pass->be->copy_columns(pass->be, (char *)dqkv + keys.column * s->element, s->qkv_cols, pass->dkeys + keys.own,
                               keys.cols, true, keys.rows, keys.cols);
    }
}

// Collectives of context ranks over keys and values, see context.h. The two halves of a sequence are exchanged one
// after the other, because they need the same links and multiprocessors.
#include "context.h"

int64_t context_row(const Shape *s, int64_t position) {
    int64_t length = s->seq / s->pieces;
    for (int i = 0; i < s->pieces; i++) {
        int64_t within = position - context_place(s, i);
        if (within >= 0 && within < length) return (i * length + within) * s->batch;
    }
    return -1;
}

// Keys and values of one piece: shape, offset in qkv, and offsets of the half and of the piece in the gathered keys.
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

void context_gather_keys(Pass *pass, const void *qkv) {
    const Shape *s = pass->shape;
    char *all = pass->keys;
    for (int i = 0; i < s->pieces; i++) {
        Keys keys = keys_of_(pass, i);
        char *own = all + keys.own * s->element;
        pass->be->copy_columns(pass->be, own, keys.cols, (const char *)qkv + keys.column * s->element, s->qkv_cols,
                               false, keys.rows, keys.cols);
        if (s->context_ranks == 1) return;
        pass_collective(pass, pass->context[i], COMM_ALL_GATHER, all + keys.half * s->element, own, keys.count,
                        s->element == 2 ? COMM_BF16 : COMM_FLOAT);
    }
}

void context_sum_gradients(Pass *pass, void *dqkv) {
    const Shape *s = pass->shape;
    for (int i = 0; i < s->pieces; i++) {
        Keys keys = keys_of_(pass, i);
        float *own = pass->dkeys + keys.own;
        if (s->context_ranks > 1)
            pass_collective(pass, pass->context[i], COMM_REDUCE_SCATTER, own, pass->dkeys + keys.half, keys.count,
                            COMM_FLOAT);
        pass->be->copy_columns(pass->be, (char *)dqkv + keys.column * s->element, s->qkv_cols, own, keys.cols, true,
                               keys.rows, keys.cols);
    }
}

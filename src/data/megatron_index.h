// The index of a token file of Megatron-LM: NAME.idx next to NAME.bin (megatron/core/datasets/indexed_dataset.py).
//
//     offset  bytes          contents, little-endian
//     0       9              "MMIDIDX", two zero bytes
//     9       8              version, 1
//     17      1              type of a token: 4 int32, 8 uint16 (the other codes hold no token ids of ours)
//     18      8, 8           number of sequences S, number of document bounds D
//     34      4 S            tokens of each sequence, int32
//             8 S            byte offset of each sequence in NAME.bin, int64
//             8 D            sequence with which each document begins, and S, int64
//             S or nothing   mode of each sequence
#pragma once

#include "base/log.h"

#include <stdint.h>

typedef struct MegatronIndex {
    int width;      // bytes of a token: 2 or 4
    int64_t tokens; // in NAME.bin
} MegatronIndex;

// Reads the index next to the token file `path` of `bytes` bytes. Checks that it describes exactly those bytes. Returns
// 1 if it was read, 0 if it is missing, -1 with err if it is damaged or belongs to another file.
int megatron_index_read(MegatronIndex *index, const char *path, int64_t bytes, Error *err);

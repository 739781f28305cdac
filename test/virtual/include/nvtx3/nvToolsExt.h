// Ranges for profilers: there is none here.
#ifndef VIRTUAL_NVTX_H
#define VIRTUAL_NVTX_H

static inline int nvtxRangePushA(const char *) {
    return 0;
}
static inline int nvtxRangePop(void) {
    return 0;
}

#endif

// tool_optimal STAGES MICROBATCHES CHUNKS split|fused SLOTS [loop]: the least idle time of any such schedule, in units
// of one F of a chunk, by exhaustive search. Chunks lie in a V unless `loop` is given.
#include "optimal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
    bool loop = argc == 7 && strcmp(argv[6], "loop") == 0;
    if (argc != 6 && !loop) {
        fprintf(stderr, "usage: tool_optimal STAGES MICROBATCHES CHUNKS split|fused SLOTS [loop]\n");
        return 2;
    }
    OptimalAsk ask = {atoi(argv[1]), atoi(argv[2]), atoi(argv[3]), strcmp(argv[4], "split") == 0, atoi(argv[5]), loop};
    long states;
    int idle = optimal_idle(&ask, 6 * ask.stages * ask.chunks, &states);
    if (idle < 0)
        printf("none (%ld states)\n", states);
    else
        printf("%d (%ld states)\n", idle, states);
    return idle < 0;
}

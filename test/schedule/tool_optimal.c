// tool_optimal STAGES MICROBATCHES CHUNKS split|fused SLOTS: the least idle time of any such schedule, in units of one
// F of a chunk, by exhaustive search. CHUNKS is 1, or 2 in a V.
#include "optimal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
    if (argc != 6) {
        fprintf(stderr, "usage: tool_optimal STAGES MICROBATCHES CHUNKS split|fused SLOTS\n");
        return 2;
    }
    OptimalAsk ask = {atoi(argv[1]), atoi(argv[2]), atoi(argv[3]), strcmp(argv[4], "split") == 0, atoi(argv[5])};
    long states;
    int idle = optimal_idle(&ask, 6 * ask.stages * ask.chunks, &states);
    if (idle < 0)
        printf("none (%ld states)\n", states);
    else
        printf("%d (%ld states)\n", idle, states);
    return idle < 0;
}

// Sums the seconds of the last steps and compares them. Example with one rank per stage: planned forward times of
// 10, 10, 12 and measured times of 21, 20, 28 give ratios of 2.1, 2.0 and 2.33. The median, 2.1, is the error of the
// plan for all ranks. So the third rank is expected to need 12 * 2.1 = 25.2; it needs 28: +11 %.
#include "slowest.h"

#include "base/alloc.h"
#include "base/units.h"

#include <stdlib.h>
#include <string.h>

struct Slowest {
    int ranks;
    long steps;
    int *peers;           // [ranks]
    RankSeconds *planned; // [ranks]
    RankSeconds *window;  // [SLOWEST_WINDOW][ranks]
    double step_seconds[SLOWEST_WINDOW];
    double *sorted; // [ranks]
};

Slowest *slowest_create(int ranks, const RankSeconds *planned, const int *peers) {
    Slowest *slowest = xcalloc(1, sizeof *slowest);
    size_t count = (size_t)ranks;
    slowest->ranks = ranks;
    slowest->planned = xmalloc(count * sizeof *planned);
    slowest->peers = xmalloc(count * sizeof *peers);
    slowest->window = xcalloc(SLOWEST_WINDOW * count, sizeof *slowest->window);
    slowest->sorted = xmalloc(count * sizeof *slowest->sorted);
    memcpy(slowest->planned, planned, count * sizeof *planned);
    memcpy(slowest->peers, peers, count * sizeof *peers);
    return slowest;
}

void slowest_destroy(Slowest *slowest) {
    if (slowest == NULL) return;
    free_all(slowest->planned, slowest->peers, slowest->window, slowest->sorted, slowest);
}

void slowest_add(Slowest *slowest, const RankSeconds *seconds, double step_seconds) {
    long at = slowest->steps++ % SLOWEST_WINDOW;
    memcpy(slowest->window + at * slowest->ranks, seconds, (size_t)slowest->ranks * sizeof *seconds);
    slowest->step_seconds[at] = step_seconds;
}

static double sum_of_(const Slowest *slowest, int rank, SlowestPart part) {
    double sum = 0.0;
    for (int i = 0; i < SLOWEST_WINDOW; i++) sum += slowest->window[i * slowest->ranks + rank].part[part];
    return sum;
}

// Returns the median, or 0 for fewer than two values. Of two middle values, returns the lower one, so that the slower
// rank of a pair exceeds the median.
static double median_(double *values, int count) {
    if (count < 2) return 0.0;
    qsort(values, (size_t)count, sizeof *values, compare_doubles);
    return values[(count - 1) / 2];
}

// The expected time of a rank is the median of all ranks with the same work. If no other rank has the same work, it is
// the rank's planned time times the median of actual / planned over all ranks; 0: unknown.
bool slowest_find(const Slowest *slowest, SlowestRank *found) {
    double steps = 0.0, worst = 0.0, *sorted = slowest->sorted;
    *found = (SlowestRank){.rank = -1};
    if (slowest->steps < SLOWEST_WINDOW) return false;
    for (int i = 0; i < SLOWEST_WINDOW; i++) steps += slowest->step_seconds[i];
    for (int rank = 0; rank < slowest->ranks; rank++)
        for (SlowestPart part = SLOWEST_FORWARD; part < SLOWEST_PARTS; part++) {
            int alike = 0, planned = 0;
            for (int r = 0; r < slowest->ranks; r++)
                if (slowest->peers[r] == slowest->peers[rank]) sorted[alike++] = sum_of_(slowest, r, part);
            double expected = median_(sorted, alike);
            for (int r = 0; alike < 2 && r < slowest->ranks; r++)
                if (slowest->planned[r].part[part] > 0.0)
                    sorted[planned++] = sum_of_(slowest, r, part) / slowest->planned[r].part[part];
            if (alike < 2) expected = slowest->planned[rank].part[part] * median_(sorted, planned);
            double lost = sum_of_(slowest, rank, part) - expected;
            if (expected <= 0.0 || lost <= worst) continue;
            worst = lost;
            *found = (SlowestRank){rank, part, lost / expected, lost / steps};
        }
    return found->rank >= 0;
}

// Sums the seconds of the last steps and compares them. Example with one rank per stage: planned forward times of
// 10, 10, 12 and measured times of 21, 20, 28 give ratios of 2.1, 2.0 and 2.33. The median, 2.1, is the error of the
// plan for all ranks. So the third rank is expected to need 12 * 2.1 = 25.2; it needs 28: +11 %.
#include "slowest.h"

#include "base/alloc.h"
#include "base/units.h"

#include <stdlib.h>
#include <string.h>

Slowest *slowest_create(int ranks) {
    Slowest *slowest = xcalloc(1, sizeof *slowest);
    size_t count = (size_t)ranks;
    slowest->ranks = ranks;
    slowest->planned = xcalloc(count, sizeof *slowest->planned);
    slowest->peers = xcalloc(count, sizeof *slowest->peers);
    slowest->window = xcalloc(SLOWEST_WINDOW * count, sizeof *slowest->window);
    slowest->sum = xcalloc(count, sizeof *slowest->sum);
    slowest->sorted = xcalloc(count, sizeof *slowest->sorted);
    return slowest;
}

void slowest_destroy(Slowest *slowest) {
    if (slowest == NULL) return;
    free_all(slowest->planned, slowest->peers, slowest->window, slowest->sum, slowest->sorted, slowest);
}

RankSeconds *slowest_add(Slowest *slowest, double step_seconds) {
    long at = slowest->steps++ % SLOWEST_WINDOW;
    slowest->step_seconds[at] = step_seconds;
    return slowest->window + at * slowest->ranks;
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
bool slowest_find(Slowest *slowest, SlowestRank *found) {
    double steps = 0.0, worst = 0.0, *sum = slowest->sum, *sorted = slowest->sorted;
    *found = (SlowestRank){.rank = -1};
    if (slowest->steps < SLOWEST_WINDOW) return false;
    for (int i = 0; i < SLOWEST_WINDOW; i++) steps += slowest->step_seconds[i];
    for (SlowestPart part = SLOWEST_FORWARD; part < SLOWEST_PARTS; part++) {
        memset(sum, 0, (size_t)slowest->ranks * sizeof *sum);
        for (int i = 0; i < SLOWEST_WINDOW * slowest->ranks; i++)
            sum[i % slowest->ranks] += slowest->window[i].part[part];
        for (int rank = 0; rank < slowest->ranks; rank++) {
            int count = 0;
            double unit = 1.0; // of the values in `sorted`, for this rank
            for (int r = 0; r < slowest->ranks; r++)
                if (slowest->peers[r] == slowest->peers[rank]) sorted[count++] = sum[r];
            if (count < 2) {
                count = 0, unit = slowest->planned[rank].part[part];
                for (int r = 0; r < slowest->ranks; r++)
                    if (slowest->planned[r].part[part] > 0.0) sorted[count++] = sum[r] / slowest->planned[r].part[part];
            }
            double expected = unit * median_(sorted, count), lost = sum[rank] - expected;
            if (expected <= 0.0 || lost <= worst) continue;
            worst = lost;
            *found = (SlowestRank){rank, part, lost / expected, lost / steps};
        }
    }
    return found->rank >= 0;
}

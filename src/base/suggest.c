// Finds the nearest of a list of words by edit distance, for "did you mean". Case is ignored: people also write "1F1B".
#include "suggest.h"
#include "units.h"

#include <ctype.h>
#include <limits.h>
#include <string.h>

enum { MAX_WORD = 63 };

static bool suggest_same_(char a, char b) { return tolower((unsigned char)a) == tolower((unsigned char)b); }

int suggest_distance(const char *a, const char *b) {
    int na = (int)strnlen(a, MAX_WORD + 1), nb = (int)strnlen(b, MAX_WORD + 1);
    if (na > MAX_WORD || nb > MAX_WORD) return INT_MAX;
    int d[MAX_WORD + 1][MAX_WORD + 1]; // d[i][j]: the first i letters of a against the first j of b
    for (int i = 0; i <= na; i++) d[i][0] = i;
    for (int j = 0; j <= nb; j++) d[0][j] = j;
    for (int i = 1; i <= na; i++) {
        for (int j = 1; j <= nb; j++) {
            int replace = d[i - 1][j - 1] + !suggest_same_(a[i - 1], b[j - 1]);
            d[i][j] = min_int(replace, 1 + min_int(d[i - 1][j], d[i][j - 1]));
            bool swapped = i > 1 && j > 1 && suggest_same_(a[i - 1], b[j - 2]) && suggest_same_(a[i - 2], b[j - 1]);
            if (swapped) d[i][j] = min_int(d[i][j], d[i - 2][j - 2] + 1);
        }
    }
    return d[na][nb];
}

bool suggest_nearer(const char *typed, const char *known, int *best) {
    int distance = suggest_distance(typed, known);
    // A third of the letters may be wrong, but only one in a short word, which would otherwise resemble too many.
    int allowed = (int)strnlen(known, MAX_WORD) / 3;
    if (allowed < 1) allowed = 1;
    if (distance > allowed || distance >= *best) return false;
    *best = distance;
    return true;
}

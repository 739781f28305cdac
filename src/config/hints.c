// The nearest of our keys to an unknown one.
#include "hints.h"

#include "base/units.h"
#include "config_schema.h"

#include <ctype.h>
#include <limits.h>
#include <string.h>

const char *hint_near_key(const char *name) {
    const char *near = NULL, *dot = strrchr(name, '.');
    int best = INT_MAX;
    for (int i = 0; i < config_key_count; i++) {
        const ConfigKey *key = &config_keys[i];
        size_t section = (size_t)(config_short_name(key) - key->name);
        const char *typed = strncmp(name, key->name, section) == 0 ? name + section : name;
        if (suggest_nearer(typed, typed == name ? key->name : config_short_name(key), &best)) near = key->name;
    }
    for (int i = 0; near == NULL && i < config_key_count; i++)
        if (suggest_nearer(dot != NULL ? dot + 1 : name, config_short_name(&config_keys[i]), &best))
            near = config_keys[i].name;
    return near;
}

bool hint_for_option(const char *typed, const char *next, char *out, size_t size) {
    char name[80];
    bool dashes = typed[0] == '-';
    const char *equals = strchr(typed, '=');
    if (!dashes && equals == NULL) return false;
    const char *value = equals != NULL ? equals + 1 : next != NULL && next[0] != '-' ? next : "VALUE";
    typed += strspn(typed, "-");
    snprintf(name, sizeof name, "%.*s", (int)strcspn(typed, "="), typed);
    for (char *at = name; *at != '\0'; at++)
        if (*at == '-') *at = '_';
    const char *near = hint_near_key(name);
    if (near == NULL || (strchr(name, '.') == NULL && strcmp(name, strchr(near, '.') + 1) != 0)) return false;
    snprintf(out, size, "%s; write -o %s=%.60s", dashes ? "no such option" : "is not an option", near, value);
    return true;
}

// --- "did you mean": the nearest of a list of words. Case is ignored: people also write "1F1B".

enum { MAX_WORD = 63 };

static bool suggest_same_(char a, char b) { return tolower((unsigned char)a) == tolower((unsigned char)b); }

int suggest_distance(const char *a, const char *b) {
    int na = (int)strnlen(a, MAX_WORD + 1), nb = (int)strnlen(b, MAX_WORD + 1);
    if (na > MAX_WORD || nb > MAX_WORD) return INT_MAX;
    int d[MAX_WORD + 1][MAX_WORD + 1]; // d[i][j]: distance of the first i letters of a and the first j of b
    for (int i = 0; i <= na; i++) d[i][0] = i;
    for (int j = 0; j <= nb; j++) d[0][j] = j;
    for (int i = 1; i <= na; i++)
        for (int j = 1; j <= nb; j++) {
            int replace = d[i - 1][j - 1] + !suggest_same_(a[i - 1], b[j - 1]);
            d[i][j] = min_int(replace, 1 + min_int(d[i - 1][j], d[i][j - 1]));
            bool swapped = i > 1 && j > 1 && suggest_same_(a[i - 1], b[j - 2]) && suggest_same_(a[i - 2], b[j - 1]);
            if (swapped) d[i][j] = min_int(d[i][j], d[i - 2][j - 2] + 1);
        }
    return d[na][nb];
}

bool suggest_nearer(const char *typed, const char *known, int *best) {
    int distance = suggest_distance(typed, known);
    // Up to a third of the letters may be wrong, but always at least one.
    int allowed = (int)strnlen(known, MAX_WORD) / 3;
    if (allowed < 1) allowed = 1;
    if (distance > allowed || distance >= *best) return false;
    *best = distance;
    return true;
}

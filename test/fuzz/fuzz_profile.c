// profile.json: reads it, writes it, reads it again, and computes times from it.
#include "fuzz.h"

#include "plan/profile.h"

#include <math.h>

static void ask_(const Profile *profile) {
    for (int i = 0; i < 16; i++) {
        StageChunk at = {.layers = 1 + i, .first = i % 2 == 0, .last = i % 3 == 0};
        AttentionShape attention = {.batch = 1 + i % 5, .mode = i % 3};
        double time[TIMED_ACTIONS];
        if (profile_chunk_time(profile, &attention, &at, time))
            PROMISE(time[TIMED_FORWARD] > 0 && time[TIMED_BACKWARD] > 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Profile profile, again;
    Error err = {0};
    int status = profile_read(&profile, fuzz_file("profile.json", data, size), &err);
    PROMISE(status == 0 ? err.code == 0 : err.code != 0 && strstr(err.text, "profile.json: ") != NULL);
    if (status != 0) return 0;
    ask_(&profile);
    const char *path = fuzz_file("again.json", "", 0);
    PROMISE(profile_write(&profile, path, &err) == 0);
    PROMISE(profile_read(&again, path, &err) == 0 && again.count == profile.count);
    for (int64_t i = 0; i < profile.count; i++) PROMISE(isfinite(again.stages[i].seconds[TIMED_FORWARD]));
    profile_free(&again);
    profile_free(&profile);
    return 0;
}

// A schedule's text: parses it, checks it, and compares the written text with the input.
#include "fuzz.h"

#include "bpipe.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Error err = {0};
    char *text = strndup((const char *)data, size);
    Schedule *schedule = schedule_parse(text, &err);
    free(text);
    PROMISE(schedule != NULL ? err.code == 0 : err.code != 0 && err.text[0] != '\0');
    if (schedule == NULL) return 0;
    int sound = schedule_check(schedule, &err);
    PROMISE(sound == 0 || err.text[0] != '\0');
    char *once = unit_written(PROMISE(schedule_write(schedule, file) == 0));
    Schedule *again = schedule_parse(once, NULL);
    PROMISE(again != NULL && (sound != 0 || schedule_check(again, NULL) == 0));
    char *twice = unit_written(PROMISE(schedule_write(again, file) == 0));
    PROMISE(strcmp(once, twice) == 0);
    free(once);
    free(twice);
    schedule_free(schedule);
    schedule_free(again);
    return 0;
}

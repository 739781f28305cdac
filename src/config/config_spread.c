// Reads from the metrics file of a run how unevenly its experts were chosen, for hardware.expert_spread.
#include "config_schema.h"
#include "base/alloc.h"
#include "base/files.h"
#include "base/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int config_read_spread(const char *path, double *spread, Error *err) {
    enum { LATEST = 16 << 20 };
    int64_t bytes, steps = 0;
    int fd = file_open(path, &bytes, err);
    if (fd < 0) return -1;
    // 1. the end of the file, from its first complete line
    int64_t length = bytes < LATEST ? bytes : LATEST;
    char *text = xmalloc((size_t)length + 1);
    int status = file_read(fd, path, bytes - length, text, length, err);
    close(fd);
    text[status == 0 ? length : 0] = '\0';
    const char *cut = length < bytes ? strchr(text, '\n') : NULL, *line = cut != NULL ? cut + 1 : text;
    // 2. the figure of every step; a run that writes at this moment may not have ended its last line
    double sum = 0;
    for (const char *end; status == 0 && (end = strchr(line, '\n')) != NULL; line = end + 1) {
        Json json;
        status = json_parse(&json, line, end - line, path, NULL);
        if (status == 0 && json.root->type != JSON_OBJECT) status = -1;
        const JsonValue *found = status == 0 ? json_find(json_find(json.root, "experts"), "spread") : NULL;
        if (found != NULL && found->type == JSON_NUMBER) sum += found->number, steps++;
        if (status != 0) error_set(err, EXIT_USAGE, "%s is not the log.metrics file of a run", path);
        json_free(&json);
    }
    free(text);
    if (status != 0) return -1;
    if (steps == 0) return error_set(err, EXIT_USAGE, "%s has no step of a model with experts", path);
    *spread = fmax(sum / (double)steps, 1e-6); // 0 means auto
    return 0;
}

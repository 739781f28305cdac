#include "processes.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static FILE *processes_open_(pid_t pid, const char *name) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    return fopen(path, "re");
}

void processes_each(pid_t above, void (*visit)(pid_t pid, void *context), void *context) {
    DIR *processes = opendir("/proc"); // which lists them in the order of their ids
    if (processes == NULL) return;
    for (struct dirent *entry; (entry = readdir(processes)) != NULL;) {
        pid_t pid = (pid_t)atoi(entry->d_name);
        if (pid > above && pid > 0) visit(pid, context);
    }
    closedir(processes);
}

pid_t process_parent(pid_t pid) {
    char line[512];
    int parent = 0;
    FILE *file = processes_open_(pid, "stat");
    if (file == NULL) return 0;
    size_t length = fread(line, 1, sizeof line - 1, file);
    fclose(file);
    line[length] = '\0';
    // "PID (NAME) STATE PARENT ...", and the name may have brackets and blanks in it.
    const char *name_end = strrchr(line, ')');
    return name_end != NULL && sscanf(name_end, ") %*c %d", &parent) == 1 ? (pid_t)parent : 0;
}

bool process_variable(pid_t pid, const char *name, char *value, size_t size) {
    FILE *file = processes_open_(pid, "environ");
    if (file == NULL) return false;
    char *entry = NULL;
    size_t capacity = 0, length = strlen(name);
    bool found = false;
    while (!found && getdelim(&entry, &capacity, '\0', file) > 0) {
        if (strncmp(entry, name, length) != 0 || entry[length] != '=') continue;
        found = true;
        if (snprintf(value, size, "%s", entry + length + 1) >= (int)size) break;
    }
    found = found && strcmp(value, entry + length + 1) == 0;
    free(entry);
    fclose(file);
    return found;
}

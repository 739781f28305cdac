// What `--version` prints: the version in the first line, then what is built in, one line each.
#ifndef VERSION_REPORT_H
#define VERSION_REPORT_H

#include <stdio.h>

void version_report(const char *program, FILE *file);

#endif

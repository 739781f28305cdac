// The manual page of a trainer: the tables of options and of configuration keys as roff, for man(1).
#ifndef MANUAL_H
#define MANUAL_H

#include <stdio.h>

// Writes the page. `program` is the trainer's name, without directories.
void manual_write(const char *program, FILE *file);

#endif

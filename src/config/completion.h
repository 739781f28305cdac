// Completion for shells, from the tables of options and of configuration keys: options, files where a file is meant,
// and after -o the keys and, where a key has a closed set of them, its values.
#ifndef COMPLETION_H
#define COMPLETION_H

#include <stdio.h>

// The script for `shell`, "bash" or "zsh" as in the option's table; to be sourced, or put where the shell looks for it.
void completion_write(const char *program, const char *shell, FILE *file);

#endif

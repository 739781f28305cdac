// Completion for shells, from the tables of options and of configuration keys: options, files where one is expected,
// and after -o the keys and the values of those keys that have a closed set.
#ifndef COMPLETION_H
#define COMPLETION_H

#include <stdio.h>

// Writes the script for `shell`, "bash" or "zsh". Users source it or put it where the shell looks for completions.
void completion_write(const char *program, const char *shell, FILE *file);

#endif

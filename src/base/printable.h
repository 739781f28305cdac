// Makes text from files and other programs fit for a terminal.
#ifndef PRINTABLE_H
#define PRINTABLE_H

#include <stddef.h>

// Replaces in place every character that could move the cursor, forge a line or reorder the text by one '?': control
// characters (C0, DEL, C1), marks of writing direction, line and paragraph separators, and bytes that are not UTF-8.
// `keep` lists control characters to leave alone, such as "\n\t". Returns the new length, which is never larger.
size_t text_make_printable(char *text, size_t length, const char *keep);

#endif

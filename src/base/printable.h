// Text from files and other programs, made fit for a terminal.
#ifndef PRINTABLE_H
#define PRINTABLE_H

#include <stddef.h>

// Replaces in place what could move the cursor, forge a line or reorder the text by '?', one for each character: control characters
// (C0, DEL, C1), marks of writing direction, line and paragraph separators, and bytes that are no UTF-8. `keep`: control characters to
// leave as they are, such as "\n\t". Returns the new length, which is never larger.
size_t text_make_printable(char *text, size_t length, const char *keep);

#endif

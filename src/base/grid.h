// Human-readable figures: small tables with aligned columns, thousands separators, and bytes in MiB or GiB.
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { GRID_COLUMNS = 16, GRID_CELL = 72, GRID_WIDTH = 120, GRID_LINE = 100 };

// Rows of text cells; the first row is the heading. Owns its cells (grid_free). A zeroed Grid is empty.
typedef struct Grid {
    char (*cells)[GRID_CELL];
    int64_t count;
    int columns; // 1 .. GRID_COLUMNS, set before the first cell
    int width;   // 0: GRID_WIDTH
} Grid;

// Adds the next cell, row by row. Text is cut to GRID_CELL - 1 bytes.
void grid_cell(Grid *grid, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Removes a column if the table is wider than its width.
void grid_fit(Grid *grid, int column);

// Prints the rows, two spaces between columns. A column is aligned right if every cell under its heading begins with a
// digit or is "-", else left. An incomplete last row is omitted. A table wider than its width is split into several
// tables, and each repeats the first column.
void grid_print(const Grid *grid, FILE *file);

// Prints `label` followed by a text, wrapped at GRID_LINE; continuation lines are aligned with the start of the text.
void grid_line(FILE *file, const char *label, const char *format, ...) __attribute__((format(printf, 3, 4)));

// Returns the number of lines of a text.
int grid_lines(const char *text);

void grid_free(Grid *grid);

// Returns "" for one thing, "s" for several.
static inline const char *grid_plural(int64_t count) { return count == 1 ? "" : "s"; }

// Writes "65,285,660,672" into `text` and returns it.
char *grid_count(int64_t value, char text[32]);

// Writes a value with three digits, as "3.41", or from 1,000 to 1e15 as "12,345". Returns `text`.
char *grid_amount(double value, char text[32]);

// Writes "1.92 GiB", or below one GiB "34.1 MiB", into `text` and returns it.
char *grid_bytes(int64_t bytes, char text[32]);
// Writes "15.20 s", or below ten seconds "9511.1 ms", into `text` and returns it.
char *grid_seconds(double seconds, char text[32]);

// The unit of all byte counts in a table: GiB if the largest count is at least 1 GiB, else MiB.
typedef struct GridUnit {
    const char *name;
    double bytes;
    int digits; // digits after the decimal point
} GridUnit;

GridUnit grid_unit(int64_t largest);

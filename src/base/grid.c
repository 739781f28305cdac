#include "grid.h"
#include "alloc.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

void grid_cell(Grid *grid, const char *format, ...) {
    if (grid->failed) return;
    if (grid->count == grid->capacity) {
        int64_t capacity = grid->capacity == 0 ? 128 : 2 * grid->capacity;
        char(*cells)[GRID_CELL] = xrealloc(grid->cells, (size_t)capacity * sizeof *cells);
        grid->failed = cells == NULL;
        if (grid->failed) return;
        grid->cells = cells;
        grid->capacity = capacity;
    }
    va_list args;
    va_start(args, format);
    vsnprintf(grid->cells[grid->count++], GRID_CELL, format, args);
    va_end(args);
}

typedef struct Column {
    int width;
    bool right;
} Column;

static void grid_measure_(const Grid *grid, int64_t count, Column *columns) {
    for (int c = 0; c < grid->columns; c++) columns[c] = (Column){0, true};
    for (int64_t i = 0; i < count; i++) {
        const char *cell = grid->cells[i];
        Column *column = &columns[i % grid->columns];
        int width = (int)strlen(cell);
        if (width > column->width) column->width = width;
        bool number = isdigit((unsigned char)cell[0]) || strcmp(cell, "-") == 0;
        if (i >= grid->columns && !number) column->right = false;
    }
}

void grid_print(const Grid *grid, FILE *file) {
    Column columns[GRID_COLUMNS];
    if (grid->failed) return;
    int64_t whole = grid->count / grid->columns * grid->columns;
    grid_measure_(grid, whole, columns);
    for (int64_t i = 0; i < whole; i++) {
        int c = (int)(i % grid->columns), last = grid->columns - 1;
        int width = columns[c].right ? columns[c].width : c == last ? 0 : -columns[c].width;
        fprintf(file, "%*s%s", width, grid->cells[i], c == last ? "\n" : "  ");
    }
}

void grid_free(Grid *grid) {
    free(grid->cells);
    memset(grid, 0, sizeof *grid);
}

char *grid_count(int64_t value, char text[32]) {
    char digits[32];
    int length = snprintf(digits, sizeof digits, "%lld", (long long)value), used = 0;
    for (int i = 0; i < length; i++) {
        bool boundary = i > 0 && digits[i - 1] != '-' && (length - i) % 3 == 0;
        if (boundary) text[used++] = ',';
        text[used++] = digits[i];
    }
    text[used] = '\0';
    return text;
}

GridUnit grid_unit(int64_t largest) {
    const int64_t mib = 1 << 20, gib = 1 << 30;
    return largest >= gib ? (GridUnit){"GiB", (double)gib, 2} : (GridUnit){"MiB", (double)mib, 1};
}

char *grid_bytes(int64_t bytes, char text[32]) {
    GridUnit unit = grid_unit(bytes);
    snprintf(text, 32, "%.*f %s", unit.digits, (double)bytes / unit.bytes, unit.name);
    return text;
}

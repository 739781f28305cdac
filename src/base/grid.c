// Tables and labelled lines for people. Cells are formatted once and kept as text; column widths are computed when the
// table is printed, after all rows are known.
#include "grid.h"
#include "alloc.h"
#include "units.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

void grid_cell(Grid *grid, const char *format, ...) {
    grid->cells = xgrow(grid->cells, grid->count, sizeof *grid->cells);
    va_list args;
    va_start(args, format);
    vsnprintf(grid->cells[grid->count++], GRID_CELL, format, args);
    va_end(args);
}

typedef struct Column {
    int width;
    bool right;
} Column;

static void print_cell_(const Grid *grid, const Column *columns, int64_t row, int column, bool last, FILE *file) {
    int width = columns[column].right ? columns[column].width : last ? 0 : -columns[column].width;
    fprintf(file, "%*s%s", width, grid->cells[row * grid->columns + column], last ? "\n" : "  ");
}

// Returns the width of the table.
static int measure_(const Grid *grid, Column columns[GRID_COLUMNS]) {
    int64_t rows = grid->count / grid->columns;
    int width = -2;
    for (int c = 0; c < grid->columns; c++) columns[c] = (Column){0, true};
    for (int64_t i = 0; i < rows * grid->columns; i++) {
        const char *cell = grid->cells[i];
        Column *column = &columns[i % grid->columns];
        column->width = max_int(column->width, (int)strlen(cell));
        const char *after = cell + strspn(cell, "0123456789"); // "1F1B" is a word, "10B" a number
        bool word = after == cell || (isupper((unsigned char)*after) && after[1] != '\0');
        bool number = !word || strcmp(cell, "-") == 0;
        if (i >= grid->columns && !number) column->right = false;
    }
    for (int c = 0; c < grid->columns; c++) width += 2 + columns[c].width;
    return width;
}

void grid_fit(Grid *grid, int column) {
    Column columns[GRID_COLUMNS];
    if (measure_(grid, columns) <= (grid->width > 0 ? grid->width : GRID_WIDTH)) return;
    int64_t kept = 0;
    for (int64_t i = 0; i < grid->count; i++)
        if (i % grid->columns != column) memmove(grid->cells[kept++], grid->cells[i], GRID_CELL);
    grid->count = kept, grid->columns--;
}

void grid_print(const Grid *grid, FILE *file) {
    Column columns[GRID_COLUMNS];
    int64_t rows = grid->count / grid->columns;
    int most = grid->width > 0 ? grid->width : GRID_WIDTH;
    measure_(grid, columns);
    for (int begin = 0, end; begin < grid->columns; begin = end) {
        // A block: the columns from `begin` on that fit next to the first column, at least one.
        int width = columns[0].width;
        for (end = begin; end < grid->columns; end++) {
            if (end > 0) width += 2 + columns[end].width;
            if (width > most && end > begin) break;
        }
        for (int64_t row = 0; row < rows; row++) {
            if (begin > 0) print_cell_(grid, columns, row, 0, false, file);
            for (int c = begin; c < end; c++) print_cell_(grid, columns, row, c, c == end - 1, file);
        }
    }
}

void grid_line(FILE *file, const char *label, const char *format, ...) {
    enum { INDENT = 10 };
    char text[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    const char *at = text;
    do {
        // Cut at the last space that fits, or after the first word if that word is longer than the line. "-o KEY=VALUE"
        // and "5 %" stay together.
        int length = (int)strlen(at), most = GRID_LINE - INDENT;
        if (length > most) {
            for (length = most; length > 0; length--)
                if (at[length] == ' ' && at[length + 1] != '%' &&
                    (length < 2 || strncmp(at + length - 2, "-o", 2) != 0))
                    break;
            if (length == 0) length = (int)strcspn(at, " ");
        }
        fprintf(file, "%-*s%.*s\n", INDENT, at == text ? label : "", length, at);
        at += length;
        at += *at == ' ';
    } while (*at != '\0');
}

int grid_lines(const char *text) {
    int lines = 0;
    for (; *text != '\0'; text++) lines += *text == '\n';
    return lines;
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

char *grid_amount(double value, char text[32]) {
    if (value >= 999.5 && value < 1e15) return grid_count((int64_t)(value + 0.5), text);
    snprintf(text, 32, "%.3g", value);
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

char *grid_seconds(double seconds, char text[32]) {
    snprintf(text, 32, seconds >= 10 ? "%.2f s" : "%.1f ms", seconds >= 10 ? seconds : 1e3 * seconds);
    return text;
}

#pragma once

#include <stdio.h>

// The text that a statement writes to `file`; free it.
#define unit_written(statement)                                                                                        \
    ({                                                                                                                 \
        char *text_ = NULL;                                                                                            \
        size_t length_ = 0;                                                                                            \
        FILE *file = open_memstream(&text_, &length_);                                                                 \
        statement;                                                                                                     \
        fclose(file);                                                                                                  \
        text_;                                                                                                         \
    })

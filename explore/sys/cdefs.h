// Emscripten's C library lacks this header of glibc. The page is built from C, where both macros are empty.
#ifndef CDEFS_H
#define CDEFS_H

#define __BEGIN_DECLS
#define __END_DECLS

#endif

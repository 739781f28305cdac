// Included before every source that is compiled for the page: declares functions that emscripten's C library lacks.
// explore.c defines them. A plan never calls them.
#ifndef BROWSER_H
#define BROWSER_H

enum { SYS_sched_setattr = 314 };
enum { RENAME_NOREPLACE = 1, RENAME_EXCHANGE = 2 };

int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags);
long syscall(long number, ...);

#endif

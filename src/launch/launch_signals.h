// Signals to the parent, one byte each, in a pipe that it polls. They are caught and not blocked: libraries start threads before ranks are
// started (planning for schedule.bpipe: auto does), a thread blocks only what it was born with, and a signal to the process goes to any
// thread that does not block it; the end of mpirun would be lost there.
#ifndef LAUNCH_SIGNALS_H
#define LAUNCH_SIGNALS_H

#include "base/log.h"

// Catches CHLD, TERM, USR1 and, unless they are ignored, INT and HUP. The file to read bytes from, each the number of a signal; it never
// blocks. -1 with err. Once at a time.
int launch_signals_open(Error *err);

// As before.
void launch_signals_close(void);

#endif

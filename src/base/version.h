// The program's version and date, defined only here, for `--version`, the manual page, `make dist` and metrics files.
#pragma once

#define VERSION      "0.2.0"
#define VERSION_DATE "2026-11-22"

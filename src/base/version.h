// The program's version and its date, defined only here, for `--version`, the manual page, `make dist`, and the first
// line of every metrics file.
#pragma once

#define VERSION      "0.2.0"
#define VERSION_DATE "2026-11-22"

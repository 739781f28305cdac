// The one place that says which version this is and when it was made: `--version`, the manual page, `make dist`, and
// the first line of every metrics file.
#pragma once

#define VERSION      "0.2.0"
#define VERSION_DATE "2026-11-22"

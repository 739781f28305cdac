// The one place that says which version this is: `--version`, and the first line of every metrics file.
#ifndef VERSION_H
#define VERSION_H

#define VERSION "0.1.0"

#endif

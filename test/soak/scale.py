#!/usr/bin/env python3
"""Starts and ends ever more ranks without MPI and without a model (test/ranks/ranks_scale.c), and prints what that
takes.

test/soak/scale.py [RANKS]...      64, 256 and 1024 by default; build/release/test/ranks_scale has to be built
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("TEST_PROGRAMS", ROOT / "build/release/test")) / "ranks_scale"


def main():
    for ranks in sys.argv[1:] or ["64", "256", "1024"]:
        subprocess.run([PROGRAM, ranks, "5"], check=True, timeout=600)


if __name__ == "__main__":
    main()

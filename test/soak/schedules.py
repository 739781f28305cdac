"""Every schedule of the table for 1 to 32 stages and every number of microbatches up to 256: proved, within its slots,
idle for as long as its formula says, and with BPipe. A third of a processor hour; one process for each core, a number
of stages each.
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TOOLS = Path(os.environ.get("TEST_PROGRAMS", "build/release/test"))
MOST_STAGES = 32


def look_at(stages):
    ended = subprocess.run([TOOLS / "test_kinds", "all", str(stages), str(stages)], capture_output=True, text=True,
                           check=False)
    print(f"{stages} stages: {'sound' if ended.returncode == 0 else ended.stdout + ended.stderr}", flush=True)
    return ended.returncode == 0


def main():
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return all(list(pool.map(look_at, range(MOST_STAGES, 0, -1))))


if __name__ == "__main__":
    sys.exit(not main())

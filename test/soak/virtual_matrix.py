"""Every case of test/support/virtual_runs.py on the virtual GPU, in three orders with five seeds each: the figures of
CPUs, and the same bits in every run.

VIRTUAL_CASES names some of them, separated by commas; VIRTUAL_SEEDS (5) is the number of seeds.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

import virtual_runs  # noqa: E402


def main():
    chosen = [name for name in os.environ.get("VIRTUAL_CASES", "").split(",") if name]
    seeds = [str(seed + 1) for seed in range(int(os.environ.get("VIRTUAL_SEEDS", "5")))]
    failed = 0
    for name, case in virtual_runs.CASES.items():
        if chosen and name not in chosen:
            continue
        began, wrong = time.monotonic(), None
        with tempfile.TemporaryDirectory() as folder:
            try:
                runs = len(virtual_runs.in_orders(Path(folder), case, seeds=seeds))
            except AssertionError as error:
                wrong = str(error)
        failed += wrong is not None
        said = f"failed: {wrong}" if wrong else f"{runs} runs in {time.monotonic() - began:.0f} s"
        print(f"{name}: {said}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

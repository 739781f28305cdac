#!/usr/bin/env python3
"""Kills a process of a four-stage run a hundred times at random moments, and compares the resumed pieces with an
undisturbed run.

    test/soak/kills.py [KILLS [SEED]] [--load N]

--load N: beside N processes that compute without a pause, which this script starts and ends. The run is shorter then,
since each of its steps has to wait for a core some hundred times.

Every kill has to end the job within ENDS_WITHIN seconds, whatever the load.
"""

import contextlib
import multiprocessing
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from harm import ENDS_WITHIN, Kills  # noqa: E402

STEPS_BESIDE_LOAD = 10

def compute():
    while True:
        sum(range(100000))


@contextlib.contextmanager
def load(processes):
    busy = [multiprocessing.Process(target=compute, daemon=True) for _ in range(processes)]
    for process in busy:
        process.start()
    try:
        yield
    finally:
        for process in busy:
            process.kill()


def main():
    words = sys.argv[1:]
    beside = 0
    if "--load" in words:
        at = words.index("--load")
        beside = int(words[at + 1])
        del words[at : at + 2]
    count = int(words[0]) if words else 100
    seed = int(words[1]) if len(words) > 1 else 1
    with load(beside), tempfile.TemporaryDirectory() as folder:
        kills = Kills(Path(folder), seed, steps=STEPS_BESIDE_LOAD if beside else 100, limit=ENDS_WITHIN)
        print(f"an undisturbed run takes {kills.lasts:.0f} s beside {beside} busy processes", flush=True)
        kills.many(count, lambda: print(kills.last, flush=True))
    named = ", ".join(f"{count} of {name}" for name, count in sorted(kills.of.items()))
    print(f"{kills.kills} kills ({named}), {kills.rounds} runs pieced together: the same bits as undisturbed")
    print(f"from a kill to the end and nothing left: {kills.mean:.1f} s on average, {kills.slowest:.1f} s at most")


if __name__ == "__main__":
    main()

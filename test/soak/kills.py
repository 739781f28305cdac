#!/usr/bin/env python3
"""Kills somebody of a four-stage run a hundred times at random moments, and compares what was pieced together with an undisturbed run.

    test/soak/kills.py [KILLS [SEED]]
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from harm import Kills  # noqa: E402


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    with tempfile.TemporaryDirectory() as folder:
        kills = Kills(Path(folder), seed)
        kills.many(count, lambda: print(f"\r{kills.kills}/{count} kills", end="", file=sys.stderr, flush=True))
    print(file=sys.stderr)
    named = ", ".join(f"{count} of {name}" for name, count in sorted(kills.of.items()))
    print(f"{kills.kills} kills ({named}), {kills.rounds} runs pieced together: the same bits as undisturbed")
    print(f"from a kill to the end and nothing left: {kills.mean:.1f} s on average, {kills.slowest:.1f} s at most")


if __name__ == "__main__":
    main()

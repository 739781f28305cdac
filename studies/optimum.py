#!/usr/bin/env python3
"""Finds the least idle time of any schedule by exhaustive search, for a few stages and microbatches.

    ./train_llama -c mine.yaml -o schedule.bpipe=off --schedule | studies/optimum.py [FILE]

Reads a schedule, and prints the least idle time for its stages, chunks, microbatches and slots. Compare it with the
idle time that --schedule reports. F, I and W of a chunk take one unit each, B takes two.
"""

import re
import sys
from itertools import product

from common import Failure
from run_files import finish

MOST_VIRTUAL, MOST_MICROBATCHES, MOST_STATES = 10, 100, 1_000_000
HEADER = r"# schedule \S+  stages (\d+)(?:  chunks (\d+)  placement (\w+))?  microbatches (\d+)  slots (\d+)[^:]*\n"


def least_idle(p, chunks, v, m, slots, split):
    """Searches depth-first over units of time. A state counts the F, I and W of each virtual stage, one byte each.
    A complete backward is two consecutive I. In a unit, every stage does one pass with available inputs, or nothing."""
    homes = [[c * p + (p - 1 - s if v and c % 2 else s) for c in range(chunks)] for s in range(p)]
    last, work, halves = p * chunks - 1, 3 * m * chunks, 1 if split else 2
    # The bytes that a stage's passes depend on: its own, F of the preceding virtual stage and I of the following one.
    near = [{3 * g + at for g in own for at in (-3, 0, 1, 2, 4)} for own in homes]
    masks = [sum(255 << 8 * at for at in places if 0 <= at <= 3 * last + 2) for places in near]
    known = [{} for _ in homes]

    def passes(state, own):
        """Returns the passes that a stage can do, whether it may wait instead, and the units of its remaining work.
        Waiting never helps if I, W, or F of its only chunk is possible: no other pass of the stage needs the slot."""
        f, i, w = ([state >> 8 * (3 * g + kind) & 255 for g in range(last + 2)] for kind in range(3))
        done, begun = [count // halves for count in i], [g for g in own if i[g] % halves]
        full = sum(f[g] - (w[g] if split else done[g]) for g in own) >= slots
        forward = [g for g in own if f[g] < m and (g == 0 or f[g - 1] > f[g]) and not full and not begun]
        back = begun or [g for g in own if f[g] > done[g] and (g == last or done[g + 1] > done[g])]
        weight = [g for g in own if split and w[g] < i[g]]
        found = [1 << 8 * (3 * g + kind) for kind, gs in ((1, back), (2, weight), (0, forward)) for g in gs]
        waits = not (back or weight or (forward and chunks == 1))
        return found, waits, work - sum(f[g] + i[g] + w[g] for g in own)

    def steps(state, units):
        """Returns the possible steps from a state; empty if a stage can no longer finish in that many units."""
        ways = []
        for s, own in enumerate(homes):
            seen = state & masks[s]
            if seen not in known[s]:
                known[s][seen] = passes(seen, own)
            found, waits, left = known[s][seen]
            ways.append([*found, 0] if waits and left < units else found)
        return product(*ways)

    idle, count = p - 2, 0
    path = []
    while not path:
        idle += 1
        met, path = set(), [(0, steps(0, work + idle))]
        while path and len(path) <= work + idle:
            state, ahead = path[-1]
            following = next((state + sum(step) for step in ahead), None)
            if following is None:
                path.pop()
            elif (following, len(path)) not in met:
                met.add((following, len(path)))
                path.append((following, steps(following, work + idle - len(path))))
                count += 1
            if count > MOST_STATES:
                raise Failure(f"no answer within {MOST_STATES} states; try 4 stages and 8 microbatches")
    return idle, idle / (work + idle)


def answer(path):
    with open(path or 0, encoding="ascii", errors="replace") as file:
        text = file.read()
    header = re.match(HEADER, text)
    if header is None or re.search(" [EALR]", text):
        raise Failure(f"{path or 'standard input'}: is not a schedule without evictions and slices; print one with "
                      "--schedule, schedule.bpipe=off and schedule.slices=1")
    p, chunks, m, slots = (int(header[i] or 1) for i in (1, 2, 4, 5))
    if p * chunks > MOST_VIRTUAL or m > MOST_MICROBATCHES:
        raise Failure(f"{p * chunks} chunks on all stages and {m} microbatches are too many to search; "
                      f"the limits are {MOST_VIRTUAL} and {MOST_MICROBATCHES}")
    units, share = least_idle(p, chunks, header[3] == "v", m, slots, " I" in text)
    print(f"the least idle time of a stage with {slots} slots: {units} units, {100 * share:.1f} %")


if __name__ == "__main__":
    sys.exit(finish("optimum.py", answer, sys.argv[1] if len(sys.argv) > 1 else None))

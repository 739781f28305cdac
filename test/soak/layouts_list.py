"""Random changes of a list of actions in text form. Most of them are unsound: the proof decides."""

import re


def changed(text, rng):
    """Returns the schedule with two neighbours swapped, one action moved, another number of slots or buffers, or a
    bundle evicted to the host or the partner and loaded again."""
    head, *lists = text.strip().split("\n")
    lists = [line.split() for line in lists]  # "stage", "0:", then the actions
    stage = rng.randrange(len(lists))
    actions = lists[stage][2:]
    kind, at = rng.choice(["swap", "swap", "move", "move", "number", "host", "host", "partner"]), len(actions)
    if kind == "swap":
        at = rng.randrange(at - 1)
        actions[at : at + 2] = reversed(actions[at : at + 2])
    elif kind == "move":
        action = actions.pop(rng.randrange(at))
        actions.insert(rng.randrange(at), action)
    elif kind == "number":
        name, number = rng.choice(re.findall(r"(slots|edges) +(\d+)", head))
        head = re.sub(rf"{name} +{number}", f"{name} {max(1, int(number) + rng.choice([-1, 1, 2]))}", head)
    else:
        evict(lists, stage, actions, "h" if kind == "host" else len(lists) - 1 - stage, rng)
    lists[stage][2:] = actions
    return "\n".join([head, *(" ".join(words) for words in lists)]) + "\n"


def evict(lists, stage, actions, peer, rng):
    bundle = rng.choice(actions)[1:]
    places = [[at for at, action in enumerate(actions) if action[1:] == bundle and action[0] in kinds]
              for kinds in ("F", "BI")]  # fmt: skip
    if peer == stage or not all(places) or any(action.startswith(f"E{bundle}>") for action in actions):
        return
    first, last = sorted(rng.randint(places[0][0] + 1, places[1][0]) for _ in range(2))
    actions[last:last] = [f"L{bundle}<{peer}"]
    actions[first:first] = [f"E{bundle}>{peer}"]
    if peer == "h":
        return
    other = lists[peer]
    first, last = sorted(rng.randint(2, len(other)) for _ in range(2))
    other[last:last] = [f"R{bundle}>{stage}"]
    other[first:first] = [f"A{bundle}<{stage}"]

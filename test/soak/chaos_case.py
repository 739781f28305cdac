"""A seed of chaos.py determines a configuration, the way to start it, and faults with their moments."""

import errno
import random
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

import hosts  # noqa: E402
from trainer_runs import patience  # noqa: E402

STEPS = 12
LAYOUTS = [(1, 1, 1)] * 5 + [(2, 1, 1)] * 4 + [(4, 1, 1)] * 2 + [(1, 2, 1), (1, 1, 2), (2, 2, 1), (2, 1, 2)]
PEER_TIMEOUT_S = round(patience(4))  # more on a busy machine, so that a slow rank is not taken for dead
TIMEOUT_S = max(30, 4 * PEER_TIMEOUT_S)
CALL_ERRORS = [errno.EIO, errno.ENOSPC, errno.EMFILE, errno.ESTALE, errno.EINTR, errno.EACCES]


class Case:
    def __init__(self, seed):
        self.seed, self.random = seed, random.Random(seed)
        draw = self.random
        self.way = draw.choices(["hand", "bare", "hosts"], [80, 17, 3 if hosts.why_not() is None else 0])[0]
        self.layout = draw.choice([at for at in LAYOUTS if self.way == "hand" or at[0] * at[1] * at[2] > 1])
        if self.way == "hosts":
            self.layout = (4, 1, 1)
        p, t, d = self.layout
        self.ranks, self.layers = p * t * d, 8
        self.restarts = draw.choice([0, 0, 1, 3]) if self.way == "hand" else 0
        self.every = draw.choice([0, 1, 2, 3, 5, 50])  # 50: only at the end
        self.keys = [
            f"parallel.pipeline={p}", f"parallel.tensor={t}", f"parallel.data={d}", *self.draw_schedule(p),
            f"checkpoint.every={self.every}", f"checkpoint.keep={draw.choice([1, 2, 3])}",
            f"train.max_restarts={self.restarts}",
            f"train.peer_timeout_s={PEER_TIMEOUT_S}", f"train.timeout_s={TIMEOUT_S}",
        ]  # fmt: skip
        self.saves = draw.random() < 0.9
        # The disturbed run resumes after this many steps of an undisturbed run; 0: it starts from the beginning.
        self.before = draw.choice([0, 0, 0, 2, 5]) if self.saves else 0
        # A user's folder in checkpoint.dir that looks like a checkpoint, and may occupy the name of one.
        self.notes = draw.choice([None] * 7 + [f"step_{draw.randint(1, STEPS):08}"]) if self.saves else None
        if self.notes is not None:
            self.keys.append("checkpoint.overwrite=true")
        self.given = draw.choice(["file"] * 6 + ["redirected", "pipe"]) if self.way == "hand" else "file"
        self.faults = self.draw_faults()

    def draw_schedule(self, p):
        names = ["1f1b", "1f1b", "gpipe", "zb-d", "interleaved", "v-half", "zb-v"]
        name = self.random.choice(names) if p > 1 else "1f1b"
        bpipe = ["off"] if name != "1f1b" or p == 1 else ["off", "on", "host"]
        chosen = self.random.choice(bpipe)
        target = "host" if chosen == "host" else "peer"
        if p > 1 and self.random.random() < 0.04:  # on four stages no row of the plan satisfies all these keys
            return ["schedule.name=auto", "schedule.bpipe=on", "schedule.evict_to=peer", "schedule.load_ahead=3",
                    "schedule.micro_batch=1"]  # fmt: skip
        layers = []
        if name in ("v-half", "zb-v") and self.random.random() < 0.5:  # some virtual stages are empty
            self.layers = self.random.choice([8, 8, 2])
            cuts = sorted(self.random.randint(0, self.layers) for _ in range(2 * p - 1))
            parts = [b - a for a, b in zip([0, *cuts], [*cuts, self.layers])]
            layers = [f"model.layers={self.layers}", f"parallel.layers=[{','.join(map(str, parts))}]"]
        return [*layers, f"schedule.name={name}", f"schedule.bpipe={'off' if chosen == 'off' else 'on'}",
                f"schedule.evict_to={target}", "schedule.micro_batch=1"]  # fmt: skip

    def some_rank(self):
        return self.random.randrange(self.ranks)

    def draw_faults(self):
        draw = self.random
        kinds = ["call"] * 8 + ["signal", "signal", "signals", "edit", "edit", "second", "second", "slow", "stop"]
        if self.ranks > 1:
            kinds += ["kill rank"] * 3 + ["kill supervisor"]
            kinds += ["kill mpirun", "kill parent"] if self.way == "hand" else []
        if self.way == "hosts":
            kinds = ["cut", "cut", "call", "kill rank", "stop"]
        faults = []
        if self.way == "hand" and self.ranks > 1 and draw.random() < 0.03:  # a start that hangs is asked to stop
            hang = {"kind": "call", "step": None, "after": 0, "rank": self.some_rank(), "effect": "hang", "lasts": 1}
            asked = {"kind": "signal", "step": None, "after": 1.0, "rank": 0, "number": signal.SIGTERM}
            return [{**hang, "call": draw.randint(1, 3), "jump": 0}, asked]
        for kind in draw.sample(kinds, draw.choice([0, 1, 1, 1, 1, 2, 2])):
            if any(fault["kind"] == kind for fault in faults):
                continue
            if {kind, *(fault["kind"] for fault in faults)} >= {"edit", "second"}:
                continue  # the second run would correctly train with the edited file
            fault = {"kind": kind, "rank": self.some_rank(), "step": draw.choice([None, None, 0, 1, 3, 6, 10])}
            fault["after"] = draw.uniform(0, 0.8 if fault["step"] is None else 0.1)
            if kind == "call":
                fault.update(self.draw_call())
            if kind in ("signal", "signals"):
                fault["number"] = draw.choice([signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
                if self.way != "hand":  # mpirun kills its ranks on other signals
                    fault["number"] = signal.SIGUSR1
            if kind == "edit":
                fault["to"] = draw.choice(["lr: 0.5", "lr: [", None])
                if self.way != "hand" or (self.ranks == 1 and self.restarts == 0):
                    fault["step"] = max(1, fault["step"] or 1)  # with mpirun the ranks read the file themselves
                elif fault["step"] == 0:
                    fault["step"] = None
            faults.append(fault)
        return faults

    def draw_call(self):
        draw = self.random
        effect = draw.choice([*map(str, CALL_ERRORS)] * 2 + ["kill", "kill", "kill", "abort", "stop", "nap", "clock"])
        rank = draw.choice([self.some_rank(), self.some_rank(), 0, -1])
        return {
            "effect": effect,
            "rank": -1 if self.ranks == 1 and self.restarts == 0 else 0 if self.way != "hand" and rank < 0 else rank,
            "call": draw.choice([draw.randint(1, 20), draw.randint(1, 400), draw.randint(20, 150)]),
            "lasts": draw.choice([1, 1, 1, 3, 1000000]),
            "jump": draw.choice([-86400, 86400, -3600 * 24 * 365 * 20]),
        }

    def of(self, kind):
        return [fault for fault in self.faults if fault["kind"] == kind]

    def call(self):
        return self.of("call")[0] if self.of("call") else None

    def __str__(self):
        saves = "saves" if self.saves else "no dir"
        more = f"{saves}, {self.before} steps before, {self.notes}, {self.given}"
        return f"{self.way}, {' '.join(self.keys)}, {more}, faults {self.faults}"

"""Shared by the scripts: reads output of a trainer (metrics, traces, plans), writes complete files, and ends with one
sentence."""

import contextlib
import itertools
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

GIB, MIB = 1 << 30, 1 << 20
MOST_BOXES = 20000  # in one picture


class Failure(Exception):
    """One sentence for the user."""

    code = 1


class Refusal(Failure):
    """An input that cannot be used."""

    code = 2


class NoStepYet(Failure):
    """A run has begun and has not completed a step."""


def finish(program, act, *arguments):
    """Runs act(). Returns the exit code: 1 or a Failure's after printing one sentence if it fails, 130 after Ctrl-C, 0
    if the reader of its output has closed it."""
    code = 1
    try:
        act(*arguments)
        sys.stdout.flush()
        return 0
    except Failure as failure:
        problem, code = failure, failure.code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        silence()
        return 0
    except OSError as error:
        problem = f"{error.filename or 'standard output'}: {error.strerror or error}"
        silence()
    print(f"{program}: {problem}", file=sys.stderr)
    return code


def silence():
    """Redirects a broken standard output to /dev/null: Python would complain at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def read_text(path):
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise Failure(f"{path}: is not text; give a file that a trainer wrote") from None
    except OSError as error:
        raise Failure(f"{path}: cannot be read: {error.strerror}") from None


@contextlib.contextmanager
def form_of(path, what):
    """Raises Failure if anything in the file is missing or has the wrong type."""
    try:
        yield
    except KeyError as error:
        raise Failure(f"{path}: is not a {what} (it has no {error})") from None
    except (TypeError, AttributeError, IndexError, OverflowError, RecursionError):
        raise Failure(f"{path}: is not a {what} (something in it has another form)") from None
    except ValueError as error:
        raise Failure(f"{path}: is not a {what} ({error})") from None


def read_events(path):
    text = read_text(path)
    try:
        return json.loads(text)
    except ValueError:
        # A killed run does not close the array, and may have written an incomplete last line.
        whole = text.rstrip().rstrip(",")
        for closed in (whole + "]", whole.rpartition("\n")[0].rstrip().rstrip(",") + "]"):
            with contextlib.suppress(ValueError):
                return json.loads(closed)
        raise Failure(f"{path}: is not a trace: not JSON; make one with --trace FILE") from None


class Trace:
    """The actions of one step, per stage, in microseconds since the start of the step's first action."""

    def __init__(self, path, wanted):
        with form_of(path, "trace"):
            events = read_events(path)
            self.ranks = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"
                          and e["args"]["name"] != "steps"}
            spans = [e for e in events if e["ph"] == "X" and e["pid"] in self.ranks]
            labels = list(dict.fromkeys(e["args"]["of"] for e in spans))
            self.label = self.choose(path, labels, wanted)
            chosen = [e for e in spans if e["args"]["of"] == self.label]
            if self.label == "validation":  # only its first batch
                first = {}
                chosen = [e for e in chosen if first.setdefault((e["pid"], e["name"]), e) is e]
            if len(chosen) > MOST_BOXES:
                raise Failure(
                    f"{path}: {self.label} has {len(chosen)} actions, too many for a picture; use ui.perfetto.dev")
            zero = min(float(e["ts"]) for e in chosen)
            self.end = max(e["ts"] + e["dur"] for e in chosen) - zero
            int(chosen[0]["args"]["microbatch"])
            kept = [e for e in events if e["ph"] == "C" and zero <= e["ts"] <= zero + self.end]
            names = [e for e in events if e["ph"] == "M" and e["pid"] in self.ranks]
            # For draw.js: names, the actions of one step, and its slots, in microseconds since the step's first action.
            self.events = names + [{**e, "ts": e["ts"] - zero} for e in chosen + kept]
            planned = any("(planned)" in name for name in self.ranks.values())
            self.words = f"{'planned' if planned else 'measured'}{'' if self.label == 'step' else ', ' + self.label}"

    @staticmethod
    def choose(path, labels, wanted):
        if not labels:
            raise Failure(f"{path}: is a trace without any action")
        steps = [label for label in labels if label.startswith("step")] or labels
        if wanted is None:
            return steps[min(1, len(steps) - 1)]  # the first step of a run includes warm-up
        for label in (f"step {wanted}", wanted):
            if label in labels:
                return label
        raise Failure(f"{path}: has no step {wanted}; it has {steps[0]} to {steps[-1]}")

class Plan:
    def __init__(self, path, text):
        with form_of(path, "plan; make one with --plan --json"):
            plan = json.loads(text)
            stages = plan["stages"]
            self.name = path.stem
            self.peak = [int(stage["peak_bytes"]) for stage in stages]
            self.stages = [{"memory": {name: int(size) for name, size in stage["memory"].items()},
                            "peak_bytes": int(stage["peak_bytes"]), "other": int(stage["peak_bytes_1f1b"]),
                            "fits": stage["fits"]} for stage in stages]
            self.step_ms, self.bubble, self.mfu = (number(plan[key]) for key in ("step_ms", "bubble", "mfu"))
            self.source = {"profile": "a measured profile", "model": "the model of the hardware"}[plan["source"]]
            self.reason = str(plan["verdict"]["reason"])


class History:
    """The lines of steps, validations and evaluations in the order added. A repeated step, after a resume or from a new
    run in the same file, replaces its earlier version and all later lines."""

    def __init__(self):
        self.heads, self.lines, self.last = [], [], 0
        self.start_of = {}  # step -> index of its start in heads

    def add(self, entry):
        """Adds one line. Returns the step from which earlier lines are replaced, or None."""
        kind, again = entry["type"], None
        if kind == "run":
            self.heads.append(entry)
        if kind not in ("step", "val", "eval"):
            return None
        step = int(entry["step"])
        if kind == "step":
            again = step if step <= self.last else None
            self.lines = [line for line in self.lines if line["step"] < step] if again else self.lines
            self.last, self.start_of[step] = step, len(self.heads) - 1
        self.lines.append(entry)
        return again

    def of(self, kind):
        """Returns (step, line) of each line of one type."""
        return [(int(line["step"]), line) for line in self.lines if line["type"] == kind]


def parse_lines(text):
    """Returns the entries of complete lines, without an incomplete last line."""
    return [json.loads(line) for line in text.split("\n")[:-1] if line]


class Metrics(History):
    """The lines of a metrics file that are still valid: those of the last start and of the steps it resumed from."""

    def __init__(self, path, text):
        super().__init__()
        with form_of(path, "metrics file; name one with log.metrics"):
            self.name = path.stem if path.stem != "metrics" else path.absolute().parent.name
            for entry in parse_lines(text):
                self.add(entry)
            if not self.heads:
                raise Failure(f"{path}: is not a metrics file: no line of it begins a run; name one with log.metrics")
            self.steps = dict(self.of("step"))
            if not self.steps:
                raise NoStepYet(f"{path}: has no step yet")
            last, newest = self.start_of[max(self.steps)], len(self.heads) - 1
            self.head = self.heads[last]
            # The last step of the newest start, which may have begun anew or gone on after the run's last step.
            self.reached = max(self.steps) if last == newest else int(self.heads[-1].get("after_step", 0))
            # The loss is null if it was not finite, so that the step's update was skipped, and in a dry run.
            self.loss = {step: number(entry["loss"]) for step, entry in self.steps.items() if entry["loss"] is not None}
            self.vals = {step: number(line["loss"]) for step, line in self.of("val") if line["loss"] is not None}
            self.evals = {}  # step -> {name of the evaluation: accuracy}
            for step, line in self.of("eval"):
                self.evals.setdefault(step, {})[line["name"]] = number(line["accuracy"])
            self.mfu = {step: number(entry["mfu"]) for step, entry in self.steps.items()}
            self.tokens = {step: float(entry["tokens_per_s"]) for step, entry in self.steps.items()}
            self.parts = self.cut()
            self.peak, self.stages = self.parts[-1].peak, self.parts[-1].stages

    def cut(self):
        """Returns the parts of the run with the same layout, since a resume may change it."""
        heads = {step: self.heads[self.start_of[step]] for step in self.steps}
        alike = itertools.groupby(sorted(self.steps), lambda step: layout_of(heads[step]))
        return [Part(heads[steps[0]], {step: self.steps[step] for step in steps})
                for steps in (list(group) for _, group in alike)]

    def resumes(self):
        """Returns the first step of every start after the first."""
        order = sorted(self.steps)
        return [step for before, step in zip(order, order[1:]) if self.start_of[before] != self.start_of[step]]

    def median(self, key):
        """Returns the median of a figure over the steps of the last layout."""
        return self.parts[-1].median(key)


def layout_of(head):
    """Returns the settings that steps must share to be compared with one plan."""
    config = head.get("config") or {}
    changing = {"steps", "max_restarts", "seed", "lr"}
    train = {key: value for key, value in (config.get("train") or {}).items() if key not in changing}
    return [head.get("world"), train, *(config.get(key) for key in ("model", "parallel", "schedule", "attention"))]


class Part:
    """Consecutive steps with the same layout."""

    def __init__(self, head, steps):
        self.head, self.steps = head, steps
        stages = len(next(reversed(steps.values()))["stages"])
        alike = [entry["stages"] for entry in steps.values() if len(entry["stages"]) == stages]
        self.peak = [max(int(of[s]["peak_bytes"]) for of in alike) for s in range(stages)]
        slots = [max(int(of[s].get("activation_bytes") or 0) for of in alike) for s in range(stages)]
        self.stages = [{"memory": {"peak": peak - own, "own_slots": own}, "peak_bytes": peak}
                       for peak, own in zip(self.peak, slots)]

    def median(self, key):
        """Returns the median of all steps but the first, which includes warm-up."""
        values = [number(entry[key]) for entry in self.steps.values()]
        values = [value for value in values[min(1, len(values) - 1) :] if value is not None]
        return statistics.median(values) if values else None


def number(value):
    """Returns a figure as a number, or None if unknown."""
    if value is None:
        return None
    if isinstance(value, bool) or not math.isfinite(float(value)):
        raise ValueError(f"{value} instead of a number")
    return float(value)


def write_file(path, data):
    """Writes text or bytes through a temporary file next to `path`: the file appears complete or not at all. Through a
    link, replaces the linked file. If `path` is not a regular file, such as /dev/stdout, writes to it directly."""
    data = data.encode(errors="replace") if isinstance(data, str) else data  # names of files may be no text
    place = Path(os.path.realpath(path))
    part = place.with_name(f".{place.name}.{os.getpid()}.part")
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            path.write_bytes(data)
            return
        part.unlink(missing_ok=True)
        with part.open("xb") as file:  # exclusively: the name can be guessed, and must not be a link
            file.write(data)
        os.replace(part, place)
    except OSError as error:
        raise Failure(f"{path}: cannot be written: {error.strerror}") from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def trainer(family, folder=None):
    """Returns a trainer's path: in the folder, else next to scripts/ or where it was installed."""
    name = f"train_{family}"
    beside = Path(folder or Path(__file__).resolve().parent.parent) / name
    program = beside if folder or beside.exists() else shutil.which(name)
    if program is None or not Path(program).exists():
        raise Failure(f"{program or name} is not here; run make")
    return program


def ask(program, config, *words, fits=True):
    """Returns the trainer's output. fits False: also if it exits with an error, as a search does if nothing fits."""
    ended = subprocess.run([program, f"--config={config}", *words], capture_output=True, text=True, check=False)
    if ended.returncode != 0 and (fits or not ended.stdout):
        raise Failure(ended.stderr.strip()[-1000:] or f"{program}: ended with {ended.returncode}")
    return ended.stdout


def ask_family(config, *words, programs=None):
    """Returns the trainer of the configuration's family, and its output."""
    for program in programs or map(trainer, ("llama", "gpt")):
        try:
            return program, ask(program, config, *words)
        except Failure as failure:
            refused = failure
        if "model.family: " not in str(refused):
            break
    raise refused


def read_plan_or_metrics(path):
    text = read_text(path)
    with form_of(path, "plan or metrics file"):
        first = json.loads(text.partition("\n")[0])
        plan = "stages" in first and "verdict" in first
    return Plan(path, text) if plan else Metrics(path, text)

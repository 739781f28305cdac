"""Small training runs for tests: a configuration as nested dictionaries, a data set, the program, and what it said."""

import copy
import json
import os
import subprocess
import time
from pathlib import Path

import numpy

ROOT = Path(__file__).resolve().parent.parent
TOOLS = Path(os.environ.get("TEST_PROGRAMS", ROOT / "build" / "release" / "test"))
BUILT = TOOLS.parent

LLAMA = {"family": "llama", "hidden": 32, "layers": 8, "heads": 4, "kv_heads": 2, "ffn": 48, "vocab": 61, "seq_len": 16}
GPT = {"family": "gpt", "hidden": 32, "layers": 8, "heads": 4, "ffn": 48, "vocab": 61, "seq_len": 16}
MODELS = {"llama": LLAMA, "gpt": GPT}


def without_mpi():
    return not (TOOLS / "ranks_launch").exists() or (
        "built without MPI" in subprocess.run([TOOLS / "ranks_launch", "done", "2"], capture_output=True, text=True).stderr
    )


def write_tokens(path, tokens):
    """A shard in llm.c's GPT-2 format."""
    header = numpy.zeros(256, "<i4")
    header[:3] = 20240520, 1, len(tokens)
    path.write_bytes(header.tobytes() + numpy.asarray(tokens, "<u2").tobytes())
    return path


def make_tokens(count, vocab, seed=0):
    """Tokens with something to learn: mostly the one before plus a step that depends on it."""
    random = numpy.random.default_rng(seed)
    tokens = numpy.zeros(count, int)
    for i in range(1, count):
        tokens[i] = (tokens[i - 1] * 3 + 1 + random.integers(0, 3)) % vocab
    return tokens


def merged(base, *changes):
    """Nested dictionaries, or keys as on the command line ("train.steps"), laid over each other."""
    out = copy.deepcopy(base)
    for change in changes:
        for key, value in change.items():
            section, _, rest = key.partition(".")
            inner = {rest: value} if rest else value
            out.setdefault(section, {}).update(inner)
    return out


class Result:
    def __init__(self, code, stdout, stderr, seconds, metrics):
        self.code, self.stdout, self.stderr, self.seconds = code, stdout, stderr, seconds
        lines = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
        self.steps = {line["step"]: line for line in lines if line["type"] == "step"}
        self.vals = {line["step"]: line["loss"] for line in lines if line["type"] == "val"}

    def curve(self, first=1):
        """(step, loss, norm) from a step on, to the bit."""
        return [(s, self.steps[s]["loss"], self.steps[s]["grad_norm"]) for s in sorted(self.steps) if s >= first]


class Trainer:
    """Runs one program in one folder; every run has its own metrics file unless it is given one."""

    def __init__(self, folder, model, train=None):
        self.folder, self.runs = Path(folder), 0
        tokens = make_tokens(4000, model["vocab"]) if train is None else train
        data = write_tokens(self.folder / "train.bin", tokens)
        self.program = BUILT / f"train_{model['family']}"
        self.config = {
            "model": model,
            "train": {"global_batch": 8, "steps": 8, "lr": 3.0e-3, "warmup_steps": 2},
            "data": {"train": str(data)},
            "hardware": {"device": "cpu", "peak_tflops": 1, "reserve_gib": 0.1},
        }

    def prepare(self, *changes):
        """(command, metrics file) of a run."""
        self.runs += 1
        metrics = self.folder / f"metrics_{self.runs}.jsonl"
        config = merged(self.config, {"log.metrics": str(metrics)}, *changes)
        path = self.folder / f"config_{self.runs}.yaml"
        path.write_text(json.dumps(config))
        return [str(self.program), "-c", str(path)], Path(config["log"]["metrics"])

    def start(self, *changes, resume=None, **more):
        command, metrics = self.prepare(*changes)
        if resume is not None:
            command += ["--resume", str(resume)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **more.pop("environment", {})}
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more
        )
        process.began, process.metrics = time.monotonic(), metrics
        return process

    def end(self, process, timeout=300):
        stdout, stderr = process.communicate(timeout=timeout)
        return Result(process.returncode, stdout, stderr, time.monotonic() - process.began, process.metrics)

    def run(self, *changes, resume=None, code=0, **more):
        result = self.end(self.start(*changes, resume=resume, **more))
        assert result.code == code, result.stderr
        return result


def layout(p=1, t=1, d=1, bpipe=False, b=1, **more):
    """Changes to a configuration; more: keys with _ for the dot's place, as in schedule_slots=4."""
    extra = {key.replace("_", ".", 1): value for key, value in more.items()}
    return {
        "parallel.pipeline": p,
        "parallel.tensor": t,
        "parallel.data": d,
        "schedule.bpipe": "on" if bpipe else "off",
        "schedule.micro_batch": b,
        **extra,
    }


def saving(folder, every, keep=100):
    return {"checkpoint.dir": str(folder), "checkpoint.every": every, "checkpoint.keep": keep}


def checkpoint_names(folder):
    return sorted(path.name for path in Path(folder).iterdir())


def verify(folder):
    """None, or why the checkpoint is not whole."""
    result = subprocess.run([TOOLS / "tool_verify", folder], capture_output=True, text=True)
    return None if result.returncode == 0 else result.stderr.strip()

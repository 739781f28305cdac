"""Shared by the Python tests: small data sets and configurations, and programs that they run.

`write_config` writes a configuration. `run` runs a trainer with it to the end, `launch` starts one as a `Job`; changes
are "key=value" or {key: value}. A `Trainer` has a configuration and a folder of its own. `command` runs a trainer with
other arguments, `script` a script, `execute` any program. All of them return an `Ended`, and require the exit code
`code`, 0 unless it is given, or accept any if it is None.
"""

import contextlib
import ctypes
import functools
import json
import os
import re
import signal
import struct
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# `make test` names the folder of the test programs; the trainers of the same build are in its parent.
BUILD = Path(os.environ["TEST_PROGRAMS"]).parent if "TEST_PROGRAMS" in os.environ else ROOT
TOOLS = Path(os.environ.get("TEST_PROGRAMS", ROOT / "build" / "release" / "test"))
FAMILIES = ("llama", "gpt")
TIME_LIMIT = 300  # seconds of an idle machine

LLAMA = {"family": "llama", "hidden": 32, "layers": 8, "heads": 4, "kv_heads": 2, "ffn": 48, "vocab": 61, "seq_len": 16}
GPT = {"family": "gpt", "hidden": 32, "layers": 8, "heads": 4, "ffn": 48, "vocab": 61, "seq_len": 16}
MODELS = {"llama": LLAMA, "gpt": GPT}
WIDER = {
    "llama": "{family: llama, hidden: 64, layers: 8, heads: 8, kv_heads: 4, ffn: 96, vocab: 100, seq_len: 32}",
    "gpt": "{family: gpt, hidden: 64, layers: 8, heads: 8, ffn: 128, vocab: 100, seq_len: 32}",
}


def trainer(family):
    return BUILD / f"train_{family}"


def built_with_mpi():
    """Returns whether the trainers can start ranks."""
    try:
        symbols = subprocess.run(["ldd", trainer("llama")], capture_output=True, text=True).stdout
    except OSError:
        return True
    return "libmpi" in symbols or "libmpich" in symbols


def without_mpi():
    return not built_with_mpi()


# ---- input ----------------------------------------------------------------------------------------------------------


def pseudo_random(seed):
    """Yields the same numbers below 2^24 on every machine and with every library."""
    while True:
        seed = (seed * 6364136223846793005 + 1442695040888963407) % 2**64
        yield seed >> 40


@functools.cache
def made_text(size=300000):
    """Returns the bytes of a text with something to learn, always the same: randomly drawn functions in C style."""
    random = pseudo_random(7)
    draw = lambda words: words[next(random) % len(words)]
    types, verbs = ("int", "float", "const char *", "static int", "void"), ("read", "write", "count", "find", "add")
    things = ("layer", "token", "batch", "stage", "buffer", "weight", "gradient", "message", "rank", "step")
    statements = ("    {0}->{1} = {2}({0}, {3});\n",
                  "    for (int {1} = 0; {1} < {0}->{1}_count; {1}++) {2}_{1}({0});\n",
                  "    if ({0}->{1} < {3}) return {2}_{1}({0}, {1});\n",
                  "    /* the {1} of every {0} is at most {3} */\n")
    text, length = [], 0
    while length < size:
        thing, verb = draw(things), draw(verbs)
        lines = [draw(types), f" {verb}_{thing}(struct {thing} *{thing}) {{\n"]
        for _ in range(1 + next(random) % 5):
            lines.append(draw(statements).format(thing, draw(things), draw(verbs), next(random) % 100))
        text += [*lines, "}\n\n"]
        length += sum(map(len, lines)) + 3
    return "".join(text).encode()[:size]


def write_tokens(path, tokens, magic=20240520, version=1, count=None):
    """Writes a token file of the GPT-2 kind, as llm.c does."""
    header = struct.pack("<3i", magic, version, len(tokens) if count is None else count)
    path.write_bytes(header.ljust(1024, b"\0") + struct.pack(f"<{len(tokens)}H", *tokens))
    return path


def made_tokens(count, vocab=100, seed=1):
    """Returns pseudo-random tokens, some of them much more frequent than others."""
    state, tokens = seed, []
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        tokens.append((state >> 40) % vocab * ((state >> 33) % 7) // 7)
    return tokens


def walked_tokens(count, vocab, seed=0):
    """Returns tokens with something to learn: mostly the previous one plus a step that depends on it."""
    import numpy

    random = numpy.random.default_rng(seed)
    tokens = numpy.zeros(count, int)
    for i in range(1, count):
        tokens[i] = (tokens[i - 1] * 3 + 1 + random.integers(0, 3)) % vocab
    return tokens


def write_sections(folder, family, sections):
    """Writes a configuration of sections, each YAML text or a dictionary, under a new name."""
    path = folder / f"{family}_{uuid.uuid4().hex}.yaml"
    path.write_text("".join(f"{section}: {text if isinstance(text, str) else json.dumps(text)}\n"
                            for section, text in sections.items()))
    return path


def write_config(folder, family="llama", **sections):
    """Writes a small run's configuration into `folder`; sections replace the defaults."""
    for split, count in (("train", 6000), ("val", 1600)):
        if not (folder / f"{split}_000.bin").exists():
            write_tokens(folder / f"{split}_000.bin", made_tokens(count, seed=count))
    return write_sections(folder, family, {
        "model": WIDER[family],
        "parallel": "{pipeline: 4}",
        "schedule": "{bpipe: on, micro_batch: 2}",
        "train": "{global_batch: 16, steps: 3, lr: 3.0e-3, warmup_steps: 2}",
        "data": f'{{train: "{folder}/train_*.bin", val: "{folder}/val_*.bin", val_every: 2, val_batches: 2}}',
        "hardware": "{device: cpu, peak_tflops: 0.05, reserve_gib: 0.1}",
        **sections,
    })


def shared_library(path, source, *flags, compiler="gcc"):
    """Builds a library and returns its path."""
    command = [compiler, "-x", "c", "-shared", "-fPIC", "-O1", "-", "-o", path, "-ldl", *flags]
    subprocess.run(command, input=source, text=True, check=True)
    return path


def preload(path, source, *flags, compiler="gcc"):
    """Builds a library that LD_PRELOAD loads before a program's own. The source has the common headers, and calls the
    function that it replaces as REAL(name)."""
    names = ("dlfcn", "errno", "stdbool", "stdio", "stdlib", "string", "sys/stat", "time", "unistd")
    before = "#define _GNU_SOURCE\n" + "".join(f"#include <{name}.h>\n" for name in names)
    before += "#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))\n"
    return shared_library(path, before + source, *flags, compiler=compiler)


# ---- processes ------------------------------------------------------------------------------------------------------


def environment(**changes):
    """Returns our environment without the variables of the test run itself."""
    foreign = re.compile("G?OMP_|OMPI_|PMIX_|PMI_|SLURM_|TRAINER_")
    kept = {name: value for name, value in os.environ.items() if not foreign.match(name)}
    # Threads that spin at every barrier take fifty times as long if other programs use the cores. In every rank, MPI
    # reads the machine's PCI devices (phase 8 of hwloc), which takes a seventh of a small start.
    return {**kept, "OMP_WAIT_POLICY": "passive", "HWLOC_COMPONENTS": "-linux:0x8,-pci", **changes}


def one_thread(**changes):
    return environment(OMP_NUM_THREADS="1", **changes)


def mpirun(ranks):
    """Returns a bare mpirun in front of a trainer, as a user types it."""
    return ["mpirun", "-n", str(ranks), "--oversubscribe", "--bind-to", "none"]


AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}  # mpirun asks for it


def mpirun_environment(**changes):
    return environment(**AS_ROOT, **changes)


def processes_with(text):
    """Returns the processes whose command line has this text, such as the path of a configuration."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and text in (entry / "cmdline").read_text(errors="replace"):
                found.append(int(entry.name))
        except OSError:
            pass
    return [pid for pid in found if pid != os.getpid()]


def rank_processes(text):
    """Returns {rank: process} of the trainers with this text in their command line."""
    found = {}
    for pid in processes_with(text):
        with contextlib.suppress(OSError):  # it has ended
            rank = re.search(r"OMPI_COMM_WORLD_RANK=(\d+)", Path(f"/proc/{pid}/environ").read_text(errors="replace"))
            if rank is not None and Path(f"/proc/{pid}/comm").read_text().startswith("train_"):
                found[int(rank[1])] = pid
    return found


def ownerless_folders():
    """Returns the folders of launches whose parent has ended."""
    paths = [path for base in ("/dev/shm", os.environ.get("TMPDIR", "/tmp")) for path in Path(base).glob("trainer-*-*")]
    return {str(path) for path in paths if not Path(f"/proc/{path.name.split('-')[1]}").exists()}


EARLIER = ownerless_folders()


def patience(seconds):
    """Returns a time limit for an action that takes `seconds` on an idle machine: longer in proportion if more
    processes than cores are running."""
    return seconds * max(1.0, 2 * os.getloadavg()[0] / len(os.sched_getaffinity(0)))


def wait_until(condition, what, seconds=60):
    """Waits until the condition is true and returns its value; fails with `what` if that takes too long."""
    deadline = time.monotonic() + patience(seconds)
    while not (found := condition()):
        assert time.monotonic() < deadline, what() if callable(what) else what
        time.sleep(0.01)
    return found


def metrics_of(path, kind="step"):
    """Returns the lines of this kind that are complete in a file of metrics."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [line for line in map(json.loads, (l for l in lines if l.endswith("}"))) if line["type"] == kind]


def socket_inodes(pids):
    """Returns the inodes of the sockets that processes hold, as /proc/net names them."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    found |= set(re.findall(r"socket:\[(\d+)\]", os.readlink(entry)))
    return found


def nothing_left(config, seconds=8):
    """Waits until no process of the run is left, and no ownerless folder except those from before these tests."""
    left = lambda: (processes_with(str(config)), ownerless_folders() - EARLIER)
    wait_until(lambda: not any(left()), left, seconds)
    return True


def read_terminal(terminal):
    """Reads a terminal until its other end is closed; closes ours."""
    text = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while part := os.read(terminal, 1 << 16):
            text += part
    os.close(terminal)
    return text.decode()


def end_with_parent():
    """For preexec_fn: the process is killed when the test run ends in any way."""
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Job(subprocess.Popen):
    """A program that runs at the same time as the test."""

    def __init__(self, words, *, env=None, config=None, metrics=None, **options):
        self.config, self.metrics, self.began = config, metrics, time.monotonic()
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        super().__init__(words, **{"cwd": ROOT, "env": env or environment(), **pipes, **options})

    def ranks(self):
        """Returns the processes of the ranks, lowest first."""
        return [pid for _, pid in sorted(rank_processes(str(self.config)).items())]

    def trains(self, steps):
        """Waits until there are so many steps in its metrics."""
        wait_until(lambda: self.poll() is not None or len(metrics_of(self.metrics)) >= steps, f"no {steps} steps")
        assert self.poll() is None, self.end(None).stderr

    def wait_for(self, *words):
        """Reads stderr up to a line that contains these words; returns the line."""
        late = threading.Timer(patience(TIME_LIMIT), self.kill)
        late.start()
        try:
            return next(line for line in self.stderr if all(word in line for word in words))
        except StopIteration:
            raise AssertionError(f"it ended with {self.wait()} and never said {words}") from None
        finally:
            late.cancel()

    def end(self, code=0, limit=TIME_LIMIT, input=None):
        """Waits for the end, for at most `limit` seconds of an idle machine."""
        try:
            stdout, stderr = self.communicate(input, patience(limit))
        finally:
            self.kill()
        ended = Ended(self, stdout or "", stderr or "")
        assert code in (None, ended.code), (self.args, ended.code, stdout, stderr)
        return ended

    def stop(self, number=signal.SIGTERM, code=1, **options):
        """Asks it to stop, and waits for the end; code: of a run that has no folder for checkpoints."""
        self.send_signal(number)
        return self.end(code, **options)


class Ended:
    """The result of a program: exit code, stdout, stderr, seconds, and the lines of a trainer's metrics file."""

    def __init__(self, job, stdout, stderr):
        self.config, self.metrics, self.code = job.config, job.metrics, job.returncode
        self.stdout, self.stderr, self.seconds = stdout, stderr, time.monotonic() - job.began
        self.said = stderr.splitlines()
        self.lines = lines_of(self.metrics) if self.metrics else []

    def of_type(self, kind):
        return [entry for entry in map(json.loads, self.lines) if entry["type"] == kind]

    @property
    def head(self):
        return self.of_type("run")[0]

    @property
    def steps(self):
        return self.of_type("step")

    @property
    def numbers(self):
        """Returns the numbers of the steps."""
        return [step["step"] for step in self.steps]

    def curve(self, first=1):
        """Returns (step, loss, norm) for the steps from `first` on."""
        return [(step["step"], step["loss"], step["grad_norm"]) for step in self.steps if step["step"] >= first]

    @property
    def vals(self):
        """Returns {step: loss} of the validations."""
        return {val["step"]: val["loss"] for val in self.of_type("val")}

    @property
    def losses(self):
        """Returns everything that must be equal in every layout, in order: losses, norms, validation losses."""
        return [value for entry in map(json.loads, self.lines)
                for value in (entry.get("loss"), entry.get("grad_norm")) if value]

    @property
    def bits(self):
        return bits_of(self.lines)


def lines_of(path):
    return path.read_text().splitlines() if path.is_file() else []


def bits_of(lines):
    """Returns the losses of metrics as text: 17 significant digits determine the bits of a double."""
    pattern = re.compile(r'"(?:loss|grad_norm)":([^,}]+)')
    return [digits for line in lines if '"type":"run"' not in line for digits in pattern.findall(line)]


def as_options(*changes):
    """Returns changes of a configuration, each "key=value" or {key: value}, as arguments of a trainer."""
    as_text = lambda value: value if isinstance(value, (str, Path)) else json.dumps(value)
    words = [[change] if isinstance(change, str) else [f"{key}={as_text(value)}" for key, value in change.items()]
             for change in changes]
    return [part for word in sum(words, []) for part in ("-o", word)]


def launch(config, *changes, family="llama", program=None, prefix=(), arguments=(), resume=None, resume_if_any=None,
           env=None, **options):
    """Starts a trainer. Its metrics are in a new file next to the configuration, unless a change names another.

    program: another than the trainer of the build; prefix: words before it, such as an mpirun; arguments: after it."""
    keys = as_options(f"log.metrics={config.parent}/{uuid.uuid4().hex}.jsonl", *changes)
    metrics = [key for key in keys if key.startswith("log.metrics=")][-1].partition("=")[2]
    for option, folder in (("--resume", resume), ("--resume-if-any", resume_if_any)):
        keys += [option, folder] if folder is not None else []
    return Job([*prefix, program or trainer(family), "-c", config, *keys, *arguments], config=config,
               metrics=Path(metrics) if metrics else None,
               env=env or (mpirun_environment() if prefix else environment()), **options)


def run(config, *changes, code=0, limit=TIME_LIMIT, **options):
    """Runs a trainer to the end."""
    return launch(config, *changes, **options).end(code, limit)


def started(config, folder, *changes, **options):
    """Starts an endless run and waits for its first steps. Its metrics are in metrics.jsonl of the folder."""
    (folder / "metrics.jsonl").unlink(missing_ok=True)
    endless = ("train.steps=1000000", "train.schedule=constant", "data.val_every=0")
    job = launch(config, *endless, f"log.metrics={folder}/metrics.jsonl", *changes, **options)
    job.trains(3)
    return job


def execute(words, code=0, limit=TIME_LIMIT, input=None, **options):
    """Runs a program to the end."""
    return Job(words, **options, **({} if input is None else {"stdin": subprocess.PIPE})).end(code, limit, input)


def command(family, *arguments, overrides=(), **options):
    """Runs a trainer to the end without a configuration of ours."""
    return execute([trainer(family), *arguments, *as_options(*overrides)], **{"limit": 4 * TIME_LIMIT, **options})


def script(name, *arguments, **options):
    """Runs one of scripts/, studies/ or make/ to its end."""
    path = next(path for folder in ("scripts", "studies", "make") if (path := ROOT / folder / name).exists())
    return execute([sys.executable, path, *arguments], **options)


def close(left, right, relative):
    """Returns whether two lists of numbers agree, each pair within `relative` of the larger."""
    assert len(left) == len(right) and len(left) > 0
    worst = max(abs(a - b) / max(abs(a), abs(b)) for a, b in zip(left, right))
    assert worst <= relative, worst
    return True


# ---- runs of one configuration, changed a little each time -----------------------------------------------------------


class Trainer:
    """Runs of one configuration in one folder, with one thread. changes: what all runs change."""

    def __init__(self, folder, model, tokens=None, *changes):
        self.folder, self.model, self.changes = Path(folder), model, changes
        tokens = walked_tokens(4000, model["vocab"]) if tokens is None else tokens
        self.data = write_tokens(self.folder / "train.bin", tokens)
        self.config = write_sections(self.folder, model["family"], {
            "model": model,
            "train": {"global_batch": 8, "steps": 8, "lr": 3.0e-3, "warmup_steps": 2},
            "data": {"train": str(self.data)},
            "hardware": {"device": "cpu", "peak_tflops": 1, "reserve_gib": 0.1},
        })

    def words(self, *changes):
        """Returns the command of a run."""
        return [trainer(self.model["family"]), "-c", self.config, *as_options(*self.changes, *changes)]

    def launch(self, *changes, env=None, **options):
        return launch(self.config, *self.changes, *changes, family=self.model["family"], env=env or one_thread(),
                      **options)

    def run(self, *changes, code=0, limit=TIME_LIMIT, **options):
        return self.launch(*changes, **options).end(code, limit)


def layout(p=1, t=1, d=1, bpipe=False, b=1, **more):
    """Returns changes to a configuration; more: keys with _ instead of the dot, as in schedule_slots=4."""
    extra = {key.replace("_", ".", 1): value for key, value in more.items()}
    return {"parallel.pipeline": p, "parallel.tensor": t, "parallel.data": d,
            "schedule.bpipe": "on" if bpipe else "off", "schedule.micro_batch": b, **extra}


def saving(folder, every, keep=100):
    return {"checkpoint.dir": str(folder), "checkpoint.every": every, "checkpoint.keep": keep}


def checkpoint_names(folder):
    return sorted(path.name for path in Path(folder).iterdir())


def tensors_of(folder, files="*"):
    """Returns the fp32 tensors of a checkpoint's files: weights and moments."""
    import numpy

    found = {}
    for path in sorted(folder.glob(f"{files}.safetensors")):
        data = path.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        for name, entry in json.loads(data[8 : 8 + length]).items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                values = numpy.frombuffer(data[8 + length + begin : 8 + length + end], "<f4")
                found[name] = values.reshape(entry["shape"])
    return found


def verify(folder):
    """Returns None, or why the checkpoint is not intact."""
    ended = execute([TOOLS / "tool_verify", folder], code=None)
    return None if ended.code == 0 else ended.stderr.strip()

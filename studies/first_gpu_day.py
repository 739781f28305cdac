#!/usr/bin/python3
"""Runs every check and measurement of the GPU code on this machine; studies/first_gpu_day.sh builds and calls it.

    studies/first_gpu_day.sh [--long] [--out DIR] [--gpus N] [--only ROW,...] [--again] [--launch COMMAND]

By default it runs, within 15 minutes on one GPU, the rows that tell a stranger most (SHORT): does it run, are losses
right, how fast is it beside PyTorch and beside its plan. --long runs every row, half an hour on one H100. Each row has
a time limit of its own, and results are written after each. A completed row is not run again, so the command continues
where it was interrupted; --again repeats it, and --only leaves the results of other rows in place. DIR
(out/first_gpu_day) receives the logs, first_gpu_day.json, and first_gpu_day.html, a page with every measurement next to
its plan. --launch starts the training rows as steps of a Slurm allocation ('srun --mpi=pmix') instead of mpirun. --tiny
uses small shapes: for a virtual GPU, or to try the script itself.
"""

import argparse
import html
import json
import os
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
QUIET = ["checkpoint.every=0", "data.val_every=0"]
VIRTUAL = "VIRTUAL_GPUS" in os.environ
ONE = ["parallel.pipeline=1", "schedule.bpipe=off"]
BF16, CPU, CUDA = "train.precision=bf16", "hardware.device=cpu", "hardware.device=cuda"
KERNELS = ("norm", "pointwise", "embedding", "cross_entropy", "adamw")
ROOMY = ("h200", "b200", "b300", "gb200")  # GPUs of more than 80 GB
TINY = {"hidden": 64, "heads": 8, "kv_heads": 8, "ffn": 128, "vocab": 257, "seq_len": 64}


class Day:
    """The folder of results, the programs, and the machine."""

    def __init__(self, options):
        self.options, self.out = options, Path(options.out).absolute()
        self.programs = Path(os.environ.get("PROGRAMS", ROOT / "build/release")).absolute()
        self.tests = Path(os.environ.get("TESTS", self.programs / "test")).absolute()
        self.kernels = Path(os.environ.get("KERNELS", self.programs / "gpu")).absolute()
        self.gpus, self.log, self.deadline = options.gpus or count_gpus(), None, 0.0
        self.out.mkdir(parents=True, exist_ok=True)

    def trainer(self, config, *words):
        """Returns the command of a configuration's trainer; a word KEY=VALUE sets a key."""
        words = [part for word in words for part in (["-o", word] if re.match(r"[a-z]+\.\w+=", str(word)) else [word])]
        program = "train_gpt" if config.startswith("gpt") else "train_llama"
        return list(map(str, [self.programs / program, "-c", ROOT / "configs" / config, *words]))

    def run(self, command, env=None, codes=(0,)):
        """Runs a command with its output in the row's log. Returns the output; raises Failed for an exit code not in
        `codes`, or when the row's time is over."""
        left, command = self.deadline - time.monotonic(), list(map(str, command))
        with self.log.open("a") as log:
            log.write(f"$ {shlex.join(command)}\n")
            log.flush()
            at = log.tell()
            job = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=ROOT,
                                   env={**os.environ, **(env or {})}, start_new_session=True)
            try:
                code = job.wait(timeout=max(left, 1.0))
            except subprocess.TimeoutExpired:
                log.write(stacks(job.pid))
                raise Failed(f"did not end within {left:.0f} s; the log has the stacks of its processes") from None
            finally:  # also when interrupted
                if job.poll() is None:
                    end_group(job)
        with self.log.open() as log:
            log.seek(at)
            said = log.read()
        if code not in codes:
            raise Failed(f"exit code {code}: {(said.strip().splitlines() or ['no output'])[-1]}")
        return said

    def train(self, name, *options, config="llama_tiny.yaml", steps=5, codes=(0,), env=None):
        """Trains a few steps. Returns their step lines."""
        metrics = self.out / f"{name}.jsonl"
        metrics.unlink(missing_ok=True)
        launch = shlex.split(self.options.launch) if self.options.launch else []
        keys = [CUDA, f"train.steps={steps}", f"train.timeout_s={600 if VIRTUAL else 60}", f"log.metrics={metrics}"]
        self.run([*launch, *self.trainer(config, *QUIET, *keys, *options)], codes=codes, env=env)
        return steps_of(metrics)

    def keys(self, config, p=1, t=1, d=1, layers=4, b=2, m=8):
        """Returns the options of a run of a model's layers on p * t * d GPUs."""
        shape = {"layers": layers * p, **(tiny_shape(config) if self.options.tiny else {})}
        keys = [f"model.{key}={value}" for key, value in shape.items()]
        keys += [f"parallel.pipeline={p}", f"parallel.tensor={t}", f"parallel.data={d}", f"schedule.micro_batch={b}"]
        keys += [f"train.global_batch={b * m * d}", "schedule.bpipe=off", "data.val=", f"hardware.gpu={self.gpu()}"]
        return [*keys, f"data.train={ROOT}/data/bible_train_*.bin"]

    def real(self, *options, name, config="llama65b.yaml", env=None, **sizes):
        """Runs such a configuration and plans it. Returns {ms, plan_ms, low, high, bytes, plan_bytes, exposed_ms}."""
        words = [*self.keys(config, **sizes), *options]
        found = self.train(name, *words, config=config, steps=6, env=env)
        planned = self.plan(*words, config=config)
        return {
            "ms": round(statistics.median(step["step_ms"] for step in found[2:]), 3),
            "plan_ms": planned["step_ms"], "low": planned.get("step_ms_low"), "high": planned.get("step_ms_high"),
            "bytes": max(stage["peak_bytes"] for stage in found[-1]["stages"]),
            "plan_bytes": max(stage["peak_bytes"] for stage in planned["stages"]),
            "exposed_ms": round(found[-1]["transfer_exposed_ms"], 3),
        }

    def plan(self, *options, config="llama65b.yaml"):
        command = self.trainer(config, "-q", "--plan", "--json", *options)
        answer = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        if not answer.stdout.startswith("{"):
            raise Failed(f"the plan: {answer.stderr.strip().splitlines()[-1:]}")
        return json.loads(answer.stdout)

    def gpu(self):
        """Returns the name of this machine's GPU in hardware.gpu."""
        name = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True,
                              text=True).stdout if shutil.which("nvidia-smi") else ""
        words = ("gh200", "gb200", "b300", "b200", "h200", "h100", "h800", "h20", "a100-80g", "a100-40g", "l40s")
        plain = name.lower().replace(" ", "")
        return next((word for word in words if all(part in plain for part in word.split("-"))), "h100")


class Failed(Exception):
    pass


class Skipped(Exception):
    pass


def tiny_shape(config):
    return {key: value for key, value in TINY.items() if key != "kv_heads" or config.startswith("llama")}


def count_gpus():
    if "VIRTUAL_GPUS" in os.environ:
        return int(os.environ["VIRTUAL_GPUS"])
    if not shutil.which("nvidia-smi"):
        return 0
    return subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout.count("GPU ")


def members(session):
    """Returns the processes of a session, the oldest first."""
    found = subprocess.run(["ps", "-o", "pid=", "-s", str(session)], capture_output=True, text=True).stdout.split()
    return list(map(int, found))


def stacks(session):
    """Returns the stacks of all processes of a session, from gdb, or else wait channels and stacks from /proc."""
    said = "\n-- stacks at the time-out\n"
    for pid in members(session):
        command = ["timeout", "-s", "KILL", "15", "gdb", "-p", str(pid), "-batch", "-ex",
                   "thread apply all backtrace 12"]
        if not shutil.which("gdb"):
            command = ["head", "-c", "400", *(f"/proc/{pid}/{name}" for name in ("cmdline", "wchan", "stack"))]
        said += subprocess.run(command, capture_output=True, text=True, errors="replace").stdout
    return said


def end_group(job):
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in members(job.pid):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass
        try:
            job.wait(timeout=10)
            return
        except subprocess.TimeoutExpired:
            continue


def steps_of(path):
    if not path.exists():
        raise Failed(f"{path.name} was not written")
    return [line for line in map(json.loads, path.read_text().splitlines()) if line["type"] == "step"]


def same(one, other, bound, what):
    """Raises Failed unless two runs agree in loss and norm to a relative bound. Returns the largest difference."""
    worst = max(
        (abs(a[key] - b[key]) / abs(b[key]) for a, b in zip(one, other) for key in ("loss", "grad_norm")), default=1.0)
    if len(one) != len(other) or worst > bound:
        raise Failed(f"{what}: differ by {worst:.3g}, allowed {bound:g}")
    return worst


# ---- the rows --------------------------------------------------------------------------------------------------------

ROWS = []
# The rows of a run without --long, in order, with their limits in seconds (900 in total).
SHORT = {"machine": 20, "two steps": 30, "rules of CUDA and NCCL": 35, "beside PyTorch": 315, "--tune": 100,
         "loss curves": 180, "losses as on the CPU": 70, "--check": 40, "saved and resumed bits": 60,
         "verify.py, fp32 and bf16": 50}


def row(name, seconds, gpus=1, real=False):
    """Registers a row: its budget, the GPUs it needs, and whether it needs real ones."""

    def add(function):
        ROWS.append((name, seconds, gpus, real, function))
        return function

    return add


@row("machine", 10)
def machine(day):
    if VIRTUAL:
        return {"gpus": day.gpus, "virtual": True}
    day.run(["nvidia-smi", "-q"])
    day.run(["nvidia-smi", "topo", "-m"], codes=(0, 1, 255))
    fields = "name,driver_version,memory.total,clocks.max.sm,power.limit"
    found = day.run(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]).splitlines()[0].split(", ")
    return {"gpus": day.gpus, **dict(zip(fields.split(","), found))}


@row("two steps", 40)
def two_steps(day):
    return {"losses": [step["loss"] for step in day.train("two_steps", *ONE, steps=2)]}


@row("--check", 40)
def check(day):
    """Compares products with the plan, and links with each other; each GPU is a data rank."""
    keys = [*QUIET, *ONE, *day.keys("llama65b.yaml", d=day.gpus, layers=1), "checkpoint.dir=", CUDA]
    said = day.run(day.trainer("llama65b.yaml", "-q", *keys, "--check", "--json"), codes=(0, 1))
    return json.loads(said[said.index("{") : said.rindex("}") + 1])


def with_torch(day, script, *options):
    """Runs a study that needs PyTorch, with the programs under test."""
    probe = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    if subprocess.run([sys.executable, "-c", probe], capture_output=True).returncode != 0:
        raise Skipped(f"{sys.executable} has no PyTorch that sees a GPU")
    out = day.out / Path(script).stem
    day.run([sys.executable, ROOT / "studies" / script, "--programs", day.programs, "--out", out, *options],
            codes=(0, 1))
    return json.loads((out / f"{Path(script).stem}.json").read_text())


@row("beside PyTorch", 340, real=True)
def beside(day):
    return with_torch(day, "side_by_side.py", "--budget", 280, "--memory-gb", 141 if day.gpu() in ROOMY else 80)


@row("--tune", 120)
def tune(day):
    """Chooses kernels for one layer's products. Trains the same steps without them and, twice, with them."""
    path = day.out / "products.json"
    path.unlink(missing_ok=True)
    keys, chosen = day.keys("llama65b.yaml", layers=1), [f"hardware.products_file={path}"]
    day.run(day.trainer("llama65b.yaml", *QUIET, *keys, *chosen, CUDA, "--tune"))
    products = json.loads(path.read_text())["products"]
    first, *tuned = (day.train(f"tune_{name}", *keys, *words, config="llama65b.yaml")
                     for name, words in {"first": (), "chosen": chosen, "again": chosen}.items())
    same(tuned[1], tuned[0], 0, "two runs with the same file")
    return {"products": len(products), "faster": sum(each["suggestion"] > 0 for each in products),
            "losses": same(tuned[0], first, 1e-2, "chosen kernels and the first suggestions"),
            "ms": [statistics.median(step["step_ms"] for step in steps[2:]) for steps in (first, tuned[0])]}


@row("loss curves", 180, real=True)
def curves(day):
    found = with_torch(day, "curve.py")
    return {kind: {key: run[key] for key in ("largest", "mean", "last")} for kind, run in found["ours"].items()}


@row("rules of CUDA and NCCL", 60)
def rules(day):
    said = day.run([day.tests / "api_rules"], env={"VIRTUAL_RACES": "0"})  # the program's pipes carry no vector clocks
    return {word: len(re.findall(f"^{word} ", said, re.M)) for word in ("confirmed", "skipped")}


@row("operations against the CPU", 240, real=True)
def operations(day):
    day.run([day.tests / "test_cuda"])
    for name in KERNELS:
        day.run([day.kernels / f"test_gpu_{name}"])


@row("losses as on the CPU", 90)
def losses(day):
    cpu, gpu, half = day.train("cpu", *ONE, CPU), day.train("fp32", *ONE), day.train("bf16", *ONE, BF16)
    result = {"fp32": same(gpu, cpu, 1e-4, "fp32 and the CPU"), "bf16": same(half, cpu, 5e-2, "bf16 and the CPU")}
    same(day.train("bf16_again", *ONE, BF16), half, 0, "two runs in bf16")
    first = None
    for mode in ("none", "recompute", "flash"):
        for softmax in ("fused", "unfused"):
            found = day.train(f"{mode}_{softmax}", *ONE, BF16, f"attention.mode={mode}", f"attention.softmax={softmax}")
            first = first or found
            result[f"{mode}, {softmax}"] = same(found, first, 2e-2, f"attention {mode}, softmax {softmax}")
    return result


def compared(name, bound, keys, ranks=(), config="llama_tiny.yaml"):
    """Registers a row that compares one GPU with the CPU, and then two ranks with one GPU. ranks: their keys."""
    alone = [*ONE, "parallel.data=1", "parallel.expert=1"]

    @row(name, 30 * (2 + len(ranks)))
    def compare(day):
        cpu, gpu = (day.train(f"{name}_{key}", *alone, *keys, key, config=config) for key in (CPU, CUDA))
        result = {"one GPU": same(gpu, cpu, bound, f"{name} and the CPU")}
        for more in ranks:
            share = f"hardware.share_gpu={'false' if day.gpus > 1 else 'true'}"
            found = day.train(f"{name}_{more[0]}", *alone, *keys, *more, share, config=config)
            result[" ".join(more)] = same(found, gpu, bound, f"{name} of two ranks")
        return result


for way, of_way in {
    "fp8 tensor": ["train.fp8=tensor"], "fp8 block": ["train.fp8=block"],
    "documents": ["data.mask_documents=on", "data.reset_positions=on"],
    "slices": ["schedule.name=seq1f1b", "schedule.slices=2"], "pointwise": ["schedule.recompute=pointwise"],
}.items():
    compared(way, 5e-2, [BF16, *of_way])
EXPERTS = ["parallel.data=2", "parallel.expert=2"]
for kind, most in (("fp32", 1e-3), ("bf16", 5e-2)):
    precise = f"train.precision={kind}"
    compared(f"Muon, {kind}", most, [precise, "train.optimizer=muon"], [["parallel.tensor=2"], ["parallel.data=2"]])
    compared(f"experts, {kind}", most, [precise], [EXPERTS], "moe_tiny.yaml")
compared("experts and latent attention", 1e-3, [
    "model.kv_heads=auto", "model.qk_norm=false", "model.kv_lora=48", "model.q_lora=64", "model.nope_dim=16",
    "model.rope_dim=8", "model.v_dim=24", "model.router=sigmoid", "train.balance=bias"], [EXPERTS], "moe_tiny.yaml")


@row("ranks that share one GPU", 180)
def shared(day):
    """Tests the communication of ranks except NCCL: bundles by CUDA-IPC, rows by copy engines, sums on the host."""

    def train(name, *options):
        return day.train(name, "hardware.share_gpu=true", *options, env={"CUDA_VISIBLE_DEVICES": "0"})

    plain = train("shared_plain", "schedule.bpipe=off")
    same(train("shared_bpipe"), plain, 0, "BPipe on and off")
    same(train("shared_host", "schedule.evict_to=host"), plain, 0, "evictions to the host and none")
    result = {}
    for name, keys in {"tensor": ["parallel.tensor=4", "parallel.sequence=true"],
                       "tensor, block": ["parallel.tensor=2", "parallel.sequence=true", "train.fp8=block"],
                       "data": ["parallel.data=2"], "context": ["parallel.context=2"]}.items():
        words = [*ONE, BF16, *keys]
        found = train(f"shared_{name}", *words)
        cpu = day.train(f"shared_cpu_{name}", *words, CPU)
        result[name] = same(found, cpu, 5e-2, f"{name} ranks and the CPU")
        for overlap in ("off", "on", "2") if name == "tensor" else ("on",) if "tensor" in name else ():
            copies = [*words, "parallel.collectives=copy", f"parallel.overlap={overlap}"]
            same(train(f"copies_{name}_{overlap}", *copies), found, 0, f"{name} ranks by copies, overlap {overlap}")
    return result


@row("ranks with a GPU each", 120, gpus=2)
def several(day):
    alone = day.train("alone", *ONE)
    pairs = {"stages": ["parallel.pipeline=2", "schedule.bpipe=off"], "tensor": ["parallel.tensor=2"],
             "data": ["parallel.data=2"]}
    result = {}
    for name, keys in pairs.items():
        base, bound = ([], 0) if name == "stages" else (ONE, 1e-4)
        result[name] = same(day.train(name, *base, *keys), alone, bound, name)
    if day.gpus >= 4:
        result["four stages with BPipe"] = same(day.train("bpipe"), alone, 0, "four stages with BPipe")
    return result


@row("verify.py, fp32 and bf16", 120, gpus=1)
def verify(day):
    for precision in ("fp32", "bf16"):
        keys = [CUDA, f"train.precision={precision}", "hardware.share_gpu=true"]
        day.run([ROOT / "scripts/verify.py", "2", *day.trainer("llama_tiny.yaml", *keys)])


@row("products and kernels", 120)
def rates(day):
    widths = ("8192:6144", "2048:8192", "8192:11008", "5504:8192")
    shapes = [f"{rows}:{width}" for rows in (2048, 4096, 8192) for width in widths]
    shapes += [f"attention:{of}" for of in ("1:16:2048", "2:16:2048", "4:16:2048", "1:32:8192", "1:8:32768")]
    shapes = ["64:64:64"] if day.options.tiny else shapes
    said = day.run([day.programs / "bench_gpu" if day.options.tiny else day.tests / "bench_gpu",
                    "0.01" if day.options.tiny else "1.0", *shapes])
    return {"rows": [json.loads(line) for line in said.splitlines() if line.startswith("{")]}


def stage(day, *keys, config="llama65b.yaml"):
    """Emulates a middle stage. Returns its times, its MFU, and whether its bytes are the planned ones."""
    keys = [*keys, f"hardware.gpu={day.gpu()}"]
    if day.options.tiny:
        keys += [f"model.{key}={value}" for key, value in {**tiny_shape(config), "layers": 8}.items()]
        keys += ["train.global_batch=64"]
    said = day.run(day.trainer(config, "--emulate-stage", "6", *keys))
    return {"times": "".join(re.findall(r"^time +(.*)", said, re.M)),
            "mfu": float((re.findall(r"^MFU .*?([\d.]+)%", said, re.M) or ["nan"])[-1]),
            "bytes as planned": "the same to the byte" in said}


@row("one stage alone, b = 1, 2, 4", 240)
def stages(day):
    return {f"{config}, b={b}": stage(day, f"schedule.micro_batch={b}", config=config)
            for config in ("llama65b.yaml", "gpt3_96b.yaml") for b in (1, 2, 4)}


@row("one stage alone, other ways", 240)
def stages_otherwise(day):
    ways = {"fp8 tensor": ["train.fp8=tensor"], "fp8 block": ["train.fp8=block"],
            "attention none": ["attention.mode=none"], "attention recompute": ["attention.mode=recompute"],
            "not deterministic": ["attention.deterministic=off"], "pointwise": ["schedule.recompute=pointwise"]}
    return {name: stage(day, "schedule.micro_batch=2", *keys) for name, keys in ways.items()}


@row("steps on one GPU", 300)
def whole_steps(day):
    roomy = day.options.tiny or day.gpu() in ROOMY
    layers = 3 if roomy else 2
    profile = day.out / "whole_profile.json"
    result = {}
    for model, config, sizes in (
        ("LLaMA 65B", "llama65b.yaml", {"layers": layers}),
        ("GPT-3 96B", "gpt3_96b.yaml", {"layers": 2 if roomy else 1}),
        ("Llama 3 8B", "llama3_8b.yaml", {"layers": 8, "b": 1}),
        ("LLaMA 65B, b=4", "llama65b.yaml", {"layers": layers, "b": 4}),
    ):
        for fp8 in ("off", "block", "tensor"):
            name = model if fp8 == "off" else f"{model}, {fp8}"
            result[name] = day.real(f"train.fp8={fp8}", name=f"whole_{len(result)}", config=config, **sizes)
    long = f"model.seq_len={64 if day.options.tiny else 32768}"
    result["Llama 3 8B, s=32768"] = day.real(long, name="whole_long", layers=2, b=1, m=2, config="llama3_8b.yaml")
    result["LLaMA 65B, Muon"] = day.real("train.optimizer=muon", name="whole_muon", layers=layers)
    profiled = f"hardware.profile={profile}"
    day.run(day.trainer("llama65b.yaml", "--profile", profiled, *day.keys("llama65b.yaml", layers=layers)))
    result["LLaMA 65B by its profile"] = day.real(profiled, name="whole_profile", layers=layers)
    return result


def tensor_ranks(day):
    return max(t for t in (1, 2, 4, 8) if t <= min(day.gpus, 8))


@row("two stages at real size", 120, gpus=2)
def two_stages(day):
    return day.real(name="two_stages", p=2, t=max(1, min(4, day.gpus // 2)), layers=4)


@row("overlap and clusters", 480, gpus=2)
def overlap(day):
    result = {}
    for cluster in ("4", "1"):
        for mode in ("off", "on", "2", "4"):
            for way in ("nccl", "copy"):
                result[f"overlap {mode}, cluster {cluster} {way}"] = day.real(
                    f"parallel.overlap={mode}", f"parallel.collectives={way}", t=tensor_ranks(day), layers=2,
                    name=f"overlap_{mode}_cluster{cluster}{way}", env={"NCCL_CGA_CLUSTER_SIZE": cluster})
    return result


@row("BPipe off, on, to the host", 180, gpus=4)
def bpipe_real(day):
    modes = {"off": [], "on": ["schedule.bpipe=on"], "host": ["schedule.bpipe=on", "schedule.evict_to=host"]}
    return {name: day.real(*keys, name=f"bpipe_{name}", p=4, t=max(1, day.gpus // 4), layers=2, m=16)
            for name, keys in modes.items()}


@row("data ranks, and all GPUs as tensor ranks", 120, gpus=2)
def other_layouts(day):
    return {"d=2": day.real(name="data2", d=2, t=max(1, day.gpus // 2), layers=2),
            "t": day.real(name="tensor_all", t=tensor_ranks(day), layers=4)}


@row("one visible GPU per rank", 60, gpus=2)
def one_visible(day):
    command = 'CUDA_VISIBLE_DEVICES=$OMPI_COMM_WORLD_LOCAL_RANK exec "$0" "$@"'
    ranks = min(day.gpus, 4)
    day.run(["mpirun", "-n", ranks, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "bash", "-c",
             command, *day.trainer("llama_tiny.yaml", *QUIET, CUDA, f"parallel.pipeline={ranks}", "train.steps=3")])


@row("a rank is killed, a rank is stopped", 150)
def faults(day):
    result = {}
    keys = ["train.global_batch=2", "schedule.micro_batch=1", f"hardware.share_gpu={str(day.gpus < 2).lower()}", CUDA,
            "train.steps=1000000", "parallel.pipeline=2", "train.peer_timeout_s=5",
            *(f"model.{key}={value}" for key, value in {**TINY, "layers": 2}.items())]
    for name, number in (("killed", signal.SIGKILL), ("stopped", signal.SIGSTOP)):
        command = day.trainer("llama_tiny.yaml", *QUIET, *keys, f"log.metrics={day.out}/{name}.jsonl")
        (day.out / f"{name}.jsonl").unlink(missing_ok=True)
        with day.log.open("a") as log:
            job = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, start_new_session=True)
            try:
                wait_for_steps(day, day.out / f"{name}.jsonl", job)
                ranks = [pid for pid in members(job.pid) if "train_llama" in comm(pid)]
                os.kill(ranks[-1], number)
                began = time.monotonic()
                code = job.wait(timeout=60)
            except subprocess.TimeoutExpired:
                log.write(stacks(job.pid))
                raise Failed(f"a {name} rank: the job did not end within 60 s") from None
            finally:
                end_group(job)
        if code != 1:
            raise Failed(f"a {name} rank: exit code {code}")
        result[name] = f"ended after {time.monotonic() - began:.1f} s"
    return result


def comm(pid):
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""


def wait_for_steps(day, metrics, job):
    while job.poll() is None and time.monotonic() < day.deadline:
        if metrics.exists() and metrics.read_text().count('"step"') >= 3:
            return
        time.sleep(0.2)
    raise Failed("the run made no steps")


@row("saved and resumed bits", 120)
def resumed(day):
    folder = day.out / "checkpoint"
    shutil.rmtree(folder, ignore_errors=True)
    keys = [*ONE, BF16, "checkpoint.every=3", f"checkpoint.dir={folder}"]
    full = day.train("full", *keys, steps=6)
    rest = day.train("rest", *keys, "--resume", folder / "step_00000003", f"checkpoint.dir={folder}_2", steps=6)
    shutil.rmtree(f"{folder}_2", ignore_errors=True)
    same(rest, full[3:], 0, "a resumed run")


@row("yardstick: Qwen2.5 3B on one GPU", 150, real=True)
def yardstick(day):
    keys = ["parallel.data=1", "model.seq_len=1024", "train.global_batch=64", "data.val=",
            f"hardware.gpu={day.gpu()}", f"data.train={ROOT}/data/bible_train_*.bin"]
    result = {"llmq, H100, bf16": 31000}
    for b in (2, 8) if day.gpu() in ROOMY else (2,):
        words = [*keys, f"schedule.micro_batch={b}"]
        found = day.train(f"qwen{b}", *words, config="qwen2.5_3b.yaml", steps=6)
        result[f"tokens per second, b={b}"] = round(statistics.median(step["tokens_per_s"] for step in found[2:]))
        result[f"planned, b={b}"] = round(65536e3 / day.plan(*words, config="qwen2.5_3b.yaml")["step_ms"])
    return result


@row("compute-sanitizer", 150, real=True)
def sanitizer(day):
    if not shutil.which("compute-sanitizer"):
        raise Skipped("compute-sanitizer is not installed")
    check = ["compute-sanitizer", "--error-exitcode", "9", "--target-processes", "all"]
    lazy = {"CUDA_MODULE_LOADING": "LAZY"}
    for name in KERNELS:
        for tool in ("memcheck", "racecheck"):
            day.run([*check, "--tool", tool, day.kernels / f"test_gpu_{name}"], env=lazy)
    for keys in ([], ["train.fp8=block"], ["data.mask_documents=on", "schedule.name=seq1f1b", "schedule.slices=2"]):
        keys += [BF16, "train.steps=1", CUDA, "train.global_batch=4", f"log.metrics={day.out}/checked.jsonl"]
        day.run([*check, *day.trainer("llama_tiny.yaml", *QUIET, *ONE, *keys)], env=lazy)


@row("profile of a stage", 120, real=True)
def profiled(day):
    if not shutil.which("nsys"):
        raise Skipped("nsys is not installed")
    keys = [f"hardware.gpu={day.gpu()}", "schedule.micro_batch=2", "train.global_batch=8"]
    day.run(["nsys", "profile", "-f", "true", "-t", "cuda,nvtx", "-o", day.out / "stage",
             *day.trainer("llama65b.yaml", *keys, "--emulate-stage", "6")])
    day.run(["nsys", "stats", "--force-export=true", "-r", "cuda_gpu_kern_sum", "-f", "csv",
             day.out / "stage.nsys-rep"])


# ---- running and reporting -------------------------------------------------------------------------------------------


def run_row(day, entry):
    """Runs one row unless its result exists. Returns the result."""
    name, seconds, gpus, real, function = entry
    path = day.out / "rows" / f"{re.sub('[^a-z0-9]+', '_', name.lower())}.json"
    path.parent.mkdir(exist_ok=True)
    if path.exists() and not day.options.again:
        return json.loads(path.read_text())
    day.log = path.with_suffix(".log")
    day.log.write_text("")
    began = time.monotonic()
    limit = seconds if name in SHORT and not day.options.long else 2 * seconds
    day.deadline = began + (10 * limit if VIRTUAL else limit)  # virtual GPUs are slow
    result = {"row": name, "budget_s": seconds, "state": "ok"}
    try:
        if day.gpus < gpus:
            raise Skipped(f"needs {gpus} GPUs, and {day.gpus} are here")
        if real and VIRTUAL:
            raise Skipped("needs a real GPU")
        result["found"] = function(day) or {}
    except Skipped as reason:
        result |= {"state": "skipped", "reason": str(reason)}
    except (Failed, OSError, KeyError, ValueError, IndexError) as error:
        result |= {"state": "FAILED", "reason": str(error)}
    result["seconds"] = round(time.monotonic() - began, 1)
    path.write_text(json.dumps(result, indent=1))
    return result


def chosen(options):
    """Returns the rows to run, in their order: those named, all, or the short ones with their own limits."""
    words = [word for word in options.only.split(",") if word]
    if words:
        return [entry for entry in ROWS if any(word in entry[0] for word in words)]
    rows = {entry[0]: entry for entry in ROWS}
    return ROWS if options.long else [(name, SHORT[name], *rows[name][2:]) for name in SHORT if name in rows]


def earlier(day):
    """Returns the results that exist, in the order of the rows."""
    found = {}
    for path in (day.out / "rows").glob("*.json"):
        result = json.loads(path.read_text())
        found[result["row"]] = result
    return [found[entry[0]] for entry in ROWS if entry[0] in found]


def against_plan(result):
    """Yields (name, figures) of the row's runs that have a plan."""
    found = result.get("found") or {}
    for name, run in {"": found, **found}.items():
        if isinstance(run, dict) and "plan_ms" in run:
            yield f"{result['row']} {name}".strip(), run


def page(results):
    def table(head, rows):
        lines = ["<table><tr>" + "".join(f"<th>{html.escape(cell)}</th>" for cell in head) + "</tr>"]
        lines += ["<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in cells) + "</tr>" for cells in rows]
        return "\n".join([*lines, "</table>"])

    runs = [(name, f"{run['ms']:.1f}", f"{run['plan_ms']:.1f}", f"{run['ms'] / run['plan_ms'] - 1:+.0%}",
             f"{run['bytes']:,}", f"{run['plan_bytes']:,}") for result in results for name, run in against_plan(result)]
    states = [(r["row"], r["state"], r["seconds"], r["budget_s"], r.get("reason", "")) for r in results]
    rest = "\n".join(f"<h3>{html.escape(r['row'])}</h3><pre>{html.escape(json.dumps(r['found'], indent=1))}</pre>"
                     for r in results if r.get("found"))
    return f"""<!doctype html><meta charset="utf-8"><title>First GPU day</title>
<style>body{{font:15px sans-serif;margin:2em}}
td,th{{padding:2px 12px;text-align:left;border-bottom:1px solid #ccc}}</style>
<h1>First GPU day</h1><h2>Rows</h2>{table(("row", "state", "s", "budget", "reason"), states)}
<h2>Measured against the plan</h2>{table(("run", "step ms", "planned ms", "", "bytes", "planned bytes"), runs)}
<h2>Values</h2>{rest}
"""


def main():
    parser = argparse.ArgumentParser(
        prog="first_gpu_day", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--long", action="store_true", help="every row")
    parser.add_argument("--out", default=str(ROOT / "out/first_gpu_day"), metavar="DIR")
    parser.add_argument("--gpus", type=int, metavar="N", help="GPUs to use; without it all")
    parser.add_argument("--only", default="", metavar="ROW,...", help="rows whose name contains one of these")
    parser.add_argument("--again", action="store_true", help="run completed rows again")
    parser.add_argument("--launch", default="", metavar="COMMAND", help="command to start ranks: 'srun --mpi=pmix'")
    parser.add_argument("--tiny", action="store_true", help="small shapes")
    day = Day(parser.parse_args())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if day.gpus == 0:
        print("first_gpu_day: no GPU found, so nothing was checked; run this where nvidia-smi lists one",
              file=sys.stderr)
        return 1
    ran = []
    for entry in chosen(day.options):
        last = run_row(day, entry)
        ran.append(last["state"])
        print(f"{last['state']:8} {last['seconds']:6.1f} s  {last['row']}  {last.get('reason', '')}".rstrip(),
              flush=True)
        results = earlier(day)
        (day.out / "first_gpu_day.json").write_text(json.dumps({"rows": results}, indent=1))
        (day.out / "first_gpu_day.html").write_text(page(results))
    print(f"results: {day.out}/first_gpu_day.json and first_gpu_day.html")
    return 1 if "FAILED" in ran else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Chaos by seed: a small random run is disturbed at random moments, and the same promises are checked after each.

    test/soak/chaos.py SEED [COUNT] [--jobs N] [--keep]

Each seed from SEED on determines a configuration (layout, schedule, checkpoints, restarts, way to start), a list of
faults and their moments. First safety is checked: the run ends within its time limit, its exit code and last message
are true, and no checkpoint that it reported as saved is lost or damaged. Then liveness: resumed without faults, the run
completes, all losses and norms have the bits of an undisturbed run of one stage, and no process or file is left over. A
failure prints its seed, which determines everything except the scheduling of processes. --keep keeps the folders.
"""

import argparse
import contextlib
import errno
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

import hosts  # noqa: E402
from chaos_case import PEER_TIMEOUT_S, STEPS, TIMEOUT_S, Case  # noqa: E402
from harm import ENDS_WITHIN, launcher_process, rank_process, supervisor_process  # noqa: E402
from trainer_runs import (environment, launch, made_tokens, metrics_of, mpirun, mpirun_environment, patience,
                          processes_with, run, verify, wait_until, write_config, write_tokens)  # noqa: E402

MODEL = "{family: llama, hidden: 16, layers: 8, heads: 2, ffn: 16, vocab: 50, seq_len: 8}"
TRAIN = f"{{global_batch: 8, steps: {STEPS}, lr: 3.0e-3, warmup_steps: 2, schedule: constant}}"
BOUND_S = 60  # time limit of a run with its faults on an idle machine: a few timeouts and starts
STEP_MS = 15
DIED = r"(was killed by signal \d+|died|ended with exit code)"
LOST = r"has sent no heartbeat|no rank has made progress|has made no progress"


class Broken(AssertionError):
    """A broken promise."""


def must(kept, what):
    if not kept:
        raise Broken(what)


# ---- an undisturbed run ----------------------------------------------------------------------------------------------


class Bench:
    """Shared by all seeds: the library, the data, and the bits of undisturbed runs."""

    def __init__(self, folder):
        self.folder, self.known, self.lock = folder, {}, threading.Lock()
        for number in (signal.SIGINT, signal.SIGHUP):  # ignored in the background of a script and under nohup
            signal.signal(number, signal.SIG_DFL)
        self.library = folder / "disturb.so"
        source = Path(__file__).with_name("disturb.c")
        subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", self.library, source, "-ldl"], check=True)
        write_tokens(folder / "train_000.bin", made_tokens(2000, 50))

    def config(self, folder):
        return write_config(folder, model=MODEL, train=TRAIN, parallel="{}", schedule="{}",
                            data=f'{{train: "{self.folder}/train_*.bin"}}')  # fmt: skip

    def bits(self, t, d, layers):
        """Returns the losses and norms of one stage; schedule, number of stages and way of starting do not matter."""
        with self.lock:
            if (t, d, layers) not in self.known:
                folder = Path(tempfile.mkdtemp(dir=self.folder))
                keys = [f"model.layers={layers}", f"parallel.tensor={t}", f"parallel.data={d}"]
                keys += [f"log.metrics={folder}/metrics.jsonl"]
                config = self.config(folder)
                ended = run(config, *keys, "parallel.pipeline=1", "schedule.bpipe=off", env=environment())
                must(ended.code == 0, ended.stderr)
                self.known[t, d, layers] = steps_of(folder / "metrics.jsonl")
                must(len(self.known[t, d, layers]) == STEPS, "the undisturbed run has lost steps")
            return self.known[t, d, layers]


def steps_of(metrics):
    """Returns {step: (loss, norm)}; for a repeated step, the values of the last repetition."""
    return {line["step"]: (line["loss"], line["grad_norm"]) for line in metrics_of(metrics)}


# ---- one disturbed run -----------------------------------------------------------------------------------------------


class Trial:
    def __init__(self, bench, case, folder):
        self.bench, self.case, self.folder = bench, case, folder
        self.saved, self.metrics, self.once = folder / "saved", folder / "metrics.jsonl", folder / "once"
        self.config = bench.config(folder)
        self.text, self.made, self.hosts = self.config.read_text(), [], None
        self.older = set(Path("/dev/shm").glob("trainer-*"))
        self.done = []  # the faults that have happened
        self.others = []  # second runs in the same folders

    def prefix(self, given):
        if self.case.way == "hosts":
            return self.hosts.mpirun()
        if given != "file":
            source = f"< {self.config}" if given == "redirected" else f"< <(cat {self.config})"
            return ["bash", "-c", f'exec "$@" {source}', "-"]
        return mpirun(self.case.ranks) if self.case.way == "bare" else ()

    def start(self, *more, disturbed=True):
        case, changes = self.case, {"OMP_NUM_THREADS": "1"}
        given = case.given if disturbed else "file"
        call = case.call()
        if disturbed:
            changes.update(LD_PRELOAD=str(self.bench.library), DISTURB_FOLDER=str(self.folder))
            if any(fault["kind"] != "call" for fault in case.faults):
                changes["DISTURB_STEP_MS"] = str(STEP_MS)
        if disturbed and call is not None:
            changes.update(
                DISTURB_RANK=str(call["rank"]), DISTURB_CALL=str(call["call"]), DISTURB_LASTS=str(call["lasts"]),
                DISTURB_KIND=call["effect"], DISTURB_ONCE=str(self.once), DISTURB_JUMP=str(call["jump"]),
            )  # fmt: skip
            if call["effect"] == "hang":  # disturbs the data, which a rank opens before it is ready
                changes["DISTURB_FOLDER"] = str(self.bench.folder)
        env = environment if case.way == "hand" else mpirun_environment
        if case.way == "hosts":
            changes["TMPDIR"] = "/dev/shm"
        where = [f"checkpoint.dir={self.saved}"] if case.saves else []
        config = self.config if given == "file" else Path("/dev/stdin")
        job = launch(config, *case.keys, *where, f"log.metrics={self.metrics}", *more, prefix=self.prefix(given),
                     resume_if_any=self.saved if case.saves else None, env=env(**changes))  # fmt: skip
        job.config = self.folder  # every process of the job has it in its command line
        self.made.append(job)
        return job

    # -- faults from outside

    def moment(self, job, fault):
        """Waits for the fault's moment; returns False if the run ends before."""
        if fault["step"] is not None:
            steps = fault["step"] + self.case.before
            reached = lambda: job.poll() is not None or len(steps_of(self.metrics)) >= steps
            wait_until(reached, "neither a step nor the end", BOUND_S)
        elif fault["kind"] == "edit":  # by then, the program that started the ranks has read the file
            wait_until(lambda: job.poll() is not None or launcher_process(job), "no mpirun", BOUND_S)
        deadline = time.monotonic() + fault["after"]
        while time.monotonic() < deadline and job.poll() is None:
            time.sleep(0.01)
        return job.poll() is None

    def victim(self, job, fault):
        kind = fault["kind"].removeprefix("kill ")
        if kind == "parent":
            return job.pid
        if kind == "mpirun":
            return launcher_process(job)
        if self.case.ranks == 1 and self.case.restarts == 0:
            return job.pid
        return supervisor_process(job, fault["rank"]) if kind == "supervisor" else rank_process(job, fault["rank"])

    def send(self, job, fault, *numbers, every=0.0):
        pid = self.victim(job, fault)
        for number in numbers if pid is not None else ():
            os.kill(pid, number)
            time.sleep(every)
        return pid is not None

    def strike(self, job, fault):
        """Causes the fault; returns whether it took effect."""
        kind = fault["kind"]
        if kind.startswith("kill"):
            return self.send(job, fault, signal.SIGKILL)
        if kind == "stop":
            return self.send(job, fault, signal.SIGSTOP)
        if kind == "slow":
            return self.send(job, fault, *[signal.SIGSTOP, signal.SIGCONT] * 8, every=0.05)
        if kind == "cut":
            self.hosts.wire_is("down")
        elif kind == "edit":
            self.config.unlink()
            if fault["to"] is not None:
                self.config.write_text(re.sub(r"lr: 3.0e-3", fault["to"], self.text))
        elif kind == "second":
            self.second = self.start(disturbed=False)
            self.others.append(self.second)
        else:
            # The run pauses in its step until the request must have reached it, so a request that is lost shows.
            hold = self.folder / "hold"
            hold.touch()
            fault["reached"] = len(steps_of(self.metrics))
            job.send_signal(fault["number"])
            time.sleep(min(patience(0.3), 2))
            if kind == "signals":
                job.send_signal(fault["number"])
            hold.unlink()
        return True

    def disturb(self, job):
        for fault in self.case.faults:
            if fault["kind"] == "call":
                continue
            with contextlib.suppress(ProcessLookupError, FileNotFoundError, TypeError):
                if self.moment(job, fault):
                    fault["at"] = time.monotonic()
                    fault["early"] = not steps_of(self.metrics)
                    if self.strike(job, fault):
                        self.done.append(fault)

    # -- promises

    def lone(self):
        return self.case.ranks == 1 and self.case.restarts == 0

    def sentences(self):
        """Returns the messages that may end a run with code 1, for the faults that have happened."""
        out, call = [], self.case.call()
        for fault in self.done:
            kind, rank = fault["kind"], rf"rank {fault['rank']}\b.*"
            if kind.startswith("kill") and fault["early"]:
                out += ["one of the ranks was killed by signal 9"]  # before it had connected to the program
            if kind == "kill rank":
                out += [rank + DIED]
            elif kind == "kill supervisor":
                out += [rank + DIED, rank + LOST]
            elif kind == "kill mpirun":
                out += ["mpirun was killed by signal 9"]
            elif kind in ("stop", "cut", "slow"):
                out += [LOST] if kind != "slow" else []
            elif kind == "signal":
                out += ["stopped on request after step", "asked to stop before every rank had started"]
                out += ["asked to stop: the ranks are not started again"]
            elif kind == "signals":
                out += ["second signal", "stopped on request after step", "asked to stop before every rank"]
                out += [r"rank \d+.*was killed"]
        if call is not None and self.once.exists():
            if call["effect"].isdigit():
                out += [re.escape(os.strerror(int(call["effect"]))), re.escape(str(self.folder))]
                out += [LOST] if int(call["effect"]) == errno.EINTR else []  # such calls are made again
            elif call["effect"] != "hang":  # that start is asked to stop, and must report this
                out += [rf"rank {call['rank']}\b.*" + DIED, LOST]
        # When this run restarts, a second run may hold the lock, or may have removed the checkpoint to resume from.
        second = any(fault["kind"] == "second" for fault in self.done)
        return out + second * ["another run (is saving|writes) its|holds checkpoints|there is no such folder"]

    def killed_alone(self, code):
        """A single rank is the program itself: a fault that kills it leaves no process to print a message."""
        numbers = [fault["number"] for fault in self.done if "number" in fault]
        call = self.case.call()
        if call is not None and self.once.exists():
            numbers += {"kill": [signal.SIGKILL], "abort": [signal.SIGABRT]}.get(call["effect"], [])
        if any(fault["kind"] == "kill parent" for fault in self.done):
            numbers.append(signal.SIGKILL)
        return -code in numbers

    def check_end(self, ended, seconds):
        code, said = ended.code, [line for line in ended.said if line.strip()]
        tail = "\n".join(said[-6:])
        must(seconds < patience(BOUND_S) + 2 * TIMEOUT_S, f"took {seconds:.0f} s\n{tail}")
        for fault in self.done:
            if fault["kind"].startswith("kill") and self.case.restarts == 0 and self.case.way == "hand":
                since = time.monotonic() - fault["at"]
                must(since < patience(ENDS_WITHIN), f"ended {since:.0f} s after {fault['kind']}\n{tail}")
            if fault["kind"].startswith("signal") and fault.get("early") and self.case.way == "hand":
                since = ended.at - fault["at"]
                must(since < patience(ENDS_WITHIN) + PEER_TIMEOUT_S, f"ended {since:.0f} s after a signal\n{tail}")
            alone = self.case.restarts == 0 and self.case.way == "hand"
            if fault["kind"] == "stop" and self.case.ranks > 1 and alone and not fault["early"]:
                since = ended.at - fault["at"]
                must(since < PEER_TIMEOUT_S + patience(ENDS_WITHIN), f"ended {since:.0f} s after a stop\n{tail}")
        signalled = any(fault["kind"].startswith("signal") for fault in self.done)
        early = [fault["reached"] for fault in self.done if fault.get("reached", STEPS) < STEPS - 2]
        must(code != 0 or not early or self.case.way != "hand",
             f"asked to stop after step {early}, and went on\n{tail}")
        if code == 0:
            must(self.once.exists() or len(steps_of(self.metrics)) > 0, f"code 0 without a step\n{tail}")
        elif code == 3:
            must(signalled and self.case.saves, f"code 3 without a request, or without a place to save\n{tail}")
            must("stopped on request after step" in ended.stderr, tail)
        elif code < 0 or self.case.way != "hand":
            must(self.killed_alone(code) or self.case.way != "hand", f"code {code}\n{tail}")
            must(self.case.way == "hand" or self.done or self.once.exists(), f"code {code} without a fault\n{tail}")
        else:
            must(code in (1, 2), f"code {code}\n{tail}")
            # Open MPI's last lines may arrive after ours.
            allowed = self.sentences()
            true = any(re.search(pattern, line) for pattern in allowed for line in said[-2:])
            must(true, f"code {code}, and no fault explains the last line\n{tail}")
            early = code == 2 and not (self.case.call() and self.case.call()["effect"].isdigit() and self.once.exists())
            must(not early or any(f["kind"] in ("second", "signal", "signals") for f in self.done), f"code 2\n{tail}")

    def check_saved(self, *said):
        """The newest checkpoint that was reported as saved is there and intact."""
        reported = [name for text in said for name in re.findall(r"saved \S*/(step_\d+) ", text)]
        if not reported:
            return
        # The user's own folder is not a checkpoint; the run may have renamed it.
        there = {path.name for path in self.saved.glob("step_*") if not (path / "mine").exists()}
        newest = max(reported)
        if there and max(there) > newest:  # a later checkpoint was complete, but not yet reported
            newest = max(there)
        must(newest in there, f"{newest} was reported as saved, and there are {sorted(there)}")
        why = verify(self.saved / newest)
        must(why is None, f"{newest} was reported as saved: {why}")

    def check_folder(self):
        """A killed or failed save leaves only hidden folders with known names, which the next start removes. Every
        folder with a checkpoint's name is intact."""
        for path in self.saved.glob("step_*"):
            if path.name.removesuffix(".kept") != self.case.notes:
                why = verify(path)
                must(why is None, f"{path.name} has a checkpoint's name: {why}")
        hidden = [path.name for path in self.saved.glob(".*")]
        known = r"\.lock|\.step_\d{8}(\.partial|\.replaced|\.removed)+"
        must(all(re.fullmatch(known, name) for name in hidden), f"left: {hidden}")

    def left(self):
        made = [path for job in self.made for path in Path("/dev/shm").glob(f"trainer-{job.pid}-*")]
        shared = [path for path in made if path not in self.older]  # process ids are reused
        both = [self.hosts.processes(0), self.hosts.processes(1)] if self.hosts is not None else []
        # With two hosts, the processes that keep the hosts alive have the folder in their command line, too.
        own = [] if self.hosts is not None else processes_with(f"{self.folder}/")
        return own, shared, *both

    def check_lost(self, said):
        """Restarting ranks never lose more steps than the run had trained since its start."""
        told = r"(?:while at step (\d+) .*\n.*)?again from (?:step (\d+)|.*?), with .*; lost: (\d+) step"
        for reached, since, steps in re.findall(told, said):
            before = self.case.before if self.case.every > 0 else 0  # otherwise the earlier run saved nothing
            # Only a rank's own supervisor knows the step at which the rank died. Without it, all steps may have been
            # trained; the restart has cut them from the metrics.
            known = reached and not any(fault["kind"] == "kill supervisor" for fault in self.done)
            most = int(reached if known else STEPS) - int(since or before)
            must(int(steps) <= max(0, most), f"{steps} steps were lost of {most}\n{said}")

    def check_newest(self, said):
        """A restart takes the newest checkpoint, and a damaged one is passed over with a sentence."""
        saved = 0
        for line in said.splitlines():
            found = re.search(r"saved \S*/step_(\d+) |again from step (\d+),|resumed from \S+ after step (\d+)", line)
            if found is not None and found[1]:
                saved = int(found[1])
            elif found is not None and not self.others and "trying the previous checkpoint" not in said:
                must(int(found[2] or found[3]) >= saved, f"{line}\nafter step {saved} was saved\n{said}")

    def check_kept(self):
        """Only as many checkpoints are kept as asked for. The folder of the user's is none."""
        keep = next(int(key.split("=")[1]) for key in self.case.keys if key.startswith("checkpoint.keep="))
        there = [path.name for path in self.saved.glob("step_*") if not (path / "mine").exists()]
        must(len(there) <= keep, f"{keep} are to be kept, and there are {there}")

    def last_lines(self, ended):
        """Returns the lines that may be the last message. A bare mpirun prints its own lines after it."""
        return ended.said[-1:] if self.case.way == "hand" else ended.said

    def check_nothing_left(self):
        wait_until(lambda: not any(self.left()), lambda: f"left: {self.left()}", 15)

    def check_bits(self, complete):
        whole, steps = self.bench.bits(*self.case.layout[1:], self.case.layers), steps_of(self.metrics)
        wrong = [step for step, bits in steps.items() if bits != whole[step]]
        must(not wrong, f"other bits at steps {wrong}: {[(steps[step], whole[step]) for step in wrong[:2]]}")
        failed_writes = self.case.call() is not None and self.once.exists()
        must(not complete or failed_writes or len(steps) == STEPS, f"steps {sorted(steps)}")
        must(not complete or STEPS in steps or failed_writes, f"the last step is missing: {sorted(steps)}")

    def check_second(self):
        for job in self.others:
            ended = job.end(None)
            must(ended.code in (0, 1, 2), f"the second start: code {ended.code}\n{ended.stderr}")
            reasons = r"checkpoint\.dir|log\.metrics|--resume|stopped|rank"
            true = any(re.search(reasons, line) for line in self.last_lines(ended))
            must(ended.code == 0 or true, ended.stderr)
            yield ended.stderr

    def run(self):
        if self.case.way == "hosts":
            self.hosts = hosts.Hosts(self.folder)
            self.hosts.start()
        if self.case.notes is not None:
            (self.saved / self.case.notes).mkdir(parents=True)
            (self.saved / self.case.notes / "mine").touch()
        if self.case.before > 0:
            ended = self.start(f"train.steps={self.case.before}", disturbed=False).end(None)
            must(ended.code == 0, f"undisturbed: {ended.stderr}")
        began = time.monotonic()
        job = self.start()
        disturber = threading.Thread(target=self.disturb, args=(job,))
        disturber.start()
        if self.lone() and any(fault["kind"] == "stop" for fault in self.case.faults) or self.stops_unwatched():
            wait_until(lambda: gone_on(job), "no end", BOUND_S)  # nothing else would continue it
        ended = self.end(job)
        ended.at = time.monotonic()
        seconds = ended.at - began
        disturber.join()
        others = list(self.check_second())
        self.check_end(ended, seconds)
        self.check_nothing_left()
        self.check_saved(ended.stderr, *others)
        self.check_lost(ended.stderr)
        self.check_newest(ended.stderr)
        self.check_folder()
        self.check_bits(False)
        self.config.write_text(self.text)
        if self.hosts is not None:
            self.hosts.wire_is("up")
        last = self.end(self.start(disturbed=False))
        must(last.code == 0, f"resumed without faults: code {last.code}\n{last.stderr}")
        self.check_nothing_left()
        self.check_bits(True)
        if ": saved " in last.stderr:
            self.check_kept()
        if self.case.notes is not None:
            must(any(self.saved.glob(f"{self.case.notes}*/mine")), f"{self.case.notes} of the user is gone")
        must(not list(self.saved.glob(".*")), f"left: {list(self.saved.glob('.*'))}")
        if self.case.saves and self.case.every > 0:
            must(any(self.saved.glob(f"step_{STEPS:08}*")), "the last checkpoint is missing")

    def end(self, job):
        """Waits for the end. A bare mpirun of Open MPI 4.1 sometimes deadlocks in PMIx_server_finalize after its ranks
        have ended. It is then killed; its code counts as 0 if all steps are complete, otherwise as 1."""
        since, hung = time.monotonic(), False
        while self.case.way != "hand" and job.poll() is None and not hung:
            time.sleep(0.1)
            if job.ranks():
                since = time.monotonic()
            hung = time.monotonic() - since > patience(5)
        if hung:
            job.kill()
            print(f"seed {self.case.seed}: mpirun hung after its ranks had ended", flush=True)
        if any(fault["kind"] == "cut" for fault in self.done):
            self.end_daemons()
        ended = job.end(None)
        if hung:
            ended.code = 0 if len(steps_of(self.metrics)) == STEPS else 1
        return ended

    def end_daemons(self):
        """Ends Open MPI's processes on hosts that were cut off from each other. If all ranks had ended before the cut,
        these processes wait for each other forever."""
        both = lambda: [*self.hosts.processes(0), *self.hosts.processes(1)]
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not both(), "", 15)
        for pid, words in both():
            if re.match(r"(mpirun|orted|sh -c +orted|nsenter) ", words):
                os.kill(pid, signal.SIGKILL)

    def stops_unwatched(self):
        call = self.case.call()
        return call is not None and call["effect"] == "stop" and call["rank"] == -1

    def stop(self):
        for job in self.made:
            if job.poll() is None:
                job.kill()
                job.communicate()
        for pid in processes_with(f"{self.folder}/"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.hosts is not None:
            self.hosts.stop()


def gone_on(process):
    """Returns whether the process has ended; continues it if it is stopped."""
    with contextlib.suppress(OSError):
        if Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T":
            process.send_signal(signal.SIGCONT)
    return process.poll() is not None


def one(bench, seed, keep=False):
    """Runs one seed. Returns None, or the broken promise."""
    case, folder = Case(seed), Path(tempfile.mkdtemp(prefix=f"seed{seed}_", dir=bench.folder))
    trial = Trial(bench, case, folder)
    try:
        trial.run()
        return None
    except (AssertionError, OSError, subprocess.SubprocessError, KeyError, ValueError) as error:
        where = "" if isinstance(error, Broken) else traceback.format_exc()
        hit = f"hit: {[fault['kind'] for fault in trial.done]}, file call: {trial.once.exists()}"
        return f"seed {seed}: {error}\n{where}  {case}\n  {hit}"
    finally:
        trial.stop()
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("seed", type=int, nargs="?", default=1)
    parser.add_argument("count", type=int, nargs="?", default=100)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--keep", action="store_true")
    asked = parser.parse_args()
    folder, began, failures = Path(tempfile.mkdtemp(prefix="chaos_")), time.monotonic(), 0
    try:
        bench = Bench(folder)
        with ThreadPoolExecutor(asked.jobs) as pool:
            seeds = range(asked.seed, asked.seed + asked.count)
            for failure in pool.map(functools.partial(one, bench, keep=asked.keep), seeds):
                failures += failure is not None
                if failure is not None:
                    print(failure, flush=True)
    finally:
        if not asked.keep:
            shutil.rmtree(folder, ignore_errors=True)
    print(f"{asked.count} seeds from {asked.seed}: {failures} failed, {time.monotonic() - began:.0f} s", flush=True)
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Runs cmocka programs and pytest, and sums up their cases; the last line is `N passed, N failed`.

    test/run_tests.py [--pytest DIR [--part promises|rest|soak]] [--no-aslr] PROGRAM...

Programs, and folders of Python tests, run three at a time; long tests of --part soak run one at a time. Skipped cases
are listed with their reason and counted separately. The exit code is 0 if no test failed and at least one passed.
"""

import argparse
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree

HERE = Path(__file__).resolve().parent
TIME_LIMIT = 5000  # seconds per program; test/virtual takes 2,200 on two quiet cores
NO_TESTS = 5  # pytest's exit code if it selected no case
SLOWEST = 10
LANES = 3  # one more than a small machine has cores, because tests that wait for ranks leave a core idle
# Folders that take longer than their size suggests.
LONGEST = ("virtual", "engine", "launch", "ranks", "cuda", "search")


class Tally:
    def __init__(self):
        self.passed, self.failed, self.skipped, self.slowest = 0, [], [], []

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.slowest = sorted(self.slowest + other.slowest)[-SLOWEST:]

    def line(self):
        text = f"{self.passed} passed, {len(self.failed)} failed"
        return text + (f", {len(self.skipped)} skipped" if self.skipped else "")

    def print(self, name, output, start):
        """Prints a line about a job that began at `start`, after its output if something failed."""
        before = output.rstrip("\n") + "\n" if self.failed else ""
        state = "FAIL" if self.failed else "ok  "
        print(f"{before}{state} {name:<28} {self.passed:4d} passed  {time.monotonic() - start:6.1f} s", flush=True)


def read_tap(output, name, tally):
    """Adds cmocka's TAP output to the tally: a plan `1..N`, then `ok 1 - case`, `not ok 2 - case` or `... # SKIP`."""
    planned = sum(int(n) for n in re.findall(r"^1\.\.(\d+)$", output, re.M))
    cases = re.findall(r"^(ok|not ok) \d+ (- |# SKIP )(\S+)", output, re.M)
    for verdict, kind, case in cases:
        if "SKIP" in kind:
            tally.skipped.append(f"{name}: {case}")
        elif verdict == "ok":
            tally.passed += 1
        else:
            tally.failed.append(f"{name}: {case}")
    return max(planned - len(cases), 0)


def run_program(program, prefix):
    name, tally = Path(program).name, Tally()
    environment = dict(os.environ, CMOCKA_MESSAGE_OUTPUT="TAP")
    # MPI's libraries keep some memory until the end; only our own leaks count.
    environment.setdefault("LSAN_OPTIONS", f"suppressions={HERE / 'lsan.supp'}:print_suppressions=0")
    environment.setdefault("UBSAN_OPTIONS", "print_stacktrace=1")
    # Several programs share the cores, so threads must not spin at barriers.
    environment.setdefault("OMP_WAIT_POLICY", "passive")
    start = time.monotonic()
    try:
        result = subprocess.run([*prefix, program], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                timeout=TIME_LIMIT)
        output, code = result.stdout.decode(errors="replace"), result.returncode
        how = f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
    except subprocess.TimeoutExpired as late:
        output, code, how = (late.stdout or b"").decode(errors="replace"), None, f"it ran longer than {TIME_LIMIT} s"
    except OSError as error:
        output, code, how = str(error), None, "it did not start"
    unfinished = read_tap(output, name, tally)
    if unfinished > 0 or (code != 0 and not tally.failed) or not (tally.passed or tally.failed or tally.skipped):
        tally.failed += [f"{name}: ended early, {how}"] * max(unfinished, 1)
    tally.print(name, output, start)
    return tally


def run_pytest(folder, part):
    """Runs the Python tests of one folder of test/; other folders run at the same time."""
    tally, start = Tally(), time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        report = Path(place) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", folder]
        result = subprocess.run([*command, *(["--part", part] if part else [])], stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True)
        for case in ElementTree.parse(report).iter("testcase") if report.exists() else ():
            read_case(case, tally)
    if result.returncode == NO_TESTS:
        return tally
    if result.returncode != 0 and not tally.failed:
        tally.failed.append(f"pytest {folder}: exit code {result.returncode}")
    tally.print("test/" + folder.name, result.stdout, start)
    return tally


def read_case(case, tally):
    name = f"{case.get('classname')}: {case.get('name')}"
    tally.slowest = sorted([*tally.slowest, (float(case.get("time")), name)])[-SLOWEST:]
    if case.find("failure") is not None or case.find("error") is not None:
        tally.failed.append(name)
    elif case.find("skipped") is not None:
        tally.skipped.append(f"{name} ({case.find('skipped').get('message')})")
    else:
        tally.passed += 1


def python_folders(test):
    """Returns the folders with Python tests, the longest first, so that no long folder runs last."""
    size = lambda folder: sum(path.stat().st_size for path in folder.glob("test_*.py"))
    order = lambda folder: (folder.name in LONGEST, size(folder))
    return sorted(filter(size, Path(test).iterdir()), key=order, reverse=True)


def no_aslr():
    """Returns a prefix that disables ASLR. GCC 12's ThreadSanitizer fails if the kernel randomizes 32 address bits."""
    command = ["setarch", os.uname().machine, "-R"]
    works = shutil.which("setarch") and subprocess.run([*command, "true"], stderr=subprocess.DEVNULL).returncode == 0
    return command if works else []


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pytest", metavar="DIR")
    parser.add_argument("--part", choices=("promises", "rest", "soak"))
    parser.add_argument("--no-aslr", action="store_true")
    parser.add_argument("programs", nargs="*", metavar="PROGRAM")
    options = parser.parse_args()
    tally = Tally()
    prefix = no_aslr() if options.no_aslr else []
    jobs = [functools.partial(run_program, program, prefix) for program in options.programs]
    if options.pytest:
        jobs = [functools.partial(run_pytest, folder, options.part) for folder in python_folders(options.pytest)] + jobs
        if subprocess.run([sys.executable, "-c", "import pytest"], stderr=subprocess.DEVNULL).returncode != 0:
            sys.exit("pytest is missing; run scripts/install_deps.sh")
    with ThreadPoolExecutor(max_workers=1 if options.part == "soak" else LANES) as pool:
        for one in pool.map(lambda job: job(), jobs):
            tally.add(one)
    for seconds, name in reversed(tally.slowest):
        print(f"{seconds:6.1f} s  {name}")
    for kind, names in (("skipped", tally.skipped), ("FAILED", tally.failed)):
        for name in names:
            print(f"{kind}  {name}")
    print(tally.line())
    return 0 if tally.passed > 0 and not tally.failed else 1


if __name__ == "__main__":
    sys.exit(main())

"""A second opinion about races: streams of the virtual GPU as fibers of ThreadSanitizer (test/virtual/fibers.cc).

Some runs are clean, and some mistakes of test/virtual/mistakes.py are found: those whose both accesses are in one
process.
"""

import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "test" / folder) for folder in ("support", "virtual", "soak")]

import virtual_mistakes  # noqa: E402
import virtual_runs  # noqa: E402
from mistakes import MISTAKES  # noqa: E402

CLEAN = ("1 of llama in fp32", "2 of gpt in bf16", "evictions to host memory", "two data ranks", "two tensor ranks")
FOUND = ("a_message_goes_before_it_is_written", "an_eviction_is_marked_on_the_wrong_stream",
         "an_eviction_is_taken_for_done", "sums_beside_compute_do_not_wait_for_it",
         "compute_does_not_wait_for_a_gather")
OPTIONS = "halt_on_error=1 exitcode=66 report_thread_leaks=0 detect_deadlocks=0 suppressions="


def clean_runs():
    failed = 0
    for name in CLEAN:
        case = virtual_runs.CASES[name]
        with tempfile.TemporaryDirectory() as folder:
            config = virtual_runs.write_config(Path(folder), case.family)
            ended = virtual_runs.run(config, case.family, *case.options, VIRTUAL_ORDER="random", **case.environment)
        failed += ended.code != 0
        print(f"clean {name}" if ended.code == 0 else f"failed {name}: {ended.stderr[-1500:]}", flush=True)
    return failed


def main():
    os.environ["TSAN_OPTIONS"] = OPTIONS + str(ROOT / "test" / "virtual" / "tsan.supp")
    virtual_runs.PREFIX = ("setarch", "-R")  # ThreadSanitizer wants addresses where it expects them
    virtual_runs.VIRTUAL = ROOT / "build" / "virtual" / "tsan"
    failed = clean_runs()
    mistakes = [mistake._replace(found="ThreadSanitizer: data race") for mistake in MISTAKES if mistake.name in FOUND]
    assert len(mistakes) == len(FOUND)
    sys.exit(1 if failed + virtual_mistakes.try_all(mistakes, "virtual-tsan", "build/virtual/tsan") else 0)


if __name__ == "__main__":
    main()

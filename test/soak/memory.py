"""Hours of training must not grow in memory: llama_tiny with short sequences over four stages with BPipe, saved and
validated every twenty steps.

For every rank it checks descriptors, threads, and the growth of resident memory, by least squares over the steps (only
anonymous and shared memory: the system drops and reloads pages of programs).

SOAK_SECONDS (3600) sets the duration.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from trainer_runs import ROOT, metrics_of, rank_processes, started  # noqa: E402

SECONDS = float(os.environ.get("SOAK_SECONDS", "3600"))
EVERY = 20
MOST_KIB = 512  # allowed growth of a rank after the warm-up, which is a fifth of the time
RUN = ["model.seq_len=32", "train.global_batch=8", "schedule.micro_batch=1", f"data.val_every={EVERY}",
       f"checkpoint.every={EVERY}", "checkpoint.keep=2"]


def look(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    anonymous, shared, threads = (
        int(re.search(rf"{key}:\s+(\d+)", status)[1]) for key in ("RssAnon", "RssShmem", "Threads")
    )
    return anonymous + shared, len(os.listdir(f"/proc/{pid}/fd")), threads


def slope(points):
    """Returns the slope by least squares, per 1000 of the first coordinate."""
    mean_x, mean_y = (sum(column) / len(points) for column in zip(*points))
    return 1000 * sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)


def watch(job, metrics):
    """Returns for each rank a list of (steps, resident KiB, descriptors, threads)."""
    pids, done = [pid for _, pid in sorted(rank_processes(str(metrics)).items())], 0
    seen = [[] for _ in pids]
    deadline = time.monotonic() + SECONDS
    with open(metrics, encoding="utf-8") as lines:
        while time.monotonic() < deadline:
            assert job.poll() is None, job.end(None).stderr
            done += sum(line.startswith('{"type":"step"') for line in lines)
            for rank, pid in enumerate(pids):
                seen[rank].append((done, *look(pid)))
            time.sleep(min(5, SECONDS / 200))
    return seen


def range_of(points, column):
    return min(point[column] for point in points), max(point[column] for point in points)


def judge(seen):
    """Prints each rank's figures after a fifth of the time; returns the list of problems."""
    wrong = []
    print("rank  resident MiB  KiB per 1000 steps  grown KiB  descriptors  threads")
    for rank, points in enumerate(seen):
        points = points[len(points) // 5 :]
        first, last = points[: len(points) // 2], points[len(points) // 2 :]
        per_1000 = slope([point[:2] for point in points])
        grown = per_1000 * (points[-1][0] - points[0][0]) / 1000
        print(f"{rank:4}  {points[-1][1] / 1024:12.1f}  {per_1000:18.1f}  {grown:9.0f}", end="")
        if grown > MOST_KIB:
            wrong.append(f"rank {rank} grew by {grown:.0f} KiB")
        for column, what in ((2, "descriptors"), (3, "threads")):
            (low, high), (least, most) = range_of(first, column), range_of(last, column)
            print(f"  {least:4} to {most:3}", end="")
            # While a checkpoint is written there are another thread and up to two more files. A look may or may not
            # see them.
            if least > low or most > high + 2:
                wrong.append(
                    f"rank {rank} had {low} to {high} {what} in the first half and {least} to {most} in the second"
                )
        print()
    return wrong


def main():
    folder = Path(tempfile.mkdtemp(prefix="soak_memory_"))
    job = started(ROOT / "configs/llama_tiny.yaml", folder, *RUN, f"checkpoint.dir={folder}/saved", arguments=["-q"],
                  stdout=subprocess.DEVNULL)
    try:
        seen = watch(job, folder / "metrics.jsonl")
        code = job.stop(code=None).code
    finally:
        job.kill()
    print(f"{len(metrics_of(folder / 'metrics.jsonl'))} steps, ended with code {code}")
    wrong = judge(seen) + ([] if code == 3 else [f"it ended with code {code}"])
    if not wrong:
        shutil.rmtree(folder)
    print("\n".join(wrong) if wrong else "resident memory, descriptors and threads stay")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

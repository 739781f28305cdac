"""A signal that asks a run to stop does no harm to the arithmetic under way, whenever it comes."""

import signal
import time

import pytest
import trainer_runs


def started(config, *overrides):
    """A run of one rank that has trained its first step."""
    alone = ("parallel.pipeline=1", "schedule.bpipe=off", "train.steps=100000", "data.val_every=0")
    job = trainer_runs.start(config, *alone, *overrides)
    metrics = next(part.split("=", 1)[1] for part in overrides if part.startswith("log.metrics="))
    deadline = time.monotonic() + trainer_runs.TIME_LIMIT
    while '"step"' not in (open(metrics).read() if trainer_runs.Path(metrics).exists() else ""):
        assert job.parent.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    return job


def test_a_stop_in_the_middle_of_matrix_products(tmp_path):
    # Steps of many products: the signal comes inside one of them. Some libraries' kernels have no room for a handler.
    model = "{family: llama, hidden: 256, layers: 4, heads: 8, kv_heads: 4, ffn: 512, vocab: 100, seq_len: 64}"
    config = trainer_runs.write_config(tmp_path, model=model)
    for i in range(4):
        job = started(config, f"checkpoint.dir={tmp_path}/{i}", f"log.metrics={tmp_path}/{i}.jsonl")
        time.sleep(0.07 * i)
        job.parent.send_signal(signal.SIGTERM)
        ended = job.end()
        assert ended.code == 3, (i, ended.code, ended.stderr)


def unheard(thread):
    """The signals that a thread blocks, as numbers."""
    bits = int(next(line for line in (thread / "status").read_text().splitlines() if line.startswith("SigBlk")).split()[1], 16)
    return {number for number in range(1, 65) if bits >> (number - 1) & 1}


@pytest.mark.skipif(trainer_runs.without_mpi(), reason="built without MPI")
def test_the_parent_that_measured_a_peak_hears_of_its_ranks_end_and_of_a_stop(tmp_path):
    # `auto` plans before the ranks start, and the plan measures what this host's cores do, with threads that stay.
    config = trainer_runs.write_config(tmp_path, hardware="{device: cpu, reserve_gib: 0.1}")
    options = ("schedule.bpipe=auto", "train.steps=100000", "data.val_every=0", "checkpoint.every=0")
    job = trainer_runs.start(config, *options, f"checkpoint.dir={tmp_path}/saved", f"log.metrics={tmp_path}/m.jsonl")
    deadline = time.monotonic() + trainer_runs.TIME_LIMIT
    while '"step"' not in (open(tmp_path / "m.jsonl").read() if (tmp_path / "m.jsonl").exists() else ""):
        assert job.parent.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    blocked = [unheard(thread) for thread in trainer_runs.Path(f"/proc/{job.parent.pid}/task").iterdir()]
    job.parent.send_signal(signal.SIGTERM)
    ended = job.end()
    assert all({signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1} <= each for each in blocked), blocked
    assert ended.code == 3, (ended.code, ended.stderr)

"""A request to stop does not disturb the arithmetic in progress, whenever the signal arrives."""

import signal
import time

import pytest
import trainer_runs

pytestmark = pytest.mark.thorough


def started(config, *overrides):
    """Starts a run of one rank and waits for its first step."""
    alone = ("parallel.pipeline=1", "schedule.bpipe=off", "train.steps=100000", "data.val_every=0")
    job = trainer_runs.start(config, *alone, *overrides)
    metrics = next(part.split("=", 1)[1] for part in overrides if part.startswith("log.metrics="))
    trainer_runs.wait_for_lines(job.parent, trainer_runs.Path(metrics), 2)
    return job


def test_a_stop_in_the_middle_of_matrix_products(tmp_path):
    # Steps of many products: the signal arrives inside one. Some libraries' kernels leave no stack space for a handler.
    model = "{family: llama, hidden: 256, layers: 4, heads: 8, kv_heads: 4, ffn: 512, vocab: 100, seq_len: 64}"
    config = trainer_runs.write_config(tmp_path, model=model)
    for i in range(4):
        job = started(config, f"checkpoint.dir={tmp_path}/{i}", f"log.metrics={tmp_path}/{i}.jsonl")
        time.sleep(0.07 * i)
        job.parent.send_signal(signal.SIGTERM)
        ended = job.end()
        assert ended.code == 3, (i, ended.code, ended.stderr)

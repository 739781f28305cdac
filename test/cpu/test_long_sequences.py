"""Attention over long sequences on CPUs uses memory in proportion to their length."""

import os
import subprocess

import trainer_runs

MODEL = "{family: llama, hidden: 64, layers: 1, heads: 1, ffn: 64, vocab: 61, seq_len: %d}"


def largest_memory(folder, length):
    """Bytes of a run of one step at its peak."""
    trainer_runs.write_tokens(folder / "train.bin", trainer_runs.made_tokens(3 * length, 61))
    config = folder / f"{length}.yaml"
    config.write_text(
        f"model: {MODEL % length}\n"
        f"data: {{train: {folder}/train.bin}}\n"
        "train: {global_batch: 1, steps: 1, lr: 1.0e-3}\n"
    )
    command = [trainer_runs.trainer("llama"), "-q", "-c", config]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=trainer_runs.environment()) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss * 1024


def test_a_sequence_of_8192_takes_no_memory_for_its_scores(tmp_path):
    """One head's scores are 268 MB, and their gradients as much."""
    assert largest_memory(tmp_path, 8192) - largest_memory(tmp_path, 1024) < 8192 * 8192 * 4 / 2

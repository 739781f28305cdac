#!/usr/bin/env python3
"""Prints the median milliseconds of a training step of GPT-2 124M in PyTorch, the same work as GPT2_124M in bench.py:
4 sequences of 64. The model is that of studies/torch_side.py.

python3 test/bench/torch_gpt2.py [bf16] [compile]

It warms up and prints "ready". For every line of standard input it then runs STEPS more steps and prints the median.
"""

import statistics
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "studies"))
import torch_side  # noqa: E402

BATCH, STEPS = 4, 3
GPT2 = {"family": "gpt", "hidden": 768, "layers": 12, "heads": 12, "ffn": 3072, "vocab": 50304, "seq_len": 64,
        "norm_eps": 1e-5, "tie_embeddings": True}


class Trainer:
    def __init__(self):
        torch.manual_seed(1)
        self.model = torch_side.build(torch, GPT2)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4)
        self.run = torch.compile(self.model) if "compile" in sys.argv else self.model
        self.tokens = torch.randint(GPT2["vocab"], (BATCH, GPT2["seq_len"] + 1))

    def step(self):
        with torch.autocast("cpu", torch.bfloat16, enabled="bf16" in sys.argv):
            loss = self.run(self.tokens[:, :-1], self.tokens[:, 1:]) / (BATCH * GPT2["seq_len"])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def measure(self):
        milliseconds = []
        for _ in range(STEPS):
            start = time.monotonic()
            self.step()
            milliseconds.append(1e3 * (time.monotonic() - start))
        return statistics.median(milliseconds)


def main():
    trainer = Trainer()
    trainer.step()
    trainer.step()
    print("ready", flush=True)
    for _ in sys.stdin:
        print(trainer.measure(), flush=True)


if __name__ == "__main__":
    main()

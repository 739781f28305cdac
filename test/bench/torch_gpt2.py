#!/usr/bin/env python3
"""Prints the median milliseconds of a training step of GPT-2 124M in PyTorch, the same work as GPT2_124M in bench.py:
4 sequences of 64.

python3 test/bench/torch_gpt2.py [bf16] [compile]

It warms up and prints "ready". For every line of standard input it then runs STEPS more steps and prints the median.
"""

import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional

BATCH, SEQ, HIDDEN, LAYERS, HEADS, VOCAB, STEPS = 4, 64, 768, 12, 12, 50304, 3


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def attention(self, x):
        q, k, v = (part.view(BATCH, SEQ, HEADS, -1).transpose(1, 2) for part in self.qkv(x).split(HIDDEN, dim=2))
        if hasattr(functional, "scaled_dot_product_attention"):
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            later = torch.ones(SEQ, SEQ, dtype=torch.bool).triu(1)
            scores = (q @ k.transpose(2, 3) * q.shape[3] ** -0.5).masked_fill(later, float("-inf"))
            mixed = scores.softmax(3) @ v
        return self.out(mixed.transpose(1, 2).reshape(BATCH, SEQ, HIDDEN))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCAB, HIDDEN), nn.Embedding(SEQ, HIDDEN)
        self.blocks, self.norm = nn.Sequential(*(Block() for _ in range(LAYERS))), nn.LayerNorm(HIDDEN)

    def forward(self, tokens, targets):
        x = self.blocks(self.tokens(tokens) + self.positions(torch.arange(SEQ)))
        logits = self.norm(x) @ self.tokens.weight.T
        return functional.cross_entropy(logits.view(-1, VOCAB), targets.reshape(-1))


class Trainer:
    def __init__(self):
        torch.manual_seed(1)
        self.model = Gpt2()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4)
        self.run = torch.compile(self.model) if "compile" in sys.argv else self.model
        self.tokens = torch.randint(VOCAB, (BATCH, SEQ + 1))

    def step(self):
        with torch.autocast("cpu", torch.bfloat16, enabled="bf16" in sys.argv):
            loss = self.run(self.tokens[:, :-1], self.tokens[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
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

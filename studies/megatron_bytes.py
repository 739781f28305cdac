"""Bytes that Megatron-LM's code needs for a model and a list of actions. Counted from its sources, not measured:
docs/published.md explains how, and how far they are from the memory of published runs."""

import dataclasses
import re


@dataclasses.dataclass
class Held:
    """Bytes that a rank of the program keeps."""

    layer: float  # activations of one layer of one microbatch, from F to B or I
    weight: float  # the part of `layer` that stays from I to W
    logits: float  # elements of one microbatch's logits
    matrix: float  # an embedding or output matrix, 16 bit
    state: float  # for each parameter: weights, gradients, optimizer

    def freed(self, kind, layers, logits):
        return {
            "F": -layers * self.layer - 4 * logits,  # gpt_model.py: output.float(), for softmax
            "B": layers * self.layer + 4 * logits,
            "I": layers * (self.layer - self.weight) + 2 * logits,  # the gradient of the logits in fp16 stays for W
            "W": layers * self.weight + 2 * logits,
        }[kind]

    def momentary(self, kind, logits):
        """Returns the bytes that only a running action needs: fp16 logits, or the gradients of logits and matrix."""
        if logits == 0 or kind == "W":
            return 0
        return 2 * logits if kind == "F" else max(2 * logits, self.matrix - 2 * logits)

    def peak(self, line, layers, embeds, head):
        """Returns the peak of one stage's activations. layers: per chunk; embeds: chunk 0 has the embedding; head: the
        head's chunk."""
        now = peak = 0
        for kind, name in re.findall(r"\b([FBIW])\d+(?:\.(\d+))?", line):
            chunk = int(name or 0)
            logits = self.logits if chunk == head else 0
            after = now - self.freed(kind, layers[chunk], logits)
            peak = max(peak, max(now, after) + self.momentary(kind, logits))
            if embeds and chunk == 0 and kind in "BI":
                peak = max(peak, after + self.matrix)
            now = after
        return peak

    def of_stages(self, plan, text):
        """Returns the bytes of every stage's ranks, for a list of actions (--schedule) and the layers of a plan."""
        last = len(plan["stages"][0]["chunks"]) - 1
        head_rank = 0 if " placement v " in text else len(plan["stages"]) - 1
        most = []
        for rank, (stage, line) in enumerate(zip(plan["stages"], text.splitlines()[1:], strict=True)):
            layers = [0 if chunk["last_layer"] is None else chunk["last_layer"] - chunk["first_layer"] + 1
                      for chunk in stage["chunks"]]
            peak = self.peak(line, layers, rank == 0, last if rank == head_rank else None)
            most.append(self.state * stage["parameters"] + peak)
        return most

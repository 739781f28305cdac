"""Plans for tests: LLaMA 65B and GPT-3 96B as they are shipped, planned with the hardware model."""

import json

from trainer_runs import ROOT, command

LLAMA = ROOT / "configs" / "llama65b.yaml"
GPT = ROOT / "configs" / "gpt3_96b.yaml"
GIB = 2**30


def plan(config, *overrides, family="llama"):
    return json.loads(report(config, *overrides, family=family, rest=("--json",)))


def report(config, *overrides, family="llama", rest=("-v",)):
    ended = command(family, "-c", config, "--plan", *rest, overrides=("hardware.profile=", *overrides))
    return ended.stdout

#!/usr/bin/env python3
"""Converts a configuration to that of another trainer: the layout, the batch, the optimizer.

    scripts/export.py best.yaml --to megatron|torchtitan|nanotron

Comment lines at the top name settings that cannot be expressed there, that program's bytes per stage, and the step and
memory of this layout here with only the expressible settings. Needs the built trainers, no GPU. Ends with 1 if its
bytes do not fit.
"""

import argparse
import json
import re
import sys
import tempfile
from pathlib import Path

import dialects
from foreign import megatron, nanotron, torchtitan
from foreign.documents import settings_of
from foreign.settings import NORMS_DECAY
from run_files import GIB, Failure, ask_family, finish

# Keys without effect on the layout, the memory or the update of a step.
ASIDE = {"train.tokens", "train.max_restarts", "train.peer_timeout_s", "train.timeout_s", "train.skip_bad_steps",
         "train.skip_outlier_z", "attention.deterministic", "schedule.delay", "schedule.load_ahead",
         "schedule.expert_rows"}


ALWAYS_SPLIT = ("zb-v", "dualpipe-v")  # the other programs split no other schedule's backwards


def planned(path, *words):
    """Returns the plan of the trainer of the file's family."""
    return json.loads(ask_family(path, "--plan", "--json", *words)[1])


def matters(key, config):
    """Returns whether a key has an effect in this configuration."""
    t, p = config["parallel"]["tensor"], config["parallel"]["pipeline"]
    if key.startswith("data."):
        return key in ("data.mask_documents", "data.reset_positions")
    if key in ASIDE or (key.startswith("model.rope_") and config["model"]["family"] == "gpt"):
        return False
    if key in ("schedule.slots", "schedule.evict_to"):
        return config["schedule"]["bpipe"] != "off"
    if key == "parallel.placement":
        return p > 1 and (config["schedule"]["bpipe"] != "off"
                          or config["parallel"]["data"] * config["parallel"]["context"] > 1)
    if key in ("parallel.sequence", "parallel.collectives", "parallel.overlap"):
        return t > 1
    if key == "schedule.split_backward" and config["schedule"]["name"] in ALWAYS_SPLIT:
        return False
    if key in ("schedule.name", "schedule.chunks", "schedule.group", "schedule.split_backward"):
        return p > 1 and key != "schedule.chunks"  # chunks: the list of layers per chunk implies it
    if key in ("train.decay_steps", "train.decay_shape"):
        return config["train"]["schedule"] == "wsd"
    if key == "train.min_lr_ratio":
        return config["train"]["schedule"] != "constant"
    return key != "attention.softmax" or config["attention"]["mode"] != "flash"


def differences(ours, theirs):
    same = {"1-sqrt": "sqrt", "auto": dialects.wsd_steps(ours["train"])}  # of decay_shape and decay_steps
    both = dialects.all_again(ours) and dialects.all_again(theirs)
    for section in ("model", "parallel", "schedule", "attention", "train", "data"):
        for name, value in ours[section].items():
            if name == "recompute_layers" and both:
                continue
            if matters(f"{section}.{name}", ours) and value != (there := theirs[section][name]):
                if not name.startswith("decay_") or same.get(value, value) != same.get(there, there):
                    yield f"{section}.{name}", value, there


def understood(program, text, config):
    """Converts the exported text back: the configuration that the other trainer would run."""
    if program == "megatron":
        settings, front, slurm = megatron.read([text])
        back = megatron.convert(settings, None, front, slurm)
    elif program == "nanotron":
        back = nanotron.convert(settings_of(dialects.nanotron_sections(config)))
    else:
        model = {key: value for key, value in config["model"].items() if key != "seq_len"}
        back = torchtitan.convert(torchtitan.read(text), None, None if "flavor" in text else model)
    back["schedule"]["split_backward"] = "on" if back["schedule"].get("name") in ALWAYS_SPLIT else "off"
    back["hardware"] = config["hardware"] | {"device": "cuda", "profile": ""}
    return back


def notes(options, plan, text):
    """Yields lines, and a Failure if the other program's bytes do not fit."""
    config = plan["config"]
    train, each = config["train"], config["train"]["global_batch"] * config["model"]["seq_len"]
    if train["tokens"] != "auto" and train["batch_ramp"] == "none" and train["steps"] * each < 0.99 * train["tokens"]:
        share = 100 * train["steps"] * each / train["tokens"]
        yield f"train.steps ends the run after {share:.2g} % of train.tokens; steps: auto takes all"
    if options.to != "megatron" and train["weight_decay"] > 0:
        yield NORMS_DECAY
    if options.to == "torchtitan" and "flavor" not in text:
        model = config["model"]
        lacks = "layer of GPT" if model["family"] == "gpt" else "experts" if model["experts"] > 0 else ""
        yield (f"cannot be said: model: llama3 has no {lacks}; name a model that has, and a flavor of these sizes"
               if lacks else "cannot be said: model: no flavor has these sizes; register one and name it")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "back.yaml"
        sections = understood(options.to, text, config)
        path.write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in sections.items()))
        try:
            back = planned(path)
        except Failure as failure:
            reason = str(failure).rpartition(f"{path}:1: ")[2]
            raise Failure(f"{options.config}: what {options.to} takes of it is refused: {reason}") from None
        for key, ours, theirs in differences(config, back["config"]):
            yield f"cannot be said: {key}: {json.dumps(ours)}; it becomes {json.dumps(theirs)}"
        if plan["step_ms"] and back["step_ms"]:
            yield f"step as planned here: {plan['step_ms']:.0f} ms; with only these settings: {back['step_ms']:.0f} ms"
        yield from bytes_there(back, path, options.to, plan["config"]["model"]["family"])


def bytes_there(ours, path, program, family):
    config = ours["config"]
    title = {"megatron": "Megatron-LM"}.get(program, program)
    try:
        stages = planned(path, "--for", program)["stages"]
    except Failure as failure:
        if "does not support this" not in str(failure):
            raise
        lacks = re.search(r"(\w+\.\w+): \S+ does not support this", str(failure))[1]
        section, _, name = lacks.partition(".")
        yield f"bytes of a rank are not known: {title} has no {lacks} {config[section][name]}"
        return
    memory, reserve = config["hardware"]["memory_gib"], config["hardware"]["reserve_gib"]
    there = "" if memory == "auto" else f", of {memory} GiB"
    yield f"bytes of a rank, without context and caches{there}: {title} needs, this trainer needs"
    for theirs, here in zip(stages, ours["stages"], strict=True):
        yield f"  stage {theirs['stage']}: {theirs['peak_bytes'] / GIB:6.2f} GiB, {here['peak_bytes'] / GIB:6.2f} GiB"
    most = max(stages, key=lambda stage: stage["peak_bytes"])
    if memory != "auto" and most["peak_bytes"] > (memory - reserve) * GIB:
        search = f"search with --search --for {program}, or " if family == config["model"]["family"] else ""
        yield Failure(f"stage {most['stage']} needs {most['peak_bytes'] / GIB:.2f} GiB in {title}, but only"
                      f" {memory - reserve:g} of {memory:g} are free of hardware.reserve_gib; {search}recompute more"
                      " layers")


def main(options):
    plan = planned(options.config)
    if plan["config"]["model"]["kv_lora"] > 0 and options.to != "megatron":
        raise Failure(f"{options.config}: latent attention (model.kv_lora) cannot be written in the words of"
                      f" {options.to}; use --to megatron, or a model without it")
    write = {"megatron": dialects.to_megatron, "torchtitan": dialects.to_torchtitan, "nanotron": dialects.to_nanotron}
    text = write[options.to](plan["config"], plan["job"])
    lines = list(notes(options, plan, text))
    for line in lines:
        if not isinstance(line, Failure):
            print(f"# {line}")
    print(text, end="")
    for line in lines:
        if isinstance(line, Failure):
            raise line


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--to", required=True, choices=["megatron", "torchtitan", "nanotron"])
    sys.exit(finish("export", main, parser.parse_args()))

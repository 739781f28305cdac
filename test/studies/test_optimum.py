"""Compares the schedules with the best possible: studies/optimum.py finds the least idle time for small p and m."""

import re

import pytest
from trainer_runs import command, script


def optimum(text, code=0):
    ended = script("optimum.py", input=text, code=code)
    return ended.stdout or ended.stderr


# Stages, microbatches, chunks (two: a V), split backwards, slots; the proven idle units of a stage.
@pytest.mark.every_case
@pytest.mark.parametrize("p, m, chunks, split, slots, idle", [
    (3, 6, 1, True, 2, 7), (3, 6, 1, True, 3, 2), (3, 6, 1, True, 6, 2), (4, 8, 1, True, 3, 7), (4, 8, 1, True, 4, 3),
    (5, 10, 1, True, 4, 7), (5, 10, 1, True, 5, 4), (4, 8, 1, False, 3, 15), (4, 8, 1, False, 4, 9),
    (4, 8, 1, False, 6, 9), (3, 6, 2, True, 3, 16), (3, 6, 2, True, 4, 5), (3, 6, 2, True, 5, 3), (3, 6, 2, True, 6, 2),
])
def test_the_search_finds_the_proved_optima(p, m, chunks, split, slots, idle):
    text = f"# schedule x  stages {p}  chunks {chunks}  placement v  microbatches {m}  slots {slots}  edges 2\nstage 0:"
    assert f": {idle} units, " in optimum(text + (" I0.0" if split else " B0.0"))


# GIS computes W immediately; doing it later would save one W on all stages but one.
@pytest.mark.thorough
@pytest.mark.every_case
@pytest.mark.parametrize("name, p, m, excess", [
    ("1f1b", 2, 4, 0), ("1f1b", 3, 6, 0), ("1f1b", 4, 8, 0), ("zb-d", 3, 6, 0), ("zb-d", 5, 7, 0), ("v-half", 3, 6, 0),
    ("v-half", 4, 8, 0), ("zb-v", 2, 6, 0), ("zb-v", 3, 6, 0), ("interleaved", 2, 6, 0), ("interleaved", 3, 6, 0),
    ("gis", 2, 4, 1), ("gis", 3, 6, 2), ("v-min", 3, 6, 0), ("v-min", 4, 8, 0),
])
def test_schedules_are_the_best_with_their_slots_or_near_it(name, p, m, excess):
    keys = {"name": name, "bpipe": "off", "micro_batch": 1}
    said = command("llama", "-c", "configs/llama_tiny.yaml", "--schedule", overrides=[
        f"parallel.pipeline={p}", f"train.global_batch={m}", *(f"schedule.{key}={keys[key]}" for key in keys)
    ])
    share = float(re.search(r"idle ([0-9.]+) %", said.stderr)[1]) / 100
    work = 3 * m * (2 if "chunks 2" in said.stdout else 1)
    assert f": {round(work * share / (1 - share)) - excess} units, " in optimum(said.stdout)


def test_too_many_stages_are_one_sentence():
    text = command("llama", "-c", "configs/llama_tiny.yaml", "--schedule",
                   overrides=["parallel.pipeline=16", "model.layers=16", "train.global_batch=16",
                              "schedule.micro_batch=1", "schedule.bpipe=off"]).stdout
    assert re.fullmatch(r"optimum\.py: 16 chunks on all stages .*\n", optimum(text, code=1))

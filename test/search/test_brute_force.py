"""Plans drawn independently of the search are not faster; the long form is test/soak/brute_force.py."""

import brute_force
import pytest

SMALL = ["model.layers=8", "train.global_batch=16", "hardware.gpu=a100-80g"]
LONG = ["model.layers=8", "model.seq_len=32768", "train.global_batch=4", "attention.deterministic=off",
        "hardware.memory_gib=48"]
APART = ["model.layers=8", "train.global_batch=8", "hardware.gpus_per_node=2", "hardware.network_gb_s=2"]
CASES = [*(("llama65b", 4, [*SMALL, f"hardware.memory_gib={memory}"]) for memory in (34, 38, 42)),
         ("llama3_70b", 8, LONG), ("gpt3_96b", 4, APART)]


@pytest.mark.thorough
@pytest.mark.parametrize("config, gpus, keys", CASES, ids=["34_gib", "38_gib", "42_gib", "long", "two_nodes"])
def test_no_drawn_plan_is_faster_than_the_search(config, gpus, keys):
    case = brute_force.Case(config, gpus, keys, 600)
    (step, keys), searched = brute_force.compare(case)
    assert keys is not None and case.drawn_that_fit >= 20, case.drawn_that_fit
    assert step >= searched * (1 - brute_force.TOLERANCE), keys

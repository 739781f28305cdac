"""Random layouts have the bits, bytes and files of one stage: the first seeds of test/soak/layouts.py, which has the list
of what is compared. A key that is neither drawn there nor has a reason fails."""

import json
from concurrent.futures import ThreadPoolExecutor

import layouts
import layouts_case
import pytest
from trainer_runs import command


def test_every_key_is_drawn_or_has_a_reason_not_to_be():
    known = {key["name"] for key in json.loads(command("llama", "--help-config", "--json").stdout)["keys"]}
    cases = [layouts_case.Case(seed, lambda keys: True, {}) for seed in range(3000)]
    drawn = set().union(*(case.keys for case in cases)) - {layouts_case.THREADS}
    reasons = set(" ".join(layouts_case.NOT_DRAWN.values()).split())
    assert known - drawn - reasons == set(), "draw these keys in layouts_case.py, or give a reason in NOT_DRAWN"
    assert (drawn | reasons) - known == set(), "these keys do not exist"
    assert drawn & reasons == set(), "these keys are drawn: remove them from NOT_DRAWN"


@pytest.mark.thorough
@pytest.mark.usefixtures("ranks")
def test_two_hundred_random_layouts_keep_the_bits_of_one_stage(tmp_path):
    def some(first):
        folder = tmp_path / str(first)
        folder.mkdir()
        bench = layouts.Bench(folder)
        return [f"seed {seed}: {failure[1]}" for seed in range(first, 201, 2) if (failure := layouts.one(bench, seed))]

    with ThreadPoolExecutor(2) as pool:
        failures = [text for part in pool.map(some, (1, 2)) for text in part]
    assert failures == [], "\n".join(failures)

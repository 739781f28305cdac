"""Random layouts have the bits, bytes and files of one stage: the first seeds of test/soak/layouts.py, which has the
list of what is compared. A key that is neither drawn there nor has a reason fails."""

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


def failures(folder, seeds, checks=layouts.CHECKS):
    folder.mkdir()
    bench = layouts.Bench(folder)
    cases = (layouts_case.Case(seed, bench.legal, checks) for seed in seeds)
    return [f"seed {case.seed}: {failure[1]}" for case in cases if (failure := layouts.one_case(bench, case))]


def test_random_plans_never_contradict_themselves(tmp_path):
    assert failures(tmp_path / "plans", range(1, 4), {"table": 1}) == []


@pytest.mark.thorough
@pytest.mark.usefixtures("ranks")
def test_random_layouts_keep_the_bits_of_one_stage(tmp_path):
    with ThreadPoolExecutor(2) as pool:
        parts = [pool.submit(failures, tmp_path / str(first), range(first, 121, 2)) for first in (1, 2)]
    found = [text for part in parts for text in part.result()]
    assert found == [], "\n".join(found)

"""Random runs that are disturbed at random moments: the first seeds of test/soak/chaos.py; the promises are there."""

import functools
from concurrent.futures import ThreadPoolExecutor

import chaos
import pytest

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("ranks")]


def test_twenty_seeds_of_chaos_break_no_promise(tmp_path):
    with ThreadPoolExecutor(4) as pool:
        failures = list(pool.map(functools.partial(chaos.one, chaos.Bench(tmp_path)), range(1, 21)))
    assert not any(failures), "\n".join(filter(None, failures))

"""Plans a few random configurations with a fixed seed by --plan --json; test/soak/plan_fuzz.py plans many."""

import plan_fuzz
import pytest


@pytest.mark.parametrize("seed, count", [(3, 12), pytest.param(4, 60, marks=pytest.mark.thorough)], ids=["few", "many"])
def test_a_plan_never_fails_nor_contradicts_itself(tmp_path, seed, count):
    refused = plan_fuzz.look_at_many(count, seed, tmp_path)
    assert refused < 3 * count  # most random configurations are accepted

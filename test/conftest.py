"""Fixtures of the end-to-end tests, built on trainer_runs.py, and the choice of tests for `make test`.

`--part promises` (make test) takes the first case of each test, and none that is marked thorough; `--part rest` (make
test-all) takes all others. pytest without it runs everything.
"""

import pytest
import trainer_runs


def pytest_addoption(parser):
    parser.addoption("--part", choices=("promises", "rest"), help="the tests of make test, or those of make test-all")


def pytest_collection_modifyitems(config, items):
    part, met, chosen, others = config.getoption("--part"), set(), [], []
    for item in items if part else []:
        name = (item.path, item.originalname)
        first = name not in met or item.get_closest_marker("every_case") is not None
        met.add(name)
        promise = first and item.get_closest_marker("thorough") is None
        (chosen if promise == (part == "promises") else others).append(item)
    if part:
        items[:] = chosen
        config.hook.pytest_deselected(items=others)


@pytest.fixture(scope="session")
def ranks():
    """Skips a test that needs more than one rank if the trainers were built without MPI."""
    if not trainer_runs.built_with_mpi():
        pytest.skip("built without MPI")


@pytest.fixture(scope="session", params=trainer_runs.FAMILIES)
def small(request, tmp_path_factory):
    """The configuration of a small run of each family, and its losses with one rank and one thread."""
    folder = tmp_path_factory.mktemp(request.param)
    config = trainer_runs.write_config(folder, request.param)
    env = trainer_runs.environment(OMP_NUM_THREADS="1")
    alone = trainer_runs.trained(config, "parallel.pipeline=1", "schedule.bpipe=off", family=request.param, env=env)
    return Small(request.param, config, alone)


class Small:
    def __init__(self, family, config, alone):
        self.family, self.config, self.alone = family, config, alone

    def train(self, *overrides, threads="1"):
        env = trainer_runs.environment(OMP_NUM_THREADS=threads)
        return trainer_runs.trained(self.config, *overrides, family=self.family, env=env)

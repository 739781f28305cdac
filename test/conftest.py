"""Fixtures of the end-to-end tests; what they are made of is in trainer_runs.py."""

import pytest
import trainer_runs


@pytest.fixture(scope="session")
def ranks():
    """For tests that take more than one rank."""
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

"""Fixtures of the end-to-end tests, built on trainer_runs.py, and the choice of tests for `make test`.

`--part promises` (make test) selects the first case of each test, except for tests marked thorough. `--part rest` (make
test-all) selects all other cases; of a test marked `soak` only the first case, and of a test marked `soak(n)` every
n-th. Such a case runs if the positions of its parameters sum to a multiple of n: with five schedules and two families,
n = 2 takes each schedule once and alternates the families. `--part soak` (make soak) selects the remaining cases.
Without `--part`, pytest runs everything.
"""

import os
import signal

import pytest
import trainer_runs


def pytest_addoption(parser):
    parser.addoption("--part", choices=("promises", "rest", "soak"), help="of make test, make test-all or make soak")


def pytest_configure(config):
    """Lets programs hear Ctrl-C and hang-ups. Limits oneDNN to AVX2 in make test-all.

    make test uses the best instructions. Each rank compiles every product at its start. With AVX-512 a small run takes
    a third more CPU time.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also in the background of a script, which ignores it
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # also under nohup
    if config.getoption("--part") == "rest":
        os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")


def pytest_ignore_collect(collection_path, config):
    """Skips files with `thorough` as their only mark, so that make test does not import them."""
    if config.getoption("--part") == "promises" and collection_path.suffix == ".py":
        return "\npytestmark = pytest.mark.thorough\n" in collection_path.read_text() or None
    return None


def number_of(item, values):
    """Returns the sum of the positions of a case's parameters; `values` collects the values of each parameter."""
    number = 0
    for name, value in item.callspec.params.items() if hasattr(item, "callspec") else ():
        met = values.setdefault((item.path, item.originalname, name), [])
        met += [value] if value not in met else []
        number += met.index(value)
    return number


def part_of(item, first, number):
    marked = {mark: item.get_closest_marker(mark) is not None for mark in ("thorough", "every_case")}
    if (first or marked["every_case"]) and not marked["thorough"]:
        return "promises"
    rest = all(number % mark.args[0] == 0 if mark.args else first for mark in item.iter_markers("soak"))
    return "rest" if rest else "soak"


def pytest_collection_modifyitems(config, items):
    part, met, values, chosen, others = config.getoption("--part"), set(), {}, [], []
    for item in items if part else []:
        name = (item.path, item.originalname)
        mine = part_of(item, name not in met, number_of(item, values)) == part
        (chosen if mine else others).append(item)
        met.add(name)
    if part:
        items[:] = chosen
        config.hook.pytest_deselected(items=others)


@pytest.fixture(scope="session")
def ranks():
    """Skips a test that needs more than one rank if the trainers were built without MPI."""
    if not trainer_runs.built_with_mpi():
        pytest.skip("built without MPI")


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    """The configuration of a small run of four stages."""
    return trainer_runs.write_config(tmp_path_factory.mktemp("config"))


@pytest.fixture(scope="session", params=trainer_runs.FAMILIES)
def small(request, tmp_path_factory):
    """The configuration of a small run of each family, and its losses with one rank and one thread. Two tensor ranks
    each have a part of the vocabulary, and the data have tokens of both. eps: AdamW would divide the gradients of rare
    tokens by their own size, and rounding with them."""
    folder = tmp_path_factory.mktemp(request.param)
    trainer_runs.write_tokens(folder / "train_000.bin", trainer_runs.made_tokens(6000, 200))
    model = trainer_runs.WIDER[request.param].replace("vocab: 100", "vocab: 200")
    train = "{global_batch: 16, steps: 3, lr: 3.0e-3, warmup_steps: 2, eps: 1.0e-5}"
    config = trainer_runs.write_config(folder, request.param, model=model, train=train)
    env = trainer_runs.one_thread()
    alone = trainer_runs.run(config, "parallel.pipeline=1", "schedule.bpipe=off", family=request.param, env=env)
    return Small(request.param, config, alone)


class Small:
    def __init__(self, family, config, alone):
        self.family, self.config, self.alone = family, config, alone
        self.runs = {(): alone}  # single-stage runs by their other keys

    def one_stage(self, *keys):
        """Returns the run with these keys, one stage and one thread; runs it once."""
        if keys not in self.runs:
            self.runs[keys] = self.train(*keys, "parallel.pipeline=1", "schedule.bpipe=off")
        return self.runs[keys]

    def keeps_bits(self, keys, layout):
        """Trains with `layout`; checks for the bits of one stage with the same keys, and for the planned memory."""
        ended = self.train(*keys, *layout)
        assert ended.bits == self.one_stage(*keys).bits, layout
        assert "memory    as planned, to the byte, on " in ended.stderr, layout
        return ended

    def train(self, *overrides, **keywords):
        env = trainer_runs.one_thread()
        return trainer_runs.run(self.config, *overrides, family=self.family, env=env, **keywords)

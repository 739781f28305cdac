"""Bits that flip between ranks: comm.checksum reports them, and changes nothing if none flip."""

import random
import re
import time

import pytest

from faults import build_flipper, flip_byte, flips, lent_memory
from trainer_runs import LLAMA, Trainer, layout, patience, wait_for_lines, without_mpi

pytestmark = pytest.mark.skipif(without_mpi(), reason="built without MPI")

ON = {"comm.checksum": "on"}
FOUR = layout(p=4, bpipe=True)  # stage 0 evicts to stage 3
MESSAGE = 16 * 32 * 4  # of one microbatch between stages


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    trainer = Trainer(tmp_path_factory.mktemp("corruption"), LLAMA)
    trainer.flipper = build_flipper(trainer.folder)
    trainer.plain = trainer.run(layout())
    stages = trainer.run(FOUR).steps[1]["stages"]
    trainer.bundle = stages[0]["activation_bytes"] // stages[0]["slots_used"]
    return trainer


def damaged(trainer, *changes, **fault):
    return trainer.end(trainer.start(FOUR, *changes, environment=flips(trainer.flipper, **fault)))


WAYS = {"lent": {}, "messages": {"lent": False}, "host": {}}


@pytest.mark.parametrize("way", WAYS)
def test_checksums_do_not_change_a_bit_of_training(trainer, way):
    evict_to = {"schedule.evict_to": "host" if way == "host" else "peer"}
    on = damaged(trainer, ON, evict_to, {"data.val": trainer.config["data"]["train"], "data.val_every": 4}, **WAYS[way])
    assert on.code == 0, on.stderr
    assert on.curve() == trainer.plain.curve()
    assert on.steps[1]["evictions"] > 0 and ("as messages" in on.stderr) == (way == "messages")
    assert "as planned, to the byte" in on.stderr


# Eight microbatches a step: message 13 of an edge is the sixth of step 2.
@pytest.mark.parametrize("rank,at,what", [
    (0, 13, "the activation of microbatch 5 from stage 0 to stage 1"),
    (3, 8, "the gradient of microbatch 0 from stage 3 to stage 2"),
])
def test_a_flipped_bit_of_a_message_between_stages_is_named(trainer, rank, at, what):
    ended = damaged(trainer, ON, rank=rank, size=MESSAGE, at=at)
    assert ended.code == 1
    assert re.search(rf"\[rank \d stage \d\] step 2: {what}: it left with checksum [0-9a-f]{{16}} and arrived with",
                     ended.stderr)
    assert sorted(ended.steps) == [1]


@pytest.mark.parametrize("rank,what", [(0, r"stage 0 to stage 3"), (3, r"stage 0 to stage 3 and back")])
def test_a_flipped_bit_of_a_bundle_sent_as_message_is_named(trainer, rank, what):
    ended = damaged(trainer, ON, rank=rank, size=trainer.bundle, at=4, lent=False)
    assert ended.code == 1
    assert re.search(rf"step [12]: the bundle of microbatch \d from {what}: it left with checksum",
                     ended.stderr), ended.stderr


CHUNKS = {"schedule.name": "interleaved", "schedule.chunks": 2}


@pytest.mark.parametrize("rank,at,what", [
    (0, 1, "activation of microbatch 1, chunk 0 of stage 1, from stage 0 to stage 1"),
    (3, 1, "activation of microbatch 1, chunk 1 of stage 0, from stage 3 to stage 0"),
    (3, 4, "gradient of microbatch 0, chunk 1 of stage 2, from stage 3 to stage 2"),
])
def test_a_damaged_message_names_the_chunk_that_it_was_for(trainer, rank, at, what):
    """The last stage first sends four activations on to the second chunk of stage 0."""
    ended = damaged(trainer, ON, CHUNKS, {"schedule.bpipe": "off"}, rank=rank, size=MESSAGE, at=at)
    assert ended.code == 1
    assert f"step 1: the {what}: it left with checksum" in ended.stderr


def test_a_damaged_bundle_names_its_chunk(trainer):
    stages = trainer.run(FOUR, CHUNKS).steps[1]["stages"]
    bundle = stages[0]["activation_bytes"] // stages[0]["slots_used"]
    ended = damaged(trainer, ON, CHUNKS, rank=0, size=bundle, at=0, lent=False)
    assert ended.code == 1
    said = r"step 1: the bundle of microbatch \d, chunk [01] of stage 0, from stage 0 to stage 3: it left with checksum"
    assert re.search(said, ended.stderr), ended.stderr


def test_without_checksums_the_same_bit_changes_losses_unnoticed(trainer):
    for fault in ({"rank": 0, "size": MESSAGE, "at": 13}, {"rank": 0, "size": trainer.bundle, "at": 4, "lent": False}):
        ended = damaged(trainer, **fault)
        assert ended.code == 0
        assert ended.curve() != trainer.plain.curve() and ended.curve()[0][1] == trainer.plain.curve()[0][1]


def test_an_evicted_bundle_that_changes_is_named(trainer):
    """Changes bytes of the lent slots from outside until one of them belongs to an evicted bundle."""
    process = trainer.start(FOUR, ON, {"train.steps": 1000000, "train.global_batch": 32})
    config, chance = process.args[2], random.Random(3)
    deadline = time.monotonic() + patience(60)
    wait_for_lines(process, process.metrics, 3)
    while process.poll() is None and time.monotonic() < deadline:
        for size, path in lent_memory(config):
            try:
                flip_byte(path, chance.randrange(size))
            except OSError:
                pass
    process.terminate()
    ended = trainer.end(process)
    assert ended.code == 1
    said = re.search(
        r"step (\d+): the bundle of microbatch (\d+) from stage ([01]) to stage ([32]) and back: it left with",
        ended.stderr,
    )
    assert said and int(said[3]) + int(said[4]) == 3, ended.stderr
    assert max(ended.steps) == int(said[1]) - 1


# --- gathers and sums: each of their messages is checked on arrival, before it is summed

COLLECTIVES = {
    # (layout, bytes of a message, operation, group)
    "tensor_sum": (layout(t=2), 16 * 32 * 4, "sum", "tensor"),
    "tensor_gather": (layout(t=2, parallel_sequence=True), 8 * 32 * 4, "gather", "tensor"),
    "data_sum": (layout(d=2), None, "sum", "data"),
    "data_gather": (layout(d=2), None, "gather", "data"),
}


@pytest.fixture(scope="module")
def sizes(trainer):
    """Returns the number of messages between two data ranks for each size in bytes, as the preloaded library saw them
    pass."""
    seen = trainer.run(layout(d=2), {"train.steps": 1},
                       environment={"LD_PRELOAD": str(trainer.flipper), "TELL_BYTES": "1"}).stderr
    counts = {}
    for size in map(int, re.findall(r"^isend (\d+)$", seen, re.M)):
        counts[size] = counts.get(size, 0) + 1
    return counts


@pytest.mark.parametrize("kind", COLLECTIVES)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_flipped_bit_of_a_collective_is_named(trainer, sizes, kind, rank):
    way, size, what, group = COLLECTIVES[kind]
    if size is None:
        size = max(sizes)
    # In a step a data rank sends a piece of every layer for the sums, and then its updated pieces to the other rank.
    at = {"data_sum": 0, "data_gather": sizes.get(size, 0) // 4}.get(kind, 3)
    ended = trainer.end(trainer.start(way, ON, environment=flips(trainer.flipper, rank=rank, size=size, at=at)))
    assert ended.code == 1, ended.stderr
    said = (
        rf"the part of a {what} from rank {rank} to rank {1 - rank} of the {group} group: it left with checksum"
        r" [0-9a-f]{16} and arrived"
    )
    assert re.search(said, ended.stderr), ended.stderr
    off = trainer.end(trainer.start(way, environment=flips(trainer.flipper, rank=rank, size=size, at=at)))
    assert off.code == 0  # and without checksums it goes unnoticed


@pytest.mark.parametrize("way", [layout(t=2), layout(d=2), layout(p=2, t=2, d=2, parallel_sequence=True)],
                         ids=["t2", "d2", "all"])
def test_checked_collectives_do_not_change_a_bit(trainer, way):
    on, off = (trainer.run(way, change) for change in (ON, {}))
    assert on.curve() == off.curve() and "as planned, to the byte" in on.stderr

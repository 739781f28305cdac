"""Schedules in runs: their actions in messages, and lists of one's own. test_layouts has the bits and the
bytes of every schedule, BPipe over them, lists from files, resumes, validation, samples and profiles."""

import os
import re
import signal
import time

import pytest
from trainer_runs import Job, wait_for_lines

pytestmark = pytest.mark.usefixtures("ranks")

OFF = "schedule.bpipe=off"


def listed(small, folder, limits, first, second, *keys):
    """Trains two stages by these lists of 8 microbatches, which keep the bits of one stage."""
    head = f"# schedule mine  stages 2  chunks 1  placement loop  microbatches 8  {limits}"
    (folder / "mine.txt").write_text(f"{head}\nstage 0: {first}\nstage 1: {second}\n")
    return small.keeps_bits((), [OFF, "parallel.pipeline=2", f"schedule.file={folder}/mine.txt", *keys])


def actions(letters, begin, end):
    return " ".join(f"{letter}{m}.0" for m in range(begin, end) for letter in letters)


def test_two_stages_may_evict_to_each_other(small, tmp_path):
    first = f"F0.0 E0.0>1 A0.0<1 {actions('F', 1, 8)} R0.0>1 L0.0<1 {actions('B', 0, 8)}"
    second = f"F0.0 A0.0<0 E0.0>0 {actions('F', 1, 8)} L0.0<0 R0.0>0 {actions('B', 0, 8)}"
    ended = listed(small, tmp_path, "slots 9  edges 2", first, second)
    assert all(step["evictions"] == 2 for step in ended.steps)


def test_a_backward_waits_for_its_load_even_if_the_eviction_has_not_started(small, tmp_path):
    """E0 is queued behind E7, which waits for the other stage's A7; until then the bundle of microbatch 0 is here."""
    first = f"{actions('F', 0, 8)} E7.0>1 E0.0>h L0.0<h B0.0 L7.0<1 {actions('B', 1, 8)}"
    second = f"{actions('FB', 0, 7)} A7.0<0 F7.0 R7.0>0 B7.0"
    listed(small, tmp_path, "slots 9  edges 8", first, second, "train.timeout_s=20")


def test_a_list_with_one_buffer_an_edge_trains_and_validates(small, tmp_path):
    """Messages are allocated for the list, and validation keeps to that."""
    listed(small, tmp_path, "slots 1  edges 1", actions("FB", 0, 8), actions("FB", 0, 8))


def signalled(small, tmp_path, number, always, words, *options):
    """Signals rank 1 of two stages while it trains. The run fails with `always` in its messages, and with `words` if
    the signal came inside a pipeline; now and then it comes between two, so that takes up to five attempts."""
    options = [OFF, "parallel.pipeline=2", "train.steps=100000", "data.val_every=0", *options]
    for attempt in range(5):
        metrics = tmp_path / f"{attempt}.jsonl"
        job = Job(small.config, *options, f"log.metrics={metrics}", family=small.family)
        wait_for_lines(job.parent, metrics, 3)
        time.sleep(1)  # a rank's second heartbeat is the first that knows its stage
        os.kill(job.ranks()[1], number)
        ended = job.end()
        assert ended.code == 1 and always in ended.stderr, ended.stderr
        if f"rank 1 (stage 1) {always}" in ended.stderr and re.search(words, ended.stderr):
            return
    pytest.fail(ended.stderr)


@pytest.mark.thorough
def test_a_rank_that_dies_is_named_with_its_action_and_chunk(small, tmp_path):
    words = r"rank 1 \(stage 1\) was killed by .* while at step \d+ [FIW]\d+\.[01];"
    signalled(small, tmp_path, signal.SIGKILL, "was killed by", words, "schedule.name=zb-v")


@pytest.mark.thorough
@pytest.mark.soak
@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb-v", "gis"])
def test_a_stopped_rank_is_missed_and_the_other_says_for_which_action_it_waits(small, tmp_path, name):
    number = r"\d+" if name in ("gpipe", "1f1b") else r"\d+\.[01]"
    awaited = rf"({'a free buffer to|' if name == 'gpipe' else ''}[FBI]{number} from)"
    words = rf"stage 0 waits for {awaited} stage 1, which was last at step \d+ [FBIW]{number}"
    patience = "train.peer_timeout_s=2"
    signalled(small, tmp_path, signal.SIGSTOP, "has sent no heartbeat for", words, patience, f"schedule.name={name}")

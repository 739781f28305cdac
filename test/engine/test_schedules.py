"""Lists of one's own in runs. test_layouts has the bits and the bytes of every schedule, BPipe over them, lists from
files, resumes, validation, samples and profiles."""

import pytest

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

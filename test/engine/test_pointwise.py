"""schedule.recompute: pointwise changes no bit of any run, and every rank allocates the planned bytes. With whatever
else it is combined: test_layouts."""

import pytest

pytestmark = pytest.mark.usefixtures("ranks")

OFF = "schedule.bpipe=off"
POINTWISE = "schedule.recompute=pointwise"
WIDE = ["parallel.tensor=2", "parallel.sequence=true"]
PLANNED = "memory    as planned, to the byte, on "

# By name; four stages with BPipe unless said.
RUNS = {
    "BPipe": [],
    "attention by stage": ["attention.mode=[none,recompute,flash,flash]"],
    "split backwards and layers run again": [OFF, "schedule.split_backward=on", "schedule.recompute_layers=[1,0,1,0]"],
    "chunks without layers": [OFF, "parallel.pipeline=2", "parallel.layers=[0,4,4,0]", "schedule.name=zb-v"],
    "sequence, split, overlap": [OFF, "parallel.pipeline=2", *WIDE, "schedule.split_backward=on",
                                 "parallel.overlap=on"],
}


IN_BF16 = ("split backwards and layers run again", "sequence, split, overlap")


@pytest.mark.soak(2)
@pytest.mark.parametrize("name, precision", [(name, "fp32") for name in RUNS] + [(name, "bf16") for name in IN_BF16])
def test_it_changes_no_bit(small, name, precision):
    keys = [f"train.precision={precision}", *RUNS[name]]
    again = small.train(*keys, *([] if "recompute=[" in str(keys) else [POINTWISE]))
    kept = small.train(*keys, "schedule.recompute=none")
    assert again.bits == kept.bits
    assert PLANNED in again.stderr

"""schedule.recompute: pointwise changes no bit of any run, and every rank allocates the planned bytes."""

import pytest

pytestmark = pytest.mark.usefixtures("ranks")

OFF = "schedule.bpipe=off"
POINTWISE = "schedule.recompute=pointwise"
WIDE = ["parallel.tensor=2", "parallel.sequence=true"]
PLANNED = "memory    as planned, to the byte, on "

# What pointwise is combined with, by name; four stages with BPipe unless said.
RUNS = {
    "one stage": ["parallel.pipeline=1", OFF],
    "BPipe": [],
    "bundles on the host": ["schedule.evict_to=host"],
    "some stages": [OFF, "schedule.recompute=[pointwise,none,pointwise,none]"],
    "layers run again": ["schedule.recompute_layers=[2,1,0,1]"],
    "stored attention": ["attention.mode=none"],
    "recomputed attention": ["attention.mode=recompute"],
    "attention by stage": ["attention.mode=[none,recompute,flash,flash]"],
    "split backwards": ["schedule.split_backward=on"],
    "split backwards and layers run again": [OFF, "schedule.split_backward=on", "schedule.recompute_layers=[1,0,1,0]"],
    "zb-v": [OFF, "parallel.pipeline=2", "schedule.name=zb-v"],
    "v-half to the host": ["parallel.pipeline=2", "schedule.name=v-half", "schedule.evict_to=host"],
    "chunks without layers": [OFF, "parallel.pipeline=2", "parallel.layers=[0,4,4,0]", "schedule.name=zb-v"],
    "groups": [OFF, "parallel.pipeline=2", "schedule.name=gis", "schedule.group=half"],
    "tensor ranks": [OFF, "parallel.pipeline=2", "parallel.tensor=2", "parallel.overlap=on"],
    "sequence": [OFF, "parallel.pipeline=2", *WIDE],
    "sequence, overlap": [OFF, "parallel.pipeline=2", *WIDE, "parallel.overlap=4"],
    "sequence, split": [OFF, "parallel.pipeline=2", *WIDE, "schedule.split_backward=on"],
    "sequence, split, overlap": [OFF, "parallel.pipeline=2", *WIDE, "schedule.split_backward=on",
                                 "parallel.overlap=on"],
    "data ranks": [OFF, "parallel.pipeline=2", "parallel.data=2", "schedule.name=interleaved"],
}


IN_BF16 = ("BPipe", "split backwards and layers run again", "sequence, overlap")


@pytest.mark.soak(4)
@pytest.mark.parametrize(
    "name, precision", [(name, "fp32") for name in RUNS] + [(name, "bf16") for name in IN_BF16]
)
def test_it_changes_no_bit(small, name, precision):
    keys = [f"train.precision={precision}", *RUNS[name]]
    again = small.train(*keys, *([] if "recompute=[" in str(keys) else [POINTWISE]))
    kept = small.train(*keys, "schedule.recompute=none")
    assert again.bits == kept.bits
    assert PLANNED in again.stderr

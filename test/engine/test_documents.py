"""Documents in packed rows: data.mask_documents and data.reset_positions. Each document has the loss that it has alone,
whatever the layout."""

import re

import pytest
from trainer_runs import FAMILIES, close, environment, made_tokens, run, trained, write_config, write_tokens

pytestmark = pytest.mark.usefixtures("ranks")

ON = ["data.mask_documents=on", "data.reset_positions=on", "data.end_of_text=0"]
MASK, RESET = ON[::2], ON[1:]
OFF = "schedule.bpipe=off"
DOCUMENT, ROWS, LENGTH = 8, 16, 32

LAYOUTS = {
    "p4": [],
    "p4_off": [OFF],
    "p2_gpipe_to_host": ["parallel.pipeline=2", "schedule.name=gpipe", "schedule.evict_to=host", "schedule.slots=2"],
    "p8_one_slot_more": ["parallel.pipeline=8", "schedule.slots=6"],
    "p2_interleaved": ["parallel.pipeline=2", "schedule.name=interleaved", OFF],
    "p2_v_half": ["parallel.pipeline=2", "schedule.name=v-half", OFF],
    "p2_zb_v": ["parallel.pipeline=2", "schedule.name=zb-v", OFF],
    "p4_recomputes_by_stage": [OFF, "parallel.layers=[1,4,2,1]", "schedule.recompute_layers=[1,3,0,1]"],
}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture(scope="module")
def config(family, tmp_path_factory):
    return write_config(tmp_path_factory.mktemp(family), family)


@pytest.fixture(scope="module")
def alone(config, family):
    return trained(config, *ON, OFF, "parallel.pipeline=1", family=family)


def test_a_packed_row_trains_each_document_as_if_it_were_alone(family, tmp_path):
    """The documents have one length, so that shorter sequences cut the same stream into documents."""
    tokens = [0 if i % DOCUMENT == 0 else 1 + token % 99 for i, token in enumerate(made_tokens(ROWS * LENGTH + 1))]
    write_tokens(tmp_path / "train_000.bin", tokens)
    config = write_config(tmp_path, family)
    common = ["data.val_every=0", "parallel.pipeline=2", "train.weight_decay=0"]
    short = [f"model.seq_len={DOCUMENT}", f"train.global_batch={ROWS * LENGTH // DOCUMENT}"]
    single = trained(config, *common, *short, family=family)
    packed = trained(config, *common, *ON, family=family)
    assert abs(packed.losses[0] - single.losses[0]) < 1e-6
    assert close(packed.losses, single.losses, 1e-5)
    together = trained(config, *common, family=family)
    assert abs(together.losses[0] - single.losses[0]) > 1e-4


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_do_not_change_a_bit(config, family, alone, layout):
    assert trained(config, *ON, *LAYOUTS[layout], family=family).bits == alone.bits


def test_threads_do_not_change_a_bit(config, family, alone):
    ended = trained(config, *ON, "parallel.pipeline=2", family=family, env=environment(OMP_NUM_THREADS="2"))
    assert ended.bits == alone.bits


@pytest.mark.parametrize("grid", [(2, 1), (1, 2), (2, 2)])
def test_tensor_and_data_ranks_agree_to_rounding(config, family, alone, grid):
    t, d = grid
    keys = [f"parallel.tensor={t}", f"parallel.data={d}", f"parallel.sequence={str(t > 1).lower()}"]
    first = trained(config, *ON, *keys, OFF, "parallel.pipeline=1", family=family)
    assert close(first.losses, alone.losses, 1e-5)
    assert trained(config, *ON, *keys, "parallel.pipeline=2", family=family).bits == first.bits


@pytest.mark.parametrize("mode", ["none", "recompute"])
def test_attention_modes_have_the_same_losses(config, family, alone, mode):
    assert close(trained(config, *ON, f"attention.mode={mode}", family=family).losses, alone.losses, 1e-5)


def test_one_document_a_row_has_the_bits_of_no_documents(config, family):
    plain = trained(config, family=family)
    for keys in (ON, MASK, RESET):
        assert trained(config, *keys[:-1], "data.end_of_text=4000", family=family).bits == plain.bits


def test_each_key_changes_the_losses_alone(config, family, alone):
    plain, mask = trained(config, OFF, family=family), trained(config, *MASK, OFF, family=family)
    assert plain.bits != mask.bits
    if family == "llama":  # rotations depend on distances alone
        assert close(mask.losses, alone.losses, 1e-5)
    else:
        assert not close(mask.losses, alone.losses, 1e-5)
    assert trained(config, *RESET, OFF, family=family).bits not in (plain.bits, alone.bits)


def test_the_plan_counts_the_places_on_every_stage(config, family):
    def peaks(ended):
        return [stage["peak_bytes"] for stage in ended.steps[-1]["stages"]]

    plain, masked = trained(config, family=family), trained(config, *ON, family=family)
    assert [b - a for a, b in zip(peaks(plain), peaks(masked))] == [16 * LENGTH * 4] * 4
    assert "as planned, to the byte, on all stages" in masked.stderr


def test_data_without_a_known_token_are_refused(config, family):
    ended = run(config, "data.mask_documents=on", family=family)
    assert ended.code == 2
    assert re.search(r"data\.end_of_text: the data do not say which token it is; set it to the token", ended.stderr)

"""Documents in packed rows: data.mask_documents and data.reset_positions. Each document has the same loss as in a row
of its own; test_layouts has the bits of every layout."""

import json
import re

import pytest
from trainer_runs import FAMILIES, close, made_tokens, run, write_config, write_tokens

pytestmark = pytest.mark.usefixtures("ranks")

ON = ["data.mask_documents=on", "data.reset_positions=on", "data.end_of_text=0"]
MASK, RESET = ON[::2], ON[1:]
OFF = "schedule.bpipe=off"
DOCUMENT, ROWS, LENGTH = 8, 16, 32


@pytest.fixture
def alone(small):
    return small.one_stage(*ON)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_packed_row_trains_each_document_as_if_it_were_alone(family, tmp_path):
    """The documents have one length, so that shorter sequences cut the same stream into documents."""
    common, short = short_documents(tmp_path)
    config = write_config(tmp_path, family)
    single = run(config, *common, *short, family=family)
    packed = run(config, *common, *ON, family=family)
    assert abs(packed.losses[0] - single.losses[0]) < 1e-6
    assert close(packed.losses, single.losses, 1e-5)
    together = run(config, *common, family=family)
    assert abs(together.losses[0] - single.losses[0]) > 1e-4


def short_documents(folder):
    """Keys with which every step trains on the same documents, cut into short sequences."""
    tokens = [0 if i % DOCUMENT == 0 else 1 + token % 99 for i, token in enumerate(made_tokens(ROWS * LENGTH + 1))]
    write_tokens(folder / "train_000.bin", tokens)
    keys = ["data.val_every=0", "parallel.pipeline=2", "train.weight_decay=0"]
    return keys, [f"model.seq_len={DOCUMENT}", f"train.global_batch={ROWS * LENGTH // DOCUMENT}"]


def test_one_document_a_row_has_the_bits_of_no_documents(small, tmp_path):
    """Token 199 occurs only after the last sequence."""
    write_tokens(tmp_path / "whole.bin", [*made_tokens(4097), 199])
    data = (f"data.train={tmp_path}/whole.bin", "data.val_every=0")
    plain = small.train(*data)
    for keys in (ON, MASK, RESET):
        assert small.train(*data, *keys[:-1], "data.end_of_text=199").bits == plain.bits


@pytest.mark.thorough
def test_each_key_changes_the_losses_alone(small, alone):
    plain, mask = small.train(OFF), small.train(*MASK, OFF)
    assert plain.bits != mask.bits
    if small.family == "llama":  # rotations depend on distances alone
        assert close(mask.losses, alone.losses, 1e-5)
    else:
        assert max(abs(a - b) for a, b in zip(mask.losses, alone.losses)) > 1e-3
    assert small.train(*RESET, OFF).bits not in (plain.bits, alone.bits)


def test_data_without_a_known_token_are_refused(small):
    ended = run(small.config, "data.mask_documents=on", family=small.family, code=2)
    assert re.search(r"data\.end_of_text: the data do not name this token; set it to the token", ended.stderr)
    ended = run(small.config, "data.mask_documents=on", "data.end_of_text=199", family=small.family, code=2)
    assert re.search(r"token 199 does not occur early in \S+; set it to the token", ended.stderr)


@pytest.mark.thorough
def test_a_later_stage_on_longer_sequences_keeps_moments_and_the_place_in_the_data(tmp_path):
    common, short = short_documents(tmp_path)
    config, saved = write_config(tmp_path), tmp_path / "saved"
    common += ["train.steps=6"]
    whole = run(config, *common, *short, f"checkpoint.dir={saved}", "checkpoint.every=3")
    accept, resume = ["checkpoint.changed=accept"], ["--resume", str(saved / "step_00000003")]
    again = [f"checkpoint.dir={tmp_path}/long", "checkpoint.every=6"]
    longer = run(config, *common, *ON, *accept, *again, arguments=resume)
    assert [step["step"] for step in longer.steps] == [4, 5, 6]
    for one, other in zip(longer.steps, whole.steps[3:]):
        assert close([one["loss"], one["grad_norm"]], [other["loss"], other["grad_norm"]], 1e-5)
        assert one["tokens_seen"] == other["tokens_seen"]
    state = json.loads((tmp_path / "long/step_00000006/training.json").read_text())
    assert (state["samples"], state["tokens"]) == (6 * ROWS, 6 * ROWS * LENGTH)
    turned = run(config, *common, *ON, *accept, "model.rope_theta=500000", arguments=resume)
    assert turned.bits != longer.bits
    refused = run(config, *common, *ON, arguments=resume, code=2)
    assert "model.seq_len is 8 there and 32 here; make them equal (checkpoint.changed: accept allows" in refused.stderr
    wide = run(config, *common, *accept, "model.ffn=48", arguments=resume, code=2)
    assert re.search(r"model\.ffn is 96 there and 48 here; make them equal\n", wide.stderr)


def test_learned_positions_fix_the_length(tmp_path):
    config, saved = write_config(tmp_path, "gpt"), tmp_path / "saved"
    run(config, f"checkpoint.dir={saved}", "checkpoint.every=3", family="gpt")
    keys = ["model.seq_len=16", "checkpoint.changed=accept", "train.steps=4"]
    ended = run(config, *keys, family="gpt", arguments=["--resume", str(saved)], code=2)
    assert re.search(r"model\.seq_len is 32 there and 16 here; make them equal\n", ended.stderr)

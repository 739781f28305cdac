"""Encoders: attention over all of the sequence (model.causal: false) and the masked objective. A loss depends on later
tokens, and a model learns to fill in tokens; test_layouts has the bits of every layout."""

import math

import pytest
from trainer_runs import FAMILIES, run, write_config, write_tokens

pytestmark = pytest.mark.usefixtures("ranks")

ON = ["model.causal=false", "train.objective=masked", "data.mask_token=99"]
OFF = "schedule.bpipe=off"


@pytest.mark.parametrize("family", FAMILIES)
def test_later_tokens_are_seen(tmp_path, family):
    """The last of 32 tokens is no target of this step, so only attention to it can change the loss."""
    losses = []
    for last in (7, 8):
        write_tokens(tmp_path / "train_000.bin", [*range(40, 71), last, 7])
        config = write_config(tmp_path, family)
        one = ["train.seed=1", "train.steps=1", "train.global_batch=1", "schedule.micro_batch=1", "data.val_every=0"]
        losses.append(run(config, *ON, *one, "parallel.pipeline=1", OFF, family=family).losses)
    assert losses[0] != losses[1]


@pytest.mark.thorough
def test_tokens_are_filled_in(tmp_path):
    """Every token occurs twice in a row: it can be filled in where either neighbour is left."""
    tokens = [7 + (i // 2 * 7919) % 89 for i in range(8001)]
    write_tokens(tmp_path / "train_000.bin", tokens)
    config = write_config(tmp_path)
    keys = ["train.steps=120", "data.val_every=0", "train.lr=1e-2", "parallel.pipeline=1", OFF]
    assert run(config, *ON, *keys).steps[-1]["loss"] < 0.7 * math.log(89)


def test_a_checkpoint_is_that_of_an_encoder(small, tmp_path):
    small.train(*ON, "parallel.pipeline=1", OFF, f"checkpoint.dir={tmp_path}/saved", "checkpoint.every=2")
    assert '"is_causal": false' in (tmp_path / "saved/step_00000002/config.json").read_text()
    refused = run(small.config, resume=f"{tmp_path}/saved", family=small.family, code=2)
    assert "model.causal is false there and true here" in refused.stderr


@pytest.mark.parametrize("keys, words", [
    (ON[:2], "data.mask_token: is missing, and train.objective masked needs it; set it to a token"),
    (ON[:1], "train.objective: an encoder would see the token that it predicts; set train.objective: masked"),
    (ON[1:], "train.objective: masked is for encoders; set model.causal: false"),
    ([*ON[:2], "data.mask_token=200"], "data.mask_token: must be below model.vocab, 200"),
    (["data.end_of_text=200"], "data.end_of_text: must be below model.vocab, 200"),
    ([*ON, "data.mask_documents=on"], "data.mask_documents: attention inside documents is causal; set"),
    ([*ON, "data.hellaswag=none.bin"], "model.causal: an encoder does not predict the next token; leave out"),
])
def test_what_excludes_itself_is_refused_with_the_remedy(small, keys, words):
    ended = run(small.config, *keys, family=small.family, code=2)
    assert words in ended.stderr, ended.stderr

"""NaN, infinity and outlier losses: what is reported, what is skipped, and that a resumed run decides the same.

The faults are real. An embedding row that is not finite spoils exactly the steps whose samples hold its token; tokens
from another distribution produce outlier losses.
"""

import re
import shutil

import numpy
import pytest

from checkpoint_runs import poison, several_ranks
from trainer_runs import LLAMA, MODELS, Trainer, layout, saving, tensors_of

RARE = 60  # a token of few samples
SKIPPED = re.compile(r"step (\d+): update skipped, since .*; weights, moments and Adam's step count are unchanged$",
                     re.MULTILINE)


def poisoned_model(trainer, name, element, value):
    """Saves a model by a run that changes nothing, then changes one weight."""
    folder = trainer.folder / "poisoned"
    shutil.rmtree(folder, ignore_errors=True)
    trainer.run(saving(folder, 1), {"train.steps": 1, "train.lr": 0})
    model = folder / "step_00000001"
    (model / "manifest.json").unlink()  # what is changed by hand is a model, no longer a checkpoint
    poison(model, name, element, value)
    return model


@pytest.fixture(scope="module")
def rare(tmp_path_factory):
    """A data set in which some samples hold a rare token, and a model whose embedding of it is infinite."""
    random = numpy.random.default_rng(5)
    tokens = random.integers(0, RARE, 4000)
    tokens[100::211] = RARE
    trainer = Trainer(tmp_path_factory.mktemp("rare"), LLAMA, tokens, {"train.global_batch": 4, "train.steps": 24})
    model = poisoned_model(trainer, "model.embed_tokens.weight", RARE * 32 + 3, numpy.inf)
    trainer.start_from = {"checkpoint.init_from": model, "train.skip_bad_steps": 20}
    return trainer


@pytest.fixture(scope="module")
def saved(rare, tmp_path_factory):
    """A run that skips bad steps, with every step saved, to compare steps and to resume from them."""
    folder = tmp_path_factory.mktemp("saved")
    return folder, rare.run(rare.start_from, saving(folder, 1))


def skipped_of(result):
    return [step["step"] for step in result.steps if step.get("skipped")]


def comparable(result):
    """Returns what has to be the same in any layout: everything but times and memory."""
    keys = ("step", "loss", "loss_z", "grad_norm", "norm_z", "lr", "skipped")
    return [[step.get(key) for key in keys] for step in result.steps]


def test_bad_steps_are_skipped_reported_and_logged(saved):
    result = saved[1]
    skipped = skipped_of(result)
    assert 2 <= len(skipped) <= 20 and len(skipped) < 24
    assert [int(step) for step in SKIPPED.findall(result.stderr)] == skipped
    assert "model.embed_tokens.weight on stage 0 was not finite before the step" in result.stderr
    assert re.search(rf"\({len(skipped)} of 20 such steps\)", result.stderr)
    assert [int(step) for step in re.findall(r"^step +(\d+)/24 .* \| skipped\b", result.stdout, re.M)] == skipped
    for step in result.steps:
        assert ("skipped" in step) == (step["step"] in skipped)
        assert (step["loss"] is None or step["grad_norm"] is None) == (step["step"] in skipped)


@pytest.mark.parametrize("precision, files, name", [("fp32", "*", "model.norm.weight"),
                                                    ("bf16", "optimizer-*", "model.norm.weight.master")])
def test_a_skipped_step_leaves_weights_moments_and_adams_count_as_they_were(rare, tmp_path, precision, files, name):
    ended = rare.run(rare.start_from, saving(tmp_path, 1), {"train.precision": precision, "train.steps": 12})
    assert "model.embed_tokens.weight on stage 0 was not finite before the step" in ended.stderr
    step = skipped_of(ended)[0]
    assert step > 1 and step + 1 not in skipped_of(ended)
    before, after, later = (tensors_of(step_of(tmp_path, each), files) for each in (step - 1, step, step + 1))
    assert all(before[each].tobytes() == after[each].tobytes() for each in before)
    first, second = (later[f"model.norm.weight.{moment}"].astype("f8") for moment in ("exp_avg", "exp_avg_sq"))
    update = first / (1 - 0.9**step) / (second / (1 - 0.95**step)) ** 0.5  # a norm has no weight decay
    assert numpy.allclose(later[name] - after[name].astype("f8"), -ended.steps[step]["lr"] * update, rtol=1e-3,
                          atol=1e-7)


def test_a_bad_step_beyond_those_allowed_stops_with_its_tensor(rare, saved):
    second = skipped_of(saved[1])[1]
    result = rare.run(rare.start_from, {"train.skip_bad_steps": 1}, code=1)
    assert re.search(
        rf"step {second}: the loss on stage 0 is nan, and the first non-finite gradient of the backward is that of "
        r"lm_head.weight on stage 0 .*weights are unchanged.*; resume from an earlier",
        result.stderr,
    )
    assert result.numbers[-1] == second - 1


def test_as_many_are_skipped_as_are_allowed_resumes_included(rare, saved):
    folder, allowed = saved
    _, second, third = skipped_of(allowed)[:3]
    ended = rare.run(rare.start_from, {"train.skip_bad_steps": 2}, code=1)
    assert f"step {third}: " in ended.stderr and "train.skip_bad_steps allows no more than 2" in ended.stderr
    assert ended.numbers[-1] == third - 1
    resumed = rare.run(rare.start_from, {"train.skip_bad_steps": 2}, resume=step_of(folder, second), code=1)
    assert f"step {third}: " in resumed.stderr


def step_of(folder, step):
    return folder / f"step_{step:08d}"


def test_a_resume_after_skipped_steps_has_the_same_bits(rare, saved, tmp_path):
    folder, result = saved
    for step in (skipped_of(result)[0], skipped_of(result)[1] + 1):
        resumed = rare.run(rare.start_from, resume=step_of(folder, step))
        assert comparable(resumed) == comparable(result)[step:]


@several_ranks
@pytest.mark.parametrize("change", [layout(p=4, bpipe=True), layout(p=2, b=1)], ids=["p4_bpipe", "p2"])
def test_stages_do_not_change_what_is_skipped(rare, saved, change):
    assert comparable(rare.run(rare.start_from, change)) == comparable(saved[1])


@pytest.mark.thorough
@several_ranks
@pytest.mark.parametrize("change", [layout(t=2), layout(d=2), layout(p=2, t=2, parallel_sequence=True)],
                         ids=["t2", "d2", "p2_t2"])
def test_tensor_and_data_ranks_skip_the_same_steps(rare, saved, change, tmp_path):
    whole = rare.run(rare.start_from, change, saving(tmp_path, 12))
    assert skipped_of(whole) == skipped_of(saved[1])
    resumed = rare.run(rare.start_from, change, resume=step_of(tmp_path, 12))
    assert comparable(resumed) == comparable(whole)[12:]


@several_ranks
@pytest.mark.parametrize("family", MODELS)
def test_the_blamed_tensor_names_layer_and_stage(family, tmp_path):
    trainer = Trainer(tmp_path, MODELS[family])
    name = {"llama": "model.layers.5.mlp.down_proj.weight", "gpt": "transformer.h.5.mlp.c_proj.weight"}[family]
    model = poisoned_model(trainer, name, 17, numpy.nan)
    leave = {"checkpoint.init_from": str(model), "train.skip_bad_steps": 1}
    result = trainer.run(layout(p=4, bpipe=True), leave, code=1)
    assert re.search(rf"step 2: the loss on stage 3 is nan, .*; {re.escape(name)} on stage 2 was not finite",
                     result.stderr)
    assert result.numbers == [1]


# ---- outliers --------------------------------------------------------------------------------------------------------

ODD = (45, 61, 100)  # samples that are not like the others


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """Samples from one distribution, a few of them from another."""
    tokens = numpy.arange(16 * 160 + 1) % 7
    random = numpy.random.default_rng(1)
    for sample in ODD:
        tokens[16 * sample : 16 * sample + 16] = random.integers(30, 61, 16)
    keys = {"train.global_batch": 1, "train.steps": 150, "train.lr": 1.0e-3, "train.warmup_steps": 0}
    return Trainer(tmp_path_factory.mktemp("odd"), LLAMA, tokens, keys)


LIMIT = {"train.skip_outlier_z": 3.5}


@pytest.mark.thorough
def test_outliers_are_skipped_where_the_window_holds_enough(odd, tmp_path):
    free, limited = odd.run(), odd.run(LIMIT, saving(tmp_path, 1))
    assert skipped_of(free) == []
    skipped = skipped_of(limited)
    high = [step["step"] for step in free.steps if step["loss_z"] > 3.5 or step["norm_z"] > 3.5]
    assert min(high) <= 32 < skipped[0] == next(s for s in sorted(high) if s > 32)
    assert [int(step) for step in SKIPPED.findall(limited.stderr)] == skipped
    assert "the limit is 3.5" in limited.stderr
    assert limited.curve()[: skipped[0]] == free.curve()[: skipped[0]]
    before, after = tensors_of(step_of(tmp_path, skipped[0] - 1)), tensors_of(step_of(tmp_path, skipped[0]))
    assert all(before[name].tobytes() == after[name].tobytes() for name in before)
    # The window is in the checkpoint: a resume just before the outlier decides as an uninterrupted run does.
    resumed = odd.run(LIMIT, resume=step_of(tmp_path, skipped[0] - 1))
    assert comparable(resumed) == comparable(limited)[skipped[0] - 1 :]


@several_ranks
def test_stages_skip_the_same_outliers(odd):
    batch = {"train.global_batch": 4, "train.steps": 60, "train.lr": 3.0e-3, "train.skip_outlier_z": 1.2}
    one = odd.run(batch)
    assert skipped_of(one)
    assert comparable(odd.run(batch, layout(p=4, bpipe=True))) == comparable(one)

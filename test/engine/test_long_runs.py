"""Keys of runs that take weeks: a ramp of batches, the decay of wsd, z_loss, init_std, checkpoints to keep for good,
and fewer step lines. test_layouts has their bits in every layout."""

import math
import re

import numpy
import pytest
from trainer_runs import MODELS, Trainer, checkpoint_names, layout, one_thread, preload, saving, tensors_of

pytestmark = pytest.mark.usefixtures("ranks")

RAMP = {"train.batch_ramp": [[1, 4], [3, 8], [6, 16]], "train.steps": 8}
BATCHES = [4, 4, 8, 8, 8, 16, 16, 16]


@pytest.fixture(scope="module", params=["llama", "gpt"])
def long_run(request, tmp_path_factory):
    trainer = Trainer(tmp_path_factory.mktemp(request.param), MODELS[request.param])
    trainer.plain = trainer.run(RAMP)
    return trainer


def test_each_step_has_the_batch_of_the_ramp(long_run):
    tokens = [16 * batch for batch in BATCHES]
    assert [step["tokens"] for step in long_run.plain.steps] == tokens
    assert [step["tokens_seen"] for step in long_run.plain.steps] == numpy.cumsum(tokens).tolist()


def test_a_ramp_is_the_same_as_runs_with_its_batches_one_after_another(long_run, tmp_path):
    """Also shows that the place in the data is a function of the samples consumed."""
    constant, curve, resume = {"train.schedule": "constant", "train.warmup_steps": 0}, [], None
    ramp = long_run.run(RAMP, constant)
    for batch, last in ((4, 2), (8, 5), (16, 8)):
        piece = {"train.global_batch": batch, "train.steps": last}
        curve += long_run.run(constant, piece, saving(tmp_path / "saved", 100), resume=resume).curve(len(curve) + 1)
        resume = tmp_path / "saved"
    assert curve == ramp.curve()


def test_a_resume_with_another_batch_says_which_steps_take_all_tokens(long_run, tmp_path):
    run = {"train.tokens": 16 * 40, "train.schedule": "constant"}
    long_run.run(run, {"train.global_batch": 8, "train.steps": 3}, saving(tmp_path, 3))
    for ramp, auto, taken, steps in (([[1, 4]], 10, 52, 7), ([[1, 10]], 4, 34, 5), ([[1, 4], [9, 16]], 9, 60, 7)):
        again = {"train.batch_ramp": ramp, "train.steps": "auto"}
        said = " ".join(long_run.run(run, again, resume=tmp_path).stderr.split())
        assert f"{auto} steps (train.steps) take {16 * taken} tokens, not the 640 of" in said
        assert f"for train.tokens set train.steps to {steps}" in said
        said = long_run.run(run, again, {"train.steps": steps}, resume=tmp_path).stderr
        assert "of train.tokens" not in said


def test_global_batch_holds_before_the_first_entry(long_run):
    late = {"train.batch_ramp": [[3, 8], [6, 16]], "train.global_batch": 4, "train.steps": 8}
    assert long_run.run(late).curve() == long_run.plain.curve()


def test_the_plan_is_that_of_the_largest_batch(long_run):
    of_ramp = long_run.run(RAMP, {"train.steps": 1}, layout(p=4, bpipe=True))
    of_largest = long_run.run({"train.global_batch": 16, "train.steps": 1}, layout(p=4, bpipe=True))
    memory = lambda ended: [(stage["peak_bytes"], stage["activation_bytes"]) for stage in ended.steps[0]["stages"]]
    assert memory(of_ramp) == memory(of_largest)
    assert "16 microbatches of 1 x 16 on each data rank, the largest of batch_ramp" in of_ramp.stderr
    assert "batch_ramp" not in of_largest.stderr


def test_a_schedule_from_a_file_has_no_ramp(long_run, tmp_path):
    (tmp_path / "list").write_text("")
    said = long_run.run(RAMP, {"schedule.file": str(tmp_path / "list")}, code=2).stderr
    assert "a schedule from a file has a fixed number of microbatches" in said


# ---- z_loss, init_std


@pytest.mark.thorough
def test_z_loss_adds_its_share_and_off_is_as_without(long_run):
    z = {"train.z_loss": 0.01}
    plain, one = long_run.run(), long_run.run(z)
    assert long_run.run({"train.z_loss": 0}).curve() == plain.curve()
    assert one.curve() != plain.curve()
    first, expected = one.steps[0]["loss"] - plain.steps[0]["loss"], 0.01 * math.log(61) ** 2
    assert abs(first / expected - 1) < 0.2  # fresh logits are close to zero, so Z is close to the vocabulary


def test_initial_weights_scale_with_init_std(long_run, tmp_path):
    for folder, std in (("narrow", 0.02), ("wide", 0.08)):
        long_run.run({"train.init_std": std, "train.lr": 0, "train.steps": 1}, saving(tmp_path / folder, 1))
    narrow, wide = (tensors_of(tmp_path / folder / "step_00000001") for folder in ("narrow", "wide"))
    scaled = [name for name, values in narrow.items() if values.ndim == 2 and "exp_avg" not in name]
    assert len(scaled) > 8
    for name in scaled:
        numpy.testing.assert_allclose(wide[name], 4 * narrow[name], rtol=1e-6)
    config = (tmp_path / "wide/step_00000001/config.json").read_text()
    assert re.search(r'"initializer_range": 0\.08[0,]', config)


# ---- the learning rate


def rates(trainer, *changes):
    base = {"train.schedule": "wsd", "train.steps": 20, "train.warmup_steps": 2, "train.lr": 1e-3,
            "train.min_lr_ratio": 0.2}
    return {step["step"]: step["lr"] for step in trainer.run(base, *changes).steps}


LEFT = {"linear": lambda x: 1 - x, "cosine": lambda x: (1 + math.cos(math.pi * x)) / 2,
        "sqrt": lambda x: 1 - math.sqrt(x), "1-sqrt": lambda x: 1 - math.sqrt(x), "constant": lambda x: 1}  # fmt: skip


@pytest.mark.parametrize("schedule, shape", [*(("wsd", shape) for shape in list(LEFT)[:4]), ("cosine", "cosine"),
                                             ("linear", "linear"), ("constant", "constant")])
def test_the_learning_rate_has_its_length_and_shape(long_run, schedule, shape):
    wsd = {"train.decay_steps": 8, "train.decay_shape": shape} if schedule == "wsd" else {}
    begin = 12 if wsd else 2
    for step, lr in rates(long_run, {"train.schedule": schedule}, wsd).items():
        left = LEFT[shape](max(0, step - begin) / (20 - begin))
        assert lr == pytest.approx(min(1, step / 2) * (2e-4 + 8e-4 * left), rel=1e-9)


def test_without_a_length_the_decay_is_a_tenth_of_the_steps_after_the_warm_up(long_run):
    lr = rates(long_run)
    assert lr[18] == 1e-3 and lr[20] == pytest.approx(2e-4)
    assert lr[19] == pytest.approx(2e-4 + 8e-4 / 1.8, rel=1e-9)


# ---- checkpoints and lines


def test_every_n_th_checkpoint_is_kept_for_good(long_run, tmp_path):
    keeps = {**saving(tmp_path, 2, keep=2), "checkpoint.keep_every": 3, "train.steps": 20}
    long_run.run(keeps)
    assert checkpoint_names(tmp_path) == [f"step_{step:08}" for step in (6, 12, 18, 20)]
    long_run.run(keeps, {"train.steps": 30}, resume=tmp_path)
    assert checkpoint_names(tmp_path) == [f"step_{step:08}" for step in (6, 12, 18, 24, 28, 30)]


def test_log_every_thins_the_step_lines_and_not_the_metrics(long_run):
    ended = long_run.run({"log.every": 5, "train.steps": 17})
    shown = [int(step) for step in re.findall(r"^step +(\d+)/17", ended.stdout, re.M)]
    assert shown == [1, 5, 10, 15, 17]
    assert ended.numbers == list(range(1, 18))
    assert ended.curve() == long_run.run({"train.steps": 17}).curve()


def test_the_slowest_rank_has_a_name_in_the_metrics(long_run):
    ended = long_run.run({"train.steps": 20}, layout(p=2))
    named = {step["step"]: step["slowest"] for step in ended.steps if "slowest" in step}
    assert set(named) <= set(range(17, 21)) and named  # after the first step and a window of 16
    for slowest in named.values():
        assert set(slowest) == {"rank", "stage", "host", "part", "excess", "cost"}
        assert slowest["rank"] == slowest["stage"] and slowest["part"] in ("forward", "backward")
        assert slowest["excess"] > 0 and slowest["host"]
    alone = long_run.run({"train.steps": 20})
    assert not any("slowest" in step for step in alone.steps)


# Preloaded, it delays each parallel loop of rank 1, and sets its clock ahead: the clocks of hosts drift apart.
LATE = r"""
static int of_rank_1(void) {
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    return rank != NULL && rank[0] == '1';
}
void GOMP_parallel(void (*loop)(void *), void *data, unsigned threads, unsigned flags) {
    if (of_rank_1()) usleep(200);
    REAL(GOMP_parallel)(loop, data, threads, flags);
}
int clock_gettime(clockid_t id, struct timespec *time) {
    int status = REAL(clock_gettime)(id, time);
    time->tv_sec += 1000 * (id == CLOCK_MONOTONIC && of_rank_1());
    return status;
}
"""


@pytest.mark.thorough
def test_a_rank_that_costs_over_a_twentieth_of_a_step_is_told_and_its_peer_is_not(long_run, tmp_path):
    env = one_thread(LD_PRELOAD=str(preload(tmp_path / "late.so", LATE)))
    ended = long_run.run({"train.steps": 40}, layout(d=2), arguments=["-v"], env=env)
    said = r"slowest rank (\d) \(stage 0, host \S+\): \+\d+ % in \w+s, which costs (\d+) % of a step"
    told = re.findall(said, ended.stderr)
    assert told and all(rank == "1" and int(cost) > 5 for rank, cost in told), ended.stderr
    shown = re.findall(r"^step +(\d+)/40 .*slowest 1 \+\d+% \w+ward", ended.stdout, re.M)
    assert [int(step) for step in shown] == list(range(17, 41)), ended.stdout

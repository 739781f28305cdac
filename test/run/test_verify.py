"""scripts/verify.py: several runs of the same steps agree bit by bit; a flipped bit in one is found and named."""

import re

import pytest

from trainer_runs import (GPT, LLAMA, MODELS, Trainer, layout, mpirun, mpirun_environment, one_thread, saving, script,
                          shared_library, without_mpi)

pytestmark = pytest.mark.skipif(without_mpi(), reason="built without MPI")

MESSAGE = 16 * 32 * 4


def verify(trainer, *changes, steps=2, arguments=(), env=None, before=(), code=0):
    metrics = trainer.folder / "metrics.jsonl"
    words = trainer.words({"log.metrics": metrics}, *changes)
    ended = script("verify.py", *before, str(steps), *words, *arguments, env=env or one_thread(), code=code)
    assert not metrics.exists()
    return ended


def agreed(ended, runs, steps=2, first=1):
    lines = ended.stdout.splitlines()
    assert re.fullmatch(
        rf"verified: {runs} runs agree in {steps} steps? from step {first}, each in loss, norm, and the moments and "
        r"weights of [1-9]\d+ tensors", lines[-1]), ended.stdout
    assert len(lines) == runs and all(line.endswith(": the same bits") for line in lines[:-1])
    return True


@pytest.mark.parametrize("family", MODELS)
def test_one_stage_several_stages_and_bpipe_agree(family, tmp_path):
    ended = verify(Trainer(tmp_path, MODELS[family]), layout(p=4, bpipe=True), saving(tmp_path / "saved", 1))
    assert agreed(ended, 3)
    assert ended.stdout.splitlines()[:2] == ["1 stage and 4 stages, no BPipe: the same bits",
                                             "1 stage and 4 stages, BPipe: the same bits"]
    assert not (tmp_path / "saved").exists()


@pytest.mark.parametrize("way", ["kill -SEGV $$", "exit 0"], ids=["crashes", "saves nothing"])
def test_a_way_that_fails_ends_it(tmp_path, way):
    """It is not taken for one that this machine cannot run."""
    real, *words = Trainer(tmp_path, LLAMA).words(layout(p=2))
    fails = tmp_path / "trainer"
    fails.write_text(f'#!/bin/bash\ncase "$*" in *--plan*) ;; *schedule.bpipe=on*) {way};; esac\nexec {real} "$@"\n')
    fails.chmod(0o755)
    ended = script("verify.py", "1", fails, *words, env=one_thread(), code=1)
    assert "verified" not in ended.stdout and "nothing was compared" in ended.stderr


@pytest.mark.thorough
def test_a_resumed_run_is_verified_from_its_checkpoint_on_also_under_mpirun(tmp_path):
    trainer = Trainer(tmp_path, LLAMA)
    trainer.run(saving(tmp_path / "saved", 3), {"train.steps": 3})
    resumed = ["--resume", str(tmp_path / "saved")]
    assert agreed(verify(trainer, layout(p=2), arguments=["--resume-if-any", resumed[1]]), 3, first=4)
    ended = verify(trainer, layout(p=2), arguments=resumed, before=["--launch", " ".join(mpirun(2))],
                   env=mpirun_environment(OMP_NUM_THREADS="1"))
    assert agreed(ended, 2, first=4)
    assert ended.stdout.startswith("2 stages, no BPipe and 2 stages, BPipe: the same bits\n")


FLIPPER = """
#include <mpi.h>
#include <stdlib.h>
#include <string.h>
static long number(const char *name) { return getenv(name) ? atol(getenv(name)) : -1; }
// Flips one bit of the FLIP_AT-th message of FLIP_BYTES bytes that rank FLIP_RANK sends: in a copy, as a card would.
int MPI_Isend(const void *from, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request) {
    static long seen;
    if (count == number("FLIP_BYTES") && number("OMPI_COMM_WORLD_RANK") == number("FLIP_RANK") &&
        seen++ == number("FLIP_AT")) {
        char *copy = malloc(count);
        memcpy(copy, from, count);
        copy[count / 2] ^= 4;
        from = copy;
    }
    return PMPI_Isend(from, count, type, to, tag, comm, request);
}
"""


@pytest.mark.thorough
def test_a_flipped_bit_is_found_and_its_first_effect_named(tmp_path):
    """The bit belongs to a gradient between stages in step 2. The step's loss is still correct; the gradients of the
    stages below are wrong."""
    trainer = Trainer(tmp_path, LLAMA)
    flips = {"LD_PRELOAD": str(shared_library(tmp_path / "flipper.so", FLIPPER, compiler="mpicc")), "FLIP_RANK": "3",
             "FLIP_BYTES": str(MESSAGE), "FLIP_AT": str(8 + 2)}
    ended = verify(trainer, layout(p=4, bpipe=True), env=one_thread(**flips), steps=3, code=1)
    assert "verified" not in ended.stdout
    differs = re.findall(r"^1 stage and 4 stages, (?:no )?BPipe: differ from step (\d): the moment (\S+) differs",
                         ended.stdout, re.M)
    assert [step for step, _ in differs] == ["2", "2"], ended.stdout
    assert all(name.startswith("model.layers.5.") for _, name in differs)  # the last layer of stage 2


@pytest.mark.thorough
def test_a_way_that_cannot_run_is_left_out(tmp_path):
    ended = verify(Trainer(tmp_path, GPT), layout(p=4, schedule_name="gpipe"))
    assert agreed(ended, 2) and "4 stages, gpipe, BPipe: left out" in ended.stderr
    one = layout(d=2, train_global_batch=8, schedule_micro_batch=4, parallel_shard_gradients="on")
    ended = verify(Trainer(tmp_path, LLAMA), one)
    assert agreed(ended, 2) and ended.stdout.startswith("1 stage and 1 stage, once more: the same bits\n")
    ended = verify(Trainer(tmp_path, LLAMA), layout(p=2, attention_mode=["none", "flash"]))
    assert agreed(ended, 2) and "1 stage: left out: attention.mode differs between stages" in ended.stderr


def test_what_cannot_be_compared_is_refused(tmp_path):
    ended = verify(Trainer(tmp_path, LLAMA), steps=0, code=2)
    assert "give a number of steps from 1" in ended.stderr
    wild = {"train.lr": 100, "train.warmup_steps": 0, "train.grad_clip": 0, "train.weight_decay": 100}
    ended = verify(Trainer(tmp_path, LLAMA), layout(p=2), wild, steps=60, code=1)
    assert "the run with 1 stage failed: " in ended.stderr, ended.stderr
    assert "nothing was compared" in ended.stderr and ended.stdout == ""
    for command, code, said in ((["echo"], 1, "verify: echo: is not a trainer that answers --plan --json; [^\n]*\n"),
                                (["bash", "-c", "kill -INT $PPID; sleep 9"], 130, "")):
        ended = script("verify.py", "1", *command, code=code)
        assert re.fullmatch(said, ended.stderr), ended.stderr

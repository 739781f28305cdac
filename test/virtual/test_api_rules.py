"""The rules of CUDA and NCCL that src/cuda relies on hold on the virtual GPU; studies/first_gpu_day.sh runs the same
program with the real libraries."""

import pytest
import trainer_runs

PROGRAM = trainer_runs.ROOT / "build" / "virtual" / "api_rules"


@pytest.mark.thorough
def test_every_rule_of_the_real_libraries_holds_on_the_virtual_gpu():
    # The pipes between its two processes carry no vector clocks.
    env = trainer_runs.environment(VIRTUAL_RACES="0", VIRTUAL_PATIENCE="120")
    done = trainer_runs.execute([PROGRAM], limit=600, env=env)
    lines = done.stdout.splitlines()
    assert len(lines) == 12 and all(line.startswith("confirmed ") for line in lines), done.stdout


def test_without_a_gpu_every_rule_is_skipped():
    done = trainer_runs.execute([PROGRAM], env=trainer_runs.environment(VIRTUAL_GPUS="0"))
    assert done.stdout == "skipped every rule: there is no GPU here\n"

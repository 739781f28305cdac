"""A list that a user wrote is parsed, proved and printed, or refused with the stage and the action."""

from trainer_runs import command

MINE = """# schedule mine  stages 2  chunks 1  placement loop  microbatches 4  slots 2  edges 2
stage 0: F0.0 F1.0 I0.0 W0.0 F2.0 I1.0 W1.0 F3.0 I2.0 W2.0 I3.0 W3.0
stage 1: F0.0 I0.0 F1.0 I1.0 W0.0 F2.0 I2.0 W1.0 F3.0 I3.0 W2.0 W3.0
"""


def printed(path, text, *overrides):
    path.write_text(text)
    given = [
        "parallel.pipeline=2",
        "train.global_batch=4",
        "schedule.micro_batch=1",
        f"schedule.file={path}",
        *overrides,
    ]
    return command(
        "llama", "-c", "configs/llama_tiny.yaml", *[part for each in given for part in ("-o", each)], "--schedule"
    )


def test_a_list_from_a_file_is_what_runs(tmp_path):
    answer = printed(tmp_path / "mine.txt", MINE, "schedule.bpipe=off")
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, MINE, "")


def test_an_unsound_list_from_a_file_is_refused_with_stage_and_action(tmp_path):
    answer = printed(tmp_path / "mine.txt", MINE.replace("I1.0 W0.0", "W0.0 W1.0", 1), "schedule.bpipe=off")
    assert answer.returncode == 2 and "schedule mine: stage 1: W1.0 comes before its I" in answer.stderr


def test_a_list_that_is_not_a_schedule_is_refused_with_its_line(tmp_path):
    answer = printed(tmp_path / "mine.txt", MINE.replace("F2.0", "X2.0", 1), "schedule.bpipe=off")
    assert answer.returncode == 2 and 'line 2: found "X2.0"' in answer.stderr


def test_a_list_of_another_size_is_refused(tmp_path):
    answer = printed(tmp_path / "mine.txt", MINE, "schedule.bpipe=off", "train.global_batch=5")
    assert answer.returncode == 2 and "has 2 stages and 4 microbatches" in answer.stderr


def test_the_pass_leaves_lists_from_files_alone(tmp_path):
    answer = printed(tmp_path / "mine.txt", MINE, "schedule.bpipe=on")
    assert answer.returncode == 2 and "use bpipe off" in answer.stderr

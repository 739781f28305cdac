"""A list that a user wrote is parsed, proved and printed, or refused with the stage and the action."""

import subprocess

import pytest
from trainer_runs import ROOT, command, trainer

MINE = """# schedule mine  stages 2  chunks 1  placement loop  microbatches 4  slots 2  edges 2
stage 0: F0.0 F1.0 I0.0 W0.0 F2.0 I1.0 W1.0 F3.0 I2.0 W2.0 I3.0 W3.0
stage 1: F0.0 I0.0 F1.0 I1.0 W0.0 F2.0 I2.0 W1.0 F3.0 I3.0 W2.0 W3.0
"""


def printed(path, text, *overrides):
    path.write_bytes(text.encode())
    given = ["parallel.pipeline=2", "train.global_batch=4", "schedule.micro_batch=1", f"schedule.file={path}",
             *overrides]
    return command(
        "llama", "-c", "configs/llama_tiny.yaml", *[part for each in given for part in ("-o", each)], "--schedule"
    )


def test_a_list_from_a_file_is_what_runs(tmp_path):
    answer = printed(tmp_path / "mine.txt", MINE, "schedule.bpipe=off")
    assert (answer.returncode, answer.stdout) == (0, MINE)
    assert answer.stderr.startswith("train_llama: proved: cannot hang; at most 2 slots (stage 0); idle 7.7 % at F=I=W=1")


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


@pytest.mark.parametrize("text", [MINE.replace("\n", "\r\n"), MINE.rstrip("\n"), MINE.replace(" F", "\tF")])
def test_line_ends_and_tabs_of_other_editors_are_read(tmp_path, text):
    answer = printed(tmp_path / "mine.txt", text, "schedule.bpipe=off")
    assert (answer.returncode, answer.stdout) == (0, MINE)
    assert answer.stderr.startswith("train_llama: proved: cannot hang; at most 2 slots (stage 0); idle 7.7 % at F=I=W=1")


@pytest.mark.parametrize(("text", "why"), [
    (MINE + "\0 and more", "byte 225 is NUL; a schedule is plain text"),
    (MINE.replace(" mine ", " Mine "), 'line 1: found "Mine", expected a name of at most 31 characters'),
    (MINE.replace(" mine ", f" {'m' * 32} "), "line 1: found"),
    (MINE + MINE.splitlines()[2], 'line 4: found "stage", expected the end of the schedule'),
    (MINE.replace("F3.0", "F3.0 F3.0", 1), "stage 0: F3.0 is out of order"),
    (MINE.replace("F3.0", "F-3.0", 1), 'line 2: found "F-3.0", expected one of'),
    (MINE.replace("F3.0", "F9999999999.0", 1), 'line 2: found "F9999999999.0", expected one of'),
    (MINE.replace("slots 2", "slots 1"), "stage 0: F1.0 finds all own slots of the stage taken"),
    (MINE.replace(" mine ", " forward "), 'the name "forward" is reserved for schedules without backwards'),
    ("", "line 1: found the end of the text, expected the header"),
])
def test_what_the_text_form_forbids_is_refused_with_its_place(tmp_path, text, why):
    answer = printed(tmp_path / "mine.txt", text, "schedule.bpipe=off")
    assert (answer.returncode, answer.stdout) == (2, "") and why in answer.stderr, answer.stderr


def test_split_backward_cannot_contradict_the_list(tmp_path):
    whole = "# schedule mine  stages 2  microbatches 4  slots 2\n" + "".join(
        f"stage {s}: {list_}\n" for s, list_ in enumerate(["F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"])
    )
    for text, value, why in ((MINE, "off", "has I and W"), (whole, "on", "has no I and W")):
        answer = printed(tmp_path / "mine.txt", text, "schedule.bpipe=off", f"schedule.split_backward={value}")
        assert answer.returncode == 2 and why in answer.stderr and "schedule.split_backward" in answer.stderr
        other = "on" if value == "off" else "off"
        answer = printed(tmp_path / "mine.txt", text, "schedule.bpipe=off", f"schedule.split_backward={other}")
        assert (answer.returncode, answer.stdout) == (0, text)


def test_a_list_that_ranks_cannot_open_again_is_refused_at_once():
    given = ["parallel.pipeline=2", "train.global_batch=4", "schedule.micro_batch=1", "schedule.file=/dev/stdin",
             "schedule.bpipe=off"]
    asked = [trainer("llama"), "-c", "configs/llama_tiny.yaml", *[part for each in given for part in ("-o", each)]]
    ended = subprocess.run(asked, cwd=ROOT, input=MINE, capture_output=True, text=True, check=False)
    assert ended.returncode == 2 and "write it to a file" in ended.stderr


def test_a_plan_of_a_list_from_a_file_claims_nothing_about_other_lists(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text(MINE)
    given = ["parallel.pipeline=2", "train.global_batch=4", "schedule.micro_batch=1", "schedule.bpipe=off"]
    options = [part for each in [*given, f"schedule.file={path}"] for part in ("-o", each)]
    ended = command("llama", "-c", "configs/llama_tiny.yaml", *options, "--plan", "-v")
    assert ended.returncode == 0, ended.stderr
    assert "No: the list of schedule.file is run as it is, with the evictions that it has." in ended.stdout
    assert "micro-batch that fits: schedule.file up to 1, BPipe none" in ended.stdout
    assert "schedule  mine, split backwards" in ended.stdout and "\nworld     no number" not in ended.stdout

"""A schedule written by a user is proved and printed, or refused with the place of the error. test_bpipe.c tests the
text form, test_schedule_check.c the proof. The long form of test_kinds is run here, too."""

import re
from xml.etree import ElementTree

import pytest
from trainer_runs import ROOT, TOOLS, as_options, command, execute, trainer

MINE = """# schedule mine  stages 2  chunks 1  placement loop  microbatches 4  slots 2  edges 2
stage 0: F0.0 F1.0 I0.0 W0.0 F2.0 I1.0 W1.0 F3.0 I2.0 W2.0 I3.0 W3.0
stage 1: F0.0 I0.0 F1.0 I1.0 W0.0 F2.0 I2.0 W1.0 F3.0 I3.0 W2.0 W3.0
"""
TINY = ROOT / "configs" / "llama_tiny.yaml"
EIGHT = ("parallel.pipeline=8", "train.global_batch=64", "schedule.micro_batch=1", "model.layers=32")
GIVEN = ("parallel.pipeline=2", "train.global_batch=4", "schedule.micro_batch=1", "schedule.bpipe=off")


def answer(path, text, *overrides, ask=("--schedule",), **options):
    path.write_bytes(text.encode())
    return command("llama", "-c", TINY, *ask, overrides=(*GIVEN, f"schedule.file={path}", *overrides), **options)


@pytest.mark.parametrize("text", [MINE, MINE.replace("\n", "\r\n")], ids=["ours", "another_editor_s"])
def test_a_list_from_a_file_is_what_runs(tmp_path, text):
    told = answer(tmp_path / "mine.txt", text)
    assert told.stdout == MINE
    proved = "train_llama: proved: cannot hang; at most 2 slots (stage 0); idle 7.7 % at F=I=W=1"
    assert told.stderr.startswith(proved)


def test_a_file_may_say_any_number_of_edge_buffers(tmp_path):
    many = MINE.replace("edges 2", "edges 1073741824")
    told = answer(tmp_path / "mine.txt", many)
    assert told.stdout == many, told.stderr


@pytest.mark.parametrize("text, overrides, why", [
    (MINE.replace("I1.0 W0.0", "W0.0 W1.0", 1), (), "schedule mine: stage 1: W1.0 comes before its I"),
    (MINE.replace("slots 2", "slots 1"), (), "stage 0: F1.0 needs an own slot of the stage, but all are in use"),
    (MINE.replace("F2.0", "X2.0", 1), (), 'line 2: found "X2.0"'),
    (MINE + "\0 and more", (), "byte 225 is NUL; a schedule is plain text"),
    (MINE.replace(" mine ", " forward "), (), 'the name "forward" is reserved for schedules without backwards'),
    ("", (), "line 1: found the end of the text, expected the header"),
    (MINE, ("train.global_batch=5",), "has 2 stages and 4 microbatches"),
    (MINE, ("schedule.bpipe=on",), "use bpipe off"),
])
def test_a_list_that_cannot_run_is_refused_with_its_place(tmp_path, text, overrides, why):
    told = answer(tmp_path / "mine.txt", text, *overrides, code=2)
    assert told.stdout == "" and why in told.stderr, told.stderr


def test_a_picture_has_every_action(tmp_path):
    path = tmp_path / "mine.svg"
    answer(tmp_path / "mine.txt", MINE, ask=("--schedule", "--draw", path))
    words = [text.text for text in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")]
    drawn = MINE.replace(":", "").splitlines()[1:]
    assert " ".join(words).startswith(" ".join(drawn))


def test_slices_of_a_list_fill_the_stages(tmp_path):
    few = ("train.global_batch=1", "schedule.name=seq1f1b")
    path = tmp_path / "mine.txt"
    path.write_text(command("llama", "-c", TINY, "--schedule", overrides=(*GIVEN, *few, "schedule.slices=4")).stdout)
    keys = (*GIVEN, "train.global_batch=1", f"schedule.file={path}")
    told = command("llama", "-c", TINY, "--schedule", overrides=keys)
    assert told.stdout == path.read_text()


def test_split_backward_cannot_contradict_the_list(tmp_path):
    whole = "# schedule mine  stages 2  microbatches 4  slots 2\n" + "".join(
        f"stage {s}: {list_}\n" for s, list_ in enumerate(["F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"])
    )
    for text, value in ((MINE, "off"), (whole, "on")):
        told = answer(tmp_path / "mine.txt", text, f"schedule.split_backward={value}", code=2)
        assert "schedule.split_backward: a schedule from a file is run unchanged" in told.stderr
        other = "on" if value == "off" else "off"
        told = answer(tmp_path / "mine.txt", text, f"schedule.split_backward={other}")
        assert told.stdout == text


def test_a_list_that_ranks_cannot_open_again_is_refused_at_once():
    asked = [trainer("llama"), "-c", TINY, *as_options(*GIVEN, "schedule.file=/dev/stdin")]
    ended = execute(asked, input=MINE, code=2)
    assert "write it to a regular file" in ended.stderr


def test_a_plan_of_a_list_from_a_file_claims_nothing_about_other_lists(tmp_path):
    ended = answer(tmp_path / "mine.txt", MINE, ask=("--plan", "-v"))
    assert "No: the list of schedule.file runs unchanged, with its own evictions." in ended.stdout
    assert re.search(r"^mine.txt +\d .* given", ended.stdout, re.M)  # a row of the table
    assert "micro-batch that fits: schedule.file up to 1, BPipe none" in ended.stdout
    assert "schedule  mine, split backwards" in ended.stdout and "\nworld     no number" not in ended.stdout
    swept = answer(tmp_path / "mine.txt", MINE, ask=("--plan", "--sweep", "model.ffn=48,96"))
    assert swept.stdout.count(" 2x1x1 b1 file ") == 2, swept.stdout + swept.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("stages", [
    2, 3, 5, *(pytest.param(p, marks=pytest.mark.soak) for p in range(1, 33) if p not in (2, 3, 5))])
def test_every_number_of_microbatches_is_sound(stages):
    execute([TOOLS / "test_kinds", "all", str(stages), str(stages)])


# ---- the tables of the pages, for eight stages and 64 microbatches ---------------------------------------------------


def table(page, first):
    """Returns the cells of a table, given its first column's title: the header's, and those of each row."""
    text = (ROOT / "docs" / page).read_text()
    lines = text[text.index(f"| {first} |"):].split("\n\n")[0].splitlines()
    header, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert len(rows) > 4
    return header, rows


def simulated(label, times, bundles=None, *more):
    """Returns bundles, moved bundles and the idle share in percent. The label is as `gis, chunks 4, to the host`.
    bundles: those that BPipe leaves on a stage; None: without BPipe."""
    name, *options = re.sub(r" \(.*\)|, (evicting )?to .*", "", label).split(", ")
    keys = {"name": name, "evict_to": "host" if "host" in label else "peer"}
    keys |= dict(option.split(" ") for option in options)
    chunks = int(keys.get("chunks", 1 + (name in ("v-half", "v-min", "zb-v", "dualpipe-v"))))
    keys |= {"bpipe": "off"} if bundles is None else {"bpipe": "on", "slots": round(float(bundles) * chunks)}
    texts = [f"schedule.{key}={value}" for key, value in keys.items()]
    told = command("llama", "-c", TINY, "--schedule", "--times", times, overrides=(*EIGHT, *texts, *more))
    slots, idle = re.search(r" slots (\d+)", told.stdout)[1], re.search(r"idle ([\d.]+) %", told.stderr)[1]
    return int(slots) / chunks, len(re.findall(r" E\d", told.stdout)) / chunks, float(idle)


def idle_after(loss, idle):
    """Returns the idle share in percent of a step that takes `loss` percent longer."""
    return 100 - (100 - idle) / (1 + float(loss.rstrip(" %")) / 100)


def test_the_step_times_of_schedules_are_those_of_their_page():
    _, rows = table("schedules.md", "schedule")
    for label, bundles, moved, *figures in rows:
        for times, pair in zip(("F=1,I=1,W=1,transfer=0.5", "F=1,I=1.375,W=0.75,transfer=0.5"), figures):
            for message, over in zip(("", ",message=0.05"), pair.split(" / ")):
                told = simulated(label, times + message, bundles if " to " in label else None)
                wanted = (float(bundles), float(moved), idle_after(over, 0))
                assert told == pytest.approx(wanted, abs=0.11), (label, times, message)


@pytest.mark.parametrize("first", ["over", "slots"])
def test_the_time_that_slow_transfers_cost_is_that_of_the_page(first):
    header, rows = table("bpipe.md", first)
    for row in rows:
        label, before, bundles, moved = row[:4] if first == "over" else ("1f1b", 8, row[0], row[2])
        ahead = [f"schedule.load_ahead={row[1]}"] if first == "slots" else []
        plain = simulated(label, "F=1")
        assert plain[:2] == (float(before), 0), label
        for transfer, loss in list(zip(header, row))[4 if first == "over" else 3:]:
            told = simulated(label, f"F=1,transfer={transfer}", bundles, *ahead)
            wanted = (float(bundles), float(moved), idle_after(loss, plain[2]))
            assert told == pytest.approx(wanted, abs=0.15), (label, transfer)

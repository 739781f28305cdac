"""scripts/plot.py draws the output of real runs and plans; other input is refused with one sentence and no file."""

import functools
import json
import re
import shutil
from xml.etree import ElementTree

import pytest
from trainer_runs import ROOT, command, environment, one_thread, run, script, write_config

pytestmark = pytest.mark.skipif(shutil.which("node") is None,
                                reason="node is not installed; run scripts/install_deps.sh")
RASTER = shutil.which("rsvg-convert") is not None
PNG = b"\x89PNG\r\n\x1a\n"


plot = functools.partial(script, "plot.py")


@pytest.fixture(scope="module")
def wrote(tmp_path_factory):
    """The output of a run with one rank, and the plans of one rank and of four."""
    folder = tmp_path_factory.mktemp("plot")
    config = write_config(folder)
    ended = run(config, "parallel.pipeline=1", "schedule.bpipe=off", arguments=["--trace", folder / "run.json"],
                env=one_thread())
    lines = "".join(line + "\n" for line in ended.lines)
    (folder / "metrics.jsonl").write_text(lines)
    (folder / "dry.jsonl").write_text(re.sub('"loss":[^,]*', '"loss":null', lines))
    plan = ["-c", config, "--plan", "--json", "-o"]
    four = command("llama", *plan, "train.steps=3", "--trace", folder / "trace4.json")
    (folder / "plan4.json").write_text(four.stdout)
    command("llama", *plan, "schedule.name=zb-v", "-o", "schedule.bpipe=off", "--trace", folder / "split.json")
    alone = command("llama", *plan, "parallel.pipeline=1", "-o", "schedule.bpipe=off")
    (folder / "plan1.json").write_text(alone.stdout)
    small = ["-o", "model.layers=8", "-o", "train.global_batch=16", "--search", "--gpus", "4", "--json"]
    (folder / "search.json").write_text(command("llama", "-c", ROOT / "configs/llama65b.yaml", *small).stdout)
    return folder


PICTURES = {
    "timeline_of_a_plan": ["timeline", "trace4.json"],
    "timeline_of_a_run": ["timeline", "run.json", "--step", "3"],
    "timeline_of_a_validation": ["timeline", "run.json", "--step", "validation"],
    "search": ["search", "search.json"],
    "timelines": ["timelines", "trace4.json", "split.json"],
    "memory_of_a_plan": ["memory", "plan4.json", "--limit", "0.001"],
    "memory_of_a_plan_and_a_run": ["memory", "plan1.json", "metrics.jsonl"],
    "curves": ["curves", "metrics.jsonl"],
    "curves_of_two": ["curves", "metrics.jsonl", "metrics.jsonl"],
    "curves_of_a_dry_run": ["curves", "dry.jsonl"],
}


def files(words, folder):
    return [folder / word if word.endswith((".json", ".jsonl")) else word for word in words]


@pytest.mark.thorough
@pytest.mark.parametrize("picture", PICTURES)
def test_every_picture_is_a_png_and_an_svg(wrote, picture, tmp_path):
    png = ["-o", tmp_path / "p.png"] if RASTER else []
    ended = plot(*files(PICTURES[picture], wrote), *png, "-o", tmp_path / "p.svg")
    assert (ended.stdout, ended.stderr) == ("", "")
    assert not png or (tmp_path / "p.png").read_bytes().startswith(PNG)
    assert ElementTree.parse(tmp_path / "p.svg").getroot().tag.endswith("svg")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.png", "p.svg"][not RASTER :]


def texts(path):
    return ["".join(element.itertext())
            for element in ElementTree.parse(path).getroot().iter("{http://www.w3.org/2000/svg}text")]


def test_a_picture_names_what_it_shows(wrote, tmp_path):
    for words, names in (
        (["timeline", "trace4.json"],
         "stage 0, stage 1, stage 2, stage 3, forward, backward, evicts a bundle, loads a bundle"),
        (["memory", "plan4.json"], "weights, own slots, lent slots, mark: without BPipe"),
        (["search", "search.json", "--limit", "60"], "limit"),
    ):
        plot(*files(words, wrote), "-o", tmp_path / "p.svg")
        assert set(names.split(", ")) <= set(texts(tmp_path / "p.svg"))
    assert any(text.startswith("fastest: ") for text in texts(tmp_path / "p.svg"))


def test_several_timelines_are_named_after_their_files_and_say_how_idle_they_are(wrote, tmp_path):
    plot("timelines", wrote / "trace4.json", wrote / "split.json", "-o", tmp_path / "p.svg")
    said = texts(tmp_path / "p.svg")
    bubble = json.loads((wrote / "plan4.json").read_text())["bubble"]
    titles = [text for text in said if ": idle for " in text]
    assert titles[0].startswith(f"trace4 (planned): idle for {100 * bubble:.1f} %")
    assert titles[1].startswith("split (planned): ")
    assert sorted(", the fastest" in title for title in titles) == [False, True]
    assert any(title.endswith(" %") and ", +" in title for title in titles)
    assert {"backward", "gradient of the input", "gradients of the weights"} <= set(said)
    assert said.count("stage 0") == 2 and sum(text == "0 ms" for text in said) == 1  # both timelines share an axis
    odd = tmp_path / "a\x1b<&.json"  # XML has no control characters
    odd.write_text((wrote / "split.json").read_text())
    plot("timelines", odd, odd, "-o", tmp_path / "p.svg")
    assert any(text.startswith("a?<& (planned)") for text in texts(tmp_path / "p.svg"))


def test_the_ranks_of_a_stage_are_drawn_as_such(tmp_path):
    """Two stages of two data ranks are two stages, not four, and each rank waits for its own pipeline."""
    config = write_config(tmp_path, parallel="{pipeline: 2, data: 2}")
    run(config, "schedule.bpipe=off", arguments=["--trace", tmp_path / "run.json"])
    plot("timeline", tmp_path / "run.json", "-o", tmp_path / "p.svg")
    rows = [text for text in texts(tmp_path / "p.svg") if text.startswith("stage ")]
    assert rows == ["stage 0, rank 0", "stage 0, rank 2", "stage 1, rank 1", "stage 1, rank 3"]


def test_pictures_follow_light_and_dark_and_tell_i_from_b(wrote, tmp_path):
    for name, files_ in (("a", ["timelines", wrote / "trace4.json", wrote / "split.json"]),
                         ("b", ["memory", wrote / "plan4.json"])):
        plot(*files_, "-o", tmp_path / f"{name}.svg")
        style = (tmp_path / f"{name}.svg").read_text().partition("</style>")[0]
        light, dark = style.split("@media (prefers-color-scheme:dark)")
        page = re.compile(r"\.page\{fill:(#\w+)\}")
        assert page.search(light)[1] == "#ffffff" != page.search(dark)[1]
    style = (tmp_path / "a.svg").read_text()
    assert len(set(re.findall(r"\.[BI]\{fill:(#\w+)\}", style))) == 4
    assert 'stroke="white"' not in style


def test_a_long_step_is_its_start_the_number_left_out_and_its_end_or_a_part(wrote, tmp_path):
    trace = tmp_path / "long.json"
    command("llama", "-c", ROOT / "configs/llama65b.yaml", "-o", "hardware.gpu=h100", "--plan", "--json", "--trace",
            trace)
    for name, words in (("cut", []), ("whole", ["--whole"]), ("part", ["--part", "1000:1500"])):
        assert plot("timeline", trace, *words, "-o", tmp_path / f"{name}.svg").stderr == ""
    cut, whole, part = (texts(tmp_path / f"{name}.svg") for name in ("cut", "whole", "part"))
    skipped = [text for text in cut if text.startswith("× ")]
    assert len(skipped) == 1 and 0 < int(skipped[0][2:]) < 128
    assert not any(text.startswith("× ") for text in whole + part)
    assert "0 s" not in part and "1 s" in part and "0 s" in cut
    wrong = plot("timeline", trace, "--part", "5:1", "-o", tmp_path / "x.svg", code=2)
    assert "FROM:TO" in wrong.stderr


@pytest.mark.thorough
def test_a_trace_and_metrics_that_a_killed_run_left_are_drawn(wrote, tmp_path):
    trace, metrics = (wrote / "run.json").read_text(), (wrote / "metrics.jsonl").read_text()
    (tmp_path / "cut.json").write_text(trace[: int(0.9 * len(trace))])
    (tmp_path / "torn.jsonl").write_text(metrics[:-20])
    assert plot("timeline", tmp_path / "cut.json", "-o", tmp_path / "t.svg").stderr == ""
    assert plot("curves", tmp_path / "torn.jsonl", "-o", tmp_path / "c.svg").stderr == ""


# ---- wrong input -----------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_folder_that_is_not_there_a_wrong_step_and_a_part_after_the_end(wrote, tmp_path):
    for words, picture, sentence in (
        (["curves", "metrics.jsonl"], "none/p.png", "none/p.png: cannot be written: No such file or directory"),
        (["timeline", "run.json", "--step", "4"], "p.png", "has no step 4; it has step 1 to step 3"),
        (["timeline", "trace4.json", "--part", "1e8:2e8"], "p.svg", "begins after the last action"),
    ):
        ended = plot(*files(words, wrote), "-o", tmp_path / picture, code=1)
        assert sentence in ended.stderr and ended.stderr.count("\n") == 1
    kind = plot("curves", wrote / "metrics.jsonl", "-o", tmp_path / "p.jpg", code=2)
    assert "pictures are .svg or .png" in kind.stderr
    for words in (["memory", "plan1.json", "--limit", "nan"], ["timeline", "run.json", "--part", "0:inf"]):
        ended = plot(*files(words, wrote), "-o", tmp_path / "p.svg", code=2)
        assert f"{words[-1]} is not " in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_without_node_it_says_how_to_get_it(wrote, tmp_path):
    ended = plot("curves", wrote / "metrics.jsonl", "-o", tmp_path / "p.svg", env=environment(PATH=str(tmp_path)),
                 code=1)
    assert "scripts/install_deps.sh" in ended.stderr and ended.stderr.count("\n") == 1

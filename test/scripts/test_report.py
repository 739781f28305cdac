"""scripts/report.py: one page with all output of a run, opened in a real browser: no error, no request, no blank
part."""

import functools
import html
import json
import os
import re
import sys
from html.parser import HTMLParser

import browser
import pytest
from trainer_runs import BUILD, ROOT, Job, command, run, script, wait_until, write_config

needs_browser = pytest.mark.skipif(browser.PROGRAM is None,
                                   reason="chromium is not installed; run scripts/install_deps.sh")

report = functools.partial(script, "report.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, ranks):
    """Metrics with validations, a trace and a plan of four stages with BPipe, and the report about them."""
    folder = tmp_path_factory.mktemp("small run <b>&amp;")  # a name that has to be escaped
    config = write_config(tmp_path_factory.mktemp("config"))
    ended = run(config, "train.steps=6", arguments=["--trace", folder / "trace.json"])
    (folder / "metrics.jsonl").write_text("".join(line + "\n" for line in ended.lines))
    (folder / "plan.json").write_text(command("llama", "-c", config, "-o", "train.steps=6", "--plan", "--json").stdout)
    made = report(folder)
    assert (made.stdout, made.stderr) == ("", "")
    return folder


def test_a_folder_may_have_any_name(folder, tmp_path):
    """Bytes that are no text are shown as such; a folder that is named like a plan is a run's."""
    for name in (b"run \xff \x1b", b"-run.json"):
        made = tmp_path / os.fsdecode(name)
        made.mkdir()
        (made / "metrics.jsonl").write_text((folder / "metrics.jsonl").read_text())
        ended = report("--", made)
        assert ended.stderr == "" and (made / "report.html").exists()


def test_the_command_of_a_plan_in_8_bits_plans_it_again(tmp_path):
    asked = ["-c", ROOT / "configs/llama3_8b.yaml", "-o", "hardware.gpu=h100", "-o", "checkpoint.dir="]
    plan = command("llama", *asked, "-o", "train.fp8=block", "--plan", "--json")
    (tmp_path / "plan.json").write_text(plan.stdout)
    report(tmp_path / "plan.json")
    page = html.unescape((tmp_path / "plan.html").read_text())
    assert "<p><b>llama, bf16 with fp8: block, 8,192 tokens a sequence, " in page
    again = command("llama", *asked, *re.search(r"-c FILE (.*) --plan", page)[1].split(), "--plan", "--json")
    assert json.loads(again.stdout)["step_ms"] == pytest.approx(json.loads(plan.stdout)["step_ms"], rel=1e-3)


class Page(HTMLParser):
    """Collects texts by section, pictures by name, and all addresses in attributes; start and end tags must match."""

    def __init__(self, path):
        super().__init__()
        self.open, self.section, self.texts, self.pictures, self.addresses = [], "", {}, {}, []
        self.feed(path.read_text())
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        if tag not in ("meta", "link"):
            self.open.append(tag)
        self.addresses += [value for key, value in attributes
                           if key in ("src", "href", "xlink:href", "srcset", "action")]
        named = dict(attributes)
        if "data-picture" in named:
            self.pictures[named["aria-label"]] = json.loads(named["data-picture"])

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "h2":
            self.section = data
        self.texts.setdefault(self.section, []).append(data)


def test_a_report_has_every_part(folder):
    page = Page(folder / "report.html")
    assert list(page.texts)[1:] == ["Course", "Memory", "Pipeline", "Plan and run"]
    assert page.addresses == ["data:,"] and "url(" not in (folder / "report.html").read_text()
    assert {"Loss", "Gradient norm", "Learning rate", "MFU", "Tokens a second", "One step"} <= set(page.pictures)
    assert [one["name"] for one in page.pictures["Loss"]["plots"][0]["series"]] == ["training", "validation"]
    assert page.texts["Plan and run"].count("nothing, to the byte") == 4
    assert folder.name in page.texts[""]  # escaped, not read as markup


def test_its_figures_are_those_of_the_files(folder):
    page, lines = Page(folder / "report.html"), [json.loads(line)
                                                 for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps, plan = [line for line in lines if line["type"] == "step"], json.loads((folder / "plan.json").read_text())
    assert f"{steps[-1]['loss']:.4f}" in page.texts[""] and "6 of 6" in page.texts[""]
    blocks = page.pictures["Peak of the fullest rank of each stage"]["blocks"]
    for drawn, planned in zip(blocks[0]["stages"], plan["stages"], strict=True):
        assert (drawn["peak_bytes"], drawn["other"]) == (planned["peak_bytes"], planned["peak_bytes_1f1b"])
        assert sum(drawn["memory"].values()) == planned["peak_bytes"]
    assert [one["peak_bytes"] for one in blocks[1]["stages"]] == [one["peak_bytes"] for one in plan["stages"]]
    actions = [e for e in json.loads((folder / "trace.json").read_text()) if e["ph"] == "X"
               and e.get("args", {}).get("of") == "step 2"]
    drawn = [e for e in page.pictures["One step"]["traces"][0]["events"] if e["ph"] == "X"]
    assert [e["name"] for e in drawn] == [e["name"] for e in actions]
    assert sum(e["name"][0] == "E" for e in drawn) == steps[1]["evictions"] > 0
    told = page.pictures["Loss"]["plots"][0]["series"][0]["points"]
    assert told == [[s["step"], s["loss"]] for s in steps]


def test_a_single_step_a_long_run_and_unknown_figures_are_drawn(folder, tmp_path):
    head, first = (folder / "metrics.jsonl").read_text().splitlines()[:2]
    entry = json.loads(first)
    skipped = entry | dict.fromkeys(("loss", "loss_z", "grad_norm", "norm_z")) | {"step": 2, "skipped": True}
    hellaswag = {"type": "eval", "step": 2, "name": "hellaswag", "accuracy": 0.25, "correct": 1, "examples": 4,
                 "left_out": 0}
    unknown = {"mfu": None, "mfu_causal": None, "grad_norm": 0.0, "lr": 0.0}
    inputs = {
        "one": [entry | {"tokens_seen": 5_000_000}],  # the steps before it are in another file
        "long": [{**entry, "step": s, "grad_norm": 1000 / s} for s in range(1, 5001)],
        "skipped": [entry, skipped, hellaswag],
        "unknown": [{**entry, "step": s, **unknown} for s in (1, 2)],
        "dry": [{**entry, "step": s, "loss": None, "grad_norm": None} for s in (1, 2)],
    }
    for name, lines in inputs.items():
        (tmp_path / f"{name}.jsonl").write_text("\n".join([head, *map(json.dumps, lines)]) + "\n")
        made = report(tmp_path / f"{name}.jsonl", "-o", tmp_path / f"{name}.html")
    assert "5 M" in Page(tmp_path / "one.html").texts[""]
    (tmp_path / "one.jsonl").rename(tmp_path / "one.json")
    report(tmp_path / "one.json", "-o", tmp_path / "named.html")
    assert Page(tmp_path / "long.html").pictures["Gradient norm"]["plots"][0]["log"]
    assert (tmp_path / "long.html").stat().st_size < 2_500_000
    skipped = Page(tmp_path / "skipped.html").texts
    assert f"{entry['loss']:.4f}" in skipped[""]
    assert "hellaswag" in Page(tmp_path / "skipped.html").pictures
    assert "MFU" not in Page(tmp_path / "unknown.html").pictures
    assert "Loss" not in Page(tmp_path / "dry.html").pictures and "MFU" in Page(tmp_path / "dry.html").pictures


@pytest.fixture
def two_layouts(folder, tmp_path):
    """Metrics of a run that was resumed after step 3 without BPipe."""
    head, *lines = (folder / "metrics.jsonl").read_text().splitlines()
    steps = [line for line in lines if json.loads(line)["type"] == "step"]
    other = json.loads(head)
    other["config"]["schedule"]["bpipe"] = "off"
    path = tmp_path / "metrics.jsonl"
    path.write_text("\n".join([head, *steps[:3], json.dumps(other), *steps[3:]]) + "\n")
    return path


def test_each_layout_of_a_run_is_compared_with_its_own_plan_and_resumes_are_marked(two_layouts, tmp_path):
    if BUILD != ROOT and not (ROOT / "train_llama").exists():
        pytest.skip("there is no trainer next to scripts/")
    report(two_layouts, "-o", tmp_path / "r.html")
    page = Page(tmp_path / "r.html")
    said = page.texts["Plan and run"] + sum((page.texts[name] for name in page.texts if name.startswith("Steps")), [])
    assert any(text.startswith("Steps 1 to 3: ") and "with BPipe" in text for text in said)
    assert any(text.startswith("Steps 4 to 6: ") and "without BPipe" in text for text in said)
    assert said.count("nothing, to the byte") == 4 + 2  # without BPipe two stages have other peaks
    assert page.pictures["Loss"]["plots"][0]["marks"] == [[4, "resumed"]]


@pytest.mark.thorough
def test_a_followed_run_is_written_again_until_its_last_step(folder, tmp_path):
    lines, path = (folder / "metrics.jsonl").read_text().splitlines(keepends=True), tmp_path / "metrics.jsonl"
    path.write_text("".join([*lines, lines[0]]))  # a complete run, and the start of another in the same file
    words = [path, "--plan", folder / "plan.json", "--follow", "-o", tmp_path / "r.html"]
    following = Job([sys.executable, "scripts/report.py", *words])
    try:
        wait_until((tmp_path / "r.html").exists, "no page")
        assert 'http-equiv="refresh"' in (tmp_path / "r.html").read_text()
        with path.open("a") as file:
            file.write("".join(lines[1:]))
        following.end()
        text = (tmp_path / "r.html").read_text()
        assert "6 of 6" in text and 'http-equiv="refresh"' not in text
    finally:
        following.kill()
    path.write_text("".join(lines) + json.dumps({**json.loads(lines[0]), "after_step": 6}) + "\n")  # resumed at its end
    report(*words)


# ---- in a browser ----------------------------------------------------------------------------------------------------


# Counts the colours of the page's canvases, and computes the brightness of its background.
COLOURS = """(() => {
  const seen = new Set();
  for (const canvas of document.querySelectorAll("canvas")) {
    const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    new Uint32Array(pixels.data.buffer).forEach((one) => seen.add(one));
  }
  return [seen.size, parseInt(getComputedStyle(document.body).backgroundColor.split("(")[1])];
})()"""


@pytest.mark.thorough
@needs_browser
def test_a_browser_shows_it_without_complaint_or_request(folder, tmp_path):
    page = folder / "report.html"
    with browser.Browser(tmp_path / "profile") as chromium:
        for name, width, dark in (("light", 1200, False), ("dark", 1200, True), ("phone", 380, False)):
            chromium.open(page, width, dark=dark)
            assert chromium.evaluate("document.documentElement.scrollWidth") <= width, name
            many, brightness = chromium.evaluate(COLOURS)
            assert many > 50 and (brightness < 100 if dark else brightness > 200), (name, many, brightness)
            assert chromium.complaints() == []
            assert chromium.requests() == [page.as_uri()]
        chromium.pdf(tmp_path / "page.pdf")
        assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")


PLANS = {
    "plan": ("gpt", "gpt3_96b", "--plan"),
    "search": ("llama", "llama2_13b", "--search", "--gpus", "16"),
    "sweep": ("llama", "llama65b", "--plan", "--sweep", "schedule.micro_batch=1,2"),
}


@pytest.mark.thorough
@needs_browser
@pytest.mark.parametrize("kind", PLANS)
def test_plans_searches_and_sweeps_have_pages_too(tmp_path, kind):
    family, name, *words = PLANS[kind]
    trace = ["--trace", tmp_path / "trace.json"] if kind == "plan" else []
    answer = command(family, "-c", ROOT / f"configs/{name}.yaml", "-o", "hardware.gpu=h100", *words, "--json", *trace)
    (tmp_path / f"{kind}.json").write_text(answer.stdout)
    made = report(tmp_path / f"{kind}.json", *trace)
    trace = ("--trace", tmp_path / "absent.json")
    absent = report(tmp_path / f"{kind}.json", *trace, "-o", tmp_path / "absent.html", code=1)
    assert "absent.json: cannot be read" in absent.stderr
    assert (made.stdout, made.stderr) == ("", "")
    found, page = json.loads(answer.stdout), tmp_path / f"{kind}.html"
    Page(page)
    with browser.Browser(tmp_path / "profile") as chromium:
        for width, dark in ((1200, False), (380, True)):
            chromium.open(page, width, dark=dark)
            assert chromium.evaluate("document.documentElement.scrollWidth") <= width
            assert chromium.complaints() == [] and chromium.requests() == [page.as_uri()]
        shown = chromium.evaluate("document.body.innerText")
        drawn = chromium.evaluate("[...document.querySelectorAll('canvas')].map((one) => one.height)")
        cells = chromium.evaluate("[...document.querySelectorAll('tr')].map((row) => row.innerText)")
    assert len(set(cells)) > 0.9 * len(cells), "rows that differ look different"
    if kind != "sweep":
        config = found["config"] if kind == "plan" else found["best"]["config"]
        gpus, model = found.get("world", 16), config["model"]
        assert re.search(rf"{name}, bf16, {model['seq_len']:,} tokens a sequence, "
                         rf"{config['train']['global_batch']:,} sequences a step, on {gpus} h100: "
                         r"[\d.,]+ (days|hours)", shown)
        layout = " ".join(re.search(r"-c FILE (.*) --plan", shown)[1].split())
        again = command(family, "-c", ROOT / f"configs/{name}.yaml", *layout.split(" "), "--plan", "--json")
        same = found["step_ms"] if kind == "plan" else found["best"]["step_ms"]
        assert json.loads(again.stdout)["step_ms"] == pytest.approx(same, rel=1e-3)
    assert len(drawn) == {"plan": 2, "search": 1, "sweep": 0}[kind] and all(height > 60 for height in drawn)
    if kind == "plan":
        assert found["verdict"]["reason"] in shown
        assert all(row["what"] in shown for row in found["waterfall"])
        days = found["budget"]["whole"]
        assert f"{days['days']:,.3g}" in shown and f"{days['gpu_hours']:,.0f}" in shown and "e+" not in shown
        assert re.search(rf"gpu\s+{found['config']['hardware']['gpu']}\s", shown) and "reserve_gib" in shown
    assert shown.count("GiB") >= len(found.get("schedules", found.get("front", found.get("sweep"))))


@pytest.mark.parametrize("keys, words", [
    (["hardware.gpu=h100", "train.steps=100", "train.tokens=1T"], ["--search", "--gpus", "8"]),
    (["hardware.gpu=h100", "train.batch_ramp=[[1,64],[90,512]]", "train.steps=300000"], ["--search", "--gpus", "8"]),
    (["hardware.gpu=h100", "hardware.trainer=nanotron"], ["--search", "--gpus", "8"]),
    (["hardware.gpu=none"], ["--plan"]),  # no performance figures
], ids=str)
def test_the_days_of_a_page_are_those_of_the_answer(tmp_path, keys, words):
    words = ["-c", ROOT / "configs/llama3_8b.yaml", *words]
    told = " ".join(command("llama", *words, overrides=keys).stdout.split())
    days = re.search(r" (with nothing lost|train.steps:) ([\d.,]+ days)", told)
    (tmp_path / "answer.json").write_text(command("llama", *words, "--json", overrides=keys).stdout)
    made = report(tmp_path / "answer.json")
    page = (tmp_path / "answer.html").read_text()
    lost = " with nothing lost" if days and days[1] == "with nothing lost" else ""
    assert f": {days[2] if days else 'an unknown time'}{lost}<" in page


@pytest.mark.thorough
@needs_browser
def test_tips_say_what_is_under_the_pointer(folder, tmp_path):
    def middle(chromium, selector):
        box = f"document.querySelector({json.dumps(selector)})"
        chromium.evaluate(f"{box}.scrollIntoView({{block: 'center'}})")
        return chromium.evaluate(
            f"(() => {{ const b = {box}.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2] }})()")

    with browser.Browser(tmp_path / "profile") as chromium:
        chromium.open(folder / "report.html")
        tip = "document.getElementById('tip')"
        for selector, expected in (
            ("canvas[aria-label=Loss]", r"step [34]\ntraining  \d\.\d+"),
            ("canvas[aria-label^=Peak]", r"stage \d: [\d.]+ MiB\n"),
        ):
            chromium.point(*middle(chromium, selector))
            assert re.match(expected, chromium.evaluate(f"{tip}.textContent")), selector
            assert chromium.evaluate(f"getComputedStyle({tip}).visibility") == "visible"
        step = "figures.find((one) => one.picture.kind === 'timelines')"
        chromium.evaluate(f"{step}.canvas.scrollIntoView({{block: 'center'}})")
        first = f"{step}.places.find((one) => one.s === 0 && one.actions.length)"
        x, y = chromium.evaluate(f"(() => {{ const box = {step}.canvas.getBoundingClientRect(), one = {first}, a ="
                                 " one.actions[0];"
                                 " return [box.x + one.x((a.start + a.end) / 2), box.y + one.top + 4]; })()")
        chromium.point(x, y)
        assert chromium.evaluate(f"{tip}.textContent").startswith("F0 on stage 0: forward of microbatch 0")
        chromium.point(1, 1)
        assert chromium.evaluate(f"getComputedStyle({tip}).visibility") == "hidden"
        assert chromium.complaints() == []


# ---- wrong input -----------------------------------------------------------------------------------------------------


def test_wrong_input_is_one_sentence_and_leaves_no_file(folder, tmp_path):
    """test_scripts.py tests metrics in another form."""
    first = (folder / "metrics.jsonl").read_text().splitlines()[1]
    plan = json.loads((folder / "plan.json").read_text())
    inputs = {"bare": '{"type":"run"}\n' + first + "\n", "text": "x\n",
              "other": json.dumps({**plan, "stages": plan["stages"][:2]})}
    for name, content in inputs.items():
        (tmp_path / name).write_text(content)
    metrics = folder / "metrics.jsonl"
    for case in ([tmp_path / "bare"], [metrics, "--trace", tmp_path / "text"], [metrics, "--plan", tmp_path / "text"],
                 [metrics, "--plan", tmp_path / "absent"], [metrics, "--plan", tmp_path / "other"]):
        made = report(*case, "-o", tmp_path / "r.html", code=1)
        assert made.stderr.startswith("report.py: ") and made.stderr.count("\n") == 1, made.stderr
    assert "is a plan of 2 stages, the run has 4" in made.stderr
    assert not list(tmp_path.glob("*.html*"))


def test_the_report_draws_how_evenly_experts_were_used(tmp_path):
    used = {"fullest": 1.5, "spread": 0.5, "chunks": 1, "balance_loss": 1.02, "tokens": [[], [1, 3], [2, 2]]}
    config = write_config(tmp_path)
    lines = [json.loads(line) for line in run(config, "train.steps=2").lines]
    lines = [line | ({"experts": used} if line["type"] == "step" else {}) for line in lines]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    report(tmp_path)
    pictures = Page(tmp_path / "report.html").pictures
    told = {one["name"]: one["points"][0] for one in pictures["Experts"]["plots"][0]["series"]}
    assert told == {"fullest rank": [1, 1.5], "standard deviation of experts": [1, 0.5], "most used expert": [1, 1.5],
                    "least used expert": [1, 0.5]}
    assert pictures["Balance loss"]["plots"][0]["series"][0]["points"] == [[1, 1.02], [2, 1.02]]

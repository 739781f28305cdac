"""scripts/report.py: one page with everything a run wrote, opened in a real browser: no error, no request, nothing
blank."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser

import browser
import pytest
from trainer_runs import BUILD, ROOT, command, environment, trained, write_config

needs_browser = pytest.mark.skipif(
    browser.PROGRAM is None, reason="chromium is not installed; run scripts/install_deps.sh"
)
pytest.importorskip("matplotlib.image", reason="matplotlib is not installed; run scripts/install_deps.sh")

sys.path.insert(0, str(ROOT / "scripts"))
import report_charts as charts


def report(*arguments):
    return subprocess.run(
        [sys.executable, ROOT / "scripts/report.py", *arguments],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=60,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory, ranks):
    """What four stages with BPipe wrote: metrics with validations, a trace, a plan; and the report of it."""
    folder = tmp_path_factory.mktemp("small run <b>&amp;")  # a name that has to be escaped
    config = write_config(tmp_path_factory.mktemp("config"))
    ended = trained(config, "train.steps=6", arguments=["--trace", folder / "trace.json"])
    (folder / "metrics.jsonl").write_text("".join(line + "\n" for line in ended.lines))
    (folder / "plan.json").write_text(command("llama", "-c", config, "-o", "train.steps=6", "--plan", "--json").stdout)
    made = report(folder)
    assert (made.returncode, made.stdout, made.stderr) == (0, "", "")
    return folder


class Page(HTMLParser):
    """Texts by section, tips, and every address in an attribute; start and end tags have to match."""

    def __init__(self, path):
        super().__init__()
        self.open, self.section, self.texts, self.tips, self.addresses = [], "", {}, [], []
        self.feed(path.read_text())
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        if tag not in ("meta", "link"):
            self.open.append(tag)
        self.addresses += [
            value for key, value in attributes if key in ("src", "href", "xlink:href", "srcset", "action")
        ]
        self.tips += [value for key, value in attributes if key == "data-tip"]

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
    said = page.texts["Course"]
    assert {"Loss", "training", "validation", "Gradient norm", "Learning rate", "MFU", "Tokens a second"} <= set(said)
    assert {"stage 0", "stage 3"} <= set(page.texts["Memory"])
    assert {"stage 0 (rank 0)", "forward", "backward", "bundle leaves", "bundle comes back"} <= set(
        page.texts["Pipeline"]
    )
    assert page.texts["Plan and run"].count("nothing, to the byte") == 4
    assert folder.name in page.texts[""]  # as it is, and not as markup


def test_its_figures_are_those_of_the_files(folder):
    page, lines = Page(folder / "report.html"), [
        json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()
    ]
    steps, plan = [line for line in lines if line["type"] == "step"], json.loads((folder / "plan.json").read_text())
    assert f"{steps[-1]['loss']:.4f}" in page.texts[""] and "6 of 6" in page.texts[""]
    for stage, planned in enumerate(plan["stages"]):
        peak = f"{planned['peak_bytes_1f1b'] / 2**20:.2f} MiB"
        assert f"stage {stage}\npeak of 1F1B without BPipe, planned  {peak}" in page.tips
    trace = [
        event
        for event in json.loads((folder / "trace.json").read_text())
        if event["ph"] == "X" and event.get("args", {}).get("of") == "step 2"
    ]
    boxes = [tip for tip in page.tips if "microbatch" in tip]
    assert len(boxes) == len([event for event in trace if "microbatch" in event["args"]])
    assert sum("its bundle leaves" in tip for tip in boxes) == steps[1]["evictions"] > 0
    told = re.search(r'aria-label="Loss" data-series="([^"]*)"', (folder / "report.html").read_text())[1].replace(
        "&quot;", '"'
    )
    assert [point[:2] for point in json.loads(told)[0]["points"]] == [[s["step"], f"{s['loss']:.4f}"] for s in steps]


def test_a_plan_is_made_where_none_is_given(folder, tmp_path):
    if BUILD != ROOT and not (ROOT / "train_llama").exists():
        pytest.skip("there is no trainer next to scripts/")
    assert report(folder / "metrics.jsonl", "-o", tmp_path / "r.html").returncode == 0
    assert "nothing, to the byte" in Page(tmp_path / "r.html").texts["Plan and run"]


EVAL = json.dumps(
    {"type": "eval", "step": 2, "name": "hellaswag", "accuracy": 0.25, "correct": 1, "examples": 4, "left_out": 0}
)


def test_a_single_step_a_long_run_and_unknown_figures_are_drawn(folder, tmp_path):
    head, first = (folder / "metrics.jsonl").read_text().splitlines()[:2]
    entry = json.loads(first)
    inputs = {
        "one": [first],
        "long": [json.dumps({**entry, "step": s, "grad_norm": 1000 / s}) for s in range(1, 5001)],
        "skipped": [
            first,
            json.dumps(
                {**entry, "step": 2, "loss": None, "loss_z": None, "grad_norm": None, "norm_z": None, "skipped": True}
            ),
            EVAL,
        ],
        "unknown": [
            json.dumps({**entry, "step": s, "mfu": None, "mfu_causal": None, "grad_norm": 0.0, "lr": 0.0})
            for s in (1, 2)
        ],
    }
    for name, lines in inputs.items():
        (tmp_path / f"{name}.jsonl").write_text("\n".join([head, *lines]) + "\n")
        made = report(tmp_path / f"{name}.jsonl", "-o", tmp_path / f"{name}.html")
        assert made.returncode == 0, made.stderr
    assert "logarithmic" in "".join(Page(tmp_path / "long.html").texts["Course"])
    assert (tmp_path / "long.html").stat().st_size < 500_000
    skipped = Page(tmp_path / "skipped.html").texts
    assert f"{entry['loss']:.4f}" in skipped[""] and "hellaswag" in skipped["Course"]
    assert "MFU" not in Page(tmp_path / "unknown.html").texts["Course"]


@pytest.mark.parametrize("low,high", [(0, 1), (0, 3.7e9), (-2, 5), (1.23e-5, 1.3e-5), (99, 101)])
def test_ticks_are_few_and_within(low, high):
    ticks = charts.ticks_of(low, high)
    assert 2 <= len(ticks) <= 6 and low <= ticks[0] + 1e-9 * abs(high) and ticks[-1] <= high + 1e-9 * abs(high)
    assert len({charts.label(tick) for tick in ticks}) == len(ticks)


# ---- in a browser ----------------------------------------------------------------------------------------------------


def colours(path):
    """Of a picture: how many different ones, and the mean brightness."""
    import matplotlib.image
    import numpy

    pixels = matplotlib.image.imread(path)[..., :3]
    return len(numpy.unique((255 * pixels).astype(int) @ [1, 256, 65536])), float(pixels.mean())


@pytest.mark.thorough
@needs_browser
def test_a_browser_shows_it_without_complaint_or_request(folder, tmp_path):
    page = folder / "report.html"
    with browser.Browser(tmp_path / "profile") as chromium:
        for name, width, dark in (("light", 1200, False), ("dark", 1200, True), ("phone", 380, False)):
            chromium.open(page, width, dark=dark)
            assert chromium.evaluate("document.documentElement.scrollWidth") <= width, name
            chromium.screenshot(tmp_path / f"{name}.png")
            many, brightness = colours(tmp_path / f"{name}.png")
            assert many > 50 and (brightness < 0.4 if dark else brightness > 0.8), (name, many, brightness)
            assert chromium.complaints() == []
            assert chromium.requests() == [page.as_uri()]
        chromium.pdf(tmp_path / "page.pdf")
        assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")


PLANS = {
    "plan": ("gpt", "gpt3_96b", "--plan"),
    "search": ("llama", "llama2_13b", "--search", "--gpus", "16"),
    "sweep": ("llama", "llama65b", "--plan", "--sweep", "schedule.micro_batch=1,2"),
}


@needs_browser
@pytest.mark.parametrize("kind", PLANS)
def test_plans_searches_and_sweeps_have_pages_too(tmp_path, kind):
    family, name, *words = PLANS[kind]
    trace = ["--trace", tmp_path / "trace.json"] if kind == "plan" else []
    answer = command(family, "-c", ROOT / f"configs/{name}.yaml", "-o", "hardware.gpu=h100", *words, "--json", *trace)
    (tmp_path / f"{kind}.json").write_text(answer.stdout)
    made = report(tmp_path / f"{kind}.json", *trace)
    assert (made.returncode, made.stdout, made.stderr) == (0, "", "")
    found, page = json.loads(answer.stdout), tmp_path / f"{kind}.html"
    Page(page)
    with browser.Browser(tmp_path / "profile") as chromium:
        for width, dark in ((1200, False), (380, True)):
            chromium.open(page, width, dark=dark)
            assert chromium.evaluate("document.documentElement.scrollWidth") <= width
            assert chromium.complaints() == [] and chromium.requests() == [page.as_uri()]
        shown = chromium.evaluate("document.body.innerText")
        drawn = chromium.evaluate("[...document.querySelectorAll('canvas')].map((one) => one.height)")
    assert len(drawn) == {"plan": 2, "search": 1, "sweep": 0}[kind] and all(height > 60 for height in drawn)
    if kind == "plan":
        assert found["verdict"]["reason"] in shown and "own slots" in shown
    assert shown.count("GiB") >= len(found.get("schedules", found.get("front", found.get("sweep"))))


def test_a_file_that_json_did_not_write_is_refused_in_a_sentence(tmp_path):
    for text in ("{", "{}", "[1]", '{"stages": []}'):
        (tmp_path / "x.json").write_text(text)
        made = report(tmp_path / "x.json")
        assert made.returncode == 1 and made.stderr.count("\n") == 1 and "Traceback" not in made.stderr, made.stderr
        assert not (tmp_path / "x.html").exists()


@needs_browser
def test_tips_say_what_is_under_the_pointer(folder, tmp_path):
    def middle(chromium, selector):
        box = f"document.querySelector({json.dumps(selector)})"
        chromium.evaluate(f"{box}.scrollIntoView({{block: 'center'}})")
        return chromium.evaluate(
            f"(() => {{ const b = {box}.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2] }})()"
        )

    with browser.Browser(tmp_path / "profile") as chromium:
        chromium.open(folder / "report.html")
        tip = "document.getElementById('tip')"
        for selector, expected in (
            ("svg[aria-label=Loss]", r"step [34]\ntraining  \d\.\d{4}"),
            ("rect.bar", r"stage 0\n.*MiB"),
            ("rect.box", r"stage 0.*\nF0: microbatch 0, forward\n"),
        ):
            chromium.point(*middle(chromium, selector))
            assert re.match(expected, chromium.evaluate(f"{tip}.textContent")), selector
            assert chromium.evaluate(f"getComputedStyle({tip}).visibility") == "visible"
        chromium.point(1, 1)
        assert chromium.evaluate(f"getComputedStyle({tip}).visibility") == "hidden"
        assert chromium.complaints() == []


# ---- wrong input -----------------------------------------------------------------------------------------------------


def test_wrong_input_is_one_sentence_and_leaves_no_file(folder, tmp_path):
    head, first = (folder / "metrics.jsonl").read_text().splitlines()[:2]
    inputs = {
        "empty": "",
        "text": "x\n",
        "head": head + "\n",
        "bare": '{"type":"run"}\n' + first + "\n",
        "torn": head[:-9],
    }
    for name, content in inputs.items():
        (tmp_path / name).write_text(content)
    cases = [[tmp_path / name] for name in inputs] + [[tmp_path / "absent"], [tmp_path]]
    metrics = folder / "metrics.jsonl"
    cases += [
        [metrics, "--trace", tmp_path / "text"],
        [metrics, "--plan", tmp_path / "text"],
        [metrics, "--plan", tmp_path / "absent"],
    ]
    for case in cases:
        made = report(*case, "-o", tmp_path / "r.html")
        assert made.returncode == 1 and made.stderr.startswith("report.py: ") and made.stderr.count("\n") == 1, (
            case,
            made.stderr,
        )
    assert not list(tmp_path.glob("*.html*"))
    plan = json.loads((folder / "plan.json").read_text())
    (tmp_path / "other.json").write_text(json.dumps({**plan, "stages": plan["stages"][:2]}))
    made = report(metrics, "--plan", tmp_path / "other.json", "-o", tmp_path / "r.html")
    assert made.returncode == 1 and "is a plan of 2 stages, the run has 4" in made.stderr

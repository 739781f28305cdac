"""The page of `make explore`, in a real browser: its answers are the program's, byte for byte, and every control
works."""

import itertools
import json
import shlex

import browser
import pytest
from trainer_runs import ROOT, execute

PAGE = ROOT / "build" / "explore" / "index.html"
AXE = ROOT / ".deps" / "axe" / "axe_core_python" / "axe.min.js"
pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(browser.PROGRAM is None, reason="chromium is not installed; run scripts/install_deps.sh"),
    pytest.mark.skipif(not PAGE.exists(), reason="the page is not built; run make explore"),
]

NAMES = ["llama65b", "gpt3_96b", "llama3_70b", "llama3.1_8b", "qwen2.5_32b", "qwen3_8b", "mistral_7b", "gpt3_13b"]
CHANGES = [
    ["hardware.gpu=a100-80g"],
    ["hardware.gpu=h100", "schedule.micro_batch=2", "schedule.bpipe=auto"],
    ["hardware.gpu=b200", "schedule.name=auto"],
    ["hardware.gpu=h200", "attention.mode=recompute", "hardware.memory_gib=24"],
    ["hardware.gpu=mi300x", "parallel.pipeline=4", "schedule.name=v-half", "schedule.split_backward=auto"],
]
# One of the configurations cannot run with the last change, so errors are compared, too.
CASES = [[name, *change] for name, change in itertools.product(NAMES, CHANGES)]


def native(name, *overrides, **options):
    family = "gpt" if name.startswith("gpt") else "llama"
    given = [word for one in overrides if not one.startswith("--") for word in ("-o", one)]
    asked = [one for one in overrides if one.startswith("--")]
    return execute([ROOT / f"train_{family}", "-c", f"configs/{name}.yaml", *given, *asked], **options)


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """The page with its first answer, in one browser for all tests that do not change the page's state."""
    with browser.Browser(tmp_path_factory.mktemp("profile")) as chromium:
        chromium.open(PAGE, 1400, 1000)
        chromium.wait_for("byId('proof').textContent !== ''")
        yield chromium


def test_forty_plans_equal_the_programs_to_the_byte(opened):
    compared = 0
    for name, *change in CASES:
        overrides = ["hardware.profile=", *change]
        ours = opened.evaluate(f"explore.plan({json.dumps(['-c ' + name, *overrides])})")
        ran = native(name, *overrides, "--plan", "--json", code=None)
        if ran.code == 0:
            assert ours == ran.stdout, (name, change)
        else:
            assert ours.partition(": ")[2] == ran.stderr.partition(": ")[2], (name, change)
        compared += 1
    assert compared == 40


def test_schedules_and_what_is_said_of_them_equal_the_programs(opened):
    for name in ("1f1b", "interleaved", "zb-v", "v-half", "dualpipe-v"):
        overrides = ["hardware.gpu=h100", "hardware.profile=", f"schedule.name={name}"]
        text = opened.evaluate(f"explore.schedule({json.dumps(['-c llama65b', *overrides])})")
        ran = native("llama65b", *overrides, "--schedule")
        assert text == ran.stdout, name
        assert opened.evaluate(f"explore.check({json.dumps(text)})") == ran.stderr.partition(": ")[2].strip()


def test_a_schedule_that_can_hang_is_refused_and_its_circle_is_drawn(opened):
    text = "# schedule mine  stages 4  microbatches 4  slots 4\n" + "".join(
        f"stage {s}: {actions}\n"
        for s, actions in enumerate(["F0 F1 B0 F2 B1 F3 B2 B3", "F0 F1 F2 F3 B0 B1 B2 B3"]
                                    + ["F0 B0 F1 B1 F2 B2 F3 B3"] * 2)
    )
    opened.evaluate(f"byId('list').value = {json.dumps(text)}; byId('list').dispatchEvent(new Event('input'))")
    opened.wait_for("byId('proof').textContent.includes('can hang')")
    assert opened.evaluate("document.querySelectorAll('#cycle line').length") >= 2
    assert opened.evaluate(f"explore.check({json.dumps(text)})") in opened.evaluate("byId('proof').textContent")
    opened.evaluate("byId('list').value = 'hello'; byId('list').dispatchEvent(new Event('input'))")
    opened.wait_for("byId('proof').textContent.includes('expected the header')")
    assert opened.evaluate("byId('proof').textContent").count("line 1") == 1


def test_a_pasted_model_is_planned_as_the_program_plans_it(opened, tmp_path):
    model = {
        "model": {"family": "llama", "hidden": 4096, "layers": 32, "heads": 32, "kv_heads": 8, "ffn": 14336,
                  "vocab": 32000, "seq_len": 4096},
        "parallel": {"pipeline": 4, "tensor": 2},
        "train": {"global_batch": 64},
        "data": {"train": "x.bin"},
    }
    path = tmp_path / "model.yaml"
    path.write_text(json.dumps(model))
    ran = execute([ROOT / "train_llama", "-c", path, "-o", "hardware.gpu=h100", "--plan", "--json"], cwd=tmp_path)
    assert opened.evaluate(f"explore.plan([{json.dumps(model)}, 'hardware.gpu=h100'])") == ran.stdout != ""
    for text in (json.dumps(model, indent=1), "model: {family: llama}", "5", "", '{"model_type": "llama"', "a: *b"):
        path.write_text(text)
        ran = execute([ROOT / "train_llama", "-c", "model.yaml", "-o", "hardware.gpu=h100", "--plan", "--json"],
                      cwd=tmp_path, code=None)
        said = opened.evaluate(f"explore.plan([{{text: {json.dumps(text)}}}, 'hardware.gpu=h100'])")
        assert said == (ran.stdout or ran.stderr.replace("train_llama: ", "explore: ")), text


CONTROLS = """
(async () => {
  const turn = () => new Promise((done) => setTimeout(done, 30));
  for (const [id, value] of [["batch", "64"], ["memory", "70"], ["p", "4"], ["t", "8"], ["d", "1"], ["b", "1"],
                             ["bpipe", "on"], ["bpipe", ""], ["more", "attention.mode=flash"],
                             ["schedule", "interleaved"], ["schedule", ""], ["gpu", "h100"], ["seq", "4096"]]) {
    byId(id).value = value;
    byId(id).dispatchEvent(new Event("input", {bubbles: true}));
    await turn();
  }
  for (const range of document.querySelectorAll("#sliders input")) { range.value = 1.5; range.oninput(); await turn(); }
})()
"""


def test_every_control_works_without_a_complaint_or_a_request(tmp_path):
    with browser.Browser(tmp_path / "profile") as chromium:
        chromium.open(PAGE, 1400, 1000)
        chromium.wait_for("byId('proof').textContent !== ''")
        before = chromium.evaluate("byId('answer').textContent")
        chromium.evaluate(CONTROLS)
        chromium.wait_for(f"byId('answer').textContent !== {json.dumps(before)} && shown.traces.length > 1")
        chromium.wait_for("shown.traces.length === 1 + (state.rows ?? bestRows()).length")
        assert "4096" in chromium.evaluate("byId('command').textContent")
        assert chromium.evaluate("decodeURIComponent(location.hash)").count("4096") == 1
        for column in range(8):
            chromium.evaluate(f"document.querySelectorAll('thead button')[{column}].click()")
        drawn = chromium.evaluate("shown.traces.length")
        chromium.evaluate("document.querySelector('tbody input:checked').click()")
        chromium.wait_for(f"shown.traces.length === {drawn - 1}")
        chromium.evaluate("document.querySelectorAll('tbody input')[1].click()")
        chromium.wait_for(f"shown.traces.length === {drawn}")
        for key in ("+", "ArrowRight", "ArrowLeft", "-", "0"):
            pressed = f"new KeyboardEvent('keydown', {{key: '{key}', cancelable: true}})"
            chromium.evaluate(f"byId('timeline').dispatchEvent({pressed})")
        place = chromium.evaluate("(() => { const box = byId('timeline').getBoundingClientRect(), one ="
                                  " shown.places[0];"
                                  " return [box.left + one.left + 1, box.top + one.top + 4]; })()")
        chromium.point(*place)
        chromium.wait_for("/^F0(\\.0)? on stage 0: forward of microbatch 0/.test(byId('said').textContent)")
        chromium.evaluate("byId('take').click()")
        for button in ("save-yaml", "save-text", "save-svg"):
            chromium.evaluate(f"byId('{button}').click()")
        chromium.evaluate("byId('gpus').value = '32'; byId('gpus').dispatchEvent(new Event('input', {bubbles: true}));"
                          " byId('search').click()")
        chromium.wait_for("!byId('cancel').hidden")
        chromium.evaluate("byId('cancel').click()")
        chromium.wait_for("byId('progress').textContent === 'cancelled'")
        chromium.evaluate("byId('search').click()")
        chromium.wait_for("!byId('front-box').hidden")
        chromium.evaluate("document.querySelector('#front-list button').click()")
        chromium.wait_for("byId('more').value.includes('schedule.')")
        assert chromium.complaints() == []
        assert all(url.startswith(("file:", "blob:", "data:")) for url in chromium.requests())


def test_a_search_becomes_the_answer_and_the_layout(tmp_path):
    with browser.Browser(tmp_path / "profile") as chromium:
        chromium.open(PAGE, 390, 900)
        chromium.wait_for("byId('proof').textContent !== ''")
        tops = chromium.evaluate("['answer', 'config'].map((id) => byId(id).getBoundingClientRect().top)")
        assert tops[0] < tops[1], "on a phone the answer precedes the fields"
        chromium.evaluate("Object.assign(state, {config: 'qwen3_14b', gpu: 'h100', gpus: '16', batch: '64', b: '',"
                          " more: 'hardware.network_gb_s=100'}); fill(); ask(); 0")
        chromium.wait_for("byId('answer').textContent.startsWith('This layout has 8 GPUs, not 16')")
        chromium.evaluate("search(); 0")
        chromium.wait_for("!byId('front-box').hidden && shown.plan.world === 16")
        steps = chromium.evaluate("[shown.plan.step_ms, shown.front[shown.front.length - 1].row.step_ms]")
        assert steps[0] == pytest.approx(steps[1], rel=1e-9)
        assert "hardware.network_gb_s=100" in chromium.evaluate("byId('more').value"), "the user's keys remain"
        assert chromium.evaluate("byId('given').textContent") == (
            "llama, 14,768,307,200 parameters, bf16, 4,096 tokens a sequence, 262,144 a step, on 16 h100")
        assert chromium.evaluate("/ with nothing lost .*nvidia [\\d.]+ m?s.* tokens\\/s .* the run takes .* days/"
                                 ".test(byId('answer').textContent)")
        names = chromium.evaluate("shown.front.slice(0, -1).map((one) => one.label)")
        assert chromium.evaluate("byId('answer').textContent").count("This layout") == 0
        assert len(set(names)) > 0.8 * len(names), names
        first = chromium.evaluate("state.taken.length")
        # A second search is free of the layout that the first one found.
        chromium.evaluate("byId('progress').textContent = ''; search(); 0")
        chromium.wait_for("/configurations in/.test(byId('progress').textContent)")
        assert chromium.evaluate("[shown.plan.step_ms, state.taken.length]") == [steps[0], first]


def test_a_search_keeps_to_the_users_keys_and_ends_if_they_change(tmp_path):
    with browser.Browser(tmp_path / "profile") as chromium:
        chromium.open(PAGE, 1400, 900)
        chromium.wait_for("byId('proof').textContent !== ''")
        chromium.evaluate("Object.assign(state, {config: 'qwen3_14b', gpu: 'h100', gpus: '16', batch: '64', b: '',"
                          " more: 'parallel.context=2'}); fill(); search(); 0")
        chromium.wait_for("!byId('front-box').hidden && shown.plan?.world === 16")
        steps = chromium.evaluate("[shown.plan.step_ms, shown.front[shown.front.length - 1].row.step_ms]")
        assert steps[0] == pytest.approx(steps[1], rel=1e-9)
        assert chromium.evaluate("shown.plan.config.parallel.context") == 2
        # Another model has neither the layout that was found nor, with several layers less, a place for it.
        chromium.evaluate("search(); search(); 0")
        assert chromium.evaluate("[byId('search').disabled, byId('cancel').hidden]") == [True, False]
        chromium.evaluate("byId('config').value = 'llama3_8b';"
                          " byId('config').dispatchEvent(new Event('input', {bubbles: true}))")
        chromium.wait_for("byId('progress').textContent === 'cancelled' && byId('front-box').hidden")
        chromium.wait_for("shown.plan?.config.model.layers === 32")
        assert chromium.evaluate("byId('more').value") == "parallel.context=2"
        assert chromium.complaints() == []


def test_a_link_keeps_fields_that_are_empty_and_says_if_it_is_damaged(tmp_path):
    with browser.Browser(tmp_path / "profile") as chromium:
        chromium.open(PAGE, 1400, 900)
        chromium.wait_for("byId('proof').textContent !== ''")
        for field in ("gpu", "b"):
            chromium.evaluate(f"byId('{field}').value = '';"
                              f" byId('{field}').dispatchEvent(new Event('input', {{bubbles: true}}))")
        chromium.wait_for("shown.asked.overrides.length === 2")
        link = chromium.evaluate("location.hash")
        for opened, values in (("#5", ["a100-80g", "2"]), (link, ["", ""]), ('#{"more":5}', ["a100-80g", "2"]),
                               (link[:40], ["a100-80g", "2"])):
            chromium.events.clear()
            chromium.evaluate(f"location.hash = {json.dumps(opened)}; 0")
            chromium.wait_to_load()
            chromium.wait_for("byId('proof').textContent !== ''")
            assert chromium.evaluate("['gpu', 'b'].map((id) => byId(id).value)") == values, opened
            assert ("damaged" in chromium.evaluate("byId('progress').textContent")) == (values[0] != "")
        assert chromium.complaints() == []


def test_an_error_is_the_programs_last_line_and_hides_the_plan(tmp_path):
    with browser.Browser(tmp_path / "profile") as chromium:
        chromium.open(PAGE, 1400, 900)
        chromium.wait_for("byId('proof').textContent !== ''")
        chromium.evaluate("Object.assign(state, {more: 'hardware.peak_tflops=1e-9\\nschedule.name=auto'}); fill();"
                          " ask(); 0")
        chromium.wait_for("byId('answer').textContent.startsWith('--trace: the planned step of ')")
        shown = "['table', 'command', 'timeline', 'answer'].map((id) => byId(id).offsetParent !== null)"
        assert chromium.evaluate(shown) == [False, False, False, True]
        chromium.evaluate("Object.assign(state, {more: 'schedule.name=auto', p: '1', t: '1', d: '1'}); fill();"
                          " ask(); 0")
        chromium.wait_for("byId('verdict').textContent.includes('\\nschedule.name auto is ')")
        assert chromium.evaluate(shown) == [True] * 4
        assert chromium.evaluate("byId('table').tBodies[0].textContent").count(" > 76.0") > 0, "the limit of an A100"
        assert chromium.complaints() == []


def test_a_mixture_of_experts_has_active_parameters_and_a_short_run_has_hours(opened):
    opened.evaluate("Object.assign(state, {config: 'qwen3_30b_a3b', gpu: 'h100', batch: '64', memory: '', p: '', t: '',"
                    " d: '', b: '', gpus: '', bpipe: '', schedule: '', more: 'train.steps=100'}); fill(); ask(); 0")
    opened.wait_for("/ parameters, [\\d,]+ of them active, bf16, /.test(byId('given').textContent)")
    opened.wait_for("/the run takes [\\d.]+ hours/.test(byId('answer').textContent)")


def test_a_row_that_is_drawn_is_that_of_the_table_whatever_the_keys_say(opened):
    opened.evaluate("Object.assign(state, {config: 'llama65b', gpu: 'h100', p: '4', t: '8', d: '1', b: '1', rows: [],"
                    " batch: '64', more: 'schedule.name=interleaved\\nschedule.slices=4\\nschedule.chunks=2'}); fill();"
                    " window.drawn = null; ask().then(async () => {"
                    " for (const wanted of [(row) => row.name === 'gpipe', (row) => row.slices > 1])"
                    " await addRow(shown.plan.schedules.find(wanted), shown.serial, false);"
                    " window.drawn = shown.traces.slice(1); }); 0")
    opened.wait_for("window.drawn !== null")
    assert opened.evaluate("drawn.length === 2 && drawn.every((one) => one.plan.step_ms === one.row.step_ms)")
    assert opened.evaluate("new Set(shown.plan.schedules.map(rowName)).size === shown.plan.schedules.length")


def test_the_atlas_shows_every_case_and_searches_it_again(tmp_path):
    cases = json.loads((ROOT / "studies/atlas.json").read_text())["cases"]
    small = next(n for n, case in enumerate(cases) if case["gpus"] == 8 and case["best"])
    with browser.Browser(tmp_path / "profile") as chromium:
        chromium.open(PAGE, 390, 900)
        chromium.wait_for("byId('proof').textContent !== ''")
        chromium.evaluate("byId('show-atlas').click()")
        assert chromium.evaluate("byId('atlas-table').tBodies[0].rows.length") == len(cases)
        chromium.wait_for("[...document.querySelectorAll('#atlas img')].filter((one) => one.naturalWidth).length === 2")
        assert chromium.evaluate("document.documentElement.scrollWidth") <= 390
        chromium.evaluate(f"document.querySelectorAll('#atlas-table button')[{small}].click()")
        chromium.wait_for("!byId('front-box').hidden && byId('atlas').hidden")
        found, (case, best) = cases[small]["found"], (cases[small], "shown.front[shown.front.length - 1].row")
        assert chromium.evaluate(f"{best}.config.model.seq_len") == case["tokens"]
        fastest = min(one["fast"] for one in found.values() if one is not None)
        if case["tokens"] < 32768:  # from there on, the atlas fixes two keys
            assert chromium.evaluate(f"{best}.step_ms") == pytest.approx(fastest, rel=0.02)
        assert chromium.complaints() == []


def test_a_schedule_that_cannot_run_has_its_reason_in_the_table(tmp_path):
    with browser.Browser(tmp_path / "profile") as chromium:
        chromium.open(PAGE, 1400, 1000)
        chromium.wait_for("byId('proof').textContent !== ''")
        # Five layers on four stages are too few for a second chunk.
        chromium.evaluate("Object.assign(state, {config: 'llama65b', p: '4', t: '1', d: '1', b: '1', batch: '8',"
                          " memory: '500', gpu: 'h100',"
                          " more: 'model.layers=5\\nparallel.sequence=false'}); fill(); ask(); 0")
        chromium.wait_for("shown.plan?.stages.length === 4 && shown.refused.length > 0")
        chromium.wait_for("document.querySelectorAll('td.reason').length === shown.refused.length")
        said = chromium.evaluate("Object.fromEntries(shown.refused.map((row) => [row.name, row.refused]))")
        ran = native("llama65b", *["parallel.pipeline=4", "parallel.tensor=1", "parallel.data=1",
                                   "schedule.micro_batch=1", "train.global_batch=8"],
                     "model.layers=5", "parallel.sequence=false", "hardware.gpu=h100", "hardware.profile=",
                     "schedule.bpipe=off", "schedule.name=zb-v", "--schedule", code=2)
        assert said["zb-v"] in ran.stderr
        assert chromium.evaluate("document.querySelector('td.reason').textContent").startswith("cannot run: ")
        assert chromium.complaints() == []


def test_keys_move_and_zoom_and_every_control_is_reached_with_tab(opened):
    opened.evaluate("document.body.tabIndex = -1; document.body.focus()")
    reached = set()
    for _ in range(250):
        opened.call("Input.dispatchKeyEvent", type="keyDown", key="Tab", code="Tab", windowsVirtualKeyCode=9)
        opened.call("Input.dispatchKeyEvent", type="keyUp", key="Tab", code="Tab", windowsVirtualKeyCode=9)
        name = opened.evaluate("document.activeElement?.id || ''")
        if name == "study" and "timeline" in reached:
            break
        reached.add(name)
    wanted = opened.evaluate("[...document.querySelectorAll('input, select, textarea, button, canvas[tabindex]')]"
                             ".filter((one) => one.id && one.offsetParent !== null && one.id !== 'study').map((one) =>"
                             " one.id)")
    assert set(wanted) <= reached, set(wanted) - reached
    before = opened.evaluate("shown.view.to - shown.view.from")
    opened.evaluate("byId('timeline').focus()")
    for kind in ("keyDown", "keyUp"):
        opened.call("Input.dispatchKeyEvent", type=kind, key="+", text="+")
    assert opened.evaluate("shown.view.to - shown.view.from") < before


# Distance of two colours for people who lack one kind of cone: Viénot's matrices, then the distance in linear light.
APART = """(() => {
  const linear = (hex) => [1, 3, 5].map((i) => { const c = parseInt(hex.slice(i, i + 2), 16) / 255;
    return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; });
  const cone = {protan: [[0.11238, 0.88762, 0], [0.11238, 0.88762, 0], [0.00401, -0.00401, 1]],
                deutan: [[0.29275, 0.70725, 0], [0.29275, 0.70725, 0], [-0.02234, 0.02234, 1]],
                none: [[1, 0, 0], [0, 1, 0], [0, 0, 1]]};
  const found = [];
  for (const [theme, palette] of Object.entries(PALETTES)) for (const [kind, matrix] of Object.entries(cone)) {
    const seen = (name) => { const rgb = linear(palette[name]);
      return matrix.map((row) => Math.max(0, row.reduce((sum, m, i) => sum + m * rgb[i], 0)) ** (1 / 2.2)); };
    for (const group of ["FBIW", "EL", ["own", "lent"]]) for (const a of group) for (const b of group) if (a < b)
      found.push([theme, kind, a, b, Math.hypot(...seen(a).map((v, i) => v - seen(b)[i]))]);
  }
  return found;
})()"""


def test_colours_differ_for_colour_blind_people(opened):
    close = [one for one in opened.evaluate(APART) if one[4] < 0.08]
    assert close == []


def test_a_saved_configuration_gives_the_plan_on_the_page(opened, tmp_path):
    model = ('{"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,'
             ' "intermediate_size": 11008, "vocab_size": 32000, "max_position_embeddings": 2048}')
    keys = ["schedule.micro_batch=4", "hardware.gpu=h100", "hardware.profile=", "checkpoint.dir=it's: a #b*",
            "hardware.device=cuda", "attention.mode=[flash]"]
    for config in ("llama65b", {"text": model}):
        page = opened.evaluate(f"explore.plan({json.dumps([config, *keys])})")
        asked = json.dumps({"config": config, "overrides": keys})
        path = tmp_path / "config.yaml"
        path.write_text(opened.evaluate(f"yamlOf({asked}, {page})"))
        ran = execute([ROOT / "train_llama", "-c", path, "--plan", "--json"], cwd=tmp_path)
        assert ran.stdout == page != "", ran.stderr
        command = shlex.split(opened.evaluate(f"command({asked}, 'llama')"))
        assert [word for word in command if "=" in word] == [key for key in keys if "device" not in key]


@pytest.mark.parametrize("width, dark", [(1400, False), (390, True), (390, False), (1400, True)])
def test_the_page_can_be_read_by_everybody(tmp_path, width, dark):
    if not AXE.exists():
        pytest.skip("axe is not installed; run scripts/install_deps.sh --explore")
    with browser.Browser(tmp_path / "profile") as chromium:
        chromium.open(PAGE, width, 1000, dark=dark)
        chromium.wait_for("byId('proof').textContent !== ''")
        assert chromium.evaluate("document.documentElement.scrollWidth") <= width
        chromium.evaluate(AXE.read_text(encoding="utf-8") + "; 0")
        chromium.evaluate("window.found = null; axe.run().then((result) => { window.found = result.violations; }); 0")
        chromium.wait_for("window.found !== null")
        serious = [(one["id"], [node["target"] for node in one["nodes"]]) for one in chromium.evaluate("window.found")
                   if one["impact"] in ("serious", "critical")]
        assert serious == []

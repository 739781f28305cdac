"""Every script reports wrong input with one sentence and leaves its output file unchanged."""

import functools
import importlib
import json
import os
import threading
import types
from pathlib import Path

import pytest
import trainer_runs
from trainer_runs import ROOT, execute, write_tokens

STEP = {"type": "step", "step": 1, "loss": 2.5, "mfu": None, "tokens_per_s": 1.0, "tokens": 4, "step_ms": 1.0,
        "stages": [{"stage": 0, "peak_bytes": 1}]}


script = functools.partial(trainer_runs.script, text=False, code=None)


def metrics_file(folder, **changes):
    path = folder / "m.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in ({"type": "run", "config": {}}, {**STEP, **changes})))
    return path


def one_sentence(ended, name):
    text = ended.stderr.decode()
    assert (ended.code == 1 and text.startswith(f"{name}: ") and text.count("\n") == 1
            and "Traceback" not in text), text
    return text


HEAD = json.dumps({"type": "run", "config": {}})
# Not JSON, JSON of another form, a run without a step, an incomplete line of a killed run; no file, and a folder.
FORMS = ["", "not JSON\n", "[" * 100000 + "\n", "[1]\n", "3\n", "{}\n", '{"stages": []}', '{"type":"step","step":1}\n',
         '{"type":"step","step":1e400}\n', HEAD + "\n", HEAD[:-9], "\xff", None, Path.mkdir, '[{"ph":"X","name":"F0"}]',
         HEAD + "\n" + json.dumps({**STEP, "stages": [{"stage": 0, "peak_bytes": []}]}) + "\n",
         '{"stages": 3, "verdict": {}}', '{"stages": [{"memory": {}, "peak_bytes": NaN}], "verdict": {}}']


PICTURES = ("timeline FILE", "timelines FILE", "memory FILE", "curves FILE", "search FILE")


@pytest.mark.parametrize("content", FORMS, ids=range(len(FORMS)))
@pytest.mark.parametrize("command", ["metrics.py csv FILE -o DIR/x.csv", "metrics.py tensorboard FILE -o DIR/x",
                                     *(f"plot.py {picture} -o DIR/x.svg" for picture in PICTURES),
                                     "report.py FILE -o DIR/x.html",
                                     "optimum.py FILE", "prepare_eval.py FILE -o DIR/x.bin",
                                     "prepare_data.py FILE --format jsonl -o DIR/x"])
def test_a_file_of_another_form_is_one_sentence_and_leaves_no_file(tmp_path, command, content):
    path = tmp_path / "in.json"
    if callable(content):
        content(path)
    elif content is not None:
        path.write_text(content, encoding="latin-1")
    before = [one for one in tmp_path.rglob("*") if one.is_file()]
    name, *arguments = command.replace("FILE", str(path)).replace("DIR", str(tmp_path)).split()
    said = one_sentence(script(name, *arguments), name)
    assert said.startswith(f"{name}: {path}:") and "Error" not in said
    assert [one for one in tmp_path.rglob("*") if one.is_file()] == before


@pytest.mark.parametrize("content", ["", "[" * 100000, "[]", "{}", "\xff"], ids=range(5))
def test_a_model_of_another_form_is_one_sentence(tmp_path, content):
    (tmp_path / "config.json").write_text(content, encoding="latin-1")
    assert "config.json" in one_sentence(script("hf.py", "info", tmp_path), "hf.py")


@pytest.mark.parametrize("row, why", [
    ("{", "is not JSON"),
    (r'{"ctx": "a \ud800", "endings": ["b", "c"], "label": 0}', "half of a surrogate pair"),
    ('{"ctx": "a", "endings": ["b", "c"], "label": 2}', "the number of one as label"),
    ('{"ctx": "", "endings": ["b", "c"], "label": 0}', "needs a context"),
    ('{"ctx": "a", "endings": "bc", "label": 0}', "endings a list of texts"),
    ('{"ctx": "%s", "endings": ["b", "c"], "label": 0}' % ("x" * 40000), "is the most"),
    ('{"ctx": "a", "endings": ["b", "c"], "label": 1e400}', "is not JSON with ctx, endings and label"),
    ('{"ctx": "a", "endings": ["b", "c"], "label": 0.9}', "is not JSON with ctx, endings and label"),
    ('{"ctx": "a", "endings": ["b", "c"]}', "has no 'label'"),
])
def test_a_question_that_cannot_be_asked_is_named_by_its_line(tmp_path, row, why):
    path = tmp_path / "in.jsonl"
    path.write_text(row + "\n")
    said = one_sentence(script("prepare_eval.py", path, "-o", tmp_path / "x"), "prepare_eval.py")
    assert f"{path}:1: " in said and why in said and not (tmp_path / "x").exists()


def test_check_takes_the_run_s_own_tokens_or_says_that_they_are_random(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    hf = importlib.import_module("hf")
    options, model = types.SimpleNamespace(data=None, folder=tmp_path), {"vocab": 100}
    drawn = hf.choose_tokens(options, model, 50)
    assert len(drawn) == 50 and "tokens: drawn at random" in capsys.readouterr().out
    val, train = tmp_path / "own_val_000.bin", tmp_path / "own_train_000.bin"
    data = {"val": str(tmp_path / "own_val_*.bin"), "train": str(train)}
    (tmp_path / "training.json").write_text(json.dumps({"config": {"data": data}}))
    write_tokens(val, list(range(60)))
    write_tokens(train, [7] * 80)
    assert hf.choose_tokens(options, model, 50) == list(range(50))
    assert f"tokens: the first 50 of {val}" in capsys.readouterr().out
    assert hf.choose_tokens(options, model, 70) == [7] * 70  # the validation data are too short
    assert hf.choose_tokens(options, model, 90) != [7] * 90 and "random" in capsys.readouterr().out
    assert hf.choose_tokens(options, {"vocab": 40}, 50) == [7] * 50
    (tmp_path / "training.json").write_text("{")
    assert hf.choose_tokens(options, model, 50) == drawn


def test_bytes_that_are_not_text_are_tokens_too():
    assert script("tokens.py", "encode", "--tokenizer", "bytes", input=b"a\xff").stdout == b"97 255\n"
    assert script("tokens.py", "encode", "--tokenizer", "bytes", b"a\xff").stdout == b"97 255\n"
    one_sentence(script("tokens.py", "decode", "--tokenizer", "bytes", input=b"\xff"), "tokens.py")
    latin = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    assert script("tokens.py", "decode", "--tokenizer", "bytes", "226 130 172", env=latin).stdout == "€\n".encode()


def test_a_loss_beyond_float32_becomes_infinite_for_tensorboard(tmp_path):
    path = metrics_file(tmp_path, loss=1e300)
    script("metrics.py", "tensorboard", path, "-o", tmp_path / "board", code=0)
    assert b"loss/train\x15\x00\x00\x80\x7f" in next((tmp_path / "board").iterdir()).read_bytes()


@pytest.mark.parametrize("command", ["metrics.py csv FILE", "tokens.py encode --tokenizer bytes hello"])
def test_a_full_standard_output_is_one_sentence(tmp_path, command):
    name, *arguments = command.replace("FILE", str(metrics_file(tmp_path))).split()
    with open("/dev/full", "wb") as full:
        ended = script(name, *arguments, stdout=full)
    assert one_sentence(ended, name) == f"{name}: standard output: No space left on device\n"


def test_an_output_that_is_no_file_is_written_to_and_not_replaced(tmp_path):
    pipe, got = tmp_path / "pipe", []
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()), daemon=True)
    reader.start()
    script("metrics.py", "csv", metrics_file(tmp_path), "-o", pipe, code=0)
    reader.join(30)
    assert pipe.is_fifo() and got[0].startswith(b"step,loss")


def test_a_link_stays_and_its_target_is_written(tmp_path):
    place, link = tmp_path / "place.csv", tmp_path / "link.csv"
    place.write_text("old")
    link.symlink_to(place)
    script("metrics.py", "csv", metrics_file(tmp_path), "-o", link, code=0)
    assert link.is_symlink() and place.read_text().startswith("step,loss")


@pytest.mark.parametrize("name", ["out/a,b", 'out/"a" \\ {b}', "out/ü: ä"])
def test_a_job_saves_where_its_configuration_says(tmp_path, name):
    """train.sbatch names the folder to train.sh, which resumes from it and gives it as checkpoint.dir."""
    (tmp_path / "scripts").symlink_to(ROOT / "scripts")
    (tmp_path / "train_llama").symlink_to(trainer_runs.trainer("llama"))
    (tmp_path / "-tiny.yaml").write_text((ROOT / "configs/llama_tiny.yaml").read_text())
    (tmp_path / "sbatch").write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    (tmp_path / "sbatch").chmod(0o755)
    env = trainer_runs.environment(PATH=f"{tmp_path}:{os.environ['PATH']}")
    words = ["bash", "scripts/slurm/train.sbatch", "-tiny.yaml", "-o", f"checkpoint.dir={name}"]
    sent = execute(words, cwd=tmp_path, env=env)
    asked = sent.stdout.splitlines()
    assert asked[:3] == ["--job-name=-tiny", "--nodes=1", "--ntasks-per-node=4"]
    assert asked[-5:] == ["./train_llama", "-tiny.yaml", name, "-o", f"checkpoint.dir={name}"]

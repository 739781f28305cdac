"""Users can watch the model learn: samples while training, --generate, perplexity and multiple choice.

Every layout writes the same text (test_layouts), and sampling changes no bit of training.
"""

import importlib
import itertools
import json
import os
import resource
import shutil
import signal
import sys
import time

import numpy
import pytest

from trainer_runs import ROOT, TOOLS, Trainer, checkpoint_names, execute, layout, made_text, saving, script, without_mpi

MODELS = {
    "llama": {"family": "llama", "hidden": 48, "layers": 4, "heads": 6, "kv_heads": 2, "ffn": 80, "vocab": 257,
              "seq_len": 32},
    "gpt": {"family": "gpt", "hidden": 48, "layers": 4, "heads": 6, "ffn": 80, "vocab": 257, "seq_len": 32},
}
needs_ranks = pytest.mark.skipif(without_mpi(), reason="built without MPI")


@pytest.fixture(scope="module", params=MODELS)
def trained(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    trainer = Trainer(folder, MODELS[request.param], numpy.frombuffer(made_text(), "u1").astype(int))
    steps = {"train.steps": 120, "train.global_batch": 16, "train.lr": 1.0e-2, "train.warmup_steps": 10}
    trainer.run(steps, saving(folder / "saved", 120), layout(b=8))
    trainer.saved = folder / "saved"
    return trainer


def generate(trainer, prompt, *changes, code=0, **more):
    result = trainer.run({"train.global_batch": 8}, *changes, code=code, arguments=["--generate", prompt], **more)
    assert not result.metrics.exists(), "without training there are no metrics"
    return result.stdout if code == 0 else result.stderr


GREEDY = {"sample.temperature": 0, "sample.tokens": 24}
IDS = {"sample.tokenizer": "ids"}


def ids_of(text):
    return [int(word) for word in text.split()]


# --- the same text everywhere


@pytest.mark.thorough
@needs_ranks
def test_every_tensor_rank_has_its_part_of_the_vocabulary(tmp_path):
    """Of 400 tokens the second rank has 144; an untrained model chooses from all tokens."""
    trainer = Trainer(tmp_path, {**MODELS["llama"], "vocab": 400})
    trainer.run({"train.steps": 1, "train.lr": 1.0e-2}, saving(tmp_path / "saved", 1))
    draws = {"sample.temperature": 3, "sample.tokens": 40}
    for rule in (draws, {**draws, "sample.top_k": 300}, {**draws, "sample.top_k": 30}):
        alone, split = [ids_of(generate(trainer, "1 399", rule, layout(t=t), resume=tmp_path / "saved"))
                        for t in (1, 2)]
        assert alone == split and len({token for token in alone if token >= 256}) > 3


@pytest.mark.thorough
@needs_ranks
def test_tensor_data_and_context_ranks_write_the_same_text(trained):
    """Their sums differ only in the last digits, which changes no clear choice of a token."""
    alone = generate(trained, "return ", GREEDY, resume=trained.saved)
    assert generate(trained, "return ", GREEDY, layout(t=2, p=2), resume=trained.saved) == alone
    assert generate(trained, "return ", GREEDY, layout(t=2, d=2, parallel_sequence=True), resume=trained.saved) == alone
    assert generate(trained, "return ", GREEDY, layout(p=2, parallel_context=2), resume=trained.saved) == alone


@pytest.mark.thorough
def test_texts_differ_by_seed_and_number_and_not_by_batch(trained):
    draws = {"sample.temperature": 1, "sample.tokens": 30, "sample.count": 3}
    texts = generate(trained, "the ", draws, resume=trained.saved).split("---\n")
    assert len(set(texts)) == 3 and all(text.startswith("the ") for text in texts)
    assert generate(trained, "the ", draws, layout(b=4), resume=trained.saved).split("---\n") == texts
    other = generate(trained, "the ", draws, {"sample.seed": 2}, resume=trained.saved).split("---\n")
    assert not set(other) & set(texts)


# --- transformers

sys.path.insert(0, str(ROOT / ".deps" / "transformers"))
os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", HF_HOME="/nonexistent")


def export(folder):
    transformers = pytest.importorskip("transformers",
                                       reason="transformers is not installed; run scripts/install_deps.sh")
    pytest.importorskip("torch").set_num_threads(1)
    return transformers.AutoModelForCausalLM.from_pretrained(folder).eval()


@pytest.fixture(scope="module")
def exported(trained):
    return export(trained.saved / "step_00000120")


def test_a_text_longer_than_a_sequence_goes_on_from_its_end(trained):
    """Each token is the one that follows the last 32 alone; scripts/hf.py compares those with transformers."""
    def following(ids, count):
        text = generate(trained, " ".join(map(str, ids)), GREEDY, {"sample.tokens": count}, IDS, resume=trained.saved)
        return ids_of(text)

    prompt = list(made_text()[:40])  # the prompt itself exceeds the window
    text = following(prompt, 6)
    assert text[:40] == prompt and text[40:] != following(prompt[:32], 6)[32:]
    for at in range(40, 46):
        assert following(text[at - 32 : at], 1)[-1] == text[at]


def test_weights_come_from_a_model_without_a_run_too(trained):
    model = {"checkpoint.init_from": str(trained.saved / "step_00000120")}
    text = generate(trained, "int ", GREEDY, model)
    for saved in (trained.saved, trained.saved / "step_00000120"):
        assert generate(trained, "int ", GREEDY, resume=saved) == text


def test_a_prompt_follows_the_token_that_begins_every_document(trained):
    numbers = " ".join(map(str, b"int "))
    for begin, prompt in (("auto", f"256 {numbers}"), ("off", numbers)):
        words = ids_of(generate(trained, prompt, GREEDY, IDS, resume=trained.saved))
        text = generate(trained, "int ", GREEDY, {"sample.begin": begin}, resume=trained.saved)
        assert bytes(word for word in words if word < 256) + b"\n" == text.encode() and text.startswith("int ")
    refused = generate(trained, numbers, IDS, {"sample.begin": "on"}, resume=trained.saved, code=2)
    assert "sample.begin: the token that begins every document is unknown" in refused


@pytest.mark.thorough
def test_a_text_ends_where_the_model_ends_it(trained, tmp_path):
    """The model learns one repeated document; its length puts its letters at every position."""
    trainer = Trainer(tmp_path, trained.model, [256, *b"abcdefgh"] * 200)
    trainer.run({"train.steps": 150, "train.lr": 1.0e-2}, saving(tmp_path / "saved", 150))
    saved = tmp_path / "saved"
    assert generate(trainer, "abc", GREEDY, resume=saved) == "abcdefgh\n"
    numbers = generate(trainer, "97 98", GREEDY, IDS, {"sample.tokens": 9}, resume=saved)
    assert ids_of(numbers) == [*b"abcdefgh", 256, *b"ab"]  # the end-of-text token is unknown without a tokenizer


# --- while training


QUESTIONS = [
    {"ctx": text[:12], "endings": [text[13:20], text[30:44], text[21:25]], "label": number % 3}
    for number, text in enumerate(made_text().decode()[i : i + 60] for i in range(0, 30 * 997, 997))
]


def write_questions(folder, questions, *options, code=0):
    source, out = folder / "questions.jsonl", folder / "questions.bin"
    source.write_text("".join(json.dumps(question) + "\n" for question in questions))
    result = script("prepare_eval.py", source, "-o", out, *options, code=code)
    return out if code == 0 else result.stderr


@pytest.mark.parametrize("ranks", [layout(b=2), pytest.param(layout(p=4, b=2, bpipe=True), marks=needs_ranks)],
                         ids=["p1", "bpipe"])
def test_sampling_and_evaluation_change_no_bit_of_training(trained, tmp_path, ranks):
    val = {"data.val": trained.data, "data.val_every": 3, "data.val_batches": 1}
    batch = {"train.global_batch": 16}
    plain = trained.run(ranks, val, batch)
    sample = {"sample.every": 2, "sample.prompt": "int ", "sample.tokens": 40, "sample.count": 3}
    choice = {"data.hellaswag": str(write_questions(tmp_path, QUESTIONS)), "data.hellaswag_every": 4}
    both = trained.run(ranks, val, batch, sample, choice)
    assert both.curve() == plain.curve() and both.vals == plain.vals
    samples = both.of_type("sample")
    assert [(line["step"], line["index"]) for line in samples] == list(itertools.product((2, 4, 6, 8), (0, 1, 2)))
    assert all(line["text"].startswith("int ") for line in samples)
    shown = [line for line in both.stdout.splitlines() if line.startswith("sample ")]
    first_lines = [f"sample {line['step']}/8 | " + line["text"].split("\n")[0] for line in samples]
    assert [line.rstrip() for line in shown] == [line.rstrip() for line in first_lines]
    assert [line["step"] for line in both.of_type("eval")] == [4, 8]
    assert "as planned, to the byte" in both.stderr


def test_tokens_of_32_bits_choose_alike(trained, tmp_path, monkeypatch):
    narrow = write_questions(tmp_path, QUESTIONS)
    monkeypatch.syspath_prepend(ROOT / "scripts")
    prepare_eval = importlib.import_module("prepare_eval")
    large = prepare_eval.make_tokenizer("bytes", "auto")
    large.vocab = 128256  # a larger vocabulary with the same first tokens
    monkeypatch.setattr(prepare_eval, "make_tokenizer", lambda *_: large)
    wide = tmp_path / "wide.bin"
    assert prepare_eval.main([str(tmp_path / "questions.jsonl"), "-o", str(wide)]) == 0
    assert wide.stat().st_size - 1024 == 2 * (narrow.stat().st_size - 1024)
    said = []
    for path in (narrow, wide):
        evaluated = trained.run({"data.hellaswag": path, "data.hellaswag_every": 4}).of_type("eval")
        said.append([(line["step"], line["correct"], line["examples"]) for line in evaluated])
    assert said[0] == said[1] and said[0][0][2] == len(QUESTIONS)


def test_a_resumed_run_says_each_sample_once(trained, tmp_path):
    sample = {"sample.every": 2, "sample.tokens": 5, "log.metrics": str(tmp_path / "metrics.jsonl")}
    choice = {"data.hellaswag": str(write_questions(tmp_path, QUESTIONS)), "data.hellaswag_every": 2}
    trained.run(sample, choice, saving(tmp_path / "saved", 4), {"train.steps": 6})
    (tmp_path / "saved" / "step_00000006").rename(tmp_path / "later")
    resumed = trained.run(sample, choice, {"train.steps": 6}, resume=tmp_path / "saved")
    for kind, steps in {"sample": [2, 4, 6], "eval": [2, 4, 6], "step": [1, 2, 3, 4, 5, 6]}.items():
        assert [line["step"] for line in resumed.of_type(kind)] == steps


def test_training_goes_on_where_samples_cannot_be_written(trained, tmp_path):
    sample = {"sample.every": 2, "sample.tokens": 5, "sample.prompt": "int "}
    choice = {"data.hellaswag": str(write_questions(tmp_path, QUESTIONS)), "data.hellaswag_every": 2}
    room = 4096  # space for the first lines of the metrics
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
    result = trained.run(sample, choice, {"train.steps": 30}, preexec_fn=limit)
    assert "training continues" in result.stderr
    assert result.stdout.count("sample ") == 15 == result.stdout.count("hellaswag")
    assert len(result.of_type("sample")) < 15


# --- multiple choice


def answer(model, question):
    """Returns whether transformers answers correctly, and by what margin."""
    import torch

    means = []
    for ending in question["endings"]:
        context, tokens = question["ctx"].encode(), (" " + ending).encode()
        ids = torch.tensor([list(context + tokens)])
        with torch.no_grad():
            logits = model(ids[:, :-1]).logits[0, len(context) - 1 :]
        means.append(torch.nn.functional.cross_entropy(logits, ids[0, len(context) :]).item())
    return numpy.argmin(means) == question["label"], sorted(means)[1] - min(means)


def answers(model, questions):
    """Returns the questions that rounding cannot change, and the number that transformers answers correctly."""
    decided = [(question, *answer(model, question)) for question in questions]
    clear = [(question, right) for question, right, lead in decided if lead > 1e-4]
    assert len(clear) >= len(questions) - 3
    return [question for question, _ in clear], sum(right for _, right in clear)


def evaluate(trained, file, *changes):
    start = {"checkpoint.init_from": str(trained.saved / "step_00000120"), "train.lr": 0, "train.steps": 1}
    result = trained.run(start, {"data.hellaswag": str(file), "data.hellaswag_every": 1}, *changes)
    (line,) = result.of_type("eval")
    assert f"hellaswag {100 * line['accuracy']:.2f}% ({line['correct']} of {line['examples']})" in result.stdout
    return line, result


@pytest.mark.thorough
def test_accuracy_is_what_transformers_finds(trained, exported, tmp_path):
    questions, right = answers(exported, QUESTIONS)
    assert 0 < right < len(questions)
    line, _ = evaluate(trained, write_questions(tmp_path, questions))
    assert (line["correct"], line["examples"], line["left_out"]) == (right, len(questions), 0)
    assert line["accuracy"] == right / len(questions)
    val = {"data.val": trained.data, "data.val_batches": 1}
    said = trained.run(val, {"data.hellaswag": str(tmp_path / "questions.bin")}, resume=trained.saved,
                       arguments=["--validate", "--json"]).stdout
    assert json.loads(said)["hellaswag"] == {"accuracy": line["accuracy"], "correct": right, "examples": len(questions)}


@pytest.mark.thorough
@needs_ranks
def test_accuracy_does_not_depend_on_the_layout(trained, exported, tmp_path):
    file = write_questions(tmp_path, answers(exported, QUESTIONS)[0])
    ranks = [layout(b=4), layout(p=2, d=2), layout(p=2, t=2, b=2), layout(d=2, parallel_context=4)]
    assert len({evaluate(trained, file, {"train.global_batch": 8}, each)[0]["correct"] for each in ranks}) == 1


@pytest.mark.thorough
def test_what_is_too_long_is_left_out_and_reported(trained, exported, tmp_path):
    long = [{"ctx": "a" * 20, "endings": ["short", "b" * 13], "label": 0}]
    # 33 tokens with the blank, 32 of them inputs
    fits = [{"ctx": "a" * 20, "endings": ["short", "b" * 12], "label": 0}]
    questions, right = answers(exported, QUESTIONS)
    right += answer(exported, fits[0])[0]
    line, result = evaluate(trained, write_questions(tmp_path, long + questions + long + fits))
    assert (line["correct"], line["examples"], line["left_out"]) == (right, len(questions) + 1, 2)
    assert f"2 of {len(questions) + 3} examples are left out" in result.stderr


# --- errors


def test_errors_say_what_to_do(trained, tmp_path):
    saved = {"resume": trained.saved, "code": 2}
    assert "--generate: no model is given; give --resume DIR" in generate(trained, "a", code=2)
    assert "there is no checkpoint in it" in generate(trained, "a", resume=tmp_path, code=2)
    assert "--generate: the value is empty" in generate(trained, "", **saved)
    # test_tokenizer.c tests the other prompts and tokenizers that are refused.
    assert "--generate: without a tokenizer a prompt must be token ids" in generate(trained, "int", IDS, **saved)
    bad = {"sample.every": 2, "sample.prompt": "1 999", **IDS}
    assert "sample.prompt: token 999 is outside" in trained.run(bad, code=2).stderr


@pytest.mark.parametrize("ranks", [layout(), pytest.param(layout(p=2, d=2), marks=needs_ranks)], ids=["p1", "p2_d2"])
def test_a_request_to_stop_ends_a_long_evaluation(trained, tmp_path, ranks):
    """The evaluation after the first step would take minutes. The run ends after the second step, and has reported no
    evaluation."""
    choice = {"data.hellaswag": str(write_questions(tmp_path, QUESTIONS * 1000)), "data.hellaswag_every": 1}
    job = trained.launch(ranks, choice, saving(tmp_path / "saved", 100))
    assert job.stdout.readline().startswith("step ")
    result = job.stop(code=3, limit=30)
    assert "hellaswag" not in result.stdout, result.stderr
    assert checkpoint_names(tmp_path / "saved") == ["step_00000002"]


def long_text(trained, ranks):
    """Starts to generate a text that takes minutes; returns the job once it has loaded the weights."""
    job = trained.launch({"train.global_batch": 8, "sample.tokens": 1000000}, ranks, resume=trained.saved,
                         arguments=["--generate", "int "])
    job.wait_for("weights of step")
    return job


def test_a_request_to_stop_ends_a_long_text(trained):
    job = long_text(trained, layout() if without_mpi() else layout(p=2))
    time.sleep(1)
    assert job.poll() is None
    ended = job.stop(code=1, limit=30)
    assert ended.stdout == "", ended.stderr
    assert "stopped on request before the text was complete" in ended.stderr


@needs_ranks
def test_a_killed_rank_of_a_long_text_leaves_nothing_to_continue(trained):
    job = long_text(trained, layout(p=2))
    os.kill(job.ranks()[1], signal.SIGKILL)
    ended = job.end(code=1, limit=30)
    said = ended.stderr.splitlines()[-1]
    assert "was killed by signal 9" in said and said.endswith("; the job ends"), said


# --- other tokenizers

LINES = ["In the beginning God created the heaven and the earth.", "  two  blanks  ",
         "Grüße, naïve café: \u20ac 5, \u4f60\u597d, \U0001f600\U0001f600!", "\u2581 and </s> <unk> <0x41>",
         "cafe\u0301"]


def tokenizer_library(name):
    sys.path.append(str(ROOT / ".deps" / "prepare_data"))
    try:
        return pytest.importorskip(name, reason=f"{name} is not installed; run scripts/install_deps.sh")
    finally:
        sys.path.pop()


def make_tokenizer(kind, folder):
    """Trains a tokenizer on some text; returns its file and its library's own functions."""
    text = "".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))
    (folder / "text.txt").write_text(text)
    if kind == "model":
        sentencepiece = tokenizer_library("sentencepiece")
        sentencepiece.SentencePieceTrainer.train(input=str(folder / "text.txt"), model_prefix=str(folder / "m"),
                                                 vocab_size=700, minloglevel=2, model_type="bpe", byte_fallback=True)
        library = sentencepiece.SentencePieceProcessor(model_file=str(folder / "m.model"))
        return folder / "m.model", library.encode, library.decode
    tokenizers = tokenizer_library("tokenizers")
    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    library.normalizer = tokenizers.normalizers.NFC()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=600, special_tokens=["<|endoftext|>"],
                                             initial_alphabet=alphabet)
    library.train_from_iterator([text], trainer)
    library.save(str(folder / "m.json"))
    return folder / "m.json", lambda line: library.encode(line, add_special_tokens=False).ids, library.decode


@pytest.mark.parametrize("kind", ["model", "json"])
def test_tokens_are_those_of_the_tokenizers_library(tmp_path, kind):
    path, encode, decode = make_tokenizer(kind, tmp_path)
    result = execute([TOOLS / "tool_tokenizer", path], input="\n".join(LINES) + "\n")
    said = result.stdout.split("\n")
    for line, ids, decoded in zip(LINES, said[::2], said[1::2]):
        assert ids_of(ids) == encode(line), line
        assert decoded == decode(encode(line)), line


def test_a_text_does_not_end_at_a_token_that_is_a_nul(tmp_path):
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "tokens.py").write_text(
        r"import sys; print({'describe': '300 -1', 'encode': '7'}.get(sys.argv[1], 'a\0b'), end='')")
    shutil.copy(TOOLS / "tool_tokenizer", tmp_path)
    said = execute([tmp_path / "tool_tokenizer", "x.json"], input="a").stdout
    assert said == "7\na\\x00b\n"


def prepare_mine(folder, tokenizer):
    """Tokenizes folder/text.txt into the data set "mine" in that folder."""
    text = folder / "text.txt"
    script("prepare_data.py", text, "-o", folder, "--name", "mine", "--tokenizer", tokenizer)


@pytest.mark.thorough
def test_a_model_of_pieces_writes_text(tmp_path):
    """The side file of the data set names the tokenizer, so no option is needed."""
    path, _, _ = make_tokenizer("model", tmp_path)
    prepare_mine(tmp_path, path)
    mine = {"data.train": tmp_path / "mine_train_*.bin"}
    trainer = Trainer(tmp_path, {**MODELS["llama"], "vocab": 700}, None, mine)
    trainer.run({"train.steps": 30, "train.lr": 1.0e-2}, saving(tmp_path / "saved", 30))
    text = generate(trainer, "static int", GREEDY, resume=tmp_path / "saved")
    assert text.startswith("static int") and len(text) > len("static int") + 24
    text = generate(trainer, "static int", GREEDY, {"sample.begin": "off"}, resume=tmp_path / "saved")
    ids = generate(trainer, " ".join(map(str, tokens("encode", "static int", path))), GREEDY, IDS,
                   resume=tmp_path / "saved")
    assert tokens("decode", ids, path) == text


def test_a_checkpoint_carries_the_tokenizer_of_its_data(tmp_path):
    """tokenizer.json with the names of its special tokens, and their numbers in config.json."""
    path, encode, _ = make_tokenizer("json", tmp_path)
    path.write_bytes(path.read_bytes() + b" " * (17 << 20))  # as large as Llama 3.3's
    prepare_mine(tmp_path, path)
    mine = {"data.train": tmp_path / "mine_train_*.bin"}
    trainer = Trainer(tmp_path, {**MODELS["llama"], "vocab": 600}, None, mine)
    trainer.run({"train.steps": 2}, saving(tmp_path / "saved", 2))
    saved = tmp_path / "saved" / "step_00000002"
    assert (saved / "tokenizer.json").read_bytes() == path.read_bytes()
    assert json.loads((saved / "tokenizer_config.json").read_text())["eos_token"] == "<|endoftext|>"
    assert json.loads((saved / "config.json").read_text())["eos_token_id"] == 0
    assert "tokenizer.json" in (saved / "manifest.json").read_text()
    text = generate(trainer, "Every schedule", GREEDY, resume=tmp_path / "saved")
    assert text.startswith("Every schedule") and len(text) > len("Every schedule")


def tokens(action, text, tokenizer):
    said = script("tokens.py", action, "--tokenizer", tokenizer, text).stdout
    return ids_of(said) if action == "encode" else said


def test_numbers_become_text_and_back():
    assert tokens("encode", "aé", "bytes") == [97, 195, 169]
    assert tokens("decode", "97 195 169 256", "bytes") == "aé\n"
    assert tokens("decode", "97\n---\n98 255\n", "bytes") == "a\n---\nb\\xff\n"
    result = script("tokens.py", "decode", "--tokenizer", "bytes", "300", code=1)
    assert "token 300 is outside the vocabulary of 257" in result.stderr

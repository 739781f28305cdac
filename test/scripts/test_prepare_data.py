"""scripts/prepare_data.py writes token files that contain every byte of the text, completely or not at all: of plain
text, and, with the libraries of their kinds, of JSON lines and Parquet with tokenizers."""

import array
import gzip
import hashlib
import importlib.util
import io
import json
import os
import pty
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from trainer_runs import ROOT, execute, patience, script, wait_until

SCRIPT = ROOT / "scripts" / "prepare_data.py"


def prepare(*arguments, **options):
    return script("prepare_data.py", *map(str, arguments), **options)


def tokens(folder, pattern):
    """Checks each shard's header, of either kind; returns all tokens of the shards in name order."""
    everything = []
    for path in sorted(folder.glob(pattern)):
        data = path.read_bytes()
        header = array.array("i", data[:1024])
        body = array.array({(20240520, 1): "H", (20240801, 7): "I"}[tuple(header[:2])], data[1024:])
        assert header[2] == len(body) and not any(header[3:])
        everything += body
    return everything


def document(data):
    return [256, *data]


def refused(tmp_path, words, *arguments, **options):
    """Checks that the script ends with one sentence that contains `words`, and leaves no file."""
    result = prepare(*arguments, "-o", tmp_path / "out", **options, code=1)
    assert words in result.stderr
    assert result.stderr.count("\n") == 1, result.stderr
    assert not list((tmp_path / "out").glob("*")) + list((tmp_path / "out").glob(".*"))
    return result.stderr


# ---- plain text ------------------------------------------------------------------------------------------------------


def test_few_documents_lose_their_ends_to_validation(tmp_path):
    text = b"".join(b"line %d\n" % i for i in range(1000)) + bytes(range(256))
    (tmp_path / "a.txt").write_bytes(text)
    prepare(tmp_path / "a.txt", "-o", tmp_path, "--name", "own", "--val-fraction", 0.2)
    train, val = tokens(tmp_path, "own_train_*.bin"), tokens(tmp_path, "own_val_*.bin")
    assert train[0] == val[0] == 256
    assert bytes(train[1:]) + bytes(val[1:]) == text
    assert train[-1] == ord("\n")
    assert 0.15 < len(val) / len(text) < 0.21


@pytest.mark.parametrize(("fraction", "said", "chosen"), [
    (0.05, "1 of every 20", range(20, 61, 20)),
    (0.4, "2 of every 5", [*range(3, 61, 5), *range(5, 61, 5)]),
])
def test_of_many_documents_the_fraction_is_held_out(tmp_path, fraction, said, chosen):
    texts = {number: b"document %d" % number for number in range(1, 61)}
    for number, text in texts.items():
        (tmp_path / f"{number:02d}.txt").write_bytes(text)
    folder = tmp_path / "new" / "folder"
    result = prepare(*sorted(tmp_path.glob("*.txt")), "-o", folder, "--val-fraction", fraction)
    assert f"held out: {said} documents" in result.stdout
    for split, held in (("train", False), ("val", True)):
        expected = [document(text) for number, text in texts.items() if (number in chosen) == held]
        assert tokens(folder, f"text_{split}_*.bin") == sum(expected, [])


def test_shards_continue_each_other_and_replace_those_of_a_longer_set(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"x" * 999)
    command = [tmp_path / "a.txt", "-o", tmp_path, "--val-fraction", 0]
    assert "-o 'data.val='" in prepare(*command, "--shard-tokens", 100).stdout  # there is none
    assert len(list(tmp_path.glob("text_train_*.bin"))) == 10
    assert tokens(tmp_path, "text_train_*.bin") == document(b"x" * 999)
    (tmp_path / "text_train_mine.bin").write_bytes(b"not a shard of this set")
    prepare(*command, "--shard-tokens", 400)
    (tmp_path / "text_train_mine.bin").unlink()
    assert len(list(tmp_path.glob("text_train_*.bin"))) == 3
    assert tokens(tmp_path, "text_train_*.bin") == document(b"x" * 999)


@pytest.mark.parametrize(("program", "suffix"), [("gzip", ".gz"), ("zstd", ".zst")])
@pytest.mark.parametrize("kind", ["txt", "jsonl"])
def test_compressed_files_give_the_tokens_of_what_they_hold(tmp_path, program, suffix, kind):
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    lines = [f"line {i} of a text" for i in range(500)]
    text = "\n".join(lines if kind == "txt" else [json.dumps({"text": line}) for line in lines]) + "\n"
    (tmp_path / f"a.{kind}").write_text(text)
    subprocess.run([program, "-kq", tmp_path / f"a.{kind}"], check=True)
    for name, file in (("plain", f"a.{kind}"), ("packed", f"a.{kind}{suffix}")):
        prepare(tmp_path / file, "-o", tmp_path / "out", "--name", name)
    assert tokens(tmp_path / "out", "packed_*.bin") == tokens(tmp_path / "out", "plain_*.bin")
    assert not list((tmp_path / "out").glob(".*"))


@pytest.mark.parametrize(("name", "data", "words"), [
    ("absent.txt", None, "absent.txt: No such file"),
    ("folder", Path.mkdir, "folder: is a folder or a pipe"),
    ("pipe", os.mkfifo, "pipe: is a folder or a pipe"),  # and is not waited for
    ("empty.txt", b"", "empty.txt: is empty"),
    ("packed.jsonl", b"\xfd7zXZ\0", "packed.jsonl: holds xz data and not text in UTF-8; unpack or convert it"),
    ("a.tar.gz", gzip.compress(b"a.txt".ljust(257, b"\0") + b"ustar\0", mtime=0), "holds tar data and not text"),
    ("data-00000-of-00001.arrow", b"\xff\xff\xff\xff\x78\1\0\0\x10", "holds Arrow data and not text"),
    ("wide.txt", "some text".encode("utf-16"), "holds UTF-16 data and not text"),
    ("train-00000-of-00001", b"PAR1\x15\4\x15", "holds Parquet data and not text"),
    ("damaged.txt.gz", b"x", "damaged.txt.gz: does not unpack (gzip: "),
    ("bad.jsonl.gz", gzip.compress(b'{"text": "a\xff"}\n', mtime=0), "bad.jsonl.gz:1: byte 11 (0xff) is not UTF-8"),
    ("short.txt", b"x", "1 bytes of text are not enough"),
])
def test_what_cannot_be_used_is_one_sentence_and_leaves_nothing(tmp_path, name, data, words):
    if callable(data):
        data(tmp_path / name)
    elif data is not None:
        (tmp_path / name).write_bytes(data)
    refused(tmp_path, words, tmp_path / name)


def test_a_failure_leaves_the_earlier_set_as_it_was(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"some words\n" * 100)
    prepare(tmp_path / "a.txt", "-o", tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.glob("*")}
    (tmp_path / "b.txt").write_bytes(b"x")
    prepare(tmp_path / "b.txt", "-o", tmp_path, code=1)
    (tmp_path / "b.txt").unlink()
    assert {path: path.read_bytes() for path in tmp_path.glob("*")} == before


@pytest.mark.parametrize(("arguments", "words"), [
    ("", "give either --bible or the files"), ("--bible a.txt", "give either --bible or the files"),
    ("a.txt --val-fraction 0.9", "--val-fraction 0.9: use a number"), ("a.txt -j 0", "--jobs 0: use a number"),
    ("a.txt --shard-tokens 1", "--shard-tokens 1: use a number"),
    # Its files would be taken for others.
    *((f"a.txt --name {name}", f"--name '{name}': ") for name in ("a/b", ".a", "a.tokenizer", "a_train", "a_val")),
])
def test_usage_errors_name_the_argument(tmp_path, arguments, words):
    ended = prepare(*arguments.split(), "-o", tmp_path, code=2)
    assert words in ended.stderr and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ['{"text": "a"}\n{"text": "b"}\n', '{"model": {}}', "[]", ""])
def test_a_text_or_tokenizer_where_the_side_file_belongs_is_not_replaced(tmp_path, text):
    (tmp_path / "mine.json").write_text(text)
    (tmp_path / "a.txt").write_text("some words")
    for source in ("mine.json", "a.txt") if text else ("a.txt",):
        ended = prepare(tmp_path / source, "-o", tmp_path, "--name", "mine", "--val-fraction", 0, code=1)
        assert f"{tmp_path}/mine.json: is the side file's place" in ended.stderr
    assert (tmp_path / "mine.json").read_text() == text and len(list(tmp_path.iterdir())) == 2


def test_without_the_bible_the_error_names_both_ways_out(tmp_path):
    result = prepare("--bible", "-o", tmp_path, env={**os.environ, "PATH": str(tmp_path)}, code=1)
    assert "scripts/install_deps.sh" in result.stderr and "FILE..." in result.stderr


@pytest.mark.skipif(shutil.which("bible") is None, reason="bible-kjv is not installed")
def test_the_bible_is_prose_without_references(tmp_path):
    prepare("--bible", "-o", tmp_path)
    train, val = tokens(tmp_path, "bible_train_*.bin"), tokens(tmp_path, "bible_val_*.bin")
    assert train.count(256) == 1130 and val.count(256) == 59  # every 20th of 1189 chapters
    text = bytes(token for token in train if token != 256)
    assert text.startswith(b"In the beginning God created the heaven and the earth.\nAnd the earth was without form")
    assert text.count(b"\n") + val.count(10) == 31102
    assert not any(byte in text for byte in b"0123456789")


# Memory does not grow with the file: 120 MB of text exceed the memory limit of the process.
def test_a_file_larger_than_memory_is_read_in_pieces(tmp_path):
    block = (b"some words of a long text, in a line\n" * 30000)[: 1 << 20]
    with open(tmp_path / "big.txt", "wb") as file:
        for _ in range(120):
            file.write(block)

    def limit_memory():
        resource.setrlimit(resource.RLIMIT_AS, (100 << 20, 100 << 20))

    prepare(tmp_path / "big.txt", "-o", tmp_path, preexec_fn=limit_memory)
    assert json.loads((tmp_path / "text.json").read_text())["bytes"] == 120 << 20


# ---- JSON lines, Parquet and tokenizers -----------------------------------------------------------------------------
#
# The libraries are the system's or those that scripts/install_deps.sh puts under .deps.

LIBRARIES = ROOT / ".deps" / "prepare_data"
sys.path.append(str(LIBRARIES))


def needs(*names):
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} not installed (scripts/install_deps.sh)")


WORDS = "in the beginning was a word and the word was with light over deep water, Übermut".split()


def sentence(number):
    return " ".join(WORDS[(number * (i + 3) + i * i) % len(WORDS)] for i in range(4 + number % 9))


TEXTS = ["\n".join(sentence(number * 7 + i) for i in range(1 + number % 5)) for number in range(100)]


def write_parquet(path, rows, **columns):
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=rows)


def divided(texts):
    """Returns the documents that are trained on, and every twentieth, which is held out."""
    return ([text for number, text in enumerate(texts, 1) if (number % 20 == 0) == held] for held in (False, True))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """100 documents as JSON lines and as Parquet, one large text file, and two tokenizers trained on them."""
    folder = tmp_path_factory.mktemp("corpus")
    lines = [json.dumps({"id": i, "text": text}, ensure_ascii=i % 2 == 0) for i, text in enumerate(TEXTS)]
    (folder / "set.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "large.txt").write_text("\n".join(map(sentence, range(34000))), encoding="utf-8")
    if importlib.util.find_spec("pyarrow") is not None:
        write_parquet(folder / "set.parquet", 30, id=list(range(100)), text=TEXTS)
    if importlib.util.find_spec("sentencepiece") is not None:
        import sentencepiece

        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=map(sentence, range(500)), model_writer=model,
                                                 vocab_size=340, model_type="bpe", byte_fallback=True,
                                                 normalization_rule_name="identity", minloglevel=2,
                                                 remove_extra_whitespaces=False)  # as Llama 2's
        (folder / "sp.model").write_bytes(model.getvalue())
    if importlib.util.find_spec("tokenizers") is not None:
        train_tokenizer(folder / "hf.json", 300)
    return folder


def train_tokenizer(path, vocab, special=("<|endoftext|>", "<|begin|>")):
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=list(special), initial_alphabet=alphabet,
                                  show_progress=False)
    tokenizer.train_from_iterator(map(sentence, range(500)), trainer)
    # prepare_data.py must disable these settings.
    tokenizer.enable_truncation(5)
    tokenizer.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", 1)])
    tokenizer.save(str(path))


def reference(corpus, name):
    """Returns (encode, end of text, vocabulary), computed by the library itself."""
    if name == "bytes":
        return lambda text: list(text.encode()), 256, 257
    if name == "sp.model":
        import sentencepiece

        model = sentencepiece.SentencePieceProcessor(model_file=str(corpus / name))
        return model.encode, model.eos_id(), model.vocab_size()
    from tokenizers import Tokenizer

    model = Tokenizer.from_file(str(corpus / name))
    model.no_truncation()
    return lambda text: model.encode(text, add_special_tokens=False).ids, 0, model.get_vocab_size()


KINDS = ["bytes", pytest.param("sp.model", marks=needs("sentencepiece")),
         pytest.param("hf.json", marks=needs("tokenizers"))]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["set.jsonl", pytest.param("set.parquet", marks=needs("pyarrow"))])
def test_rows_become_the_tokens_that_the_library_itself_gives_beside_the_tokenizer(corpus, tmp_path, form, kind):
    tokenizer = kind if kind == "bytes" else corpus / kind
    result = prepare(corpus / form, "--tokenizer", tokenizer, "-o", tmp_path, "--name", "rows", "-j", 2)
    encode, eot, vocab = reference(corpus, kind)
    name = {"bytes": "end of text", "sp.model": "</s>"}.get(kind, "")
    assert f"every document begins with token {eot}, {name}" in result.stdout
    for pattern, texts in zip(("rows_train_*.bin", "rows_val_*.bin"), divided(TEXTS)):
        assert tokens(tmp_path, pattern) == [token for text in texts for token in [eot, *encode(text)]]
    about = json.loads((tmp_path / "rows.json").read_text())
    assert (about["vocab"], about["eot"], about["documents"], about["dtype"]) == (vocab, eot, 100, "uint16")
    assert about["train_tokens"] == len(tokens(tmp_path, "rows_train_*.bin"))
    assert about["bytes"] == sum(len(text.encode()) for text in TEXTS)
    assert f"model.vocab={vocab}" in result.stdout
    if kind == "bytes":
        assert about["tokenizer_file"] is about["tokenizer_sha256"] is None
        return
    data = tokenizer.read_bytes()
    assert (tmp_path / about["tokenizer_file"]).read_bytes() == data
    assert about["tokenizer_sha256"] == hashlib.sha256(data).hexdigest()
    prepare(corpus / form, "-o", tmp_path, "--name", "rows")
    assert not list(tmp_path.glob("rows.tokenizer*"))


@pytest.mark.parametrize("kind", KINDS)
def test_the_files_are_the_same_for_any_number_of_processes(corpus, tmp_path, kind):
    files = [path for path in (corpus / "large.txt", corpus / "set.jsonl", corpus / "set.parquet") if path.exists()]
    tokenizer = kind if kind == "bytes" else corpus / kind
    made = []
    for processes in (1, 3):
        folder = tmp_path / str(processes)
        prepare(*files, corpus / "set.jsonl", "--tokenizer", tokenizer, "-o", folder, "-j", processes,
                "--shard-tokens", 99999)
        made.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert len(made[0]) > 5
    assert made[0] == made[1]


@pytest.mark.thorough
@needs("tokenizers", "sentencepiece")
@pytest.mark.parametrize("between", [b"\n", b"  "])
@pytest.mark.parametrize("kind", ["sp.model", "hf.json"])
@pytest.mark.parametrize("held", [0, 0.05])
def test_a_text_of_several_pieces_has_the_tokens_of_the_whole(corpus, tmp_path, kind, held, between):
    data = (corpus / "large.txt").read_bytes()
    assert len(data) > 5 << 18
    if between != b"\n":
        data = b"  ".join(data.split())
    while not data[(1 << 20) - 2 :][:4].isalpha():  # a cut at 1 MiB is inside a word
        data = b"x" + data
    (tmp_path / "a.txt").write_bytes(data)
    prepare(tmp_path / "a.txt", "--tokenizer", corpus / kind, "-o", tmp_path, "--val-fraction", held)
    text = data.decode()
    encode, eot, _ = reference(corpus, kind)
    train, val = (tokens(tmp_path, f"text_{split}_*.bin") for split in ("train", "val"))
    assert (held > 0) == (len(val) > 1000) and val[: held > 0] == [eot] * (held > 0)
    assert train + val[1:] == [eot, *encode(text)]


SPLITS = {
    "gpt2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "llama3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
              r"|\s+(?!\S)|\s+",
    "gpt4o": r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
TEXTURES = ("the |word|\r\n|end.\r\n", "x = 1;|\n    return y;\n|// comment|/path|\t|}\n", "word\n  |a b|word.\n\n  ",
            "word |  and|a|1234567| ,")


@needs("tokenizers")
@pytest.mark.parametrize("family", SPLITS)
@pytest.mark.parametrize("texture", TEXTURES)
def test_a_text_is_cut_where_the_tokenizers_of_models_cut_it(monkeypatch, family, texture):
    from tokenizers import Regex, pre_tokenizers

    monkeypatch.syspath_prepend(ROOT / "scripts")
    documents = importlib.import_module("prepare.documents")
    monkeypatch.setattr(documents, "PIECE", 1000)
    monkeypatch.setattr(documents, "NEAR", 300)
    draw, split = random.Random(1), pre_tokenizers.Split(Regex(SPLITS[family]), "isolated")
    for _ in range(20):
        text = documents.Text("".join(draw.choices(texture.split("|"), k=3000)).encode(), "text")
        pieces = [text.data[start:end].decode() for start, end in documents.cuts(text, 0, text.size)]
        assert len(pieces) > 5
        words = [word for piece in pieces for word, _ in split.pre_tokenize_str(piece)]
        assert words == [word for word, _ in split.pre_tokenize_str("".join(pieces))]


@pytest.mark.thorough
@needs("tokenizers")
def test_the_end_of_text_can_be_chosen_and_is_plain_text_inside_a_document(corpus, tmp_path):
    from tokenizers import AddedToken, Tokenizer

    (tmp_path / "a.txt").write_text("the <|begin|> of a <|endoftext|> <|plain|> word")
    tokenizer = Tokenizer.from_file(str(corpus / "hf.json"))
    tokenizer.add_tokens([AddedToken("<|plain|>", special=False)])  # as the file says
    tokenizer.save(str(tmp_path / "hf.json"))
    for eot, token in (("auto", 0), ("eos", 0), ("<|begin|>", 1), ("<|plain|>", 300)):
        arguments = ["--tokenizer", tmp_path / "hf.json", "--eot", eot, "--val-fraction", 0]
        prepare(tmp_path / "a.txt", *arguments, "-o", tmp_path)
        made = tokens(tmp_path, "text_train_*.bin")
        assert made[0] == token and not {0, 1, token} & set(made[1:])
    (tmp_path / "tokenizer.json").write_bytes((corpus / "hf.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "<|begin|>"}}')
    arguments = ["--tokenizer", tmp_path / "tokenizer.json", "--val-fraction", 0]
    prepare(tmp_path / "a.txt", *arguments, "-o", tmp_path)
    assert tokens(tmp_path, "text_train_*.bin")[0] == 1


@pytest.mark.thorough
@needs("tokenizers")
def test_a_vocabulary_beyond_16_bits_makes_wide_tokens_or_is_refused(corpus, tmp_path):
    from tokenizers import Tokenizer, models

    for count, dtype in ((65536, "uint16"), (65537, "uint32")):
        words = {f"w{i}": i for i in range(count)}
        tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
        tokenizer.save(str(tmp_path / "wide.json"))
        (tmp_path / "a.txt").write_text(f"w{count - 1}")
        arguments = [tmp_path / "a.txt", "--tokenizer", tmp_path / "wide.json", "--eot", "w1", "--val-fraction", 0]
        prepare(*arguments, "-o", tmp_path, "--name", dtype)
        assert json.loads((tmp_path / f"{dtype}.json").read_text())["dtype"] == dtype
        assert (tmp_path / f"{dtype}_train_000.bin").stat().st_size == 1024 + 2 * int(dtype[4:]) // 8
        assert tokens(tmp_path, f"{dtype}_train_*.bin") == [1, count - 1]
    words = "has a vocabulary of 65537, and uint16 holds 65536; use --dtype uint32"
    refused(tmp_path, words, *arguments, "--dtype", "uint16")


@pytest.mark.parametrize("empty", ["", '{"body": ""}', '{"body" : null, "id": 3}', "  ", '{"id": 1, "body":"" }'])
def test_documents_are_numbered_over_all_files_without_empty_rows(tmp_path, empty):
    """Every 20th row is empty: counted by rows, all of them and no document would be held out."""
    texts = [f'say: null "{number}" and: ""' if number % 7 else f"row {number}" for number in range(1, 191)]
    rows = [json.dumps({"body": text}) for text in texts]
    for at in range(20, 201, 20):
        rows.insert(at - 1, empty)
    (tmp_path / "a.jsonl").write_text("\r\n".join(rows[:30]), encoding="utf-8-sig")  # as Windows writes it
    (tmp_path / "b.jsonl").write_text("\n".join([*rows[30:], ""]))
    result = prepare(tmp_path / "a.jsonl", tmp_path / "b.jsonl", "--key", "body", "-o", tmp_path, "--dtype", "uint32")
    assert "190 documents" in result.stdout and "10 empty rows left out" in result.stdout
    for split, held in (("train", False), ("val", True)):
        expected = [document(text.encode()) for number, text in enumerate(texts, 1) if (number % 20 == 0) == held]
        assert tokens(tmp_path, f"text_{split}_*.bin") == sum(expected, [])
    assert (tmp_path / "text_val_000.bin").read_bytes()[:4] == array.array("i", [20240801]).tobytes()


@needs("pyarrow")
def test_parquet_of_several_batches_is_as_the_same_rows_in_json(tmp_path):
    texts = [None if number % 20 == 9 else f"row {number} " * (number % 20) * 10 for number in range(3000)]
    write_parquet(tmp_path / "a.parquet", 700, text=texts)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    for form in ("parquet", "jsonl"):
        prepare(tmp_path / f"a.{form}", "-o", tmp_path, "--name", form)
    for split in ("train", "val"):
        made = tokens(tmp_path, f"parquet_{split}_*.bin")
        assert len(made) > 100000 and made == tokens(tmp_path, f"jsonl_{split}_*.bin")


@needs("sentencepiece")
def test_an_ending_has_the_tokens_that_it_has_after_its_context(corpus, tmp_path):
    context, endings = "in the beginning", ["was a word", "with light"]
    (tmp_path / "a.jsonl").write_text(json.dumps({"ctx": context, "endings": endings, "label": "1"}))
    script("prepare_eval.py", tmp_path / "a.jsonl", "-o", tmp_path / "a.bin", "--tokenizer", corpus / "sp.model")
    encode, _, _ = reference(corpus, "sp.model")
    parts = [encode(context), *(encode(f"{context} {ending}")[len(encode(context)) :] for ending in endings)]
    words = array.array("H", (tmp_path / "a.bin").read_bytes()[1024:])
    assert words[3:].tolist() == [1, 2, *(word for part in parts for word in (len(part), *part))]


BAD_LINES = {
    "not_json": (b'{"text": "x"}\n{text}\n', "bad.jsonl:2: is not JSON"),
    "no_object": (b'{"text": "x"}\n["x"]\n', 'bad.jsonl:2: is not an object; every line has to be one, such as {'),
    "no_key": (b'{"body": "x", "id": 3}\n',
               "bad.jsonl:1: has no key 'text'; name one of its keys with --key: body, id"),
    "no_text": (b'{"text": 5}\n', "bad.jsonl:1: 'text' is not text"),
    "no_utf8": (b'{"text": "x"}\n\n{"text": "\xff"}\n', "bad.jsonl:3: byte 10 (0xff) is not UTF-8"),
    "half_a_pair": (b'{"text": "\\ud800"}\n', "bad.jsonl:1: holds half of a surrogate pair"),
    "deep": (b"[" * 100000, "bad.jsonl:1: is not JSON"),
}


@pytest.mark.parametrize("name", BAD_LINES)
@pytest.mark.parametrize("kind", ["bytes", pytest.param("sp.model", marks=needs("sentencepiece"))])
def test_a_bad_row_is_named_and_leaves_nothing(corpus, tmp_path, name, kind):
    data, words = BAD_LINES[name]
    (tmp_path / "bad.jsonl").write_bytes(data)
    tokenizer = kind if kind == "bytes" else corpus / kind
    refused(tmp_path, words, tmp_path / "bad.jsonl", "--tokenizer", tokenizer, "-j", 2)


@needs("sentencepiece")
@pytest.mark.parametrize(("before", "place"), [(2001, "byte 2001"), (1 << 20, "from byte 10[0-9]{5} on: byte [0-9]+")])
def test_text_that_is_not_utf8_is_named_with_its_byte(corpus, tmp_path, before, place):
    (tmp_path / "bad.txt").write_bytes(b"word\n" * (before // 5) + b"x" * (before % 5) + b"\xc3(")
    said = refused(tmp_path, " (0xc3) is not UTF-8", tmp_path / "bad.txt", "--tokenizer", corpus / "sp.model",
                   "--val-fraction", 0)
    assert re.search(f"bad.txt: {place} ", said) and sum(map(int, re.findall("byte ([0-9]+)", said))) == before


@pytest.mark.thorough
@needs("pyarrow")
def test_parquet_that_cannot_be_used_is_named(corpus, tmp_path):
    refused(tmp_path, "set.parquet: has no column 'body'; name one of its columns with --key: id, text",
            corpus / "set.parquet", "--key", "body")
    refused(tmp_path, "set.parquet: column 'id' is int64, not text", corpus / "set.parquet", "--key", "id")
    data = bytearray((corpus / "set.parquet").read_bytes())
    (tmp_path / "cut.parquet").write_bytes(data[: len(data) // 2])
    refused(tmp_path, "cut.parquet: cannot be read as a Parquet file", tmp_path / "cut.parquet")
    data[100:400] = bytes(300)
    (tmp_path / "hurt.parquet").write_bytes(data)
    refused(tmp_path, "hurt.parquet: cannot be read as a Parquet file", tmp_path / "hurt.parquet")
    write_parquet(tmp_path / "none.parquet", 1, text=importlib.import_module("pyarrow").array([], "string"))
    refused(tmp_path, "0 bytes of text are not enough", tmp_path / "none.parquet")


@needs("sentencepiece", "tokenizers")
def test_a_tokenizer_that_cannot_be_used_is_named(corpus, tmp_path):
    source = corpus / "set.jsonl"
    for name, data, sentence in (
        ("absent.model", None, ": no such file"), ("a.txt", b"", ": its name ends neither in .model"),
        ("bad.model", b"nothing", ": is not a SentencePiece"), ("empty.model", b"", ": is not a SentencePiece model"),
        ("bad.json", b"{}", ": is not a tokenizer.json"), ("bin.json", b"\xff", ": byte 0 (0xff) is not UTF-8"),
    ):
        if data is not None:
            (tmp_path / name).write_bytes(data)
        refused(tmp_path, name + sentence, source, "--tokenizer", tmp_path / name)
    for name in ("sp.model", "hf.json"):
        refused(tmp_path, f"{name}: has no token <x>; name one", source, "--tokenizer", corpus / name, "--eot", "<x>")
        refused(tmp_path, "--eot none: every document", source, "--tokenizer", corpus / name, "--eot", "none")
    refused(tmp_path, "--eot <x>: byte tokens have one such token, 256", source, "--eot", "<x>")


@pytest.mark.parametrize("library", ["sentencepiece", "tokenizers", "pyarrow"])
def test_a_library_that_is_missing_is_named_with_what_installs_it(corpus, tmp_path, library):
    # This module precedes the real library in the search path, and fails to import as an absent library would.
    (tmp_path / f"{library}.py").write_text(f"raise ModuleNotFoundError('no {library}', name='{library}')")
    for name in ("x.model", "x.json", "x.parquet"):
        (tmp_path / name).write_bytes(b"{}")
    source = corpus / "set.jsonl" if library != "pyarrow" else tmp_path / "x.parquet"
    tokenizer = {"sentencepiece": tmp_path / "x.model", "tokenizers": tmp_path / "x.json"}.get(library, "bytes")
    words = f"the Python library {library}, which reads "
    refused(tmp_path, words, source, "--tokenizer", tokenizer, env={**os.environ, "PYTHONPATH": str(tmp_path)})


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_disk_is_one_sentence_and_leaves_nothing(corpus, tmp_path, kind):
    tokenizer = kind if kind == "bytes" else corpus / kind
    refused(tmp_path, f"{tmp_path}/out", corpus / "large.txt", "--tokenizer", tokenizer, "-j", 2,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (200000, 200000)))


def test_an_output_that_cannot_be_written_is_named(corpus, tmp_path):
    (tmp_path / "file").write_text("x")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        result = prepare(corpus / "set.jsonl", "-o", folder, code=1)
        assert result.stderr.count("\n") == 1 and "file" in result.stderr


@pytest.mark.thorough
@needs("tokenizers")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_stop_leaves_no_process_and_an_earlier_set_whole(corpus, tmp_path, number):
    command = [corpus / "large.txt", *[corpus / "large.txt"] * 9, "--tokenizer", corpus / "hf.json", "-o", tmp_path]
    earlier = '{"tokenizer": "earlier"}'
    (tmp_path / "text.json").write_text(earlier)
    started = subprocess.Popen([sys.executable, str(SCRIPT), *map(str, command), "-j", "2"], start_new_session=True,
                               stderr=subprocess.PIPE)
    wait_until(lambda: list(tmp_path.glob(".text_train_*.part")) or started.poll() is not None, "nothing was written")
    assert started.poll() is None
    if number == signal.SIGKILL:
        started.send_signal(number)
    else:
        os.killpg(started.pid, number)  # as a terminal or a scheduler would
    assert started.wait(patience(20)) == (-9 if number == signal.SIGKILL else 130)
    assert number == signal.SIGKILL or started.stderr.read() == b""
    wait_until(lambda: not alive(started.pid), "processes of a stopped run are alive")
    assert (tmp_path / "text.json").read_text() == earlier
    other = tmp_path / f".text2_train_000.bin.{started.pid}.part"  # another set's, maybe of another host
    other.touch()
    if number == signal.SIGKILL:  # the next run removes what it left
        prepare(corpus / "set.jsonl", "-o", tmp_path)
    assert list(tmp_path.glob(".*")) == [other]


MASKS = """
import multiprocessing, signal, sys
sys.path.insert(0, "scripts")
from prepare.work import signals_later


def tell(pipe):
    pipe.send(len(signal.pthread_sigmask(signal.SIG_BLOCK, [])))

if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    for _ in range(2):
        ours, theirs = spawn.Pipe()
        with signals_later():
            spawn.Process(target=tell, args=(theirs,)).start()
        print(ours.recv())
"""


def test_every_process_holds_signals_back_from_its_first_moment(tmp_path):
    (tmp_path / "masks.py").write_text(MASKS)
    ended = execute([sys.executable, tmp_path / "masks.py"])
    assert ended.stdout.split() == ["2", "2"], ended.stderr


def alive(session):
    """Returns the states of a session's processes that are not zombies."""
    states = execute(["ps", "-o", "stat=", "-s", str(session)]).stdout
    return [state for state in states.split() if not state.startswith("Z")]


def test_a_log_gets_a_line_a_minute(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    work = importlib.import_module("prepare.work")
    now, log = [100.0], io.StringIO()
    monkeypatch.setattr(work.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(work.sys, "stderr", log)
    progress = work.Progress(10_000_000)
    for _ in range(10):
        now[0] += 20
        progress.add(1_000_000)
    assert log.getvalue().splitlines() == [
        "prepare_data.py:  30 %  0.1 MB/s  2:20 left",
        "prepare_data.py:  60 %  0.1 MB/s  1:20 left",
        "prepare_data.py:  90 %  0.1 MB/s  0:20 left",
    ]


def test_a_terminal_sees_a_bar_and_a_file_does_not(corpus, tmp_path):
    command = [corpus / "large.txt", "-o", tmp_path]
    assert prepare(*command).stderr == ""
    ours, theirs = pty.openpty()
    with open(ours, "rb", buffering=0) as screen:
        subprocess.run([sys.executable, str(SCRIPT), *map(str, command)], stdout=subprocess.DEVNULL, stderr=theirs,
                       check=True)
        os.close(theirs)
        assert b"100 %" in screen.read(65536)

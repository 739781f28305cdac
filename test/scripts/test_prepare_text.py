"""scripts/prepare_data.py writes token files that contain every byte of the text, completely or not at all."""

import json
import os
import resource
import shutil
import subprocess

import pytest
from prepared_data import document, prepare, refused, tokens


def test_few_documents_lose_their_ends_to_validation(tmp_path):
    text = b"".join(b"line %d\n" % i for i in range(1000)) + bytes(range(256))
    (tmp_path / "a.txt").write_bytes(text)
    result = prepare(tmp_path / "a.txt", "-o", tmp_path, "--name", "own", "--val-fraction", 0.2)
    assert result.returncode == 0, result.stderr
    train, val = tokens(tmp_path, "own_train_*.bin"), tokens(tmp_path, "own_val_*.bin")
    assert train[0] == val[0] == 256
    assert bytes(train[1:]) + bytes(val[1:]) == text
    assert train[-1] == ord("\n")
    assert 0.15 < len(val) / len(text) < 0.21


def test_every_twentieth_of_many_documents_is_held_out(tmp_path):
    texts = [b"document %d" % i for i in range(1, 61)]
    for number, text in enumerate(texts):
        (tmp_path / f"{number:02d}.txt").write_bytes(text)
    result = prepare(*sorted(tmp_path.glob("*.txt")), "-o", tmp_path / "new" / "folder")
    assert result.returncode == 0, result.stderr
    held = [text for number, text in enumerate(texts, 1) if number % 20 == 0]
    kept = [text for number, text in enumerate(texts, 1) if number % 20 != 0]
    assert tokens(tmp_path / "new" / "folder", "text_train_*.bin") == sum(map(document, kept), [])
    assert tokens(tmp_path / "new" / "folder", "text_val_*.bin") == sum(map(document, held), [])


def test_shards_continue_each_other_and_replace_those_of_a_longer_set(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"x" * 999)
    command = [tmp_path / "a.txt", "-o", tmp_path, "--val-fraction", 0]
    assert prepare(*command, "--shard-tokens", 100).returncode == 0
    assert len(list(tmp_path.glob("text_train_*.bin"))) == 10
    assert tokens(tmp_path, "text_train_*.bin") == document(b"x" * 999)
    (tmp_path / "text_train_mine.bin").write_bytes(b"not a shard of this set")
    assert prepare(*command, "--shard-tokens", 400).returncode == 0
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
        assert prepare(tmp_path / file, "-o", tmp_path / "out", "--name", name).returncode == 0
    assert tokens(tmp_path / "out", "packed_*.bin") == tokens(tmp_path / "out", "plain_*.bin")
    assert not list((tmp_path / "out").glob(".*"))


@pytest.mark.parametrize(("name", "data", "words"), [
    ("absent.txt", None, "absent.txt: No such file"),
    ("empty.txt", b"", "empty.txt: is empty"),
    ("packed.jsonl.xz", b"x", "packed.jsonl.xz: is compressed, by its name; unpack it first"),
    ("damaged.txt.gz", b"x", "damaged.txt.gz: does not unpack (gzip: "),
    ("short.txt", b"x", "1 bytes of text are not enough"),
])
def test_what_cannot_be_used_is_one_sentence_and_leaves_nothing(tmp_path, name, data, words):
    if data is not None:
        (tmp_path / name).write_bytes(data)
    refused(tmp_path, words, tmp_path / name)


def test_a_folder_and_a_pipe_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        result = prepare(path, "-o", tmp_path / "out", timeout=20)
        assert result.returncode == 1 and f"{path}: is a folder or a pipe" in result.stderr


def test_a_failure_leaves_the_earlier_set_as_it_was(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"some words\n" * 100)
    assert prepare(tmp_path / "a.txt", "-o", tmp_path).returncode == 0
    before = {path: path.read_bytes() for path in tmp_path.glob("*")}
    (tmp_path / "b.txt").write_bytes(b"x")
    assert prepare(tmp_path / "b.txt", "-o", tmp_path).returncode == 1
    (tmp_path / "b.txt").unlink()
    assert {path: path.read_bytes() for path in tmp_path.glob("*")} == before


def test_usage_errors_name_the_argument(tmp_path):
    for arguments in ([], ["--bible", "a.txt"], ["a.txt", "--val-fraction", "0.9"], ["a.txt", "--shard-tokens", "1"]):
        assert prepare(*arguments, "-o", tmp_path).returncode == 2


def test_without_the_bible_the_error_names_both_ways_out(tmp_path):
    result = prepare("--bible", "-o", tmp_path, env={**os.environ, "PATH": str(tmp_path)})
    assert result.returncode == 1
    assert "scripts/install_deps.sh" in result.stderr and "FILE..." in result.stderr


@pytest.mark.skipif(shutil.which("bible") is None, reason="bible-kjv is not installed")
def test_the_bible_is_prose_without_references(tmp_path):
    assert prepare("--bible", "-o", tmp_path).returncode == 0
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

    result = prepare(tmp_path / "big.txt", "-o", tmp_path, preexec_fn=limit_memory)
    assert result.returncode == 0, result.stderr
    assert json.loads((tmp_path / "text.json").read_text())["bytes"] == 120 << 20

#!/usr/bin/env python3
"""Turns text into token files for training: one token a byte, 257 in all, 256 being the end of a text.

    scripts/prepare_data.py --bible                 the tiny data set: the King James Bible, a chapter a document
    scripts/prepare_data.py FILE... --name NAME     text of your own, a file a document

Writes NAME_train_000.bin, ... and NAME_val_000.bin, ... in llm.c's GPT-2 format: 256 int32 (20240520, 1, number of
tokens), then uint16 tokens; every document begins with token 256. Validation gets every k-th document where there are
many, and the end of every document where there are few. Files appear complete or not at all.
"""

import argparse
import contextlib
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

MAGIC, VERSION, END_OF_TEXT = 20240520, 1, 256
HEADER_BYTES = 1024
CHUNK = 1 << 24
VERSES = 31102


class Failure(Exception):
    """One sentence for the user."""


# ---- token files --------------------------------------------------------------------------------------------------


class Split:
    """One split's shards, written beside their place under names that no glob for *.bin finds."""

    def __init__(self, folder, name, shard_tokens):
        self.folder, self.name, self.shard_tokens = folder, name, shard_tokens
        self.file, self.in_shard, self.total, self.paths = None, 0, 0, []

    def part(self, path):
        return path.with_name(f".{path.name}.{os.getpid()}.part")

    def begin_shard(self):
        path = self.folder / f"{self.name}_{len(self.paths):03d}.bin"
        self.file = open(self.part(path), "wb")
        self.paths.append(path)
        self.file.write(bytes(HEADER_BYTES))
        self.in_shard = 0

    def end_shard(self):
        if self.file is None:
            return
        self.file.seek(0)
        self.file.write(struct.pack("<3i", MAGIC, VERSION, self.in_shard))
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        self.file = None

    def write(self, tokens):
        """tokens: little-endian uint16."""
        view = memoryview(tokens)
        while view:
            if self.file is None:
                self.begin_shard()
            room = 2 * (self.shard_tokens - self.in_shard)
            piece, view = view[:room], view[room:]
            self.file.write(piece)
            self.in_shard += len(piece) // 2
            self.total += len(piece) // 2
            if self.in_shard == self.shard_tokens:
                self.end_shard()

    def begin_document(self):
        self.write(struct.pack("<H", END_OF_TEXT))

    def write_bytes(self, data):
        tokens = bytearray(2 * len(data))
        tokens[::2] = data
        self.write(tokens)

    def publish(self):
        """Puts the new shards in place, and takes away those of an earlier, longer set."""
        for path in self.paths:
            os.replace(self.part(path), path)
        for old in self.folder.glob(f"{self.name}_*.bin"):
            if old not in self.paths and re.fullmatch(r"\d{3,}", old.stem[len(self.name) + 1 :]):
                old.unlink()

    def discard(self):
        if self.file is not None:
            self.file.close()
        for path in self.paths:
            self.part(path).unlink(missing_ok=True)


# ---- documents ----------------------------------------------------------------------------------------------------


class Text:
    """A document in memory."""

    def __init__(self, data):
        self.data, self.size = data, len(data)

    def read(self, start, end):
        for at in range(start, end, CHUNK):
            yield self.data[at : min(at + CHUNK, end)]


class TextFile:
    """A document on disk, read in pieces: it may be larger than memory."""

    def __init__(self, path):
        self.path = path
        try:
            with open(path, "rb"):
                self.size = os.path.getsize(path)
        except OSError as error:
            raise Failure(f"{path}: {error.strerror}; name a text file") from error
        if self.size == 0:
            raise Failure(f"{path}: is empty; leave it out or name another file")

    def read(self, start, end):
        with open(self.path, "rb") as file:
            file.seek(start)
            while start < end:
                piece = file.read(min(CHUNK, end - start))
                if not piece:
                    raise Failure(f"{self.path}: became shorter while it was read; run this again")
                start += len(piece)
                yield piece


def bible_documents():
    """The chapters, verse by line, without the references that stand before each verse."""
    try:
        command = ["bible", "-f", "gen1:1-rev22:21"]
        output = subprocess.run(command, capture_output=True, check=True, text=True, encoding="ascii").stdout
    except FileNotFoundError:
        raise Failure(
            "the program `bible` is not installed; run scripts/install_deps.sh (Debian's packages bible-kjv and "
            "bible-kjv-text), or give text of your own: scripts/prepare_data.py FILE... --name bible"
        ) from None
    except subprocess.CalledProcessError as error:
        raise Failure(f"`bible` failed: {error.stderr.strip() or error}; reinstall bible-kjv-text") from None
    chapters = {}
    for line in output.splitlines():
        match = re.fullmatch(r"([1-3]?[A-Za-z]+\d+):\d+ (.*)", line)
        if not match:
            raise Failure(f"`bible` printed {line[:60]!r}, which is no verse; bible-kjv 4.38 prints one a line")
        chapters.setdefault(match[1], []).append(match[2].rstrip() + "\n")
    verses = sum(map(len, chapters.values()))
    if verses != VERSES:
        raise Failure(f"`bible` printed {verses} verses instead of {VERSES}; reinstall bible-kjv-text")
    return [Text("".join(lines).encode()) for lines in chapters.values()]


# ---- training and validation --------------------------------------------------------------------------------------


def cut(document, fraction):
    """Where the held-out end of a document begins: at a line's start where one is near, else between two words."""
    aim = document.size - int(document.size * fraction)
    near = b"".join(document.read(aim, min(aim + 4096, document.size)))
    for separator in (b"\n", b" "):
        at = near.find(separator)
        if 0 <= at < len(near) - 1:
            return aim + at + 1
    return aim


def copy(document, start, end, split):
    if start < end:
        split.begin_document()
        for piece in document.read(start, end):
            split.write_bytes(piece)


def divide(documents, fraction, train, val):
    """Returns how it was divided, in words."""
    if fraction == 0:
        for document in documents:
            copy(document, 0, document.size, train)
        return "none"
    every = round(1 / fraction)
    if len(documents) >= 2 * every:
        for number, document in enumerate(documents, 1):
            copy(document, 0, document.size, val if number % every == 0 else train)
        return f"every {every}th document"
    for document in documents:
        border = cut(document, fraction)
        copy(document, 0, border, train)
        copy(document, border, document.size, val)
    return f"the last {100 * fraction:g} % of every document"


def prepare(documents, folder, name, fraction, shard_tokens):
    folder.mkdir(parents=True, exist_ok=True)
    train = Split(folder, f"{name}_train", shard_tokens)
    val = Split(folder, f"{name}_val", shard_tokens)
    try:
        how = divide(documents, fraction, train, val)
        for split in (train, val):
            split.end_shard()
        size = sum(document.size for document in documents)
        # One sequence of one token needs two.
        if train.total < 2 or (fraction > 0 and val.total < 2):
            raise Failure(f"{size} bytes of text are not enough for training and validation; give more text")
        for split in (train, val):
            split.publish()
    finally:
        train.discard()
        val.discard()
    print(f"{folder}/{name}: {len(documents)} documents, {size} bytes")
    print(f"  {name}_train: {train.total} tokens in {len(train.paths)} file(s)")
    print(f"  {name}_val:   {val.total} tokens in {len(val.paths)} file(s); held out: {how}")


# ---- command line -------------------------------------------------------------------------------------------------


def parse(arguments):
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="prepare_data.py", description=__doc__, formatter_class=form)
    parser.add_argument("files", nargs="*", metavar="FILE", help="text files, one document each")
    parser.add_argument("--bible", action="store_true", help="the tiny data set instead of files")
    parser.add_argument("-o", "--output", type=Path, default=Path("data"), metavar="DIR", help="default: data")
    parser.add_argument("--name", help="first part of the files' names; default: bible with --bible, else text")
    parser.add_argument("--val-fraction", type=float, default=0.05, metavar="X", help="0 to 0.5; default: 0.05")
    parser.add_argument(
        "--shard-tokens", type=int, default=100_000_000, metavar="N", help="most tokens of one file; default: 1e8"
    )
    options = parser.parse_args(arguments)
    if options.bible == bool(options.files):
        parser.error("give either --bible or the text files to read")
    if not 0 <= options.val_fraction <= 0.5:
        parser.error(f"--val-fraction {options.val_fraction:g}: use a number from 0 to 0.5")
    if not 2 <= options.shard_tokens < 2**31:
        parser.error(f"--shard-tokens {options.shard_tokens}: use a number from 2 to {2**31 - 1}")
    options.name = options.name or ("bible" if options.bible else "text")
    if not re.fullmatch(r"[A-Za-z0-9._-]+", options.name):
        parser.error(f"--name {options.name!r}: use letters, digits, '.', '_' and '-'")
    return options


def main(arguments):
    options = parse(arguments)
    try:
        documents = bible_documents() if options.bible else [TextFile(path) for path in options.files]
        prepare(documents, options.output, options.name, options.val_fraction, options.shard_tokens)
    except Failure as failure:
        print(f"prepare_data.py: {failure}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"prepare_data.py: {error.filename or options.output}: {error.strerror}", file=sys.stderr)
        return 1
    if not options.bible:
        place = options.output / options.name
        print(f"train with  -o model.vocab=257 -o 'data.train={place}_train_*.bin' -o 'data.val={place}_val_*.bin'")
    return 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1:]))
    sys.exit(130)

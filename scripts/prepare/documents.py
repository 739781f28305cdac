"""Documents, their sources, and the jobs into which they are divided."""

import contextlib
import itertools
import json
import math
import os
import re
import subprocess
import tempfile
from fractions import Fraction
from pathlib import Path

from prepare.tokenizer import as_bytes, as_text, library
from run_files import Failure

PIECE = 1 << 20  # bytes of text per call of a tokenizer and per job
NEAR = 1 << 16  # bytes searched for a good place to cut
VERSES = 31102


class Text:
    """A document in memory, and its place for messages."""

    def __init__(self, data, where):
        self.data, self.size, self.where = data, len(data), where

    def read(self, start, end):
        return self.data[start:end]


class TextFile:
    """A document on disk, read in pieces, since it may be larger than memory."""

    def __init__(self, path, size, file):
        self.where, self.size, self.file = path, size, file  # file: the unpacked file if path is compressed

    def read(self, start, end):
        with open(self.file, "rb") as file:
            file.seek(start)
            data = file.read(end - start)
        if len(data) != end - start:
            raise Failure(f"{self.where}: became shorter while it was read; run this again")
        return data


def hold_out(document, fraction):
    """Returns the start of the held-out end of a document: near the fraction, after a line end or else at a blank."""
    aim = document.size - int(document.size * fraction)
    near = document.read(aim, min(aim + 4096, document.size))
    for separator, kept in ((b"\n", 1), (b" ", 0)):
        at = near.find(separator)
        if 0 <= at < len(near) - 1:
            return aim + at + kept
    return between_characters(document, aim)


def between_characters(document, at):
    """Returns the first place from `at` on that is not inside a UTF-8 character, or `at` if none is near."""
    near = document.read(at, min(at + 3, document.size))
    inside = len(near) - len(near.lstrip(bytes(range(0x80, 0xC0))))
    return at + inside if inside < len(near) else at


# Where a text is cut, the best place first: tokenizers separate a word from the blanks and line ends after it, and keep
# those together with each other (GPT-2's), or with punctuation before them (Llama 3's and later ones).
PLACES = [re.compile(place) for place in (rb"[0-9A-Za-z](?=\r?\n)", rb"\S\n(?=[^\s/])", rb"[0-9A-Za-z](?= )",
                                          rb"(?s)\n(?=.)", rb"\S(?= )")]


def cuts(document, start, end):
    """Cuts [start, end) into pieces of about PIECE bytes, which have the same tokens as in the complete document where
    there are words (the tokenizer's inside() leaves out the blank that some put before a text)."""
    while end - start > PIECE:
        limit = start + PIECE
        near = document.read(limit - NEAR, limit + 1)
        found = filter(None, ([match.end() for match in place.finditer(near)] for place in PLACES))
        at = next(found, [0])[-1]
        limit = limit - NEAR + at if at > 0 else between_characters(document, limit)
        yield start, limit
        start = limit
    yield start, end


class Rule:
    """Decides which part of a document is held out."""

    def __init__(self, fraction, count):
        """count(limit): returns the number of documents, counting no further than limit."""
        self.fraction = Fraction(str(fraction))  # as written: 0.05 is 1/20
        two = math.ceil(2 / self.fraction) if fraction > 0 else 0  # documents of which two are held out
        self.whole = fraction > 0 and count(two) >= two

    def __str__(self):
        if self.fraction == 0:
            return "none"
        held, every = self.fraction.as_integer_ratio()
        return (f"{held} of every {every} documents" if self.whole
                else f"the last {100 * float(self.fraction):g} % of every document")

    def holds_out(self, number):
        """Returns whether a document is held out as a whole. number: from 1 across all sources."""
        held, every = self.fraction.as_integer_ratio()
        return self.whole and number * held // every > (number - 1) * held // every

    def parts(self, document):
        """Returns (split, start, end) of each part: split 0 is training, 1 validation."""
        if self.fraction == 0 or self.whole:
            return [(0, 0, document.size)]
        border = hold_out(document, self.fraction)
        parts = [(0, 0, border), (1, border, document.size)]
        return [part for part in parts if part[1] < part[2]]


def pieces(document, rule):
    """Yields (document, split, start, end, is the first piece of a part) for each piece."""
    for split, start, end in rule.parts(document):
        for low, high in cuts(document, start, end):
            yield document, split, low, high, low == start


# A source has a size in bytes, count(limit), and jobs(rule), which yields (bytes consumed, job).


class Job:
    """A process's unit of work, small to send: known pieces, or rows, each a text or None, and its place. A row without
    text is no document; pieces(rule) counts them in `blank`."""

    def __init__(self, rows=(), known=()):
        self.rows, self.known, self.blank = rows, known, 0

    def pieces(self, rule):
        yield from self.known
        for text, where in self.rows:
            if text:
                yield from pieces(Text(as_bytes(text, where), where), rule)
            else:
                self.blank += 1


class TextSource:
    """Files, or texts in memory, that are one document each."""

    def __init__(self, documents):
        self.documents = documents
        self.size = sum(document.size for document in documents)

    def count(self, limit):
        return len(self.documents)

    def jobs(self, rule):
        for document in self.documents:
            for piece in pieces(document, rule):
                _, _, start, end, _ = piece
                yield end - start, Job(known=[piece])


class Table:
    """A source of rows."""

    def __init__(self, path, size, key):
        self.path, self.size, self.key = path, size, key

    def count(self, limit):
        return sum(1 for _ in itertools.islice(filter(None, (text for text, _ in self.rows())), limit))


class Lines:
    """The rows of some lines of a JSON lines file. The process that tokenizes them also parses them."""

    def __init__(self, path, key, data, first):
        self.path, self.key, self.data, self.first = path, key, data, first

    def __iter__(self):
        for number, line in enumerate(self.data.removesuffix(b"\n").split(b"\n"), self.first):
            where = f"{self.path}:{number}"
            yield self.text(as_text(line, where).removeprefix("\ufeff"), where) if line.strip() else None, where

    def text(self, line, where):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise Failure(f"{where}: is not JSON ({error}); every line has to be one object") from None
        if not isinstance(value, dict):
            example = json.dumps({self.key: "..."})
            raise Failure(f"{where}: is not an object; every line has to be one, such as {example}")
        if self.key not in value:
            keys = ", ".join(value)[:200]
            raise Failure(f"{where}: has no key {self.key!r}; name one of its keys with --key: {keys}")
        if value[self.key] is not None and not isinstance(value[self.key], str):
            raise Failure(f"{where}: {self.key!r} is not text; name another key with --key")
        return value[self.key]


class LinesSource(Table):
    def __init__(self, path, size, key, file):
        super().__init__(path, size, key)
        self.file = file

    def blocks(self):
        first = 1
        with open(self.file, "rb") as file:
            while data := file.read(PIECE) + file.readline():
                yield Lines(self.path, self.key, data, first)
                first += data.count(b"\n")

    def rows(self):
        return itertools.chain.from_iterable(self.blocks())

    def jobs(self, rule):
        return ((len(block.data), Job(block)) for block in self.blocks())


class ParquetSource(Table):
    """The parent reads the rows, since a file has one reader."""

    AT_ONCE = 256

    def __init__(self, path, size, key):
        super().__init__(path, size, key)
        self.arrow = library("pyarrow", f"reads {path}")
        self.parquet = library("pyarrow.parquet", f"reads {path}")
        with self.opened() as file:
            self.number, schema = file.metadata.num_rows, file.schema_arrow
        if key not in schema.names:
            columns = ", ".join(schema.names)[:200]
            raise Failure(f"{path}: has no column {key!r}; name one of its columns with --key: {columns}")
        kind = schema.field(key).type
        if not (self.arrow.types.is_string(kind) or self.arrow.types.is_large_string(kind)):
            raise Failure(f"{path}: column {key!r} is {kind}, not text; name another column with --key")

    @contextlib.contextmanager
    def opened(self):
        try:
            with self.parquet.ParquetFile(self.path, memory_map=False) as file:
                yield file
        except (self.arrow.ArrowException, OSError, UnicodeDecodeError) as error:
            reason = " ".join(str(error).split())[:300]
            raise Failure(f"{self.path}: cannot be read as a Parquet file: {reason}") from None

    def rows(self):
        with self.opened() as file:
            batches = file.iter_batches(batch_size=self.AT_ONCE, columns=[self.key], use_threads=False)
            texts = (text for batch in batches for text in batch.column(0).to_pylist())
            for row, text in enumerate(texts, 1):
                yield text, f"{self.path}: row {row}"

    def jobs(self, rule):
        some, size, done = [], 0, 0
        for number, row in enumerate(self.rows(), 1):
            some.append(row)
            size += len(row[0] or "")
            if size >= PIECE:
                now = self.size * number // self.number
                yield now - done, Job(some)
                some, size, done = [], 0, now
        yield self.size - done, Job(some)


FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".parquet": "parquet"}


UNPACKED = {".gz": "gzip", ".zst": "zstd"}  # unpacked by these programs
# The first bytes of other forms, which would be read as plain text.
NO_TEXT = {"gzip": rb"\x1f\x8b\x08", "zstd": rb"\x28\xb5\x2f\xfd", "xz": rb"\xfd7zXZ\0", "bzip2": rb"BZh[1-9]1AY&SY",
           "lz4": rb"\x04\x22\x4d\x18", "7z": rb"7z\xbc\xaf", "zip": rb"PK\x03\x04", "tar": rb".{257}ustar",
           "Parquet": rb"PAR1\x15", "UTF-16": rb"\xff\xfe|\xfe\xff", "Arrow": rb"ARROW1\0|\xff\xff\xff\xff.{3}\0"}


def size_of(path):
    """Returns the size of a file after checking that it can be read more than once."""
    try:
        if not Path(path).is_file():
            os.stat(path)
            raise Failure(f"{path}: is a folder or a pipe; name a file to read")
        with open(path, "rb"):
            size = os.path.getsize(path)
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}; name a file to read") from None
    if size == 0:
        raise Failure(f"{path}: is empty; leave it out or name another file")
    return size


def check_text(path, file):
    """Refuses a file of another form. file: the unpacked file if path is compressed."""
    with open(file, "rb") as opened:
        begin = opened.read(512)
    for form, first in NO_TEXT.items():
        if re.match(first, begin, re.DOTALL):
            raise Failure(f"{path}: holds {form} data and not text in UTF-8; unpack or convert it, or give Parquet"
                          " (--format parquet)")


def unpack(path, options):
    """Unpacks `path` into a temporary file next to the output, since jobs refer to places in the text, which a
    compressed file does not have. Returns its name; options.unpacked keeps it open."""
    program = UNPACKED[Path(path).suffix.lower()]
    file = tempfile.NamedTemporaryFile(dir=options.output, prefix=f".{options.name}.", suffix=f".{os.getpid()}.part")
    options.unpacked.append(file)
    try:
        ended = subprocess.run([program, "-dc", "--", path], stdout=file, stderr=subprocess.PIPE, check=False)
    except FileNotFoundError:
        raise Failure(
            f"{path}: the program {program}, which unpacks it, is not installed; run scripts/install_deps.sh") from None
    if ended.returncode != 0:
        said = ended.stderr.decode("utf-8", "replace").strip().splitlines()
        raise Failure(
            f"{path}: does not unpack ({said[-1] if said else f'{program} ended with {ended.returncode}'}); fetch it"
            " again")
    if os.path.getsize(file.name) == 0:
        raise Failure(f"{path}: unpacks to nothing; leave it out or name another file")
    return file.name


def open_sources(options):
    """Returns a source for each file."""
    sources = []
    for path in options.files:
        size, file, name = size_of(path), path, Path(path)
        packed = name.suffix.lower() in UNPACKED
        if packed:
            file, name = unpack(path, options), name.with_suffix("")
            size = os.path.getsize(file)
        kind = options.format if options.format != "auto" else FORMATS.get(name.suffix.lower(), "text")
        if kind == "parquet" and packed:
            raise Failure(f"{path}: Parquet is compressed inside; unpack this file first")
        if kind == "parquet":
            sources.append(ParquetSource(path, size, options.key))
            continue
        check_text(path, file)
        sources.append(TextSource([TextFile(path, size, file)]) if kind == "text"
                       else LinesSource(path, size, options.key, file))
    return sources


def bible_source():
    """Returns the chapters, one verse per line, without the reference at the start of each verse."""
    try:
        command = ["bible", "-f", "gen1:1-rev22:21"]
        output = subprocess.run(command, capture_output=True, check=True, text=True, encoding="ascii").stdout
    except FileNotFoundError:
        raise Failure(
            "the program `bible` is not installed; run scripts/install_deps.sh (Debian's packages bible-kjv and "
            "bible-kjv-text), or give text of your own: scripts/prepare_data.py FILE... --name bible") from None
    except subprocess.CalledProcessError as error:
        raise Failure(f"`bible` failed: {error.stderr.strip() or error}; reinstall bible-kjv-text") from None
    chapters = {}
    for line in output.splitlines():
        match = re.fullmatch(r"([1-3]?[A-Za-z]+\d+):\d+ (.*)", line)
        if not match:
            raise Failure(f"`bible` printed {line[:60]!r}, which is not a verse; bible-kjv 4.38 prints one a line")
        chapters.setdefault(match[1], []).append(match[2].rstrip() + "\n")
    verses = sum(map(len, chapters.values()))
    if verses != VERSES:
        raise Failure(f"`bible` printed {verses} verses instead of {VERSES}; reinstall bible-kjv-text")
    return TextSource([Text("".join(lines).encode(), name) for name, lines in chapters.items()])

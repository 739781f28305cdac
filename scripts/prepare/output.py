"""Writes token files in llm.c's two formats, and their side files."""

import array
import contextlib
import json
import os
import re
import struct
from pathlib import Path

from run_files import Failure

HEADER_BYTES = 1024
KINDS = {"uint16": (20240520, 1, "H"), "uint32": (20240801, 7, "I")}  # magic, version, array's type code


def part(path):
    """Returns a file's temporary name, in the same folder, which no glob for *.bin matches."""
    return path.with_name(f".{path.name}.{os.getpid()}.part")


def open_part(path):
    """Creates a new file: removes a file of that name, and follows no link."""
    part(path).unlink(missing_ok=True)
    return open(part(path), "xb")


def write_part(path, data):
    with open_part(path) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


class Split:
    """One split's shards."""

    def __init__(self, folder, name, dtype, shard_tokens):
        self.folder, self.name, self.shard_tokens = folder, name, shard_tokens
        self.magic, self.version, code = KINDS[dtype]
        self.width = array.array(code).itemsize
        self.file, self.in_shard, self.total, self.paths = None, 0, 0, []

    def begin_shard(self):
        path = self.folder / f"{self.name}_{len(self.paths):03d}.bin"
        self.file = open_part(path)
        self.paths.append(path)
        self.file.write(bytes(HEADER_BYTES))
        self.in_shard = 0

    def end_shard(self):
        if self.file is None:
            return
        self.file.seek(0)
        self.file.write(struct.pack("<3i", self.magic, self.version, self.in_shard))
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()
        self.file = None

    def write(self, tokens):
        view = memoryview(tokens)
        while view:
            if self.file is None:
                self.begin_shard()
            room = self.width * (self.shard_tokens - self.in_shard)
            piece, view = view[:room], view[room:]
            self.file.write(piece)
            self.in_shard += len(piece) // self.width
            self.total += len(piece) // self.width
            if self.in_shard == self.shard_tokens:
                self.end_shard()


class Output:
    """All files of a data set; writes them under temporary names and renames them together."""

    def __init__(self, options, dtype):
        self.folder, self.name = options.output, options.name
        self.side = self.folder / f"{self.name}.json"
        self.splits = [Split(self.folder, f"{self.name}_{split}", dtype, options.shard_tokens)
                       for split in ("train", "val")]
        self.copies = []
        # The names of all files of a set but the side file.
        self.names = rf"{re.escape(self.name)}(?:_(?:train|val)_\d{{3,}}\.bin|\.tokenizer\.(?:model|json))"

    def check_side(self):
        """Refuses to replace a NAME.json that is no side file: it may be the text or the tokenizer."""
        told = None
        with contextlib.suppress(FileNotFoundError, ValueError, RecursionError), open(self.side, "rb") as file:
            told = json.loads(file.read(1 << 16))
        if self.side.exists() and not (isinstance(told, dict) and "tokenizer" in told):
            raise Failure(f"{self.side}: is the side file's place, and is another file; use another --name or --output")

    def copy_tokenizer(self, suffix, data):
        """Returns the name of the copy."""
        self.copies.append(self.folder / f"{self.name}.tokenizer{suffix}")
        write_part(self.copies[-1], data)
        return self.copies[-1].name

    def publish(self, about):
        """Removes the old side file first and writes the new one last: a side file always describes its shards."""
        write_part(self.side, (json.dumps(about, indent=2, ensure_ascii=False) + "\n").encode())
        self.side.unlink(missing_ok=True)
        new = [path for split in self.splits for path in split.paths] + self.copies
        for path in new:
            os.replace(part(path), path)
        for path in list(self.folder.iterdir()):
            if re.fullmatch(self.names, path.name) and path not in new:
                path.unlink(missing_ok=True)
        os.replace(part(self.side), self.side)

    def discard(self):
        """Removes the incomplete files of this process, and those that killed processes of this host have left."""
        for split in self.splits:
            if split.file is not None:
                with contextlib.suppress(OSError):  # incomplete files are not needed any more
                    split.file.close()
        parts = re.compile(rf"\.(?:{self.names}|{re.escape(self.name)}\.\w+)\.(\d+)\.part")
        for path in self.folder.glob(".*.part"):
            made = parts.fullmatch(path.name)
            if made and (int(made[1]) == os.getpid() or not Path("/proc", made[1]).exists()):
                path.unlink(missing_ok=True)

#!/usr/bin/env python3
"""Turns text, JSON lines and Parquet into token files for training.

    scripts/prepare_data.py --bible                 the tiny data set: the King James Bible, one document per chapter
    scripts/prepare_data.py FILE... --name NAME     your own text: *.jsonl and *.parquet have one document per row;
                                                    any other file is one document of plain text

Writes NAME_train_000.bin, ... and NAME_val_000.bin, ... in llm.c's formats: 256 int32, then the tokens. GPT-2's kind
has (20240520, 1, number of tokens; uint16), Llama-3's (20240801, 7, number of tokens; uint32). Every document begins
with one end-of-text token. Validation gets every k-th document if there are many, else the end of every document.
NAME.json names the tokenizer. Files appear complete or not at all, and are the same for any number of processes. See
docs/data.md.
"""

import argparse
import contextlib
import hashlib
import os
import re
import signal
import sys
from pathlib import Path

from prepare.documents import Rule, bible_source, open_sources
from prepare.output import KINDS, Output
from prepare.tokenizer import make_tokenizer
from prepare.work import Progress, work_all
from run_files import Failure, finish


def choose_dtype(tokenizer, wanted, name):
    dtype = wanted if wanted != "auto" else "uint16" if tokenizer.vocab <= 1 << 16 else "uint32"
    if dtype == "uint16" and tokenizer.vocab > 1 << 16:
        raise Failure(
            f"--tokenizer {name}: has a vocabulary of {tokenizer.vocab}, and uint16 holds 65536; use --dtype uint32")
    return dtype


def side_file(options, tokenizer, dtype, output):
    """Returns the content of NAME.json except the counts. Copies the tokenizer next to it; its name is relative."""
    file = digest = None
    if tokenizer.kind != "bytes":
        data = Path(options.tokenizer).read_bytes()
        file, digest = output.copy_tokenizer(Path(options.tokenizer).suffix, data), hashlib.sha256(data).hexdigest()
    return {"name": options.name, "tokenizer": tokenizer.kind, "tokenizer_file": file, "tokenizer_sha256": digest,
            "vocab": tokenizer.vocab, "eot": tokenizer.eot, "dtype": dtype}


def write_tokens(sources, rule, arguments, processes, splits):
    """Writes the shards. Returns the counts of documents, empty rows and bytes of text."""
    documents = blank = size = 0
    progress = Progress(sum(source.size for source in sources))
    jobs = (job for source in sources for job in source.jobs(rule))
    try:
        with contextlib.closing(work_all(jobs, (*arguments, rule), processes)) as results:
            for done, (pieces, empty, text) in results:
                for begins, split, tokens in pieces:
                    documents += begins
                    splits[1 if rule.holds_out(documents) else split].write(tokens)
                blank, size = blank + empty, size + text
                progress.add(done)
    finally:
        progress.clear()
    for split in splits:
        split.end_shard()
    return documents, blank, size


def prepare(options):
    tokenizer = make_tokenizer(options.tokenizer, options.eot)
    if tokenizer.eot < 0:
        raise Failure("--eot none: every document begins with a token; name one of the tokenizer's")
    dtype = choose_dtype(tokenizer, options.dtype, options.tokenizer)
    try:
        options.output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Failure(f"--output {options.output}: cannot be a folder: {error.strerror}") from None
    output, options.unpacked = Output(options, dtype), []
    output.check_side()
    output.discard()
    # With bytes as tokens, copying is faster than sending them to another process.
    processes = 1 if tokenizer.kind == "bytes" else options.jobs
    try:
        sources = [bible_source()] if options.bible else open_sources(options)
        rule = Rule(options.val_fraction, lambda limit: sum(source.count(limit) for source in sources))
        about = side_file(options, tokenizer, dtype, output)
        arguments = (options.tokenizer, options.eot, dtype)
        documents, blank, text = write_tokens(sources, rule, arguments, processes, output.splits)
        train, val = output.splits
        # A sequence of one token needs two tokens.
        if train.total < 2 or (options.val_fraction > 0 and val.total < 2):
            raise Failure(f"{text} bytes of text are not enough for training and validation; give more text")
        about.update(train_tokens=train.total, val_tokens=val.total, documents=documents, bytes=text)
        output.publish(about)
    except OSError as error:  # errors of writing name no file
        raise Failure(f"{error.filename or options.output}: {error.strerror or error}") from None
    finally:
        for file in options.unpacked:
            file.close()  # removes it
        output.discard()
    empty = f", {blank} empty rows left out" if blank else ""
    print(f"{output.folder}/{output.name}: {documents:,} documents, {text:,} bytes{empty}")
    print(f"  every document begins with token {tokenizer.eot}, {tokenizer.name_of(tokenizer.eot)}")
    print(f"  {train.name}: {train.total:,} tokens in {len(train.paths)} file(s)")
    print(f"  {val.name}:   {val.total:,} tokens in {len(val.paths)} file(s); held out: {rule}")
    if not options.bible:
        place = f"{output.folder}/{output.name}"
        held = f"{place}_val_*.bin" if val.total > 0 else ""
        print(f"train with  -o model.vocab={tokenizer.vocab} -o 'data.train={place}_train_*.bin' -o 'data.val={held}'")


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("files", nargs="*", metavar="FILE", help="input file")
    add("--bible", action="store_true", help="the tiny data set instead of files")
    add("-o", "--output", type=Path, default=Path("data"), metavar="DIR", help="default: data")
    add("--name", help="first part of the files' names; default: bible with --bible, else text")
    add("--format", default="auto", choices=("auto", "text", "jsonl", "parquet"), help="default: by the files' names")
    add("--key", default="text", metavar="NAME", help="key or column that holds the text; default: text")
    add("--tokenizer", default="bytes", metavar="FILE",
        help="a SentencePiece *.model or a tokenizer.json; default: bytes")
    add("--eot", default="auto", metavar="TOKEN",
        help="begins every document: eos, bos or a name; default: eos, else bos")
    add("--dtype", default="auto", choices=("auto", *KINDS), help="default: uint16 if the vocabulary fits")
    add("-j", "--jobs", type=int, default=len(os.sched_getaffinity(0)), metavar="N",
        help="processes; default: one per core")
    add("--val-fraction", type=float, default=0.05, metavar="X", help="0 to 0.5; default: 0.05")
    add("--shard-tokens", type=int, default=100_000_000, metavar="N", help="most tokens of one file; default: 1e8")
    options = parser.parse_args(arguments)
    if options.bible == bool(options.files):
        parser.error("give either --bible or the files to read")
    if not 0 <= options.val_fraction <= 0.5:
        parser.error(f"--val-fraction {options.val_fraction:g}: use a number from 0 to 0.5")
    if not 2 <= options.shard_tokens < 2**31:
        parser.error(f"--shard-tokens {options.shard_tokens}: use a number from 2 to {2**31 - 1}")
    if not 1 <= options.jobs <= 1024:
        parser.error(f"--jobs {options.jobs}: use a number from 1 to 1024")
    options.name = options.name or ("bible" if options.bible else "text")
    if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", options.name):
        parser.error(f"--name {options.name!r}: use letters, digits, '.', '_' and '-', no '.' first")
    if options.name.endswith(".tokenizer"):
        parser.error(
            f"--name {options.name!r}: NAME.tokenizer is reserved for the copy of the tokenizer; use another name")
    if options.name.endswith(("_train", "_val")):
        parser.error(f"--name {options.name!r}: {options.name}_*.bin would be training and validation data; use another"
                     " name")
    return options


def main(arguments):
    options = parse(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return finish("prepare_data.py", prepare, options)


if __name__ == "__main__":
    code = 130
    with contextlib.suppress(KeyboardInterrupt):
        code = main(sys.argv[1:])
    sys.exit(code)

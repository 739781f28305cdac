#!/usr/bin/env python3
"""Turns HellaSwag's JSON lines into an evaluation file for data.hellaswag.

    scripts/prepare_eval.py hellaswag_val.jsonl -o data/hellaswag_val.bin                    one token per byte
    scripts/prepare_eval.py hellaswag_val.jsonl -o data/hellaswag_val.bin --tokenizer FILE   SentencePiece *.model or
                                                                                             tokenizer.json

Each line has "ctx", "endings" (a list of texts) and "label" (the number of the right ending); any questions in this
form work. A blank precedes every ending. The file has llm.c's format: 256 int32 (20240522, 1, number of examples,
bytes of the longest), then for each example, in uint16: 65535, bytes, number, label, number of endings, and context and
endings as count and tokens. A tokenizer with tokens from 65535 on gets version 2, the same with uint32.
"""

import argparse
import json
import struct
import sys
from pathlib import Path

from prepare.tokenizer import as_bytes, as_text, make_tokenizer
from run_files import Failure, finish, write_file

MAGIC, BEGIN = 20240522, 65535
MOST = 65536  # numbers that fit into a uint16
FORMS = {1: "H", 2: "I"}  # version: type code of a word


def read_line(line, where):
    try:
        item = json.loads(line)
        context, endings, label = item["ctx"], item["endings"], int(str(item["label"]))  # 1, or "1"; not 1.5
    except KeyError as error:
        raise Failure(f"{where}: has no {error}; every line has to have ctx, endings and label") from None
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise Failure(f"{where}: is not JSON with ctx, endings and label ({error})") from None
    if (not isinstance(context, str) or not isinstance(endings, list)
        or not all(isinstance(text, str) for text in endings)):
        raise Failure(f"{where}: ctx has to be a text and endings a list of texts")
    if not context or len(endings) < 2 or not all(endings) or not 0 <= label < len(endings):
        raise Failure(
            f"{where}: needs a context, two endings or more, none of them empty, and the number of one as label")
    return context, endings, label


def example(tokenizer, version, number, line, where):
    """Returns one example as the bytes of its words."""
    context, endings, label = read_line(line, where)
    words = [label, len(endings)]
    parts = [tokenizer.encode(as_bytes(context, where), where)]
    parts += [tokenizer.inside(as_bytes(" " + ending, where), where) for ending in endings]
    for tokens in parts:
        words += [len(tokens), *tokens]
    size = 2 * version * (3 + len(words))
    if version == 1 and size >= MOST:
        raise Failure(f"{where}: takes {size} bytes, and {MOST - 2} is the most; leave it out")
    return struct.pack(f"<{3 + len(words)}{FORMS[version]}", BEGIN, size, number, *words)


def prepare(options):
    path, output, examples = options.file, options.output, []
    tokenizer = make_tokenizer(options.tokenizer, options.eot)
    version = 1 if tokenizer.vocab <= BEGIN else 2
    with open(path, "rb") as file:
        for at, line in enumerate(file, 1):
            if line.strip():
                where = f"{path}:{at}"
                text = as_text(line, where).removeprefix("\ufeff")
                examples.append(example(tokenizer, version, len(examples) % MOST, text, where))
    if not 1 <= len(examples) <= MOST:
        raise Failure(f"{path}: has {len(examples)} examples; 1 to {MOST} fit a file")
    header = struct.pack("<256i", MAGIC, version, len(examples), max(map(len, examples)), *[0] * 252)
    data = header + b"".join(examples)
    write_file(output, data)
    print(f"{output}: {len(examples)} examples, {len(data)} bytes")


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, metavar="FILE", help="JSON lines")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="the evaluation file")
    parser.add_argument("--tokenizer", default="bytes", metavar="NAME", help="bytes, a *.model or a tokenizer.json")
    parser.add_argument("--eot", default="auto", help="as in prepare_data.py, for tokenizers without a usual one")
    options = parser.parse_args(arguments)
    return finish("prepare_eval.py", prepare, options)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

#!/usr/bin/env python3
"""Converts text to token numbers and back with the tokenizer's own library, for prompts and samples if sample.tokenizer
is ids.

    scripts/tokens.py encode --tokenizer data/mine_tokenizer.json "Once upon a time"
    ./train_llama -c mine.yaml --resume out/mine --generate "7454 257 640" | scripts/tokens.py decode --tokenizer ...

The tokenizer is "bytes", a SentencePiece *.model or a tokenizer.json (GPT-2's, Llama 3's, ...). Without text, standard
input is read.
"""

import argparse
import os
import sys

from prepare.tokenizer import make_tokenizer
from run_files import Failure, finish


def decode(tokenizer, text):
    try:
        ids = [int(word) for word in text.replace(",", " ").split()]
    except ValueError as error:
        raise Failure(f"the tokens are not numbers with blanks between them: {error}") from None
    wrong = next((token for token in ids if not 0 <= token < tokenizer.vocab), None)
    if wrong is not None:
        raise Failure(f"token {wrong} is outside the vocabulary of {tokenizer.vocab}")
    if tokenizer.kind == "bytes":
        return bytes(token for token in ids if token < 256).decode("utf-8", "backslashreplace")
    return tokenizer.model.DecodeIds(ids) if tokenizer.kind == "sentencepiece" else tokenizer.model.decode(ids)


def describe(options):
    """Prints the vocabulary size and the end-of-text token, or -1."""
    try:
        tokenizer = make_tokenizer(options.tokenizer, "auto")
    except Failure:
        tokenizer = make_tokenizer(options.tokenizer, options.eot)
    print(tokenizer.vocab, tokenizer.eot)


def translate(options):
    if options.action == "describe":
        return describe(options)
    tokenizer = make_tokenizer(options.tokenizer, options.eot)
    data = sys.stdin.buffer.read() if options.text is None else os.fsencode(options.text)
    if options.action == "encode":
        print(*tokenizer.encode(data, "the text"))
    else:
        # --generate separates several texts by lines of ---.
        parts = data.decode("utf-8", "backslashreplace").split("---")
        sys.stdout.reconfigure(encoding="utf-8")  # in any locale
        print("\n---\n".join(decode(tokenizer, part) for part in parts), end="" if options.eot == "none" else "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["encode", "decode", "describe"])
    parser.add_argument("text", nargs="?", metavar="TEXT", help="default: standard input")
    parser.add_argument("--tokenizer", required=True, metavar="NAME", help="bytes, a *.model or a tokenizer.json")
    parser.add_argument("--eot", default="auto", help="end-of-text token, as in prepare_data.py, for tokenizers without"
                        " a usual one; none: no token")
    sys.exit(finish("tokens.py", translate, parser.parse_intermixed_args()))

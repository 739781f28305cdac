"""Turns bytes of text into tokens.

Each tokenizer has a kind, a vocabulary size (the largest token plus one), the token that begins a document, and
encode() and inside(): the bytes of a text, or of a text's later part, to a list of tokens.
"""

import contextlib
import functools
import importlib
import json
import os
import sys
from pathlib import Path

from run_files import Failure

ROOT = Path(__file__).resolve().parent.parent.parent


def library(name, purpose):
    """Returns an optional library: the system's, or else the copy that scripts/install_deps.sh put under .deps."""
    ours = str(ROOT / ".deps" / "prepare_data")
    if ours not in sys.path:
        sys.path.append(ours)
    package = name.split(".")[0]
    try:
        return importlib.import_module(name)
    except ImportError as error:
        reason = "is not installed" if error.name == package else f"does not load ({error})"
        raise Failure(f"the Python library {package}, which {purpose}, {reason}; "
                      f"run scripts/install_deps.sh or `pip install {package}`") from None


def as_text(data, where):
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        bad = f"byte {error.start} (0x{data[error.start]:02x})"
        raise Failure(f"{where}: {bad} is not UTF-8; convert the text to UTF-8") from None


def as_bytes(text, where):
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise Failure(
            f"{where}: holds half of a surrogate pair, which is not a character; repair or remove the row") from None


class Bytes:
    """One token per byte; 257 tokens, of which 256 is the end of a text."""

    kind, vocab, eot = "bytes", 257, 256

    def name_of(self, token):
        return "end of text"

    def __init__(self, eot):
        if eot not in ("auto", "256"):
            raise Failure(f"--eot {eot}: byte tokens have one such token, 256; leave --eot out")

    def encode(self, data, where):
        return data

    inside = encode


class Library:
    """What the tokenizers of both libraries share. Some, such as Llama 2's, put a blank before a text, and so must not
    be given a text's later parts alone."""

    def begin_with(self, path, eot, tokens):
        """Takes the first of the tokens that is there, not negative, as the one that begins a document."""
        self.eot = next((token for token in tokens if token >= 0), -1)
        if self.eot < 0 and eot != "none":
            wanted = "known to end a text" if eot == "auto" else eot
            raise Failure(f"{path}: has no token {wanted}; name one of its tokens with --eot")

    @functools.cached_property
    def prepends(self):
        return self.after_others(b"a", "the tokenizer") != self.encode(b"a", "the tokenizer")

    def inside(self, data, where):
        """Returns the tokens of data that follow other text."""
        return self.after_others(data, where) if self.prepends else self.encode(data, where)

    def after_others(self, data, where):
        as_text(data, where)  # names the byte, without counting those before it
        for before in (b"x", b"x\n") if data[:1].isspace() else (b"x\n", b"x"):  # that shares no token with the data
            head = self.encode(before, where)
            both = self.encode(before + data, where)
            if both[: len(head)] == head:
                return both[len(head) :]
        return self.encode(data, where)


class SentencePiece(Library):
    kind = "sentencepiece"

    def __init__(self, path, eot):
        module = library("sentencepiece", f"reads {path}")
        self.model = module.SentencePieceProcessor()
        try:
            self.model.LoadFromSerializedProto(Path(path).read_bytes())
            self.vocab = self.model.GetPieceSize()
        except RuntimeError:
            raise Failure(
                f"{path}: is not a SentencePiece model; where the tokenizer came with a tokenizer.json, give that"
            ) from None
        end, begin, named = self.model.eos_id(), self.model.bos_id(), self.model.PieceToId(eot)
        named = named if self.model.IdToPiece(named) == eot else -1  # PieceToId gives an unknown name the unknown token
        self.begin_with(path, eot, {"auto": [end, begin], "eos": [end], "bos": [begin], "none": []}.get(eot, [named]))

    def name_of(self, token):
        return self.model.IdToPiece(token)

    def encode(self, data, where):
        return self.model.EncodeAsIds(as_text(data, where))


class Tokenizers(Library):
    """A tokenizer.json. Its end-of-text token is named in tokenizer_config.json, or has one of the usual names."""

    kind = "tokenizers"
    USUAL = {"eos": ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "[SEP]"),
             "bos": ("<|begin_of_text|>", "<s>", "<bos>", "<|startoftext|>", "[CLS]")}

    def __init__(self, path, eot):
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # we have our own processes
        module = library("tokenizers", f"reads {path}")
        text = as_text(Path(path).read_bytes(), path)
        try:
            self.model = module.Tokenizer.from_str(text)
        except Exception as error:
            reader = f"the library tokenizers {module.__version__}"
            raise Failure(f"{path}: is not a tokenizer.json that {reader} reads: {error}") from None
        # Omitting unused results, such as each token's place in the text, halves the time.
        self.fast = getattr(self.model, "encode_batch_fast", self.model.encode_batch)
        self.model.no_truncation()
        self.model.no_padding()
        if hasattr(self.model, "encode_special_tokens"):
            self.model.encode_special_tokens = True  # `</s>` in a document is plain text
        known = self.model.get_vocab(with_added_tokens=True)
        self.vocab = max(known.values(), default=-1) + 1
        kinds = {"auto": ["eos", "bos"], "none": []}.get(eot, [eot])
        self.begin_with(path, eot, [known.get(name, -1) for kind in kinds for name in self.names(path, kind)])
        if self.eot >= 0:
            self.model.add_special_tokens([self.name_of(self.eot)])  # its name in a document is text in any case

    def names(self, path, eot):
        if eot not in self.USUAL:
            return [eot]
        names = list(self.USUAL[eot])
        with contextlib.suppress(OSError, ValueError, AttributeError, KeyError):
            told = json.loads(Path(path).with_name("tokenizer_config.json").read_text("utf-8")).get(f"{eot}_token")
            names.insert(0, told["content"] if isinstance(told, dict) else str(told))
        return names

    def name_of(self, token):
        return self.model.id_to_token(token)

    def encode(self, data, where):
        text = as_text(data, where)
        try:
            return self.fast([text], add_special_tokens=False)[0].ids
        except Exception as error:
            raise Failure(f"{where}: the tokenizer cannot encode it: {error}") from None


def make_tokenizer(name, eot):
    if name == "bytes":
        return Bytes(eot)
    if not Path(name).is_file():
        raise Failure(f"--tokenizer {name}: no such file; give bytes, a SentencePiece *.model or a tokenizer.json")
    if Path(name).suffix not in (".model", ".json"):
        raise Failure(f"--tokenizer {name}: its name ends neither in .model (SentencePiece) nor in .json (tokenizers)")
    try:
        return (SentencePiece if Path(name).suffix == ".model" else Tokenizers)(name, eot)
    except OSError as error:
        raise Failure(f"--tokenizer {name}: {error.strerror}") from None

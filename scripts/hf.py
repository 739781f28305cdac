#!/usr/bin/python3
"""Examines a model in Hugging Face's form: one saved by transformers, or a checkpoint of a run (out/x/step_00000500).

    scripts/hf.py info DIR                     its model section for a configuration, and every tensor
    scripts/hf.py check DIR [--data TOKENS]    compares the trainer's results with those of transformers

check compares the mean loss over some windows and the likeliest next tokens, both in fp32 on the CPU. If they differ,
it ends with code 1 and one sentence. TOKENS is a token file as scripts/prepare_data.py writes it. Without it, a
checkpoint is compared on the tokens that its run validated on, and another model on random tokens; a line reports this.
info needs only the trainers. check needs PyTorch and transformers: those of the Python that runs it, or else
.deps/transformers, where scripts/install_deps.sh puts it.
"""

import argparse
import contextlib
import glob
import importlib.util
import json
import math
import os
import random
import re
import struct
import sys
import tempfile
from array import array
from pathlib import Path

from run_files import Failure, ask, ask_family, finish, form_of, read_text

ROOT = Path(__file__).resolve().parent.parent


# ---- content of the folder -------------------------------------------------------------------------------------------


def config_of(folder):
    """Returns the path of config.json, and the size of its attention window, or None if attention sees all tokens."""
    path = folder / "config.json"
    if not path.exists():
        inside = sorted(folder.glob("step_*/config.json"))
        hint = (f"give one of its checkpoints, such as {inside[-1].parent}" if inside
                else f"give the folder that it is in, {folder.parent}" if folder.is_file()
                else "give a folder as save_pretrained writes it, or a checkpoint")
        raise Failure(f"{folder}: holds no config.json; {hint}")
    with form_of(path, "config.json of a model"):
        said = json.loads(read_text(path))
        window = said.get("sliding_window") if said.get("use_sliding_window", True) else None
        return path, min(window, said.get("max_position_embeddings", window)) if window else None


def read_model(options):
    """Returns the model section that the trainer of its family reads from config.json, and that trainer."""
    path, window = config_of(options.folder)
    bound = ["-o", f"model.seq_len={window}"] if window else []
    if options.trainer and not options.trainer.exists():
        raise Failure(f"{options.trainer}: not found; run make, or name another with --trainer")
    program, said = ask_family(path, "-q", *bound, "--plan", "--json", programs=options.trainer and [options.trainer])
    with form_of(program, "trainer that answers --plan --json; name another with --trainer"):
        model = json.loads(said)["config"]["model"]
    scaled = model["rope_scaling"] != "none"
    return program, {key: value for key, value in model.items()
                     if (scaled or not key.startswith("rope_") or key in ("rope_theta", "rope_share", "rope_dim")
                         and model["family"] != "gpt")}


class Tensor:
    def __init__(self, name, file, entry):
        self.name, self.file, self.type, self.shape = name, file, entry["dtype"], entry["shape"]
        begin, end = entry["data_offsets"]
        self.bytes, self.count = end - begin, math.prod(self.shape)
        bits = int((re.findall(r"\d+", self.type) or [8])[0])  # of F32, F8_E4M3 or BOOL
        if self.count < 0 or self.count * bits != 8 * self.bytes:
            raise ValueError(f"{name} has {self.bytes} bytes for {self.shape} of {self.type}")


def read_header(path):
    """Returns the tensors of a safetensors file."""
    try:
        with path.open("rb") as file:
            (length,), size = struct.unpack("<Q", file.read(8)), path.stat().st_size
            if length > min(size, 100 << 20):
                raise ValueError("its header does not fit into it")
            header = json.loads(file.read(length))
    except OSError as error:
        raise Failure(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, struct.error) as error:
        raise Failure(f"{path}: is not a safetensors file ({error})") from None
    with form_of(path, "safetensors file"):
        tensors = [Tensor(name, path.name, entry) for name, entry in header.items() if name != "__metadata__"]
        lacking = 8 + length + sum(tensor.bytes for tensor in tensors) - size
    if lacking != 0:
        said = f"lacks its last {lacking:,} bytes" if lacking > 0 else f"has {-lacking:,} bytes that no tensor has"
        raise Failure(f"{path}: {said}; copy or fetch it again")
    return tensors


def read_tensors(folder):
    """Returns the model's tensors, without the optimizer's."""
    index, names = folder / "model.safetensors.index.json", []
    if index.exists():
        with form_of(index, "safetensors index"):
            names = sorted(map(str, set(json.loads(read_text(index))["weight_map"].values())))
    names = names or ["model.safetensors"]
    if not (folder / names[0]).exists():
        raise Failure(
            f"{folder}: holds no {names[0]}; transformers writes it with save_pretrained(..., safe_serialization=True)")
    tensors = [tensor for name in names for tensor in read_header(folder / name)]
    # Layers in their order: 2 before 10.
    return sorted(tensors, key=lambda t: [part.zfill(6) if part.isdigit() else part for part in t.name.split(".")])


def show_info(options):
    (_, model), tensors = read_model(options), read_tensors(options.folder)
    print("model:")
    for key, value in model.items():
        print(f"  {key}: {str(value).lower() if isinstance(value, bool) else value}")
    window = config_of(options.folder)[1]
    if window:
        print(f"\nsliding_window {window}: seq_len is limited to it, since sliding-window attention is unsupported")
    width = max((len(tensor.name) for tensor in tensors), default=6)
    print(f"\n{'tensor':{width}}  {'type':5} {'shape':>16} {'bytes':>15}")
    for tensor in tensors:
        print(f"{tensor.name:{width}}  {tensor.type:5} {'x'.join(map(str, tensor.shape)):>16} {tensor.bytes:>15,}")
    files = len({tensor.file for tensor in tensors})
    print(
        f"\n{len(tensors)} tensors, {sum(t.count for t in tensors):,} numbers, {sum(t.bytes for t in tensors):,} bytes"
        f" in {files} file{'s' if files > 1 else ''}")


# ---- tokens ----------------------------------------------------------------------------------------------------------


def read_tokens(path, count):
    """Returns the first tokens of a file in either of llm.c's formats."""
    try:
        with path.open("rb") as file:
            header = file.read(1024)
            magic, version, held = struct.unpack("<3i", header[:12]) if len(header) == 1024 else (0, 0, 0)
            kinds = {(20240520, 1): "H", (20240801, 7): "I"}
            if (magic, version) not in kinds:
                raise Failure(f"{path}: is not a token file; make one with scripts/prepare_data.py")
            tokens = array(kinds[magic, version])
            data = file.read(count * tokens.itemsize)
            tokens.frombytes(data[: len(data) // tokens.itemsize * tokens.itemsize])
    except OSError as error:
        raise Failure(f"{path}: cannot be read: {error.strerror}") from None
    if len(tokens) < count or held < count:
        raise Failure(
            f"{path}: has {min(len(tokens), held)} tokens, and {count} are asked for; use fewer --windows or a smaller"
            " --seq-len")
    return list(tokens)


def data_of_run(folder):
    """Returns the token files that the run of a checkpoint validated on, or trained on; empty if they are unknown."""
    try:
        data = json.loads(read_text(folder / "training.json"))["config"]["data"]
        patterns = [data["val"], data["train"] if isinstance(data["train"], str) else data["train"][0]["path"]]
    except (Failure, OSError, ValueError, KeyError, IndexError, TypeError):
        return []
    found = [sorted(glob.glob(pattern)) or sorted(glob.glob(str(ROOT / pattern))) for pattern in patterns if pattern]
    return [Path(name) for names in found for name in names]


def choose_tokens(options, model, count):
    """Returns the tokens for the comparison: from --data, from the run's own data, or random ones. Says which."""
    if options.data:
        return read_tokens(options.data, count)
    for path in data_of_run(options.folder):
        with contextlib.suppress(Failure):
            tokens = read_tokens(path, count)
            if max(tokens) < model["vocab"]:
                print(f"tokens: the first {count} of {path}")
                return tokens
    draw = random.Random(1337)
    print("tokens: drawn at random, so the loss is that of noise; name a token file with --data")
    return [draw.randrange(model["vocab"]) for _ in range(count)]


# ---- the trainer and transformers ------------------------------------------------------------------------------------


class Trainer:
    """The trainer's side: its loss over a data set, and its greedy text after a prompt."""

    def __init__(self, program, options, model, folder, tokens):
        self.program = program
        header = array("i", [20240801, 7, len(tokens)] + [0] * 253)
        (folder / "val.bin").write_bytes(header.tobytes() + array("I", tokens).tobytes())
        config = {
            "model": model,
            "train": {"global_batch": options.windows, "precision": "fp32"},
            "data": {"train": str(folder / "val.bin"), "val": str(folder / "val.bin"), "val_batches": 1},
            "checkpoint": {"init_from": str(options.folder.absolute())},
            "sample": {"tokenizer": "ids", "temperature": 0, "tokens": options.tokens},
            "hardware": {"device": "cpu"},
        }
        self.config = folder / "config.yaml"
        self.config.write_text(json.dumps(config), encoding="utf-8")

    def say(self, *arguments):
        try:
            return ask(self.program, self.config, "-q", *arguments)
        except Failure as failure:
            raise Failure(f"the trainer refuses it: {str(failure).splitlines()[-1]}") from None

    def loss(self):
        return json.loads(self.say("--validate", "--json"))["loss"]

    def text(self, prompt):
        return [int(word) for word in self.say("--generate", " ".join(map(str, prompt))).split()]


class Transformers:
    def __init__(self, folder):
        if importlib.util.find_spec("transformers") is None:
            sys.path.insert(0, str(ROOT / ".deps" / "transformers"))
        os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
        try:
            import torch
            import transformers
        except ImportError as error:
            raise Failure(f"{error.name} is missing, and check compares with it; run scripts/install_deps.sh") from None
        transformers.utils.logging.disable_progress_bar()
        self.torch = torch
        try:
            self.model, info = transformers.AutoModelForCausalLM.from_pretrained(
                folder, torch_dtype=torch.float32, output_loading_info=True)
        except Exception as error:
            raise Failure(f"{folder}: transformers refuses it: {str(error).splitlines()[0]}") from None
        for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            if info[what]:
                raise Failure(
                    f"{folder}: transformers reports {what.replace('_', ' ')}, such as {min(map(str, info[what]))}")
        self.model.eval()

    def logits(self, tokens):
        with self.torch.no_grad():
            return self.model(self.torch.tensor([tokens])).logits[0].float()

    def loss(self, windows):
        """Returns the mean loss, computed window by window since logits are large."""
        total = 0.0
        for window in windows:
            targets = self.torch.tensor(window[1:])
            total += self.torch.nn.functional.cross_entropy(self.logits(window[:-1]), targets).item()
        return total / len(windows)


# ---- check -----------------------------------------------------------------------------------------------------------


def compare_next(ours, theirs, prompt, seq_len, tolerance):
    """Returns None, or how our greedy text differs from that of transformers. At each position transformers gets our
    text so far, so that a tie does not change the rest."""
    text = ours.text(prompt)
    if text[: len(prompt)] != prompt or len(text) == len(prompt):
        return f"the trainer's text does not continue its prompt: {' '.join(map(str, text[:20]))}"
    for at in range(len(prompt), len(text)):
        logits = theirs.logits(text[max(0, at - seq_len) : at])[-1]
        best = int(logits.argmax())
        lead = float(logits[best] - logits[text[at]])
        if lead > tolerance:
            return (f"next token {at - len(prompt) + 1} after {len(prompt)} tokens is {text[at]} here and {best} in"
                    f" transformers, whose logit is {lead:.3g} higher")
    return None


def check(options):
    program, model = read_model(options)
    if model["family"] == "llama":  # rotations have no length limit; GPT-2's table of positions is part of the model
        model["seq_len"] = min(model["seq_len"], options.seq_len or 256)
    elif options.seq_len not in (None, model["seq_len"]):
        raise Failure(f"--seq-len {options.seq_len}: GPT-2's positions are part of the model; its sequences have"
                      f" {model['seq_len']} tokens")
    length, count = model["seq_len"], options.windows * model["seq_len"] + 1
    tokens = choose_tokens(options, model, count)
    windows = [tokens[i * length : i * length + length + 1] for i in range(options.windows)]
    with tempfile.TemporaryDirectory() as folder:
        ours = Trainer(program, options, model, Path(folder), tokens)
        mine = ours.loss()
        theirs = Transformers(options.folder)
        loss = theirs.loss(windows)
        print(f"loss over {options.windows} windows of {length} tokens: {mine:.6f} here, {loss:.6f} in transformers")
        if not abs(mine - loss) <= options.tolerance:
            raise Failure(
                f"{options.folder}: the loss is {mine:.6f} here and {loss:.6f} in transformers; they differ by"
                f" {abs(mine - loss):.3g}, allowed is {options.tolerance:g}")
        for window in windows[: options.prompts]:
            wrong = compare_next(ours, theirs, window[: max(1, length // 4)], length, options.tolerance)
            if wrong is not None:
                raise Failure(f"{options.folder}: {wrong}")
        asked = min(options.prompts, options.windows)
        print(f"next tokens: the same, {options.tokens} after each of {asked} prompts")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    forms = parser.add_subparsers(dest="form", required=True, metavar="info|check")
    info = forms.add_parser("info", help="sizes and tensors")
    info.set_defaults(act=show_info)
    same = forms.add_parser("check", help="compare the trainer with transformers")
    same.add_argument("--data", type=Path, metavar="TOKENS",
                      help="a token file; without it the run's own, else random tokens")
    same.add_argument("--windows", type=int, default=8, metavar="N", help="number of sequences (8)")
    same.add_argument(
        "--seq-len", type=int, metavar="N", help="llama: tokens per sequence (256, or the model's seq_len if smaller)")
    same.add_argument("--prompts", type=int, default=2, metavar="N", help="number of greedy texts (2)")
    same.add_argument("--tokens", type=int, default=8, metavar="N", help="tokens per greedy text (8)")
    same.add_argument("--tolerance", type=float, default=1e-3, metavar="X", help="for the loss and for a logit (0.001)")
    same.set_defaults(act=check)
    for form in (info, same):
        form.add_argument("folder", type=Path, metavar="DIR")
        form.add_argument("--trainer", type=Path, metavar="FILE", help="the program; train_llama or train_gpt")
    options = parser.parse_args()
    for name in ("windows", "seq_len", "prompts", "tokens"):
        value = getattr(options, name, None)
        if value is not None and value < 1:
            parser.error(f"--{name.replace('_', '-')}: {value} is too few; give 1 or more")
    return finish("hf.py", options.act, options)


if __name__ == "__main__":
    sys.exit(main())

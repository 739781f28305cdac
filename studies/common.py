"""What studies share: they ask the trainers, print tables, and write these into a page between two marks."""

import json
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
from run_files import Failure, find_trainer  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent


def trainer(family, folder=None):
    """Returns the path of a trainer, in the folder or where it was built or installed."""
    program = Path(folder) / f"train_{family}" if folder else find_trainer(family)
    if program is None or not Path(program).exists():
        raise Failure(f"{program or f'train_{family}'} is not here; build it, or say --bin DIR")
    return program


def options_of(keys):
    return [part for key, value in keys.items() for part in ("-o", f"{key}={value}")]


def ask(program, config, *words, fits=True, env=None):
    """Returns what the trainer prints. fits False: also if that is an answer with an exit code, as where nothing fits."""
    ended = subprocess.run([program, "-c", config, *words], capture_output=True, text=True, check=False,
                           env={**os.environ, **(env or {})})
    if ended.returncode != 0 and (fits or not ended.stdout):
        raise Failure(ended.stderr.strip()[-1000:])
    return ended.stdout


def plan(program, config, *words):
    return json.loads(ask(program, config, "--plan", "--json", *words))


def table(head, rows):
    """Returns a table of Markdown. head: the names of its columns, with bars between them."""
    line = f"| {head} |"
    return "\n".join([line, "|" + "---|" * (line.count("|") - 1), *(f"| {' | '.join(map(str, row))} |" for row in rows)])


def fill(page, name, text):
    """Returns the page with the text between <!-- name --> and the next <!-- end -->."""
    before, _, rest = page.partition(f"<!-- {name} -->\n")
    _, mark, after = rest.partition("<!-- end -->\n")
    if not mark:
        raise Failure(f"the page lacks the lines <!-- {name} --> and <!-- end -->")
    return f"{before}<!-- {name} -->\n\n{text}\n\n{mark}{after}"

"""Functions shared by studies: ask the trainers, print tables, write them into a page between two marks."""

import csv
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
from run_files import Failure, ask, trainer  # noqa: E402, F401 - trainer is for studies

ROOT = Path(__file__).resolve().parent.parent


def options_of(keys):
    return [part for key, value in keys.items() for part in ("-o", f"{key}={value}")]


def answer(program, config, *words, fits=True):
    """Returns a trainer's JSON. fits False: also where nothing fits."""
    return json.loads(ask(program, config, *words, "--json", fits=fits))


def csv_rows(path):
    """Returns the rows of a CSV file by column; lines that begin with # are comments."""
    return list(csv.DictReader(line for line in path.read_text().splitlines() if not line.startswith("#")))


def table(head, rows):
    """Returns a table of Markdown. head: the names of its columns, with bars between them."""
    line = f"| {head} |"
    body = (f"| {' | '.join(map(str, row))} |" for row in rows)
    return "\n".join([line, "|" + "---|" * (line.count("|") - 1), *body])


def fill(page, name, text):
    """Returns the page with the text between <!-- name --> and the next <!-- end -->."""
    before, _, rest = page.partition(f"<!-- {name} -->\n")
    _, mark, after = rest.partition("<!-- end -->\n")
    if not mark:
        raise Failure(f"the page lacks the lines <!-- {name} --> and <!-- end -->")
    return f"{before}<!-- {name} -->\n\n{text}\n\n{mark}{after}"

"""What studies share: they ask the trainers, print tables, and write these into a page between two marks."""

import csv
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))
from run_files import Failure, ask, trainer  # noqa: E402, F401 - trainer is for studies

ROOT = Path(__file__).resolve().parent.parent
QUIET = {"data.val": "", "data.val_every": 0, "checkpoint.every": 0}  # a run of training steps alone


def options_of(keys):
    return [part for key, value in keys.items() for part in ("-o", f"{key}={value}")]


def answer(program, config, *words, fits=True):
    """Returns a trainer's JSON. fits False: also where nothing fits."""
    return json.loads(ask(program, config, *words, "--json", fits=fits))


def dry_run(family, config, keys, *words, gpus=8, nodes=1):
    """Runs on virtual GPUs that compute nothing (`make virtual`). Returns the last line of the metrics."""
    with tempfile.TemporaryDirectory() as folder:
        metrics = Path(folder, "metrics.jsonl")
        env = {"VIRTUAL_DRY": "1", "VIRTUAL_GPUS": str(gpus), "VIRTUAL_NODES": str(nodes), "OMP_NUM_THREADS": "1"}
        options = options_of({**QUIET, "log.metrics": metrics, **keys})
        ask(trainer(family, ROOT / "build/virtual"), config, *options, *words, env=env)
        return json.loads(metrics.read_text().splitlines()[-1])


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

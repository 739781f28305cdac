"""README.md stays true: its commands run, and the number of lines to read first is correct. test_planning_page.py
compares the output that it shows."""

import json
import re

import pytest
from trainer_runs import BUILD, ROOT, environment, execute

README = (ROOT / "README.md").read_text().replace(" \\\n        ", " ")  # continued lines are one command
FENCED = re.findall(r"^    (?:\$ )?((?:\./train_|scripts/|make |docker ).*?)(?:  +#.*)?$", README, re.M)
# Commands that other tests run, or that cannot be run here.
ELSEWHERE = {
    "scripts/install_deps.sh && make && ./train_llama -c configs/llama_tiny.yaml": ".ci/run, a few steps of it",
    "scripts/install_deps.sh && make test": ".ci/run",
    "scripts/prepare_data.py mine.jsonl --tokenizer tokenizer.json --name mine": "test_prepare_data.py",
    "make dist": "test_packaging.py",
    "docker build -t bpipe-trainer .": "not run, as README.md says; test_packaging.py reads the Dockerfile",
}
CONFIG_JSON = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,
    "num_key_value_heads": 8, "num_hidden_layers": 32, "vocab_size": 128256, "rms_norm_eps": 1e-5, "hidden_act": "silu",
    "max_position_embeddings": 8192, "rope_theta": 500000.0, "tie_word_embeddings": False,
}
SHORT = "-o train.steps=2 -o checkpoint.every=0 -o data.val_every=0"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A folder like this checkout, with the programs of this build, into which commands may write."""
    place = tmp_path_factory.mktemp("readme") / "checkout"
    place.mkdir()
    for path in ROOT.iterdir():
        if path.name not in ("out", "train_gpt", "train_llama"):
            (place / path.name).symlink_to(path)
    for family in ("gpt", "llama"):
        (place / f"train_{family}").symlink_to(BUILD / f"train_{family}")
    (place / "config.json").write_text(json.dumps(CONFIG_JSON))
    return place


def short(command):
    """Returns the command, with runs cut to two steps; the run of best.yaml, for eight GPUs, is only planned."""
    if "-c best.yaml" in command:
        return f"{command} --plan"
    trains = "./train_" in command and not re.search(r"--(plan|search|schedule|help)", command)
    return f"{command} {SHORT}" if trains else command


def test_every_command_is_run_by_a_test():
    assert FENCED
    assert set(ELSEWHERE) <= set(FENCED)
    assert "make test" in (ROOT / ".ci/run").read_text() and "scripts/install_deps.sh" in (ROOT / ".ci/run").read_text()


@pytest.mark.thorough
@pytest.mark.usefixtures("ranks")
def test_the_commands_run_one_after_the_other(checkout, tmp_path):
    env = {name: value for name, value in environment(HOME=str(tmp_path)).items()
           if not name.startswith(("MAKE", "MFLAGS"))}
    for command in FENCED:
        if command in ELSEWHERE:
            continue
        ended = execute(["bash", "-ec", short(command)], cwd=checkout, env=env)
    assert not list(tmp_path.glob(".local/bin/*"))  # uninstalled by a later command


def test_the_lines_to_read_first_are_as_many_as_it_says():
    claims = re.findall(r"(?:are|is) about ([\d,]+) lines:\s((?:[^.]|\.\S)+)\.\s", README)
    assert len(claims) == 2
    for said, files in claims:
        paths = [path for name in re.findall(r"`(\S+)`", files) for path in ROOT.glob(name)]
        count = sum(len(path.read_text().splitlines()) for path in paths)
        assert abs(count / int(said.replace(",", "")) - 1) < 0.1, (files, count)


def test_the_step_line_is_one_of_this_version():
    line = re.search(r"^    (step .*)$", README, re.M)[1]
    assert re.fullmatch(r"step +\d+/\d+ \| loss [\d.]+ \| norm [\d.]+ \| lr \S+ \| \d+ ms \| \d+ tok/s \|"
                        r" MFU [\d.]+% \| bubble \d+% \| [\d.]+ .iB@\d \| \w+", line)

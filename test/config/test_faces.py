"""Documentation from the tables of options and keys: --help, the manual page, completion in bash and zsh, and
docs/configuration.md name every row, and each has valid syntax."""

import os
import pty
import re
import select
import shutil
import time

import pytest
from trainer_runs import FAMILIES, ROOT, command, environment, execute, patience, script

OPTIONS = re.findall(r'^    \{"([a-z-]+)", ', (ROOT / "src/config/options.c").read_text(), re.M)
SCHEMA = (ROOT / "src/config/config_schema.c").read_text()
KEYS = list(map(".".join, re.findall(r"^    [A-Z]+\((?!section)(\w+), (\w+),", SCHEMA, re.M)))


def needs(program):
    return pytest.mark.skipif(shutil.which(program) is None,
                              reason=f"{program} is not installed (scripts/install_deps.sh)")


def face(kind, family="llama"):
    """Returns the output of make/faces.py for the trainer's tables; kind: man, bash, zsh or markdown."""
    tables = command(family, "--help-config", "--json")
    assert tables.stderr == "", tables.stderr
    answer = script("faces.py", kind, input=tables.stdout)
    assert answer.stderr == "", answer.stderr
    return answer.stdout


def test_the_tables_are_found_in_the_source():
    assert {"config", "plan", "resume", "version"} < set(OPTIONS)
    assert {"model.hidden", "train.lr", "parallel.layers", "hardware.profile"} < set(KEYS)


def test_every_face_has_every_option_and_key():
    manual = face("man").replace("\\-", "-")
    bash, zsh, help = face("bash"), face("zsh"), command("llama", "--help").stdout
    for option in OPTIONS:
        assert f"--{option} " in help + " " or f"--{option}\n" in help, option
        assert f"\\fB--{option}\\fR" in manual, option
        assert re.search(rf"[ \"]--{option}[ \"]", bash), option
        assert re.search(rf"'\*?--{option}=?\[", zsh), option
    plain, page = command("llama", "--help-config").stdout, face("markdown")
    for key in KEYS:
        section, name = key.split(".")
        assert f"\\fB{key}\\fR" in manual, key
        assert re.search(rf"[ \"]{re.escape(key)}=[ \"]", bash), key
        assert f"'{key}:" in zsh, key
        assert re.search(rf"^{section}:\n(  .*\n)*  {name} ", plain, re.M), key
        assert f"\n| `{key}` | " in page, key


def test_every_key_is_read():
    """Code outside of src/config reads a field with the key's name."""
    paths = [*ROOT.glob("*.c"), *ROOT.glob("*.cu"), *ROOT.joinpath("src").rglob("*.*")]
    code = "".join(path.read_text() for path in paths if "config" not in path.parts and path.suffix[1:2] in ("c", "h"))
    unused = [key for key in KEYS if not re.search(rf"(?:\.|->){key.split('.')[1]}\b", code)]
    assert unused == [], f"{unused}: no code outside of src/config reads it"


def test_the_committed_page_of_keys_is_what_the_program_prints():
    said = "docs/configuration.md is not what the table of keys says now; run `make docs` and commit the page"
    assert (ROOT / "docs/configuration.md").read_text() == face("markdown"), said


def test_the_page_of_keys_is_a_table_of_whole_rows():
    rows = [line for line in face("markdown").splitlines() if line.startswith("|")]
    assert len(rows) > len(KEYS)
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 5 for row in rows)


# ---- the manual page -------------------------------------------------------------------------------------------------


@needs("mandoc")
@pytest.mark.parametrize("family", FAMILIES)
def test_mandoc_finds_nothing_wrong_with_the_manual_page(family, tmp_path):
    page = tmp_path / "page.1"
    page.write_text(face("man", family=family))
    checked = execute(["mandoc", "-T", "lint", "-W", "warning", page])
    assert checked.stdout == "", checked.stdout


@needs("man")
def test_man_shows_the_page_without_a_warning(tmp_path):
    page = tmp_path / "train_llama.1"
    page.write_text(face("man"))
    shown = execute(["man", "-l", "--warnings", page], env={**os.environ, "MANWIDTH": "120", "LC_ALL": "C"})
    assert shown.stderr == ""
    assert re.search(r"-o, --override KEY=VALUE\n +set one key, as in -o train.steps=10;", shown.stdout)
    assert re.search(r"schedule.micro_batch\n +b: sequences in one microbatch. +Default 1; an integer from 1",
                     shown.stdout)


# ---- completion ------------------------------------------------------------------------------------------------------


@needs("shellcheck")
def test_shellcheck_finds_nothing_wrong_with_the_completion_of_bash(tmp_path):
    script = tmp_path / "script"
    script.write_text(face("bash"))
    execute(["shellcheck", "-s", "bash", script])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("completion")
    for family in FAMILIES:
        (place / f"train_{family}.bash").write_text(face("bash", family=family))
        (place / f"train_{family}.zsh").write_text(face("zsh", family=family))
    functions = tmp_path_factory.mktemp("functions", numbered=False)
    for family in FAMILIES:
        shutil.copy(place / f"train_{family}.zsh", functions / f"_train_{family}")
    for name in ("run.yaml", "other.yml", "run.txt", "weights.bin"):
        (place / name).touch()
    (place / "configs").mkdir()
    return place


def bash(folder, *words, family="llama", breaks=True):
    """Returns bash's completions of the last word. As in readline, = is a separate word unless COMP_WORDBREAKS lacks
    it."""
    split = [part for word in words for part in re.findall(r"=|[^=]+", word) or [""]] if breaks else words
    script = """
        source "$1"
        COMP_WORDS=("${@:2}")
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        "_${COMP_WORDS[0]}"
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    offered = execute(["bash", "--norc", "-c", script, "bash", f"train_{family}.bash", f"train_{family}", *split],
                      cwd=folder)
    assert offered.stderr == "", offered.stderr
    return sorted(offered.stdout.split())


@pytest.mark.parametrize("family", FAMILIES)
def test_bash_completes_options_and_keys(folder, family):
    offered = bash(folder, "", family=family)
    assert {f"--{option}" for option in OPTIONS} <= set(offered)
    assert bash(folder, "--pl", family=family) == ["--plan"]
    assert bash(folder, "-o", "", family=family) == sorted(f"{key}=" for key in KEYS)
    assert bash(folder, "-o", "train.pre", family=family) == ["train.precision="]
    assert bash(folder, "-c", "run.yaml", "--plan", "-o", "schedule.bp", family=family) == ["schedule.bpipe="]


@pytest.mark.parametrize("form", [["-o"], ["--override"], "--override="], ids=["o", "override", "joined"])
def test_bash_completes_values(folder, form):
    def offered(text, **how):
        words = [form + text] if isinstance(form, str) else [*form, text]
        return bash(folder, *words, **how)

    assert offered("train.pre") == ["train.precision="]
    assert offered("train.precision=") == ["bf16", "fp32"]
    assert offered("train.precision=b") == ["bf16"]
    assert offered("parallel.sequence=t") == ["true"]
    assert offered("model.kv_heads=") == ["auto"]
    assert offered("schedule.group=") == ["auto", "half"]
    assert offered("train.seed=") == []
    assert offered("data.train=wei") == ["weights.bin"]
    if not isinstance(form, str):
        assert offered("train.precision=b", breaks=False) == ["train.precision=bf16"]


def test_bash_completes_files_where_files_are_meant(folder):
    assert bash(folder, "-c", "") == ["configs", "other.yml", "run.yaml"]
    assert bash(folder, "--config", "r") == ["run.yaml"]
    assert bash(folder, "--config=r") == ["run.yaml"]
    assert bash(folder, "--trace", "run") == ["run.txt", "run.yaml"]
    assert bash(folder, "--resume", "") == ["configs"]


@needs("zsh")
@pytest.mark.parametrize("family", FAMILIES)
def test_zsh_reads_its_script(folder, family):
    checked = execute(["zsh", "-n", folder / f"train_{family}.zsh"])
    assert checked.stderr == ""


class Zsh:
    """An interactive zsh on a terminal of its own; Ctrl-X writes the current command line to a file."""

    def __init__(self, folder, load):
        self.line = folder / "line"
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execvpe("zsh", ["zsh", "-f", "-i"], environment(TERM="dumb", LC_ALL="C"))
        setup = (f"unsetopt zle_bracketed_paste; PS1=; autoload -Uz compinit; {load}; "
                 f'keep() {{ print -r -- "$BUFFER" >! {self.line}.new; mv {self.line}.new {self.line} }}; zle -N keep; '
                 f"bindkey '^X' keep; bindkey '^I' complete-word; print ready >! {self.line}.new; mv {self.line}.new"
                 f" {self.line}\n")
        os.write(self.terminal, setup.encode())
        assert self.take() == "ready"

    def take(self):
        deadline = time.monotonic() + patience(20)
        while not self.line.exists():
            assert time.monotonic() < deadline, "zsh does not answer"
            if select.select([self.terminal], [], [], 0.02)[0]:
                os.read(self.terminal, 1 << 16)
        text = self.line.read_text().strip()
        self.line.unlink()
        return text

    def complete(self, text):
        os.write(self.terminal, b"\x15" + text.encode() + b"\t\x18")
        return self.take()

    def close(self):
        os.write(self.terminal, b"\x15exit\n")
        os.close(self.terminal)
        os.waitpid(self.pid, 0)


LOADED = {"sourced": "compinit -u -D; source train_llama.zsh; source train_gpt.zsh",
          "installed": "fpath=($PWD/../functions $fpath); compinit -u -D"}


@pytest.mark.thorough
@needs("zsh")
@pytest.mark.parametrize("way", LOADED)
def test_zsh_completes_options_keys_values_and_files(folder, way):
    zsh = Zsh(folder, LOADED[way])
    try:
        for typed, becomes in (
            ("train_llama --pl", "train_llama --plan"),
            ("train_gpt --emu", "train_gpt --emulate-stage="),
            ("train_llama -o train.pre", "train_llama -o train.precision="),
            ("train_llama -o train.precision=b", "train_llama -o train.precision=bf16"),
            ("train_gpt --override=parallel.seq", "train_gpt --override=parallel.sequence="),
            ("train_gpt --override=parallel.sequence=t", "train_gpt --override=parallel.sequence=true"),
            ("train_llama -o data.train=wei", "train_llama -o data.train=weights.bin"),
            ("train_llama -c r", "train_llama -c run.yaml"),
            ("train_llama -c run.yaml --plan -o schedule.bp", "train_llama -c run.yaml --plan -o schedule.bpipe="),
        ):
            assert zsh.complete(typed) == becomes
    finally:
        zsh.close()


def test_a_face_that_is_not_known_and_other_input_are_refused():
    unknown = script("faces.py", "fish", input="{}", code=2)
    other = script("faces.py", "bash", input="no JSON", code=1)
    assert unknown.stderr.startswith("faces.py: give one of man, bash, zsh, markdown")
    assert "is not the output of train_llama --help-config --json" in other.stderr

#!/usr/bin/python3
"""Writes the manual page, the completion scripts and docs/configuration.md from the trainer's tables of options and
keys.

    ./train_llama --help-config --json | make/faces.py man        read it with man -l -
    ./train_llama --help-config --json | make/faces.py bash|zsh   source it, or install it where the shell looks
    ./train_llama --help-config --json | make/faces.py markdown   docs/configuration.md (make docs)
"""

import json
import re
import sys

EMPTY = '""'
CODES = (
    "Done.",
    "Failed while running; the last line says where and why.",
    "Bad usage or configuration; nothing was started.",
    "Stopped on request, with its checkpoint saved.",
)


def sections(keys):
    """Yields each section and its keys, in the table's order."""
    for name in dict.fromkeys(key["name"].partition(".")[0] for key in keys):
        yield name, [key for key in keys if key["name"].startswith(f"{name}.")]


# ---- the manual page -------------------------------------------------------------------------------------------------

MAN = r""".TH {upper} 1 {date} "version {version}" "Does BPipe pay?"
.SH NAME
{program} \- train a language model across pipeline stages, with or without BPipe
.SH SYNOPSIS
.B {program}
\fB\-c\fR \fIFILE\fR
[\fB\-o\fR \fIKEY=VALUE\fR]...
[\fIOPTION\fR]...
.SH DESCRIPTION
Trains the model of a YAML configuration, split into pipeline stages that run in 1F1B order.
BPipe levels the stages' memory: the first half of the stages move activations to their partners in the
second half and take them back in time.
\fB\-\-plan\fR says before anything runs how much memory each stage takes, how long a step lasts,
and whether BPipe pays.
.SH OPTIONS
{options}
.SH CONFIGURATION
The file is YAML: sections that hold keys.
Below, and after \fB\-o\fR, a key is written with its section.
{keys}
.SH EXIT STATUS
{codes}
.SH SIGNALS
\fBSIGTERM\fR, \fBSIGINT\fR (Ctrl\-C) and \fBSIGUSR1\fR end the run after the current step, with a checkpoint if
\fIcheckpoint.dir\fR is set.
A second signal ends it at once.
.SH ENVIRONMENT
.TP
.B OMP_NUM_THREADS
Threads of each rank; by default the ranks of a machine share its cores.
.TP
.B OMPI_MCA_*
Settings of Open MPI are passed on to the ranks that the program starts.
.SH FILES
Standard output carries results, standard error status and errors.
Metrics go to \fIlog.metrics\fR as JSON lines, checkpoints to \fIcheckpoint.dir\fR as safetensors.
.SH EXAMPLES
Four stages with BPipe on this machine, ten steps:
.PP
.EX
    {program} \-c configs/{family}_tiny.yaml \-o train.steps=10
.EE
.PP
Would BPipe pay at micro\-batch 2?
.PP
.EX
    {program} \-c FILE \-\-plan \-o schedule.micro_batch=2
.EE
.PP
Resume after a stop:
.PP
.EX
    {program} \-c FILE \-\-resume DIR
.EE"""


def roff(text):
    """Escapes text for roff: backslashes, a dot or an apostrophe at the beginning of a line, and hyphens, which readers
    may copy into a shell."""
    return re.sub(r"(?m)^(?=[.'])", r"\\&", text.replace("\\", r"\e")).replace("-", r"\-")


def man(tables):
    options = []
    for row in tables["options"]:
        letter = rf"\fB\-{row['letter']}\fR, " if row["letter"] else ""
        argument = rf" \fI{roff(row['argument'])}\fR" if row["argument"] else ""
        options.append(f".TP\n{letter}\\fB\\-\\-{roff(row['name'])}\\fR{argument}\n{roff(row['meaning'])}.")
    keys = []
    for section, rows in sections(tables["keys"]):
        keys.append(f".SS {section}")
        for row in rows:
            default = "Required:" if row["default"] is None else f"Default {roff(row['default'] or EMPTY)};"
            keys.append(f".TP\n\\fB{roff(row['name'])}\\fR\n{roff(row['meaning'])}.\n{default}"
                        f" {roff(row['expected'])}.")
    codes = [f".TP\n.B {code}\n{meaning}" for code, meaning in enumerate(CODES)]
    program = tables["program"]
    return MAN.format(
        **{name: "\n".join(lines) for name, lines in (("options", options), ("keys", keys), ("codes", codes))},
        program=program,
        family=program.removeprefix("train_"),
        upper=program.upper(),
        version=tables["version"],
        date=tables["date"],
    )


# ---- completion ------------------------------------------------------------------------------------------------------

BASH = r"""# Completion for bash, made by make/faces.py.
_^_reply() { mapfile -t COMPREPLY < <(compgen "$@"); }

# Files that begin with $1, of the endings $2...; folders, to continue from.
_^_files() {
  local begin=$1 ending
  shift
  compopt -o filenames 2>/dev/null
  if [[ $# == 0 ]]; then
    _^_reply -f -- "$begin"
    return
  fi
  mapfile -t COMPREPLY < <(
    compgen -d -- "$begin"
    for ending; do compgen -f -X "!*.$ending" -- "$begin"; done
  )
}

# KEY=VALUE: the key, empty while it is being typed, and the part of it or of its value that is there.
_^_override() {
  local key=$1 cur=$2 begin='' keys="@KEYS@"
  if [[ -z $key && $cur != *=* ]]; then
    compopt -o nospace 2>/dev/null
    _^_reply -W "$keys" -- "$cur"
    return
  fi
  if [[ -z $key ]]; then # = separates no words here
    key=${cur%%=*}
    begin=$key=
    cur=${cur#*=}
  fi
  case $key in
@VALUES@
  esac
  if [[ -n $begin ]]; then COMPREPLY=("${COMPREPLY[@]/#/$begin}"); fi
}

_^() {
  local cur=${COMP_WORDS[COMP_CWORD]} previous key='' at=$COMP_CWORD
  # Where = separates words, KEY=VALUE is three of them and KEY= two, the last being the = itself.
  if [[ $cur == = ]]; then
    cur=
    at=$((at + 1))
  fi
  if [[ $at -ge 2 && ${COMP_WORDS[at - 1]} == = ]]; then
    key=${COMP_WORDS[at - 2]}
    at=$((at - 2))
    if [[ $key == -* ]]; then # --option=VALUE
      key=
      at=$((at + 1))
    fi
  fi
  previous=${COMP_WORDS[at - 1]}
  if [[ $previous == = ]]; then previous=${COMP_WORDS[at - 2]}; fi # --option=KEY=VALUE
  COMPREPLY=()
  case $previous in
@OPTIONS@
    *) _^_reply -W "@NAMES@" -- "$cur" ;;
  esac
}

complete -F _^ ^"""

ZSH = r"""#compdef ^
# Completion for zsh, made by make/faces.py.
_^_override() {
  local -a keys words
  keys=(
@KEYS@
  )
  if ! compset -P '*='; then
    _describe -t keys key keys -S =
    return
  fi
  case ${${IPREFIX%=}##*=} in
@VALUES@
  esac
  compadd -a words
}

_^() {
  _arguments -s \
@OPTIONS@
    && return 0
}

# Called as a file of fpath, or sourced.
if [[ ${funcstack[1]} == _^ ]]; then _^ "$@"; else compdef _^ ^; fi"""


def value_cases(keys, words, files):
    """Returns the branches of a shell's case over a key's name; keys with text values complete to files."""
    given = [(key, files if key["text"] else words.format(" ".join(key["words"]))) for key in keys]
    return "\n".join(f"    {key['name']}) {branch} ;;" for key, branch in given if key["text"] or key["words"])


def fill(template, program, **parts):
    """Replaces the @MARKS@ of the template by the parts, and ^ by the program's name."""
    template = template.replace("^", program)
    for name, text in parts.items():
        template = template.replace(f"@{name}@", text)
    return template


def bash(tables):
    program, options, names = tables["program"], [], []
    files, reply = f'_{program}_files "$cur"', f"_{program}_reply"
    branches = {
        "FILE": files,
        "DIR": f'{reply} -d -- "$cur"',
        "KEY=VALUE": f'_{program}_override "$key" "$cur"',
    }
    for row in tables["options"]:
        names += [f"--{row['name']}"] + ([f"-{row['letter']}"] if row["letter"] else [])
        if row["argument"]:
            config = row["name"] == "config"
            branch = f"{files} yaml yml json" if config else branches.get(row["argument"], ":")
            pattern = (f"-{row['letter']} | " if row["letter"] else "") + f"--{row['name']}"
            options.append(f"    {pattern}) {branch} ;;")
    return fill(
        BASH,
        program,
        KEYS=" ".join(f"{key['name']}=" for key in tables["keys"]),
        VALUES=value_cases(tables["keys"], reply + ' -W "{}" -- "$cur"', files),
        OPTIONS="\n".join(options),
        NAMES=" ".join(names),
    )


def zsh(tables):
    def text(words):
        return re.sub(r"([\[\]:\\])", r"\\\1", words).replace("'", "'\\''")

    actions = {"FILE": "_files", "DIR": "_files -/", "KEY=VALUE": f"_{tables['program']}_override"}
    options = []
    for row in tables["options"]:
        action = '_files -g "*.(yaml|yml|json)"' if row["name"] == "config" else actions.get(row["argument"], " ")
        value = f":{text(row['argument'])}:{action}" if row["argument"] else ""
        plus, equals = ("+", "=") if row["argument"] else ("", "")
        names = ([f"-{row['letter']}{plus}"] if row["letter"] else []) + [f"--{row['name']}{equals}"]
        star = "*" if row["kind"] == "list" else ""
        options += [f"    '{star}{name}[{text(row['meaning'])}]{value}' \\" for name in names]
    return fill(
        ZSH,
        tables["program"],
        KEYS="\n".join(f"    '{key['name']}:{text(key['meaning'])}'" for key in tables["keys"]),
        VALUES=value_cases(tables["keys"], "words=({})", "_files; return"),
        OPTIONS="\n".join(options),
    )


# ---- docs/configuration.md -------------------------------------------------------------------------------------------

PAGE = """# Configuration

After this page you can look up any key: its type, default, range and meaning. `make docs` writes it.

A configuration is one YAML file of sections that hold keys: `model.hidden` below is the key `hidden` of the section
`model`. On the command line `-o model.hidden=512` sets it, repeatable, the last one wins. An unknown key, a wrong type,
a value out of bounds or a combination that cannot work ends the program with code 2 and one sentence that names file,
line, key and the values that would be right.

An integer may be written as 300000, 3e5, 300k or 0.3M; k, M, B and T are powers of 1000. The sizes under model take
no suffix, because there 8k often means 8192."""


def markdown(tables):
    lines = [PAGE, "", "| key | meaning | default | value |", "|---|---|---|---|"]
    for row in tables["keys"]:
        default = "required" if row["default"] is None else f"`{row['default'] or EMPTY}`"
        cells = [row["meaning"].replace("|", "\\|"), default, row["expected"].replace("|", "\\|")]
        lines.append(f"| `{row['name']}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def main():
    faces = {"man": man, "bash": bash, "zsh": zsh, "markdown": markdown}
    if len(sys.argv) != 2 or sys.argv[1] not in faces:
        print(f"faces.py: give one of {', '.join(faces)}; the tables come on standard input", file=sys.stderr)
        return 2
    try:
        tables = json.load(sys.stdin)
    except ValueError:
        print("faces.py: standard input is not the output of train_llama --help-config --json", file=sys.stderr)
        return 1
    print(faces[sys.argv[1]](tables))
    return 0


if __name__ == "__main__":
    sys.exit(main())

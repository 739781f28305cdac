"""Reads YAML and TOML as settings. Runs nothing, and creates no objects of other programs."""

import json
import re

from run_files import Failure

from .settings import Settings, brief

DEEPEST, MOST = 40, 20000
# Per suffix: the programs that read such a file, and the error for any other program.
YAML = ("nanotron", "nemo", "bridge"), "is YAML; use nemo, bridge or nanotron"
SUFFIXES = {
    ".toml": (("torchtitan",), "is TOML; use torchtitan"), ".sh": (("megatron",), "is a launch script; give the file"
    " that it names, and the KEY=VALUE words of its command after it"),
    ".yaml": YAML, ".yml": YAML,
    ".json": (YAML[0], "is JSON; a model's config.json is planned with -c, and describes no run"),
    ".py": ((), "is Python, which is not run; give the YAML or TOML that the run writes, such as run_config.yaml beside"
                " a checkpoint of Megatron-Bridge"),
}


def refuse_others(file, program):
    """Refuses a file whose suffix belongs to another program."""
    programs, remedy = SUFFIXES.get(file.suffix, ((program,), ""))
    if program not in programs:
        raise Failure(f"{file}: {remedy}")


def read_yaml(text):
    try:
        import yaml
    except ImportError:
        raise Failure("needs PyYAML to read YAML: apt install python3-yaml, or pip install pyyaml") from None

    class Loader(yaml.SafeLoader):
        """Reads objects of other programs as mappings of their fields."""

    def fields(loader, _, node):
        if isinstance(node, yaml.MappingNode):
            return loader.construct_mapping(node, True)
        return loader.construct_sequence(node, True) if isinstance(node, yaml.SequenceNode) else node.value

    Loader.add_multi_constructor("", fields)
    try:
        found = yaml.load(text, Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError, TypeError, OverflowError) as error:
        raise Failure(f"is not YAML ({' '.join(str(error).split())[:200]})") from None
    if not isinstance(found, dict):
        raise Failure("is not a YAML mapping of sections; give the run's configuration")
    return found


def overridden(tables, words):
    """Returns the tables with the values of words of a command line: a.b=value, +a.b=value, --a.b=value."""
    for word in words:
        found = re.fullmatch(r"(?:\+*|--)([a-z_][\w.]*)=(.*)", word, re.DOTALL)
        if found is None:
            raise Failure(f"{word}: is not a setting; write KEY=VALUE, such as training.steps=100")
        *parents, last = found[1].split(".")
        table = tables
        for name in parents:
            if table.get(name) is None:
                table[name] = {}
            if not isinstance(table[name], dict):
                raise Failure(f"{word}: {name} is {brief(table[name])}, not a table; write it whole")
            table = table[name]
        table[last] = value_of(found[2])
    return tables


def value_of(text):
    """Returns the value of a text of a command line: of JSON, a list of words without quotes, or the text itself."""
    try:
        return json.loads(text.lower() if text.lower() in ("true", "false", "null") else text)
    except (ValueError, RecursionError):
        if re.fullmatch(r"\[[^][{}]+\]", text):
            return [value_of(each.strip(" '\"")) for each in text[1:-1].split(",")]
        return text


def flattened(value, name="", deep=0):
    """Yields (a.b.c, value) of nested tables; entries of lists of tables are a[0].b."""
    if deep > DEEPEST:
        raise Failure("is nested too deeply for a run's configuration")
    if isinstance(value, dict) and value:
        for key, each in value.items():
            yield from flattened(each, f"{name}.{key}" if name else str(key), deep + 1)
    elif isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
        for at, each in enumerate(value):
            yield from flattened(each, f"{name}[{at}]", deep + 1)
    else:
        yield name, None if value == {} else value


def settings_of(tables):
    """Returns Settings named a.b.c of nested tables."""
    settings = Settings(spell=str)
    for name, value in flattened(tables):
        settings.values[name] = (name, value)
        if len(settings.values) > MOST:
            raise Failure("is too long for a run's configuration")
    return settings

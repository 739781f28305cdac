"""Reads YAML and TOML as settings, without running what they ask for."""

import json
import re

from run_files import Failure

from .settings import Settings

DEEPEST, MOST = 40, 20000


def read_yaml(text):
    try:
        import yaml
    except ImportError:
        raise Failure("needs PyYAML to read YAML: apt install python3-yaml, or pip install pyyaml") from None

    class Loader(yaml.SafeLoader):
        """Takes objects of other programs as their fields."""

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
            raise Failure(f"{word}: is no setting; write KEY=VALUE, such as training.steps=100")
        *parents, last = found[1].split(".")
        table = tables
        for name in parents:
            if not isinstance(table.get(name), dict):
                table[name] = {}
            table = table[name]
        try:
            table[last] = json.loads(found[2].lower() if found[2].lower() in ("true", "false", "null") else found[2])
        except (ValueError, RecursionError):
            table[last] = found[2]
    return tables


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

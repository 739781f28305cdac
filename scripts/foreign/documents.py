"""Reads YAML as nested tables, without running what it asks for."""

from run_files import Failure

from .settings import Settings


def read_yaml(text):
    try:
        import yaml
    except ImportError:
        raise Failure("needs PyYAML to read YAML: apt install python3-yaml, or pip install pyyaml") from None

    class Loader(yaml.SafeLoader):
        """Takes objects of other programs as their fields."""

    Loader.add_multi_constructor("", lambda loader, suffix, node: loader.construct_mapping(node, True) if isinstance(node, yaml.MappingNode)
                                 else loader.construct_sequence(node, True) if isinstance(node, yaml.SequenceNode) else node.value)  # fmt: skip
    try:
        found = yaml.load(text, Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError, TypeError, OverflowError) as error:
        raise Failure(f"is not YAML ({' '.join(str(error).split())[:200]})") from None
    if not isinstance(found, dict):
        raise Failure("is not a YAML mapping of sections; give the run's configuration")
    return found


def settings_of(tables):
    """Returns Settings named a.b.c of nested tables; entries of lists of tables are a[0].b."""
    settings, most = Settings(spell=str), 20000

    def walk(value, name, deep):
        if deep > 40 or len(settings.values) > most:
            raise Failure("is nested too deeply, or too long, for a run's configuration")
        if isinstance(value, dict) and value:
            for key, each in value.items():
                walk(each, f"{name}.{key}" if name else str(key), deep + 1)
        elif isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
            for at, each in enumerate(value):
                walk(each, f"{name}[{at}]", deep + 1)
        else:
            settings.values[name] = (name, None if value == {} else value)

    walk(tables, "", 0)
    return settings

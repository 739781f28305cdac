"""The folders of src are layers: no file includes or calls code of a folder that comes after its own in the table of
docs/architecture.md.

Includes are read from the sources, calls from the object files: a call is a symbol that one object needs and another
object defines.
"""

import functools
import re
from pathlib import Path

import pytest
from trainer_runs import ROOT, TOOLS, execute

SOURCE = ROOT / "src"
OBJECTS = TOOLS.parent
TABLE = re.findall(r"^\| `src/(\w+)/` \|", (ROOT / "docs/architecture.md").read_text(), re.M)
BPIPE = ROOT / "bpipe.c", ROOT / "bpipe.h"


def order(folder):
    """Returns a folder's position in the table. bpipe.c comes between base and the folder of schedules."""
    return TABLE.index("base") + 0.5 if folder == "bpipe" else TABLE.index(folder)


def includes(path):
    """Yields the headers of this project that a file includes, as paths from src; bpipe.h is bpipe/bpipe.h."""
    for name in re.findall(r'^\s*#\s*include "(?:src/)?([\w./]+)"', path.read_text(), re.M):
        if (SOURCE / name).is_file():
            yield name
        elif name == "bpipe.h" and path not in BPIPE:
            yield "bpipe/bpipe.h"
        elif (path.parent / name).is_file() and path.parent != ROOT:
            yield str((path.parent / name).relative_to(SOURCE))


def sources():
    return sorted(path for path in SOURCE.rglob("*.*") if path.suffix in (".c", ".h", ".cu", ".cpp", ".cuh"))


def folder_of(path):
    return path.relative_to(SOURCE).parts[0] if SOURCE in path.parents else "bpipe"


def test_every_folder_is_in_the_table():
    assert sorted(TABLE) == sorted(path.name for path in SOURCE.iterdir())


def test_no_folder_includes_one_that_comes_after_it():
    found = [(folder_of(path), path.name, name) for path in [*BPIPE, *sources()] for name in includes(path)]
    assert found
    assert {name for folder, _, name in found if folder == "bpipe"} > {"base/log.h"}
    assert [each for each in found if order(each[2].split("/")[0]) > order(each[0])] == []


# ---- calls -----------------------------------------------------------------------------------------------------------


def symbols(paths, option):
    """Returns (object, symbol) for all symbols that these objects define, or need, as `option` of nm selects."""
    listed = execute(["nm", "-A", "-P", "--extern-only", option, *paths])
    return [tuple(line.split(": ", 1)) for line in listed.stdout.splitlines()]


def objects():
    """Returns (source, object) of every library file that this build compiled and that has not changed since then."""
    pairs = [(path, OBJECTS / path.relative_to(ROOT)) for path in [ROOT / "bpipe.c", *sources()]]
    pairs = [(path, made.with_suffix(".o") if path.suffix == ".c" else Path(f"{made}.o")) for path, made in pairs]
    return [(path, made) for path, made in pairs if made.exists() and made.stat().st_mtime >= path.stat().st_mtime]


@functools.cache
def calls():
    """Returns (source, needed symbol, defining source) for all functions and data that one file of the library uses
    from another."""
    source_of = {str(made): path for path, made in objects()}
    owners = {line.split()[0]: source_of[made] for made, line in symbols(source_of, "--defined-only")}
    needed = [(source_of[made], line.split()[0]) for made, line in symbols(source_of, "--undefined-only")]
    return [(path, symbol, owners[symbol]) for path, symbol in needed if symbol in owners]


built = pytest.mark.skipif(len(objects()) < 50, reason=f"no objects of the library in {OBJECTS}: run make first")


@built
def test_no_folder_calls_one_that_comes_after_it():
    assert calls()
    assert [f"{user.name} ({folder_of(user)}) needs {symbol} of {owner.name} ({folder_of(owner)})"
            for user, symbol, owner in calls() if order(folder_of(owner)) > order(folder_of(user))] == []


# ---- circles ---------------------------------------------------------------------------------------------------------


def circle(needs):
    """Returns the names that need each other: repeatedly removes names that need no other name, or that no other name
    needs."""
    left = dict(needs)
    while free := [name for name, wanted in left.items() if not wanted & left.keys()]:
        for name in free:
            del left[name]
    while unneeded := [name for name in left if not any(name in wanted for wanted in left.values())]:
        for name in unneeded:
            del left[name]
    return sorted(left)


@built
def test_files_of_a_folder_call_each_other_in_no_circle():
    needs = {path.name: set() for path in sources()}
    for user, _, owner in calls():
        if folder_of(user) == folder_of(owner) and user != owner:
            needs.setdefault(user.name, set()).add(owner.name)
    assert circle(needs) == []


def test_headers_of_a_folder_include_each_other_in_no_circle():
    needs = {str(path.relative_to(SOURCE)): set(includes(path)) for path in sources() if path.suffix in (".h", ".cuh")}
    assert circle(needs) == []

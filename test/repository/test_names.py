"""Private functions end in _, and a type has one meaning in the whole program.

Functions are read from the sources: a definition outside of braces is a function if parentheses precede its body.
"""

import collections
import re

from trainer_runs import ROOT

FILES = sorted(path for path in [*ROOT.glob("*.[ch]"), *ROOT.glob("*.cu"), *(ROOT / "src").rglob("*.*")]
               if path.suffix in (".c", ".h", ".cpp", ".cu", ".cuh"))
SPECIFIERS = re.compile(r"__(?:attribute|launch_bounds)__\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")
COMMENT, STRING = r"//[^\n]*|/\*.*?\*/", r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\''
DIRECTIVE = r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*"
NOISE = re.compile(f"{COMMENT}|{STRING}|{DIRECTIVE}", re.S | re.M)


def outside_of_braces(text):
    """Yields the text before each outermost opening brace. Namespaces and extern "C" do not count as braces."""
    depth = begin = 0
    for brace in re.finditer(r"[{};]", text):
        if brace.group() == "{":
            head = text[begin : brace.start()].strip()
            if depth == 0 and re.fullmatch(r"extern|namespace\b[\w\s]*", head):
                begin = brace.end()
                continue
            if depth == 0:
                yield head
            depth += 1
        elif brace.group() == "}":
            depth = max(0, depth - 1)
        if depth == 0:
            begin = brace.end()


def functions(path):
    """Yields (name, text before it) of every function that a file defines: a name, then parentheses up to the body."""
    for head in outside_of_braces(NOISE.sub("", path.read_text())):
        rest, depth = SPECIFIERS.sub("", head).strip(), 0
        for at in range(len(rest) - 1, -1, -1) if rest.endswith(")") else ():
            depth += {")": 1, "(": -1}.get(rest[at], 0)
            if depth == 0:
                found = re.fullmatch(r"(.*?)(\w+)\s*", rest[:at], re.S)
                if found and found.group(1).strip():
                    yield found.group(2), found.group(1)
                break


def definitions():
    """Returns (file, name, text before the name) of every function of the program."""
    return [(path, name, before) for path in FILES for name, before in functions(path)]


def declared():
    """Returns every function name that a header declares."""
    headers = [path.read_text() for path in FILES if path.suffix in (".h", ".cuh")]
    operations = {name for text in headers for name in re.findall(r"^\w*OPERATION\(\w+, (\w+),", text, re.M)}
    assert operations
    names = {name for text in headers for name in re.findall(r"(\w+)\)?\(", text)}
    return names | {f"{backend}_{name}" for backend in ("cpu", "cuda") for name in operations}


def test_functions_of_one_file_end_in_an_underscore():
    """Exceptions are main, and kernels (name_kernel), which appear in tables and profilers."""
    public = declared() | {"main"}
    found = definitions()
    assert found
    assert [f"{path.relative_to(ROOT)}: {name}" for path, name, before in found if path.suffix not in (".h", ".cuh")
            and (name not in public or "static" in before.split())
            and not name.endswith("_kernel" if "__global__" in before else "_")] == []


def test_functions_that_a_header_declares_have_no_underscore():
    names = {name for path, name, _ in definitions() if name.endswith("_") and path.suffix in (".h", ".cuh")}
    assert names == set()


def types(text):
    """Yields every name that a source makes a type: with its members, or as another name of a type."""
    text = SPECIFIERS.sub("", NOISE.sub("", text))
    yield from re.findall(r"\b(?:struct|union|enum|class) (\w+)[^;{}()=]*\{", text)
    yield from re.findall(r"\busing (\w+) =", text)
    yield from re.findall(r"^\} ?(\w+);", text, re.M)
    for meaning in re.findall(r"\btypedef\b([^;{]*);", text):
        opaque = re.fullmatch(r" (?:struct|union|enum) (\w+) \1", meaning)
        function = re.search(r"\(\*?(\w+)\)\(|(\w+)\(", meaning)
        if function:
            yield function[1] or function[2]
        elif not opaque:
            yield re.findall(r"\w+", re.sub(r"\[[^]]*\]", "", meaning))[-1]


def test_a_name_of_a_type_has_one_meaning():
    """A private function's name may repeat in another file; what a Link or a Piece is may not depend on the file.
    The exception is Event, which backend.h leaves to each backend."""
    files = collections.defaultdict(set)
    for path in FILES:
        for name in types(path.read_text()):
            files[name].add(str(path.relative_to(ROOT)))
    assert files.pop("Event") == {"src/cpu/backend_cpu.c", "src/cuda/backend_cuda.cpp"}
    assert {"Comm", "Backend", "Precision", "FoundRun", "MatmulKey"} <= files.keys()
    assert {name: sorted(where) for name, where in files.items() if len(where) > 1} == {}

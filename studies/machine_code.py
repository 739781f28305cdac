#!/usr/bin/env python3
"""Reads the machine code of our kernels out of libtrainer_cuda.so: registers, stack, spills and the widest access to
device memory, for each GPU generation that the library is built for.

    studies/machine_code.py                     table of the kernels that large models run
    studies/machine_code.py --all               every kernel
    studies/machine_code.py --write             writes the table into test/cuda/machine_code.txt, for the rows there

It needs cuobjdump and nvdisasm, from the CUDA toolkit or from scripts/install_deps.sh.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "test" / "cuda" / "machine_code.txt"
GENERATIONS = ("sm_80", "sm_90")
BF16 = "__nv_bfloat16"

class Kernel(NamedTuple):
    name: str  # "norm_kernel<bf16, 8, 2, false, 0>"
    registers: int
    stack: int  # bytes per thread
    spills: int  # instructions that read or write the stack
    load: int  # bytes of the widest access to device memory
    store: int


def find_tool(name):
    """Returns the path of a tool of the CUDA toolkit, or None."""
    folders = [*os.environ.get("PATH", "").split(":"), "/usr/local/cuda/bin",
               *map(str, ROOT.glob(".deps/cuda_tools/nvidia/*/bin"))]
    return shutil.which(name, path=":".join(folders))


def short_name(mangled):
    """Returns the readable form of a mangled name: `norm_kernel<bf16, 8, 2, false>`."""
    plain = subprocess.run(["c++filt", mangled], capture_output=True, text=True, check=True).stdout.strip()
    plain = re.sub(r"\(anonymous namespace\)::|^void ", "", plain).split("(")[0]
    plain = re.sub(r"\(\w+\)", "", plain)  # other versions of c++filt print (int)8, (bool)0
    return plain.replace(BF16, "bf16").strip()


def dump(library, generation, *options):
    environment = os.environ | {"PATH": f"{Path(find_tool('nvdisasm') or '/').parent}:{os.environ.get('PATH', '')}"}
    command = [find_tool("cuobjdump"), "-arch", generation, *options, str(library)]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout


def read_kernels(library, generation):
    """Returns all kernels of a library, by name."""
    usage = dump(library, generation, "-res-usage")
    sizes = {name: (int(registers), int(stack)) for name, registers, stack in
             re.findall(r"Function (\S+?):\s+REG:(\d+) STACK:(\d+)", usage)}
    kernels = {}
    for part in re.split(r"\n\s*Function : ", dump(library, generation, "-sass"))[1:]:
        mangled, code = part.split("\n", 1)
        if mangled.strip() not in sizes:
            continue

        found = {access: [int(bits or 32) // 8 for bits in
                          re.findall(rf"\b{access}G?\.E(?:\.(?!64|128)\w+)*(?:\.(64|128))?", code)]
                 for access in ("LD", "ST")}  # generic accesses, too, for pointers from a table
        spills = len(re.findall(r"\b(?:LDL|STL)\b", code))
        name = short_name(mangled.strip())
        kernels[name] = Kernel(name, *sizes[mangled.strip()], spills, max(found["LD"] or [0]), max(found["ST"] or [0]))
    return kernels


def compiler():
    """Returns the version of this machine's nvcc: each release allocates registers differently."""
    said = subprocess.run([find_tool("nvcc") or "false", "--version"], capture_output=True, text=True).stdout
    release = re.search(r"release ([\d.]+)", said)
    return f"nvcc {release[1]}" if release else "no nvcc"


def table(rows):
    """Returns [(what, {generation: Kernel})] as a Markdown table."""
    lines = ["| kernel | what | registers | stack | spills | load | store |", "|---|---|---|---|---|---|---|"]
    for name, what, kernels in rows:
        cells = [" / ".join(str(getattr(kernels[g], field)) for g in GENERATIONS)
                 for field in ("registers", "stack", "spills", "load", "store")]
        cells = [cell.split(" / ")[0] if len(set(cell.split(" / "))) == 1 else cell for cell in cells]
        lines.append(f"| `{name}` | {what} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def large_rows(library):
    """Returns the rows of the kernels that test/cuda/machine_code.txt names: the instances that bf16 models of configs/
    launch. For rows of up to 2,048 columns a thread processes one piece of 8, for up to 16,384 columns two pieces
    (row.cuh); for scores of 2,048 columns one piece."""
    large = re.findall(r"^\| `(.+?)` \| (.*?) \|", PAGE.read_text(), re.M)
    found = {generation: read_kernels(library, generation) for generation in GENERATIONS}
    missing = [name for name, _ in large if any(name not in found[g] for g in GENERATIONS)]
    if missing:
        sys.exit(f"{library} has no {missing[0]}: it was built from other sources than {PAGE} knows")
    return [(name, what, {g: found[g][name] for g in GENERATIONS}) for name, what in large]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=Path, default=ROOT / "build/release/libtrainer_cuda.so")
    parser.add_argument("--all", action="store_true", help="every kernel of the library")
    parser.add_argument("--write", action="store_true", help="write the table into test/cuda/machine_code.txt")
    asked = parser.parse_args()
    for tool in ("cuobjdump", "nvdisasm"):
        if find_tool(tool) is None:
            sys.exit(f"{tool} is missing: scripts/install_deps.sh fetches it")
    if not asked.library.exists():
        sys.exit(f"{asked.library} is missing: make gpu builds it")
    if asked.all:
        found = {generation: read_kernels(asked.library, generation) for generation in GENERATIONS}
        rows = [(name, "", {g: found[g][name] for g in GENERATIONS}) for name in sorted(found["sm_90"])]
    else:
        rows = large_rows(asked.library)
    if not asked.write:
        print(table(rows), end="")
        return
    PAGE.write_text(f"Compiled by {compiler()}:\n\n{table(rows)}")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Reads the machine code of our kernels out of libtrainer_cuda.so: registers, stack, spills and the widest access to
device memory, for each GPU generation that the library is built for.

    studies/machine_code.py                     table of the kernels that large models run
    studies/machine_code.py --all               every kernel
    studies/machine_code.py --write             writes the table into test/cuda/machine_code.txt

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

# The instances that bf16 models of configs/ launch. For rows of up to 2,048 columns a thread processes one piece of 8,
# for up to 16,384 columns two pieces (row.cuh); for scores of 2,048 columns one piece.
LARGE = {
    "adamw_kernel<bf16>": "AdamW, fp32 masters beside bf16 weights",
    "squares_kernel": "squared norms of gradients",
    "norms_kernel": "their sums, in double",
    "stats_kernel<bf16, 8>": "cross-entropy, statistics",
    "gradient_kernel<bf16, 8>": "cross-entropy, gradient",
    "embedding_kernel<bf16, 8>": "embedding",
    "embedding_backward_kernel<bf16, 8>": "its gradient",
    "position_backward_kernel<bf16, 8>": "gradient of positions",
    "norm_kernel<bf16, 8, 1, false, 0>": "RMSNorm, up to 2,048 columns",
    "norm_kernel<bf16, 8, 2, false, 0>": "RMSNorm, up to 16,384",
    "norm_kernel<bf16, 8, 1, true, 0>": "LayerNorm, up to 2,048 columns",
    "norm_kernel<bf16, 8, 2, true, 0>": "LayerNorm, up to 16,384",
    "norm_backward_kernel<bf16, 8, 1, false, 256>": "RMSNorm backward, up to 2,048 columns",
    "norm_backward_kernel<bf16, 8, 2, false, 1024>": "RMSNorm backward, up to 16,384",
    "norm_backward_kernel<bf16, 8, 1, true, 256>": "LayerNorm backward, up to 2,048 columns",
    "norm_backward_kernel<bf16, 8, 2, true, 640>": "LayerNorm backward, 8,200 to 10,240 (GPT-3 96B)",
    "norm_backward_kernel<bf16, 8, 2, true, 1024>": "LayerNorm backward, other rows up to 16,384",
    "column_sums_kernel<bf16, 8>": "gradients of biases",
    "finish_kernel": "sums of blocks",
    "swiglu_kernel<bf16, 8, 0>": "SwiGLU",
    "swiglu_backward_kernel<bf16, 8, 0>": "its backward",
    "norm_kernel<bf16, 8, 2, false, 3>": "RMSNorm to 8 bits with scales of 128",
    "norm_kernel<bf16, 8, 2, true, 3>": "LayerNorm to 8 bits with scales of 128",
    "swiglu_kernel<bf16, 8, 3>": "SwiGLU to 8 bits with scales of 128",
    "swiglu_backward_kernel<bf16, 8, 3>": "its backward, also to 8 bits",
    "swiglu_scaled_backward_kernel<bf16, 8>": "SwiGLU's backward with a factor per row",
    "route_kernel": "router, choice and weights of experts",
    "route_backward_kernel<bf16>": "its backward",
    "counts_kernel": "rows of each expert",
    "places_kernel": "their order",
    "scatter_kernel<4>": "rows to their experts",
    "gather_kernel<4>": "rows back",
    "rows_combine_kernel<bf16, 8>": "sum of a row's copies",
    "map_kernel<Gelu, bf16, bf16, bf16, 8>": "GELU",
    "map_kernel<GeluSlope, bf16, bf16, bf16, 8>": "its backward",
    "bias_kernel<bf16, 8>": "bias",
    "map_kernel<Sum, bf16, bf16, bf16, 8>": "sum of two",
    "rope_kernel<bf16, 8>": "rotations",
    "softmax_kernel<bf16, 8, 1>": "softmax of stored scores",
    "softmax_backward_kernel<bf16, bf16, 8, 1>": "its backward",
    "largest_kernel": "largest magnitude, for a scale per tensor",
    "quantize_kernel<1, false, false>": "to 8 bits with it",
    "quantize_kernel<1, true, false>": "its transpose",
    "quantize_kernel<3, false, false>": "to 8 bits with scales of 128",
    "quantize_kernel<3, true, false>": "its transpose",
    "quantize_kernel<3, true, true>": "its transpose, from 8 bits",
    "quantize_kernel<4, true, false>": "weights to 8 bits, transposed",
    "quantize_kernel<5, true, true>": "from 8 bits, with scales of 32",
    "join_kernel": "scales of gathered operands",
}


class Kernel(NamedTuple):
    name: str  # "norm_kernel<bf16, 8, 2, false, 0>"
    registers: int
    stack: int  # bytes a thread
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
    found = {generation: read_kernels(library, generation) for generation in GENERATIONS}
    missing = [name for name in LARGE if any(name not in found[g] for g in GENERATIONS)]
    if missing:
        sys.exit(f"{library} has no {missing[0]}: it was built from other sources than this script knows")
    return [(name, what, {g: found[g][name] for g in GENERATIONS}) for name, what in LARGE.items()]


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

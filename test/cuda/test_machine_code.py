"""The machine code of the kernels that large models run: 16-byte accesses and no spills, but for the ones listed."""

import sys

import pytest
from trainer_runs import ROOT, TOOLS

sys.path.insert(0, str(ROOT / "studies"))
import machine_code  # noqa: E402

LIBRARY = TOOLS.parent / "libtrainer_cuda.so"
# Bytes of stack a thread, at most. LayerNorm's backward shares a multiprocessor with other blocks where rows are
# shorter than 8,200 columns, and more registers would cost a block.
SPILLS = {"norm_backward_kernel<bf16, 8, 2, true, 1024>": 80}
# Kernels that access a few thousand doubles, block sums or scales, or a row's logits, not a complete tensor.
NARROW = {"norms_kernel", "finish_kernel", "join_kernel", "route_kernel", "route_backward_kernel<bf16>",
          "counts_kernel", "places_kernel"}

pytestmark = [
    pytest.mark.skipif(not LIBRARY.exists(), reason="libtrainer_cuda.so was not built (make gpu)"),
    pytest.mark.skipif(not all(map(machine_code.find_tool, ("cuobjdump", "nvdisasm"))),
                       reason="cuobjdump or nvdisasm is missing (scripts/install_deps.sh)"),
    pytest.mark.thorough,
]


@pytest.fixture(scope="module")
def rows():
    return machine_code.large_rows(LIBRARY)


def test_no_kernel_of_the_models_spills_but_those_that_are_listed(rows):
    for name, _, kernels in rows:
        for generation, kernel in kernels.items():
            assert kernel.stack <= SPILLS.get(name, 0), (generation, kernel)
            assert kernel.spills == 0 or name in SPILLS, (generation, kernel)


def test_tensors_are_read_and_written_16_bytes_at_a_time(rows):
    for name, _, kernels in rows:
        for generation, kernel in kernels.items():
            if name not in NARROW:
                assert kernel.load == 16, (generation, kernel)


def test_the_file_has_the_table_that_the_script_writes(rows):
    heading, table = machine_code.PAGE.read_text().split("\n\n", 1)
    if heading != f"Compiled by {machine_code.compiler()}:":
        pytest.skip(f"the file says \"{heading[:-1]}\", and this machine has {machine_code.compiler()}")
    assert table == machine_code.table(rows), "run studies/machine_code.py --write"

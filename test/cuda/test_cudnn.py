"""Our attention graphs, as cuDNN checks and builds them for four generations of GPUs, without a device or a driver."""

import os
import re

import pytest
from trainer_runs import ROOT, TOOLS, execute, shared_library

PROGRAM = TOOLS / "ask_cudnn"
STUB = "/usr/local/cuda/lib64/stubs/libcuda.so"
# batch, sequence, heads of one tensor rank, kv heads, head size, and that of values if it differs: LLaMA 65B and GPT-3
# 96B at t=4, grouped queries, and lengths that no tile divides. On Hopper two shapes are split into several calls, by
# sequences and by heads.
SHAPES = [
    (1, 2048, 16, 16, 128),
    (2, 2048, 26, 26, 96),
    (8, 2048, 16, 16, 128),
    (1, 16384, 16, 2, 128),
    (2, 200, 4, 4, 64),
    (1, 1000, 6, 3, 96),
]


def shapes_of_configs():
    """Returns the shapes of one tensor rank in every shipped bf16 configuration."""
    shapes = set()
    for path in ROOT.glob("configs/**/*.yaml"):
        text = path.read_text()
        number = {key: int(value) for key, value in re.findall(r"\b(\w+): *(\d+)\b", text)}
        if "precision: fp32" in text or "kv_lora" in number:
            continue
        heads, tensor = number["heads"], number.get("tensor", 1)
        dim = number.get("head_dim", number["hidden"] // heads)
        kv_heads = number.get("kv_heads", heads) // tensor
        shapes.add((number.get("micro_batch", 1), number["seq_len"], heads // tensor, kv_heads, dim))
    assert len(shapes) > 20
    return sorted(shapes)


# Lengths below one tile, with and without groups; one that is not a multiple of 8; statistics that are none of four.
SHORT = [(2, 64, 4, 4, 64), (1, 128, 8, 2, 128), (3, 129, 4, 4, 96), (2, 131, 3, 3, 64)]
CAPABILITIES = [80, 120, 90, 100]  # make test-all asks for every second one
# Latent attention of DeepSeek-V3 on eight tensor ranks, and its values padded to the queries' size.
LATENT, PADDED = (1, 4096, 16, 16, 192, 128), (1, 4096, 16, 16, 192)
DOCUMENTS = [(1, 512, 4, 4, 64), (2, 700, 6, 3, 96), (2, 128, 4, 2, 64), (1, 40, 4, 4, 64)]
IMPOSSIBLE = [(1, 256, 4, 4, 20), (1, 256, 4, 4, 264)]

# Calls that hand out a kernel or a library, and calls that only have to succeed; all others fail.
HANDS_OUT = {"cuLibraryLoadData", "cuLibraryGetKernel", "cuKernelGetFunction", "cuLibraryGetModule", "cuModuleLoadData",
             "cuModuleLoadDataEx", "cuModuleGetFunction"}
SUCCEEDS = {"cuKernelSetAttribute", "cuKernelGetAttribute", "cuFuncSetAttribute", "cuLibraryUnload", "cuModuleUnload"}

pytestmark = [
    pytest.mark.skipif(not PROGRAM.exists(), reason="ask_cudnn was not built: no cuDNN or no frontend (make found)"),
    pytest.mark.skipif(not os.path.exists(STUB), reason=f"{STUB} is missing, which the toolkit has for linking"),
]


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """Returns a folder with a stub libcuda.so.1 that exports every function of the driver."""
    folder = tmp_path_factory.mktemp("driver")
    listed = execute(["nm", "-D", "--defined-only", STUB]).stdout
    lines = []
    for name in (line.split()[2] for line in listed.splitlines() if line.split()[1] == "T"):
        if name in HANDS_OUT:
            lines.append(f"int {name}(void **made) {{ *made = (void *)1; return 0; }}")
        else:
            lines.append(f"int {name}(void) {{ return {0 if name in SUCCEEDS else 999}; }}")
    shared_library(folder / "libcuda.so.1", "\n".join(lines), "-w", "-Wl,-soname,libcuda.so.1")
    return folder


def ask(driver, capability, shapes, deterministic="auto", form="causal"):
    environment = os.environ | {"LD_LIBRARY_PATH": f"{driver}:{os.environ.get('LD_LIBRARY_PATH', '')}"}
    lines = "".join(" ".join(map(str, (*shape[:5], shape[-1], deterministic))) + "\n" for shape in shapes)
    ended = execute([PROGRAM, str(capability), form], input=lines, env=environment, limit=600)
    return ended.stdout.splitlines()


def check(driver, capability, shapes, deterministic):
    for shape, answer in zip(shapes, ask(driver, capability, shapes, deterministic), strict=True):
        assert not answer.startswith("none"), (shape, answer)
        workspace, planned = map(int, answer.split())
        assert workspace == planned, (shape, workspace, planned)


@pytest.mark.thorough
@pytest.mark.soak(2)
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_cudnn_builds_our_graphs_and_takes_the_workspace_that_is_planned(driver, capability):
    check(driver, capability, SHAPES, "auto")


@pytest.mark.thorough
@pytest.mark.soak
@pytest.mark.parametrize("begin", range(4))
@pytest.mark.parametrize("deterministic", ["on", "off"])
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_the_workspace_is_planned_for_either_backward(driver, capability, deterministic, begin):
    check(driver, capability, [*SHAPES, *SHORT, *shapes_of_configs()][begin::4], deterministic)


@pytest.mark.thorough
@pytest.mark.soak(2)
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_attention_of_encoders_takes_the_same_workspace(driver, capability):
    for answer in ask(driver, capability, SHAPES[:1] + SHAPES[2:], "auto", "full"):
        assert len(set(answer.split())) == 1, answer


@pytest.mark.thorough
@pytest.mark.soak(2)
@pytest.mark.parametrize("capability", CAPABILITIES)
def test_a_slice_of_four_takes_the_workspace_that_is_planned(driver, capability):
    """Its mask is aligned to the last key."""
    for deterministic in ("on", "off"):
        for answer in ask(driver, capability, [SHAPES[0], SHAPES[3], SHORT[2]], deterministic, "range"):
            assert len(set(answer.split())) == 1, answer


@pytest.mark.thorough
@pytest.mark.soak
@pytest.mark.parametrize("form", ["documents", "documents range"])
@pytest.mark.parametrize("capability,shapes", [(90, DOCUMENTS), (100, DOCUMENTS), (90, [(1, 8192, 8, 2, 128)])],
                         ids=["90", "100", "long"])
def test_documents_take_the_workspace_that_is_planned(driver, capability, shapes, form):
    """All kinds of calls: some documents of a sequence at a time, and the one that begins before a range."""
    for deterministic in ("on", "off"):
        for answer in ask(driver, capability, shapes, deterministic, form):
            assert len(set(answer.split())) == 1, answer


@pytest.mark.thorough
@pytest.mark.parametrize("capability", [80, 120])
def test_documents_have_no_deterministic_backward_on_amperes_kernels(driver, capability):
    (answer,) = ask(driver, capability, [(1, 512, 4, 4, 64)], "on", "documents")
    assert answer == "none: cuDNN: Deterministic algorithm is not supported for bprop thd on SM8X and SM12X GPUs"


@pytest.mark.thorough
@pytest.mark.parametrize("deterministic", ["on", "off"])
def test_latent_attention_has_flash_on_hopper_and_only_with_narrow_values_on_blackwell(driver, deterministic):
    check(driver, 90, [LATENT, PADDED], deterministic)
    check(driver, 100, [LATENT], deterministic)
    for capability, shapes in ((80, [LATENT]), (100, [PADDED]), (120, [LATENT])):
        (answer,) = ask(driver, capability, shapes, deterministic)
        assert answer.startswith("none: ")


@pytest.mark.thorough
def test_shapes_that_cudnn_does_not_know_are_refused(driver):
    """Programs refuse them with the same rule: an answer that they would not give begins with an exclamation mark."""
    assert all(answer.startswith("none: ") for answer in ask(driver, 90, IMPOSSIBLE))
    assert all("none: " in answer for answer in ask(driver, 90, [(1, 256, 5, 2, 64)]))

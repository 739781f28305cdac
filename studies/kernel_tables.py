#!/usr/bin/env python3
"""Makes src/config/gpu_kernels.c: times of products, attention and collectives on a GPU, from published tables.

    studies/kernel_tables.py CHECKOUT [-o FILE]
    studies/kernel_tables.py CHECKOUT --check      mean errors of products on the tables that are not used

CHECKOUT is a clone of ai-dynamo/aiconfigurator (Apache-2.0). Its tables are parquet files (needs pyarrow and numpy).
Attention is read from test/plan/kernels/attention.csv, products that add to fp32 from measured.csv there. Three
constants are fitted to each table of products and two to each of attention, by least absolute relative errors;
collectives are copied. No training run is used.
"""

import argparse
import statistics
import sys
from pathlib import Path

import numpy as np
from common import ROOT, csv_rows
from prepare.tokenizer import library
from run_files import Failure, finish, write_file

DATA = Path("aic-core/src/aiconfigurator_core/systems/data")
KERNELS = ROOT / "test" / "plan" / "kernels"
CAPPED = 0.85  # share of a burst at the power limit, where no table has it; H200, B200, GB200: 0.85, 0.88, 0.81
ADDED = 0.42  # the H200's value, for GPUs that were not measured
EIGHT = "trtllm/1.3.0rc20"  # tables of 8-bit products, and of the passes that quantize
H200_MEMORY = 4800e9  # bytes/s, by its data sheet
MIB = (1, 4, 16, 32, 64, 128, 256, 512)
KINDS = ("all_gather", "reduce_scatter", "all_reduce", "alltoall")

# GPU: peak TFLOP/s, tables of products, factor of their rate, attention, the GPU of the heads' table, its factor of
# multiprocessors, collectives, the share of the memory's rate that norms reach, and the system of 8-bit products.
ROWS = {
    "a100": (312, ["a100_sxm/gemm/sglang/0.5.10", "a100_sxm/gemm/trtllm/1.0.0"], 1, "a100", "heads_a100", 1,
             "a100_sxm/comm/nccl/2.27.3", 0.8, None),
    "h100": (989.5, ["h200_sxm/gemm/vllm/0.22.0"], 1, "h200", "heads_a100", 132 / 108, "h100_sxm/comm/nccl/2.29.2",
             0.76, "h100_sxm"),
    "h200": (989.5, ["h200_sxm/gemm/vllm/0.22.0"], 1, "h200", "heads_a100", 132 / 108, "h200_sxm/comm/nccl/2.29.2",
             0.76, "h200_sxm"),
    "b200": (2250, ["b200_sxm/gemm/vllm/0.22.0"], 1, "gb200", "heads_b200", 1, "b200_sxm/comm/nccl/2.29.2", 0.72,
             "b200_sxm"),
    "b300": (2250, ["b300_sxm/gemm/vllm/0.24.0"], CAPPED, "gb300", "heads_b200", 1, None, 0.72, "b300_sxm"),
    "gb200": (2500, ["gb200/gemm/vllm/0.22.0"], 1, "gb200", "heads_b200", 1, "gb200/comm/nccl/2.29.2", 0.72, "gb200"),
    "gb300": (2500, ["gb300/gemm/vllm/0.24.0"], CAPPED, "gb300", "heads_b200", 1, None, 0.72, "gb300"),
    "l40s": (362, ["l40s/gemm/vllm/0.24.0"], 1, None, None, 1, None, 0.8, None),
}
PEAKS = {"a100": 312, "h200": 989.5, "h200_trainer": 989.5, "gb200": 2500, "gb300": 2500, "heads_a100": 1,
         "heads_b200": 1}


def table(path):
    if not path.exists():
        raise Failure(f"{path}: no such table; clone ai-dynamo/aiconfigurator with its data")
    return library("pyarrow.parquet", "reads the tables").read_table(path).to_pydict()


def least(columns, measured):
    """Returns coefficients for which the sum of columns has the least relative errors, and the mean error."""
    a, weight = np.stack(columns, 1) / measured[:, None], np.ones(len(measured))
    for _ in range(30):
        x = np.linalg.lstsq(a * weight[:, None], weight, rcond=None)[0]
        weight = 1 / np.sqrt(np.maximum(abs(a @ x - 1), 1e-3))
    return x, float(np.mean(abs(a @ x - 1)))


def timed_products(path, peak):
    """Returns k, seconds at the peak, and measured seconds of every product with a size that trainings use."""
    rows = table(path)
    keep = [i for i, kind in enumerate(rows["gemm_dtype"]) if kind in ("bfloat16", "float16")]
    m, n, k, ms = (np.array([rows[name][i] for i in keep], float) for name in ("m", "n", "k", "latency"))
    used = (m >= 512) & (m <= 16384) & (n >= 256) & (n <= 16384) & (k >= 256) & (k <= 16384)
    return k[used], (2 * m * n * k / (peak * 1e12))[used], ms[used] / 1e3


def products(path, peak):
    """Returns share, us, k0 of: seconds = flops (1 + k0 / k) / (peak share) + us; and the mean error."""
    k, flops, seconds = timed_products(path, peak)
    x, error = least([flops, flops / k, np.full(len(k), 1e-6)], seconds)
    return 1 / x[0], x[2], x[1] / x[0], error


def gains_of_8_bits(checkout, system):
    """Returns the median speed-up over bf16 of products with sides of 4,096 to 16,384: with one scale per tensor, and
    with local scales. The tables' times include quantizing the input, which plans count as separate passes. So the
    measured times of these passes are subtracted: for one scale per tensor two passes (scale, numbers), for local
    scales one (numbers). A speed-up is at most 2, the ratio of the peaks."""
    rows, passes = table(checkout / DATA / system / "gemm" / EIGHT / "gemm_perf.parquet"), {}
    for name in ("computescale", "scale_matrix"):
        apart = table(checkout / DATA / system / "quantize" / EIGHT / f"{name}_perf.parquet")
        passes[name] = dict(zip(zip(apart["m"], apart["k"], strict=True), apart["latency"], strict=True))
    times = {}
    for kind, m, n, k, ms in zip(*(rows[name] for name in ("gemm_dtype", "m", "n", "k", "latency")), strict=True):
        if 4096 <= min(m, n, k) and max(m, n, k) <= 16384:
            times.setdefault((m, n, k), {})[kind] = ms
    gains = []
    for kind, inside in (("fp8", ("computescale", "scale_matrix")), ("fp8_block", ("scale_matrix",))):
        ratios = [at["bfloat16"] / (at[kind] - sum(passes[name][m, k] for name in inside))
                  for (m, _, k), at in times.items() if kind in at and all((m, k) in passes[name] for name in inside)]
        gains.append(min(2.0, statistics.median(ratios)))
    return gains


def check(checkout):
    """Prints the mean errors of each GPU's three constants on its other tables. Each table has its own factor, since
    bursts and other libraries reach different rates."""
    for word, (peak, tables, *_) in ROWS.items():
        constants = [products(checkout / DATA / name / "gemm_perf.parquet", peak)[:3] for name in tables]
        share, us, k0 = (sum(x) / len(x) for x in zip(*constants, strict=True))
        gpu = {"a100": "a100_sxm", "h100": "h100_sxm"}.get(word, tables[0].partition("/")[0])
        errors, levels = [], []
        for path in sorted((checkout / DATA / gpu / "gemm").glob("*/*/gemm_perf.parquet")):
            k, flops, seconds = timed_products(path, peak)
            if str(path.relative_to(checkout / DATA).parent) in tables or len(k) < 1000:
                continue
            formula = flops * (1 + k0 / k) / share + us * 1e-6
            x, error = least([formula], seconds)
            errors.append(error)
            levels.append(x[0])
        print(f"{word:6} {len(errors)} tables, mean errors {min(errors):.3f} to {max(errors):.3f},"
              f" middle {sorted(errors)[len(errors) // 2]:.3f}; their times are {min(levels):.2f} to {max(levels):.2f}"
              " of the formula's")


def attention_rows(gpu, kind):
    rows = [row for row in csv_rows(KERNELS / "attention.csv") if row["gpu"] == gpu]
    return [(float(row["heads"]), float(row["seq"]), float(rate)) for row in rows if (rate := row[kind] or row["both"])]


def blocks(heads, seq):
    return heads * -(-seq // 128)


def fill_of(gpu, kind):
    """Returns f of x / (x + f): the number of blocks of 128 positions that fill half of the device."""
    rows = attention_rows(gpu, kind)

    def error(f):
        level = sum(t * (blocks(h, s) + f) / blocks(h, s) for h, s, t in rows) / len(rows)
        return sum(abs(level * blocks(h, s) / (blocks(h, s) + f) / t - 1) for h, s, t in rows)

    return min(range(5, 1000, 5), key=error)


def attention(gpu, kind, fill):
    """Returns share and half of: rate = peak share s / (s + half) x / (x + fill); and the mean error."""
    rows = attention_rows(gpu, kind)
    heads, seq, tflops = (np.array(x) for x in zip(*rows, strict=True))
    filled = blocks(heads, seq) / (blocks(heads, seq) + fill)
    seconds = 1 / tflops
    x, error = least([1 / filled, 1 / (filled * seq)], seconds)
    return 1 / x[0] / PEAKS[gpu], max(0.0, x[1] / x[0]), error


def attention_at_once(gpu, kind):
    """Returns share, half and fill for rows that differ in positions and in blocks, and the mean error."""
    error, fill = min((attention(gpu, kind, fill)[2], fill) for fill in range(5, 400))
    return *attention(gpu, kind, fill)[:2], fill, error


def added(share, us, k0, peak, memory):
    """Returns the extra time of a product that adds to fp32 in memory, relative to moving 8 bytes per weight."""
    found = []
    for row in csv_rows(KERNELS / "measured.csv"):
        tokens, weights = float(row["rows"]), float(row["in"]) * float(row["out"])
        flops = 2 * tokens * weights / 1e12
        plain = flops * (1 + k0 / tokens) / (peak * share) + us * 1e-6
        found.append((flops / float(row["weight"]) - plain) / (8 * weights / memory))
    return sum(found) / len(found)


def collectives(path):
    rows, found = table(path), {}
    for kind, ranks, size, ms, dtype in zip(
        *(rows[name] for name in ("op_name", "num_gpus", "message_size", "latency", "nccl_dtype")), strict=True):
        if dtype != "half" or kind not in KINDS or ms <= 0:
            continue
        size *= 2  # from elements to bytes
        factor = (2 if kind == "all_reduce" else 1) * (ranks - 1) / ranks
        found[kind, ranks, size] = round(factor * size / ms / 1e6)
    return [[found.get((kind, ranks, mib << 20), 0) for mib in MIB] for kind in KINDS for ranks in (2, 4, 8)]


HEAD = """// Measured kernels of GPUs. studies/kernel_tables.py made this file; the columns are in gpus.h.
//
// Products and collectives: tables of ai-dynamo/aiconfigurator (095f58a5, 2026-11, Copyright NVIDIA, Apache-2.0), in
// aic-core/src/aiconfigurator_core/systems/data. Products are taken at the power limit where such a table exists (H200,
// B200, GB200; H100 as H200), else in bursts (A100, L40S), or as 0.85 of a burst (B300, GB300). Attention on
// Hopper: this trainer's on an H200 at its power limit. Hopper's non-deterministic backward, GB200 (also for B200) and
// GB300: cuDNN 9.19 to 9.22, NVIDIA/cudnn-frontend@3929da2. A100: FlashAttention-2's own figures. Heads that fill a
// device: MooreThreads/SimuMax@4dcaae5 (A100, B200; Hopper: scaled by multiprocessors), or the same runs on the H200.
// Passes: RMSNorm's share of the memory's rate in cudnn-frontend's benchmarks. Products that add to fp32: measured with
// this trainer on the H200, used for all GPUs. 8-bit products: the tables of TensorRT-LLM 1.3.0rc20, less
// the passes that quantize.
#include "gpus.h"

#include <string.h>

// Bus bandwidth of NCCL in 1e9 bytes/s at 1, 4, 16, 32, 64, 128, 256 and 512 MiB: all-gather, reduce-scatter,
// all-reduce and all-to-all of 2, 4 and 8 ranks each. 0: not measured.
"""


def written(checkout):
    text, rows, known = [HEAD], [], {}
    for word, (peak, tables, factor, gpu, heads, scale, nccl, stream, eight) in ROWS.items():
        fitted = [products(checkout / DATA / name / "gemm_perf.parquet", peak) for name in tables]
        share, us, k, error = (sum(x) / len(x) for x in zip(*fitted, strict=True))
        errors = [error]
        cells = [f"{share * factor:.3g}, {us:.1f}, {k:.0f}"]
        for kind in ("fwd", "bwd"):
            if gpu is None:
                cells.append("{0.5, 500, 0}")
                continue
            fill = fill_of(heads, kind) * scale
            level, half, error = attention(gpu, kind, fill)
            if gpu == "h200" and kind == "fwd":
                level, half, fill, error = attention_at_once("h200_trainer", kind)
            errors.append(error)
            cells.append(f"{{{level:.3g}, {half:.0f}, {fill:.0f}}}")
        if gpu == "h200":
            rate = attention_at_once("h200_trainer", "bwd")[:3]
        elif gpu is None:
            rate = (0.5, 500, 0)
        else:
            extra, plain = (attention_rows(gpu, kind) for kind in ("bwd_deterministic", "bwd"))
            slow = sum(a[2] / b[2] for a, b in zip(extra, plain, strict=False)) / len(extra) if extra else 1
            rate = (level * slow, half, fill)
        cells.append("{" + "{:.3g}, {:.0f}, {:.0f}".format(*rate) + "}")
        name = "none_"
        if nccl is not None:
            name = word + "_"
            measured = collectives(checkout / DATA / nccl / "nccl_perf.parquet")
            lines = ",\n".join("    {" + ", ".join(map(str, row)) + "}" for row in measured)
            text.append(f"static const uint16_t {name}[GPU_COLLECTIVES][GPU_SIZES] = {{\n{lines}}};\n")
        adds = added(share, us, k, peak, H200_MEMORY * stream) if gpu == "h200" else ADDED
        gains = "{:.2f}, {:.2f}".format(*gains_of_8_bits(checkout, eight)) if eight is not None else "1, 1"
        known[word] = (cells, f"{gains}, {stream}, {adds:.2f}", name)
        apart = ", ".join(f"{error:.3f}" for error in errors)
        print(f"{word:6} {' '.join(cells)}; mean errors {apart}")
    aliases = {"a100": ["a100-40g", "a100-80g"], "h100": ["h100"]}
    for word, (cells, stream, name) in known.items():
        for alias in aliases.get(word, [word]):
            at = "NULL" if name == "none_" else name
            rows.append(f'    {{"{alias}", {", ".join(cells)}, {stream}, {at}}},')
            # Variants of the same chips with other links.
            for other in {"a100-80g": ["a800"], "h100": ["h800", "gh200"]}.get(alias, []):
                rows.append(f'    {{"{other}", {", ".join(cells)}, {stream}, NULL}},')
    text.append("\nstatic const GpuKernels kernels_[] = {\n" + "\n".join(rows) + "\n};\n")
    text.append("""
const GpuKernels *gpu_kernels(const Gpu *gpu) {
    for (size_t i = 0; gpu != NULL && i < sizeof kernels_ / sizeof *kernels_; i++)
        if (strcmp(kernels_[i].word, gpu->word) == 0) return &kernels_[i];
    return NULL;
}
""")
    return "".join(text)


def main(options):
    if options.check:
        return check(options.checkout)
    write_file(options.output, written(options.checkout))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="clone of ai-dynamo/aiconfigurator")
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "src/config/gpu_kernels.c", help="file to write")
    parser.add_argument("--check", action="store_true", help="only print the errors on other tables")
    sys.exit(finish("kernel_tables", main, parser.parse_args()))

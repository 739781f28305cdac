"""Runs on the virtual GPU (docs/virtual.md): a small configuration, one run of a trainer of build/virtual, and cases
that must give a CPU's results in every order that events permit.

test/virtual runs each case in three orders with one seed, `make soak` with four more.
"""

import concurrent.futures
from typing import NamedTuple

import trainer_runs

VIRTUAL = trainer_runs.ROOT / "build" / "virtual"
FAMILIES = trainer_runs.FAMILIES
SMALL = {
    "llama": "{family: llama, hidden: 32, layers: 4, heads: 4, kv_heads: 2, ffn: 64, vocab: 61, seq_len: 16}",
    "gpt": "{family: gpt, hidden: 32, layers: 4, heads: 4, ffn: 64, vocab: 61, seq_len: 16}",
}
# Relative bounds: (losses, gradient norms).
BOUNDS = {"fp32": (1e-6, 1e-5), "bf16": (1e-3, 1e-2)}


class Case(NamedTuple):
    family: str
    options: tuple
    environment: dict = {}

    @property
    def precision(self):
        return "bf16" if "train.precision=bf16" in self.options else "fp32"


def case(family, *options, **environment):
    return Case(family, options, environment)


BPIPE = ("parallel.pipeline=4", "schedule.bpipe=on")
WIDE = ("parallel.pipeline=2", "parallel.tensor=2", "parallel.sequence=true")
DOCUMENTS = ("data.mask_documents=on", "data.reset_positions=on", "data.end_of_text=0")
# With 61 tokens, documents are longer and shorter than 64 tokens, flash's shortest kind.
LONG_DOCUMENTS = (*DOCUMENTS, "model.seq_len=192")
ENCODER = ("model.causal=false", "train.objective=masked", "data.mask_token=60")
EIGHT = ("train.precision=bf16", "model.hidden=64", "model.ffn=128", "model.seq_len=32")
# 32 tokens in slices of 8, so that keys of several slices exist at the same time.
SLICES = ("schedule.name=seq1f1b", "schedule.slices=4", "model.seq_len=32")
MUON = ("train.optimizer=muon",)
CONTEXT = ("parallel.context=2", "model.seq_len=32")
EXPERTS = ("model.experts=8", "model.experts_per_token=2", "model.expert_ffn=24", "parallel.data=2")
LATENT = (*EXPERTS, "model.kv_heads=4", "model.kv_lora=24", "model.q_lora=20", "model.nope_dim=8", "model.rope_dim=8",
          "model.v_dim=8", "model.router=sigmoid", "train.balance=bias", "parallel.expert=2")  # fmt: skip
APART = {"VIRTUAL_NODES": "2"}
ONE_GPU = {"VIRTUAL_GPUS": "1"}

CASES = {
    f"{pipeline} of {family} in {precision}": case(family, f"parallel.pipeline={pipeline}",
                                                   f"train.precision={precision}")
    for pipeline in (2, 4, 1)
    for family in FAMILIES
    for precision in BOUNDS
} | {
    # Targets of evictions.
    "evictions into the partner's memory": case("llama", *BPIPE),
    "evictions over messages": case("llama", *BPIPE, **APART),
    "evictions to host memory": case("gpt", *BPIPE, "schedule.evict_to=host"),
    "evictions of two chunks": case("llama", *BPIPE, "model.layers=8", "schedule.name=interleaved",
                                    "train.precision=bf16"),
    "evictions of groups": case("gpt", "parallel.pipeline=2", "schedule.bpipe=on", "schedule.name=gis",
                                "schedule.evict_to=host"),
    "evictions of a V": case("llama", "parallel.pipeline=2", "schedule.bpipe=on", "schedule.name=zb-v",
                             "schedule.evict_to=host"),
    "evictions and messages by NCCL inside a node": case("llama", *BPIPE, VIRTUAL_PEERS="0"),
    "a GPU for all stages": case("llama", *BPIPE, "hardware.share_gpu=true", **ONE_GPU),
    "a GPU for two tensor and two data ranks": case("gpt", "parallel.tensor=2", "parallel.data=2",
                                                    "hardware.share_gpu=true", "train.precision=bf16", **ONE_GPU),
    # Tensor and data ranks.
    "two tensor ranks": case("llama", *WIDE),
    "two tensor ranks over NCCL": case("llama", *WIDE, "parallel.collectives=nccl", "parallel.overlap=2"),
    # Of NCCL's kernels on a rank, those of 88 blocks carry collectives and those of 24 messages.
    "two tensor and two context ranks whose GPUs cannot map each other": case(
        "llama", *WIDE, *CONTEXT, "schedule.name=interleaved", VIRTUAL_PEERS="0"),
    "two tensor ranks in bf16": case("gpt", *WIDE, "train.precision=bf16"),
    "a split backward on two tensor ranks": case("gpt", *WIDE, "schedule.split_backward=on"),
    "a forward in three uneven strips": case("llama", *WIDE, "parallel.overlap=3", "schedule.recompute_layers=1"),
    "a forward in four strips in bf16": case("gpt", *WIDE, "parallel.overlap=4", "train.precision=bf16"),
    "a forward in four strips on four ranks": case("gpt", "parallel.tensor=4", "parallel.sequence=true",
                                                   "parallel.overlap=4"),
    "a forward in strips on one GPU": case("llama", "parallel.tensor=2", "parallel.sequence=true", "parallel.overlap=4",
                                           "hardware.share_gpu=true", **ONE_GPU),
    "copies between tensor ranks on one GPU": case("gpt", *WIDE, "parallel.overlap=2", "hardware.share_gpu=true",
                                                   "parallel.collectives=copy", "train.precision=bf16", **ONE_GPU),
    "two tensor ranks with whole sequences": case("gpt", "parallel.tensor=2", "parallel.sequence=false"),
    "two data ranks on two nodes": case("gpt", "parallel.pipeline=2", "parallel.data=2", "parallel.placement=linear",
                                        **APART),
    # Muon's homes and gathers, and sums and broadcasts with a root.
    "Muon on two stages": case("gpt", "parallel.pipeline=2", *MUON),
    "Muon on two data ranks": case("llama", "parallel.data=2", *MUON),
    "Muon on two tensor and two data ranks in bf16": case("gpt", "parallel.tensor=2", "parallel.data=2",
                                                          "train.precision=bf16", *MUON),
    "Muon on a GPU for two tensor and two data ranks": case("llama", "parallel.tensor=2", "parallel.data=2",
                                                            "hardware.share_gpu=true", *MUON, **ONE_GPU),
    # Rows that go to the ranks of their experts and back.
    "two ranks of experts on two stages": case("llama", *EXPERTS, "parallel.pipeline=2", "parallel.expert=2"),
    "four ranks of experts in bf16": case("llama", *EXPERTS, *WIDE, "parallel.pipeline=1", "parallel.expert=4",
                                          "train.precision=bf16"),
    "experts on every rank": case("llama", *EXPERTS, "parallel.expert=1"),
    "experts recomputed on the first stage": case("llama", *EXPERTS, "parallel.pipeline=2", "parallel.expert=2",
                                                  "schedule.recompute=[experts, none]"),
    "a GPU for two ranks of experts": case("llama", *EXPERTS, "parallel.expert=2", "hardware.share_gpu=true",
                                           **ONE_GPU),
    "ranks of experts on two nodes": case("llama", *EXPERTS, "parallel.expert=2", **APART),
    "Muon for two replicas of experts": case("llama", *EXPERTS, *WIDE, "parallel.pipeline=1", "parallel.expert=2",
                                             *MUON),
    "Muon for latent attention and experts in bf16": case("llama", *LATENT, "parallel.data=4", "train.precision=bf16",
                                                          *MUON),
    "latent attention and biased routers": case("llama", *LATENT, *WIDE),
    "latent attention and biased routers in bf16": case("llama", *LATENT, "train.precision=bf16"),
    "eight ranks": case("llama", *BPIPE, "parallel.tensor=2"),
    "eight ranks of three kinds on two nodes": case("gpt", *WIDE, "parallel.data=2", "train.precision=bf16", **APART),
    # Schedules with chunks and split backwards; at the turn of a V no message is sent.
    "gpipe": case("gpt", "parallel.pipeline=4", "schedule.name=gpipe"),
    "interleaved": case("llama", "parallel.pipeline=2", "schedule.name=interleaved"),
    "interleaved on two nodes": case("gpt", "parallel.pipeline=2", "schedule.name=interleaved", **APART),
    "gis": case("llama", "parallel.pipeline=2", "schedule.name=gis"),
    "v-half": case("gpt", "parallel.pipeline=2", "schedule.name=v-half"),
    "v-min in bf16": case("llama", "parallel.pipeline=2", "schedule.name=v-min", "train.precision=bf16"),
    "zb-v": case("llama", "parallel.pipeline=4", "model.layers=8", "schedule.name=zb-v"),
    "zb-v on two nodes": case("gpt", "parallel.pipeline=2", "schedule.name=zb-v", **APART),
    "dualpipe-v": case("gpt", "parallel.pipeline=2", "schedule.name=dualpipe-v"),
    # Products of 8 bits.
    "fp8 with a scale per tensor": case("gpt", *BPIPE, *EIGHT, "train.fp8=tensor"),
    "fp8 with scales of blocks on two tensor ranks": case("llama", *WIDE, *EIGHT, "train.fp8=block"),
    "fp8 with scales of 32": case("llama", *EIGHT, "train.fp8=mx", "hardware.gpu=b200"),
    # Attention.
    "stored and recomputed attention": case("llama", "parallel.pipeline=2", "attention.mode=[none, flash]",
                                            "train.precision=bf16"),
    "attention in separate passes": case("gpt", "attention.mode=none", "attention.softmax=unfused"),
    "documents": case("gpt", *BPIPE, *DOCUMENTS),
    "documents in flash": case("llama", "parallel.pipeline=2", *LONG_DOCUMENTS, "schedule.micro_batch=2",
                               "train.precision=bf16"),
    "documents in flash on a rank with one head, at an odd length": case(
        "llama", "parallel.tensor=4", "parallel.sequence=false", *LONG_DOCUMENTS, "model.seq_len=191",
        "model.kv_heads=4", "schedule.micro_batch=2", "train.global_batch=2", "train.precision=bf16"
    ),
    "documents on two tensor ranks in bf16": case("llama", *WIDE, *DOCUMENTS, "train.precision=bf16"),
    "an encoder": case("gpt", "parallel.pipeline=2", *ENCODER, "train.precision=bf16"),
    "an encoder with stored attention": case("llama", *WIDE, *ENCODER, "attention.mode=none"),
    # Slices of sequences, with keys and their gradients from slice to slice.
    "slices on four stages in bf16": case("gpt", "parallel.pipeline=4", *SLICES, "train.precision=bf16"),
    "evictions of slices": case("llama", *BPIPE, *SLICES),
    "evictions of slices in bf16": case("gpt", *BPIPE, *SLICES, "train.precision=bf16", **APART),
    "slices of two chunks on two tensor ranks": case("llama", *WIDE, *SLICES, "schedule.name=interleaved",
                                                     "train.precision=bf16"),
    "slices with stored and recomputed attention": case("llama", "parallel.pipeline=2", *SLICES,
                                                        "attention.mode=[none, recompute]", "train.precision=bf16"),
    "slices of documents, recomputed": case("llama", "parallel.pipeline=2", *SLICES, *DOCUMENTS,
                                            "schedule.recompute_layers=1", "schedule.micro_batch=2"),
    "slices of documents in flash": case("gpt", "parallel.pipeline=2", *SLICES, *DOCUMENTS, "train.precision=bf16"),
    "context ranks of documents in flash": case("llama", *CONTEXT, *LONG_DOCUMENTS, "schedule.recompute_layers=1",
                                                "train.precision=bf16"),
    "slices and a split backward": case("gpt", "parallel.pipeline=2", *SLICES, "schedule.split_backward=on",
                                        "train.precision=bf16"),
    # Context ranks, with keys and their gradients from rank to rank.
    "two context ranks of four stages in bf16": case("gpt", *BPIPE, *CONTEXT, "train.precision=bf16"),
    "two context ranks on two nodes": case("llama", *BPIPE, *CONTEXT, "parallel.placement=linear", **APART),
    "four context ranks in bf16": case("llama", "parallel.pipeline=2", *CONTEXT, "parallel.context=4",
                                       "schedule.name=v-half", "train.precision=bf16"),
    # Sums over data ranks and of the tied weight share a stream, and so 16 blocks.
    "two context ranks of two tensor ranks in bf16": case(
        "gpt", *WIDE, *CONTEXT, "parallel.overlap=2", "train.precision=bf16", "model.tie_embeddings=true",
        "parallel.placement=linear", **APART),
    "context, tensor and data ranks": case("llama", *CONTEXT, "parallel.tensor=2", "parallel.data=2"),
    "context ranks of documents, stored and recomputed": case(
        "gpt", *CONTEXT, *DOCUMENTS, "parallel.pipeline=2", "attention.mode=[none, recompute]", "train.precision=bf16"),
    "context ranks with layers recomputed": case("llama", *CONTEXT, "schedule.recompute_layers=1",
                                                 "schedule.micro_batch=2", "train.precision=bf16"),
    "a GPU for two context ranks": case("llama", *CONTEXT, "hardware.share_gpu=true", **ONE_GPU),
    "layers recomputed": case("llama", "parallel.pipeline=2", "schedule.recompute_layers=1"),
    "outputs computed again": case("gpt", *BPIPE, "schedule.recompute=pointwise"),
    "outputs computed again on two tensor ranks": case("llama", *WIDE, "parallel.overlap=2",
                                                       "schedule.recompute=pointwise"),
    "outputs computed again after a split backward": case(
        "gpt", *WIDE, "schedule.split_backward=on", "schedule.recompute=[pointwise, none]", "train.precision=bf16"
    ),
    "evictions with data ranks between nodes": case("gpt", *BPIPE, "parallel.data=2", **APART),
} | {
    # Bounds of bf16 hide a gradient that lacks a part, so parts of sequences are compared in fp32.
    f"{part} of {what} of {family} in fp32": case(family, "parallel.pipeline=2", *options, *more)
    for part, options in {"slices": SLICES, "context ranks": CONTEXT}.items()
    for what, more in {"sequences": (), "documents": DOCUMENTS}.items()
    for family in FAMILIES
}


def write_config(folder, family, **sections):
    """Writes a small run's configuration into `folder`; sections replace the defaults."""
    for split in ("train", "val"):
        trainer_runs.write_tokens(folder / f"{split}.bin", trainer_runs.made_tokens(4000, 61, seed=len(split)))
    return trainer_runs.write_sections(folder, family, {
        "model": SMALL[family],
        "data": f"{{train: {folder}/train.bin}}",
        "train": "{global_batch: 8, steps: 2, lr: 1.0e-3, warmup_steps: 1}",
        "hardware": "{reserve_gib: 2}",
        **sections,
    })


def apart(options):
    """Returns the keys of the configuration among the options, and the variables of the environment, VIRTUAL_*."""
    variables = dict(option.split("=") for option in options if option.startswith("VIRTUAL_"))
    return [option for option in options if not option.startswith("VIRTUAL_")], variables


def environment(**changes):
    return trainer_runs.one_thread(**{"VIRTUAL_PATIENCE": "60", **changes})


def run(config, family, *overrides, arguments=(), resume=None, prefix=(), limit=300, code=0, **changes):
    """Runs a trainer of build/virtual to its end; on a virtual GPU, unless an override selects the CPU. changes: of the
    environment."""
    return trainer_runs.run(config, "hardware.device=cuda", *overrides, family=family, arguments=arguments,
                            program=VIRTUAL / f"train_{family}", resume=resume, prefix=prefix, limit=limit, code=code,
                            env=environment(**changes))


def on_cpu(config, family, *overrides, **keywords):
    kept = [option for option in overrides if not option.startswith("hardware.")]
    return run(config, family, *kept, "hardware.device=cpu", "hardware.peak_tflops=0.05", **keywords)


def differences(found, wanted, precision):
    """Returns the differences of two lists of steps (or validations) that exceed the bounds of the precision."""
    if len(found) != len(wanted) or not wanted:
        return [f"{len(found)} steps and not {len(wanted)}"]
    return [
        f"step {a['step']}: {key} {a[key]} and not {b[key]}"
        for a, b in zip(found, wanted)
        for key, bound in zip(("loss", "grad_norm"), BOUNDS[precision])
        if key in b and not (a[key] is not None and abs(a[key] - b[key]) <= bound * abs(b[key]))
    ]


def in_orders(folder, case, orders):
    """Runs a case in each order (a word, or "random" and a seed); checks against a CPU, and for equal bits."""
    # With 2 stages, 4 microbatches reach the steady state and fill a rank's batch; these cases need 8.
    batch = 8 if {"schedule.bpipe=on", "parallel.data=2", "parallel.pipeline=4"} & set(case.options) else 4
    train = f"{{global_batch: {batch}, steps: 2, lr: 1.0e-3, warmup_steps: 1}}"
    config = write_config(folder, case.family, train=train)
    words = [order.partition(" ") for order in orders]
    settings = [{"VIRTUAL_ORDER": order, "VIRTUAL_SEED": seed or "1"} for order, _, seed in words]
    # Two runs at a time: a single rank would leave the second core idle.
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        alone = pool.submit(on_cpu, config, case.family, *case.options)
        runs = [
            pool.submit(run, config, case.family, *case.options, **case.environment, **more) for more in settings
        ]
        wanted, found = alone.result(), [each.result() for each in runs]
    for each, more in zip(found, settings):
        assert differences(each.steps, wanted.steps, case.precision) == [], more
        assert each.bits == found[0].bits, more
    return found

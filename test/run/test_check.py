"""--check: before a long run it measures devices, links and files, names the slow ones, and leaves nothing behind.

On CPUs, a rank or a link is made slower from outside, by far more than other programs could make it. On virtual GPUs
time is simulated, so the figures are exact."""

import json
import os
import re

import pytest

import trainer_runs
from trainer_runs import ROOT, execute, preload, run, write_config

pytestmark = pytest.mark.usefixtures("ranks")
VIRTUAL = ROOT / "build" / "virtual" / "train_llama"

# A library to preload: products of rank SLOW_PRODUCT, and large messages from rank SLOW_FROM to rank SLOW_TO of a group
# with as many ranks as the job, take some more milliseconds.
SLOWER = r"""
#include <mpi.h>
#include <stdint.h>
static int is_rank(const char *name) {
    const char *given = getenv(name), *own = getenv("OMPI_COMM_WORLD_RANK");
    return given != NULL && own != NULL && atoi(given) == atoi(own);
}
int dnnl_sgemm(char a, char b, int64_t m, int64_t n, int64_t k, float alpha, const float *A, int64_t lda,
               const float *B, int64_t ldb, float beta, float *C, int64_t ldc) {
    if (is_rank("SLOW_PRODUCT")) usleep(20000);
    return REAL(dnnl_sgemm)(a, b, m, n, k, alpha, A, lda, B, ldb, beta, C, ldc);
}
int MPI_Isend(const void *from, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request) {
    int size;
    PMPI_Comm_size(comm, &size);
    if (is_rank("SLOW_FROM") && getenv("SLOW_TO") != NULL && to == atoi(getenv("SLOW_TO")) && count >= 1 << 20 &&
        size == 4)
        usleep(100000);
    return PMPI_Isend(from, count, type, to, tag, comm, request);
}
"""


@pytest.fixture(scope="module")
def slower(tmp_path_factory):
    return preload(tmp_path_factory.mktemp("slower") / "slower.so", SLOWER, compiler="mpicc")


def check(config, *overrides, **env):
    ended = run(config, "schedule.bpipe=off", *overrides, arguments=["--check", "--json"],
                env=trainer_runs.one_thread(**env), code=None)
    assert ended.code in (0, 1), ended.stderr
    assert ended.lines == []  # no metrics
    return ended, json.loads(ended.stdout)


def test_every_rank_and_link_of_the_layout_is_measured(tmp_path):
    config = write_config(tmp_path)
    folder = tmp_path / "saved" / "deep"
    ended, found = check(config, "parallel.pipeline=2", "parallel.tensor=2", "parallel.data=2",
                         f"checkpoint.dir={folder}")
    assert [rank["rank"] for rank in found["ranks"]] == list(range(8))
    links = {(link["kind"], tuple(link["ranks"])) for link in found["links"]}
    ranks = json.loads(json.dumps(sorted(links)))
    kinds = {kind: [list(of) for k, of in links if k == kind] for kind, _ in links}
    assert set(kinds) == {"tensor", "data", "pipeline"}, ranks
    for kind in ("tensor", "data"):
        assert sorted(sum(kinds[kind], [])) == list(range(8)) and all(len(group) == 2 for group in kinds[kind]), ranks
    assert len(kinds["pipeline"]) == 8 and all([b, a] in kinds["pipeline"] for a, b in kinds["pipeline"]), ranks
    assert all(rank["tflops"] > 0 and rank["write_gb_s"] > 0 and rank["read_ms"] > 0 for rank in found["ranks"])
    assert found["step_ms"] > 0 and found["step_ratio"] > 0
    assert (ended.code == 1) == (found["step_ratio"] > 1.05)
    assert not folder.exists() and not list(tmp_path.glob(".check*"))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_size_of_a_checkpoint_is_that_of_its_files(tmp_path, precision):
    """With Muon, most weights have one moment."""
    keys = ("parallel.pipeline=1", "schedule.bpipe=off", "train.optimizer=muon", f"train.precision={precision}",
            f"checkpoint.dir={tmp_path}/saved", "checkpoint.every=1", "train.steps=1")
    config = write_config(tmp_path)
    said = run(config, *keys, arguments=["--check"]).stdout
    told = re.search(r"saved \S+ \(([\d.]+) MiB, copied", run(config, *keys).stderr)[1]
    files = sum(file.stat().st_size for file in tmp_path.glob("saved/step_*/*.safetensors"))
    assert f"a checkpoint of {files / 1e9:.3g} GB takes about" in said and told == f"{files / 2**20:.1f}"


def test_a_full_disk_is_named(tmp_path):
    limited = ["bash", "-c", 'ulimit -f 9; exec "$@"', "-"]  # not a multiple of what is written at a time
    alone = ("parallel.pipeline=1", "schedule.bpipe=off", "model.seq_len=40", f"checkpoint.dir={tmp_path}/saved")
    ended = run(write_config(tmp_path), *alone, prefix=limited, arguments=["--check"], code=1)
    assert ended.said[-1].endswith("cannot write: File too large"), ended.stderr


def test_a_slow_rank_is_named(tmp_path, slower):
    ended, found = check(write_config(tmp_path), LD_PRELOAD=str(slower), SLOW_PRODUCT="2")
    assert ended.code == 1 and found["step_ratio"] > 2
    assert (found["slowest"]["kind"], found["slowest"]["rank"]) == ("product", 2)
    assert f"rank 2 (host {os.uname().nodename}): product" in ended.said[-1]
    assert "below the median; a step would take" in ended.said[-1]


@pytest.mark.thorough
def test_a_slow_link_is_named(tmp_path, slower):
    _, found = check(write_config(tmp_path), LD_PRELOAD=str(slower), SLOW_FROM="1", SLOW_TO="2")
    assert (found["slowest"]["kind"], found["slowest"]["rank"]) == ("pipeline", 1)
    assert "to rank 2: pipeline" in found["slowest"]["text"]


# ---- on virtual GPUs


def virtual(tmp_path, *overrides, arguments=(), code=0, **env):
    if not VIRTUAL.exists():
        pytest.skip("make virtual builds it")
    tokens = trainer_runs.write_tokens(tmp_path / "train.bin", trainer_runs.made_tokens(300000, 30000))
    texts = [f"data.train={tokens}", "data.val=", "data.val_every=0", "checkpoint.every=0", "model.layers=8"]
    options = trainer_runs.as_options(*texts, *overrides)
    command = [VIRTUAL, "-c", ROOT / "configs" / "llama65b.yaml", *options, "--check", *arguments]
    return execute(command, env=trainer_runs.one_thread(VIRTUAL_DRY="1", **env), code=code)


EIGHT = ("parallel.pipeline=2", "parallel.tensor=2", "parallel.data=2")
EXPERTS = ("parallel.pipeline=2", "parallel.tensor=1", "parallel.data=4", "parallel.expert=4", "model.experts=8",
           "model.experts_per_token=2", "model.expert_ffn=1536", "parallel.sequence=false", "parallel.placement=stages",
           "checkpoint.dir=")
NODES = (*EIGHT, "hardware.gpus_per_node=4", "parallel.placement=linear")


@pytest.mark.thorough
@pytest.mark.parametrize("overrides, nodes", [(EIGHT, 1), (("parallel.pipeline=4", "parallel.tensor=2",
                                                          "schedule.bpipe=on"), 1), (NODES, 2)])
def test_good_gpus_are_as_fast_as_planned(tmp_path, overrides, nodes):
    ended = virtual(tmp_path, *overrides, arguments=["--json"], VIRTUAL_NODES=str(nodes))
    found = json.loads(ended.stdout)
    assert found["step_ratio"] == pytest.approx(1, abs=0.02) and found["slowest"] is None
    assert all(item["of_plan"] == pytest.approx(1, abs=0.1) for item in found["ranks"] + found["links"])


@pytest.mark.parametrize("overrides, rank", [(EIGHT, 5), (("parallel.pipeline=1", "parallel.tensor=2"), 1)])
def test_a_gpu_below_the_median_is_named_and_costs_what_it_takes(tmp_path, overrides, rank):
    ended = virtual(tmp_path, *overrides, VIRTUAL_SLOW=f"product@{rank}@1.125", code=1)
    assert ": product 11 % below the median\n" in ended.stdout and f"\nrank {rank} (host " in ended.stdout
    assert f"rank {rank} (host " in ended.stderr.splitlines()[-1]
    assert "a step would take 1.1" in ended.stderr.splitlines()[-1]


@pytest.mark.thorough
@pytest.mark.parametrize("overrides, nodes, kinds", [  # of the slow rank, which evicts if there are pairs
    (EIGHT, 1, {"tensor", "data", "pipeline"}),
    (NODES, 2, {"tensor", "data", "pipeline"}),
    (("parallel.pipeline=4", "parallel.tensor=2", "schedule.bpipe=on"), 1, {"tensor", "pipeline", "pair"}),
    (("parallel.pipeline=2", "parallel.tensor=2", "parallel.context=2"), 1, {"tensor", "context", "data", "pipeline"}),
    (EXPERTS, 1, {"experts", "data", "pipeline"}),
])
def test_slow_links_of_a_gpu_are_named(tmp_path, overrides, nodes, kinds):
    rank = 0 if "pair" in kinds else 6
    slower = {"VIRTUAL_NODES": str(nodes), "VIRTUAL_SLOW": f"links@{rank}@4"}
    ended = virtual(tmp_path, *overrides, arguments=["--json"], code=None, **slower)
    found = json.loads(ended.stdout)
    slow = [link for link in found["links"] if link["of_median"] < 0.6]
    assert {link["kind"] for link in slow} == kinds
    assert all(rank in link["ranks"] for link in slow), slow
    assert ended.code == (1 if found["step_ratio"] > 1.05 else 0)
